"""Safetensors headers: what the real library writes is read exactly; what a stranger writes cannot hurt."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from vramcast.errors import InputError, VramcastError
from vramcast.models.read.checkpoint import read_checkpoint, read_header


def write(path: Path, header: Any, data_bytes: int = 0, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(
        (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data_bytes)
    )
    return path


def test_names_shapes_and_dtypes_are_those_the_library_wrote(tmp_path: Path) -> None:
    tensors = {
        "a.weight": torch.zeros(3, 5, dtype=torch.bfloat16),
        "b.bias": torch.zeros(7),
        "ids": torch.zeros(2, dtype=torch.int64),
        "q": torch.zeros(4, 4, dtype=torch.float8_e4m3fn),
        "mask": torch.zeros(2, 2, dtype=torch.bool),
        "scalar": torch.zeros(()),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    params = {param.name: param for param in read_header(tmp_path / "model.safetensors")}
    assert {name: param.shape for name, param in params.items()} == {
        k: tuple(v.shape) for k, v in tensors.items()
    }
    assert {name: param.nbytes for name, param in params.items()} == {
        k: v.nbytes for k, v in tensors.items()
    }
    assert not params["ids"].trainable
    assert params["a.weight"].dtype.name == "bf16"


def test_a_tensor_of_four_bits_counts_as_stored(tmp_path: Path) -> None:
    header = {"w": {"dtype": "F4", "shape": [3, 4], "data_offsets": [0, 6]}}
    (param,) = read_header(write(tmp_path / "x.safetensors", header, 6))
    assert (param.numel, param.nbytes) == (12, 6)


BAD = {
    "empty file": b"",
    "seven bytes": b"1234567",
    "claims terabytes": (5 * 2**40).to_bytes(8, "little") + b"{}",
    "claims everything": b"\xff" * 16,
    "not JSON": (4).to_bytes(8, "little") + b"nope",
    "not an object": (2).to_bytes(8, "little") + b"[]",
    "deeply nested": (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "not UTF-8": (2).to_bytes(8, "little") + b"\xff\xfe",
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_what_is_not_a_header_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "F99"}, "F99"),
        ({"dtype": None}, "dtype"),
        ({"shape": [2, -3]}, "not all sizes"),
        ({"shape": [2, 3.0]}, "not all sizes"),
        ({"shape": [True, 6]}, "not all sizes"),
        ({"shape": [10**30, 3]}, "not all sizes"),
        ({"shape": "23"}, "not a list"),
        ({"shape": [1] * 65}, "not a list"),
        ({"shape": [2**40, 2**40]}, "do not hold"),
        ({"data_offsets": [0]}, "data_offsets"),
        ({"data_offsets": [24, 0]}, "do not hold"),
        ({"data_offsets": [8, 32]}, "starts at 8"),
        ({"data_offsets": [0, 25]}, "do not hold"),
    ],
)
def test_each_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "x.safetensors", {"w": GOOD | change}, 24)
    with pytest.raises(InputError, match=said):
        read_header(path)


def test_a_name_with_control_characters_never_reaches_the_terminal(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"\x1b[31mred\n": GOOD}, 24)
    with pytest.raises(InputError, match=r"\\x1b\[31mred\\n' must be a printable name"):
        read_header(path)


def test_a_download_that_stopped_is_seen(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"w": GOOD}, 23)
    with pytest.raises(InputError, match=r"truncated or damaged.*24 bytes, the file has 23"):
        read_header(path)


def test_two_tensors_on_the_same_bytes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", {"v": GOOD, "w": GOOD}, 24)
    with pytest.raises(InputError, match="starts at 0, not at 24"):
        read_header(path)


def test_a_header_that_claims_terabytes_allocates_nothing(tmp_path: Path) -> None:
    """In a process that may not grow: a read of the claimed length would end in MemoryError."""
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write((2**42).to_bytes(8, "little"))
        file.truncate(2**43)  # sparse: the file really is that long
    code = (
        "import sys\nfrom pathlib import Path\nfrom vramcast.errors import InputError\n"
        "from vramcast.models.read.checkpoint import read_header\n"
        "try:\n    read_header(Path(sys.argv[1]))\nexcept InputError as error:\n    print(error)\n"
    )
    limit = 400 * 2**20
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert "above the 16777216 that are allowed" in done.stdout


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "I8", "F4", "X"]) | json_values,
        "shape": st.lists(st.integers(-1, 2**70), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 200), max_size=3) | json_values,
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    header=st.dictionaries(st.text(max_size=6), entries, max_size=3) | json_values,
    data_bytes=st.integers(0, 64),
)
def test_any_json_header_is_read_or_refused(tmp_path: Path, header: Any, data_bytes: int) -> None:
    path = write(tmp_path / "x.safetensors", header, data_bytes)
    try:
        params = read_header(path)
    except InputError:
        return
    assert sum(param.nbytes for param in params) == data_bytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    try:
        assert isinstance(read_header(path), tuple)
    except VramcastError as error:
        said = str(error)
        assert str(path) in said


# ---- shards


def sharded(folder: Path) -> None:
    save_file({"a.weight": torch.zeros(2, 2)}, folder / "model-00001-of-00002.safetensors")
    save_file({"b.weight": torch.zeros(3)}, folder / "model-00002-of-00002.safetensors")


def write_index(folder: Path, weight_map: Any) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def test_shards_are_read_as_one_with_and_without_an_index(tmp_path: Path) -> None:
    sharded(tmp_path)
    without = read_checkpoint(tmp_path)
    first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    index = write_index(tmp_path, {"a.weight": first, "b.weight": second})
    assert read_checkpoint(tmp_path) == read_checkpoint(index) == without
    assert [param.name for param in without] == ["a.weight", "b.weight"]


def test_an_index_names_the_shards_that_are_missing(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "model-00001-of-00002.safetensors"})
    with pytest.raises(InputError, match="1 of 1 shards are missing: model-00001"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "", 5, None, "x.bin"]
)
def test_an_index_cannot_point_outside_of_its_folder(tmp_path: Path, name: Any) -> None:
    with pytest.raises(InputError, match="is not the name of a safetensors file next to the index"):
        read_checkpoint(write_index(tmp_path, {"a": name}))


@pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
def test_an_index_without_a_map_is_refused(tmp_path: Path, weight_map: Any) -> None:
    with pytest.raises(InputError, match="no weight_map"):
        read_checkpoint(write_index(tmp_path, weight_map))


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    for name in ("x", "y"):
        save_file({"a.weight": torch.zeros(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(InputError, match=r"a\.weight is also in another shard"):
        read_checkpoint(tmp_path)
