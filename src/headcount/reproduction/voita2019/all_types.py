"""Voita et al. 2019, Table 2: gates on heads of all types, the same heads trained from scratch, and which ones stay. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ...documents.learned import LearnedDocument
from ...documents.scores import ScoresDocument
from ...formatting import counted, listed, percent, signed
from ...plans import site_of, type_of
from ..experiment import (
    CONFIRMED,
    DIFFERS,
    NOT_CONFIRMED,
    SIZES,
    UNTOLD,
    Claim,
    RunDocuments,
    Setting,
    Sheet,
    Step,
    over_seeds,
    parted,
)
from ..models import layer_of
from ..runner import named_once
from ..seeds import COVERS, ENOUGH, SEEDS_ALONE, Mean, mean_of, mean_over_seeds
from .encoder import (
    better,
    data,
    differences,
    gained,
    heads_text,
    learning,
    metric_of,
    name_of,
    outcome,
    runs_of,
    score,
    where,
)

PREFIX = "voita-all"
SHARES = ("52.1%", "25%")  # of 144 heads 75 and 36, as 14/31/30 and 8/13/15 in the paper
SAME = "the examples to learn from are the same for all of them"
TYPES = {"encoder": "encoder", "decoder": "decoder", "cross": "encoder-decoder"}
# English to Russian: data; heads of the encoder, the decoder and between them; BLEU pruned from the trained model; from scratch
PUBLISHED = (
    ("WMT", "48 / 48 / 48", "29.6", ""),
    ("WMT", "14 / 31 / 30", "29.62", "29.47"),
    ("WMT", "12 / 21 / 25", "29.36", "28.95"),
    ("WMT", "8 / 13 / 15", "29.06", "28.56"),
    ("WMT", "5 / 9 / 12", "28.90", "28.41"),
    ("OpenSubtitles", "48 / 48 / 48", "32.4", ""),
    ("OpenSubtitles", "27 / 31 / 46", "32.24", "32.23"),
    ("OpenSubtitles", "13 / 17 / 31", "32.23", "31.98"),
    ("OpenSubtitles", "6 / 9 / 13", "32.27", "31.84"),
)


def steps(setting: Setting) -> list[Step]:
    """For each seed a translator, gates on all of its heads, and what they leave trained from nothing for as long as it was."""
    pairs = setting.material.pairs
    all_steps: list[Step] = []
    for seed in setting.seeds if pairs is not None else ():
        assert pairs is not None
        # one that the material brings could not be trained again from nothing in the same way
        model, before = setting.trained(pairs, seed)
        _, training = parted(pairs.recipe, SIZES)  # the cut model has its sizes
        all_steps += before
        for share in SHARES if setting.full else SHARES[1:]:
            pruned = learning(setting, PREFIX, model, before, ("l0", share), (), seed)
            name, plan = name_of(PREFIX, "scratch", share, seed), str(Path(setting.run(pruned.name)) / "plan.json")
            words = ("learn", model, "--method", "plan", "--plan", plan, "--scratch", *data(setting), *training)
            words += ("--seed", str(seed), "--run", setting.run(name))
            all_steps += [pruned, Step(name, (*words, *setting.flags), (*pruned.after, pruned.name))]
    return named_once(all_steps)


# -- what came out ---------------------------------------------------------------------------------------------------------


class KeptHeads(NamedTuple):
    """Which heads a run kept, of which."""

    share: str
    heads: frozenset[str]
    kept: frozenset[str]

    def counts(self, kept_only: bool = True) -> dict[str, int]:
        """How many heads of each type are left, or were there."""
        some = self.kept if kept_only else self.heads
        return {name: sum(type_of(site_of(unit)) == name for unit in some) for name in TYPES}

    def parts(self) -> dict[str, float]:
        """The share that is left of each type."""
        return {name: count / self.counts(False)[name] for name, count in self.counts().items()}

    def height(self, name: str) -> float | None:
        """By how many layers the heads of a type that are left lie above all of its heads, in the mean; None if none is."""
        all_layers, kept_layers = (
            [layer_of(site_of(unit)) for unit in some if type_of(site_of(unit)) == name]
            for some in (self.heads, self.kept)
        )
        return sum(kept_layers) / len(kept_layers) - sum(all_layers) / len(all_layers) if kept_layers else None


def left_by(results: RunDocuments, share: str) -> list[KeptHeads]:
    """What gates left under each seed; models without all three types are left out."""
    out = []
    for seed in results.setting.seeds:
        name = name_of(PREFIX, "l0", share, seed)
        heads, run = results.read(name, ScoresDocument, _heads), results.read(name, LearnedDocument, outcome)
        if heads is not None and run is not None:
            out.append(KeptHeads(share, heads, heads - run.gone))
    return [selection for selection in out if all(selection.counts(False).values())]


def _heads(document: ScoresDocument) -> frozenset[str]:
    """All heads that had a gate."""
    heads = [f"{name}:{index}" for name, site in document.sites.items() for index in site.units]
    for head in heads:
        layer_of(site_of(head))  # what is not of a layer is said here
    return frozenset(heads)


# -- what to make of it ----------------------------------------------------------------------------------------------------


def claims(results: RunDocuments) -> list[Claim]:
    """Pruned is better than trained small; the encoder goes first; where the survivors are."""
    selections = {share: some for share in SHARES if (some := left_by(results, share))}
    return [*_scratch(results), *(_places(results, selections) if selections else ())]


def _scratch(results: RunDocuments) -> list[Claim]:
    means, texts = [], []
    for share in SHARES:
        pruned, fresh = runs_of(results, "l0", share, PREFIX), runs_of(results, "scratch", share, PREFIX)
        if gains := differences(pruned, fresh):
            means.append(mean_of(gains))
            texts.append(
                f"with {heads_text(pruned)} {means[-1].text(gained)} {metric_of(pruned)} ({means[-1].how}; "
                f"{where(results, pruned)})"
            )
    if not means:
        return []
    verdicts = {better(mean) for mean in means}
    statement = (
        "Table 2: pruned from the trained model is better than the same heads trained from scratch, by 0.15 to 0.5 BLEU on "
        "WMT (29.36 against 28.95 with 12/21/25 heads) and by 0.01 to 0.43 on OpenSubtitles."
    )
    finding = (
        f"Pruned against from scratch, minus is worse: {'; '.join(texts)}. The control trained for as long as the translator "
        "had, which does not count what the gates' training added."
    )
    rule = (
        f"At every number of heads the 95 % interval of the mean difference, {COVERS}, lies above zero, over {ENOUGH} seeds or "
        "more; it differs if that holds at one number only."
    )
    verdict = verdicts.pop() if len(verdicts) == 1 else DIFFERS if CONFIRMED in verdicts else UNTOLD
    return [Claim(statement, finding, verdict, rule)]


def _places(results: RunDocuments, selections: Mapping[str, Sequence[KeptHeads]]) -> list[Claim]:
    seeds = min(len(some) for some in selections.values())
    pairs = results.setting.material.pairs
    about = f"({pairs.name if pairs else 'pairs'}, {counted(seeds, 'seed')})"
    texts = [f"{share} kept: {_parts_text(some)}" for share, some in selections.items()]
    first = _over(
        selections,
        lambda selection: min(selection.parts()[name] for name in ("decoder", "cross")) - selection.parts()["encoder"],
    )
    last = _over(
        selections,
        lambda selection: selection.parts()["cross"] - max(selection.parts()[name] for name in ("encoder", "decoder")),
    )
    shares = [f"{' and '.join(mean.text(_part) for mean in two)}" for two in zip(first, last, strict=True)]
    types = Claim(
        "Table 2 and the figure of all types: encoder heads are pruned first and encoder-decoder heads last (of 48 each, "
        "14/31/30, 12/21/25, 8/13/15 and 5/9/12 are left).",
        f"Left of encoder / decoder / encoder-decoder heads, mean (lowest to highest): {'; '.join(texts)}. How far the encoder "
        f"is below the next, and encoder-decoder attention above the next, with 95 % intervals {SEEDS_ALONE}, from {ENOUGH} on: "
        f"{'; '.join(shares)} {about}.",
        both_hold(first, last),
        f"At every number of heads the encoder keeps the smallest share and encoder-decoder attention the largest, by the 95 % "
        f"intervals of the differences to the next over {ENOUGH} seeds or more ({SAME}); it differs if one of the two "
        "holds, and the opposite of the other.",
    )
    low = _over(selections, lambda selection: None if (height := selection.height("decoder")) is None else -height)
    high = _over(selections, lambda selection: selection.height("cross"))
    heights = {name: _over(selections, partial(KeptHeads.height, name=name)) for name in ("decoder", "cross")}
    height_texts = [
        f"those of {TYPES[name]} heads {listed([m.text(gained) for m in some])}"
        for name, some in heights.items()
        if some
    ]
    layers = Claim(
        "The figure of all types: decoder self-attention heads survive in low layers, encoder-decoder heads in high ones.",
        f"How many layers survivors lie above the middle of all heads of their type, minus is below: "
        f"{' and '.join(height_texts)} (with {listed(list(selections))} kept, mean with its 95 % interval "
        f"{SEEDS_ALONE}, from {ENOUGH} on) {about}.",
        both_hold(low, high),
        "At every number of heads survivors lie below the middle in the decoder and above it in encoder-decoder attention, by "
        f"95 % intervals over {ENOUGH} seeds or more ({SAME}); it differs if one of the two holds, and the opposite of the "
        "other.",
    )
    return [types, layers]


def _over(selections: Mapping[str, Sequence[KeptHeads]], value: Callable[[KeptHeads], float | None]) -> list[Mean]:
    """The mean over seeds at each number of heads; none at one where no seed has it."""
    values = [
        [number for selection in some if (number := value(selection)) is not None] for some in selections.values()
    ]
    return [mean_over_seeds(some) for some in values if some]


def both_hold(first: Sequence[Mean], second: Sequence[Mean]) -> str:
    """Of two things that should be above zero at every number of heads: both are, one is, or neither; each for sure."""
    if not first or not second:
        return UNTOLD
    above = [all(mean.above(0) for mean in means) for means in (first, second)]
    below = [all(mean.below(0) for mean in means) for means in (first, second)]
    if all(above):
        return CONFIRMED
    return NOT_CONFIRMED if all(below) else DIFFERS if any(above) and any(below) else UNTOLD


def _part(value: float) -> str:
    return f"{signed(100 * value, 0)} points"


def _parts_text(selections: Sequence[KeptHeads]) -> str:
    return " / ".join(over_seeds([selection.parts()[name] for selection in selections], percent) for name in TYPES)


def sheets(results: RunDocuments) -> list[Sheet]:
    """The paper's table, and ours below it."""
    rows: list[tuple[str, ...]] = []
    for share in SHARES:
        pruned, selections = runs_of(results, "l0", share, PREFIX), left_by(results, share)
        if not pruned or not selections:
            continue
        fresh = runs_of(results, "scratch", share, PREFIX)
        name = f"{where(results, pruned)}, {counted(len(pruned), 'seed')}, {metric_of(pruned)}"
        if not rows:
            full_score = over_seeds([run.compared.before for run in pruned.values()], score)
            rows.append(
                (name, " / ".join(str(count) for count in selections[0].counts(False).values()), full_score, "")
            )
        counts = [
            over_seeds([selection.counts()[type_] for selection in selections], lambda count: f"{count:.3g}")
            for type_ in TYPES
        ]
        scores = [
            over_seeds([run.compared.after for run in runs.values()], score) if runs else "" for runs in (pruned, fresh)
        ]
        rows.append((name, " / ".join(counts), *scores))
    columns = ("data", "heads: encoder / decoder / encoder-decoder", "pruned from the trained model", "from scratch")
    return [Sheet("Table 2: gates on heads of all types", columns, (*PUBLISHED, *rows))] if rows else []
