"""Results as text for a terminal: maps of heads by layer, tables of comparisons, curves. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .tables import columns_text, end_of, terminal_width

if TYPE_CHECKING:
    from ..documents.bench import Bench
    from ..documents.curves import TradeoffDocument
    from ..documents.prune import PruneDocument
    from ..documents.results import FillDocument
    from ..documents.roles import Head, Relation, RolesDocument
    from ..documents.scores import Scores, Stability
    from ..evaluation.ablation import Ablation, OneHead, Transfer
    from ..pruning.curves import Curve, Stage
    from ..stats.guarantee import Guarantee
    from ..stats.results import Comparison

MOST_COLUMNS = 16  # of a map; MLPs have thousands of neurons
MOST_TOLD = 6  # heads of one role, and relations, that a terminal has room for
MOST_RELATIONS = 16


def scores_text(scores: Scores, stability: Sequence[Stability]) -> str:
    """A map of the scores, the heads that matter most and least, and how stable the ranking is."""
    lines = [scores.signature, ""]
    sites: dict[str, list[int]] = {}
    for n, unit in enumerate(scores.units):
        sites.setdefault(unit.site, []).append(n)
    if max(map(len, sites.values())) <= MOST_COLUMNS:
        values = scores.values
        cells = {site: [f"{values[n]:.3f}" for n in ns] for site, ns in sites.items()}
        lines += _map(cells, {site: [scores.units[n].index for n in ns] for site, ns in sites.items()})
    if scores.members and all(len(heads) == 1 for heads in scores.members.values()):
        lines.append("no heads share keys and values here: every kv group is one head")
    order, errors = scores.order(), scores.stderr
    places = {unit: n for n, unit in enumerate(scores.units)}

    def shown(unit: Any) -> str:
        spread = "" if errors is None else f"±{errors[places[unit]]:.3f}"
        return f"{unit} {scores.values[places[unit]]:.3f}{spread}"

    lines += ["", "least: " + ", ".join(map(shown, order[:5])), "most:  " + ", ".join(map(shown, order[::-1][:5]))]
    if stability:
        lines += ["", "rank correlation of scores from different examples (is the sample large enough?)"]
        lines += [
            f"{row.n:>7} examples  {row.correlation:.3f} [{row.low:.3f}, {row.high:.3f}]  "
            f"lower half in common {row.overlap:.0%}"
            for row in stability
        ]
    return "\n".join(lines)


def ablation_text(ablation: Ablation, comparisons: Sequence[Comparison]) -> str:
    """A map of the differences in points, marked where they are significant, and a count of those that are."""
    lines = [str(ablation.base), *([] if ablation.fill is None else [ablation.fill.sentence]), ""]
    cells: dict[str, list[str]] = {}
    columns: dict[str, list[Any]] = {}
    largest = max(abs(comparison.difference * comparison.points) for comparison in comparisons)
    digits = 2 if largest >= 0.1 else 4  # losses differ by thousandths
    for name, comparison in zip(ablation.names, comparisons, strict=True):
        site, _, index = name.rpartition(":")
        mark = (
            "*" if comparison.p_holm is not None and comparison.p_holm <= 0.05 else "'" if comparison.p <= 0.05 else " "
        )
        cells.setdefault(site, []).append(f"{comparison.difference * comparison.points:+.{digits}f}{mark}")
        columns.setdefault(site, []).append(index)
    if max(map(len, cells.values())) <= MOST_COLUMNS and all(len(str(c)) < 8 for cs in columns.values() for c in cs):
        lines += _map(cells, columns)
    else:
        side = max(map(len, ablation.names))
        lines += [
            f"{name:<{side}}  {comparison.brief}" for name, comparison in zip(ablation.names, comparisons, strict=True)
        ]
    lines += ["", _counted(comparisons)]
    worst = sorted(zip(ablation.names, comparisons, strict=True), key=lambda pair: -pair[1].damage)
    side = max(len(name) for name, _ in worst[:5])
    lines += ["", "hurt most:"] + [f"  {name:<{side}}  {comparison.brief}" for name, comparison in worst[:5]]
    ended, most = {" of the whole model": ablation.base.unfinished}, max(ablation.unfinished, default=0)
    if most > (ablation.base.unfinished or 0):
        ended[f" without {ablation.names[ablation.unfinished.index(most)]}, the most of any"] = most
    return "\n".join(lines) + limit_notes(ended, ablation.base.n)


def limit_notes(ended: Mapping[str, int | None], n: int) -> str:
    """A note for each of some models, called by their names, whose translations the length limit had to end."""
    nonzero_counts = [(whose, count) for whose, count in ended.items() if count]
    return "".join(
        f"\nnote: the length limit ended {count:,} of {n:,} translations{whose}" for whose, count in nonzero_counts
    )


def fill_line(fill: FillDocument | None) -> str:
    """A line that says what stood in for masked units; nothing where it was zero."""
    return "" if fill is None else f"{fill.sentence}\n"


def roles_text(document: RolesDocument) -> str:
    """A map of the heads by their main role, what earned it, and the best head for each relation."""
    from ..reporting.head_roles import KINDS, NAMES  # with numpy, which --help has no need of

    lines = [document.sets, ""]
    cells: dict[str, list[str]] = {}
    columns: dict[str, list[Any]] = {}
    for head in document.heads:
        cells.setdefault(head.site, []).append(KINDS[head.main][0] or ".")
        columns.setdefault(head.site, []).append(head.unit.rpartition(":")[2])
    lines += _map(cells, columns)
    by_role: dict[str, list[Head]] = {role: [] for role in KINDS}
    for head in document.heads:
        by_role[head.main].append(head)
    for role, heads in by_role.items():
        if heads:
            lines += ["", f"{NAMES[role]}: {len(heads)} of {len(document.heads)} heads"]
        rows = [
            (head.unit, [head_role for head_role in head.roles if head_role.role == role])
            for head in heads
            if head.roles
        ]
        rows.sort(key=lambda row: -row[1][0].value)
        for unit, (best, *further_roles) in rows[:MOST_TOLD]:
            lines.append(f"    {unit:<18} {best.text}" + (f" (and {len(further_roles)} more)" if further_roles else ""))
        lines += [f"    ... and {len(rows) - MOST_TOLD} more"] * (len(rows) > MOST_TOLD)
    return "\n".join([*lines, *_relations_text(document.relations)])


def _relations_text(relations: Sequence[Relation]) -> list[str]:
    """For every relation the head that gains most over the best fixed offset, chosen on other sentences than it is told on."""
    rows = [
        (relation, relation.best.unit, relation.best.numbers) for relation in relations if relation.best is not None
    ]
    rows.sort(key=lambda row: (row[1] not in row[0].earned, -row[2][1]))
    if not rows:
        return []
    cells = [("relation", "offset", "always", "best head", "right", "gain (points)")]
    for relation, unit, (accuracy, gain, low, high) in rows[:MOST_RELATIONS]:
        name = f"{relation.relation}, {relation.direction}" if relation.direction else relation.relation
        mark = "*" if unit in relation.earned else " "
        span = f"{100 * gain:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
        cells.append((name, f"{relation.offset:+d}", f"{accuracy - gain:.0%}", unit, f"{accuracy:.0%}", span + mark))
    more = [f"... and {len(rows) - MOST_RELATIONS} more in roles.json"] * (len(rows) > MOST_RELATIONS)
    return [
        "",
        *columns_text(cells, "<>><><"),
        *more,
        "The head is chosen on one half of the sentences, all numbers are those of the other half; * has earned the role: on all "
        "sentences it is 10 points or more above the best fixed offset, beyond chance after correction.",
    ]


def _counted(comparisons: Sequence[Comparison]) -> str:
    """How many differences are significant: one by one, and corrected for so many tests."""
    first = comparisons[0]
    kinds = (("one by one (')", "p"), ("Benjamini-Hochberg", "p_bh"), ("Holm (*)", "p_holm"))
    parts = []
    for title, field in kinds:
        low = [comparison for comparison in comparisons if (getattr(comparison, field) or 0) <= 0.05]
        worse = sum(comparison.worse for comparison in low)
        parts.append(f"{title} {len(low)} ({worse} worse, {len(low) - worse} better)")
    return f"{len(comparisons)} tested ({first.test}, n={first.n}), significant at 0.05: " + "; ".join(parts)


def one_head_table(rows: Sequence[OneHead]) -> str:
    """One line per attention: the head that stays, and what it costs to remove the others."""
    width = max(4, *(len(row.site) for row in rows))
    lines = [f"{'site':<{width}}  head  difference when all its other heads are closed"]
    lines += [f"{row.site:<{width}}  {row.head.index:>4}  {row.comparison.brief}" for row in rows]
    return "\n".join([*lines, *[rows[0].comparison.tested] * bool(rows)])


def transfer_text(transfer: Transfer) -> str:
    """Both baselines, both correlations, and what the noise of the damages leaves room for."""
    count = len(transfer.one.names)
    lines = [f"one:   {transfer.one.base}", f"other: {transfer.other.base}"]
    lines += [] if transfer.one.fill is None else [transfer.one.fill.sentence]
    lines.append(f"damage over {count} units: {transfer.pearson}, {transfer.spearman}")
    room = f"{transfer.ceiling:.2f} [{transfer.ceiling_low:.2f}, {transfer.ceiling_high:.2f}]"
    return "\n".join([*lines, f"noise leaves room for {room}, if units mattered alike on both"])


def curve_text(curves: Sequence[Curve]) -> str:
    """A row per step and a column per order, random ones as a band; then each order's differences to the whole model."""
    first = max(curves, key=lambda curve: len(curve.points))
    orders, drawn = (
        [curve for curve in curves if curve.by != "random"],
        [curve for curve in curves if curve.by == "random"],
    )
    columns = [(curve.by, [f"{point.result.value:.4f}" for point in curve.points]) for curve in orders]
    if drawn:
        columns.append((f"random, mean of {len(drawn)} [lowest, highest]", _band(drawn)))
    table = [["removed", *(title for title, _ in columns)]]
    for place, point in enumerate(first.points):
        share = f"{point.removed} ({point.removed / first.of:.0%})"
        table.append([share, *(cells[place] if place < len(cells) else "" for _, cells in columns)])
    lines = [str(first.base), "", *columns_text(table, ">")]
    for curve in orders:
        lines += ["", f"{curve.by}: difference to the whole model"]
        rows = [(f"{p.removed} ({p.removed / curve.of:.0%})", p.comparison.brief) for p in curve.points[1:]]
        lines += [*columns_text(rows, "><"), *[curve.points[-1].comparison.tested] * (len(curve.points) > 1)]
    points = [(point, curve.by) for curve in curves for point in curve.points]
    worst, by = max(points, key=lambda pair: pair[0].result.unfinished or 0)
    ended = {" of the whole model": first.base.unfinished}
    if worst.removed:
        ended[f" without {worst.removed} of {first.of} units (by {by}), the most of any point"] = (
            worst.result.unfinished
        )
    return "\n".join(lines) + limit_notes(ended, first.base.n)


