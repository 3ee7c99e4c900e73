"""Voita et al. 2019, Table 1 and the figure of survivors: what heads look at, and which of them gates keep. No torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...documents import roles as documents
from ...documents.learned import LearnedDocument
from ...documents.roles import RolesDocument
from ...formatting import counted, fixed, listed, probability, signed
from ...plans import site_of
from ...reporting.head_roles import KINDS, NONE, by_role
from ...reporting.run_reader import ALPHA
from ...reporting.sections.role_survival import Course, odds
from ..experiment import CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD, Claim, RunDocuments, Setting, Sheet, Step
from ..models import layer_of
from ..runner import named_once
from .encoder import PREFIX, Outcome, name_of, outcome, shares
from .encoder import steps as encoder_steps

PAIRS, PARSES, CLASSIFIER = "voita-roles-translator", "voita-roles-parses", "voita-roles-classifier"
SUBJECTS = {PAIRS: "the translator", PARSES: "the translator", CLASSIFIER: "the classifier"}
FUNCTIONS = ("positional", "syntactic", "rare")  # those of the paper
SUFFIX = re.compile(r"(?:^|\.)([a-z]{2})(?:\.gz|\.xz)?$")  # of files such as train.de.gz
TREEBANK = re.compile(r"^([a-z]{2})_")  # of files such as en_ewt-ud-dev.conllu
DOWN, UP = "governor to dependent", "dependent to governor"
# Table 1: a relation (and its older name), its direction, best head / best fixed offset in %: WMT, OpenSubtitles
PUBLISHED = (
    (("nsubj",), DOWN, "45 / 35", "77 / 45"),
    (("nsubj",), UP, "52 / 35", "70 / 45"),
    (("obj", "dobj"), DOWN, "78 / 41", "61 / 46"),
    (("obj", "dobj"), UP, "73 / 41", "84 / 46"),
    (("amod",), DOWN, "74 / 72", "81 / 80"),
    (("amod",), UP, "82 / 72", "81 / 80"),
    (("advmod",), DOWN, "48 / 46", "38 / 33"),
    (("advmod",), UP, "52 / 46", "42 / 33"),
)
HALF = 0.5  # of the words, from which a head for rare words looks at them
CLEAR = PUBLISHED[:4]  # those in which both of their models gain 10 points or more
AHEAD = 0.10


# -- the commands ----------------------------------------------------------------------------------------------------------


def steps(setting: Setting) -> list[Step]:
    """Roles of the heads of the first translator and of a classifier, and gates on the former's encoder."""
    pairs, parses = setting.material.pairs, setting.material.parses
    all_steps: list[Step] = []
    if pairs is not None:
        model, before = setting.translator(pairs, setting.seeds[0])
        # frequencies and alignments are estimated from all of the data, whatever the limit
        all_steps += [*before, _roles(setting, PAIRS, model, before, *pairs.texts("train"), *setting.limit(60, 2000))]
        if parses is not None and language_of(pairs.train.partition(",")[0], pairs.flags) == treebank_of(parses):
            all_steps.append(_roles(setting, PARSES, model, before, "--data", parses, *setting.limit(200)))
        all_steps += encoder_steps(setting, setting.seeds[:1], controls=False)
    corpora = [
        corpus
        for corpus in setting.material.corpora
        if corpus.ready is not None or setting.material.encoder is not None
    ]
    if corpora and parses is not None and treebank_of(parses) in ("en", None):  # these corpora are English
        model, before = setting.classifier(corpora[0], setting.seeds[0])
        all_steps += [*before, _roles(setting, CLASSIFIER, model, before, "--data", parses, *setting.limit(200))]
    return named_once(all_steps)


def _roles(setting: Setting, name: str, model: str, before: Sequence[Step], *words: str) -> Step:
    batch = ("--batch-size", "64") if setting.full else ()
    command = ("roles", model, *words, *batch, "-o", setting.run(name), *setting.flags)
    return Step(name, command, tuple(step.name for step in before))


