"""Charts of a full-size reproduction of the papers, as PNG: `tools/charts.py FOLDER -o docs/images`.

FOLDER is where `headcount reproduce all --full ... -o FOLDER` wrote its runs; it is only read. Runs on models that did not learn
are left out, as they are from the claims. What a chart shows is said in its title; colours and type are those of the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import altair as alt
import vl_convert

from headcount.reporting.charts import values
from headcount.reporting.run_reader import comparison_of
from headcount.reporting.theme import LINES, PALETTES, config, painted
from headcount.reproduction import fan2020, li2021, registry
from headcount.reproduction import seeds as over_seeds
from headcount.reproduction.curves import Line, line_of, lines_of
from headcount.reproduction.experiment import RunDocuments, Setting
from headcount.reproduction.inputs import Corpus, Material, Pairs
from headcount.reproduction.michel2019.curves import TYPES
from headcount.reproduction.prasanna2020 import tables
from headcount.reproduction.voita2019 import encoder
from headcount.stats.paired_tests import holm

WORDS = {"accuracy": "accuracy", "matthews": "Matthews correlation", "pearson": "Pearson correlation", "bleu": "BLEU"}
PAIRS = "Multi30k, German to English"
RANGE = "from the lowest to the highest"
LEAST = 3.0  # BLEU: of what is below, a share says nothing
SIDES = ("heads and MLPs", "full model", "single weights")  # from left to right
Rows = list[dict[str, Any]]
Told = tuple[Any, list[str]]  # a chart, and the lines below its title


def found_in(folder: Path) -> RunDocuments:
    """The documents of a reproduction, without those of models that did not learn."""
    told = json.loads((folder / "setting.json").read_text(encoding="utf-8"))
    claims = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*/claims.json")]
    seeds = tuple(sorted({seed for one in claims for seed in one["seeds"]}))
    about = told["material"] | {"about": "", "pairs": Pairs(**told["material"]["pairs"])}
    about["corpora"] = tuple(Corpus(**one) for one in told["material"]["corpora"])
    setting = Setting(Material(**about), folder, told["full"], seeds)
    steps = [step for one in registry.EXPERIMENTS for step in registry.plan(one, setting).steps]
    return RunDocuments(setting, over_seeds.collapsed(RunDocuments(setting), steps).steps)


def spread(name: str, points: Mapping[Any, Sequence[float]]) -> Rows:
    """A row for each place: the mean of its values, the lowest and the highest."""
    return [{"name": name, "x": x, "mean": fmean(y), "low": min(y), "high": max(y)} for x, y in points.items()]


def of_lines(name: str, lines: Sequence[Line]) -> Rows:
    """The rows of the curves of several models, from the whole model on; none of none."""
    after = {share: [line.points[share].after for line in lines] for share in (lines[0].points if lines else ())}
    return spread(name, ({0: [line.whole.before for line in lines]} if lines else {}) | after)


def coloured(names: Mapping[str, str], **legend: Any) -> Any:
    """The encoding that gives each name its colour of the page."""
    scale = alt.Scale(domain=list(names), range=[f"theme:{colour}" for colour in names.values()])
    return alt.Color("name:N", scale=scale, legend=alt.Legend(symbolOpacity=1, **legend))


def along(title: str, end: float, **axis: Any) -> Any:
    """A horizontal axis from zero to the end."""
    return alt.X("x:Q", title=title, scale=alt.Scale(domain=[0, end], nice=False, padding=6), axis=alt.Axis(**axis))


def up(title: str, field: str = "mean:Q", **scale: Any) -> Any:
    """A vertical axis that begins where the data do, unless it is told otherwise."""
    return alt.Y(field, title=title, scale=alt.Scale(**{"zero": False, **scale}), axis=alt.Axis(tickCount=5))


def curves(rows: Rows, x: Any, y: str, colour: Any) -> list[Any]:
    """Lines of means with bands from the lowest to the highest."""
    shown = alt.Chart(values(rows)).encode(x=x, color=colour)
    band = shown.mark_area(opacity=0.2).encode(y=up(y, "low:Q"), y2="high:Q")
    return [band, shown.mark_line().encode(y=up(y))]


def dots(rows: Rows, x: Any, y: str, colour: Any, sides: Sequence[str] = (), dx: float = 0, **scale: Any) -> list[Any]:
    """Points at means with whiskers from low to high; names that are sides stand side by side."""
    shown = alt.Chart(values(rows)).encode(x=x, color=colour)
    if sides:
        shown = shown.encode(xOffset=alt.XOffset("name:N", scale=alt.Scale(domain=list(sides), paddingOuter=0.8)))
    whiskers = shown.mark_rule(strokeWidth=2, xOffset=dx).encode(y=up(y, "low:Q", **scale), y2="high:Q")
    return [whiskers, shown.mark_point(opacity=1, size=100, xOffset=dx).encode(y=up(y, **scale))]


def level(wholes: Sequence[float], dash: Sequence[int] = (5, 4)) -> Any:
    """A line at a mean: dashed, for whole models."""
    return alt.Chart(values([{"mean": fmean(wholes)}])).mark_rule(strokeDash=list(dash)).encode(y="mean:Q")


def panel(layers: Sequence[Any], width: int, height: int, title: str) -> Any:
    """One of several charts."""
    return alt.layer(*layers).properties(width=width, height=height, title=alt.Title(title, frame="group", offset=6))


def michel_curves(found: RunDocuments) -> Told:
    """What is left as heads go, in three orders (Michel et al. 2019, Figures 3 and 6)."""
    orders = {"taylor": "by importance (taylor)", "ablation": "by what each head alone costs", "random": "by lot"}
    colour, panels = coloured(dict(zip(orders.values(), ("accent", "warn", "band"), strict=True))), []
    for name in (*(one.name for one in found.setting.material.corpora), "translator"):
        lines = [one for seed in found.setting.seeds for one in lines_of(found, f"michel-curve-{name}-{seed}")]
        rows = [row for by in reversed(orders) for row in of_lines(orders[by], [one for one in lines if one.by == by])]
        drawn = curves(rows, along("share of heads removed, %", 100), WORDS[lines[0].whole.metric], colour)
        drawn += [level([one.whole.before for one in lines])]
        panels.append(panel(drawn, 255, 190, PAIRS if name == "translator" else name))
    text = f"Mean over trainings (by lot: and orders), band {RANGE}; dashed: the whole model. Nothing is trained again."
    return alt.concat(*panels, columns=3, spacing=24), [text]


def michel_types(found: RunDocuments) -> Told:
    """A translator without heads of one type of attention (Michel et al. 2019, Figure 4)."""
    colour, rows = coloured(dict(zip(TYPES.values(), ("accent", "warn", "accent3"), strict=True)), offset=34), Rows()
    for kind, name in TYPES.items():
        lines = [one for seed in found.setting.seeds for one in lines_of(found, f"michel-{kind}-translator-{seed}")]
        rows += of_lines(name, lines)
    drawn = curves(rows, along("share of the heads of this type removed, %", 100), "BLEU", colour)
    text = f"{PAIRS}; mean of {len(lines)} trainings, band {RANGE}; dashed: the whole model."
    return alt.layer(*drawn, level([line.whole.before for line in lines])), [text]


def michel_epochs(found: RunDocuments) -> Told:
    """When heads become unimportant in a training (Michel et al. 2019, Figure 5)."""
    stages: dict[int, list[Line]] = {}
    for document in (found.document(f"michel-epochs-{seed}", "over") for seed in found.setting.seeds):
        for one in document["checkpoints"] if document else ():
            stages.setdefault(int(one["name"].rpartition("-")[2]), []).append(line_of(one["curves"][0]))
    bleu = {epoch: fmean(line.whole.before for line in lines) for epoch, lines in sorted(stages.items())}
    kept, rows, names = [epoch for epoch in bleu if bleu[epoch] >= LEAST], Rows(), dict[str, str]()
    for place, epoch in enumerate(kept):
        name, lines = f"epoch {epoch} ({bleu[epoch]:.1f} BLEU)", stages[epoch]
        names[name] = f"seq:{30 + 70 * place // max(1, len(kept) - 1)}"
        shares = {x: [100 * line.points[x].after / line.whole.before for line in lines] for x in lines[0].points}
        rows += spread(name, {0: [100.0]} | shares)
    y, colour = up("share of the epoch's own BLEU left, %"), coloured(names, offset=34)
    shown = alt.Chart(values(rows)).encode(x=along("share of heads removed, %", 100), y=y, color=colour)
    text = f"{PAIRS}; mean of {len(lines)} trainings, heads removed in the order of their importance (taylor)."
    more = f"Epochs below {LEAST:g} BLEU are left out: {', '.join(str(epoch) for epoch in bleu if epoch not in kept)}."
    return alt.layer(shown.mark_line(), shown.mark_point(opacity=1, size=60)), [text, more]


def layerdrop(found: RunDocuments) -> Told:
    """Layers taken out of a translator without training it again (Fan et al. 2020)."""
    both, panels, names = (
        fan2020.pairs_of(found),
        [],
        {"trained without LayerDrop": "warn", "trained with it": "accent"},
    )
    for order, called in {
        fan2020.EVERY: "every other layer",
        fan2020.BLOCK: "from the top",
        fan2020.LOT: "by lot",
    }.items():
        rows = Rows()
        for name, some in zip(names, zip(*both, strict=True), strict=True):
            rows += spread(name, {n: [one.after[order][n] for one in some] for n in (0, *some[0].counts)})
        x = along(f"layers gone, of {both[0].plain.of}", both[0].plain.of // 2, tickMinStep=1, format="d")
        panels.append(panel(curves(rows, x, "BLEU", coloured(names)), 255, 280, called))
    text = f"{PAIRS}; mean of the {len(both)} seeds that have both models, band {RANGE}."
    return alt.hconcat(*panels, spacing=28).resolve_scale(y="shared"), [text]


def li_subsets(found: RunDocuments) -> Told:
    """Accuracy with exactly so many heads, found in several ways (Li et al. 2021)."""
    names, rows, seeds = {way.title: LINES[n] for n, way in enumerate(li2021.WAYS)}, Rows(), found.setting.seeds
    for way in li2021.WAYS:
        for keep in (keep.rstrip("%") for keep in way.keeps):
            read = [found.read(f"li-{way.name}-{keep}-{seed}", "learned", encoder.outcome) for seed in seeds]
            runs = [one for one in read if one is not None]
            rows += spread(way.title, {runs[0].kept: [one.compared.after for one in runs]})
    colour = coloured(names, columns=3, labelLimit=320, offset=34)
    shape = alt.Shape("name:N", scale=alt.Scale(domain=list(names)), legend=colour["legend"])
    x = alt.X("x:O", title=f"heads kept, of {runs[0].of}", axis=alt.Axis(labelAngle=0, tickBand="extent", grid=True))
    whiskers, points = dots(rows, x, "accuracy", colour, list(names))
    text = f"SST-2; mean of {len(runs)} seeds, whiskers {RANGE}; dashed: the whole model."
    return alt.layer(whiskers, points.encode(shape=shape), level([one.compared.before for one in runs])), [text]


def voita(found: RunDocuments) -> Told:
    """A translator with fewer heads in its encoder, trained further (Voita et al. 2019)."""
    names = {"L0 gates": "accent", "taylor": "warn", "by lot": "muted", "all heads, trained as long": "accent3"}
    few, rows = (encoder.FEW, encoder.TENTH, encoder.HALF), Rows()
    arms = [*(("l0", share) for share in few), *encoder.CONTROLS]
    for (method, share), place in zip(arms, (0, 0, 0, 1, 2, 3), strict=True):
        runs = list(encoder.runs_of(found, method, share).values())
        rows += spread(list(names)[place], {runs[0].kept: [one.compared.after for one in runs]})
    x = along(f"heads of the encoder kept, of {runs[0].of}", runs[0].of + 2, values=[row["x"] for row in rows])
    gates = alt.Chart(values(rows[: len(few)])).encode(x=x, y=up("BLEU")).mark_line(color="theme:accent")
    drawn = [gates, level([one.compared.before for one in runs])]
    for name, dx in zip(names, (0, 12, 24, 0), strict=True):
        drawn += dots([row for row in rows if row["name"] == name], x, "BLEU", coloured(names, offset=34), dx=dx)
    text = f"{PAIRS}; mean of {len(runs)} trainings, whiskers {RANGE}; dashed: before training further."
    return alt.layer(*drawn), [text]


def lottery(found: RunDocuments) -> Told:
    """Good, random and bad sub-networks of one size, fine-tuned anew (Prasanna et al. 2020)."""
    names, panels = {"full model": "ink", "heads and MLPs": "accent", "single weights": "warn"}, []
    kinds = {"heads and MLPs": "structured", "single weights": "magnitude"}
    networks = [(name, kinds[name], what, "retrained") for name in kinds for what in ("good", "random", "bad")]
    for task in tables.tasks_of(found):
        rows = Rows()
        for name, kind, what, how in (("full model", "structured", "full", "whole"), *networks):
            some = list(task.values(kind, what, how).values())
            ends = {"low": fmean(some) - stdev(some), "high": fmean(some) + stdev(some)}
            rows.append({"name": name, "x": what, "mean": fmean(some), **ends})
        x = alt.X("x:O", title="sub-network", sort=["full", "good", "random", "bad"]).axis(labelAngle=0)
        drawn = dots(rows, x, WORDS[task.metric], coloured(names), SIDES, domain=[0, 1], nice=False)
        panels.append(panel([*drawn, *([level([task.majority], (1, 0))] * (task.majority > 0))], 160, 250, task.name))
    return alt.hconcat(*panels, spacing=10), ["Mean, deviation over seeds; thin line: always the most frequent label."]


def heads(found: RunDocuments) -> Told:
    """What removing one head changes, for every head (Michel et al. 2019, Figure 1)."""
    names, panels = {"significant after Holm, at 5 %": "warn", "not significant": "bar"}, []
    for task in ("SST-2", "STS-B"):
        document = found.document(f"michel-heads-{task}-0", "ablation") or {}
        compared = sorted(map(comparison_of, document["ablations"]), key=lambda one: one.difference)
        told = [list(names)[int(p > 0.05)] for p in holm([one.p for one in compared])]
        rows = [{"x": n, "mean": c.points * c.difference, "name": told[n - 1]} for n, c in enumerate(compared, 1)]
        x, y = along("heads, the most missed first", len(rows)), f"change of the {WORDS[compared[0].metric]}, points"
        shown = alt.Chart(values(rows)).encode(x=x, y=up(y), color=coloured(names))
        title = f"{task}: {told.count(next(iter(names)))} of {len(told)} heads are significant"
        panels.append(panel([level([0], (1, 0)), shown.mark_point(opacity=1, size=60)], 395, 260, title))
    return alt.hconcat(*panels, spacing=30), ["A dot is a head, removed alone; a point is 0.01. Holm over all heads."]


CHARTS = {"curves": michel_curves, "types": michel_types, "epochs": michel_epochs, "layerdrop": layerdrop}
CHARTS |= {"li": li_subsets, "voita": voita, "lottery": lottery, "heads": heads}


def main() -> None:
    """Draw all charts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what `headcount reproduce all --full` wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, help="where the PNG files go")
    asked = parser.parse_args()
    found = found_in(asked.folder)
    look = config() | {"background": "#ffffff", "padding": 12, "line": {"strokeWidth": 2.5}, "point": {"filled": True}}
    look["title"] = {"subtitleColor": "theme:muted", "subtitlePadding": 6, "anchor": "start", "fontSize": 14}
    for name, draw in CHARTS.items():
        chart, lines = draw(found)
        title = alt.Title(str(draw.__doc__)[:-1], subtitle=lines, fontSize=17, subtitleFontSize=13, offset=14)
        sized = chart.properties(width=840, height=330) if isinstance(chart, alt.LayerChart) else chart
        spec = painted({**sized.properties(title=title).to_dict(), "config": look}, PALETTES["light"])
        image = vl_convert.vegalite_to_png(spec, scale=2)
        (asked.output / f"papers-{name}.png").write_bytes(import_module("screenshots")._few_colours(image))


if __name__ == "__main__":
    main()
