"""What experiments are run on: the embedded files in parts, the papers' data by name, and the folders of a user."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from conftest import says

from headcount.cli.app import app
from headcount.data.columns import read_table
from headcount.data.text_files import located, read_lines
from headcount.embedded import EMBEDDED
from headcount.errors import BadData, BadRun
from headcount.reproduction import inputs
from headcount.reproduction.inputs import Corpus, Material, Pairs

SIDES = ("train", "val", "test")


def _rows(path: str | Path) -> list[str]:
    return read_lines(located(path) or Path(path))[1:]


def _asked(material: Material) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Commands that use every part of a material, without what they are for."""
    for corpus in material.corpora:
        model = corpus.ready or material.encoder or "none"
        lesson = ("--task", corpus.kind, *corpus.on("train"), *corpus.beside("--dev-data", "dev"))
        yield "train", (model, *lesson, "--epochs", corpus.epochs, "-o", "somewhere")
        yield "curve", (model, *corpus.on("dev"), *corpus.beside("--score-data", "train"))
        yield "roles", (model, *corpus.texts("dev"))
        for _, other in corpus.others:
            yield "transfer", (model, *corpus.on("dev"), "--other-data", other)
    if material.pairs is not None:
        pairs, model = material.pairs, material.pairs.ready or "a-translator"
        yield "train", ("new-marian", *pairs.on("train"), *pairs.beside("--dev-data", "val"), *pairs.recipe, "-o", "x")
        yield "curve", (model, *pairs.on("test"), *pairs.beside("--score-data", "val"))
        yield "roles", (model, *pairs.texts("test"))


def _parse(material: Material) -> int:
    """How many commands on a material were parsed; a flag that a command does not know is an error."""
    group: Any = typer.main.get_command(app)
    commands = list(_asked(material))
    for verb, words in commands:
        with group.commands[verb].make_context(verb, list(words)):
            pass
    return len(commands)


# --- the embedded models --------------------------------------------------------------------------------------------


def test_the_embedded_files_are_copied_once_and_parted_without_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = inputs.embedded(tmp_path / "a, b")  # a comma parts two files elsewhere, and is a letter of this one
    assert list(tmp_path.iterdir()) == []
    inputs.unpack(tmp_path / "a, b")
    (movies,), pairs = made.corpora, made.pairs
    assert pairs is not None
    whole = {name: _rows(EMBEDDED / f"{name}.tsv") for name in ("classifier-data/movies", "translator-data/sentences")}
    assert _rows(movies.train) + _rows(movies.dev) == whole["classifier-data/movies"]
    assert len(_rows(movies.train)) == 1400
    parts = [_rows(getattr(pairs, side)) for side in SIDES]
    assert sorted(row for part in parts for row in part) == sorted(whole["translator-data/sentences"])
    assert len(parts[0]) >= 200
    assert min(len(part) for part in parts) >= 50
    half = len(whole["translator-data/sentences"]) // 2
    for part in parts:  # what people do in pictures comes first in the file
        first = sum(row in set(whole["translator-data/sentences"][:half]) for row in part)
        assert abs(first - len(part) / 2) <= 1
    for model in (movies.ready, made.encoder, pairs.ready):
        assert (Path(str(model)) / "model.safetensors").is_file()
    assert [name for name, _ in movies.others] == ["products", "news", "tweets"]
    for _, path in movies.others:
        assert read_table(path, "label").classes.keys() == read_table(movies.dev, "label").classes.keys()
    for side in (*SIDES, "other"):
        assert len(read_table(getattr(pairs, side), "target", text="source", target="target")) >= 50
        assert pairs.on(side)[1] == getattr(pairs, side)
    assert _parse(made) == 9
    Path(movies.dev).write_text("changed by the user")
    monkeypatch.delattr(inputs, "copy_embedded")  # it is not needed again
    inputs.unpack(tmp_path / "a, b")
    assert Path(movies.dev).read_text() == "changed by the user"


