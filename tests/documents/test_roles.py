"""Ratios over sentences, their intervals, and the rules by which heads earn roles: against formulas done by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headcount.documents.roles import ORDER, RULES, Name, Observed, Roles, SentenceSums, Tested, estimated
from headcount.errors import BadPlan
from headcount.head_roles.rules import named
from headcount.plans import Unit

SENTENCES = 60


def summed(e: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The six sums over the first axis."""
    return np.array([part.sum(0) for part in (e, n, e * e, e * n, n * n, (n > 0) * 1.0)])


def by_hand(e: np.ndarray, n: np.ndarray) -> tuple[float, float, float, float]:
    """Ratio, interval and one-sided p of one statistic, from the values of the sentences themselves."""
    e, n = e[n > 0], n[n > 0]
    ratio, count = e.sum() / n.sum(), len(e)
    z = e - ratio * n
    error = np.sqrt(count / (count - 1) * (z @ z)) / n.sum()
    reach = stats.t.ppf(0.975, count - 1) * error
    p = stats.t.sf(ratio / error, count - 1) if error > 0 else float(ratio <= 0)
    return ratio, ratio - reach, ratio + reach, p


def test_a_ratio_and_its_interval_come_from_sums_alone() -> None:
    rng = np.random.default_rng(0)
    n = rng.integers(0, 30, (SENTENCES, 4)).astype(float)
    e = rng.binomial(n.astype(int), 0.3) - 0.1 * n
    found = estimated(summed(e, n))
    for head in range(4):
        want = by_hand(e[:, head], n[:, head])
        got = [part[head] for part in (found.value, found.low, found.high, found.p)]
        np.testing.assert_allclose(got, want, rtol=1e-9)


def test_sentences_of_one_size_give_the_interval_of_a_mean() -> None:
    values = np.random.default_rng(1).normal(size=(SENTENCES, 1))
    found = estimated(summed(values, np.ones_like(values)))
    low, high = stats.t.interval(0.95, SENTENCES - 1, values.mean(), stats.sem(values[:, 0]))
    np.testing.assert_allclose([found.low[0], found.high[0]], [low, high])
    np.testing.assert_allclose(found.p[0], stats.ttest_1samp(values[:, 0], 0, alternative="greater").pvalue)


def test_intervals_cover_the_truth_where_tokens_of_a_sentence_hang_together() -> None:
    """Every sentence has a share of its own: intervals that took tokens for independent would cover far less."""
    rng, draws, truth = np.random.default_rng(2), 400, 0.3
    n = rng.integers(5, 30, (SENTENCES, draws)).astype(float)
    e = rng.binomial(n.astype(int), rng.beta(3, 7, n.shape)).astype(float)
    found = estimated(summed(e, n))
    assert 0.92 <= ((found.low <= truth) & (truth <= found.high)).mean() <= 0.97
    naive = 1.96 * np.sqrt(found.value * (1 - found.value) / found.n)
    assert (np.abs(found.value - truth) <= naive).mean() < 0.90


@pytest.mark.parametrize(("e", "p"), [([0.0, 0.0], 1.0), ([2.0, 2.0], 0.0), ([-2.0, -2.0], 1.0), ([2.0], 1.0)], ids=str)
def test_what_never_varies(e: list[float], p: float) -> None:
    """Without any spread p is 0 or 1; of one sentence nothing is known."""
    found = estimated(summed(np.array(e)[:, None], np.full((len(e), 1), 2.0)))
    assert found.p[0] == pytest.approx(p, abs=1e-300)
    assert np.isinf(found.low[0]) == (len(e) == 1)


def test_nothing_counted_is_nothing_found() -> None:
    found = estimated(np.zeros((6, 3)))
    assert not found.value.any()
    assert (found.p == 1).all()


def test_tallies_add_up_to_the_tally_of_all_sentences() -> None:
    rng = np.random.default_rng(3)
    e, n = rng.random((2, 20, 2, 3))
    names: tuple[Name, ...] = (("one",), ("two",))
    parts = SentenceSums(names, summed(e[:7], n[:7])) + SentenceSums(names, summed(e[7:], n[7:]))
    np.testing.assert_allclose(parts.sums, summed(e, n))
    np.testing.assert_allclose(parts[("two",)].value, e[:, 1].sum(0) / n[:, 1].sum(0))
    with pytest.raises(BadPlan, match="different things"):
        parts + SentenceSums(names[:1], summed(e, n)[:, :1])


# --- rules ----------------------------------------------------------------------------------------------------------

