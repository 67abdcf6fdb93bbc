"""Log-probabilities of labelled tokens, and the losses that compare a policy with a reference.

In: logits (batch, sequence, vocabulary) and labels, or log-probabilities already summed per sequence. Out:
differentiable tensors. Labels are not shifted by the caller: position t of the logits predicts label t+1, and -100 is
ignored, as in transformers. One row's float32 copy is alive at a time, never the whole batch's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vramcast.errors import InputError

IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLogprobs:
    """Per sequence: the sum of its labelled tokens' log-probabilities, and how many there are."""

    total: Tensor  # (batch,)
    num_tokens: Tensor  # (batch,), int64

    @property
    def mean(self) -> Tensor:
        return self.total / self.num_tokens.clamp(min=1)

    def batch_mean_loss(self) -> Tensor:
        """What transformers calls `loss`: the mean over all labelled tokens of the batch."""
        return -self.total.sum() / self.num_tokens.sum().clamp(min=1)

    def to(self, device: torch.device) -> SequenceLogprobs:
        return SequenceLogprobs(total=self.total.to(device), num_tokens=self.num_tokens.to(device))


def sequence_logprobs(logits: Tensor, labels: Tensor) -> SequenceLogprobs:
    """Sum of log p(label) per sequence, in float32."""
    if logits.shape[:2] != labels.shape:
        raise InputError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} differ in batch or sequence."
        )
    shifted = labels[:, 1:]
    mask = shifted != IGNORED
    rows = [
        _row(row[:-1], label, kept) for row, label, kept in zip(logits, shifted, mask, strict=True)
    ]
    return SequenceLogprobs(total=torch.stack(rows), num_tokens=mask.sum(dim=-1))


def _row(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="none")
    return -(losses * mask).sum()


def npo_loss(policy: Tensor, reference: Tensor, *, beta: float) -> Tensor:
    """Negative preference optimisation: push the policy's log-probability of unwanted text below the reference's."""
    return -(2 / beta) * F.logsigmoid(-beta * (policy - reference)).mean()


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float,
) -> Tensor:
    """Direct preference optimisation: the chosen text should gain more over the reference than the rejected one."""
    margin = (policy_chosen - reference_chosen) - (policy_rejected - reference_rejected)
    return -F.logsigmoid(beta * margin).mean()


def kl_to_reference(policy_logits: Tensor, reference_logits: Tensor, mask: Tensor) -> Tensor:
    """Mean KL(policy ‖ reference) over the masked positions: forget in one place, stay the same elsewhere."""
    policy = F.log_softmax(policy_logits[mask].float(), dim=-1)
    reference = F.log_softmax(reference_logits.to(policy.device)[mask].float(), dim=-1)
    return F.kl_div(reference, policy, reduction="batchmean", log_target=True)
