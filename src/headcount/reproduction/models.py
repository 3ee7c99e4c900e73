"""The models of an experiment, questions about them, and one verdict for several of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ..stats.results import Comparison, difference_text, unit_of
from .experiment import DIFFERS, UNTOLD, Data, Made, RunDocuments, Setting, Step
from .inputs import Corpus, Pairs
from .runner import named_once

PAPER = "Michel et al. 2019"
DASH = "–"
MOST = " This has to hold in more than half of the models, and the opposite in none."


class Subject(NamedTuple):
    """A model of an experiment."""

    name: str  # in the names of steps
    title: str  # for people
    folder: str
    steps: tuple[Step, ...]  # that make it
    source: Corpus | Pairs


class Question(NamedTuple):
    """A question about a model: the step that answers it."""

    subject: Subject
    step: Step
    other: str = ""  # the other data, where there is such

    @property
    def kind(self) -> str:
        """Whether the model is a classifier or a translator."""
        return "classifier" if isinstance(self.subject.source, Corpus) else "translator"


def classifiers(setting: Setting, corpora: Sequence[Corpus], seeds: int | None = 1) -> list[Subject]:
    """A model of each of these corpora, of the first with so many seeds (None: all); on a laptop one model of the first."""
    out = []
    for place, corpus in enumerate(corpora if setting.full else corpora[:1]):
        for seed in seeds_of(setting, corpus.ready, seeds if place == 0 else 1):
            folder, steps = setting.classifier(corpus, seed)
            ending = "" if corpus.ready else f"-{seed}"
            out.append(Subject(corpus.name + ending, _title(corpus.name, ending), folder, tuple(steps), corpus))
    return out


def translators(setting: Setting, seeds: int | None = 1) -> list[Subject]:
    """Translators of so many seeds (None: all), on a laptop one; none where there is no parallel text."""
    pairs, out = setting.material.pairs, []
    if pairs is None:
        return []
    for seed in seeds_of(setting, pairs.ready, seeds):
        folder, steps = setting.translator(pairs, seed)
        ending = "" if pairs.ready else f"-{seed}"
        out.append(Subject("translator" + ending, _title("translator", ending), folder, tuple(steps), pairs))
    return out


def seeds_of(setting: Setting, ready: str | None, most: int | None = None) -> tuple[int, ...]:
    """A seed for each model to ask about (None: all): a model that was there before is one, as is a laptop's."""
    return setting.seeds[: most if setting.full and ready is None else 1]


def _title(name: str, ending: str) -> str:
    return name + (f", seed {ending[1:]}" if ending else "")


def asked(setting: Setting, subject: Subject, name: str, words: Sequence[str], other_data: str = "") -> Question:
    """A question about a model, by the name of its step and the words of its command."""
    words = (*words, *setting.batch, "-o", setting.run(name), *setting.flags)
    return Question(subject, Step(name, words, tuple(step.name for step in subject.steps)), other_data)


def steps_of(ask: Callable[[Setting], list[Question]]) -> Callable[[Setting], list[Step]]:
    """The steps of these questions and of their models, each once."""

    def steps(setting: Setting) -> list[Step]:
        every = [step for question in ask(setting) for step in (*question.subject.steps, question.step)]
        return named_once(every)

    return steps


def read(
    results: RunDocuments,
    ask: Callable[[Setting], list[Question]],
    kind: type[Data],
    build: Callable[[Question, Data], Made],
) -> list[Made]:
    """What was found out, as far as it was."""
    out = []
    for question in ask(results.setting):
        answer = results.read(question.step.name, kind, partial(build, question))
        out += [] if answer is None else [answer]
    return out


def together(verdicts: Sequence[str]) -> str:
    """One verdict for several models: what more than half of them say, unless others say something else."""
    decisive_verdicts = sorted(set(verdicts) - {UNTOLD})
    if len(decisive_verdicts) > 1:
        return DIFFERS
    return (
        decisive_verdicts[0]
        if decisive_verdicts and 2 * verdicts.count(decisive_verdicts[0]) > len(verdicts)
        else UNTOLD
    )


def difference(comparison: Comparison) -> str:
    """A difference with its interval, without its unit."""
    return difference_text(comparison).removesuffix(f" {unit_of(comparison)}")


def decimals(comparison: Comparison) -> int:
    """Decimals that show something of a difference in this metric: two of a point, more of a loss."""
    return 2 if unit_of(comparison) == "points" else 4


def excludes(comparison: Comparison, loss: float) -> bool:
    """Whether the interval shows that less than so many points are lost; a metric without points shows nothing."""
    return unit_of(comparison) == "points" and comparison.low * comparison.points > -loss


def beyond(comparison: Comparison, loss: float) -> bool:
    """Whether the interval shows that more than so many points are lost."""
    return unit_of(comparison) == "points" and comparison.high * comparison.points < -loss


def layer_of(site: str) -> int:
    """The layer of a site, by its name, from 0."""
    digits = re.search(r"\d+", site)
    if digits is None:
        raise ValueError(f"no layer in {site:.40}")
    return int(digits.group())
