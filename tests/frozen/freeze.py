"""Writes frozen.json again: for a change that is meant to move answers, and says so.

python tests/frozen/freeze.py [catalog|others|plans|traces ...]     all parts, or only those named
"""

from __future__ import annotations

import json
import sys

from frozen_jobs import (
    FILE,
    PLANS,
    TRACES,
    catalog_jobs,
    freeze_estimate,
    freeze_plan,
    freeze_trace,
    other_jobs,
)

PARTS = {
    "catalog": lambda: {key: freeze_estimate(values) for key, values in catalog_jobs()},
    "others": lambda: {key: freeze_estimate(values) for key, values in other_jobs()},
    "plans": lambda: {words: freeze_plan(words) for words in PLANS},
    "traces": lambda: {words: freeze_trace(words) for words in TRACES},
}


def main(names: list[str]) -> None:
    frozen = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in names or PARTS:
        frozen[name] = PARTS[name]()
    FILE.write_text(json.dumps(frozen, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
