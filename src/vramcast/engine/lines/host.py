"""A Job's host memory, as `vramcast.host` computes it; its inputs come from the job instead of from flags."""

from __future__ import annotations

from dataclasses import replace

from vramcast.engine.lines.states import States
from vramcast.errors import InputError
from vramcast.host.entries import host_entries
from vramcast.host.host_job import HostData, HostJob, Loader, ModelOnHost, token_batch
from vramcast.ledger import Category, Entry
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import DTYPES
from vramcast.setup import Setup
from vramcast.setup.records import DataLoading

OWN_LOADERS = (
    "hf",
    "trl",
    "accelerate",
)  # Accelerate's loader holds one more batch, to recognise the last one
WITHOUT_TRANSFORMERS = ("torchtune", "torchtitan", "litgpt", "megatron")
CHECKPOINT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def host_side(
    setup: Setup, config: Config, states: States, sizes: Sizes, ranks: int = 1
) -> tuple[Entry, ...]:
    """Host memory of one node: interpreter and libraries, models before they move to the GPU, dataset, prefetched
    batches."""
    if setup.loading.prefetch is not None and not setup.loading.workers:
        raise InputError("prefetch needs workers: without them DataLoader prepares nothing ahead")
    bill = host_entries(
        HostJob(
            ranks=ranks,
            imports=_imports(setup),
            model=_model(config, states),
            data=_data(setup.loading),
            loader=_loader(setup, sizes),
        )
    )
    return tuple(_as_loading(entry) for entry in bill)


def _as_loading(entry: Entry) -> Entry:
    """Weights that pass through the host while loading get their own category: they are not the trained weights."""
    return (
        replace(entry, category=Category.LOADING) if entry.category == Category.WEIGHTS else entry
    )


def _imports(setup: Setup) -> tuple[str, ...]:
    names = ["torch"]
    names += [] if setup.versions.framework in WITHOUT_TRANSFORMERS else ["transformers"]
    names += ["accelerate"] if setup.versions.framework in OWN_LOADERS else []
    names += (
        ["peft"]
        if setup.adapter.kind is not None and setup.versions.framework not in WITHOUT_TRANSFORMERS
        else []
    )
    return (*names, "pyarrow") if setup.loading.dataset else tuple(names)


def _model(config: Config, states: States) -> ModelOnHost:
    """The checkpoint in the config's dtype, and the weights in the job's dtype until they move to the GPU."""
    base = [param for param in states.params if param.kind != "adapter"]
    named = config.word("dtype", "float32", "torch_dtype")
    stored = DTYPES[CHECKPOINT_DTYPES.get(named, "fp32")]
    return ModelOnHost(
        checkpoint_bytes=sum(param.numel for param in base) * stored.nbytes,
        weights_bytes=sum(param.nbytes for param in base),
    )


def _data(loading: DataLoading) -> HostData | None:
    if loading.dataset is None:
        return None
    from vramcast.host.parquet import read_facts

    return HostData(facts=read_facts([loading.dataset]), mode=loading.dataset_mode)


def _loader(setup: Setup, sizes: Sizes) -> Loader:
    return Loader(
        tensor_bytes=token_batch(int(sizes.batch), int(sizes.seq), int(sizes.target_seq)),
        workers=setup.loading.workers,
        prefetch=setup.loading.prefetch,
        pin_memory=setup.loading.pin_memory,
        accelerate=setup.versions.framework in OWN_LOADERS,
    )
