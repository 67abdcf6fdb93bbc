"""Wrong input is refused in one line that names it; what is ignored is named by a warning. Nothing is silent."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from vramcast import estimate
from vramcast.cli import main
from vramcast.errors import VramcastError
from vramcast.job import FIELDS, Job, Precision, job_from

# command → what the one line on standard error says
REFUSED = {
    "estimate gpt2 --torch-version abc": "torch-version must be a version such as 2.13, not 'abc'",
    "estimate gpt2 --torch-version -1": "torch-version must be a version",
    "estimate gpt2 --transformers-version 4.x": "transformers-version must be a version",
    "estimate gpt2 --transformers-version latest": "not 'latest'",
    "estimate gpt2 --liger-version x": "liger-version must be a version",
    "estimate gpt2 --gpu ''": "--gpu is empty: give a card such as rtx4090",
    "estimate gpt2 --gpu ' '": "--gpu is empty",
    "estimate gpt2 --gpu 24": "Write a size like 24GiB",
    "estimate gpt2 --gpu banana": "unknown GPU 'banana'",
    "estimate gpt2 --gpu 0GiB": "too small for a GPU",
    "estimate gpt2 --gpu rtx4090,a100": "unknown GPU 'rtx4090,a100'",
    "estimate gpt2 --lora-rank 100000": "larger than any matrix of this model (50,257)",
    "estimate gpt2 --lora-rank 0": "lora-rank must be at least 1",
    "estimate gpt2 --lora-rank eight": "lora-rank must be a whole number",
    "estimate gpt2 --lora-rank 8 --lora-targets foo": "Linear modules of this model",
    "estimate gpt2 --lora-rank 8 --lora-dropout 5": "between 0 and 1",
    "estimate gpt2 --seq 5000": "1,024 learned positions",
    "estimate gpt2 --seq 5000 --gpus 2 --strategy ddp": "1,024 learned positions",
    "estimate gpt2 --seq 0": "seq must be at least 1",
    "estimate gpt2 --batch 1.5": "batch must be a whole number",
    "estimate gpt2 --batch many": "not 'many'",
    "estimate gpt2 --batch 1000000000000000": "at most",
    "estimate gpt2 --rollout-batch 4": "needs rollout-tokens",
    "estimate gpt2 --eval-batch 4": "need evaluate",
    "estimate gpt2 --mean-seq 2000 --seq 512": "more than the longest length",
    "estimate gpt2 --precision int3": "unknown precision 'int3'",
    "estimate gpt2 --checkpointing every-0": "every-N",
    "estimate gpt2 --freeze nothing.matches": "matches no parameter",
    "estimate gpt2 --gpus 3 --tp 2": "does not divide",
    "estimate gpt2 --gpus 2 --gpu 8xh100": "differ: give one of them",
    "estimate gpt2 --recompute mlp": "Megatron's layers",
    "estimate gpt2 --alloc-conf foo:bar": "unknown allocator setting 'foo'",
    "estimate gpt2 --cublas-workspace 5": "cublas-workspace must be pairs",
    "estimate gpt2 --dora": "dora needs lora-rank",
    "estimate gpt2 --framework paddle": "unknown framework 'paddle'",
    "estimate gpt2 --sub-device 1": "it needs edit",
    "estimate gpt2 --params 7B": "not both",
    "estimate": "give a model name or --params",
    "estimate ''": "one of the arguments is empty",
    "estimate gpt2 --explain ''": "--explain is empty",
    "estimate gpt2 --freeze=": "--freeze is empty",
    "estimate gpt2 --explain weights --json": "--explain prints text: leave out --json",
    "estimate gpt2 --gpu nan": "--gpu nan is no size",
    "estimate gpt2 --gpu=-24GiB": "--gpu -24GiB is no size",
    "estimate gpt2 --gpu 24PB": "--gpu 24PB is no size",
    "estimate gpt2 --gpu 24TiB": "too large for one GPU",
    "estimate gpt2 --accumulate 100000000": "accumulate must be at most 65536",
    "estimate gpt2 --bf16 --fp16": "bf16 and fp16 contradict each other",
    "estimate gpt2 --qlora --load-in-8bit": "contradict each other",
    "estimate gpt2 --qlora --tuning full": "qlora and tuning full contradict each other",
    "check gpt2 --strict": "give --gpu",
    "gpus '['": "unknown GPU '['",
    "gpus ''": "one of the arguments is empty",
    "models ''": "one of the arguments is empty",
    "snapshot ''": "one of the arguments is empty",
    "diagnose ''": "one of the arguments is empty",
    "host --ram 0": "too small for a machine",
    "host --dataset ''": "--dataset is empty",
    "serve --host ''": "--host is empty",
    "plan gpt2 --gpu rtx4090 --keep ''": "--keep is empty",
    "sweep gpt2 --batch ''": "--batch is empty",
    "estimate nonexist": "unknown model 'nonexist'",
    "estimate /nonexistent/path": "no such file or folder",
    "estimate --params abc": "params must be a count",
    "estimate gpt2 distilgpt2": "unrecognized arguments: distilgpt2",
    "estimate gpt2 --bach 4": "unrecognized arguments: --bach 4",
    "estimate gpt2 --batch": "expected one argument",
    "estimate gpt2 --lang fr": "choose from",
    "estimate gpt2 --job /nonexistent.yaml": "no such file",
    "estimate gpt2 --explain nothinglikeit": "no line matches",
    "sweep gpt2 --seq 2048,4096": "seq 2,048 is longer than the 1,024 learned positions",
    "sweep gpt2 --batch 0..4": "batch must be numbers or ranges",
    "sweep gpt2 --seq abc": "seq must be numbers or ranges",
    "sweep gpt2 --observed foo": "observed must be pairs",
    "fit gpt2 --gpu rtx4090": "vramcast estimate --gpu",
    "fit gpt2 --price foo": "--price is written like",
    "fit gpt2 --most-gpus 0": "at least 1",
    "plan gpt2": "give --gpu",
    "plan gpt2 --gpu rtx4090 --keep foo": "unknown job key for --keep 'foo'",
    "plan gpt2 --gpu rtx4090 --max-slowdown -1": "must be above 0",
    "plan gpt2 --gpu rtx4090 --try nonsense": "`vramcast plan` lists those that apply",
    "check gpt2 --max-growth 5%": "give it with --baseline",
    "check": "give a model name",
    "compare gpt2 nonexist": "unknown model 'nonexist'",
    "divide gpt2": "needs the number of GPUs",
    "host --workers -1": "at least 0",
    "gpus zzzzz": "unknown GPU 'zzzzz'",
    "diagnose /nonexistent": "no such file",
    "snapshot /nonexistent": "no such file",
    "estimat gpt2": "Did you mean estimate?",
    "qwen3-8b --batch 2": "To estimate a model: vramcast estimate qwen3-8b",
    "estimate gpt2 --task generate --prompt 5000": "1,024 learned positions",
    "estimate gpt2 --task generate --prompt 1000 --new-tokens 100": "1,024 learned positions",
    "trace x.py --gpu banana": "unknown GPU 'banana'",
}

# command → the warning that names what was ignored
IGNORED = {
    "estimate gpt2 --images 3": "images 3 has no effect: this model reads no images",
    "estimate gpt2 --image-tokens 500": "image-tokens 500 has no effect",
    "estimate gpt2 --target-seq 100": "target-seq 100 has no effect",
    "estimate gpt2 --torch-version 99.9": "torch 99.9 is newer than 2.13",
    "estimate gpt2 --lora-targets c_attn": "lora-targets c_attn has no effect: it needs lora-rank",
    "estimate gpt2 --lora-dropout 0.5": "lora-dropout 0.5 has no effect",
    "estimate gpt2 --lora-rank 20000": "above the full rank of every matrix",
    "estimate gpt2 --samples 1000": "samples 1000 has no effect",
    "estimate gpt2 --optimizer-rank 64": "optimizer-rank 64 has no effect",
    "estimate gpt2 --checkpointing every-1000": "checkpoints no block: the model has 12",
    "estimate gpt2 --shard-size 4": "shard-size 4 has no effect",
    "estimate gpt2 --virtual-stages 4": "virtual-stages 4 has no effect",
    "estimate gpt2 --reference-dtype bf16": "reference-dtype bf16 has no effect",
    "estimate gpt2 --reward-model gpt2": "reward-model gpt2 has no effect",
    "estimate gpt2 --edit-rank 5": "edit-rank 5 has no effect",
    "estimate gpt2 --expert-capacity 125": "expert-capacity 125 has no effect: this model has no experts",
    "estimate gpt2 --images 3 --gpus 2": "images 3 has no effect",
    "estimate --params 7B --seq 512": "seq 512 has no effect",
    "estimate gpt2 --attention flash --gpu v100-16gb": "needs an Ampere card or newer",
    "estimate llama-2-7b --seq 8192 --lora --gpu a100-80gb": "beyond the 4,096 positions",
    "sweep gpt2 --batch 1 --seq 512,2048": "seq 2048 left out",
    "sweep gpt2 --batch 1": "seq 2048, 4096, 8192 left out",
    "estimate gpt2 --torch-version 0.3": "torch 0.3 is older than 1.10",
    "estimate gpt2 --transformers-version 1": "transformers 1 is older than 4.16",
    "estimate gpt2 --lora-rank 8 --tuning full": "tuning full has no effect",
    "estimate gpt2 --labels 3": "labels 3 has no effect: this model is no classifier here",
    "estimate gpt2 --max-model-len 4096": "max-model-len 4096 has no effect: it needs engine",
    "estimate gpt2 --kv-cache-dtype foo": "kv-cache-dtype foo has no effect: it needs engine",
    "estimate gpt2 --beams 4": "beams 4 has no effect: it needs task generate",
    "estimate gpt2 --rollout-tp 4": "rollout-tp 4 has no effect: it needs rollout-engine",
    "estimate gpt2 --rollout-batch 4 --gpus 2": "rollout-batch 4 has no effect: it needs rollout-tokens",
    "estimate gpt2 --eval-batch 4 --gpus 2": "eval-batch 4 has no effect: it needs evaluate",
    "estimate gpt2 --no-reshard": "reshard false has no effect",
    "estimate gpt2 --reduce-bucket 1000": "reduce-bucket 1000 has no effect",
    "estimate gpt2 --prompt-tokens 9": "prompt-tokens 9 has no effect: it needs framework trl",
    "estimate gpt2 --task generate --loss fused": "loss fused has no effect with task generate",
    "estimate gpt2 --task score --lora-targets x": "lora-targets x has no effect with task score",
    "estimate qwen3-8b --engine vllm --gpu h100 --batch 64": "batch 64 has no effect with engine vllm",
    "estimate qwen3-8b --engine llama.cpp --gpu h100 --enforce-eager": "has no effect with engine llama.cpp",
    "sweep gpt2 --images 3 --seq 128": "images 3 has no effect",
    "fit gpt2 --images 3": "images 3 has no effect",
    "check gpt2 --images 3": "images 3 has no effect",
    "compare gpt2 'gpt2 --images 3'": "images 3 has no effect",
    "divide llama-3.2-1b --gpus 2 --images 3": "images 3 has no effect",
    "estimate gpt2 --batch 2 --batch 4": "--batch is given twice: 4 counts, 2 is ignored",
}


@pytest.mark.parametrize("command", REFUSED)
def test_wrong_input_is_refused_in_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(shlex.split(command))
    except SystemExit as ended:  # argparse ends by itself
        code = int(str(ended.code))
    seen = capsys.readouterr()
    assert (code, seen.out) == (2, "")
    assert len(seen.err.splitlines()) == 1
    assert REFUSED[command] in seen.err
    assert "Traceback" not in seen.err


@pytest.mark.parametrize("command", IGNORED)
def test_what_is_ignored_is_named(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) in (0, 1)
    seen = capsys.readouterr()
    text = " ".join((seen.out + seen.err).split())
    assert "warning: " in text
    assert IGNORED[command] in text


@pytest.mark.parametrize("base", ["gpt2", "llama-3.2-1b --gpus 8 --gpu h100 --strategy fsdp2"])
def test_no_option_of_serving_generating_or_rollouts_is_ignored_without_a_word(base: str) -> None:
    """Every option of these groups, beside a job that trains."""
    plain = estimate(_job(base))
    for name, field in FIELDS.items():
        if field.metadata["group"] not in ("inference", "serving", "phases"):
            continue
        value = _other_value(field)
        try:
            asked = estimate(_job(base).changed(**{name: value}))
        except VramcastError:
            continue
        is_same = asked.ledger.entries == plain.ledger.entries
        assert not is_same or len(asked.warnings) > len(plain.warnings), name


@pytest.mark.parametrize(
    "base",
    ["gpt2 --task generate --prompt 8 --new-tokens 8", "qwen3-8b --engine vllm --gpu h100"],
)
def test_no_option_of_training_is_ignored_without_a_word(base: str) -> None:
    plain = estimate(_job(base))
    for name, field in FIELDS.items():
        if field.metadata["group"] not in ("recipe", "adapter", "loop", "companions", "many gpus"):
            continue
        value = _other_value(field)
        try:
            asked = estimate(_job(base).changed(**{name: value}))
        except VramcastError:
            continue
        is_same = asked.ledger.entries == plain.ledger.entries
        says = len(asked.warnings) > len(plain.warnings)
        assert not is_same or says or name in MAY_CHANGE_NOTHING, name


# They are read by a job that trains nothing, too, and this value is what these jobs do anyway.
MAY_CHANGE_NOTHING = (
    "precision",
    "weights_dtype",
    "frozen_dtype",
    "attention",
    "compile",
    "adapter",
    "quantize",
    "framework",
    "use_cache",
    "offload",
    "gpus_per_node",
)


def _job(line: str) -> Job:
    model, *words = line.split()
    return job_from(
        {"model": model, **dict(zip([w[2:] for w in words[::2]], words[1::2], strict=True))}
    )


def _other_value(field: Any) -> Any:
    """A value of the field's kind that is not its default."""
    for value in (*field.metadata["choices"], *KINDS[field.metadata["kind"]]):
        listed = (value,) if field.metadata["kind"] in ("list", "targets") else value
        if listed != field.default:
            return Precision(listed) if field.name == "precision" else listed
    raise AssertionError(field.name)