def language_of(file: str, flags: Sequence[str]) -> str | None:
    """The language of sentences, as their file or column is called; None where that does not say."""
    column = flags[flags.index("--text") + 1] if "--text" in flags else Path(file).name
    match = SUFFIX.search(column)
    return match.group(1) if match else None


def treebank_of(file: str) -> str | None:
    """The language of a treebank, as Universal Dependencies calls their files."""
    match = TREEBANK.match(Path(file).name)
    return match.group(1) if match else None


# -- what came out ---------------------------------------------------------------------------------------------------------


class Relation(NamedTuple):
    """The best head of a relation: what it and the best fixed offset get right, its gain, and whether any earned the role."""

    unit: str
    right: float
    gain: float
    low: float
    high: float
    earned: bool

    @property
    def text(self) -> str:
        """As in the paper's table, with the gain."""
        gain, low, high = (signed(100 * value, 0) for value in (self.gain, self.low, self.high))
        accuracies = f"{fixed(100 * self.right, 0)} / {fixed(100 * (self.right - self.gain), 0)}"
        return f"{accuracies}, {gain} [{low}, {high}] ({self.unit})"


class EncoderRoles(NamedTuple):
    """What a run of `roles` saw in an encoder."""

    sentences: int
    roles: dict[str, frozenset[str]]  # all roles of each head
    rare: dict[str, str]  # a sentence about each head that has earned that role
    looks: dict[str, tuple[float, ...]]  # how often each looks at one of the two rarest words, where it was seen
    relations: dict[tuple[str, str], Relation]


def seen(document: RolesDocument) -> EncoderRoles:
    """What roles.json says about encoder heads."""
    if not document.sentences:
        raise ValueError("sentences is missing")
    heads = [head for head in document.heads if head.type == "encoder"]
    roles = {head.unit: frozenset(own.role for own in head.roles) for head in heads}
    for unit, own in roles.items():
        layer_of(site_of(unit))
        if not own <= KINDS.keys():
            raise ValueError(f"{', '.join(own - KINDS.keys()):.40} is no role")
    rare = {head.unit: own.text for head in heads for own in head.roles if own.role == "rare"}
    looks = {
        head.unit: _complete(head.rare.two) for head in heads if head.rare is not None and head.rare.two is not None
    }
    relations = [relation for relation in document.relations if relation.type == "encoder"]
    by_relation = {(relation.relation, relation.direction): _relation(relation) for relation in relations}
    return EncoderRoles(document.sentences, roles, rare, looks, by_relation)


def _complete(numbers: Sequence[float | None]) -> tuple[float, ...]:
    """The numbers, all of which have to be there."""
    if None in numbers:
        raise ValueError("a number is missing")
    return tuple(number for number in numbers if number is not None)


def _relation(relation: documents.Relation) -> Relation:
    if relation.best is not None:  # chosen on one half of the sentences, measured on the other
        unit, numbers = relation.best.unit, _complete(relation.best.numbers)
    else:
        unit, numbers = max(
            ((unit, _complete(own[:4])) for unit, own in relation.heads.items()), key=lambda head: head[1][1]
        )
    right, gain, low, high = numbers
    return Relation(unit, right, gain, low, high, bool(relation.earned))


def main_roles(some: Sequence[EncoderRoles]) -> dict[str, str]:
    """The first role of each head that any of these runs saw."""
    units = dict.fromkeys(unit for observation in some for unit in observation.roles)
    roles_by_unit = {
        unit: frozenset[str]().union(*(observation.roles.get(unit, frozenset()) for observation in some))
        for unit in units
    }
    return {unit: next((role for role in KINDS if role in own), NONE) for unit, own in roles_by_unit.items()}


def course(results: RunDocuments, heads: frozenset[str]) -> Course:
    """What is left of the encoder's heads under the first seed as gates keep fewer."""
    seed = results.setting.seeds[0]
    read = [
        results.read(name_of(PREFIX, "l0", share, seed), LearnedDocument, outcome) for share in shares(results.setting)
    ]
    runs: list[Outcome] = [run for run in read if run is not None and run.gone <= heads]
    return Course("L0 gates", heads, (heads, *(heads - run.gone for run in sorted(runs, key=lambda run: -run.kept))))


