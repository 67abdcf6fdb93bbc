"""Completion as bash itself does it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from vramcast.cli import COMMANDS, main


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _vramcast"
    code = f"{script}\n{asked}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "vramcast", "est") == ["estimate"]
    assert set(completed(script, "vramcast", "")) == set(COMMANDS)
    assert "--lora-rank" in completed(script, "vramcast", "estimate", "gpt2", "--lora")
    assert completed(script, "vramcast", "estimate", "--lang", "z") == ["zh"]
    assert completed(script, "vramcast", "estimate", "gpt2", "--strategy", "zero3") == ["zero3"]
    assert "rtx4090" in completed(script, "vramcast", "estimate", "gpt2", "--gpu", "rtx40")
    assert "qwen3-8b" in completed(script, "vramcast", "estimate", "qwen3-8")
    assert completed(script, "vramcast", "completion", "z") == ["zsh"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in text] == []
