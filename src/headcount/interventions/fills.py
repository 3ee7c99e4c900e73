"""`Fill`: what stands in for units that are masked, taken from data: means, other examples, counterparts, noise."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..documents.results import DRAWN, KINDS, FillDocument
from ..errors import BadData, BadPlan, Refused
from ..model.anatomy import Anatomy
from ..model.discovery import unwrap
from ..model.equivalence import evaluating
from ..model.positions import At, Examples, checked_at, places
from ..model.stand_ins import (
    Make,
    StandIn,
    StandIns,
    as_recorded,
    by_position,
    limited,
    parts_masked,
    refuse_positions,
)
from ..plans import Plan
from ..spelling import short
from .references import Parts, Reference, checked_reference, lengths_of, refuse_uncalled

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run


@dataclass(frozen=True)
class Fill:
    """What stands in for units that are masked: `ablate(model, task, fill=Fill("mean", reference))`.

    - `zero`: nothing (Michel et al. 2019).
    - `mean`: the mean of each column over all positions of the reference examples. This can be cut, too.
    - `mean-per-position`: the mean at each position, counted from the first token that is no padding; for positions that no
      reference example has, the mean over all of them (Wang et al. 2022 take means at positions of a template).
    - `resample`: the same position of another reference example, drawn by `seed` from those that are at least as long;
      where there are none, from all others, and the mean stands in at positions that they do not have (Chan et al. 2022).
    - `counterfactual`: the same position of the example's counterpart in `reference`, a task of the same size whose examples
      are aligned with the measured ones position by position (Zhang and Nanda 2023 patch from such prompts). Where only a
      part of the examples is measured, `originals` is the whole task that `reference` is aligned with.
    - `noise`: Gaussian noise around the mean of each column, with its standard deviation over the reference. It replaces
      what is there, and is not added to it: nothing of the example is left.

    What stands in for a layer takes the place of its contribution to the residual stream, output minus input. Draws depend
    on the seed and the example alone, so neither batches nor order nor other examples change an example's values. With
    several `draws` the values of an example are means over them. `at` restricts it to positions ("last", "0:5", "-3:", a
    number, or one of these or a list of numbers for each measured example); elsewhere units stay as they are.

    Attributes:
        kind: "zero", "mean", "mean-per-position", "resample", "counterfactual" or "noise".
        reference: The reference set; of `counterfactual`, the counterparts.
        originals: Of `counterfactual`: the task that `reference` is aligned with, by default the one that is measured.
        draws: How many times `resample` and `noise` are drawn.
        seed: Random seed of the draws.
        at: Positions; by default all of them.
    """

    kind: str
    reference: Task | None = None
    originals: Task | None = None
    draws: int = 1
    seed: int = 0
    at: At | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadPlan(f"What stands in is {', '.join(KINDS)}; I got {short(self.kind)}.")
        if self.kind != "zero":
            checked_reference(self.kind, self.reference)
        if self.draws < 1 or (self.draws > 1 and self.kind not in DRAWN):
            raise BadPlan(
                f"There are {self.draws} draws of fill {self.kind}: at least 1 of {' and '.join(DRAWN)}, and 1 of all others."
            )
        if self.originals is not None and self.kind != "counterfactual":
            raise BadPlan(
                f"Only counterfactual has originals, which its reference is aligned with; {self.kind} has none."
            )
        if self.at is not None:
            checked_at(self.at)

    @property
    def constant(self) -> bool:
        """Whether it is the same at every position of every example, so that it can be cut as well."""
        return self.kind in ("zero", "mean") and self.at is None

    @cached_property
    def document(self) -> FillDocument:
        """How it was made, as documents have it."""
        of = self.reference
        return FillDocument(
            kind=self.kind,
            reference="" if of is None else of.name,
            fingerprint="" if of is None else of.fingerprint,
            n=0 if of is None else of.size,
            draws=self.draws,
            seed=self.seed if self.kind in DRAWN else None,
            at="" if self.at is None else _at_text(self.at),
        )

    @property
    def signature(self) -> str:
        """How it was made, for signatures of results: "resample(train.tsv#1a2b3c4d,draws:10,seed:0)"."""
        return self.document.signature

    def __str__(self) -> str:
        return self.document.words

    def stand_ins(self, model: nn.Module, anatomy: Anatomy, plan: Plan) -> Mapping[str, Tensor]:
        """What stands in for the units of a plan, whatever the model is given; `BadPlan` where that depends on the examples."""
        if not self.constant:
            raise BadPlan(
                f"Fill {self.signature} depends on the examples, which `masked` does not know: measure with ablate(fill=...) or "
                "curve(fill=...), or give masked the activations of a batch (hc.interventions.activations)."
            )
        found = self.prepare(unwrap(model), anatomy, None, plan).of((), {}, 0)
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}

    def prepare(
        self,
        root: nn.Module,
        anatomy: Anatomy,
        task: Task | None,
        plan: Plan,
        *,
        run: Run | None = None,
        name: str = "fill",
    ) -> StandIns:
        """What stands in for the units of a plan on the examples of a task; what it takes is measured here.

        Args:
            root: The model; means are those of the model as it is now.
            anatomy: Where its parts are.
            task: The examples that will be measured.
            plan: All units that will be masked.
            run: A run folder, in which sums are kept.
            name: Name of the sums in the run folder.
        """
        parts = parts_masked(anatomy, plan)
        if self.kind != "zero" or self.at is not None:
            for part in parts.values():
                refuse_uncalled(part)
                if not self.constant:
                    refuse_positions(part)
        if task is not None and task.generates and not self.constant:
            raise Refused(
                f"{task.metric.name} is measured on generated text, whose positions are not there yet: measure the loss "
                f"(--metric loss), or take fill zero or mean, at all positions; I got {self.signature}."
            )
        reference = Reference(root, anatomy, parts, self.reference, run, name) if self.reference is not None else None
        prepared = _Prepared(self, root, anatomy, parts, task, reference)
        if self.kind not in ("zero", "counterfactual"):
            assert reference is not None
            reference.summed()  # now, and not in the middle of a pass
        return prepared


@dataclass(eq=False)
class _Prepared:
    """A fill for some parts of a model and the examples of a task."""

    fill: Fill
    root: nn.Module
    anatomy: Anatomy
    parts: Parts
    task: Task | None
    reference: Reference | None
    _rankings: dict[tuple[bytes, tuple[int, ...]], list[int]] = field(default_factory=dict)
    _counterparts: dict[bytes, int] | None = None

    def of(self, numbers: Sequence[int], batch: Mapping[str, Any], draw: int) -> dict[str, Tensor | StandIn]:
        """What stands in on these examples, by the names of parts."""
        examples = Examples(self.root, self.anatomy, batch, len(numbers))
        with evaluating(self.root), torch.no_grad():
            found = self._whole(numbers, examples, draw)
        if self.fill.at is None:
            return found
        at: Any = self.fill.at
        if not isinstance(at, str | int):
            assert self.task is not None
            if len(at) != self.task.size:
                raise BadPlan(
                    f"Positions are named for {len(at)} examples, and {self.task.size} are measured; name them for every one."
                )
            at = [at[number] for number in numbers]
        zeros = torch.zeros(1)
        return {name: limited(part, found.get(name, zeros), at, examples) for name, part in self.parts.items()}

    def _whole(self, numbers: Sequence[int], examples: Examples, draw: int) -> dict[str, Tensor | StandIn]:
        """At all positions."""
        kind, reference = self.fill.kind, self.reference
        if kind == "zero" or reference is None:
            return {}
        if kind == "mean":
            return {name: reference.mean(name) for name in self.parts}
        if kind == "mean-per-position":
            return {
                name: by_position(part, reference.by_position(name), reference.mean(name), examples)
                for name, part in self.parts.items()
            }
        if kind == "counterfactual":
            return self._counterfactual(numbers, examples)
        make: Callable[..., Make] = self._noise if kind == "noise" else self._resampler(numbers, examples, draw)
        return {name: StandIn(examples, make(name, numbers, examples, draw)) for name in self.parts}

    # -- another example -----------------------------------------------------------------------------------------------------

    def _resampler(self, numbers: Sequence[int], examples: Examples, draw: int) -> Callable[..., Make]:
        """Makes stand-ins from one reference example for each of these."""
        assert self.reference is not None
        lengths = lengths_of(examples.batch, len(numbers))
        drawn = [self._drawn(number, length, draw) for number, length in zip(numbers, lengths, strict=True)]
        donors = self.reference.of_each(sorted(set(drawn)))

        def of(name: str, *_: Any) -> Make:
            def make(x: Tensor, call: int) -> tuple[Tensor, Tensor | None]:
                real = examples.real(self.parts[name], x)
                place, values = places(real), torch.zeros_like(x)
                for row, number in enumerate(drawn):
                    calls = donors[number][name]
                    if call >= len(calls):
                        raise Refused(f"{name} runs less often on the reference examples; take others.")
                    donor = calls[call].to(x)  # (positions, columns)
                    values[row] = donor[place[row].clamp(max=len(donor) - 1)]
                    if int(place[row].max()) >= len(donor):
                        assert self.reference is not None
                        values[row][place[row] >= len(donor)] = self.reference.mean(name).to(x)
                return values, None

            return make

        return of

    def _drawn(self, number: int, length: tuple[int, ...], draw: int) -> int:
        """The reference example that an example gets: the draw-th in an order of its own, never itself."""
        assert self.task is not None
        assert self.reference is not None
        digest, reference = self.task.digest(number), self.reference
        key = digest, length
        if key not in self._rankings:
            others = [n for n in range(reference.task.size) if reference.digest(n) != digest]
            if not others:
                raise BadData(
                    f"{reference.task.name} has no other example than {self.task.describe(number)} itself: give a larger "
                    "reference set."
                )
            as_long = [n for n in others if all(a >= b for a, b in zip(reference.lengths[n], length, strict=False))]
            self._rankings[key] = sorted(
                as_long or others, key=lambda n: _hash(self.fill.seed, digest, reference.digest(n))
            )
        ranking = self._rankings[key]
        return ranking[draw % len(ranking)]

    # -- the counterpart -----------------------------------------------------------------------------------------------------

    def _counterfactual(self, numbers: Sequence[int], examples: Examples) -> dict[str, Tensor | StandIn]:
        """What parts are given on the counterparts of these examples."""
        assert self.task is not None
        assert self.reference is not None
        theirs = [self._counterpart(number) for number in numbers]
        other, found = self.reference.passed(theirs)
        pairs = zip(
            numbers, theirs, lengths_of(examples.batch, len(numbers)), lengths_of(other.batch, len(theirs)), strict=True
        )
        for number, their, own_length, their_length in pairs:
            if own_length != their_length:
                raise BadData(
                    f"{self.task.describe(number)} has {_tokens(own_length)}, and its counterpart "
                    f"({self.reference.task.describe(their)}) {_tokens(their_length)}: they must be aligned token by token."
                )

        def aligned(name: str, recorded: StandIn) -> Make:
            def make(x: Tensor, call: int) -> tuple[Tensor, Tensor | None]:
                examples.real(self.parts[name], x)  # refused where an example is several rows
                return recorded.make(x, call)

            return make

        return {
            name: StandIn(examples, aligned(name, as_recorded(name, calls, examples))) for name, calls in found.items()
        }

    def _counterpart(self, number: int) -> int:
        """The number of an example's counterpart."""
        assert self.task is not None
        originals, counterparts = self.fill.originals or self.task, self.fill.reference
        assert counterparts is not None
        if originals.size != counterparts.size:
            raise BadData(
                f"{counterparts.name} has {counterparts.size} examples and {originals.name} {originals.size}: counterparts are "
                "aligned one by one with what is measured; give as many."
            )
        if originals is self.task:
            return number
        if self._counterparts is None:
            known: dict[bytes, int] = {}
            for place in range(originals.size):
                first = known.setdefault(originals.digest(place), place)
                if counterparts.digest(first) != counterparts.digest(place):
                    raise BadData(
                        f"{originals.describe(place)} is there twice, with different counterparts in {counterparts.name}: leave "
                        "one of them out."
                    )
            self._counterparts = known
        found = self._counterparts.get(self.task.digest(number))
        if found is None:
            raise BadData(
                f"{self.task.describe(number)} has no counterpart in {counterparts.name}: measure examples of {originals.name}."
            )
        return found

    # -- noise ---------------------------------------------------------------------------------------------------------------

    def _noise(self, name: str, numbers: Sequence[int], examples: Examples, draw: int) -> Make:
        """Numbers drawn for each position and column of these examples."""
        assert self.task is not None
        assert self.reference is not None
        digests = [self.task.digest(number) for number in numbers]
        mean, deviation = self.reference.mean(name), self.reference.deviation(name)

        def make(x: Tensor, call: int) -> tuple[Tensor, Tensor | None]:
            real, values = examples.real(self.parts[name], x), torch.zeros_like(x)
            for row, digest in enumerate(digests):
                text = f"{draw}|{call}|{name}".encode()
                random = np.random.default_rng(int.from_bytes(_hash(self.fill.seed, digest, text)[:8], "big"))
                drawn = torch.from_numpy(random.standard_normal((int(real[row].sum()), x.shape[-1])))
                values[row, real[row]] = (mean + deviation * drawn).to(x)
            return values, None

        return make


def _hash(seed: int, one: bytes, other: bytes) -> bytes:
    return hashlib.sha256(f"{seed}|".encode() + one + b"|" + other).digest()


def _tokens(lengths: tuple[int, ...]) -> str:
    return " and ".join(f"{length} tokens" for length in lengths) or "no tokens"


def _at_text(at: At) -> str:
    if isinstance(at, str | int):
        return str(at)
    return f"{len(at)}x{hashlib.sha256(repr(list(at)).encode()).hexdigest()[:8]}"
