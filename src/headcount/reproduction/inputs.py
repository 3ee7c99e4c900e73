"""What experiments are run on: the embedded models, those of the papers by name, or what the user gives."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..data.text_files import located, read_lines
from ..embedded import copy_embedded
from ..errors import BadData, BadRun
from ..formatting import listed

ELSEWHERE = ("products", "news", "tweets")  # embedded sentences that are not about films, with the labels of SST-2
TRAINED_ON = 1400  # of the embedded sentences about films; the others are to measure on
LEARNED, UP_TO = 4, 6  # of every six embedded pairs four are to train on, one is for validation, one for testing


class Corpus(NamedTuple):
    """A task of sentences with labels, and how commands are told about it."""

    name: str  # SST-2
    kind: str  # classification or regression
    train: str
    dev: str
    others: tuple[tuple[str, str], ...] = ()  # the same task elsewhere: a name and a file
    flags: tuple[str, ...] = ()  # that all of its commands share: --metric matthews
    ready: str | None = None  # a model that was trained on it
    epochs: str = "3"

    def on(self, part: str) -> tuple[str, ...]:
        """Flags for a command on "train" or "dev"."""
        return ("--data", getattr(self, part), *self.flags)

    def texts(self, part: str) -> tuple[str, ...]:
        """Flags for a command that reads the sentences and measures nothing, such as roles."""
        return ("--data", getattr(self, part), *_columns(self.flags))

    def beside(self, flag: str, part: str) -> tuple[str, ...]:
        """A flag such as --score-data with "train" or "dev"."""
        return (flag, getattr(self, part))


class Pairs(NamedTuple):
    """Parallel text: each part is one table, or two files as SOURCE,TARGET."""

    name: str  # Multi30k, German to English
    train: str
    val: str
    test: str
    other: str | None = None  # a test set from elsewhere
    flags: tuple[str, ...] = ()  # columns of a table: --text source --target target; --metric loss
    ready: str | None = None
    recipe: tuple[str, ...] = ()  # how `train new-marian` makes a translator of it

    def on(self, part: str) -> tuple[str, ...]:
        """Flags for a command on "train", "val", "test" or "other"."""
        return (*self._files(part), *self.flags)

    def texts(self, part: str) -> tuple[str, ...]:
        """Flags for a command that reads the sentences and measures nothing, such as roles."""
        return (*self._files(part), *_columns(self.flags))

    def _files(self, part: str) -> tuple[str, ...]:
        if "--target" in self.flags:  # a table
            return ("--data", getattr(self, part))
        source, _, target = getattr(self, part).partition(",")
        return ("--data", source, "--target", target)

    def beside(self, flag: str, part: str) -> tuple[str, ...]:
        """A flag such as --score-data with one of the parts."""
        return (flag, getattr(self, part))


def _columns(flags: Sequence[str]) -> tuple[str, ...]:
    """Those of the flags, each with its value, that say which columns hold the sentences."""
    pairs = zip(flags[::2], flags[1::2], strict=True)
    return tuple(word for flag, value in pairs if flag in ("--text", "--target") for word in (flag, value))


@dataclass(frozen=True)
class Material:
    """Models and data of a reproduction."""

    name: str  # for people: "the embedded models"
    about: str  # one sentence about what they are and what can be expected of them
    encoder: str | None = None  # pretrained, to be fine-tuned
    corpora: tuple[Corpus, ...] = ()
    pairs: Pairs | None = None
    parses: str | None = None  # sentences with gold parses, in the translator's source language or of the classifier


class _Glue(NamedTuple):
    """A task of GLUE: its folder in the download, its name on the hub."""

    name: str
    part: str
    kind: str = "classification"
    flags: tuple[str, ...] = ()
    epochs: str = "4"

    def corpus(self, train: str, dev: str) -> Corpus:
        """The task on these data."""
        return Corpus(self.name, self.kind, train, dev, flags=self.flags, epochs=self.epochs)


# The papers say which metric: Matthews' correlation for CoLA, Pearson's for STS-B. MRPC has two, F1 and accuracy; accuracy
# is the one that is a mean over examples. Small training sets are seen more often. A model of SST-2, whose labels are 0 and
# 1, must know them by name to be measured on sentences from elsewhere.
GLUE = (
    _Glue("SST-2", "sst2", flags=("--labels", "negative,positive"), epochs="2"),
    _Glue("CoLA", "cola", flags=("--metric", "matthews")),
    _Glue("MRPC", "mrpc"),
    _Glue("RTE", "rte", epochs="6"),
    _Glue("STS-B", "stsb", "regression", ("--metric", "pearson")),
)
FULL_TRANSLATOR = (
    # with a shorter warm-up, one of three trainings did not learn
    *("--epochs", "30", "--batch-size", "512", "--lr", "1e-3", "--schedule", "inverse-sqrt", "--warmup", "0.25"),
    *("--label-smoothing", "0.1", "--dropout", "0.3", "--vocabulary", "8000", "--width", "256", "--ffn", "512"),
)


# --- the embedded models --------------------------------------------------------------------------------------------


def unpack(folder: Path) -> None:
    """Copy the models and sentences that ship with headcount to `folder`/material, unless they are there."""
    if not (folder / "material").is_dir():
        _appears(folder / "material", _unpack)


def embedded(folder: Path) -> Material:
    """The models and sentences that ship with headcount, as they are in `folder` once they are unpacked."""
    place = folder / "material"
    classifier, data, pairs = (str(place / name) for name in ("classifier", "classifier-data", "translator-data"))
    movies = Corpus(
        "movies",
        "classification",
        f"{data}/movies-train.tsv",
        f"{data}/movies-dev.tsv",
        others=tuple((name, f"{data}/{name}.tsv") for name in ELSEWHERE),
        ready=classifier,
    )
    sentences = Pairs(
        "our own pairs",
        train=f"{pairs}/pairs-train.tsv",
        val=f"{pairs}/pairs-val.tsv",
        test=f"{pairs}/pairs-test.tsv",
        other=f"{pairs}/messages.tsv",
        # By loss: on 51 pairs BLEU's interval is some 13 points wide and no single head stands out of it, it takes four times as
        # long, and it is about 0 for a translator that has learned from 206 pairs.
        flags=("--text", "source", "--target", "target", "--metric", "loss"),
        ready=str(place / "translator"),
        recipe=(
            *("--layers", "2", "--heads", "4", "--width", "64", "--ffn", "128", "--vocabulary", "1000"),
            *("--epochs", "4", "--batch-size", "32", "--lr", "2e-3"),
        ),
    )
    return Material(
        "the embedded models",
        "A classifier of 48 heads and a translator of 72, each of a few million parameters, on some hundred sentences: they are "
        "here to try the commands on, and say little about the models of the papers.",
        encoder=classifier,
        corpora=(movies,),
        pairs=sentences,
    )


def _unpack(place: Path) -> None:
    """The embedded models and data, and the tables that are parts of others."""
    copy_embedded(place)
    header, *rows = read_lines(place / "classifier-data" / "movies.tsv")  # in random order
    _table(place / "classifier-data" / "movies-train.tsv", header, rows[:TRAINED_ON])
    _table(place / "classifier-data" / "movies-dev.tsv", header, rows[TRAINED_ON:])
    header, *rows = read_lines(place / "translator-data" / "sentences.tsv")
    # captions come first and other sentences last, so that each part takes some from everywhere
    parts = {"train": range(LEARNED), "val": [LEARNED], "test": range(LEARNED + 1, UP_TO)}
    for part, places in parts.items():
        chosen = [row for number, row in enumerate(rows) if number % UP_TO in places]
        _table(place / "translator-data" / f"pairs-{part}.tsv", header, chosen)


def _table(path: Path, header: str, rows: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in (header, *rows)), encoding="utf-8")


def _appears(place: Path, fill: Callable[[Path], None]) -> None:
    """A folder that is there when everything is in it, also where two processes make it."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{place.name}.", dir=place.parent) as draft:
            staging_folder = Path(draft) / place.name
            staging_folder.mkdir()
            fill(staging_folder)
            staging_folder.rename(place)
    except OSError as error:
        if not place.is_dir():  # else another was faster
            why = error.strerror or str(error)
            raise BadRun(f"I cannot write to {place}: {why}; choose another folder with -o.") from None