# -- what to make of it ----------------------------------------------------------------------------------------------------


def claims(results: RunDocuments) -> list[Claim]:
    """Functions are what survives; there is a head for rare words; heads find dependencies."""
    saw = {
        name: observation for name in SUBJECTS if (observation := results.read(name, RolesDocument, seen)) is not None
    }
    out = _survival(results, [saw[name] for name in (PAIRS, PARSES) if name in saw])
    out += [claim for name, observation in saw.items() for claim in _rare(results, name, observation)]
    return out + [_syntax(results, name, observation) for name, observation in saw.items() if observation.relations]


def _about(results: RunDocuments, name: str, observation: EncoderRoles) -> str:
    pairs = results.setting.material.pairs
    source = (
        pairs.name if name == PAIRS and pairs is not None else Path(results.setting.material.parses or "parses").name
    )
    return f"{SUBJECTS[name]}'s encoder, {counted(observation.sentences, 'sentence')} of {source}"


def _survival(results: RunDocuments, some: Sequence[EncoderRoles]) -> list[Claim]:
    mains = main_roles(some)
    order = course(results, frozenset(mains))
    if not order.last:
        return []
    # heads with any of the functions are one group here, so that there is one test
    grouped = {unit: FUNCTIONS[0] if role in FUNCTIONS else NONE for unit, role in mains.items()}
    row = next(
        (candidate for candidate in odds(grouped, order.heads, order.last) if candidate.role == FUNCTIONS[0]), None
    )
    counts, kept_counts = by_role(mains, order.heads), by_role(mains, order.last)
    roles = listed(
        [f"{kept_counts[role]} of {count} {role}" for role, count in counts.items() if role != NONE] or ["none"], 9
    )
    verdict = UNTOLD
    if row is None:
        survival_text = "no head has one of these functions"
    else:
        survival_text = (
            f"{row.left} of the {row.heads} with one of these functions are left, {fixed(row.expected, 1)} by chance "
            f"(exact p = {probability(row.p)})"
        )
        if row.p <= ALPHA:
            verdict = CONFIRMED if row.left > row.expected else NOT_CONFIRMED
    pairs = results.setting.material.pairs
    finding = (
        f"When gates have closed all but {len(order.last)} of {len(order.heads)} encoder heads, {survival_text}; by main "
        f"role {roles} (one translator on {pairs.name if pairs else 'pairs'}; {'with' if len(some) > 1 else 'without'} parses)."
    )
    return [
        Claim(
            "The figure of functions: heads with a function (positional, syntactic, rare words) are the last to be pruned, and "
            "with 17 of 48 encoder heads every function is still there.",
            finding,
            verdict,
            "At the number of heads nearest to a third, more heads with a function are left than chance would leave "
            "(hypergeometric over heads, two-sided, p at most 0.05); not confirmed if fewer are. This is about one translator "
            "and one training of its gates: others may keep other heads.",
        )
    ]


def _rare(results: RunDocuments, name: str, observation: EncoderRoles) -> list[Claim]:
    """Nothing where no sentence has rare words."""
    if not observation.looks:
        return []
    first = min(layer_of(site_of(unit)) for unit in observation.roles)
    low = {unit: span for unit, span in observation.looks.items() if layer_of(site_of(unit)) == first}
    first_units = [unit for unit in observation.rare if unit in low]
    sure = [unit for unit in observation.rare if unit in observation.looks and observation.looks[unit][1] > HALF]
    unit_texts = [
        f"{unit} {observation.rare[unit]}"
        for unit in (*first_units, *(unit for unit in observation.rare if unit not in first_units))
    ]
    nearest = max(observation.looks, key=lambda unit: observation.looks[unit][0])
    value, *ends = (fixed(100 * share, 0) for share in observation.looks[nearest])
    none = f"No head does; the nearest is {nearest}, from {value} % of words [{', '.join(ends)}]"
    verdict = CONFIRMED if any(unit in first_units for unit in sure) else UNTOLD
    if all(high < HALF for _, _, high in low.values()):
        verdict = DIFFERS if sure else UNTOLD if observation.rare else NOT_CONFIRMED
    return [
        Claim(
            "Rare words: a head of the first layer looks at one of the two rarest tokens of a sentence in 83 % (OpenSubtitles) "
            "and in more than 50 % of cases (WMT).",
            f"{listed(unit_texts, 3) if unit_texts else none} ({_about(results, name, observation)}).",
            verdict,
            "A head of the first layer looks at one of the two rarest words from more than half of the words by its 95 % "
            "interval, 10 points above chance and beyond it (Holm); if the intervals of the first layer end below half, it "
            "differs where a head of another layer does so, and is not confirmed where none does.",
        )
    ]


