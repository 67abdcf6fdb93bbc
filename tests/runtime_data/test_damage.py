"""Damaged files: an error that names the file and the row group, and never a shorter epoch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parquet_samples import Write

from vramcast.errors import InputError, VramcastError
from vramcast.host.footer import read_footer
from vramcast.runtime import LowMemDataset, RowGroupSampler
from vramcast.runtime.data.arrow_cache import cache_path


def test_a_truncated_file_says_so(write: Write) -> None:
    path = write(100)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"data\.parquet: no parquet footer.*truncated"):
        LowMemDataset(path)


def test_an_empty_file_and_a_file_without_rows_say_so(write: Write, tmp_path: Path) -> None:
    (tmp_path / "empty.parquet").touch()
    with pytest.raises(InputError, match=r"empty\.parquet: 0 bytes"):
        LowMemDataset(tmp_path / "empty.parquet")
    with pytest.raises(InputError, match=r"data\.parquet: no rows"):
        LowMemDataset(write(0))
    with pytest.raises(InputError, match="no such file"):
        LowMemDataset(tmp_path / "missing.parquet")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"folder: no \*\.parquet file"):
        LowMemDataset(tmp_path / "folder")


def test_an_empty_part_among_others_is_no_loss(write: Write, tmp_path: Path) -> None:
    write(0, name="parts/0.parquet")
    write(10, name="parts/1.parquet")
    assert len(LowMemDataset(tmp_path / "parts")) == 10


def test_something_else_is_not_parquet(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_text("prompt,response\n" * 10)
    with pytest.raises(InputError, match=r"x\.parquet: no parquet footer"):
        LowMemDataset(path)


def test_schema_drift_names_file_column_and_types(write: Write, tmp_path: Path) -> None:
    write(10, name="parts/0.parquet")
    drifted = pa.table({"prompt": ["a"], "response": ["b"], "number": ["not a number"]})
    pq.write_table(drifted, tmp_path / "parts/1.parquet")
    with pytest.raises(
        InputError, match=r"1\.parquet: column 'number' is string, but int64 in .*0\.parquet"
    ):
        LowMemDataset(tmp_path / "parts")
    assert len(LowMemDataset(tmp_path / "parts", columns=["prompt", "response"])) == 11
    pq.write_table(pa.table({"prompt": ["a"]}), tmp_path / "parts/1.parquet")
    with pytest.raises(InputError, match=r"1\.parquet: column 'response' is missing"):
        LowMemDataset(tmp_path / "parts")


def damage_group(path: Path, group: int) -> None:
    column = pq.read_metadata(path).row_group(group).column(1)
    start = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)


def read_epoch(path: Path, mode: str, folder: Path) -> None:
    data = LowMemDataset(path, mode=mode, cache_dir=folder)
    for batch in RowGroupSampler(data, batch_size=8):
        data.__getitems__(batch)


@pytest.mark.parametrize("mode", ["table", "row-groups", "ultra", "mmap"])
def test_a_damaged_row_group_is_named_and_ends_the_epoch(
    write: Write, mode: str, tmp_path: Path
) -> None:
    path = write(100, group=10)
    damage_group(path, 6)
    with pytest.raises(InputError, match=r"data\.parquet, row group 6 of 10: cannot be decoded"):
        read_epoch(path, mode, tmp_path)
    assert not list(tmp_path.glob("*.arrow")), "half a cache must not be left as a whole one"


def test_one_flipped_bit_is_found_where_pages_have_checksums(write: Write) -> None:
    path = write(100, group=10, compression="none", write_page_checksum=True, use_dictionary=False)
    column = pq.read_metadata(path).row_group(4).column(1)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"row group 4 of 10.*CRC"):
        LowMemDataset(path)[45]


@pytest.mark.parametrize("mode", ["table", "row-groups", "ultra", "mmap"])
def test_text_that_is_not_utf8_is_named_by_file_and_row_group(
    write: Write, mode: str, tmp_path: Path
) -> None:
    path = write(100, group=10, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[content.index(b"answer 45")] = 0xFF
    path.write_bytes(content)
    with pytest.raises(
        InputError, match=r"data\.parquet, row group 4 of 10: cannot be decoded.*(utf|UTF)"
    ):
        read_epoch(path, mode, tmp_path)


def test_the_error_crosses_from_a_worker(write: Write) -> None:
    from torch.utils.data import DataLoader

    path = write(100, group=10)
    damage_group(path, 6)
    data = LowMemDataset(path)
    loader = DataLoader(
        data, batch_sampler=RowGroupSampler(data, batch_size=8), num_workers=2, collate_fn=list
    )
    with pytest.raises(InputError, match="row group 6 of 10"):
        list(loader)


def test_a_file_that_changes_under_the_dataset_is_noticed(write: Write) -> None:
    data = LowMemDataset(write(100))
    write(90)
    with pytest.raises(InputError, match="changed since"):
        data[5]


def test_a_damaged_cache_is_noticed_by_its_checksum(write: Write, tmp_path: Path) -> None:
    data = LowMemDataset(write(1000, group=100), mode="mmap", cache_dir=tmp_path)
    assert data[500]["number"] == 500
    cache = cache_path(data.facts, tmp_path)
    content = bytearray(cache.read_bytes())
    at = content.index(b"answer 500")
    content[at] ^= 1
    cache.write_bytes(content)
    again = LowMemDataset(tmp_path / "data.parquet", mode="mmap", cache_dir=tmp_path)
    with pytest.raises(InputError, match=r"chunk \d+ .* is damaged\. Delete"):
        again[500]


def test_a_damaged_manifest_is_noticed(write: Write, tmp_path: Path) -> None:
    data = LowMemDataset(write(100), mode="mmap", cache_dir=tmp_path)
    assert data[5]["number"] == 5
    manifest = cache_path(data.facts, tmp_path).with_suffix(".json")
    manifest.write_text(manifest.read_text().replace('"version": ', '"version": 1'))
    with pytest.raises(InputError, match="manifest is damaged"):
        LowMemDataset(tmp_path / "data.parquet", mode="mmap", cache_dir=tmp_path)[5]


def test_a_cut_cache_is_built_again(write: Write, tmp_path: Path) -> None:
    data = LowMemDataset(write(100), mode="mmap", cache_dir=tmp_path)
    assert data[5]["number"] == 5
    cache = cache_path(data.facts, tmp_path)
    cache.write_bytes(cache.read_bytes()[:-50])
    assert (
        LowMemDataset(tmp_path / "data.parquet", mode="mmap", cache_dir=tmp_path)[99]["number"]
        == 99
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "sound.parquet"
    pq.write_table(
        pa.table({"text": ["abc", None, "d" * 50] * 5, "n": list(range(15))}),
        path,
        row_group_size=5,
    )
    return path.read_bytes()


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_damage_to_a_file_gives_our_error_or_all_rows(
    sound: bytes, tmp_path: Path, data: st.DataObject
) -> None:
    """Bytes flipped anywhere, footer included: never a crash, a hang, or a shorter dataset."""
    content = bytearray(sound)
    for at in data.draw(st.lists(st.integers(0, len(sound) - 1), min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "fuzzed.parquet"
    path.write_bytes(content)
    said = None
    try:
        opened = LowMemDataset(path, budget_bytes=2**30)
        rows = opened.__getitems__(range(len(opened)))
    except VramcastError as error:
        said = str(error)
    assert "fuzzed.parquet" in said if said else len(rows) == len(opened)


def test_a_footer_with_absurd_lengths_is_refused_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "absurd.parquet"
    thrift = bytes([0x49]) + bytes(
        [0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F]
    )  # field 4: a list of 2^32 structs
    path.write_bytes(b"PAR1" + thrift + len(thrift).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(InputError, match="footer is damaged"):
        read_footer(path)