# --- the papers' own, by name ---------------------------------------------------------------------------------------


def by_name() -> Material:
    """The models and data of the papers, by their names on the hub; nothing is fetched before a command needs it."""
    glue = "nyu-mll/glue"
    corpora = [task.corpus(f"{glue}/{task.part}@train", f"{glue}/{task.part}@validation") for task in GLUE]
    mnli = Corpus("MNLI", "classification", f"{glue}/mnli@train", f"{glue}/mnli@validation_matched")
    mnli = mnli._replace(others=(("MNLI-mismatched", f"{glue}/mnli@validation_mismatched"),))
    wmt = "wmt/wmt14/fr-en"
    return Material(
        "the papers' models and data",
        "BERT-base fine-tuned on GLUE (Michel et al. 2019, Prasanna et al. 2020), and a translator from English to French on "
        "WMT14, which is not the one of Michel et al.: that needs fairseq.",
        encoder="google-bert/bert-base-uncased",
        corpora=(*corpora, mnli),
        pairs=Pairs(
            "WMT14 English to French",
            f"{wmt}@train[:2500000]",  # as many as Voita et al. trained on, and as many as go into memory
            f"{wmt}@validation",  # newstest2013
            f"{wmt}@test",  # newstest2014
            flags=("--text", "en", "--target", "fr"),
            ready="Helsinki-NLP/opus-mt-en-fr",
            recipe=(  # the sizes of Voita et al. 2019
                *("--width", "512", "--ffn", "2048", "--vocabulary", "32000", "--dropout", "0.1", "--epochs", "10"),
                *("--batch-size", "512", "--lr", "7e-4", "--schedule", "inverse-sqrt", "--label-smoothing", "0.1"),
            ),
        ),
    )


