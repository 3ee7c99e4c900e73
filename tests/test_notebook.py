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
    drawn = {"svg", "rect", "polyline", "polygon", "circle", "path", "text", "title"}
    assert page.seen <= {"div", "table", "tr", "th", "td"} | drawn
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
    assert "46,080 units<" in plan._repr_html_()
    assert "1 unit<" in anatomy.plan("3:7")._repr_html_()


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


def test_a_map_has_a_cell_for_each_unit_and_stays_light() -> None:
    """32 layers with 32 heads, of which one is gone: its place is empty."""
    units = tuple(hc.Unit(str(layer), head) for layer in range(32) for head in range(32) if (layer, head) != (3, 7))
    kinds = {str(layer): "head" for layer in range(32)}
    page = Scores(units, np.linspace(0, 1, len(units)), "taylor", kinds, dict.fromkeys(kinds, "decoder"))._repr_html_()
    assert len(page) < 150_000
    titles = re.findall(r"<title>(\S+) [\d.]+</title>", page)
    assert titles == [str(unit) for unit in units]
    places = re.findall(r'<rect x="(\d+)" y="(\d+)"', page)
    assert len(set(places)) == len(units)
    rows = {y: [x for x, other in places if other == y] for _, y in places}
    short, whole = (next(row for row in rows.values() if len(row) == n) for n in (31, 32))
    assert set(whole) - set(short) == {whole[7]}


def test_kinds_of_units_have_maps_and_scales_of_their_own() -> None:
    units = (hc.Unit("0", 0), hc.Unit("0", 1), hc.Unit("layers", 0))
    kinds = {"0": "head", "layers": "layer"}
    page = Scores(units, np.array([0.5, 0.25, 100.0]), "taylor", kinds, {"0": "encoder", "layers": None})._repr_html_()
    assert page.count("<svg") == 2
    strengths = [float(one) for one in re.findall(r'fill="rgba\(\d+,\d+,\d+,([\d.]+)\)"', page)]
    assert strengths[0] == strengths[2] > strengths[1]


@pytest.mark.parametrize(
    ("value", "largest", "text"),
    [
        (0.1234, 0.5, ".123"),
        (-0.0271, 0.5, "-.027"),
        (0.0, 0.5, "0.000"),
        (3.14159, 5, "3.14"),
        (12345.6, 12345.6, "12346"),
    ],
)
def test_numbers_fit_into_cells(value: float, largest: float, text: str) -> None:
    assert notebook._in_a_cell(value, largest) == text


def test_what_was_cut_is_a_cross() -> None:
    model = classifier()
    assert "<svg" not in hc.find(model)._repr_html_()
    hc.cut(model, "0:1 2:0-1")
    page = hc.find(model)._repr_html_()
    assert re.findall(r"<title>(\S+) was cut</title>", page) == ["0:1", "2:0", "2:1"]
    assert page.count("<rect") == 12


@pytest.mark.parametrize(("low", "high", "colour"), [(0.1, 0.4, notebook.ORANGE), (-0.1, 0.4, "128,128,128")])
def test_a_difference_is_drawn_beside_zero(low: float, high: float, colour: str) -> None:
    page = notebook.interval(0.2, low, high, worse_above=True)
    assert page.count(f"rgb({colour})") == 2
    x = [float(number) for number in re.findall(r'd="M([\d.]+) 12H([\d.]+)"', page)[0]]
    assert (x[0] > 150) == (low > 0)
    assert x[1] > float(re.findall(r'cx="([\d.]+)"', page)[0]) > 150
    assert notebook.interval(0.2, float("nan"), high, worse_above=True) == ""


def test_a_curve_has_the_interval_of_each_point_around_it() -> None:
    page = _curve()._repr_html_()
    assert len(re.findall(r'<polygon points="([^"]*)"', page)[0].split()) == 2 * len(_curve())
    assert page.count("<circle") == len(_curve())
