"""Analysis of a memory snapshot -> one HTML page that needs nothing else: the timeline, stacked by holder."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files

from vramcast.report.snapshot_json import as_dict
from vramcast.report.snapshot_text import shorten
from vramcast.snapshot.analysis import Analysis

_TEMPLATE = "snapshot_timeline.html"


def render(analysis: Analysis, file_name: str, top: int) -> str:
    data = as_dict(analysis, file_name, top)
    for layer in data["timeline"]["layers"]:
        layer["label"] = shorten(layer["label"])
    for holder in data["holders"]:
        holder["frame"] = shorten(holder["frame"])
    # A "<" inside a script could end it; written as an escape it cannot.
    inline = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    template = files("vramcast.report").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    return template.replace("{{title}}", escape(file_name)).replace("{{data}}", inline)
