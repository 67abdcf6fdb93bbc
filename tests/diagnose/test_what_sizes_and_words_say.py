# ruff: noqa: E501 (messages keep their lines)
"""Mechanisms by themselves: sizes that are logits, crashes, cards that are named, states that fill a card."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.diagnose.diagnosis import Diagnosis, diagnose
from vramcast.diagnose.logged_job import logged_job
from vramcast.diagnose.readers.log import read_text

MIB = 2**20


def diagnosed(text: str) -> Diagnosis:
    return diagnose(read_text(text))


def causes(text: str) -> list[str]:
    return [item.name for item in diagnosed(text).hypotheses]


def steps(text: str) -> list[str]:
    return [item.step for item in diagnosed(text).advice]


def rules(text: str) -> set[str]:
    return {item.rule for item in diagnosed(text).findings}


def message(mib: int) -> str:
    size = f"{mib}.00 MiB" if mib < 1024 else f"{mib / 1024:.2f} GiB"
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size}. GPU 0 has a total capacity of 79.15 GiB "
        "of which 100.00 MiB is free. Including non-PyTorch memory, this process has 79.04 GiB memory in use. Of the "
        "allocated memory 78.00 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated."
    )


@settings(deadline=None)
@given(
    st.sampled_from((50257, 50304, 128256, 151936, 152064)),
    st.integers(10, 16),
    st.sampled_from((2, 4)),
)
def test_a_power_of_two_of_tokens_times_a_vocabulary_is_logits(
    vocabulary: int, bits: int, itemsize: int
) -> None:
    mib = -(-vocabulary * 2**bits * itemsize // (2 * MIB)) * 2
    exactly_printed = 512 <= mib < 1024 or 2 * 1024 <= mib < 79 * 1024
    assert ("logits_sized" in rules(message(mib))) is exactly_printed, mib


@pytest.mark.parametrize("mib", [512, 768, 1024, 2048, 4096, 8192, 16384, 640, 1000, 3000])
def test_round_sizes_are_no_logits(mib: int) -> None:
    assert "logits_sized" not in rules(message(mib))


@settings(deadline=None)
@given(
    st.sampled_from(
        (
            "RuntimeError: DataLoader worker (pid {}) is killed by signal: Segmentation fault.",
            "torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11) local_rank: 0 (pid: {}) of binary: python",
            "./train.sh: line 12: {} Segmentation fault      (core dumped) python train.py",
            "Signal 11 (SIGSEGV) received by PID {}",
            "['python', 'train.py', '--seed={}'] exits with return code = -11",
            "Process {} finished with exit code 139",
            "train.sh：行 3: {} 段错误 （核心已转储）",
            "Process {} finished with exit code 134 (interrupted by signal 6: SIGABRT)",
        )
    ),
    st.integers(1, 10**6),
)
def test_a_crash_is_no_lack_of_memory(form: str, pid: int) -> None:
    text = form.format(pid)
    assert causes(text) == ["crashed"], text
    assert steps(text) == ["find_the_crash"]


def test_a_crash_that_follows_an_out_of_memory_is_not_the_cause() -> None:
    assert causes(f"{message(300)}\nfailed (exitcode: -6) local_rank: 0")[0] != "crashed"


@pytest.mark.parametrize(
    ("text", "card", "gpus"),
    [
        ("OOM on an 80GB H100 with llama-3-8b", "H100 SXM 80GB", None),
        ("llama-3-8b: OOM on 8*A800 80G", "NVIDIA A800 80GB SXM4", 8),
        ("llama-3-8b: OOM on H200(8*141G)", "H200 SXM 141GB", 8),
        ("llama-3-8b: OOM with 4 RTX3090 (24G)", "GeForce RTX 3090", 4),
        ("llama-3-8b: OOM on a T4 15 GB", "Tesla T4", None),
        ("llama-3-8b: OOM at step 3090 of 4090", None, None),
        ("llama-3-8b: OOM on an A100", None, None),  # there are two sizes
    ],
)
def test_a_card_that_the_text_names_is_the_card(
    text: str, card: str | None, gpus: int | None
) -> None:
    job = logged_job(read_text(text)).job
    assert job is not None
    assert job.gpu == card
    assert job.gpus == (gpus or 1)


def test_a_job_that_the_text_tells_whole_is_priced_without_a_message() -> None:
    text = (
        "H200(8*141G) OOM\nmodel_name_or_path: /m/DeepSeek-R1-Distill-Llama-70B\nfinetuning_type: full\n"
        "deepspeed: ds_z3_config.json\ncutoff_len: 1024\nper_device_train_batch_size: 1"
    )
    diagnosis = diagnosed(text)
    assert diagnosis.gap is not None
    assert diagnosis.hypotheses[0].name == "model_states"
    assert diagnosis.advice[0].step != "smaller_batch"  # it is one


def test_lines_of_ranks_in_json_are_told_apart() -> None:
    def line(rank: int, said: str) -> str:
        return json.dumps({"rank": rank, "level": "error", "message": said})

    failing = [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 7, in main',
        "    loss = model(batch)",
        f"RuntimeError: {message(300)}",
    ]
    other = [
        "Traceback (most recent call last):",
        '  File "/w/other.py", line 99, in elsewhere',
        "    wait()",
        "KeyError: 'x'",
    ]
    mixed = [
        text
        for mine, theirs in zip(failing, other, strict=True)
        for text in (line(1, theirs), line(5, mine))
    ]
    reading = read_text("\n".join(mixed))
    (failure,) = [item for item in reading.observations if item.is_failure()]
    assert failure.rank == 5
    assert [frame.function for frame in reading.frames] == ["main"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("MemoryError: Unable to allocate 3.66 MiB for an array with shape (400, 400, 3) and data type float64", "host_memory"),
        ("MemoryError: Unable to allocate 366. GiB for an array with shape (400, 400, 3) and data type float64", "host_array"),
        ('  File "t.py", line 3, in load\n    x = np.zeros((n, m))\nMemoryError', "host_array"),
        ("    self.pid = os.fork()\nOSError: [Errno 12] Cannot allocate memory", "host_workers"),
        ("> initializing pipeline with size 1\nfailed (exitcode: -9) local_rank: 0 (pid: 2)", "host_load"),
        ("RuntimeError: CUDA error: out of memory\n[0] Tesla V100 | 44'C,   0 % | 15836 / 16130 MB |\n[1] Tesla V100 | 37'C,   0 % |     0 / 16130 MB |", "another_process"),
        ("swift rlhf --rlhf_type grpo --use_vllm true --vllm_mode server\nCUDA out of memory.", "activations"),
        ("swift rlhf --rlhf_type grpo --use_vllm true --vllm_mode colocate\nCUDA out of memory.", "vllm_share"),
    ],
)  # fmt: skip
def test_what_was_seen_decides(text: str, cause: str) -> None:
    assert causes(text)[0] == cause


def test_next_to_a_likely_cause_guesses_are_left_out() -> None:
    assert steps("CUDA oom when saving the final checkpoint") == ["sharded_save"]


def test_half_the_states_of_a_card_do_not_fill_it() -> None:
    assert not {"states_fill_card", "states_fill_card_of_one"} & rules(message(300))
