"""Bytes autograd holds of one real layer on the CPU, byte for byte what the description says: further decoders,
routed experts (grouped and looped), vision towers, convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from configs import config, shallow
from held import held_bytes
from real import real_model

from vramcast.engine.stream.saved_tensors import kept_bytes
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import BF16, F32, Regime

PRECISIONS = ["fp32", "bf16-mixed", "bf16-true"]
BATCH, SEQ = 2, 27


@dataclass(frozen=True, slots=True)
class Row:
    config: str
    layers: tuple[str, ...] = ("model.layers.0",)
    changes: Mapping[str, Any] = field(default_factory=dict)
    depth: int = 1
    side: int = 0  # of a picture
    sizes: Sizes = field(default_factory=lambda: Sizes(batch=BATCH, seq=SEQ))

    @property
    def data(self) -> dict[str, Any]:
        data = shallow(config(self.config), self.depth)
        nested = {
            key: {**data[key], **value}
            for key, value in self.changes.items()
            if isinstance(value, dict)
        }
        return {**data, **self.changes, **nested}

    def __str__(self) -> str:
        return self.config


def check(
    row: Row, precision: str, attention: str, experts: str = "grouped", inputs: Any = None
) -> None:
    regime = Regime(
        weights=BF16 if precision == "bf16-true" else F32, autocast=BF16 if precision == "bf16-mixed" else None,
        attention="eager" if attention == "eager" else "flash", experts=experts, cuda=False,
    )  # fmt: skip
    model = real_model(row.data, precision=precision, attention=attention)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("grouped_mm" if experts == "grouped" else "eager")
    given = inputs or {"input_ids": torch.ones(BATCH, SEQ, dtype=torch.long)}
    given = {key: x.to(model.dtype) if x.is_floating_point() else x for key, x in given.items()}
    sections = {
        placed.name: placed.section
        for placed in record(Config(row.data), regime, row.sizes).sections
    }
    ours = {name: int(kept_bytes(sections[name])) for name in row.layers}
    assert ours == held_bytes(model, row.layers, given, precision)


NARROW = {
    "hidden_size": 1024,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
DENSE = (
    Row("gemma-2b"),
    Row("gemma-3-270m"),
    Row("olmo-1b"),
    Row("olmo-7b-0424", changes=NARROW),
    Row("olmo-2-7b", changes=NARROW),
    Row("olmo-3-7b", changes=NARROW),
    Row("chatglm3-6b", changes={**NARROW, "head_dim": 128}),
    Row("glm-4-9b-0414", changes={**NARROW, "head_dim": 128}),
    Row("granite-3.0-2b"),
    Row("smollm3-3b", ("model.layers.0", "model.layers.1"), {"no_rope_layers": [1, 0]}, depth=2),
    Row("command-r-plus", changes=NARROW),
    Row(
        "command-r7b",
        ("model.layers.0", "model.layers.1"),
        {**NARROW, "sliding_window_pattern": 2},
        depth=2,
    ),
    Row("ministral", changes=NARROW),
)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("row", DENSE, ids=str)
def test_a_dense_decoder_layer(row: Row, attention: str, precision: str) -> None:
    check(row, precision, attention)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_capped_layer_is_eager(precision: str) -> None:
    check(Row("gemma-2-2b"), precision, "eager")


ROUTED = (
    Row("mixtral-8x7b", changes={**NARROW, "num_local_experts": 4, "router_jitter_noise": 0.1}),
    Row("qwen1.5-moe-a2.7b", ("model.layers.0", "model.layers.1"), {"num_experts": 6, "mlp_only_layers": [1]}, depth=2),
    Row("qwen3-30b-a3b", changes={"num_experts": 9}),
    Row("phi-3.5-moe", changes={**NARROW, "num_local_experts": 4}),
    Row("olmoe-1b-7b", changes={"num_experts": 9, "clip_qkv": 4.0, "norm_topk_prob": True}),
    Row("deepseek-v2-lite", ("model.layers.1",), {"n_routed_experts": 8, "num_experts_per_tok": 3}, depth=2),
    Row(
        "deepseek-v2-lite", ("model.layers.1",), {"n_routed_experts": 8, "topk_method": "group_limited_greedy",
        "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "q_lora_rank": 256}, depth=2,
    ),
    Row(
        "deepseek-v3", ("model.layers.0", "model.layers.1"), {"hidden_size": 1024, "intermediate_size": 1536,
        "moe_intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8, "n_routed_experts": 8,
        "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "first_k_dense_replace": 1,
        "quantization_config": None}, depth=2,
    ),
)  # fmt: skip


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("experts", ["grouped", "loop"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("row", ROUTED, ids=str)
def test_a_layer_with_routed_experts(
    row: Row, attention: str, experts: str, precision: str
) -> None:
    torch.manual_seed(0)
    check(row, precision, attention, experts)


@pytest.mark.parametrize("experts", ["grouped", "loop"])
def test_what_one_layer_turns_to_fp32_the_next_one_is_given(experts: str) -> None:
    """16-bit weights under CUDA's autocast: a norm answers in fp32, and experts as the norm before them did."""
    row = Row("phi-3.5-moe", changes={**NARROW, "num_local_experts": 4}, depth=4)
    regime = Regime(weights=BF16, autocast=BF16, attention="flash", experts=experts)
    layers = [
        placed.section
        for placed in record(Config(row.data), regime, row.sizes).sections
        if placed.section.is_block
    ]
    assert [layer.inputs[0].dtype for layer in layers] == [BF16, F32, F32, F32]
    assert len(set(map(id, layers))) == 2


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("experts", ["grouped", "loop"])
def test_attention_with_sinks_and_experts_with_biases(experts: str, precision: str) -> None:
    changes = {
        "hidden_size": 1024,
        "intermediate_size": 1024,
        "num_local_experts": 4,
        "layer_types": ["full_attention"],
    }
    check(Row("gpt-oss-20b", changes=changes), precision, "eager", experts)


