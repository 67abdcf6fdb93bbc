"""Generating without training: bytes by hand where they follow from counts, and beside the real generate()."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.cli import main
from vramcast.engine import estimate
from vramcast.job import job_from
from vramcast.ledger import DECODE, HOST, PREFILL, Category

QWEN3_8B_TOKEN = 36 * 2 * 8 * 128 * 2  # layers × keys and values × heads × size × bf16


def job_of(model: str, **changes: Any) -> Any:
    values = {
        "model": model,
        "task": "generate",
        "gpu": "a100-80gb",
        "prompt": 3072,
        "new_tokens": 1025,
    }
    said = {name.replace("_", "-"): value for name, value in (values | changes).items()}
    return job_from(said)


def cache_bytes(job: Any, phase: str, place: str = "cuda:0") -> int:
    entries = estimate(job).ledger.alive(phase, place)
    return sum(entry.nbytes for entry in entries if entry.category == Category.CACHE)


def test_the_cache_grows_from_the_prompt_to_all_tokens_but_the_last() -> None:
    job = job_of("qwen3-8b")
    assert cache_bytes(job, PREFILL) == 3072 * QWEN3_8B_TOKEN
    assert cache_bytes(job, DECODE) == (3072 + 1025 - 1) * QWEN3_8B_TOKEN


def test_a_batch_and_beams_have_a_cache_each() -> None:
    job = job_of("qwen3-8b", batch=3, beams=4)
    assert cache_bytes(job, DECODE) == 12 * 4096 * QWEN3_8B_TOKEN


def test_a_static_cache_is_whole_from_the_start() -> None:
    job = job_of("qwen3-8b", kv_cache="static")
    assert cache_bytes(job, PREFILL) == cache_bytes(job, DECODE) == 4097 * QWEN3_8B_TOKEN


def test_an_offloaded_cache_leaves_two_layers_on_the_card() -> None:
    job = job_of("qwen3-8b", kv_cache="offloaded")
    assert cache_bytes(job, DECODE) == 2 * 4096 * QWEN3_8B_TOKEN // 36
    assert cache_bytes(job, DECODE, HOST) == 4096 * QWEN3_8B_TOKEN


def test_sliding_layers_keep_their_window() -> None:
    """Gemma 2 2B: every second of 26 layers looks back 4,096 tokens; 4 heads of 256."""
    job = job_of("gemma-2-2b", prompt=8000, new_tokens=193)
    token = 2 * 4 * 256 * 2
    assert cache_bytes(job, DECODE) == 13 * token * (8192 + 4096)


def test_nothing_but_weights_is_trained_or_kept() -> None:
    forecast = estimate(job_of("qwen3-8b"))
    kinds = {entry.category for entry in forecast.ledger.entries}
    assert not kinds & {Category.GRADIENTS, Category.OPTIMIZER, Category.ACTIVATIONS}
    assert forecast.model.params_trainable == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("estimate qwen3-8b --task generate --lora-rank 8", "leave out lora-rank"),
        ("estimate qwen3-8b --task generate --seq 512", "say prompt and new-tokens"),
        ("estimate bert-base-uncased --task generate", "no key/value cache"),
        ("estimate --params 7B --task generate", "needs a model"),
        ("divide qwen3-8b --task generate --gpus 8 --gpu h100", "runs on one GPU"),
        ("plan qwen3-8b --task generate --gpu rtx4090 --try fused-loss", "leave out"),
    ],
)
def test_what_generating_cannot_mean_is_said_in_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_report_names_the_phase_of_the_peak(
    lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "estimate qwen3-8b --task generate --gpu rtx4090 --prompt 3000 --lang"
    assert main([*words.split(), lang]) == 0
    assert {"en": "prefill", "zh": "预填充"}[lang] in capsys.readouterr().out


def test_a_quantised_cache_keeps_its_newest_tokens_whole() -> None:
    """4 bit and two 16-bit numbers per 64 values, but for the newest 128 tokens."""
    job = job_of("qwen3-8b", kv_cache="quantized")
    packed = (4096 - 128) * QWEN3_8B_TOKEN * (0.25 + 2 / 64)
    assert cache_bytes(job, DECODE) == packed + 128 * QWEN3_8B_TOKEN


def test_a_prompt_read_in_chunks_takes_less() -> None:
    whole, chunked = (
        estimate(job_of("qwen3-8b", prompt=30000, prefill_chunk=chunk)) for chunk in (None, 1024)
    )
    assert chunked.ledger.moment(PREFILL, "cuda:0").allocated_bytes < (
        whole.ledger.moment(PREFILL, "cuda:0").allocated_bytes - 2 * 2**30
    )


# Qwen's published tables: GiB at the peak of generate() with flash attention, batch 1 (qwen.readthedocs.io)
PUBLISHED = [
    ("qwen2.5-0.5b", "none", "4.46.0", 6144, 1.23),
    ("qwen2.5-0.5b", "none", "4.46.0", 30720, 2.34),
    ("qwen2.5-0.5b", "awq", "4.46.0", 6144, 0.72),
    ("qwen2.5-14b", "none", "4.46.0", 14336, 31.95),
    ("qwen2.5-14b", "gptq-int8", "4.46.0", 30720, 24.88),
    ("qwen2.5-14b", "awq", "4.46.0", 30720, 18.57),
    ("qwen2-7b", "none", "4.38.2", 30720, 42.62),
    ("qwen2-7b", "awq", "4.38.2", 30720, 33.63),
    ("qwen2-7b", "gptq-int8", "4.38.2", 14336, 21.76),
]


@pytest.mark.parametrize(("model", "quantize", "version", "prompt", "printed"), PUBLISHED)
def test_published_peaks(
    model: str, quantize: str, version: str, prompt: int, printed: float
) -> None:
    job = job_of(
        model,
        quantize=quantize,
        prompt=prompt,
        new_tokens=2048,
        attention="flash",
        transformers_version=version,
        torch_version="2.3",
    )
    peak = estimate(job).ledger.peak("cuda:0").allocated_bytes
    assert peak / 2**30 == pytest.approx(printed, rel=0.02)


def test_what_does_not_fit_gets_inference_advice(capsys: pytest.CaptureFixture[str]) -> None:
    words = "estimate qwen3-8b --task generate --gpu rtx4090 --prompt 30000 --new-tokens 1024"
    assert main(words.split()) == 1
    printed = capsys.readouterr().out
    assert "--kv-cache quantized" in printed
    assert "then it fits" in printed


def generate_on_virtual_gpu(config: Any, batch: int, prompt: int, new: int) -> int:
    """The peak of the real generate(), greedy."""
    import torch
    from transformers import AutoModelForCausalLM

    from vramcast.virtual.gpu import virtual_gpu

    with virtual_gpu("a100-80gb"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda").eval()
        ids = torch.randint(3, 1000, (batch, prompt), device="cuda")
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        return int(torch.cuda.max_memory_allocated())


def seq2seq_on_virtual_gpu(config: Any, batch: int, prompt: int, new: int, beams: int) -> int:
    import torch
    from transformers import AutoModelForSeq2SeqLM

    from vramcast.virtual.gpu import virtual_gpu

    with virtual_gpu("a100-80gb"):
        model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.bfloat16).to("cuda").eval()
        ids = torch.randint(3, 1000, (batch, prompt), device="cuda")
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False,
            num_beams=beams,
        )  # fmt: skip
        return int(torch.cuda.max_memory_allocated())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "batch", "prompt", "new", "beams"),
    [("t5-small", 4, 512, 20, 1), ("bart-base", 8, 500, 10, 1), ("t5-small", 4, 400, 30, 4)],
)
def test_encoder_decoders_keep_the_encoders_keys(
    model: str, batch: int, prompt: int, new: int, beams: int, tmp_path: Any
) -> None:
    from transformers import AutoConfig

    from vramcast.models.read.model import read_model

    described = read_model(model).config
    assert described is not None
    values = dict(described.data)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    config.save_pretrained(tmp_path)
    peak = seq2seq_on_virtual_gpu(config, batch, prompt, new, beams)
    job = job_of(
        str(tmp_path),
        batch=batch,
        prompt=prompt,
        new_tokens=new,
        beams=beams,
        precision="bf16-true",
    )
    assert estimate(job).ledger.peak("cuda:0").allocated_bytes == pytest.approx(peak, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "prompt", "new"),
    [("qwen3-0.6b", 1024, 8), ("qwen3-0.6b", 16, 200), ("gpt2", 700, 40), ("gemma-3-1b", 2000, 8)],
)
def test_the_peak_is_that_of_the_real_generate(
    model: str, prompt: int, new: int, tmp_path: Any
) -> None:
    from transformers import AutoConfig

    from vramcast.models.read.model import read_model

    described = read_model(model).config
    assert described is not None
    values = dict(described.data)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    layers = 4
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    config.save_pretrained(tmp_path)
    peak = generate_on_virtual_gpu(config, 1, prompt, new)
    job = job_of(str(tmp_path), prompt=prompt, new_tokens=new, precision="bf16-true")
    assert estimate(job).ledger.peak("cuda:0").allocated_bytes == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize("model", ["t5-small", "smollm2-135m"])
@pytest.mark.parametrize("said", [{"framework": "trl"}, {"loss": "fused"}])
def test_what_trains_without_logits_generates_with_them(model: str, said: dict[str, Any]) -> None:
    asked = {"model": model, "task": "generate", "gpu": "rtx4090"}
    plain, other = (estimate(job_from({**asked, **more})).verdict() for more in ({}, said))
    assert other.allocated_bytes == plain.allocated_bytes
