"""The bookkeeping of a recording: sections, scopes of names, parameters, and ops with what they save.

A Recorder stands where torch would run a model. Families open sections and call ops; the Recorder notes them:

    with t.section("head", x) as section:         one section; `t.layers(...)` records a stack of layers
        with t.scope("lm_head"):                  names are relative to the open scopes: "lm_head.weight"
            weight = t.param("weight", (3, 4), "linear")
            y = t.op("linear", (x, weight), (2, 3), F32, saves=(x, weight))
        section.outputs = (y,)

leaves `t.sections == [PlacedSection(section)]`, where the section has one Param of 3 · 4 · 4 = 48 bytes and one Op,
whose output is a Value of shape (2, 3) and whose `saved` is (x,): parameters take no extra room when they are saved.
Had neither x nor the weight required a gradient, `saved` would be empty.

Knows sections, names, requires_grad and layers that record the same; which op saves what is the business of `ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

from vramcast.errors import InvariantError
from vramcast.models.record.dims import Number
from vramcast.models.record.regime import Copies, Regime
from vramcast.models.record.values import (
    F32,
    Dtype,
    Op,
    Param,
    PlacedSection,
    Section,
    Value,
    name_in_layer,
)


class Recorder:
    """Records a model's forward pass. Names given to its methods are relative to the open scopes."""

    def __init__(self, regime: Regime) -> None:
        self.regime = regime
        self.sections: list[PlacedSection] = []
        self.inputs: list[Value] = []
        self.layer_mask = "none"  # what the layer being recorded gets: see `sliding_windows.Masks`
        self._scopes: list[str] = []
        self._section: Section | None = None
        self._layer: int | None = None
        self._held_in_layer: list[Value] = []
        # The name of a copy's parameter → what it was copied from.
        self._originals: dict[str, Value] = {}

    # ---- names

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        self._scopes.append(name)
        yield
        self._scopes.pop()

    def path(self, name: str = "") -> str:
        """The full name, with `{i}` for the layer's number: `model.layers.{i}.mlp.up_proj`."""
        return ".".join(part for part in (*self._scopes, name) if part)

    def layer_path(self, name: str = "") -> str:
        """The full name with the number of the layer that is being recorded."""
        return name_in_layer(self.path(name), self._layer)

    # ---- sections

    @contextmanager
    def section(self, name: str, *inputs: Value) -> Iterator[Section]:
        """A section that occurs once: embeddings, a stem, the head. Set its `outputs` before it closes."""
        with self._open(Section(name=name, inputs=inputs)) as section:
            yield section
        _keep_leaves(section)
        self.sections.append(PlacedSection(section))

    @contextmanager
    def reopen(self, section: Section) -> Iterator[None]:
        """Append ops to a section that was closed."""
        with self._open(section):
            yield

    def layers(
        self,
        name: str,
        kinds: Sequence[Any],
        body: Callable[[Value, Any], Value],
        x: Value,
        masks: Sequence[str] = (),
    ) -> Value:
        """Record layers `name.0 … name.n-1`, where `body(x, kind)` is a layer's forward pass.

        The body runs once for all layers that would record the same ops: those of one kind and mask, with the same
        trainable parameters, whose input has the same dtype and requires_grad.
        """
        recordings: dict[Hashable, list[tuple[int, Section]]] = {}
        with self.scope(name):
            for index, kind in enumerate(kinds):
                self.layer_mask = masks[index] if masks else "none"
                key = (kind, self.layer_mask, x.requires_grad, x.dtype)
                earlier = recordings.setdefault(key, [])
                section = self._find_same_layer(earlier, index)
                if section is None:
                    section = self._record_layer(body, x, kind, index)
                earlier.append((index, section))
                self.sections.append(PlacedSection(section, index))
                x = section.outputs[0]
        self.layer_mask = "none"
        return x

    def _find_same_layer(self, earlier: list[tuple[int, Section]], index: int) -> Section | None:
        """The recording of the latest earlier layer with the same trainable parameters."""
        if not self.regime.differs_by_layer:
            return earlier[-1][1] if earlier else None
        for earlier_index, section in reversed(earlier):
            trained_there = self._decisions(section, earlier_index)
            if trained_there == self._decisions(section, index):
                return section
        return None

    def _decisions(self, section: Section, index: int) -> list[bool]:
        """What the job decides about the section's parameters and modules by their names."""
        is_trainable = self.regime.trainable
        named = [is_trainable(name_in_layer(param.name, index)) for param in section.params]
        return named + [asks(name_in_layer(name, index)) for name, asks in section.asked]

    def decide(self, name: str, asks: Callable[[str], bool]) -> bool:
        """A decision by the full name of something in the open section, which is asked again for every layer."""
        if self._section is not None:
            self._section.asked.append((name, asks))
        return asks(name_in_layer(name, self._layer))

    def _record_layer(
        self, body: Callable[[Value, Any], Value], x: Value, kind: Any, index: int
    ) -> Section:
        self._layer = index
        with self.scope("{i}"):
            section = Section(name=self.path(), inputs=(x,), is_block=True)
            with self._open(section):
                self._held_in_layer = [x]  # what a module is called with lives until it returns
                section.outputs = (body(x, kind),)
                if section.ops:
                    section.ops[-1].held_by_locals += tuple(self._held_in_layer)
        self._layer = None
        return section

    @contextmanager
    def _open(self, section: Section) -> Iterator[Section]:
        if self._section is not None:
            raise InvariantError(f"section {section.name} opened inside {self._section.name}")
        self._section = section
        yield section
        self._section = None
        if not section.outputs:
            raise InvariantError(f"section {section.name} has no output")

    def _open_section(self, what: str) -> Section:
        if self._section is None:
            raise InvariantError(f"{what} recorded outside of a section")
        return self._section

    def ops(self) -> list[Op]:
        """The ops of the open section so far."""
        return self._section.ops if self._section is not None else []

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """torch.no_grad(), or a branch whose result the loss does not need: nothing in it is saved."""
        regime = self.regime
        self.regime = replace(regime, grad=False)
        yield
        self.regime = regime

    def note_cached(self, x: Value) -> None:
        """The open section's past_key_values have x."""
        self._open_section("cache").cached.append(x)

    def hand_through(self, x: Value) -> None:
        """The layer returns x too, for the next layer to take."""
        self._open_section("hand through").handed_through.append(x)

    # ---- inputs and parameters

    def input(self, label: str, shape: tuple[Number, ...], dtype: Dtype) -> Value:
        """A tensor that comes from outside: token ids, labels, pixels."""
        value = Value(shape, dtype, label=label)
        self.inputs.append(value)
        return value

    def param(self, name: str, shape: tuple[int, ...], kind: str, *, frozen: bool = False) -> Value:
        """Declare a parameter of the open section. `frozen`: the model itself keeps it from training."""
        copied = self._copied_module() if self.regime.copies else None
        if copied is not None:
            return self._param_of_copy(*copied, name, shape, kind)
        regime = self.regime
        template = self.path(name)
        full_name = name_in_layer(template, self._layer)
        trainable = not regime.freezes_model and regime.trainable(full_name) and not frozen
        dtype = regime.weights if trainable else regime.frozen or regime.weights
        param = Param(
            name=template,
            shape=shape,
            kind=kind,
            dtype=F32 if regime.upcast(full_name, kind) else dtype,
            trainable=trainable,
            stored_bytes=prod(map(int, shape)) if regime.fp8_weights and kind == "linear" else None,
        )
        return self.declare(param)

    def _copied_module(self) -> tuple[Copies, str] | None:
        """The outermost module around the open scope of which a copy is trained, with its name."""
        parts = [part for scope in self._scopes for part in scope.split(".") if part]
        for copies in self.regime.copies:
            for length in range(1, len(parts) + 1):
                module = ".".join(parts[:length])
                if self.decide(module, copies.matches):
                    return copies, module
        return None

    def _param_of_copy(
        self, copies: Copies, module: str, name: str, shape: tuple[int, ...], kind: str
    ) -> Value:
        """The frozen parameter, and the copy's, which the code sees."""
        inside = self.path(name).removeprefix(module)
        regime = self.regime
        stored = regime.frozen or regime.weights
        frozen_name = f"{module}.{copies.frozen}{inside}"
        raised = regime.upcast(name_in_layer(frozen_name, self._layer), kind)
        dtype = F32 if raised else stored
        original = self.declare(
            Param(name=frozen_name, shape=shape, kind=kind, dtype=dtype, trainable=False)
        )
        trained_name = f"{module}.{copies.trained}{inside}"
        self._originals[trained_name] = original
        return self.declare(Param(name=trained_name, shape=shape, kind=kind, dtype=dtype))

    def declare(self, param: Param) -> Value:
        """Add a parameter to the open section."""
        self._open_section(param.name).params.append(param)
        requires_grad = param.trainable and self.regime.grad
        return Value(param.shape, param.dtype, requires_grad, param.name, param=param)

    def tie(self, name: str, value: Value) -> Value:
        """Give a parameter a second name."""
        if value.param is None or self._section is None:
            raise InvariantError(f"{name} can only be tied to a parameter, inside a section")
        value = self._originals.get(value.param.name, value)  # a copy is tied to nothing
        assert value.param is not None
        copied = self._copied_module() if self.regime.copies else None
        if copied is not None:
            copies, module = copied
            inside = self.path(name).removeprefix(module)
            tied_name, trained_name = (
                f"{module}.{copies.frozen}{inside}",
                f"{module}.{copies.trained}{inside}",
            )
            self._section.params.append(
                replace(value.param, name=tied_name, tied_to=value.param.name)
            )
            return self.declare(replace(value.param, name=trained_name, trainable=True))
        tied = replace(value.param, name=self.path(name), tied_to=value.param.name)
        self._section.params.append(tied)
        return value

    # ---- ops

    def op(
        self,
        name: str,
        inputs: tuple[Value, ...],
        shape: tuple[Number, ...],
        dtype: Dtype,
        *,
        label: str = "",
        saves: tuple[Value, ...] = (),
        saves_output: bool = False,
        requires_grad: bool | None = None,
        **facts: Any,
    ) -> Value:
        """Record an op with a new output. What it saves counts only if its output requires a gradient.

        `facts` are further fields of Op: temporaries, flops, passes_grad.
        """
        section = self._open_section(name)
        if requires_grad is None:
            requires_grad = self.regime.grad and any(value.requires_grad for value in inputs)
        output = Value(shape, dtype, requires_grad, label or name)
        output.sequence_sharded = any(value.sequence_sharded for value in inputs)
        saved: tuple[Value, ...] = ()
        if requires_grad:
            saved = _storages((*saves, output) if saves_output else saves)
        section.ops.append(
            Op(name=name, module=self.path(), inputs=inputs, output=output, saved=saved, **facts)
        )
        return output

    def view(self, x: Value, shape: tuple[Number, ...]) -> Value:
        """reshape, transpose, expand: no bytes, and the gradient is a view too."""
        section = self._open_section("view")
        output = Value(
            shape, x.dtype, x.requires_grad, x.label, x.storage, x.param, x.copy_of, x.is_slice
        )
        output.sequence_sharded = x.sequence_sharded
        section.ops.append(
            Op(name="view", module=self.path(), inputs=(x,), output=output, passes_grad=True)
        )
        return output

    def expand(self, x: Value, shape: tuple[Number, ...]) -> Value:
        """x repeated without bytes (a stride of zero). Backward sums in a new tensor."""
        output = self.view(x, shape)
        self._open_section("expand").ops[-1].passes_grad = False
        return output

    def select(self, x: Value, shape: tuple[Number, ...], name: str = "select") -> Value:
        """Part of x (some columns, the first token): a view forward; backward, a new tensor as large as x."""
        section = self._open_section("select")
        output = Value(
            shape,
            x.dtype,
            x.requires_grad,
            x.label,
            owner=x.storage,
            is_slice=True,
            sequence_sharded=x.sequence_sharded,
        )
        section.ops.append(Op(name=name, module=self.path(), inputs=(x,), output=output))
        return output

    # ---- what Python variables hold

    def read(self, x: Value) -> None:
        """Something still refers to x here, whichever section made it."""
        nothing = Value((), x.dtype, label=x.label, owner=x.storage)
        self.ops().append(Op(name="read", module=self.path(), inputs=(x,), output=nothing))

    def hold(self, x: Value, *held: Value) -> Value:
        """Give x back. Local variables of the code (`attn_output`) still hold `held` when the last op runs."""
        self._open_section("hold").ops[-1].held_by_locals += held
        return x

    def hold_in_layer(self, x: Value) -> None:
        """A variable of the layer's own code holds x until the layer returns."""
        if self.regime.code == "transformers":
            self._held_in_layer.append(x)


def _keep_leaves(section: Section) -> None:
    """The graph holds its leaves. One that the section returns is held by the next section's checkpoint anyway."""
    for op in section.ops:
        if op.output.is_leaf and op.output is not section.outputs[0]:
            op.output.kept_by_graph = True
            op.saved = (op.output,)


def _storages(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The storages that saving these keeps alive; parameters are alive anyway."""
    return tuple(value.storage for value in values if value.param is None)
