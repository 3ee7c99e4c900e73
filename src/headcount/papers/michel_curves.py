"""Michel et al. 2019, section 4: how many heads can go before it shows (Figures 3 and 6), of which attention (Figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from ..tables import counted, difference_text, fixed, listed, signed
from .experiments import CONFIRMED, DIFFERS, NOT_CONFIRMED, UNTOLD, Claim, Experiment, Found, Setting, Sheet, Step
from .lines import (
    ENOUGH,
    Line,
    chosen_on,
    corpora_of,
    curve_step,
    free,
    left,
    lines_of,
    once,
    percents_text,
    score_text,
    seeds_of,
    unclear,
)
from .michel_speed import SPEED
from .michel_training import TRAINING
from .trainings import mean_of

PAPER = "Michel et al. 2019"
SHARES = range(10, 100, 10)  # percent of the heads
FREE = {"MNLI": 40, "SST-2": 60, "CoLA": 50, "MRPC": 50}  # percent of BERT's heads that go without visible loss
FREE_WMT = 20
FOUR = "40 % of its heads on MNLI, 60 % on SST-2, 50 % on CoLA and on MRPC"
NEARLY = 0.75  # of a published share
BEHIND = 1.0  # percent of the whole model's score: an order that is less far behind is as good
TYPES = {"encoder": "encoder self-attention", "cross": "encoder-decoder attention", "decoder": "decoder self-attention"}
SELF = ("encoder", "decoder")
KEPT = 75  # percent of the score: 30 of 36 are 83


# -- Figures 3 and 6 -------------------------------------------------------------------------------------------------------


def _curves_steps(setting: Setting) -> list[Step]:
    steps: list[Step] = []
    for corpus in corpora_of(setting):
        on = chosen_on(setting, corpus, "dev", "train", 250, 2000)
        how = ("--by", "taylor,ablation,random", "--step", setting.least("10%", "5%"))
        for seed in seeds_of(setting, corpus.ready):
            model, before = setting.classifier(corpus, seed)
            steps += [*before, curve_step(setting, f"michel-curve-{corpus.name}-{seed}", model, before, *on, *how)]
    pairs = setting.material.pairs
    for seed in seeds_of(setting, pairs.ready) if pairs is not None else ():
        model, before = setting.translator(pairs, seed)
        on, step = chosen_on(setting, pairs, "test", "val", 80, 2000), ("--step", setting.least("10%", "5%"))
        orders = ("--by", "taylor,random", "--random-seeds", setting.least("1", "3"), *step)
        steps += [*before, curve_step(setting, f"michel-curve-translator-{seed}", model, before, *on, *orders)]
        if setting.full and seed == setting.seeds[0]:  # a translation of every sentence for every head: dear
            oracle = ("--by", "ablation", *step)
            steps.append(curve_step(setting, f"michel-oracle-translator-{seed}", model, before, *on, *oracle))
    return once(steps)


class Subject(NamedTuple):
    """A task: what is said of it, the share published, and the curves of each of its models."""

    name: str
    paper: str
    share: int
    models: list[list[Line]]

    def lines(self, by: str) -> list[Line]:
        """The curves of all models by one order."""
        return [line for model in self.models for line in _by(model, by)]


def _by(lines: Sequence[Line], by: str) -> list[Line]:
    return [line for line in lines if line.by == by]


def _subjects(found: Found) -> list[Subject]:
    """Every task that curves are there of."""
    setting, pairs, out = found.setting, found.setting.material.pairs, list[Subject]()
    for corpus in corpora_of(setting):
        models = [lines_of(found, f"michel-curve-{corpus.name}-{seed}") for seed in seeds_of(setting, corpus.ready)]
        known = f"{FREE[corpus.name]} % of its heads on {corpus.name}" if corpus.name in FREE else FOUR
        known += " (in F1)" if corpus.name == "MRPC" else ""
        figure = {"MNLI": "Figure 3"}.get(corpus.name, "Figure 6" if corpus.name in FREE else "Figures 3 and 6")
        paper = f"{figure}: BERT loses nothing visible without up to {known}."
        out.append(Subject(corpus.name, paper, FREE.get(corpus.name, min(FREE.values())), models))
    if pairs is not None:
        names = [
            (f"michel-curve-translator-{n}", f"michel-oracle-translator-{n}") for n in seeds_of(setting, pairs.ready)
        ]
        models = [[line for name in both for line in lines_of(found, name)] for both in names]
        paper = "Figure 3: a large WMT translator loses nothing visible without up to 20 % of its heads."
        out.append(Subject(pairs.name, paper, FREE_WMT, models))
    return [subject for subject in out if subject.lines("taylor")]


def _curves_claims(found: Found) -> list[Claim]:
    subjects = _subjects(found)
    return [_free_claim(found, one) for one in subjects] + _oracle_claim(subjects)


def _free_claim(found: Found, subject: Subject) -> Claim:
    lines, wanted = subject.lines("taylor"), round(NEARLY * subject.share)
    rule = (
        f"Confirmed if the mean score of the models stays at {100 * ENOUGH:.0f} % of the whole models' or above up to "
        f"{wanted} % of the heads (three quarters of {subject.share}); where it does not, it differs (or is not confirmed, if "
        "not even the first step is free) if the loss at that share is beyond chance in most models (paired randomization, "
        "Holm over the points of a curve), and cannot be told otherwise."
    )
    where = f"{found.setting.material.name}, {subject.name} ({counted(len(lines), 'model')}, n = {lines[0].whole.n})"
    if unclear(lines):
        return Claim(subject.paper, f"{where}: {unclear(lines)}.", UNTOLD, rule)
    reached, single = free(lines), percents_text([free([line]) for line in lines])
    here = f"{where}: {lines[0].whole.metric} {score_text(lines, None)}; in the order of taylor {100 * ENOUGH:.0f} % of it or "
    here += f"more is left up to {reached} % of the heads" + (f" (model by model {single})" if len(lines) > 1 else "")
    here += f", and no loss is beyond chance up to {percents_text([line.shown for line in lines])}."
    others = [f"{free(subject.lines(by))} % by {by}" for by in ("ablation", "random") if subject.lines(by)]
    here += f" In other orders: {listed(others)}." if others else ""
    if len(lines) == 1:
        here += f" Without {subject.share} %: {difference_text(lines[0].at(subject.share))}."
    if reached + 1 >= wanted:  # 15 % of 144 heads are 14.6 %
        return Claim(subject.paper, here, CONFIRMED, rule)
    lost = sum(line.nearest(wanted) in line.lost for line in lines)
    return Claim(subject.paper, here, UNTOLD if 2 * lost <= len(lines) else DIFFERS if reached else NOT_CONFIRMED, rule)


def _oracle_claim(subjects: Sequence[Subject]) -> list[Claim]:
    """Whether the order of single ablations deserves its name."""
    ahead: dict[str, list[float]] = {}
    for subject in subjects:
        for model in subject.models:
            ours, oracle = _by(model, "taylor"), _by(model, "ablation")
            if ours and oracle and not unclear(ours):
                gains = [left(oracle, share) - left(ours, share) for share in SHARES]
                ahead.setdefault(subject.name, []).append(100 * fmean(gains))
    if not ahead:
        return []
    tasks = {name: mean_of(gains) for name, gains in ahead.items()}
    every = mean_of([gain for gains in ahead.values() for gain in gains])
    told = [f"{name} {mean.text(signed)}" for name, mean in tasks.items()] if len(tasks) > 1 else []
    if every.below(-BEHIND):
        verdict = NOT_CONFIRMED
    elif any(mean.below(-BEHIND) for mean in tasks.values()):
        verdict = DIFFERS
    else:
        verdict = CONFIRMED if every.above(-BEHIND) else UNTOLD
    return [
        Claim(
            "Figures 3 and 6: a dashed curve follows the order of what each head costs when it alone is removed, as the "
            "oracle that the order of importance is held against.",
            "What the ablation order keeps minus what taylor keeps, mean over 10 to 90 % removed, in percent of the whole "
            f"model's score: {every.text(signed)} over {counted(every.seeds, 'model')}"
            f"{'; ' if told else ''}{listed(told, 9) if told else ''} (95 % intervals over models).",
            verdict,
            f"Confirmed if the interval over all models (three or more) lies above {fixed(-BEHIND, 0)} %, so that the oracle is "
            "not the worse order; not confirmed if below; differs if it lies below on some tasks only.",
        )
    ]


def _curves_sheets(found: Found) -> list[Sheet]:
    sheets = []
    for subject in _subjects(found):
        orders = {by: subject.lines(by) for by in ("taylor", "ablation", "random") if subject.lines(by)}
        lines = orders["taylor"]
        rows = [("0 %", *(score_text(lines, None) for _ in orders))]
        rows += [(f"{share} %", *(score_text(one, share) for one in orders.values())) for share in SHARES]
        title = (
            f"{subject.name}: {lines[0].whole.metric} without so many heads; {counted(len(lines), 'model')}, lowest to "
        )
        title += f"highest. {subject.paper}"
        sheets.append(Sheet(title, ("heads removed", *orders), tuple(rows)))
    return sheets


# -- Figure 4 --------------------------------------------------------------------------------------------------------------


def _types_steps(setting: Setting) -> list[Step]:
    pairs, steps = setting.material.pairs, list[Step]()
    for seed in seeds_of(setting, pairs.ready) if pairs is not None else ():
        model, before = setting.translator(pairs, seed)
        on = chosen_on(setting, pairs, "test", "val", 80, 2000)
        steps += before
        for kind in TYPES:
            how = ("--by", "taylor", "--only", kind, "--step", "10%")
            steps.append(curve_step(setting, f"michel-{kind}-translator-{seed}", model, before, *on, *how))
    return once(steps)


def _types(found: Found) -> dict[str, list[Line]]:
    """The curves of each type of attention, of the translators of which all three are there."""
    pairs = found.setting.material.pairs
    seeds = seeds_of(found.setting, pairs.ready) if pairs is not None else ()
    read = [[lines_of(found, f"michel-{kind}-translator-{seed}") for kind in TYPES] for seed in seeds]
    return {kind: [model[n][0] for model in read if all(model)] for n, kind in enumerate(TYPES)}


def _types_claims(found: Found) -> list[Claim]:
    types = _types(found)
    lines = types["cross"]
    if not lines:
        return []
    papers = (
        "Figure 4: a translator collapses beyond 60 % of its encoder-decoder heads removed.",
        "Figure 4: without 80 % of the heads of either self-attention about 30 of 36 BLEU are left.",
    )
    rules = (
        "Confirmed if the mean BLEU without 60 % of the encoder-decoder heads is at least half of the whole models', without "
        "90 % less than half, and there lower than without 90 % of either self-attention; differs if it is the lowest there, but "
        "falls below half before, or not at all; not confirmed if it is not the lowest.",
        f"Confirmed if without 80 % of either type at least {KEPT} % of the whole model's BLEU is left in every model (theirs: "
        "83 %); differs if that holds of one type, and of no model with the other; not confirmed if of no model with either; "
        "else it cannot be told.",
    )
    where = f"{found.setting.material.name} ({counted(len(lines), 'translator')}, n = {lines[0].whole.n})"
    if unclear(lines):
        each = [f"{difference_text(types[kind][0].at(80))} without 80 % of {name}" for kind, name in TYPES.items()]
        why = unclear(lines) if lines[0].whole.higher_is_better else f"measured by {lines[0].whole.metric}"
        return [
            Claim(paper, f"{where}: {why}; {listed(each)}.", UNTOLD, rule)
            for paper, rule in zip(papers, rules, strict=True)
        ]
    whole = f"{where}: {lines[0].whole.metric} {score_text(lines, None)}"
    lowest = left(lines, 90) < min(left(types[kind], 90) for kind in SELF)
    told = [f"{score_text(lines, share)} without {share} %" for share in (60, 80, 90)]
    both = [f"{score_text(types[kind], 90)} without 90 % of {TYPES[kind]}" for kind in SELF]
    here = f"{whole}; of encoder-decoder attention {listed(told)}; {listed(both)}."
    verdict = (CONFIRMED if left(lines, 60) >= 0.5 > left(lines, 90) else DIFFERS) if lowest else NOT_CONFIRMED
    each = [
        f"{score_text(types[kind], 80)} ({100 * left(types[kind], 80):.0f} %) without 80 % of {TYPES[kind]}"
        for kind in SELF
    ]
    many = [fmean(100 * left([line], 80) >= KEPT for line in types[kind]) for kind in SELF]  # 1.0: of all models
    second = (NOT_CONFIRMED, DIFFERS, CONFIRMED)[round(sum(many))] if set(many) <= {0.0, 1.0} else UNTOLD
    return [Claim(papers[0], here, verdict, rules[0]), Claim(papers[1], f"{whole}; {listed(each)}.", second, rules[1])]


def _types_sheets(found: Found) -> list[Sheet]:
    types = _types(found)
    lines = types["cross"]
    if not lines:
        return []
    rows = [("0 %", *(score_text(one, None) for one in types.values()))]
    rows += [(f"{share} %", *(score_text(one, share) for one in types.values())) for share in SHARES]
    rows.append(("Michel et al., 80 %, of 36 BLEU", "about 30", "collapsed", "about 30"))
    title = f"{lines[0].whole.metric} without so many heads of one type; {counted(len(lines), 'translator')}, lowest to highest"
    return [Sheet(title, ("heads of the type removed", *TYPES.values()), tuple(rows))]


EXPERIMENTS = (
    Experiment(
        "michel-curves",
        PAPER,
        "Figures 3 and 6",
        "How many heads can go before it shows, in the order of their importance?",
        _curves_steps,
        _curves_claims,
        _curves_sheets,
    ),
    Experiment(
        "michel-types",
        PAPER,
        "Figure 4",
        "Which type of a translator's attention needs its heads most?",
        _types_steps,
        _types_claims,
        _types_sheets,
    ),
    TRAINING,
    SPEED,
)
