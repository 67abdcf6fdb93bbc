"""A Job run for real on the virtual GPU: transformers' model, torch's optimizer, two steps, as the job describes them.

Start reading here. `job_model` makes the model, `job_loss` and `job_optimizer` what belongs to it, `job_ranks` divides
it over many GPUs, `job_edit` is the loop of model editing. What has no loop here is refused by name.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import torch

from vramcast.errors import UnsupportedError
from vramcast.job import Job
from vramcast.models.read.config import Config
from vramcast.setup import complete, resolve
from vramcast.virtual.accounting.cards import Lifting
from vramcast.virtual.gpu import VirtualGpu, virtual_gpu
from vramcast.virtual.jobs import edit as job_edit
from vramcast.virtual.jobs import ranks as job_ranks
from vramcast.virtual.jobs.adapters import DTYPES
from vramcast.virtual.jobs.loss import chunked_loss
from vramcast.virtual.jobs.model import bitsandbytes, frozen_model, trained_model
from vramcast.virtual.jobs.optimizer import BITSANDBYTES, KNOWN, optimizer_of, stepping

STEPS = 2
PLAIN = {  # keys that this loop does not carry out, and the only values it knows
    "quantize": ("none", "nf4", "nf4-double"), "checkpointing": ("none", "full", "selective", "offload"),
    "compile": (False,), "reference": ("none", "precomputed", "same", "cpu", "adapter"), "reward": ("none",),
    "critic": ("none",), "teacher": ("none",), "optimizer": KNOWN, "loop": ("plain",), "ema": ("none",),
    "rollout_tokens": (None,), "resume": ("none",), "kernels": ((),), "attention": ("sdpa", "eager"), "dora": (False,),
    "framework": ("plain", "hf", "lightning", "accelerate"), "longest_seq": (None,),
    "precision": ("fp32", "bf16-true", "fp16-true", "bf16-mixed", "fp16-mixed", "bf16-autocast",
                  "fp16-autocast"),
    "pp": (1,), "cp": (1,), "ep": (1,), "shard_size": (None,), "units": (None, "root"),
    "strategy": (None, "none", "ddp", "fsdp1", "fsdp2"), "offload": ("none", "params"),
}  # fmt: skip
WITHOUT_EDIT = {"images": (None,), "sub_device": (None,)}
IN_EDITING = {
    "edit_gradients": ("inner",),
    "checkpointing": ("none",),
    "quantize": ("none",),
    "loss": ("full",),
    "gpus": (1,),
    "precision": ("fp32", "bf16-true", "fp16-true"),
}
WRAPPING = ("hf", "accelerate", "lightning")
ON_MANY_GPUS = {
    "reference": ("none", "precomputed"),
    "precision": ("fp32", "bf16-true", "fp16-true", "bf16-mixed", "bf16-autocast"),
}
UNDER_TENSOR_PARALLELISM = {
    "lora_rank": (None,),
    "quantize": ("none",),
    "sequence_parallel": (None, False),
    "loss_parallel": (None, False),
    "optimizer": ("adamw", "adam", "sgd", "sgd-momentum"),
    "strategy": (None, "none", "ddp", "fsdp2"),
}
DIVIDED_ALONE = {
    "precision": ("fp32", "bf16-true", "fp16-true")
}  # the virtual autocast casts no DTensor
SHARDED: dict[str, dict[str, tuple[Any, ...]]] = {
    "fsdp2": {
        "optimizer": ("adamw", "adam", "sgd", "sgd-momentum")
    },  # bitsandbytes knows no DTensor
    "fsdp1": {
        "lora_rank": (None,),
        "freeze": ((),),
        "quantize": ("none",),
    },  # vectors hold what is trained alike
}


class Feed(Protocol):
    """Where batches come from and what is made of outputs, for models that take other things than tokens."""

    def meet(self, model: Any) -> None:
        """The model as it is trained, before it goes to the card."""

    def batch(self, device: torch.device) -> dict[str, Any]: ...

    def loss(self, outputs: Any) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What the job leaves to its framework and versions, decided."""

    weights: str  # dtype by name
    autocast: str | None  # dtype by name
    implementation: str  # of the optimizer's step
    keeps_outputs: bool
    zeroes_first: bool  # gradients go before forward
    zeroes_in_place: bool = False  # set_to_none=False: they stay, filled with zeros


