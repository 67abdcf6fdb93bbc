"""Models that Hugging Face's or ModelScope's library has on this machine, and, when asked for, those of the Hub.

`find_cached` looks into the caches and opens no connection. `fetch` asks the Hub through huggingface_hub, with the
user's own settings (HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE …): config.json goes into the cache, as with any other
program, and the safetensors headers are read by range requests. Weights are never loaded.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vramcast.errors import InputError, UnsupportedError
from vramcast.files import read_text
from vramcast.models.read.checkpoint import BITS, kind_of
from vramcast.models.record.tape import Param

# owner/name, perhaps with a revision.
HUB_ID = re.compile(r"([\w.-]{1,96}/)?[\w.-]{1,96}(@[\w./-]{1,96})?")
COMMIT = re.compile(r"[0-9a-f]{40}")
MAX_REF_BYTES = 256


@dataclass(frozen=True, slots=True)
class Fetched:
    """What the Hub has of a model: the folder with its config.json, and its tensors where it has safetensors."""

    folder: Path
    stored: tuple[Param, ...] | None


_fetched: dict[str, Fetched] = {}


def is_hub_id(text: str) -> bool:
    return HUB_ID.fullmatch(text) is not None and ".." not in text and "--" not in text


def fetched(text: str) -> Fetched | None:
    """What `fetch` has brought before."""
    return _fetched.get(text)


# ---- what is on this machine


def find_cached(text: str) -> Path | None:
    """The folder of this model in a cache: the snapshot of its revision, `main` if none is named."""
    if not is_hub_id(text):
        return None
    name, _, revision = text.partition("@")
    folder = _cache_folder() / f"models--{name.replace('/', '--')}"
    found = _snapshot(folder, revision or "main") or _modelscope_folder(name)
    return found if found is not None and (found / "config.json").is_file() else None


def _cache_folder() -> Path:
    """As huggingface_hub/constants.py finds it."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Path(named).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def _snapshot(folder: Path, revision: str) -> Path | None:
    """A revision is a branch or tag, which a file in `refs` maps to a commit, or a commit itself."""
    try:
        if COMMIT.fullmatch(revision):
            return folder / "snapshots" / revision
        ref = folder / "refs" / revision
        if ref.is_file():
            commit = read_text(ref, MAX_REF_BYTES).strip()
            return folder / "snapshots" / commit if COMMIT.fullmatch(commit) else None
        snapshots = [path for path in (folder / "snapshots").glob("*") if path.is_dir()]
    except OSError:
        return None
    return (
        max(snapshots, key=lambda path: path.stat().st_mtime)
        if revision == "main" and snapshots
        else None
    )


def _modelscope_folder(name: str) -> Path | None:
    """ModelScope keeps plain folders; a dot in a name is written ___."""
    cache = Path(os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope/hub").expanduser()
    folders = (base / name.replace(".", "___") for base in (cache / "models", cache))
    return next((folder for folder in folders if folder.is_dir()), None) if "/" in name else None


# ---- the Hub, when it is asked for


def fetch(text: str) -> None:
    """Ask the Hub for a model; `read_model` of this name then answers from what it has."""
    if find_spec("huggingface_hub") is None:
        raise UnsupportedError("--hub needs huggingface_hub: pip install 'vramcast[hub]'")
    if not is_hub_id(text):
        raise InputError(f"{text}: --hub takes a model's id on the Hub, such as Qwen/Qwen3-8B")
    name, _, revision = text.partition("@")
    folder = _ask(
        text, lambda hub: hub.hf_hub_download(name, "config.json", revision=revision or None)
    )
    stored = _ask(text, lambda hub: _read_metadata(hub, name, revision or None))
    _fetched[text] = Fetched(Path(folder).parent, stored)


def _read_metadata(hub: Any, name: str, revision: str | None) -> tuple[Param, ...] | None:
    """Every tensor by the headers of the safetensors files; None where there are none."""
    try:
        metadata = hub.get_safetensors_metadata(name, revision=revision)
    except hub.errors.NotASafetensorsRepoError:
        return None
    tensors = (
        (key, info)
        for file in metadata.files_metadata.values()
        for key, info in file.tensors.items()
    )
    return tuple(_param(name, key, info) for key, info in tensors)


def _param(where: str, name: str, info: Any) -> Param:
    if info.dtype not in BITS:
        raise InputError(f"{where}: tensor {name[:80]!r} has dtype {str(info.dtype)[:80]!r}")
    bits, dtype = BITS[info.dtype]
    begin, end = info.data_offsets
    return Param(
        name=name,
        shape=tuple(info.shape),
        kind=kind_of(name, len(info.shape)),
        dtype=dtype,
        trainable=dtype.floating,
        stored_bytes=None if bits == dtype.nbytes * 8 else end - begin,
    )


# The class of an error → what a user can do. The first that fits counts.
ADVICE = (
    ("GatedRepoError", "is gated: accept its conditions on the Hub and set HF_TOKEN"),
    (
        "RepositoryNotFoundError",
        "is not on the Hub, or is private: check the name, or set HF_TOKEN",
    ),
    ("RevisionNotFoundError", "has no such revision"),
    ("SafetensorsParsingError", "has a safetensors file that cannot be read"),
    ("OfflineModeIsEnabled", "was not asked for: HF_HUB_OFFLINE is set"),
    ("Timeout", "did not come in time: try again, or raise HF_HUB_DOWNLOAD_TIMEOUT"),
    ("ConnectError", "could not be asked for: no connection to the Hub"),
    ("LocalEntryNotFoundError", "could not be asked for, and is not in the cache"),
    ("EntryNotFoundError", "has no config.json"),
)


def _ask(text: str, question: Any) -> Any:
    import huggingface_hub

    # Its retries are its own affair: what goes wrong in the end is said here, in one line.
    huggingface_hub.logging.set_verbosity(huggingface_hub.logging.CRITICAL)
    huggingface_hub.utils.disable_progress_bars()
    try:
        return question(huggingface_hub)
    except InputError:
        raise
    except Exception as error:  # whatever the network, the library or the server's answer raises
        raise InputError(f"{text} {_explain(error)}") from None


def _explain(error: BaseException) -> str:
    names: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(names) < 50:
        names += [kind.__name__ for kind in type(cause).__mro__]
        cause = cause.__cause__ or cause.__context__
    for name, advice in ADVICE:
        if any(name in found for found in names):
            return f"{advice}."
    return f"could not be read from the Hub ({type(error).__name__}: {' '.join(str(error).split())[:200]})."
