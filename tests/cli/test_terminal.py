"""What is printed steers no terminal and needs no encoding but the terminal's own."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from vramcast.cli import main, terminal

STEERING = "\x1b[31m\x07\x7f\x9b\u202e\u2066"


class Output(io.TextIOWrapper):
    """Standard output in some encoding, kept."""

    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined,no-any-return]


def answer(encoding: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    output = Output(encoding)
    monkeypatch.setattr("sys.stdout", output)
    assert main(words) in (0, 1)
    return output.text()


def test_control_characters_are_shown_and_not_sent() -> None:
    assert (
        terminal.clean(f"a{STEERING}\tb\n")
        == r"a\u001b[31m\u0007\u007f\u009b\u202e\u2066" + "\tb\n"
    )
    assert terminal.clean("中文 × █ é\n") == "中文 × █ é\n"


def test_an_error_is_one_line_of_bounded_length() -> None:
    assert terminal.as_line("one\ntwo\r\nthree") == "one two three"
    assert len(terminal.as_line("a" * 10**6)) < 5000


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "gbk", "utf-8"])
@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "gpt2", "--gpu", "rtx4090"), ("estimate", "gpt2", "--gpu", "rtx4090", "--lang", "zh"),
        ("estimate", "gpt2", "--gpu", "rtx4090", "--markdown"), ("models",), ("gpus",), ("params", "gpt2"), ("host",),
        ("fit", "gpt2"),
    ],
)  # fmt: skip
def test_every_encoding_will_do(
    encoding: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(encoding, monkeypatch, *words)


def test_what_an_encoding_lacks_is_drawn_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("estimate", "gpt2", "--gpu", "rtx4090")
    drawn, plain = answer("utf-8", monkeypatch, *words), answer("ascii", monkeypatch, *words)
    assert "█" in drawn
    assert "#" in plain
    assert r"\u" not in plain


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_json_stays_json_and_says_the_same(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = Output(encoding)
    with terminal.screen_of(output):
        print(json.dumps({"name": "中\U0001f600\x9b\u202e\udc80"}, ensure_ascii=False))
    assert json.loads(output.text()) == {"name": "中\U0001f600\x9b\u202e\udc80"}


JOBS = {
    "lora-targets": 'model: gpt2\nlora-rank: 8\nlora-targets: ["\\e[31mred"]\n',
    "freeze": 'model: gpt2\nfreeze: ["\\e]0;title\\a"]\n',
    "model": 'model: "\\e[31mred"\n',
    "gpu": 'model: gpt2\ngpu: "\\x9b31m"\n',
    "unknown key": '"\\e[31mred": 1\n',
    "two lines": 'model: "a\\nb"\n',
    "right to left": 'model: "\\u202Eabc"\n',
}


@pytest.mark.parametrize("text", JOBS.values(), ids=JOBS.keys())
@pytest.mark.parametrize("name", ["job.yaml", "\x1b[31m.yaml"])
def test_a_job_file_steers_no_terminal(
    text: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert main(["estimate", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.strip().isprintable()


def test_words_of_a_config_steer_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "\x1b[31mred"
    folder.mkdir()
    config = {
        "model_type": "gpt2",
        "n_embd": 8,
        "n_head": 2,
        "n_layer": 1,
        "vocab_size": 10,
        "n_positions": 8,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["params", str(folder)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    (folder / "config.json").write_text(
        json.dumps({**config, "n_embd": "\x1b[31m\x9b"}), encoding="utf-8"
    )
    assert main(["params", str(folder)]) == 2
    assert capsys.readouterr().err.strip().isprintable()


def test_a_wrong_flag_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["estimate", "gpt2", "--\x1b[31m"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip().isprintable()
