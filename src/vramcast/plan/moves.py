"""Moves: small functions Job → Job, each with its class, its reason and how to carry it out.

free: nothing is lost. slower: the same training takes longer. changes: the training itself is another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from vramcast.formulas.optimizers import implementation
from vramcast.formulas.step import keeps_outputs
from vramcast.job import Job, Precision
from vramcast.ledger import Word


class Kind(Word):
    FREE = "free"
    SLOWER = "slower"
    CHANGES = "changes the training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One change. `apply` gives None where it does not apply."""

    name: str
    key: str  # the job key it changes; `--keep KEY` forbids it
    kind: Kind
    why: str
    apply: Callable[[Job], Job | None]
    how: dict[str, str] = field(default_factory=dict)  # plain torch, Trainer, DeepSpeed: the lines that do it

    @property
    def axis(self) -> str:
        """Moves on one axis exclude each other."""
        return {"quantize": "adapter", "lora-rank": "adapter", "precision": "adapter"}.get(self.key, self.key)


def _fused(job: Job) -> Job | None:
    known = job.optimizer in ("adamw", "adam", "sgd", "sgd-momentum", "adagrad")
    return replace(job, optimizer_impl="fused") if known and implementation(job) != "fused" else None


def _in_backward(job: Job) -> Job | None:
    possible = job.accumulate == 1 and job.optimizer in ("adamw", "adam", "sgd") and job.lora_rank is None
    return replace(job, optimizer_impl="in-backward") if possible and implementation(job) != "in-backward" else None


def _drop_outputs(job: Job) -> Job | None:
    return replace(job, keep_outputs=False) if keeps_outputs(job) else None


def _fused_loss(job: Job) -> Job | None:
    return replace(job, loss="fused") if job.loss != "fused" else None


def _sdpa(job: Job) -> Job | None:
    return replace(job, attention="sdpa") if job.attention in ("eager", "math") else None


def _expandable(job: Job) -> Job | None:
    if "expandable_segments" in job.alloc_conf:
        return None
    conf = ",".join(filter(None, (job.alloc_conf, "expandable_segments:True")))
    return replace(job, alloc_conf=conf)


def _precomputed(job: Job) -> Job | None:
    return replace(job, reference="precomputed") if job.reference in ("same", "cpu", "cuda:1") else None


def _reference_on_cpu(job: Job) -> Job | None:
    return replace(job, reference="cpu") if job.reference == "same" else None


def _checkpointing(how: str) -> Callable[[Job], Job | None]:
    order = ("none", "selective", "full", "offload")

    def apply(job: Job) -> Job | None:
        here = order.index(job.checkpointing) if job.checkpointing in order else 0
        return replace(job, checkpointing=how) if order.index(how) > here else None

    return apply


