"""Analysis of a memory snapshot -> the JSON of `vramcast snapshot --json`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from vramcast.report.as_json import SCHEMA
from vramcast.snapshot.analysis import Analysis
from vramcast.snapshot.holders import Holder


def as_dict(analysis: Analysis, file_name: str, top: int) -> dict[str, Any]:
    categories: dict[str, int] = {}
    for holder in analysis.holders:
        categories[str(holder.category)] = (
            categories.get(str(holder.category), 0) + holder.allocated_bytes
        )
    return {
        "schema": SCHEMA,
        "file": file_name,
        "device": analysis.device,
        "devices": list(analysis.devices),
        "settings": analysis.settings_text,
        "events": analysis.events,
        "duration_us": analysis.duration_us,
        "peak_allocated_bytes": analysis.peak_allocated.allocated_bytes,
        "peak_reserved_bytes": analysis.peak_reserved.reserved_bytes,
        "peak_allocated": asdict(analysis.peak_allocated),
        "peak_reserved": asdict(analysis.peak_reserved),
        "start": asdict(analysis.start),
        "end": asdict(analysis.end),
        "fragmentation": asdict(analysis.fragmentation),
        "holders": [_holder(holder) for holder in analysis.holders[:top]],
        "holders_total": len(analysis.holders),
        "categories_guessed": categories,
        "ooms": [asdict(oom) for oom in analysis.ooms],
        "unexplained_events": analysis.unexplained_events,
        "replay": None if analysis.replay is None else asdict(analysis.replay),
        "alternatives": [asdict(alternative) for alternative in analysis.alternatives],
        "timeline": asdict(analysis.timeline),
        "notes": list(analysis.notes),
    }


def _holder(holder: Holder) -> dict[str, Any]:
    return {**asdict(holder), "category": str(holder.category), "bytes": holder.allocated_bytes}


def render(analysis: Analysis, file_name: str, top: int) -> str:
    return json.dumps(as_dict(analysis, file_name, top), indent=1)
