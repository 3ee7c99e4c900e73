"""The answer of a report in one sentence, and the few numbers to see first. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..documents.ablation import AblationDocument, AllButOneDocument, TransferDocument
from ..documents.bench import Bench, Speed
from ..documents.circuits.logit_attribution import AttributionDocument
from ..documents.circuits.named_heads import HeadsDocument
from ..documents.circuits.weights import CircuitsDocument
from ..documents.curves import Curve, CurvePoint, CurvesDocument, OverDocument, TradeoffDocument
from ..documents.discovery.circuit import CircuitDocument
from ..documents.interventions.patch import PatchDocument
from ..documents.lottery import LotteryDocument, UnitCounts
from ..documents.prune import PruneDocument
from ..documents.results import ResultDocument
from ..documents.training import TrainingDocument
from ..formatting import (
    bytes_text,
    counted,
    fixed,
    flops_text,
    listed,
    percent,
    result_text,
    signed,
    three,
    times,
    with_commas,
)
from ..plans import kind_of
from ..stats.results import difference_text, unit_of
from . import head_map, head_roles
from .findings import Lesson, Part
from .model_card import counts
from .run_reader import beyond_chance, checked
from .sections.circuits import sentences
from .sections.transfer_sentences import related

DROP = 1.0  # points, for the sentence about a curve


class Tile(NamedTuple):
    """A number to see first."""

    label: str
    value: str
    note: str = ""


def answer(part: Part) -> str:
    """The answer in one sentence: of `prune` if it was run, else of what says most."""
    if part.prune is not None and part.prune.sentence:
        return part.prune.sentence
    first = (_told_by_lottery, _told_by_lessons, _told_by_curve, _told_by_front, _told_by_effects)
    ways = (*first, _told_by_one, _told_by_over, _told_by_scores)
    heads = (
        _told_by_circuit,
        _told_by_patching,
        _told_by_transfer,
        _told_by_roles,
        _told_by_heads,
        _told_by_attribution,
    )
    for describe in (*ways, *heads, _told_by_weights, _told_by_bench, _told_by_training):
        sentence = describe(part)
        if sentence:
            return sentence
    results = part.of(ResultDocument)
    if results:
        result = results[0].data
        return f"The model's {result.metric} is {result_text(result)} on {result.n} examples."
    return "No run has come to an answer yet."


def tiles(part: Part) -> list[Tile]:
    """The few numbers that matter most."""
    if part.prune is not None:
        return list(checked(part.prunes[0], _prune_tiles))
    out = []
    base = base_of(part)
    if base is not None:
        out.append(Tile(base.metric, result_text(base, interval=False), f"{_span(base)}, n\u00a0=\u00a0{base.n}"))
    units = [unit for grid in part.grids for unit in grid.units]
    if units:
        sites = len({site for grid in part.grids for site in grid.rows})
        noun = head_map.noun(units, part)
        out.append(
            Tile(noun, with_commas(len(units)), "in " + counted(sites, "attention" if noun == "heads" else "place"))
        )
    for cast in head_roles.casts(part)[:1]:
        named = [head for head in cast.heads.values() if head.main != head_roles.NONE]
        out.append(Tile("heads with a role", with_commas(len(named)), f"of {len(cast.heads)} that were looked at"))
    for _, effects in part.effects[:1]:
        lasting = [e for e in effects if beyond_chance(e.comparison)]
        out.append(
            Tile("shown to matter", with_commas(len(lasting)), f"of {len(effects)} alone, after Holm's correction")
        )
    best, curve = best_lesson(part), _first_curve(part)
    if best is not None:
        first, lost = best.group[0], sum(lesson.comparison.difference for lesson in best.group) / len(best.group)
        note = f"{signed(lost * first.comparison.points)} {unit_of(first.comparison)}, “{first.label}”"
        out.append(Tile(f"{first.units} kept", f"{first.kept} of {first.of}", note))
    if curve is not None:
        point = _safe(curve)
        label, by = ("can go", "") if best is None else ("can go without training", f"by {curve.by}, ")
        out.append(Tile(label, percent(point.removed / curve.of), by + _before(curve)))
    return out + _lottery_tiles(part) + _bench_tiles(part)


def base_of(part: Part) -> ResultDocument | None:
    """The whole model's result, from whichever run measured it."""
    wholes = [runs[0].full for runs in part.places.values()]
    wholes += [document.data.curves[0].whole for document in part.of(CurvesDocument)]
    wholes += [document.data.base for document in part.of(TradeoffDocument)]
    wholes += [document.data.base for document in part.of(AblationDocument)]
    wholes += [document.data.base for document in part.of(AllButOneDocument)]
    wholes += [document.data.one for document in part.of(TransferDocument)]
    wholes += [document.data for document in part.of(ResultDocument)]
    wholes += [document.data.clean for document in part.of(CircuitDocument)]
    wholes += [document.data.clean for document in part.of(PatchDocument)]
    return wholes[0] if wholes else None


