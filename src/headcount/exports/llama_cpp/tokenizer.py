"""A tokenizer as llama.cpp reads it: pieces, their types, merges or scores, and the name of what splits a text before.

llama.cpp has the rules of splitting built in, under names. A tokenizer whose rules have no name there is refused, and a few
texts with their tokens go into the file, on which what llama.cpp makes of them is compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from ...data.encoding import loaded_tokenizer
from ...errors import Refused

ELSEWHERE = "export to transformers or onnx, which take it as it is"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3, QWEN2 = _ENDINGS + r"\p{N}{1,3}" + _REST, _ENDINGS + r"\p{N}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = (
    f"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*"
    + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# llama.cpp's name by how a text is split, and whether a piece of the vocabulary is taken whole, whatever the merges say
NAMES = {
    (GPT2, False): "gpt-2",
    ("digits " + GPT2, False): "smollm",
    (LLAMA3, True): "llama-bpe",
    (LLAMA3, False): "dbrx",
    (QWEN2, False): "qwen2",
    (TEKKEN, True): "tekken",
}
TEXTS = (
    "Every head was measured before it was removed.",
    "It's 1234567 or 3.14, isn't it? We'LL see; they've said so...",
    "Über die Brücke, naïve café — «déjà vu»",
    "模型很小。モデルは小さい。 модель маленькая",
    "def f(x):\n    return x ** 2  # two  spaces,\ttabs\r\n\n\n  end   ",
    " leading space, 😀👍🏽 and (brackets) [1] {2} <3> $100 50%",
)
SPACE = "▁"  # of sentencepiece, for a space
IN_TEXTS = (*range(0xC0), *range(0xC2, 0xF5))  # bytes that UTF-8 has


class Kind(IntEnum):
    """What a piece is, in llama.cpp's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Proof(NamedTuple):
    """A text and the tokens that the model's own tokenizer makes of it, with or without what it puts around texts."""

    text: str
    ids: tuple[int, ...]
    around: bool = True


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF file says of a tokenizer."""

    model: str  # "gpt2" for bytes, "llama" for sentencepiece
    pre: str
    pieces: list[str]
    kinds: list[int]
    merges: list[str]
    scores: list[float]
    special: dict[str, int]
    add_bos: bool
    add_eos: bool
    space_prefix: bool | None
    chat_template: str | None
    proofs: tuple[Proof, ...]
    notes: tuple[str, ...] = field(default=())


def vocabulary(tokenizer: Any, source: str | None, size: int) -> Vocabulary:
    """The tokenizer of a model with `size` embeddings, or `Refused` with why llama.cpp cannot hold it."""
    if tokenizer is None and source is None:
        raise Refused(
            "gguf holds a model together with its tokenizer, and none was given: pass tokenizer=, or source= with the folder "
            "that the model came from."
        )
    tokenizer = loaded_tokenizer(source if tokenizer is None else tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise _refused(f"{type(tokenizer).__name__} is no tokenizer of the tokenizers library")
    data = json.loads(backend.to_str())
    model, kind = data["model"], data["model"].get("type")
    if kind != "BPE":
        raise _refused(f"the tokenizer is of the type {kind}, and decoders in llama.cpp have BPE or sentencepiece")
    added = {row["id"]: row for row in data.get("added_tokens", [])}
    pieces = {number: piece for piece, number in model["vocab"].items()} | {
        n: row["content"] for n, row in added.items()
    }
    if max(pieces) >= size:
        raise _refused(
            f"the tokenizer has pieces up to {max(pieces)}, and the model {size} embeddings: it is another model's"
        )
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    by_bytes = not model.get("byte_fallback")
    pre = _pre(data) if by_bytes else _sentencepiece(data)
    kinds = [int(_kind(number, pieces, added, tokenizer, by_bytes)) for number in range(size)]
    scores = [] if by_bytes else _scores(pieces, kinds, merges)
    dropped = _missing_bytes(pieces, model.get("unk_token")) if by_bytes else ""
    text = "x"
    notes = _notes(data, by_bytes)
    bare, full = (list(tokenizer(text, add_special_tokens=flag)["input_ids"]) for flag in (False, True))
    return Vocabulary(
        model="gpt2" if by_bytes else "llama",
        pre=pre,
        pieces=[pieces.get(number, f"[PAD{number}]") for number in range(size)],
        kinds=kinds,
        merges=merges if by_bytes else [],
        scores=scores,
        special=_special(tokenizer),
        add_bos=full[:1] == [tokenizer.bos_token_id] and bare[:1] != full[:1],
        add_eos=full[-1:] == [tokenizer.eos_token_id] and bare[-1:] != full[-1:],
        space_prefix=None if by_bytes else _space_prefix(data),
        chat_template=_chat_template(tokenizer),
        proofs=tuple(_proofs(tokenizer, dropped, strip=not by_bytes and bool(notes))),
        notes=notes,
    )


def _refused(reason: str) -> Refused:
    return Refused(f"gguf cannot hold this tokenizer: {reason}; {ELSEWHERE}.")


# -- how a text is split -------------------------------------------------------------------------------------------------


def _pre(data: dict[str, Any]) -> str:
    """llama.cpp's name of how a text is split before its pieces are merged."""
    rule, parts = "", _parts(data.get("pre_tokenizer"), "pretokenizers")
    for part in parts:
        kind = part["type"]
        if kind == "Digits" and part.get("individual_digits") and not rule:
            rule = "digits "
        elif kind == "Split" and part.get("behavior") == "Isolated" and not part.get("invert") and not rule:
            rule = part["pattern"].get("Regex", "")
        elif kind == "ByteLevel" and not part.get("add_prefix_space"):
            rule += GPT2 if part.get("use_regex", True) else ""
        else:
            raise _refused(f"its texts are split by {kind} in a way that llama.cpp has no name for")
    if not parts or parts[-1]["type"] != "ByteLevel":
        raise _refused("its pieces are neither bytes nor sentencepiece's")
    for part in _parts(data.get("normalizer"), "normalizers"):
        if part["type"] not in ("NFC",):
            raise _refused(f"its texts are normalised by {part['type']}, which llama.cpp does not do")
    whole = bool(data["model"].get("ignore_merges"))
    if (rule, whole) not in NAMES:
        raise _refused(f"its texts are split by a rule that llama.cpp has no name for ({rule[:60]})")
    return NAMES[rule, whole]


