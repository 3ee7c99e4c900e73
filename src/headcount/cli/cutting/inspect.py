"""The command `inspect`: the attentions, MLPs and layers of a model, and what can be cut."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ...formatting import short_count, with_commas
from ..options import out, quieten, say_notes, specs_of

if TYPE_CHECKING:
    from ...model.anatomy import Anatomy, Site

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model folder, a GGUF file, an adapter, or a name on the hub.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that ships with the model.")]
Rows = Annotated[
    list[str] | None,
    typer.Option(
        "--module-spec",
        metavar="JSON",
        help='Your own naming of modules: \'{"reads": ["wq","wk","wv"], "writes": ["wo"]}\'.',
    ),
]

MANNERS = ("slim", "padded", "empty")


def inspect(
    model: Model,
    every: Annotated[bool, typer.Option("--all", help="One line per site, also where layers are alike.")] = False,
    as_json: AsJson = False,
    spec: Rows = None,
    trust_remote_code: Trust = False,
) -> None:
    """Show the attentions, MLPs and layers of a model, their parameters, and what can be cut. Reads no weights.

    Examples:

        headcount inspect my-model

        headcount inspect google-bert/bert-base-uncased --json

        headcount inspect model.Q4_K_M.gguf
    """
    quieten()
    from ...model.checkpoints import load
    from ...model.discovery import find
    from ...model.loading.number_formats import format_in_words

    say_notes(model)
    empty = load(model, weights=False, trust_remote_code=trust_remote_code)
    anatomy = find(empty, specs_of(spec))
    rows = [_site_row(site, anatomy, empty) for site in anatomy]
    total = sum(p.numel() for p in empty.parameters())
    if as_json:
        print(json.dumps(_anatomy_json(model, anatomy, rows, total), indent=2))
        return
    out.print(
        f"[bold]{anatomy.model_name}[/] · {with_commas(total)} parameters{format_in_words(empty.config)}",
        soft_wrap=True,
    )
    table_rows = rows if every else _alike(rows, anatomy)
    out.print(_site_table(table_rows, total))
    for row in table_rows:
        if row["cut"] not in MANNERS:
            out.print(f"[yellow]{row['site']} can be masked, not cut:[/] {row['cut']}")
    for stack in anatomy.stacks:
        out.print(f"{stack.name}: {len(stack)} of {stack.of} layers")
    for path, reason in anatomy.refused:
        out.print(f"[yellow]not supported:[/] {path}: {reason}")
    for path in anatomy.unknown:
        out.print(f"[yellow]looks like attention, built in a way not known:[/] {path}")


def _site_row(site: Site, anatomy: Anatomy, model: Any) -> dict[str, Any]:
    """One site as a row: sizes, parameters of the whole site and of one unit, and whether it can be cut."""
    from ...model.cutting.effects import site_effect
    from ...model.cutting.rules import is_padded, refusal

    reason = refusal(site, anatomy, model)
    site_parameters = sum(
        p.numel() for m in {id(m): m for m in (*site.readers, site.writer)}.values() for p in m.parameters()
    )
    unit = site_effect(site, tuple(range(1, len(site)))).parameters if reason is None and len(site) else 0
    return {
        "site": site.name,
        "kind": site.kind,
        "attention": site.attention,
        "layer": site.layer,
        "path": site.path,
        "units": len(site),
        "of": site.of,
        "kv_heads": site.kv_heads if site.kind == "head" else None,
        "width": site.width,
        "parameters": site_parameters,
        "parameters_per_unit": unit,
        "cut": reason or ("padded" if is_padded(site) else "slim" if len(site) else "empty"),
    }


def _anatomy_json(name: str, anatomy: Anatomy, rows: list[dict[str, Any]], total: int) -> dict[str, Any]:
    return {
        "model": name,
        "class": anatomy.model_name,
        "parameters": total,
        "sites": rows,
        "stacks": [{"stack": s.name, "path": s.path, "layers": list(s.ids), "of": s.of} for s in anatomy.stacks],
        "refused": [{"path": path, "reason": reason} for path, reason in anatomy.refused],
        "unknown": list(anatomy.unknown),
    }


def _alike(rows: list[dict[str, Any]], anatomy: Anatomy) -> list[dict[str, Any]]:
    """Rows of neighbouring layers that differ in nothing but the layer, as one row with a range for a name."""
    from ...model.anatomy import alike_layers, joined_name

    by_name = {row["site"]: row for row in rows}
    keys = ("kind", "attention", "units", "of", "kv_heads", "width", "parameters", "cut")
    runs = alike_layers(anatomy.sites, lambda site: tuple(by_name[site.name][key] for key in keys))
    return [{**by_name[run[0].name], "site": joined_name(run), "times": len(run)} for run in runs]


def _site_table(rows: list[dict[str, Any]], total: int) -> Table:
    """One line per row; parameters and their share are those of one attention or MLP, then those of one of its units."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("site", overflow="fold")  # of the columns this one alone may be narrower than its texts
    for title in ("type", "units", "kv", "width", "params", "share", "a unit", "cut"):
        table.add_column(title, justify="left" if title in ("type", "cut") else "right", no_wrap=True)
    for row in rows:
        times, unit = row.get("times", 1), row["parameters_per_unit"]
        units = f"{row['units']} of {row['of']}" if row["units"] != row["of"] else str(row["units"])
        type_text = f"{row['attention'] or 'mlp'}" + (f" ×{times}" if times > 1 else "")
        sizes = (short_count(row["parameters"]), f"{row['parameters'] / total:.1%}", short_count(unit) if unit else "")
        cut = row["cut"] if row["cut"] in MANNERS else "refused"
        table.add_row(row["site"], type_text, units, str(row["kv_heads"] or ""), str(row["width"]), *sizes, cut)
    return table
