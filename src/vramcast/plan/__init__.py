"""The cheapest changes that make a job fit. Start at `search`. `vramcast.plan(…)` calls it:

>>> import vramcast
>>> len(vramcast.plan("qwen2.5-7b", seq=4096, gpu="rtx4090").fitting)
4
"""

from __future__ import annotations

from vramcast.callable_package import make_callable

make_callable(__name__)