# --- what the user gives --------------------------------------------------------------------------------------------


def given(
    folder: Path,
    *,
    encoder: str | None = None,
    glue: Path | None = None,
    tasks: Sequence[str] | None = None,
    classifier: str | None = None,
    translator: str | None = None,
    pairs: Path | None = None,
    languages: tuple[str, str] = ("de", "en"),
    parses: str | None = None,
) -> Material:
    """Models and files of the user: tasks of GLUE as its download has them, parallel text as Multi30k has it.

    `tasks` are names such as SST-2, else all that are there; `classifier` is a model of the first of them, and `translator` one
    of the `pairs`. What is not given is trained: classifiers from the `encoder`, translators from nothing. The sentences from
    elsewhere that go with SST-2 are those that ship with headcount, as they are in `folder` once they are unpacked.
    """
    if glue is None and pairs is None:
        raise BadData(
            "There is nothing to run on; give a folder of GLUE's tasks (--glue), or one of parallel text (--pairs)."
        )
    if glue is None and (classifier is not None or tasks):
        raise BadData("A classifier or a task was given without its data; give the folder of GLUE's tasks (--glue).")
    if pairs is None and translator is not None:
        raise BadData("A translator was given without its data; give a folder of parallel text (--pairs).")
    if parses is not None and located(parses) is None:
        raise BadData(f"There is no file {parses!r}; give sentences with gold parses in CoNLL-U.")
    corpora = () if glue is None else _glue_tasks(Path(glue), tasks, classifier, encoder)
    shipped = folder / "material" / "classifier-data"
    other_files = tuple((name, str(shipped / f"{name}.tsv")) for name in ELSEWHERE)
    corpora = tuple(corpus._replace(others=other_files) if corpus.name == "SST-2" else corpus for corpus in corpora)
    parallel_text = None if pairs is None else _parallel(Path(pairs), languages, translator)
    parts = [f"{Path(classifier).name} on {corpora[0].name}"] if classifier is not None else []
    if encoder is not None and any(corpus.ready is None for corpus in corpora):
        parts.append(
            f"{Path(encoder).name} fine-tuned on {listed([corpus.name for corpus in corpora if corpus.ready is None], 9)}"
        )
    if parallel_text is not None:
        parts.append(
            f"{Path(translator).name if translator else 'translators trained from nothing'} on {parallel_text.name}"
        )
    about = f"These runs have {listed(parts)}; sizes and data differ from those of the papers unless you gave theirs."
    return Material("the models and data given", about, encoder, corpora, parallel_text, parses)


