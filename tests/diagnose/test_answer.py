# ruff: noqa: E501 (messages keep their lines)
"""The answer: short, certain first, a question where the text does not decide, the job read from the log, no refuted advice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.cli import main
from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.readers.log import read_text
from vramcast.diagnose.readers.logged_words import words_of_job
from vramcast.job import Job
from vramcast.report import diagnose_json, diagnose_text
from vramcast.report.words import LANGUAGES

FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.57 GiB of "
    "which 90.06 MiB is free. Including non-PyTorch memory, this process has 23.47 GiB memory in use. Of the allocated memory "
    "22.90 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated."
)


def diagnosed(text: str, job: Job | None = None) -> Diagnosis:
    """As text and as data as well: both must know the words for whatever is found."""
    diagnosis = diagnose(read_text(text), job)
    for lang in LANGUAGES:
        assert diagnose_text.render(diagnosis, lang=lang)
        assert diagnose_json.render(diagnosis, lang=lang)
    return diagnosis


def rules(diagnosis: Diagnosis) -> set[str]:
    return {finding.rule for finding in diagnosis.findings}


def test_the_answer_comes_first_and_asks_for_what_decides() -> None:
    lines = diagnose_text.render(diagnosed(FULL)).splitlines()
    assert lines[0] == "Answer"
    assert "512.00 MiB was asked for and 90.06 MiB was free" in lines[1]
    assert "does not decide" in lines[2]
    assert "--model" in lines[5]
    assert "--batch" in lines[5]
    assert "--seq" in lines[5]
    assert "nvidia-smi" not in lines[5], "the message says whose memory it is"


def test_what_is_known_is_not_asked_for() -> None:
    text = f'  File "train.py", line 3, in step\n    y = net(x)\nper_device_train_batch_size: 4\n{FULL}'
    question = diagnosed(text).question
    assert question is not None
    assert "batch" not in question.needs
    assert "traceback" not in question.needs
    assert question.causes == ("activations", "model_states")


def test_files_of_the_job_answer_the_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, config = tmp_path / "log.txt", tmp_path / "sft.yaml"
    log.write_text(FULL, encoding="utf-8")
    config.write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B\nfinetuning_type: full\nper_device_train_batch_size: 1\ncutoff_len: 512\n",
        encoding="utf-8",
    )
    assert main(["diagnose", str(log), "--from", str(config)]) == 0
    assert "does not decide" not in capsys.readouterr().out


def test_nothing_is_asked_where_the_text_decides() -> None:
    assert diagnosed(f"    loss = cross_entropy(logits, y)\n{FULL}").question is None


def test_internal_names_are_not_printed() -> None:
    for lang in ("en", "zh"):
        text = diagnose_text.render(diagnosed(FULL), lang=lang)
        assert not re.search(
            r"\b[a-z]+_[a-z]+(?:_[a-z]+)*\b(?<!expandable_segments)", text.replace("nvidia_smi", "")
        )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torchrun --nproc_per_node=8 t.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 4", {"model": "Qwen/Qwen2.5-7B", "batch": "4", "gpus": "8"}),
        ("['python', 't.py', '--model_name_or_path', 'gpt2', '--per_device_train_batch_size', '2']", {"model": "gpt2", "batch": "2"}),
        ("Namespace(model_name='gpt2', batch_size=8, block_size=1024, lora_r=8)", {"model": "gpt2", "batch": "8", "seq": "1024", "lora-rank": "8"}),
        ("O^O/ \\_/ \\    Batch size per device = 2 | Gradient Accumulation steps = 4", {"batch": "2"}),
        ('{"model_name_or_path": "gpt2", "cutoff_len": 512, "quantization_bit": 4}', {"model": "gpt2", "seq": "512", "load-in-4bit": "true"}),
        ("prepare optimizer, data loader etc.", {}),
    ],
)  # fmt: skip
def test_a_log_tells_about_its_job(line: str, said: dict[str, str]) -> None:
    assert dict(words_of_job([line])) == said


def test_a_job_that_the_log_names_is_priced_without_being_asked() -> None:
    # fp32 weights, gradients and two states of gpt2-xl's 1.56e9 parameters: 23.2 GiB
    text = f"python t.py --model_name_or_path gpt2-xl --per_device_train_batch_size 1 --max_seq_length 64\n{FULL}"
    diagnosis = diagnosed(text)
    assert "job_from_log" in rules(diagnosis)
    assert diagnosis.gap is not None
    assert diagnosis.gap.described.job.model == "gpt2-xl"


def test_an_unknown_card_is_asked_for() -> None:
    text = "Namespace(model_name='gpt2', batch_size=8, block_size=1024)\ntorch.cuda.OutOfMemoryError: CUDA out"
    question = diagnosed(text).question
    assert question is not None
    assert question.needs == ("gpu",)


def test_a_model_alone_tells_the_states_from_the_rest() -> None:
    full = "finetuning_type: full"
    too_large = diagnosed(f"model_name_or_path: Qwen/Qwen2.5-7B\n{full}\n{FULL}")
    assert "states_exceed_card" in rules(too_large)
    unsaid = diagnosed(f"model_name_or_path: Qwen/Qwen2.5-7B\n{FULL}")
    assert "states_exceed_card_if_full" in rules(unsaid)
    assert unsaid.hypotheses[0].name == "model_states"
    assert too_large.hypotheses[0].name == "model_states"
    small = diagnosed(f"model_name_or_path: gpt2\n{FULL}")
    assert "states_leave_room" in rules(small)
    assert small.hypotheses[0].name == "activations"


def test_a_number_of_parameters_is_enough_for_the_states() -> None:
    diagnosis = diagnosed(FULL, Job(params=7_000_000_000))
    assert diagnosis.hypotheses[0].name == "model_states"
    assert "job_not_priced" not in rules(diagnosis)


def test_weights_of_a_server_are_set_against_the_card() -> None:
    command = "vllm serve someone/chat-34b --dtype bfloat16 --gpu-memory-utilization 0.9"
    assert diagnosed(f"{command}\n{FULL}").hypotheses[0].name == "loading_the_model"  # 68 GB
    assert diagnosed(f"{command} -tp 4\n{FULL}").hypotheses[0].name == "vllm_share"  # 17 GB each


def test_a_path_in_a_log_is_not_opened(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text("{not json", encoding="utf-8")
    diagnosis = diagnosed(f"--model_name_or_path {folder}\n{FULL}")
    assert diagnosis.gap is None
    assert "job_not_priced" not in rules(diagnosis)


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_a_flat_copy_is_known_by_its_size(copies: int) -> None:
    # 8.08e9 parameters in fp32 are 30.10 GiB, their 16-bit weights 15.05 GiB
    allocated = 15.05 + copies * 30.10 + 0.4
    text = (
        f"CUDA out of memory. Tried to allocate 30.10 GiB. GPU 0 has a total capacity of 79.14 GiB of which 1.72 GiB is free. "
        f"Of the allocated memory {allocated:.2f} GiB is allocated by PyTorch, and 332.09 MiB is reserved by PyTorch but unallocated."
    )
    assert "flat_copy" in rules(diagnosed(text))
    assert "flat_copy" not in rules(
        diagnosed(text.replace(f"{allocated:.2f}", f"{allocated + 6:.2f}"))
    )


def test_the_users_own_line_stands_first_under_where() -> None:
    library = '  File "/x/site-packages/torch/nn/modules/module.py", line 9, in _call_impl\n    return f(*a)\n'
    text = f'Traceback (most recent call last):\n  File "my_train.py", line 3, in fit\n    out = net(x)\n{library * 12}{FULL}'
    shown = diagnose_text.render(diagnosed(text)).split("Where\n")[1].splitlines()
    assert shown[0].strip() == "your code: fit (my_train.py:3)  out = net(x)"


WORDS = (
    "a zombie process?", "no such process", "残留的进程", "CUDA_VISIBLE_DEVICES=0", "vllm serve m", "Real-ESRGAN", "epoch 3", "评估时",
    "DataLoader worker", "batch size 1", "shared memory", "full fine-tuning", "fails after 300 steps", "memory keeps growing",
)  # fmt: skip


@given(
    st.lists(st.sampled_from(WORDS), max_size=4), st.integers(0, 20), st.sampled_from(["en", "zh"])
)
def test_nobody_is_told_to_stop_others_where_this_process_holds_all(
    words: list[str], cached: int, lang: str
) -> None:
    text = (
        f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 40.00 GiB of which 0.50 GiB is free. "
        f"Including non-PyTorch memory, this process has 39.50 GiB memory in use. Of the allocated memory {39 - cached}.00 GiB is "
        f"allocated by PyTorch, and {cached}.00 GiB is reserved by PyTorch but unallocated."
    )
    diagnosis = diagnosed("\n".join([*words, text]))
    steps = {item.step for item in diagnosis.advice}
    assert not steps & {"free_the_card", "free_the_desktop", "more_shm", "pin_ranks"}
    assert "another_process" not in {item.name for item in diagnosis.hypotheses}


@pytest.mark.parametrize("lines", ["\n", "\r\n", "\x1b[0m\n"])
@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[rank3]: ",
        "2026-01-05 10:11:12,345 ",
        "(Worker pid=7) ",
        "│ ",
        "\x1b[31m",
        "   17 ",
        "42:",
        "E   ",
    ],
)
def test_the_same_answer_however_it_is_printed(lines: str, prefix: str) -> None:
    text = [
        "Traceback (most recent call last):",
        '  File "train.py", line 12, in <module>',
        "    loss = F.cross_entropy(logits, labels)",
        FULL,
    ]
    plain, printed = (
        diagnosed("\n".join(text)),
        diagnosed(lines.join(prefix + line for line in text)),
    )
    assert [item.name for item in plain.hypotheses] == [item.name for item in printed.hypotheses]
    assert plain.advice == printed.advice


def test_a_log_in_json_is_read_with_its_frames() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 12, in fit',
        "    loss = F.cross_entropy(a, b)",
        FULL,
    ]
    entries = [
        json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-01-05T10:00:00Z"})
        for line in lines
    ]
    whole = json.dumps(
        {"level": "error", "message": "training failed", "exc_info": "\n".join(lines)}
    )
    for text in ("\n".join(entries), whole):
        diagnosis = diagnosed(text)
        assert diagnosis.hypotheses[0].name == "logits", text
        assert [frame.function for frame in diagnosis.reading.frames] == ["fit"]
        assert len(diagnosis.reading.observations) == 1
