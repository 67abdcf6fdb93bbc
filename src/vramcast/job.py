"""A Job: what is trained and how. Flags, job-file keys and fields are the same words.

Each field declares its help, its allowed values and its default once; the command line, job files and errors all read
them from here. None means "not said": the engine then decides, and the report says what it decided.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.errors import InputError, unknown
from vramcast.everyday_words import translate
from vramcast.ledger import Word
from vramcast.sample_lengths import read_sample_lengths
from vramcast.units import parse_count


class Precision(Word):
    FP32 = "fp32"
    BF16_TRUE = "bf16-true"
    FP16_TRUE = "fp16-true"
    BF16_AUTOCAST = "bf16-autocast"
    FP16_AUTOCAST = "fp16-autocast"
    BF16_MIXED = "bf16-mixed"
    FP16_MIXED = "fp16-mixed"
    BF16_MASTER = "bf16-master"
    FP16_MASTER = "fp16-master"
    MEGATRON_BF16 = "megatron-bf16"
    FP8 = "fp8"


# Beyond these a number is a typing mistake.
MOST = 10**15  # parameters, samples of a run
MOST_TOKENS = (
    10**8
)  # of a sample; also batches, ranks of adapters, and whatever else is a whole number
MOST_GPUS = 2**20
MOST_HIDDEN = 1000
MOST_SCORES = 10**16  # batch × tokens²: what they take must be counted in 64 bits

OPTIMIZERS = (
    "adamw",
    "adam",
    "sgd",
    "sgd-momentum",
    "adamw-8bit",
    "paged-adamw",
    "paged-adamw-8bit",
    "adafactor",
    "lion",
    "adagrad",
    "rmsprop",
    "muon",
    "sophia",
    "came",
    "galore",
    "adam-mini",
    "lomo",
)
FRAMEWORKS = (
    "plain",
    "hf",
    "lightning",
    "accelerate",
    "trl",
    "torchtune",
    "torchtitan",
    "litgpt",
    "megatron",
    "deepspeed",
)
LOOPS = ("plain", "retain-graph", "aux-outputs", "one-pass", "joint", "scores-only")
PLACES = ("none", "same", "cpu", "cuda:1")


def option(
    help: str,
    default: Any = None,
    *,
    choices: tuple[str, ...] = (),
    kind: str = "text",
    least: int = 1,
    most: int | None = None,
    group: str = "",
) -> Any:
    """A field of the Job. kind: text, int, count, float, flag, list."""
    most = most or (MOST if kind == "count" else MOST_TOKENS)
    facts = {
        "help": help,
        "choices": choices,
        "kind": kind,
        "least": least,
        "most": most,
        "group": group,
    }
    return dataclasses.field(default=default, metadata=facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that decides a job's memory, as users say it."""

    model: str | None = option(
        "catalog name, HF config.json or folder, safetensors file or folder", group="model"
    )
    params: int | None = option(
        "only a number of parameters (7e9, 7B): no activations, so a lower bound",
        kind="count",
        group="model",
    )

    batch: int = option("micro-batch per GPU", 1, kind="int", group="data")
    seq: int | None = option(
        "tokens per sample (source tokens of an encoder-decoder)", kind="int", group="data"
    )
    target_seq: int | None = option(
        "decoder tokens of an encoder-decoder", kind="int", group="data"
    )
    longest_seq: int | None = option(
        "length of the longest sample, when batches are padded to it", kind="int", group="data"
    )
    mean_seq: int | None = option(
        "mean tokens per sample where lengths vary from batch to batch; seq is the longest",
        kind="int",
        group="data",
    )
    samples: int | None = option(
        "samples of the run, where lengths vary: in longer runs more batches are the longest so far",
        kind="count",
        group="data",
    )
    lengths: str | None = option(
        "a file with one number per line: the tokens of each sample in training order; samples longer than seq are cut",
        group="data",
    )
    accumulate: int = option("micro-batches per optimizer step", 1, kind="int", group="data")
    images: int | None = option(
        "images per sample of a vision-language model", kind="int", least=0, group="data"
    )
    image_tokens: int | None = option("language-model tokens per image", kind="int", group="data")

    precision: Precision | None = option(
        "dtypes of weights, compute and master copy: X-true all in X; X-mixed fp32 weights, compute in X; X-master "
        "weights and compute in X, fp32 master copy; X-autocast weights in X under autocast; default as the framework "
        "loads this model",
        choices=tuple(map(str, Precision)),
        group="recipe",
    )
    optimizer: str = option("optimizer", "adamw", choices=OPTIMIZERS, group="recipe")
    optimizer_impl: str | None = option(
        "how the optimizer step runs; default as the framework and versions do",
        group="recipe",
        choices=("foreach", "fused", "loop", "in-backward"),
    )
    optimizer_rank: int = option("rank of GaLore's projection", 128, kind="int", group="recipe")
    optimizer_block: int = option(
        "block size of 8-bit states: 256 (bitsandbytes ≥ 0.44) or 2048",
        256,
        kind="int",
        group="recipe",
    )
    attention: str = option(
        "attention kernel; sdpa: the one torch would choose",
        "sdpa",
        choices=("sdpa", "eager", "math", "efficient", "flash", "cudnn"),
        group="recipe",
    )
    checkpointing: str | None = option(
        "gradient checkpointing: none, full, selective (matrix products are kept), every-N (every Nth block), "
        "offload (full, block inputs in CPU memory); default as the framework does",
        group="recipe",
    )
    recompute: tuple[str, ...] = option(
        "parts of a layer that are recomputed in backward (Megatron's recompute-modules)",
        (),
        kind="list",
        choices=(
            "core_attn",
            "layernorm",
            "mla_up_proj",
            "mlp",
            "moe",
            "moe_act",
            "shared_experts",
        ),
        group="recipe",
    )
    reentrant: bool | None = option(
        "checkpointing with use_reentrant; default as transformers does: true before 5.0",
        kind="flag",
        group="recipe",
    )
    compile: bool = option(
        "torch.compile around the model, its blocks or its loss", False, kind="flag", group="recipe"
    )
    loss: str | None = option(
        "how the loss is computed: full logits, chunked (in fp32, chunk by chunk), tiled (TRL since 1.15), fused "
        "(Liger); default as the framework does",
        choices=("full", "chunked", "tiled", "fused"),
        group="recipe",
    )
    kernels: tuple[str, ...] = option(
        "fused kernels that save only their inputs, such as Liger",
        (),
        kind="list",
        choices=("norm", "rope", "mlp"),
        group="recipe",
    )

    lora_rank: int | None = option("LoRA rank; trains adapters only", kind="int", group="adapter")
    lora_targets: tuple[str, ...] = option(
        "modules that get adapters: all-linear, or names",
        ("all-linear",),
        kind="list",
        group="adapter",
    )
    lora_dropout: float = option("dropout before the adapters", 0.0, kind="float", group="adapter")
    lora_dtype: str | None = option(
        "dtype of adapters; default fp32 as PEFT makes them",
        choices=("fp32", "bf16", "fp16"),
        group="adapter",
    )
    dora: bool = option("DoRA instead of LoRA", False, kind="flag", group="adapter")
    quantize: str = option(
        "storage of the frozen linear weights",
        "none",
        choices=("none", "int8", "nf4", "nf4-double"),
        group="adapter",
    )
    freeze: tuple[str, ...] = option(
        "parameters that are not trained, by name pattern", (), kind="list", group="adapter"
    )
    ema: str = option(
        "an averaged copy of the weights", "none", choices=("none", "same", "cpu"), group="adapter"
    )

    framework: str = option("whose training loop it is", "hf", choices=FRAMEWORKS, group="loop")
    loop: str = option(
        "how the gate of a mixture of experts is trained in addition to the main loss",
        "plain",
        choices=LOOPS,
        group="loop",
    )
    keep_outputs: bool | None = option(
        "whether a variable keeps the model's outputs alive during the step",
        kind="flag",
        group="loop",
    )
    zero_grad: str | None = option(
        "whether zero_grad runs before or after forward; default as the framework does",
        choices=("before-forward", "after-forward"),
        group="loop",
    )
    reference: str = option(
        "a frozen reference model (DPO, NPO, KL); adapter: the model itself with its adapters switched off",
        "none",
        choices=("none", "same", "adapter", "cpu", "cuda:1", "precomputed"),
        group="loop",
    )
    reference_dtype: str | None = option(
        "dtype of the reference's weights; default that of the trained ones",
        choices=("fp32", "bf16", "fp16"),
        group="loop",
    )
    reward: str = option(
        "a frozen reward model that scores rollouts", "none", choices=PLACES, group="companions"
    )
    reward_model: str | None = option("its model; default the trained one", group="companions")
    critic: str = option(
        "a value model trained together with the policy", "none", choices=PLACES, group="companions"
    )
    critic_model: str | None = option("its model; default the trained one", group="companions")
    teacher: str = option(
        "a frozen teacher whose logits the loss compares with",
        "none",
        choices=PLACES,
        group="companions",
    )
    teacher_model: str | None = option("its model; default the trained one", group="companions")
    companion_dtype: str | None = option(
        "dtype of reward and teacher weights; default that of the trained ones",
        choices=("fp32", "bf16", "fp16"),
        group="companions",
    )

    rollout_tokens: int | None = option(
        "tokens generated per sample before each step; the prompt is the rest of seq",
        kind="int",
        group="phases",
    )
    rollout_batch: int | None = option(
        "sequences generated at once; default batch", kind="int", group="phases"
    )
    evaluate: bool = option("evaluation between steps", False, kind="flag", group="phases")
    eval_batch: int | None = option(
        "batch of the evaluation; default batch", kind="int", group="phases"
    )
    eval_kept: int = option(
        "batches whose logits stay on the GPU until evaluation ends (compute_metrics without eval_accumulation_steps)",
        0,
        kind="int",
        least=0,
        group="phases",
    )
    resume: str = option(
        "start from a checkpoint that torch.load puts into CPU memory (cpu) or on the GPU (same)",
        "none",
        choices=("none", "cpu", "same"),
        group="phases",
    )

    edit: tuple[str, ...] = option(
        "model editing: names or patterns of the inner parameters; everything else is frozen",
        (),
        kind="list",
        group="editing",
    )
    edit_rank: int = option("rank of the editor's layers (MEND)", 1920, kind="int", group="editing")
    edit_hidden: int = option(
        "hidden layers of the editor", 1, kind="int", least=0, most=MOST_HIDDEN, group="editing"
    )
    edit_forwards: int = option(
        "forward passes of the edited model per step", 5, kind="int", group="editing"
    )
    edit_gradients: str = option(
        "what the inner backward gives gradients to: only the inner parameters, or every parameter after the first one",
        "inner",
        choices=("inner", "all-after"),
        group="editing",
    )
    edit_graph: str = option(
        "joint: all edited forwards in one graph; cut: one at a time, their gradients summed at the edited weights",
        "joint",
        choices=("joint", "cut"),
        group="editing",
    )
    sub_device: str | None = option(
        "a second device (1, cuda:1) for the first edited layer and all later ones", group="editing"
    )

    gpus: int = option("GPUs of the whole job", 1, kind="int", most=MOST_GPUS, group="many gpus")
    gpus_per_node: int = option(
        "GPUs of one machine", 8, kind="int", most=MOST_GPUS, group="many gpus"
    )
    strategy: str | None = option(
        "data parallelism; default ddp if there is more than one copy of the model",
        group="many gpus",
        choices=("none", "ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3"),
    )
    shard_size: int | None = option(
        "GPUs that share one sharded copy (HSDP); default all data-parallel ones",
        kind="int",
        most=MOST_GPUS,
        group="many gpus",
    )
    tp: int = option("tensor-parallel GPUs", 1, kind="int", most=MOST_GPUS, group="many gpus")
    sequence_parallel: bool | None = option(
        "norms and residuals split over tp as well; default as the framework does",
        kind="flag",
        group="many gpus",
    )
    loss_parallel: bool | None = option(
        "logits stay split over tp by vocabulary; default as the framework does",
        kind="flag",
        group="many gpus",
    )
    pp: int = option("pipeline stages", 1, kind="int", most=MOST_GPUS, group="many gpus")
    schedule: str = option(
        "pipeline schedule",
        "1f1b",
        choices=("gpipe", "1f1b", "interleaved", "zero-bubble"),
        group="many gpus",
    )
    virtual_stages: int = option(
        "model chunks per GPU of an interleaved schedule",
        1,
        kind="int",
        most=MOST_GPUS,
        group="many gpus",
    )
    stage_layers: tuple[str, ...] = option(
        "layers of every stage in order, chunks of an interleaved schedule included (4,3,3,2)",
        (),
        kind="list",
        group="many gpus",
    )
    first_stage_layers: int | None = option(
        "layers of the first stage", kind="int", least=0, group="many gpus"
    )
    last_stage_layers: int | None = option(
        "layers of the last stage", kind="int", least=0, group="many gpus"
    )
    cp: int = option("context-parallel GPUs", 1, kind="int", most=MOST_GPUS, group="many gpus")
    cp_style: str = option(
        "how attention communicates between context-parallel GPUs",
        "ring",
        choices=("ring", "allgather", "ulysses"),
        group="many gpus",
    )
    ep: int = option("expert-parallel GPUs", 1, kind="int", most=MOST_GPUS, group="many gpus")
    expert_tp: int | None = option(
        "tensor-parallel GPUs within an expert; default as the framework does",
        kind="int",
        most=MOST_GPUS,
        group="many gpus",
    )
    expert_dispatch: str | None = option(
        "how tokens reach experts in Megatron; default allgather, as its flags do",
        choices=("allgather", "alltoall", "flex"),
        group="many gpus",
    )
    expert_gemm: str | None = option(
        "a GPU's experts in one grouped matrix product, or one by one; default grouped, as transformers does since 5",
        choices=("grouped", "loop"),
        group="many gpus",
    )
    overlap_experts: bool = option(
        "one micro-batch's forward runs at the same time as another's backward, to hide expert-parallel communication",
        False,
        kind="flag",
        group="many gpus",
    )
    grad_fusion: bool = option(
        "Megatron adds weight gradients directly to the main gradients",
        True,
        kind="flag",
        group="many gpus",
    )
    expert_load: int = option(
        "tokens of the busiest GPU's experts, in percent of an even share",
        100,
        kind="int",
        least=100,
        group="many gpus",
    )
    expert_capacity: int | None = option(
        "maximum tokens of an expert, in percent of an even share (capacity factor 1.25 is 125); others are dropped",
        kind="int",
        group="many gpus",
    )
    pad_experts: bool = option(
        "experts' inputs are padded to their capacity", False, kind="flag", group="many gpus"
    )
    offload: str = option(
        "what is kept in CPU memory",
        "none",
        choices=("none", "optimizer", "params", "activations", "all"),
        group="many gpus",
    )
    offload_modules: tuple[str, ...] = option(
        "parts of a layer whose saved tensors go to CPU memory (Megatron's offload-modules)",
        (),
        kind="list",
        group="many gpus",
        choices=(
            "attn_norm",
            "qkv_linear",
            "core_attn",
            "attn_proj",
            "mlp_norm",
            "expert_fc1",
            "moe_act",
        ),
    )
    offload_device: str = option(
        "where offloaded weights and states go; nvme is ZeRO-3's, with swap buffers in pinned memory",
        "cpu",
        choices=("cpu", "nvme"),
        group="many gpus",
    )
    bucket_view: bool = option(
        "DDP's gradient_as_bucket_view", False, kind="flag", group="many gpus"
    )
    reshard: bool = option(
        "FSDP reshards a block after its forward", True, kind="flag", group="many gpus"
    )
    units: str | None = option(
        "FSDP units other than the blocks: one root, or embedding and head separately; default as the framework does",
        choices=("root", "ends"),
        group="many gpus",
    )
    reduce_bucket: int | None = option(
        "DeepSpeed's reduce_bucket_size in elements; default 5e8, or hidden² as Hugging Face's auto",
        kind="count",
        group="many gpus",
    )
    vocab_multiple: int | None = option(
        "the vocabulary is padded to a multiple of this times tp; default as the framework does",
        kind="int",
        group="many gpus",
    )

    gpu: str | None = option(
        "card, such as rtx4090 or a100-80gb; or a size such as 24GiB", group="hardware"
    )
    dataset: str | None = option("training data: a parquet file, folder or pattern", group="host")
    dataset_mode: str = option(
        "how it is read: whole table, row groups within a budget, mapped Arrow cache, or one row group",
        "row-groups",
        choices=("table", "row-groups", "mmap", "ultra"),
        group="host",
    )
    workers: int = option("DataLoader workers per GPU", 0, kind="int", least=0, group="host")
    prefetch: int | None = option(
        "batches that each worker prepares; default 2", kind="int", group="host"
    )
    pin_memory: bool = option("batches go through pinned memory", False, kind="flag", group="host")
    torch_version: str = option("version of torch", "2.13", group="versions")
    transformers_version: str = option("version of transformers", "5.22", group="versions")
    bitsandbytes_version: str = option("version of bitsandbytes", "0.49", group="versions")
    trl_version: str | None = option(
        "version of TRL; default 1.16, with transformers before 5.0 0.26", group="versions"
    )
    liger_version: str = option("version of Liger", "0.8.5", group="versions")
    alloc_conf: str = option("PYTORCH_ALLOC_CONF of the job", "", group="versions")
    deterministic: bool = option(
        "torch.use_deterministic_algorithms(True), Megatron's deterministic-mode",
        False,
        kind="flag",
        group="versions",
    )
    cublas_workspace: str = option(
        "CUBLAS_WORKSPACE_CONFIG of the job (:4096:8)", "", group="versions"
    )

    def __post_init__(self) -> None:
        for name, field in FIELDS.items():
            value = getattr(self, name)
            if value is not field.default:
                check_value(field, value)
        if (self.model is None) == (self.params is None):
            raise InputError("give a model name or --params with a number of parameters (not both)")
        if self.lengths is not None:
            self._take_lengths(self.lengths)

    def changed(self, **changes: Any) -> Job:
        """`dataclasses.replace` for searches, which make jobs by the thousand: what stays as it is was checked before,
        and neither what is trained nor its lengths' file is another."""
        made = object.__new__(Job)
        for get, put in MEMBERS:
            put(made, get(self))
        for name, value in changes.items():
            check_value(FIELDS[name], value)
            object.__setattr__(made, name, value)
        return made

    def _take_lengths(self, path: str) -> None:
        if self.mean_seq is not None or self.longest_seq is not None:
            raise InputError(
                "lengths says how long every sample is: leave out mean-seq and longest-seq"
            )
        if self.seq is None:
            object.__setattr__(self, "seq", max(read_sample_lengths(path)))