# -- the answer ------------------------------------------------------------------------------------------------------------


def _first_curve(part: Part) -> Curve | None:
    """The first curve that follows scores."""
    curves = [curve for document in part.of(CurvesDocument) for curve in document.data.scored]
    return next((curve for curve in curves if len(curve.points) > 1), None)


def _safe(curve: Curve) -> CurvePoint:
    """The last point before the metric has first fallen by more than `DROP` points (a tenth of it, where it has none)."""
    best = curve.points[0]
    for point in curve.points:
        comparison = point.comparison
        if comparison.damage > (DROP if unit_of(comparison) == "points" else abs(comparison.before) / 10):
            break
        best = point
    return best


def _before(curve: Curve) -> str:
    """Up to where the answer looks: "before more than 1 point of accuracy is lost"."""
    comparison = curve.points[0].comparison
    if unit_of(comparison) == "points":
        return f"before more than 1 point of {comparison.metric} is lost"
    return f"before the {comparison.metric} has {'fallen' if comparison.higher_is_better else 'risen'} by more than a tenth"


def _told_by_curve(part: Part) -> str:
    curve = _first_curve(part)
    if curve is None:
        return ""
    point, of = _safe(curve), curve.of
    value, base = point.result, curve.whole
    if not point.removed:
        return f"Not one step along this order of {of} {noun_of_curve(curve)} is possible {_before(curve)}."
    return (
        f"{point.removed} of {of} {noun_of_curve(curve)} ({percent(point.removed / of)}) can go {_before(curve)}: "
        f"{result_text(base, interval=False)} → {result_text(value, interval=False)} on {value.n} examples. "
        "This describes one curve; it is not a guarantee."
    )


def lesson_groups(lessons: Sequence[Lesson]) -> list[list[Lesson]]:
    """Runs that differ in their seeds alone: of one method, with equally many units kept, on the same examples."""
    groups: dict[Any, list[Lesson]] = {}
    for lesson in lessons:
        groups.setdefault((lesson.place, lesson.label, lesson.kept), []).append(lesson)
    return list(groups.values())


class _Best(NamedTuple):
    """The runs to speak of first, and how they were found."""

    group: list[Lesson]
    how: str  # empty where there was no choice


def best_lesson(part: Part) -> _Best | None:
    """Of most runs that compare: those that keep fewest units of those that lose little; else those that lose least."""
    if not part.places:
        return None
    runs = next(iter(part.places.values()))
    groups = lesson_groups([lesson for lesson in runs if lesson.kept < lesson.of] or runs)
    first = runs[0].comparison
    little = DROP if unit_of(first) == "points" else abs(first.before) / 10

    def lost(group: list[Lesson]) -> float:
        return sum(lesson.comparison.damage for lesson in group) / len(group)

    fine = [group for group in groups if lost(group) <= little]
    best = min(fine, key=lambda group: (group[0].kept, lost(group))) if fine else min(groups, key=lost)
    much = "1 point" if unit_of(first) == "points" else f"a tenth of the {first.metric}"
    how = f"keeps fewest {runs[0].units} for at most {much} lost" if fine else "loses least"
    return _Best(best, f"Of {len(runs)} runs, this {how}" if len(groups) > 1 else "")