def _best(observation: EncoderRoles, names: Sequence[str], direction: str) -> Relation | None:
    return next(
        (observation.relations[name, direction] for name in names if (name, direction) in observation.relations), None
    )


def _syntax(results: RunDocuments, name: str, observation: EncoderRoles) -> Claim:
    best = {(names[0], way): _best(observation, names, way) for names, way, *_ in CLEAR}
    relations = {key: relation for key, relation in best.items() if relation is not None}
    earned = [key for key, relation in relations.items() if relation.earned]
    earned_count = sum(relation.earned for relation in observation.relations.values())
    ahead = [key for key in earned if relations[key].low > AHEAD]
    short = [key for key, relation in relations.items() if relation.high < AHEAD]
    verdict = UNTOLD
    if len(ahead) == len(best):
        verdict = CONFIRMED
    elif short and earned_count:
        verdict = DIFFERS
    elif len(short) == len(best):
        verdict = NOT_CONFIRMED
    relations_text = "; ".join(f"{relation}, {way}: {relations[relation, way].text}" for relation, way in relations)
    return Claim(
        "Table 1: for subjects and objects, in both directions, some head is right at least 10 points more often than the best "
        "fixed offset (verb to object 78 against 41 % on WMT).",
        f"{len(earned)} of these {len(best)} are found so by some head, and {earned_count} of all "
        f"{len(observation.relations)} relations and directions; right / best offset in %, gain: "
        f"{relations_text or 'too few pairs'} ({_about(results, name, observation)}).",
        verdict,
        "For all four, some head is above the best fixed offset beyond chance (Holm over heads and relations), and the best one "
        "by more than 10 points (95 % interval); it differs if the interval of one of them ends below 10 points and some "
        "relation is found, and is not confirmed if all four end below and none is.",
    )


def sheets(results: RunDocuments) -> list[Sheet]:
    """Table 1 with ours beside it, and how many heads of each role are left."""
    saw = {
        name: observation for name in SUBJECTS if (observation := results.read(name, RolesDocument, seen)) is not None
    }
    out = []
    parsed = {name: observation for name, observation in saw.items() if observation.relations}
    if parsed:
        rows = [
            (
                names[0],
                way,
                *theirs,
                *((best.text if (best := _best(observation, names, way)) else "") for observation in parsed.values()),
            )
            for names, way, *theirs in PUBLISHED
        ]
        ours = [_about(results, name, observation) for name, observation in parsed.items()]
        columns = ("relation", "direction", "WMT, theirs", "OpenSubtitles, theirs", *ours)
        out.append(Sheet("Table 1: best head / best fixed offset, in %", columns, tuple(rows)))
    mains = main_roles([saw[name] for name in (PAIRS, PARSES) if name in saw])
    order = course(results, frozenset(mains))
    if len(order.stops) > 1:
        counts = [by_role({unit: mains[unit] for unit in order.heads}, stop) for stop in order.stops]
        role_rows = [(role, *(str(role_counts[role]) for role_counts in counts)) for role in counts[0]]
        column_names = tuple(f"{len(stop)} heads" for stop in order.stops)
        functions = (
            "any of the paper's functions",
            *(str(sum(role_counts.get(role, 0) for role in FUNCTIONS)) for role_counts in counts),
        )
        out.append(Sheet("Encoder heads left, by main role", ("main role", *column_names), (*role_rows, functions)))
    return out