NOTHING: dict[Name, float] = {("confidence",): 0.4, ("entropy",): 1.5, ("sink",): 0.1}
NOTHING |= {("mass", "[CLS]"): 0.06, ("mass", "[SEP]"): 0.04, ("mass", "punctuation"): 0.1}
NOTHING |= {("offset", str(offset)): 0.05 for offset in (-1, 0)} | {("offset", "+1"): 0.05}
NOTHING |= {("local",): 0.3, ("uniform",): 0.3, ("rarest",): 0.1, ("two",): 0.2, ("two gain",): 0.0, ("chance",): 0.2}
TESTED = (Tested("nsubj", "dependent to governor", 1, 0.45, 600, SENTENCES),)
NOTHING |= {("accuracy", *TESTED[0][:2]): 0.2, ("gain", *TESTED[0][:2]): -0.25}


def made(*heads: Mapping[Name, float], queries: float = 10, spread: float = 0.01, short: Name | None = None) -> Roles:
    """Roles of heads whose statistics are these, nearly the same in every sentence; one of them on few tokens."""
    rng = np.random.default_rng(0)
    names = tuple(dict.fromkeys(name for head in heads for name in {**NOTHING, **head}))
    values = np.array([[{**NOTHING, **head}.get(name, 0.0) for head in heads] for name in names])
    noise = rng.normal(scale=spread, size=(SENTENCES, *values.shape))
    noise -= noise.mean(0)
    n = np.full((SENTENCES, *values.shape), queries)
    if short is not None:
        n[:, names.index(short)] = queries * 0.49
    own = [number for number, name in enumerate(names) if name[0] not in ("induction", "copying")]
    probed = [number for number in range(len(names)) if number not in own]
    sums = summed((values + noise) * n, n)
    twice = SentenceSums(tuple(names[k] for k in probed), sums[:, probed]) if probed else None
    tally = SentenceSums(tuple(names[k] for k in own), sums[:, own])
    seen = Observed("decoder", tuple(f"0:{n}" for n in range(len(heads))), tally, TESTED, twice)
    return named([seen], model="Some", sentences=SENTENCES, tokens=1, sets="made up")


def test_a_head_that_does_nothing_has_no_role() -> None:
    roles = made({})
    assert roles.main == {"0:0": "none"}
    assert roles.of("0:0") == ()
    assert roles.to_json()["roles"] == {}


GAIN: Any = ("gain", *TESTED[0][:2])
RIGHT: Any = ("accuracy", *TESTED[0][:2])
EARNED: list[tuple[dict[Name, float], str, str]] = [
    ({("offset", "-1"): 0.97}, "positional (-1)", "looks one token back at 97 % of tokens [97, 97]"),
    ({("offset", "+1"): 0.92}, "positional (+1)", "looks one token ahead at 92 % of tokens [92, 92]"),
    ({("offset", "0"): 0.92}, "positional (0)", "looks at the token itself at 92 % of tokens [92, 92]"),
    (
        {RIGHT: 0.62, GAIN: 0.17},
        "syntactic (nsubj, dependent to governor)",
        "looks from a dependent to its governor of nsubj: right in 62 % [62, 62], 17 points [17, 17] above always one word ahead",
    ),
    (
        {("two",): 0.66, ("two gain",): 0.46},
        "rare",
        "looks at one of the two rarest words from 66 % of words [66, 66], 20 % by chance",
    ),
    ({("induction",): 0.5, ("copying",): 0.2}, "induction", "looks at what came after the earlier one in 50 %"),
    ({("induction",): 0.2, ("copying",): 0.9}, "copying", "looks at the earlier one in 90 % of positions"),
    ({("local",): 0.75}, "local", "keeps 75 % of its weight [75, 75] within two tokens, where uniform attention has 30 %"),
    ({("mass", "punctuation"): 0.6}, "punctuation", "puts 60 % of its weight [60, 60] on punctuation"),
    ({("sink",): 0.6, ("mass", "[SEP]"): 0.5}, "sink ([SEP])", "on special tokens, most on [SEP]"),
    ({("sink",): 0.6, ("mass", "[SEP]"): 0.6, ("mass", "[CLS]"): 0.0}, "sink ([SEP])", "60 % of its weight [60, 60] on [SEP]"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "role", "text"), EARNED, ids=[role for _, role, _ in EARNED])
def test_a_head_that_clears_the_bar_earns_the_role_and_is_told_in_english(
    values: dict[Name, float], role: str, text: str
) -> None:
    roles = made(values, spread=0.001)
    assert roles.to_json()["roles"] == {"0:0": role}
    assert roles.main["0:0"] == role.split(" ")[0]
    assert text in roles.of("0:0")[0].text
    assert text in str(roles)