CLIP_LAYERS = ("vision_model.encoder.layers.0", "text_model.encoder.layers.0")
PICTURES = (
    Row("vit-base-patch16-224", ("vit.layers.0",), {"hidden_dropout_prob": 0.1}, side=224),
    Row("deit-base", ("deit.layers.0",), {"image_size": 64}, side=64),
    Row("dinov2-base", ("dinov2.encoder.layer.0",), {"image_size": 56, "drop_path_rate": 0.1}, side=56),
    Row("dinov2-giant", ("encoder.layer.0",), {"image_size": 56}, side=56),
    Row("clip-vit-large-patch14", CLIP_LAYERS, {"vision_config": {"image_size": 56}}, side=56),
    Row("siglip-base-patch16-224", CLIP_LAYERS, {"vision_config": {"image_size": 64, "num_hidden_layers": 1},
        "text_config": {"num_hidden_layers": 1}}, side=64),
)  # fmt: skip


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("row", PICTURES, ids=str)
def test_a_layer_of_a_vision_tower(row: Row, attention: str, precision: str) -> None:
    inputs = {"pixel_values": torch.ones(BATCH, 3, row.side, row.side)}
    if len(row.layers) == 2:
        inputs["input_ids"] = torch.ones(BATCH, SEQ, dtype=torch.long)
    check(row, precision, attention, inputs=inputs)


STAGES = (
    "resnet.encoder.stages.0.layers.0",
    "resnet.encoder.stages.1.layers.0",
    "resnet.encoder.stages.1.layers.1",
)
CONVOLUTIONS = (
    Row("resnet-18", STAGES),
    Row("resnet-50", STAGES),
    Row(
        "convnext-tiny",
        ("convnext.encoder.stages.0.layers.0", "convnext.encoder.stages.3.layers.1"),
    ),
)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize("row", CONVOLUTIONS, ids=str)
def test_a_layer_of_convolutions(row: Row, precision: str) -> None:
    """Not in bf16-true: there the statistics of a batch norm look like copies of its weight."""
    check(row, precision, "eager", inputs={"pixel_values": torch.ones(BATCH, 3, 224, 224)})


