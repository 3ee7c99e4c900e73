"""Seconds that each site takes with any number of its units, measured on this machine and kept for the next time.

Sites that are alike are measured together: a copy of the model in which all of them have so many units runs side by side
with the whole model, and what it saves is shared among them. So a table holds what a width saves in its real surroundings,
kernels, caches and all, and not what a matrix product takes by itself.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..documents.bench import Ratio
from ..errors import BadRun, Refused
from ..evaluation.evaluator import device_of
from ..model.anatomy import Anatomy, Site, Stack
from ..model.architectures import ModuleSpec
from ..model.cutting.surgery import cut
from ..model.discovery import find, unwrap
from ..plans import Plan, Unit
from ..progress import Bar
from ..runs import write_whole
from .benchmark import bench, by_processor, device_text, timed
from .contention import threads
from .costs import Costs, homes, operations, shared_out, widest

FORMAT = 2
SHARES = (
    0.0,
    0.125,
    0.25,
    0.5,
    0.75,
)  # of the units of a site: the widths that are measured; between them lie straight lines
SECONDS = 4.0  # about, for each of them
SLACK = 0.01  # of the whole model's seconds: a table may rise by so much beyond its quartiles before it is not believed
Span = tuple[float, float, float]  # what is saved: lower quartile, median and upper quartile


class _TooNoisy(Exception):
    """Why timings decide nothing."""


def seconds(
    model: nn.Module,
    kinds: Iterable[str] = ("head", "neuron", "layer"),
    *,
    batch_size: int = 16,
    length: int = 128,
    seed: int = 0,
    cache: Path | None = None,
    specs: tuple[ModuleSpec, ...] = (),
) -> Costs:
    """Seconds of one pass at this batch size and length, of each site with any number of units, and of each layer.

    Measured once for models of this shape on this machine, and read from `cache` after that (`cache_folder()` if None).
    Where other programs use the processor it is processor time on one thread, which they hardly change; where that scatters
    too much as well, or is not monotone beyond its own noise, multiply-adds share out the seconds of the whole model.
    `Costs.clock` and `Costs.note` say so, and noise is never kept.
    """
    root, anatomy, wanted = unwrap(model), find(model, specs), set(kinds)
    groups = [group for group in alike(anatomy) if group[0].kind in wanted]
    stacks = [stack for stack in anatomy.stacks if "layer" in wanted and len(stack) > 1]
    sizes: dict[str, Any] = {"batch_sizes": (batch_size,), "lengths": (length,), "seed": seed, "seconds": SECONDS}
    on_cpu, reasons = device_of(root).type == "cpu", list[str]()
    for clock in ("wall", "processor") if on_cpu else ("wall",):
        about = {**_about(root, anatomy, sorted(wanted), batch_size, length), "clock": clock}
        path = (cache or cache_folder()) / f"latency-{hashlib.sha256(_text(about)).hexdigest()[:16]}.json"
        measurements = _read(path, about, groups, stacks)
        try:
            if measurements is None:
                how = {**sizes, "clock": timed}
                if clock == "processor":  # which scatters less
                    how |= {"clock": by_processor, "seconds": SECONDS / 2}
                with threads(None if clock == "wall" else 1):
                    measurements = {"about": about, **_measured(model, groups, stacks, how, specs)}
                write_whole(path, _text(measurements))
        except _TooNoisy as noise:
            reasons.append(str(noise))
            continue
        note = f"in processor time of one thread, because {reasons[0]}" if reasons else ""
        return replace(_costs(anatomy, groups, stacks, measurements), clock=clock, note=note)
    counts = operations(model, length, specs=specs)
    like = replace(counts, what="time", whole=_whole(model, sizes), clock="counts")
    return replace(shared_out(counts, like), note=f"reckoned by multiply-adds and not timed, because {reasons[-1]}")


def cache_folder() -> Path:
    """Where measurements are kept: a folder of the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headcount"


