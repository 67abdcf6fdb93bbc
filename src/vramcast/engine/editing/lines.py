"""A model-editing job (such as MEND), on one device or two.

The model is frozen. An editor network turns gradients of a few inner weights into new weights; each step then runs
several forwards of the edited model. Input: the job and its recorded model. Output: lines per device. The edited model
is not a copy: it shares all weights but the inner ones with the base. Sizes follow Mitchell et al. 2022 and EasyEdit's
trainer.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from vramcast.engine.editing.replay import Passes, edit_script
from vramcast.engine.lines.amounts import Amounts
from vramcast.engine.lines.batch import input_lines
from vramcast.engine.lines.companions import during, line
from vramcast.engine.lines.optimizers import state_bytes, temporaries
from vramcast.engine.lines.setting import OtherLines, Setting
from vramcast.engine.replay.run import Script
from vramcast.engine.stream.checkpointing import changes_of, recompute_rule
from vramcast.engine.stream.timeline import Mode, Stamped, alive_at, phase_peaks, step_events
from vramcast.errors import InputError
from vramcast.ledger import BACKWARD, EDIT, FORWARD, HOST, LOAD, LOSS, STEP, Category
from vramcast.models.families import record
from vramcast.models.params import Params
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import F32, Param, PlacedSection, Regime, name_in_layer
from vramcast.setup import Setup
from vramcast.setup.records import Editing

PHASES_OF_EDITING = (LOAD, EDIT, FORWARD, LOSS, BACKWARD, STEP)
TRAINING = PHASES_OF_EDITING[1:]
EDITED = (FORWARD, LOSS, BACKWARD)
BASE_FORWARDS = (
    2  # of the unedited model, without graph: for the loss term that keeps other outputs unchanged
)
OWN_LOSS_BYTES = (
    12  # per logit: fp32 log-softmax of the model's loss; the editor's clone and its log-softmax
)


def check_edit(setup: Setup) -> None:
    """Raise InputError for options that have no effect in an editing job."""
    companions, phases, adapter = setup.companions, setup.phases, setup.adapter
    asked = {
        "loop": setup.loop.gate != "plain",
        "reference": companions.reference != "none",
        "reward": companions.reward != "none",
        "critic": companions.critic != "none",
        "teacher": companions.teacher != "none",
        "resume": phases.resume != "none",
        "lora-rank": adapter.kind is not None,
        "freeze": bool(adapter.freeze),
        "quantize": adapter.quantize != "none",
        "rollout-tokens": phases.rollout_tokens is not None,
        "evaluate": phases.evaluate,
        "accumulate": setup.data.accumulate != 1,
        "ema": companions.ema != "none",
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise InputError(f"{name} cannot be combined with edit")


def sub_device(editing: Editing, device: str) -> str:
    """The second device: `1`, `cuda:1` and `cuda:01` mean the same. It must not be the main device."""
    if editing.sub_device is None:
        return device
    match = re.fullmatch(r"(?:cuda:)?([0-9]{1,3})", editing.sub_device.strip().lower())
    if match is None:
        raise InputError(f"sub-device must be a number or cuda:N, not {editing.sub_device!r}")
    name = f"cuda:{int(match.group(1))}"
    if name == device:
        raise InputError(
            f"device and sub-device are both {name}: the edited layers would be on the same device as the "
            "base and save nothing. Name another device, or leave sub-device out"
        )
    return name


# ---- which parameters


def edit_regime(editing: Editing, config: Config, regime: Regime, sizes: Sizes) -> Regime:
    """Only parameters with gradients in the inner backward are trainable; layers before them save nothing."""
    params = list(record(config, replace(regime, grad=False), sizes).params())
    names = frozenset(param.name for param in trained_params(editing, params))
    return replace(regime, trainable=lambda name: name in names)


def inner_params(editing: Editing, params: Iterable[Param]) -> list[Param]:
    known = list(params)
    found: dict[str, Param] = {}
    for pattern in editing.parameters:
        wanted = pattern.removesuffix(".weight")
        matches = [p for p in known if _matches(p.name.removesuffix(".weight"), wanted)]
        if not matches:
            raise InputError(
                f"edit {pattern} matches no parameter. Names look like {_example(known)}"
            )
        found.update((p.name, p) for p in matches)
    wrong = [p.name for p in found.values() if p.kind != "linear" or len(p.shape) != 2]
    if wrong:
        raise InputError(f"edit: {wrong[0]} is not the weight of a linear layer")
    return list(found.values())


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*.{pattern}")


def _example(params: list[Param]) -> str:
    return next((p.name for p in reversed(params) if p.kind == "linear"), params[0].name)


def trained_params(editing: Editing, params: Iterable[Param]) -> list[Param]:
    """The inner parameters, or all from the first of them on if requires_grad is left on. The norms of the first edited
    layer belong to it too, since transformers registers them after the projections."""
    known = list(params)
    inner = inner_params(editing, known)
    if editing.gradients == "inner":
        return inner
    first = next(index for index, param in enumerate(known) if param.name == inner[0].name)
    layer = _layer(known[first].name)
    norms = [p for p in known[:first] if p.kind == "norm" and p.name.startswith(f"{layer}.")]
    return [*norms, *known[first:]]


def _layer(name: str) -> str:
    match = re.match(r"(.*?\.[0-9]+)\.", name)
    if match is None:
        raise InputError(
            f"edit: {name} is not inside a stack of layers, so there is nothing to cut at"
        )
    return match.group(1)


def editor_parameters(editing: Editing, inner: Iterable[Param]) -> int:
    """One low-rank network per shape: two factors and a bias per layer, a scale and a shift per weight."""
    shapes = Counter(tuple(int(n) for n in param.shape) for param in inner)
    total = 0
    for shape, count in shapes.items():
        width = sum(shape)
        total += (
            (editing.hidden_layers + 1) * width * (2 * min(editing.rank, width) + 1 + 2 * count)
        )
    return total


# ---- lines of the breakdown


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """One job's editing step."""

    setting: Setting
    inner: list[Param]
    first: int  # index of the first edited layer's section
    sub: str

    @property
    def elements(self) -> int:
        return sum(param.numel for param in self.inner)

    @property
    def editor(self) -> Param:
        count = editor_parameters(self.setting.setup.editing, self.inner)
        return Param(name="editor", shape=(count,), kind="adapter", dtype=F32)

    @property
    def together(self) -> int:
        """How many forwards of the edited model have their graphs alive at the same time."""
        return (
            self.setting.setup.editing.forwards
            if self.setting.setup.editing.graph == "joint"
            else 1
        )

    def stream(self) -> list[Stamped]:
        setup = self.setting.setup
        mode = Mode(
            recompute=recompute_rule(setup.checkpointing),
            keep_logits=True,
            keep_cache=True,
            changes=changes_of(setup),
        )
        return list(step_events(self.setting.program, mode))

    def is_inner(self, item: Stamped) -> bool:
        """Is this the gradient of an inner weight? The backward of the edited forwards makes no other gradients."""
        name = name_in_layer(item.event.label, self.setting.program.sections[item.section].index)
        return name.removeprefix("gradient of ") in {param.name for param in self.inner}

    def place(self, index: int) -> str:
        """Layers from the first edited one on, and the head, are on the second device; the loss is on the main one."""
        is_tail = index >= self.first and self.setting.program.sections[index].name != "loss"
        return self.sub if is_tail else self.setting.device


