"""Single weights set to zero: the unstructured counterpart of sub-networks, by magnitude (Prasanna et al. 2020, section 6).

What may go are the weights and biases of the attentions and the matrices and first biases of the MLPs, all in one ranking;
embeddings, norms, the output bias of an MLP and the head of the model stay whole. A mask is True where a weight stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from ..documents.lottery import WeightStep
from ..errors import Refused
from ..model.anatomy import Anatomy, Site
from ..model.matrices import Matrix

Masks = Mapping[str, Tensor]
SHARE, MOST = 0.1, 10  # of the weights that are left, in a step; and steps


def weights(root: nn.Module, anatomy: Anatomy) -> dict[str, nn.Parameter]:
    """The parameters whose entries may go, by name, each once."""
    names = {id(parameter): name for name, parameter in root.named_parameters()}
    parameters: dict[str, nn.Parameter] = {}
    for site in anatomy:
        for part, with_bias in _matrices(site):
            for name in (part.weight, part.bias_name if with_bias else None):
                tensor = None if name is None else getattr(part.owner, name)
                if tensor is not None and id(tensor) not in names:
                    raise Refused(
                        f"The weights of {site.name} are computed from others, so they cannot be set to zero one by one; "
                        "leave the magnitude pruning out."
                    )
                if tensor is not None:
                    parameters[names[id(tensor)]] = tensor
    return parameters


def _matrices(site: Site) -> Iterator[tuple[Matrix, bool]]:
    """The matrices of a site, and whether their bias belongs to it: that of an MLP's output is its layer's."""
    for part, with_bias in [*((matrix, True) for matrix in site.matrices), (site.columns, site.kind == "head")]:
        if part is None:
            raise Refused(
                f"{site.name} is packed or quantised, so its weights cannot be set to zero one by one; leave the magnitude "
                "pruning out."
            )
        yield part, with_bias


def by_magnitude(parameters: Mapping[str, Tensor]) -> Tensor:
    """The numbers of all entries, counted through the parameters one after the other, the smallest magnitude first."""
    return torch.cat([parameter.detach().abs().flatten() for parameter in parameters.values()]).argsort(stable=True)


def search(
    total: int, value: Callable[[int], float], floor: float, *, share: float = SHARE, most: int = MOST
) -> tuple[int, list[WeightStep]]:
    """How many weights stay, and the steps: a share of the rest goes each time, while `value(remaining)` is at least `floor`."""
    remaining, steps = total, list[WeightStep]()
    for _ in range(most):
        fewer = remaining - int(share * remaining)
        if fewer == remaining:
            break
        score = value(fewer)
        steps.append(WeightStep(fewer / total, score, score >= floor))
        if score < floor:
            break
        remaining = fewer
    return remaining, steps


def networks(order: Tensor, remaining: int, seed: int) -> dict[str, Tensor]:
    """Numbers of the entries that stay, exactly `remaining` in each: the largest (good), the smallest (bad), and any (random)."""
    drawn = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))
    chosen = {
        "good": order[len(order) - remaining :],
        "random": drawn[:remaining].to(order.device),
        "bad": order[:remaining],
    }
    return chosen


def masks(parameters: Mapping[str, Tensor], stay: Tensor) -> dict[str, Tensor]:
    """Name -> mask, from the numbers of the entries that stay."""
    flat = torch.zeros(
        sum(parameter.numel() for parameter in parameters.values()), dtype=torch.bool, device=stay.device
    )
    flat[stay] = True
    parts = flat.split([parameter.numel() for parameter in parameters.values()])
    return {
        name: part.view_as(parameter).to(parameter.device)
        for (name, parameter), part in zip(parameters.items(), parts, strict=True)
    }


@contextmanager
def masked(root: nn.Module, chosen: Masks) -> Iterator[None]:
    """Within the block, the weights that do not stay are zero; afterwards all of them are what they were, bit for bit."""
    named = dict(root.named_parameters())
    before = {name: named[name].detach().clone() for name in chosen}
    try:
        _blank(named, chosen)
        yield
    finally:
        with torch.no_grad():
            for name, tensor in before.items():
                named[name].copy_(tensor)


@contextmanager
def held(root: nn.Module, chosen: Masks) -> Iterator[None]:
    """Within the block, the model may train and the weights that do not stay are zero; they are zero afterwards, too.

    Their gradient is taken away before the optimiser sees it. With nothing in its moments and nothing to decay, AdamW
    leaves a zero a zero.
    """
    named = dict(root.named_parameters())
    with ExitStack() as stack:
        _blank(named, chosen)
        stack.callback(_blank, named, chosen)
        for name, mask in chosen.items():
            if named[name].requires_grad:
                stack.callback(named[name].register_hook(partial(_without, mask)).remove)
        yield


def _without(mask: Tensor, gradient: Tensor) -> Tensor:
    return gradient.masked_fill(~mask, 0)  # and not a product: an overflow times zero is not a number


def _blank(named: Mapping[str, Tensor], chosen: Masks) -> None:
    with torch.no_grad():
        for name, mask in chosen.items():
            named[name].masked_fill_(~mask, 0)
