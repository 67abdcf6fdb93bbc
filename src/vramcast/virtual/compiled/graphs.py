"""The graphs of a compiled function: forward and backward, cut where AOTAutograd's min-cut partitioner cuts them.

In comes a function with its tensors, out come two graphs of aten ops with Inductor's decompositions and the tensors
that the first keeps for the second. The function is run on tensors that are counted nowhere: once to see what it
returns, once to write its ops down, together with their gradients. Does not know Dynamo: what it would break into
several graphs is one here, or none (`NotOneGraph`), and is then counted op by op.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch.fx.experimental import proxy_tensor

from vramcast.patches import Patches
from vramcast.virtual.accounting.module_path import ModulePath
from vramcast.virtual.accounting.source_lines import source_lines
from vramcast.virtual.state import GpuState
from vramcast.virtual.torch_patches import triton_library

MAX_OPS = 20_000  # of a forward with its backward; the cut takes longer than it is worth beyond
SOURCE = "vramcast_source"  # of a node: module and source lines of the op
PRIMALS, TANGENTS = (
    "primals",
    "tangents",
)  # the partitioner knows a joint graph's inputs by these names

Call = Callable[[list[torch.Tensor]], Any]


class NotOneGraph(Exception):
    """The function cannot be written down as one graph: it decides by values, trains inside, or writes into views."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None  # None without gradients
    outputs: (
        int  # of the function; what follows them in the forward graph is kept for the backward one
    )
    differentiable: tuple[
        int, ...
    ]  # which outputs have gradients, in the order of the backward's last inputs
    structure: Any  # of what the function returns, to be filled with its outputs


def refuse_inside_a_graph(gpu: GpuState, what: str) -> None:
    """Training inside a compiled function must not happen while it is only written down."""
    if gpu.tracing:
        raise NotOneGraph(f"{what} is called in it")


def trace(gpu: GpuState, call: Call, tensors: list[torch.Tensor]) -> Graphs:
    """The graphs of `call(tensors)`; raises NotOneGraph."""
    patches = Patches()
    try:
        _tools()
        with gpu.uncounted(), _as_compiling(gpu, patches):
            return _trace(gpu, call, tensors, patches)
    except NotOneGraph:
        raise
    except Exception as error:  # whatever the function or torch's tracer raises, it is no graph
        raise NotOneGraph(f"{type(error).__name__}: {error}") from error
    finally:
        patches.restore()


@contextmanager
def _as_compiling(gpu: GpuState, patches: Patches) -> Iterator[None]:
    patches.set(torch.compiler, "_is_compiling_flag", True)
    before = gpu.tracing
    gpu.tracing = True
    # Hooks around the function (a checkpoint, offloading) are for what its graph keeps, not for this run.
    hooks_were_left_out = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(hooks_were_left_out)
        gpu.tracing = before


def _trace(gpu: GpuState, call: Call, tensors: list[torch.Tensor], patches: Patches) -> Graphs:
    with_gradients = torch.is_grad_enabled()
    seen = call(_twins(tensors))
    leaves, structure = torch.utils._pytree.tree_flatten(seen)
    found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not found:
        raise NotOneGraph("it returns no tensor")
    positions = tuple(index for index, tensor in enumerate(found) if tensor.requires_grad)
    constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    marks = [isinstance(leaf, torch.Tensor) for leaf in leaves]
    tangents = [torch.empty_like(found[index]) for index in positions]
    wanted = [index for index, tensor in enumerate(tensors) if tensor.requires_grad]
    del seen, leaves, found
    with _nodes_with_sources(gpu.path, patches):
        if with_gradients and positions:
            graph = _make(_joint(gpu, call, positions, wanted), _twins(tensors), tangents)
        else:
            graph = _make(_forward(call), _twins(tensors), [])
    _make_functional(graph)
    if len(graph.graph.nodes) > MAX_OPS:
        raise NotOneGraph("it has too many ops")
    made = (structure, tuple(marks), tuple(constants))
    count = sum(marks)
    if not (with_gradients and positions):
        graph.graph.eliminate_dead_code()
        return Graphs(
            forward=graph, backward=None, outputs=count, differentiable=(), structure=made
        )
    forward, backward = _cut(graph, count)
    return Graphs(
        forward=forward,
        backward=backward,
        outputs=count,
        differentiable=positions,
        structure=made,
    )