def _edit_of(setting: Setting) -> _Edit:
    inner = inner_params(setting.setup.editing, setting.program.params())
    names = [placed.name for placed in setting.program.sections]
    first = names.index(_layer(inner[0].name))
    return _Edit(
        setting=setting,
        inner=inner,
        first=first,
        sub=sub_device(setting.setup.editing, setting.device),
    )


def edit_lines(setting: Setting) -> OtherLines:
    edit = _edit_of(setting)
    held = [*_editor(edit), *_edited_weights(edit), *_logits(edit, edit.together)]
    lines = [*_weights(edit), *held, *_passes(edit), *input_lines(setting).lines]
    return OtherLines(
        lines=tuple(line for line in lines if any(line.by_phase.values())),
        blocks=tuple(held),
        assumptions=_remarks(edit, _layer(edit.inner[0].name)),
    )


def edit_replay(
    setting: Setting, held: Iterable[Amounts], device: str, small: tuple[int, ...]
) -> Script:
    """Two editing steps as the allocator of one device sees them."""
    edit = _edit_of(setting)
    held_here = [line for line in held if line.place == device]
    return edit_script(_weights_on(edit, device), held_here, _passes_on(edit, device), small)


def _passes_on(edit: _Edit, device: str) -> Passes:
    """Allocations of the model's passes on one device."""
    here = [item for item in edit.stream() if edit.place(item.section) == device]
    edited = [item for item in here if item.event.kind != "gradient" or edit.is_inner(item)]
    sizes = [param.numel for param in edit.inner] if device == edit.sub else []
    return Passes(
        inner=here,
        edited=edited,
        together=edit.together,
        replaying=[8 * elements for elements in sizes],
        making=list(_made_by_edit(sizes, edit.inner[0].dtype.nbytes)),
    )