def alike(anatomy: Anatomy) -> list[list[Site]]:
    """Sites in groups of the same kind, shape and stack, which take equally long."""
    groups: dict[tuple[Any, ...], list[Site]] = {}
    where = homes(anatomy)
    for site in anatomy:
        home = where.get(site.name)
        key = (site.kind, site.attention, type(site.module), len(site), site.width, site.kv_heads, home and home.site)
        groups.setdefault((*key, site.columns and tuple(site.columns.shape)), []).append(site)
    return list(groups.values())


def _about(root: nn.Module, anatomy: Anatomy, kinds: list[str], batch_size: int, length: int) -> dict[str, Any]:
    """What the seconds depend on: the shapes, the machine, the versions, the size of a batch."""
    shapes = [
        f"{group[0].kind} {group[0].attention} {len(group)}x{len(group[0])}x{group[0].width}"
        for group in alike(anatomy)
    ]
    weights = [f"{type(root).__name__}", sum(p.numel() for p in root.parameters())]
    return {
        "format": FORMAT,
        "shapes": [*weights, *shapes],
        "kinds": kinds,
        "device": device_text(device_of(root)),
        "machine": [platform.node(), platform.machine()],
        "dtype": str(next((p.dtype for p in root.parameters() if p.is_floating_point()), torch.float32)),
        "torch": torch.__version__,
        "precision": torch.get_float32_matmul_precision(),
        "config": _config_of(root),
        "batch": batch_size,
        "length": length,
    }


def _config_of(root: nn.Module) -> str:
    """What else about a model may change how fast it is: its config without names, and its kind of attention."""
    config = getattr(root, "config", None)
    if not hasattr(config, "to_dict"):
        return ""
    settings = {key: value for key, value in config.to_dict().items() if "name" not in key and "label" not in key}
    return hashlib.sha256(repr([sorted(settings.items()), config._attn_implementation]).encode()).hexdigest()[:16]


def _measured(
    model: nn.Module,
    groups: Sequence[Sequence[Site]],
    stacks: Sequence[Stack],
    sizes: dict[str, Any],
    specs: tuple[ModuleSpec, ...],
) -> dict[str, Any]:
    """Seconds of the whole model, and what one site saves with so many units, and one layer: medians with quartiles."""
    wholes = list[float]()
    wide = list[bool]()

    def saved(units: Iterable[Unit], among: int) -> Span | None:
        smaller = copy.deepcopy(model)
        try:
            cut(smaller, Plan(frozenset(units)), specs=specs)
        except Refused:
            return None
        first, second = bench({"whole": model, "smaller": smaller}, **sizes).rows
        if second.disturbed:
            raise _TooNoisy(second.why_not_timed)
        wholes.append(sizes["batch_sizes"][0] / first.examples_per_second)
        wide.append(Ratio(second.ratio, second.ratio_low, second.ratio_high).wide)
        low, middle, high = (
            wholes[-1] * (1 - 1 / ratio) / among for ratio in (second.ratio_low, second.ratio, second.ratio_high)
        )
        return low, middle, high

    tables, layers = [], []
    with Bar("how long each width takes", sum(len(widths(group[0])) for group in groups) + len(stacks)) as bar:
        for group in groups:
            spans = {}
            for width in widths(group[0]):
                keep = set(widest(group[0], width))
                span = saved((s.units[n] for s in group for n in range(len(s)) if n not in keep), len(group))
                if span is not None:
                    spans[str(width)] = span
                bar.advance()
            tables.append(spans)
        for stack in stacks:
            removed_units = stack.units[1::2]
            layers.append(saved(removed_units, len(removed_units)))
            bar.advance()
    if not wholes:
        raise Refused(f"Nothing of {type(unwrap(model)).__name__} can be cut, so that there is no speed to gain.")
    if np.median(wide) > 0:
        raise _TooNoisy("repetitions differ too much")
    measured = {"whole": float(np.median(wholes)), "saved": tables, "layers": layers}
    if not _monotone(groups, measured):
        raise _TooNoisy("fewer units seemed to take longer, beyond the spread of the repetitions")
    return measured


