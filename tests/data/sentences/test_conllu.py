"""CoNLL-U files and parsers give words that stand where they say, governed by what they say."""

from __future__ import annotations

import gzip
import lzma
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conftest import says
from hypothesis import given
from hypothesis import strategies as st

from headcount.data.sentences import parsers
from headcount.data.sentences.conllu import Sentence, Word, read_conllu, spans_in, spread
from headcount.errors import BadData


@contextmanager
def refused(pattern: str) -> Iterator[None]:
    with says(BadData) as caught:
        yield
    assert re.search(pattern, str(caught.value))


def line(number: object, form: str, head: object = 0, relation: str = "dep", more: str = "_") -> str:
    return f"{number}\t{form}\t_\t_\t_\t_\t{head}\t{relation}\t_\t{more}"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "bank.conllu"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def one(folder: Path, *lines: str) -> Sentence:
    (sentence,) = read_conllu(written(folder, *lines))
    return sentence


DOGS = [
    "# sent_id = dogs-1",
    "# text = Old dogs don't bark,  usually.",
    line(1, "Old", 2, "amod"),
    line(2, "dogs", 5, "nsubj"),
    line("3-4", "don't", "_", "_"),
    line(3, "do", 5, "aux"),
    line(4, "n't", 5, "advmod"),
    line(5, "bark", 0, "root", "SpaceAfter=No"),
    line("5.1", "loudly", "_", "_"),
    line(6, ",", 7, "punct"),
    line(7, "usually", 5, "advmod:tmod", "SpaceAfter=No"),
    line(8, ".", 5, "punct"),
]


def test_a_sentence_has_its_words_where_they_stand(tmp_path: Path) -> None:
    found = one(tmp_path, *DOGS)
    assert found.name == "dogs-1"
    assert found.text == "Old dogs don't bark,  usually."
    assert [word.form for word in found.words] == ["Old", "dogs", "do", "n't", "bark", ",", "usually", "."]
    assert [found.text[word.start : word.end] for word in found.words] == [word.form for word in found.words]
    assert [word.head for word in found.words] == [1, 4, 4, 4, -1, 6, 4, 4]
    assert [word.relation for word in found.words] == [
        "amod",
        "nsubj",
        "aux",
        "advmod",
        "root",
        "punct",
        "advmod:tmod",
        "punct",
    ]


@pytest.mark.parametrize(
    "text", [[], ["# text = Old dogs don't bark."], ["# text = Old dogs don't bark, usually. Yes"]]
)
def test_words_are_joined_where_the_text_is_missing_or_does_not_fit(tmp_path: Path, text: list[str]) -> None:
    found = one(tmp_path, *text, *DOGS[2:])
    assert found.text == "Old dogs don't bark, usually."
    assert [found.text[word.start : word.end] for word in found.words] == [word.form for word in found.words]
    assert found.name == f"{tmp_path.name}/bank.conllu:1"


def test_words_that_are_not_found_in_their_token_share_all_of_it(tmp_path: Path) -> None:
    lines = [line(1, "Va", 0, "root"), line("2-3", "au", "_", "_", "SpaceAfter=No"), line(2, "à", 4), line(3, "le", 4)]
    found = one(tmp_path, *lines, line(4, "-marché", 1))
    assert found.text == "Va au-marché"
    assert [(word.start, word.end) for word in found.words] == [(0, 2), (3, 5), (3, 5), (5, 12)]


def test_no_relation_is_made_up_where_there_is_no_parse(tmp_path: Path) -> None:
    found = one(tmp_path, line(1, "Yes", "_", "_"), line(2, "no", 1, "_"))
    assert found.words == (Word("Yes", 0, 3, -1, ""), Word("no", 4, 6, 0, ""))


def test_a_root_is_a_root_whatever_it_is_called(tmp_path: Path) -> None:
    assert one(tmp_path, line(1, "Yes", 0, "ROOT")).words[0].relation == "root"


