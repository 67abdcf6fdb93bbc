"""The hook and explain_oom on exceptions as they come: chained, grouped, in threads, from the system, and as text."""

from __future__ import annotations

import errno
import io
import threading
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from vramcast.cli import main
from vramcast.cli.oom_hook import ExceptHook, explain_oom

OOM = (
    "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.57 GiB of which 90.06 MiB is "
    "free. Of the allocated memory 22.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but "
    "unallocated."
)


def raised(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def caused() -> BaseException:
    try:
        try:
            raise RuntimeError(OOM)
        except RuntimeError as error:
            raise ValueError("training stopped") from error
    except ValueError as error:
        return error


def handled() -> BaseException:
    try:
        try:
            raise RuntimeError(OOM)
        except RuntimeError:
            raise KeyError("cleanup")  # noqa: B904 (on purpose: raised while another was handled)
    except KeyError as error:
        return error


@pytest.mark.parametrize("make", [caused, handled])
def test_what_stands_behind_an_exception_is_explained(make: object) -> None:
    assert callable(make)
    text = explain_oom(make())
    assert text is not None
    assert "512.00 MiB" in text


def test_a_suppressed_context_is_not_the_exception() -> None:
    error = handled()
    error.__suppress_context__ = True  # what `raise ... from None` does
    assert explain_oom(error) is None


def test_one_of_a_group_is_enough() -> None:
    group = ExceptionGroup("ranks", [ValueError("a"), ExceptionGroup("b", [RuntimeError(OOM)])])
    text = explain_oom(raised(group))
    assert text is not None
    assert "512.00 MiB" in text
    assert explain_oom(raised(ExceptionGroup("ranks", [ValueError("a")]))) is None


def test_a_chain_that_contains_itself_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert explain_oom(first) is None


def test_the_systems_own_error_is_host_memory() -> None:
    text = explain_oom(raised(OSError(errno.ENOMEM, "Cannot allocate memory")))
    assert text is not None
    assert "Host memory" in text
    assert explain_oom(raised(OSError(errno.ENOENT, "No such file or directory"))) is None
    in_another_language = explain_oom(raised(OSError(errno.ENOMEM, "无法分配内存")))
    assert in_another_language is not None
    assert "Host memory" in in_another_language


def test_text_is_explained_like_an_exception() -> None:
    text = explain_oom(OOM)
    assert text is not None
    assert text.startswith("Answer\n")
    assert explain_oom("all is well") is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_is_explained_and_the_hook_leaves_no_trace() -> None:
    before, stderr = threading.excepthook, io.StringIO()

    def work() -> None:
        raise RuntimeError(OOM)

    with redirect_stderr(stderr), ExceptHook():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert "Answer" in stderr.getvalue()
    assert threading.excepthook is before


@pytest.mark.slow
def test_an_error_of_a_traced_script_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"raise RuntimeError({OOM!r})\n", encoding="utf-8")
    assert main(["trace", str(script), "--gpu", "rtx4090"]) != 0
    assert "Answer" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        f"raise ExceptionGroup('ranks', [ValueError('a'), RuntimeError({OOM!r})])",
        "import errno; raise OSError(errno.ENOMEM, 'Cannot allocate memory')",
        f"import threading; threading.Thread(target=exec, args=({f'raise RuntimeError({OOM!r})'!r},)).start()",
    ],
    ids=["a group", "the system's own error", "a thread"],
)
def test_whatever_a_traced_script_raises_is_explained(
    line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{line}\n", encoding="utf-8")
    main(["trace", str(script), "--gpu", "rtx4090"])
    assert "Answer" in capfd.readouterr().err
