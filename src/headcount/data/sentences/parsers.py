"""Parses by spaCy or Stanza, where the user has one of them installed: texts in, sentences with governors out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from ...errors import BadData
from ...progress import track
from .conllu import Sentence, Word, spread

AT_ONCE = 64  # texts that Stanza reads together


def parse(name: str, texts: Sequence[str]) -> list[Sentence]:
    """One parsed sentence for every text; `name` is "spacy:en_core_web_sm" (or a folder) or "stanza:en".

    A text of several sentences stays one, with a root for each. Relations are called as the parser calls them.
    """
    sentences = _run(name, texts, parsed=True)
    if not any(word.relation for sentence in sentences for word in sentence.words):
        raise BadData(f"{title(name)} gives words and no governors; take a model that has a dependency parser.")
    return sentences


def split(name: str, texts: Sequence[str]) -> list[Sentence]:
    """The words into which that parser splits these texts, without parsing them, which is much faster."""
    return _run(name, texts, parsed=False)


def title(name: str) -> str:
    """The parser's name for people: "spaCy en_core_web_sm"."""
    kind, model = _named(name)
    return f"{'spaCy' if kind == 'spacy' else 'Stanza'} {model}"


def _named(name: str) -> tuple[str, str]:
    kind, _, model = name.partition(":")
    if kind.lower() not in _READ or not model:
        raise BadData(f"There is no parser {name!r:.60}; write spacy:MODEL (spacy:en_core_web_sm) or stanza:LANGUAGE.")
    return kind.lower(), model


def _run(name: str, texts: Sequence[str], parsed: bool) -> list[Sentence]:
    kind, model = _named(name)
    label = "parsing" if parsed else "splitting into words"
    some = [text for text in texts if text.strip()]  # not every parser takes a text without words
    words = iter(list(track(_READ[kind](model, some, parsed), label, total=len(some))))
    return [
        Sentence(text, tuple(next(words)) if text.strip() else (), f"text {number}")
        for number, text in enumerate(texts, 1)
    ]


def _imported(package: str, title: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise BadData(
            f"Parses by {title} need the package {package} ({error!s:.80}); install it: pip install {package}."
        ) from error


# --- spaCy ----------------------------------------------------------------------------------------------------------


def _spacy(model: str, texts: Sequence[str], parsed: bool) -> Iterator[list[Word]]:
    spacy = _imported("spacy", "spaCy")
    try:
        nlp = spacy.load(model, exclude=["ner", "lemmatizer"])
    except OSError as error:
        raise BadData(
            f"spaCy has no model {model!r:.80} here; install it: python -m spacy download {model:.80}."
        ) from error
    return map(_spacy_words, nlp.pipe(texts) if parsed else nlp.tokenizer.pipe(texts))


def _spacy_words(doc: Any) -> list[Word]:
    """The words of a document; runs of spaces, which spaCy takes for words, are left out."""
    tokens = [token for token in doc if not token.text.isspace()]
    places = {token.i: place for place, token in enumerate(tokens)}
    words = []
    for token in tokens:
        head = token.head
        while head.i not in places and head.head.i != head.i:
            head = head.head
        relation = "root" if head.i == token.i and token.dep_ else token.dep_
        governor = -1 if head.i == token.i else places.get(head.i, -1)
        words.append(Word(token.text, token.idx, token.idx + len(token.text), governor, relation))
    return words


# --- Stanza ---------------------------------------------------------------------------------------------------------


def _stanza(language: str, texts: Sequence[str], parsed: bool) -> Iterator[list[Word]]:
    stanza = _imported("stanza", "Stanza")
    steps = "tokenize,mwt,pos,lemma,depparse" if parsed else "tokenize,mwt"
    try:
        nlp = stanza.Pipeline(language, processors=steps, download_method=None, verbose=False)
    except Exception as error:  # Stanza has a class of its own for each file that may be missing
        raise BadData(
            f"Stanza cannot read {language!r:.40} here ({str(error).strip().partition(chr(10))[0]:.120}); fetch its "
            f"models: python -c 'import stanza; stanza.download(\"{language:.40}\")'."
        ) from error
    return _in_lots(nlp, texts)


def _in_lots(nlp: Any, texts: Sequence[str]) -> Iterator[list[Word]]:
    for start in range(0, len(texts), AT_ONCE):
        yield from map(_stanza_words, nlp.bulk_process(list(texts[start : start + AT_ONCE])))


def _stanza_words(doc: Any) -> list[Word]:
    words: list[Word] = []
    for sentence in doc.sentences:
        before = len(words)
        for token in sentence.tokens:
            surface = doc.text[token.start_char : token.end_char]
            spans = spread(surface, token.start_char, [word.text for word in token.words])
            for word, span in zip(token.words, spans, strict=True):
                governor = before + word.head - 1 if word.head else -1
                relation = "root" if word.head == 0 else word.deprel or ""
                words.append(Word(word.text, *span, governor, relation))
    return words


_READ: dict[str, Callable[[str, Sequence[str], bool], Iterator[list[Word]]]] = {"spacy": _spacy, "stanza": _stanza}
