"""The answer of a report in one sentence, and the few numbers to see first. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..formatting import (
    bytes_text,
    counted,
    fixed,
    flops_text,
    listed,
    percent,
    probability,
    result_text,
    signed,
    three,
    times,
    whole,
)
from ..plans import kind_of
from ..stats.results import difference_text, unit_of
from . import head_map, head_roles
from .findings import Lesson, Part
from .model_card import counts
from .run_reader import ALPHA, beyond_chance, checked, comparison_of, number

DROP = 1.0  # points, for the sentence about a curve


class Tile(NamedTuple):
    """A number to see first."""

    label: str
    value: str
    note: str = ""


def answer(part: Part) -> str:
    """The answer in one sentence: of `prune` if it was run, else of what says most."""
    if part.prune is not None and part.prune.get("sentence"):
        return str(part.prune["sentence"])
    first = (_told_by_lottery, _told_by_lessons, _told_by_curve, _told_by_effects)
    ways = (*first, _told_by_one, _told_by_over, _told_by_scores)
    for told in (*ways, _told_by_transfer, _told_by_roles, _told_by_bench, _told_by_training):
        sentence = told(part)
        if sentence:
            return sentence
    results = [document.data for document in part.of("result")]
    if results:
        return f"The model's {results[0]['metric']} is {result_text(results[0])} on {results[0]['n']} examples."
    return "No run has come to an answer yet."


def tiles(part: Part) -> list[Tile]:
    """The few numbers that matter most."""
    if part.prune is not None:
        return list(checked(part.prunes[0], _prune_tiles))
    out = []
    base = base_of(part)
    if base is not None:
        out.append(
            Tile(str(base["metric"]), result_text(base, interval=False), f"{_span(base)}, n\u00a0=\u00a0{base['n']}")
        )
    units = [unit for grid in part.grids for unit in grid.units]
    if units:
        sites = len({site for grid in part.grids for site in grid.rows})
        noun = head_map.noun(units, part)
        out.append(Tile(noun, whole(len(units)), "in " + counted(sites, "attention" if noun == "heads" else "place")))
    for cast in head_roles.casts(part)[:1]:
        named = [head for head in cast.heads.values() if head.main != head_roles.NONE]
        out.append(Tile("heads with a role", whole(len(named)), f"of {len(cast.heads)} that were looked at"))
    for _, effects in part.effects[:1]:
        lasting = [e for e in effects if beyond_chance(e.comparison)]
        out.append(Tile("shown to matter", whole(len(lasting)), f"of {len(effects)} alone, after Holm's correction"))
    best, made = _best_lesson(part), _first_curve(part)
    if best is not None:
        first, lost = best.group[0], sum(one.comparison.difference for one in best.group) / len(best.group)
        told = f"{signed(lost * first.comparison.points)} {unit_of(first.comparison)}, “{first.label}”"
        out.append(Tile(f"{first.units} kept", f"{first.kept} of {first.of}", told))
    if made is not None:
        point = _safe(made)
        label, by = ("can go", "") if best is None else ("can go without training", f"by {made['by']}, ")
        out.append(Tile(label, percent(point["removed"] / made["of"]), by + _before(made)))
    return out + _lottery_tiles(part) + _bench_tiles(part)


def base_of(part: Part) -> dict[str, Any] | None:
    """The whole model's result, from whichever run measured it."""
    for runs in part.places.values():
        return runs[0].full
    for kind, find in (
        ("curves", lambda data: data["curves"][0]["points"][0]["result"]),
        ("ablation", lambda data: data["base"]),
        ("all-but-one", lambda data: data["base"]),
        ("transfer", lambda data: data["one"]),
        ("result", lambda data: data),
    ):
        for document in part.of(kind):
            found: dict[str, Any] = checked(document, find)
            return found
    return None


# -- the answer ------------------------------------------------------------------------------------------------------------


def _first_curve(part: Part) -> dict[str, Any] | None:
    """The first curve that follows scores."""
    for document in part.of("curves"):
        for made in checked(document, lambda data: list(data["curves"])):
            if made.get("by") != "random" and len(made["points"]) > 1:
                return dict(made)
    return None


