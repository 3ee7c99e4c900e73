"""Experiments of papers on a page: every statement with its verdict, before the models; as text, whatever it says."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import says
from helpers import run_folders
from typer.testing import CliRunner

from headcount.cli.app import app
from headcount.errors import BadRun
from headcount.reporting import page as report_page
from headcount.reporting import theme
from headcount.reporting.findings import gather
from headcount.reporting.sections import claims
from headcount.reproduction import registry
from headcount.reproduction.experiment import CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD
from headcount.runs import Run
from reporting.test_page import HOSTILE, Page, _contrast

SHEET = {
    "title": "BLEU without one head",
    "columns": ["layer", "paper", "here", "note"],
    "rows": [["1", "−0.06", "0.3 [−0.1, 0.7]", "first | last"], ["2", "1,234", "–", ""]],
}


def claim(verdict: str, n: int = 0) -> dict[str, str]:
    return {"paper": f"They say {n}.", "here": f"We see {n}.", "verdict": verdict, "rule": f"it is {n}."}


def document(*verdicts: str, **changes: Any) -> dict[str, Any]:
    made = {"format": 1, "experiment": "michel-heads", "paper": "Michel et al. 2019", "shows": "Figure 1, Table 1"}
    made |= {"asks": "Does one head matter?", "material": {"name": "the tiny models", "about": "They are tiny."}}
    made |= {
        "full": False,
        "seeds": [0],
        "claims": [claim(one, n) for n, one in enumerate(verdicts)],
        "sheets": [SHEET],
    }
    return made | {"commands": ["headcount ablate a", "headcount ablate b"], "left_out": []} | changes


def folder(path: Path, data: Any, finished: bool = True) -> Path:
    """A run folder as `reproduce` writes it."""
    with Run.open(path, {"command": "reproduce", "experiment": path.name}) as run:
        if data is not None:
            run.write_json("claims", data)
        run.write_json("command", {"command": f"headcount reproduce {path.name} -o papers"})
        if finished:
            run.finish()
    return path


def told(tmp_path: Path, *documents: Mapping[str, Any]) -> list[claims.ExperimentResult]:
    return claims.retold([folder(tmp_path / f"run-{n}", one) for n, one in enumerate(documents)])


def page_of(*folders: Path, at: Path, **given: Any) -> tuple[str, Page]:
    text = report_page.report(folders, at, **given).read_text(encoding="utf-8")
    return text, Page(text)


# -- what it says ----------------------------------------------------------------------------------------------------------


def test_a_page_with_claims_only_says_all_that_the_document_says(tmp_path) -> None:
    made = document(CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD, seeds=[0, 3], left_out=["One part is left out."])
    text, page = page_of(folder(tmp_path / "michel-heads", made), at=tmp_path / "page.html")
    shown = " ".join("".join(page.texts).split())
    for row in made["claims"]:
        assert all(row[key] in shown for key in ("paper", "here", "verdict"))
        assert f"Rule: {row['rule']}" in shown
    for words in ("Does one head matter?", "Run on the tiny models. They are tiny. Laptop size", "seeds 0 and 3."):
        assert words in shown
    for words in ("One part is left out.", "2 commands, one by one", "headcount reproduce michel-heads -o papers"):
        assert words in shown
    assert "headcount ablate a\nheadcount ablate b" in "".join(page.texts)
    assert "<title>Michel et al. 2019, Figure 1, Table 1, again</title>" in text
    assert "The paper and here" in shown
    assert "data-chapter" not in text.partition("<script")[0]


def test_claims_come_before_the_models_and_belong_to_none(tmp_path) -> None:
    scores = {"scores": run_folders.scores_document(run_folders.scores())}
    run = run_folders.folder(tmp_path / "runs" / "score", "score", scores)
    paper = folder(tmp_path / "michel-heads", document(CONFIRMED))
    text, page = page_of(run, paper, at=tmp_path / "page.html")
    order = [str(a["id"]) for _, a in page.elements if "id" in a]
    assert order.index("p1") < order.index("m1")
    assert "m2" not in order
    assert [part.model for part in gather([run, paper])] == ["models/tiny"]
    assert '<h2 class="model">models/tiny</h2>' in text  # one model, and its name is told where papers are above it
    run_folders.folder(tmp_path / "runs" / "other", "score", scores, model="another", weights="w2")
    text, _ = page_of(tmp_path / "runs", paper, at=tmp_path / "two.html")
    places = [text.index(one) for one in ('id="papers"', "The runs, by model", 'href="#m2"', 'id="m1"', 'id="m2"')]
    assert places == sorted(places)
    text, page = page_of(run, at=tmp_path / "without.html")
    assert not {"papers", "p1"} & page.ids()


def test_several_experiments_are_several_blocks_with_an_index_and_one_text_about_what_they_share(tmp_path) -> None:
    both = [document(CONFIRMED, DIFFERS), document(UNTOLD, experiment="michel-curves", shows="Figure 3")]
    for n, one in enumerate(both):
        folder(tmp_path / "papers" / f"run-{n}", one)
    text, page = page_of(
        tmp_path / "papers", tmp_path / "papers" / "run-0", at=tmp_path / "page.html"
    )  # one of them twice
    links = [a["href"] for tag, a in page.elements if tag == "a"]
    assert links == ["#p1", "#p2"]
    assert {"p1", "p2"} <= page.ids()
    assert "p3" not in page.ids()
    assert text.count("Run on the tiny models.") == 1
    index = text.partition('class="index"')[2].partition("</ul>")[0]
    assert re.findall(r'<span title="([^"]+)"', index) == [CONFIRMED, DIFFERS, UNTOLD]
    folder(tmp_path / "papers" / "run-2", document(UNTOLD, seeds=[1]))
    text, _ = page_of(tmp_path / "papers", at=tmp_path / "other.html")
    assert text.count("Run on the tiny models.") == 3  # they differ: each says its own


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        (
            [CONFIRMED] * 5 + [DIFFERS] * 2 + [NOT_CONFIRMED, UNTOLD],
            "Of 9 statements 5 are confirmed, 2 differ, 1 is not confirmed and 1 cannot be told.",
        ),
        ([NOT_CONFIRMED, NOT_CONFIRMED, DIFFERS], "Of 3 statements 1 differs and 2 are not confirmed."),
        ([UNTOLD, UNTOLD, CONFIRMED], "Of 3 statements 1 is confirmed and 2 cannot be told."),
        ([CONFIRMED] * 3, "All 3 statements are confirmed."),
        ([DIFFERS] * 2, "Both statements differ."),
        ([UNTOLD] * 4, "Whether the 4 statements hold cannot be told."),
        ([UNTOLD], "Whether the one statement holds cannot be told."),
        ([NOT_CONFIRMED], "The one statement is not confirmed."),
    ],
)
def test_the_sentence_on_top_counts_the_verdicts_of_all_experiments(verdicts, sentence, tmp_path) -> None:
    half = len(verdicts) // 2
    assert claims.summary(told(tmp_path, document(*verdicts[:half]), document(*verdicts[half:]))) == sentence


def test_without_a_statement_it_says_so(tmp_path) -> None:
    text, page = page_of(folder(tmp_path / "x", document()), at=tmp_path / "page.html")
    assert "Nothing can be said" in text
    assert "p1-claims" not in page.ids()
    assert set(page.data["tables"]) == {"p1-table-1"}


def test_the_title_names_the_figure_the_paper_or_none(tmp_path) -> None:
    one, other = document(CONFIRMED), document(CONFIRMED, shows="Figure 3")
    assert claims.title(told(tmp_path / "a", one)) == "Michel et al. 2019, Figure 1, Table 1, again"
    assert claims.title(told(tmp_path / "b", one, one)) == "Michel et al. 2019, Figure 1, Table 1, again"
    assert claims.title(told(tmp_path / "c", one, other)) == "Michel et al. 2019, again"
    assert claims.title(told(tmp_path / "d", one, document(paper="Li et al. 2021"))) == "The papers, again"
    text, _ = page_of(folder(tmp_path / "e", one), at=tmp_path / "page.html", title="Mine")
    assert "<title>Mine</title>" in text


def test_every_verdict_has_a_word_a_shape_and_a_colour_that_can_be_read(tmp_path) -> None:
    assert set(claims.VERDICTS) == {CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD}
    text, _ = page_of(folder(tmp_path / "x", document(*claims.VERDICTS)), at=tmp_path / "page.html")
    style = (report_page.TEMPLATES / "page.css").read_text(encoding="utf-8")
    shown = re.findall(r'<p class="verdict (\w+)"><svg[^>]*>(.*?)</svg>\s*([^<]+)</p>', text)
    assert [word for *_, word in shown] == list(claims.VERDICTS)
    assert len({shape for _, shape, _ in shown}) == 4
    colours = [
        re.search(rf"\.verdict{rule} {{ --mark: var\(--(\w+)\)", style).group(1)  # type: ignore[union-attr]
        for rule in (r"\.yes", r"\.other", r"\.no", "")
    ]
    assert [kind for kind, *_ in shown] == ["yes", "other", "no", "open"]
    assert len(set(colours)) == 4
    for palette in theme.PALETTES.values():
        assert min(_contrast(palette[c], palette[on]) for c in colours for on in ("paper", "surface")) >= 4.5


def test_the_page_about_reproducing_lists_what_there_is() -> None:
    page = Path(__file__).parents[3] / "docs" / "reproduce.md"
    listed = re.findall(r"^\| `([\w-]+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [one.name for one in registry.EXPERIMENTS]


# -- tables ----------------------------------------------------------------------------------------------------------------


def test_sheets_and_statements_can_be_copied(tmp_path) -> None:
    made = document(CONFIRMED, DIFFERS)
    _, page = page_of(folder(tmp_path / "x", made), at=tmp_path / "page.html")
    forms = page.data["tables"]
    assert set(forms) == {"p1-claims", "p1-table-1"} <= page.ids()
    buttons = {(a["data-table"], a["data-copy"]) for tag, a in page.elements if tag == "button" and "data-copy" in a}
    assert buttons == {(name, kind) for name in forms for kind in ("latex", "csv", "markdown")}
    assert list(csv.reader(io.StringIO(forms["p1-table-1"]["csv"]))) == [SHEET["columns"], *SHEET["rows"]]
    rows = list(csv.reader(io.StringIO(forms["p1-claims"]["csv"])))[1:]
    assert rows == [[row[key] for key in ("paper", "here", "verdict", "rule")] for row in made["claims"]]
    assert r"\caption{BLEU without one head}" in forms["p1-table-1"]["latex"]


def test_columns_of_numbers_stand_to_the_right(tmp_path) -> None:
    ((_, table),) = told(tmp_path, document())[0].tables
    assert [column.numeric for column in table.columns] == [False, True, True, False]
    empty = {"title": "none", "columns": ["a", "b"], "rows": []}
    ((_, table),) = told(tmp_path / "b", document(sheets=[empty]))[0].tables
    assert [column.numeric for column in table.columns] == [False, False]


def _cells(line: str) -> list[str]:
    return [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_markdown_has_every_statement_in_a_row_of_its_own(tmp_path) -> None:
    one = document(CONFIRMED, DIFFERS)
    one["claims"][0]["here"] = "a | b <b> *c*"
    other = document(UNTOLD, experiment="li-subsets", paper="Li et al. 2021", shows="", full=True, seeds=[0, 1])
    text = claims.markdown(told(tmp_path, one, other))
    rows = [_cells(line) for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == ["paper", "published", "here", "verdict"]
    assert rows[2:] == [
        ["Michel et al. 2019, Figure 1, Table 1", "They say 0.", "a | b <b> *c*", CONFIRMED],
        ["Michel et al. 2019, Figure 1, Table 1", "They say 1.", "We see 1.", DIFFERS],
        ["Li et al. 2021", "They say 0.", "We see 0.", UNTOLD],
    ]
    assert text.startswith("Of 3 statements 1 is confirmed, 1 differs and 1 cannot be told.\n")
    assert "- michel-heads: on the tiny models, laptop size, seed 0\n" in text
    assert "- li-subsets: on the tiny models, full size, seeds 0 and 1\n" in text


def test_the_command_writes_page_and_table_and_refuses_a_table_of_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "papers" / "michel-heads", document(CONFIRMED))
    words = ["report", "papers", "-o", "page.html", "--markdown", "table.md"]
    done = CliRunner().invoke(app, [*words, "--figures", "figures"])  # there are no charts: nothing is said about them
    assert done.output == "written to page.html\nstatements of papers as Markdown in table.md\n"
    assert Path("table.md").read_text().count("confirmed") == 2
    with says(BadRun, about="--force"):
        report_page.report(["papers"], "other.html", markdown="table.md")
    assert not Path("other.html").exists()
    run_folders.folder(tmp_path / "run", "score", {"scores": run_folders.scores_document(run_folders.scores())})
    with says(BadRun, about="--markdown"):
        report_page.report(["run"], "other.html", markdown="other.md")


# -- what comes from outside -------------------------------------------------------------------------------------------------


def poisoned(value: Any, key: str = "") -> Any:
    """The document with something hostile in every text but the verdicts."""
    if isinstance(value, dict):
        return {name: poisoned(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [poisoned(one, key) for one in value]
    return value + HOSTILE if isinstance(value, str) and key != "verdict" else value


def test_hostile_texts_stay_text(tmp_path) -> None:
    _, good = page_of(folder(tmp_path / "good", document(CONFIRMED)), at=tmp_path / "good.html")
    made = poisoned(document(CONFIRMED, left_out=["x"]))
    text, bad = page_of(folder(tmp_path / "bad<b>", made), at=tmp_path / "bad.html", markdown=tmp_path / "bad.md")
    count = [sum(tag == one for tag, _ in bad.elements) for one in ("script", "img", "b")]
    assert count == [3, 0, 0]
    assert sum(tag == "script" for tag, _ in good.elements) == 3
    assert not [name for _, attributes in bad.elements for name in attributes if name.startswith("on")]
    shown = "".join(bad.texts)
    places = (
        1 + 4 + 2 + 3 + 1 + 1 + 4 + 8 + 2 + 1
    )  # title, names, material, claim, left out, caption, columns, cells, ...
    assert shown.count("alert(1)") >= places
    assert "49" not in "".join(one for one in bad.texts if "7*7" in one)
    whole = text.partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&\u2028") & set(whole)
    assert "<script" not in (tmp_path / "bad.md").read_text().replace(r"\<", "")


def without(key: str) -> dict[str, Any]:
    made = document(CONFIRMED)
    del made[key]
    return made


DAMAGED = {
    **{f"{key} is gone": without(key) for key in document()},
    "not an object": [],
    "of a later version": document(CONFIRMED, format=2),
    "claims are a text": document(claims="confirmed"),
    "a claim is a text": document(claims=["confirmed"]),
    "a claim without a rule": document(claims=[{"paper": "a", "here": "b", "verdict": CONFIRMED}]),
    "a number for a text": document(claims=[{**claim(CONFIRMED), "here": 0.5}]),
    "an unknown verdict": document("perhaps"),
    "a short row": document(sheets=[{**SHEET, "rows": [["1"]]}]),
    "a row that is a text": document(sheets=[{**SHEET, "rows": ["1234"]}]),
    "no title": document(sheets=[{"columns": [], "rows": []}]),
    "a seed that is none": document(seeds=["0"]),
    "seeds that are none": document(seeds=0),
    "neither full nor not": document(full="no"),
    "a material without a text": document(material={"name": "x"}),
    "no material": document(material=None),
    "a command of words": document(commands=[["headcount", "demo"]]),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_document_is_one_sentence_with_its_path(damage, tmp_path) -> None:
    made = folder(tmp_path / "run", DAMAGED[damage])
    with says(BadRun, about="claims.json"):
        report_page.report([made], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_bytes_that_are_no_json_are_one_sentence(tmp_path) -> None:
    made = folder(tmp_path / "run", document(CONFIRMED))
    (made / "claims.json").write_text(json.dumps(document())[:50])
    with says(BadRun, about="claims.json"):
        report_page.report([made], tmp_path / "page.html")


def test_an_experiment_without_an_answer_yet_is_no_model(tmp_path) -> None:
    begun = folder(tmp_path / "begun", None, finished=False)
    with says(BadRun, about="nothing to show"):
        report_page.report([begun], tmp_path / "page.html")
    _, page = page_of(begun, folder(tmp_path / "done", document(CONFIRMED)), at=tmp_path / "page.html")
    assert "p1" in page.ids()
    assert not {"p2", "m1"} & page.ids()
    unfinished = folder(tmp_path / "part", document(CONFIRMED), finished=False)
    text, _ = page_of(unfinished, at=tmp_path / "part.html")
    assert "<em>not finished</em>" in text


@pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None, reason="needs chromium and chromedriver"
)
def test_on_a_phone_rows_stack_and_nothing_is_wider_than_the_screen(tmp_path) -> None:
    pytest.importorskip("selenium")
    import screenshots

    long = claim(NOT_CONFIRMED) | {"here": "x" * 300, "rule": "y" * 300}
    made = folder(tmp_path / "x", document(claims=[claim(CONFIRMED), long], commands=["headcount " + "z" * 400]))
    page = report_page.report([made, folder(tmp_path / "y", document(UNTOLD))], tmp_path / "page.html")
    tops = "return [...document.querySelectorAll('.claim dl > div')].map((one) => one.getBoundingClientRect().top)"
    with screenshots.browser(1240, 1000) as window:
        for width, stacked in ((1240, False), (390, True)):
            screenshots.resize(window, width, 1000)
            screenshots.open_page(window, page)
            assert window.execute_script("return document.documentElement.scrollWidth") == width
            paper, here, *_ = window.execute_script(tops)
            assert (here > paper) == stacked
        assert window.get_log("browser") == []