def _made_by_edit(sizes: Iterable[int], item: int) -> Iterator[int]:
    """For each edited weight: the bytes of its pseudo-gradient and its update in fp32, and of the new weight with
    `item` bytes per element."""
    for elements in sizes:
        yield from (4 * elements, 4 * elements, item * elements)


def _weights_on(edit: _Edit, device: str) -> Iterator[int]:
    """The bytes of each parameter on one device. Tied parameters are counted once."""
    for index, place in enumerate(edit.setting.program.sections):
        if edit.place(index) == device:
            yield from (param.nbytes for param in place.params() if param.tied_to is None)


def _remarks(edit: _Edit, layer: str) -> tuple[str, ...]:
    setup = edit.setting.setup
    texts = [
        f"edited weights are new tensors; all others are the base model's own ({len(edit.inner)} weights, "
        f"{edit.elements:,} elements)",
        f"nothing is kept below {layer}: everything there is frozen",
        f"{setup.editing.forwards} edited forwards of batch × seq tokens each, "
        f"{BASE_FORWARDS} of the base without graph",
    ]
    if edit.sub != edit.setting.device:
        texts.append(
            f"split at {layer}: it and what follows run on {edit.sub}, their originals are kept in CPU memory"
        )
    return tuple(texts)


def _bytes_of(placed: Iterable[PlacedSection]) -> int:
    return sum(param.nbytes for place in placed for param in place.params())


def _weights(edit: _Edit) -> Iterator[Amounts]:
    placed, device = edit.setting.program.sections, edit.setting.device
    tail = _bytes_of(place for index, place in enumerate(placed) if edit.place(index) == edit.sub)
    whole = sum(param.nbytes for param in edit.setting.program.params())
    source = "aliases: the edited model uses these very tensors"
    if edit.sub == device:
        yield during(
            line(
                "base model",
                device,
                _count(edit.setting.program.params()),
                source,
                Category.WEIGHTS,
            ),
            PHASES_OF_EDITING,
            whole,
        )
        return
    tail_params = [
        p
        for index, place in enumerate(placed)
        if edit.place(index) == edit.sub
        for p in place.params()
    ]
    below = whole - sum(param.nbytes for param in tail_params if param.tied_to is None)
    main = line(
        "base model below the split",
        device,
        f"{whole:,} − {whole - below:,} B",
        source,
        Category.WEIGHTS,
    )
    yield during(main, PHASES_OF_EDITING, below)
    there = line(
        "layers from the split on, and the head",
        edit.sub,
        _count(tail_params),
        source,
        Category.WEIGHTS,
    )
    yield during(there, PHASES_OF_EDITING, tail)
    waiting = line(
        "originals of the moved layers",
        HOST,
        _count(tail_params),
        "kept to restore the model",
        Category.WEIGHTS,
    )
    yield during(waiting, PHASES_OF_EDITING, tail)


