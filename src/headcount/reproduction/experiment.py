"""What an experiment is: commands that anybody could give, and sentences of a paper beside what came out of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..documents.claims import CONFIRMED as CONFIRMED
from ..documents.claims import DIFFERS as DIFFERS
from ..documents.claims import NOT_CONFIRMED as NOT_CONFIRMED
from ..documents.claims import UNTOLD as UNTOLD
from ..documents.claims import Claim as Claim
from ..documents.claims import Sheet as Sheet
from ..documents.reading import JsonDocument
from ..errors import BadRun, HeadcountError
from .inputs import Corpus, Material, Pairs
from .runner import Step as Step  # part of what an experiment is made of

Data = TypeVar("Data", bound=JsonDocument)
Made = TypeVar("Made")
SIZES = ("--layers", "--decoder-layers", "--heads", "--width", "--ffn", "--vocabulary", "--dropout")  # of new-marian


class Experiment(NamedTuple):
    """A table or figure of a paper: how to run it again, and what to make of it."""

    name: str  # michel-curves
    paper: str  # Michel et al. 2019
    shows: str  # Figures 3 and 6
    asks: str  # one sentence, a question
    steps: Callable[[Setting], list[Step]]  # none where the material has not what it needs
    claims: Callable[[RunDocuments], list[Claim]]
    sheets: Callable[[RunDocuments], list[Sheet]] = lambda results: []


@dataclass(frozen=True)
class Setting:
    """Everything that the commands of an experiment depend on."""

    material: Material
    folder: Path  # models and run folders go here, and experiments share them
    full: bool  # all data and the papers' settings, or a laptop's worth
    seeds: tuple[int, ...]
    flags: tuple[str, ...] = ()  # of every command that runs a model: --device, --quiet

    def run(self, name: str) -> str:
        """The run folder of a step."""
        return str(self.folder / "runs" / name)

    def model(self, name: str) -> str:
        """The folder of a model that a step makes."""
        return str(self.folder / "models" / name)

    def by_size(self, laptop: Any, full: Any = None) -> Any:
        """The one or the other, by size."""
        return full if self.full else laptop

    @property
    def batch(self) -> tuple[str, ...]:
        """A flag for commands that measure: at full size there is a GPU, and many examples at a time keep it busy."""
        return ("--batch-size", "512") if self.full else ()

    def limit(self, laptop: int, full: int | None = None, flag: str = "--limit") -> tuple[str, ...]:
        """A flag that limits examples, with a number for each size; nothing where there is no limit."""
        count = full if self.full else laptop
        return () if count is None else (flag, str(count))

    def classifier(self, corpus: Corpus, seed: int) -> tuple[str, list[Step]]:
        """A model of a task, and the steps that make it: none where the material brings one, of any seed."""
        if corpus.ready is not None:
            return corpus.ready, []
        if self.material.encoder is None:
            raise BadRun(
                f"{self.material.name} brings neither a model of {corpus.name} nor an encoder to fine-tune; give --encoder."
            )
        name = f"train-{corpus.name}-{seed}"
        words = (
            "train",
            self.material.encoder,
            "--task",
            corpus.kind,
            *corpus.on("train"),
            *corpus.beside("--dev-data", "dev"),
        )
        words += (
            "--epochs",
            corpus.epochs,
            "--lr",
            "5e-5",
            "--batch-size",
            "32",
            "--seed",
            str(seed),
            *self.limit(600),
        )
        words += ("-o", self.model(f"{corpus.name}-{seed}"), "--run", self.run(name), "--force", *self.flags)
        return self.model(f"{corpus.name}-{seed}"), [Step(name, words)]

    def translator(self, pairs: Pairs, seed: int) -> tuple[str, list[Step]]:
        """A translator, and the steps that make it: none where the material brings one, of any seed."""
        return (pairs.ready, []) if pairs.ready is not None else self.trained(pairs, seed)

    def trained(self, pairs: Pairs, seed: int) -> tuple[str, list[Step]]:
        """A translator trained from nothing with the model of every epoch kept, whatever the material brings."""
        name = f"train-translator-{seed}"
        words = (
            "train",
            "new-marian",
            *pairs.on("train"),
            *pairs.beside("--dev-data", "val"),
            "--dev-limit",
            "100",
            "--checkpoints",
        )
        words += (
            *pairs.recipe,
            "--seed",
            str(seed),
            "-o",
            self.model(f"translator-{seed}"),
            "--run",
            self.run(name),
            "--force",
        )
        return self.model(f"translator-{seed}"), [Step(name, (*words, *self.flags))]


@dataclass(frozen=True)
class RunDocuments:
    """The documents of an experiment's run folders, as far as they are there."""

    setting: Setting
    without: frozenset[str] = frozenset()  # steps whose documents are passed over: nothing can be learned from them

    def document(self, name: str, kind: type[Data]) -> Data | None:
        """A document of the run folder of a step; None where it is not there (yet), or passed over."""
        if name in self.without:
            return None
        file = f"{self.setting.run(name)}/{kind.NAME}.json"
        try:
            data = json.loads(Path(file).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BadRun(f"{file} cannot be read ({error!s:.80}); run its command again.") from None
        return kind.from_json(data, file)

    def read(self, name: str, kind: type[Data], build: Callable[[Data], Made]) -> Made | None:
        """`build(document)`, or None where it is not there; what cannot be what a command writes gives one sentence."""
        document = self.document(name, kind)
        if document is None:
            return None
        try:
            return build(document)
        except (HeadcountError, KeyError, TypeError, ValueError, IndexError) as error:
            raise BadRun(
                f"{self.setting.run(name)}/{kind.NAME}.json is not what headcount writes ({type(error).__name__}: "
                f"{error!s:.60}); run its command again in a new folder."
            ) from None


def over_seeds(values: Sequence[float], format_value: Callable[[float], str]) -> str:
    """The mean of what each seed gave, and the lowest and the highest: "38.4 (38.3 to 38.5)"; of one seed, that one."""
    low, mean, high = (format_value(value) for value in (min(values), sum(values) / len(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low} to {high})"


def parted(words: Sequence[str], flags: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words of a command in two: these flags with their values, and the others with theirs."""
    matching_words, remaining_words = list[str](), list[str]()
    for place, word in enumerate(words):
        flag = next(earlier_word for earlier_word in reversed(words[: place + 1]) if earlier_word.startswith("--"))
        (matching_words if flag in flags else remaining_words).append(word)
    return tuple(matching_words), tuple(remaining_words)
