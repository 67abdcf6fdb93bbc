"""Parts of models, pixels, sizes and parents of files: each expressed by hand first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramcast.configs import Understood, job_of_files, understand
from vramcast.engine import estimate
from vramcast.job import Job

FACTORY = "stage: sft\ndo_train: true\ntemplate: qwen\nbf16: true\n"
QWEN_TOWER = ("*visual.patch_embed*", "*visual.blocks*", "*visual.merger*")


def job_in(folder: Path, name: str, text: str, **flags: Any) -> tuple[Job, Understood]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return job_of_files(understand([path]), flags)


def check(job: Job, **expected: Any) -> None:
    assert {key: getattr(job, key) for key in expected} == expected


def test_the_last_layers_of_llama_factory(tmp_path: Path) -> None:
    """Qwen2.5-0.5B has 24 layers: 22 and 23 are trained, in fp32; what is frozen stays in bf16."""
    text = f"{FACTORY}model_name_or_path: qwen2.5-0.5b\nfinetuning_type: freeze\n"
    job, understood = job_in(tmp_path, "train.yaml", text + "freeze_trainable_layers: 2\n")
    assert understood.gaps == ()
    frozen = {name for name in job.freeze if "layers" in name}
    assert frozen == {f"*layers.{number}.*" for number in range(22)}
    # One layer: q, k, v with biases, o, three projections, two norms.
    layer = 896 * (896 + 128 + 128) + 896 + 128 + 128 + 896 * 896 + 3 * 896 * 4864 + 2 * 896
    model = estimate(job).model
    assert model is not None
    assert model.params_trainable == 2 * layer


def test_first_layers_and_llama_pro(tmp_path: Path) -> None:
    text = f"{FACTORY}model_name_or_path: qwen2.5-0.5b\nfinetuning_type: freeze\n"
    job, _ = job_in(tmp_path, "train.yaml", text + "freeze_trainable_layers: -2\n")
    trained = {number for number in range(24) if f"*layers.{number}.*" not in job.freeze}
    assert trained == {0, 1}
    pro = "freeze_trainable_layers: 4\nuse_llama_pro: true\n"
    job, _ = job_in(tmp_path, "train.yaml", text + pro)
    trained = {number for number in range(24) if f"*layers.{number}.*" not in job.freeze}
    assert trained == {5, 11, 17, 23}


def test_a_vision_tower_gets_no_adapters(tmp_path: Path) -> None:
    """602,112 pixels are 768 squares of 28 × 28."""
    text = (
        f"{FACTORY}model_name_or_path: qwen2.5-vl-3b\nlora_target: all\nimage_max_pixels: 602112\n"
    )
    job, understood = job_in(tmp_path, "train.yaml", text)
    check(job, freeze=QWEN_TOWER, images=1, image_tokens=768, lora_rank=8)
    assert any("one per sample" in text for text in understood.assumptions)
    free, _ = job_in(tmp_path, "train.yaml", f"{text}freeze_vision_tower: false\n")
    check(free, freeze=("*visual.merger*",))
    script = "MAX_PIXELS=802816 swift sft --model qwen2.5-vl-3b --max_length 2048\n"
    job, _ = job_in(tmp_path, "run.sh", script)
    check(job, freeze=QWEN_TOWER, image_tokens=1024)


def test_megatrons_yaml_and_its_sizes(tmp_path: Path) -> None:
    """Of Llama 3 8B, which Aya and others share but for the vocabulary."""
    text = """ENV_VARS:
  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True
MODEL_ARGS:
  --num-layers: 32
  --hidden-size: 4096
  --ffn-hidden-size: 14336
  --num-attention-heads: 32
  --num-query-groups: 8
  --swiglu: true
  --micro-batch-size: 2
  --global-batch-size: 64
  --seq-length: 4096
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 2
  --bf16: true
  --use-precision-aware-optimizer: true
  --exp-avg-dtype: bf16
  --exp-avg-sq-dtype: bf16
"""
    job, understood = job_in(tmp_path, "model_config.yaml", f"{text}  --vocab-size: 128256\n")
    check(
        job, model="llama-3-8b", batch=2, seq=4096, tp=2, pp=2, gpus=4, state_dtype="bf16",
        alloc_conf="expandable_segments:True", precision="megatron-bf16",
    )  # fmt: skip
    assert any("4 hold one copy" in text for text in understood.assumptions)
    path = tmp_path / "model_config.yaml"
    path.write_text(text)
    assert "model" not in understand([path]).said
    job, _ = job_in(tmp_path, "train_llama3.yaml", text, gpus=8)
    check(job, model="llama-3-8b", accumulate=16)  # 64 / (2 × 8/(2·2) copies)


def test_a_file_that_inherits(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "policy:\n  train_micro_batch_size: 4\n  max_total_sequence_length: 1024\n  dtensor_cfg:\n"
        "    activation_checkpointing: true\ncluster:\n  gpus_per_node: 8\n"
    )
    child = "defaults: base.yaml\npolicy:\n  model_name: qwen2.5-7b\n  train_micro_batch_size: 1\n"
    job, understood = job_in(tmp_path, "child.yaml", child)
    check(job, framework="nemo", batch=1, seq=1024, gpus=8, checkpointing="full", strategy="fsdp2")
    assert understood.gaps == ()
    both = understand([tmp_path / "child.yaml", tmp_path / "base.yaml"])
    assert len(both.parts) == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("optim: adamw_torch_4bit", {"optimizer": "adamw-torchao-4bit"}),
        ("optim: lion_32bit", {"optimizer": "lion", "state_dtype": "fp32"}),
        ("optim: paged_ademamix_8bit", {"optimizer": "paged-ademamix-8bit"}),
        ("use_apollo: true\napollo_rank: 32", {"optimizer": "apollo", "optimizer_rank": 32}),
    ],
)
def test_optimizers_with_words_of_their_own(
    tmp_path: Path, line: str, expected: dict[str, Any]
) -> None:
    text = f"{FACTORY}model_name_or_path: qwen2.5-0.5b\nfinetuning_type: full\n{line}\n"
    job, understood = job_in(tmp_path, "train.yaml", text)
    check(job, **expected)
    assert understood.gaps == ()


def test_cut_cross_entropy_is_on_with_its_plugin(tmp_path: Path) -> None:
    text = "base_model: qwen2.5-0.5b\nsequence_len: 512\nmicro_batch_size: 1\nplugins:\n"
    text += "  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n"
    assert job_in(tmp_path, "train.yaml", text)[0].loss == "fused"
    text += "cut_cross_entropy: false\n"
    assert job_in(tmp_path, "train.yaml", text)[0].loss is None
