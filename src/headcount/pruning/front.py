"""`tradeoff`: what can be had for what. Plans for smaller and smaller budgets from one scoring, each measured.

A row is the best of several candidates for its share of the FLOPs, and rows that a smaller model beats are left out. All of
it happens on scoring examples, so that the numbers are a little too good; what is reported comes from other examples.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from ..data import splits
from ..documents.bench import Ratio
from ..documents.curves import TradeoffDocument, TradeoffRow
from ..documents.results import ResultDocument
from ..efficiency.benchmark import device_text
from ..efficiency.costs import one_example, operations_of
from ..errors import BadPlan
from ..evaluation.evaluator import device_of
from ..model.architectures import ModuleSpec
from ..model.cutting.effects import parameters_removed
from ..model.cutting.surgery import cut
from ..model.discovery import unwrap
from ..plans import Plan
from ..progress import Bar
from ..runs import InMemory
from ..stats.brake import DEFAULT_BRAKE
from ..stats.results import compare
from .budget import BudgetProblem, share_of, times_as_fast
from .candidates import Candidates, Judge, Ranked, Search, ranked
from .legal_plans import STAY_EVEN, rule_of

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

ROWS = 8  # sizes, where no step is asked for
SECONDS = 3.0  # about, for the speed of each


def tradeoff(
    model: nn.Module,
    score: Task,
    *,
    units: str = "heads,neurons",
    by: str | None = None,
    step: str | float | None = None,
    least: int = 0,
    only: str | Iterable[str] = (),
    multiple: int | None = None,
    brake: str | float | None = DEFAULT_BRAKE,
    batch_size: int = 16,
    length: int | None = None,
    speeds: bool = True,
    seed: int = 0,
    runtime: str | Iterable[str] = (),
    tensor_parallel: int = 1,
    groups: str | None = None,
    run: Run | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> TradeoffDocument:
    """The trade-off between size and quality: a row for every share of the FLOPs, each the best of several candidates.

    Args:
        model: The model; it is as it was afterwards.
        score: Data to score and to measure plans on; numbers to report come from other data.
        units: "heads", "neurons", "layers", "kv-groups", or several of them.
        by: The criterion; by default several, of which the best is taken for every row.
        step: Share of the FLOPs between rows, such as "10%"; by default so that there are about eight.
        least: Units that every site keeps.
        only: Restricts the units to types ("encoder", "decoder", "cross").
        multiple: Round the neurons of an MLP to multiples of this.
        brake: Rows that have lost more are marked as ruined: a share of the way to a constant answer, points, or None.
        batch_size: Examples per forward pass, also when speed is measured.
        length: Sequence length at which speed is measured; by default the median.
        speeds: Whether to measure speed.
        seed: Random seed.
        runtime: Only plans that exports to these formats can hold: "gguf", "vllm", ...
        tensor_parallel: With the runtime "vllm", devices that share every layer.
        groups: Groups of query heads: "even" or "uneven"; by default even in models that write text.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The rows, from the mildest on, with a plan each.

    Examples:
        >>> model = hc.load("my-model")
        >>> scored = hc.task("classification", "train.tsv", tokenizer="my-model", limit=64)
        >>> front = hc.pruning.tradeoff(model, scored, step="25%", speeds=False)
        >>> [row.number for row in front.rows][:1]
        [1]
    """
    score = splits.distinct(score)
    settings: dict[str, Any] = {"least": least, "multiple": multiple, "batch_size": batch_size, "seed": seed}
    settings |= {"length": length or sorted(score.lengths)[score.size // 2], "specs": tuple(specs)}
    notes: Any = run or InMemory()
    search = Search(model, score, by, units, only, step or "10%", brake, notes, settings)
    settings["rule"] = search.rule_with(rule_of(runtime, tensor_parallel, groups), groups)
    candidates, scores = search.candidates("flops")
    judge = search.judge
    assert judge is not None
    winners, measured = _front(candidates, judge, None if step is None else share_of(step))
    if not winners:
        raise BadPlan("No plan removes anything here; take more kinds of units, or a smaller step.")
    timings = _Timings(candidates.base, speeds)
    limit, base, rows = judge.brake(brake), judge.whole, list[TradeoffRow]()
    with Bar("speed of every row", len(winners)) as bar:
        for number, winner in enumerate(winners, 1):
            size = _size(candidates.base, winner.plan, timings)
            rows.append(
                TradeoffRow(
                    number=number,
                    plan=winner.plan,
                    removed=len(winner.plan),
                    flops=size.flops / candidates.base.costs.whole,
                    parameters=size.parameters,
                    speed=size.speed,
                    result=ResultDocument.of(winner.result),
                    comparison=compare(base, winner.result, seed=seed),
                    by=winner.rule.by,
                    ruined=limit is not None and limit.holds(winner.result.value),
                )
            )
            bar.advance()
    return TradeoffDocument(
        model=str(getattr(getattr(unwrap(model), "config", None), "name_or_path", "") or type(unwrap(model)).__name__),
        units=",".join(search.counted),
        of=len(next(iter(scores.values()))),
        base=ResultDocument.of(base),
        constant=judge.constant,
        rows=tuple(rows),
        measured=measured,
        n=base.n,
        flops=candidates.base.costs.whole,
        parameters=sum(p.numel() for p in unwrap(model).parameters()),
        batch=batch_size,
        length=settings["length"],
        speed_note=timings.note,
        device=device_text(device_of(unwrap(model))),
        groups=STAY_EVEN * search.rule.even_for_speed,
    )


def shares(least: float, step: float | None) -> list[float]:
    """Shares of the FLOPs that may be left, from the largest on: in round steps, down to what can be reached."""
    if step is None:
        room = (1 - least) / ROWS
        step = next((size for size in (0.005, 0.01, 0.02, 0.025, 0.05) if size >= room), 0.1)
    count = int((1 - least) / step + 1e-9)
    return [round(1 - number * step, 6) for number in range(1, count + 1) if 1 - number * step > 0]


def _front(candidates: Candidates, judge: Judge, step: float | None) -> tuple[list[Ranked], int]:
    """The best plan for every share, without those that a smaller one beats, and how many were measured."""
    base, winners, measured = candidates.base, list[Ranked](), 0
    sizes = shares(base.cheapest() / base.costs.whole, step)
    with Bar("sizes", len(sizes)) as bar:
        for share in sizes:
            plans = candidates.plans(share * base.costs.whole)
            order = ranked(judge, plans) if plans else []
            measured += len(order)
            if order:
                winners.append(order[0]._replace(result=judge.result(order[0].plan)))
            bar.advance()
    front = list[Ranked]()
    for winner in reversed(winners):  # from the smallest on: a larger one must be better
        sign = 1 if winner.result.metric.higher_is_better else -1
        if not front or sign * winner.result.value > sign * front[-1].result.value:
            front.append(winner)
    return front[::-1], measured


class _Size(NamedTuple):
    """What is left of a model: operations, the share of parameters, and how many times as fast it is."""

    flops: float
    parameters: float
    speed: Ratio | None


class _Timings:
    """Times models by the clock, and once others disturb that, by the processor time of one thread."""

    def __init__(self, base: BudgetProblem, wanted: bool) -> None:
        self.problem, self.wanted, self.note = base, wanted, "" if wanted else "not measured"

    def of(self, smaller: nn.Module) -> Ratio | None:
        """How many times as fast a model is."""
        if not self.wanted:
            return None
        ratio = times_as_fast(self.problem, smaller, SECONDS)
        if ratio is None:
            self.note = self.note or "not measured where repetitions differed too much"
        elif ratio.by_processor and self.problem.costs.clock == "wall":
            self.problem = replace(self.problem, costs=replace(self.problem.costs, clock="processor"))
            self.note = "in processor time of one thread, because other programs kept the processor busy"
        return ratio


def _size(base: BudgetProblem, plan: Plan, timings: _Timings) -> _Size:
    smaller = copy.deepcopy(base.model)
    cut(smaller, plan, specs=base.specs)
    flops = operations_of(smaller, one_example(unwrap(base.model), base.length))
    had = sum(p.numel() for p in unwrap(base.model).parameters())
    return _Size(float(flops), 1 - parameters_removed(base.model, plan, specs=base.specs) / had, timings.of(smaller))
