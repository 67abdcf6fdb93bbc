"""Ways to divide a cluster, as text, Markdown or JSON."""

from __future__ import annotations

from typing import Any

from vramcast.engine.parallel.divisions import Candidate
from vramcast.job import Job
from vramcast.report.as_json import SCHEMA
from vramcast.report.sheet import Column, Row, Sheet, as_markdown, as_text
from vramcast.report.words.bill import word
from vramcast.units import format_gib

SIZES = ("tp", "pp", "cp", "data")
ZH = {
    "recompute": "重计算", "batch": "微批大小", "allocated": "已分配峰值", "fullest stage": "最满的阶段",
    "legal divisions of {} GPUs, of which {} fit on {}": "种合法划分（{} 张显卡），其中 {} 种可装入 {}",
    "legal divisions of {} GPUs": "种合法划分（{} 张显卡）",
    "shown: the {} smallest peaks": "显示峰值最小的 {} 种",
    "the whole bill of one": "其中一种的完整账单",
}  # fmt: skip


def _word(text: str, lang: str) -> str:
    return ZH[text] if lang == "zh" else text


def render_text(found: list[Candidate], job: Job, *, top: int, markdown: bool, lang: str) -> str:
    judged = found[0].fits is not None
    titles = (*SIZES, *(_word(each, lang) for each in ("recompute", "batch", "allocated", "fullest stage")))
    columns = tuple(Column(title=title, right=at != len(SIZES)) for at, title in enumerate(titles))
    columns += (Column(title="", right=False),) if judged else ()
    rows = tuple(Row(cells=_cells(each, judged, lang)) for each in found[:top])
    sheet = Sheet(title="", columns=columns, rows=rows, below=tuple(_below(found, job, top, lang)))
    return (as_markdown if markdown else as_text)(sheet).strip("\n")


def _cells(each: Candidate, judged: bool, lang: str) -> tuple[str, ...]:
    verdict = (word("FITS" if each.fits else "DOES NOT FIT", lang),) if judged else ()
    return (
        *(str(getattr(each, name)) for name in SIZES), each.recompute, str(each.batch),
        format_gib(each.allocated_bytes), str(each.stage), *verdict,
    )  # fmt: skip


def _below(found: list[Candidate], job: Job, top: int, lang: str) -> list[str]:
    first, fitting = found[0], sum(each.fits is True for each in found)
    if first.fits is None:
        count = _word("legal divisions of {} GPUs", lang).format(job.gpus)
    else:
        count = _word("legal divisions of {} GPUs, of which {} fit on {}", lang).format(job.gpus, fitting, job.gpu)
    shown = _word("shown: the {} smallest peaks", lang).format(min(top, len(found)))
    flags = (
        f"--gpus {job.gpus} --tp {first.tp} --pp {first.pp} --cp {first.cp} --checkpointing {first.recompute} "
        f"--batch {first.batch}"
    )
    return [f"{len(found):,} {count}; {shown}", f"{_word('the whole bill of one', lang)}: vramcast estimate … {flags}"]


def divisions_json(found: list[Candidate], top: int) -> dict[str, Any]:
    judged = found[0].fits is not None
    return {
        "schema": SCHEMA,
        "legal": len(found),
        "fitting": sum(each.fits is True for each in found) if judged else None,
        "divisions": [
            {
                "tp": each.tp, "pp": each.pp, "cp": each.cp, "data": each.data, "recompute": each.recompute,
                "batch": each.batch, "allocated_bytes": each.allocated_bytes, "stage": each.stage, "fits": each.fits,
            }
            for each in found[:top]
        ],
    }  # fmt: skip
