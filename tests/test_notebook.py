"""Results print themselves: short in Python, as escaped HTML in a notebook."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.small_models import class_task, classifier

import headcount as hc
from headcount import notebook
from headcount.documents.bench import Bench, Speed, Subject
from headcount.documents.roles import Head, Role, Roles
from headcount.documents.scores import Scores
from headcount.pruning import pipeline

EVIL = "<img src=x onerror=alert(1)>&\"'"


@cache
def _model() -> Any:
    return classifier()


@cache
def _scores() -> Scores:
    return hc.score(_model(), by="magnitude")


@cache
def _curve() -> Any:
    return hc.curve(_model(), class_task(16), _scores(), step="50%")


def _bench(name: str = "whole") -> Bench:
    rows = tuple(Speed(n, 1, 8, s, s, s, r, r, r, 1.0, 2.0, 0.5) for n, s, r in ((name, 0.4, 1.0), ("small", 0.6, 1.5)))
    subjects = tuple(Subject(n, "M", 10, 40) for n in (name, "small"))
    return Bench("cpu", "float32", False, "2", 5, subjects, rows)


def _roles(text: str = "looks at the word before") -> Roles:
    role = Role(role="position", text=text, **dict.fromkeys(set(Role._fields) - {"role", "text"}, 0.5))
    fields = dict.fromkeys(set(Head._fields) - {"unit", "site", "main", "roles"}, None)
    head = Head(unit="0:1", site="0", main="position", roles=(role,), **fields)  # type: ignore[arg-type]
    return Roles("bert", 3, 9, "3 sentences", (head,), (), (), {}, {})


def _pruned() -> Any:
    choice = hc.pruning.choose(_model(), plan="0:1")
    base, after = _curve()[0].result, _curve()[1].result
    return pipeline.Pruned(choice, base, after, hc.compare(base, after), (10, 8), (40, 32), _bench(), (), None, (9, 7))


RESULTS: dict[str, Callable[[], Any]] = {
    "Anatomy": lambda: hc.find(_model()),
    "Scores": _scores,
    "Ablation": lambda: hc.ablate(_model(), class_task(8)),
    "Curve": _curve,
    "Roles": _roles,
    "Comparison": lambda: _curve()[1].comparison,
    "Result": lambda: _curve().base,
    "Choice": lambda: hc.pruning.choose(_model(), plan="0:1"),
    "Pruned": _pruned,
    "Plan": lambda: hc.Plan("0:1-2 1.mlp:3", why="an experiment"),
    "Bench": _bench,
}


class _Balanced(HTMLParser):
    """Opens and closes every element."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def _parsed(page: str) -> _Balanced:
    reader = _Balanced()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_prints_itself_in_a_few_lines(name: str) -> None:
    result = RESULTS[name]()
    assert type(result).__name__ == name
    text = repr(result)
    assert text.count("\n") < 20
    assert len(text) < 1500
    assert "array(" not in text
    assert "tensor(" not in text
    assert "object at 0x" not in text


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_gets_html_with_the_numbers_in_it(name: str) -> None:
    result = RESULTS[name]()
    page = _parsed(result._repr_html_())
    assert page.seen <= {"div", "table", "tr", "th", "td", "svg", "rect", "polyline"}
    numbers = [number for number in re.findall(r"\d+\.\d+", str(result)) if len(number) > 3]
    assert not numbers or any(number in page.text for number in numbers)


@pytest.mark.parametrize(
    "make",
    [
        lambda: hc.Plan("0:1", why=EVIL),
        lambda: Scores((hc.Unit(EVIL, 0),), np.ones(1), EVIL, {EVIL: "head"}, {EVIL: None}),
        lambda: Scores(tuple(hc.Unit(EVIL, n) for n in range(99)), np.ones(99), EVIL, {EVIL: "head"}, {EVIL: None}),
        lambda: _bench(EVIL),
        lambda: _roles(EVIL),
    ],
)
def test_what_comes_from_outside_is_escaped(make: Callable[[], Any]) -> None:
    page = make()._repr_html_()
    assert "<img" not in page
    assert "&lt;img" in page
    assert "img" not in _parsed(page).seen


def test_a_small_language_model_prints_on_one_screen() -> None:
    """SmolLM2's sizes: 30 layers, which as a value had 76,220 characters."""
    sizes = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=99, intermediate_size=1536, **sizes))
    anatomy = hc.find(model)
    assert len(repr(anatomy)) < 400
    assert len(anatomy._repr_html_()) < 3000
    assert [line.split()[0] for line in repr(anatomy).splitlines()[2:4]] == ["0-29", "0-29.mlp"]
    plan = anatomy.plan("*.mlp:*")
    assert len(repr(plan)) < 500
    assert "46,080 units" in repr(plan)


def test_layers_that_differ_have_a_line_each() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 8}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=9, **sizes))
    hc.cut(model, "2:0 3.mlp:1")
    names = [line.split()[0] for line in str(hc.find(model)).splitlines()[2:-1]]
    assert names == ["0-1", "0-2.mlp", "2", "3-4", "3.mlp", "4.mlp"]


def test_numbers_that_are_none_do_not_stop_a_map() -> None:
    page = notebook.shades({"0": {"0": float("nan"), "1": 1.0}, "1": {"0": float("inf")}})
    assert "nan" in _parsed(page).text
    assert notebook.curve([(0, 1.0)], "x", "y") == ""
