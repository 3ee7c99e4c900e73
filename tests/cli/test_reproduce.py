"""Experiments of papers, again: whatever fails or is killed the same claims come out, and every command is a real one."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from conftest import says
from helpers import processes
from helpers.planted_paper import PLANTED
from helpers.planted_paper import steps as planted_steps
from helpers.small_models import WEATHER, ran, weather, word_tokenizer
from transformers import BertConfig, BertForSequenceClassification

import headcount as hc
from headcount.cli import app as command_line
from headcount.cli.app import app
from headcount.reproduction import inputs, registry, verdicts
from headcount.reproduction.experiment import RunDocuments, Setting, Step
from headcount.reproduction.inputs import Material
from headcount.reproduction.seeds import Collapsed
from headcount.runs import LOCK, locked, read

HEADS = "0:0 0:1 1:0 1:1"


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of two layers of two heads, and GLUE with one task of 24 sentences."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "glue" / "SST-2").mkdir(parents=True)
    for part, count in (("train", 12), ("dev", 24)):
        rows = [f"{text}\t{['cold', 'warm'].index(kind)}" for text, kind in weather(count, count)]
        (folder / "glue" / "SST-2" / f"{part}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    tokenizer = word_tokenizer(WEATHER)
    tokenizer.save_pretrained(folder / "model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
        config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **sizes)
        BertForSequenceClassification(config).save_pretrained(folder / "model")
    return folder


@pytest.fixture
def words(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The planted experiment on the shelf, and a command that runs it in `tmp_path`/out."""
    monkeypatch.setattr(registry, "EXPERIMENTS", (PLANTED,))
    return _command(given, tmp_path)


def _command(given: Path, tmp_path: Path) -> list[str]:
    material = ["--glue", given / "glue", "--classifier", given / "model"]
    return [str(word) for word in ("reproduce", "planted-heads", *material, "-o", tmp_path / "out")]


def _options(words: Sequence[str]) -> dict[str, str]:
    """Options of a command, each with its one value."""
    return dict(zip(words[::2], words[1::2], strict=True))


def _told(folder: Path) -> dict[str, Any]:
    return read(folder / "planted-heads").read_json("claims")


