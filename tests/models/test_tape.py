"""The worked examples of models/record, by hand: what a recorded op allocates and saves."""

from __future__ import annotations

from vramcast.models.record.tape import BF16, F32, Lora, Op, Regime, Section, Tape, Value


def linear_4_to_3(regime: Regime, rows: int = 2) -> Section:
    """nn.Linear(4, 3, bias=False) on a trained x of [rows, 4] in fp32."""
    t = Tape(regime)
    x = Value((rows, 4), F32, True, "x")
    with t.section("linear", x) as section:
        section.outputs = (t.linear("proj", x, 3),)
    return section


def written(op: Op) -> tuple[str, int, list[int]]:
    return op.name, op.output.nbytes, [value.nbytes for value in op.saved]


def test_a_linear_under_autocast_saves_both_casts() -> None:
    section = linear_4_to_3(Regime(autocast=BF16))
    assert [written(op) for op in section.ops] == [
        ("to", 2 * 4 * 2, []),
        ("to", 3 * 4 * 2, []),
        ("linear", 2 * 3 * 2, [2 * 4 * 2, 3 * 4 * 2]),
    ]
    assert [param.nbytes for param in section.params] == [3 * 4 * 4]


def test_a_linear_in_fp32_saves_its_input_alone() -> None:
    section = linear_4_to_3(Regime())
    assert [written(op) for op in section.ops] == [("linear", 2 * 3 * 4, [2 * 4 * 4])]


def test_nothing_is_saved_without_gradients() -> None:
    section = linear_4_to_3(Regime(grad=False))
    assert [written(op) for op in section.ops] == [("linear", 2 * 3 * 4, [])]


def test_an_adapter_saves_its_input_and_the_low_rank_rows() -> None:
    lora = Lora(rank=2, matches=lambda name, kind: True, dtype=F32)
    t = Tape(Regime(lora=lora))
    x = Value((5, 4), F32, False, "x")
    with t.section("linear", x) as section:
        section.outputs = (t.linear("proj", x, 3),)
    saved = [value.nbytes for op in section.ops for value in op.saved]
    assert saved == [5 * 4 * 4, 5 * 2 * 4]
    shapes = {param.name: param.shape for param in section.params}
    assert shapes == {
        "proj.base_layer.weight": (3, 4),
        "proj.lora_A.default.weight": (2, 4),
        "proj.lora_B.default.weight": (3, 2),
    }


def test_identical_layers_share_one_recording() -> None:
    t = Tape(Regime())
    x = Value((2, 4), F32, True, "x")
    t.layers("layers", ["wide"] * 3, lambda y, kind: t.linear("proj", y, 4), x)
    assert len({id(placed.section) for placed in t.sections}) == 1
    assert [placed.name for placed in t.sections] == ["layers.0", "layers.1", "layers.2"]
    names = [param.name for placed in t.sections for param in placed.params()]
    assert names == [f"layers.{i}.proj.weight" for i in range(3)]


def test_the_fused_loss_holds_one_chunk_of_logits() -> None:
    t = Tape(Regime(weights=BF16, fused=frozenset({"loss"})))
    x = Value((1, 1024, 4000), BF16, True, "x")
    with t.section("head", x) as section:
        section.outputs = (t.linear("lm_head", x, 32_000, kind="head"),)
    op = section.ops[-1]
    assert op.forward_temps[0] == 128 * 32_000 * 2
    assert [value.nbytes for value in op.saved] == [1024 * 4000 * 2, 32_000 * 4000 * 2]
