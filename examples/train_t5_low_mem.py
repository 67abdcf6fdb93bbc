"""Train a T5 chat model from parquet in little memory: predicted before, compared after.

    python examples/train_t5_low_mem.py --data chat.parquet --generate 2000 --size tiny --steps 20
    torchrun --nproc-per-node 2 examples/train_t5_low_mem.py --data chat.parquet --size tiny --steps 20
    accelerate launch --multi_gpu --num_processes 2 examples/train_t5_low_mem.py --data chat.parquet --steps 20

`--multi_gpu` is how Accelerate is asked for several processes, on a CPU too: with `--cpu` it starts one, whatever
`--num_processes` says, unless mpirun is there and given a host file.
The encoder and the embedding are frozen, as in fine-tuning on chats. Without a GPU it trains on the CPU with gloo.
Without `--tokenizer FOLDER` texts are encoded as bytes (ByT5's tokenizer needs no files).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, ByT5Tokenizer, T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

from vramcast.host.entries import host_entries
from vramcast.host.host_job import HostData, HostJob, Loader, ModelOnHost, token_batch
from vramcast.host.libraries import FORKED_WORKER_BYTES, KNOWN
from vramcast.host.processes import family_use
from vramcast.ledger import FORWARD, Ledger
from vramcast.runtime import (
    LoaderNeeds,
    LoaderPolicy,
    LowMemDataset,
    MemoryMonitor,
    PromptResponse,
    RowGroupSampler,
    TokenizeCollate,
    loader_policy,
    return_large_blocks,
)  # fmt: skip
from vramcast.units import format_bytes, parse_bytes

# The chat model: d_model 768, d_ff 3072, 12 heads, 10 + 10 layers; 187,692,288 parameters with 29,298 words.
SIZES = {
    "base": {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_heads": 12, "num_layers": 10},
    "small": {"d_model": 256, "d_ff": 1024, "d_kv": 64, "num_heads": 4, "num_layers": 4},
    "tiny": {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2},
}


def main() -> None:
    args = arguments()
    return_large_blocks()  # this process, too, makes and frees batches when there are no workers
    check_launch()
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), gradient_accumulation_steps=args.accumulate,
        mixed_precision="bf16" if torch.cuda.is_available() else "no",
    )  # fmt: skip
    with accelerator.main_process_first():
        if accelerator.is_local_main_process and args.generate and not args.data.exists():
            write_chats(args.data, args.generate)
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer) if args.tokenizer else ByT5Tokenizer()
    model, optimizer = build(args, len(tokenizer))
    # The tokenizer ends a text with its own mark, so none is written into the text.
    data = LowMemDataset(
        args.data, columns=["prompt", "response"], mode=args.mode, budget_bytes=parse_bytes(args.budget),
        transform=PromptResponse(eos=""),
    )  # fmt: skip
    job, policy = plan(args, accelerator, model, data)
    predicted = node_bytes(job)
    say(accelerator, report_before(args, model, policy, job, predicted))
    measured, losses, trained = train(args, accelerator, model, optimizer, data, tokenizer, policy)
    say(accelerator, report_after(predicted, measured, losses, trained))
    if accelerator.num_processes > 1:
        torch.distributed.destroy_process_group()


def check_launch() -> None:
    """`accelerate launch --cpu --num_processes 2` names a rendezvous and starts one process that nobody meets there."""
    if (
        "MASTER_ADDR" in os.environ
        and "RANK" not in os.environ
        and "ACCELERATE_USE_CPU" in os.environ
    ):
        sys.exit(
            "Accelerate starts one process with --cpu. For two: accelerate launch --multi_gpu --num_processes 2"
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="parquet with the columns prompt and response"
    )
    parser.add_argument(
        "--generate", type=int, default=0, help="write that many rows there if the file is missing"
    )
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--tokenizer", help="folder of a Hugging Face tokenizer")
    parser.add_argument("--mode", default="row-groups")
    parser.add_argument("--budget", default="64MiB")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--optimizer", choices=("adafactor", "adamw"), default="adafactor")
    parser.add_argument("--train-encoder", action="store_true", help="freeze nothing")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="stop after that many batches")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--state",
        type=Path,
        help="file that keeps where the data stands; resumed from if it exists",
    )
    return parser.parse_args()


def write_chats(path: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Longer than most --max-length, so that batches are full and memory is what full batches take.
    prompts = [f"第{n}个问题：{n}加{n % 7}等于几？" + "请一步一步地想。" * 20 for n in range(rows)]
    answers = [f"{n}加{n % 7}等于{n + n % 7}。" * 20 for n in range(rows)]
    pq.write_table(pa.table({"prompt": prompts, "response": answers}), path, row_group_size=1000)


def build(
    args: argparse.Namespace, vocab: int
) -> tuple[T5ForConditionalGeneration, torch.optim.Optimizer]:
    model = T5ForConditionalGeneration(config(args.size, vocab))
    if not args.train_encoder:
        for part in (model.shared, model.encoder):
            part.requires_grad_(False)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if args.optimizer == "adamw":
        return model, torch.optim.AdamW(trainable, lr=3e-4)
    return model, Adafactor(trainable, lr=1e-3, relative_step=False, scale_parameter=False)


def config(size: str, vocab: int) -> T5Config:
    return T5Config(
        **SIZES[size],
        vocab_size=vocab,
        tie_word_embeddings=False,
        decoder_start_token_id=0,
        pad_token_id=0,
        use_cache=False,
    )


def plan(
    args: argparse.Namespace,
    accelerator: Accelerator,
    model: T5ForConditionalGeneration,
    data: LowMemDataset[Any],
) -> tuple[HostJob, LoaderPolicy]:
    """The host side as a job, and loader settings that leave it room."""
    tensors = token_batch(args.batch, args.max_length)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    on_cpu = accelerator.device.type == "cpu"
    job = HostJob(
        ranks=int(os.environ.get("LOCAL_WORLD_SIZE", "1")), build="cpu" if torch.version.cuda is None else "cuda",
        imports=tuple(name for name in KNOWN if name in sys.modules),
        model=ModelOnHost(checkpoint_bytes=0, weights_bytes=weights, stays_on_host=on_cpu),
        data=HostData(facts=data.facts, mode=data.mode, budget_bytes=data.budget_bytes),
        states_bytes=state_bytes(args.optimizer, model, accelerator.num_processes) if on_cpu else 0,
        activations_bytes=saved_bytes(args, model) if on_cpu else 0,
    )  # fmt: skip
    facts, budget = data.facts, data.budget_bytes
    held = min(facts.table_budget_bytes(budget), facts.held_bytes) + facts.scratch_bytes(budget)
    policy = loader_policy(
        LoaderNeeds(
            batch_size=args.batch, tensor_bytes=tensors, worker_bytes=FORKED_WORKER_BYTES + held, dataset_bytes=held,
            main_bytes=weights + job.states_bytes + job.activations_bytes, uses_gpu=not on_cpu,
            lanes=RowGroupSampler(data, batch_size=args.batch, allow_uneven=True).lanes,
        )
    )  # fmt: skip
    loader = Loader(
        tensor_bytes=token_batch(policy.batch_size, args.max_length), workers=policy.num_workers,
        prefetch=policy.prefetch_factor, pin_memory=policy.pin_memory, steady=True,
    )  # fmt: skip
    return replace(job, loader=loader), policy


def state_bytes(optimizer: str, model: torch.nn.Module, ranks: int) -> int:
    """Gradients of what is trained, DDP's buckets, and the optimizer's states."""
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = sum(p.numel() * 4 for p in trained)
    factored = sum(
        4 * (sum(p.shape) if p.dim() >= 2 else p.numel()) for p in trained
    )  # rows + columns of a matrix
    return gradients * (2 if ranks > 1 else 1) + (
        factored if optimizer == "adafactor" else 2 * gradients
    )


def saved_bytes(args: argparse.Namespace, model: T5ForConditionalGeneration) -> int:
    """What autograd keeps for one full batch: counted on one row of full length, and multiplied."""
    ids = torch.ones(1, args.max_length, dtype=torch.int64)
    kept: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
    owned = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    nbytes = sum(storage.nbytes() for key, storage in kept.items() if key not in owned)
    del output
    return args.batch * nbytes


def node_bytes(job: HostJob) -> int:
    """What all ranks of this node will hold while they train."""
    ledger = Ledger(entries=host_entries(job))
    return sum(ledger.moment(FORWARD, place).process_bytes for place in ledger.places())


class HostPeak(threading.Thread):
    """The most this rank and its workers, or the launcher and all ranks of the node, held: seen ten times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self.root_pid = (
            os.getppid() if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1 else os.getpid()
        )
        self.running = True

    def look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, family_use(self.root_pid).total_bytes)

    def run(self) -> None:
        while self.running:
            self.look()
            time.sleep(0.1)


