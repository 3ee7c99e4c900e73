"""The lottery study as sections of a report: good, bad and random sub-networks, who survives, and how sure that is. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...documents.lottery import LotteryDocument, LotterySite, NetworkMean, SearchStep, WeightStep
from ...drawing import short_names
from ...formatting import Column, Table, counted, fixed, listed, percent, probability, with_commas
from ...plans import by_place
from ...stats.results import difference_columns, in_points
from .. import charts
from ..findings import Part
from ..map_cells import TITLES
from ..run_reader import checked
from . import training_charts
from .measurements import MOST_ROWS, Section

PRASANNA = "Prasanna, Rogers and Rumshisky 2020"
WHATS = ("good", "random", "bad")
HOWS = {"pruned": "as found", "retrained": "retrained"}
KINDS = {"structured": "heads and MLPs", "magnitude": "single weights"}
MOST_NAMED = 4  # tasks whose sizes stand beside the chart; those of all are in the tables
NOUNS = {"heads": "heads", "mlps": "MLPs"}
RANK = {"encoder": 0, "decoder": 1, "cross": 2}


def lottery(part: Part) -> list[Section]:
    """Everything about each lottery: what the sub-networks are worth, who survives, overlaps, agreement, the search."""
    out = []
    for document in part.of(LotteryDocument):
        called = f" ({document.run.folder.name})" if len(part.of(LotteryDocument)) > 1 else ""
        out += checked(document, partial(_sections, called))
    return out


def _sections(called: str, data: LotteryDocument) -> list[Section]:
    sections = [_networks(data), _survivors(data), *_overlap(data), *_agreement(data), _search(data), _every(data)]
    return [section._replace(title=section.title + called) for section in sections]


def _names(data: LotteryDocument) -> list[str]:
    return [task.name for task in data.tasks]


def _seeds(data: LotteryDocument) -> str:
    count = len(data.seeds)
    return "" if count == 1 else f", mean over {count} seeds"


def _filled(name: str, caption: str, columns: Sequence[Column], rows: Sequence[tuple[Any, ...]]) -> Table:
    """A table without the columns that have nothing to show: deviations of one seed, a metric that is the same everywhere."""
    indices = [n for n in range(len(columns)) if any(row[n] is not None for row in rows) or not rows]
    cells = tuple(tuple(row[n] for n in indices) for row in rows[:MOST_ROWS])
    return Table(name, caption, tuple(columns[n] for n in indices), cells)


def _digits(values: Iterable[float | None]) -> partial[str]:
    """Three decimals for an accuracy or a loss, one for a BLEU."""
    return partial(fixed, digits=3 if max((abs(v) for v in values if v is not None), default=0.0) < 10 else 1)


def _with_spread(value: float, spread: float | None, format_value: Any) -> str:
    return format_value(value) + ("" if spread is None else f" ± {format_value(spread)}")


# -- what the sub-networks are worth ---------------------------------------------------------------------------------------


def _networks(data: LotteryDocument) -> Section:
    format_value, metrics = _digits(row.mean for row in data.table), {task.name: task.metric for task in data.tasks}
    drawn, kinds = [], [kind for kind in KINDS if any(row.kind == kind and row.how in HOWS for row in data.table)]
    for kind in kinds:
        for metric in dict.fromkeys(metrics.values()):
            rows = [row for row in data.table if metrics.get(row.task) == metric]
            parts = [row for row in rows if row.how in HOWS and row.kind == kind]
            bases = [row for row in rows if row.how == "whole" and row.what == "full"]
            if parts:
                title = metric if len(kinds) == 1 else f"{metric}; what goes: {KINDS[kind]}"
                drawn.append(
                    training_charts.networks(
                        "lottery",
                        [_point(row, format_value) for row in parts],
                        [
                            _told(row.task, row.mean, f"full model: {_with_spread(row.mean, row.sd, format_value)}")
                            for row in bases
                        ],
                        [
                            _told(task.name, task.majority, f"most frequent label: {format_value(task.majority)}")
                            for task in data.tasks
                            if task.metric == metric and task.majority is not None
                        ],
                        title=title,
                        kinds=WHATS,
                    )
                )
    about = (
        f"A good sub-network is what is left when heads and MLPs go, least important first, while at least "
        f"{percent(data.threshold)} of the full model's score remains; a random and a bad one are of the same "
        "size, drawn by chance and from what went first. Open marks are sub-networks as found"
    )
    if any(row.how == "retrained" for row in data.table):
        about += ", filled ones were cut out before the fine-tuning and had the same as the full model"
    about += "; bars reach one standard deviation over seeds." if len(data.seeds) > 1 else "."
    about += " The line is the full model, the dotted one what the most frequent label would give."
    notes = [
        f"What is left for {name}{' on average' if len(data.seeds) > 1 else ''}: {_left(data, name)}."
        for name in _names(data)[:MOST_NAMED]
    ]
    if "magnitude" in kinds:
        notes.append("Single weights: the smallest go first, wherever they are; no matrix becomes smaller by that.")
    used = tuple((task.name, task.sets) for task in data.tasks if task.sets)
    sets = Table("sets", "Which examples were used for what.", (Column("task"), Column("used")), used)
    tables = (_networks_table(data, metrics, kinds, format_value), *((sets,) if used else ()))
    source = f"{PRASANNA}."
    return Section("lottery", "Good, bad and random", about, source, tuple(drawn), tables, tuple(notes))


def _left(data: LotteryDocument, task: str) -> str:
    """How much the searches of a task left: "40 of 72 heads and 5 of 6 MLPs"."""
    draws = [draw for draw in data.draws if draw.task == task]
    parts = []
    for kind, noun in NOUNS.items():
        if draws and draws[0].of.of(kind):
            mean = sum(draw.left.of(kind) for draw in draws) / len(draws)
            parts.append(f"{_rounded(mean)} of {with_commas(draws[0].of.of(kind))} {noun}")
    return " and ".join(parts) or "nothing yet"


def _point(row: NetworkMean, format_value: Any) -> dict[str, Any]:
    reach = row.sd or 0.0
    span = {"low": row.mean - reach, "high": row.mean + reach}
    text = f"{row.what}, {HOWS[row.how]}: {_with_spread(row.mean, row.sd, format_value)}"
    return {**_told(row.task, row.mean, text), **span, "what": row.what, "again": row.how == "retrained"}


def _told(task: str, mean: float, text: str) -> dict[str, Any]:
    return {"task": task, "mean": mean, "text": f"{task}, {text}"}


def _networks_table(
    data: LotteryDocument, metrics: Mapping[str, str], kinds: Sequence[str], format_value: Any
) -> Table:
    """A row per task and sub-network, as found and retrained side by side, between the full model and the majority."""
    by = {(row.task, row.kind, row.what, row.how): row for row in data.table}
    rows: list[tuple[Any, ...]] = []
    one_metric = len(set(metrics.values())) == 1

    def line(task: str, network: str, goes: str | None, *cells: NetworkMean | None) -> None:
        numbers = [value for cell in cells for value in ((cell.mean, cell.sd) if cell else (None, None))]
        seeds = max((cell.seeds for cell in cells if cell and cell.seeds), default=None)
        metric = None if one_metric else metrics[task]
        rows.append((task, metric, network, goes if len(kinds) > 1 else None, *numbers, seeds))

    for task in data.tasks:
        name = task.name
        whole_one = next((r for r in data.table if r.task == name and r.how == "whole" and r.what == "full"), None)
        line(name, "full", None, whole_one, None)
        for kind in kinds:
            for network in WHATS:
                pair = [by.get((name, kind, network, how)) for how in HOWS]
                if any(pair):
                    line(name, network, KINDS[kind], *pair)
        if task.majority is not None:
            about = {"task": name, "kind": "", "what": "", "how": ""}
            line(name, "most frequent label", None, NetworkMean(**about, mean=task.majority, sd=None, seeds=0), None)
    spread = Column("sd", format_value, True)
    columns = (
        *(Column("task"), Column("metric"), Column("sub-network"), Column("what goes")),
        *(Column("as found", format_value, True), spread, Column("retrained", format_value, True), spread),
        Column("seeds", with_commas, True),
    )
    metric = f" ({next(iter(metrics.values()))})" if one_metric else ""
    caption = f"What sub-networks are worth{metric} on the examples of the report{_seeds(data)}."
    return _filled("lottery", caption, columns, rows)


# -- who survives ----------------------------------------------------------------------------------------------------------


def _survivors(data: LotteryDocument) -> Section:
    tasks, seeds = len(data.tasks), len(data.seeds)
    meaning = "the number of tasks in which it survives" if tasks > 1 else "whether it survives"
    if seeds > 1:
        meaning = f"{meaning}, mean over {seeds} seeds" if tasks > 1 else "the share of seeds in which it survives"
    small = " and below it the standard deviation over seeds" if seeds > 1 else ""
    intro = f"Each cell is a head, a row per layer, and the MLP of the layer stands beside them. The number is {meaning}{small}."
    about = f"{intro} The stronger the colour, the more often it is in the good sub-network."
    drawn = [_survivors_chart(data, title, sites) for title, sites in _groups(data.sites)]
    return Section("survivors", "Who survives", about, f"{PRASANNA}.", tuple(drawn))


def _groups(sites: Sequence[LotterySite]) -> list[tuple[str, dict[str, list[str]]]]:
    """Maps with their rows, one map per attention type: the name of a row, and its sites; MLPs stand beside their heads."""
    heads = [site for site in sites if site.kind == "head"]
    mlps = [site.name for site in sites if site.kind != "head"]
    groups: dict[str | None, list[list[str]]] = {}
    for site in sorted(heads, key=lambda site: RANK.get(str(site.type), len(RANK))):
        name = site.name
        beside = [f"{name}.mlp"] if f"{name}.mlp" in mlps else []
        mlps = [mlp for mlp in mlps if mlp not in beside]
        groups.setdefault(site.type, []).append([name, *beside])
    for name in mlps:  # of layers without attention
        groups.setdefault("mlp", []).append([name])
    out = []
    for type_, rows in groups.items():
        order = by_place(row[0] for row in rows)
        rows.sort(key=lambda row: order.index(row[0]))
        title = "MLPs" if type_ == "mlp" else TITLES.get(str(type_), "Attention heads")
        names = short_names([row[0] for row in rows])
        names = names if len(set(names)) == len(names) else [row[0] for row in rows]
        out.append((title, dict(zip(names, rows, strict=True))))
    return out


class Fate(NamedTuple):
    """In how many tasks a unit survives, mean and deviation over seeds."""

    unit: str
    column: str
    mean: float
    sd: float | None


def _fates(data: LotteryDocument, name: str) -> list[Fate]:
    """What becomes of the units of a site; an MLP is one unit, and has the name of its site."""
    survivors, head = data.survivors[name], any(site.kind == "head" for site in data.sites if site.name == name)
    spreads = survivors.sd or [None] * len(survivors.mean)
    pairs = enumerate(zip(survivors.mean, spreads, strict=True))
    return [Fate(f"{name}:{n}", str(n), *pair) if head else Fate(name, "MLP", *pair) for n, pair in pairs]


def _survivors_chart(data: LotteryDocument, title: str, sites: Mapping[str, Sequence[str]]) -> charts.Chart:
    most, rows = len(data.tasks), []
    for row, names in sites.items():
        for fate in (fate for name in names for fate in _fates(data, name)):
            text = f"{fate.unit}: survives in {_rounded(fate.mean, 2)} of {counted(most, 'task')}"
            text += "" if fate.sd is None else f", ± {fixed(fate.sd, 2)} over seeds"
            place = {"row": row, "column": fate.column, "value": fate.mean, "unit": fate.unit}
            rows.append({**place, **_cell(fate.mean, fate.sd), "text": text})
    column_names = dict.fromkeys(row["column"] for row in rows)
    heads = sorted((column for column in column_names if column != "MLP"), key=int)
    columns = [*heads, *([""] if heads and "MLP" in column_names else []), *(["MLP"] if "MLP" in column_names else [])]
    words = f"{title}: in how many of {counted(most, 'task')} each head and MLP survives"
    return charts.numbers("survivors", rows, columns=columns, most=most, across=title, down="layer", words=words)


def _cell(mean: float, sd: float | None) -> dict[str, str]:
    return {"shown": _rounded(mean), "spread": "" if sd is None else f"±{_rounded(sd)}"}


def _rounded(value: float, digits: int = 1) -> str:
    return fixed(value, 0 if value == round(value) else digits)


# -- overlaps --------------------------------------------------------------------------------------------------------------


def _overlap(data: LotteryDocument) -> list[Section]:
    names = _names(data)
    if len(names) < 2 or not data.overlap:
        return []
    drawn, rows = [], []
    for kind, noun in NOUNS.items():
        overlap, of = data.overlap.get(kind), max((draw.of.of(kind) for draw in data.draws), default=0)
        if not overlap or not of:
            continue
        spreads = overlap.sd or [[None] * len(names)] * len(names)
        cells = []
        for a, first in enumerate(names):
            for b, second in enumerate(names):
                mean, sd = overlap.mean[a][b], spreads[a][b]
                tasks_text = f"survive in {first}" if a == b else f"survive in {first} and in {second}"
                text = f"{_with_spread(mean, sd, _rounded)} of {with_commas(of)} {noun} {tasks_text}"
                cells.append({"row": first, "column": second, "value": mean, **_cell(mean, sd), "text": text})
                if b > a:
                    sizes = [overlap.mean[n][n] for n in (a, b)]
                    rows.append((first, second, noun, *sizes, mean, sd, _by_chance(data, first, second, kind)))
        words = f"how many {noun} survive in each pair of tasks"
        across = f"{noun} that survive in both, of {with_commas(of)}"
        drawn.append(charts.numbers("overlap", cells, columns=names, most=of, across=across, down="", words=words))
    short = partial(fixed, digits=1)
    columns = (
        *(Column("task"), Column("other task"), Column("units")),
        *(Column(title, short, True) for title in ("in the one", "in the other", "in both", "sd", "by chance")),
    )
    table = _filled("overlap", f"Units in the good sub-networks of two tasks{_seeds(data)}.", columns, rows)
    about = (
        "How many units two tasks have in common; the diagonal is the size of each good sub-network. “By chance” is what two "
        "sets of these sizes would share if they were drawn at random: only what lies above it is more than size alone."
    )
    return [Section("overlap", "Do tasks keep the same ones?", about, PRASANNA + ".", tuple(drawn), (table,))]


def _by_chance(data: LotteryDocument, first: str, second: str, kind: str) -> float | None:
    """The units that random sets of the sizes found would share: their product over all units, mean over seeds."""
    sizes = {(draw.task, draw.seed): draw.left.of(kind) for draw in data.draws}
    of = max((draw.of.of(kind) for draw in data.draws), default=0)
    overlaps = [
        sizes[first, seed] * sizes[second, seed] / of
        for seed in data.seeds
        if of and (first, seed) in sizes and (second, seed) in sizes
    ]
    return sum(overlaps) / len(overlaps) if overlaps else None


# -- agreement -------------------------------------------------------------------------------------------------------------


def _agreement(data: LotteryDocument) -> list[Section]:
    seeds = len(data.seeds)
    if seeds < 2 or not data.agreement:
        return []
    rows = []
    for row in data.agreement:
        labels = (row.task, NOUNS.get(row.kind, row.kind))
        rows.append((*labels, row.size.mean, row.size.sd, row.in_all, row.kappa, row.q, row.p))
    short = partial(fixed, digits=1)
    columns = (
        *(Column("task"), Column("units"), Column("survive, mean", short, True), Column("sd", short, True)),
        *(Column(f"in all {seeds} seeds", with_commas, True), Column("Fleiss' kappa", partial(fixed, digits=2), True)),
        *(Column("Cochran's Q", partial(fixed, digits=2), True), Column("p", probability, True)),
    )
    about = (
        "Whether another seed finds the same units. Fleiss' kappa is 1 where all seeds agree on every unit, 0 where they "
        "agree no more than draws of such sizes would by chance, and below 0 where they agree less."
    )
    notes = [
        "Cochran's Q asks something else: whether the seeds keep equally many. A small p says that they do not; it says "
        "nothing about which ones they keep. p is not corrected for the number of rows.",
        "A dash: it cannot be told, as where every unit survives in all seeds or in none.",
    ]
    table = Table("agreement", f"Agreement over {seeds} seeds.", columns, tuple(rows))
    notes = notes if any(value is None for row in rows for value in row[5:]) else notes[:1]
    title, source = "Do seeds keep the same ones?", "Fleiss 1971; Cochran 1950."
    return [Section("agreement", title, about, source, (), (table,), tuple(notes))]


# -- the search ------------------------------------------------------------------------------------------------------------


def _search(data: LotteryDocument) -> Section:
    better = {task.name: task.higher_is_better for task in data.tasks}
    threshold = data.threshold
    joint, weights, rows = [], [], []
    for draw in data.draws:
        name, full = draw.task, draw.full.select
        run = {"task": name, "run": f"{name}, seed {draw.seed}"}
        start = SearchStep(heads=draw.of.heads, mlps=draw.of.mlps, value=full, kept=True)
        joint += _course(run, [start, *draw.steps], full, better[name])
        magnitude = draw.magnitude
        weights += (
            _course(run, [WeightStep(1.0, full, True), *magnitude.steps], full, better[name]) if magnitude else []
        )
        had, has = draw.parameters
        units_left = (draw.left.heads, draw.left.mlps)
        share = None if not had or has is None else has / had
        light = magnitude.left if magnitude else None
        rows.append((name, str(draw.seed), full, draw.full.report, *units_left, share, len(draw.steps), light))
    drawn = [
        training_charts.search("search", points, noun=noun, shares=points is weights, threshold=threshold)
        for points, noun in ((joint, "heads left"), (weights, "weights left"))
        if points
    ]
    format_value = _digits(row[2] for row in rows)
    columns = (
        *(Column("task"), Column("seed", str, True)),
        *(Column(title, format_value, True) for title in ("full, when chosen", "full, reported")),
        *(Column(title, with_commas, True) for title in ("heads", "MLPs")),
        *(Column("parameters", percent, True), Column("steps", with_commas, True), Column("weights", percent, True)),
    )
    table = _filled("search", "The full model of each search, and how much the search left.", columns, rows)
    pace = (
        f": {percent(data.step)} of the heads and one MLP at a time, then heads alone, then MLPs alone"
        if data.step
        else ""
    )
    about = (
        f"The least important units go, from left to right, as long as {percent(threshold)} of the full model's score remains "
        f"on the examples kept for choosing{pace}. A line is one search; an open mark is a step that fell below and was taken "
        "back. What the sub-networks are worth was measured on other examples."
    )
    return Section("search", "How the search went", about, "", tuple(drawn), (table,))


def _course(
    run: Mapping[str, str], steps: Sequence[SearchStep | WeightStep], full: float, higher: bool
) -> list[dict[str, Any]]:
    """The steps of a search: how much is left, and the score as a share of the full model's."""
    out = []
    for n, step in enumerate(steps):
        over, under = (step.value, full) if higher else (full, step.value)
        if not under:
            continue
        if isinstance(step, SearchStep):
            place: float = step.heads
            amount = f"{with_commas(step.heads)} heads and {with_commas(step.mlps)} MLPs"
        else:
            place = step.left
            amount = f"{percent(step.left)} of the weights"
        text = f"{run['run']}: {amount} left, {fixed(step.value, 3)} ({percent(over / under)} of the full model)"
        text += "" if step.kept else ", taken back"
        out.append({**run, "n": n, "left": place, "share": over / under, "kept": step.kept, "text": text})
    return out