def _safe(made: Mapping[str, Any]) -> dict[str, Any]:
    """The last point before the metric has first fallen by more than `DROP` points (a tenth of it, where it has none)."""
    best = made["points"][0]
    for point in made["points"]:
        one = comparison_of(point["comparison"])
        if one.damage > (DROP if unit_of(one) == "points" else abs(one.before) / 10):
            break
        best = point
    return dict(best)


def _before(made: Mapping[str, Any]) -> str:
    """Up to where the answer looks: "before more than 1 point of accuracy is lost"."""
    one = comparison_of(made["points"][0]["comparison"])
    if unit_of(one) == "points":
        return f"before more than 1 point of {one.metric} is lost"
    return f"before the {one.metric} has {'fallen' if one.higher_is_better else 'risen'} by more than a tenth"


def _told_by_curve(part: Part) -> str:
    made = _first_curve(part)
    if made is None:
        return ""
    point, of = _safe(made), made["of"]
    value, base = point["result"], made["points"][0]["result"]
    if not point["removed"]:
        return f"Not one step along this order of {of} {noun_of_curve(made)} is possible {_before(made)}."
    return (
        f"{point['removed']} of {of} {noun_of_curve(made)} ({percent(point['removed'] / of)}) can go {_before(made)}: "
        f"{result_text(base, interval=False)} → {result_text(value, interval=False)} on {value['n']} examples. "
        "This describes one curve; it is not a guarantee."
    )


def lesson_groups(lessons: Sequence[Lesson]) -> list[list[Lesson]]:
    """Runs that differ in their seeds alone: of one method, with equally many units kept, on the same examples."""
    groups: dict[Any, list[Lesson]] = {}
    for one in lessons:
        groups.setdefault((one.place, one.label, one.kept), []).append(one)
    return list(groups.values())


class _Best(NamedTuple):
    """The runs to speak of first, and how they were found."""

    group: list[Lesson]
    how: str  # empty where there was no choice


def _best_lesson(part: Part) -> _Best | None:
    """Of most runs that compare: those that keep fewest units of those that lose little; else those that lose least."""
    if not part.places:
        return None
    runs = next(iter(part.places.values()))
    groups = lesson_groups([one for one in runs if one.kept < one.of] or runs)
    first = runs[0].comparison
    little = DROP if unit_of(first) == "points" else abs(first.before) / 10

    def lost(group: list[Lesson]) -> float:
        return sum(one.comparison.damage for one in group) / len(group)

    fine = [group for group in groups if lost(group) <= little]
    best = min(fine, key=lambda group: (group[0].kept, lost(group))) if fine else min(groups, key=lost)
    much = "1 point" if unit_of(first) == "points" else f"a tenth of the {first.metric}"
    how = f"keeps fewest {runs[0].units} for at most {much} lost" if fine else "loses least"
    return _Best(best, f"Of {len(runs)} runs, this {how}" if len(groups) > 1 else "")


def _told_by_lottery(part: Part) -> str:
    return next((str(one.data["sentence"]) for one in part.of("lottery") if one.data.get("sentence")), "")


def _told_by_lessons(part: Part) -> str:
    best = _best_lesson(part)
    if best is None:
        return ""
    group, one = best.group, best.group[0]
    values = [each.result["value"] for each in group]
    after = fixed(sum(values) / len(values), len(result_text(one.full, interval=False).partition(".")[2]))
    seeds = f" on average over {len(group)} seeds" if len(group) > 1 else ""
    size = difference_text(one.comparison)
    if seeds:
        changes = [each.comparison.difference * each.comparison.points for each in group]
        mean, low, high = (signed(change) for change in (sum(changes) / len(changes), min(changes), max(changes)))
        size = f"{mean} {unit_of(one.comparison)}, from {low} to {high},"
    chosen = f"{best.how}; it was chosen on these very examples" if best.how else "This describes what was run"
    return (
        f"With {one.kept} of {one.of} {one.units} kept (“{one.label}”), {one.full['metric']} is {after}{seeds}, where the "
        f"whole model has {result_text(one.full, interval=False)}: {size} on {one.result['n']} examples. {chosen}"
        f"{', and is' if best.how else '; it is'} not a guarantee."
    )


