"""Small models of many families, each with one training step that runs anywhere: (build, batch) by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

Build = Callable[[], torch.nn.Module]
Batch = Callable[[str], dict[str, torch.Tensor]]

VOCABULARY = 1024


def text(batch: int = 4, length: int = 64) -> Batch:
    def make(device: str) -> dict[str, torch.Tensor]:
        ids = torch.randint(5, VOCABULARY, (batch, length)).to(device)
        return {"input_ids": ids, "labels": ids}

    return make


def images(batch: int = 16, side: int = 64, labels: int = 10) -> Batch:
    def make(device: str) -> dict[str, torch.Tensor]:
        pixels = torch.randn(batch, 3, side, side).to(device)
        return {"pixel_values": pixels, "labels": torch.randint(0, labels, (batch,)).to(device)}

    return make


def decoder(kind: str, **changes: Any) -> Build:
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "head_dim": 32,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return lambda: hf.AutoModelForCausalLM.from_config(
        hf.AutoConfig.for_model(kind, **{**sizes, **changes})
    )


def gpt2() -> torch.nn.Module:
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=VOCABULARY, n_embd=128, n_layer=3, n_head=4, n_positions=256)
    )


def encoder(kind: str, **changes: Any) -> Build:
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
        "num_attention_heads": 4, "max_position_embeddings": 256,
    }  # fmt: skip
    return lambda: hf.AutoModelForMaskedLM.from_config(
        hf.AutoConfig.for_model(kind, **{**sizes, **changes})
    )


def t5() -> torch.nn.Module:
    config = hf.T5Config(
        vocab_size=VOCABULARY,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return hf.T5ForConditionalGeneration(config)


def bart() -> torch.nn.Module:
    config = hf.BartConfig(
        vocab_size=VOCABULARY, d_model=128, encoder_ffn_dim=256, decoder_ffn_dim=256, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=256,
    )  # fmt: skip
    return hf.BartForConditionalGeneration(config)


def opt() -> torch.nn.Module:
    config = hf.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=128, ffn_dim=256, num_hidden_layers=3, num_attention_heads=4,
        word_embed_proj_dim=128, max_position_embeddings=256, dropout=0.0, attention_dropout=0.0, layerdrop=0.0,
    )  # fmt: skip
    return hf.OPTForCausalLM(config)


def gpt_neo() -> torch.nn.Module:
    config = hf.GPTNeoConfig(
        vocab_size=VOCABULARY, hidden_size=128, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4,
        max_position_embeddings=256, window_size=32,
    )  # fmt: skip
    return hf.GPTNeoForCausalLM(config)


def bloom() -> torch.nn.Module:
    return hf.BloomForCausalLM(
        hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=128, n_layer=3, n_head=4)
    )


def resnet() -> torch.nn.Module:
    return hf.ResNetForImageClassification(hf.ResNetConfig(depths=[1, 1, 1, 1], num_labels=10))


def convnext() -> torch.nn.Module:
    config = hf.ConvNextConfig(depths=[1, 1, 2, 1], hidden_sizes=[32, 64, 96, 128], num_labels=10)
    return hf.ConvNextForImageClassification(config)


def mobilenet() -> torch.nn.Module:
    return hf.MobileNetV2ForImageClassification(
        hf.MobileNetV2Config(num_labels=10, depth_multiplier=0.5)
    )


def vit() -> torch.nn.Module:
    config = hf.ViTConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=64,
        num_labels=10,
    )
    return hf.ViTForImageClassification(config)


def swin() -> torch.nn.Module:
    config = hf.SwinConfig(
        embed_dim=32,
        depths=[1, 1],
        num_heads=[2, 4],
        image_size=64,
        window_size=4,
        num_labels=10,
        drop_path_rate=0.0,
    )
    return hf.SwinForImageClassification(config)


def lora(build: Build, targets: list[str]) -> Build:
    def make() -> torch.nn.Module:
        import peft

        settings = peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, lora_dropout=0.0)
        return peft.get_peft_model(build(), settings)

    return make


def checkpointed(build: Build, **options: Any) -> Build:
    def make() -> torch.nn.Module:
        model = build()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        return model

    return make


FAMILIES: dict[str, tuple[Build, Batch]] = {
    "gpt2": (gpt2, text()),
    "llama": (decoder("llama"), text()),
    "mistral": (decoder("mistral"), text()),
    "qwen2": (decoder("qwen2"), text()),
    "qwen3": (decoder("qwen3"), text()),
    "phi3": (decoder("phi3"), text()),
    "gemma2": (decoder("gemma2"), text()),
    "olmo2": (decoder("olmo2"), text()),
    "opt": (opt, text()),
    "gpt-neo": (gpt_neo, text()),
    "bloom": (bloom, text()),
    "bert": (encoder("bert"), text()),
    "roberta": (encoder("roberta"), text()),
    "distilbert": (encoder("distilbert", dim=128, n_layers=3, n_heads=4, hidden_dim=256), text()),
    "t5": (t5, text()),
    "bart": (bart, text()),
    "mixtral": (decoder("mixtral", num_local_experts=4, num_experts_per_tok=2), text()),
    "qwen3-moe": (
        decoder("qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64),
        text(),
    ),
    "resnet": (resnet, images()),
    "convnext": (convnext, images()),
    "mobilenet": (mobilenet, images()),
    "vit": (vit, images()),
    "swin": (swin, images()),
    "llama-lora": (lora(decoder("llama"), ["q_proj", "v_proj"]), text()),
    "gpt2-lora": (lora(gpt2, ["c_attn"]), text()),
    "llama-checkpointed": (checkpointed(decoder("llama"), use_reentrant=False), text()),
    "gpt2-checkpointed": (checkpointed(gpt2, use_reentrant=True), text()),
}


def train(model: torch.nn.Module, batch: Batch, device: str, steps: int = 2) -> None:
    """A plain loop; the optimizer's loop form is the same on every device."""
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False)
    for _ in range(steps):
        loss = model(**batch(device)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
