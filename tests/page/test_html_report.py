"""The HTML report, its SVG and what a notebook shows: well formed, complete, harmless, in both languages."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

import vramcast
from vramcast.cli import main
from vramcast.job import job_from
from vramcast.ledger import Category
from vramcast.report.html import PART_OF, fragments, render_document, render_notebook
from vramcast.report.picture import render_picture
from vramcast.report.words.page import PARTS
from vramcast.report.words.sentences import translate

VOID = {"meta", "link", "br", "img", "input"}
JOBS = {
    "fits": {"model": "phi-3-mini", "lora": True, "gpu": "a100-80gb"},
    "too large by far": {"model": "llama-3.1-70b", "gpu": "rtx3060"},
    "no card": {"model": "gpt2", "seq": 512},
    "a bare count": {"params": "7B", "gpu": "rtx4090"},
    "many GPUs": {"model": "llama-3.1-8b", "gpus": 16, "strategy": "fsdp2", "gpu": "h100-80gb"},
}


class Outline(HTMLParser):
    """Raises where tags do not nest; keeps names, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID and "/" not in (self.get_starttag_text() or "")[-2:]:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_document_is_whole_and_runs_nothing(job: dict[str, object], lang: str) -> None:
    forecast = vramcast.estimate(job_from(job))
    page = Outline(render_document(forecast, lang))
    verdict = forecast.verdict()
    assert "script" not in {tag for tag, _ in page.tags}
    assert not [
        name for _, found in page.tags for name in found if name in ("src", "href", "style")
    ]
    for entry in forecast.ledger.alive(verdict.peak.phase, verdict.peak.place):
        if entry.nbytes:
            assert f"{entry.nbytes:,} B" in page.text
            assert translate(entry.component, lang) in page.text
    assert len(render_document(forecast, lang).encode()) < 200_000


def test_the_bar_adds_up_to_the_peak() -> None:
    forecast = vramcast.estimate(job_from(JOBS["fits"]))
    verdict = forecast.verdict()
    bar = fragments(forecast)["bar"]
    widths = [float(width) for width in re.findall(r'width="([0-9.]+)%" height="48"', bar)]
    (line,) = re.findall(r'<line class="limit" x1="([0-9.]+)%', bar)
    assert verdict.capacity_bytes is not None
    assert sum(widths) / float(line) == pytest.approx(
        verdict.highest_bytes / verdict.capacity_bytes, rel=1e-3
    )


def test_every_category_has_a_colour() -> None:
    style = (Path(vramcast.__file__).parent / "report" / "style.css").read_text(encoding="utf-8")
    assert set(PART_OF) == {str(category) for category in Category}
    assert set(PART_OF.values()) == set(PARTS)
    for part in PARTS:
        assert style.count(f"--{part}: #") == 3  # light, dark by the system, dark by choice
        assert f".part-{part} " in style


def test_a_hostile_name_stays_text(tmp_path: Path) -> None:
    config = json.loads(
        (Path(vramcast.__file__).parent / "catalog/data/models/gpt2.json").read_text("utf-8")
    )
    path = tmp_path / "<img src=x onerror=alert(1)>&'\".json"
    path.write_text(json.dumps(config), encoding="utf-8")
    forecast = vramcast.estimate(job_from({"model": str(path), "gpu": "rtx4090"}))
    for text in (render_document(forecast), render_notebook(forecast), render_picture(forecast)):
        assert "<img" not in text
    assert escape(path.stem) in render_document(forecast)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_picture_is_xml_with_real_colours(job: dict[str, object], lang: str) -> None:
    picture = render_picture(vramcast.estimate(job_from(job)), lang)
    ElementTree.fromstring(picture)
    assert "var(" not in picture
    assert len(picture.encode()) < 60_000


def test_a_notebook_shows_verdict_and_pictures() -> None:
    shown = vramcast.estimate(job_from(JOBS["too large by far"]))._repr_html_()
    page = Outline(shown)
    assert "DOES NOT FIT" in page.text
    assert "script" not in {tag for tag, _ in page.tags}


def test_the_command_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "out.html", tmp_path / "out.svg"]
    done = main(
        ["estimate", "gpt2", "--gpu", "rtx4090", "--html", str(files[0]), "--svg", str(files[1])]
    )
    assert done == 0
    assert "FITS" in capsys.readouterr().out
    assert all(file.stat().st_size > 5000 for file in files)
    assert main(["estimate", "gpt2", "--html", str(tmp_path / "none" / "x.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
