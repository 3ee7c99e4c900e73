"""`report`: run folders as one page that explains itself, the story first and the detail folded. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..documents.curves import CurvesDocument
from ..errors import BadRun
from ..formatting import Table, counted, listed
from ..plans import index_of, site_of
from ..runs import write_whole
from . import chart_engine, charts, head_map, head_roles, map_cells, model_warnings, provenance, summary, theme
from .charts import Chart
from .findings import Lesson, Part, gather, in_detail, sections_of
from .head_map import Map
from .pictures.attention_page import free_path
from .pictures.circuit_graph import Picture
from .pictures.in_html import as_script, embedded
from .provenance import Provenance
from .sections import (
    GROUPS,
    UNFOLDED,
    claims,
    criteria,
    layer_widths,
    lottery,
    measurements,
    patching,
    pruning,
    role_survival,
    roles,
    tradeoff,
    training,
)
from .sections import runs as run_sections
from .sections.circuits import attribution, circuit, weights
from .sections.claims import ExperimentResult
from .sections.heads import by_name
from .sections.measurements import Section
from .sections.runs import Step

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("heads.js", "page.js")  # one script, in this order
LARGEST = 5_000_000  # bytes of a page
# runs with sections of their own; of more, and of a larger page, the last ones of each command are shown
IN_DETAIL = 40
DETAIL = ((12, 8), (12, 4), (6, 4), (6, 2), (3, 2), (2, 1), (1, 1))  # models, and runs of each kind: most first
FEW = 4  # sections that are all unfolded


class Placed(NamedTuple):
    """A section with the names that its charts and tables have in the page."""

    section: Section
    anchor: str
    charts: list[tuple[str, Chart]]
    tables: list[tuple[str, Table]]
    unfolded: bool = True


class Group(NamedTuple):
    """Sections that answer one question."""

    anchor: str
    title: str
    sections: list[Placed]


class Main(NamedTuple):
    """The chart beside the map, which the slider moves along."""

    place: str  # its name in the page
    title: str
    about: str
    chart: Chart


class Chapter(NamedTuple):
    """Everything that the page says about one model."""

    anchor: str
    part: Part
    answer: str
    warnings: list[str]
    tiles: list[summary.Tile]
    map: Map | None
    main: Main | None
    groups: list[Group]
    again: list[Provenance]
    notes: list[str]
    steps: list[Step]

    @property
    def sections(self) -> list[Placed]:
        """The sections of all groups."""
        return [placed for group in self.groups for placed in group.sections]


def report(
    runs: Sequence[Path | str],
    output: Path | str,
    *,
    figures: Path | str | None = None,
    markdown: Path | str | None = None,
    force: bool = False,
    title: str | None = None,
) -> Path:
    """Write one HTML page about run folders (or folders that hold some), and with `figures` its charts as SVG and PNG.

    With `markdown`, what became of the statements of papers is written as a table in Markdown, too. The page needs nothing
    but itself. What is there is not overwritten without `force`.

    Args:
        runs: Run folders, or folders that hold some.
        output: The HTML file to write.
        figures: A folder for every chart as SVG and PNG.
        markdown: A file for the statements of papers, as a table.
        force: Replace files that exist.
        title: Title of the page.

    Returns:
        The path of the page.

    Examples:
        >>> hc.report(["runs"], "page.html").name
        'page.html'
    """
    output = Path(output)
    free_path(output, force)
    folders = [Path(run) for run in runs]
    experiments, parts = claims.retold(folders), gather(folders)
    parts.sort(key=lambda part: part.prune is None)  # what was pruned comes first
    files: dict[Path, bytes] = {}
    if markdown is not None:
        if not experiments:
            raise BadRun(
                "There are no statements of papers in these runs; --markdown needs folders that reproduce wrote."
            )
        free_path(Path(markdown), force)
        files[Path(markdown)] = claims.markdown(experiments).encode("utf-8", "replace")
    contents, page = _fitting(parts, title, experiments)
    if figures is not None:
        files |= _drawn(contents.chapters, Path(figures), force)
    for path, content in files.items():
        write_whole(path, content, "write to")
    write_whole(output, page, "write to")
    return output


class Contents(NamedTuple):
    """The models of a page in full, those that have their answer alone, and what has to be said about the page itself."""

    chapters: list[Chapter]
    brief: list[tuple[str, str]]
    notes: list[str]


def _fitting(
    parts: Sequence[Part], title: str | None, experiments: Sequence[ExperimentResult]
) -> tuple[Contents, bytes]:
    """The page with as much detail as fits, and what is in it."""
    chapters: dict[tuple[str, ...], Chapter] = {}
    size = 0
    for models, runs in DETAIL:
        detailed = [in_detail(part, runs) for part in parts[:models]]
        if sum(map(sections_of, detailed)) > IN_DETAIL and (models, runs) != DETAIL[-1]:
            continue
        keys = [tuple(str(run.folder) for run in part.runs) for part in detailed]
        if size and set(keys) == set(chapters):
            continue  # that page has been made
        chapters = {
            key: chapters.get(key) or _chapter(part, n)
            for n, (key, part) in enumerate(zip(keys, detailed, strict=True), 1)
        }
        contents = _contents(list(chapters.values()), parts)
        page = render(contents, title, experiments).encode("utf-8", "replace")
        size = len(page)
        if size <= LARGEST:
            return contents, page
    raise BadRun(
        f"The page would have {size / 1e6:.1f} MB with one run of each kind, and it should stay below {LARGEST / 1e6:.0f}; "
        "give fewer runs at a time."
    )


def _contents(chapters: list[Chapter], parts: Sequence[Part]) -> Contents:
    """The chapters with what was left out, and the sentences that say so."""
    brief = [(part.model, summary.answer(part)) for part in parts[len(chapters) :]]
    notes = []
    if brief:
        notes.append(
            f"{len(chapters)} of {len(parts)} models are shown in full, so that the page stays small enough to open; the others "
            "are listed with their answers. Give the run folders of one to headcount report for a page about it."
        )
    if chart_engine.script() is None:
        notes.append(chart_engine.MISSING)
        chapters = [_without_charts(chapter) for chapter in chapters]
    return Contents(chapters, brief, notes)


def _without_charts(chapter: Chapter) -> Chapter:
    """The chapter for a page without the chart engine; sections that have nothing but charts are left out."""
    groups = [
        group._replace(sections=[placed._replace(charts=[]) for placed in group.sections if placed.tables])
        for group in chapter.groups
    ]
    return chapter._replace(main=None, groups=[group for group in groups if group.sections])


def _drawn(chapters: Sequence[Chapter], folder: Path, force: bool) -> dict[Path, bytes]:
    """Every chart as SVG and PNG."""
    named = [(name, chart) for chapter in chapters for name, chart in _figures(chapter, len(chapters) > 1)]
    for name, _ in named:
        free_path(folder / f"{name}.svg", force)
        free_path(folder / f"{name}.png", force)
    files: dict[Path, bytes] = {}
    pictures = [(name, picture) for chapter in chapters for name, picture in _pictures(chapter, len(chapters) > 1)]
    for name, picture in pictures:
        free_path(folder / f"{name}.svg", force)
        files[folder / f"{name}.svg"] = picture.svg.encode()
    for (name, _), (svg, png) in zip(named, chart_engine.figures([chart.spec for _, chart in named]), strict=True):
        files |= {folder / f"{name}.svg": svg, folder / f"{name}.png": png}
    return files


def render(contents: Contents, title: str | None = None, experiments: Sequence[ExperimentResult] = ()) -> str:
    """The page as text."""
    import jinja2
    from markupsafe import Markup

    chapters = contents.chapters

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    models = list(dict.fromkeys(chapter.part.model for chapter in chapters))
    default_title = (
        claims.title(experiments)
        if experiments
        else f"Report on {', '.join(_last(model) for model in models if model) or 'a model'}"
    )
    return environment.get_template("page.html").render(
        title=title or default_title,
        experiments=experiments,
        summary=claims.summary(experiments),
        verdicts=claims.VERDICTS,
        chapters=chapters,
        brief=contents.brief,
        notes=contents.notes,
        palettes=theme.PALETTES,
        cell=map_cells.CELL,
        version=__version__,
        data=Markup(embedded(_data(chapters, experiments))),
        vega=Markup(as_script(chart_engine.script() or "")),
        style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        script=Markup("\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS)),
    )


def _chapter(part: Part, number: int) -> Chapter:
    anchor = f"m{number}"
    sections = _sections(part)
    main = _main(part, anchor, sections)
    warnings = _warnings(part)
    return Chapter(
        anchor,
        part,
        summary.answer(part),
        warnings,
        summary.tiles(part),
        head_map.build(part),
        main,
        _groups(anchor, sections, main),
        [provenance.how(part, run) for run in part.runs],
        _notes(part),
        run_sections.next_steps(part, bool(warnings)),
    )


def _sections(part: Part) -> list[Section]:
    """All sections that a model has; their groups put them in order."""
    return [
        *lottery.lottery(part),
        *tradeoff.tradeoffs(part),
        *layer_widths.layers(part),
        *layer_widths.budgets(part),
        *layer_widths.tuned(part),
        *layer_widths.recovered(part),
        *training.learned(part),
        *measurements.curves(part),
        *roles.roles(part),
        *by_name.named_heads(part),
        *role_survival.survival(part),
        *roles.relations(part),
        *training.over(part),
        *training.gates(part),
        *measurements.rankings(part),
        *criteria.predictions(part),
        *measurements.spreads(part),
        *measurements.effects(part),
        *circuit.circuits(part),
        *patching.patchings(part),
        *attribution.attributions(part),
        *weights.weights(part),
        *measurements.one_head(part),
        *pruning.guarantee(part),
        *measurements.transfers(part),
        *pruning.speeds(part),
        *pruning.removed(part),
        *training.training(part),
        *measurements.every_unit(part),
        *run_sections.all_runs(part),
    ]


def _groups(anchor: str, sections: Sequence[Section], main: Main | None) -> list[Group]:
    """The sections in their groups, with names for their charts and tables."""
    titles = {key: title for title, keys in GROUPS.items() for key in keys}
    places = {key: n for keys in GROUPS.values() for n, key in enumerate(keys)}
    last = list(GROUPS)[-1]
    groups: dict[str, list[Placed]] = {title: [] for title in GROUPS}
    key_counts: dict[str, int] = {}
    for section in sorted(sections, key=lambda section: places.get(section.key, len(places))):
        key_counts[section.key] = key_counts.get(section.key, 0) + 1
        first = key_counts[section.key] == 1
        place = f"{anchor}-{section.key}" + ("" if first else f"-{key_counts[section.key]}")
        drawn = [chart for chart in section.charts if main is None or chart is not main.chart]
        named = [(f"{place}-chart-{n}" if n else f"{place}-chart", chart) for n, chart in enumerate(drawn)]
        tables = [(f"{place}-table-{n}" if n else f"{place}-table", table) for n, table in enumerate(section.tables)]
        unfolded = not section.folded and (len(sections) <= FEW or (first and section.key in UNFOLDED))
        groups[titles.get(section.key, last)].append(Placed(section, place, named, tables, unfolded))
    out = []
    for number, (title, own) in enumerate(((title, own) for title, own in groups.items() if own), 1):
        if not any(placed.unfolded for placed in own) and not own[0].section.folded and title != last:
            own[0] = own[0]._replace(unfolded=True)
        out.append(Group(f"{anchor}-group-{number}", title, own))
    return out


def _warnings(part: Part) -> list[str]:
    """What has to be said beside the headline: a model that is ruined, roles that are gone."""
    out = []
    if part.prune is not None:
        out += model_warnings.of_prune(part.prune)
    elif best := summary.best_lesson(part):
        out += model_warnings.of_results(best.group[0].full, best.group[0].result)
    gone = part.removed or frozenset(unit for lesson in _spoken_of(part) for unit in lesson.gone)
    for cast in head_roles.casts(part)[:1] if gone else ():
        losses = model_warnings.role_losses(cast.mains, gone)
        out += model_warnings.of_roles(losses, sum(unit in gone for unit in cast.mains), len(cast.mains))
    return out


def _spoken_of(part: Part) -> list[Lesson]:
    """The run of learned gates that the answer speaks of, where no prune was run."""
    best = None if part.prune is not None else summary.best_lesson(part)
    return best.group[:1] if best else []


def _main(part: Part, anchor: str, sections: Sequence[Section]) -> Main | None:
    """The first curve; without one, the sequence that a guarantee tested, what learned gates keep, or what layers keep."""
    for document in part.of(CurvesDocument)[:1]:
        about = measurements.curve_about(document)
        return Main(f"{anchor}-main", "What is left as units go", about, measurements.curve_chart(part, document))
    drawn = {section.key: section.charts[0] for section in sections[::-1] if section.charts}
    if "guarantee" in drawn:
        about = "Loss of each plan tested, and its upper bound; the first one that reaches above what is allowed is the end."
        return Main(f"{anchor}-main", "How much may go", about, drawn["guarantee"])
    if "learned" in drawn:
        runs = next(iter(part.places.values()))
        title = "What learned gates keep" if any(lesson.gated for lesson in runs) else f"What {runs[0].units} are left"
        return Main(f"{anchor}-main", title, training.how_to_read(runs), drawn["learned"])
    if "structure" in drawn:
        about = "The share of each layer's units that stay, with their number where there is room; × is a layer that is gone."
        return Main(f"{anchor}-main", "What is left of each layer", about, drawn["structure"])
    return None


def _notes(part: Part) -> list[str]:
    """What a reader has to know before anything else: several prunings, and runs that did not come to their end."""
    notes = []
    if len(part.prunes) > 1:
        last, *earlier_runs = (document.run.folder.name for document in part.prunes)
        notes.append(
            f"There are {len(part.prunes)} prune runs of this model. The answer, the numbers below it and the map tell of "
            f"{last}, made last; what {listed(earlier_runs)} came to stands in sections with that name."
        )
    for run in part.runs:
        if run.finished:
            continue
        names = [document.name for document in part.documents if document.run is run]
        source = f"what is shown of it comes from {', '.join(names[:3])}" if names else "it has no answer yet"
        notes.append(
            f"The run {run.folder.name} is not finished: {_pieces(len(run.pieces))} done, {source}. "
            "The same command goes on from there."
        )
    return notes


def _pieces(count: int) -> str:
    return f"{counted(count, 'piece')} {'is' if count == 1 else 'are'}"


def _data(chapters: Iterable[Chapter], experiments: Iterable[ExperimentResult]) -> dict[str, Any]:
    """What the page's script works with."""
    drawn: dict[str, Any] = {}
    tables = [pair for experiment in experiments for pair in experiment.copied]
    for chapter in chapters:
        drawn |= {chapter.main.place: chapter.main.chart} if chapter.main else {}
        for placed in chapter.sections:
            drawn |= dict(placed.charts)
            tables += placed.tables
    forms = {name: {"latex": table.latex(), "csv": table.csv(), "markdown": table.markdown()} for name, table in tables}
    maps = {chapter.anchor: chapter.map.to_json() for chapter in chapters if chapter.map}
    return {"maps": maps, "charts": {name: chart.spec for name, chart in drawn.items()}, "tables": forms}