FIELDS = {field.name: field for field in dataclasses.fields(Job)}
MEMBERS = [
    (vars(Job)[name].__get__, vars(Job)[name].__set__) for name in FIELDS
]  # around the frozen class's guard


def flag_of(name: str) -> str:
    return name.replace("_", "-")


def fields() -> dict[str, dataclasses.Field[Any]]:
    """The Job's fields under the names users type."""
    return {flag_of(name): field for name, field in FIELDS.items()}


def check_value(field: dataclasses.Field[Any], value: Any) -> None:
    """Refuse what the field does not allow, naming the flag, the value and the allowed ones."""
    facts, name = field.metadata, flag_of(field.name)
    if value is None or (value == field.default and not facts["choices"]):
        return
    for word in value if facts["kind"] == "list" else (value,):
        if facts["choices"] and str(word) not in facts["choices"]:
            raise unknown(name, str(word), facts["choices"])
    if facts["kind"] in ("int", "count") and not facts["least"] <= value <= facts["most"]:
        bound = (
            f"at least {facts['least']}" if value < facts["least"] else f"at most {facts['most']}"
        )
        raise InputError(f"{name} must be {bound}, not {value}")
    if facts["kind"] == "float" and not 0 <= value <= 1:
        raise InputError(f"{name} must be between 0 and 1, not {value}")


