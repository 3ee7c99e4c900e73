"""How large weights are: sums of squares per unit, kv group or layer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import Refused
from ..model.anatomy import Site
from ..model.distributed.device_maps import weights_present
from ..model.loading.quantised import matrix_seen
from ..model.matrices import Matrix, is_quantised


def squares_of_units(site: Site, groups: dict[int, tuple[int, ...]] | None = None) -> np.ndarray:
    """Squares of all weights of each unit, or kv group: the rows that fill it, each once, and the columns that write it."""
    total = _squares(site, site.columns, site.writer, by_columns=True).view(-1, site.width).sum(-1)
    places = list((groups or {}).values())
    if groups is not None:
        total = torch.stack([total[list(group)].sum() for group in places])
    for m, reader, tables in zip(site.matrices, site.readers, site.tables(), strict=True):
        per_row = _squares(site, m, reader)
        for rows in tables:
            if groups is None:
                total = total + per_row[rows].view(len(site), -1).sum(-1)
            else:
                total = total + torch.stack([per_row[rows[list(group)].unique()].sum() for group in places])
    return total.numpy()


def _squares(site: Site, m: Matrix | None, module: nn.Module, by_columns: bool = False) -> Tensor:
    """The sum of squares of each row of a matrix, or of each column, on the CPU."""
    if m is None and is_quantised(module) and hasattr(module, "in_features"):
        return matrix_seen(module).double().cpu().square().sum(0 if by_columns else 1)
    if m is None:
        raise Refused(f"The weights of {site.name} are packed or quantised, so their size cannot be read off per unit.")
    with weights_present(m.owner):
        weight = getattr(m.owner, m.weight).detach().double().cpu()
    return weight.square().movedim(m.column_axis if by_columns else m.row_axis, 0).flatten(1).sum(1)


def squares_of_layer(block: nn.Module) -> float:
    """The sum of squares of all weights of a layer."""
    packed = [m for m in block.modules() if is_quantised(m) and hasattr(m, "in_features")]
    total = sum(float(matrix_seen(module).double().square().sum()) for module in packed)
    for module in packed:
        if isinstance(bias := getattr(module, "bias", None), Tensor):
            total += float(bias.detach().double().square().sum())
    plain = [m for m in block.modules() if m not in packed]
    places = {p: (m, name) for m in plain for name, p in m._parameters.items() if p is not None}  # each once
    for module, name in places.values():
        with weights_present(module):
            total += float(module.get_parameter(name).detach().double().square().sum())
    return total