def _parts(step: dict[str, Any] | None, inside: str) -> list[dict[str, Any]]:
    """A step of a tokenizer, or the steps of a sequence of them."""
    if step is None:
        return []
    return [part for one in step[inside] for part in _parts(one, inside)] if step["type"] == "Sequence" else [step]


def _sentencepiece(data: dict[str, Any]) -> str:
    """Whether a text is prepared as sentencepiece does, with its mark for spaces and nothing else."""
    for part in _parts(data.get("normalizer"), "normalizers"):
        plain = part["type"] == "Replace" and part["content"] == SPACE and part["pattern"].get("String") == " "
        if not plain and not (part["type"] == "Prepend" and part["prepend"] == SPACE):
            raise _refused(f"its texts are normalised by {part['type']}, which llama.cpp does not do")
    for part in _parts(data.get("pre_tokenizer"), "pretokenizers"):
        if part["type"] != "Metaspace" or part.get("split", False):
            raise _refused(f"its texts are split by {part['type']}, which llama.cpp's sentencepiece does not do")
    return "default"


def _space_prefix(data: dict[str, Any]) -> bool:
    """Whether a space is put before a text."""
    prepends = any(part["type"] == "Prepend" for part in _parts(data.get("normalizer"), "normalizers"))
    spaces = _parts(data.get("pre_tokenizer"), "pretokenizers")
    return prepends or any(part.get("prepend_scheme", "always") != "never" for part in spaces)