def _told_by_lottery(part: Part) -> str:
    return next((document.data.sentence for document in part.of(LotteryDocument) if document.data.sentence), "")


def _told_by_lessons(part: Part) -> str:
    best = best_lesson(part)
    if best is None:
        return ""
    group, first = best.group, best.group[0]
    values = [lesson.result.value for lesson in group]
    after = fixed(sum(values) / len(values), len(result_text(first.full, interval=False).partition(".")[2]))
    seeds = f" on average over {len(group)} seeds" if len(group) > 1 else ""
    size = difference_text(first.comparison)
    if seeds:
        changes = [lesson.comparison.difference * lesson.comparison.points for lesson in group]
        mean, low, high = (signed(change) for change in (sum(changes) / len(changes), min(changes), max(changes)))
        size = f"{mean} {unit_of(first.comparison)}, from {low} to {high},"
    chosen = f"{best.how}; it was chosen on these very examples" if best.how else "This describes what was run"
    return (
        f"With {first.kept} of {first.of} {first.units} kept (“{first.label}”), {first.full.metric} is {after}{seeds}, where the "
        f"whole model has {result_text(first.full, interval=False)}: {size} on {first.result.n} examples. {chosen}"
        f"{', and is' if best.how else '; it is'} not a guarantee."
    )


def _told_by_over(part: Part) -> str:
    for document in part.of(OverDocument):
        sentence: str = checked(document, _over_sentence)
        return sentence
    return ""


def _over_sentence(data: OverDocument) -> str:
    stages = [(stage.name, stage.curves[0]) for stage in data.checkpoints]
    parts = []
    for name, curve in stages if len(stages) == 1 else (stages[0], stages[-1]):
        share = percent(_safe(curve).removed / curve.of)
        parts.append(f"{share} at {name} ({curve.whole.metric} {result_text(curve.whole, interval=False)})")
    return f"Of the {noun_of_curve(stages[0][1])} of each checkpoint, {listed(parts)} can go {_before(stages[0][1])}."


def _told_by_training(part: Part) -> str:
    for document in part.of(TrainingDocument):
        before, after = document.data.before, document.data.after
        if after is not None:
            was = f", and was {result_text(before)} before" if before is not None else ""
            return f"After training, {after.metric} is {result_text(after)} on {after.n} examples{was}."
    return ""


def _told_by_effects(part: Part) -> str:
    if not part.effects:
        return ""
    _, effects = part.effects[0]
    if not effects:
        return ""
    noun, n = head_map.noun([e.unit for e in effects], part), effects[0].comparison.n
    lasting = [e for e in effects if beyond_chance(e.comparison)]
    if not lasting:
        whose = f"the only one of the {noun}" if len(effects) == 1 else f"any single one of the {len(effects)} {noun}"
        return f"No difference could be shown for {whose} (n\u00a0=\u00a0{n}, Holm's correction)."
    names = listed([e.unit for e in sorted(lasting, key=lambda e: -abs(e.comparison.damage))])
    ending = "; for the others no difference could be shown" if len(lasting) < len(effects) else ""
    alone = "its" if len(lasting) == 1 else "their"
    return (
        f"{len(lasting)} of {len(effects)} {noun} could be shown to matter on {alone} own "
        f"({names}; n\u00a0=\u00a0{n}, Holm's correction){ending}."
    )


def _told_by_one(part: Part) -> str:
    for document in part.of(AllButOneDocument):
        rows = [row.comparison for row in document.data.attentions]
        fine = sum(not (comparison.worse and beyond_chance(comparison)) for comparison in rows)
        return f"In {fine} of {counted(len(rows), 'attention')} no loss could be shown with one head alone."
    return ""