def _figures(chapter: Chapter, several: bool) -> list[tuple[str, Chart]]:
    """Every chart with the name of its files, the maps among them."""
    figures = [(chapter.main.chart.name, chapter.main.chart)] if chapter.main else []
    for placed in chapter.sections:
        for n, (_, chart) in enumerate(placed.charts):
            figures.append((placed.anchor.partition("-")[2] + (f"-{n + 1}" if n else ""), chart))
    figures += _maps(chapter)
    names: dict[str, int] = {}
    out = []
    for name, chart in figures:
        names[name] = names.get(name, 0) + 1
        name = name if names[name] == 1 else f"{name}-{names[name]}"
        out.append((f"{chapter.anchor}-{name}" if several else name, chart))
    return out


def _pictures(chapter: Chapter, several: bool) -> list[tuple[str, Picture]]:
    """Every drawing that is no chart, with the name of its file."""
    pictures = [(placed.anchor, picture) for placed in chapter.sections for picture in placed.section.pictures]
    return [(f"{anchor if several else anchor.partition('-')[2]}-graph", picture) for anchor, picture in pictures]


def _maps(chapter: Chapter) -> list[tuple[str, Chart]]:
    """Each map by its first view, and by the roles of its heads, as charts."""
    unit_map, part = chapter.map, chapter.part
    if unit_map is None:
        return []
    figures = []
    for view in [*unit_map.views[:1], *(view for view in unit_map.views[1:] if view.keys)]:
        for grid in (grid for grid in part.grids if not grid.large):
            places = dict(zip(unit_map.units, view.places, strict=True))
            if view.keys and all(places[unit] is None for unit in grid.units):
                continue
            rows = [
                {"site": site_of(u), "column": index_of(u), "value": places[u], "gone": u in part.removed}
                for u in grid.units
            ]
            name = f"map-{grid.type or grid.kind}".replace(" ", "-")
            label = view.name if view.diverging else f"{view.name}, of the largest"
            safe = "".join(letter for letter in name if letter.isalnum() or letter == "-")
            if view.keys:
                figures.append((f"{safe}-roles", roles.role_map(f"{safe}-roles", view, rows)))
            else:
                figures.append((safe, charts.heatmap(safe, rows, label=label, diverging=view.diverging)))
    return figures


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]
