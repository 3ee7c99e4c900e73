"""The place of an example: a number from 0 to 1 made from the example itself and the seed, and the part it falls into.

An example's place does not depend on the others, so the same example falls into the same part in every command on the same data,
and copies of an example fall together. Where examples belong to groups, the name of the group takes the example's part.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate


def place(example: bytes, seed: int, salt: str = "") -> float:
    """From 0 to 1, evenly, and always the same for the same example, seed and salt."""
    drawn = hashlib.sha256(f"{seed}|{salt}|".encode() + example).digest()
    return int.from_bytes(drawn[:8], "big") / 2**64


def group_key(name: str) -> bytes:
    """What decides the place of a group."""
    return hashlib.sha256(f"group|{name}".encode()).digest()


def parts(
    keys: Sequence[bytes], shares: Mapping[str, float], seed: int, salt: str = "", most: int | None = None
) -> dict[str, list[int]]:
    """The numbers of examples by their place: the first share of the places to the first name, and so on.

    Shares may leave a rest, which goes to nobody. The first name gets at most `most` examples, those with the first places;
    its share is then smaller, and that of the second larger.
    """
    places = [place(key, seed, salt) for key in keys]
    ends = list(accumulate(shares.values()))
    if ends[-1] > 1 - 1e-9:  # shares that add up to one leave no rest, however the sum is rounded
        ends[-1] = 1.0
    if most is not None:
        ends[0] = min([ends[0], *sorted(places)[most : most + 1]])
    numbers: list[list[int]] = [[] for _ in [*ends, "rest"]]
    for number, at in enumerate(places):
        numbers[bisect_right(ends, at)].append(number)
    return dict(zip(shares, numbers, strict=False))
