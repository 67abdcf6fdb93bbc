"""Which rank of a distributed job the traced process is."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class World:
    """Which rank this is, of how many. Mutable: unless `fixed`, a script says so when it makes its process group."""

    rank: int = 0
    size: int = 1
    fixed: bool = False

    def update(self, rank: int, size: int) -> None:
        """Numbers below 0 are not given: the environment has them, or there is one process."""
        if not self.fixed:
            self.size = size if size > 0 else int(os.environ.get("WORLD_SIZE", 1))
            self.rank = rank if rank >= 0 else int(os.environ.get("RANK", 0))
