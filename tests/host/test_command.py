"""`vramcast host` as a user meets it."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vramcast.cli import main


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("chat") / "chat.parquet"
    pq.write_table(
        pa.table({"prompt": ["问题" * 130] * 5000, "response": ["回答" * 430] * 5000}),
        path,
        row_group_size=1000,
    )
    return str(path)


def test_the_verdict_comes_first_and_the_lines_add_up(
    chat: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "host",
                "--dataset",
                chat,
                "--batch",
                "8",
                "--build",
                "cpu",
                "--ram",
                "16GiB",
                "--json",
            ]
        )
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is True
    lines = [
        e
        for e in told["entries"]
        if told["peak_phase"] in e["phases"] and e["level"] == "allocated"
    ]
    assert sum(line["bytes"] for line in lines) == told["peak_bytes"]
    assert told["dataset"]["decoded_bytes"] == 5000 * (780 + 2580 + 8)


def test_the_batch_moves_host_memory_by_kilobytes(
    chat: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--batch", "8", "--compare-batch", "24", "--build", "cpu", "--ram", "16GiB"]
    assert main(["host", "--dataset", chat, *flags]) == 0
    text = capsys.readouterr().out
    assert text.startswith("FITS   CPU memory peak")
    # without workers two batches are held, of three int64 tensors of 512: 2 × 16 × 512 × 8 × 3
    assert "changes CPU memory by 384.00 KiB" in text
    assert "5,000 rows in 5 row groups" in text


def test_too_little_ram_and_too_little_shared_memory_do_not_fit(
    chat: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["host", "--dataset", chat, "--ram", "1GiB"]) == 1
    assert capsys.readouterr().out.startswith("DOES NOT FIT")
    flags = ["--workers", "8", "--batch", "64", "--seq", "4096", "--shm", "64MiB", "--ram", "64GiB"]
    assert main(["host", "--dataset", chat, *flags]) == 1
    assert "/dev/shm is too small: prefetched batches need 102.00 MiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--dataset", "nowhere.parquet"], "nowhere.parquet: no such file"),
        (["--batch", "0"], "--batch 0: at least 1"),
        (["--prefetch", "2"], "prefetch=2 without workers"),
        (["--ram", "lots"], "'lots' is not a size"),
        (["--params", "many"], "'many' is not a count"),
        (["--gpus", "0"], "--gpus 0: at least 1"),
        (["--compare-batch", "0"], "--compare-batch 0: at least 1"),
        (["--workers", "2", "--prefetch", "0"], "--prefetch 0: at least 1"),
        (["--target-seq", "0"], "--target-seq 0: at least 1"),
    ],
)
def test_mistakes_are_one_line(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["host", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_ranks_multiply_what_they_do_not_share(
    chat: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(gpus: str) -> dict[str, int]:
        main(
            [
                "host",
                "--dataset",
                chat,
                "--dataset-mode",
                "mmap",
                "--gpus",
                gpus,
                "--params",
                "7B",
                "--json",
            ]
        )
        return {
            entry["component"]: entry["bytes"]
            for entry in json.loads(capsys.readouterr().out)["entries"]
        }

    one, four = lines("1"), lines("4")
    assert four["weights"] == 4 * one["weights"] == 4 * 28_000_000_000
    for shared in (
        "checkpoint, mapped from disk",
        "Arrow cache, mapped from disk",
        "pyarrow, mapped files",
    ):
        assert four[shared] == one[shared]
