"""`vramcast host`: the host memory of a training job, line by line, against RAM, container and /dev/shm."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from vramcast.cli.options import add_language_flag
from vramcast.cli.output import print_report
from vramcast.cli.pictures import add_picture_flags, write_pictures
from vramcast.errors import InputError
from vramcast.host.entries import host_entries
from vramcast.host.forecast import HostForecast
from vramcast.host.host_job import (
    FORMATS,
    MODES,
    START_METHODS,
    HostData,
    HostJob,
    Loader,
    ModelOnHost,
)
from vramcast.host.host_job import token_batch as tensor_sizes
from vramcast.host.libraries import BUILDS, KNOWN
from vramcast.host.limits import Limits, read_limits
from vramcast.host.parquet import read_facts
from vramcast.ledger import Ledger
from vramcast.report.host_text import render_json, render_text
from vramcast.units import MiB, parse_bytes, parse_count

WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
LEAST = {
    "batch": 1,
    "compare_batch": 1,
    "seq": 1,
    "target_seq": 1,
    "workers": 0,
    "prefetch": 1,
    "gpus": 1,
}

MOST = 10**9  # beyond this a number is a typing mistake


def configure(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("data pipeline")
    data.add_argument(
        "--dataset",
        nargs="+",
        metavar="PARQUET",
        help="file, folder or pattern; only the footers are read",
    )
    data.add_argument("--columns", nargs="+", help="columns that are read (default all)")
    data.add_argument(
        "--dataset-mode", choices=MODES, default="row-groups", help="how LowMemDataset reads it"
    )
    data.add_argument(
        "--budget",
        default=None,
        help="memory budget of a reader in mode row-groups or mmap (default 256MiB)",
    )
    data.add_argument("--batch", type=int, default=8, help="rows per rank")
    data.add_argument("--seq", type=int, default=512, help="tokens per row")
    data.add_argument("--target-seq", type=int, help="length of labels (default --seq)")
    data.add_argument(
        "--compare-batch", type=int, help="also say what another batch size would change"
    )
    data.add_argument("--workers", type=int, default=0, help="DataLoader workers per rank")
    data.add_argument("--prefetch", type=int, help="batches that each worker prepares (default 2)")
    data.add_argument(
        "--start-method",
        choices=START_METHODS,
        default="fork",
        help="start method of worker processes",
    )
    data.add_argument(
        "--pin-memory", action="store_true", help="batches are copied to pinned memory"
    )
    data.add_argument(
        "--accelerate", action="store_true", help="Accelerate's loader holds one more batch"
    )
    data.add_argument(
        "--steady", action="store_true", help="workers use vramcast.runtime.return_large_blocks"
    )
    model = parser.add_argument_group("model")
    model.add_argument("--params", help="number of parameters, e.g. 188M")
    model.add_argument(
        "--weights", choices=tuple(WEIGHT_BYTES), default="fp32", help="dtype after loading"
    )
    model.add_argument(
        "--checkpoint-dtype",
        choices=tuple(WEIGHT_BYTES),
        help="dtype on disk (default --weights)",
    )
    model.add_argument(
        "--checkpoint", choices=FORMATS, default="safetensors", help="format on disk"
    )
    model.add_argument(
        "--full-init",
        action="store_true",
        help="low_cpu_mem_usage=False: initialised before loading",
    )
    model.add_argument(
        "--device-map", action="store_true", help="weights go straight from the file to the GPU"
    )
    model.add_argument(
        "--rank0-load", action="store_true", help="one rank loads, the others receive"
    )
    model.add_argument(
        "--offload",
        nargs="+",
        default=[],
        metavar="SIZE",
        help="sizes of buffers that each rank keeps in CPU memory",
    )
    model.add_argument(
        "--save",
        default="0",
        metavar="SIZE",
        help="size of the checkpoint that is gathered in CPU memory for saving",
    )
    node = parser.add_argument_group("node")
    node.add_argument("--gpus", type=int, default=1, help="ranks on this node")
    node.add_argument("--build", choices=BUILDS, default="cuda", help="build of torch")
    node.add_argument(
        "--imports",
        nargs="+",
        choices=sorted(KNOWN),
        default=["torch", "transformers", "pyarrow"],
        help="libraries that each rank imports",
    )
    node.add_argument("--ram", help="assume this much RAM instead of this machine's, e.g. 16GiB")
    node.add_argument("--shm", help="assume this size of /dev/shm, e.g. 64MiB (Docker's default)")
    parser.add_argument(
        "--json", action="store_true", help="every line with formula, origin and source"
    )
    add_language_flag(parser)
    add_picture_flags(parser, pictures=False)


def run(args: argparse.Namespace) -> int:
    job, limits = _job(args, args.batch), _limits(args)
    forecast = _forecast(job, limits)
    if args.html is not None:
        from vramcast.report.html_host import host_document

        text = render_text(forecast, job, lang=args.lang)
        write_pictures(args, lambda: host_document(forecast, text, args.lang))
    if args.json:
        print(json.dumps(render_json(forecast, job), indent=2))
    else:
        other = (
            None
            if args.compare_batch is None
            else _forecast(_job(args, args.compare_batch), limits)
        )
        print_report(render_text(forecast, job, other, args.lang))
    return 1 if forecast.fits is False else 0


def _forecast(job: HostJob, limits: Limits) -> HostForecast:
    ledger = Ledger(entries=host_entries(job))
    ledger.check()
    return HostForecast(ledger=ledger, limits=limits)


def _job(args: argparse.Namespace, batch: int) -> HostJob:
    for name, least in LEAST.items():
        value = getattr(args, name)
        if value is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')} {value}: at least {least}")
        if value is not None and value > MOST:
            raise InputError(f"--{name.replace('_', '-')} {str(value)[:40]}: at most {MOST}")
    return HostJob(
        ranks=args.gpus,
        build=args.build,
        imports=tuple(args.imports),
        model=_model(args),
        data=_data(args),
        loader=Loader(
            tensor_bytes=tensor_sizes(batch, args.seq, args.target_seq),
            workers=args.workers,
            prefetch=args.prefetch,
            pin_memory=args.pin_memory,
            start_method=args.start_method,
            accelerate=args.accelerate,
            steady=args.steady,
        ),
        offloaded_bytes=tuple(parse_bytes(size) for size in args.offload),
        save_bytes=parse_bytes(args.save),
    )


def _data(args: argparse.Namespace) -> HostData | None:
    if args.dataset is None:
        return None
    budget = 256 * MiB if args.budget is None else parse_bytes(args.budget)
    facts = read_facts(args.dataset, args.columns)
    if args.dataset_mode == "row-groups":
        facts.check_budget(budget)
    return HostData(facts=facts, mode=args.dataset_mode, budget_bytes=budget)


def _model(args: argparse.Namespace) -> ModelOnHost | None:
    if args.params is None:
        return None
    count = parse_count(args.params)
    return ModelOnHost(
        checkpoint_bytes=count * WEIGHT_BYTES[args.checkpoint_dtype or args.weights],
        weights_bytes=count * WEIGHT_BYTES[args.weights],
        format=args.checkpoint,
        low_cpu_mem=not args.full_init,
        straight_to_gpu=args.device_map,
        rank0_only=args.rank0_load,
        stays_on_host=args.build == "cpu",
    )


def _limits(args: argparse.Namespace) -> Limits:
    """This machine's, save what the user put in their place; another machine's free memory is unknown."""
    limits = read_limits()
    if args.ram is not None:
        ram_bytes = parse_bytes(args.ram)
        if ram_bytes < MiB:
            raise InputError(f"--ram {args.ram} is too small for a machine. Write it like 16GiB.")
        limits = replace(
            limits,
            ram_bytes=ram_bytes,
            available_bytes=None,
            cgroup_limit_bytes=None,
            cgroup_used_bytes=None,
        )
    return (
        limits
        if args.shm is None
        else replace(limits, shm_bytes=parse_bytes(args.shm), shm_free_bytes=None)
    )