def _twins(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [
        tensor.detach().clone().requires_grad_(tensor.requires_grad and torch.is_grad_enabled())
        for tensor in tensors
    ]


def _tensors_of(result: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _forward(call: Call) -> Any:
    def forward(primals: Any, tangents: Any) -> Any:
        return _tensors_of(call(list(primals)))

    return forward


def _joint(gpu: GpuState, call: Call, positions: tuple[int, ...], wanted: list[int]) -> Any:
    def joint(primals: Any, tangents: Any) -> Any:
        outputs = _tensors_of(call(list(primals)))
        gradients: list[Any] = [None] * len(primals)
        gpu.tracing = False  # these gradients are the graph's own
        try:
            found = torch.autograd.grad(
                [outputs[index] for index in positions],
                [primals[index] for index in wanted],
                list(tangents),
                allow_unused=True,
            )
        finally:
            gpu.tracing = True
        for index, gradient in zip(wanted, found, strict=True):
            gradients[index] = gradient
        return [*outputs, *gradients]

    return joint


def _make(function: Any, primals: list[torch.Tensor], tangents: list[torch.Tensor]) -> Any:
    table = dict(_tools().decomposition.select_decomp_table())
    graph = proxy_tensor.make_fx(function, decomposition_table=table)(primals, tangents)
    graph.graph.set_codegen(torch.fx.graph.CodeGen())
    for node in graph.graph.nodes:
        if node.op == "get_attr" and getattr(graph, node.target).requires_grad:
            raise NotOneGraph("it uses weights that it was not given")
    return graph


@contextmanager
def _nodes_with_sources(path: ModulePath, patches: Patches) -> Iterator[None]:
    """Every node of a graph remembers where in the script it was made."""
    true_create = torch.fx.proxy.TracerBase.create_node
    checkpoints = _Checkpoints()
    checkpoints.install(patches)

    def create_node(tracer: Any, *args: Any, **kwargs: Any) -> Any:
        node = true_create(tracer, *args, **kwargs)
        node.meta[SOURCE] = (path.current(), source_lines())
        checkpoints.tag(node)
        return node

    patches.set(torch.fx.proxy.TracerBase, "create_node", create_node)
    # The tracer calls modules as they were called when torch.fx was imported, so past our path.
    patches.set(torch.fx._symbolic_trace, "_orig_module_call", torch.nn.Module.__call__)
    yield


class _Checkpoints:
    """Checkpointing inside a graph: its forward is marked, and the cut computes what is marked again."""

    def __init__(self) -> None:
        self._seen = 0
        self._running: list[int] = []

    def install(self, patches: Patches) -> None:
        module = torch.utils.checkpoint
        patches.set(module, "_checkpoint_without_reentrant_generator", self._around)
        patches.set(module.CheckpointFunction, "apply", self._run)

    def tag(self, node: torch.fx.Node) -> None:
        if self._running and node.op == "call_function":
            node.meta["recompute"] = torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
            node.meta["ac_graph_id"] = self._running[-1]

    def _around(self, function: Any, *options: Any, **more: Any) -> Iterator[None]:
        with self._marked():
            yield

    def _run(self, function: Any, preserve: Any, *args: Any) -> Any:
        with self._marked():
            return function(*args)

    @contextmanager
    def _marked(self) -> Iterator[None]:
        self._seen += 1
        self._running.append(self._seen)
        try:
            yield
        finally:
            self._running.pop()


# -- writing in place ----------------------------------------------------------------------------------------------


def _make_functional(graph: torch.fx.GraphModule) -> None:
    """`add_` becomes `add`; later readers were told by the tracer to read its result."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and _stays_where_it_is(node):
            node.replace_all_uses_with(node.args[0])
            continue
        if node.op != "call_function" or not _writes(node.target):
            continue
        target = node.args[0] if node.args else None
        if not isinstance(target, torch.fx.Node) or _is_view(target):
            raise NotOneGraph(f"{node.target} writes into a view or a list")
        node.target = _without_writing(node.target)
    graph.recompile()


def _stays_where_it_is(node: torch.fx.Node) -> bool:
    """A transfer to the device that the tensor is on."""
    if (
        getattr(node.target, "_schema", None) is None
        or node.target._schema.name != "prims::device_put"
    ):
        return False
    return bool(node.meta["val"].device == node.args[0].meta["val"].device)


def _writes(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_view(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.returns:
        return False
    return any(value.alias_info is not None for value in schema.returns)


def _without_writing(target: Any) -> Any:
    namespace, _, name = target._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    overload = getattr(packet, target._overloadname, None)
    if overload is None or overload._schema.is_mutable:
        raise NotOneGraph(f"{target} has no form that leaves its input alone")
    return overload


def _cut(joint: torch.fx.GraphModule, outputs: int) -> tuple[Any, Any]:
    cut = _tools().partitioners.min_cut_rematerialization_partition
    forward, backward = cut(joint, None, num_fwd_outputs=outputs)
    return forward, backward


class _Tools(NamedTuple):
    decomposition: Any
    partitioners: Any


@cache
def _tools() -> _Tools:
    """Inductor's modules take seconds to import, and must not find the stand-in for Triton."""
    with triton_library.hidden():
        importlib.import_module("torch._inductor.pattern_matcher")
        return _Tools(
            decomposition=importlib.import_module("torch._inductor.decomposition"),
            partitioners=importlib.import_module("torch._functorch.partitioners"),
        )
