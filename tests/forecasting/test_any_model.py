"""Models that no formula describes: a bill from a trace, held against transformers' own classes and a loop by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from vramcast import forecasting
from vramcast.errors import TraceError, UnsupportedError
from vramcast.forecasting import cache, tracer
from vramcast.job import Job, Precision
from vramcast.ledger import Category, Level, Origin
from vramcast.models.families import MODULE_OF
from vramcast.models.read.config import Config
from vramcast.models.read.model import read_model
from vramcast.sandbox import process
from vramcast.virtual.gpu import virtual_gpu
from vramcast.virtual.jobs.trace_any import trace_here

WIDTH = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1200}
MODERNBERT = {"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"], **WIDTH,
              "intermediate_size": 96, "max_position_embeddings": 128, "pad_token_id": 0, "eos_token_id": 1,
              "bos_token_id": 1, "cls_token_id": 1, "sep_token_id": 1}  # fmt: skip
# One of each kind: what it reads, and the class.
KINDS: dict[str, dict[str, Any]] = {
    "text": MODERNBERT,
    "state space": {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], **WIDTH, "num_heads": 8,
                    "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 16,
                    "time_step_limit": [0.0, {"__float__": "Infinity"}]},
    "segmentation": {"model_type": "segformer", "architectures": ["SegformerForSemanticSegmentation"],
                     "hidden_sizes": [8, 16, 24, 32], "decoder_hidden_size": 16, "image_size": 64},
    "sound": {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"], **WIDTH, "conv_dim": [16, 16],
              "conv_stride": [5, 4], "conv_kernel": [10, 4], "num_feat_extract_layers": 2, "intermediate_size": 64},
    "encoder-decoder of speech": {"model_type": "speech_to_text", "d_model": 32, "encoder_layers": 1,
                                  "architectures": ["Speech2TextForConditionalGeneration"], "decoder_layers": 1,
                                  "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
                                  "decoder_ffn_dim": 32, "vocab_size": 1200},
    "pictures in text": {"model_type": "internvl", "architectures": ["InternVLForConditionalGeneration"],
                         "image_token_id": 1100, "downsample_ratio": 0.5,
                         "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                                           "intermediate_size": 32, "image_size": [28, 28], "patch_size": [14, 14],
                                           "model_type": "internvl_vision"},
                         "text_config": {"model_type": "qwen2", **WIDTH, "intermediate_size": 64,
                                         "num_key_value_heads": 2}},
    "detection": {"model_type": "yolos", "architectures": ["YolosForObjectDetection"], **WIDTH,
                  "intermediate_size": 64, "image_size": [64, 96], "num_detection_tokens": 4},
    "regions of a picture": {"model_type": "lxmert", "architectures": ["LxmertModel"], "hidden_size": 32, "l_layers": 1,
                             "num_attention_heads": 2, "intermediate_size": 32, "x_layers": 1, "r_layers": 1,
                             "visual_feat_dim": 24, "vocab_size": 1200},
    "actions": {"model_type": "decision_transformer", "architectures": ["DecisionTransformerModel"],
                "hidden_size": 32, "n_layer": 1, "n_head": 2, "state_dim": 5, "act_dim": 3, "max_ep_len": 100},
    "a prompt of pictures": {"model_type": "seggpt", "architectures": ["SegGptModel"], "hidden_size": 32,
                             "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": [64, 32],
                             "patch_size": 8, "pretrain_image_size": 32, "decoder_hidden_size": 8,
                             "intermediate_hidden_state_indices": [0, 1], "merge_index": 0},
    "pictures beside a text": {"model_type": "blip", "architectures": ["BlipForConditionalGeneration"],
                               "text_config": {"hidden_size": 32, "encoder_hidden_size": 32, "num_hidden_layers": 1,
                                               "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 1200},
                               "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "image_size": 32,
                                                 "num_attention_heads": 2, "intermediate_size": 32, "patch_size": 8}},
    "weights in a dtype of their own": {"model_type": "xlnet", "architectures": ["XLNetLMHeadModel"], "d_model": 32,
                                        "n_layer": 1, "n_head": 2, "d_inner": 32, "vocab_size": 1200},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def job_for(folder: Path, data: dict[str, Any], **options: Any) -> Job:
    path = folder / "config.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    said: dict[str, Any] = {
        "framework": "plain", "precision": Precision.BF16_TRUE, "optimizer": "adamw", "batch": 2, "seq": 64,
        "gpu": "a100-80gb", "task": "pretrain", **options,
    }  # fmt: skip
    return Job(model=str(path), **said)


def built(data: dict[str, Any]) -> Any:
    """transformers' class, by its own way of reading a config file."""
    config = transformers.AutoConfig.for_model(data["model_type"])
    plain = {key: value for key, value in data.items() if key != "model_type"}
    if "time_step_limit" in plain:
        plain["time_step_limit"] = (0.0, float("inf"))
    config = type(config).from_dict(plain)
    with torch.device("meta"):
        return getattr(transformers, data["architectures"][0])._from_config(config)


