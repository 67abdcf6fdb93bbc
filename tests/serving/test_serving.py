"""What serving engines make of a card, beside what they printed elsewhere. Every figure names where it was printed."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import main
from vramcast.engine import estimate
from vramcast.engine.serving.cache import cache_shape, split_layers
from vramcast.engine.serving.request import Request, resolve_request
from vramcast.engine.serving.vllm_blocks import lay_out, tokens_printed
from vramcast.engine.serving.vllm_defaults import settings_of
from vramcast.engine.serving.vllm_profile import profile_run
from vramcast.errors import InputError, UnsupportedError
from vramcast.forecast import Answer, Served
from vramcast.job import Job, job_from

GiB, MiB = 2**30, 2**20


def served(model: str, engine: str = "vllm", **said: Any) -> Served:
    job = job_from({"model": model, "engine": engine, **_dashed(said)})
    found = estimate(job).served
    assert found is not None
    return found


def request(model: str, **said: Any) -> Request:
    return resolve_request(job_from({"model": model, "engine": "vllm", **_dashed(said)}))


def _dashed(said: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in said.items()}


# ---- weights, GiB as `Model loading took` prints them

WEIGHTS = [
    # github.com/vllm-project/vllm/issues/10517
    ("llama-3.1-8b", {}, 14.9888),
    # 0.7.3 log of a 7B RAG tutorial on T4 (public file): Qwen2.5-1.5B-Instruct, 32,768 positions
    ("qwen2.5-1.5b", {}, 2.8884),
    # public logs: gpt-oss-20b in mxfp4, Llama 3.1 8B and Phi-4 in nf4
    ("gpt-oss-20b", {}, 13.7),
    ("llama-3.1-8b", {"quantize": "nf4", "engine_version": "0.9.2"}, 5.6),
    ("phi-4", {"quantize": "nf4", "engine_version": "0.6.5"}, 8.5107),
]


@pytest.mark.parametrize(("model", "said", "printed"), WEIGHTS)
def test_weights_are_those_of_the_log(model: str, said: dict[str, Any], printed: float) -> None:
    found = served(model, gpu="80GiB", max_model_len=2048, **said)
    assert found.weights_bytes / GiB == pytest.approx(printed, rel=0.01)


# ---- GiB ↔ tokens: model, GiB that were printed, tokens that were printed with them

TOKENS = [
    # stored public file: 0.28, Llama 3.1 8B on one H100
    ("llama-3.1-8b", {"engine_version": "0.28"}, 131072, 56.21, 460496),
    # stored public file: Qwen2.5-1.5B beside another server, 0.20
    ("qwen2.5-1.5b", {"engine_version": "0.20"}, 8192, 0.56, 20992),
    # serving printouts S0094 (stored public file 53530895476): linear attention, fp8 cache
    pytest.param(
        "qwen3.5-122b-a10b",
        {"engine_version": "0.19", "kv_cache_dtype": "fp8"},
        131072,
        21.43,
        467712,
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("model", "said", "length", "gib", "tokens"), TOKENS)
def test_cache_holds_the_printed_tokens(
    model: str, said: dict[str, Any], length: int, gib: float, tokens: int
) -> None:
    asked = request(model, gpu="80GiB", max_model_len=length, **said)
    layers = cache_shape(asked.text).layers
    width = 1.0 if said.get("kv_cache_dtype") == "fp8" else 2.0
    blocks = lay_out(asked, settings_of(asked), layers, width, length)
    count = blocks.count(round(gib * GiB))
    # printed with two decimals: half a hundredth of a GiB
    assert tokens_printed(blocks, count, asked, length) == pytest.approx(
        tokens, rel=0.002 + 0.005 / gib
    )


@pytest.mark.slow  # its parameters come from a model that transformers builds
def test_linear_attention_makes_large_blocks() -> None:
    """S0094: 11.79 requests of 131,072 tokens in 21.43 GiB: blocks of 4,176 tokens, two states per request."""
    asked = request(
        "qwen3.5-122b-a10b",
        gpu="128GiB",
        max_model_len=131072,
        engine_version="0.19",
        kv_cache_dtype="fp8",
    )
    blocks = lay_out(asked, settings_of(asked), cache_shape(asked.text).layers, 1.0, 131072)
    assert blocks.block_tokens == 4176
    assert blocks.concurrency(blocks.count(round(21.43 * GiB))) == pytest.approx(11.79, rel=0.005)


# ---- the profiling run


def test_profile_of_v0_grows_with_the_prompt() -> None:
    """vllm#10517 (0.6.4, RTX 3090): 17.06 GiB at 20,000 tokens, 17.98 at 29,000, weights 14.9888."""
    peaks = []
    for length in (20000, 29000):
        asked = request("llama-3.1-8b", gpu="rtx3090", max_model_len=length, engine_version="0.6.4")
        peaks.append(profile_run(asked, settings_of(asked)).nbytes / GiB)
    assert peaks == pytest.approx([17.06 - 14.9888, 17.98 - 14.9888], rel=0.02)


