"""Printed text → observations → findings, hypotheses and advice. Start at `diagnosis`. Prints nothing itself."""

from __future__ import annotations

from vramcast.callable_package import make_callable

make_callable(__name__)
