"""Any spelling finds the card; what CUDA reports is shown, and nothing is made up where it is unknown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalog.gpus import Gpu, all_gpus, find_gpu, search_gpus
from vramcast.catalog.hardware import Cards, count_cards
from vramcast.catalog.instances import Instance, all_instances, find_instance
from vramcast.catalog.tables import read_rows
from vramcast.errors import UnsupportedError, VramcastError
from vramcast.units import MiB

# Cards of machines that no row of the catalog describes.
CARDS_WITHOUT_FIGURES = {
    "Tesla T4G",
    "AMD Radeon Pro V520",
    "Radeon Pro V520",
    "AMD Radeon Instinct MI25",
    "M4000",
    "P4000",
}


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
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("NVIDIA H20", "NVIDIA H20 96GB"),
        ("NVIDIA A800-SXM4-80GB", "NVIDIA A800 80GB SXM4"),
        ("NVIDIA GeForce RTX 3080 Ti", "GeForce RTX 3080 Ti"),
        ("rtx 4070 super", "GeForce RTX 4070 SUPER"),
        ("4070 ti super", "GeForce RTX 4070 Ti SUPER"),
        ("A100 40GB HBM2e SXM4", "A100 40GB SXM4"),
        ("mi250x", "AMD Instinct MI250X (one die)"),
        # Machines.
        ("g5.12xlarge", "NVIDIA A10G"),
        ("Standard_ND96asr_v4", "A100 40GB SXM4"),
        ("ND96asr_v4", "A100 40GB SXM4"),
        ("colab-t4", "Tesla T4"),
        ("kaggle p100", "Tesla P100 PCIe 16GB"),
        ("gcp a3-highgpu-8g", "H100 SXM 80GB"),
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


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "GeForce RTX 4070 Laptop"),
        ("NVIDIA TITAN V", "TITAN V"),
        ("A6000 Ada", "RTX 6000 Ada"),
        ("AMD Instinct MI325X OAM", "AMD Instinct MI325X"),
        ("NVIDIA H200 NVL", "H200 NVL 141GB"),
    ],
)
def test_a_card_has_a_capacity_by_the_name_that_a_driver_prints(typed: str, name: str) -> None:
    gpu = find_gpu(typed)
    assert gpu.name == name
    assert gpu.capacity_bytes() > 7 * 1024 * MiB


def test_a_laptops_card_is_not_the_desktops() -> None:
    assert find_gpu("rtx 4090 laptop").capacity_bytes() < find_gpu("rtx 4090").capacity_bytes()


@pytest.mark.parametrize(("renter", "machine"), [("kaggle", "kaggle T4 x2"), ("colab", "colab L4")])
def test_who_rents_several_cards_is_asked_for_one_of_them(renter: str, machine: str) -> None:
    with pytest.raises(UnsupportedError, match=f"several cards.*{machine}"):
        find_gpu(renter)
    assert count_cards(machine).count


@pytest.mark.parametrize(
    ("typed", "series"),
    [
        ("rtx-4091", "GeForce RTX 40"),
        ("h300", "H[128]"),
        ("mi400", "AMD Instinct MI"),
        ("v200", "V100"),
        ("rtx 5055", "GeForce RTX 50"),
        # Other cards than those whose names begin like this.
        ("gtx 1080", "GeForce GTX 1080 Ti"),
        ("rtx 2080", "GeForce RTX 2080"),
        ("RTX 4050 Laptop GPU", "GeForce RTX 40"),
    ],
)
def test_an_unknown_name_gets_cards_of_its_series(typed: str, series: str) -> None:
    with pytest.raises(UnsupportedError, match="unknown GPU") as caught:
        find_gpu(typed)
    suggested = re.findall(
        r"(?:Did you mean|,| or) (.*?)(?=,| or|\?)", str(caught.value).partition(" See")[0]
    )
    assert suggested
    assert all(re.search(series, name) for name in suggested), suggested


def test_a_machine_whose_card_is_not_known_says_which_card_it_has() -> None:
    with pytest.raises(UnsupportedError, match=r"g5g.xlarge has Tesla T4G.*--gpu 24GiB"):
        find_gpu("g5g.xlarge")


@pytest.mark.parametrize("instance", all_instances(), ids=lambda instance: instance.name)
def test_every_machine_has_a_card_and_a_source(instance: Instance) -> None:
    assert find_instance(f"{instance.provider}-{instance.name}") is instance
    assert instance.source
    assert instance.count is None or instance.count > 0
    if instance.card not in CARDS_WITHOUT_FIGURES:
        assert find_gpu(f"{instance.provider} {instance.name}").name == instance.card


@pytest.mark.parametrize(
    ("typed", "cards"),
    [
        ("8xh100", Cards("h100", 8)),
        ("8 × H100 SXM", Cards("H100 SXM", 8)),
        ("a100-80gb:4", Cards("a100-80gb", 4)),
        ("H100x8", Cards("H100", 8)),
        ("mi300x", Cards("mi300x")),
        ("24GiB", Cards("24GiB")),
        ("g5.12xlarge", Cards("NVIDIA A10G", 4, 4)),
        ("2x p5.48xlarge", Cards("H100 SXM 80GB", 16, 8)),
        ("kaggle t4 x2", Cards("Tesla T4", 2, 2)),
        ("4x_H100_SECURE", Cards("H100 PCIe 80GB", 4)),
        ("ml.g5.12xlarge", Cards("NVIDIA A10G", 4, 4)),
        ("runpod 4090", Cards("4090")),
        ("lambda 2x h100", Cards("h100", 2)),
        ("DGX H100", Cards("H100 SXM 80GB", 8, 8)),
    ],
)
def test_cards_are_counted(typed: str, cards: Cards) -> None:
    assert count_cards(typed) == cards


@pytest.mark.parametrize("name", ["a16", "apple m4"])
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
        least = 0.65 if gpu.vendor == "apple" else 0.9  # Metal leaves a part to the system
        assert least * gpu.nominal_gb * 2**30 < gpu.total_bytes <= 1.02 * gpu.nominal_gb * 2**30
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
    used = {code for gpu in all_gpus() if gpu.sources for code in gpu.sources.split(" + ")}
    assert used <= known
    assert all(gpu.sources or gpu.total_source for gpu in all_gpus())


def test_search_finds_by_any_part_of_a_name() -> None:
    assert {gpu.name for gpu in search_gpus("mi3")} == {
        "AMD Instinct MI300X",
        "AMD Instinct MI325X",
        "AMD Instinct MI355X",
    }
    assert {gpu.name for gpu in search_gpus("l40")} == {"NVIDIA L40", "NVIDIA L40S"}


@given(st.text(max_size=40))
def test_any_text_is_a_card_or_a_clear_error(text: str) -> None:
    try:
        said = find_gpu(text).name
    except VramcastError as error:
        said = str(error)
    assert said
    assert "\n" not in said
