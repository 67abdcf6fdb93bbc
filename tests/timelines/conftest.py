"""The naive allocator's recordings are read here too."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("allocator", "snapshot"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
