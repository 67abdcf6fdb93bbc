"""Weights of one rank, as vLLM, SGLang and TGI hold them: by format, divided over tp, by pipeline stage.

attention and MLP     1 / tp
keys and values       1 / tp, or one head each where there are more ranks than heads
embedding and head    1 / tp of a vocabulary padded to 64; on the first and the last stage
experts               1 / tp, or whole experts over ep ranks: the same bytes
norms, routers,       on every rank
latent down-projections
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vramcast.engine.serving.adapters import adapter_bytes, embedding_adapter_bytes
from vramcast.engine.serving.cache import split_layers
from vramcast.engine.serving.quantisation import Rule, rule_of
from vramcast.engine.serving.request import Request
from vramcast.models.record.tape import Param
from vramcast.units import round_up

VOCABULARY_MULTIPLE = 64  # vllm/model_executor/layers/vocab_parallel_embedding.py
# mxfp4.py mxfp4_round_up_hidden_size_and_intermediate_size: tiles of the kernels.
MXFP4_HIDDEN, MXFP4_INNER = 256, 128
REPLICATED = re.compile(
    r"(^|\.)(q_a_proj|kv_a_proj_with_mqa|gate|router|shared_expert_gate|indexer\.\w+)(\.|$)"
)
KEYS_VALUES = re.compile(r"(^|\.)(k_proj|v_proj|wk|wv)(\.|$)")
# Learned positions, slopes, or none.
WITHOUT_ROTATION = (
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "opt",
    "bloom",
    "mpt",
    "mamba",
    "mamba2",
    "falcon_mamba",
)
LAYER = re.compile(r"(^|\.)(layers|h|blocks|layer)\.(\d+)\.")
ADAPTERS = "room for LoRA adapters"
VISION = re.compile(r"vision|visual|image|audio|patch|projector|mlp1|connector")
HEAD = re.compile(r"(^|\.)(lm_head|output_layer|embed_out)(\.|$)")
EMBEDDING = re.compile(r"(embed_tokens|wte|word_embeddings|embedding|tok_embeddings|embed_in)\b")


@dataclass(slots=True, kw_only=True)
class WeightLine:
    """Weights of one kind on one rank."""

    component: str
    nbytes: int = 0
    numel: int = 0  # of the whole model
    formats: dict[str, int] | None = None

    def formula(self, tp: int) -> str:
        how = ", ".join(f"{name} {numel:,}" for name, numel in (self.formats or {}).items())
        over = f" over {tp} ranks" if tp > 1 else ""
        return f"{how}{over}"


def weight_lines(request: Request) -> list[list[WeightLine]]:
    """For every pipeline stage, its weights by kind."""
    rule = rule_of(request)
    stages: list[dict[str, WeightLine]] = [{} for _ in range(request.pp)]
    stage_of = _stage_of_layers(request)
    params = [param for param in request.source.table() if param.tied_to is None]
    for param in params:
        part = _part_of(param)
        nbytes, name = _bytes_on_rank(param, part, rule, request)
        for stage in _stages_of(param, part, stage_of, request, params):
            line = stages[stage].setdefault(part, WeightLine(component=part, formats={}))
            line.nbytes += nbytes
            line.numel += int(param.numel)
            assert line.formats is not None
            line.formats[name] = line.formats.get(name, 0) + int(param.numel)
    _add_absorbed(request, stages, stage_of)
    if request.job.max_lora_rank is not None:
        _add_adapters(request, stages, stage_of)
    for lines in stages:
        _add_rotary_table(request, lines)
    return [list(stage.values()) for stage in stages]


def _stage_of_layers(request: Request) -> list[int]:
    return [
        stage
        for stage, count in enumerate(split_layers(request.layers, request.pp))
        for _ in range(count)
    ]


def _part_of(param: Param) -> str:
    name = param.name
    if VISION.search(name) and "embed_tokens" not in name:
        return "vision and audio"
    if HEAD.search(name) or param.kind == "head":
        return "output head"
    if param.kind == "embedding" or EMBEDDING.search(name):
        return "embedding"
    if "expert" in name and "shared" not in name and len(param.shape) > 1:
        return "experts"
    if param.kind in ("linear", "conv", "experts") and re.search(r"attn|attention|mixer", name):
        return "attention"
    if param.kind == "linear":
        return "MLP"
    return "norms, biases and routers"


def _stages_of(
    param: Param, part: str, stage_of: list[int], request: Request, params: Iterable[Param]
) -> tuple[int, ...]:
    """A tied head is the embedding once more on the last stage."""
    last = request.pp - 1
    match = LAYER.search(param.name)
    if match is not None and part != "vision and audio":
        return (stage_of[min(int(match[3]), len(stage_of) - 1)],)
    if part == "embedding":
        has_head = any(_part_of(other) == "output head" for other in params)
        return (0,) if last == 0 or has_head else (0, last)
    return (0,) if part == "vision and audio" else (last,)


def _bytes_on_rank(param: Param, part: str, rule: Rule | None, request: Request) -> tuple[int, str]:
    """Bytes on one rank, and the name of their format."""
    numel = int(param.numel)
    whole = request.dtype_bytes * numel
    name = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[request.dtype]
    if part in ("embedding", "output head") and len(param.shape) == 2:
        rows = round_up(int(param.shape[0]), VOCABULARY_MULTIPLE)
        return rows // request.tp * int(param.shape[1]) * request.dtype_bytes, name
    if rule is not None and len(param.shape) > 1 and rule.applies(param.name, param.kind):
        whole, name = rule.format.bytes_of(_padded(param, rule, request)), rule.format.name
    return round(whole * _share(param, part, request)), name


def _padded(param: Param, rule: Rule, request: Request) -> int:
    """Elements with what the kernels' tiles add."""
    numel = int(param.numel)
    if rule.format.name != "mxfp4" or request.engine != "vllm":
        return numel
    config, hidden = request.text, request.hidden
    inner = int(config.dim("moe_intermediate_size", "i", "intermediate_size"))
    if hidden not in map(int, param.shape):
        return numel
    part = max(inner // max(request.tp, request.job.ep), 1)
    wider = round_up(part, MXFP4_INNER) / part * round_up(hidden, MXFP4_HIDDEN) / hidden
    return round(numel * wider)


def _share(param: Param, part: str, request: Request) -> float:
    tp = request.tp
    if tp == 1 and request.job.ep == 1:
        return 1.0
    if part == "experts":
        return 1 / max(tp, request.job.ep)
    if len(param.shape) == 1 or param.kind == "router" or REPLICATED.search(param.name):
        return 1.0
    if KEYS_VALUES.search(param.name) and part == "attention":
        heads = int(request.text.dim("num_key_value_heads", "k", default=tp))
        return max(1, heads // tp) / heads
    return 1 / tp


def _add_absorbed(
    request: Request, stages: list[dict[str, WeightLine]], stage_of: list[int]
) -> None:
    """vllm/v1/attention/backends/mla/common.py process_weights_after_loading: W_UV and W_UK_T, copies of kv_b_proj in
    the model's dtype, are kept beside it."""
    if not request.text.data.get("kv_lora_rank"):
        return
    for param in request.source.table():
        match = LAYER.search(param.name)
        if "kv_b_proj" in param.name and len(param.shape) == 2 and match is not None:
            stage = stages[stage_of[min(int(match[3]), len(stage_of) - 1)]]
            component = "copies of kv_b_proj for latent attention"
            line = stage.setdefault(component, WeightLine(component=component, formats={}))
            line.nbytes += int(param.numel) * request.dtype_bytes // request.tp


def _add_adapters(
    request: Request, stages: list[dict[str, WeightLine]], stage_of: list[int]
) -> None:
    """Room for adapters of every linear layer of the decoder, and beside embedding and head."""
    lines = [WeightLine(component=ADAPTERS, formats={}) for _ in stages]
    params = request.source.table()
    for param in params:
        match = LAYER.search(param.name)
        kind = _part_of(param)
        if match is None or kind not in ("attention", "MLP") or REPLICATED.search(param.name):
            continue
        stage = stage_of[min(int(match[3]), len(stage_of) - 1)]
        lines[stage].nbytes += adapter_bytes(request, param)
        lines[stage].numel += int(param.numel)
    is_tied = not any(
        param.tied_to is None and _part_of(param) == "output head" for param in params
    )
    lines[0].nbytes += embedding_adapter_bytes(request, is_tied=is_tied)
    for stage_lines, line in zip(stages, lines, strict=True):
        stage_lines[ADAPTERS] = line


def _add_rotary_table(request: Request, stage: dict[str, WeightLine]) -> None:
    """vllm/model_executor/layers/rotary_embedding: sines and cosines of all positions, one table for all layers."""
    config = request.text
    if config.model_type in WITHOUT_ROTATION:
        return
    width = config.data.get("qk_rope_head_dim") or config.data.get("head_dim")
    if not isinstance(width, int):
        width = request.hidden // int(config.dim("num_attention_heads", "n"))
    share = config.number("partial_rotary_factor", 1.0)
    component = "table of rotary positions"
    line = WeightLine(component=component, formats={})
    line.nbytes = request.longest * round(width * share) * request.dtype_bytes
    stage[component] = line
