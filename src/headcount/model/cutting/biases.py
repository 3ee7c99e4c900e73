"""What is written in the place of units that are gone, always the same: it goes into the bias of the writer.

A unit whose columns of the writer are given `fill` at every position writes W fill there. Cut and masked-to-fill are equal then,
as cut and masked are with a fill of zero. Writers without a bias get one, and the record of the cut names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from ...errors import BadPlan, Refused
from ...plans import Plan
from ..anatomy import Anatomy, Site, Stack
from ..architectures import ModuleSpec
from ..discovery import find, unwrap
from ..matrices import Bypass, Padded
from .transaction import Transaction

RECORDED = "biases"  # the key of a cut's record
MOST = 100_000  # names in a record


def checked_fill(anatomy: Anatomy, fill: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What stands in for units, by site name, as one number for each column of the writer."""
    out = {}
    for name, values in fill.items():
        site, numbers = anatomy[name], torch.as_tensor(values).detach()
        if isinstance(site, Stack):
            raise BadPlan(f"{site.name} are layers, which are passed over and have no fill; name attentions and MLPs.")
        if numbers.shape != (len(site) * site.width,) or not bool(torch.isfinite(numbers).all()):
            raise BadPlan(
                f"A fill of {site.name} is one finite number for each of the {len(site) * site.width} columns that its "
                f"{len(site)} units write with; I got shape {tuple(numbers.shape)}."
            )
        if not site.calls_writer:
            raise Refused(
                f"{site.name} takes the weights of its output projection without calling it, so nothing can stand in for its "
                "units: leave the fill (compensation) out."
            )
        out[site.name] = numbers
    return out


def refuse_biases(anatomy: Anatomy, plan: Plan, fill: Mapping[str, Tensor], added: Mapping[str, Tensor]) -> None:
    """`Refused` for the first writer that would need a bias and cannot have one."""
    for name in (*(name for name in plan.by_site() if name in fill), *added):
        site = anatomy[name]
        if isinstance(site, Site) and not may_have_bias(site):
            raise Refused(
                f"The output matrix of {name} ({type(site.writer).__name__}) has no bias and cannot be given one, so what its "
                "units write on average has no place to go: leave compensation out."
            )


def written(site: Site, positions: Iterable[int], fill: Tensor) -> Tensor:
    """What these units write when their columns are given the fill: (rows of the writer,), in full precision."""
    writer = site.columns
    assert writer is not None
    weight = getattr(writer.owner, writer.weight).detach()
    exact = torch.float32 if weight.device.type == "mps" else torch.float64
    gone = torch.zeros(len(site), dtype=torch.bool)
    gone[list(positions)] = True
    given = torch.where(gone.repeat_interleave(site.width), fill.cpu().double(), 0.0).to(weight.device, exact)
    matrix = weight.movedim(writer.row_axis, 0).reshape(writer.shape)
    columns = given.nonzero()[:, 0]  # of a large matrix, only these are made wide
    return matrix[:, columns].to(exact) @ given[columns]


def add_to_bias(transaction: Transaction, writer: nn.Module, change: Tensor) -> bool:
    """Add to the bias of a writer; whether it had none and has one now."""
    weight, bias = writer.weight, getattr(writer, "bias", None)
    if bias is not None:
        transaction.set_tensor(writer, "bias", (bias.detach().to(change) + change).to(bias.dtype))
        return False
    assert isinstance(weight, Tensor)
    transaction.set(writer, "bias", nn.Parameter(change.to(weight.dtype), requires_grad=weight.requires_grad))
    return True


def recorded(written_record: Mapping[str, object]) -> list[str]:
    """The sites that a record says got a bias, or `BadPlan` for what is wrong with that."""
    names = written_record.get(RECORDED, [])
    if not isinstance(names, list) or len(names) > MOST or not all(isinstance(name, str) for name in names):
        raise BadPlan(f'The record\'s "{RECORDED}" must be a list of at most {MOST:,} names of sites.')
    return list(names)


def give_biases(model: nn.Module, names: Iterable[str], specs: Iterable[ModuleSpec] = ()) -> None:
    """Give the writers of these sites a bias of zero, to be filled from a checkpoint that was saved with one."""
    root = unwrap(model)
    anatomy = find(root, specs)
    for name in names:
        site = anatomy[name]
        if isinstance(site, Stack) or has_bias(site) or not _may_have_bias(site.writer):
            raise BadPlan(f"The record says that {name} got a bias, which it cannot have got: it may be damaged.")
        columns = site.columns
        assert columns is not None
        weight = getattr(columns.owner, columns.weight)
        bias = torch.zeros(columns.shape[0], dtype=weight.dtype, device=weight.device)
        setattr(site.writer, "bias", nn.Parameter(bias, requires_grad=weight.requires_grad))  # noqa: B010


def given_biases(before: nn.Module, after: nn.Module) -> list[str]:
    """The sites whose writers have no bias in one model, and one in another of the same sites."""
    sites = {site.name: site for site in find(after)}
    return [site.name for site in find(before) if not has_bias(site) and has_bias(sites[site.name])]


def has_bias(site: Site) -> bool:
    """Whether a site's writer has a bias."""
    return site.columns is not None and site.columns.bias_name is not None


def may_have_bias(site: Site) -> bool:
    """Whether a site's writer has a bias, or can be given one."""
    return has_bias(site) or _may_have_bias(site.writer)


def _may_have_bias(writer: nn.Module) -> bool:
    """Whether the code of a matrix would add a bias that it is given: torch's own, and ours."""
    plain = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward)
    return isinstance(writer, Bypass | Padded) or type(writer).forward in plain
