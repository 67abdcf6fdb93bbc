"""Files of transformers, TRL, accelerate, DeepSpeed, LLaMA-Factory and axolotl, each expressed by hand first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import main
from vramcast.configs import Understood, job_of_files, understand
from vramcast.errors import InputError, VramcastError
from vramcast.job import Job


def write(folder: Path, **files: str) -> list[Path]:
    paths = []
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def job_in(paths: list[Path], **flags: Any) -> tuple[Job, Understood]:
    return job_of_files(understand(paths), flags)


def check(job: Job, **expected: Any) -> None:
    assert {key: getattr(job, key) for key in expected} == expected


# ---- one file


def test_llama_factory_lora(tmp_path: Path) -> None:
    text = """
model_name_or_path: qwen2.5-7b
stage: sft
finetuning_type: lora
lora_rank: 32
lora_target: q_proj,v_proj
template: qwen
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
enable_liger_kernel: true
flash_attn: fa2
"""
    job, understood = job_in(write(tmp_path, train__yaml=text))
    check(
        job, model="qwen2.5-7b", batch=2, accumulate=4, seq=4096, lora_rank=32, lora_targets=("q_proj", "v_proj"),
        precision="bf16-autocast", attention="flash", loss="fused", checkpointing="full", reentrant=True,
    )  # fmt: skip
    assert (understood.gaps, understood.unknown) == ((), ())
    assert understood.said["seq"].origin.endswith("train.yaml:8 cutoff_len")


def test_llama_factory_full_training_keeps_fp32_weights(tmp_path: Path) -> None:
    text = "model_name_or_path: qwen2.5-0.5b\nstage: sft\nfinetuning_type: full\ntemplate: qwen\nbf16: true\n"
    job, _ = job_in(write(tmp_path, train__yaml=text))
    check(job, precision="bf16-mixed", lora_rank=None, batch=8, seq=2048, checkpointing="full")


def test_llama_factory_pairs_and_quantised_weights(tmp_path: Path) -> None:
    text = """
model_name_or_path: llama-3.1-8b
stage: dpo
template: llama3
quantization_bit: 4
per_device_train_batch_size: 1
fp16: true
disable_gradient_checkpointing: true
"""
    job, _ = job_in(write(tmp_path, train__yaml=text))
    check(
        job,
        batch=1,
        task="dpo",
        quantize="nf4-double",
        lora_rank=8,
        reference="adapter",
        checkpointing="none",
    )
    check(job, precision="fp16-autocast")


def test_axolotl_packs_a_batch_into_one_row(tmp_path: Path) -> None:
    text = """
base_model: mistral-7b
load_in_4bit: true
adapter: qlora
sequence_len: 8192
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
lora_r: 32
lora_dropout: 0.05
lora_target_modules: 'model.layers.[\\d]+.(mlp|self_attn).(up|down|q|v)_proj'
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
flash_attention: true
"""
    job, understood = job_in(write(tmp_path, train__yaml=text))
    check(
        job, batch=1, seq=16384, accumulate=4, quantize="nf4-double", lora_rank=32, optimizer="adamw-8bit",
        lora_targets=("up_proj", "down_proj", "q_proj", "v_proj"), precision="bf16-autocast", attention="flash",
        alloc_conf="expandable_segments:True",
    )  # fmt: skip
    assert understood.gaps == ()


def test_axolotl_fsdp_raises_what_is_trained(tmp_path: Path) -> None:
    text = """
base_model: llama-3.1-8b
sequence_len: 2048
micro_batch_size: 1
val_set_size: 0
fsdp_version: 2
fsdp_config:
  offload_params: true
  reshard_after_forward: true
"""
    job, _ = job_in(write(tmp_path, train__yaml=text), gpus=4)
    check(job, strategy="fsdp2", precision="bf16-mixed", offload="all", gpus=4, checkpointing=None)
    check(job, optimizer_impl="fused")


def test_trl_loads_in_fp32(tmp_path: Path) -> None:
    text = "model_name_or_path: qwen2.5-0.5b\ndataset_name: a/b\npacking: false\nmax_length: 2048\n"
    text += "per_device_train_batch_size: 4\n"
    job, _ = job_in(write(tmp_path, sft__yaml=text))
    check(job, framework="trl", precision="bf16-mixed", seq=2048, batch=4, checkpointing="full")


def test_a_recipe_with_beta_is_a_preference_loss(tmp_path: Path) -> None:
    text = """