def _told_by_over(part: Part) -> str:
    for document in part.of("over"):

        def build(data: dict[str, Any]) -> str:
            stages = [(str(one["name"]), one["curves"][0]) for one in data["checkpoints"]]
            told = []
            for name, made in stages if len(stages) == 1 else (stages[0], stages[-1]):
                base = made["points"][0]["result"]
                share = percent(_safe(made)["removed"] / made["of"])
                told.append(f"{share} at {name} ({base['metric']} {result_text(base, interval=False)})")
            return f"Of the {noun_of_curve(stages[0][1])} of each checkpoint, {listed(told)} can go {_before(stages[0][1])}."

        sentence: str = checked(document, build)
        return sentence
    return ""


def _told_by_training(part: Part) -> str:
    for document in part.of("training"):
        after = document.data.get("after")
        if after:
            before = document.data.get("before")
            was = checked(document, lambda _, b=before: f", and was {result_text(b)} before" if b else "")
            told = checked(
                document, lambda data: (data["after"]["metric"], result_text(data["after"]), data["after"]["n"])
            )
            return f"After training, {told[0]} is {told[1]} on {told[2]} examples{was}."
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
    rest = "; for the others no difference could be shown" if len(lasting) < len(effects) else ""
    alone = "its" if len(lasting) == 1 else "their"
    return (
        f"{len(lasting)} of {len(effects)} {noun} could be shown to matter on {alone} own "
        f"({names}; n\u00a0=\u00a0{n}, Holm's correction){rest}."
    )


def _told_by_one(part: Part) -> str:
    for document in part.of("all-but-one"):
        rows = checked(document, lambda data: [comparison_of(row) for row in data["attentions"]])
        fine = sum(not (one.worse and beyond_chance(one)) for one in rows)
        return f"In {fine} of {counted(len(rows), 'attention')} no loss could be shown with one head alone."
    return ""


def _told_by_scores(part: Part) -> str:
    if not part.scores:
        return ""
    one = part.scores[0]
    order = sorted(one.values, key=lambda unit: -one.values[unit])
    noun = head_map.noun(one.values, part)
    return (
        f"Of {len(order):,} {noun}, {listed(order[:3])} matter most by {one.by}, and {listed(order[::-1][:3])} least."
    )


def _told_by_transfer(part: Part) -> str:
    for document in part.of("transfer"):
        one, other = (head_map.data_name(document, side) for side in ("one", "other"))
        sentence: str = checked(document, lambda data, one=one, other=other: related(data, one, other))
        return sentence
    return ""


def _told_by_roles(part: Part) -> str:
    return next((head_roles.told(cast) for cast in head_roles.casts(part)), "")


def _told_by_bench(part: Part) -> str:
    for document in part.of("bench"):
        best = _best(document.data)
        if best:
            speed, than = times(number(best["ratio"])), reference(document.data)
            return f"{best['model']} is {speed} as fast as {than} at batch size {best['batch']}."
    return ""


def related(data: Mapping[str, Any], one: str = "one", other: str = "the other") -> str:
    """Whether the same units matter on two data sets, as far as the correlation of damages can show it."""
    r, p = (number(data["pearson"][key]) for key in ("value", "p"))
    numbers = f"(r = {fixed(r, 2)}, p {'' if p < 0.0001 else '= '}{probability(p)})"
    if p > ALPHA:
        return f"No relation could be shown between what matters on {one} and on {other} {numbers}."
    if r < 0:
        return f"Units that matter more on {one} matter less on {other} {numbers}."
    return f"Units that matter on {one} matter on {other} {numbers}."


def room(data: Mapping[str, Any]) -> str:
    """How high the correlation of damages could be for the noise of the examples; nothing where a document does not say."""
    if "ceiling" not in data:
        return ""
    told = fixed(number(data["ceiling"]), 2)
    if "ceiling_low" in data:
        low, high = (fixed(number(data[f"ceiling_{end}"]), 2) for end in ("low", "high"))
        told += f" [{low}, {high}]"
    return f"If units mattered alike on both, noise would leave room for a correlation of {told}."


# -- tiles -----------------------------------------------------------------------------------------------------------------


