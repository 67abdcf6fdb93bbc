"""Facts with a date: what older torch, transformers and bitsandbytes held, as differences between two versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from vramcast.accuracy.run import peak_bytes
from vramcast.catalog.models import find_model
from vramcast.engine.estimate import estimate
from vramcast.engine.recording.library_versions import habits_of, supports_sdpa
from vramcast.forecast import Forecast
from vramcast.job import job_from
from vramcast.ledger import NEXT_FORWARD, Category, Level
from vramcast.models.families import MODULE_OF, record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.regime import Regime
from vramcast.setup.versions import parse_version
from vramcast.units import MiB

SMALL = {
    "model": "gpt2",
    "precision": "fp32",
    "batch": 4,
    "seq": 128,
    "gpu": "v100-16gb",
    "framework": "hf",
}
QLORA = {
    "model": "tinyllama", "framework": "litgpt", "precision": "bf16-true", "batch": 2, "seq": 256, "lora-rank": 8,
    "quantize": "nf4", "lora-targets": "query,value",
}  # fmt: skip


def forecast(base: dict[str, Any], **changes: Any) -> Forecast:
    return estimate(
        job_from({**base, **{name.replace("_", "-"): value for name, value in changes.items()}})
    )


def held(found: Forecast, category: Category, phase: str) -> int:
    return found.ledger.grouped(lambda entry: entry.category, phase=phase, place="cuda:0").get(
        category, 0
    )


def test_zero_grad_kept_gradients_before_torch_2() -> None:
    assert (
        held(forecast(SMALL, torch_version="1.13"), Category.GRADIENTS, NEXT_FORWARD)
        == 4 * 124_439_808
    )
    assert held(forecast(SMALL, torch_version="2.0"), Category.GRADIENTS, NEXT_FORWARD) == 0


@pytest.mark.parametrize(("torch", "mib"), [("1.10", 1343), ("1.12", 1343), ("2.1", 350 + 128)])
def test_the_context_held_every_kernel_before_torch_1_13(torch: str, mib: int) -> None:
    assert held(forecast(SMALL, torch_version=torch), Category.CONTEXT, NEXT_FORWARD) == mib * MiB


def test_softmax_kept_its_input_before_torch_1_11() -> None:
    old, new = (
        forecast(SMALL, torch_version=torch, attention="eager") for torch in ("1.10", "1.11")
    )
    scores = 12 * 4 * 12 * 128 * 128 * 4  # layers · b · heads · s · s, fp32
    more = held(old, Category.ACTIVATIONS, NEXT_FORWARD) - held(
        new, Category.ACTIVATIONS, NEXT_FORWARD
    )
    assert more == pytest.approx(scores, rel=0.1)


def test_bitsandbytes_pinned_the_input_of_every_quantised_linear_until_the_graph_died() -> None:
    """In the next forward the old graph is still there: 22 layers of two hidden-size and two norm-size inputs more."""
    old, new = (forecast(QLORA, bitsandbytes_version=number) for number in ("0.43", "0.44"))
    inputs = 22 * 2 * 256 * (3 * 2048 + 5632) * 2
    more = peak_bytes(old, Level.ALLOCATED) - peak_bytes(new, Level.ALLOCATED)
    assert inputs < more < 2.2 * inputs


def test_states_of_a_paged_optimizer_lie_on_the_host_in_fp32() -> None:
    found = forecast({**SMALL, "optimizer": "paged-adamw", "precision": "bf16-true"})
    states = [entry for entry in found.ledger.entries if entry.category == Category.OPTIMIZER]
    assert sum(entry.nbytes for entry in states) == 8 * 124_439_808
    assert held(found, Category.OPTIMIZER, NEXT_FORWARD) < 8 * 200_000


@pytest.mark.parametrize(
    ("framework", "torch", "rows"),
    [("plain", "2.5", 50257 + 1024), ("plain", "2.4", 2 * 50257), ("hf", "2.5", 2 * 50257)],
)
def test_torchs_adafactor_holds_one_matrix_until_the_next_is_there_and_transformers_makes_two(
    framework: str, torch: str, rows: int
) -> None:
    found = forecast(SMALL, optimizer="adafactor", framework=framework, torch_version=torch)
    assert held(found, Category.TEMPORARY, "step") == rows * 768 * 4


# ---- transformers: which attention, which cache, whose gradients


SUPPORTED = [
    ("gpt2", "4.41", "4.42"), ("bert", "4.40", "4.41"), ("roberta", "4.44", "4.45"), ("opt", "4.45", "4.46"),
    ("gpt_neox", "4.41", "4.42"), ("clip", "4.42", "4.43"), ("mistral", "4.36", "4.37"), ("llama", "4.35", "4.36"),
    ("phi3", "4.44", "4.45"), ("electra", "4.57", "5.0"), ("t5", "5.14", "5.15"), ("gemma2", "4.47", "4.48"),
    ("pegasus", "4.52", "4.53"), ("distilbert", "4.45", "4.46"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "eager", "sdpa"), SUPPORTED)
def test_families_came_to_sdpa_one_by_one(family: str, eager: str, sdpa: str) -> None:
    assert not supports_sdpa(family, parse_version(eager), (2, 13))
    assert supports_sdpa(family, parse_version(sdpa), (2, 13))
    assert not supports_sdpa(family, parse_version(sdpa), (2, 0))


def test_gemma_2_went_back_to_eager_and_falcon_asked_torch_itself() -> None:
    spans = {"4.44": True, "4.45": False, "4.47": False, "4.48": True, "5.20": True, "5.21": False}
    assert {text: supports_sdpa("gemma2", parse_version(text), (2, 13)) for text in spans} == spans
    assert supports_sdpa("falcon", (4, 31), (2, 0))
    assert not supports_sdpa("falcon", (4, 31), (1, 13))


def test_the_installed_transformers_agrees_about_sdpa() -> None:
    """Every family that is described and has attention."""
    installed, checked = parse_version(transformers.__version__), 0
    for model_type, module in MODULE_OF.items():
        names = MODEL_MAPPING_NAMES.get(model_type)
        if names is not None and module != "cnn":
            model = getattr(transformers, names[0] if isinstance(names, tuple) else names)
            assert supports_sdpa(model_type, installed, (2, 13)) == model._supports_sdpa, model_type
            checked += 1
    assert checked > 60


def test_scores_are_kept_where_sdpa_is_not_there_yet() -> None:
    old, new = (forecast(SMALL, transformers_version=number) for number in ("4.41", "4.42"))
    more = held(old, Category.ACTIVATIONS, NEXT_FORWARD) - held(
        new, Category.ACTIVATIONS, NEXT_FORWARD
    )
    assert (
        more > 12 * 4 * 12 * 128 * 128 * 4
    )  # layers · b · heads · s · s: attention weights in fp32


@pytest.mark.parametrize(
    ("framework", "transformers", "cached"),
    [("hf", "4.57", True), ("hf", "5.0", False), ("trl", "5.0", False), ("plain", "5.0", True)],
)
def test_the_trainer_of_transformers_5_turns_the_cache_off(
    framework: str, transformers: str, cached: bool
) -> None:
    found = forecast(SMALL, framework=framework, transformers_version=transformers)
    assert any(entry.category == Category.CACHE for entry in found.ledger.entries) == cached


def test_the_installed_trainer_turns_the_cache_off(tmp_path: Path) -> None:
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=16)
    )
    assert model.config.use_cache
    transformers.Trainer(
        model, transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    )
    assert not model.config.use_cache


@pytest.mark.parametrize(
    ("model", "embedding_bytes"), [("tinyllama-1.1b", 32_000 * 2_048 * 2), ("llama-3.2-1b", 0)]
)
def test_accelerate_gathers_an_untied_embedding_by_itself(model: str, embedding_bytes: int) -> None:
    """Since accelerate 1.14; until then it stayed gathered with the head until backward ended."""
    job = {
        "model": model, "framework": "accelerate", "precision": "bf16-mixed", "gpus": 4, "strategy": "fsdp2",
        "gpu": "a100-80gb", "seq": 512,
    }  # fmt: skip

    def gathered_after_forward(version: str) -> int:
        entries = forecast(job, transformers_version=version).ledger.entries
        return sum(
            entry.nbytes
            for entry in entries
            if entry.component == "gathered parameters" and "loss" in entry.phases
        )

    assert gathered_after_forward("5.11") - gathered_after_forward("5.12") == embedding_bytes


@pytest.mark.parametrize(("version", "queries", "keys"), [((4, 57), 96, 96), ((5, 0), 512, 512)])
def test_t5_made_small_masks_for_its_encoder(
    version: tuple[int, int], queries: int, keys: int
) -> None:
    """[batch, 1, 1, keys] until masking_utils made them; the decoder's causal one was the largest."""
    regime = Regime(attention="eager", habits=habits_of("t5", version))
    sizes = Sizes.named(batch=2, seq=512, target_seq=96, images=1)
    mask = record(Config(find_model("t5-small").config), regime, sizes).mask
    assert mask is not None
    assert mask.shape == (2, 1, queries, keys)


