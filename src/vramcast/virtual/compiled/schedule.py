"""Which results of a graph become tensors when Inductor compiles it, and how long each one lives.

In comes a graph of aten ops, out come the steps that allocate: kernels of their own (products, attention, scatter) and
fused kernels, each with what it reads and what is free after it. The rules are those of torch/_inductor/ir.py: a
pointwise result is computed where it is read, unless a kernel that is not fused reads it, it leaves the graph, or it
is read more than once and reads more than four tensors or makes more than thirty ops. Reductions are stored. A fused
kernel writes over a tensor of its size that nobody reads afterwards. What Inductor's scheduler fuses beyond that is
not known here: it saves more.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch.fx import Node

MAX_READS, MAX_INLINED_OPS = 4, 30  # realize_reads_threshold, realize_opcount_threshold
aten = torch.ops.aten
_ALWAYS_STORED = (
    frozenset(  # reductions, and kernels that write what others compute into a tensor of their own
        {
            "aten::cat",
            "aten::index_add",
            "aten::index_put",
            "aten::scatter",
            "aten::scatter_add",
            "aten::scatter_reduce",
            "aten::_unsafe_index_put",
            "aten::_unsafe_masked_index_put_accumulate",
            "aten::sum",
            "aten::mean",
            "aten::amax",
            "aten::amin",
            "aten::var",
            "aten::var_mean",
            "aten::std",
            "aten::argmax",
            "aten::argmin",
            "aten::any",
            "aten::max",
            "aten::min",
            "aten::prod",
            "prims::sum",
            "prims::var",
            "prims::prepare_softmax_online",
        }
    )
)


_ALSO_FUSED = frozenset({"aten::embedding"})  # beside those that the partitioner takes for fusible


@dataclass(slots=True)
class Step:
    node: Node
    is_fused: bool
    writes_over: Node | None = None  # a tensor of the same size that is read here for the last time
    frees: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    inputs: tuple[Node, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]


@cache
def _fusible_ops() -> frozenset[Any]:
    from torch._functorch.partitioners import get_default_op_list

    return frozenset(get_default_op_list().fusible_ops)


def is_view(node: Node) -> bool:
    """A result without a storage of its own, or a part of one with several results."""
    if node.target is operator.getitem:
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    returns_alias = any(value.alias_info is not None for value in schema.returns)
    return (returns_alias and not schema.is_mutable) or node.target in (aten._unsafe_view.default,)


def storage_maker(node: Node) -> Node:
    """The node that made the storage of a result."""
    while is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def is_fused(node: Node) -> bool:
    packet = getattr(node.target, "overloadpacket", node.target)
    if packet not in _fusible_ops() and _name(node) not in _ALWAYS_STORED | _ALSO_FUSED:
        return False
    return isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


def _name(node: Node) -> str:
    return str(getattr(getattr(node.target, "_schema", None), "name", ""))


def _is_scatter_upon_constant(node: Node) -> bool:
    """fx_passes/joint_graph.py scatter_upon_const_tensor: one number per row into a constant is a comparison."""
    if node.target is not aten.scatter.value:
        return False
    into, dim, selector = node.args[:3]
    if not isinstance(into, Node) or into.target is not aten.full.default:
        return False
    return isinstance(selector, Node) and bool(selector.meta["val"].size(dim) == 1)


def schedule(graph: torch.fx.Graph, *, owned_inputs: frozenset[str] = frozenset()) -> Schedule:
    """`owned_inputs`: those that nobody else holds, so that a kernel may write over them."""
    nodes = list(graph.nodes)
    outputs = tuple(nodes[-1].args[0])
    planner = _Planner(nodes, outputs)
    steps = planner.steps()
    inputs = tuple(node for node in nodes if node.op == "placeholder")
    protected = {storage_maker(node) for node in outputs if isinstance(node, Node)}
    kept = {node for node in inputs if node.name not in owned_inputs}
    _end_lives(steps, planner, protected, kept, inputs)
    return Schedule(inputs=inputs, steps=tuple(steps), outputs=outputs)


class _Planner:
    def __init__(self, nodes: list[Node], outputs: tuple[Any, ...]) -> None:
        self._nodes = nodes
        self._outputs = {storage_maker(node) for node in outputs if isinstance(node, Node)}
        self._inlined: dict[
            Node, tuple[frozenset[Node], int]
        ] = {}  # what it reads, how many ops it makes
        self.stored: set[Node] = set()

    def readers(self, node: Node) -> list[Node]:
        """Who reads the values, through views."""
        found = []
        for user in node.users:
            found += self.readers(user) if is_view(user) else [user]
        return found

    def reads(self, node: Node) -> frozenset[Node]:
        """The tensors that the kernel of this node reads."""
        found: set[Node] = set()
        for source in node.all_input_nodes:
            made_by = storage_maker(source)
            if made_by in self._inlined:
                found |= self._inlined[made_by][0]
            else:
                found.add(made_by)
        return frozenset(found)

    def steps(self) -> list[Step]:
        steps = []
        for node in self._nodes:
            if node.op != "call_function":
                if node.op in ("placeholder", "get_attr"):
                    self.stored.add(node)
                continue
            if is_view(node):
                if storage_maker(node) in self.stored:
                    steps.append(Step(node, is_fused=False))
                continue
            fused = is_fused(node)
            if fused and not self._is_stored(node):
                ops = 1 + sum(
                    self._inlined[made_by][1]
                    for made_by in {storage_maker(source) for source in node.all_input_nodes}
                    if made_by in self._inlined
                )
                self._inlined[node] = (self.reads(node), ops)
                continue
            self.stored.add(node)
            steps.append(Step(node, is_fused=fused))
        return steps

    def _is_stored(self, node: Node) -> bool:
        readers = self.readers(node)
        if node in self._outputs or any(not is_fused(reader) for reader in readers):
            return True
        if _name(node) in _ALWAYS_STORED and not _is_scatter_upon_constant(node):
            return True
        if len(set(readers)) < 2:
            return False
        sources = {storage_maker(source) for source in node.all_input_nodes}
        ops = 1 + sum(self._inlined[source][1] for source in sources if source in self._inlined)
        return len(self.reads(node)) > MAX_READS or ops > MAX_INLINED_OPS


def owned_by_backward(forward: torch.fx.Graph, outputs: int) -> frozenset[str]:
    """What a forward graph made for the backward one and did not return."""
    made = next(iter(reversed(forward.nodes))).args[0]
    returned = {storage_maker(node) for node in made[:outputs] if isinstance(node, Node)}
    kept = [node for node in made[outputs:] if isinstance(node, Node)]
    makers = [storage_maker(node) for node in kept]
    return frozenset(
        node.name
        for node, maker in zip(kept, makers, strict=True)
        if maker.op == "call_function" and maker not in returned and makers.count(maker) == 1
    )


def _end_lives(
    steps: list[Step],
    planner: _Planner,
    protected: set[Node],
    kept: set[Node],
    inputs: tuple[Node, ...],
) -> None:
    """Every storage ends after the last step that reads it; a fused kernel may take one over instead."""
    last: dict[Node, int] = dict.fromkeys(inputs, -1)
    for index, step in enumerate(steps):
        for source in planner.reads(step.node):
            last[source] = index
        if not is_view(step.node):
            last.setdefault(step.node, index)
    for source, index in last.items():
        if source in protected:
            continue
        if index < 0:
            steps[0].frees.append(source)
            continue
        step = steps[index]
        can_take = step.is_fused and step.writes_over is None and source not in kept
        if can_take and source is not step.node and _same_size(source, step.node):
            step.writes_over = source
        else:
            step.frees.append(source)


def _same_size(one: Node, other: Node) -> bool:
    first, second = one.meta.get("val"), other.meta.get("val")
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    return _bytes(first) == _bytes(second) and first.dtype == second.dtype


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())
