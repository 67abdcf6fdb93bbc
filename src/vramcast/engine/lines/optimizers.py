"""Optimizer states of each parameter, and temporaries of an optimizer step.

`state_tensors` gives the sizes of one parameter's states; `temporaries` gives what `step()` allocates and frees. Each
optimizer names its source. States have the recipe's dtype, or else that of the parameter.

Example: a bf16 weight of 4096 × 4096 under AdamW with fp32 states has two states of 64 MiB. A step with foreach
allocates 64 MiB more and frees them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from vramcast.models.params import Params
from vramcast.models.record.tape import F32, Param
from vramcast.setup import Setup
from vramcast.setup.records import Optimizer

SMALL_8BIT = 4096  # bitsandbytes min_8bit_size: smaller tensors keep fp32 states
TRAINER_8BIT_FROM = (
    4,
    19,
)  # transformers: from here on its Trainer keeps 32-bit states of embeddings under 8-bit optimizers
FOREACH_FROM = (2, 0)  # torch: foreach became the default where all parameters are on CUDA
# torch 2.0's Adam kept the root and root + eps as two lists; 2.1 adds in place (pytorch#97712, #104898).
ONE_LIST_FROM = (2, 1)
RAISED_TENSORS = 4  # of a 16-bit parameter that transformers' Adafactor has in fp32 at a time
PAGED_FROM = 100_000  # bitsandbytes: smaller tensors are not paged


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStates:
    """What an optimizer stores. `states`: names for the report. `tensors`: the bytes of each state of a parameter,
    given the bytes per element."""

    states: str
    source: str
    tensors: Callable[[Param, int, Setup], tuple[int, ...]]
    from_start: bool = False  # states are made with the optimizer, not in its first step
    # Lists that a foreach step allocates, as long as all parameters, in the states' dtype.
    foreach_copies: int = 0
    loop_tensors: int = 2  # temporaries per parameter in a step that handles them one by one


def _full(copies: int) -> Callable[[Param, int, Setup], tuple[int, ...]]:
    return lambda param, item, setup: (param.numel * item,) * copies


def _factored(param: Param, item: int, setup: Setup) -> tuple[int, ...]:
    """Row and column statistics over the last two axes; full for vectors."""
    if len(param.shape) < 2:
        return (param.numel * item,)
    leading = prod(int(n) for n in param.shape[:-2])
    return (leading * int(param.shape[-2]) * item, leading * int(param.shape[-1]) * item)


def _came(param: Param, item: int, setup: Setup) -> tuple[int, ...]:
    pairs = 2 if len(param.shape) >= 2 else 1
    return (param.numel * item, *_factored(param, item, setup) * pairs)


def _eight_bit(*copies: int) -> Callable[[Param, int, Setup], tuple[int, ...]]:
    """bitsandbytes' states: how many copies of the parameter each of them holds."""

    def tensors(param: Param, item: int, setup: Setup) -> tuple[int, ...]:
        by_trainer = (
            setup.versions.framework in ("hf", "trl")
            and setup.versions.transformers >= TRAINER_8BIT_FROM
        )
        if param.numel < SMALL_8BIT or (param.kind == "embedding" and by_trainer):
            return tuple(4 * param.numel * count for count in copies)
        scales = 4 * -(-param.numel // setup.optimizer.block_size)
        return (*(param.numel * count for count in copies), *(scales * count for count in copies))

    return tensors


def _in_fp32(*copies: int) -> Callable[[Param, int, Setup], tuple[int, ...]]:
    """32-bit states whatever the parameter's dtype."""
    return lambda param, item, setup: tuple(4 * param.numel * count for count in copies)


def _torchao(block: int, bits: int) -> Callable[[Param, int, Setup], tuple[int, ...]]:
    """Codes, fp32 scales of blocks and a lookup table, twice; as the parameter where blocks do not fit."""

    def tensors(param: Param, item: int, setup: Setup) -> tuple[int, ...]:
        if param.numel < SMALL_8BIT or param.numel % block:
            return (param.numel * item,) * 2
        return (param.numel * bits // 8, 4 * param.numel // block, 4 * 2**bits) * 2

    return tensors


def _muon(param: Param, item: int, setup: Setup) -> tuple[int, ...]:
    """Momentum for hidden matrices, AdamW for embeddings, heads and vectors."""
    hidden = len(param.shape) == 2 and param.kind in ("linear", "router", "adapter")
    return (param.numel * item,) * (1 if hidden else 2)


def _galore(param: Param, item: int, setup: Setup) -> tuple[int, ...]:
    """A projector and two states in the projected space for matrices; plain AdamW for the rest."""
    if len(param.shape) != 2 or param.kind != "linear":
        return (param.numel * item,) * 2
    small, large = sorted(int(n) for n in param.shape)
    rank = min(setup.optimizer.projection_rank, small)
    return (small * rank * item, rank * large * item, rank * large * item)


def _adam_mini(param: Param, item: int, setup: Setup) -> tuple[int, ...]:
    """A full first moment; one second moment per output row of a matrix, one per vector."""
    rows = int(param.shape[0]) if len(param.shape) >= 2 else 1
    return (param.numel * item, rows * item)


TORCH = "torch.optim"
BNB = "bitsandbytes optim/optimizer.py: 2 × (1 B + 4/block B), tensors < 4096 elements in fp32"
KNOWN = {
    "adamw": OptimizerStates(
        states="exp_avg, exp_avg_sq", source=TORCH, tensors=_full(2), foreach_copies=1
    ),
    "adam": OptimizerStates(
        states="exp_avg, exp_avg_sq", source=TORCH, tensors=_full(2), foreach_copies=1
    ),
    "sgd": OptimizerStates(states="none", source=TORCH, tensors=_full(0), loop_tensors=0),
    "sgd-momentum": OptimizerStates(
        states="momentum_buffer", source=TORCH, tensors=_full(1), loop_tensors=0
    ),
    "adamw-8bit": OptimizerStates(
        states="8-bit exp_avg, exp_avg_sq", source=BNB, tensors=_eight_bit(1, 1), loop_tensors=0
    ),
    "paged-adamw": OptimizerStates(
        states="exp_avg, exp_avg_sq in fp32",
        source="bitsandbytes optim/optimizer.py: 32-bit states whatever the parameter's dtype",
        tensors=_in_fp32(1, 1),
        loop_tensors=0,
    ),
    "paged-adamw-8bit": OptimizerStates(
        states="8-bit exp_avg, exp_avg_sq", source=BNB, tensors=_eight_bit(1, 1), loop_tensors=0
    ),
    **{
        name: OptimizerStates(states=states, source=BNB, tensors=tensors, loop_tensors=0)
        for name, states, tensors in (
            ("lion-8bit", "8-bit exp_avg", _eight_bit(1)),
            ("paged-lion", "exp_avg in fp32", _in_fp32(1)),
            ("paged-lion-8bit", "8-bit exp_avg", _eight_bit(1)),
            ("ademamix", "two exp_avg, exp_avg_sq in fp32", _in_fp32(2, 1)),
            ("ademamix-8bit", "8-bit two exp_avg, exp_avg_sq", _eight_bit(2, 1)),
            ("paged-ademamix", "two exp_avg, exp_avg_sq in fp32", _in_fp32(2, 1)),
            ("paged-ademamix-8bit", "8-bit two exp_avg, exp_avg_sq", _eight_bit(2, 1)),
        )
    },
    **{
        f"adamw-torchao-{bits}bit": OptimizerStates(
            states=f"{bits}-bit exp_avg, exp_avg_sq",
            source=f"torchao 0.18 optim/subclass_{bits}bit.py: codes, a scale per {block}; its step is compiled",
            tensors=_torchao(block, bits),
            loop_tensors=0,
        )
        for bits, block in ((8, 256), (4, 128))
    },
    "schedule-free-adamw": OptimizerStates(
        states="z, exp_avg_sq",
        source="schedulefree 1.4 adamw_schedulefree.py",
        tensors=_full(2),
        foreach_copies=1,
    ),
    "apollo": OptimizerStates(
        states="projector, projected states",
        source="apollo-torch 1.0 apollo.py, random_projector.py",
        tensors=_galore,
    ),
    "adafactor": OptimizerStates(
        states="row and column factors",
        source="Shazeer and Stern 2018; transformers and torch Adafactor",
        tensors=_factored,
    ),
    "lion": OptimizerStates(
        states="exp_avg", source="Chen et al. 2023", tensors=_full(1), loop_tensors=1
    ),
    "adagrad": OptimizerStates(
        states="sum", source=TORCH, tensors=_full(1), from_start=True, foreach_copies=2
    ),
    "rmsprop": OptimizerStates(
        states="square_avg", source=TORCH, tensors=_full(1), foreach_copies=1
    ),
    "muon": OptimizerStates(
        states="momentum; AdamW states for embeddings, head and vectors",
        source="Jordan et al. 2024; torch.optim.Muon",
        tensors=_muon,
        loop_tensors=4,
    ),
    "sophia": OptimizerStates(
        states="exp_avg, hessian", source="Liu et al. 2023", tensors=_full(2)
    ),
    "came": OptimizerStates(
        states="exp_avg and two factored pairs", source="Luo et al. 2023", tensors=_came
    ),
    "galore": OptimizerStates(
        states="projector, projected states", source="Zhao et al. 2024", tensors=_galore
    ),
    "adam-mini": OptimizerStates(
        states="exp_avg, one exp_avg_sq per row", source="Zhang et al. 2024", tensors=_adam_mini
    ),
    "lomo": OptimizerStates(
        states="none", source="Lv et al. 2023", tensors=_full(0), loop_tensors=1
    ),
}


def state_bytes(param: Param, setup: Setup, states_dtype_bytes: int | None) -> int:
    return sum(state_tensors(param, setup, states_dtype_bytes))


def state_tensors(param: Param, setup: Setup, states_dtype_bytes: int | None) -> tuple[int, ...]:
    """The bytes of each optimizer state of a parameter."""
    return KNOWN[setup.optimizer.name].tensors(
        param, states_dtype_bytes or param.dtype.nbytes, setup
    )


def is_paged(optimizer: Optimizer, param: Param) -> bool:
    """bitsandbytes allocates states of larger tensors in unified memory, which the driver may move to the host."""
    return optimizer.name.startswith("paged-") and param.numel >= PAGED_FROM


@functools.cache
def temporaries(trained: Params, setup: Setup, states_dtype_bytes: int | None) -> tuple[int, str]:
    """Bytes that step() allocates and frees again, and the reason in words."""
    how = setup.optimizer.implementation
    most = _most(trained, setup, states_dtype_bytes)
    if how == "foreach" and (lists := _foreach_lists(setup)):
        many = "a list" if lists == 1 else f"{lists} lists"
        return most, f"foreach makes {many} as large as all trained parameters"
    if how in ("fused", "foreach"):
        return 0, f"{how} {setup.optimizer.name} works in place"
    if not most:
        return 0, f"{setup.optimizer.name} works in place"
    largest = max((param for param, _ in trained.kinds), key=lambda param: param.numel)
    count = len(_made_for(largest, setup, states_dtype_bytes))
    return most, f"{count} temporaries of the largest parameter"


def _most(trained: Params, setup: Setup, states_dtype_bytes: int | None) -> int:
    """The bytes of the largest of `temporary_lists`."""
    how = setup.optimizer.implementation
    if how == "loop" and _torch_adafactor(setup):  # the order of parameters matters
        return max(
            (sum(made) for made in temporary_lists(trained, setup, states_dtype_bytes)), default=0
        )
    sizes = [
        (param.numel * (states_dtype_bytes or param.dtype.nbytes), times)
        for param, times in trained.kinds
    ]
    if how in ("fused", "foreach"):
        return sum(size * times for size, times in sizes) * (
            _foreach_lists(setup) if how == "foreach" else 0
        )
    return max(
        (sum(_made_for(param, setup, states_dtype_bytes)) for param, _ in trained.kinds), default=0
    )


def temporary_lists(
    trained: Iterable[Param], setup: Setup, states_dtype_bytes: int | None
) -> tuple[tuple[int, ...], ...]:
    """Sizes of the temporaries in lists that step() allocates and frees one after the other. foreach has one list for
    all parameters; a loop has one list per parameter."""
    sizes = [param.numel * (states_dtype_bytes or param.dtype.nbytes) for param in trained]
    how = setup.optimizer.implementation
    if how == "foreach" and (lists := _foreach_lists(setup)):
        return (tuple(sizes * lists),)
    if how in ("fused", "foreach"):
        return ()
    if how == "loop" and _torch_adafactor(
        setup
    ):  # a variable holds one parameter's matrix until the next one is allocated
        return tuple(pairwise((0, *sizes)))
    return tuple(_made_for(param, setup, states_dtype_bytes) for param in trained)


def _made_for(param: Param, setup: Setup, states_dtype_bytes: int | None) -> tuple[int, ...]:
    """Temporaries of one parameter in a step that handles parameters one by one."""
    if _raises_to_fp32(setup) and param.dtype.nbytes < F32.nbytes:
        return (F32.nbytes * param.numel,) * RAISED_TENSORS
    size = param.numel * (states_dtype_bytes or param.dtype.nbytes)
    return (size,) * _tensors(setup)


def _foreach_lists(setup: Setup) -> int:
    """Lists of all parameters that a foreach step holds at once."""
    two = setup.optimizer.name in ("adam", "adamw") and setup.versions.torch < ONE_LIST_FROM
    return 2 if two else KNOWN[setup.optimizer.name].foreach_copies


def _tensors(setup: Setup) -> int:
    """Number of temporaries of one parameter in a step that handles parameters one by one."""
    optimizer = KNOWN[setup.optimizer.name]
    by_foreach = (
        setup.optimizer.implementation == "in-backward" and setup.versions.torch >= FOREACH_FROM
    )
    if by_foreach and (lists := _foreach_lists(setup)):
        return lists  # one optimizer per parameter, each stepping by foreach
    return 1 if _torch_adafactor(setup) else optimizer.loop_tensors


def _raises_to_fp32(setup: Setup) -> bool:
    """transformers' Adafactor (optimization.py) computes in fp32: copies of gradient and parameter, the squared
    gradient and its factored approximation are there together."""
    is_loop = setup.optimizer.implementation == "loop"
    return setup.optimizer.name == "adafactor" and is_loop and not _torch_adafactor(setup)


def _torch_adafactor(setup: Setup) -> bool:
    """torch.optim.Adafactor (since 2.5) allocates one matrix and works on it in place; transformers' allocates two."""
    own = setup.versions.framework in (
        "plain",
        "lightning",
        "accelerate",
    ) and setup.versions.torch >= (
        2,
        5,
    )
    return setup.optimizer.name == "adafactor" and own
