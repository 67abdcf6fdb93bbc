"""Layouts of a model over a cluster, as text, Markdown or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramcast.job import Job
from vramcast.report.as_json import SCHEMA
from vramcast.report.table import Column, Row, Table, as_markdown, as_text
from vramcast.report.verdict import fits_text
from vramcast.report.words import say
from vramcast.report.words.tables import DIVIDE
from vramcast.units import format_gib

if TYPE_CHECKING:
    from vramcast.engine import Division


def render_text(
    found: list[Division],
    job: Job,
    *,
    top: int,
    markdown: bool,
    lang: str,
    width: int | None = None,
) -> str:
    sizes = [Column(title=title, right=True) for title in ("tp", "pp", "cp", "dp")]
    columns = (
        *sizes,
        Column(title=say(DIVIDE, "checkpointing", lang)),
        Column(title=say(DIVIDE, "batch", lang), right=True),
        Column(title=say(DIVIDE, "allocated", lang), right=True),
        Column(title=say(DIVIDE, "stage", lang), right=True),
        Column(title=""),
    )
    table = Table(
        title="",
        columns=columns,
        rows=tuple(Row(cells=_cells(each, lang)) for each in found[:top]),
        below=(_count(found, job, top, lang), _how_to_see_one(found[0], job, lang)),
    )
    return as_markdown(table) if markdown else as_text(table, width)


def _cells(each: Division, lang: str) -> tuple[str, ...]:
    return (
        str(each.tp),
        str(each.pp),
        str(each.cp),
        str(each.data),
        each.recompute,
        str(each.batch),
        format_gib(each.allocated_bytes),
        str(each.stage),
        "" if each.fits is None else fits_text(each.fits, lang),
    )


def _count(found: list[Division], job: Job, top: int, lang: str) -> str:
    key = "found" if found[0].fits is None else "found_fitting"
    fitting = sum(each.fits is True for each in found)
    count = say(
        DIVIDE, key, lang, count=f"{len(found):,}", gpus=job.gpus, fitting=fitting, gpu=job.gpu
    )
    return f"{count}; {say(DIVIDE, 'shown', lang, shown=min(top, len(found)))}"


def _how_to_see_one(first: Division, job: Job, lang: str) -> str:
    flags = (
        f"--gpus {job.gpus} --tp {first.tp} --pp {first.pp} --cp {first.cp} "
        f"--checkpointing {first.recompute} --batch {first.batch}"
    )
    return f"{say(DIVIDE, 'more', lang)}: vramcast estimate … {flags}"


def divisions_json(found: list[Division], top: int) -> dict[str, Any]:
    judged = found[0].fits is not None
    return {
        "schema": SCHEMA,
        "legal": len(found),
        "fitting": sum(each.fits is True for each in found) if judged else None,
        "divisions": [
            {
                "tp": each.tp,
                "pp": each.pp,
                "cp": each.cp,
                "data": each.data,
                "recompute": each.recompute,
                "batch": each.batch,
                "allocated_bytes": each.allocated_bytes,
                "stage": each.stage,
                "fits": each.fits,
            }
            for each in found[:top]
        ],
    }