def answer_here(job: Job) -> dict[str, Any]:
    """What the process of its own would answer, here: starting one takes seconds."""
    assert job.model is not None
    source = read_model(job.model)
    assert source.config is not None
    answers = trace_here({"jobs": [tracer.request_of(job, source.config)]}, None)["answers"]
    assert "error" not in answers[0], answers[0]
    found: dict[str, Any] = answers[0]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_gets_inputs_of_its_own_kind(kind: str, tmp_path: Path) -> None:
    data = KINDS[kind]
    assert data["model_type"] not in MODULE_OF
    job = job_for(tmp_path, data)
    found = answer_here(job)
    numel = sum(p.numel() for p in built(data).parameters())
    assert found["params_total"] == numel
    assert sum(p.numel for p in read_model(str(job.model)).table() if p.tied_to is None) == numel
    assert found["kind"] == data["architectures"][0]
    assert found["left_out"] == []
    wanted = {
        "pictures in text": "pixel_values",
        "sound": "input_values",
        "segmentation": "pixel_values",
        "regions of a picture": "visual_pos",
        "actions": "actions",
        "a prompt of pictures": "prompt_masks",
        "pictures beside a text": "input_ids",
    }
    assert wanted.get(kind, "") in {"", *found["inputs"]}


def test_a_class_without_forward_is_refused_by_name(tmp_path: Path) -> None:
    config = Config({"model_type": "bark"}, "config.json")
    asked = tracer.request_of(job_for(tmp_path, {"model_type": "bark"}), config)
    error = trace_here({"jobs": [asked]}, None)["answers"][0]["error"]
    assert "BarkModel has no forward" in error


def test_a_config_without_a_class_says_whose_part_it_is(tmp_path: Path) -> None:
    job = job_for(tmp_path, {"model_type": "sam_mask_decoder"})
    with pytest.raises(UnsupportedError, match="it is a part of 'sam'"):
        read_model(str(job.model)).table()


def test_a_type_that_is_built_with_anothers_class(tmp_path: Path) -> None:
    sizes = {**WIDTH, "intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 16}
    data = {"model_type": "iquestcoder", **sizes}
    job = job_for(tmp_path, data)
    built_there = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model("iquestcoder", **sizes)
    )
    numel = sum(p.numel() for p in built_there.parameters())
    assert sum(p.numel for p in read_model(str(job.model)).table() if p.tied_to is None) == numel


def test_a_traced_bill_is_that_of_a_loop_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_for(tmp_path, MODERNBERT, gpu="rtx4090")
    forecast = forecasting.estimate(job)  # in a process of its own
    with virtual_gpu("rtx4090", protect=False) as gpu:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        kind = transformers.ModernBertForMaskedLM
        plain = {key: value for key, value in MODERNBERT.items() if key != "model_type"}
        model = kind(transformers.ModernBertConfig(**plain))
        torch.set_default_dtype(before)
        model = model.to("cuda").train()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(2):
            ids = torch.randint(0, 1000, (2, 64)).to("cuda")
            outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids.clone())
            optimizer.zero_grad()
            outputs.loss.backward()
            optimizer.step()
    by_hand = max(
        gpu.ledger().moment(phase, "cuda:0").allocated_bytes
        for phase in gpu.ledger().phases("cuda:0")
    )
    assert forecast.verdict().allocated_bytes == pytest.approx(by_hand, rel=0.001)
    assert forecast.model is not None
    assert forecast.model.params_total == sum(p.numel() for p in built(MODERNBERT).parameters())
    assert forecast.ledger.top_level == Level.PROCESS
    weights = [e for e in forecast.ledger.entries if e.category == Category.WEIGHTS]
    assert {e.origin for e in weights if e.is_device_memory()} == {Origin.TRACED}
    assert any("no formula describes it" in text for text in forecast.assumptions)
    # Asked again, it comes from the cache: no process is started.
    monkeypatch.setattr(process, "run_protected", _no_process)
    again = forecasting.estimate(job)
    assert again.verdict().allocated_bytes == forecast.verdict().allocated_bytes