def parse_value(name: str, value: Any) -> Any:
    """A value from a flag or a job file as the field wants it."""
    known = fields()
    if name not in known:
        raise unknown("job key", name, known)
    field = known[name]
    kind = field.metadata["kind"]
    try:
        parsed = _PARSERS[kind](value)
    except (KeyError, TypeError, ValueError, OverflowError, InputError):
        raise InputError(f"{name} must be {_WANTED[kind]}, not {_shown(value)}") from None
    if name == "precision" and isinstance(parsed, str):
        check_value(field, parsed)
        return Precision(parsed)
    return parsed


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > MOST:
        return "a number with so many digits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError
    return str(value)


def _flag(value: Any) -> bool:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    return value if isinstance(value, bool) else words[str(value).lower()]


def _list(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list | tuple) else str(value).split(",")
    names = tuple(_text(item).strip() for item in items if _text(item).strip())
    if isinstance(value, str) and not names:
        raise ValueError  # a lone comma names nothing
    return names


def _count(value: Any) -> int:
    return _int(value) if isinstance(value, int | float) else parse_count(value)


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "text": _text,
    "int": _int,
    "count": _count,
    "float": float,
    "flag": _flag,
    "list": _list,
}
_WANTED = {
    "text": "a word",
    "int": "a whole number",
    "count": "a count such as 7e9 or 7B",
    "float": "a number",
    "flag": "true or false",
    "list": "a list of names",
}


def job_from(values: Mapping[str, Any]) -> Job:
    """A Job from flags or job-file keys, in the Job's own words or everyday ones; None counts as not given."""
    said = translate({name: value for name, value in values.items() if value is not None})
    given = {name: parse_value(name, value) for name, value in said.items() if value is not None}
    job = Job(**{name.replace("-", "_"): value for name, value in given.items()})
    _check_together(job)
    return job


def _check_together(job: Job) -> None:
    """Sizes that are possible alone can be absurd together."""
    batch, seq = (
        max(job.batch, job.eval_batch or 1, job.rollout_batch or 1),
        max(job.seq or 1, job.target_seq or 1),
    )
    if batch * seq**2 > MOST_SCORES:
        raise InputError(
            f"a batch of {batch} with {seq} tokens each is beyond any GPU: give a smaller batch or seq"
        )


def job_values(job: Job) -> dict[str, Any]:
    """The Job as users would write it: every key, plain values."""
    values: dict[str, Any] = {}
    for name, field in fields().items():
        value = getattr(job, field.name)
        values[name] = (
            list(value)
            if isinstance(value, tuple)
            else str(value)
            if isinstance(value, Word)
            else value
        )
    return values
