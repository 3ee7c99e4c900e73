"""Plans are values: their text, their JSON, their algebra, and what becomes of damaged ones."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from conftest import says
from helpers import zoo

from headcount import Plan, Unit, find
from headcount.errors import BadPlan
from headcount.model import Anatomy
from headcount.plans import legalize, parse, ranges

PLANS = [
    Plan(),
    Plan.of("3:7"),
    Plan.of("3:0-2,7", "layers:4", why="an experiment"),
    Plan.of("decoder.10.cross:1", "decoder.9.cross:0,2,4-6", "3.mlp:0-99"),
    Plan.removing({"vision.0": range(3), "text.1.mlp": [5]}, why='quotes " and ü'),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_plan_survives_text_json_and_file(plan: Plan, tmp_path: Path) -> None:
    assert Plan.of(*str(plan).split() if plan else (), why=plan.why) == plan
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan
    assert Plan.read(str(tmp_path / "plan.json")) == plan


@pytest.mark.parametrize(
    ("text", "site", "indices"),
    [
        ("3:7", "3", [7]),
        ("3:0-2,7", "3", [0, 1, 2, 7]),
        (" 3:5,1 ", "3", [5, 1]),
        ("layers:2-2", "layers", [2]),
        ("decoder.2.cross:0", "decoder.2.cross", [0]),
        ("model.layers.0.self_attn:4,6-7", "model.layers.0.self_attn", [4, 6, 7]),
    ],
)
def test_text_means_the_units_it_names(text: str, site: str, indices: list[int]) -> None:
    assert parse(text) == [Unit(site, index) for index in indices]


def test_ranges_are_the_inverse_of_reading_for_every_subset_of_six() -> None:
    for size in range(1, 7):
        for chosen in combinations(range(6), size):
            text = ranges(chosen)
            assert [unit.index for unit in parse(f"x:{text}")] == list(chosen)
            assert text.count("-") == sum(1 for i in chosen if i - 1 not in chosen and i + 1 in chosen)


def test_a_list_of_indices_is_read_like_its_ranges() -> None:
    written = {"format": 1, "remove": {"3": [7, 0, 1, 2]}}
    assert Plan.from_json(written) == Plan.of("3:0-2,7")


def test_plans_are_sets_of_units() -> None:
    a, b = Plan.of("0:0-2", "1:5", why="a"), Plan.of("0:2-3", why="b")
    assert a | b == Plan.of("0:0-3", "1:5", why="a")
    assert a & b == Plan.of("0:2", why="a")
    assert a - b == Plan.of("0:0-1", "1:5", why="a")
    assert (Plan() | b).why == "b"
    assert a & b <= a
    assert a & b <= b
    assert not a <= b
    assert (len(a), len(b), len(Plan())) == (4, 2, 0)
    assert not Plan()
    assert Unit("1", 5) in a
    assert Unit("1", 4) not in a
    assert "1:5" not in a
    assert {a: 1}[Plan.of("1:5", "0:0,1,2", why="a")] == 1


def test_units_come_in_the_order_of_their_numbers_not_of_their_letters() -> None:
    plan = Plan.of("10:1", "9:10", "9:9", "decoder.10:0", "decoder.9.cross:0", "layers:0")
    assert [str(unit) for unit in plan] == ["9:9", "9:10", "10:1", "decoder.9.cross:0", "decoder.10:0", "layers:0"]
    assert list(plan.by_site()) == ["9", "10", "decoder.9.cross", "decoder.10", "layers"]
    assert str(plan) == "9:9-10 10:1 decoder.9.cross:0 decoder.10:0 layers:0"
    assert str(Plan()) == "nothing"


# -- legalize --------------------------------------------------------------------------------------------------------

GROUPS = [{0, 1}, {2, 3}, {4, 5}, {6, 7}]  # 8 query heads, 4 kv heads
SUBSETS = [frozenset(c) for size in range(9) for c in combinations(range(8), size)]


@pytest.fixture(scope="module")
def grouped() -> Anatomy:
    return find(zoo.build("llama")[0])


def _is_regular(removed: frozenset[int], to: str) -> bool:
    left = {len(group - removed) for group in GROUPS} - {0}
    return left <= {2} if to == "whole" else len(left) <= 1


@pytest.mark.parametrize("to", ["even", "whole"])
def test_legalize_gives_the_largest_regular_plan_within_each_of_256(to: str, grouped: Anatomy) -> None:
    regular = [subset for subset in SUBSETS if _is_regular(subset, to)]
    assert 10 < len(regular) < 256
    for asked in SUBSETS:
        plan = legalize(Plan.removing({"0": asked}, why="w"), grouped, to=to)
        got = frozenset(unit.index for unit in plan)
        assert {unit.site for unit in plan} <= {"0"}
        assert got <= asked, "only gives heads back"
        assert _is_regular(got, to)
        assert len(got) == max(len(subset) for subset in regular if subset <= asked)
        assert plan.why == "w"
        if asked in regular:
            assert got == asked


def test_legalize_treats_attentions_one_by_one_and_leaves_other_units_alone(grouped: Anatomy) -> None:
    plan = Plan.of("0:0", "1:0,2,4,6", "0.mlp:3", "layers:1")
    assert legalize(plan, grouped) == plan - Plan.of("0:0")
    plain = find(zoo.build("bert")[0])
    for to in ("even", "whole"):
        assert legalize(Plan.of("0:1,3"), plain, to=to) == Plan.of("0:1,3"), "every head has its own keys and values"


# -- damaged and hostile plans ---------------------------------------------------------------------------------------


@contextmanager
def at_once() -> Iterator[None]:
    """Within the block, little is computed: milliseconds, where spelling out a range of millions would take minutes.

    The time of this process is what counts, so that it does not matter what else a machine is doing.
    """
    start = time.process_time()
    yield
    assert time.process_time() - start < 5


def _with(remove: Any = None, **other: Any) -> dict[str, Any]:
    return {"format": 1, "remove": {"0": [1]} if remove is None else remove, **other}


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


BAD_JSON = {
    "null": None,
    "number": 3,
    "text": "0:1",
    "list": [["0", 1]],
    "empty object": {},
    "only a format": {"format": 1},
    "no format": {"remove": {"0": [1]}},
    "format 2": _with(format=2),
    "format as text": _with(format="1"),
    "format as bool": _with(format=True),
    "format as object": _with(format={"1": 1}),
    "remove is a list": _with(remove=[["0", 1]]),
    "remove is text": _with(remove="0:1"),
    "site with a space": _with({"0 1": [1]}),
    "site with a newline": _with({"0\n1": [1]}),
    "site with a slash": _with({"../../etc": [1]}),
    "empty site": _with({"": [1]}),
    "long site": _with({"x" * 10_000: [1]}),
    "number as site": _with({3: [1]}),
    "number as indices": _with({"0": 1}),
    "null as indices": _with({"0": None}),
    "object as indices": _with({"0": {"1": 1}}),
    "bool as indices": _with({"0": True}),
    "bool as an index": _with({"0": [True]}),
    "float as an index": _with({"0": [1.0]}),
    "nan as an index": _with({"0": [float("nan")]}),
    "text as an index": _with({"0": ["1"]}),
    "list as an index": _with({"0": [[1]]}),
    "object as an index": _with({"0": [{}]}),
    "deep list as an index": _with({"0": [_nested(100_000)]}),
    "deep list as a plan": _nested(100_000),
    "negative index": _with({"0": [-1]}),
    "negative text": _with({"0": "-1"}),
    "huge index": _with({"0": [10**300]}),
    "huge text": _with({"0": "9" * 400}),
    "eight digits": _with({"0": "99999999"}),
    "wide range": _with({"0": "0-99999999"}),
    "backwards range": _with({"0": "7-3"}),
    "backwards range that makes up for a wide one": _with({"0": "0-5,9999999-0"}),
    "open range": _with({"0": "3-"}),
    "empty text": _with({"0": ""}),
    "stray comma": _with({"0": "1,,2"}),
    "spaces": _with({"0": "1, 2"}),
    "newline": _with({"0": "1\n"}),
    "duplicate in a list": _with({"0": [1, 1]}),
    "duplicate in text": _with({"0": "1,1"}),
    "overlapping ranges": _with({"0": "0-4,3-6"}),
    "why is a number": _with(why=3),
    "why is a list": _with(why=["because"]),
}


@pytest.mark.parametrize("data", BAD_JSON.values(), ids=BAD_JSON)
def test_malformed_json_is_one_bad_plan_at_once(data: Any) -> None:
    with at_once(), says(BadPlan):
        Plan.from_json(data)


@pytest.mark.parametrize(
    "text",
    ["", ":", "3", "3:", ":7", "3:x", "3:-1", "3:7-", "3:5-2", "3:1,1", "3:0x1", "3:1.5", "3 4:1", "a/b:1",
     "3:99999999", "3:" + "9" * 5000, "x" * 300 + ":1", "3:*", "\x00:1"],
)  # fmt: skip
def test_malformed_text_is_one_bad_plan(text: str) -> None:
    with says(BadPlan):
        Plan.of("0:1", text)


def test_a_text_may_name_units_of_several_sites() -> None:
    assert Plan.of("3:1 4:1-2\n5:0") == Plan.of("3:1", "4:1,2", "5:0")


@pytest.mark.parametrize("to", ["", "Even", None, 3, True])
def test_an_unknown_kind_of_regularity_is_a_bad_plan(to: Any, grouped: Anatomy) -> None:
    with says(BadPlan):
        legalize(Plan.of("0:1"), grouped, to=to)


GOOD = json.dumps(_with({"0": "0-3,7"})).encode()
BAD_FILES = {
    "empty": b"",
    "truncated": GOOD[:-5],
    "cut inside a key": GOOD[:8],
    "trailing": GOOD + b"}",
    "twice": GOOD + GOOD,
    "not json": b"remove 3:7",
    "not utf-8": GOOD.replace(b"0-3", b"\xff\xfe"),
    "utf-16": GOOD.decode().encode("utf-16"),
    "zeros": bytes(10_000),
    "nested 100k deep": b"[" * 100_000 + b"]" * 100_000,
    "nested 100k deep and cut off": b'{"a":' * 100_000,
    "10 MB": json.dumps(_with(why="x" * 10_000_000)).encode(),
    "10 MB of brackets": b"[" * 10_000_000,
    "a number of 100k digits": b'{"format": 1, "remove": {"0": [' + b"1" * 100_000 + b"]}}",
    "infinity": b'{"format": 1, "remove": {"0": [Infinity]}}',
    "a site named twice": b'{"format": 1, "remove": {"0": [1], "0": [2]}}',
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_a_damaged_file_is_one_bad_plan_at_once(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with at_once(), says(BadPlan):
        Plan.read(tmp_path / "plan.json")


def test_a_missing_file_and_a_folder_are_one_bad_plan(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "none" / "plan.json"):
        with says(BadPlan):
            Plan.read(path)


def test_a_short_file_cannot_fill_the_memory(tmp_path: Path) -> None:
    """A range of millions is a few letters: a hundred of them are refused before they are spelled out."""
    resource = pytest.importorskip("resource")
    (tmp_path / "plan.json").write_text(json.dumps(_with({str(n): "0-9999998" for n in range(100)})))
    code = "\n".join(
        [
            "import sys",
            "from headcount.plans import BadPlan, Plan",
            "try: Plan.read(sys.argv[1])",
            "except BadPlan: print('bad')",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "plan.json")],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29)),
    )
    assert done.stdout.split() == ["bad"], done.stderr[-300:]


@pytest.mark.parametrize("depth", [900, 200_000])
def test_lists_in_lists_in_lists_are_called_so(depth: int, tmp_path: Path) -> None:
    """Whether our own rule or the parser's gives up first: no words of Python about its stack."""
    path = tmp_path / "plan.json"
    path.write_text("[" * depth + "]" * depth)
    with pytest.raises(BadPlan, match="lists and objects are in each other"):
        Plan.read(path)