model_name_or_path: qwen2.5-0.5b
torch_dtype: bfloat16
dataset_mixer:
  some/pairs: 1.0
beta: 0.1
max_prompt_length: 512
max_length: 1024
per_device_train_batch_size: 2
bf16: true
"""
    job, understood = job_in(write(tmp_path, dpo__yaml=text))
    check(
        job,
        framework="trl",
        batch=2,
        task="dpo",
        reference="same",
        seq=1024,
        precision="bf16-autocast",
    )
    assert any("read as DPO" in text for text in understood.assumptions)


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("orpo", "beta: 0.1\n", {"task": "orpo", "reference": None}),
        ("llama-3-8b-simpo-v2", "beta: 2.0\n", {"task": "dpo", "reference": "none"}),
        ("recipe", "gamma_beta_ratio: 0.5\nbeta: 2.0\n", {"task": "dpo", "reference": "none"}),
        ("kto-lora", "beta: 0.1\nuse_peft: true\n", {"task": "kto", "reference": "adapter"}),
        ("recipe", "reward_funcs: [accuracy]\nnum_generations: 4\n", {"task": "grpo", "rollout_tokens": 512}),
        ("recipe", "packing: false\n", {"task": None}),
    ],
)  # fmt: skip
def test_which_of_trls_trainers(
    tmp_path: Path, name: str, keys: str, expected: dict[str, Any]
) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(
        "model_name_or_path: qwen2.5-0.5b\ndataset_name: a/b\nper_device_train_batch_size: 4\n"
        + keys
    )
    job, _ = job_in([path])
    check(job, framework="trl", batch=4, **expected)


def test_an_unknown_key_that_sounds_like_memory_is_a_gap(tmp_path: Path) -> None:
    text = "model_name_or_path: qwen2.5-7b\nstage: sft\ntemplate: qwen\nhyper_quant_bits: 3\nflux_capacitor: 3\n"
    _, understood = job_in(write(tmp_path, train__yaml=text))
    assert [gap.record.key for gap in understood.gaps if gap.record] == ["hyper_quant_bits"]
    assert [record.key for record in understood.unknown] == ["flux_capacitor"]


# ---- several files


DEEPSPEED = {
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
    },
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}


def test_a_training_file_with_deepspeed_and_accelerate(tmp_path: Path) -> None:
    training = """
