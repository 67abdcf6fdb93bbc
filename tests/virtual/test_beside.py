"""Traced and computed lines side by side, from ledgers made by hand."""

from __future__ import annotations

from vramcast.ledger import Category, Entry, Ledger, Level, Origin
from vramcast.report.trace_against_formula import (
    against_formula_json,
    against_formula_text,
    pairs,
)


def line(category: Category, component: str, nbytes: int, phase: str = "backward") -> Entry:
    return Entry(
        category=category,
        component=component,
        place="cuda:0",
        phases=(phase,),
        nbytes=nbytes,
        origin=Origin.TRACED,
    )


TRACED = Ledger(
    entries=(
        line(Category.WEIGHTS, "model.layers.0.mlp.weight", 10),
        line(Category.WEIGHTS, "model.embed_tokens.weight", 20),
        line(Category.ACTIVATIONS, "model.layers.0.self_attn", 7),
        line(Category.ACTIVATIONS, "model.layers.1.self_attn", 7),
        line(Category.ACTIVATIONS, "model.layers.0.mlp", 5),
        line(Category.TEMPORARY, "aten::mm", 3),
    ),
    top_level=Level.ALLOCATED,
)
FORMULA = Ledger(
    entries=(
        line(Category.WEIGHTS, "trained, fp32", 30),
        line(Category.ACTIVATIONS, "attention output", 15),
        line(Category.ACTIVATIONS, "norm input", 2),
        line(Category.CACHE, "past_key_values", 1),
        line(Category.GRADIENTS, "of trained parameters", 30, phase="step"),
    ),
    top_level=Level.ALLOCATED,
)


def test_lines_meet_by_category_and_part_and_the_rest_is_listed() -> None:
    found = {
        (pair.category, pair.part): (pair.traced_bytes, pair.formula_bytes)
        for pair in pairs(TRACED, FORMULA, "cuda:0")
    }
    assert found == {
        ("weights", ""): (30, 30),  # the formulas do not divide them
        ("activations", "attention"): (14, 15),
        ("activations", "mlp"): (5, None),
        ("activations", "norm"): (None, 2),
        ("temporaries", ""): (3, None),
        ("kv cache", ""): (None, 1),
    }


def test_every_byte_of_both_sides_is_in_one_line() -> None:
    found = pairs(TRACED, FORMULA, "cuda:0")
    assert (
        sum(pair.traced_bytes or 0 for pair in found)
        == TRACED.moment("backward", "cuda:0").allocated_bytes
    )
    assert (
        sum(pair.formula_bytes or 0 for pair in found)
        == FORMULA.moment("backward", "cuda:0").allocated_bytes
    )


def test_text_and_json_say_the_same() -> None:
    text, data = (
        against_formula_text(TRACED, FORMULA, "cuda:0"),
        against_formula_json(TRACED, FORMULA, "cuda:0"),
    )
    assert data["phase"] == data["formula_phase"] == "backward"
    assert text.count("unmatched") == sum(
        None in (row["traced_bytes"], row["formula_bytes"]) for row in data["lines"]
    )
    assert "model.layers.*.self_attn" in text


def test_a_phase_the_formulas_do_not_know_is_compared_with_their_peak() -> None:
    edit = Ledger(
        entries=(line(Category.WEIGHTS, "w", 9, phase="edit"),), top_level=Level.ALLOCATED
    )
    assert against_formula_json(edit, FORMULA, "cuda:0")["formula_phase"] == "backward"
