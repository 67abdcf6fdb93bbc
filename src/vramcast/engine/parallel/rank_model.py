"""One rank's model: the config with its divided sizes, the regime with its seams, and the sections of its stage.

In come the job, the model's config and a Topology; out comes a Program that records exactly what the rank runs. Tensor
parallelism is Megatron's: columns of qkv and gate/up, rows of the output projections, the vocabulary of embedding and
head. Knows nothing about states or buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

from vramcast.catalog.gpus import Gpu
from vramcast.engine.parallel.topology import GATHERING, Topology, expert_load
from vramcast.engine.recording.regime import regime_of
from vramcast.errors import InputError, UnsupportedError
from vramcast.models.families.megatron_types import DESCRIBED as MEGATRON
from vramcast.models.read.config import Config
from vramcast.models.record.dims import Dim, ceil_to
from vramcast.models.record.program import Program, Sizes
from vramcast.models.record.tape import Op, PlacedSection, Regime, Split, Tape
from vramcast.setup import Setup
from vramcast.setup.records import Parallel

DIVIDED = (
    "llama",
    "mistral",
    "ministral",
    "qwen2",
    "qwen3",
    "phi3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "olmo",
    "olmo2",
    "olmo3",
    "glm",
    "glm4",
    "granite",
    "smollm3",
    "cohere",
    "cohere2",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "phimoe",
    "olmoe",
    "gpt_oss",
    "arcee",
    "cwm",
    "ernie4_5",
    "exaone4",
    "hyperclovax",
    "jais2",
    "ministral3",
    "nemotron",
    "seed_oss",
    "vaultgemma",
    "gpt_neox",
    "phi",
    "starcoder2",
)
INNER = ("intermediate_size", "shared_expert_intermediate_size")
EXPERTS_ONLY = (
    "mixtral",
    "phimoe",
    "olmoe",
    "gpt_oss",
)  # their intermediate_size is the experts', divided by expert-tp


def rank_config(config: Config, topology: Topology, setup: Setup) -> Config:
    """The config that one tensor-parallel rank would be built from."""
    vocab = padded_vocab(config, topology, setup.parallel)
    if setup.versions.framework == "megatron" and config.model_type in MEGATRON:
        padded = vocab or int(config.dim("vocab_size", "V"))
        return Config({**config.data, "vocab_size": padded // topology.tp}, config.where)
    if topology.tp == 1:
        return (
            config if vocab is None else Config({**config.data, "vocab_size": vocab}, config.where)
        )
    if config.model_type not in DIVIDED:
        raise UnsupportedError(
            f"{config.where}: tensor parallelism of model_type {config.model_type!r} is not described. "
            f"Known: {', '.join(DIVIDED)}; with --framework megatron: {', '.join(MEGATRON)}. "
            "Or run the script itself: vramcast trace train.py --gpus N --rank 0"
        )
    tp, data = topology.tp, dict(config.data)
    heads = int(config.dim("num_attention_heads", "a"))
    kv = int(config.dim("num_key_value_heads", "g", default=heads))
    data["head_dim"] = data.get("head_dim") or int(config.dim("hidden_size", "h")) // heads
    data["num_attention_heads"], data["num_key_value_heads"] = heads // tp, max(kv // tp, 1)
    for name in INNER:
        if isinstance(data.get(name), int) and config.model_type not in EXPERTS_ONLY:
            data[name] = _divided(data[name], tp, f"{config.where}: {name}")
    data["vocab_size"] = (vocab or int(config.dim("vocab_size", "V"))) // tp
    return Config(data, config.where)


def _divided(size: int, tp: int, what: str) -> int:
    if size % tp:
        raise InputError(f"{what} {size} does not divide by tp {tp}")
    return size // tp


def padded_vocab(config: Config, topology: Topology, parallel: Parallel) -> int | None:
    """Megatron pads to 128 × tp; others must come out even. None: as it is."""
    multiple = parallel.vocab_multiple
    if not isinstance(config.data.get("vocab_size"), int):
        return None
    padded = int(ceil_to(int(config.data["vocab_size"]), multiple * topology.tp))
    return padded if padded != config.data["vocab_size"] else None


def rank_regime(setup: Setup, config: Config, gpu: Gpu | None, topology: Topology) -> Regime:
    """FSDP's mixed precision computes in 16 bit with 16-bit weights, adapters among them: there is nothing left for
    autocast to copy, and PEFT casts no input to fp32 adapters."""
    regime = replace(regime_of(setup, config, gpu), split=split_of(setup, topology))
    if topology.strategy in GATHERING:
        # Flat parameters hold one dtype: what kbit training raises to fp32 on one GPU stays 16-bit here.
        regime = replace(regime, upcast=lambda name, kind: False)
    compute = setup.precision.autocast
    if topology.strategy in ("fsdp1", "fsdp2") and compute is not None:
        # These wrap forward in autocast as well; accelerate's _prepare_fsdp2 does not.
        libraries: tuple[str, ...] = ("hf", "trl", "accelerate", "lightning")
        if topology.strategy == "fsdp2":
            libraries = ("lightning",)
        lora = regime.lora and replace(regime.lora, dtype=compute)
        return replace(
            regime,
            weights=compute,
            frozen=None,
            autocast=compute if setup.versions.framework in libraries else None,
            lora=lora,
        )
    return regime


def split_of(setup: Setup, topology: Topology) -> Split:
    sequence = setup.parallel.sequence_parallel
    if setup.adapter.kind is not None and sequence and topology.tp > 1:
        raise UnsupportedError(
            "adapters under sequence parallelism are not described: give --no-sequence-parallel"
        )
    return Split(
        tp=topology.tp,
        sequence_parallel=sequence and topology.tp > 1,
        keeps_gathered=setup.versions.framework != "megatron",
        vocab_logits=setup.parallel.loss_parallel,
        cp=topology.cp,
        cp_style=setup.parallel.cp_style,
        ep=topology.ep,
        expert_tp=topology.expert_tp,
        expert_load=expert_load(setup.experts),
    )


def rank_sizes(sizes: Sizes, topology: Topology, split: Split) -> Sizes:
    """Context parallelism divides the sequence; sequence parallelism needs it to divide by tp once more."""
    seq, parts = sizes.seq, topology.cp * (split.tp if split.sequence_parallel else 1)
    if not isinstance(seq, int):  # a grid of lengths
        return replace(sizes, seq=seq // topology.cp)
    if seq % parts:
        raise InputError(
            f"seq {seq} does not divide by {parts} (cp {topology.cp}, sequence-parallel tp {split.tp})"
        )
    if topology.cp == 1:
        return sizes
    return replace(sizes, seq=Dim(int(seq) // topology.cp, "s/cp"))


# ---- pipeline stages


def layers_of_stages(layers: int, stages: int, setup: Setup) -> list[int]:
    """How many layers each stage gets. Embedding and head count as a layer each where that makes stages even."""
    if setup.parallel.stage_layers:
        return _given_stages(layers, stages, setup.parallel)
    if (
        setup.parallel.first_stage_layers is not None
        or setup.parallel.last_stage_layers is not None
    ):
        return _given_ends(layers, stages, setup.parallel)
    ends_count = setup.versions.framework == "torchtitan" or (
        layers % stages and (layers + 2) % stages == 0
    )
    total = layers + 2 if ends_count and stages > 1 else layers
    counts = [total // stages + (index < total % stages) for index in range(stages)]
    if ends_count and stages > 1:
        counts[0], counts[-1] = counts[0] - 1, counts[-1] - 1
    return counts


def _given_stages(layers: int, stages: int, parallel: Parallel) -> list[int]:
    if parallel.first_stage_layers is not None or parallel.last_stage_layers is not None:
        raise InputError(
            "stage-layers names every stage: leave out first-stage-layers and last-stage-layers"
        )
    if not all(number.isdecimal() for number in parallel.stage_layers):
        raise InputError(
            f"stage-layers must be whole numbers, not {', '.join(parallel.stage_layers)}"
        )
    counts = [int(number) for number in parallel.stage_layers]
    if len(counts) != stages or sum(counts) != layers:
        raise InputError(
            f"stage-layers has {len(counts)} stages of {sum(counts)} layers in all. "
            f"Give {stages} (pp × virtual-stages) that add up to {layers}."
        )
    return counts


def _given_ends(layers: int, stages: int, parallel: Parallel) -> list[int]:
    first, last = parallel.first_stage_layers, parallel.last_stage_layers
    left = layers - (first or 0) - (last or 0)
    middle = stages - (first is not None) - (last is not None)
    if left < 0 or (middle == 0 and left) or (middle and left % middle):
        raise InputError(
            f"{left} layers do not divide by the {middle} stages between first-stage-layers and last-stage-layers"
        )
    inner = [left // middle] * middle if middle else []
    return [*([first] if first is not None else []), *inner, *([last] if last is not None else [])]


def stage_program(program: Program, stages: list[int], which: tuple[int, ...]) -> Program:
    """The sections of one rank: those of stages `which` (several when interleaved). A stage that does not begin the
    model gets its input from another rank, and backward hands a gradient on."""
    return program.once(
        (stage_program, *stages, which), lambda: _stage_program(program, stages, which)
    )


def _stage_program(program: Program, stages: list[int], which: tuple[int, ...]) -> Program:
    blocks = [index for index, placed in enumerate(program.sections) if placed.section.is_block]
    first, last = blocks[0], blocks[-1]
    between = [
        placed.name for placed in program.sections[first:last] if not placed.section.is_block
    ]
    if between:
        raise UnsupportedError(
            f"stages are cut from one stack of layers; this model has {', '.join(between)} between two: take pp 1"
        )
    starts = [sum(stages[:index]) for index in range(len(stages) + 1)]
    chosen: list[PlacedSection] = []
    if 0 in which:
        chosen += program.sections[:first]
    else:
        chosen.append(_received(program.sections[blocks[starts[which[0]]]]))
    for stage in which:
        chosen += [program.sections[index] for index in blocks[starts[stage] : starts[stage + 1]]]
    if len(stages) - 1 in which:
        behind = program.sections[last + 1 :]
        chosen += behind if 0 in which else _untied(behind, program)
    tape = copy.copy(program.tape)
    tape.sections = chosen
    return replace(program, tape=tape)


def _untied(behind: list[PlacedSection], program: Program) -> Iterator[PlacedSection]:
    """What is tied to an embedding on another stage has one copy here, which all sections behind the layers share. Its
    own gradient comes of it, not a share of the embedding's."""
    originals = {param.name: param for param in program.params()}
    here = {
        param.name for placed in behind for param in placed.section.params if param.tied_to is None
    }
    for placed in behind:
        section = copy.copy(placed.section)
        section.params = []
        for param in placed.section.params:
            apart = param.tied_to is not None and param.tied_to not in here
            section.params.append(originals[param.tied_to] if apart and param.tied_to else param)
            here.add(param.tied_to or param.name)
        yield PlacedSection(section, placed.index)


def _received(block: PlacedSection) -> PlacedSection:
    """What the stage before sends: a tensor like the block's input, kept as any activation."""
    entry = block.section.inputs[0]
    tape = Tape(Regime())
    start = tape.input("signal", (), entry.dtype)
    with tape.section("received", start) as section:
        section.ops.append(Op(name="receive", module="pipeline", inputs=(start,), output=entry))
        section.outputs = (entry,)
    return tape.sections[0]
