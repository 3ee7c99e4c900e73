"""Processes that train along make the same smaller model as the first one, but for its numbers."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from helpers import zoo

import headcount as hc
from headcount.training import followers


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
@pytest.mark.parametrize("before", ["", "0:1"])
def test_what_is_handed_out_has_the_tensors_of_what_was_cut(
    name: str, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where writers got a bias, and where the model had been cut before."""
    model = zoo.build(name)[0]
    first = hc.find(model).sites[0].name
    if before:
        hc.cut(model, f"{first}:1", fill={first: torch.ones(len(hc.find(model)[first]) * hc.find(model)[first].width)})
    plan = hc.Plan(frozenset(site.units[0] for site in hc.find(model).sites))
    fill = {site.name: torch.ones(len(site) * site.width) for site in hc.find(model).sites}
    smaller = copy.deepcopy(model)
    hc.cut(smaller, plan, fill=fill)
    told: list[Any] = []
    monkeypatch.setattr(followers, "_from_the_first", lambda value, _: told.append(value) or value)
    followers.hand_out(model, smaller)
    monkeypatch.setattr(followers, "_from_the_first", lambda *_: json.loads(json.dumps(told[0])))
    made = followers.handed_out(model)
    shapes = [{key: value.shape for key, value in one.state_dict().items()} for one in (smaller, made)]
    assert shapes[0] == shapes[1]
    assert hc.removed(made) == hc.removed(smaller)
