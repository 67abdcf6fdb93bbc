"""docs/every-type.md from the results of run.py."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "every-type.md"
HEAD = """# Every model type of transformers

Written by `benchmarks/every_type/table.py` from a run of `benchmarks/every_type/run.py` with transformers {version}:
for every type in its registry a small config (two layers, or as many as it needs), as transformers writes it. The bill
is that of two plain steps in bf16 (fp32 where the class cannot be run in bf16) with AdamW, batch 2, 64 tokens.
{count} of the {all} types of the registry were run.

A model that no formula describes is answered by two steps of its class on the virtual GPU, in a process of its own,
with inputs of its own kind: tokens, pictures (one for each sample, `--images` says otherwise), sound, series. It is
kept in `~/.cache/vramcast/traced-jobs` (`VRAMCAST_NO_CACHE=1` keeps nothing), so it is there at once the next time.

| answered by | types | parameters exact | with old keys |
|---|---:|---:|---:|
{summary}

*formula*: the peak against the trace of the same step. *traced*: the bill is the trace. *refused*: why, in one line;
the parameters are known there too where the class can be built. *not buildable*: transformers builds no model of the
type's default config here: a package is missing, the type needs sizes that have no default, or it is a part of another
model.

| type | class | parameters | by | peak against trace |
|---|---|---:|---|---|
{rows}
"""


def main() -> None:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    texts = [Path(path).read_text(encoding="utf-8") for path in sys.argv[1:]]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    # Of several runs of a type the last one counts.
    rows = sorted({row["type"]: row for row in rows}.values(), key=lambda row: row["type"])
    text = HEAD.format(
        version=transformers.__version__,
        count=len(rows),
        all=len(CONFIG_MAPPING_NAMES),
        summary="\n".join(_summary(rows)),
        rows="\n".join(map(_row, rows)),
    )
    PAGE.write_text(text, encoding="utf-8")


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    found = []
    for by, count in Counter(row["by"] for row in rows).most_common():
        own = [row for row in rows if row["by"] == by]
        exact = sum(
            row.get("counted", row.get("params_old_keys")) == row.get("params", -1) for row in own
        )
        old = sum(row.get("params_old_keys") == row.get("params", -1) for row in own)
        found.append(f"| {by} | {count} | {exact} | {old} |")
    return found


def _row(row: dict[str, Any]) -> str:
    params = f"{row['params']:,}" if "params" in row else ""
    return f"| {row['type']} | {row.get('class', '')} | {params} | {row['by']} | {_beside(row)} |"


def _beside(row: dict[str, Any]) -> str:
    if row["by"] == "formula":
        if "traced" not in row:
            return f"not traced: {_short(row.get('not_traced', ''))}"
        return f"{row['peak'] / row['traced'] - 1:+.2%}"
    return "" if row["by"] == "traced" else _short(row.get("why", ""))


def _short(text: str) -> str:
    text = re.sub(r"/\S*/(config|old)\.json", "config.json", text)
    return text.replace("|", "\\|").replace("\n", " ")[:160]


if __name__ == "__main__":
    main()