def train(
    args: argparse.Namespace, accelerator: Accelerator, model: Any, optimizer: Any, data: LowMemDataset[Any],
    tokenizer: Any, policy: LoaderPolicy,
) -> tuple[int, list[float], int]:  # fmt: skip
    """Host peak over the node, losses, and rows trained on over all ranks."""
    # Not prepared by Accelerate: the sampler has given each rank its own rows, each exactly once.
    sampler = RowGroupSampler(data, batch_size=policy.batch_size, seed=args.seed)
    collate = TokenizeCollate(tokenizer=tokenizer, max_length=args.max_length)
    loader = DataLoader(
        data, batch_sampler=sampler, collate_fn=collate, **policy.dataloader_kwargs()
    )
    model, optimizer = accelerator.prepare(model, optimizer)
    losses: list[float] = []
    rows = 0
    first_epoch, done = resume(args.state, sampler, accelerator)
    peak = HostPeak()
    if accelerator.is_main_process:  # the only one that reports
        peak.start()
    with MemoryMonitor(accelerator.device) as monitor:
        for epoch in range(first_epoch, args.epochs):
            sampler.set_epoch(epoch)
            for batch in loader:
                done += 1
                last = done % args.accumulate == 0 or done == len(sampler)
                with nullcontext() if last else accelerator.no_sync(model):
                    loss = model(
                        **{name: tensor.to(accelerator.device) for name, tensor in batch.items()}
                    ).loss
                    accelerator.backward(loss)  # divides by the accumulation steps: nobody else may
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
                    monitor.end_step()
                losses.append(loss.item())
                rows += len(batch["input_ids"])
                keep_place(args.state, sampler, done, accelerator, last)
                if args.steps and len(losses) >= args.steps:
                    return finish(peak, accelerator, losses, rows)
            done = 0
    return finish(peak, accelerator, losses, rows)