def test_sorting_sets_the_peak_of_the_sampler() -> None:
    """0.6.6 to 0.16 sort all logits: nine printed peaks are 38.6 to 41.0 bytes per request and word."""
    asked = request("qwen2.5-7b", gpu="48GiB", max_num_seqs=256, engine_version="0.8.5")
    peak = profile_run(asked, settings_of(asked)).nbytes
    assert 38 <= peak / (256 * asked.vocabulary) <= 41
    newer = request("qwen2.5-7b", gpu="48GiB", max_num_seqs=256, engine_version="0.19")
    assert profile_run(newer, settings_of(newer)).nbytes < peak / 2


def test_llama_on_h100_prints_what_it_printed() -> None:
    """Stored public file: 0.28, one H100 (79.25 GiB), offline: 56.21 GiB, 460,496 tokens, 3.51 requests."""
    found = served("llama-3.1-8b", gpu="79.25GiB", max_num_batched_tokens=16384)
    assert found.kv_bytes / GiB == pytest.approx(56.21, rel=0.002)
    assert found.kv_tokens == pytest.approx(460496, rel=0.002)
    assert f"{found.concurrency:.2f}" == "3.51"


# ---- does it start?


def test_too_long_a_request_is_refused_in_the_engines_words() -> None:
    found = served("llama-3.1-8b", gpu="rtx4090")
    assert not found.starts
    assert "To serve at least one request with the model's max seq len (131072)" in found.refusal
    assert f"estimated maximum model length is {found.longest}" in found.refusal
    assert served("llama-3.1-8b", gpu="rtx4090", max_model_len=found.longest).starts
    assert not served("llama-3.1-8b", gpu="rtx4090", max_model_len=found.longest + 16).starts


@pytest.mark.parametrize(
    ("model", "said", "words"),
    [
        ("qwen3-8b", {"gpu": "16GiB"}, "No available memory for the cache blocks"),
        ("qwen3-32b", {"gpu": "24GiB"}, "out of memory while the weights are loaded"),
        (
            "qwen3-0.6b",
            {"gpu": "22.05GiB", "gpu_free": "19.77GiB", "gpu_memory_utilization": 0.9},
            "Free memory on device cuda:0 (19.77/22.05 GiB) on startup is less than desired GPU memory utilization "
            "(0.9, 19.85 GiB)",
        ),
        (
            "llama-3.1-8b",
            {"gpu": "rtx3090", "max_model_len": 29000, "engine_version": "0.6.4"},
            "The model's max seq len (29000) is larger than the maximum number of tokens that can be stored",
        ),
    ],
)
def test_start_up_failures(model: str, said: dict[str, Any], words: str) -> None:
    found = served(model, **said)
    assert not found.starts
    assert words in found.refusal


def test_engine_that_refuses_does_not_fit_its_share() -> None:
    verdict = estimate(
        job_from({"model": "llama-3.1-8b", "engine": "vllm", "gpu": "rtx4090"})
    ).verdict()
    assert verdict.answer is Answer.DOES_NOT_FIT
    assert verdict.fits is False
    assert verdict.headroom_bytes is not None
    assert verdict.headroom_bytes < 0


# ---- what a flag changes


def test_flags_change_the_cache_as_they_should() -> None:
    plain = served("qwen3-8b", gpu="rtx4090", max_model_len=8192)
    fp8 = served("qwen3-8b", gpu="rtx4090", max_model_len=8192, kv_cache_dtype="fp8")
    assert fp8.kv_tokens == pytest.approx(2 * plain.kv_tokens, rel=0.001)
    assert fp8.kv_bytes == plain.kv_bytes
    fuller = served("qwen3-8b", gpu="rtx4090", max_model_len=8192, gpu_memory_utilization=0.95)
    card = 0.03 * estimate_capacity("rtx4090")
    assert fuller.kv_bytes - plain.kv_bytes == pytest.approx(card, abs=1)
    two = served("qwen3-8b", gpu="rtx4090", max_model_len=8192, tp=2)
    assert two.weights_bytes == pytest.approx(plain.weights_bytes / 2, rel=0.001)
    assert two.kv_token_bytes * 2 == plain.kv_token_bytes


