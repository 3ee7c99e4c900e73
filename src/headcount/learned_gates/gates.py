"""Gates that learn, on a live model: `learning`. They own their weights and their optimiser, and leave nothing behind.

The gates of a step are leaves of the model's graph, so any number of passes may use them (accumulation, checkpointing, a
Trainer): `backward` fills their gradients, and `Gates.step` hands those on to the weights that the gates were drawn from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import __version__
from ..documents.scores import Scores
from ..errors import BadPlan
from ..evaluation.evaluator import device_of
from ..hashing import fingerprint
from ..importance.layer_orders import every_other
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..model.gates import applied
from ..plans import Plan, Unit
from . import methods, relaxations
from .candidates import Chosen, budgets, exactly_one_of, one_of_each, parts_with_gates, shares, starts
from .methods import LayerDrop, Method, method_of

FEW = 4096  # gates
NEWER = ("beta2", "decay", "cooled")  # settings that trainings of older versions do not have
SETTLE = 0.2  # share of the steps, at the end, in which the choice stands and only the model learns


@contextmanager
def learning(
    model: nn.Module,
    method: str = "subset",
    *,
    keep: int | float | str | None = None,
    units: str | Iterable[str] = "heads",
    only: str | Iterable[str] = (),
    skip: Iterable[str] = (),
    steps: int | None = None,
    settle: float | None = None,
    pipelined: bool = False,
    seed: int = 0,
    specs: Iterable[ModuleSpec] = (),
    **settings: Any,
) -> Iterator[Gates]:
    """Within the block, every unit of the model is multiplied by a gate that learns; gives the gates.

    Train the model as you like, and call `gates.step()` after each step of your optimiser; then `gates.plan()` is what to
    cut. `method` is "l0" (Voita et al. 2019), "subset" (Li et al. 2021), "movement" (Sanh et al. 2020) or "layerdrop"
    (Fan et al. 2020), with `settings` as in `learned_gates.methods`. `keep` units stay: a count, or a share of them; with
    several kinds of units, a share of each. `units` are "heads", "neurons", "layers", or "mlps" and "attentions", which go
    whole. `only` restricts them to attention types; sites named by `skip` get no gates.

    The gates learn in the first part of the `steps`; for the last share of them, `settle`, they stand at 0 or 1 while the
    model learns on. With `pipelined` the model's weights are meant to stay as they are (`train` sees to it), and nothing
    settles.

    In evaluation mode the gates are 0 or 1 and never random: what is kept by now (for layerdrop: everything). A copy of
    the model that is made inside the block keeps the hooks of it: copy a teacher before.
    """
    rows = tuple(specs)
    anatomy, root = find(model, rows), unwrap(model)
    names = [only] if isinstance(only, str) else list(only)
    parts = parts_with_gates(anatomy, [units] if isinstance(units, str) else list(units), [n for n in names if n])
    skipped = set(skip)
    chosen = [(part, goes_whole) for part, goes_whole in parts if part.name not in skipped]
    if not chosen:
        raise BadPlan("Every site that would get gates is to be skipped; skip fewer.")
    share = (0.0 if pipelined else SETTLE) if settle is None else settle
    if not 0 <= share < 1:
        raise BadPlan(f"settle is a share of the steps, from 0 to below 1; I got {settle!r:.40}.")
    gates = Gates(root, chosen, method_of(method, **settings), keep, steps, share, pipelined, seed)
    needed = [parameter for parameter in root.parameters() if parameter.requires_grad]
    try:
        with applied(root, anatomy, gates.live()):
            yield gates
    finally:
        for parameter in needed if pipelined else ():  # whoever froze them for it may have been interrupted
            parameter.requires_grad_(True)


class Gates:
    """Gates that learn, one for each unit (or whole part); made by `learning`.

    `steps` is how long the learning takes; it may be set until the first step. `done` counts the steps so far.
    """

    def __init__(
        self,
        root: nn.Module,
        chosen: Chosen,
        method: Method,
        keep: int | float | str | None,
        steps: int | None,
        settle: float,
        pipelined: bool,
        seed: int,
    ) -> None:
        self._root, self._chosen, self._how, self._seed = root, tuple(chosen), method, seed
        self.steps, self.settle, self.weights_frozen, self.done = steps, settle, pipelined, 0
        self.sizes = tuple(1 if goes_whole else len(part) for part, goes_whole in chosen)
        exactly_one_of(keep, method)
        self.budgets = budgets(chosen, keep)
        # a few hundred gates are drawn faster on the CPU than a GPU can be told to
        device = device_of(root)
        home = device if sum(self.sizes) > FEW and device.type == "cuda" else torch.device("cpu")
        start = method.begin(self.sizes, self._generator(0))
        self.weights = nn.Parameter(start.to(home), requires_grad=bool(method.lr))
        self._prices = torch.zeros(len(self.budgets), dtype=start.dtype, device=home)  # of an open gate, where found
        self._owed, self._scale = self._prices.clone(), self._prices.new_zeros(())
        self._columns = [len(part) * getattr(part, "width", 1) for part, _ in chosen]  # that each part's gates multiply
        self._owner = _owners(self.sizes, self._columns).to(home)  # the gate that each of them belongs to
        self._optimiser: torch.optim.Optimizer = torch.optim.Adam(
            [self.weights], lr=method.lr or 1.0, betas=(0.9, getattr(method, "beta2", methods.BETA2))
        )
        if isinstance(method, methods.Movement):
            self._optimiser = torch.optim.SGD([self.weights], lr=method.lr)
        self._drawn: Tensor | None = None  # the gates of this step, as a function of the weights
        self._leaves: list[Tensor] = []  # the same as the model sees them: part by part, a number per column
        self._hard: list[Tensor] | None = None  # what is kept by now, in the same form
        self._draw()

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def method(self) -> str:
        """The name of the method."""
        return self._how.name

    @property
    def units(self) -> tuple[Unit, ...]:
        """Every unit that has a gate."""
        return tuple(unit for part, _ in self._chosen for unit in part.units)

    def question(self) -> dict[str, Any]:
        """What tells these gates from others, as plain JSON."""
        # as it always was, a newer setting is not part of the question: trainings that are older than it go on
        usual = {setting.name: setting.default for setting in fields(self._how) if setting.name in NEWER}
        settings = {
            name: value for name, value in asdict(self._how).items() if name not in usual or value != usual[name]
        }
        how = {f"gates' {name}": value for name, value in settings.items()}
        about = {"gates' settle": self.settle, "gates' seed": self._seed, "pipelined": self.weights_frozen}
        sites = [[part.name, [*part.ids], goes_whole] for part, goes_whole in self._chosen]
        return {
            "method": self.method, "steps": self.steps, "keep": [b.keep for b in self.budgets], "units": fingerprint(sites),
            **how, **about,
        }  # fmt: skip

    @property
    def keep(self) -> int | None:
        """How many gates are to be open in the end; None where a penalty alone decides."""
        counts = [budget.keep for budget in self.budgets]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def progress(self) -> float:
        """How far the learning of the gates has come, from 0 to 1; at 1 the choice stands."""
        if self.steps is None:
            return 0.0
        return min(1.0, self.done / max(1, round(self.steps * (1 - self.settle))))

    @property
    def settled(self) -> bool:
        """Whether the choice stands: gates are 0 or 1 from here on."""
        return self.progress >= 1 and not isinstance(self._how, LayerDrop)

    def live(self) -> dict[str, Callable[[], Tensor]]:
        """For each part a function that gives its gates of the moment, as `gates.applied` takes them."""
        return {part.name: partial(self._now, place) for place, (part, _) in enumerate(self._chosen)}

    def expected(self) -> float:
        """The expected number of open gates."""
        if self.settled:
            return float(self._kept().sum())
        with torch.no_grad():
            return float(self._how.expected(self.weights, self.budgets, self.progress).sum())

    def price(self) -> float | None:
        """The price of an open gate, in units of the loss, by now; None for methods without one."""
        how = self._how
        if not isinstance(how, methods.L0):
            return None
        if how.l0 is not None:
            return how.l0 / (len(self.sizes) if how.per == "block" else 1)
        return float((self._scale * self._owed).mean())

    def open(self) -> int | None:
        """How many gates are open by themselves, before the number is made exact; None for methods that count."""
        return int(self._how.open(self.weights).sum()) if isinstance(self._how, methods.L0) else None

    # -- learning ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Learn from the gradients that came back since the last step, and draw the gates of the next one."""
        if self.steps is None and self.keep is not None and not isinstance(self._how, LayerDrop):
            raise BadPlan("The gates do not know how many steps there will be; say learning(..., steps=...).")
        if self.weights.requires_grad and not self.settled:
            self._learn()
        self.done += 1
        self._hard = None
        self._draw()

    def _learn(self) -> None:
        assert self._drawn is not None
        gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in self._leaves]
        columns = _averaged(torch.cat(gradients)).to(self.weights)
        gradient = torch.zeros_like(self.weights).index_add_(0, self._owner, columns)
        self._optimiser.zero_grad(set_to_none=True)
        if self._drawn.requires_grad:
            self._drawn.backward(gradient)
        if isinstance(self._how, methods.L0):
            self._punish(self._how, gradient)
        if isinstance(self._how, methods.Subset) and self._how.decay and self.steps:
            for group in self._optimiser.param_groups:
                group["lr"] = self._how.lr * max(0.0, 1 - self.done / self.steps)
        self._optimiser.step()

    def _punish(self, how: methods.L0, gradient: Tensor) -> None:
        """Add the gradient of the penalty, at the price of the moment."""
        if how.l0 is None:
            with torch.no_grad():
                fresh = gradient.abs().mean()
                self._scale = torch.where(self._scale > 0, 0.95 * self._scale + 0.05 * fresh, fresh)
                off = how.off(self.weights, self.budgets, self.progress)
                speed = how.reach / max(1, round((self.steps or 0) * (1 - self.settle)))
                self._owed = (self._owed + speed * off.clamp(-1, 1)).clamp(-how.reach, how.reach)
                self._prices = self._scale * (self._owed + off.clamp(-3, 3))
        how.penalty(self.weights, self._prices, self.budgets, len(self.sizes)).backward()

    def _draw(self) -> None:
        """The gates of the next step, from the seed and the number of the step."""
        if self.settled:
            self._drawn, self._leaves = None, self._open()
            return
        how = self._how
        noise = torch.rand(sum(self.sizes), dtype=torch.float64, generator=self._generator(self.done + 1))
        with torch.enable_grad():
            self._drawn = how.gates(self.weights, noise.to(self.weights), self.budgets, self.progress)
        self._leaves = self._placed(self._drawn)
        for leaf in self._leaves:
            leaf.requires_grad_(self.weights.requires_grad)

    def _now(self, place: int) -> Tensor:
        """The gates of a part: those of this step in training, what is kept by now in evaluation."""
        return self._leaves[place] if self._root.training else self._open()[place]

    def _open(self) -> list[Tensor]:
        if self._hard is None:
            everything = isinstance(self._how, LayerDrop)
            self._hard = self._placed(torch.ones_like(self.weights) if everything else self._kept())
        return self._hard

    def _placed(self, gates: Tensor) -> list[Tensor]:
        """Gates where the model is, part by part, a number for every column of its writer."""
        columns = gates.detach().float()[self._owner].to(device_of(self._root))
        return [part_gates.detach() for part_gates in columns.split(self._columns)]

    def _parts(self, gates: Tensor) -> list[Tensor]:
        """Gates part by part, one for every unit."""
        pieces = zip(gates.split(self.sizes), self._chosen, strict=True)
        return [part_gates.expand(len(part)) if goes_whole else part_gates for part_gates, (part, goes_whole) in pieces]

    def drawn(self) -> dict[str, Tensor]:
        """The gates of this step: for every part a number per unit."""
        now = self._kept() if self._drawn is None else self._drawn.detach()
        return {part.name: part_gates for (part, _), part_gates in zip(self._chosen, self._parts(now), strict=True)}

    def _generator(self, number: int) -> torch.Generator:
        """Random numbers that depend on the seed and a number alone: the same on every device and in every process."""
        mixed = int(np.random.SeedSequence([self._seed, number]).generate_state(1, np.uint64)[0] >> 1)
        return torch.Generator().manual_seed(mixed)

    # -- what was learned --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _kept(self) -> Tensor:
        """1 for the gates that would stay if it ended now."""
        if isinstance(self._how, LayerDrop):
            return self._spaced()
        out = torch.empty_like(self.weights)
        for first, last, keep in self.budgets:
            some = self.weights[first:last]
            assert keep is not None or isinstance(self._how, methods.L0)
            out[first:last] = self._how.open(some) if keep is None else relaxations.largest(some, keep)
        return one_of_each(out, self.weights, self.sizes, [part.kind == "layer" for part, _ in self._chosen])

    def _spaced(self) -> Tensor:
        """Evenly spaced units: of every stack or site its share; parts that go whole are spaced among themselves."""
        out, places = torch.ones_like(self.weights), starts(self.sizes)
        for first, last, keep in self.budgets:
            if keep is None:
                continue
            inside = [(start, size) for start, size in zip(places, self.sizes, strict=True) if first <= start < last]
            lists = inside if any(size > 1 for _, size in inside) else [(first, last - first)]
            out[first:last] = 0
            layers = self._chosen[places.index(first)][0].kind == "layer"  # no stack of which can be empty
            for (start, size), count in zip(lists, shares(keep, [size for _, size in lists], int(layers)), strict=True):
                out[[start + offset for offset in every_other(size, count)]] = 1
        return out

    def plan(self) -> Plan:
        """What goes if it ended now."""
        part_gates = self._parts(self._kept())
        removed_units = [
            unit
            for (part, _), gates in zip(self._chosen, part_gates, strict=True)
            for unit, gate in zip(part.units, gates.tolist(), strict=True)
            if not gate
        ]
        return Plan(frozenset(removed_units), f"{len(removed_units)} of {len(self.units)} units, by {self.method}")

    def scores(self) -> Scores:
        """What the gates were drawn from, unit by unit: bigger = matters more."""
        # evenly spaced sets are not nested, so no fixed order has them all: what stays comes after what goes
        spaced = self._kept() if isinstance(self._how, LayerDrop) and self.keep is not None else 0
        raw = np.concatenate([p.cpu().double().numpy() for p in self._parts(self.weights.detach() + spaced)])
        kinds = {part.name: part.kind for part, _ in self._chosen}
        types = {part.name: getattr(part, "attention", None) for part, _ in self._chosen}
        settings = {
            "by": self.method,
            "keep": self.keep,
            "steps": self.done,
            "seed": self._seed,
            "model": type(self._root).__name__,
            "headcount": __version__,
        }
        line = "|".join(f"{key}:{value}" for key, value in settings.items() if value is not None)
        return Scores(self.units, raw, self.method, kinds, types, None, line)

    def state(self) -> dict[str, Tensor]:
        """All that `load_state` needs to go on from here, as flat tensors on the CPU."""
        moments = self._optimiser.state.get(self.weights, {})
        tensors = {"weights": self.weights, "owed": self._owed, "scale": self._scale, "done": torch.tensor(self.done)}
        tensors |= {f"adam.{name}": value for name, value in moments.items() if isinstance(value, Tensor)}
        return {name: value.detach().cpu().clone() for name, value in tensors.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state that `state` gave, of gates with the same question."""
        if "weights" not in state or state["weights"].shape != self.weights.shape:
            raise BadPlan(f"The state belongs to other gates; these are {len(self.weights)}: start again without it.")
        with torch.no_grad():
            self.weights.copy_(state["weights"])
        self._owed, self._scale = state["owed"].to(self._owed), state["scale"].to(self._scale)
        moments = {name[5:]: value for name, value in state.items() if name.startswith("adam.")}
        # Adam counts its steps on the CPU, and keeps its moments beside the weights
        placed = {name: v.clone() if name == "step" else v.to(self.weights) for name, v in moments.items()}
        self._optimiser.state[self.weights] = placed
        if not placed:
            self._optimiser.state.clear()
        self.done, self._hard = int(state["done"]), None
        self._draw()


def _owners(sizes: Sequence[int], columns: Sequence[int]) -> Tensor:
    """For every column of every part, the number of the gate that it belongs to."""
    owners = [
        torch.arange(size).repeat_interleave(wide // size) + start
        for size, wide, start in zip(sizes, columns, starts(sizes), strict=True)
    ]
    return torch.cat(owners)


def _averaged(gradient: Tensor) -> Tensor:
    """The mean over processes, where there are several: the gates are no part of what the model's wrapper averages."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return gradient
    torch.distributed.all_reduce(gradient)
    return gradient / torch.distributed.get_world_size()
