"""All experiments: the names they are asked for by, and what of them can be run on a material."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

from ..errors import HeadcountError, NotFound
from . import fan2020, li2021, voita2019
from .experiment import Experiment, Setting
from .inputs import Corpus, Material, Pairs
from .michel2019 import curves, heads
from .prasanna2020 import claims
from .runner import Step, named_once

EXPERIMENTS: tuple[Experiment, ...] = (
    *heads.EXPERIMENTS,
    *curves.EXPERIMENTS,
    *voita2019.EXPERIMENTS,
    *fan2020.EXPERIMENTS,
    *li2021.EXPERIMENTS,
    *claims.EXPERIMENTS,
)


class Planned(NamedTuple):
    """An experiment with its commands on this material, and what it has to go without."""

    experiment: Experiment
    steps: list[Step]
    left_out: list[str]


def experiments_named(words: Sequence[str]) -> list[Experiment]:
    """The experiments that these words name, each once, in the order of the shelf: names, papers ("michel"), or "all"."""
    wanted: set[str] = set()
    for word in words:
        matches = [
            experiment.name
            for experiment in EXPERIMENTS
            if word in (experiment.name, experiment.name.partition("-")[0], "all")
        ]
        if not matches:
            names = [experiment.name for experiment in EXPERIMENTS]
            papers = list(dict.fromkeys(name.partition("-")[0] for name in names))
            near = get_close_matches(word.lower(), [*names, *papers, "all", "list"], 1, 0.5)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise NotFound(f"There is no experiment {word!r:.60}{meant}; there are {', '.join(names)}, and all.")
        wanted |= set(matches)
    return [experiment for experiment in EXPERIMENTS if experiment.name in wanted]


def plan(experiment: Experiment, setting: Setting) -> Planned:
    """The commands of an experiment on this material, and sentences about those that it has nothing for."""
    steps, problem = _steps(experiment, setting)
    names = {step.name for step in steps}
    left_out = [problem] if problem else []
    for missing, material in _with_more(setting.material):
        more, _ = _steps(experiment, replace(setting, material=material))
        if {step.name for step in more} - names:
            left_out.append(f"A part is left out: there is no {missing}." if steps else f"There is no {missing}.")
    if not steps and not left_out:
        left_out.append("It needs other models and data.")
    return Planned(experiment, named_once(steps), left_out)


def _steps(experiment: Experiment, setting: Setting) -> tuple[list[Step], str]:
    try:
        return experiment.steps(setting), ""
    except HeadcountError as error:
        return [], str(error)


def _with_more(material: Material) -> Iterator[tuple[str, Material]]:
    """What the material has not, and the material with something in its place."""
    corpora, pairs = material.corpora, material.pairs
    if not corpora:
        some = Corpus("task", "classification", "train.tsv", "dev.tsv", (("other", "other.tsv"),), ready="model")
        yield "task with labels (--glue)", replace(material, corpora=(some,))
    elif not any(corpus.others for corpus in corpora):
        extended_corpora = tuple(corpus._replace(others=(("other", "other.tsv"),)) for corpus in corpora)
        yield "other data of the same task", replace(material, corpora=extended_corpora)
    if corpora and material.encoder is None:
        yield "encoder to fine-tune (--encoder)", replace(material, encoder="encoder")
    if pairs is None:
        some_pairs = Pairs("pairs", "train.tsv", "val.tsv", "test.tsv", "other.tsv", ready="model")
        yield "parallel text (--pairs)", replace(material, pairs=some_pairs)
    elif pairs.other is None:
        yield "other parallel text to test on", replace(material, pairs=pairs._replace(other=pairs.test))
    if material.parses is None:
        yield "file of sentences with gold parses (--parses)", replace(material, parses="parses.conllu")