def test_files_that_cannot_be_copied_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(place: Path) -> None:
        (place / "classifier").mkdir()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(inputs, "copy_embedded", full)
        with says(BadRun, about="No space left"):
            inputs.unpack(tmp_path)
    assert list(tmp_path.iterdir()) == []

    def slow(place: Path, copy: Any = inputs.copy_embedded) -> None:
        monkeypatch.setattr(inputs, "copy_embedded", copy)
        copy(place)
        inputs.unpack(tmp_path)  # another process, faster than this one

    monkeypatch.setattr(inputs, "copy_embedded", slow)
    inputs.unpack(tmp_path)
    made = inputs.embedded(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["material"]
    assert len(_rows(made.corpora[0].dev)) == 600


# --- the papers' own ------------------------------------------------------------------------------------------------

GLUE_SPLITS = ("train", "validation", "test")
HUB: dict[tuple[str, str], tuple[tuple[str, ...], dict[str, Any]]] = {
    ("nyu-mll/glue", "sst2"): (GLUE_SPLITS, {"sentence": "a", "label": 1}),
    ("nyu-mll/glue", "cola"): (GLUE_SPLITS, {"sentence": "a", "label": 1}),
    ("nyu-mll/glue", "mrpc"): (GLUE_SPLITS, {"sentence1": "a", "sentence2": "b", "label": 1}),
    ("nyu-mll/glue", "rte"): (GLUE_SPLITS, {"sentence1": "a", "sentence2": "b", "label": 1}),
    ("nyu-mll/glue", "stsb"): (GLUE_SPLITS, {"sentence1": "a", "sentence2": "b", "label": 2.5}),
    ("nyu-mll/glue", "mnli"): (
        ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"),
        {"premise": "a", "hypothesis": "b", "label": 2},
    ),
    ("wmt/wmt14", "fr-en"): (GLUE_SPLITS, {"translation": {"en": "one", "fr": "un"}}),
}  # columns and splits as the hub has them


class _Rows:
    """One row in the manner of a data set."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row, self.column_names = row, list(row)
        text = SimpleNamespace(dtype="string")
        self.features = {key: dict.fromkeys(one, text) if isinstance(one, dict) else text for key, one in row.items()}

    def __len__(self) -> int:
        return 1

    def __getitem__(self, name: str) -> list[Any]:
        return [self.row[name]]


def test_the_papers_data_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(path: str, part: str, split: str) -> Any:
        splits, row = HUB[path, part]
        assert split.partition("[")[0] in splits
        asked.append((path, part))
        return _Rows(row)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    made = inputs.by_name()
    assert asked == []
    for corpus in made.corpora:
        for name in (corpus.train, corpus.dev, *(other for _, other in corpus.others)):
            assert "@" in name
            assert len(read_table(name, "number" if corpus.kind == "regression" else "label")) == 1
    pairs = made.pairs
    assert pairs is not None
    flags = dict(zip(pairs.flags[::2], pairs.flags[1::2], strict=True))
    for side in SIDES:
        table = read_table(getattr(pairs, side), "target", text=flags["--text"], target=flags["--target"])
        assert table.texts == (["one"], ["un"])
    assert set(asked) == set(HUB)
    assert made.encoder == "google-bert/bert-base-uncased"
    assert _parse(made) == 3 * 6 + 1 + 3
    assert [one.name for one in made.corpora if one.others] == ["MNLI"]
    assert {one.name: one.flags for one in made.corpora if "--metric" in one.flags} == {
        "CoLA": ("--metric", "matthews"),
        "STS-B": ("--metric", "pearson"),
    }


# --- what a user gives ----------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Folders as GLUE's download and Multi30k have them, in small, some of the files packed."""
    tables = {
        "SST-2": "sentence\tlabel\na\t1\n",
        "CoLA": "gj04\t1\t\tHe ran.\n",
        "RTE": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n",
        "STS-B": "index\tsentence1\tsentence2\tscore\n0\ta\tb\t2.5\n",
    }
    for task, text in tables.items():
        (tmp_path / "glue" / task).mkdir(parents=True)
        (tmp_path / "glue" / task / "train.tsv").write_text(text)
        (tmp_path / "glue" / task / "dev.tsv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "multi30k").mkdir()
    for stem in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en", "fr"):
            (tmp_path / "multi30k" / f"{stem}.{language}.gz").write_bytes(
                gzip.compress(f"{stem} {language}\n".encode())
            )
    return tmp_path


def test_tasks_of_glue_are_found_in_their_order_and_others_left_out(place: Path) -> None:
    made = inputs.given(place, encoder="MiniLM", glue=place / "glue")
    assert [one.name for one in made.corpora] == ["SST-2", "CoLA", "RTE", "STS-B"]
    assert [one.epochs for one in made.corpora] == ["2", "4", "6", "4"]
    assert made.pairs is None
    for corpus in made.corpora:
        for part in (corpus.train, corpus.dev):
            assert len(read_table(part, "number" if corpus.kind == "regression" else "label")) == 1
    films = made.corpora[0]
    assert [name for name, _ in films.others] == ["products", "news", "tweets"]
    assert not any(Path(path).exists() for _, path in films.others)
    inputs.unpack(place)
    # the labels of SST-2 are numbers, and those of the others are words that a model of it must know
    words = films.flags[films.flags.index("--labels") + 1].split(",")
    assert all(read_table(path, "label").classes.keys() == set(words) for _, path in films.others)
    assert _parse(made) == 3 * 4 + 3
    some = inputs.given(place, encoder="MiniLM", glue=place / "glue", tasks=["rte", "SST2", "RTE"], classifier="my-rte")
    assert [(one.name, one.ready) for one in some.corpora] == [("RTE", "my-rte"), ("SST-2", None)]
    assert "my-rte on RTE" in some.about
    assert "MiniLM fine-tuned on SST-2" in some.about


def test_without_an_encoder_only_the_task_of_the_classifier_is_left(place: Path) -> None:
    made = inputs.given(place, glue=place / "glue", classifier="my-sst2")
    assert [(one.name, one.ready) for one in made.corpora] == [("SST-2", "my-sst2")]
    assert inputs.given(place, glue=place / "glue", classifier="x", tasks=["CoLA"]).corpora[0].name == "CoLA"
    with says(BadData, about="fine-tune on RTE; give an encoder"):
        inputs.given(place, glue=place / "glue", classifier="my-sst2", tasks=["SST-2", "RTE"])
    with says(BadData, about="no model of SST-2"):
        inputs.given(place, glue=place / "glue")


def test_parallel_text_is_found_as_multi30k_has_it(place: Path) -> None:
    folder = place / "multi30k"
    made = inputs.given(folder, pairs=folder, translator="my-translator", languages=("fr", "de")).pairs
    assert made is not None
    assert (made.name, made.other, made.ready) == ("multi30k fr-de", None, "my-translator")
    for side, stem in zip(SIDES, ("train", "val", "test_2016_flickr"), strict=True):
        assert read_table(tuple(getattr(made, side).split(",")), "target").texts == ([f"{stem} fr"], [f"{stem} de"])
        assert made.on(side) == ("--data", str(folder / f"{stem}.fr"), "--target", str(folder / f"{stem}.de"))
        assert made.beside("--score-data", side) == ("--score-data", getattr(made, side))
    for language in ("de", "en"):
        (folder / f"test.{language}").write_text("x\n")
        (folder / f"test_2017_mscoco.{language}").write_text("x\n")
    made = inputs.given(folder, pairs=folder).pairs
    assert made is not None
    assert (made.test, made.other) == tuple(
        f"{folder}/{stem}.de,{folder}/{stem}.en" for stem in ("test_2016_flickr", "test_2017_mscoco")
    )
    (folder / "test_2016_flickr.de.gz").unlink()
    made = inputs.given(folder, pairs=folder).pairs
    assert made is not None
    assert made.test == f"{folder}/test.de,{folder}/test.en"
    assert _parse(inputs.given(folder, pairs=folder)) == 3


def test_what_is_missing_is_named(place: Path) -> None:
    glue, folder = place / "glue", place / "multi30k"
    for wrong, about in (
        ({}, "nothing to run on"),
        ({"glue": glue, "encoder": "x", "tasks": ["MRPC"]}, f"no file {glue}/MRPC/train.tsv"),
        ({"glue": glue, "encoder": "x", "tasks": ["QQP"]}, "no task 'QQP' here; choose among SST-2, CoLA"),
        ({"glue": place / "nowhere", "encoder": "x"}, f"no file {place}/nowhere/SST-2/train.tsv"),
        ({"pairs": folder, "languages": ("cs", "en")}, f"no file {folder}/train.cs"),
        ({"pairs": folder, "languages": ("de", "de")}, "Two languages are needed"),
        ({"pairs": place / "a,b"}, "has a comma"),
        ({"pairs": folder, "classifier": "x"}, "--glue"),
        ({"pairs": folder, "tasks": ["RTE"]}, "--glue"),
        ({"glue": glue, "encoder": "x", "translator": "x"}, "--pairs"),
        ({"pairs": folder, "parses": "nowhere.conllu"}, "no file 'nowhere.conllu'"),
    ):
        with says(BadData, about=about):
            inputs.given(place, **wrong)  # type: ignore[arg-type]
    (glue / "RTE" / "dev.tsv.gz").unlink()
    with says(BadData, about=f"no file {glue}/RTE/dev.tsv"):
        inputs.given(place, encoder="x", glue=glue)


def test_flags_for_reading_are_the_columns_and_nothing_else() -> None:
    corpus = Corpus("x", "classification", "a", "b", flags=("--metric", "f1", "--text", "body", "--labels", "no,yes"))
    assert corpus.texts("dev") == ("--data", "b", "--text", "body")
    pairs = Pairs("x", "a", "b", "c", flags=("--text", "de", "--metric", "loss", "--target", "en"))
    assert pairs.texts("test") == ("--data", "c", "--text", "de", "--target", "en")
    assert pairs.on("test") == ("--data", "c", *pairs.flags)
    two = Pairs("x", "a.de,a.en", "b.de,b.en", "c.de,c.en")
    assert two.texts("val") == two.on("val") == ("--data", "b.de", "--target", "b.en")