def _count(params: Iterable[Param]) -> str:
    known = list(params)
    return f"{sum(param.numel for param in known):,} parameters × {known[0].dtype.nbytes} B"


def _editor(edit: _Edit) -> Iterator[Amounts]:
    """The hypernetwork: fp32, on the main device, trained by Adam."""
    setup, device, editor = edit.setting.setup, edit.setting.device, edit.editor
    text = f"{editor.numel:,} parameters × 4 B"
    source = "MEND: one combined network per shape, shared by its weights"
    yield during(
        line("editor", device, text, source, Category.WEIGHTS), PHASES_OF_EDITING, editor.nbytes
    )
    states = state_bytes(editor, setup, None)
    each = f"{editor.numel:,} parameters × {states / editor.numel:.4g} B"
    yield during(
        line(f"editor: {setup.optimizer.name}", device, each, "torch.optim", Category.OPTIMIZER),
        TRAINING,
        states,
    )
    yield during(
        line("editor", device, text, source, Category.GRADIENTS), (BACKWARD, STEP), editor.nbytes
    )
    made, why = temporaries(Params([editor]), setup, None)
    yield during(
        line(
            f"editor: {setup.optimizer.name} step", device, why, "torch.optim", Category.TEMPORARY
        ),
        (STEP,),
        made,
    )
    tokens = int(edit.setting.sizes.batch * edit.setting.sizes.seq)
    kept = 4 * tokens * sum(_editor_rows(setup.editing, param) for param in edit.inner)
    passing = line(
        "editor: kept for backward",
        device,
        "Σ layers·(3·T·(in+out) + T·rank)·4",
        "input, product and sum of every low-rank layer",
        Category.ACTIVATIONS,
    )
    yield during(passing, (EDIT, *EDITED), kept)


def _editor_rows(editing: Editing, param: Param) -> int:
    width = sum(int(n) for n in param.shape)
    return (editing.hidden_layers + 1) * (3 * width + min(editing.rank, width))


def _edited_weights(edit: _Edit) -> Iterator[Amounts]:
    """W + rate·g: the new weights, and g in fp32, which the rate's gradient needs. Made at the end of the edit."""
    item, n = edit.inner[0].dtype.nbytes, edit.elements
    text = f"{n:,} elements"
    new = line(
        "edited weights",
        edit.sub,
        f"{text} × {item} B",
        "new tensors, differentiable",
        Category.COMPANION,
    )
    new.tensors = [param.numel for param in edit.inner]
    yield during(new, EDITED, n * item)
    pseudo = line(
        "pseudo-gradients, fp32",
        edit.sub,
        f"{text} × 4 B",
        "rate · g keeps g for the rate's gradient",
        Category.ACTIVATIONS,
    )
    pseudo.tensors = new.tensors
    yield during(pseudo, EDITED, 4 * n)


Sums = Counter[tuple[Category, str]]


def _passes(edit: _Edit) -> Iterator[Amounts]:
    """The inner forward and backward (edit), then the edited forwards and their backward."""
    stream = edit.stream()
    for place in dict.fromkeys((edit.setting.device, edit.sub)):
        here = [item for item in stream if edit.place(item.section) == place]
        moments = _moments(edit, here, edit.together, edits=place == edit.sub)
        for kind in dict.fromkeys(kind for sums in moments.values() for kind in sums):
            found = line(kind[1], place, "", "the model's passes, as recorded", kind[0])
            for phase, sums in moments.items():
                found.add(phase, sums[kind])
            yield found


