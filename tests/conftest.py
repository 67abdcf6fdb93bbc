"""Whole modules that judge by real models take minutes: the fast loop leaves them out, `make test` runs them."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

SLOW_MODULES = {
    "diagnose/test_gap.py",
    "diagnose/test_threads_with_job.py",
    "engine/test_checkpointing.py",
    "engine/test_loops.py",
    "engine/test_padding.py",
    "engine/test_three_uses.py",
    "engine/test_whole_step.py",
    "measured/test_rows.py",
    "models/test_further_families.py",
    "models/test_grids.py",
    "models/test_held_bytes.py",
    "models/test_parameters.py",
    "models/test_saved_bytes.py",
    "plan/test_commands.py",
    "plan/test_search.py",
    "plan/test_table.py",
    "project/test_wheel.py",
    "runtime/test_batch_finder.py",
    "runtime/test_edit.py",
    "runtime/test_frameworks.py",
    "runtime/test_moe.py",
    "runtime/test_on_virtual_gpu.py",
    "runtime/test_ranks.py",
    "runtime_data/test_damage.py",
    "runtime_data/test_sampling.py",
    "snapshot/test_snapshot_safety.py",
    "virtual/test_against_cpu.py",
    "virtual/test_distributed.py",
    "virtual/test_processes.py",
    "virtual/test_scripts.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.as_posix().endswith(f"tests/{name}") for name in SLOW_MODULES):
            item.add_marker(pytest.mark.slow)
