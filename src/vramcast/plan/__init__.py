"""The cheapest changes that make a job fit. Start at `search`. `vramcast.plan(…)` calls it."""

from __future__ import annotations

from vramcast.callable_package import make_callable

make_callable(__name__)
