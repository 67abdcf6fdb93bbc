"""A Setup: a job in which everything is decided, as a tree of small frozen records.

A `Job` is what a user said; `resolve` (see `setup.resolve`) decides the rest once. The engine reads a Setup, or the
part of it that a function needs. Two setups with equal parts run the same tensors, so parts are also the keys under
which searches share work.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.setup.precision import Recipe
from vramcast.setup.versions import Version

ACCELERATED = ("hf", "trl", "accelerate")  # accelerate wraps for them
ACCELERATE_CARVES_ENDS_FROM = (5, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What one step is fed with."""

    batch: int  # samples
    rows: int  # of the model's input, per sample
    seq: int | None
    usual_seq: int | None  # the framework's, where nothing is said
    target_seq: int | None
    longest_seq: int | None
    mean_seq: int | None
    samples: int | None
    lengths: str | None
    accumulate: int
    prompt: int  # tokens that the loss does not score
    is_half_prompt: bool  # half of the tokens, whatever the length
    images: int | None
    image_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Which optimizer runs, and how its step is carried out."""

    name: str
    implementation: str  # foreach, fused, loop or in-backward
    projection_rank: int
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """How the forward and backward passes compute."""

    attention: str
    fused: tuple[str, ...]
    loss: str
    compile: bool
    recompute: tuple[str, ...]
    deterministic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Which activations backward computes again."""

    how: str
    is_reentrant: bool


NO_CHECKPOINTING = Checkpointing(how="none", is_reentrant=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """What is trained of the model, and how the frozen rest is stored."""

    kind: str | None  # None: no adapters
    rank: int | None
    block: int | None  # of OFT and BOFT
    targets: tuple[str, ...]
    feedforward: tuple[str, ...]  # IA3 scales the inputs of these targets
    layers: tuple[int, ...]  # that get adapters; none named: all
    saved: tuple[str, ...]  # modules of which a copy is trained
    virtual_tokens: int
    prompt_hidden: int | None
    added_blocks: int  # LLaMA-Pro's, which alone are trained
    dropout: float
    dtype: str  # "weights": that of the frozen ones
    dora: bool
    quantize: str
    is_raised: bool  # what is not quantised is turned to fp32
    freeze: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What the training loop holds on to, and when it lets go."""

    gate: str
    keeps_outputs: bool
    zero_grad: str
    use_cache: bool | None  # None: as the model's config says
    has_attention_mask: bool
    copies_logits: int  # how many, shifted, for the accuracy of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    """Other models in the same job."""

    reference: str
    reference_dtype: str | None
    reward: str
    reward_model: str | None
    critic: str
    critic_model: str | None
    teacher: str
    teacher_model: str | None
    companion_dtype: str | None
    ema: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """What happens between training steps."""

    rollout_tokens: int | None
    rollout_batch: int | None
    evaluate: bool
    eval_batch: int | None
    eval_kept: int
    resume: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Editing:
    """A model-editing job; `parameters` is empty in every other."""

    parameters: tuple[str, ...]
    rank: int
    hidden_layers: int
    forwards: int
    gradients: str
    graph: str
    sub_device: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """How the experts of a mixture are spread over GPUs and computed."""

    ep: int
    tp: int | None
    dispatch: str | None
    gemm: str | None
    overlap: bool
    load: int
    capacity: int | None
    pad: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """How the job is spread over GPUs."""

    gpus: int
    gpus_per_node: int
    strategy: str | None
    shard_size: int | None
    tp: int
    sequence_parallel: bool
    loss_parallel: bool
    pp: int
    schedule: str
    virtual_stages: int
    stage_layers: tuple[str, ...]
    first_stage_layers: int | None
    last_stage_layers: int | None
    cp: int
    cp_style: str
    grad_fusion: bool
    bucket_view: bool
    reshard: bool
    units: str | None
    reduce_bucket: int | None
    vocab_multiple: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What lives in host memory, or on disk."""

    what: str
    modules: tuple[str, ...]
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoading:
    """How samples reach the GPU."""

    dataset: str | None
    dataset_mode: str
    workers: int
    prefetch: int | None
    pin_memory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Whose loop runs, with which libraries."""

    framework: str
    torch: Version
    transformers: Version
    trl: Version
    bitsandbytes: Version
    liger: tuple[int, ...]
    cublas_workspace: str
    module_loading: str | None  # lazy, eager; None: as torch does

    @property
    def carves_ends(self) -> bool:
        """accelerate's fsdp2_prepare_model, since 1.14 (June 2026): the embedding is a unit, last norm and head another
        one, unless they share a weight. The version is that of the transformers of the same month."""
        return self.framework in ACCELERATED and self.transformers >= ACCELERATE_CARVES_ENDS_FROM


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that decides a job's memory. Model and card are looked up by those who need them."""

    model: str | None
    params: int | None
    gpu: str | None
    data: Data
    precision: Recipe
    optimizer: Optimizer
    kernels: Kernels
    checkpointing: Checkpointing
    adapter: Adapter
    loop: Loop
    companions: Companions
    phases: Phases
    editing: Editing
    experts: Experts
    parallel: Parallel
    offload: Offload
    loading: DataLoading
    versions: Versions
    alloc_conf: str