def _whole(model: nn.Module, sizes: dict[str, Any]) -> float:
    """Seconds of the whole model, as near as they can be timed."""
    row = bench({"whole": model}, **{**sizes, "clock": by_processor, "repeats": 3}).rows[0]
    return float(sizes["batch_sizes"][0] / row.examples_per_second)


def _monotone(groups: Sequence[Sequence[Site]], measurements: dict[str, Any]) -> bool:
    """Whether the nearest table in which fewer units never take longer lies within the spread of what was measured."""
    for group, spans in zip(groups, measurements["saved"], strict=True):
        slack = SLACK * measurements["whole"] / len(group)
        for (low, middle, high), fitted in zip(*_repaired(spans, len(group[0])), strict=True):
            spread = high - low
            if abs(fitted - middle) > spread + slack:
                return False
    return True


def _repaired(spans: dict[str, Span], units: int) -> tuple[list[Span], np.ndarray]:
    """What was measured from few units to all of them, and the nearest medians that fall with the number of units."""
    from scipy.optimize import isotonic_regression

    ordered = [spans[count] for count in sorted(spans, key=int) if int(count) < units]
    ordered.append((0.0, 0.0, 0.0))
    return ordered, isotonic_regression([middle for _, middle, _ in ordered], increasing=False).x


def widths(site: Site) -> list[int]:
    """Numbers of units at which a site is measured, from none on; neurons in multiples of 16 where there are enough."""
    step = 16 if site.kind == "neuron" and len(site) >= 256 else 1
    counts = {int(share * len(site)) // step * step for share in SHARES} | {1 if site.kind == "head" else 0}
    return sorted(count for count in counts if count < len(site))


def _costs(
    anatomy: Anatomy, groups: Sequence[Sequence[Site]], stacks: Sequence[Stack], measurements: dict[str, Any]
) -> Costs:
    tables = {site.name: np.zeros(len(site) + 1) for site in anatomy}
    for group, spans in zip(groups, measurements["saved"], strict=True):
        if spans:
            units = len(group[0])
            counts = [*sorted(int(count) for count in spans), units]
            # fewer units never take longer: what is measured otherwise is noise
            table = np.interp(np.arange(units + 1), counts, _repaired(spans, units)[1])
            table = np.maximum(table - table[-1], 0.0)
            for site in group:
                tables[site.name] = table[0] - table
    where, layers = homes(anatomy), {}
    for stack, gain in zip(stacks, measurements["layers"], strict=True):
        for unit in stack.units:
            inside = sum(float(tables[name][-1]) for name, home in where.items() if home == unit)
            layers[unit] = max(0.0, (gain[1] if gain else 0.0) - inside)
    return Costs("time", measurements["whole"], tables, layers, where)


def _read(
    path: Path, about: dict[str, Any], groups: Sequence[Sequence[Site]], stacks: Sequence[Stack]
) -> dict[str, Any] | None:
    """What was measured before for the same question; None if nothing was, or the file is not what it should be, or noise."""
    try:
        measurements: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if measurements["about"] != json.loads(_text(about)) or not np.isfinite(measurements["whole"]):
            return None
        spans = [span for table in measurements["saved"] for span in table.values()]
        spans += [span for span in measurements["layers"] if span is not None]
        shapes = (len(measurements["saved"]), len(measurements["layers"]))
        sound = shapes == (len(groups), len(stacks)) and np.isfinite(np.reshape(spans, (-1, 3))).all()
        return measurements if sound and _monotone(groups, measurements) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadRun):
        return None


def _text(plain: Any) -> bytes:
    return json.dumps(plain, indent=1, sort_keys=True).encode()