def over_text(stages: Sequence[Stage]) -> str:
    """A table per order: a row per checkpoint, a column per share removed, the metric relative to that checkpoint whole."""
    metric, blocks = stages[0].curves[0].base.metric.name, []
    for by in dict.fromkeys(curve.by for curve in stages[0].curves):
        rows = [(stage.name, [curve for curve in stage.curves if curve.by == by]) for stage in stages]
        cells = [_by_share(curves) for _, curves in rows]
        shares = sorted({share for row in cells for share in row})
        drawn = len(rows[0][1])
        called = f"{by}, mean of {drawn}" if drawn > 1 else by
        lines = [f"{called}: {metric} without so many units, relative to the whole model of the checkpoint"]
        table = [["checkpoint", metric, *(f"{share:.0%}" for share in shares)]]
        for (name, curves), row in zip(rows, cells, strict=True):
            base_value = curves[0].base.value
            table.append([name, f"{base_value:.4f}", *(_relative(row.get(share), base_value) for share in shares)])
        blocks.append("\n".join([*lines, *columns_text(table, "<>")]))
    return "\n\n".join(blocks)


def _by_share(curves: Sequence[Curve]) -> dict[float, list[float]]:
    """What each point of some curves is worth, by the share of units that is gone there."""
    out: dict[float, list[float]] = {}
    for curve in curves:
        for point in curve.points[1:]:
            out.setdefault(point.removed / curve.of, []).append(point.result.value)
    return out


