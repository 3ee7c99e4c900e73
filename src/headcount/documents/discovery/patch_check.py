"""How well an estimate of patching agrees with patching itself. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class PatchCheck:
    """The rank correlation of estimated and exact effects over some units or edges, with its 95 % interval.

    The interval is a bootstrap over examples, and over the units too where they are a sample of all (`of` is how many there are).
    """

    names: tuple[str, ...]
    estimated: tuple[float, ...]
    exact: tuple[float, ...]
    spearman: float
    low: float
    high: float
    n: int  # examples
    of: int
    drawn: str = field(default="at random")  # how the units were chosen, where they are not all

    @property
    def text(self) -> str:
        """ "rank correlation with exact patching 0.93 [0.86, 0.97] (24 of 90 units, drawn at random; n=64)"."""
        some = f"{len(self.names)} of {self.of}, {self.drawn}" if len(self.names) < self.of else f"all {self.of}"
        return f"rank correlation with exact patching {self.spearman:.3f} [{self.low:.3f}, {self.high:.3f}] ({some}; n={self.n})"
