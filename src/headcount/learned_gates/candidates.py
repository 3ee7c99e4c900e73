"""Which units may go and how many stay: the same for gates that learn and for the criteria they are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..documents.scores import how_many
from ..errors import BadPlan
from ..importance.criteria import KINDS, parts_of
from ..model.anatomy import Anatomy, Site, Stack
from . import methods
from .methods import Budget, Method

WHOLE = {"mlps": "neurons", "attentions": "heads"}  # units that are all units of a site, under one gate
Chosen = Sequence[tuple[Site | Stack, bool]]  # parts, and whether each goes as a whole


def parts_with_gates(anatomy: Anatomy, units: list[str], only: list[str]) -> Chosen:
    """The parts that get gates, and whether one gate stands for the whole part."""
    words = [word.strip() for text in units for word in text.split(",")]
    unknown = [word for word in words if word not in (*KINDS, *WHOLE)]
    if unknown:
        raise BadPlan(f"Units with gates are {', '.join([*KINDS, *WHOLE])}; I got {unknown[0]!r:.40}.")
    plain = parts_of(anatomy, [WHOLE.get(word, word) for word in words])
    out: list[tuple[Site | Stack, bool]] = []
    for word in dict.fromkeys(words):
        kind = KINDS[WHOLE.get(word, word)]
        out += [(part, word in WHOLE) for part in plain if part.kind == kind and _wanted(part, only)]
    if len({part.name for part, _ in out}) < len(out):
        raise BadPlan(f"Units that contain each other cannot have gates of their own; I got {', '.join(words)}.")
    if not out:
        raise BadPlan(f"No unit of {anatomy.model_name} is {' or '.join(only)}; `headcount inspect` lists their types.")
    return out


def _wanted(part: Site | Stack, only: list[str]) -> bool:
    """Whether a part is of one of these attention types, or has that in its name ("encoder.layers", "decoder.3.mlp")."""
    return not only or getattr(part, "attention", None) in only or bool(set(part.name.split(".")) & set(only))


def budgets(chosen: Chosen, keep: int | float | str | None) -> tuple[Budget, ...]:
    """One stretch of gates for each kind of unit, and how many of it stay."""
    kinds = list(dict.fromkeys((part.kind, goes_whole) for part, goes_whole in chosen))
    if len(kinds) > 1 and (isinstance(keep, int) or (isinstance(keep, str) and keep.strip().isdigit())):
        raise BadPlan("With several kinds of units, keep is a share of each, such as 0.5 or 50%; I got a count.")
    out, place = list[Budget](), 0
    for key in kinds:
        count = sum(1 if goes_whole else len(part) for part, goes_whole in chosen if (part.kind, goes_whole) == key)
        stay = None if keep is None else how_many(keep, count)
        stacks = [part.name for part, _ in chosen if part.kind == key[0] == "layer"]
        if stay is not None and stay < max(1, len(stacks)):
            least = f"one of each of {', '.join(stacks)}" if len(stacks) > 1 else "one"
            raise BadPlan(
                f"keep is {keep!r:.20}, which is {stay or 'none'} of {count} units; at least {least} must stay."
            )
        out.append(Budget(place, place + count, stay))
        place += count
    return tuple(out)


def exactly_one_of(keep: int | float | str | None, method: Method) -> None:
    """Refuse methods that do not know how much is to stay, and those that are told twice."""
    if keep is None and (method.needs_keep or (isinstance(method, methods.L0) and method.l0 is None)):
        also = "; or the price of an open gate, l0 (--l0)" if isinstance(method, methods.L0) else ""
        raise BadPlan(f"Say how many units stay: keep (--keep), such as 12 or 25%{also}.")
    if keep is not None and isinstance(method, methods.L0) and method.l0 is not None:
        raise BadPlan("keep finds the price of an open gate, and l0 gives one: say one of them.")


def one_of_each(mask: Tensor, weights: Tensor, sizes: Sequence[int], stacks: Sequence[bool]) -> Tensor:
    """The same choice, with at least one unit in every stack of layers, which cannot be empty.

    A stack that lost all of its layers gets its best one back, for the worst one of a stack that has several.
    """
    out, parts = mask.clone(), list(zip(starts(sizes), sizes, stacks, strict=True))
    for start, size, stack in parts:
        if not stack or out[start : start + size].any():
            continue
        spare = [
            place
            for first, count, is_stack in parts
            if is_stack and out[first : first + count].sum() > 1
            for place in range(first, first + count)
            if out[place]
        ]
        if spare:
            out[min(spare, key=lambda place: float(weights[place]))] = 0
        out[start + int(weights[start : start + size].argmax())] = 1
    return out


def shares(keep: int, sizes: Sequence[int], least: int) -> list[int]:
    """`keep` shared out in proportion to the sizes, to each at least so many."""
    out, remaining = list[int](), keep
    for place, size in enumerate(sizes):
        after = sizes[place + 1 :]
        share = round(remaining * size / (size + sum(after)))
        out.append(min(max(share, least, remaining - sum(after)), size, remaining - least * len(after)))
        remaining -= out[-1]
    return out


def starts(sizes: Sequence[int]) -> list[int]:
    """Where each of several stretches of these sizes begins."""
    return [sum(sizes[:place]) for place in range(len(sizes))]
