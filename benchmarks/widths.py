"""Which widths the hardware likes: the time of an MLP, and of an attention, at widths around a point, side by side.

    python benchmarks/widths.py                                            # BERT-base shape, around 1536 neurons
    python benchmarks/widths.py --around 768,1536,2304 --dtype float32,bfloat16,float16 --batch 128
    python benchmarks/widths.py --span 4 --far 64 --repeats 7 --batch 4   # a minute on one core

All widths from 1536 - span to 1536 + span, and multiples of 8 as far as `--far`, run in turns in an order drawn anew for every
repetition. A time is compared with the line between the times at the multiples of 64 below and above it: 1.00 is a width
that costs what its size says. (Number of heads: 64 columns each, and the line is between multiples of 4 heads.) A
multiple is good if it, and every larger one, is within 3 % of the line. On a CPU times are processor time; --wall is for
quiet machines.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from headcount.efficiency.benchmark import device_text, orders_of, timed

MULTIPLES = {"mlp": (1, 2, 4, 8, 16, 32, 64), "attention": (1, 2, 4)}


class Mlp(nn.Module):
    """Two matrices with so many neurons between them."""

    def __init__(self, hidden: int, neurons: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, neurons), nn.Linear(neurons, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x)))


class Attention(nn.Module):
    """Queries, keys, values and an output for so many heads."""

    def __init__(self, hidden: int, width: int, heads: int) -> None:
        super().__init__()
        self.readers = nn.ModuleList(nn.Linear(hidden, width * heads) for _ in range(3))
        self.output, self.width = nn.Linear(width * heads, hidden), width

    def forward(self, x: Tensor) -> Tensor:
        parts = [reader(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for reader in self.readers]
        return self.output(scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))


def neighbours(point: int, span: int, far: int) -> list[int]:
    """Widths near a point one by one, multiples of 8 farther away, and the multiples of 64 around all of them."""
    near = set(range(max(1, point - span), point + span + 1)) | {
        w for w in range(point - far, point + far + 1) if w > 0 and w % 8 == 0
    }
    low, high = min(near) // 64 * 64, -(-max(near) // 64) * 64
    return sorted(near | set(range(max(64, low), high + 1, 64)))


@torch.no_grad()
def seconds(
    sizes: list[int], make: Callable[[int], nn.Module], x: Tensor, repeats: int, least: float, wall: bool
) -> np.ndarray:
    """Seconds of one pass: a row per repetition, a column per size."""
    modules = [make(size).eval().to(x.device, x.dtype) for size in sizes]
    for _ in range(2):
        for module in modules:
            module(x)
    one = np.median([timed(partial(module, x), x.device).wall for module in modules])
    times = max(1, ceil(least / max(float(one), 1e-6)))

    def several(module: nn.Module) -> None:
        for _ in range(times):
            module(x)

    out = np.empty((repeats, len(sizes)))
    for row, order in enumerate(orders_of(len(sizes), repeats)):
        for place in order:
            took = timed(partial(several, modules[place]), x.device)
            out[row, place] = (took.wall if wall else took.work) / times
    return out


def ratios(sizes: list[int], took: np.ndarray, base: int) -> tuple[np.ndarray, np.ndarray]:
    """The time of each size over that of the nearest multiple of `base`, and over the line between those around it.

    Ratios are taken within each repetition; each is the median over repetitions. Not a number outside of all multiples.
    """
    anchors = [size for size in sizes if size % base == 0]
    times = took[:, [sizes.index(size) for size in anchors]]
    nearest = [min(range(len(anchors)), key=lambda n, size=size: abs(anchors[n] - size)) for size in sizes]
    line = np.stack([np.interp(sizes, anchors, row, left=np.nan, right=np.nan) for row in times])
    return np.median(took / times[:, nearest], axis=0), np.median(took / line, axis=0)


def largest_power(size: int, most: int) -> int:
    """The largest power of two up to `most` that divides the size."""
    return min(size & -size, most)


def verdict(sizes: list[int], over: np.ndarray, multiples: tuple[int, ...], within: float) -> tuple[list[dict], int]:
    """For each multiple the sizes that are multiples of it and of no larger one; and the smallest that is good."""
    rows = []
    for multiple in multiples[:-1]:
        values = [
            value
            for size, value in zip(sizes, over, strict=True)
            if largest_power(size, multiples[-1]) == multiple and np.isfinite(value)
        ]
        if values:
            row = {"multiple": multiple, "sizes": len(values), "median": float(np.median(values))}
            rows.append({**row, "lowest": float(min(values)), "highest": float(max(values))})
    good = multiples[-1]
    for row in reversed(rows):
        if row["median"] > 1 + within / 100:
            break
        good = row["multiple"]
    return rows, good


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--what", default="mlp,attention")
    parser.add_argument("--around", default="1536", help="numbers of neurons, with commas")
    parser.add_argument("--span", type=int, default=20, help="every width so far from the point")
    parser.add_argument("--far", type=int, default=128, help="multiples of 8 so far from it")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--heads", type=int, default=16, help="attentions of 4 to so many heads")
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--batch", type=int, help="else 16, on a GPU 128")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--dtype", default="", help="with commas; else float32, on a GPU float32,bfloat16,float16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="of a CPU; else as torch chooses")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--least", type=float, default=0.005, help="seconds that a timing lasts at least")
    parser.add_argument("--within", type=float, default=3.0, help="per cent that a good width may cost above the line")
    parser.add_argument("--wall", action="store_true", help="by the clock on the wall; for a quiet machine")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    device = torch.device(given.device)
    batch = given.batch or (16 if device.type == "cpu" else 128)
    dtypes = given.dtype or ("float32" if device.type == "cpu" else "float32,bfloat16,float16")
    points = [int(part) for part in given.around.split(",")] if "mlp" in given.what.split(",") else []
    asked = [("mlp", point, neighbours(point, given.span, given.far), 64) for point in points]
    if "attention" in given.what.split(","):
        asked.append(("attention", given.heads, list(range(4, given.heads + 1)), 4))
    makers = {"mlp": partial(Mlp, given.hidden), "attention": partial(Attention, given.hidden, given.width)}
    about = {"device": device_text(device), "torch": str(torch.__version__), "batch": batch, "length": given.length}
    about |= {"hidden": given.hidden, "repeats": given.repeats, "clock": "wall" if given.wall else "work"}
    found = []
    for dtype in dtypes.split(","):
        torch.manual_seed(0)
        x = torch.randn(batch, given.length, given.hidden, device=device, dtype=getattr(torch, dtype))
        for what, point, sizes, base in asked:
            start = time.perf_counter()
            took = seconds(sizes, makers[what], x, given.repeats, given.least, given.wall)
            to_nearest, over_line = ratios(sizes, took, base)
            rows, good = verdict(sizes, over_line, MULTIPLES[what], given.within)
            each = [
                {"size": size, "seconds": float(t), "to nearest": float(a), "over line": float(b)}
                for size, t, a, b in zip(sizes, np.median(took, axis=0), to_nearest, over_line, strict=True)
            ]
            found.append({"what": what, "around": point, "dtype": dtype, "good": good, "classes": rows, "sizes": each})
            if not given.json:
                tell(found[-1], about, base, given.within, time.perf_counter() - start)
    if given.json:
        print(json.dumps({**about, "found": found}, indent=2))


def tell(found: dict, about: dict, base: int, within: float, took: float) -> None:
    """Print what came out for one kind of site, point and dtype."""
    unit = "neurons" if found["what"] == "mlp" else "heads"
    print(
        f"{found['what']}, {found['dtype']}, hidden {about['hidden']}, batch {about['batch']}, length {about['length']}, "
        f"{about['device']}, torch {about['torch']}, {about['repeats']} repetitions in {took:.0f} s"
    )
    print(f"{unit:>8}  {'ms':>8}  over nearest {base:<3} over line")
    for row in found["sizes"]:
        print(f"{row['size']:>8}  {1000 * row['seconds']:>8.3f}  {row['to nearest']:>16.3f} {row['over line']:>9.3f}")
    print("  multiple of and no more  sizes  over line: median, lowest, highest")
    for row in found["classes"]:
        values = f"{row['median']:.3f}, {row['lowest']:.3f}, {row['highest']:.3f}"
        print(f"{row['multiple']:>25}  {row['sizes']:>5}  {values:>34}")
    print(f"the smallest multiple within {within:g} % of the line: {found['good']} ({unit})\n", flush=True)


if __name__ == "__main__":
    main()
