"""Try headcount on every model type of the installed transformers and write what happened to docs/coverage.md.

    python tools/model_types.py                  # all types, about ten minutes on two cores
    python tools/model_types.py bert t5 swin     # some types, printed

Each type is built as a tiny random model (tools/tiny.py). A head counts as *live* if masking it changes the output, a
cut as *exact* if the cut model's output equals the masked model's to 1e-5 (relative to the largest output).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]


@dataclass
class Row:
    """What happened to one model type."""

    type: str
    model: str = ""
    attentions: int = 0
    heads: str = ""  # "cut", "cut (padded)", "refused", "not found", "wrong", "not built", "no attention"
    neurons: str = ""
    layers: str = ""
    live: bool = False
    note: str = ""
    seconds: float = 0.0


def examine(model_type: str) -> Row:
    """Build one type and try everything on it; never raises."""
    import torch
    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    import tiny

    row, start = Row(model_type), time.perf_counter()
    try:
        made = tiny.build(model_type)
    except tiny.CannotBuild as error:
        row.heads, row.note = "not built", str(error)
        return row
    row.model = type(made.model).__name__
    try:
        _examine(row, made.model, made.inputs, tiny.output)
    except Exception as error:  # an unexpected error is a finding, not the end of the run
        row.heads, row.note = "wrong", f"{type(error).__name__}: {str(error)[:200]}"
    row.seconds = round(time.perf_counter() - start, 2)
    return row


def _examine(row: Row, model, inputs, output) -> None:
    from headcount.errors import NotFound
    from headcount.model.cutting.rules import is_padded
    from headcount.model.discovery import find
    from headcount.plans import Plan

    base = output(model, inputs)
    try:
        anatomy = find(model)
    except NotFound as error:
        row.heads = "not found" if _has_attention(model) else "no attention"
        row.note = str(error)[:160] if row.heads == "not found" else ""
        return
    row.attentions = len(anatomy.heads)
    if anatomy.unknown:
        row.note = f"also {len(anatomy.unknown)} not recognised, e.g. {anatomy.unknown[0]}"
    used = _sites_that_run(model, inputs, output, anatomy.heads)
    dead = [s.name for s in used if not _live(model, inputs, output, base, s) and _used(model, inputs, output, base, s)]
    row.live = not dead and bool(used)
    if dead:
        row.note = f"masking {dead[0]} changes nothing"
    elif not used:
        row.note = "no attention ran on these inputs"
    heads = {s.name: [0] if n % 2 else [1, len(s) - 1] if len(s) > 2 else [1] for n, s in enumerate(used) if len(s) > 1}
    row.heads, why = _try(model, inputs, output, Plan.removing(heads))
    if row.heads == "cut" and used:
        empty, more = _try(model, inputs, output, anatomy.plan(f"{used[-1].name}:*"))
        row.heads, why = (row.heads, why) if empty == "cut" else (empty, more)
    if row.heads == "refused":
        single = [_try(model, inputs, output, Plan.removing({name: chosen})) for name, chosen in heads.items()]
        if any(status == "cut" for status, _ in single):
            row.heads = "cut in part"
    if row.heads == "cut" and any(is_padded(site) for site in used):
        row.heads = "cut (padded)"
    row.note = why or row.note
    neurons = {site.name: range(0, len(site), 3) for site in _sites_that_run(model, inputs, output, anatomy.neurons)}
    row.neurons, why = _try(model, inputs, output, Plan.removing(neurons)) if neurons else ("none", "")
    row.note = row.note or (f"neurons: {why}" if why else "")
    stacks = [stack for stack in anatomy.stacks if len(stack) > 1]
    tried = [_try(model, inputs, output, Plan.of(f"{stack.name}:{len(stack) - 1}")) for stack in stacks]
    row.layers = next((status for status, _ in tried if status != "cut"), "cut" if tried else "none")
    row.note = row.note or next((f"layers: {why}" for _, why in tried if why), "")


def _try(model, inputs, output, plan) -> tuple[str, str]:
    """("cut" | "refused" | "wrong", reason): cut a copy and compare it with the masked model."""
    import torch

    from headcount.errors import Refused
    from headcount.model.cutting.effects import parameters_removed
    from headcount.model.cutting.surgery import cut
    from headcount.model.gates import masked

    try:
        with masked(model, plan):
            want = output(model, inputs)
        other = copy.deepcopy(model)
        predicted = parameters_removed(other, plan)
        before = sum(p.numel() for p in other.parameters())
        cut(other, plan)
        got = output(other, inputs)
    except Refused as error:
        return "refused", str(error).partition(": ")[2].removesuffix("; it can still be masked.")
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {str(error)[:160]}"
    gone = before - sum(p.numel() for p in other.parameters())
    if gone != predicted:
        return "wrong", f"{gone} parameters removed, {predicted} predicted"
    limit = 1e-5 * max(1.0, float(want.abs().max()))
    if want.shape != got.shape or not torch.allclose(want, got, rtol=0, atol=limit):
        return "wrong", "the cut model differs from the masked one"
    return "cut", ""


def _sites_that_run(model, inputs, output, sites) -> list:
    """The sites that these inputs reach: a tower without input, or an expert without a token, has nothing to show."""
    seen: set[int] = set()
    handles = []
    for site in sites:
        module = (
            site.writer if site.calls_writer and "MultiheadAttention" not in type(site.module).__name__ else site.module
        )
        handles.append(module.register_forward_pre_hook(partial(_note, seen, id(site))))
    try:
        output(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return [site for site in sites if id(site) in seen]


def _note(seen: set[int], key: int, *_: object) -> None:
    seen.add(key)


def _live(model, inputs, output, base, site) -> bool:
    import torch

    from headcount.model.gates import masked

    for unit in site.units:
        with masked(model, [unit]):
            if torch.equal(output(model, inputs), base):
                return False
    return True


def _used(model, inputs, output, base, site) -> bool:
    """Whether anything of what the attention returns reaches the output (a pooling head may run for nothing)."""
    import torch

    def double(_, __, result):
        return result * 2 if isinstance(result, torch.Tensor) else type(result)((result[0] * 2, *result[1:]))

    handle = site.module.register_forward_hook(double)
    try:
        return not torch.equal(output(model, inputs), base)
    except (TypeError, IndexError, KeyError):
        return True
    finally:
        handle.remove()


def _has_attention(model) -> bool:
    """Whether any module is called an attention; convolutional, recurrent and state-space models have none."""
    return any("attention" in type(m).__name__.lower() or "attn" in type(m).__name__.lower() for m in model.modules())


def totals(rows: list[Row]) -> dict[str, object]:
    """The counts that the goals are about."""
    built = [row for row in rows if row.heads != "not built"]
    having = [row for row in built if row.heads != "no attention"]
    found = [row for row in having if row.heads != "not found"]
    exact = [row for row in having if row.heads.startswith("cut") and row.heads != "cut in part"]
    return {
        "model types": len(rows),
        "built here": len(built),
        "with attention": len(having),
        "found and live": sum(row.live for row in found),
        "cut exactly": len(exact),
        "of these padded": sum(row.heads == "cut (padded)" for row in exact),
        "cut in part": sum(row.heads == "cut in part" for row in having),
        "refused with a reason": sum(row.heads == "refused" for row in having),
        "not found": sum(row.heads == "not found" for row in having),
        "wrong": sum("wrong" in (row.heads, row.neurons, row.layers) for row in having),
    }


def page(rows: list[Row]) -> str:
    """docs/coverage.md as text."""
    import torch
    import transformers

    lines = [
        "# Coverage: every model type of transformers",
        "",
        f"Made by `python tools/model_types.py` with transformers {transformers.__version__} and torch {torch.__version__}.",
        "Each type is a tiny random model from its config. *Live*: masking any head that runs changes the output.",
        "*cut*: the cut model equals the masked one to 1e-5, with an uneven set of heads and with a whole attention gone;",
        "*cut (padded)*: the same, where at least one attention keeps its original number of heads inside (see",
        "`docs/design-notes.md`); *cut in part*: some attentions of the model can be cut, others are refused.",
        "",
        "| | types |",
        "|---|---|",
    ]
    summary = totals(rows)
    lines += [f"| {name} | {count} |" for name, count in summary.items()]
    having, exact = int(str(summary["with attention"])), int(str(summary["cut exactly"]))
    lines += [
        "",
        f"Of the types with attention that could be built, {int(str(summary['found and live'])) / having:.1%} are",
    ]
    lines += [f"found and live, and {exact / having:.1%} can be cut exactly.", ""]
    lines += [
        "| type | model | attentions | live | heads | neurons | layers | note |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        note = row.note.replace("|", "/").replace("\n", " ").replace("<", "&lt;")
        live = "yes" if row.live else "" if row.heads in ("not built", "no attention") else "no"
        cells = (row.type, row.model, row.attentions or "", live, row.heads, row.neurons, row.layers, note)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Examine the types named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("types", nargs="*", help="model types; none: all, written to docs/coverage.md")
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tiny

    types = arguments.types or tiny.model_types()
    rows = []
    with get_context("spawn").Pool(2, maxtasksperchild=60) as pool:  # fresh processes now and then: caches grow
        for row in pool.imap(examine, types):
            rows.append(row)
            print(
                f"{row.type:<32}{row.heads:<14}{row.neurons:<9}{row.layers:<9}{row.seconds:>6}  {row.note[:110]}",
                flush=True,
            )
    for name, count in totals(rows).items():
        print(f"{name:<24}{count}")
    print(Counter(row.heads for row in rows))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))
    if not arguments.types:
        (HERE.parent / "docs" / "coverage.md").write_text(page(rows))


if __name__ == "__main__":
    main()
