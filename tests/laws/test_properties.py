"""Laws with everything drawn: any family, any plan, any numbers.

`make test` draws the same few examples everywhere, `make fuzz` ten thousand others each time.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
from helpers import zoo
from helpers.same import close, same_weights
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

import headcount as hc
from headcount.documents.scores import Scores
from headcount.model.cutting.rules import refusal
from headcount.stats.paired_tests import benjamini_hochberg, holm

# Those of other packages are skipped where the packages are missing, and a test that draws cannot be skipped in part.
FAMILIES = [name for name in zoo.ZOO if not name.startswith(("timm", "torchvision"))]


def any_plan(draw: Any, model: nn.Module, anatomy: hc.model.Anatomy) -> hc.Plan:
    """A plan of any units of some of the parts that can be cut."""
    parts = [p for p in (*anatomy.sites, *anatomy.stacks) if len(p) > 1 and refusal(p, anatomy, model) is None]
    assume(parts)
    chosen = draw(st.lists(st.sampled_from(range(len(parts))), min_size=1, max_size=4, unique=True))
    units = {parts[n].name: draw(st.sets(st.sampled_from(parts[n].ids), min_size=1)) for n in chosen}
    return hc.Plan.removing(units)


@given(st.data(), st.sampled_from(FAMILIES))
def test_any_plan_is_cut_as_it_is_closed_or_refused_without_a_trace(data: Any, name: str) -> None:
    model, inputs = zoo.build(name)
    anatomy = hc.find(model)
    plan = any_plan(data.draw, model, anatomy)
    before, weights = copy.deepcopy(model.state_dict()), sum(p.numel() for p in model.parameters())
    with hc.masked(model, plan):
        want = zoo.output(model, inputs)
    try:
        promised = hc.model.parameters_removed(model, plan)
        hc.cut(model, plan)
    except hc.errors.Refused:
        assert same_weights(model, before)
        return
    assert close(zoo.output(model, inputs), want)
    assert weights - sum(p.numel() for p in model.parameters()) == promised


@given(st.data(), st.sampled_from(FAMILIES))
def test_a_plan_cut_in_parts_in_any_order_is_cut_at_once(data: Any, name: str) -> None:
    model, inputs = zoo.build(name)
    anatomy = hc.find(model)
    plan = any_plan(data.draw, model, anatomy)
    later = hc.Plan(frozenset(data.draw(st.sets(st.sampled_from(sorted(plan, key=str))))))
    once = copy.deepcopy(model)
    try:
        hc.cut(once, plan)
    except hc.errors.Refused:
        assume(False)
    try:
        hc.cut(model, plan - later)
        left = {part.name for part in (*hc.find(model).sites, *hc.find(model).stacks)}
        hc.cut(model, hc.Plan(frozenset(unit for unit in later if unit.site in left)))  # the rest went with its layer
    except hc.errors.Refused:  # what is left may look like something that cannot be cut: said, and never wrong
        assume(False)
    assert close(zoo.output(model, inputs), zoo.output(once, inputs))
    if all(len(site) > len(plan.by_site().get(site.name, ())) for site in anatomy):
        assert same_weights(model, once)
    else:  # an attention without heads runs a phantom one, whose weights are those of the last or of the first to go
        shapes = [{key: value.shape for key, value in one.state_dict().items()} for one in (model, once)]
        assert shapes[0] == shapes[1]


NAMES = st.sampled_from(["0", "3", "10", "layers", "encoder.2", "decoder.2.cross", "model.blocks.0.attn", "0.mlp"])
INDICES = st.sets(st.integers(0, 40) | st.integers(0, 3000), min_size=1, max_size=20)
PLANS = st.dictionaries(NAMES, INDICES, max_size=4).map(hc.Plan.removing)


@given(PLANS, PLANS)
def test_plans_are_sets_and_survive_being_written(one: hc.Plan, other: hc.Plan) -> None:
    assert hc.Plan.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert not one or hc.Plan.of(str(one)).units == one.units
    assert (one | other).units == one.units | other.units
    assert (one - other) | (one & other) == one
    assert (one <= other) == (set(one) <= set(other))
    assert len(list(one)) == len(one)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40).map(lambda some: np.array(some, float)),
    st.integers(1, 5),
    st.data(),
)
def test_the_lowest_go_as_many_as_asked_and_so_many_stay_per_site(values: np.ndarray, sites: int, data: Any) -> None:
    units = tuple(hc.Unit(str(n % sites), n // sites) for n in range(len(values)))
    names = {unit.site for unit in units}
    scores = Scores(units, values, "x", dict.fromkeys(names, "head"), dict.fromkeys(names))
    least = data.draw(st.integers(0, 2))
    most = sum(max(0, sum(unit.site == name for unit in units) - least) for name in names)
    count = data.draw(st.integers(0, most))
    plan = hc.plan(scores, count, least=least)
    assert len(plan) == count
    for name in names:
        here = [unit for unit in units if unit.site == name]
        assert sum(unit not in plan for unit in here) >= min(least, len(here))
    by_unit = dict(zip(units, values, strict=True))
    if least == 0 and 0 < count < len(units):
        assert max(by_unit[unit] for unit in plan) <= min(by_unit[unit] for unit in units if unit not in plan)


P = st.lists(st.floats(1e-300, 1) | st.sampled_from([0.0, 0.01, 0.02, 0.05, 1.0]), min_size=1, max_size=12)


@given(P)
def test_corrections_are_those_of_their_definitions(p: list[float]) -> None:
    """Holm: the largest of (n - k) p(k) up to a rank; Benjamini-Hochberg: the smallest of n / k p(k) from a rank on."""
    n, order = len(p), np.argsort(p, kind="stable")
    steps = [min(1.0, (n - k) * p[unit]) for k, unit in enumerate(order)]
    shares = [min(1.0, n / (k + 1) * p[unit]) for k, unit in enumerate(order)]
    np.testing.assert_allclose(holm(p)[order], [max(steps[: k + 1]) for k in range(n)], rtol=1e-9)
    np.testing.assert_allclose(benjamini_hochberg(p)[order], [min(shares[k:]) for k in range(n)], rtol=1e-9)
    assert (holm(p) >= benjamini_hochberg(p) * (1 - 1e-9)).all()