def estimate_capacity(gpu: str) -> int:
    found = estimate(job_from({"model": "qwen3-0.6b", "engine": "vllm", "gpu": gpu})).gpu
    assert found is not None
    return found.capacity_bytes()


def test_latent_cache_is_whole_on_every_rank() -> None:
    """DeepSeek-V3: 61 layers × 576 values, whatever tp is. S0113 printed 160.63 GiB for 2,454,421 tokens (SGLang)."""
    asked = request("kimi-k2", gpu="h200", tp=8)
    per_token = cache_shape(asked.text).values_per_token(8) * 2
    assert per_token == 61 * 576 * 2
    assert 2454421 * per_token / GiB == pytest.approx(160.63, rel=0.001)


def test_heads_are_replicated_beyond_their_number() -> None:
    shape = cache_shape(request("qwen3-8b", gpu="h100").text)
    assert shape.values_per_token(8) == shape.values_per_token(16) == 36 * 2 * 128


def test_pipeline_stages_take_the_rest_of_a_division() -> None:
    """vllm/distributed/utils.py get_pp_indices: 10 layers over 4 stages."""
    assert split_layers(10, 4) == [2, 3, 3, 2]


# ---- llama.cpp, MiB as its buffers print them

BUFFERS = [
    # github.com/ikawrakow/ik_llama.cpp/discussions/334: 15.404 GiB file, 32,768 cells in f16
    (
        "gemma-3-27b",
        {
            "gguf": "q4_k_m",
            "max_model_len": 32768,
            "attention": "flash",
            "engine_version": "b5000",
            "gpu": "48GiB",
        },
        (
            "CPU_Mapped model buffer size =  1102.77",
            "KV buffer size = 15872.00",
            "= 15773.89",
            "compute buffer size =   522.62",
        ),
    ),
    # a log of Ollama 0.5.4 with DeepSeek-V3: 61 × (24,576 + 16,384) × 2 B × 2,048 = 9,760 MiB
    (
        "deepseek-v3",
        {
            "gguf": "q4_k_m",
            "max_model_len": 2048,
            "gpu_layers": 0,
            "engine_version": "b4400",
            "gpu": "24GiB",
        },
        ("CPU KV buffer size =  9760.00",),
    ),
    # github.com/ikawrakow/ik_llama.cpp/pull/328: 0 of 41 layers on the card
    (
        "llama-2-13b",
        {"gguf": "q8_0", "max_model_len": 512, "gpu_layers": 0, "engine_version": "b3000", "gpu": "24GiB"},
        ("offloaded 0/41", "CPU_Mapped model buffer size = 13189.86", "CPU KV buffer size =   400.00"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("model", "said", "lines"), BUFFERS)
def test_buffers_of_llama_cpp(model: str, said: dict[str, Any], lines: tuple[str, ...]) -> None:
    printed = "\n".join(served(model, "llama.cpp", **said).lines)
    assert [line for line in lines if line not in printed] == []


def test_second_of_two_cards_holds_copies_of_the_inputs() -> None:
    """github.com/ikawrakow/ik_llama.cpp/issues/398: 2 × T4, 32,768 cells, CUDA1 compute buffer 444.77 MiB, 3 GiB."""
    found = served(
        "qwen3-30b-a3b",
        "llama.cpp",
        gguf="q4_k_m",
        gpu="t4",
        gpus=2,
        max_model_len=32768,
        attention="flash",
        engine_version="b6000",
    )
    printed = [line for line in found.lines if "CUDA1 compute" in line]
    size = float(printed[0].split("=")[1].split()[0])
    assert size == pytest.approx(444.77, rel=0.001)
    caches = [line for line in found.lines if "KV buffer" in line]
    assert sum(float(line.split("=")[1].split()[0]) for line in caches) == 3072


def test_sizes_of_published_files() -> None:
    """llama-bench's `size` of Qwen3 30B A3B Q4_K - Medium is 17.28 GiB."""
    found = estimate(
        job_from(
            {"model": "qwen3-30b-a3b", "engine": "llama.cpp", "gguf": "q4_k_m", "gpu": "48GiB"}
        )
    )
    weights = [entry.nbytes for entry in found.ledger.entries if str(entry.category) == "weights"]
    assert sum(weights) / GiB == pytest.approx(17.28, rel=0.002)


def test_gguf_file_is_read_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf())
    found = served(str(path), "llama.cpp", gpu="8GiB", max_model_len=512)
    # two layers of one attn_v of 256 × 256 in q4_k, and an output of 1,000 × 256 in q6_k
    assert found.weights_bytes == 2 * 256 * 144 + 1000 * 210
    assert found.kv_bytes == 2 * 512 * 2 * (64 + 64) * 2
    path.write_bytes(tiny_gguf()[:40])
    with pytest.raises(InputError, match="truncated"):
        served(str(path), "llama.cpp", gpu="8GiB")
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0))
    with pytest.raises(InputError, match="claims"):
        served(str(path), "llama.cpp", gpu="8GiB")


