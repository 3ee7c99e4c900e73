"""The model card of a smaller checkpoint: what was removed, on which data, with which guarantee. No torch."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .guarantee import unit_of
from .plans import Plan
from .results import Comparison

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*")
PIPELINES = {
    "classification": "text-classification",
    "regression": "text-classification",
    "translation": "translation",
    "language-modelling": "text-generation",
    "masked-language-modelling": "fill-mask",
    "image-classification": "image-classification",
}
STOCK = "A stock `from_pretrained` loads it as well."
NOT_STOCK = (
    "A stock config cannot say what is left of each layer; `from_pretrained` alone refuses this folder instead of loading it "
    "wrongly."
)
ROLES = {"score": "to score the units", "select": "to show the guarantee", "report": "to measure before and after"}


def card(found: Mapping[str, Any]) -> str:
    """The README.md of a checkpoint, from what `prune` found (its `prune.json`); the hub renders it."""
    parts = [_front(found), _title(found), str(_md(found["sentence"])), _numbers(found), _usage(found), _removed(found)]
    parts += [_promise(found), _data(found), _again(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def decimals(values: Iterable[float]) -> int:
    """Decimals that show two digits of the largest of the values: points of accuracy get two, small losses more."""
    largest = max((abs(value) for value in values), default=0.0)
    return 2 if largest >= 0.1 or largest == 0 else min(6, 1 - math.floor(math.log10(largest)))


def size_text(count: float) -> str:
    """Bytes as people say them: 46.1 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def _front(found: Mapping[str, Any]) -> str:
    """What the hub reads: in JSON, which is YAML too, so that no name can break out of it."""
    library = "transformers" if found.get("stock") else "headcount"
    lines = [f"library_name: {library}", "tags:", "- headcount", "- pruned"]
    if _HUB_NAME.fullmatch(found["model"]) and not Path(found["model"]).exists():
        lines.append(f"base_model: {json.dumps(found['model'])}")
    if found.get("task") in PIPELINES:
        lines.append(f"pipeline_tag: {PIPELINES[found['task']]}")
    lines += [f"{name}: {json.dumps(value)}" for name, value in sorted(found.get("base_card", {}).items())]
    return "\n".join(["---", *lines, "---"])


def _title(found: Mapping[str, Any]) -> str:
    return f"# {_md(_last(found['model']))}, smaller"


def _numbers(found: Mapping[str, Any]) -> str:
    before, after = found["before"], found["after"]
    rows = [
        (f"{before['metric']} (n={before['n']})", _value(before), _value(after)),
        (found["units"], found["of"], found["of"] - found["removed"]),
        ("parameters", f"{found['parameters'][0]:,}", f"{found['parameters'][1]:,}"),
        ("weights on disk", size_text(found["bytes"][0]), size_text(found["bytes"][1])),
    ]
    speed = found.get("speed")
    notes = [f"Difference: {Comparison.from_json(found['comparison'])}."]
    if speed:
        first, last = speed["rows"][0], speed["rows"][-1]
        shown = [f"{row['examples_per_second']:,.0f}" for row in (first, last)]
        at = "" if last["length"] is None else f", length {last['length']}"
        rows.append((f"examples per second (batch {last['batch']}{at})", *shown))
        spread = f"{last['ratio']:.2f} [{last['ratio_low']:.2f}, {last['ratio_high']:.2f}]"
        notes.append(
            f"{spread} times as fast (median and quartiles; {speed['device']}, {speed['dtype']}); "
            f"the multiply-adds allow {last['limit']:.2f}."
        )
    return _table(("", "before", "after"), rows) + "\n\n" + _md(" ".join(notes))


def _usage(found: Mapping[str, Any]) -> str:
    folder = json.dumps(found["output"])
    return (
        "## Use\n\n"
        f"```python\nimport headcount\n\nmodel = headcount.load({folder})  # {_code(found['class'])}\n```\n\n"
        "It was loaded again from this folder and compared on a batch with the whole model with the same units closed: "
        f"they compute the same. {STOCK if found.get('stock') else NOT_STOCK}"
    )


def _removed(found: Mapping[str, Any]) -> str:
    why = Plan.from_json(found["plan"])
    rows = [(s["name"], s["units"], s["left"], s["manner"], f"-{s['parameters']:,}") for s in found["sites"]]
    gone = {site: indices for site, indices in found["plan"]["remove"].items()}
    rows = [(name, *rest[:2], gone.get(name, ""), *rest[2:]) for name, *rest in rows]
    head = ("site", "units", "left", "removed", "manner", "parameters")
    about = f"{why.why[0].upper()}{why.why[1:]}." if why.why else ""
    note = "".join(f"\n\nLeft alone: {one['reason']}" for one in found.get("left_alone", [])[:3])
    return f"## What was removed\n\n{_md(about)}\n\n{_table(head, rows)}{_md(note)}"


def _promise(found: Mapping[str, Any]) -> str:
    held = found["guarantee"]
    if held is None:
        return ""
    digits = decimals([step["bound"] for step in held["steps"]])
    rows = [
        (
            step["removed"],
            f"{step['value']:.4f}",
            f"{step['damage']:+.{digits}f}",
            f"{step['bound']:.{digits}f}",
            f"{step['p']:.2g}",
            "yes" if step["shown"] else "no",
        )
        for step in held["steps"]
    ]
    head = ("removed", held["metric"], "lost", "at most, for this plan alone", "p", "shown")
    text = (
        f"Plans were tested from the mildest on against losing {held['drop']:g} or more ({unit_of(held['metric'])}), each at "
        f"level {held['alpha']:g}, on {held['n']} examples that had no part in the scores, and the first that could not be "
        "shown ended it. The plan kept is the last one shown. Repeated on fresh examples like these, a wrong promise would "
        f"come out in at most {100 * held['alpha']:g} % of the repetitions."
    )
    return f"## The guarantee\n\n{_md(text)}\n\n{_table(head, rows)}"


def _data(found: Mapping[str, Any]) -> str:
    rows = [(s["data"], s["n"], s.get("what") or ROLES.get(s["role"], s["role"])) for s in found.get("sets", [])]
    return f"## Data\n\n{_table(('data', 'examples', 'used'), rows)}" if rows else ""


def _again(found: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in found["versions"].items())
    command = f"```\n{_code(found['command'])}\n```\n\n" if found.get("command") else ""
    signature = f"`{_code(found['signature']).replace('`', chr(39))}`"
    return f"## Made by\n\n{command}Signature: {signature}\n\nVersions: {_md(versions)}. The plan is in `plan.json`."


def _value(result: Mapping[str, Any]) -> str:
    return f"{result['value']:.4f} [{result['low']:.4f}, {result['high']:.4f}]"


def _last(name: str) -> str:
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1] or name


def _table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: object) -> str:
    return " ".join(_md(str(value)).split())


def _md(text: str) -> str:
    """A text that Markdown shows as it is: no tags, links, emphasis or table borders come from names."""
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", html.escape(text, quote=False))


def _code(text: str) -> str:
    """A text that cannot end the block of code it stands in."""
    return text.replace("```", "'''").replace("\n", " ")
