"""The model card of a smaller checkpoint: what was removed, on which data, with which guarantee. No torch."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .plans import Plan
from .results import Comparison

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*")
ROLES = {"score": "to score the units", "select": "to show the guarantee", "report": "to measure before and after"}


def card(found: Mapping[str, Any]) -> str:
    """The README.md of a checkpoint, from what `prune` found (its `prune.json`); the hub renders it."""
    parts = [_front(found), _title(found), str(_md(found["sentence"])), _numbers(found), _usage(found), _removed(found)]
    parts += [_promise(found), _data(found), _again(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def size_text(count: float) -> str:
    """Bytes as people say them: 46.1 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def _front(found: Mapping[str, Any]) -> str:
    """What the hub reads: in JSON, which is YAML too, so that no name can break out of it."""
    lines = ["library_name: transformers", "tags:", "- headcount", "- pruned"]
    if _HUB_NAME.fullmatch(found["model"]):
        lines.append(f"base_model: {json.dumps(found['model'])}")
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
        rows.append((f"examples per second (batch {last['batch']}, length {last['length']})", *shown))
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
        "A stock config cannot say what is left of each layer; `from_pretrained` alone refuses this folder instead of "
        "loading it wrongly."
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
    rows = [
        (
            s["removed"],
            f"{s['value']:.4f}",
            f"{s['damage']:+.2f}",
            f"{s['bound']:.2f}",
            f"{s['p']:.2g}",
            _yes(s["shown"]),
        )
        for s in held["steps"]
    ]
    head = ("removed", held["metric"], "lost", "at most", "p", "shown")
    text = (
        f"Plans were tested from the mildest on against a loss of {held['drop']:g} or more ({held['metric']}, in points), "
        f"each at level {held['alpha']:g}, on {held['n']} examples that had no part in the scores, and the first that could "
        "not be shown ended it. The plan kept is the last one shown. For examples like these the promise is wrong with "
        f"probability {held['alpha']:g} at most."
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


def _yes(shown: bool) -> str:
    return "yes" if shown else "no"


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