model_name_or_path: qwen2.5-7b
stage: sft
finetuning_type: full
template: qwen
deepspeed: ds.json
bf16: true
per_device_train_batch_size: 1
"""
    accelerate = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 8\nnum_machines: 1\n"
    write(tmp_path, ds__json=json.dumps(DEEPSPEED, indent="\t"))
    job, understood = job_in(write(tmp_path, train__yaml=training, accelerate__yaml=accelerate))
    # The hidden size of Qwen2.5-7B is 3584: transformers/integrations/deepspeed.py fills in its square.
    check(
        job,
        strategy="zero3",
        offload="optimizer",
        gpus=8,
        precision="bf16-master",
        reduce_bucket=3584**2,
    )
    assert understood.frameworks == ("LLaMA-Factory", "DeepSpeed", "accelerate config")
    assert (understood.gaps, understood.unknown) == ((), ())


def test_a_deepspeed_file_that_is_not_here_is_known_by_its_name(tmp_path: Path) -> None:
    text = f"{BASE}deepspeed: configs/ds_z2_config.json\nbf16: true\n"
    job, understood = job_in(write(tmp_path, train__yaml=text))
    check(job, strategy="zero2")
    assert any("taken by its name as ZeRO-2" in text for text in understood.assumptions)


def test_paths_outside_of_the_given_folders_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "secret.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    link = tmp_path / "inner" / "link.json"
    link.symlink_to(tmp_path / "secret.json")
    for named in ("../secret.json", "link.json", "/etc/hostname"):
        text = f"model_name_or_path: qwen2.5-7b\nstage: sft\ntemplate: qwen\ndeepspeed: {named}\n"
        job, understood = job_in(write(tmp_path / "inner", train__yaml=text))
        assert job.strategy is None
        assert any("outside of the given folders" in str(gap) for gap in understood.gaps)


def test_an_adapter_in_a_folder_beside_a_training_file(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {
        "peft_type": "LORA",
        "r": 64,
        "target_modules": ["q_proj"],
        "lora_dropout": 0.1,
        "base_model_name_or_path": "qwen2.5-7b",
    }
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    job, _ = job_in([adapter])
    check(job, model="qwen2.5-7b", lora_rank=64, lora_targets=("q_proj",), lora_dropout=0.1)


def test_flags_win_and_say_so(tmp_path: Path) -> None:
    text = "model_name_or_path: qwen2.5-7b\nstage: sft\ntemplate: qwen\ncutoff_len: 4096\n"
    job, understood = job_in(write(tmp_path, train__yaml=text), seq=1024)
    check(job, seq=1024)
    assert understood.said["seq"].origin == "--seq"


def test_versions_pinned_beside_it_are_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(
        "torch==2.6.0\n# note\ntransformers == 4.51.3\naccelerate>=1\n"
    )
    job, understood = job_in(write(tmp_path, train__yaml=BASE))
    check(job, torch_version="2.6.0", transformers_version="4.51.3")
    assert understood.said["transformers-version"].origin.endswith(
        "requirements.txt:3 transformers"
    )


def test_versions_locked_beside_it_are_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(
        'version = 1\n\n[[package]]\nname = "torch"\nversion = "2.7.1"\n\n[[package]]\nname = "trl"\n'
        'version = "0.19.0"\n'
    )
    job, understood = job_in(write(tmp_path, train__yaml=BASE))
    check(job, torch_version="2.7.1", trl_version="0.19.0")
    assert understood.said["trl-version"].origin.endswith("uv.lock:8 trl")


# ---- what is not understood


def test_what_matters_and_has_no_word_is_named_in_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
model_name_or_path: qwen2.5-0.5b
stage: sft
finetuning_type: full
template: qwen
use_badam: true
optim: grokadamw
flux_capacitor: 3
bf16: true
"""
    (path,) = write(tmp_path, train__yaml=text)
    main(["check", "--from", str(path), "--gpu", "rtx4090"])
    assert "settings that matter and are not counted: 2" in capsys.readouterr().out
    main(["estimate", "--from", str(path), "--gpu", "rtx4090"])
    printed = capsys.readouterr().out
    assert "train.yaml:6 use_badam: True" in printed
    assert "train.yaml:8 flux_capacitor: 3" in printed


def test_the_job_command_prints_a_job_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "model_name_or_path: qwen2.5-0.5b\nstage: sft\ntemplate: qwen\nbf16: true\nper_device_train_batch_size: 3\n"
    (path,) = write(tmp_path, train__yaml=text)
    assert main(["job", "--from", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "train.yaml:5 per_device_train_batch_size" in printed
    job_file = tmp_path / "job.yaml"
    job_file.write_text(printed, encoding="utf-8")
    main(["estimate", "--job", str(job_file), "--json"])
    from_job = json.loads(capsys.readouterr().out)
    main(["estimate", "--from", str(path), "--json"])
    from_file = json.loads(capsys.readouterr().out)
    assert from_job["verdict"] == from_file["verdict"]


# ---- mistakes and malice


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 6)}]\n" for n in range(12)
)
BASE = "model_name_or_path: qwen2.5-7b\nstage: sft\ntemplate: qwen\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            BASE + "seq: !!python/object/apply:os.system ['touch /tmp/owned']\n",
            "train.yaml:4: the tag",
        ),
        (BASE + BOMB, "more than 20,000 values"),
        (BASE + "a: " + "[" * 5000, "train.yaml"),
        (BASE + "bf16: true\nfp16: true\n", "bf16 and fp16 are both on"),
        (
            BASE + "per_device_train_batch_size: many\n",
            "train.yaml:4: per_device_train_batch_size must be a whole",
        ),
        (BASE + "cutoff_len: -4\n", "train.yaml:4 cutoff_len: seq must be at least 1"),
        ("hello: world\n", "--framework"),
        ("- 1\n- 2\n", "no settings"),
        ("a: b: c\n", "train.yaml:1: not YAML"),
        ("", "no settings"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(VramcastError) as caught:
        job_in(write(tmp_path, train__yaml=text))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_one_gigabyte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(InputError, match="where at most"):
        understand([path])


def test_the_model_must_be_known(tmp_path: Path) -> None:
    paths = write(tmp_path, train__yaml="stage: sft\ntemplate: qwen\ncutoff_len: 10\n")
    with pytest.raises(InputError, match="do not say which model"):
        job_in(paths)