def trace_job(
    job: Job,
    loop: Loop,
    config: Config,
    gpu: str,
    *,
    feed: Feed | None = None,
    lifts_limit: Lifting = Lifting.NEVER,
    keeps_sizes: bool = False,
) -> VirtualGpu:
    """Two steps; `out_of_memory` of the answer says whether the card refused one. `feed`: batches of another kind than
    tokens with labels. `keeps_sizes`: every allocation is kept, to be played again with other sizes."""
    job = complete(job)
    refuse_what_has_no_loop(job)
    count = job.gpus if job.sub_device is None else 1 + job_edit.number_of(job.sub_device)
    rank = 0 if job.gpus > 1 else None
    with (
        _environment(job),
        virtual_gpu(gpu, count=count, rank=rank, protect=False, lifts_limit=lifts_limit) as traced,
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(contextlib.suppress(torch.OutOfMemoryError))
        if keeps_sizes:
            traced.keep_history(with_frames=False)
        if job.edit:
            job_edit.EditRun(job, config, DTYPES[loop.weights], loop.implementation).steps(STEPS)
        else:
            _Run(job, loop, config, feed).steps()
    return traced


def refuse_what_has_no_loop(job: Job) -> None:
    """Raise an error that names the first setting that the loops here do not carry out."""
    _check(job, PLAIN, "cannot be traced from a job")
    if job.edit:
        _check(job, IN_EDITING, "in editing cannot be traced from a job")
    else:
        _check(job, WITHOUT_EDIT, "cannot be traced from a job")
    if job.gpus > 1:
        sharded = SHARDED.get(job.strategy or "", {})
        _check(job, {**ON_MANY_GPUS, **sharded}, "on many GPUs cannot be traced from a job")
    if job.tp > 1:
        _refuse_under_tensor_parallelism(job)


def _refuse_under_tensor_parallelism(job: Job) -> None:
    """The same for what does not go together with tensor parallelism."""
    _check(job, UNDER_TENSOR_PARALLELISM, f"beside tp {job.tp} cannot be traced from a job")
    if job.strategy == "fsdp2":
        return
    _check(job, DIVIDED_ALONE, f"beside tp {job.tp} without fsdp2 cannot be traced from a job")
    if job.gpus > job.tp:
        raise UnsupportedError(
            f"ddp over groups of tp {job.tp} cannot be traced from a job: give --strategy fsdp2"
        )


def _check(job: Job, plain: dict[str, tuple[Any, ...]], why: str) -> None:
    for key, known in plain.items():
        if getattr(job, key) not in known:
            raise UnsupportedError(
                f"{key.replace('_', '-')} {getattr(job, key)} {why}: run your own script with vramcast trace"
            )


@contextlib.contextmanager
def _environment(job: Job) -> Iterator[None]:
    """The allocator's settings as the job has them; libraries' warnings about torch's future are none of the user's."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ[names[0]] = job.alloc_conf
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _import_bitsandbytes(job)
            yield
    finally:
        os.environ.pop(names[0])
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _import_bitsandbytes(job: Job) -> None:
    """Outside the virtual GPU, where it does not look for CUDA's libraries. PEFT imports it wherever it is."""
    adapters = job.has_adapters and find_spec("bitsandbytes") is not None
    if adapters or job.quantize != "none" or job.optimizer in BITSANDBYTES:
        bitsandbytes()


class _Run:
    def __init__(self, job: Job, loop: Loop, config: Config, feed: Feed | None) -> None:
        self.job, self.loop, self.feed = job, loop, feed
        self.framework = resolve(job).versions.framework
        self.compute = DTYPES[loop.autocast or loop.weights]
        self.device = job_ranks.join() if job.gpus > 1 else torch.device("cuda")
        model = trained_model(config, job, DTYPES[loop.weights], self.compute)
        if feed is not None:
            feed.meet(model)
        self.config = model.config
        if self.framework == "hf":
            self.config.use_cache = (
                False  # transformers/trainer.py: as its arguments say, whose default is False
            )
        self.reference = self._reference(config) if job.reference in ("same", "cpu") else None
        self.model = self._placed(model)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizers = list(self._optimizers())
        self.scaler = torch.amp.GradScaler("cuda", enabled=loop.autocast == "fp16")
        self.outputs: Any = None

    def _placed(self, model: Any) -> Any:
        if self.job.gpus == 1:
            return model.to(self.device)
        gathered = self.compute if self.sharded and self.loop.autocast else None
        return job_ranks.divided(model, self.job, self.device, gathered, model.vramcast_blocks)

    @property
    def sharded(self) -> bool:
        return self.job.strategy in ("fsdp1", "fsdp2")

    @property
    def autocasts(self) -> bool:
        """FSDP casts by its own policy; libraries wrap forward in autocast all the same, accelerate not with FSDP2."""
        libraries = ("lightning",) if self.job.strategy == "fsdp2" else WRAPPING
        wrapped = self.framework in libraries and self.job.tp == 1
        return self.loop.autocast is not None and (wrapped or not self.sharded)

    def _reference(self, config: Config) -> Any:
        model = frozen_model(
            config, self.job, DTYPES[self.job.reference_dtype or self.loop.weights]
        )
        return model.to(self.device) if self.job.reference == "same" else model

    def _optimizers(self) -> Iterator[torch.optim.Optimizer]:
        """One for all; one for each parameter, stepping as soon as its gradient is there, inside backward."""
        how = self.loop.implementation
        embeddings = [m.weight for m in self.model.modules() if isinstance(m, torch.nn.Embedding)]
        if how != "in-backward":
            params = job_ranks.alike(self.trained) if self.job.tp > 1 else self.trained
            yield optimizer_of(params, self.job, how, embeddings)
            return
        for parameter in self.trained:
            own = optimizer_of([parameter], self.job, how, embeddings)
            parameter.register_post_accumulate_grad_hook(stepping(own))
            yield own

    def steps(self) -> None:
        for _ in range(STEPS):
            if self.loop.zeroes_first:
                self._zero()
            for number in range(self.job.accumulate):
                with job_ranks.reducing(
                    self.model, self.job, last=number == self.job.accumulate - 1
                ):
                    self._pass(zeroes=not self.loop.zeroes_first and number == 0)
            if self.loop.implementation != "in-backward":
                self.scaler.step(self.optimizers[0])
                self.scaler.update()

    def _zero(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=not self.loop.zeroes_in_place)

    def _pass(self, *, zeroes: bool) -> None:
        """`zeroes`: the last step's gradients go when forward has returned."""
        batch = self._batch()
        with torch.autocast(
            "cuda", self.compute if self.autocasts else torch.bfloat16, enabled=self.autocasts
        ):
            if self.loop.keeps_outputs:
                self.outputs = self._called(batch)
                loss = self._loss(self.outputs, batch)
            else:
                loss = self._loss(self._called(batch), batch)
            if self.reference is not None:
                self._refer(batch)
            if self.job.reference == "adapter":
                self._refer_without_adapters(batch)
        if zeroes:
            self._zero()
        self.scaler.scale(loss).backward()

    def _called(self, batch: dict[str, torch.Tensor]) -> Any:
        """accelerate hands what a model under autocast returns on in fp32 (utils/operations.py)."""
        outputs = self.model(**batch)
        if not self.autocasts or self.framework not in ("hf", "accelerate"):
            return outputs
        from accelerate.utils import convert_to_fp32

        return convert_to_fp32(outputs)

    def _loss(self, outputs: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if self.feed is not None:
            return self.feed.loss(outputs)
        loss: torch.Tensor | None = getattr(outputs, "loss", None)
        targets = batch.get("decoder_input_ids", batch["input_ids"])
        return chunked_loss(outputs.logits, targets) if loss is None else loss

    def _refer(self, batch: dict[str, torch.Tensor]) -> None:
        assert self.reference is not None
        place = self.device if self.job.reference == "same" else torch.device("cpu")
        with torch.no_grad():
            self.reference(
                **{name: value.to(place) for name, value in batch.items() if name != "labels"}
            )

    def _refer_without_adapters(self, batch: dict[str, torch.Tensor]) -> None:
        scores_labels = self.job.loss == "tiled"
        given = {name: value for name, value in batch.items() if scores_labels or name != "labels"}
        with torch.no_grad(), self.model.disable_adapter():
            self.model(**given)

    def _batch(self) -> dict[str, torch.Tensor]:
        if self.feed is not None:
            return self.feed.batch(self.device)
        job = self.job
        assert job.seq is not None
        vocabulary = min(int(self.config.vocab_size), 1000)
        ids = torch.randint(0, vocabulary, (job.batch, job.seq)).to(self.device)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.config.is_encoder_decoder:
            labels = torch.randint(0, vocabulary, (job.batch, job.target_seq or job.seq)).to(
                self.device
            )
            return {**batch, "decoder_input_ids" if job.loss == "chunked" else "labels": labels}
        if job.loss == "chunked":
            return batch
        return {**batch, "labels": ids[:, 0].clone() if self.is_classifier else ids.clone()}

    @property
    def is_classifier(self) -> bool:
        """One class for each row, instead of one word for each token."""
        base = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        return type(base).__name__.endswith("ForSequenceClassification")
