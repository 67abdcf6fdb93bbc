"""Moves: small functions Job → Job, each with its class, its reason and how to carry it out.

free: nothing is lost. slower: the same training takes longer. changes: the training itself is another one; `price`
orders those among themselves (a smaller optimizer before adapters before shorter sequences).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache

from vramcast.catalog.gpus import find_gpu
from vramcast.engine import TWO_PASSES
from vramcast.job import Job, Precision, fields
from vramcast.ledger import Word
from vramcast.models.record.tape import Param
from vramcast.setup import resolve


class Kind(Word):
    FREE = "free"
    SLOWER = "slower"
    CHANGES = "changes the training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One change. `apply` gives None where it does not apply."""

    name: str
    axis: str  # moves on one axis exclude each other
    kind: Kind
    why: str
    apply: Callable[[Job], Job | None]
    second_gpu: bool = False  # needs another card beside the job's
    price: float = 0.0  # beside time, in an order of our own: what a changed training costs, how far a batch shrinks
    how: dict[str, str] = field(
        default_factory=dict
    )  # plain torch, Trainer, DeepSpeed: the lines that do it


ADAMS = ("adamw", "adam", "sophia")


def changed_keys(before: Job, after: Job) -> frozenset[str]:
    return frozenset(
        name
        for name, key in fields().items()
        if getattr(before, key.name) != getattr(after, key.name)
    )


# ---- free


def _fused(job: Job) -> Job | None:
    known = job.optimizer in ("adamw", "adam", "sgd", "sgd-momentum", "adagrad")
    return (
        job.changed(optimizer_impl="fused")
        if known and resolve(job).optimizer.implementation != "fused"
        else None
    )


def _in_backward(job: Job) -> Job | None:
    known = (*ADAMS, "sgd", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "adafactor")
    possible = job.accumulate == 1 and job.optimizer in known and not job.has_adapters
    possible = (
        possible
        and job.critic == "none"
        and job.gpus == 1
        and not job.edit
        and job.loop not in TWO_PASSES
    )
    return (
        job.changed(optimizer_impl="in-backward")
        if possible and resolve(job).optimizer.implementation != "in-backward"
        else None
    )


def _drop_outputs(job: Job) -> Job | None:
    return (
        job.changed(keep_outputs=False)
        if resolve(job).loop.keeps_outputs and job.teacher == "none"
        else None
    )


def _loss(how: str) -> Callable[[Job], Job | None]:
    order = ("full", "pairs", "chunked", "tiled", "fused")

    def apply(job: Job) -> Job | None:
        needs_logits = how == "fused" and job.teacher != "none"  # distillation compares them
        return (
            job.changed(loss=how)
            if order.index(how) > order.index(resolve(job).kernels.loss) and not needs_logits
            else None
        )

    return apply


def _sdpa(job: Job) -> Job | None:
    return job.changed(attention="sdpa") if job.attention in ("eager", "math") else None


def _expandable(job: Job) -> Job | None:
    if "expandable_segments" in job.alloc_conf:
        return None
    conf = ",".join(filter(None, (job.alloc_conf, "expandable_segments:True")))
    return job.changed(alloc_conf=conf)


def _zero_grad_first(job: Job) -> Job | None:
    late = resolve(job).loop.zero_grad in ("after-forward", "in-place")
    return job.changed(zero_grad="before-forward") if late and job.accumulate == 1 else None


def _inner_only(job: Job) -> Job | None:
    return (
        job.changed(edit_gradients="inner") if job.edit and job.edit_gradients != "inner" else None
    )


def _cut(job: Job) -> Job | None:
    return job.changed(edit_graph="cut") if job.edit and job.edit_graph != "cut" else None


# ---- slower


def _reference(place: str, instead_of: tuple[str, ...]) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        return (
            job.changed(reference=place) if job.reference in instead_of and job.gpus == 1 else None
        )

    return apply


def _second_device(job: Job) -> Job | None:
    return job.changed(sub_device="cuda:1") if job.edit and job.sub_device is None else None


