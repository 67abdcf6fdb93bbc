"""FITS, TIGHT, DOES NOT FIT: on the screen, in the JSON and in exit codes."""

from __future__ import annotations

import json

import pytest

from vramcast.cli import main
from vramcast.forecast import Answer, answer_of
from vramcast.units import GiB

JOB = "gpt2 --batch 4 --seq 512"  # about 4.7 GiB


@pytest.mark.parametrize(
    ("highest", "span", "capacity", "answer"),
    [
        (8, (7, 9), 9, Answer.FITS),
        (8, (7, 10), 9, Answer.TIGHT),
        (10, (7, 12), 9, Answer.DOES_NOT_FIT),
        (9, None, 9, Answer.FITS),
    ],
)
def test_the_range_against_the_card(
    highest: int, span: tuple[int, int] | None, capacity: int, answer: Answer
) -> None:
    assert answer_of(highest, span, capacity) is answer


def _cards(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """A card for each answer, made from the range that the job has."""
    main(["estimate", *JOB.split(), "--gpu", "80GiB", "--json"])
    low, high = json.loads(capsys.readouterr().out)["verdict"]["range_bytes"]
    peak = json.loads(_printed(f"estimate {JOB} --gpu 80GiB --json", capsys))["verdict"]
    middle = (peak["process_bytes"] + high) // 2
    return {
        "fits": f"{(high + GiB) // 2**20}MiB",
        "tight": f"{middle // 2**20}MiB",
        "does not fit": f"{(low - GiB) // 2**20}MiB",
    }


def _printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    main(command.split())
    return capsys.readouterr().out


def test_every_answer_has_its_words_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    for answer, card in _cards(capsys).items():
        command = [*JOB.split(), "--gpu", card]
        code = main(["check", *command])
        assert capsys.readouterr().out.startswith(answer.upper())
        assert code == (1 if answer == "does not fit" else 0)
        assert main(["check", *command, "--strict"]) == (0 if answer == "fits" else 1)
        capsys.readouterr()
        assert main(["estimate", *command, "--json"]) == code
        verdict = json.loads(capsys.readouterr().out)["verdict"]
        assert (verdict["answer"], verdict["fits"]) == (answer, answer != "does not fit")


def test_a_table_of_batches_marks_what_is_tight(capsys: pytest.CaptureFixture[str]) -> None:
    text = _printed("sweep gpt2 --gpu rtx4090 --seq 512 --batch 1,32,64", capsys)
    assert [line.strip()[-1] for line in text.splitlines()[3:6]][1:] == ["~", "×"]
    points = json.loads(
        _printed("sweep gpt2 --gpu rtx4090 --seq 512 --batch 1,32,64 --json", capsys)
    )
    assert [point["answer"] for point in points["points"]] == ["fits", "tight", "does not fit"]


def test_without_a_card_there_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = json.loads(_printed(f"estimate {JOB} --json", capsys))["verdict"]
    assert (verdict["answer"], verdict["fits"]) == (None, None)


def test_a_margin_is_held_against_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = json.loads(_printed(f"estimate {JOB} --gpu 80GiB --json", capsys))["verdict"]
    assert verdict["safe_bytes"] > verdict["process_bytes"]
    between = f"{(verdict['process_bytes'] + verdict['safe_bytes']) // 2 // 2**20}MiB"
    for margin, card, code in (
        (["--margin"], between, 1),
        (["--margin"], "80GiB", 0),
        (["--margin", "1MiB"], between, 0),
        (["--margin", "900%"], between, 1),
    ):
        assert main(["check", *JOB.split(), "--gpu", card, *margin]) == code
        assert "with margin" in capsys.readouterr().out
