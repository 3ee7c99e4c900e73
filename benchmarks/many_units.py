"""How the work on plans, scores and cuts grows with the number of units: seconds at ten times as many, as a ratio.

    python benchmarks/many_units.py              # 10,000 and 100,000 neurons
    python benchmarks/many_units.py --units 20000 --only scores

A ratio near ten is what a loop over all units costs; near a hundred, something looks at all of them for each of them.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import headcount as hc
from headcount.documents.scores import Scores
from headcount.efficiency.costs import operations, parameters
from headcount.model.cutting.effects import cut_effects
from headcount.model.cutting.surgery import removed
from headcount.plans import Plan
from headcount.pruning import budget
from headcount.pruning.pipeline import structure
from headcount.pruning.tuning.mask_rearrangement import exchanged

LAYERS = 4
REPEATS = 2


def wide_model(units: int) -> nn.Module:
    """A Llama of a few layers with so many neurons in all, and hardly anything else."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64}
    config = LlamaConfig(**sizes, num_hidden_layers=LAYERS, intermediate_size=units // LAYERS)
    return LlamaForCausalLM(config).eval()


@dataclass
class Subject:
    """A model with so many neurons, scores of them, and a plan without every other one."""

    units: int

    @cached_property
    def model(self) -> nn.Module:
        return wide_model(self.units)

    @cached_property
    def anatomy(self) -> hc.model.Anatomy:
        return hc.find(self.model)

    @cached_property
    def scores(self) -> Scores:
        rng = np.random.default_rng(0)
        units = tuple(unit for site in self.anatomy.neurons for unit in site.units)
        kinds = {site.name: "neuron" for site in self.anatomy.neurons}
        samples = rng.exponential(size=(8, len(units)))
        types: dict[str, str | None] = dict.fromkeys(kinds)
        return Scores(units, samples.mean(0), "fisher", kinds, types, "layer", samples=samples)

    @cached_property
    def plan(self) -> Plan:
        return Plan(frozenset(unit for site in self.anatomy.neurons for unit in site.units[1::2]), "every other one")

    @cached_property
    def text(self) -> str:
        return str(self.plan)

    @cached_property
    def cut_model(self) -> nn.Module:
        smaller = copy.deepcopy(self.model)
        hc.cut(smaller, self.plan)
        return smaller

    @cached_property
    def purse(self) -> budget.BudgetProblem:
        return budget.purse(self.model, self.scores.normalized(None), "flops", length=8)


def _written_and_read(subject: Subject) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scores.json")
        subject.scores.write(path)
        return Scores.read(path)


def _exchanged(subject: Subject) -> Any:
    """A tenth of the units, because products of all with all are what exchanging is about."""
    units = len(subject.anatomy.neurons[0]) // 10
    signed = np.random.default_rng(0).normal(size=(16, units))
    return exchanged(signed, np.arange(units) % 2 == 0)


def _cut(subject: Subject) -> Any:
    smaller = copy.deepcopy(subject.model)
    return hc.cut(smaller, subject.plan)


def _cut_again(subject: Subject) -> Any:
    smaller = copy.deepcopy(subject.cut_model)
    return hc.cut(smaller, Plan(frozenset(list(subject.scores.units)[::8])))


WORK: dict[str, Callable[[Subject], Any]] = {
    "find": lambda s: hc.find(s.model),
    "scores[unit] for all": lambda s: [s.scores[unit] for unit in s.scores],
    "scores.values, stderr": lambda s: (s.scores.values, s.scores.stderr),
    "scores.order": lambda s: s.scores.order(1),
    "scores.order, without a plan": lambda s: s.scores.order(1, s.plan),
    "scores.only": lambda s: s.scores.only("neurons"),
    "scores.normalized": lambda s: s.scores.normalized("global"),
    "scores.stability": lambda s: s.scores.stability(resamples=4),
    "scores written and read": _written_and_read,
    "str(scores)": lambda s: str(s.scores),
    "plan(scores, 40%)": lambda s: hc.plan(s.scores, "40%"),
    "str(plan)": lambda s: str(s.plan),
    "Plan.of(text)": lambda s: Plan.of(s.text),
    "plan as JSON and back": lambda s: Plan.from_json(json.loads(json.dumps(s.plan.to_json()))),
    "plan - plan, plan & plan": lambda s: (s.plan - s.plan, s.plan & s.plan, s.plan | s.plan),
    "iterating a plan": lambda s: list(s.plan),
    "anatomy.plan(plan)": lambda s: s.anatomy.plan(s.plan),
    "anatomy.plan(text)": lambda s: s.anatomy.plan(s.text),
    "anatomy.plan(units)": lambda s: s.anatomy.plan([str(unit) for unit in s.plan.units]),
    "masked": lambda s: hc.masked(s.model, s.plan).__enter__(),
    "cut_effects": lambda s: cut_effects(s.model, s.plan),
    "cut": _cut,
    "cut what was cut": _cut_again,
    "removed": lambda s: removed(s.cut_model),
    "find what was cut": lambda s: hc.find(s.cut_model),
    "structure": lambda s: structure(s.model, s.plan),
    "operations": lambda s: operations(s.model, 8),
    "parameters": lambda s: parameters(s.model),
    "a budget": lambda s: budget.within(s.purse, "60%"),
    "plans for a promise": lambda s: list(budget.courses(s.purse, 0.25)),
    "exchanges (a tenth)": _exchanged,
}


def seconds(work: Callable[[Subject], Any], subject: Subject) -> float:
    """The shortest of a few times, without what is made once for all."""
    _ = subject.scores, subject.plan, subject.text, subject.cut_model, subject.purse
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        work(subject)
        best = min(best, time.process_time() - start)
        if best > 5:
            break
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--units", type=int, default=10_000, help="neurons of the smaller model; the larger has ten times as many"
    )
    parser.add_argument("--only", default="", help="what has this in its name")
    options = parser.parse_args()
    small, large = Subject(options.units), Subject(10 * options.units)
    print(f"{'':<32}{small.units:>10,}{large.units:>10,}   ratio")
    for name, work in WORK.items():
        if options.only in name:
            one, ten = seconds(work, small), seconds(work, large)
            print(f"{name:<32}{one:>9.4f}s{ten:>9.3f}s{ten / max(one, 1e-4):>8.1f}", flush=True)


if __name__ == "__main__":
    main()