def _relative(values: Sequence[float] | None, base_value: float) -> str:
    """The mean of some values as a share of another one; nothing where there are none, or nothing to share."""
    if not values:
        return ""
    return f"{sum(values) / len(values) / base_value:.1%}" if base_value > 0 else "-"


def pruned_text(document: PruneDocument) -> str:
    """What `prune` did: before and after side by side, and what is promised."""
    from ..documents.bench import shape_text, speed_text
    from ..formatting import bytes_text, flops_text
    from ..reporting.model_card import (  # numpy is not imported before it is needed
        counts,
        rate_text,
        recovery_sentences,
        step_sentences,
    )
    from ..reporting.model_warnings import of_prune

    before, after = document.before, document.after
    (had, has), (took, takes) = document.parameters, document.bytes
    span = document.comparison.span
    test = str(document.comparison).removeprefix(span)
    rows = [
        ("", "before", "after", ""),
        (before.metric, f"{before.value:.3f}", f"{after.value:.3f}", f"{span},"),
        ("", *(f"[{result.low:.3f}, {result.high:.3f}]" for result in (before, after)), test.lstrip(", ")),
        *(
            (noun, f"{was:,}", f"{remaining:,}", f"{remaining / max(1, was) - 1:+.0%}")
            for noun, was, remaining in counts(document)
        ),
        ("parameters", f"{had:,}", f"{has:,}", f"{has / had - 1:+.1%}"),
        ("on disk", bytes_text(took), bytes_text(takes), f"{takes / took - 1:+.1%}"),
    ]
    doubts = list[str]()
    if document.flops is not None:
        counted, remaining = document.flops
        rows.append(
            (
                "FLOPs of one example",
                flops_text(counted),
                flops_text(remaining),
                f"{remaining / max(1, counted) - 1:+.1%}",
            )
        )
    if document.kv_cache is not None:
        filled, fills = document.kv_cache
        row = (bytes_text(filled), bytes_text(fills), f"{fills / max(1, filled) - 1:+.1%}")
        rows.append(("KV cache of one token", *row))
    if document.speed is not None:
        first, last = document.speed.rows[0], document.speed.rows[-1]
        at = shape_text(last.batch, last.length)
        if last.why_not_timed:
            doubts.append(f"Speed at {at}: {speed_text(last)}.")
        else:
            times = f"{last.ratio:.2f} times [{last.ratio_low:.2f}, {last.ratio_high:.2f}],"
            rows.append(("examples/s", rate_text(first), rate_text(last), times))
            rows.append(("", "", "", f"of {last.limit:.2f} by count; {at}"))
    lines = columns_text(rows, "<>><")
    notes = [*doubts, *step_sentences(document.steps), *recovery_sentences(document)]
    ended = limit_notes({", before": before.unfinished, ", after": after.unfinished}, before.n)
    warnings = [f"WARNING: {warning}" for warning in of_prune(document)]
    return "\n".join([document.sentence, *warnings, "", *lines, *([""] if notes else []), *notes]) + ended