def _told_by_scores(part: Part) -> str:
    if not part.scores:
        return ""
    scores = part.scores[0]
    order = sorted(scores.values, key=lambda unit: -scores.values[unit])
    noun = head_map.noun(scores.values, part)
    return f"Of {len(order):,} {noun}, {listed(order[:3])} matter most by {scores.by}, and {listed(order[::-1][:3])} least."


def _told_by_patching(part: Part) -> str:
    documents = part.of(PatchDocument)
    if not documents or not documents[0].data.patches:
        return ""
    data = documents[0].data
    base = 0.0 if data.direction == "denoising" else 1.0
    most = max(data.patches, key=lambda one: abs(one.normalised - base))
    found = sum(beyond_chance(one.comparison) for one in data.patches)
    scale = "from corrupted (0) to clean (1) prompts"
    return (
        f"{found} of {len(data.patches):,} patches ({data.units}, {data.direction}) change the {data.clean.metric} beyond "
        f"chance; {most.patched} goes furthest, to {most.normalised:.2f} on the way {scale}."
    )


def _told_by_circuit(part: Part) -> str:
    return next((document.data.sentence for document in part.of(CircuitDocument)), "")


def _told_by_attribution(part: Part) -> str:
    return next((sentences.of_attribution(document.data) for document in part.of(AttributionDocument)), "")


def _told_by_weights(part: Part) -> str:
    return next((sentences.of_weights(document.data) for document in part.of(CircuitsDocument)), "")


def _told_by_transfer(part: Part) -> str:
    for document in part.of(TransferDocument):
        first_data, second_data = (head_map.data_name(document, side) for side in ("one", "other"))
        return related(document.data, first_data, second_data)
    return ""


def _told_by_roles(part: Part) -> str:
    return next((head_roles.told(cast) for cast in head_roles.casts(part)), "")


def _told_by_heads(part: Part) -> str:
    return next((document.data.sentence for document in part.of(HeadsDocument)), "")


def _told_by_front(part: Part) -> str:
    for document in part.of(TradeoffDocument):
        data = document.data
        metric, first, last = data.base.metric, data.rows[0], data.rows[-1]
        sizes = f"{percent(first.flops)} of the FLOPs" + (f" to {percent(last.flops)}" if len(data.rows) > 1 else "")
        values = f"{three(first.result.value)}" + (f" to {three(last.result.value)}" if len(data.rows) > 1 else "")
        return (
            f"{counted(len(data.rows), 'size')} to pick from, {sizes}: {metric} is {values} on {data.n} scoring examples, and "
            f"{three(data.base.value)} for the whole model."
        )
    return ""


def _told_by_bench(part: Part) -> str:
    for document in part.of(Bench):
        best = _best(document.data)
        if best:
            speed, than = times(best.ratio), document.data.reference
            if best.why_not_timed:
                return f"How much faster {best.model} is than {than} could not be timed: {best.why_not_timed}."
            return f"{best.model} is {speed} as fast as {than} at batch size {best.batch}."
    return ""


# -- tiles -----------------------------------------------------------------------------------------------------------------


def _prune_tiles(data: PruneDocument) -> list[Tile]:
    before, after, comparison = data.before, data.after, data.comparison
    (p0, p1), (b0, b1) = data.parameters, data.bytes
    out = [
        Tile(
            before.metric,
            f"{result_text(before, interval=False)} → {result_text(after, interval=False)}",
            f"{difference_text(comparison)}, n\u00a0=\u00a0{comparison.n}",
        ),
        *(
            Tile(noun, f"{with_commas(had)} → {with_commas(has)}", f"{percent(1 - has / max(1, had))} removed")
            for noun, had, has in counts(data)
            if noun != "layers" or had > has
        ),
        Tile("parameters", _pair(_millions(p0), _millions(p1)), _change(p0, p1)),
        Tile("size on disk", _pair(bytes_text(b0), bytes_text(b1)), _change(b0, b1)),
    ]
    if data.flops is not None:
        f0, f1 = data.flops
        out.append(
            Tile(
                "FLOPs of one example",
                _pair(*(flops_text(n, 1).removesuffix("FLOPs").strip() for n in (f0, f1))),
                _change(f0, f1),
            )
        )
    best = _best(data.speed)
    return [*out, _speed_tile(best)] if best else out


