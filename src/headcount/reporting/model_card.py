"""The model card of a smaller checkpoint: what was removed, on which data, with which guarantee. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..documents.bench import Speed, shape_text, speed_text
from ..documents.prune import BUDGETS, BrakeDocument, Budget, Candidate, PruneDocument, RefitDocument, Steps
from ..documents.results import ResultDocument
from ..formatting import (
    Column,
    Table,
    bytes_text,
    counted,
    digits_for,
    flops_text,
    markdown_text,
    seconds_text,
    with_commas,
)
from ..plans import ranges
from ..stats.guarantee import TEST_NAMES, cap_in_words, least_in_words, unit_of
from .model_warnings import of_prune

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*")
PIPELINES = {
    "classification": "text-classification",
    "regression": "text-classification",
    "translation": "translation",
    "language-modelling": "text-generation",
    "multiple-choice": "text-generation",
    "last-word": "text-generation",
    "lm-eval": "text-generation",
    "masked-language-modelling": "fill-mask",
    "image-classification": "image-classification",
}
STOCK = "A stock `from_pretrained` loads it as well."
NOT_STOCK = (
    "A stock config cannot say what is left of each layer; `from_pretrained` alone refuses this folder instead of loading it "
    "wrongly."
)


def card(document: PruneDocument) -> str:
    """The README.md of a checkpoint, from what `prune` found (its `prune.json`); the hub renders it."""
    parts = [
        _front(document),
        _title(document),
        markdown_text(document.sentence),
        *(f"> **Warning.** {markdown_text(warning)}" for warning in of_prune(document)),
        _numbers(document),
        _usage(document),
        _removed(document),
    ]
    parts += [_promise(document), _data(document), _again(document)]
    return "\n\n".join(part for part in parts if part) + "\n"


def amount_text(quantity: str, amount: float) -> str:
    """What a budget counts: FLOPs, parameters, bytes of cache per token, or seconds."""
    if quantity == "kv-cache":
        return f"{with_commas(amount)} bytes per token"
    if quantity == "memory":
        return bytes_text(amount)
    if quantity == "params":
        return f"{with_commas(amount)} parameters"
    return flops_text(amount) if quantity == "flops" else seconds_text(amount)


def rate_text(row: Speed) -> str:
    """Examples per second, with a digit after the point where there are few."""
    rate = row.examples_per_second
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def asked_text(budget: Budget) -> str:
    """What a budget was asked for: "50% of the FLOPs", "2 times as fast"."""
    target = budget.asked
    if budget.what == "time" and not isinstance(target, str):
        return f"{target:g} times as fast"
    return f"{target if isinstance(target, str) else f'{target:g}'} of the {BUDGETS.get(budget.what, budget.what)}"


def counts(document: PruneDocument) -> list[tuple[str, int, int]]:
    """Units before and after by what they are; all of them together where `prune` chose among one kind."""
    kinds = [noun.strip() for noun in document.units.split(",")]
    if len(kinds) < 2 or not document.structure:
        return [(document.units, document.of, document.of - document.removed)]
    out = []
    for noun in kinds:
        if noun == "layers":
            pairs = [(stack.units, stack.units - len(stack.gone)) for stack in document.layers]
        else:
            pairs = [(site.units, site.left) for site in document.structure if site.kind == noun.removesuffix("s")]
        out.append((noun, sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)))
    return out


def refitted_text(refitted: RefitDocument) -> str:
    """What fitting columns anew came to, in a sentence."""
    fell = ""
    if shares := [site.refitted / site.error for site in refitted.used if site.error]:
        fell = f"; their squared distance from the whole model fell by {1 - sum(shares) / len(shares):.0%} on average"
    what = "columns and biases" if refitted.bias else "columns"
    return (
        f"Compensated: {what} of output matrices were fitted anew by least squares on "
        f"{counted(refitted.examples, 'example')} ({refitted.positions:,} positions), without training: "
        f"{len(refitted.used)} of {counted(len(refitted.sites), 'site')}{fell}."
    )


def step_sentences(steps: Steps) -> list[str]:
    """What was done beyond choosing and cutting, a sentence for each: the budget, exchanges, tuning."""
    out = []
    if budget := steps.budget:
        amounts = (budget.whole, budget.allowed, budget.predicted)
        whole_one, allowed, predicted = (amount_text(budget.what, amount) for amount in amounts)
        is_measured = budget.measured is not None and not budget.note.startswith("reckoned")
        end = f", {amount_text(budget.what, budget.measured or 0.0)} measured" if is_measured else ""
        how = f" ({budget.note})" if budget.note else ""
        out.append(f"Budget: {asked_text(budget)}, of {whole_one}: {allowed} allowed, {predicted} predicted{end}{how}.")
    if steps.groups:
        out.append(steps.groups)
    if steps.candidates:
        out.append(candidates_text(steps.candidates))
    if steps.brake:
        out.append(brake_text(steps.brake))
    if steps.rearranged:
        out.append(
            f"Rearranged: {counted(steps.rearranged, 'unit')} changed places with others of the same site, because units "
            "that go together cost other than the sum of each alone."
        )
    if steps.compensated:
        out.append(
            f"Compensated: what removed units write on average over {counted(steps.compensated, 'example')} is in the biases of "
            "the matrices that they wrote with."
        )
    if steps.not_tuned:
        out.append(steps.not_tuned)
    if refitted := steps.refitted:
        out.append(refitted_text(refitted))
    if tuned := steps.tuned:
        fell = ""
        if tuned.used:
            shares = [site.tuned / site.error for site in tuned.used if site.error]
            fell = (
                f"; their squared distance from the whole model fell by {1 - sum(shares) / len(shares):.0%} on average"
            )
        out.append(
            f"Tuned by least squares on {counted(tuned.examples, 'example')}, without training: {len(tuned.used)} of "
            f"{counted(len(tuned.sites), 'site')}{fell}."
        )
    return out


def brake_text(brake: BrakeDocument) -> str:
    """How far a metric fell on scoring examples, and how far it might have."""
    unit = unit_of(brake.metric)
    fell = f"{abs(brake.fell):.2g} {unit}"
    change = f"worse by {fell}" if brake.fell > 0 else f"better by {fell}" if brake.fell < 0 else "no worse"
    return (
        f"Brake: on {brake.n} scoring examples {brake.metric} went from {brake.whole:.4g} to {brake.value:.4g}, {change}; "
        f"nothing would have been written from {brake.allowed:.3g} {unit} on."
    )


def candidates_text(candidates: Sequence[Candidate]) -> str:
    """Which of the plans for a budget was taken, and what the others were worth."""
    chosen = next((candidate for candidate in candidates if candidate.chosen), candidates[0])
    finalists = [candidate for candidate in candidates if candidate.n == chosen.n]
    text = f"Chosen of {counted(len(candidates), 'plan')} that keep the budget, by {chosen}"
    text += f": {chosen.value:.4g} on {chosen.n} scoring examples, where they were compared"
    if len(finalists) > 1:
        text += f" (of those measured on as many, the last had {finalists[-1].value:.4g})"
    others = [candidate for candidate in candidates if candidate.n < chosen.n]
    if others:
        text += f"; in a first round on {others[-1].n} the worst had {others[-1].value:.4g}, by {others[-1]}"
    return f"{text}."


def recovery_sentences(document: PruneDocument) -> list[str]:
    """How the cut model was trained once more, and what that gave, in a sentence; none where it was not."""
    recovered = document.recovered
    if recovered is None:
        return []
    how = "distilled from the whole model" if recovered.distilled else "trained on the labels"
    how_long = ""
    if recovered.epochs is not None and recovered.examples is not None and recovered.steps is not None:
        how_long = (
            f" in {counted(recovered.epochs, 'epoch')} over {with_commas(recovered.examples)} examples "
            f"({counted(recovered.steps, 'step')})"
        )
    metric, after = document.before.metric, document.after.value
    return [f"Recovered{how_long}, {how}: {metric} was {recovered.before:.4f} as cut, and is {after:.4f}."]


def _front(document: PruneDocument) -> str:
    """The front matter, which the hub reads."""
    from huggingface_hub import ModelCardData

    fields: dict[str, Any] = dict(document.base_card or {})
    if _HUB_NAME.fullmatch(document.model) and not Path(document.model).exists():
        fields["base_model"] = document.model
    library = "transformers" if document.stock else "headcount"
    pipeline = PIPELINES.get(document.task or "")
    data = ModelCardData(library_name=library, pipeline_tag=pipeline, tags=["headcount", "pruned"], **fields)
    return f"---\n{data.to_yaml()}\n---"


def _title(document: PruneDocument) -> str:
    return f"# {markdown_text(_last(document.model))}, smaller"


def _numbers(document: PruneDocument) -> str:
    before, after = document.before, document.after
    rows = [
        (f"{before.metric} (n={before.n})", _value(before), _value(after)),
        *((noun, with_commas(had), with_commas(has)) for noun, had, has in counts(document)),
        ("parameters", f"{document.parameters[0]:,}", f"{document.parameters[1]:,}"),
        ("weights on disk", bytes_text(document.bytes[0]), bytes_text(document.bytes[1])),
    ]
    if document.flops is not None:
        rows.append(("FLOPs of one example", *(flops_text(count) for count in document.flops)))
    if document.kv_cache is not None:
        rows.append(("KV cache of one token", *(bytes_text(size) for size in document.kv_cache)))
    speed = document.speed
    notes = [f"Difference: {document.comparison}."]
    if speed:
        first, last = speed.rows[0], speed.rows[-1]
        rates = [rate_text(row) for row in (first, last)]
        at = "" if last.length is None else f", length {last.length}"
        if not last.why_not_timed:
            rows.append((f"examples per second (batch {last.batch}{at})", *rates))
        notes.append(
            f"Speed at {shape_text(last.batch, last.length)} ({speed.device}, {speed.dtype}): {speed_text(last)}."
        )
    more = "".join(
        f"\n\n{markdown_text(line)}" for line in [*step_sentences(document.steps), *recovery_sentences(document)]
    )
    return _table(("", "before", "after"), rows) + "\n\n" + markdown_text(" ".join(notes)) + more


def _usage(document: PruneDocument) -> str:
    folder = json.dumps(document.output)
    return (
        "## Use\n\n"
        f"```python\nimport headcount\n\nmodel = headcount.load({folder})  # {_code(document.class_name)}\n```\n\n"
        f"It was loaded again from this folder, and {proved(document)}. {STOCK if document.stock else NOT_STOCK}"
    )


def proved(document: PruneDocument) -> str:
    """What was proved about the checkpoint on a batch of examples, in words."""
    if document.recovered:
        return "computes what the trained model computes; before the training, the cut was proved equal to masking the units"
    if document.steps.compensated:
        return "computes what the whole model computes with the same units masked to their means"
    if document.steps.refitted:
        return "computes what the whole model computes with the same units masked and the refitted columns in place"
    if document.steps.tuned:
        return "computes what the whole model computes with the same units masked and the others scaled as tuned"
    return "computes what the whole model computes with the same units masked"


def _removed(document: PruneDocument) -> str:
    why = document.plan.why
    removed_ranges = {site: ranges(indices) for site, indices in document.plan.by_site().items()}
    rows = []
    for s in document.sites:
        removed_units = shortened(removed_ranges.get(s.name, ""))
        rows.append((s.name, s.units, s.left, removed_units, s.manner, f"-{s.parameters:,}"))
    head = ("site", "units", "left", "removed", "manner", "parameters")
    about = f"{why[0].upper()}{why[1:]}." if why else ""
    note = "".join(f"\n\nLeft alone: {markdown_text(refusal.reason)}" for refusal in document.left_alone[:3])
    return f"## What was removed\n\n{markdown_text(about)}\n\n{_table(head, rows)}{note}"


def shortened(indices: str) -> str:
    """Many indices with the end left out; plan.json has all of them."""
    return indices if len(indices) <= 120 else indices[:117].rpartition(",")[0] + ", …"


def _promise(document: PruneDocument) -> str:
    held = document.guarantee
    if held is None:
        return ""
    digits = digits_for([step.bound for step in held.steps], more=1)
    rows = [
        (
            step.removed,
            f"{step.value:.4f}",
            f"{step.damage:+.{digits}f}",
            f"{step.bound:.{digits}f}",
            f"{step.p:.2g}",
            "yes" if step.shown else "no",
        )
        for step in held.steps
    ]
    level = held.alpha / held.tries
    head = ("removed", held.metric, "lost", "at most, for this plan alone", "p", "shown")
    groups, least = held.groups, held.least
    examples = f"{held.n} examples" + ("" if groups is None else f" in {groups} groups")
    capped = cap_in_words(held.cap, held.metric, groups)
    how = TEST_NAMES[held.test].lstrip(", ")
    sure = "about" if held.test == "bootstrap" else "at most"
    text = (
        f"Plans were tested from the mildest on against losing {held.drop:g} or more ({unit_of(held.metric)}){capped}, "
        f"each at level {level:g}, on {examples} that had no part in the scores, and the first that could not be "
        f"shown ended it ({how}). The plan kept is the last one shown. Repeated on fresh examples like these, a wrong promise "
        f"would come out in {sure} {100 * held.alpha:g} % of the repetitions."
    )
    text += f" This is {document.steps.tried}." if document.steps.tried else ""
    if least is not None:
        text += f" Of any plan, {least_in_words(held.n, least, held.metric)}."
    return f"## The guarantee\n\n{markdown_text(text)}\n\n{_table(head, rows)}"


def _data(document: PruneDocument) -> str:
    rows = [(s.data, s.n, s.what) for s in document.sets]
    parts = [_table(("data", "examples", "used"), rows)] if rows else []
    if document.sets_note:
        parts.append(f"Note: {markdown_text(document.sets_note)}.")
    return "\n\n".join(["## Data", *parts]) if parts else ""


def _again(document: PruneDocument) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in document.versions.items())
    command = f"```\n{_code(document.command)}\n```\n\n" if document.command else ""
    signature = f"`{_code(document.signature).replace('`', chr(39))}`"
    return f"## Made by\n\n{command}Signature: {signature}\n\nVersions: {markdown_text(versions)}. The plan is in `plan.json`."


def _value(result: ResultDocument) -> str:
    return f"{result.value:.4f} [{result.low:.4f}, {result.high:.4f}]"


def _last(name: str) -> str:
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1] or name


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    columns = tuple(Column(title) for title in head)
    return Table("", "", columns, tuple(tuple(row) for row in rows)).markdown().rstrip()


def _code(text: str) -> str:
    """A text that cannot end the block of code it stands in."""
    return text.replace("```", "'''").replace("\n", " ")
