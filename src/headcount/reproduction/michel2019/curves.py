"""Michel et al. 2019, section 4: how many heads can go before it shows (Figures 3 and 6), of which attention (Figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...formatting import counted, fixed, listed, signed
from ...stats.results import difference_text
from ..curves import (
    VISIBLE,
    Line,
    able,
    chosen_on,
    corpora_of,
    curve_step,
    free,
    kept,
    lines_of,
    percents_text,
    score_text,
    share_left,
    unclear,
)
from ..experiment import (
    CONFIRMED,
    DIFFERS,
    NOT_CONFIRMED,
    UNTOLD,
    Claim,
    Experiment,
    RunDocuments,
    Setting,
    Sheet,
    Step,
)
from ..models import seeds_of
from ..runner import named_once
from ..seeds import COVERS, ENOUGH, Estimate, mean_of, mean_over_seeds
from .speed import SPEED
from .training import TRAINING

PAPER = "Michel et al. 2019"
SHARES = range(10, 100, 10)  # percent of the heads
FREE = {"MNLI": 40, "SST-2": 60, "CoLA": 50, "MRPC": 50}  # percent of BERT's heads that go without visible loss
FREE_WMT = 20
FOUR = "40 % of its heads on MNLI, 60 % on SST-2, 50 % on CoLA and on MRPC"
TYPES = {"encoder": "encoder self-attention", "cross": "encoder-decoder attention", "decoder": "decoder self-attention"}
SELF = ("encoder", "decoder")
KEPT = 75  # percent of the score: 30 of 36 are 83


# -- Figures 3 and 6 -------------------------------------------------------------------------------------------------------


def _curves_steps(setting: Setting) -> list[Step]:
    steps: list[Step] = []
    for corpus in corpora_of(setting):
        on = chosen_on(setting, corpus, "dev", "train", 250, 2000)
        how = ("--by", "taylor,ablation,random", "--step", setting.by_size("10%", "5%"))
        for seed in seeds_of(setting, corpus.ready):
            model, before = setting.classifier(corpus, seed)
            steps += [*before, curve_step(setting, f"michel-curve-{corpus.name}-{seed}", model, before, *on, *how)]
    pairs = setting.material.pairs
    for seed in seeds_of(setting, pairs.ready) if pairs is not None else ():
        model, before = setting.translator(pairs, seed)
        on, step = chosen_on(setting, pairs, "test", "val", 80, 2000), ("--step", setting.by_size("10%", "5%"))
        orders = ("--by", "taylor,random", "--random-seeds", setting.by_size("1", "3"), *step)
        steps += [*before, curve_step(setting, f"michel-curve-translator-{seed}", model, before, *on, *orders)]
        if setting.full and seed == setting.seeds[0]:  # a translation of every sentence for every head: dear
            single = ("--by", "ablation", *step)
            steps.append(curve_step(setting, f"michel-oracle-translator-{seed}", model, before, *on, *single))
    return named_once(steps)


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


def _subjects(results: RunDocuments) -> list[Subject]:
    """Every task that curves are there of."""
    setting, pairs, out = results.setting, results.setting.material.pairs, list[Subject]()
    for corpus in corpora_of(setting):
        models = [lines_of(results, f"michel-curve-{corpus.name}-{seed}") for seed in seeds_of(setting, corpus.ready)]
        published_text = f"{FREE[corpus.name]} % of its heads on {corpus.name}" if corpus.name in FREE else FOUR
        published_text += " (in F1)" if corpus.name == "MRPC" else ""
        figure = {"MNLI": "Figure 3"}.get(corpus.name, "Figure 6" if corpus.name in FREE else "Figures 3 and 6")
        paper = f"{figure}: BERT loses nothing visible without up to {published_text}."
        out.append(Subject(corpus.name, paper, FREE.get(corpus.name, min(FREE.values())), models))
    if pairs is not None:
        names = [
            (f"michel-curve-translator-{n}", f"michel-oracle-translator-{n}") for n in seeds_of(setting, pairs.ready)
        ]
        models = [[line for name in run_names for line in lines_of(results, name)] for run_names in names]
        paper = "Figure 3: a large WMT translator loses nothing visible without up to 20 % of its heads."
        out.append(Subject(pairs.name, paper, FREE_WMT, models))
    return [subject for subject in out if subject.lines("taylor")]


def _curves_claims(results: RunDocuments) -> list[Claim]:
    subjects = _subjects(results)
    return [_free_claim(subject) for subject in subjects] + _order_claim(subjects)


def _free_claim(subject: Subject) -> Claim:
    lines, wanted = subject.lines("taylor"), subject.share
    rule = (
        f"Confirmed if the models keep {100 * VISIBLE:.0f} % of their scores on average up to {wanted} % of the heads, the share "
        f"that the paper names, and more than that at this share by the 95 % interval ({COVERS}, from {ENOUGH} "
        "models on; of one, over its examples); where they keep less, it differs (or is not confirmed, if not even the "
        "first step is free) if the loss at that share is beyond chance in most models (paired randomization, Holm over "
        "the points of a curve)."
    )
    where = f"{subject.name} ({counted(len(lines), 'model')}, n = {lines[0].whole.n})"
    if unclear(lines):
        return Claim(subject.paper, f"{where}: {unclear(lines)}.", UNTOLD, rule)
    lines = able(lines)
    reached, kept_share = free(lines), kept(lines, wanted)
    finding = f"{where}: {lines[0].whole.metric} {score_text(lines, None)}; in the order of taylor {100 * VISIBLE:.0f} % of it "
    finding += f"or more is left up to {reached} % of the heads, and {kept_share.text} without {wanted} %; "
    finding += f"no loss is beyond chance up to {percents_text([line.shown for line in lines])}."
    other_orders = [f"{free(able(subject.lines(by)))} % by {by}" for by in ("ablation", "random") if subject.lines(by)]
    finding += f" In other orders: {listed(other_orders)}." if other_orders else ""
    if reached + 1 >= wanted:  # 15 % of 144 heads are 14.6 %
        return Claim(subject.paper, finding, CONFIRMED if kept_share.low > 100 * VISIBLE else UNTOLD, rule)
    lost = sum(line.nearest(wanted) in line.lost for line in lines)
    return Claim(
        subject.paper, finding, UNTOLD if 2 * lost <= len(lines) else DIFFERS if reached else NOT_CONFIRMED, rule
    )


def _order_claim(subjects: Sequence[Subject]) -> list[Claim]:
    """Whether the order of importance keeps more than that of single ablations."""
    ahead: dict[str, list[Estimate]] = {}
    for subject in subjects:
        for model in subject.models:
            ours, single = _by(model, "taylor"), _by(model, "ablation")
            if ours and single and not unclear(ours):
                gains = [share_left(ours[0], share).minus(share_left(single[0], share)) for share in SHARES]
                ahead.setdefault(subject.name, []).append(Estimate.average(gains))
    if not ahead:
        return []
    tasks = {name: mean_of(gains) for name, gains in ahead.items()}
    # a task has models and examples of its own, so tasks differ by these, too, and their interval covers them
    every = mean_over_seeds(mean.value for mean in tasks.values())
    task_texts = [f"{name} {mean.text(signed)}" for name, mean in tasks.items()]
    worse = [name for name, mean in tasks.items() if mean.below(0)]
    better = [name for name, mean in tasks.items() if mean.above(0)]
    if every.below(0):
        verdict = NOT_CONFIRMED
    elif worse and better:
        verdict = DIFFERS
    else:
        verdict = CONFIRMED if every.above(0) and not worse else UNTOLD
    return [
        Claim(
            "Section 4.2: removing heads in the order of their importance yields better results than in the order of what "
            "each costs when it alone is removed.",
            "What the order by taylor keeps minus what the order by ablation keeps, mean over 10 to 90 % removed, in percent "
            f"of the whole model's score: {every.text(signed)} over {counted(every.seeds, 'task')}; {listed(task_texts, 9)} "
            f"(95 % intervals over tasks, and of a task from {ENOUGH} models on, {COVERS}).",
            verdict,
            f"Confirmed if the 95 % interval over tasks ({ENOUGH} or more) of each one's mean lies above 0, and that of no task "
            "lies below; not confirmed if the one over tasks lies below; differs if it lies below on a task and above on "
            "another.",
        )
    ]


def _curves_sheets(results: RunDocuments) -> list[Sheet]:
    sheets = []
    for subject in _subjects(results):
        orders = {by: subject.lines(by) for by in ("taylor", "ablation", "random") if subject.lines(by)}
        lines = orders["taylor"]
        rows = [("0 %", *(score_text(lines, None) for _ in orders))]
        rows += [
            (f"{share} %", *(score_text(order_lines, share) for order_lines in orders.values())) for share in SHARES
        ]
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
    return named_once(steps)


def _types(results: RunDocuments) -> dict[str, list[Line]]:
    """The curves of each type of attention, of the translators of which all three are there."""
    pairs = results.setting.material.pairs
    seeds = seeds_of(results.setting, pairs.ready) if pairs is not None else ()
    read = [[lines_of(results, f"michel-{kind}-translator-{seed}") for kind in TYPES] for seed in seeds]
    return {kind: [model[n][0] for model in read if all(model)] for n, kind in enumerate(TYPES)}


def _types_claims(results: RunDocuments) -> list[Claim]:
    types = _types(results)
    lines = types["cross"]
    if not lines:
        return []
    papers = (
        "Figure 4: a translator collapses beyond 60 % of its encoder-decoder heads removed.",
        "Figure 4: without 80 % of the heads of either self-attention about 30 of 36 BLEU are left.",
    )
    rules = (
        f"Confirmed if by 95 % intervals {COVERS} ({ENOUGH} or more translators) more than half of the BLEU is left "
        "without 60 % of the encoder-decoder heads, less than half without 90 %, and there less than without 90 % of "
        "either self-attention; differs if it is the lowest there, but falls below half before, or not at all; not "
        "confirmed if a self-attention is lower.",
        f"Confirmed if by 95 % intervals {COVERS} ({ENOUGH} or more translators) more than {KEPT} % of the BLEU is left "
        "without 80 % of either type (theirs: 83 %); differs if that holds of one type, and less is left of the other; not "
        "confirmed if less is left of both.",
    )
    pairs = results.setting.material.pairs
    where = f"{pairs.name if pairs else ''} ({counted(len(lines), 'translator')}, n = {lines[0].whole.n})"
    if unclear(lines):
        type_texts = [
            f"{difference_text(types[kind][0].at(80))} without 80 % of {name}" for kind, name in TYPES.items()
        ]
        why = unclear(lines) if lines[0].whole.higher_is_better else f"measured by {lines[0].whole.metric}"
        return [
            Claim(paper, f"{where}: {why}; {listed(type_texts)}.", UNTOLD, rule)
            for paper, rule in zip(papers, rules, strict=True)
        ]
    full_score = f"{where}: {lines[0].whole.metric} {score_text(lines, None)}"
    types = {kind: able(some) for kind, some in types.items()}
    lines = types["cross"]
    cross_texts = [f"{score_text(lines, share)} without {share} %" for share in (60, 80, 90)]
    self_texts = [f"{score_text(types[kind], 90)} without 90 % of {TYPES[kind]}" for kind in SELF]
    finding = f"{full_score}; of encoder-decoder attention {listed(cross_texts)}; {listed(self_texts)}."
    ends = [mean_of(share_left(line, 80) for line in types[kind]) for kind in SELF]
    type_texts = [
        f"{score_text(types[kind], 80)} ({end.text(lambda value: fixed(value, 1))} %) without 80 % of {TYPES[kind]}"
        for kind, end in zip(SELF, ends, strict=True)
    ]
    enough, less = sum(end.above(KEPT) for end in ends), sum(end.below(KEPT) for end in ends)
    verdicts = {(2, 0): CONFIRMED, (1, 1): DIFFERS, (0, 2): NOT_CONFIRMED}
    second = verdicts.get((enough, less), UNTOLD)
    return [
        Claim(papers[0], finding, _collapses(types), rules[0]),
        Claim(papers[1], f"{full_score}; {listed(type_texts)}.", second, rules[1]),
    ]


def _collapses(types: dict[str, list[Line]]) -> str:
    """Whether encoder-decoder attention falls below half between 60 and 90 %, and lower than the others."""
    at60, at90 = (mean_of(share_left(line, share) for line in types["cross"]) for share in (60, 90))
    lower = [
        mean_of(
            share_left(cross_line, 90).minus(share_left(self_line, 90))
            for cross_line, self_line in zip(types["cross"], types[kind], strict=True)
        )
        for kind in SELF
    ]
    if any(difference.above(0) for difference in lower):
        return NOT_CONFIRMED
    if not all(difference.below(0) for difference in lower):
        return UNTOLD
    if at60.above(50) and at90.below(50):
        return CONFIRMED
    return DIFFERS if at60.below(50) or at90.above(50) else UNTOLD


def _types_sheets(results: RunDocuments) -> list[Sheet]:
    types = _types(results)
    lines = types["cross"]
    if not lines:
        return []
    rows = [("0 %", *(score_text(type_lines, None) for type_lines in types.values()))]
    rows += [(f"{share} %", *(score_text(type_lines, share) for type_lines in types.values())) for share in SHARES]
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