def _checkpointing(how: str) -> Callable[[Job], Job | None]:
    order = ("none", "selective", "full", "offload")

    def apply(job: Job) -> Job | None:
        here = order.index(job.checkpointing) if job.checkpointing in order else 0
        allowed = how != "selective" or not job.reentrant
        return job.changed(checkpointing=how) if allowed and order.index(how) > here else None

    return apply


def _smaller_batch(divisor: int) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        if (
            job.batch % divisor
            or resolve(job).optimizer.implementation == "in-backward"
            or job.edit
        ):
            return None
        return job.changed(batch=job.batch // divisor, accumulate=job.accumulate * divisor)

    return apply


def _optimizer(name: str, instead_of: tuple[str, ...]) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        return (
            job.changed(optimizer=name, optimizer_impl=None)
            if job.optimizer in instead_of
            else None
        )

    return apply


# ---- changes the training


@cache
def _computes_bf16(gpu: str | None) -> bool:
    """Cards before Ampere do not; of an anonymous one it is not known."""
    return gpu is None or find_gpu(gpu).supports_bf16 is not False


def _bf16_true(job: Job) -> Job | None:
    if job.precision == Precision.BF16_TRUE or not _computes_bf16(job.gpu):
        return None
    return job.changed(precision=Precision.BF16_TRUE)


def _adapters(precision: Precision | None, quantize: str) -> Callable[[Job], Job | None]:
    """`precision` on cards that compute in bf16; on others fp16 with a GradScaler, which needs the fp32 adapters."""

    def apply(job: Job) -> Job | None:
        if (job.has_adapters and job.quantize == quantize) or job.quantize not in (
            "none",
            quantize,
        ):
            return None
        if job.edit or job.freeze or job.adapter not in (None, "lora"):
            return None
        adapted = job.changed(lora_rank=job.lora_rank or 16, quantize=quantize)
        if precision is None:
            return adapted
        return adapted.changed(
            precision=precision if _computes_bf16(job.gpu) else Precision.FP16_AUTOCAST
        )

    return apply


LENGTHS = ("seq", "longest_seq", "mean_seq")  # none of which may be more than the longest


def _shorter(divisor: int) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        length = (job.longest_seq or job.seq or 0) // divisor
        if length < max(128, (job.rollout_tokens or 0) + 1):
            return None
        cut = {
            name: min(asked, length)
            for name in LENGTHS
            if (asked := getattr(job, name)) is not None
        }
        return job.changed(**cut)

    return apply


def _freeze(patterns: tuple[str, ...]) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        return None if job.freeze or job.has_adapters or job.edit else job.changed(freeze=patterns)

    return apply


FUSED = Move(
    name="fused optimizer",
    axis="optimizer-impl",
    kind=Kind.FREE,
    apply=_fused,
    why="the foreach step makes a temporary list as large as all parameters; the fused kernel works in place",
    how={"torch": "torch.optim.AdamW(..., fused=True)", "trainer": 'optim="adamw_torch_fused"'},
)
EXPANDABLE = Move(
    name="expandable segments",
    axis="alloc-conf",
    kind=Kind.FREE,
    apply=_expandable,
    why="cached blocks can grow instead of staying unused",
    how={"torch": "PYTORCH_ALLOC_CONF=expandable_segments:True"},
)

FREE = (
    FUSED,
    Move(
        name="optimizer step inside backward", axis="optimizer-impl", kind=Kind.FREE, apply=_in_backward,
        why="each gradient is used and freed as soon as it exists; the global norm cannot be clipped",
        how={
            "torch": "parameter.register_post_accumulate_grad_hook(step_and_clear)",
            "torchtune": "optimizer_in_bwd: True",
        },
    ),
    Move(
        name="outputs deleted before backward", axis="keep-outputs", kind=Kind.FREE, apply=_drop_outputs,
        why="while a variable refers to them, logits and past_key_values stay allocated through backward and step",
        how={"torch": "loss = model(**batch, use_cache=False).loss"},
    ),
    Move(
        name="chunked cross entropy", axis="loss", kind=Kind.FREE, apply=_loss("chunked"),
        why="gradients of the logits exist one chunk at a time",
        how={"torch": "cross_entropy over logits.chunk(8)", "torchtune": "CEWithChunkedOutputLoss"},
    ),
    Move(
        name="fused linear cross entropy", axis="loss", kind=Kind.FREE, apply=_loss("fused"),
        why="the logits never exist as a whole",
        how={"torch": "liger_kernel.transformers.LigerFusedLinearCrossEntropyLoss",
             "trainer": "use_liger_kernel=True, where Liger knows the model (not GPT-2, OPT or T5)"},
    ),
    Move(
        name="SDPA attention", axis="attention", kind=Kind.FREE, apply=_sdpa,
        why="fused kernels do not store attention scores",
        how={"torch": 'from_pretrained(..., attn_implementation="sdpa")'},
    ),
    Move(
        name="zero_grad before forward", axis="zero-grad", kind=Kind.FREE, apply=_zero_grad_first,
        why="the last step's gradients are not alive in the next forward",
        how={"torch": "optimizer.zero_grad() right after optimizer.step()",
             "lightning": "on_train_batch_start: self.optimizers().zero_grad()"},
    ),
    Move(
        name="reference log-probabilities precomputed", axis="reference", kind=Kind.FREE,
        apply=_reference("precomputed", ("same", "cpu", "cuda:1")),
        why="the reference does not change, so one pass over the data before training is enough",
        how={"torch": "vramcast.runtime.precompute_reference", "trainer": "DPOConfig(precompute_ref_log_probs=True)"},
    ),
    Move(
        name="gradients of inner parameters only", axis="edit-gradients", kind=Kind.FREE, apply=_inner_only,
        why="requires_grad only where the editor reads a gradient",
        how={"torch": "model.requires_grad_(False); inner.requires_grad_(True)"},
    ),
    Move(
        name="edited forwards one at a time", axis="edit-graph", kind=Kind.FREE, apply=_cut,
        why="the edited weights are leaves: each loss runs backward alone and their gradients add up there",
        how={"torch": "with vramcast.runtime.GraphCut(edited) as cut: loss_of(cut.leaves).backward(); cut.replay()"},
    ),
    EXPANDABLE,
)  # fmt: skip

SLOWER = (
    Move(
        name="reference model on the second GPU",
        axis="reference",
        kind=Kind.SLOWER,
        second_gpu=True,
        apply=_reference("cuda:1", ("same",)),
        why="its weights move to the other GPU; batches and results are copied between them",
        how={"torch": 'vramcast.runtime.ReferenceModel(model, placement="cuda:1")'},
    ),
    Move(
        name="reference model on the CPU",
        axis="reference",
        kind=Kind.SLOWER,
        apply=_reference("cpu", ("same",)),
        why="its weights move to CPU memory; its forward pass takes seconds instead of milliseconds",
        how={"torch": 'vramcast.runtime.ReferenceModel(model, placement="cpu")'},
    ),
    Move(
        name="edited layers on the second GPU",
        axis="sub-device",
        kind=Kind.SLOWER,
        apply=_second_device,
        second_gpu=True,
        why="the first edited layer and all later ones, with their activations, move to the other GPU",
        how={"torch": 'vramcast.runtime.FunctionalEdit(model, names).place("cuda:0", "cuda:1")'},
    ),
    Move(
        name="selective checkpointing",
        axis="checkpointing",
        kind=Kind.SLOWER,
        apply=_checkpointing("selective"),
        why="results of matrix products are kept, the rest is recomputed",
        how={"torch": "torch.utils.checkpoint.create_selective_checkpoint_contexts"},
    ),
    Move(
        name="checkpointing",
        axis="checkpointing",
        kind=Kind.SLOWER,
        apply=_checkpointing("full"),
        why="only the inputs of blocks are kept, each block runs forward twice",
        how={
            "torch": "model.gradient_checkpointing_enable()",
            "trainer": "gradient_checkpointing=True",
            "deepspeed": "deepspeed.checkpointing.checkpoint",
        },
    ),
    Move(
        name="checkpointing with offload",
        axis="checkpointing",
        kind=Kind.SLOWER,
        apply=_checkpointing("offload"),
        why="the inputs of blocks are kept in CPU memory",
        how={
            "torch": "torch.autograd.graph.save_on_cpu(pin_memory=True)",
            "deepspeed": '"activation_checkpointing": {"cpu_checkpointing": true}',
        },
    ),
    *(
        Move(
            name=f"micro-batch ÷ {divisor}, accumulation × {divisor}",
            axis="batch",
            kind=Kind.SLOWER,
            price=divisor / 100,
            apply=_smaller_batch(divisor),
            why="the same global batch in more, smaller pieces",
            how={
                "torch": f"loss / {divisor}, step every {divisor} batches",
                "trainer": "per_device_train_batch_size, gradient_accumulation_steps",
                "deepspeed": '"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"',
            },
        )
        for divisor in (2, 4, 8, 16, 32)
    ),
    Move(
        name="optimizer states paged to the host",
        axis="optimizer",
        kind=Kind.SLOWER,
        apply=_optimizer("paged-adamw", ADAMS),
        why="states are in unified memory and are copied over PCIe in every step",
        how={
            "torch": "bitsandbytes.optim.PagedAdamW",
            "trainer": 'optim="paged_adamw_32bit"',
            "deepspeed": '"offload_optimizer": {"device": "cpu"}',
        },
    ),
)

CHANGES = (
    Move(
        name="8-bit AdamW",
        axis="optimizer",
        kind=Kind.CHANGES,
        price=2,
        apply=_optimizer("adamw-8bit", ADAMS),
        why="states in 8 bit with block-wise scales",
        how={
            "torch": "bitsandbytes.optim.AdamW8bit; with FSDP2 torchao.optim.AdamW8bit",
            "trainer": 'optim="adamw_bnb_8bit"; with FSDP2 optim="adamw_torch_8bit"',
        },
    ),
    Move(
        name="paged 8-bit AdamW",
        axis="optimizer",
        kind=Kind.CHANGES,
        price=2,
        apply=_optimizer("paged-adamw-8bit", (*ADAMS, "adamw-8bit")),
        why="8-bit states in unified memory, which the driver moves to CPU memory when the card is full",
        how={"torch": "bitsandbytes.optim.PagedAdamW8bit", "trainer": 'optim="paged_adamw_8bit"'},
    ),
    Move(
        name="Adafactor",
        axis="optimizer",
        kind=Kind.CHANGES,
        price=3,
        apply=_optimizer("adafactor", ADAMS),
        why="factored second moments, no first moment",
        how={"torch": "torch.optim.Adafactor", "trainer": 'optim="adafactor"'},
    ),
    Move(
        name="everything in bf16",
        axis="adapter",
        kind=Kind.CHANGES,
        price=3,
        apply=_bf16_true,
        why="weights, gradients and states in 2 bytes; small updates can get lost",
        how={
            "torch": "model.to(torch.bfloat16)",
            "trainer": "from_pretrained(dtype=torch.bfloat16), bf16=False",
        },
    ),
    Move(
        name="LoRA",
        axis="adapter",
        kind=Kind.CHANGES,
        price=5,
        apply=_adapters(Precision.BF16_TRUE, "none"),
        why="only adapters have gradients and states; frozen weights in 16 bit",
        how={
            "torch": "peft.get_peft_model(model, LoraConfig(r=16, target_modules='all-linear')); before Ampere "
            "weights in torch.float16, under torch.autocast with a GradScaler",
            "trainer": "the same with bf16=True, before Ampere fp16=True",
        },
    ),
    Move(
        name="QLoRA",
        axis="adapter",
        kind=Kind.CHANGES,
        price=6,
        apply=_adapters(Precision.BF16_AUTOCAST, "nf4-double"),
        why="frozen weights in 4 bit, adapters on top",
        how={
            "torch": "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', "
            "bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16) and LoRA, "
            "under torch.autocast; before Ampere torch.float16 and a GradScaler",
            "trainer": "the same with bf16=True, before Ampere fp16=True",
        },
    ),
    *(
        Move(
            name=f"sequence ÷ {divisor}",
            axis="seq",
            kind=Kind.CHANGES,
            price=6 + divisor,
            apply=_shorter(divisor),
            why="activations and logits shrink with the length; longer samples are cut",
            how={"torch": "tokenizer(..., truncation=True, max_length=…)", "trainer": "max_length"},
        )
        for divisor in (2, 4)
    ),
)

# Where the precision must stay as it is, adapters go on top of it.
IN_ITS_PRECISION = (
    Move(
        name="LoRA",
        axis="adapter",
        kind=Kind.CHANGES,
        price=5,
        apply=_adapters(None, "none"),
        why="only adapters have gradients and states",
        how={"torch": "peft.get_peft_model(model, LoraConfig(r=16, target_modules='all-linear'))"},
    ),
    Move(
        name="QLoRA",
        axis="adapter",
        kind=Kind.CHANGES,
        price=6,
        apply=_adapters(None, "nf4-double"),
        why="frozen weights in 4 bit, adapters on top",
        how={
            "torch": "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True) and LoRA"
        },
    ),
)


def freezing(params: Iterable[Param]) -> tuple[Move, ...]:
    """Embeddings; with them the encoder, or the lower half of the layers: what people freeze first."""
    own = [param for param in params if param.tied_to is None]
    names = [param.name for param in own]
    embeddings = tuple(param.name for param in own if param.kind == "embedding")
    if not embeddings:
        return ()
    encoder = _encoder(names)
    lower = (encoder,) if encoder else tuple(_lower_half(names))
    which = "encoder" if encoder else "lower half of the layers"
    why = "no gradients, optimizer states or activations needed below the first trained layer"
    found = [
        _frozen(
            "embeddings frozen", embeddings, 4, "no gradients or optimizer states needed for them"
        )
    ]
    if lower:
        found.append(_frozen(f"embeddings and {which} frozen", (*embeddings, *lower), 7, why))
    return tuple(found)


def _encoder(names: list[str]) -> str | None:
    for path in ("encoder", "model.encoder"):
        other = path.replace("encoder", "decoder")
        if any(name.startswith(f"{path}.") for name in names) and any(
            name.startswith(f"{other}.") for name in names
        ):
            return path
    return None


def _frozen(name: str, patterns: tuple[str, ...], price: int, why: str) -> Move:
    how = {
        "torch": f"{patterns[0]}.requires_grad_(False)"
        + (" and so on" if len(patterns) > 1 else "")
    }
    return Move(
        name=name,
        axis="adapter",
        kind=Kind.CHANGES,
        price=price,
        apply=_freeze(patterns),
        why=why,
        how=how,
    )


def _lower_half(names: Iterable[str]) -> list[str]:
    """Paths of the first half of the layers of the longest numbered stack."""
    stacks: dict[str, set[int]] = {}
    for name in names:
        parts = name.split(".")
        at = next((index for index, part in enumerate(parts) if part.isdigit()), None)
        if at is not None:
            stacks.setdefault(".".join(parts[:at]), set()).add(int(parts[at]))
    if not stacks:
        return []
    path, layers = max(stacks.items(), key=lambda item: len(item[1]))
    return [f"{path}.{layer}" for layer in sorted(layers)[: len(layers) // 2]]


def available(
    job: Job, keep: frozenset[str], params: Iterable[Param] = (), *, second_gpu: bool = False
) -> list[Move]:
    """The moves that apply to the job and leave alone what the user wants kept."""
    adapted = IN_ITS_PRECISION if "precision" in keep else ()
    found: list[Move] = []
    for move in (*FREE, *SLOWER, *CHANGES, *adapted, *freezing(tuple(params))):
        after = move.apply(job)
        if (
            after is None
            or (move.second_gpu and not second_gpu)
            or changed_keys(job, after) & keep
            or move.name in (known.name for known in found)
        ):
            continue
        found.append(move)
    return found
