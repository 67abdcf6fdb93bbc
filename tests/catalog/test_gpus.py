"""Any spelling finds the card; what CUDA reports is shown, and nothing is made up where it is unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalog.gpus import Gpu, all_gpus, find_gpu, search_gpus
from vramcast.catalog.tables import read_rows
from vramcast.errors import UnsupportedError, VramcastError
from vramcast.units import MiB


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("rtx4090", "GeForce RTX 4090"),
        ("RTX 4090", "GeForce RTX 4090"),
        ("4090", "GeForce RTX 4090"),
        ("rtx4090-24gb", "GeForce RTX 4090"),
        ("a100-80gb", "A100 80GB SXM4"),
        ("a100 80g", "A100 80GB SXM4"),
        ("h100", "H100 SXM 80GB"),
        ("h100-80gb-sxm", "H100 SXM 80GB"),
        ("rtxpro6000", "RTX PRO 6000 Blackwell"),
        ("L40S", "NVIDIA L40S"),
        ("l40", "NVIDIA L40"),
        # What torch.cuda.get_device_name() prints.
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM4"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB"),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2 16GB"),
        ("Tesla T4", "Tesla T4"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
    ],
)
def test_a_card_is_found_by_what_people_type(typed: str, name: str) -> None:
    assert find_gpu(typed).name == name


def test_capacity_is_what_cuda_reports_not_the_number_on_the_box() -> None:
    assert find_gpu("a100-80gb").total_bytes == 81222 * MiB
    assert find_gpu("rtx 6000 ada").total_bytes == 50_865_307_648


@pytest.mark.parametrize(
    ("size", "total"), [("24GiB", 24 * 2**30), ("24gb", 24 * 10**9), ("23.5 GiB", 47 * 2**29)]
)
def test_a_size_is_an_anonymous_card_of_exactly_that_size(size: str, total: int) -> None:
    assert find_gpu(size).capacity_bytes() == total


def test_an_ambiguous_name_is_not_guessed() -> None:
    with pytest.raises(UnsupportedError, match=r"A100 40GB SXM4.*A100 80GB PCIe"):
        find_gpu("a100")


def test_an_unknown_name_gets_near_ones() -> None:
    with pytest.raises(UnsupportedError, match="4090"):
        find_gpu("rtx-4091")


@pytest.mark.parametrize("name", ["a10", "apple m4"])
def test_a_total_nobody_reported_stays_unknown_and_says_why(name: str) -> None:
    gpu = find_gpu(name)
    assert gpu.total_bytes is None
    with pytest.raises(UnsupportedError, match=r"memory size not in the catalog.*--gpu"):
        gpu.capacity_bytes()


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.name)
def test_every_card_is_consistent(gpu: Gpu) -> None:
    assert find_gpu(gpu.name) is gpu
    assert all(find_gpu(alias) is gpu for alias in gpu.aliases)
    assert (gpu.total_bytes is None) == bool(gpu.gap)
    if gpu.total_bytes is not None and gpu.nominal_gb is not None:
        assert 0.9 * gpu.nominal_gb * 2**30 < gpu.total_bytes <= 1.02 * gpu.nominal_gb * 2**30
    if gpu.context_bytes is not None and gpu.context_range_bytes is not None:
        low, high = gpu.context_range_bytes
        assert low <= gpu.context_bytes <= high
    assert (
        (gpu.vendor == "nvidia")
        == (gpu.compute_capability is not None)
        == (gpu.context_bytes is not None)
    )


def test_no_two_cards_share_a_spelling() -> None:
    spellings = [name.lower() for gpu in all_gpus() for name in (gpu.name, *gpu.aliases)]
    assert sorted(spellings) == sorted(set(spellings))


def test_every_source_code_is_explained() -> None:
    known = {row["code"] for row in read_rows("gpus_source_codes.csv")}
    used = {code for gpu in all_gpus() for code in gpu.sources.split(" + ")}
    assert used <= known


def test_search_finds_by_any_part_of_a_name() -> None:
    assert {gpu.name for gpu in search_gpus("h100")} == {
        "H100 PCIe 80GB",
        "H100 SXM 80GB",
        "H100 NVL 94GB",
    }


@given(st.text(max_size=40))
def test_any_text_is_a_card_or_a_clear_error(text: str) -> None:
    try:
        said = find_gpu(text).name
    except VramcastError as error:
        said = str(error)
    assert said
    assert "\n" not in said