NEOX = {
    "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 384, "intermediate_size": 1536,
    "num_attention_heads": 6, "num_hidden_layers": 4, "vocab_size": 50304, "max_position_embeddings": 4096,
    "rotary_pct": 0.25, "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip


def test_gpt_neox_rotated_queries_and_keys_into_fp32(tmp_path: Path) -> None:
    """Trainer on the virtual GPU with transformers 4.40.2: 664,000,000 bytes; 8 % less where all is in 16 bit:
    scores, weights of attention, and rotated queries and keys were in fp32."""
    (tmp_path / "config.json").write_text(json.dumps(NEOX), encoding="utf-8")
    job = {
        "model": str(tmp_path), "framework": "hf", "precision": "bf16-true", "batch": 3, "seq": 384,
        "optimizer": "adafactor", "gpu": "a100-80gb",
    }  # fmt: skip
    old, new = (
        forecast(job, transformers_version=version).verdict().allocated_bytes or 0
        for version in ("4.40", "4.45")
    )
    assert old == pytest.approx(664_000_000, rel=0.005)
    assert new < 0.95 * old


PHI3 = {
    "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "hidden_size": 1024, "intermediate_size": 4096,
    "num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 4, "vocab_size": 32064,
    "max_position_embeddings": 4096, "tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": 2,
    "eos_token_id": 3,
}  # fmt: skip


def test_phi3_rotated_whole_heads_before_4_49(tmp_path: Path) -> None:
    """Trainer with LoRA on the virtual GPU, transformers 4.48.3: 2,176,413,184 bytes. What is rotated and then joined
    lies head by head; what is rotated whole is copied before SDPA, and the cache holds what it was copied from."""
    (tmp_path / "config.json").write_text(json.dumps(PHI3), encoding="utf-8")
    job = {
        "model": str(tmp_path), "framework": "hf", "precision": "fp32", "batch": 8, "seq": 256, "accumulate": 2,
        "lora-rank": 16, "lora-targets": "all-linear", "gpu": "a100-80gb", "checkpointing": "none",
    }  # fmt: skip
    peak = forecast(job, transformers_version="4.48").verdict().allocated_bytes
    assert peak == pytest.approx(2_176_413_184, rel=0.001)


BERT = {
    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 1536,
    "intermediate_size": 6144, "num_attention_heads": 16, "num_hidden_layers": 3, "vocab_size": 30522,
    "max_position_embeddings": 4096, "pad_token_id": 0,
}  # fmt: skip


def test_reentrant_checkpointing_lets_projections_share_a_copy(tmp_path: Path) -> None:
    """accelerate's loop on the virtual GPU, transformers 4.51.3: 1,279,831,040 bytes. The detached input of a block is
    a leaf in fp32, whose bf16 copy autocast caches; with a copy for each of q, k and v it would be 3 % more."""
    (tmp_path / "config.json").write_text(json.dumps(BERT), encoding="utf-8")
    job = {
        "model": str(tmp_path), "framework": "accelerate", "precision": "bf16-autocast", "batch": 3, "seq": 2048,
        "accumulate": 2, "optimizer": "adafactor", "gpu": "a100-80gb", "checkpointing": "full",
    }  # fmt: skip
    again = forecast(job, transformers_version="4.51")
    assert again.verdict().allocated_bytes == pytest.approx(1_279_831_040, rel=0.001)


PHI_IN_FP16 = {
    "model_type": "phi", "architectures": ["PhiForCausalLM"], "hidden_size": 512, "intermediate_size": 2048,
    "num_attention_heads": 8, "num_hidden_layers": 4, "vocab_size": 1024, "torch_dtype": "float16",
}  # fmt: skip


def test_copies_of_fp16_weights_go_with_their_block(tmp_path: Path) -> None:
    """autocast_mode.cpp caches copies of fp32 weights only: those of fp16 ones go with their block."""
    (tmp_path / "config.json").write_text(json.dumps(PHI_IN_FP16), encoding="utf-8")
    job = {"model": str(tmp_path), "seq": 64, "gpu": "a100-80gb", "checkpointing": "full"}
    copies = held(forecast(job), Category.COPIES, NEXT_FORWARD)
    of_blocks = 4 * 2 * (4 * 512 * 512 + 2 * 512 * 2048)
    assert copies < of_blocks / 2


BLOOM = {
    "model_type": "bloom",
    "architectures": ["BloomForCausalLM"],
    "hidden_size": 640,
    "n_head": 8,
    "n_layer": 3,
    "vocab_size": 50272,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}


def test_bloom_cached_copies_before_4_44(tmp_path: Path) -> None:
    """TRL's SFT on the virtual GPU, transformers 4.40.2: 1,033,787,904 bytes. Keys and values were laid out anew before
    they were cached; since then the cache holds the projection that they are parts of, half as much again."""
    (tmp_path / "config.json").write_text(json.dumps(BLOOM), encoding="utf-8")
    job = {
        "model": str(tmp_path), "framework": "trl", "precision": "bf16-autocast", "batch": 8, "seq": 128,
        "checkpointing": "none", "gpu": "a100-80gb",
    }  # fmt: skip
    peak = forecast(job, transformers_version="4.40").verdict().allocated_bytes
    assert peak == pytest.approx(1_033_787_904, rel=0.006)
