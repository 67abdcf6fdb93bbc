"""Losses that a job names beside the model's own: in chunks, in tiles by TRL, and fused with the head like Liger's.

In come hidden states or logits and labels, out comes a scalar with its graph. What the fused one allocates follows
liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py: one buffer of logits for all chunks where no cast is needed,
gradients written over the logits, the head's gradient summed while the forward runs. Its kernel is Triton, which needs
a GPU; here the same is written in torch's own ops, in place. Where the head's rows are divided over tensor-parallel
ranks, each has its own logits and the ranks exchange maxima and sums. Does not know label smoothing, soft caps and
token scales.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from vramcast.errors import UnsupportedError

CHUNKS = 8
IGNORED = -100


def chunked_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """torchtune's CEWithChunkedOutputLoss: chunk after chunk along the sequence, in fp32."""
    parts = zip(logits.chunk(CHUNKS, dim=1), labels.chunk(CHUNKS, dim=1), strict=True)
    losses = [
        torch.nn.functional.cross_entropy(x.float().flatten(0, 1), y.flatten(), reduction="sum")
        for x, y in parts
    ]
    return torch.stack(losses).sum() / labels.numel()


def fuse_loss(model: Any) -> None:
    """Give a language model the forward that Liger gives it: hidden states go straight into the loss."""
    head, forward = model.get_output_embeddings(), model.forward
    if head is None:
        raise UnsupportedError(
            f"loss fused cannot be traced from a job for {type(model).__name__}: it has no head"
        )
    head.forward = lambda hidden: hidden
    model.vramcast_forward = forward  # whose parameters say what a batch holds

    def fused(labels: Tensor, **batch: Any) -> Any:
        from transformers.modeling_outputs import CausalLMOutputWithPast

        if model.config.is_encoder_decoder:
            target = labels.flatten()
            outputs = forward(**batch, decoder_input_ids=labels)
        else:
            target = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].flatten()
            outputs = forward(**batch)
        weight, ranks = head.weight, None
        if isinstance(weight, DTensor):
            weight, ranks = weight.to_local(), weight.device_mesh.get_group()
        loss = FusedLinearCrossEntropy.apply(outputs.logits.flatten(0, 1), weight, target, ranks)
        return CausalLMOutputWithPast(loss=loss, past_key_values=outputs.past_key_values)

    model.forward = fused


def tile_loss(model: Any) -> None:
    """Give a language model the head that TRL gives it for supervised fine-tuning."""
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    forward = model.vramcast_forward = model.forward
    model.forward = lambda **batch: forward(**batch, fused_lm_head=True)


def _rows_of_chunk(rows: int, width: int, vocabulary: int) -> int:
    """As many rows of logits as take about what the hidden states take, rounded up to a power of two."""
    each = -(-rows // -(-vocabulary // width))
    return min(1 << (each - 1).bit_length(), rows)


class FusedLinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed by mypy
    """mean cross entropy of hidden · weightᵀ against labels; gradients are ready when the forward ends. `ranks`: the
    group over which the vocabulary is divided, each rank having as many rows of the weight."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        ranks: dist.ProcessGroup | None = None,
    ) -> Tensor:
        rows = _rows_of_chunk(hidden.shape[0], hidden.shape[1], weight.shape[0])
        plain = hidden.dtype == weight.dtype and not torch.is_autocast_enabled("cuda")
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        count = (labels != IGNORED).sum()
        buffer = hidden.new_empty((rows, weight.shape[0])) if plain else None
        for start in range(0, hidden.shape[0], rows):
            part, wanted = hidden[start : start + rows], labels[start : start + rows]
            if buffer is None:
                logits = part @ weight.t()
            else:
                logits = buffer[: len(part)]
                torch.mm(part, weight.t(), out=logits)
            losses[start : start + rows] = _gradient_over_logits(logits, wanted, count, ranks)
            if plain:
                torch.mm(logits, weight, out=grad_hidden[start : start + rows])
            else:
                grad_hidden[start : start + rows] = logits @ weight
            if grad_weight is not None:
                _add_product(grad_weight, logits, part)
            del logits, part, wanted
        if ranks is not None:
            dist.all_reduce(grad_hidden, group=ranks)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        """Liger's kernel scales both in place where the loss is not the last thing."""
        gradients = ctx.saved_tensors
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(upstream[0])
        return (*gradients, None, None)


def _gradient_over_logits(
    logits: Tensor, labels: Tensor, count: Tensor, ranks: dist.ProcessGroup | None = None
) -> Tensor:
    """Each row's loss; the logits become their own gradient, in place."""
    kept = labels != IGNORED
    first = 0 if ranks is None else dist.get_rank(ranks) * logits.shape[1]
    own = (labels >= first) & (labels < first + logits.shape[1])
    index = (labels - first).clamp(0, logits.shape[1] - 1).unsqueeze(-1)
    logits.sub_(_over(logits.amax(dim=-1, keepdim=True), ranks, dist.ReduceOp.MAX))
    chosen = _over(logits.gather(1, index).squeeze(-1).float() * own, ranks, dist.ReduceOp.SUM)
    logits.exp_()
    total = _over(logits.sum(dim=-1, keepdim=True), ranks, dist.ReduceOp.SUM)
    losses = (total.squeeze(-1).float().log() - chosen) * kept / count
    logits.div_(total)
    logits.scatter_add_(1, index, -own.unsqueeze(-1).to(logits.dtype))
    logits.mul_((kept / count).unsqueeze(-1).to(logits.dtype))
    return losses


def _over(values: Tensor, ranks: dist.ProcessGroup | None, how: Any) -> Tensor:
    if ranks is not None:
        dist.all_reduce(values, how, group=ranks)
    return values


def _add_product(total: Tensor, logits: Tensor, part: Tensor) -> None:
    """16-bit products add up in place (on Ampere and later); others go through a product of the head's size."""
    if logits.dtype in (torch.bfloat16, torch.float16):
        rows = part if part.dtype == logits.dtype else part.to(logits.dtype)
        if total.dtype == logits.dtype:
            torch.addmm(total, logits.t(), rows, out=total)
        else:
            torch.addmm(total, logits.t(), rows, out_dtype=total.dtype, out=total)
    else:
        total += torch.mm(logits.t(), part).float()