def _smaller_batch(divisor: int) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        if job.batch % divisor or job.optimizer == "lomo" or job.optimizer_impl == "in-backward":
            return None
        return replace(job, batch=job.batch // divisor, accumulate=job.accumulate * divisor)

    return apply


def _optimizer(name: str) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        large = job.optimizer in ("adamw", "adam", "sophia")
        return replace(job, optimizer=name, optimizer_impl=None) if large else None

    return apply


def _bf16_true(job: Job) -> Job | None:
    return replace(job, precision=Precision.BF16_TRUE) if job.precision != Precision.BF16_TRUE else None


def _lora(job: Job) -> Job | None:
    return replace(job, lora_rank=16, precision=Precision.BF16_TRUE) if job.lora_rank is None else None


def _qlora(job: Job) -> Job | None:
    if job.quantize != "none":
        return None
    return replace(job, lora_rank=job.lora_rank or 16, quantize="nf4-double", precision=Precision.BF16_TRUE)


def _shorter(divisor: int) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        return replace(job, seq=job.seq // divisor) if job.seq and job.seq // divisor >= 128 else None

    return apply


EXPANDABLE = Move(
    name="expandable segments",
    key="alloc-conf",
    kind=Kind.FREE,
    apply=_expandable,
    why="cached blocks can grow instead of lying unused",
    how={"torch": "PYTORCH_ALLOC_CONF=expandable_segments:True"},
)

MOVES = (
    Move(
        name="fused optimizer", key="optimizer-impl", kind=Kind.FREE, apply=_fused,
        why="the foreach step makes a list as large as all parameters; the fused kernel works in place",
        how={"torch": "torch.optim.AdamW(..., fused=True)", "trainer": 'optim="adamw_torch_fused"'},
    ),
    Move(
        name="optimizer step inside backward", key="optimizer-impl", kind=Kind.FREE, apply=_in_backward,
        why="each gradient is used and dropped as soon as it exists",
        how={"torch": "parameter.register_post_accumulate_grad_hook(step_and_clear)"},
    ),
    Move(
        name="outputs not held", key="keep-outputs", kind=Kind.FREE, apply=_drop_outputs,
        why="logits and past_key_values live through backward and step while a variable holds them",
        how={"torch": "loss = model(**batch, use_cache=False).loss"},
    ),
    Move(
        name="fused linear cross entropy", key="loss", kind=Kind.FREE, apply=_fused_loss,
        why="the logits never exist as a whole",
        how={"torch": "liger_kernel.transformers.LigerFusedLinearCrossEntropyLoss", "trainer": "use_liger_kernel=True"},
    ),
    Move(
        name="SDPA attention", key="attention", kind=Kind.FREE, apply=_sdpa,
        why="fused kernels keep no scores",
        how={"torch": 'from_pretrained(..., attn_implementation="sdpa")'},
    ),
    Move(
        name="reference log-probabilities precomputed", key="reference", kind=Kind.FREE, apply=_precomputed,
        why="the reference does not change, so one pass over the data before training is enough",
        how={"torch": "vramcast.runtime.precompute_reference", "trainer": "DPOConfig(precompute_ref_log_probs=True)"},
    ),
    Move(
        name="reference model on the CPU", key="reference", kind=Kind.SLOWER, apply=_reference_on_cpu,
        why="its weights leave the GPU; its forward takes seconds instead of milliseconds",
        how={"torch": 'vramcast.runtime.ReferenceModel(model, placement="cpu")'},
    ),
    Move(
        name="selective checkpointing", key="checkpointing", kind=Kind.SLOWER, apply=_checkpointing("selective"),
        why="results of matrix products are kept, the rest is recomputed",
        how={"torch": "torch.utils.checkpoint.create_selective_checkpoint_contexts"},
    ),
    Move(
        name="checkpointing", key="checkpointing", kind=Kind.SLOWER, apply=_checkpointing("full"),
        why="only the inputs of blocks are kept, each block runs forward twice",
        how={"torch": "model.gradient_checkpointing_enable()", "trainer": "gradient_checkpointing=True"},
    ),
    Move(
        name="checkpointing with offload", key="checkpointing", kind=Kind.SLOWER, apply=_checkpointing("offload"),
        why="the inputs of blocks wait in host memory",
        how={"torch": "torch.autograd.graph.save_on_cpu(pin_memory=True)"},
    ),
    *(
        Move(
            name=f"micro-batch ÷ {divisor}, accumulation × {divisor}", key="batch", kind=Kind.SLOWER,
            apply=_smaller_batch(divisor), why="the same global batch in more, smaller pieces",
            how={"trainer": "per_device_train_batch_size, gradient_accumulation_steps"},
        )
        for divisor in (2, 4, 8, 16, 32)
    ),
    Move(
        name="8-bit AdamW", key="optimizer", kind=Kind.CHANGES, apply=_optimizer("adamw-8bit"),
        why="states in 8 bit with block-wise scales",
        how={"torch": "bitsandbytes.optim.AdamW8bit", "trainer": 'optim="adamw_bnb_8bit"'},
    ),
    Move(
        name="Adafactor", key="optimizer", kind=Kind.CHANGES, apply=_optimizer("adafactor"),
        why="factored second moments, no first moment",
        how={"torch": "torch.optim.Adafactor", "trainer": 'optim="adafactor"'},
    ),
    Move(
        name="everything in bf16", key="precision", kind=Kind.CHANGES, apply=_bf16_true,
        why="weights, gradients and states in 2 bytes; small updates can get lost",
        how={"torch": "model.to(torch.bfloat16)", "deepspeed": '"bf16": {"enabled": true}'},
    ),
    Move(
        name="LoRA", key="lora-rank", kind=Kind.CHANGES, apply=_lora,
        why="only adapters have gradients and states",
        how={"torch": "peft.get_peft_model(model, LoraConfig(r=16, target_modules='all-linear'))"},
    ),
    Move(
        name="QLoRA", key="quantize", kind=Kind.CHANGES, apply=_qlora,
        why="frozen weights in 4 bit, adapters on top",
        how={"torch": "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True) and LoRA"},
    ),
    *(
        Move(
            name=f"sequence ÷ {divisor}", key="seq", kind=Kind.CHANGES, apply=_shorter(divisor),
            why="activations and logits shrink with the length", how={"trainer": "max_length"},
        )
        for divisor in (2, 4)
    ),
)  # fmt: skip
