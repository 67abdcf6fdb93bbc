"""Model-editing jobs: the published sizes, the devices, what a real edited forward keeps, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from vramcast.engine.editing.lines import edit_regime, editor_parameters, inner_params, sub_device
from vramcast.engine.estimate import estimate
from vramcast.engine.prices.sweep import sweep
from vramcast.engine.stream.saved_tensors import kept_bytes
from vramcast.errors import InputError
from vramcast.job import Job, job_from
from vramcast.ledger import Ledger
from vramcast.models.families import record
from vramcast.models.read.config import Config
from vramcast.models.record.program import Sizes
from vramcast.models.record.tape import F32, Regime
from vramcast.runtime.training.edit import FunctionalEdit
from vramcast.setup import resolve

INNER = "layers.2[567].mlp.up_proj,layers.2[567].mlp.down_proj"
ELEMENTS = 6 * 3584 * 18944
EDITOR = 346_660_864


def qwen(**values: Any) -> Job:
    return job_from(
        {
            "model": "qwen2-vl-7b",
            "precision": "bf16-true",
            "batch": 1,
            "seq": 420,
            "edit": INNER,
            **values,
        }
    )


def ledger(**values: Any) -> Ledger:
    return estimate(qwen(**values)).ledger


def lines(found: Ledger, phase: str, place: str = "cuda:0") -> dict[str, int]:
    return found.grouped(
        lambda entry: f"{entry.category}: {entry.component}", phase=phase, place=place
    )


def billed(found: Ledger) -> int:
    """The peak without what the allocator rounds up."""
    rounding = sum(
        entry.nbytes for entry in found.entries if entry.component == "rounding inside blocks"
    )
    return found.peak("cuda:0").allocated_bytes - rounding


def test_the_published_sizes_of_editing_qwen2_vl_7b() -> None:
    forecast = estimate(qwen())
    assert forecast.model is not None
    assert forecast.model.params_total == 8_291_375_616
    assert forecast.model.params_trainable == ELEMENTS == 407_371_776
    found = lines(forecast.ledger, "backward")
    assert found["weights: base model"] == 16_582_751_232
    assert found["weights: editor"] == found["gradients: editor"] == 4 * EDITOR
    assert found["optimizer states: editor: adamw"] == 8 * EDITOR
    assert found["companion models: edited weights"] == 2 * ELEMENTS
    assert found["activations: pseudo-gradients, fp32"] == 4 * ELEMENTS


def test_the_edited_model_is_no_copy() -> None:
    """Beside the base lie six new tensors, not another 16.6 GB."""
    new = lines(ledger(), "forward")["companion models: edited weights"]
    assert new == 814_743_552
    assert ledger().peak("cuda:0").allocated_bytes < 16_582_751_232 * 2.2


@pytest.mark.slow
def test_gradients_of_everything_behind_the_first_inner_weight_cost_2_3_gb() -> None:
    inner = lines(ledger(), "edit")["gradients: of inner parameters"]
    after = lines(ledger(**{"edit-gradients": "all-after"}), "edit")[
        "gradients: of inner parameters"
    ]
    assert inner == 2 * ELEMENTS
    assert round(after / 1e9, 3) == 2.294
    assert billed(ledger()) <= billed(ledger(**{"edit-gradients": "all-after"}))


def test_two_devices_share_the_model_at_the_first_edited_layer() -> None:
    found = ledger(**{"sub-device": 1})
    tail = 1_244_174_336 * 2
    there = {
        name: nbytes
        for name, nbytes in lines(found, "load", "cuda:1").items()
        if "slack" not in name
    }
    assert there == {"weights: layers from the split on, and the head": tail}
    assert lines(found, "load")["weights: base model below the split"] == 16_582_751_232 - tail
    assert found.peak("host").process_bytes == tail
    assert "companion models: edited weights" not in lines(found, "forward")


@pytest.mark.slow
def test_one_gpu_two_gpus_and_the_cut_graph() -> None:
    peaks = {
        (graph, sub): {
            place: ledger(**{"edit-graph": graph, "sub-device": sub}).peak(place).allocated_bytes
            for place in ("cuda:0", "cuda:1")[: 1 + (sub is not None)]
        }
        for graph in ("joint", "cut")
        for sub in (None, "cuda:1")
    }
    one, two = peaks["joint", None]["cuda:0"], peaks["joint", "cuda:1"]
    assert two["cuda:0"] < one
    assert two["cuda:1"] < 10 * 2**30
    assert peaks["cut", None]["cuda:0"] < one
    assert peaks["cut", "cuda:1"]["cuda:0"] < two["cuda:0"] < 24 * 2**30 * 1.1


def test_five_forwards_hold_five_times_what_one_holds() -> None:
    one, five = (lines(ledger(**{"edit-forwards": n}), "forward") for n in (1, 5))
    logits = 420 * 152_064
    assert five["logits and loss: fp32 copies of logits (5×)"] == 5 * 12 * logits
    layers = "activations: layers from the first edited one on"
    assert five[layers] > 3 * one[layers]


# ---- against a real edited forward

SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 704,
    "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 6, "vocab_size": 512,
    "tie_word_embeddings": False,
}  # fmt: skip


def test_an_edited_forward_keeps_what_torch_keeps() -> None:
    names = [
        f"model.layers.{i}.mlp.{which}_proj.weight" for i in (4, 5) for which in ("up", "down")
    ]
    config = transformers.AutoConfig.for_model(**SMALL)
    model = transformers.LlamaForCausalLM._from_config(
        config, dtype=torch.float32, attn_implementation="sdpa"
    )
    edit = FunctionalEdit(model, names)
    real = edit.kept_bytes(edit.prefix({"input_ids": torch.randint(0, 512, (2, 96))}))
    job = Job(
        framework="plain", model="x", edit=("layers.[45].mlp.up_proj", "layers.[45].mlp.down_proj")
    )
    sizes = Sizes(batch=2, seq=96)
    regime = edit_regime(
        resolve(job).editing,
        Config(SMALL),
        Regime(weights=F32, attention="flash", cuda=False),
        sizes,
    )
    program = record(Config(SMALL), regime, sizes)
    ours = sum(
        int(kept_bytes(placed.section))
        for placed in program.sections
        if placed.section.outputs[0].requires_grad
    )
    assert ours == pytest.approx(real, rel=0.03)


def test_frozen_layers_below_keep_nothing() -> None:
    sizes = Sizes(batch=2, seq=96)
    job = Job(framework="plain", model="x", edit=("layers.5.mlp.down_proj",))
    program = record(
        Config(SMALL), edit_regime(resolve(job).editing, Config(SMALL), Regime(), sizes), sizes
    )
    keeping = [placed.name for placed in program.sections if kept_bytes(placed.section)]
    assert keeping == ["model.layers.5", "head"]


def test_an_editor_has_one_network_per_shape() -> None:
    params = list(record(Config(SMALL), Regime(), Sizes()).params())
    job = Job(
        framework="plain",
        model="x",
        edit=("layers.[45].mlp.up_proj", "layers.[45].mlp.down_proj"),
        edit_rank=16,
        edit_hidden=0,
    )
    inner = inner_params(resolve(job).editing, params)
    assert editor_parameters(resolve(job).editing, inner) == 2 * (960 * (2 * 16 + 1 + 2 * 2))


# ---- refusals


@pytest.mark.parametrize(
    ("text", "name"), [("1", "cuda:1"), ("cuda:3", "cuda:3"), ("CUDA:02", "cuda:2"), (1, "cuda:1")]
)
def test_a_device_has_one_name(text: Any, name: str) -> None:
    assert sub_device(resolve(qwen(**{"sub-device": text})).editing, "cuda:0") == name


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"sub-device": "0"}, "both cuda:0"),
        ({"sub-device": "cuda:00"}, "both cuda:0"),
        ({"sub-device": "cpu"}, "cuda:N"),
        ({"edit": "layers.99.mlp.up_proj"}, "matches no parameter"),
        ({"edit": ","}, "list of names"),
        ({"edit": "layers.25.input_layernorm"}, "linear layer"),
        ({"lora-rank": 8}, "lora-rank cannot"),
        ({"reference": "same"}, "reference cannot"),
        ({"accumulate": 2}, "accumulate cannot"),
    ],
)
def test_refusals_say_why(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        estimate(qwen(**values))


def test_a_second_device_without_an_edit_is_refused() -> None:
    with pytest.raises(InputError, match="needs edit"):
        estimate(job_from({"model": "phi-3-mini", "sub-device": "1"}))


def test_sweeps_refuse_editing_jobs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    with pytest.raises(InputError, match="vramcast estimate for each"):
        sweep(job_from({"model": str(tmp_path), "edit": "layers.5.mlp.down_proj"}), (1,), (64,))