# -- all numbers -----------------------------------------------------------------------------------------------------------


def _every(data: LotteryDocument) -> Section:
    """Every unit and every sub-network of every seed."""
    units = [(fate.unit, fate.mean, fate.sd) for site in data.sites for fate in _fates(data, site.name)]
    rows, compared, values = [], [], list[float | None]()
    for draw in data.draws:
        by_weights = draw.magnitude.networks if draw.magnitude else ()
        for kind, networks in (("structured", draw.networks), ("magnitude", by_weights)):
            for network in networks:
                size = (network.heads, network.mlps, network.left)
                labels = (draw.task, str(draw.seed), network.what, HOWS.get(network.how, network.how))
                difference: tuple[float | None, ...] = (None,) * 4
                if network.comparison is not None:
                    compared.append(network.comparison)
                    difference = (*in_points(network.comparison), network.comparison.p)
                values.append(network.value)
                rows.append((*labels, KINDS[kind], *size, network.value, network.n, *difference))
    format_value = _digits(values)
    columns = (
        *(Column("task"), Column("seed", str, True), Column("sub-network"), Column("how"), Column("what goes")),
        *(Column("heads", with_commas, True), Column("MLPs", with_commas, True), Column("weights", percent, True)),
        *(Column("value", format_value, True), Column("n", with_commas, True)),
        *difference_columns(compared),
        Column("p", probability, True),
    )
    about = "Every sub-network, compared with the full model on the same examples; p is not corrected for the number of rows."
    short = partial(fixed, digits=2)
    survive = f"In how many of {listed(_names(data))} each head and MLP survives{_seeds(data)}."
    numbers = (Column("unit"), Column("tasks", short, True), Column("sd", short, True))
    tables = (_filled("networks", about, columns, rows), _filled("survivors", survive, numbers, units))
    return Section(
        "networks", "Every sub-network and unit", "The numbers behind the charts.", tables=tables, folded=True
    )