def tiny_gguf() -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    values = {
        "llama.block_count": 2,
        "llama.embedding_length": 256,
        "llama.feed_forward_length": 512,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.context_length": 2048,
        "llama.vocab_size": 1000,
    }
    tensors = [
        ("token_embd.weight", (256, 1000), 12),
        ("output.weight", (256, 1000), 14),
        ("blk.0.attn_v.weight", (256, 256), 12),
        ("blk.1.attn_v.weight", (256, 256), 12),
    ]
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values) + 1)
    data += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for name, value in values.items():
        data += text(name) + struct.pack("<II", 4, value)
    for name, shape, kind in tensors:
        data += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        data += struct.pack("<IQ", kind, 0)
    return data


# ---- other engines, commands


def test_sglang_share_follows_from_the_card() -> None:
    """server_args.py: 512 MiB + 1.5 MiB × 2,048 + 1/8 GiB + 2 MiB × 24 + 8 MiB per prefill graph of a 24 GiB card."""
    found = served("qwen3-8b", "sglang", gpu="24GiB", engine_version="0.5.5")
    reserved = 512 + 1.5 * 2048 + 128 + 2 * 24
    share = round((24 * 1024 - reserved) / (24 * 1024), 3)
    assert found.budget_bytes <= share * 24 * GiB
    assert found.starts
    assert served("qwen3-8b", "sglang", gpu="16GiB").refusal.startswith("Loaded weights leave no")


def test_tgi_keeps_a_tenth() -> None:
    found = served("qwen3-8b", "tgi", gpu="24GiB", max_model_len=8192)
    assert found.starts
    assert found.weights_bytes + found.kv_bytes < 0.95 * 24 * GiB
    assert not served("qwen3-8b", "tgi", gpu="16GiB", max_model_len=8192).starts


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"lora_rank": 16}, "trains nothing"),
        ({"gguf": "q4_k_m"}, "llama.cpp reads"),
        ({"gpu_layers": 3}, "llama.cpp's"),
        ({"kv_cache_dtype": "fp7"}, "kv-cache-dtype"),
        ({"tp": 2, "gpus": 4}, "tp × pp"),
        ({"engine_version": "new"}, "engine-version"),
        ({"task": "dpo"}, "task dpo trains"),
    ],
)
def test_mistakes_name_a_way_forward(said: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=words):
        served("qwen3-0.6b", gpu="24GiB", **said)


@pytest.mark.parametrize(
    ("model", "said", "words"),
    [
        ("bert-base-uncased", {}, "described for decoders"),
        ("t5-small", {}, "described for decoders"),
        ("qwen2.5-7b", {"tp": 3}, "must be divisible by tensor parallel size"),
    ],
)
def test_models_that_no_engine_serves_so(model: str, said: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=words):
        served(model, gpu="24GiB", **said)


def test_engines_formats_are_no_training_formats() -> None:
    with pytest.raises(UnsupportedError, match="serving engines read"):
        estimate(job_from({"model": "qwen3-0.6b", "quantize": "awq", "lora-rank": 8}))


