"""Bytes are named as a person would: the reference, the loss over the vocabulary, lines of libraries."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vramcast.ledger import Category
from vramcast.virtual import virtual_gpu
from vramcast.virtual.accounting.source_lines import format_lines, source_lines


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.out = (
            nn.Embedding(5000, 64),
            nn.Linear(64, 64),
            nn.Linear(64, 5000),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.mix(self.embed(tokens)))
        return out


def bytes_of(category: Category, phase: str, gpu: object) -> int:
    ledger = gpu.ledger()  # type: ignore[attr-defined]
    return sum(e.nbytes for e in ledger.alive(phase, "cuda:0") if e.category == category)


def test_a_reference_that_nobody_froze_is_a_companion() -> None:
    with virtual_gpu("rtx4090") as gpu:
        policy, reference = Language().cuda(), Language().cuda()
        optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
        tokens = torch.zeros(4, 128, dtype=torch.int64, device="cuda")
        for _ in range(2):
            scores = policy(tokens).log_softmax(-1)
            with torch.no_grad():
                scores_before = reference(tokens).log_softmax(-1)
            (scores - scores_before).square().mean().backward()
            optimizer.step()
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    for category in (Category.WEIGHTS, Category.COMPANION):
        found = bytes_of(category, "next backward", gpu)
        assert 4 * parameters <= found <= 4 * parameters + 4096, category
    rows = 4 * 128 * 5000 * 4
    assert bytes_of(Category.LOGITS, "next backward", gpu) >= 3 * rows
    assert bytes_of(Category.TEMPORARY, "next backward", gpu) < rows


def test_before_an_optimizer_is_made_the_frozen_model_is_the_companion() -> None:
    with virtual_gpu("rtx4090") as gpu:
        trained, frozen = nn.Linear(64, 64).cuda(), nn.Linear(64, 64).cuda().requires_grad_(False)
        (trained(frozen(torch.zeros(4, 64, device="cuda")))).sum().backward()
    assert bytes_of(Category.COMPANION, "backward", gpu) == 64 * 64 * 4 + 512


def test_lines_of_a_library_stand_before_the_users() -> None:
    seen: list[Any] = []
    scope: dict[str, Any] = {"source_lines": source_lines, "seen": seen}
    text = "def call(): seen.append(source_lines())"
    library = compile(text, "/opt/site-packages/lib/model.py", "exec")
    exec(library, scope)
    scope["call"]()
    users, inner = seen[0]
    assert format_lines(users, inner).startswith("model.py:1 < test_named_bytes.py:")
    assert format_lines(users, None).startswith("test_named_bytes.py:")
    assert format_lines(None, None) == ""
