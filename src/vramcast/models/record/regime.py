"""How a model is run: everything about a job that changes which tensors exist, as families and the tape read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vramcast.models.record.values import F32, Dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Adapters on linear layers. `matches` decides by the module's full name and kind (linear, head, router)."""

    rank: int
    matches: Callable[[str, str], bool]
    dtype: Dtype
    dora: bool = False
    dropout: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """How the weights of linear layers are stored."""

    matches: Callable[[str, str], bool]
    stored_bytes: Callable[[int], int]  # of a weight with that many elements
    compute: Dtype
    pins_input: bool = False  # bitsandbytes before 0.44 wrote the input into ctx.tensors
    via_half: bool = False  # dequantised to fp16 and then cast: two tensors of the weight's size
    clones: bool = False  # PEFT clones what a 4-bit layer gives before it adds the adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How one rank's part of a model meets the other parts. Sizes that are divided (heads, inner widths, vocabulary,
    the sequence) come divided already; here is what happens at the seams."""

    tp: int = 1
    sequence: bool = False  # norms and residuals hold 1/tp of the sequence
    keeps_gathered: bool = True  # autograd keeps the gathered input of a linear; Megatron gathers again in backward
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How the model is run: everything about a job that changes which tensors exist."""

    weights: Dtype = F32
    autocast: Dtype | None = None
    training: bool = True  # dropout on
    grad: bool = True  # autograd records
    attention: str = "flash"
    mask: bool = False  # a padding mask reaches attention
    loss_sums_copies: bool = False  # the fused loss adds to the head's gradient through a 16-bit and an fp32 copy of it
    loss_chunks: int = 1  # chunks of logits that the fused loss has at once
    fused: frozenset[str] = frozenset()  # of "norm", "rope", "mlp": kernels that keep inputs only (Liger and alike)
    gqa_in_kernel: bool = True  # grouped heads reach the kernel unrepeated
    kv_cache: str = "none"  # transformers fills a cache in training too: "alias" of keys and values, or "copy"
    experts: str = "grouped"  # grouped (one grouped matmul) or loop (expert by expert)
    dispatch: str = "allgather"  # how Megatron moves rows to experts: allgather, alltoall or flex
    recompute: frozenset[str] = frozenset()  # parts of a layer that backward computes again (Megatron's names)
    away: frozenset[str] = frozenset()  # parts of a layer whose saved tensors are on the host (Megatron's names)
    deterministic: bool = False  # torch.use_deterministic_algorithms: code that asks for it takes other ops
    grad_fusion: bool = False  # products add weight gradients to main gradients themselves
    code: str = "transformers"  # whose modelling code: transformers, litgpt or torchtune
    compiled: str = "none"  # torch.compile around the "blocks", or around the "model"
    compiled_loss: bool = False
    chunked_loss: bool = False  # the head leaves its logits as they are for a loss in chunks
    softmax_keeps_input: bool = False  # torch before 1.11 saved it and never used it
    cuda: bool = True  # CUDA kernels; False: what the CPU kernels keep, for checks against real runs
    trainable: Callable[[str], bool] = everything
    upcast: Callable[[str, str], bool] = lambda name, kind: False  # parameters kept in fp32 whatever `weights` says
    lora: Lora | None = None
    quantized: Quantized | None = None
    split: Split = WHOLE
    boolean_masks: bool = True  # masks are boolean, made additive for every call; before, one additive mask for all
    masks_always: bool = False  # SDPA gets a mask whatever the length, and sliding layers one of their own
    knows_windows: bool = False  # the kernel slides by itself (flash-attention): no mask for that
    input_grads: bool = False  # gradient checkpointing asks the embeddings' output for a gradient, trained or not
    raises_logits: str = "loss"  # where logits are turned to fp32: in the "model", in the "loss", or "never"