def test_sentences_are_parted_by_blank_lines_and_comments_alone_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, "# newdoc", "", line(1, "Yes"), "", "", "# sent_id = b", line(1, "No"), "   ", "# end")
    assert [(found.text, found.name) for found in read_conllu(path)] == [
        ("Yes", f"{tmp_path.name}/bank.conllu:3"),
        ("No", "b"),
    ]


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_packed_files_are_read_like_others_and_need_not_be_named_in_full(
    tmp_path: Path, ending: str, pack: Any
) -> None:
    plain = written(tmp_path, *DOGS)
    expected = read_conllu(plain)
    Path(f"{plain}{ending}").write_bytes(pack(plain.read_bytes().replace(b"\n", b"\r\n")))
    plain.unlink()
    assert read_conllu(f"{plain}{ending}") == read_conllu(str(plain)) == expected


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line(1, "a"), "2 b _ _ _ _ 1 dep _ _"], "Line 2 of .* has 1 column; CoNLL-U has 10"),
        ([line(1, "a"), line(2, "b")[:-2]], "Line 2 of .* has 9 columns"),
        ([line("x", "a")], "Line 1 of .* begins with 'x'"),
        ([line("1-", "a")], "begins with '1-'"),
        ([line(1, "  ")], "has no form"),
        ([line(1, "a"), line(3, "b")], "Line 2 of .* has the number 3; .* 2 comes next"),
        ([line(1, "a"), line(1, "b")], "has the number 1; .* 2 comes next"),
        ([line("2-1", "a"), line(1, "b")], "has the number 2-1"),
        ([line("1-2", "ab"), line("1-2", "ab"), line(1, "a"), line(2, "b")], "Line 2 of .* has the number 1-2"),
        (
            [line("1-3", "ab"), line(1, "a"), line(2, "b")],
            "Line 1 of .* joins the words 1 to 3; the sentence has only 2",
        ),
        ([line(1, "a", 3), line(2, "b")], "Line 1 of .* head of word 1 is '3'; a head is another word of the 2"),
        ([line(1, "a", "-1")], "head of word 1 is '-1'"),
        ([line(1, "a", 1)], "head of word 1 is '1'"),
        (["# nothing", "", "# at all"], "There is no sentence in .*"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, lines: list[str], said: str) -> None:
    with refused(said):
        read_conllu(written(tmp_path, *lines))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.conllu", tmp_path):
        with refused("There is no file"):
            read_conllu(path)


FORMS = st.text(st.characters(categories=("L", "P", "S", "N")), min_size=1, max_size=5)


@given(st.lists(st.tuples(FORMS, st.booleans(), st.integers(0, 20)), min_size=1, max_size=8), st.data())
def test_what_is_written_comes_back(tmp_path_factory: Any, words: list[tuple[str, bool, int]], data: Any) -> None:
    """Any words, with or without spaces after them, and the text given or not: the same words, at the same places."""
    size = len(words)
    heads = [head % (size + 1) if head % (size + 1) != place else 0 for place, (_, _, head) in enumerate(words, 1)]
    lines = [
        line(place, form, head, "dep", "_" if space else "SpaceAfter=No")
        for place, ((form, space, _), head) in enumerate(zip(words, heads, strict=True), 1)
    ]
    text = "".join(form + " " * space for form, space, _ in words).strip()
    given_text = [f"# text = {text}"] if data.draw(st.booleans()) else []
    found = one(tmp_path_factory.mktemp("bank"), *given_text, *lines)
    assert found.text == text
    assert [word.form for word in found.words] == [form for form, _, _ in words]
    assert all(found.text[word.start : word.end] == word.form for word in found.words)
    assert all(a.end <= b.start for a, b in zip(found.words, found.words[1:], strict=False))
    assert [word.head + 1 for word in found.words] == heads


def test_forms_are_found_one_after_the_other() -> None:
    assert spans_in("banana", ["an", "an"]) == [(1, 3), (3, 5)]
    assert spans_in("banana", ["na", "an"]) is None
    assert spread("zum", 7, ["zu", "m"]) == [(7, 9), (9, 10)]
    assert spread("zum", 7, ["zu", "dem"]) == [(7, 10), (7, 10)]


# --- parsers --------------------------------------------------------------------------------------------------------


class Token(SimpleNamespace):
    """A token as spaCy gives it: its number, text and place, its relation, and its head, which is itself for a root."""


def spacy_doc(text: str, words: list[tuple[str, int, str]]) -> list[Token]:
    tokens, end = [], 0
    for number, (form, _, relation) in enumerate(words):
        start = text.index(form, end)
        end = start + len(form)
        tokens.append(Token(i=number, text=form, idx=start, dep_=relation))
    for token, (_, head, _) in zip(tokens, words, strict=True):
        token.head = tokens[head]
    return tokens


TEXT = "Dogs bark  loudly. Why not?"
PARSE = [
    ("Dogs", 1, "nsubj"),
    ("bark", 1, "ROOT"),
    (" ", 1, "dep"),
    ("loudly", 2, "advmod"),
    (".", 1, "punct"),
    ("Why", 6, "advmod"),
    ("not", 6, "ROOT"),
    ("?", 6, "punct"),
]


