"""The Regime: everything about a job that changes which tensors exist, as families and the tape read it.

`engine.recording.regime` derives one from a Job. Example: QLoRA with bf16 compute on transformers' Llama is

    Regime(weights=BF16, autocast=BF16, attention="flash", lora=Lora(rank=16, …), quantized=Quantized(compute=BF16, …))

Two jobs with equal regimes record the same ops; batch and lengths come as `program.Sizes`. What does not change the
recorded forward pass (optimizer, checkpointing of whole layers, FSDP) is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vramcast.models.record.values import F32, Dtype

NameMatch = Callable[[str, str], bool]  # a module's or parameter's full name, and its kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Adapters on linear layers, LoRA's or of another kind (see `adapters`). `matches` decides by the module's full
    name and kind (linear, head, router)."""

    rank: int
    matches: NameMatch
    dtype: Dtype
    dora: bool = False
    dropout: float = 0.0
    kind: str = "lora"
    block: int = 0  # of rotations
    scales_input: Callable[[str], bool] = lambda name: False  # IA3's feedforward modules
    by_layer: bool = False  # layers of one stack may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Modules that stay as they are, frozen, beside a copy that is trained and used instead."""

    matches: Callable[[str], bool]  # a module's full name
    frozen: str  # the name of the module itself, inside PEFT's wrapper
    trained: str  # the name of the copy
    by_layer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualTokens:
    """Trained vectors before every sample. `hidden`: the width of the network that makes them."""

    count: int
    dtype: Dtype
    hidden: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """How the weights of linear layers are stored."""

    matches: NameMatch
    stored_bytes: Callable[[int], int]  # of a weight with that many elements
    compute: Dtype
    graph_keeps_input: bool = False  # bitsandbytes before 0.44 wrote the input into ctx.tensors
    # What the weights were loaded in: they are dequantised to that, and then cast to what the product computes in.
    loaded: Dtype | None = None
    head_chunk: int | None = None  # positions that the head multiplies at a time
    clones: bool = False  # PEFT clones a 4-bit layer's output before it adds the adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How one rank's part of a model exchanges tensors with the other ranks. Sizes that are divided (heads, inner
    widths, vocabulary, the sequence) come divided already; here is what happens at the borders."""

    tp: int = 1
    sequence_parallel: bool = False  # norms and residuals have 1/tp of the sequence
    # Autograd saves the gathered input of a linear; if not, backward gathers it again (Megatron).
    keeps_gathered: bool = True
    vocab_logits: bool = True  # logits stay split by vocabulary
    cp: int = 1
    cp_style: str = "ring"
    ep: int = 1
    expert_tp: int = 1
    expert_load: int = 100  # rows of the fullest rank, in percent of an even share


WHOLE = Split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How transformers' modelling files of one version write what others write differently; here the newest ones.
    `engine.recording.library_versions` dates them."""

    softmax_in_fp32: bool | None = None  # in eager attention; None: the family has one way
    returns_cache_as_tuple: bool = False  # in which others find the tensors
    t5_ties_head: bool = True  # whatever the config says
    # "oldest": heads are laid out one after the other before they are cached; "own"; "shared" with other families.
    opt_attention: str = "shared"
    bert_holds_scores: bool = (
        False  # attention of its own: a mask is added to the scores, a variable has them
    )
    phi3_joins_rotated: bool = True  # a part of each head is rotated, and joined with the rest
    bloom_caches_copies: bool = (
        False  # heads are laid out one after the other before they are cached
    )
    neox_masks_keys: bool = (
        False  # a mask without an axis of queries, beside a causal one in each layer
    )
    neox_rotates_in_fp32: bool = False  # tables of positions stay in fp32, and raise what they meet
    t5_bias_in_place: bool = False  # bias and mask are one tensor, added to the scores in place
    t5_makes_masks: bool = (
        False  # the encoder's without an axis of queries, the decoder's a causal one
    )