@pytest.fixture(scope="session")
def expected(given: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The claims of the planted experiment, from a run in one go."""
    folder = tmp_path_factory.mktemp("expected")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "EXPERIMENTS", (PLANTED,))
        done = ran(*_command(given, folder), "--quiet")
    assert done.exit_code == 0, done.output
    return _told(folder / "out")["claims"]


def test_it_runs_the_commands_then_says_what_became_of_each_statement(words, given, expected, tmp_path) -> None:
    done = ran(*words)
    assert done.exit_code == 0, done.output
    folder = tmp_path / "out"
    record, told = read(folder / "planted-heads"), _told(folder)
    assert record.finished
    assert record.question["experiment"] == "planted-heads"
    assert record.question["seeds"] == [0]
    command = shlex.split(record.read_json("command")["command"])  # options in the order of the help, not in that given
    assert command[:3] == ["headcount", *words[:2]]
    assert _options(command[3:]) == _options(words[2:])
    setting = Setting(
        inputs.given(folder, glue=given / "glue", classifier=str(given / "model")), folder, full=False, seeds=(0,)
    )
    commands = [f"headcount {shlex.join(step.words)}" for step in planted_steps(setting)]
    assert told == {
        "format": 1,
        "experiment": "planted-heads",
        "paper": "Planted et al. 2020",
        "shows": "Table 1",
        "asks": "Does it grow?",
        "material": {"name": setting.material.name, "about": setting.material.about},
        "full": False,
        "seeds": [0],
        "claims": [
            {"paper": "There are 24.", "here": "24 are here.", "verdict": "confirmed", "rule": "If n is 24."},
            {"paper": "Each of 4 heads.", "here": HEADS, "verdict": "confirmed", "rule": "Always."},
        ],
        "sheets": [{"title": "Counts", "columns": ["theirs", "ours"], "rows": [["24", "24"]]}],
        "commands": commands,
        "left_out": [],
    }
    assert told["claims"] == expected
    assert (folder / "planted-heads" / "commands.txt").read_text().splitlines() == commands
    for command in commands:  # each is shown before it runs, and its run is there
        assert f"$ {command}\n" in done.output
    assert {run.name for run in (folder / "runs").iterdir() if read(run).finished} == {
        s.name for s in planted_steps(setting)
    }
    for text in ("There are 24.", "24 are here.", "confirmed", "Planted et al. 2020, Table 1", "Does it grow?"):
        assert text in done.output
    page = (folder / "planted-heads" / "report.html").read_text(encoding="utf-8")
    assert "There are 24." in page
    assert "the embedded" not in page


def test_run_again_it_does_nothing_again_and_says_the_same(words, tmp_path) -> None:
    first = ran(*words, "--quiet")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("*")}
    second = ran(*words, "--quiet")
    assert first.output == second.output
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("*")}
    assert not any(f"$ headcount {verb}" in first.output for verb in ("evaluate", "ablate"))


def test_with_json_it_prints_the_claims_and_nothing_else(words, expected, tmp_path) -> None:
    done = ran(*words, "--json")
    assert json.loads(done.stdout) == {
        "folder": str(tmp_path / "out"),
        "experiments": [_told(tmp_path / "out")],
        "failed": {},
    }
    assert _told(tmp_path / "out")["claims"] == expected
    assert "24" in (tmp_path / "out" / "logs" / "planted-whole.txt").read_text()


def test_in_another_process_the_same_comes_out(words, expected, monkeypatch, tmp_path) -> None:
    def chained(setting: Setting) -> list[Step]:  # one process is enough here; test_jobs has several
        first, second, third = planted_steps(setting)
        return [first, second._replace(after=(first.name,)), third._replace(after=(second.name,))]

    monkeypatch.setattr(registry, "EXPERIMENTS", (PLANTED._replace(steps=chained),))
    # a process inherits where modules are looked for, and other tests add a folder with what must not be found here
    monkeypatch.setattr(sys, "path", [place for place in sys.path if Path(place).name != "extra"])
    done = ran(*words, "--workers", "2")
    assert done.exit_code == 0, done.output
    assert _told(tmp_path / "out")["claims"] == expected
    assert "3 of 3 · planted-each · " in done.output
    assert "$ headcount" not in done.output
    log = (tmp_path / "out" / "logs" / "planted-each.txt").read_text()
    assert log.startswith("$ headcount ablate ")


def test_what_fails_is_named_with_its_log_and_the_rest_is_judged_and_it_goes_on_later(
    words, expected, monkeypatch, tmp_path
) -> None:
    def broken(setting: Setting) -> list[Step]:
        first, second, third = planted_steps(setting)
        wrong = [word if word != "--task" else "--tusk" for word in second.words]
        return [first, second._replace(words=tuple(wrong)), third._replace(after=(*third.after, second.name))]

    monkeypatch.setattr(registry, "EXPERIMENTS", (PLANTED._replace(steps=broken),))
    done = ran(*words, "--quiet")
    assert done.exit_code == 1
    log = tmp_path / "out" / "logs" / "planted-few.txt"
    [failed] = [line for line in done.stderr.splitlines() if "planted-few failed" in line]
    assert str(log) in failed
    assert failed.endswith("not begun for that: planted-each")
    assert "--tusk" in log.read_text()
    assert _told(tmp_path / "out")["claims"] == expected[:1]
    assert not read(tmp_path / "out" / "planted-heads").finished
    monkeypatch.setattr(registry, "EXPERIMENTS", (PLANTED,))
    done = ran(*words)
    assert done.exit_code == 0
    assert "1 of 3 commands were done before" in done.output
    assert _told(tmp_path / "out")["claims"] == expected
    assert read(tmp_path / "out" / "planted-heads").finished


def test_a_document_that_no_command_wrote_is_a_sentence_and_other_experiments_are_judged(
    words, expected, monkeypatch, tmp_path
) -> None:
    other = PLANTED._replace(name="planted-other", claims=lambda found: [])
    monkeypatch.setattr(registry, "EXPERIMENTS", (PLANTED, other))
    words[1] = "planted"
    assert ran(*words, "--quiet").exit_code == 0
    (tmp_path / "out" / "runs" / "planted-whole" / "result.json").write_text("{")
    done = ran(*words, "--json")
    assert done.exit_code == 1
    assert [one["experiment"] for one in json.loads(done.stdout)["experiments"]] == ["planted-other"]
    assert "planted-heads cannot be judged: " in done.stderr
    assert "result.json cannot be read" in done.stderr


def test_killed_in_the_middle_it_goes_on_and_says_the_same(words, expected, tmp_path) -> None:
    process, first = processes.command([*words, "--quiet"], tmp_path / "said"), tmp_path / "out" / "done"
    processes.wait_until(lambda: any(first.glob("*.json")), process)
    assert process.is_alive(), (tmp_path / "said.err").read_text()
    process.kill()
    process.join()
    noted = {path.stem: path.stat().st_mtime_ns for path in first.glob("*.json")}
    assert "planted-each" not in noted  # it was in the middle
    assert not read(tmp_path / "out" / "planted-heads").finished
    done = ran(*words, "--quiet")
    assert done.exit_code == 0, done.output
    assert _told(tmp_path / "out")["claims"] == expected
    assert {name: (first / f"{name}.json").stat().st_mtime_ns for name in noted} == noted


def test_a_command_that_ctrl_c_ended_is_no_failure_but_the_end(monkeypatch) -> None:
    for given, raised in ((130, KeyboardInterrupt), (1, SystemExit)):  # what a command inside another gives back
        monkeypatch.setattr(command_line, "app", lambda words, standalone_mode, given=given: given)
        with pytest.raises(raised):
            command_line.do(["evaluate"])


def test_what_fails_alike_is_said_once_and_a_missing_log_is_not_named(words, monkeypatch) -> None:
    def broken(setting: Setting) -> list[Step]:
        model = setting.material.corpora[0].ready
        gone = [tuple("nowhere" if word == model else word for word in step.words) for step in planted_steps(setting)]
        return [step._replace(words=words) for step, words in zip(planted_steps(setting), gone, strict=True)]

    monkeypatch.setattr(registry, "EXPERIMENTS", (PLANTED._replace(steps=broken),))
    done = ran(*words)
    assert done.exit_code == 1
    [failed] = [line for line in done.stderr.splitlines() if "failed: " in line]
    assert failed.startswith("headcount: planted-whole and planted-few failed: ")
    assert failed.endswith("; not begun for that: planted-each")
    assert "log" not in failed


def test_a_device_that_is_not_there_is_refused_before_anything_is_written(words, tmp_path) -> None:
    with says(hc.errors.BadRun, about="Nothing can be run on 'abacus'"):
        ran(*words, "--device", "abacus")
    assert not (tmp_path / "out").exists()


def test_a_page_shows_one_seed_and_neither_ingredients_nor_what_did_not_learn(tmp_path) -> None:
    setting = Setting(Material("planted", "Planted."), tmp_path, True, (0, 1, 2))
    models = setting.model("a-0")
    steps = [Step(f"train-{seed}", ("train", "-o", models)) for seed in range(3)]
    steps += [Step(f"curve-{seed}", ("curve", "-o", setting.run(f"curve-{seed}"))) for seed in range(3)]
    steps += [Step("draw-A-1", ("lottery",)), Step("draw-B-0", ("lottery",)), Step("roles", ("roles",))]
    steps += [Step("draw-all", ("lottery", "--join"), ("draw-A-1", "draw-B-0"))]
    planned = registry.Planned(PLANTED, steps, [])
    lost = Collapsed({"train-0": "It did not learn."}, frozenset(["train-0", "curve-0"]))
    assert verdicts.shown(planned, setting, lost) == ["curve-1", "roles", "draw-all"]


def test_a_dry_run_prints_the_commands_and_writes_nothing(words, tmp_path) -> None:
    done = ran(*words, "--dry-run", "--device", "cpu")
    assert done.exit_code == 0
    lines = [shlex.split(line) for line in done.output.splitlines()]
    assert [line[1] for line in lines] == ["evaluate", "evaluate", "ablate"]
    assert all(line[-2:] == ["--device", "cpu"] for line in lines)
    assert json.loads(ran(*words, "--dry-run", "--json", "--device", "cpu").stdout)["commands"] == (
        done.output.splitlines()
    )
    assert not list(tmp_path.iterdir())


def test_the_list_says_what_there_is_and_what_the_material_allows(words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = PLANTED._replace(
        name="other-one", steps=lambda s: [] if s.material.parses is None else planted_steps(s)
    )
    monkeypatch.setattr(registry, "EXPERIMENTS", (PLANTED, elsewhere))
    for asked in ([], ["list"]):
        done = ran("reproduce", *asked)
        assert done.exit_code == 0
        lines = done.output.splitlines()
        assert lines[0].rstrip() == "planted-heads  Planted et al. 2020, Table 1 · 3 commands"
        assert lines[1].strip() == "Does it grow?"
        assert lines[2].rstrip().endswith("not with this material")
        assert "the embedded models" in done.output
    listed = json.loads(ran("reproduce", "list", "--json").stdout)["experiments"]
    assert [one["commands"] for one in listed] == [3, 0]
    assert "--parses" in listed[1]["left_out"][0]
    assert not list(tmp_path.iterdir())  # nothing is unpacked for a question
    with says(hc.errors.BadRun, about="other-one cannot be run on the embedded models: There is no file of sentences"):
        ran("reproduce", "other-one", "--dry-run")
    done = ran("reproduce", "all", "--dry-run")  # of all, those that can be run
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 3
    assert "other-one" in done.stderr


def test_names_are_experiments_papers_or_all_and_near_misses_are_helped() -> None:
    names = [one.name for one in registry.EXPERIMENTS]
    assert [one.name for one in registry.experiments_named(["all"])] == names
    assert [one.name for one in registry.experiments_named([names[1], names[0], names[1]])] == names[:2]
    papers = [name.partition("-")[0] for name in names]
    found = [one.name for one in registry.experiments_named(["michel"])]
    assert found == [name for name, paper in zip(names, papers, strict=True) if paper == "michel"]
    with says(hc.errors.NotFound, about="did you mean michel-curves?"):
        registry.experiments_named(["all", "michel-curve"])
    with says(hc.errors.NotFound, about=f"there are {names[0]}, "):
        registry.experiments_named(["zzzz"])


@pytest.mark.parametrize(
    ("flags", "about"),
    [
        (["--classifier", "x"], "--classifier goes together with --glue"),
        (["--tasks", "SST-2"], "--tasks goes together with --glue"),
        (["--translator", "x"], "--translator goes together with --pairs"),
        (["--languages", "de,en"], "--languages goes together with --pairs"),
        (["--seeds", "0,a"], "--seeds are whole numbers"),
        (["--workers", "0"], "--workers is a number of processes"),
    ],
)
def test_flags_that_say_nothing_are_refused(flags, about) -> None:
    done = ran("reproduce", "all", "--dry-run", *flags)
    assert done.exit_code == 2
    assert about in " ".join(done.output.replace("│", " ").split())


def test_folders_that_hold_something_else_or_are_in_use_are_refused_untouched(words, given, tmp_path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "thesis.txt").write_text("three years of work")
    with says(hc.errors.BadRun, about="holds thesis.txt and no earlier reproduction"):
        ran(*words, "--quiet")
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    (folder / "thesis.txt").rename(tmp_path / "file")
    with says(hc.errors.BadRun, about="file"):
        ran(*words[:-1], str(tmp_path / "file"))
    with locked(folder), says(hc.errors.BadRun, about="in use"):
        ran(*words, "--quiet")
    assert {path.name for path in folder.iterdir()} <= {LOCK}
    assert ran(*words, "--quiet").exit_code == 0
    with says(hc.errors.BadRun, about="for a laptop"):
        ran(*words, "--full")
    with says(hc.errors.BadRun, about="another question: seeds"):
        ran(*words, "--seeds", "0,1")
    elsewhere = shutil.copytree(given, tmp_path / "elsewhere")
    with says(hc.errors.BadRun, about="holds a reproduction"):
        ran(*_command(elsewhere, tmp_path))


def test_without_what_draws_pages_the_claims_are_there(words, expected, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = ran(*words, "--quiet")
    assert done.exit_code == 0
    assert "There is no page, because jinja2 is not installed" in done.output
    assert _told(tmp_path / "out")["claims"] == expected


def test_a_page_that_would_be_too_large_has_the_claims_only(words, monkeypatch, tmp_path) -> None:
    from headcount.reporting import page

    really = page.report

    def small(runs: Sequence[Path], *more: Any, **options: Any) -> Path:
        if len(runs) > 1:
            raise hc.errors.BadRun("The page would have 9.0 MB.")
        return really(runs, *more, **options)

    monkeypatch.setattr(page, "report", small)
    done = ran(*words, "--quiet")
    assert done.exit_code == 0
    assert "without the runs (The page would have 9.0 MB.)" in done.output
    assert "There are 24." in (tmp_path / "out" / "planted-heads" / "report.html").read_text(encoding="utf-8")


# -- all experiments ------------------------------------------------------------------------------------------------------


def _setting(kind: str, full: bool, folder: Path) -> Setting:
    """A setting of one of three materials; what the user gives is a folder of empty files."""
    if kind == "embedded":
        material = inputs.embedded(folder / "out")
    elif kind == "by-name":
        material = inputs.by_name()
    else:
        tasks, pairs = folder / "glue", folder / "pairs"
        parts = [tasks / task.name / f"{part}.tsv" for task in inputs.GLUE for part in ("train", "dev")]
        stems = ("train", "val", "test_2016_flickr", "test_2017_mscoco")
        parts += [pairs / f"{stem}.{language}" for stem in stems for language in ("de", "en")]
        for path in [*parts, folder / "parses.conllu"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        parses = str(folder / "parses.conllu")
        material = inputs.given(folder, encoder="some-model", glue=tasks, pairs=pairs, parses=parses)
    return Setting(material, folder / "out", full, (0, 1, 2) if full else (0,), ("--device", "cpu", "--quiet"))


SETTINGS = [(kind, full) for kind in ("embedded", "by-name", "given") for full in (False, True)]
NO_RUN = ("inspect", "cut", "report")  # commands without a run folder


@pytest.mark.parametrize(("kind", "full"), SETTINGS)
def test_the_steps_of_all_experiments_are_commands_in_an_order_that_can_be_kept(kind, full, tmp_path) -> None:
    setting = _setting(kind, full, tmp_path)
    group = typer.main.get_command(app)
    words: dict[str, tuple[str, ...]] = {}
    for experiment in registry.EXPERIMENTS:
        steps, before = experiment.steps(setting), set[str]()
        assert [step.name for step in steps] == list(dict.fromkeys(step.name for step in steps)), experiment.name
        for step in steps:
            assert re.fullmatch(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]*", step.name)
            assert set(step.after) <= before, step
            before.add(step.name)
            assert words.setdefault(step.name, step.words) == step.words, "equal names are equal commands"
            verb, *rest = step.words
            assert all(isinstance(word, str) for word in step.words), step
            command = group.commands[verb]  # type: ignore[attr-defined]
            with command.make_context(verb, list(rest)) as context:  # an unknown flag is a UsageError
                given = context.params
            places = {str(given[name]) for name in ("run", "output") if given.get(name) is not None}
            assert all(Path(place).is_relative_to(setting.folder) for place in places), step
            assert setting.run(step.name) in places or verb in NO_RUN, step
            assert given.get("device", "cpu") == "cpu", step
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("kind", "full"), SETTINGS)
def test_what_can_be_run_says_what_it_goes_without_and_claims_nothing_without_runs(kind, full, tmp_path) -> None:
    setting = _setting(kind, full, tmp_path)
    for experiment in registry.EXPERIMENTS:
        planned = registry.plan(experiment, setting)
        assert planned.steps or planned.left_out
        assert experiment.claims(RunDocuments(setting)) == []
        assert all(not sheet.rows for sheet in experiment.sheets(RunDocuments(setting))), experiment.name
        assert all(0 < len(text) < 200 for text in experiment[:4])
        assert experiment.asks.endswith("?")


CHEAP = "voita-roles"


def test_an_experiment_on_the_embedded_models_from_one_end_to_the_other(tmp_path) -> None:
    folder = tmp_path / "out"
    done = ran("reproduce", CHEAP, "-o", folder, "--quiet")
    assert done.exit_code == 0, done.output
    told = read(folder / CHEAP).read_json("claims")
    assert told["claims"]
    assert all(claim["verdict"] in done.output for claim in told["claims"])
    page = (folder / CHEAP / "report.html").read_text(encoding="utf-8")
    assert told["asks"] in page
    assert read(folder / CHEAP).finished