def _notes(data: dict[str, Any], by_bytes: bool) -> tuple[str, ...]:
    """What llama.cpp does a little differently, in rare texts."""
    if by_bytes:
        composes = (
            "llama.cpp does not compose accents (NFC), as the model's tokenizer does: loose ones give other tokens"
        )
        return (composes,) if _parts(data.get("normalizer"), "normalizers") else ()
    spaces = _space_prefix(data) and bool(_parts(data.get("pre_tokenizer"), "pretokenizers"))
    return (
        ("llama.cpp puts a space before every text, the model's tokenizer only where there is none",) if spaces else ()
    )


# -- the pieces ----------------------------------------------------------------------------------------------------------


def _kind(number: int, pieces: dict[int, str], added: dict[int, Any], tokenizer: Any, by_bytes: bool) -> Kind:
    if number not in pieces:
        return Kind.UNUSED
    piece = pieces[number]
    if not by_bytes and number == tokenizer.unk_token_id:
        return Kind.UNKNOWN
    if number in added:
        return Kind.CONTROL if added[number]["special"] else Kind.USER_DEFINED
    if not by_bytes and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return Kind.BYTE
    return Kind.NORMAL


def _missing_bytes(pieces: dict[int, str], unknown: str | None) -> str:
    """Characters whose bytes are not all among the pieces; the tokenizer must drop them, as llama.cpp does."""
    from tokenizers.pre_tokenizers import ByteLevel

    have, named = set(pieces.values()), ByteLevel(add_prefix_space=False, use_regex=False)
    missing = [one for one in map(_character, IN_TEXTS) if not {*named.pre_tokenize_str(one)[0][0]} <= have]
    if missing and unknown is not None:
        raise _refused(
            f"{len(missing)} bytes are no pieces of it, and it puts {unknown!r:.20} there, where llama.cpp puts nothing"
        )
    return "".join(missing)


def _character(byte: int) -> str:
    """A character that has this byte in UTF-8."""
    if byte < 0xC0:
        return chr(byte)  # by itself, or after 0xC2
    if byte < 0xE0:
        return chr((byte & 0x1F) << 6)
    if byte < 0xF0:
        return chr((byte & 0x0F) << 12 or 0x800)
    return chr((byte & 0x07) << 18 or 0x10000)


def _scores(pieces: dict[int, str], kinds: list[int], merges: list[str]) -> list[float]:
    """Scores in the order of the merges: sentencepiece joins the neighbours whose piece has the highest."""
    rank = dict[str, int]()
    for pair in merges:
        rank.setdefault(pair.replace(" ", ""), len(rank))
    alone = [
        pieces[n]
        for n, kind in enumerate(kinds)
        if kind == Kind.NORMAL and len(pieces[n]) > 1 and pieces[n] not in rank
    ]
    if alone:
        raise _refused(f"{len(alone)} of its pieces are joined by no merge, first {alone[0]!r:.30}")
    return [-float(rank.get(pieces.get(number, ""), 0)) for number in range(len(kinds))]


def _special(tokenizer: Any) -> dict[str, int]:
    named = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "unk", "pad")}
    return {name: int(number) for name, number in named.items() if number is not None}


def _chat_template(tokenizer: Any) -> str | None:
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _proofs(tokenizer: Any, dropped: str, strip: bool) -> Iterator[Proof]:
    """Texts that are hard to split, and a chat, with the tokens of the model's own tokenizer."""
    for text in (text.strip() if strip else text for text in (*TEXTS, *([f"a{dropped}b"] if dropped else []))):
        yield Proof(text, tuple(tokenizer(text)["input_ids"]))
    if _chat_template(tokenizer) is None:
        return
    try:
        chat = tokenizer.apply_chat_template([{"role": "user", "content": TEXTS[0]}], tokenize=False)
    except Exception:  # a template may refuse what it was not written for
        return
    yield Proof(str(chat), tuple(tokenizer(str(chat), add_special_tokens=False)["input_ids"]), False)
