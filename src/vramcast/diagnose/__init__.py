"""Printed text → observations → findings, hypotheses and advice. Start at `diagnosis`. Prints nothing itself.

>>> import vramcast
>>> vramcast.diagnose("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB").reading is not None
True
"""

from __future__ import annotations

from vramcast.callable_package import make_callable

make_callable(__name__)
