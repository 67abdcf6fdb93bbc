"""Sliding windows: which layers slide, as transformers' config classes say; what a real layer then keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from real import autocast, hf_config, real_model, savings_of

from vramcast.engine.stream.saved_tensors import kept_bytes
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.sliding_windows import sliding_layers, window_of
from vramcast.models.record.tape import BF16, BOOL, F32, Regime

BATCH, SEQ = 2, 61
SMALL: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 200, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 6, "vocab_size": 300, "pad_token_id": 0, "sliding_window": 40,
}  # fmt: skip
CLASSES = {
    "mistral": "Mistral", "phi3": "Phi3", "gemma3_text": "Gemma3", "gemma2": "Gemma2", "qwen2": "Qwen2",
    "starcoder2": "Starcoder2", "cohere2": "Cohere2", "olmo3": "Olmo3",
}  # fmt: skip

ALTERNATING = ("gemma2", "gemma3_text", "cohere2", "olmo3", "gpt_oss")


def model_of(kind: str, **changes: Any) -> dict[str, Any]:
    asked = {"use_sliding_window": True, "max_window_layers": 3} if kind == "qwen2" else {}
    quiet = (
        {"attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0}
        if "coder" in kind
        else {}
    )
    return {
        "model_type": kind,
        "architectures": [f"{CLASSES[kind]}ForCausalLM"],
        **SMALL,
        **asked,
        **quiet,
        **changes,
    }


@pytest.mark.parametrize(
    "data",
    [
        *({"model_type": kind, "num_hidden_layers": 30} for kind in ALTERNATING),
        {"model_type": "qwen2", "num_hidden_layers": 30, "use_sliding_window": True},
        {"model_type": "qwen3", "num_hidden_layers": 30, "use_sliding_window": True, "max_window_layers": 7},
        {"model_type": "qwen2_moe", "num_hidden_layers": 30, "use_sliding_window": True},
        {"model_type": "qwen2", "num_hidden_layers": 30},
        {"model_type": "smollm3", "num_hidden_layers": 30, "use_sliding_window": True, "sliding_window": 64},
        {"model_type": "gemma3_text", "num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]},
    ],
    ids=str,
)  # fmt: skip
def test_the_layers_that_slide_are_those_of_the_config_class(data: dict[str, Any]) -> None:
    theirs = hf_config(data)
    listed = [kind == "sliding_attention" for kind in theirs.layer_types]
    assert sliding_layers(Config(data), data["num_hidden_layers"]) == listed
    assert not any(listed) or window_of(Config(data)) == theirs.sliding_window


@pytest.mark.parametrize(
    "kind", ["mistral", "mixtral", "starcoder2", "phi3", "phimoe", "qwen3_moe"]
)
def test_windows_for_all_layers(kind: str) -> None:
    theirs = transformers.AutoConfig.for_model(kind)
    assert window_of(Config({"model_type": kind})) == theirs.sliding_window
    assert window_of(Config({"model_type": kind, "sliding_window": None})) is None


@pytest.mark.parametrize("precision", ["fp32", "bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", CLASSES)
def test_what_a_layer_keeps_beyond_its_window(kind: str, attention: str, precision: str) -> None:
    """The first layer slides, but Qwen2's; the last one does in half of the families."""
    data = model_of(kind)
    model = real_model(data, precision=precision, attention=attention)
    eager = model.config._attn_implementation == "eager"
    regime = Regime(
        weights=BF16 if precision == "bf16-true" else F32, autocast=BF16 if precision == "bf16-mixed" else None,
        attention="eager" if eager else "flash", cuda=False,
    )  # fmt: skip
    program = record(Config(data), regime, Sizes(batch=BATCH, seq=SEQ))
    blocks = [placed for placed in program.sections if placed.section.is_block]
    for index in (0, 5):
        with savings_of(model.model.layers[index]) as made, autocast(precision):
            output = model(input_ids=torch.ones(BATCH, SEQ, dtype=torch.long))
        assert int(kept_bytes(blocks[index].section)) == pytest.approx(made[0].nbytes, rel=0.02)
        del output


def test_the_mask_itself_by_version() -> None:
    def mask(**facts: Any) -> Any:
        regime = Regime(weights=BF16, attention=facts.pop("attention", "flash"), **facts)
        return record(Config(model_of("gemma3_text")), regime, Sizes(batch=BATCH, seq=SEQ))

    assert (mask().mask.dtype, mask().mask.shape) == (BOOL, (BATCH, 1, SEQ, SEQ))
    assert mask(attention="eager").mask.shape == (BATCH, 2, SEQ, SEQ)
    assert mask(kernel_has_windows=True).mask is None
    old = mask(boolean_masks=False, masks_always=True)
    assert set(old.masks.layers) == {"own", "shared"}
    assert old.mask_is_saved
    assert (
        record(Config(model_of("gemma3_text")), Regime(), Sizes(batch=BATCH, seq=39)).mask is None
    )
