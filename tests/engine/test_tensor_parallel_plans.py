"""One tensor-parallel rank's parameters against the plan that transformers ships with each config (tp_plan="auto")."""

from __future__ import annotations

import re

import pytest
import torch
import transformers

from vramcast.engine.parallel.rank_model import rank_config, rank_regime
from vramcast.engine.parallel.topology import topology_of
from vramcast.job import Job
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.setup import resolve

TP = 2
FAMILIES = (
    "llama", "qwen2", "qwen3", "gemma2", "olmo", "granite", "smollm3", "cohere", "arcee", "cwm", "ernie4_5", "exaone4",
    "hyperclovax", "jais2", "ministral3", "nemotron", "seed_oss", "vaultgemma", "gpt_neox", "phi", "starcoder2",
)  # fmt: skip
SMALL = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip
AXIS = {"colwise": 0, "rowwise": 1}


def planned(config: transformers.PretrainedConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the real model, cut as its plan says. The vocabulary is left out: transformers does not cut it here."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    ends = (*model.get_input_embeddings().parameters(), *model.get_output_embeddings().parameters())
    shapes = {}
    for name, parameter in model.named_parameters():
        shape = list(parameter.shape)
        axis = AXIS.get(_way(config, name.removeprefix(f"{model.base_model_prefix}.")) or "")
        if axis is not None and axis < len(shape):
            shape[axis] //= TP
        if not any(parameter is end for end in ends):
            shapes[name] = tuple(shape)
    return shapes


def _way(config: transformers.PretrainedConfig, name: str) -> str | None:
    for pattern, how in config.base_model_tp_plan.items():
        if re.fullmatch(
            pattern.replace(".", r"\.").replace("*", r"\d+") + r"\.(weight|bias)", name
        ):
            return str(how)
    return None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_holds_what_transformers_plan_gives_it(family: str) -> None:
    real = transformers.AutoConfig.for_model(family, **SMALL)
    config = Config({**real.to_dict(), "model_type": family}, family)
    job = Job(model="gpt2", gpus=TP, tp=TP)
    topology = topology_of(resolve(job))
    program = record(
        rank_config(config, topology, resolve(job)),
        rank_regime(resolve(job), config, None, topology),
        Sizes(batch=1, seq=16),
    )
    ours = {param.name: tuple(int(size) for size in param.shape) for param in program.params()}
    expected = planned(real)
    assert any(how in AXIS for how in real.base_model_tp_plan.values())
    assert {name: ours[name] for name in expected} == expected