def _prune_tiles(data: dict[str, Any]) -> list[Tile]:
    before, after, one = data["before"], data["after"], comparison_of(data["comparison"])
    (p0, p1), (b0, b1) = data["parameters"], data["bytes"]
    out = [
        Tile(
            str(before["metric"]),
            f"{result_text(before, interval=False)} → {result_text(after, interval=False)}",
            f"{difference_text(one)}, n\u00a0=\u00a0{one.n}",
        ),
        *(
            Tile(noun, f"{whole(had)} → {whole(has)}", f"{percent(1 - has / max(1, had))} removed")
            for noun, had, has in counts(data)
            if noun != "layers" or had > has
        ),
        Tile("parameters", _pair(_millions(p0), _millions(p1)), _change(p0, p1)),
        Tile("size on disk", _pair(bytes_text(b0), bytes_text(b1)), _change(b0, b1)),
    ]
    if data.get("flops"):
        f0, f1 = (number(count) for count in data["flops"])
        out.append(
            Tile(
                "FLOPs of one example",
                _pair(*(flops_text(n, 1).removesuffix("FLOPs").strip() for n in (f0, f1))),
                _change(f0, f1),
            )
        )
    best = _best(data.get("speed"))
    return [*out, _speed_tile(best)] if best else out


def _lottery_tiles(part: Part) -> list[Tile]:
    """How much survives, and what good sub-networks of each task are worth beside the full model."""
    out: list[Tile] = []
    for document in part.of("lottery")[:1]:

        def build(data: dict[str, Any]) -> None:
            tasks, seeds = counted(len(data["tasks"]), "task"), counted(len(data["seeds"]), "seed")
            for kind, noun in (("heads", "heads"), ("mlps", "MLPs")):
                left, of = (sum(number(draw[key][kind]) for draw in data["draws"]) for key in ("left", "of"))
                if of:
                    out.append(Tile(f"{noun} that survive", percent(left / of), f"{tasks}, {seeds}"))
            rows = {
                (str(row["task"]), str(row["what"]), str(row["how"]), str(row["kind"])): row for row in data["table"]
            }
            for task in data["tasks"][:3]:
                name = str(task["name"])
                full = next((row for key, row in rows.items() if key[:3] == (name, "full", "whole")), None)
                good = [rows.get((name, "good", how, "structured")) for how in ("pruned", "retrained")]
                shown = [three(number(row["mean"])) for row in (full, *good) if row]
                if full and good[0]:
                    note = "full → good as found" + (f"; {shown[2]} retrained" if good[1] else "")
                    out.append(Tile(f"{name}, {task['metric']}", f"{shown[0]} → {shown[1]}", note))

        checked(document, build)
    return out


def _bench_tiles(part: Part) -> list[Tile]:
    found = [_best(document.data) for document in part.of("bench")]
    return [_speed_tile(best) for best in found if best][:1]


def _speed_tile(row: Mapping[str, Any]) -> Tile:
    return Tile(
        "speed",
        times(number(row["ratio"])),
        f"batch {row['batch']}{_tokens(row)}; limit {times(number(row['limit']))}",
    )


def _best(data: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The row of the largest batch of the last model: the ordinary case for throughput."""
    rows = [row for row in (data or {}).get("rows", ()) if row["model"] != reference(data or {})]
    return dict(max(rows, key=lambda row: (row["batch"], row["length"] or 0))) if rows else None


def _tokens(row: Mapping[str, Any]) -> str:
    """How long the examples were; pictures have no length."""
    return "" if row["length"] is None else f", {row['length']} tokens"


def reference(data: Mapping[str, Any]) -> str:
    """The model that the others were timed against."""
    return str(data["models"][0]["name"])


def _pair(before: str, after: str) -> str:
    """Two numbers; the unit is said once where it is the same."""
    one, other = before.rpartition(" "), after.rpartition(" ")
    return f"{one[0]} → {after}" if one[2] == other[2] and one[0] else f"{before} → {after}"


def _change(before: float, after: float) -> str:
    return f"{signed(100 * (after / before - 1))}\u00a0%" if before else ""


def _millions(count: float) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else whole(count)


def _span(result: Mapping[str, Any]) -> str:
    return result_text(dict(result)).partition(" ")[2]


def noun_of_curve(made: Mapping[str, Any]) -> str:
    """What a curve removes: heads, neurons or layers."""
    units = made["points"][-1]["plan"]["remove"] if made["points"] else {}
    names = [f"{site}:0" for site in units]
    kinds = {kind_of(name) for name in names}
    return head_map.NOUNS.get(kinds.pop(), "units") if len(kinds) == 1 else "units"
