"""The command `circuit`: the heads and MLPs that a behaviour needs, and how faithful they are without the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...parsing import share_in, words_in
from ..measure import Model, keep
from ..options import (
    CommonFlags,
    SelectLimit,
    Steps,
    load_model,
    make_task,
    names_examples,
    other_task,
    quieten,
    specs_of,
)
from ..run_folder import running
from ..tables import columns_text

if TYPE_CHECKING:
    from ...documents.discovery.circuit import CircuitDocument, CircuitEdge, EdgeCircuit
    from ...stats.faithfulness import Estimate

TOP = 12  # edges that a terminal shows
NAMED = 24  # units


def circuit(
    model: Model,
    flags: CommonFlags,
    by: Annotated[str, typer.Option("--by", help="eap-ig or attribution-patching.")] = "eap-ig",
    ranked: Annotated[
        str,
        typer.Option(
            "--ranked",
            help="signed (what helps comes first), absolute (whatever has an effect), edges (by a unit's strongest edge).",
        ),
    ] = "signed",
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            help="Shares of heads and MLPs that are kept, with commas.",
            show_default="0,1%,2%,5%,10%,20%,30%,50%,70%,100%",
        ),
    ] = None,
    reach: Annotated[
        float, typer.Option("--reach", help="The smallest circuit with this faithfulness, where it is found, is taken.")
    ] = 0.8,
    steps: Steps = None,
    edges: Annotated[
        int | None,
        typer.Option("--edges", help="How many edges are listed, the strongest; 0 for none.", show_default="100"),
    ] = None,
    edge_sizes: Annotated[
        str | None,
        typer.Option(
            "--edge-sizes",
            help="Shares of edges that are kept, in circuits of edges; none leaves these out.",
            show_default="0,0.1%,0.2%,0.5%,1%,2%,5%,10%,20%,50%,100%",
        ),
    ] = None,
    check: Annotated[
        int, typer.Option("--check", metavar="N", help="Units that are patched exactly to compare; 0 for none.")
    ] = 24,
    random_seeds: Annotated[int, typer.Option("--random-seeds", help="Random circuits of each size.")] = 3,
    select_data: Annotated[
        str | None, typer.Option("--select-data", help="Data to find the circuit on.", show_default="half of --data")
    ] = None,
    select_limit: SelectLimit = None,
) -> None:
    """Find a circuit: the heads and MLPs that are enough for what clean and corrupted prompts differ in.

    Units are ranked by attribution on one half of the examples; faithfulness is reported on the other half: the share of the
    metric that is left with all other units as on the corrupted prompts, with CPR and CMD, the areas under and around that curve.
    The same is measured for circuits of edges, from what writes to what reads.

    Examples:

        headcount circuit my-model --task contrast:ioi --limit 200

        headcount circuit my-model --task contrast:ioi --ranked absolute --reach 0.9 --run runs/circuit

        headcount circuit my-model --task contrast --data pairs.jsonl --by attribution-patching --edges 0
    """
    quieten()
    if not names_examples(flags):
        raise typer.BadParameter("say which prompts: --task contrast --data FILE, or --task contrast:ioi.")
    shares = _shares("--sizes", sizes)
    edge_shares = [] if edge_sizes == "none" else _shares("--edge-sizes", edge_sizes)
    subject = load_model(model, flags)
    task = make_task(model, subject, flags)
    other = None if select_data is None else other_task(model, subject, flags, select_data, select_limit)
    from ...circuit_discovery import pipeline

    options = {
        "by": by,
        "ranked": ranked,
        "sizes": sizes,
        "reach": reach,
        "steps": steps,
        "edges": edges,
        "edge_sizes": edge_sizes,
        "check": check,
    }
    tasks = {"data": task} if other is None else {"data": task, "select": other}
    with running("circuit", model, subject, flags, tasks, random_seeds=random_seeds, **options) as run:
        document = pipeline.circuit(
            subject,
            task,
            by,
            find_on=other,
            ranked=ranked,
            steps=steps,
            shares=pipeline.SHARES if shares is None else shares,
            edge_shares=pipeline.EDGE_SHARES if edge_shares is None else edge_shares,
            reach=reach,
            edges=edges,
            check=check,
            random_seeds=random_seeds,
            seed=flags.seed,
            run=run,
            specs=specs_of(flags.spec),
        )
        run.write_json("plan", document.plan.to_json(), replace=True)
        keep(run, document, flags, circuit_text(document))


def _shares(flag: str, text: str | None) -> list[float] | None:
    """Shares such as 5% or 0.05."""
    if text is None:
        return None
    found = [share_in(word) if "%" in word else _number(word) for word in words_in(text)]
    if any(share is None or not 0 <= share <= 1 for share in found):
        raise typer.BadParameter(f"{flag} are shares such as 5% or 0.05, with commas; I got {text[:60]!r}.")
    return [share for share in found if share is not None]


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def circuit_text(document: CircuitDocument) -> str:
    """The curves over sizes, the areas, the units of the circuit, its strongest edges and the checks."""
    clean, corrupted, nothing = document.clean, document.corrupted, document.nothing
    lines = [
        document.sets,
        f"{clean.metric}: {clean.value:.3f} on clean prompts, {corrupted.value:.3f} on corrupted ones, {nothing.value:.3f} with "
        f"no unit kept (n={clean.n})",
        "",
    ]
    lines += _curve(document, document.size, clean.metric, "kept")
    named = " ".join(document.kept[:NAMED]) + (" ..." if len(document.kept) > NAMED else "")
    lines += [
        f"* the circuit: {document.size} of {len(document.units)} units, the fewest with faithfulness {document.reach:g} where "
        "they were found",
        f"  {named or 'no unit'}",
    ]
    if document.edge_circuit is not None:
        edges = document.edge_circuit
        lines += ["", *_curve(edges, edges.size, clean.metric, "edges kept")]
        lines.append(
            f"* the circuit of edges: {edges.size:,} of {edges.of:,}, chosen in the same way; with none it is the corrupted run"
        )
    if document.edges:
        lines += ["", f"strongest of {document.of_edges:,} edges: drop of the metric, estimated (exact)"]
        lines += columns_text([_edge(edge) for edge in document.edges[:TOP]], "<<>>", keys=2)
    if document.no_edges:
        lines += ["", f"no edges: {document.no_edges}"]
    lines += [""] if document.check or document.edge_check else []
    lines += [f"units: {document.check.text}"] if document.check else []
    lines += [f"edges: {document.edge_check.text}"] if document.edge_check else []
    less_is_better = clean.metric in ("kl", "loss")
    if document.ranked == "signed" and (clean.value < nothing.value) != less_is_better:
        lines += [
            "",
            "the whole model does worse than nothing here, and what helps was put first: try --ranked absolute",
        ]
    if document.cpr.low is None:
        lines += [
            "",
            "these examples do not show that the model differs from nothing: shares of that difference say nothing",
        ]
    return "\n".join(lines)


def _curve(curve: CircuitDocument | EdgeCircuit, size: int, metric: str, kept: str) -> list[str]:
    """A row for each size, and the areas."""
    rows = [[kept, "share", metric, "faithfulness", "95 % interval", "random"]]
    for point in curve.points:
        rows.append(
            [
                f"{point.kept:,}{'*' if point.kept == size else ''}",
                f"{point.share:.1%}",
                f"{point.value:.3f}",
                _rounded(point.faithfulness.value),
                _span(point.faithfulness),
                "" if point.random is None else _rounded(point.random),
            ]
        )
    random_cpr = "" if curve.random_cpr is None else f" (random circuits {curve.random_cpr:.3f})"
    areas = (
        f"CPR {curve.cpr.value:.3f} {_span(curve.cpr, 3)}{random_cpr}, CMD {curve.cmd.value:.3f} {_span(curve.cmd, 3)}"
    )
    return [*columns_text(rows, ">>>>>>"), "", areas, ""]


def _edge(edge: CircuitEdge) -> list[str]:
    error = "" if edge.stderr is None else f"±{edge.stderr:.3f}"
    exact = "" if edge.exact is None else f"({edge.exact:+.3f})"
    return [edge.writer, f"-> {edge.reader}", f"{edge.score:+.3f}{error}", exact]


def _span(estimate: Estimate, digits: int = 2) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"[{_rounded(estimate.low, digits)}, {_rounded(estimate.high, digits)}]"


def _rounded(value: float, digits: int = 2) -> str:
    """A number with so many decimals, never minus zero."""
    text = f"{value:.{digits}f}"
    return text if float(text) else text.lstrip("-")