TEXT = {
    "hidden_size": 256,
    "intermediate_size": 304,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}}
IDS = {
    "image_token_id": 99,
    "video_token_id": 98,
    "vision_start_token_id": 97,
    "vision_end_token_id": 96,
}
SEEING = (
    Row(
        "gemma-3-12b", ("model.vision_tower.encoder.layers.0", "model.language_model.layers.0"),
        {"text_config": {**TEXT, "head_dim": 64}, "vision_config": {"image_size": 112}, "mm_tokens_per_image": 16,
         "image_token_index": 99}, side=112,
    ),
    Row(
        "llava-1.5-7b", ("model.vision_tower.encoder.layers.0", "model.multi_modal_projector",
                         "model.language_model.layers.0"),
        {"text_config": {**TEXT, "num_hidden_layers": 1, "vocab_size": 1000}, "vision_config": {"image_size": 56},
         "image_token_index": 99, "pad_token_id": 0, "vision_feature_layer": -1}, side=56,
    ),
)  # fmt: skip
BLOCKS = (
    "model.visual.blocks.0",
    "model.visual.blocks.1",
    "model.visual.merger",
    "model.language_model.layers.0",
)
PACKED = (
    Row(
        "qwen2-vl-2b", BLOCKS, {**TEXT, **ROPE, **IDS, "vision_config": {"depth": 2, "hidden_size": 256}},
        sizes=Sizes(batch=BATCH, seq=91, image_tokens=64),
    ),
    Row(
        "qwen2.5-vl-7b", BLOCKS, {**TEXT, **ROPE, **IDS,
        "vision_config": {"depth": 2, "out_hidden_size": 256, "fullatt_block_indexes": [1]}},
        sizes=Sizes(batch=BATCH, seq=91, image_tokens=64),
    ),
)  # fmt: skip


def prompt(image_tokens: int, total: int) -> torch.Tensor:
    ids = torch.ones(BATCH, total, dtype=torch.long)
    ids[:, 2 : 2 + image_tokens] = 99
    return ids


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("row", SEEING, ids=str)
def test_a_language_model_with_a_fixed_picture(row: Row, attention: str, precision: str) -> None:
    inputs = {
        "input_ids": prompt(16, SEQ),
        "pixel_values": torch.ones(BATCH, 3, row.side, row.side),
    }
    if (
        row.config == "gemma-3-12b"
    ):  # its processor tells pictures from text, and training asks for it
        inputs["token_type_ids"] = (inputs["input_ids"] == 99).long()
    check(row, precision, attention, inputs=inputs)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("row", PACKED, ids=str)
def test_a_language_model_with_packed_patches(row: Row, attention: str, precision: str) -> None:
    ids = prompt(64, 91)
    inputs = {
        "input_ids": ids, "pixel_values": torch.ones(BATCH * 256, 1176), "mm_token_type_ids": (ids == 99).int(),
        "image_grid_thw": torch.tensor([[1, 16, 16]] * BATCH),
    }  # fmt: skip
    check(row, precision, attention, inputs=inputs)


def test_layers_behind_the_features_llava_reads_keep_nothing() -> None:
    row = replace(SEEING[1], changes={**SEEING[1].changes, "vision_feature_layer": -2}, depth=2)
    program = record(Config(row.data), Regime(), row.sizes)
    kept = {
        placed.name: int(kept_bytes(placed.section))
        for placed in program.sections
        if "vision_tower" in placed.name
    }
    assert kept["model.vision_tower.encoder.layers.0"] > 0
    assert kept["model.vision_tower.encoder.layers.1"] == kept["model.vision_tower.norm"] == 0
