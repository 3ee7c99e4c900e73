"""What people type: words between commas, shares, and names with numbers in them."""

from __future__ import annotations

import pytest

from headcount.parsing import by_number, share_in, words_in


def test_words_between_commas_have_no_spaces_around_them() -> None:
    assert words_in(" heads, neurons ,,layers,") == ["heads", "neurons", "layers"]
    assert words_in("a,,b ", keep_empty=True) == ["a", "", "b"]
    assert words_in("") == []
    assert words_in("", keep_empty=True) == [""]


@pytest.mark.parametrize(
    ("text", "share"),
    [("40%", 0.4), (" 0.4 ", 0.4), (".5", 0.5), ("12.5%", 0.125), ("100%", 1.0), ("1.0", 1.0), ("250%", 2.5)],
)
def test_a_share_is_a_percentage_or_a_fraction(text: str, share: float) -> None:
    assert share_in(text) == share


@pytest.mark.parametrize("text", ["", "12", "many", "-5%", "%", "1e-1", "1e2%", "5 %x", "nan", ".", "5%%"])
def test_other_texts_are_no_share(text: str) -> None:
    assert share_in(text) is None


def test_numbers_in_names_count_as_numbers() -> None:
    names = [
        "checkpoint-500",
        "checkpoint-1000",
        "checkpoint-99999999999999999999",
        "epoch-09",
        "epoch-10",
        "epoch-010a",
    ]
    assert sorted(reversed(names), key=by_number) == names
    sites = ["encoder.0.mlp", "encoder.9.mlp", "encoder.9.self", "encoder.10.mlp", "layers"]
    assert sorted(reversed(sites), key=by_number) == sites