def _no_process(*_: object) -> dict[str, Any]:
    raise TraceError("a process was started")


def test_what_is_kept_is_never_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.keep("a" * 32, {"seq": 1}) == str(cache.folder())
    assert cache.load("a" * 32) == {"seq": 1}
    path = next(cache.folder().iterdir())
    path.write_bytes(path.read_bytes()[:-9])
    assert cache.load("a" * 32) is None
    monkeypatch.setenv(cache.OFF, "1")
    assert cache.keep("b" * 32, {}) == ""
    monkeypatch.delenv(cache.OFF)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache.keep("c" * 32, {}) == ""
    assert cache.load("c" * 32) is None


def test_the_oldest_are_removed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.keep("a" * 32, {"seq": 1})
    other = cache.folder() / "somebody's file"
    other.write_text("kept")
    monkeypatch.setattr(cache, "MOST_BYTES", 1)
    cache.keep("b" * 32, {"seq": 2})
    assert [path.name for path in cache.folder().iterdir()] == [other.name]


def test_without_torch_states_are_a_lower_bound_and_the_way_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = {"torch", "transformers"}
    for module in ("vramcast.forecasting.tracer", "vramcast.models.read.model"):
        monkeypatch.setattr(
            f"{module}.find_spec", lambda name: None if name in absent else object()
        )
    job = Job(model="modernbert-base", task="pretrain", gpu="rtx4090")
    forecast = forecasting.estimate(job)
    assert forecast.model is not None
    assert forecast.model.params_total == 149_655_232  # answerdotai/ModernBERT-base, tied
    assert any("pip install 'vramcast[trace]'" in text for text in forecast.warnings)
    assert forecast.verdict().fits is None
    with pytest.raises(UnsupportedError, match="pip install 'vramcast"):
        forecasting.estimate(job_for(tmp_path, MODERNBERT))


def refusal(job: Job) -> str:
    config = read_model(str(job.model)).config
    assert config is not None
    return str(trace_here({"jobs": [tracer.request_of(job, config)]}, None)["answers"][0]["error"])


def test_what_cannot_be_run_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "loss chunked" in refusal(job_for(tmp_path, MODERNBERT, loss="chunked"))
    assert "no-such-model" in refusal(job_for(tmp_path, {"model_type": "no-such-model"}))
    natten = {"model_type": "dinat", "architectures": ["DinatForImageClassification"]}
    assert "pip install natten" in refusal(job_for(tmp_path, natten))


@pytest.mark.slow
def test_a_grid_follows_from_a_few_traces(tmp_path: Path) -> None:
    job = job_for(tmp_path, MODERNBERT, gpu="rtx4090")
    table = forecasting.sweep(job, (1, 2, 3), (32, 64, 96))
    alone = forecasting.estimate(job_for(tmp_path, MODERNBERT, gpu="rtx4090", batch=3, seq=96))
    assert int(table.allocated_bytes[2, 2]) == alone.verdict().allocated_bytes
    between = forecasting.estimate(job_for(tmp_path, MODERNBERT, gpu="rtx4090", batch=2, seq=96))
    assert int(table.allocated_bytes[1, 2]) == pytest.approx(
        between.verdict().allocated_bytes, rel=0.001
    )
    assert table.largest == (3, 3, 3)


@pytest.mark.slow
def test_plans_are_traced(tmp_path: Path) -> None:
    from vramcast.plan.search import plan

    wide = {**MODERNBERT, "hidden_size": 512, "num_hidden_layers": 6, "intermediate_size": 1024}
    job = job_for(tmp_path, wide, gpu="8GiB", batch=64, seq=128)
    peak = forecasting.estimate(job).verdict().highest_bytes
    found = plan(job.changed(gpu=f"{0.9 * peak / 2**30:.2f}GiB"))
    assert found.base.verdict().fits is False
    assert found.fitting
    assert all(made.forecast.verdict().fits for made in found.fitting)