def _glue_tasks(
    folder: Path, tasks: Sequence[str] | None, classifier: str | None, encoder: str | None
) -> tuple[Corpus, ...]:
    """The tasks asked for or found in GLUE's folder; only the first, where there is nothing to fine-tune on the others."""
    tasks_by_name = {_plain(task.name): task for task in GLUE}
    unknown = next((name for name in tasks or () if _plain(name) not in tasks_by_name), None)
    if unknown is not None:
        raise BadData(f"There is no task {unknown!r:.40} here; choose among {', '.join(task.name for task in GLUE)}.")
    requested_tasks = list(dict.fromkeys(tasks_by_name[_plain(name)] for name in tasks or ()))
    if encoder is None and len(requested_tasks) > 1:
        raise BadData(f"There is no model to fine-tune on {requested_tasks[-1].name}; give an encoder (--encoder).")
    available_tasks = requested_tasks or [task for task in GLUE if (folder / task.name).is_dir()]
    if not available_tasks:
        raise BadData(f"There is no file {folder / GLUE[0].name / 'train.tsv'}, nor another task; give GLUE's folder.")
    if encoder is None and classifier is None:
        raise BadData(
            f"There is no model of {available_tasks[0].name}; give one (--classifier), or an encoder (--encoder)."
        )
    chosen = available_tasks if encoder is not None else available_tasks[:1]
    corpora = [
        task.corpus(*(_existing_path(folder / task.name / f"{part}.tsv") for part in ("train", "dev")))
        for task in chosen
    ]
    return (corpora[0]._replace(ready=classifier), *corpora[1:])


def _parallel(folder: Path, languages: tuple[str, str], translator: str | None) -> Pairs:
    if len(languages) != 2 or languages[0] == languages[1]:
        raise BadData(f"Two languages are needed, from and to, such as de,en; I got {', '.join(languages) or 'none'}.")
    if "," in str(folder):
        raise BadData(f"{folder} has a comma in its name, which parts the two files of parallel text; rename it.")

    def files(stem: str) -> str:
        return ",".join(_existing_path(folder / f"{stem}.{language}") for language in languages)

    def complete(stem: str) -> bool:
        return all(located(folder / f"{stem}.{language}") for language in languages)

    flickr, mscoco = "test_2016_flickr", "test_2017_mscoco"  # as Multi30k calls them
    return Pairs(
        f"{folder.resolve().name} {languages[0]}-{languages[1]}",
        files("train"),
        files("val"),
        files("test" if complete("test") and not complete(flickr) else flickr),
        other=files(mscoco) if complete(mscoco) else None,
        ready=translator,
        recipe=FULL_TRANSLATOR,
    )


def _existing_path(path: Path) -> str:
    """The path, which commands take with and without .gz or .xz at its end."""
    if located(path) is None:
        raise BadData(
            f"There is no file {path}, with or without .gz or .xz at its end; put it there, or give another folder."
        )
    return str(path)


def _plain(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")