BELOW: list[dict[Name, float]] = [
    {("offset", "-1"): 0.89},
    {RIGHT: 0.54, GAIN: 0.09},
    {("two",): 0.49, ("two gain",): 0.29},
    {("two",): 0.66, ("two gain",): 0.09},
    {("induction",): 0.49, ("copying",): 0.49},
    {("local",): 0.69},
    {("local",): 0.75, ("uniform",): 0.66},
    {("mass", "punctuation"): 0.49},
    {("sink",): 0.49, ("mass", "[SEP]"): 0.45},
]


@pytest.mark.parametrize("values", BELOW, ids=str)
def test_a_head_below_the_bar_does_not(values: dict[Name, float]) -> None:
    assert made(values, spread=0.001).main == {"0:0": "none"}


def test_a_gain_that_may_be_chance_earns_nothing_and_one_that_may_be_small_is_not_sure() -> None:
    large = {RIGHT: 0.62, GAIN: 0.17}
    assert made(large, spread=0.8).main == {"0:0": "none"}
    wide, narrow = made(large, spread=0.3), made(large, spread=0.01)
    assert [role.sure for role in (*wide.of("0:0"), *narrow.of("0:0"))] == [False, True]


def test_many_heads_are_corrected_for() -> None:
    """A p-value that is enough for one head alone is not for one of thirty."""
    alone = made({RIGHT: 0.65, GAIN: 0.2}, spread=0.65)
    assert alone.main == {"0:0": "syntactic"}
    assert 1 / 600 < alone.relations[0].heads["0:0"][-1] < 0.05
    many = made({RIGHT: 0.65, GAIN: 0.2}, *[{}] * 29, spread=0.65)
    assert many.main["0:0"] == "none"


def test_an_offset_that_few_tokens_can_have_makes_no_head_positional() -> None:
    assert made({("offset", "-1"): 0.97}, short=("offset", "-1")).main == {"0:0": "none"}
    assert made({("offset", "-1"): 0.97}, short=("offset", "0")).main == {"0:0": "positional"}


def test_the_main_role_is_the_first_in_order_and_all_are_kept() -> None:
    both = {("offset", "-1"): 0.97, ("local",): 0.9, ("sink",): 0.5}
    roles = made(both)
    assert [role.role for role in roles.of("0:0")] == ["positional", "local", "sink"]
    assert roles.main == {"0:0": "positional"}


def some_roles() -> Roles:
    """A head of every kind, and one without a role."""
    return made(*[values for values, _, _ in EARNED], {})


def test_json_is_read_back_as_it_was(tmp_path: Path) -> None:
    roles = some_roles()
    text = json.dumps(roles.to_json(), allow_nan=False)
    assert Roles.from_json(json.loads(text)) == roles
    (tmp_path / "roles.json").write_text(text)
    assert Roles.read(tmp_path / "roles.json").to_json() == roles.to_json()
    assert roles.to_json()["rules"] == RULES


@pytest.mark.parametrize("drop", ["format", "heads", "relations", "rules", "sentences"])
def test_damaged_json_is_refused_in_a_sentence(drop: str) -> None:
    data = some_roles().to_json()
    del data[drop]
    with pytest.raises(BadPlan, match=r"[Rr]oles"):
        Roles.from_json(data)


def test_a_head_that_is_there_twice_or_has_a_made_up_role_is_refused() -> None:
    data = some_roles().to_json()
    with pytest.raises(BadPlan, match="twice"):
        Roles.from_json({**data, "heads": data["heads"] * 2})
    with pytest.raises(BadPlan, match="main role"):
        Roles.from_json({**data, "heads": [{**data["heads"][0], "main": "poetic"}]})
    with pytest.raises(BadPlan, match="none of the"):
        some_roles().of("9:9")


def test_survivors_are_what_is_left_of_each_role() -> None:
    roles = some_roles()
    order = [Unit("0", 3), "0.mlp:2", Unit("0", 0), "0:0"]
    left = roles.survivors(order)
    assert len(left) == 1 + len(order)
    for number, counts in enumerate(left):
        gone = {str(unit) for unit in order[:number]}
        main = [role for unit, role in roles.main.items() if unit not in gone]
        assert {role: count for role, count in counts.items() if count} == {r: main.count(r) for r in {*main}}
        assert set(counts) <= set(ORDER)


def test_the_best_heads_of_a_relation_are_told_and_all_that_earned_it() -> None:
    heads = [{RIGHT: 0.45 + number / 100, GAIN: number / 100} for number in range(26)]
    roles = made(*heads, spread=0.001)
    (relation,) = roles.relations
    assert list(relation.heads) == [f"0:{number}" for number in range(25, 9, -1)]
    assert list(relation.earned) == list(relation.heads)
    assert relation[:7] == ("decoder", *TESTED[0])
    fewer = made(*heads[:9], *[{}] * 5, spread=0.001).relations[0]
    assert len(fewer.heads) == 10
    assert fewer.earned == ()
