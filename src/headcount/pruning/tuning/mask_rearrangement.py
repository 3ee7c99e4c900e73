"""Which units of a site to remove, once it is known how many: exchanged so that what goes together does least harm.

Scores look at units one by one. What is lost with a set P of them is, to second order, the block Fisher: the sum over
rows of (the sum over P of dL/dgate) squared, so two units whose gradients cancel can go together although each of them
matters (Kwon et al. 2022). No torch here beyond what made the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...plans import Plan
from ...progress import track

if TYPE_CHECKING:
    from ...importance.gradients import Contributions
    from ...model.anatomy import Site, Stack

SWEEPS = 10  # over all units of a site; after two or three there is rarely anything left to exchange
MEMORY = 2**28  # bytes of inner products of all units with each other; beyond that they are computed as needed
SLIGHT = 1e-9  # of the cost: an exchange must gain more than rounding does, or it could go on for ever
SHRINKAGE = 0.5  # rows are few beside units, so that many sets seem to cancel by chance: half of that is not believed


def rearrange_mask(
    plan: Plan, parts: Sequence[Site | Stack], gathered: Contributions, *, shrinkage: float = SHRINKAGE
) -> Plan:
    """The plan with as many units gone per attention and MLP, exchanged within each to lower its block Fisher cost.

    No site ever costs more than before. Layers, parts that `gathered` does not know, and attentions whose heads share
    key-value heads (which of those survive would change) stay as planned. `len(new - plan)` is how many units changed
    places. `shrinkage` is how far the block Fisher is drawn towards its diagonal before it is believed (0: as in the
    paper, 1: not at all).
    """
    chosen = plan.by_site()
    indices_by_site: dict[str, Sequence[int]] = dict(chosen)
    for part in track(parts, "exchanging units"):
        shares = part.kind == "head" and len(part) != getattr(part, "kv_heads", len(part))
        if part.kind == "layer" or shares or part.name not in chosen or part.name not in gathered.signed:
            continue
        removed_mask = np.zeros(len(part), bool)
        removed_mask[part.positions(chosen[part.name])] = True
        exchanged_mask = exchanged(gathered.signed[part.name], removed_mask, shrinkage)
        indices_by_site[part.name] = [part.ids[place] for place in np.flatnonzero(exchanged_mask).tolist()]
    return Plan.removing(indices_by_site, plan.why)


def cost(signed: np.ndarray, removed_mask: np.ndarray) -> float:
    """The block Fisher cost of a set: the sum over rows of (the sum of the derivatives of its units) squared."""
    return float(np.square(np.asarray(signed, np.float64)[:, removed_mask].sum(1)).sum())


def exchanged(signed: np.ndarray, removed_mask: np.ndarray, shrinkage: float = SHRINKAGE) -> np.ndarray:
    """A set of the same size as `removed_mask` that costs no more: derivatives (rows, units), and which units go (units,).

    Every unit that stays, the least important first, is offered a place in the set; the one that the set is best without
    goes back, which may be the unit itself. Until nothing changes.
    """
    gradients = np.ascontiguousarray(np.asarray(signed, np.float64).T)  # (units, rows)
    products = gradients @ gradients.T if len(gradients) ** 2 * 8 <= MEMORY else None
    squares = np.einsum("ur,ur->u", gradients, gradients)
    removed_mask = np.array(removed_mask, bool)
    if not removed_mask.any() or removed_mask.all():
        return removed_mask
    members = np.flatnonzero(removed_mask)
    alone = squares[members]
    for _ in range(SWEEPS):
        before = removed_mask.copy()
        total = gradients[members].sum(0)
        along, set_cost = (
            gradients @ total,
            total @ total,
        )  # products with the set's sum; computed anew, so that rounding stays small
        for unit in np.argsort(squares, kind="stable"):
            if removed_mask[unit]:
                continue
            if shrinkage * (squares[unit] - alone.max()) >= (1 - shrinkage) * set_cost:
                break  # no exchange can gain more than all that the set costs: this unit is too dear, and so are the others
            row = gradients @ gradients[unit] if products is None else products[unit]
            # by how much the cost changes when the unit takes the place of each member, and that of the diagonal
            change = 2 * (along[unit] - along[members]) + squares[unit] + alone - 2 * row[members]
            shrunk = (1 - shrinkage) * change + shrinkage * (squares[unit] - alone)
            slight = SLIGHT * (set_cost + 2 * along[unit] + squares[unit] + alone)
            shrunk[(change >= -slight) | (shrunk >= -slight)] = np.inf
            best = int(np.argmin(shrunk))
            if shrunk[best] < np.inf:
                out = members[best]
                out_row = gradients @ gradients[out] if products is None else products[out]
                along, set_cost = along + row - out_row, set_cost + float(change[best])
                removed_mask[out], removed_mask[unit] = False, True
                members[best], alone[best] = unit, squares[unit]
        if np.array_equal(removed_mask, before):
            break
    return removed_mask
