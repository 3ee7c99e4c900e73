"""Many run folders make a page that opens, with what was left out said; and a page without the chart engine is a page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import run_folders
from typer.testing import CliRunner

from headcount.cli.app import app
from headcount.documents.learned import LearnedDocument
from headcount.errors import BadRun
from headcount.reporting import chart_engine
from headcount.reporting import page as report_page
from headcount.reporting.findings import gather, in_detail, sections_of


def several(root: Path, count: int, **naming: str) -> Path:
    """So many runs of `score`, `ablate` and `curve` in turns, of one model, made one after the other."""
    for n in range(count):
        made = run_folders.scores(seed=n)
        kind = ("score", "ablate", "curve")[n % 3]
        document: dict[str, Any] = {
            "score": {"scores": run_folders.scores_document(made)},
            "ablate": {"ablation": run_folders.ablation([str(unit) for unit in made.order()], seed=n)},
            "curve": {"curves": run_folders.curves(made.order(), [0, 3, 6, 11])},
        }[kind]
        run_folders.folder(root / f"run-{n:03}", kind, document, **naming)  # type: ignore[arg-type]
    return root


def test_the_last_runs_of_each_kind_are_shown_and_all_are_in_a_table(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(report_page, "IN_DETAIL", 6)
    page = report_page.report([several(tmp_path / "runs", 12)], tmp_path / "page.html").read_text(encoding="utf-8")
    (part,) = gather([tmp_path / "runs"])
    contents, _ = report_page._fitting([part], None, [])
    (chapter,) = contents.chapters
    assert len(chapter.part.runs) == 6
    assert chapter.part.whole is part
    (placed,) = (placed for placed in chapter.sections if placed.section.key == "all-runs")
    (table,) = placed.section.tables
    assert len(table.rows) == 12
    assert {row[0] for row in table.rows if row[3] == "yes"} == {run.folder.name for run in chapter.part.runs}
    assert "6 of 12 runs are shown in detail" in page
    for row in table.rows:
        assert row[0] in page
        assert row[2].endswith(".")
        assert row[4].startswith("headcount ")


def test_of_many_models_the_others_have_their_answers(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(report_page, "DETAIL", ((2, 2), (1, 1)))
    for n in range(5):
        several(tmp_path / "runs" / str(n), 3, model=f"models/m{n}", weights=f"w{n}")
    runs = sorted((tmp_path / "runs").iterdir())
    page = report_page.report(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "2 of 5 models are shown in full" in page
    assert page.count('<article class="chapter"') == 2
    assert "3 more models: their answers" in page
    for n in range(5):
        assert f"models/m{n}" in page


def test_a_page_that_is_too_large_has_less_detail_and_only_then_is_refused(tmp_path, monkeypatch) -> None:
    runs = several(tmp_path / "runs", 9)
    sizes: list[int] = []
    render = report_page.render

    def measured(*args: Any) -> str:
        text = render(*args)
        sizes.append(len(text.encode()))
        return text

    monkeypatch.setattr(report_page, "render", measured)
    report_page.report([runs], tmp_path / "whole.html")
    assert len(sizes) == 1
    monkeypatch.setattr(report_page, "LARGEST", sizes[0] - 1)
    report_page.report([runs], tmp_path / "less.html")
    assert sizes[-1] < sizes[0] == max(sizes)
    assert (tmp_path / "less.html").stat().st_size == sizes[-1]
    monkeypatch.setattr(report_page, "LARGEST", 100_000)
    with pytest.raises(BadRun, match="MB with one run of each kind"):
        report_page.report([runs], tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()
    assert len(sizes[3:]) == len(set(sizes[3:])) == 3  # with three runs of each kind, two and one; none was made twice


def test_no_run_is_read_or_drawn_more_often_than_its_share(tmp_path, monkeypatch) -> None:
    """The sections of a page of many runs are those of the few that it shows: linear, and bounded."""
    drawn = []
    finished = report_page.charts.finished
    monkeypatch.setattr(report_page.charts, "finished", lambda *args: drawn.append(args[0]) or finished(*args))
    runs = several(tmp_path / "runs", 48)
    report_page.report([runs], tmp_path / "page.html")
    assert len(drawn) <= 2 * report_page.IN_DETAIL + 20


def test_runs_that_learn_share_their_charts_and_stay_together(tmp_path) -> None:
    for n in range(50):
        document = run_folders.learned(label="subset", keep=3 + n % 8, seed=n)
        run_folders.folder(tmp_path / f"run-{n:02}", "learn", {"learned": document})
    (part,) = gather([tmp_path])
    assert sections_of(part) == 2.5
    assert in_detail(part, 4) is part
    assert len(in_detail(part, 1).of(LearnedDocument)) == 20


# -- the chart engine -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_engine(monkeypatch, tmp_path) -> None:
    """A machine whose engine ends its process when it starts, as it does where addresses are limited."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(chart_engine, "_BUNDLE", "import os; os.abort()")
    monkeypatch.setattr(chart_engine, "_DRAW", "import os; os.abort()")
    chart_engine.script.cache_clear()
    yield
    chart_engine.script.cache_clear()


def test_without_the_engine_the_page_has_its_tables_and_says_why_there_are_no_charts(tmp_path, no_engine) -> None:
    run_folders.everything(tmp_path / "runs")
    page = report_page.report([tmp_path / "runs"], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "The charts of this page are left out" in page
    assert "data-chart=" not in page
    assert '"charts":{}' in page
    assert 'id="m1-guarantee-table"' in page
    assert 'class="map"' in page
    assert page.count("<script") == 2  # the data, and the page's own: no Vega
    assert not list((tmp_path / "cache").rglob("*.js"))
    result = CliRunner().invoke(
        app, ["report", str(tmp_path / "runs"), "-o", str(tmp_path / "p.html"), "--figures", str(tmp_path / "f")]
    )
    assert isinstance(result.exception, BadRun)
    assert "leave --figures out" in str(result.exception)
    assert not (tmp_path / "p.html").exists()
    assert not (tmp_path / "f").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits addresses")
def test_where_addresses_are_limited_a_report_is_written(tmp_path) -> None:
    run_folders.everything(tmp_path / "runs")
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "from headcount.reporting.page import report\n"
        f"report([{str(tmp_path / 'runs')!r}], {str(tmp_path / 'page.html')!r})"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert "The charts of this page are left out" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_script_is_kept_and_a_damaged_copy_is_made_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(chart_engine, "_BUNDLE", "import sys; sys.stdout.buffer.write('var ä = 1;'.encode())")
    chart_engine.script.cache_clear()
    try:
        assert chart_engine.script() == "var ä = 1;"
        (kept,) = (tmp_path / "headcount").glob("vega-*.js")
        monkeypatch.setattr(chart_engine, "_BUNDLE", "import os; os.abort()")
        chart_engine.script.cache_clear()
        assert chart_engine.script() == "var ä = 1;"  # nothing was run
        kept.write_bytes(kept.read_bytes()[:-3])
        chart_engine.script.cache_clear()
        assert chart_engine.script() is None
    finally:
        chart_engine.script.cache_clear()
