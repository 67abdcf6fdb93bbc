"""A compiled function in a script: its graphs run as kernels that Inductor would have made.

In comes a call with its tensors, out come its outputs; the forward graph's tensors are allocated and freed in its
order, what the partitioner keeps is saved for autograd, and backward does the same for the other graph. Graphs are
made once per shape of the call. What is no single graph is run op by op, and the report says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from vramcast.virtual.accounting.storages import is_meta
from vramcast.virtual.compiled.attributes import BOOKKEEPING, Attributes, set_attributes
from vramcast.virtual.compiled.graphs import SOURCE, Graphs, NotOneGraph, trace
from vramcast.virtual.compiled.schedule import (
    Schedule,
    Step,
    is_view,
    owned_by_backward,
    schedule,
    storage_maker,
)
from vramcast.virtual.state import GpuState

MAX_SHAPES = 8  # as torch's recompile_limit; later shapes run op by op
COMPILED_NOTE = (
    "torch.compile: counted with what its graphs keep and with Inductor's rules of fusion, a bound: what its "
    "scheduler fuses beyond them takes less, a graph break more"
)
EAGER_NOTE = (
    "torch.compile: {name} could not be followed as one graph and is counted op by op{reason}"
)
_REASON_LETTERS = 120
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, slice)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    graphs: Graphs
    forward: Schedule
    backward: Schedule | None


class Region:
    """One compiled function; `modules` are those whose weights it uses."""

    def __init__(
        self, gpu: GpuState, function: Callable[..., Any], modules: tuple[torch.nn.Module, ...]
    ) -> None:
        self._gpu = gpu
        self._function = function
        self._modules = modules
        self._plans: dict[Any, _Plan | None] = {}
        self._reason = ""  # why there is no graph
        self._alike: Any = None  # what functions have in common that have the same graphs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        gpu = self._gpu
        if gpu.tracing or gpu.is_left:
            return self._function(*args, **kwargs)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        state = self._state()
        key = self._key(leaves, structure, state)
        if key is None:
            return self._eager(args, kwargs)
        if key not in self._plans:
            self._plans[key] = self._shared_plan(key, leaves, structure, state)
        plan = self._plans[key]
        if plan is None:
            return self._eager(args, kwargs)
        gpu.note_once(COMPILED_NOTE)
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        result, left_behind = _run(gpu, plan, [*given, *state.values()])
        set_attributes(self._modules, left_behind)
        return result

    def _eager(self, args: Any, kwargs: Any) -> Any:
        name = getattr(self._modules[0], "__class__", type(None)).__name__ if self._modules else ""
        name = name or getattr(self._function, "__qualname__", "a function")
        reason = f" ({self._reason[:_REASON_LETTERS]})" if self._reason else ""
        self._gpu.note_once(EAGER_NOTE.format(name=name, reason=reason))
        return self._function(*args, **kwargs)

    def _state(self) -> dict[tuple[int, str], torch.Tensor]:
        """Weights and buffers, each once."""
        found: dict[tuple[int, str], torch.Tensor] = {}
        seen: set[int] = set()
        for index, module in enumerate(self._modules):
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[index, name] = tensor
        return found

    def _key(self, leaves: list[Any], structure: Any, state: dict[Any, torch.Tensor]) -> Any:
        """What graphs depend on; None where there can be none."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] + list(state.values())
        if not tensors or not all(_is_ordinary(tensor) for tensor in tensors):
            return None
        if not any(tensor.is_cuda for tensor in tensors):
            return None
        if any(_has_hooks(module) for module in self._modules):
            return None
        described = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                continue
            if isinstance(leaf, _PLAIN):
                described.append(repr(leaf))
            elif type(leaf).__name__ == "BlockMask":  # flex_attention's kernel reads it
                described.append("BlockMask")
            else:
                return None
        shapes = tuple(
            (tuple(t.shape), t.stride(), t.dtype, t.requires_grad, t.device) for t in tensors
        )
        training = tuple(part.training for module in self._modules for part in module.modules())
        casts = (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"))
        return (
            str(structure),
            tuple(described),
            shapes,
            hash(training),
            casts,
            torch.is_grad_enabled(),
        )

    def _shared_plan(
        self, key: Any, leaves: list[Any], structure: Any, state: dict[Any, torch.Tensor]
    ) -> Any:
        """The layers of a model that are compiled one by one are written down once."""
        if len(self._plans) >= MAX_SHAPES:
            return None
        if self._alike is None:
            self._alike = _description(self._function, self._modules)
        shared = (self._alike, tuple(state), key)
        plans = self._gpu.compiled_plans
        if shared not in plans:
            plans[shared] = self._plan(leaves, structure, state)
        return plans[shared]

    def _plan(self, leaves: list[Any], structure: Any, state: dict[Any, torch.Tensor]) -> Any:
        positions = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        count = len(positions)

        def call(tensors: list[torch.Tensor]) -> Any:
            filled = list(leaves)
            for index, tensor in zip(positions, tensors[:count], strict=True):
                filled[index] = tensor
            args, kwargs = pytree.tree_unflatten(filled, structure)
            given = dict(zip(state, tensors[count:], strict=True))
            before = Attributes(self._modules)
            try:
                result = self._with_state(given, 0, args, kwargs)
            finally:
                left_behind = before.take_changed()
            return result, left_behind

        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        try:
            graphs = trace(self._gpu, call, [*tensors, *state.values()])
        except NotOneGraph as reason:
            self._reason = str(reason).partition("\n")[0]
            return None
        forward = schedule(graphs.forward.graph)
        backward = None
        if graphs.backward is not None:
            owned = owned_by_backward(graphs.forward.graph, graphs.outputs)
            backward = schedule(graphs.backward.graph, owned_inputs=owned)
        return _Plan(graphs=graphs, forward=forward, backward=backward)

    def _with_state(
        self, state: dict[tuple[int, str], torch.Tensor], index: int, args: Any, kwargs: Any
    ) -> Any:
        """The function's result, with these weights in its modules."""
        if index == len(self._modules):
            return self._function(*args, **kwargs)
        mine = {name: tensor for (owner, name), tensor in state.items() if owner == index}
        with torch.nn.utils.stateless._reparametrize_module(
            self._modules[index], mine, tie_weights=True
        ):
            return self._with_state(state, index + 1, args, kwargs)


def _description(function: Any, modules: tuple[torch.nn.Module, ...]) -> Any:
    """Code, classes and settings; equal for two layers that do the same."""
    code = getattr(function, "__code__", None) or getattr(function, "__func__", function)
    parts = []
    for module in modules:
        for name, part in module.named_modules():
            settings = [
                (key, repr(value) if _is_plain(value) else id(value))
                for key, value in vars(part).items()
                if key not in BOOKKEEPING and not _is_empty(value)
            ]
            parts.append((name, type(part), tuple(settings)))
    return code, tuple(parts)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list, set)):
        return all(_is_plain(item) for item in value)
    return isinstance(value, _PLAIN)


