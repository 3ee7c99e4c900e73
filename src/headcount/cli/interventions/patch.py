"""The command `patch`: activations of clean prompts in corrupted ones, or the other way round, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..cluster.flags import SharedFlags
from ..measure import Draws, Memory, Model, Test, keep
from ..options import load_model, make_task, names_examples, quieten, specs_of
from ..run_folder import running
from ..tables import columns_text

if TYPE_CHECKING:
    from ...documents.interventions.patch import PatchDocument, PatchedUnit

TOP = 12  # patches that a terminal shows


def patch(
    model: Model,
    flags: SharedFlags,
    units: Annotated[
        str,
        typer.Option(
            "--units", help="heads, neurons, attentions, mlps, layers, kv-groups; residual: layers x positions."
        ),
    ] = "heads",
    direction: Annotated[
        str,
        typer.Option("--direction", help="denoising (clean into corrupted prompts) or noising (corrupted into clean)."),
    ] = "denoising",
    at: Annotated[
        str | None,
        typer.Option("--at", help="Positions: last, differing, 5, -2, 2:7, -3:.", show_default="all"),
    ] = None,
    block: Annotated[
        int | None, typer.Option("--block", help="Neurons patched together.", show_default="a twelfth of the MLP")
    ] = None,
    test: Test = "randomization",
    resamples: Draws = None,
    memory: Memory = 2.0,
) -> None:
    """Activation patching: which activations carry what clean and corrupted prompts differ in.

    Needs a contrast task. Every value is an exact pass; values are shown on the scale from corrupted (0) to clean (1).

    Examples:

        headcount patch my-model --task contrast:ioi --limit 100

        headcount patch my-model --task contrast:ioi --units residual

        headcount patch my-model --task contrast --data pairs.jsonl --direction noising --at last
    """
    quieten()
    if not names_examples(flags):
        raise typer.BadParameter("say which prompts: --task contrast --data FILE, or --task contrast:ioi.")
    subject = load_model(model, flags)
    task = make_task(model, subject, flags)
    from ...interventions import patching

    options = {"units": units, "direction": direction, "at": at, "block": block}
    with running("patch", model, subject, flags, {"data": task}, **options) as run:
        found = patching.patch(
            subject,
            task,
            units,
            direction=direction,
            at=at,
            block=block,
            memory=int(memory * 2**30),
            run=run,
            specs=specs_of(flags.spec),
        )
        run.conclude()
        document = found.document(test, resamples=resamples, seed=flags.seed)
        keep(run, document, flags, patch_text(document))


def patch_text(document: PatchDocument) -> str:
    """The metric on both prompts, and the patches that lead furthest from no patch, with their intervals."""
    base = 0.0 if document.direction == "denoising" else 1.0
    ordered = sorted(document.patches, key=lambda one: -abs(one.normalised - base))
    clean, corrupted = document.clean, document.corrupted
    lines = [
        f"{clean.metric}: {clean.value:.3f} [{clean.low:.3f}, {clean.high:.3f}] on clean prompts, "
        f"{corrupted.value:.3f} [{corrupted.low:.3f}, {corrupted.high:.3f}] on corrupted ones (n={clean.n})",
        f"{document.direction}, {document.units}: from corrupted (0) to clean (1); {base:.0f} is no patch",
        "",
    ]
    rows = [["patched", "normalised", "95 % interval", f"change of {clean.metric}", "p (Holm)"]]
    rows += [_row(one) for one in ordered[:TOP]]
    lines += columns_text(rows, "<>><>")
    found = sum((one.comparison.p_holm or 0) <= 0.05 for one in document.patches)
    first = document.patches[0].comparison
    lines += ["", f"{found} of {len(document.patches)} patches significant at 0.05 (Holm; {first.tested})"]
    if document.patches[0].normalised_low is None:
        lines.append(
            "these examples do not show that clean and corrupted prompts differ: the scale from 0 to 1 says nothing"
        )
    return "\n".join(lines)


def _row(one: PatchedUnit) -> list[str]:
    low, high = one.normalised_low, one.normalised_high
    span = "" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"
    p = one.comparison.p if one.comparison.p_holm is None else one.comparison.p_holm
    return [one.patched, f"{one.normalised:.2f}", span, one.comparison.span, f"{p:.2g}"]