def tradeoff_text(document: TradeoffDocument) -> str:
    """The front: a line per row, the whole model above them, and what its numbers are."""
    from ..formatting import digits_for

    base = document.base
    digits = 3 if abs(base.value) < 10 else 1
    fine = digits_for(
        [(row.comparison.high - row.comparison.low) * row.comparison.points for row in document.rows], more=0
    )
    cells = [("row", "removed", "FLOPs", "parameters", "speed", base.metric, "95 % interval", "change")]
    whole = (f"{base.value:.{digits}f}", f"[{base.low:.{digits}f}, {base.high:.{digits}f}]")
    cells.append(("", "0", "100%", "100%", "1.00", *whole, ""))
    for row in document.rows:
        value = (f"{row.result.value:.{digits}f}", f"[{row.result.low:.{digits}f}, {row.result.high:.{digits}f}]")
        change = f"{row.comparison.difference * row.comparison.points:+.{max(fine, 1)}f}" + " ruined" * row.ruined
        speed = "?" if row.speed is None else f"{row.speed.value:.2f}"
        cells.append(
            (str(row.number), f"{row.removed:,}", f"{row.flops:.0%}", f"{row.parameters:.0%}", speed, *value, change)
        )
    widths = [max(len(line[n]) for line in cells) for n in range(len(cells[0]))]
    lines = [
        "  ".join(f"{c:>{w}}" if n < 7 else c for n, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    ]
    constant = "" if document.constant is None else f" A constant answer has {document.constant:.{digits}f}."
    length = "" if document.length is None else f", length {document.length}"
    notes = [
        f"{base.metric} on {document.n} scoring examples, the same that the best of {document.measured} plans were picked by, so "
        f"a little too good, and more so if the model was trained on them; prune reports on others.{constant}",
        f"speed: times as fast at batch {document.batch}{length} ({document.device})"
        + (f", {document.speed_note}" if document.speed_note else ""),
        *[document.groups] * bool(document.groups),
    ]
    units = document.units.replace(",", " and ")
    return "\n".join(
        [f"what can be had, of {document.of:,} {units}", "", *(line.rstrip() for line in lines), "", *notes]
    )


def guarantee_text(guarantee: Guarantee) -> str:
    """The plans that were tested, and where it stopped."""
    from ..formatting import digits_for
    from ..stats.guarantee import in_words, least_in_words

    digits = digits_for([step.bound for step in guarantee.steps], more=1)
    capped = "" if guarantee.cap is None else f"{'capped':>8}"
    lines = [f"{'removed':>8}{guarantee.metric:>12}{'lost':>9}{'at most':>9}{'p':>10}{capped}  shown"]
    for step in guarantee.steps:
        verdict = "yes" if step.shown else "no: stop here"
        numbers = (
            f"{step.removed:>8}{step.value:>12.4f}{step.damage:>+9.{digits}f}{step.bound:>9.{digits}f}{step.p:>10.2g}"
        )
        beyond = "" if guarantee.cap is None else f"{step.beyond:>8}"
        lines.append(f"{numbers}{beyond}  {verdict}")
    if guarantee.stopped is not None:
        lines.append(f"to show the last one, if it costs what it cost here: {in_words(guarantee.needed)}")
    if guarantee.cap is not None:
        whose = "examples" if guarantee.groups is None else "groups"
        lines.append(f"capped: {whose} that changed by more than {guarantee.cap:g}, and counted as that")
    if guarantee.least is not None:
        lines.append(least_in_words(guarantee.n, guarantee.least, guarantee.metric))
    return "\n".join([str(guarantee), *lines])


def bench_text(bench: Bench) -> str:
    """A line per model at each batch size and length, then what it comes to in plain words."""
    sizes = {subject.name: f"{subject.parameters:,}" for subject in bench.models}
    titles = (
        "model",
        "parameters",
        "batch",
        "length",
        "examples/s",
        "(quartiles)",
        "ratio",
        "(quartiles)",
        "limit",
        "arrived",
        "peak memory",
    )
    cells = [titles]
    for row in bench.rows:
        digits = 0 if row.low >= 100 else 1 if row.low >= 10 else 2
        numbers = [f"{n:.{digits}f}" for n in (row.examples_per_second, row.low, row.high)]
        first = row.model == bench.models[0].name
        doubt = "?" if row.why_not_timed else ""
        ratio = ("", "") if first else (f"{row.ratio:.2f}{doubt}", f"({row.ratio_low:.2f} to {row.ratio_high:.2f})")
        gain = (
            ("", "") if first else (f"{row.limit:.2f}", "" if row.arrived is None else f"{round(100 * row.arrived)}%")
        )
        memory = "" if row.peak_memory is None else f"{row.peak_memory / 2**20:,.1f} MiB"
        shape = (str(row.batch), "" if row.length is None else str(row.length))
        speed = (numbers[0], f"({numbers[1]} to {numbers[2]})")
        cells.append((row.model, sizes[row.model], *shape, *speed, *ratio, *gain, memory))
    name = max(12, terminal_width() - 56)  # a path of any length; its end says which model it is
    table = [
        (end_of(a, name), batch, length, size, f"{speed} {quartiles}", f"{times} {span}", *others)
        for a, size, batch, length, speed, quartiles, times, span, *others in cells
    ]
    lines = columns_text([[cell.strip() for cell in line] for line in table], "<>", keys=3)
    if bench.decoding:
        lines += ["", *_decoding_lines(bench)]
    where = f"torch {bench.torch}" if bench.runtime == "torch" else bench.runtime
    launched = f" · {bench.launched}" if bench.launched else ""
    how = f"{bench.device} · {bench.dtype}{launched} · {where}"
    head = f"{how} · medians and quartiles of {bench.repeats} repetitions in turns"
    return "\n".join([head, "", *lines, "", *bench.sentences(), *bench.notes]).rstrip()


def _decoding_lines(bench: Bench) -> list[str]:
    """A table of what decoders write: a line per model at each batch size and length of the prompts."""
    cells = [("model", "batch", "prompt", "new", "tokens/s (quartiles)", "ratio (quartiles)", "cache")]
    for row in bench.decoding:
        digits = 0 if row.low >= 100 else 1 if row.low >= 10 else 2
        speeds = [f"{n:,.{digits}f}" for n in (row.tokens_per_second, row.low, row.high)]
        doubt = "?" if row.why_not_timed else ""
        ratio = f"{row.ratio:.2f}{doubt} ({row.ratio_low:.2f} to {row.ratio_high:.2f})"
        numbers = (f"{row.batch:,}", f"{row.length:,}", f"{row.tokens:,}")
        speed = f"{speeds[0]} ({speeds[1]} to {speeds[2]})"
        cache = f"{row.cache / 2**20:,.1f} MiB"
        name = end_of(row.model, max(12, terminal_width() - 56))
        cells.append((name, *numbers, speed, "" if row.model == bench.reference else ratio, cache))
    return columns_text([list(line) for line in cells], "<>", keys=3)


def _band(curves: Sequence[Curve]) -> list[str]:
    """Mean, lowest and highest value at each step that all of the curves reached."""
    cells = []
    for points in zip(*(curve.points for curve in curves), strict=False):
        values = [point.result.value for point in points]
        cells.append(f"{sum(values) / len(values):.4f} [{min(values):.4f}, {max(values):.4f}]")
    return cells


def _map(cells: dict[str, list[str]], columns: dict[str, list[Any]]) -> list[str]:
    """Rows of cells by site under the numbers of their units, all columns equally wide."""
    indices = sorted({index for row in columns.values() for index in row}, key=lambda i: (len(str(i)), str(i)))
    width = max(len(text) for text in (*(cell for row in cells.values() for cell in row), *map(str, indices)))
    table = [["", *(f"{index!s:>{width}}" for index in indices)]]
    for site, row in cells.items():
        by_index = dict(zip(columns[site], row, strict=True))
        table.append([site, *(by_index.get(index, "") for index in indices)])
    return columns_text(table, "<>", gap=1)


def how_to_load(folder: Path) -> str:
    """A line of Python that loads a folder just written, and what it needs."""
    from ..model.loading.signpost import needs_headcount

    needs = "needs headcount: a stock from_pretrained refuses it; headcount export writes it for other programs"
    if not needs_headcount(folder):
        needs = "a stock from_pretrained loads it, too, without headcount"
    return f"in Python: import headcount; model = headcount.load({str(folder)!r})  # {needs}"