def _is_empty(value: Any) -> bool:
    """Such as the hooks of a module without any."""
    return isinstance(value, (dict, set)) and not value


def _is_ordinary(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


def _has_hooks(module: torch.nn.Module) -> bool:
    """Of its parts: what they do at run time (FSDP's gathering) belongs into no graph."""
    return any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks
        for part in module.modules()
        if part is not module
    )


# -- running a plan ------------------------------------------------------------------------------------------------


def _run(gpu: GpuState, plan: _Plan, tensors: list[torch.Tensor]) -> Any:
    graphs = plan.graphs
    if graphs.backward is None:
        outputs = _Runner(gpu, plan.forward, graphs.forward).run(tensors)
    else:
        outputs = _Compiled.apply(gpu, plan, *tensors)
    structure, marks, constants = graphs.structure
    remaining = iter(outputs[: graphs.outputs])
    leaves = [
        next(remaining) if is_tensor else constant
        for is_tensor, constant in zip(marks, constants, strict=True)
    ]
    return pytree.tree_unflatten(leaves, structure)


class _Compiled(torch.autograd.Function):  # type: ignore[misc]
    """AOTAutograd's own: the forward graph saves what the cut keeps, and backward lets go of it as it is read."""

    @staticmethod
    def forward(ctx: Any, gpu: GpuState, plan: _Plan, *tensors: torch.Tensor) -> Any:
        count = plan.graphs.outputs
        results = _Runner(gpu, plan.forward, plan.graphs.forward).run(list(tensors))
        outputs, kept = results[:count], results[count:]
        ctx.gpu, ctx.plan = gpu, plan
        ctx.kept_constants = [None if isinstance(k, torch.Tensor) else k for k in kept]
        ctx.save_for_backward(*(k for k in kept if isinstance(k, torch.Tensor)))
        differentiable = set(plan.graphs.differentiable)
        ctx.mark_non_differentiable(
            *(output for index, output in enumerate(outputs) if index not in differentiable)
        )
        ctx.set_materialize_grads(True)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        plan = ctx.plan
        saved = iter(ctx.saved_tensors)
        kept = [next(saved) if k is None else k for k in ctx.kept_constants]
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.maybe_clear_saved_tensors()
        del saved
        tangents = [gradients[index] for index in plan.graphs.differentiable]
        runner = _Runner(ctx.gpu, plan.backward, plan.graphs.backward)
        kept += tangents
        del tangents, gradients
        return (None, None, *runner.run(kept))