def finish(
    peak: HostPeak, accelerator: Accelerator, losses: list[float], rows: int
) -> tuple[int, list[float], int]:
    peak.look()
    peak.running = False
    total = int(accelerator.gather(torch.tensor([rows], device=accelerator.device)).sum())
    return peak.peak_bytes, losses, total


def resume(
    state: Path | None, sampler: RowGroupSampler, accelerator: Accelerator
) -> tuple[int, int]:
    path = rank_file(state, accelerator)
    if path is None or not path.exists():
        return 0, 0
    saved = json.loads(path.read_text())
    sampler.load_state_dict(saved)
    return saved["epoch"], saved["batches"]


def keep_place(
    state: Path | None, sampler: RowGroupSampler, done: int, accelerator: Accelerator, stepped: bool
) -> None:  # fmt: skip
    path = rank_file(state, accelerator)
    if path is not None and stepped:
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(sampler.state_dict(batches=done)))
        partial.replace(path)


def rank_file(state: Path | None, accelerator: Accelerator) -> Path | None:
    return None if state is None else state.with_suffix(f".rank{accelerator.process_index}.json")


def report_before(
    args: argparse.Namespace,
    model: torch.nn.Module,
    policy: LoaderPolicy,
    job: HostJob,
    predicted: int,
) -> list[str]:
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    entries = sorted(host_entries(job), key=lambda entry: -entry.nbytes)[:8]
    return [
        f"{total:,} parameters, {trained:,} trained, {args.optimizer}; {job.ranks} rank(s)",
        *policy.reasons,
        *(f"  {entry.component:<45} {format_bytes(entry.nbytes):>11}" for entry in entries),
        f"predicted host memory of this node, training on batches of full length: {format_bytes(predicted)}",
    ]


def report_after(predicted: int, measured: int, losses: list[float], rows: int) -> list[str]:
    return [
        f"{len(losses)} batches per rank, {rows} rows over all ranks, loss {losses[0]:.3f} -> {losses[-1]:.3f}",
        f"host memory: predicted {format_bytes(predicted)}, measured {format_bytes(measured)} "
        f"({(predicted - measured) / measured:+.1%})",
    ]


def say(accelerator: Accelerator, lines: list[str]) -> None:
    if accelerator.is_main_process:
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
