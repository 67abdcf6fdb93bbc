"""Heads on further decoders, configs whose code is on the Hub, grids of sizes, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from configs import CATALOG_NAMES, OTHERS, config
from test_parameters import ours, theirs

from vramcast.engine.stream.saved_tensors import kept_bytes
from vramcast.errors import InputError, UnsupportedError
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import BF16, Regime

HEADS = [
    ("llama-3.2-1b", "Llama", "Model SequenceClassification TokenClassification QuestionAnswering"),
    ("mistral-7b-v0.3", "Mistral", "Model SequenceClassification QuestionAnswering"),
    ("qwen2.5-0.5b", "Qwen2", "Model SequenceClassification TokenClassification QuestionAnswering"),
    ("gemma-2-2b", "Gemma2", "Model SequenceClassification TokenClassification"),
    ("qwen3-30b-a3b", "Qwen3Moe", "Model SequenceClassification QuestionAnswering"),
    ("mixtral-8x7b", "Mixtral", "Model QuestionAnswering"),
    ("deepseek-v2-lite", "DeepseekV2", "Model SequenceClassification"),
    ("gpt-oss-20b", "GptOss", "Model TokenClassification"),
    ("vit-base-patch16-224", "ViT", "Model"),
    ("deit-base", "DeiT", "Model"),
    ("clip-vit-large-patch14", "CLIP", "ImageClassification"),
    ("clip-vit-base-patch32-text", "CLIPText", "Model"),
    ("resnet-50", "ResNet", "Model"),
    ("convnext-tiny", "ConvNext", "Model"),
]
CLASSES = [
    (name, f"{family}{'' if head.endswith('Model') else 'For'}{head}")
    for name, family, heads in HEADS
    for head in heads.split()
]


@pytest.mark.parametrize(("name", "architecture"), CLASSES)
def test_the_head_follows_the_class_in_architectures(name: str, architecture: str) -> None:
    data = config(
        name, architectures=[architecture], num_labels=2 if "Question" in architecture else 5
    )
    assert ours(data) == theirs(data)


LLAVA = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
NESTED: list[dict[str, Any]] = [
    LLAVA,
    {**LLAVA, "vision_feature_layer": 3, "multimodal_projector_bias": False},
    {**LLAVA, "text_config": {"model_type": "mistral"}, "vision_config": {"model_type": "siglip_vision_model",
     "vision_use_head": False, "hidden_size": 384, "num_attention_heads": 6}},
    {**LLAVA, "text_config": {"model_type": "qwen2", "tie_word_embeddings": True}},
    {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
     "vision_config": {"vision_use_head": False}},
    {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"], "text_config": {
     "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}, "vision_config": {"hidden_size": 256}},
    {"model_type": "clip", "architectures": ["CLIPModel"]},
]  # fmt: skip


@pytest.mark.parametrize("data", NESTED, ids=[str(index) for index in range(len(NESTED))])
def test_absent_keys_take_the_defaults_of_the_nested_classes(data: dict[str, Any]) -> None:
    assert ours(data) == theirs(data)


HUB_CODE = [
    (
        {"model_type": "internlm2", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 92544, "bias": False},
        7_737_708_544, ("model.layers.31.attention.wqkv.weight", (6144, 4096)), "internlm2.5-7b",
    ),
    (
        {"model_type": "baichuan", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "vocab_size": 125696, "max_position_embeddings": 4096},
        7_505_973_248, ("model.layers.0.self_attn.W_pack.weight", (12288, 4096)), "baichuan2-7b",
    ),
    (
        {"model_type": "chatglm", "architectures": ["ChatGLMModel"], "hidden_size": 4096, "ffn_hidden_size": 13696,
         "num_layers": 28, "num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2,
         "kv_channels": 128, "padded_vocab_size": 65024, "add_qkv_bias": True, "add_bias_linear": False},
        6_243_584_000, ("transformer.encoder.layers.0.self_attention.query_key_value.bias", (4608,)), "chatglm3-6b",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "total", "tensor", "stand_in"), HUB_CODE, ids=[row[3] for row in HUB_CODE]
)
def test_code_on_the_hub(
    data: dict[str, Any], total: int, tensor: tuple[str, Any], stand_in: str
) -> None:
    """The published totals; and as many elements as the catalog's stand-in in a form transformers can build."""
    table = {
        p.name: tuple(int(n) for n in p.shape)
        for p in record(Config(data), Regime(), Sizes()).params()
    }
    assert table[tensor[0]] == tensor[1]
    for config_data in (data, config(stand_in)):
        program = record(Config(config_data), Regime(), Sizes())
        assert sum(param.numel for param in program.params()) == total


REFUSED = [
    (config("mixtral-8x7b", num_experts_per_tok=9), "9 is more than the 8 experts"),
    (config("deepseek-v3", n_group=7), "n_routed_experts by n_group: 256 does not divide by 7"),
    (config("vit-base-patch16-224", num_attention_heads=5), "768 does not divide by 5"),
    (config("vit-base-patch16-224", patch_size=500), "holds no patch"),
    (config("vit-base-patch16-224", image_size=[1, 2, 3]), "one size or two"),
    (config("resnet-50", depths=[1, 2]), "depths has 2 stages and hidden_sizes 4"),
    (
        config("llava-1.5-7b", vision_feature_layer=99),
        "vision_feature_layer must be one layer of 24, not 99",
    ),
    (config("gemma-3-12b", text_config=7), "text_config must be an object"),
    (config("qwen2-vl-2b", vision_config={"num_heads": 7}), "does not divide by 7"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_is_refused_by_name(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        record(Config(data), Regime(), Sizes())


def test_text_models_inside_that_are_not_described_are_named() -> None:
    with pytest.raises(UnsupportedError, match=r"mamba.*Known: .*llama"):
        record(Config({**LLAVA, "text_config": {"model_type": "mamba"}}), Regime(), Sizes())


FAMILY_OF = {Config(config(name)).model_type: name for name in (*CATALOG_NAMES, *OTHERS)}


@pytest.mark.parametrize("name", FAMILY_OF.values(), ids=FAMILY_OF)
def test_a_grid_of_sizes_gives_what_each_size_gives(name: str) -> None:
    regime = Regime(autocast=BF16, attention="eager")
    batches, lengths = numpy.array([1, 3]), numpy.array([32, 64])
    sizes = Sizes(batch=batches, seq=lengths, target_seq=lengths)
    grid = sum(
        kept_bytes(placed.section)
        for placed in record(Config(config(name)), regime, sizes).sections
    )
    one = record(Config(config(name)), regime, Sizes.named(3, 64, 64, 1)).sections
    assert numpy.broadcast_to(grid, 2)[1] == sum(int(kept_bytes(placed.section)) for placed in one)


@pytest.mark.parametrize("name", FAMILY_OF.values(), ids=FAMILY_OF)
def test_without_autograd_nothing_is_kept(name: str) -> None:
    program = record(Config(config(name)), Regime(grad=False), Sizes())
    assert sum(int(kept_bytes(placed.section)) for placed in program.sections) == 0
