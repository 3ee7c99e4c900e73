"""Sharing out examples: each is used for one thing, and its place depends on nothing but itself and the seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from conftest import says
from hypothesis import assume, given
from hypothesis import strategies as st

import headcount as hc
from headcount.data import splits
from headcount.data.places import place
from headcount.errors import BadData

SHARES = {"score": 0.25, "select": 0.45, "report": 0.3}
numbers = st.lists(st.integers(0, 30), min_size=1, max_size=60)
grouped = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["a", "b", "c", "d", "e", None])), min_size=1)
seeds = st.integers(0, 1000)


def task_of(values: Sequence[int], group: Sequence[Any] | None = None) -> hc.data.Task:
    """A task whose examples are numbers, perhaps in groups."""
    batch = {"x": torch.tensor(list(values))}
    return hc.custom_task([batch], loss=lambda model, batch: batch["x"].float(), name="numbers", group=group)


def values_of(task: hc.data.Task) -> list[int]:
    """The numbers that are the examples of a task."""
    return task.collate(range(task.size))["x"].tolist()


def shared_out(task: hc.data.Task, seed: int) -> dict[str, hc.data.Task]:
    """The parts of a task; a task that is too small for three parts is not looked at."""
    try:
        return splits.share_out(task, SHARES, seed).tasks
    except BadData:
        assume(False)
        raise


@given(numbers, seeds)
def test_parts_share_no_example_and_copies_travel_together(values: list[int], seed: int) -> None:
    parts = [Counter(values_of(part)) for part in shared_out(task_of(values), seed).values()]
    assert sum(parts, Counter()) == Counter(values), "all examples, with all their copies"
    assert sum(map(len, parts)) == len(set(values)), "no example is in two parts"


@given(grouped, seeds)
def test_no_example_and_no_group_is_in_two_parts(rows: list[tuple[int, str | None]], seed: int) -> None:
    task = task_of([value for value, _ in rows], [name for _, name in rows])
    parts = list(shared_out(task, seed).values())
    for keys in (splits.digests, splits.marks):
        every = [key for part in parts for key in keys(part)]
        assert len(every) == len(set(every))
    once = {value for part in parts for value in values_of(part)}
    assert once == {value for value, _ in rows}, "what is in two groups stays in one part"


@given(numbers, seeds, st.randoms(use_true_random=False))
def test_the_order_of_the_examples_changes_nothing(values: list[int], seed: int, draw: Any) -> None:
    mixed = list(values)
    draw.shuffle(mixed)
    parts, again = (shared_out(task_of(some), seed) for some in (values, mixed))
    for use in SHARES:
        assert sorted(values_of(parts[use])) == sorted(values_of(again[use]))


@given(numbers, seeds, st.integers(31, 99))
def test_an_example_that_is_added_moves_no_other(values: list[int], seed: int, more: int) -> None:
    parts, again = (shared_out(task_of(some), seed) for some in (values, [*values, more]))
    for use in SHARES:
        assert [value for value in values_of(again[use]) if value != more] == values_of(parts[use])


@given(seeds)
def test_parts_are_about_as_large_as_asked_for(seed: int) -> None:
    parts = shared_out(task_of(range(1000)), seed)
    for use, share in SHARES.items():
        assert abs(parts[use].size / 1000 - share) < 0.1, "more than six standard deviations"


@given(numbers, seeds)
def test_a_task_splits_itself_by_the_same_places(values: list[int], seed: int) -> None:
    task = task_of(values)
    parts = shared_out(task, seed)
    assert [part.fingerprint for part in task.split(*SHARES.values(), seed=seed)] == [
        parts[use].fingerprint for use in SHARES
    ]
    first = [number for number in range(task.size) if place(task.digest(number), seed) < 0.25]
    assert values_of(task.split(0.25, seed=seed)[0]) == [values[number] for number in first], "the rest goes to nobody"


def test_what_is_in_two_groups_stays_in_the_last_of_its_parts() -> None:
    names = {part: [name for name in "abcdefgh" if (place_of_group(name) < 0.5) == (part == 0)] for part in (0, 1)}
    task = task_of([1, 2, 2, 3], [names[0][0], names[0][0], names[1][0], names[1][0]])
    one, two = task.split(0.5, 0.5)
    assert (values_of(one), values_of(two)) == ([1], [2, 3])
    uses = splits.share_out(task, {"score": 0.5, "report": 0.5}, 0)
    assert [values_of(uses.tasks[use]) for use in ("score", "report")] == [[1], [2, 3]]
    assert uses.left_out == (
        "1 example of numbers to score on was left out, being among those to report on, or of a group that is"
    )


def place_of_group(name: str) -> float:
    """Where a group falls with seed 0."""
    return place(task_of([1], [name]).split_key(0), 0)


# -- sets that were given ------------------------------------------------------------------------------------------------


@given(numbers, numbers, numbers)
def test_what_is_in_two_sets_stays_in_the_most_important_use(
    report: list[int], select: list[int], train: list[int]
) -> None:
    sets = {"train": task_of(train), "report": task_of(report), "select": task_of(select)}
    want = {
        "report": report,
        "select": [value for value in select if value not in report],
        "train": [value for value in train if value not in {*report, *select}],
    }
    empty = [use for use, values in want.items() if not values]
    if empty:
        with says(BadData, about=f"examples of numbers to {empty[0]} on are also among those to report"):
            splits.apart(sets)
        return
    tasks, left_out = splits.apart(sets)
    assert {use: values_of(task) for use, task in tasks.items()} == want
    gone = {use: sets[use].size - len(values) for use, values in want.items()}
    assert bool(left_out) == any(gone.values())
    for use, before in (("select", "report"), ("train", "report or select")):
        many, were = ("example", "was") if gone[use] == 1 else ("examples", "were")
        sentence = f"{gone[use]} {many} of numbers to {use} on {were} left out, being among those to {before} on"
        assert (sentence in left_out.split("; ")) == bool(gone[use])


@given(numbers, numbers, seeds)
def test_a_part_of_a_file_and_a_set_of_its_own_share_nothing_either(
    values: list[int], own: list[int], seed: int
) -> None:
    try:
        uses = splits.share_out(task_of(values), {"select": 0.5, "report": 0.5}, seed, {"score": task_of(own)})
    except BadData:
        assume(False)
        raise
    scored, selected, reported = (set(values_of(uses.tasks[use])) for use in ("score", "select", "report"))
    assert selected | reported == set(values)
    assert scored == set(own) - set(values)
    assert not selected & reported


def test_sentences_say_which_examples_were_used_for_what() -> None:
    one, other = task_of(range(10)), task_of([*range(8, 20)])
    uses = splits.share_out(one, {"report": 1.0}, 0, {"train": other})
    assert splits.in_words(uses, {"train": "trained", "report": "measured"}) == (
        "trained on 10 examples of numbers, measured on 10 others of it; 2 examples of numbers to train on were left out, "
        "being among those to report on"
    )


# -- so many at most -----------------------------------------------------------------------------------------------------


def test_a_part_of_so_many_at_most_is_the_beginning_of_the_larger_one() -> None:
    task = task_of(range(500))
    whole = splits.share_out(task, {"measure": 0.1, "train": 0.9}, 0).tasks
    few = splits.share_out(task, {"measure": 0.1, "train": 0.9}, 0, most=20).tasks
    assert (few["measure"].size, few["train"].size) == (20, 480)
    assert splits.digests(few["measure"]) < splits.digests(whole["measure"])
    twice = task_of([*range(500), *range(500)])
    some = splits.share_out(twice, {"measure": 0.1, "train": 0.9}, 0, most=21).tasks["measure"]
    assert Counter(Counter(values_of(some)).values()) == {2: 10}, "no copy is left behind"


def test_so_many_are_drawn_by_their_places() -> None:
    task = task_of(range(100))
    assert splits.drawn(task, 100, 0) is task
    some = splits.drawn(task, 30, 7)
    assert some.size == 30
    assert values_of(some) == sorted(values_of(some)), "in the order of the file"
    latest = max(place(digest, 7) for digest in splits.digests(some))
    assert sum(place(digest, 7) <= latest for digest in splits.digests(task)) == 30


def test_too_few_examples_are_refused_in_a_sentence() -> None:
    with says(BadData, about="none is left to"):
        splits.share_out(task_of([1]), SHARES, 0)
    with pytest.raises(ValueError, match="tuple"):
        splits.apart({"play": task_of([1])})
