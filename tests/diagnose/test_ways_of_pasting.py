"""One answer for one text, however it was pasted: numbered, coloured, quoted, behind a logger's prefix."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable

import pytest
from further_threads import ADDED, FURTHER, KEPT
from unseen_threads import FIRST, LATER, UNTOUCHED

from vramcast.diagnose.diagnosis import diagnose
from vramcast.diagnose.readers.log import read_stream, read_text


def each_line(prefix: str) -> Callable[[str], bytes]:
    return lambda text: "\n".join(prefix + line for line in text.split("\n")).encode()


def numbered(form: str) -> Callable[[str], bytes]:
    def number(text: str) -> bytes:
        lines = enumerate(text.split("\n"), start=1)
        return "\n".join(form.format(at) + line for at, line in lines).encode()

    return number


def coloured(text: str) -> bytes:
    words = r"memory|Tried|GiB|MiB|Killed|Error"
    return re.sub(words, lambda match: f"\x1b[1;33m{match[0]}\x1b[0m", text).encode()


def entries(text: str) -> bytes:
    lines = [
        json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-01-05T10:11:12Z"})
        for line in text.split("\n")
    ]
    return "\n".join(lines).encode()


def records(text: str) -> bytes:
    """What structlog and its kin write: no escapes, the rank as a number."""
    lines = [
        json.dumps({"timestamp": "2026-01-05", "logger": "train", "rank": 3, "message": line})
        for line in text.split("\n")
    ]
    return "\n".join(lines).encode()


WAYS: dict[str, Callable[[str], bytes]] = {
    "carriage returns": lambda text: text.replace("\n", "\r\n").encode(),
    "UTF-16": lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
    "UTF-16 from the large end": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "UTF-8 with a mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "colours inside words": coloured,
    "colours around lines": each_line("\x1b[31m"),
    "numbers of an editor": numbered("{:4d} "),
    "numbers with a colon": numbered("{}: "),
    "a time stamp": each_line("2026-01-05 10:11:12,345 "),
    "a rank": each_line("[rank0]: "),
    "a worker of Ray": each_line("(WorkerDict pid=1234) "),
    "a service of docker": each_line("trainer-1  | "),
    "Kubernetes": each_line("2026-01-05T10:11:12.345678901Z stderr F "),
    "entries of docker": entries,
    "records of structlog": records,
    "Python's logging": each_line("2026-01-05 10:11:12,345 - root - ERROR - "),
    "syslog": each_line("Jan  5 10:11:12 node17 python[1234]: "),
    "labels of srun": each_line("3: "),
    "quoted mail": each_line("> "),
    "indented": each_line("        "),
}


def answer(data: bytes) -> tuple[object, ...]:
    diagnosis = diagnose(read_stream(io.BytesIO(data)))
    failures = [item for item in diagnosis.reading.observations if item.is_failure()]
    numbers = [
        (item.kind, item.requested_bytes, item.capacity_bytes, item.free_bytes, item.process_bytes)
        for item in failures
    ]
    steps = [item.step for item in diagnosis.advice]
    return [item.name for item in diagnosis.hypotheses[:2]], steps, sorted(map(str, numbers))


@pytest.mark.parametrize("way", WAYS)
def test_the_answer_does_not_depend_on_the_way(way: str) -> None:
    for thread in (*FURTHER, *ADDED, *KEPT, *FIRST, *UNTOUCHED, *LATER):
        assert answer(WAYS[way](thread.text)) == answer(thread.text.encode()), thread.source


def test_lines_that_begin_with_numbers_of_their_own_keep_them() -> None:
    text = (
        "CUDA out of memory. Tried to allocate\n2.00 GiB (GPU 0;\n8.00 GiB total capacity;\n6.00 GiB already "
        "allocated; 1.00 GiB free; 6.50 GiB reserved in total by PyTorch)"
    )
    (failure,) = read_text(text).observations
    assert failure.requested_bytes == 2 * 2**30
    assert failure.capacity_bytes == 8 * 2**30


@pytest.mark.parametrize(
    "text",
    [
        "If you run out of memory, lower the batch size.",
        "Use gradient checkpointing to avoid OOM.",
        "epoch 3 loss 1.2 oom=0",
        "Training finished without any OOM.",
        "This may help against CUDA out of memory errors in future releases",
        "16 GB of RAM, 8 workers",
    ],
)
def test_advice_and_conditions_are_no_failures(text: str) -> None:
    assert not [item for item in read_text(text).observations if item.kind.endswith("told")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("My card of 8 GB gets OOM in the first epoch", "gpu_told"),
        ("训练到一半就爆显存了", "gpu_told"),
        ("The script was killed by itself overnight", "host_oom_kill"),
        ("system memory runs out after an hour", "host_told"),
    ],
)
def test_a_failure_told_in_words_is_one(text: str, kind: str) -> None:
    assert [item.kind for item in read_text(text).observations] == [kind]
