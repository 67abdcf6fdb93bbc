"""Copies that attention code makes so that a kernel meets queries, keys and values laid out head by head.

A recorded Program goes in and is changed in place. What projections and rotary positions leave behind lies token by
token ([b, s, n, d]); seen head by head it is not contiguous, and two callers copy it:

- torch.matmul in eager attention, which folds batch and heads into one axis (ATen/native/LinearAlgebra.cpp); a batch of
  one folds without a copy;
- transformers from 4.48 to 4.55 before SDPA (integrations/sdpa_attention.py called `.contiguous()` on all three until
  4.56), in the families that had moved to that shared function. Flash kernels lay their result out like the queries, so
  `.transpose(1, 2).contiguous()` behind them then copies as well.

The copy is what the kernel keeps for backward. Where past_key_values, or the one tensor that q, k and v are parts of,
holds what was copied from, both stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.models.read.config import Config
from vramcast.models.record.program import Program
from vramcast.models.record.tape import Op, Section, Value
from vramcast.setup import Setup

# The first version whose modeling file calls ALL_ATTENTION_FUNCTIONS, as the released wheels have it.
SHARED_FROM = {
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "gemma", "gemma2", "phi", "phi3", "gpt2", "starcoder2", "cohere",
         "cohere2", "olmo", "olmo2", "granite", "glm"), (4, 48)
    ),
    "gpt_neox": (4, 49), "helium": (4, 49), "gemma3": (4, 50), "gemma3_text": (4, 50), "vit": (4, 50), "deit": (4, 50),
    "dinov2": (4, 50), "qwen3": (4, 51), "qwen3_moe": (4, 51), "deepseek_v3": (4, 51), "siglip": (4, 51),
    "glm4": (4, 51), "opt": (4, 52), "clip": (4, 52), "bart": (4, 53), "mbart": (4, 53), "whisper": (4, 53),
    "pegasus": (4, 53), "marian": (4, 53), "qwen2_vl": (4, 53), "qwen2_5_vl": (4, 53), "smollm3": (4, 53),
    "persimmon": (4, 53), "gpt_bigcode": (4, 54), "deepseek_v2": (4, 54), "ernie4_5": (4, 54), "exaone4": (4, 54),
}  # fmt: skip
UNTIL = (4, 56)
KERNELS = ("flash attention", "efficient attention", "cudnn attention")
LIKE_QUERIES = ("flash attention", "cudnn attention")  # the output's layout follows q's
LAID_OUT = ("copy", "cat")  # what these ops make is contiguous head by head


def lay_out(program: Program, setup: Setup, config: Config) -> None:
    """Put the copies in, section by section."""
    if program.regime.code != "transformers":
        return
    shared = copies_before_sdpa(setup, config)
    ids = program.tape.inputs[0]
    folds = program.regime.attention != "math" and not (
        isinstance(ids.shape[0], int) and ids.shape[0] == 1
    )
    for section in {id(placed.section): placed.section for placed in program.sections}.values():
        _lay_out(section, shared=shared, folds=folds)


def copies_before_sdpa(setup: Setup, config: Config) -> bool:
    """`flash` asked for by name is the flash-attn package, which transformers calls without copies."""
    first = SHARED_FROM.get(config.model_type)
    return (
        first is not None
        and first <= setup.versions.transformers < UNTIL
        and setup.kernels.attention != "flash"
    )


def _lay_out(section: Section, *, shared: bool, folds: bool) -> None:
    makers: dict[int, str] = {}
    ops: list[Op] = []
    moved: dict[int, Value] = {}  # results that are copied: id of what was kept before → the copy
    for op in section.ops:
        _follow(op, moved)
        which = _operands(op, shared=shared, folds=folds)
        ops += _copied(
            op,
            [index for index in which if makers.get(id(op.inputs[index].storage)) not in LAID_OUT],
        )
        makers[id(op.output)] = op.name
        before = ops[-1] if ops else None
        if shared and op.name == "view" and before is not None and before.name in LIKE_QUERIES:
            moved[id(before.output)] = op.output
            op.name, op.output.owner = "copy", None
        ops.append(op)
    section.ops[:] = ops


def _operands(op: Op, *, shared: bool, folds: bool) -> tuple[int, ...]:
    """Which inputs of the op are queries, keys or values that it wants contiguous."""
    if op.name in KERNELS:
        return (0, 1, 2) if shared else ()
    if op.name == "bmm" and folds:
        return {"scores": (0, 1), "attention output": (1,)}.get(op.output.label, ())
    return ()


def _copied(op: Op, which: list[int]) -> Iterator[Op]:
    """The copies, with the op reading and keeping them; the gradient of a copy is that of what was copied."""
    inputs, saved = list(op.inputs), list(op.saved)
    for index in which:
        value = inputs[index]
        copy = Value(value.shape, value.dtype, value.requires_grad, f"{value.label}, contiguous")
        if index < len(saved) and saved[index] is value.storage:
            saved[index] = copy
        inputs[index] = copy
        yield Op(name="copy", module=op.module, inputs=(value,), output=copy, passes_grad=True)
    op.inputs, op.saved = tuple(inputs), tuple(saved)


def _follow(op: Op, moved: dict[int, Value]) -> None:
    """Ops behind a copied result read and keep the copy."""
    if not moved:
        return
    op.saved = tuple(moved.get(id(value), value) for value in op.saved)
    if op.output.owner is not None and id(op.output.owner) in moved:
        op.output.owner = moved[id(op.output.owner)]