class _Runner:
    """Allocates and frees what the steps of one graph do, in their order."""

    def __init__(self, gpu: GpuState, plan: Schedule, graph: torch.fx.GraphModule) -> None:
        self._gpu = gpu
        self._plan = plan
        self._graph = graph
        self._values: dict[Any, Any] = {}
        self._views: dict[Any, list[Any]] = {}  # by the node that made the storage

    def run(self, given: list[Any]) -> list[Any]:
        values, gpu = self._values, self._gpu
        for node, value in zip(self._plan.inputs, given, strict=True):
            values[node] = value
        given.clear()
        try:
            for step in self._plan.steps:
                gpu.attributed = step.node.meta.get(SOURCE)
                values[step.node] = self._run_step(step)
                for node in step.frees:
                    self._free(node)
        finally:
            gpu.attributed = None
        outputs = []
        for node in self._plan.outputs:
            outputs.append(values.get(node) if isinstance(node, torch.fx.Node) else node)
        values.clear()
        return outputs

    def _run_step(self, step: Step) -> Any:
        node = step.node
        if step.is_fused:
            value = self._fused(step)
        else:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._value)
            value = node.target(*args, **kwargs)
            if is_view(node):
                self._views.setdefault(storage_maker(node), []).append(node)
        return value

    def _value(self, node: torch.fx.Node) -> Any:
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self._graph)
        return self._values[node]

    def _fused(self, step: Step) -> Any:
        like = step.node.meta["val"]
        if step.writes_over is not None:
            taken = self._values[step.writes_over]
            if (
                is_meta(taken)
                and taken.untyped_storage().nbytes() >= like.numel() * like.element_size()
            ):
                self._free(step.writes_over)
                return torch.as_strided(taken, like.shape, like.stride(), 0)
            self._free(step.writes_over)
        if isinstance(like, torch.Tensor):
            return self._allocate(like, step)
        return [self._allocate(part, step) for part in like]

    def _allocate(self, like: Any, step: Step) -> Any:
        if not isinstance(like, torch.Tensor):
            return like
        name = str(getattr(step.node.target, "_schema", step.node).name)
        with torch._C._DisableTorchDispatch():
            made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
        self._gpu.enroll(made, self._gpu.place_named(torch.device(like.device)), name)
        return made

    def _free(self, node: torch.fx.Node) -> None:
        self._values.pop(node, None)
        for view in self._views.pop(node, ()):
            self._values.pop(view, None)