NEWEST = Habits()


def everything(name: str) -> bool:
    """Every parameter is trained."""
    return True


def _never(name: str, kind: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How the model is run: everything about a job that changes which tensors exist."""

    weights: Dtype = F32
    frozen: Dtype | None = None  # of parameters that are not trained, if another
    fp8_weights: bool = False  # linear weights exist in one byte each
    autocast: Dtype | None = None
    training: bool = True  # dropout is on
    grad: bool = True  # autograd records
    attention: str = "flash"
    mask: bool = False  # a padding mask reaches attention
    # The fused loss adds to the head's gradient through a 16-bit and an fp32 copy of it.
    loss_sums_copies: bool = False
    loss_chunks: int = 1  # chunks of logits that the fused loss has at once
    prompt: int = 0  # tokens of each sample that the tiled loss leaves out …
    is_half_prompt: bool = False  # … or half of them
    tiled_loss: bool = False  # the fused loss is TRL's: tiles of logits, computed again in backward
    # Before that chunks of logits, each under a checkpoint, as TRL of this version makes them.
    checkpoints_loss: tuple[int, ...] | None = None
    # Of "norm", "rope", "mlp", "loss": kernels that save their inputs only (Liger's, say).
    fused: frozenset[str] = frozenset()
    gqa_in_kernel: bool = True  # grouped heads reach the kernel unrepeated
    # transformers fills a cache in training too: an "alias" of keys and values, or a "copy".
    kv_cache: str = "none"
    # grouped (one grouped matmul), loop (expert by expert) or modules (each expert an MLP with layers of its own)
    experts: str = "grouped"
    dispatch: str = "allgather"  # how Megatron moves rows to experts: allgather, alltoall or flex
    # Parts of a layer that backward computes again, in Megatron's names.
    recompute: frozenset[str] = frozenset()
    # Parts of a layer whose saved tensors are on the host, in Megatron's names.
    offloaded: frozenset[str] = frozenset()
    # torch.use_deterministic_algorithms: code that asks for it takes other ops.
    deterministic: bool = False
    grad_fusion: bool = False  # products add weight gradients to main gradients themselves
    code: str = "transformers"  # whose modelling code: transformers, litgpt, torchtune, …
    compiled: str = "none"  # torch.compile around the "blocks", or around the "model"
    compiled_loss: bool = False
    chunked_loss: bool = False  # the head leaves its logits as they are for a loss in chunks
    softmax_keeps_input: bool = False  # torch before 1.11 saved it and never used it
    # CUDA kernels; False: what the CPU kernels save, for checks against real runs.
    cuda: bool = True
    trainable: Callable[[str], bool] = everything
    upcast: NameMatch = _never  # parameters kept in fp32 whatever `weights` says
    lora: Lora | None = None
    copies: tuple[Copies, ...] = ()
    virtual_tokens: VirtualTokens | None = None
    quantized: Quantized | None = None
    split: Split = WHOLE
    # Masks are boolean, made additive for every call; if not, one additive mask serves all.
    boolean_masks: bool = True
    # SDPA gets a mask whatever the length, and sliding layers one of their own.
    masks_always: bool = False
    kernel_has_windows: bool = False  # flash-attention slides by itself: no mask for that
    # Gradient checkpointing asks the embeddings' output for a gradient, trained or not.
    input_grads: bool = False
    # Where logits are cast to fp32: in the "model", in the "loss", or "never".
    upcasts_logits: str = "loss"
    habits: Habits = NEWEST

    @property
    def freezes_model(self) -> bool:
        """Are all weights frozen but those of adapters and copies?"""
        return self.lora is not None or bool(self.copies) or self.virtual_tokens is not None

    @property
    def differs_by_layer(self) -> bool:
        """May layers of one stack differ in what is trained?"""
        adapted = self.lora is not None and self.lora.by_layer
        copied = any(copies.by_layer for copies in self.copies)
        return self.trainable is not everything or adapted or copied