def _moments(edit: _Edit, here: list[Stamped], together: int, *, edits: bool) -> dict[str, Sums]:
    """What is alive on one device at the peak of each phase. `edits`: the new weights are made on this device."""
    placed = edit.setting.program.sections
    inner = _largest(_kinds(peak.alive, placed) for peak in phase_peaks(here, placed))
    asked = [item for item in here if item.event.kind != "gradient" or edit.is_inner(item)]
    ended = max((index for index, item in enumerate(asked) if item.phase != BACKWARD), default=-1)
    kept = _kinds(alive_at(asked, ended), placed)
    others: Sums = Counter({kind: nbytes * (together - 1) for kind, nbytes in kept.items()})
    found = {peak.phase: _kinds(peak.alive, placed) + others for peak in phase_peaks(asked, placed)}
    if edits:
        edited = edit.elements * edit.inner[0].dtype.nbytes
        found[BACKWARD] = _largest(
            (found[BACKWARD], Counter({GRADIENTS: edited, REPLAY: 8 * edit.elements}))
        )
        inner = _largest((inner, _making(edit)))
    return {EDIT: inner, **found}


GRADIENTS = (Category.GRADIENTS, "of inner parameters")
REPLAY = (Category.TEMPORARY, "gradients in fp32 on their way to the editor")
UPDATES = (Category.TEMPORARY, "updates before they are added, fp32")


def _making(edit: _Edit) -> Sums:
    """What is alive at the end of the edit: all gradients, pseudo-gradients, updates (pseudo-gradients times their
    rates) and the new weights."""
    gradients = sum(param.nbytes for param in edit.setting.program.params() if param.trainable)
    item, n = edit.inner[0].dtype.nbytes, edit.elements
    largest = max(param.numel for param in edit.inner)
    new = (Category.COMPANION, "edited weights")
    pseudo = (Category.ACTIVATIONS, "pseudo-gradients, fp32")
    return Counter(
        {GRADIENTS: gradients, pseudo: 4 * n, UPDATES: 4 * n + item * largest, new: item * n}
    )


def _largest(moments: Iterable[Sums]) -> Sums:
    return max(moments, key=lambda sums: sum(sums.values()), default=Counter())


def _kinds(items: Iterable[Stamped], placed: list[PlacedSection]) -> Sums:
    sums: Sums = Counter()
    for item in items:
        sums[_kind(item, placed[item.section].name)] += int(item.event.nbytes)
    return sums


def _kind(item: Stamped, section: str) -> tuple[Category, str]:
    fixed = {
        "gradient": GRADIENTS,
        "weight copy": (Category.COPIES, "16-bit copies of weights (autocast)"),
        "kv cache": (Category.CACHE, "keys and values (use_cache)"),
    }
    if item.event.kind in fixed:
        return fixed[item.event.kind]
    if section == "loss" or (section == "head" and "logits" in item.event.label):
        return Category.LOGITS, "logits and log-probabilities"
    if item.event.kind == "activation":
        return Category.ACTIVATIONS, "layers from the first edited one on"
    return Category.TEMPORARY, "working memory of the passes"


def _logits(edit: _Edit, together: int) -> Iterator[Amounts]:
    """What the editing loss adds to the model's logits: fp32 copies for each forward, and the base model's logits."""
    out, device = edit.setting.program.output, edit.setting.device
    elements = int(out.nbytes) // out.dtype.nbytes
    own = line(
        f"fp32 copies of logits ({together}×)",
        device,
        f"{together} × {elements:,} × {OWN_LOSS_BYTES} B",
        "the loss inside the model, and masked_log_probs' clone",
        Category.LOGITS,
    )
    during(own, EDITED, together * elements * OWN_LOSS_BYTES)
    yield during(own, (EDIT,), elements * OWN_LOSS_BYTES)
    base = line(
        "logits of the base model",
        device,
        f"{BASE_FORWARDS} × {elements:,} × {out.dtype.nbytes} B",
        "compared with the edited ones; made without graph",
        Category.LOGITS,
    )
    yield during(base, (EDIT, *EDITED), BASE_FORWARDS * elements * out.dtype.nbytes)
