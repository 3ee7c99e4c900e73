"""Other numbers for the columns that stay of an output matrix, and something added to its bias, both written by the cut.

While a model is only masked, the same is had by adding to what the matrix gives: `refitted`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadPlan, Refused
from ...plans import Plan
from ..anatomy import Anatomy, Site, Stack
from ..tensor_trees import tensors


def kept_columns(site: Site, plan: Plan) -> Tensor:
    """The numbers of the writer's columns that stay under a plan, as they lie in the site now."""
    gone = set(site.positions(plan.by_site().get(site.name, ())))
    left = torch.tensor([place for place in range(len(site)) if place not in gone], dtype=torch.long)
    return (left[:, None] * site.width + torch.arange(site.width)).flatten()


def checked_columns(anatomy: Anatomy, plan: Plan, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Refitted columns by site name: (rows of the writer, columns that stay), finite."""
    out = {}
    for name, values in columns.items():
        site, numbers = _site(anatomy, name, "columns"), torch.as_tensor(values).detach()
        if site.columns is None or site.writer.weight.numel() != site.columns.shape[0] * site.columns.shape[1]:
            raise Refused(
                f"The output matrix of {site.name} is packed, quantised or several in one, so its columns cannot be replaced: "
                "leave compensation by least squares out."
            )
        want = (site.columns.shape[0], len(kept_columns(site, plan)))
        if tuple(numbers.shape) != want or not bool(torch.isfinite(numbers).all()):
            raise BadPlan(
                f"Columns of {site.name} are finite numbers of shape {want}: rows of its output matrix times the columns that "
                f"stay; I got shape {tuple(numbers.shape)}."
            )
        out[site.name] = numbers
    return out


def checked_bias(anatomy: Anatomy, bias: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is added to biases by site name: (rows of the writer,), finite."""
    out = {}
    for name, values in bias.items():
        site, numbers = _site(anatomy, name, "a bias"), torch.as_tensor(values).detach()
        rows = None if site.columns is None else site.columns.shape[0]
        if rows is None or numbers.shape != (rows,) or not bool(torch.isfinite(numbers).all()):
            raise BadPlan(
                f"A bias of {site.name} is one finite number for each of the {rows} rows of its output matrix; I got shape "
                f"{tuple(numbers.shape)}."
            )
        out[site.name] = numbers
    return out


def _site(anatomy: Anatomy, name: str, what: str) -> Site:
    site = anatomy[name]
    if isinstance(site, Stack):
        raise BadPlan(
            f"{site.name} are layers, which have no output matrix to be given {what}; name attentions and MLPs."
        )
    if not site.calls_writer:
        raise Refused(
            f"{site.name} takes the weights of its output projection without calling it, so it cannot be refitted: leave "
            "compensation out."
        )
    return site


@contextmanager
def refitted(anatomy: Anatomy, plan: Plan, columns: Mapping[str, Tensor], bias: Mapping[str, Tensor]) -> Iterator[None]:
    """Within the block, sites give what they give with these columns in the places of those that stay, and these biases.

    For a model whose units of the plan are masked; weights are not touched.
    """
    with ExitStack() as stack:
        for name in {**columns, **bias}:
            site = anatomy[name]
            assert isinstance(site, Site)
            change = column_change(site, plan, columns[name]) if name in columns else None
            stack.callback(adding(site, change, bias.get(name)).remove)
        yield


def column_change(site: Site, plan: Plan, columns: Tensor) -> Tensor:
    """By how much each column changes: (rows of the writer, all columns), zero where a unit goes."""
    matrix = site.columns
    assert matrix is not None
    weight = getattr(matrix.owner, matrix.weight).detach()
    old = weight.movedim(matrix.row_axis, 0).reshape(matrix.shape)
    wide = torch.promote_types(old.dtype, torch.float32)
    kept = kept_columns(site, plan).to(old.device)
    change = torch.zeros(old.shape, dtype=wide, device=old.device)
    change[:, kept] = columns.to(old.device, wide) - old[:, kept].to(wide)
    return change


def adding(site: Site, change: Tensor | None, bias: Tensor | None) -> Any:
    """A hook that adds to what a writer gives its input times the change of its columns, and a bias."""
    return site.writer.register_forward_hook(partial(_add, site, change, bias), with_kwargs=True)


def _add(
    site: Site, change: Tensor | None, bias: Tensor | None, _: nn.Module, args: Any, kwargs: Any, y: Tensor
) -> Tensor:
    axis = 1 if isinstance(site.writer, nn.Conv1d | nn.Conv2d) else y.dim() - 1
    out = y.movedim(axis, -1)
    if change is not None:
        x = next(tensors((args, kwargs))).movedim(axis, -1)
        out = out + functional.linear(x.to(change.dtype), change).to(out.dtype)
    if bias is not None:
        out = out + bias.to(out)
    return out.movedim(-1, axis)