@pytest.fixture
def spacy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module like spaCy with one model, which knows one text."""
    made = ModuleType("spacy")

    def load(name: str, **_: Any) -> Any:
        if name != "en_small":
            raise OSError(f"[E050] Can't find model '{name}'.")
        bare = [(form, number, "") for number, (form, _, _) in enumerate(PARSE)]
        return SimpleNamespace(
            pipe=lambda texts: (spacy_doc(text, PARSE) for text in texts),
            tokenizer=SimpleNamespace(pipe=lambda texts: (spacy_doc(text, bare) for text in texts)),
        )

    made.load = load
    monkeypatch.setitem(sys.modules, "spacy", made)
    return made


def test_spacy_gives_one_sentence_per_text_with_a_root_for_each_of_its_own(spacy: ModuleType) -> None:
    first, blank, second = parsers.parse("spacy:en_small", [TEXT, " ", TEXT])
    assert first.text == TEXT
    assert first.words == second.words
    assert (blank.text, blank.words) == (" ", ())
    assert [word.form for word in first.words] == ["Dogs", "bark", "loudly", ".", "Why", "not", "?"]
    assert all(TEXT[word.start : word.end] == word.form for word in first.words)
    # "loudly" hangs on the space, which is no word, and so on what that hangs on
    assert [word.head for word in first.words] == [1, -1, 1, 1, 5, -1, 5]
    assert [word.relation for word in first.words] == ["nsubj", "root", "advmod", "punct", "advmod", "root", "punct"]
    assert parsers.title("spacy:en_small") == "spaCy en_small"


def test_splitting_gives_the_same_words_without_governors(spacy: ModuleType) -> None:
    (parsed,), (bare,) = parsers.parse("spacy:en_small", [TEXT]), parsers.split("spacy:en_small", [TEXT])
    assert [word[:3] for word in bare.words] == [word[:3] for word in parsed.words]
    assert {word[3:] for word in bare.words} == {(-1, "")}


def test_a_model_without_a_parser_is_refused(spacy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    nlp = spacy.load("en_small")
    monkeypatch.setattr(spacy, "load", lambda *_, **__: SimpleNamespace(pipe=nlp.tokenizer.pipe))
    with refused("spaCy blank gives words and no governors"):
        parsers.parse("spacy:blank", [TEXT])


def stanza_doc(text: str) -> Any:
    """A document as Stanza gives it: sentences of tokens of words, numbered from 1 in each sentence."""

    def token(form: str, *words: tuple[str, int | None, str | None]) -> Any:
        start = text.index(form)
        made = [SimpleNamespace(text=word, head=head, deprel=relation) for word, head, relation in words]
        return SimpleNamespace(text=form, start_char=start, end_char=start + len(form), words=made)

    first = [
        token("Geh", ("Geh", 0, "root")),
        token("zum", ("zu", 4, "case"), ("dem", 4, "det")),
        token("See", ("See", 1, "obl")),
    ]
    second = [token("Komm's", ("Komm", 0, "root"), ("'s", 1, "obj"))]
    return SimpleNamespace(text=text, sentences=[SimpleNamespace(tokens=one) for one in (first, second)])


def test_stanza_counts_words_from_one_in_every_sentence_and_splits_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("stanza")

    def pipeline(language: str, **_: Any) -> Any:
        if language != "de":
            raise FileNotFoundError("Resources file not found at: resources.json\nTry to download again.")
        return SimpleNamespace(bulk_process=lambda texts: [stanza_doc(text) for text in texts])

    made.Pipeline = pipeline
    monkeypatch.setitem(sys.modules, "stanza", made)
    monkeypatch.setattr(parsers, "AT_ONCE", 2)
    text = "Geh zum See\nKomm's"
    found = parsers.parse("stanza:de", [text] * 3)
    assert len(found) == 3
    assert [word.form for word in found[2].words] == ["Geh", "zu", "dem", "See", "Komm", "'s"]
    assert [text[word.start : word.end] for word in found[2].words] == ["Geh", "zum", "zum", "See", "Komm", "'s"]
    assert [word.head for word in found[2].words] == [-1, 3, 3, 0, -1, 4]
    assert [word.relation for word in found[2].words] == ["root", "case", "det", "obl", "root", "obj"]
    with refused(r"Stanza cannot read 'xx' here \(Resources file not found.*stanza.download"):
        parsers.parse("stanza:xx", [text])


@pytest.mark.parametrize("package", ["spacy", "stanza"])
def test_a_package_that_is_not_installed_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # an import of it fails
    with refused(f"need the package {package} .*pip install {package}"):
        parsers.parse(f"{package}:en", [TEXT])


def test_a_model_that_is_not_there_is_named(spacy: ModuleType) -> None:
    with refused("spaCy has no model 'en_large' here; install it: python -m spacy download en_large"):
        parsers.parse("spacy:en_large", [TEXT])


@pytest.mark.parametrize("name", ["corenlp:en", "spacy", "spacy:", "en_core_web_sm"])
def test_other_parsers_are_refused(name: str) -> None:
    with refused(f"There is no parser '{name}'; write spacy:MODEL"):
        parsers.parse(name, [TEXT])
