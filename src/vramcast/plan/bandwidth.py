"""How fast bytes cross: between GPUs of a machine, between machines, to the host. Ranges, with where they come from.

In comes a card, out come bytes per second and direction, low and high. Does not know a machine's layout: which GPUs
share a switch, how many network cards there are.
"""

from __future__ import annotations

import re

from vramcast.catalog.gpus import Gpu

Rates = tuple[float, float]  # bytes per second, low and high

# PCI-SIG: GB/s per lane and direction after encoding.
LANE_GB_S = {3: 0.985, 4: 1.969, 5: 3.938}
# Of the nominal rate. High: RTX 4090 with peer access 25.9 of 31.5 GB/s (tinygrad/open-gpu-kernel-modules#36), RTX PRO
# 6000 56 of 63. Low: RTX 2080 Ti without peer access 5.7 of 15.8 (Anthony-Hoo.github.io, AutoDL interconnection test).
PCIE_SHARE = (0.35, 0.88)
# Low: 8 × A100, nccl-tests sendrecv 195 of 300 GB/s a direction (li-plus/playground, cuda/nccl.md). High: assumed.
NVLINK_SHARE = (0.65, 0.85)
# Per GPU. High: torchtitan's platform, 400 Gb/s each (docs/performance.md). Low, assumed: 100 Gb/s shared by 8 GPUs.
NETWORK_BYTES_PER_S = (100e9 / 8 / 8, 400e9 / 8)
# Assumed: two channels of a desktop to eight of a server, of which an optimizer on the CPU reaches about half.
HOST_BYTES_PER_S = (25e9, 100e9)

NVLINK = re.compile(
    r"^(?:NVLink\d|XGMI) ~?(\d+(?:\.\d+)?) GB/s"
)  # both directions together; bridges join pairs only
PCIE = re.compile(r"PCIe (\d)\.0 x(\d+)")


def pcie_rates(gpu: Gpu | None) -> Rates:
    """To the host, one direction; PCIe 4.0 x16 where the card is unknown."""
    found = PCIE.search(gpu.interconnect) if gpu else None
    generation, lanes = (int(found[1]), int(found[2])) if found else (_generation(gpu), 16)
    nominal = LANE_GB_S[generation] * lanes * 1e9
    return (nominal * PCIE_SHARE[0], nominal * PCIE_SHARE[1])


def _generation(gpu: Gpu | None) -> int:
    """Cards on a board of their own say NVLink only: Volta sat on PCIe 3.0, Ampere on 4.0, Hopper and later on 5.0."""
    major = gpu.compute_capability[0] if gpu and gpu.compute_capability else 8
    return 3 if major < 8 else 4 if major == 8 else 5


def link_rates(gpu: Gpu | None) -> Rates:
    """Between GPUs of one machine, one direction of one GPU: NVLink through a switch, or PCIe."""
    found = NVLINK.match(gpu.interconnect) if gpu else None
    if found is None:
        return pcie_rates(gpu)
    one_way = float(found[1]) / 2 * 1e9
    return (one_way * NVLINK_SHARE[0], one_way * NVLINK_SHARE[1])


def group_rates(gpu: Gpu | None, ranks: int, per_node: int) -> Rates:
    """For a collective over so many ranks, placed next to each other: the slowest link decides."""
    inside = link_rates(gpu)
    if ranks <= per_node:
        return inside
    return (min(inside[0], NETWORK_BYTES_PER_S[0]), min(inside[1], NETWORK_BYTES_PER_S[1]))


def crossing_s(nbytes: float, rates: Rates) -> tuple[float, float]:
    """Seconds at the high and at the low rate."""
    return (nbytes / rates[1], nbytes / rates[0])
