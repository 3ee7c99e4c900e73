"""What `prune` says when it is done, and what it says instead of cutting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data.example_sets import Sets, used_text
from ..options import CommonFlags, out
from ..text import how_to_load

if TYPE_CHECKING:
    from ...documents.prune import PruneDocument
    from ...exports.several import Exports
    from ...pruning.choices import Choice
    from ...runs import Run

SEVERAL = (
    "plans are a step of the FLOPs (or of the budget) apart, not of the units: heads and neurons cost different amounts"
)


def show_plan(
    model: Any, choice: Choice, sets: Sets, flags: CommonFlags, run: Run, rows: list[Any], about: dict[str, Any]
) -> None:
    """Print a plan that is not carried out."""
    from ...documents.reading import write
    from ...evaluation.evaluator import evaluate
    from ...model.cutting.effects import cut_effects
    from ...plans import Plan
    from ...pruning.plan_tests import known_before
    from ...reporting.model_card import step_sentences
    from ..text import guarantee_text

    folder, suspicion = run.folder, ""
    if choice.selected is not None:  # the whole model is measured here, never the plan
        suspicion = known_before(choice.selected, evaluate(model, sets.report, run=run), flags.seed)
    listed = cut_effects(model, choice.plan, specs=rows)
    removed, had = sum(p.parameters for p in listed), sum(p.numel() for p in model.parameters())
    if flags.as_json:
        held = None if choice.guarantee is None else choice.guarantee.to_json()
        summary = {
            "plan": choice.plan.to_json(),
            "guarantee": held,
            "parameters": [had, had - removed],
            **write(choice.told()),
        }
        summary |= {"tries": about["tries"], "suspicion": suspicion or None, "sets_note": about["sets_note"]}
        print(json.dumps({**summary, "sites": [p._asdict() for p in listed], "run": str(folder)}, indent=2))
        return
    lines = [*_warning(suspicion), *used_text(sets), ""]
    if choice.guarantee is not None:
        lines += [guarantee_text(choice.guarantee), *[choice.tried] * bool(choice.tried), ""]
    lines += [f"{price.name}: {price.units - price.left} of {price.units} go" for price in listed if price.units > 128]
    few = Plan(
        frozenset(unit for price in listed if price.units <= 128 for unit in choice.plan if unit.site == price.name)
    )
    lines += [f"remove: {few}"] * bool(few)
    units = choice.units.replace(",", " and ")
    lines += [
        f"{len(choice.plan)} of {choice.of} {units}, {had:,} -> {had - removed:,} parameters ({-removed / had:+.1%})"
    ]
    lines += step_sentences(choice.told())
    lines += [f"left alone: {reason}" for _, reason in choice.left_alone[:3]]
    lines += [f"nothing was cut; the plan is in {folder / 'plan.json'}: edit it, and give it back with --plan"]
    out.print("\n".join(lines), soft_wrap=True, markup=False)


def _warning(suspicion: str | None) -> list[str]:
    return [f"warning: {suspicion}"] if suspicion else []


def show(
    document: PruneDocument,
    run: Path,
    choice: Choice,
    sets: Sets,
    flags: CommonFlags,
    output: Path,
    no_page: list[str] | None,
    exports: Exports | None = None,
) -> None:
    """Print what came out: before and after, and where it lies."""
    from ...reporting.model_card import proved
    from ..text import guarantee_text, pruned_text

    page = output / "report.html"
    if flags.as_json:
        where = {"run": str(run), "report": str(page) if page.is_file() else None}
        print(json.dumps({**document.to_json(), **where, **({} if exports is None else exports.to_json())}, indent=2))
        return
    lines = [*_warning(document.suspicion), *used_text(sets), ""]
    if choice.guarantee is not None:
        lines += [guarantee_text(choice.guarantee), *[SEVERAL] * ("," in choice.units)]
        lines += [*[choice.tried] * bool(choice.tried), ""]
    lines += [pruned_text(document), ""]
    lines += [f"left alone: {reason}" for _, reason in choice.left_alone[:3]]
    lines += [f"smaller model: {output} · loaded again, it {proved(document)}; all numbers are measured on it"]
    lines += [how_to_load(output)]
    lines += [] if exports is None else [str(one) for one in exports.written]
    if no_page:
        lines.append(f"no report: {no_page[0]}")
    elif no_page is not None:
        lines.append(f"report: {page}")
    lines.append(f"run folder: {run}")
    out.print("\n".join(lines), soft_wrap=True, markup=False)
