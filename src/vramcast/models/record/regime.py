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
    """Adapters on linear layers. `matches` decides by the module's full name and kind (linear, head, router)."""

    rank: int
    matches: NameMatch
    dtype: Dtype
    dora: bool = False
    dropout: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """How the weights of linear layers are stored."""

    matches: NameMatch
    stored_bytes: Callable[[int], int]  # of a weight with that many elements
    compute: Dtype
    graph_keeps_input: bool = False  # bitsandbytes before 0.44 wrote the input into ctx.tensors
    via_half: bool = False  # dequantised to fp16 and then cast: two tensors of the weight's size
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


def everything(name: str) -> bool:
    """Every parameter is trained."""
    return True


def _never(name: str, kind: str) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How the model is run: everything about a job that changes which tensors exist."""

    weights: Dtype = F32
    autocast: Dtype | None = None
    training: bool = True  # dropout is on
    grad: bool = True  # autograd records
    attention: str = "flash"
    mask: bool = False  # a padding mask reaches attention
    # The fused loss adds to the head's gradient through a 16-bit and an fp32 copy of it.
    loss_sums_copies: bool = False
    loss_chunks: int = 1  # chunks of logits that the fused loss has at once
    tiled_loss: bool = False  # the fused loss is TRL's: tiles of logits, computed again in backward
    # Of "norm", "rope", "mlp", "loss": kernels that save their inputs only (Liger's, say).
    fused: frozenset[str] = frozenset()
    gqa_in_kernel: bool = True  # grouped heads reach the kernel unrepeated
    # transformers fills a cache in training too: an "alias" of keys and values, or a "copy".
    kv_cache: str = "none"
    experts: str = "grouped"  # grouped (one grouped matmul) or loop (expert by expert)
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
