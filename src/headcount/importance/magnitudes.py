"""How large weights are: sums of squares per unit, kv group or layer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import Refused
from ..model.anatomy import Site
from ..model.distributed.device_maps import weights_present
from ..model.matrices import Matrix


def squares_of_units(site: Site, groups: dict[int, tuple[int, ...]] | None = None) -> np.ndarray:
    """Squares of all weights of each unit, or kv group: the rows that fill it, each once, and the columns that write it."""
    matrices, columns = site.matrices, site.columns
    if columns is None or any(m is None for m in matrices):
        raise Refused(f"The weights of {site.name} are packed or quantised, so their size cannot be read off per unit.")
    total = _squares(columns, columns.column_axis).view(-1, site.width).sum(-1)
    places = list((groups or {}).values())
    if groups is not None:
        total = torch.stack([total[list(group)].sum() for group in places])
    for m, tables in zip(matrices, site.tables(), strict=True):
        assert m is not None
        per_row = _squares(m, m.row_axis)
        for rows in tables:
            if groups is None:
                total = total + per_row[rows].view(len(site), -1).sum(-1)
            else:
                total = total + torch.stack([per_row[rows[list(group)].unique()].sum() for group in places])
    return total.numpy()


def _squares(m: Matrix, axis: int) -> Tensor:
    """The sum of squares along one axis of a matrix, on the CPU."""
    with weights_present(m.owner):
        weight = getattr(m.owner, m.weight).detach().double().cpu()
    return weight.square().movedim(axis, 0).flatten(1).sum(1)


def squares_of_layer(block: nn.Module) -> float:
    """The sum of squares of all weights of a layer."""
    places = {p: (m, name) for m in block.modules() for name, p in m._parameters.items() if p is not None}  # each once
    total = 0.0
    for module, name in places.values():
        with weights_present(module):
            total += float(module.get_parameter(name).detach().double().square().sum())
    return total
