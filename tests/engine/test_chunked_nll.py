"""TRL's loss in chunks under a checkpoint, against the same ops of torch on the virtual GPU, in each version's form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import vramcast
from vramcast.models.record.chunked_nll import chunked_nll
from vramcast.models.record.regime import Regime
from vramcast.models.record.tape import Tape
from vramcast.models.record.values import BF16, F32, Dtype, Value

ROWS, WIDTH, VOCAB = 1024, 384, 50_000
TORCH = {F32: torch.float32, BF16: torch.bfloat16}


def logits_of(rows: Any, head: Any, trl: tuple[int, int]) -> Any:
    if trl >= (1, 13):
        return (rows @ head.to(rows.dtype).t()).float()
    return rows.float() @ head.float().t()


def loss_of_chunk(rows: Any, head: Any, labels: Any, trl: tuple[int, int]) -> Any:
    logits = logits_of(rows, head, trl)
    log_p = torch.log_softmax(logits, dim=-1)
    loss = torch.nn.functional.nll_loss(log_p, labels, reduction="sum")
    right = (logits.argmax(dim=-1) == labels).sum().float()
    entropy = -(log_p.exp() * log_p).sum(dim=-1)
    if trl >= (1, 8):
        entropy = entropy * (labels != -100)
    return loss, right, entropy.sum()


def peaks(rows_dtype: Any, head_dtype: Any, autocast: Any, trained: bool, trl: Any) -> Any:
    """Bytes beyond what was there before: at the highest in forward, and in backward."""
    with vramcast.virtual_gpu("a100-80gb"):
        rows = torch.zeros(ROWS, WIDTH, dtype=rows_dtype, device="cuda", requires_grad=True)
        head = torch.zeros(VOCAB, WIDTH, dtype=head_dtype, device="cuda", requires_grad=trained)
        hidden = rows * 1  # as behind a model: its gradient is kept by nobody
        labels = torch.zeros(ROWS, dtype=torch.long, device="cuda")
        (rows[:1] @ rows[:1].t()).sum().backward()  # cuBLAS takes its workspaces, of both threads
        rows.grad = None
        there = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss = torch.zeros((), device="cuda")
        with torch.autocast("cuda", autocast or torch.bfloat16, enabled=autocast is not None):
            for start in range(0, ROWS, 256):
                chunk = slice(start, start + 256)
                loss = (
                    loss
                    + checkpoint(
                        loss_of_chunk, hidden[chunk], head, labels[chunk], trl, use_reentrant=False
                    )[0]
                )
        forward = torch.cuda.max_memory_allocated() - there
        there = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss.backward()
        return forward, torch.cuda.max_memory_allocated() - there


def described(rows: Dtype, head: Dtype, autocast: Dtype | None, trained: bool, trl: Any) -> Any:
    tape = Tape(Regime(weights=head, autocast=autocast))
    x = Value((1, ROWS + 1, WIDTH), rows, requires_grad=True, label="hidden state")
    with tape.section("head", x) as section:
        weight = tape.param("weight", (VOCAB, WIDTH), "head", frozen=not trained)
        section.outputs = (chunked_nll(tape, x, weight, trl),)
        op = next(op for op in tape.ops() if op.name == "loss in chunks")
    return int(op.forward_temp_bytes), int(op.backward_temp_bytes)


@pytest.mark.parametrize("trl", [(1, 6), (1, 9), (1, 13)])
@pytest.mark.parametrize(
    ("rows", "head", "autocast", "trained"),
    [
        (BF16, BF16, None, False),
        (BF16, BF16, None, True),
        (F32, F32, None, True),
        (F32, F32, BF16, True),
        (F32, F32, BF16, False),
        (BF16, BF16, BF16, True),
    ],
)
def test_a_chunk_takes_what_torch_takes(
    rows: Dtype, head: Dtype, autocast: Dtype | None, trained: bool, trl: tuple[int, int]
) -> None:
    lowered = TORCH[autocast] if autocast else None
    forward, backward = peaks(TORCH[rows], TORCH[head], lowered, trained, trl)
    said_forward, said_backward = described(rows, head, autocast, trained, trl)
    assert said_forward == pytest.approx(forward, rel=0.02)
    assert said_backward == pytest.approx(backward, rel=0.02)
