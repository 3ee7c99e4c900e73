"""Which roles survive as heads go: counts along every order that is known, and whether they are more than chance. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...documents.curves import CurvesDocument
from ...formatting import Column, Table, counted, fixed, listed, probability, with_commas
from ...plans import site_of, type_of
from ...stats.paired_tests import holm
from .. import head_map
from ..charts import Chart, Rows, finished, tip, values
from ..findings import Part
from ..head_roles import COLOURS, KINDS, NAMES, NONE, Cast, by_role, casts
from ..run_reader import ALPHA
from .measurements import MOST_ROWS, Section

STEPS = 12  # bars of a chart
MOST = 6  # charts; what more there is stands in the tables
HEIGHT = 230  # pixels of a chart
LETTERS = 14  # pixels of a bar's part that has room for them
NOUNS = {
    "none": "heads without a role",
    "rare": "heads for rare words",
    "sink": "sinks",
}  # other roles are said as they are
LAST = 1 / 3  # of the heads: those among which roles are counted
FIRST = 1 / 5  # of the heads, the first to go: a role that is gone by then is lost in the mildest pruning


class Course(NamedTuple):
    """An order of removal, or a method that was run at several numbers kept: the heads that are left at each stop."""

    name: str
    heads: frozenset[str]  # all of them
    stops: tuple[frozenset[str], ...]  # most heads first

    @property
    def last(self) -> frozenset[str]:
        """The stop that leaves nearest to a third of the heads."""
        inside = [stop for stop in self.stops if 0 < len(stop) < len(self.heads)]
        return min(inside, key=lambda stop: abs(len(stop) - LAST * len(self.heads)), default=frozenset())

    @property
    def first(self) -> frozenset[str]:
        """The heads that are gone at the stop nearest to a fifth of them; none where the first stop takes more than a third."""
        gone = [self.heads - stop for stop in self.stops if 0 < len(stop) < len(self.heads)]
        early = [some for some in gone if len(some) <= LAST * len(self.heads)]
        return min(early, key=lambda some: abs(len(some) - FIRST * len(self.heads)), default=frozenset())


class Odds(NamedTuple):
    """Of the heads of a role, how many are among the last ones, and how many would be by chance."""

    role: str
    heads: int
    left: int
    expected: float
    p: float
    p_holm: float


def survival(part: Part) -> list[Section]:
    """How many heads of each role are left along every order (the figure of Voita et al. 2019)."""
    out = []
    for cast in casts(part):
        orders = courses(part, cast.mains)
        if orders:
            out.append(_section(cast, orders))
    return out


def odds(mains: Mapping[str, str], heads: frozenset[str], survivors: frozenset[str]) -> list[Odds]:
    """For each role, Fisher's exact test of whether its heads are left more or less often than others; Holm over the roles.

    Twice the smaller tail of the hypergeometric distribution, and never more than 1.
    """
    from scipy.stats import hypergeom  # slow to import, and few reports need it

    head_counts, survivor_counts = (by_role({unit: mains[unit] for unit in heads}, some) for some in (heads, survivors))
    n, k = len(heads), len(survivors)
    ps = []
    for role, own in head_counts.items():
        chance = hypergeom(n, own, k)
        at_most, at_least = chance.cdf(survivor_counts[role]), chance.sf(survivor_counts[role] - 1)
        ps.append(min(1.0, 2 * float(min(at_most, at_least))))
    rows = zip(head_counts.items(), ps, holm(ps).tolist(), strict=True)
    return [Odds(role, own, survivor_counts[role], own * k / n, p, corrected) for (role, own), p, corrected in rows]


# -- orders ----------------------------------------------------------------------------------------------------------------


def courses(part: Part, mains: Mapping[str, str]) -> list[Course]:
    """Every order that a part knows, of heads whose roles are known: curves, gates that learned, ablation, prune, scores."""
    out: dict[str, Course] = {}
    learned, first = list(_learned(part, mains)), _first_seeds(part)
    early, late = ([track for track in learned if (track[0] in first) is when] for when in (True, False))
    for name, heads, lefts in (*_curves(part, mains), *early, *_orders(part, mains), *late):
        stops = {len(survivors): survivors for survivors in lefts if survivors}
        ordered = tuple(stops[n] for n in sorted(stops, reverse=True))
        if len(heads) > 1 and len(ordered) > 1 and any(len(stop) < len(heads) for stop in ordered):
            out.setdefault(name, Course(name, heads, _few(ordered, len(heads))))
    return list(out.values())


_Found = Iterator[tuple[str, frozenset[str], list[frozenset[str]]]]


def _curves(part: Part, mains: Mapping[str, str]) -> _Found:
    for document in part.of(CurvesDocument):
        for curve in document.data.scored:
            plans = [{*point.units} for point in curve.points]
            scored = [
                scores.values for scores in part.scores if scores.document.run is document.run and scores.by == curve.by
            ]
            candidates = _in_play(plans[-1], scored[0].keys() if scored else mains.keys(), curve.of)
            heads = frozenset(unit for unit in candidates if unit in mains)
            yield curve.by, heads, [heads - plan for plan in plans]


def _in_play(removed_units: set[str], candidates: Iterable[str], of: int) -> set[str]:
    """The units that a curve could remove: those gone at its end, or all of the types that went; none if that is not `of`.

    Heads that were never meant to go would seem to survive.
    """
    types = {type_of(site_of(unit)) for unit in removed_units}
    for some in (removed_units, {*candidates}, {unit for unit in candidates if type_of(site_of(unit)) in types}):
        if len(some) == of:
            return some
    return set()


def _orders(part: Part, mains: Mapping[str, str]) -> _Found:
    """Whole orders, cut at as many places as a chart has bars; a criterion that has a curve is there already."""
    orders = []
    for name, (_, effects) in zip(head_map.ablation_names(part), part.effects, strict=True):
        damage = {effect.unit: effect.comparison.damage for effect in effects}
        orders.append((name, sorted(damage, key=lambda unit: damage[unit])))
    for document in part.prunes:
        orders.append((str(document.data.by), list(document.data.order)))
    for name, scores in zip(head_map.score_names(part), part.scores, strict=True):
        if scores.by != "random" and part.lesson_of(scores.document) is None:
            orders.append((name, sorted(scores.values, key=lambda unit: scores.values[unit])))
    for name, order in orders:
        own = [unit for unit in order if unit in mains]
        yield name, frozenset(own), [frozenset(own[round(len(own) * n / STEPS) :]) for n in range(STEPS)]


def _learned(part: Part, mains: Mapping[str, str]) -> _Found:
    tracks: dict[str, list[tuple[frozenset[str], frozenset[str]]]] = {}
    for lesson in (lesson for runs in part.places.values() for lesson in runs if lesson.gated):
        candidates = part.scored_by(lesson) or mains.keys()
        heads = frozenset(unit for unit in candidates if unit in mains)
        tracks.setdefault(head_map.track_name(lesson, part), []).append((heads, heads - {*lesson.gone}))
    for name, stops in tracks.items():
        heads = frozenset.union(*(gated_heads for gated_heads, _ in stops))
        yield name, heads, [heads, *(survivors for _, survivors in stops)]


def _first_seeds(part: Part) -> set[str]:
    """The track of one seed of each method that learned; the others come last."""
    first: dict[Any, str] = {}
    for lesson in (lesson for runs in part.places.values() for lesson in sorted(runs, key=lambda lesson: lesson.seed)):
        first.setdefault((lesson.place, lesson.label), head_map.track_name(lesson, part))
    return set(first.values())


def _few(stops: tuple[frozenset[str], ...], of: int) -> tuple[frozenset[str], ...]:
    """As many stops as there are bars, spread evenly over the numbers of heads left."""
    if len(stops) <= STEPS + 1:
        return stops
    wanted = [of * (n + 1) / STEPS for n in range(STEPS)]
    chosen = {min(stops, key=lambda stop: abs(len(stop) - n)) for n in wanted}
    return tuple(stop for stop in stops if stop in chosen)


# -- the section -----------------------------------------------------------------------------------------------------------


def _section(cast: Cast, orders: Sequence[Course]) -> Section:
    tested = [(course, odds(cast.mains, course.heads, course.last)) for course in orders if course.last]
    early = [(course, odds(cast.mains, course.heads, course.first)) for course in orders if course.first]
    about = (
        "How many heads of each main role are left as heads go: a bar for each number of heads kept, from the whole model on the "
        "left. A role that matters keeps its part of the bar for longer than its share."
    )
    notes = [*lost_early(early), *told(tested)]
    notes.append(
        "Counted among the first fifth and the last third of an order, or the stops nearest to them. p is exact "
        "(hypergeometric, both sides) and corrected by Holm for the roles of one order, not for the number of orders."
    )
    if len(orders) > MOST:
        notes.append(
            f"{counted(len(orders) - MOST, 'order')} more {'is' if len(orders) == MOST + 1 else 'are'} in the tables."
        )
    title = "Which roles survive" + (f" ({cast.called})" if cast.called else "")
    charts = tuple(_chart(cast.mains, course) for course in orders[:MOST])
    tables = (
        _odds_table(tested),
        _counts_table(cast.mains, orders),
        _odds_table(early, "lost-early", "Heads of each role among the first fifth of each order: gone first.", "gone"),
    )
    source = "Voita et al. 2019, the figure on the functions of heads that are retained; Fisher 1935; Holm 1979."
    return Section("survival", title, about, source, charts, tables, tuple(notes))


def lost_early(early: Sequence[tuple[Course, Sequence[Odds]]]) -> list[str]:
    """Roles that lose at least half of their heads, and twice their share, among the first to go: counted, not only tested.

    With few heads a test can hardly show it, and the role is gone all the same.
    """
    orders: dict[str, list[str]] = {}
    for course, rows in early:
        parts = [
            f"{odds.left} of {odds.heads} {NOUNS.get(odds.role, f'{odds.role} heads')} ({fixed(odds.expected, 1)} expected by "
            f"chance, p {_equals(odds.p)}, and {probability(odds.p_holm)} corrected for the roles)"
            for odds in rows
            if odds.role != NONE and odds.heads > 1 and 2 * odds.left >= odds.heads and odds.left >= 2 * odds.expected
        ]
        if parts:
            text = f"the first {len(course.first)} of {len(course.heads)} heads to go take along {listed(parts)}."
            orders.setdefault(text, []).append(course.name)
    return [f"By {listed(names, most=6)}, {text}" for text, names in orders.items()]


def told(tested: Sequence[tuple[Course, Sequence[Odds]]]) -> list[str]:
    """Which roles stay and which go along each order, as far as it is more than chance."""
    sentences, nothing = [], []
    for course, rows in tested:
        k, n = len(course.last), len(course.heads)
        parts = []
        for odds in rows:
            if odds.p_holm >= ALPHA:
                continue
            noun = NOUNS.get(odds.role, f"{odds.role} heads")
            when = "late" if odds.left > odds.expected else "early"
            are = "is" if odds.left == 1 else "are"
            parts.append(
                f"{noun} go {when}: of {odds.heads}, {odds.left} {are} among the last {k} of {n} "
                f"({fixed(odds.expected, 1)} expected by chance, p {_equals(odds.p_holm)})"
            )
        if parts:
            sentences.append(f"By {course.name}, " + "; ".join(parts) + ".")
        else:
            nothing.append(course.name)
    if nothing:
        sentences.append(
            f"By {listed(nothing, most=6)}, no role could be shown to be left more or less often than others; of roles with few "
            "heads only large differences can be shown."
        )
    return sentences


def _equals(p: float) -> str:
    text = probability(p)
    return text if text.startswith("<") else f"= {text}"


def _odds_table(
    tested: Sequence[tuple[Course, Sequence[Odds]]],
    name: str = "survival",
    caption: str = "Heads of each role among the last third of each order.",
    counted_as: str = "left",
) -> Table:
    columns = (
        Column("order"),
        Column("role"),
        Column("heads", with_commas, True),
        Column(counted_as, with_commas, True),
        Column("by chance", lambda value: fixed(value, 1), True),
        Column("among", with_commas, True),
        Column("p", probability, True),
        Column("p (Holm)", probability, True),
    )
    rows = [
        (
            course.name,
            role_odds.role,
            role_odds.heads,
            role_odds.left,
            role_odds.expected,
            len(course.last if counted_as == "left" else course.first),
            role_odds.p,
            role_odds.p_holm,
        )
        for course, course_odds in tested
        for role_odds in course_odds
    ]
    return Table(name, caption, columns, tuple(rows[:MOST_ROWS]))


def _counts_table(mains: Mapping[str, str], orders: Sequence[Course]) -> Table:
    roles = list(by_role(mains))
    columns = (
        Column("order"),
        Column("heads kept", with_commas, True),
        *(Column(role, with_commas, True) for role in roles),
    )
    rows = []
    for course in orders:
        for stop in course.stops:
            counts = by_role(mains, stop)
            rows.append((course.name, len(stop), *(counts[role] for role in roles)))
    return Table("survivors", "Heads of each main role that are left.", columns, tuple(rows[:MOST_ROWS]))


def _chart(mains: Mapping[str, str], course: Course) -> Chart:
    rows: list[dict[str, Any]] = []
    for stop in course.stops:
        height = 0
        for role, count in by_role(mains, stop).items():
            if count:
                text = f"{course.name}, {len(stop)} heads kept: {count} {NAMES[role]}"
                span = {"low": height, "high": height + count, "middle": height + count / 2}
                room = count * HEIGHT / len(course.heads) >= LETTERS
                mark = KINDS[role][0] if room else ""
                rows.append({"kept": len(stop), "role": NAMES[role], **span, "mark": mark, "text": text})
                height += count
    return stacked("survival", rows, of=len(course.heads), name=course.name)


def stacked(name_of_file: str, rows: Rows, *, of: int, name: str) -> Chart:
    """Bars of heads by role. `rows` have kept, role (as in legends), low, high, middle, mark and text."""
    import altair as alt

    roles = [role for role, label in NAMES.items() if any(row["role"] == label for row in rows)]
    kept_counts = list(dict.fromkeys(row["kept"] for row in rows))
    colours = alt.Scale(domain=[NAMES[role] for role in roles], range=[f"theme:{COLOURS[role]}" for role in roles])
    legend = alt.Legend(columns=3, offset=34, symbolType="square", symbolOpacity=1)
    base_chart = alt.Chart(values(rows)).encode(
        x=alt.X(
            "kept:O",
            title="heads kept",
            sort=kept_counts,
            axis=alt.Axis(labelAngle=0, ticks=False),
            scale=alt.Scale(paddingInner=0.18, paddingOuter=min(1.0, max(0.1, (7 - len(kept_counts)) / 4))),
        ),
        tooltip=tip("text"),
    )
    title = f"heads left, by {name}"
    y = alt.Y("low:Q", title=title, scale=alt.Scale(domain=[0, of], nice=False), axis=alt.Axis(tickMinStep=1))
    chart = alt.layer(
        base_chart.mark_bar(stroke="theme:paper", strokeWidth=1).encode(
            y=y, y2="high:Q", color=alt.Color("role:N", scale=colours, legend=legend)
        ),
        base_chart.mark_text(color="theme:on-role", fontSize=11, fontWeight=600, baseline="middle").encode(
            y=alt.Y("middle:Q", title=title), text="mark:N"
        ),
    )
    words = f"how many heads of each role are left against the number of heads kept, by {name}"
    return finished(name_of_file, words, chart, HEIGHT)