KINDS: dict[str, tuple[Any, ...]] = {
    "text": ("x",),
    "version": ("2.4",),
    "int": (3,),
    "count": (1000,),
    "float": (0.3,),
    "flag": (True, False),
    "list": ("x",),
    "targets": ("x",),
}


def test_suggestions_are_near(capsys: pytest.CaptureFixture[str]) -> None:
    """No name is better than one that has nothing to do with what was typed."""
    for command in (
        "estimate nonexist",
        "estimate gpt2 --gpu infGiB",
        "plan gpt2 --gpu h100 --keep foo",
    ):
        assert main(shlex.split(command)) == 2
        assert "Did you mean" not in capsys.readouterr().err


def test_four_bit_lora_is_qlora_however_it_is_said() -> None:
    said = (
        {"qlora": True},
        {"lora": True, "load-in-4bit": True},
        {"tuning": "lora", "load-in-4bit": True},
    )
    assert {job_from({"model": "gpt2", **words}).tuning for words in said} == {"qlora"}


def test_a_job_without_idle_options_is_not_warned(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        "gpt2 --batch 4 --seq 512 --gpu rtx4090",
        "llama-2-7b --qlora --seq 2048 --lora-dropout 0.05",
        "qwen2.5-7b --gpus 8 --gpu h100 --strategy fsdp2 --shard-size 4",
        "t5-small --seq 128 --target-seq 64",
        "gpt2 --framework trl --trl-version 1.16 --gpus 2 --gpus-per-node 2",
    ):
        main(["estimate", *command.split()])
        assert "no effect" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "kernel"),
    [
        ("estimate gpt2 --gpu rtx4090", "flash"),
        ("estimate gpt2 --gpu rtx4090 --precision fp32", "efficient"),
        # grouped heads in fp32: SDPA repeats them only in the math kernel
        ("estimate qwen2.5-0.5b --gpu rtx4090 --precision fp32", "math"),
        ("estimate gpt2 --attention eager", "eager"),
    ],
)
def test_the_report_names_the_kernel_that_the_memory_is_of(
    command: str, kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(command.split())
    assert f"→ {kernel} kernel" in capsys.readouterr().out
