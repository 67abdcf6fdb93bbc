"""A Job's host memory: what `vramcast.host` bills, fed from the job instead of from flags of its own."""

from __future__ import annotations

from dataclasses import replace

from vramcast.engine.lines.states import States
from vramcast.errors import InputError
from vramcast.host.bill import HostData, HostJob, Loader, ModelOnHost, host_entries, token_batch
from vramcast.host.parquet import read_facts
from vramcast.job import Job
from vramcast.ledger import Category, Entry
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import DTYPES

OWN_LOADERS = ("hf", "trl", "accelerate")  # Accelerate's loader holds one more batch, to know which is the last
WITHOUT_TRANSFORMERS = ("torchtune", "torchtitan", "litgpt", "megatron")
CHECKPOINT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def host_side(job: Job, config: Config, states: States, sizes: Sizes, ranks: int = 1) -> tuple[Entry, ...]:
    """Interpreter and libraries, models on their way to the GPU, the dataset and the batches in flight, of a node."""
    if job.prefetch is not None and not job.workers:
        raise InputError("prefetch needs workers: without them DataLoader prepares nothing ahead")
    bill = host_entries(
        HostJob(
            ranks=ranks, imports=_imports(job), model=_model(config, states), data=_data(job),
            loader=_loader(job, sizes),
        )
    )  # fmt: skip
    return tuple(_as_loading(entry) for entry in bill)


def _as_loading(entry: Entry) -> Entry:
    """Weights on their way through the host are not the weights that are trained."""
    return replace(entry, category=Category.LOADING) if entry.category == Category.WEIGHTS else entry


def _imports(job: Job) -> tuple[str, ...]:
    names = ["torch"]
    names += [] if job.framework in WITHOUT_TRANSFORMERS else ["transformers"]
    names += ["accelerate"] if job.framework in OWN_LOADERS else []
    names += ["peft"] if job.lora_rank is not None and job.framework not in WITHOUT_TRANSFORMERS else []
    return (*names, "pyarrow") if job.dataset else tuple(names)


def _model(config: Config, states: States) -> ModelOnHost:
    """The checkpoint in the dtype that the config names, then the weights in the job's dtype, until they move."""
    base = [param for param in states.params if param.kind != "adapter"]
    named = config.word("dtype", "float32", "torch_dtype")
    stored = DTYPES[CHECKPOINT_DTYPES.get(named, "fp32")]
    return ModelOnHost(
        checkpoint_bytes=sum(param.numel for param in base) * stored.nbytes,
        weights_bytes=sum(param.nbytes for param in base),
    )  # fmt: skip


def _data(job: Job) -> HostData | None:
    if job.dataset is None:
        return None
    return HostData(facts=read_facts([job.dataset]), mode=job.dataset_mode)


def _loader(job: Job, sizes: Sizes) -> Loader:
    return Loader(
        tensor_bytes=token_batch(int(sizes.batch), int(sizes.seq), int(sizes.target_seq)), workers=job.workers,
        prefetch=job.prefetch, pin_memory=job.pin_memory, accelerate=job.framework in OWN_LOADERS,
    )  # fmt: skip