def _lottery_tiles(part: Part) -> list[Tile]:
    """How much survives, and what good sub-networks of each task are worth beside the full model."""
    return [tile for document in part.of(LotteryDocument)[:1] for tile in _study_tiles(document.data)]


def _study_tiles(data: LotteryDocument) -> list[Tile]:
    out = []
    tasks, seeds = counted(len(data.tasks), "task"), counted(len(data.seeds), "seed")
    for kind, noun in (("heads", "heads"), ("mlps", "MLPs")):
        survivors, of = (sum(counts.of(kind) for counts in many) for many in _left_and_all(data))
        if of:
            out.append(Tile(f"{noun} that survive", percent(survivors / of), f"{tasks}, {seeds}"))
    rows = {(row.task, row.what, row.how, row.kind): row for row in data.table}
    for task in data.tasks[:3]:
        full = next((row for key, row in rows.items() if key[:3] == (task.name, "full", "whole")), None)
        good = [rows.get((task.name, "good", how, "structured")) for how in ("pruned", "retrained")]
        means = [three(row.mean) for row in (full, *good) if row]
        if full and good[0]:
            note = "full → good as found" + (f"; {means[2]} retrained" if good[1] else "")
            out.append(Tile(f"{task.name}, {task.metric}", f"{means[0]} → {means[1]}", note))
    return out


def _left_and_all(data: LotteryDocument) -> tuple[list[UnitCounts], list[UnitCounts]]:
    return [draw.left for draw in data.draws], [draw.of for draw in data.draws]


def _bench_tiles(part: Part) -> list[Tile]:
    speeds = [_best(document.data) for document in part.of(Bench)]
    return [_speed_tile(best) for best in speeds if best][:1]


def _speed_tile(row: Speed) -> Tile:
    """How many times as fast; where the clock says little, by processor time, and where noise would decide, no number."""
    note = f"batch {row.batch}{_tokens(row)}; limit {times(row.limit)}"
    if not row.why_not_timed:
        return Tile("speed", times(row.ratio), note)
    if row.measured is None:
        return Tile("speed", "not timed", note)
    return Tile("speed, by processor time", times(row.measured.value), f"one thread, {note}")


def _best(data: Bench | None) -> Speed | None:
    """The row of the largest batch of the last model: the ordinary case for throughput."""
    if data is None:
        return None
    rows = [row for row in data.rows if row.model != data.reference]
    return max(rows, key=lambda row: (row.batch, row.length or 0), default=None)


def _tokens(row: Speed) -> str:
    """How long the examples were; pictures have no length."""
    return "" if row.length is None else f", {row.length} tokens"


def _pair(before: str, after: str) -> str:
    """Two numbers; the unit is said once where it is the same."""
    before_parts, after_parts = before.rpartition(" "), after.rpartition(" ")
    same = bool(before_parts[0]) and before_parts[2] == after_parts[2]
    return f"{before_parts[0] if same else before} → {after}"


def _change(before: float, after: float) -> str:
    return f"{signed(100 * (after / before - 1))}\u00a0%" if before else ""


def _millions(count: float) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else with_commas(count)


def _span(result: ResultDocument) -> str:
    return result_text(result).partition(" ")[2]


def noun_of_curve(curve: Curve) -> str:
    """What a curve removes: heads, neurons or layers."""
    kinds = {kind_of(f"{site}:0") for site in curve.points[-1].plan.by_site()}
    return head_map.NOUNS.get(kinds.pop(), "units") if len(kinds) == 1 else "units"
