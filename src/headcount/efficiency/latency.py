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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import BadRun, Refused
from ..evaluation.evaluator import device_of
from ..model.anatomy import Anatomy, Site, Stack
from ..model.architectures import ModuleSpec
from ..model.cutting.surgery import cut
from ..model.discovery import find, unwrap
from ..plans import Plan, Unit
from ..progress import Bar
from ..runs import write_whole
from .benchmark import bench, device_text
from .contention import is_busy
from .costs import Costs, homes, operations, widest

FORMAT = 1
SHARES = (
    0.0,
    0.125,
    0.25,
    0.5,
    0.75,
)  # of the units of a site: the widths that are measured; between them lie straight lines
WIDEST = 0.25  # quartiles of a ratio further apart than this, as a share of it, decide nothing
SECONDS = 4.0  # about, for each of them


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
    Where other programs use the processor, or repetitions differ too much, nothing is kept: multiply-adds then share out the
    seconds of the whole model, and `Costs.note` says so.
    """
    root, anatomy, wanted = unwrap(model), find(model, specs), set(kinds)
    groups = [group for group in alike(anatomy) if group[0].kind in wanted]
    stacks = [stack for stack in anatomy.stacks if "layer" in wanted and len(stack) > 1]
    about = _about(root, anatomy, sorted(wanted), batch_size, length)
    path = (cache or cache_folder()) / f"latency-{hashlib.sha256(_text(about)).hexdigest()[:16]}.json"
    measurements = _read(path, about)
    if measurements is None:
        sizes: dict[str, Any] = {"batch_sizes": (batch_size,), "lengths": (length,), "seed": seed, "seconds": SECONDS}
        measured, noise = _measured(model, groups, stacks, sizes, specs)
        if noise:
            return _by_counts(operations(model, length, specs=specs), measured["whole"], noise)
        measurements = {"about": about, **measured}
        write_whole(path, _text(measurements))
    return _costs(anatomy, groups, stacks, measurements)


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
) -> tuple[dict[str, Any], str]:
    """Seconds of the whole model, and for each group by number of units, and each stack, what one of them saves; and
    why they cannot be believed, where they cannot."""
    wholes: list[float] = []
    spreads: list[float] = []
    waits: list[float] = []

    def saved(units: Iterable[Unit]) -> float | None:
        smaller = copy.deepcopy(model)
        try:
            cut(smaller, Plan(frozenset(units)), specs=specs)
        except Refused:
            return None
        result = bench({"whole": model, "smaller": smaller}, **sizes)
        first, second = result.rows
        spreads.append((second.ratio_high - second.ratio_low) / second.ratio)
        waits.append(result.busy or 0.0)
        wholes.append(sizes["batch_sizes"][0] / first.examples_per_second)
        return wholes[-1] * (1 - 1 / second.ratio)

    tables, layers = [], []
    with Bar("how long each width takes", sum(len(widths(group[0])) for group in groups) + len(stacks)) as bar:
        for group in groups:
            gains = {}
            for width in widths(group[0]):
                keep = set(widest(group[0], width))
                gain = saved(site.units[n] for site in group for n in range(len(site)) if n not in keep)
                if gain is not None:
                    gains[str(width)] = gain / len(group)
                bar.advance()
            tables.append(gains)
        for stack in stacks:
            removed_units = stack.units[1::2]
            gain = saved(removed_units)
            layers.append(None if gain is None else gain / len(removed_units))
            bar.advance()
    if not wholes:
        raise Refused(f"Nothing of {type(unwrap(model)).__name__} can be cut, so that there is no speed to gain.")
    return {"whole": float(np.median(wholes)), "saved": tables, "layers": layers}, _noise(waits, spreads)


def _noise(waits: Sequence[float], spreads: Sequence[float]) -> str:
    """Why timings say too little, or nothing: most were taken beside other programs, or scattered too much."""
    waited, spread = float(np.median(waits)), float(np.median(spreads))
    if is_busy(waited):
        return f"programs waited for the processor in {waited:.0%} of the time"
    return f"half of the repetitions differ by {spread:.0%}" if spread > WIDEST else ""


def _by_counts(counts: Costs, seconds: float, noise: str) -> Costs:
    """The seconds of the whole model, shared out by multiply-adds."""
    scale = seconds / counts.whole
    sites = {name: table * scale for name, table in counts.sites.items()}
    layers = {unit: cost * scale for unit, cost in counts.layers.items()}
    note = f"reckoned by multiply-adds, for this machine is too busy to time it: {noise}"
    return Costs("time", seconds, sites, layers, counts.homes, note)


def widths(site: Site) -> list[int]:
    """Numbers of units at which a site is measured, from none on; neurons in multiples of 16 where there are enough."""
    step = 16 if site.kind == "neuron" and len(site) >= 256 else 1
    counts = {int(share * len(site)) // step * step for share in SHARES} | {1 if site.kind == "head" else 0}
    return sorted(count for count in counts if count < len(site))


def _costs(
    anatomy: Anatomy, groups: Sequence[Sequence[Site]], stacks: Sequence[Stack], measurements: dict[str, Any]
) -> Costs:
    from scipy.optimize import isotonic_regression

    tables = {site.name: np.zeros(len(site) + 1) for site in anatomy}
    for group, gains in zip(groups, measurements["saved"], strict=True):
        if gains:
            units = len(group[0])
            counts = [*sorted(int(count) for count in gains), units]
            saved = [*(gains[str(count)] for count in counts[:-1]), 0.0]
            # fewer units never take longer: what is measured otherwise is noise
            falling = isotonic_regression(saved, increasing=False).x
            table = np.interp(np.arange(units + 1), counts, falling)
            table = np.maximum(table - table[-1], 0.0)
            for site in group:
                tables[site.name] = table[0] - table
    where, layers = homes(anatomy), {}
    for stack, gain in zip(stacks, measurements["layers"], strict=True):
        for unit in stack.units:
            inside = sum(float(tables[name][-1]) for name, home in where.items() if home == unit)
            layers[unit] = max(0.0, (gain or 0.0) - inside)
    return Costs("time", measurements["whole"], tables, layers, where)


def _read(path: Path, about: dict[str, Any]) -> dict[str, Any] | None:
    """What was measured before for the same question; None if nothing was, or the file is not what it should be."""
    try:
        measurements = json.loads(path.read_text(encoding="utf-8"))
        fits = measurements["about"] == json.loads(_text(about)) and np.isfinite(measurements["whole"])
        return (
            measurements
            if fits and isinstance(measurements["saved"], list) and isinstance(measurements["layers"], list)
            else None
        )
    except (OSError, ValueError, KeyError, TypeError, BadRun):
        return None


def _text(plain: Any) -> bytes:
    return json.dumps(plain, indent=1, sort_keys=True).encode()
