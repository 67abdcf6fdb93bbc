"""DeepSpeed's own estimators, reproduced: what `estimate_zero2_model_states_mem_needs` and its ZeRO-3 twin would say.

Sources: deepspeed/runtime/zero/stage_1_and_2.py and stage3.py. They count states only, assume mixed-precision Adam, and
multiply host memory by a factor for "additional buffers". docs/many-gpus.md says where this engine differs and why.
"""

from __future__ import annotations

from dataclasses import dataclass

FACTOR = 1.5  # additional_buffer_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Bytes for one GPU and for one node's host."""

    gpu_bytes: int
    host_bytes: int


def zero2_needs(
    params: int, *, gpus_per_node: int, nodes: int = 1, offload_optimizer: bool
) -> Needs:
    total = nodes * gpus_per_node
    if offload_optimizer:
        return Needs(gpu_bytes=2 * params, host_bytes=int(params * max(4 * total, 16) * FACTOR))
    return Needs(
        gpu_bytes=2 * params + 18 * params // total,
        host_bytes=int(4 * params * gpus_per_node * FACTOR),
    )


def zero3_needs(
    params: int, *, largest_layer: int, gpus_per_node: int, nodes: int = 1, offload_optimizer: bool,
    offload_params: bool = False, zero_init: bool = True,
) -> Needs:  # fmt: skip
    """`largest_layer`: parameters of the module that has most of its own."""
    total, gathered = nodes * gpus_per_node, 4 * largest_layer
    if not offload_optimizer:
        loading = 4 * (largest_layer if zero_init else params) * gpus_per_node
        return Needs(gpu_bytes=gathered + 18 * params // total, host_bytes=int(loading * FACTOR))
    each = 18 if offload_params else 16
    share = each / nodes if zero_init else max(4 * gpus_per_node, each / nodes)
    gpu = gathered if offload_params else gathered + 2 * params // total
    return Needs(gpu_bytes=gpu, host_bytes=int(params * share * FACTOR))