def test_commands_answer_for_engines(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["qwen3-8b", "--engine", "vllm", "--max-model-len", "8192"]
    assert main(["estimate", *job, "--gpu", "rtx4090", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["served"]["starts"] is True
    assert sum(1 for line in answer["served"]["lines"] if "GPU KV cache size" in line) == 1
    assert main(["check", *job, "--gpu", "16GiB"]) == 1
    assert "DOES NOT FIT" in capsys.readouterr().out
    assert main(["plan", *job, "--gpu", "rtx3090", "--quantize", "none"]) == 0
    assert "--kv-cache-dtype fp8" in capsys.readouterr().out
    sweep = ["sweep", *job[:3], "--gpu", "rtx4090", "--batch", "1,64", "--seq", "2048,8192"]
    assert main([*sweep, "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "requests,tokens,kv_bytes,fits"
    assert [line.rsplit(",", 1)[1] for line in lines[1:]] == ["1", "1", "0", "0"]
    assert main(["fit", *job, "--price", "rtx4090=1,rtx3060=1"]) == 0
    assert "RTX 4090" in capsys.readouterr().out
    assert main(["estimate", *job, "--gpu", "16GiB", "--lang", "zh"]) == 1
    assert "将无法启动" in capsys.readouterr().out


def test_advice_makes_the_engine_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-3.1-8b", "--engine", "vllm", "--gpu", "rtx4090", "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert changes[0]["flag"].startswith("--max-model-len")
    assert all(change["served"]["starts"] for change in changes)


def test_every_line_has_a_source() -> None:
    for engine in ("vllm", "sglang", "tgi", "llama.cpp"):
        found = estimate(job_from({"model": "qwen3-8b", "engine": engine, "gpu": "rtx4090"}))
        assert [entry.component for entry in found.ledger.entries if not entry.source] == []


@pytest.mark.parametrize(("engine", "gpus"), [("vllm", 2), ("sglang", 4), ("tgi", 2)])
def test_several_cards_share_each_layer_where_nothing_else_is_said(engine: str, gpus: int) -> None:
    job = Job(model="llama-3.1-8b", gpu="rtx4090", engine=engine, gpus=gpus, max_model_len=8192)
    assumed, said = estimate(job), estimate(replace(job, tp=gpus))
    assert assumed.verdict().highest_bytes == said.verdict().highest_bytes
    assert f"tensor-parallel over {gpus} GPUs (not given)" in assumed.assumptions
    assert assumed.served == said.served


# github.com/unslothai/notebooks: engines with room for adapters, `Model loading took` and weights beside it
ADAPTERS = [
    ("llama-3.2-3b", {"max_lora_rank": 64, "engine_version": "0.8.1"}, 6.2472),
    ("llama-3.2-3b", {"engine_version": "0.8.2"}, 6.0160),
    ("qwen3-8b", {"quantize": "fp8", "max_lora_rank": 32, "engine_version": "0.10.2"}, 8.9638),
    ("qwen3-4b", {"max_lora_rank": 32, "engine_version": "0.8.5"}, 7.6334),
]


@pytest.mark.parametrize(("model", "said", "printed"), ADAPTERS)
def test_room_for_adapters_is_part_of_the_weights(
    model: str, said: dict[str, Any], printed: float
) -> None:
    found = served(model, gpu="40GiB", max_model_len=2048, **said)
    assert found.weights_bytes / GiB == pytest.approx(printed, rel=0.002)


def test_adapters_of_two_ranks() -> None:
    """A of a layer cut by its output is whole on every rank, B is divided: 36 layers of Qwen3-8B in rank 16."""
    plain = served("qwen3-8b", gpu="40GiB", max_model_len=2048, tp=2)
    asked = served("qwen3-8b", gpu="40GiB", max_model_len=2048, tp=2, max_lora_rank=16, max_loras=3)
    by_output = 3 * 4096 + 2048 + 2 * 512 + 2 * 4096 + 2 * 6144
    by_input = 2048 + 4096 + 6144 + 4096
    assert asked.weights_bytes - plain.weights_bytes == 36 * (by_output + by_input) * 16 * 3 * 2


@pytest.mark.parametrize(
    ("engine", "said", "words"),
    [
        ("sglang", {"max_lora_rank": 16}, "described for vLLM alone"),
        ("vllm", {"max_loras": 2}, "say how large"),
    ],
)
def test_adapters_that_cannot_be_said(engine: str, said: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=words):
        served("qwen3-8b", engine, gpu="40GiB", **said)


@pytest.mark.parametrize(
    ("model", "length"),
    [("gemma-3-27b", 131072), ("gemma-3-4b", 131072), ("qwen2-57b-a14b", 32768)],
)
def test_a_length_that_the_config_leaves_out_is_its_class_s(model: str, length: int) -> None:
    """Composite configs write down what differs from their class alone."""
    assert request(model, gpu="h200", tp=2).max_model_len == length


@pytest.mark.slow
def test_lengths_of_classes_are_those_of_transformers() -> None:
    from transformers import AutoConfig

    from vramcast.models.read.positions import OF_CLASS

    for kind, length in OF_CLASS.items():
        assert AutoConfig.for_model(kind).max_position_embeddings == length, kind
