"""A Job run for real on the virtual GPU: transformers' model, torch's optimizer, two steps, as the job describes them.

What needs a kernel of another package (bitsandbytes, Liger) or has no plain loop here is refused by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from vramcast.errors import UnsupportedError
from vramcast.job import Job
from vramcast.models.config import Config
from vramcast.virtual.gpu import VirtualGpu, virtual_gpu

STEPS = 2
PLAIN = {  # keys that this loop does not carry out, and the only value it knows
    "loss": ("full", "chunked"), "quantize": ("none",), "checkpointing": ("none", "full"), "compile": (False,),
    "reference": ("none", "precomputed", "same", "cpu"), "reward": ("none",), "critic": ("none",), "teacher": ("none",),
    "optimizer": ("adamw", "adam", "sgd", "adafactor"), "loop": ("plain",), "edit": ((),), "gpus": (1,),
    "ema": ("none",), "rollout_tokens": (None,), "resume": ("none",), "kernels": ((),), "attention": ("sdpa", "eager"),
    "dora": (False,),
    "framework": ("plain", "hf", "lightning", "accelerate"), "longest_seq": (None,), "images": (None,),
    "precision": ("fp32", "bf16-true", "bf16-mixed"),
}  # fmt: skip
CHUNKS = 8
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What the job leaves to its framework and versions, decided."""

    weights: str  # dtype by name
    autocast: bool
    implementation: str  # of the optimizer's step
    keeps_outputs: bool
    zeroes_first: bool  # gradients go before forward


def trace_job(job: Job, loop: Loop, config: Config, gpu: str) -> VirtualGpu:
    """Two steps; `out_of_memory` of the answer says whether the card refused one."""
    for key, known in PLAIN.items():
        if getattr(job, key) not in known:
            name, value = key.replace("_", "-"), getattr(job, key)
            raise UnsupportedError(
                f"{name} {value} cannot be traced from a job: run your own script with vramcast trace"
            )
    with virtual_gpu(gpu) as traced, contextlib.suppress(torch.OutOfMemoryError):
        _Run(job, loop, config).steps()
    return traced


class _Run:
    def __init__(self, job: Job, loop: Loop, config: Config) -> None:
        self.job, self.loop = job, loop
        model = _model(config, job, DTYPES[loop.weights])
        self.reference = _frozen(config, job, loop) if job.reference in ("same", "cpu") else None
        self.model = _prepared(model, job).to("cuda")
        self.vocabulary = int(model.config.vocab_size)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizers = list(self._optimizers())
        self.outputs: Any = None

    def _optimizers(self) -> Iterator[torch.optim.Optimizer]:
        """One for all; one for each parameter, stepping as soon as its gradient is there, inside backward."""
        if self.loop.implementation != "in-backward":
            yield _optimizer(self.trained, self.job, self.loop.implementation)
            return
        for parameter in self.trained:
            own = _optimizer([parameter], self.job, self.loop.implementation)
            parameter.register_post_accumulate_grad_hook(_stepping(own))
            yield own

    def steps(self) -> None:
        for _ in range(STEPS):
            if self.loop.zeroes_first:
                self._zero()
            for _ in range(self.job.accumulate):
                self._pass()
            if self.loop.implementation != "in-backward":
                self.optimizers[0].step()

    def _zero(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def _pass(self) -> None:
        batch = self._batch()
        with torch.autocast("cuda", torch.bfloat16, enabled=self.loop.autocast):
            if self.loop.keeps_outputs:
                self.outputs = self.model(**batch)
                loss = self._loss(self.outputs, batch)
            else:
                loss = self._loss(self.model(**batch), batch)
            if self.reference is not None:
                self._refer(batch)
        if not self.loop.zeroes_first:
            self._zero()
        loss.backward()

    def _loss(self, outputs: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if outputs.loss is not None:
            loss: torch.Tensor = outputs.loss
            return loss
        labels, logits = batch["input_ids"], outputs.logits
        parts = zip(logits.chunk(CHUNKS, dim=1), labels.chunk(CHUNKS, dim=1), strict=True)
        losses = [
            torch.nn.functional.cross_entropy(x.float().flatten(0, 1), y.flatten(), reduction="sum") for x, y in parts
        ]
        return torch.stack(losses).sum() / labels.numel()

    def _refer(self, batch: dict[str, torch.Tensor]) -> None:
        assert self.reference is not None
        place = "cuda" if self.job.reference == "same" else "cpu"
        with torch.no_grad():
            self.reference(**{name: value.to(place) for name, value in batch.items() if name != "labels"})

    def _batch(self) -> dict[str, torch.Tensor]:
        job = self.job
        assert job.seq is not None
        ids = torch.randint(0, min(self.vocabulary, 1000), (job.batch, job.seq)).to("cuda")
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.model.config.is_encoder_decoder:
            labels = torch.randint(0, 1000, (job.batch, job.target_seq or job.seq)).to("cuda")
            return {**batch, "labels": labels}
        return {**batch, "labels": ids.clone()} if job.loss == "full" else batch


def _model(config: Config, job: Job, dtype: torch.dtype) -> Any:
    import transformers

    data = dict(config.data)
    names = data.get("architectures") or ["AutoModelForCausalLM"]
    own = transformers.AutoConfig.for_model(data.pop("model_type"), **data)
    own._attn_implementation = job.attention
    kind = getattr(transformers, names[0])
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return kind(own)
    finally:
        torch.set_default_dtype(before)


def _frozen(config: Config, job: Job, loop: Loop) -> Any:
    dtype = DTYPES[job.reference_dtype or loop.weights]
    model = _model(config, job, dtype).eval().requires_grad_(False)
    return model.to("cuda") if job.reference == "same" else model


def _prepared(model: Any, job: Job) -> Any:
    """Adapters, frozen names, checkpointing."""
    import fnmatch

    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for pattern in job.freeze):
            parameter.requires_grad_(False)
    if job.checkpointing == "full":
        model.config.use_cache = False
        model.gradient_checkpointing_enable({"use_reentrant": bool(job.reentrant)})
    if job.lora_rank is not None:
        import peft

        targets = "all-linear" if job.lora_targets == ("all-linear",) else list(job.lora_targets)
        model = peft.get_peft_model(model, peft.LoraConfig(r=job.lora_rank, target_modules=targets))
        if job.checkpointing == "full":
            model.enable_input_require_grads()
    return model.train()


def _optimizer(params: list[Any], job: Job, how: str) -> torch.optim.Optimizer:
    if job.optimizer == "adafactor":
        return torch.optim.Adafactor(params)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD,
    }  # fmt: skip
    chosen = {"fused": {"fused": True}, "loop": {"foreach": False}}.get(how, {})
    return kinds[job.optimizer](params, lr=1e-5, **chosen)


def _stepping(optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    def step(_: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    return step
