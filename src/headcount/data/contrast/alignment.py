"""Clean and corrupted prompts as tokens side by side, where a model is asked, and with which token each answer begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import BadData
from ..encoding import beginning
from .pairs import Answers

MASKS = ("[MASK]", "<mask>")  # how prompts name the mask token, whatever the tokenizer calls it
OPENING = "([{\"'-/$"  # after these an answer follows without a space
NO_SPACES = 0x2E80  # scripts from here on in Unicode are written without spaces between words
SHOWN = 24  # tokens of a prompt in a message


class Unusable(BadData):
    """An example whose prompts or answers cannot be compared token by token."""


class Contrast(NamedTuple):
    """An example: tokens of both prompts, the position whose logits are asked, and the first tokens of the answers."""

    clean: tuple[int, ...]
    corrupted: tuple[int, ...]
    at: int
    right: tuple[int, ...]
    wrong: tuple[int, ...]
    longer: bool  # whether an answer has more tokens than the first
    masked: bool  # whether the answer belongs in the place of a mask, and not behind the prompt

    @property
    def differing(self) -> tuple[int, ...]:
        """The positions at which the prompts have different tokens."""
        return tuple(n for n, (one, other) in enumerate(zip(self.clean, self.corrupted, strict=True)) if one != other)


class Prompts(NamedTuple):
    """The texts of an example, and where it is from, for messages."""

    clean: str
    corrupted: str
    answers: Answers
    place: str


class Reader:
    """Reads prompts and answers by one tokenizer; every text is tokenised once."""

    def __init__(self, tokenizer: Any, limit: int, as_written: bool) -> None:
        self.tokenizer, self.limit, self.as_written = tokenizer, limit, as_written
        self.mask = tokenizer.mask_token if tokenizer.mask_token_id is not None else None
        self.begin = beginning(tokenizer)
        self._known: dict[str, tuple[int, ...]] = {}

    def read(self, prompts: Prompts) -> Contrast:
        """The example as tokens; `Unusable` says what is wrong with it."""
        clean, corrupted = (self._prompt(text) for text in (prompts.clean, prompts.corrupted))
        masked = self._masks(clean, prompts) if self.mask is not None else 0
        one, other = (self._ids(text, bool(masked)) for text in (clean, corrupted))
        if len(one) != len(other):
            raise Unusable(
                f"Clean and corrupted prompt of {prompts.place} have {len(one)} and {len(other)} tokens ({self._shown(one)} / "
                f"{self._shown(other)}); they must align token by token: change a word for one with as many tokens, or leave "
                "such examples out with unaligned='drop' (--unaligned drop)."
            )
        if one == other:
            raise Unusable(
                f"Clean and corrupted prompt of {prompts.place} are the same tokens ({self._shown(one)}); change one."
            )
        if len(one) > self.limit:
            raise Unusable(
                f"The prompts of {prompts.place} have {len(one)} tokens and the longest input is {self.limit}; shorten them, or "
                "give a larger max_length."
            )
        at = len(one) - 1
        if masked:
            at = one.index(self.tokenizer.mask_token_id)
            if other.index(self.tokenizer.mask_token_id) != at:
                raise Unusable(
                    f"The mask in the clean and corrupted prompt of {prompts.place} is not the same token; move it."
                )
        right, wrong = (
            [self._answer(clean, one, at, answer, prompts.place, bool(masked)) for answer in answers]
            for answers in prompts.answers
        )
        first = [dict.fromkeys(tokens[0] for tokens in answers) for answers in (right, wrong)]
        same = next((token for token in first[0] if token in first[1]), None)
        if same is not None:
            named = " and ".join(repr(answer) for answers in prompts.answers for answer in answers[:3])
            raise Unusable(
                f"A right and a wrong answer of {prompts.place} ({named:.100}) both begin with the token "
                f"{self._word(same)!r}, and only first tokens are compared; give answers that differ in their first token."
            )
        longer = any(len(tokens) > 1 for tokens in (*right, *wrong))
        return Contrast(one, other, at, tuple(first[0]), tuple(first[1]), longer, bool(masked))

    def _prompt(self, text: str) -> str:
        """The prompt with the tokenizer's own mask; spaces at its end belong to the answer."""
        for mask in MASKS if self.mask is not None else ():
            text = text.replace(mask, self.mask or mask)
        return text if self.mask is not None and self.mask in text else text.rstrip(" ")

    def _masks(self, clean: str, prompts: Prompts) -> int:
        assert self.mask is not None
        counts = [clean.count(self.mask), self._prompt(prompts.corrupted).count(self.mask)]
        if max(counts) > 1 or counts[0] != counts[1]:
            raise Unusable(
                f"The clean and corrupted prompt of {prompts.place} have {counts[0]} and {counts[1]} masks ({self.mask}); write "
                "one in each for a masked language model, or none for a causal one."
            )
        return counts[0]

    def _answer(
        self, prompt: str, ids: Sequence[int], at: int, answer: str, place: str, masked: bool
    ) -> tuple[int, ...]:
        """The tokens of an answer where it stands: in the place of the mask, or behind the prompt."""
        if masked:
            whole = self._ids(prompt.replace(self.mask or "", answer.strip()), True)
            before, after = tuple(ids[:at]), tuple(ids[at + 1 :])
            fits = whole[:at] == before and (not after or whole[len(whole) - len(after) :] == after)
            tokens = whole[at : len(whole) - len(after)]
        else:
            gap = "" if self.as_written else _gap(prompt, answer)
            whole = self._ids(prompt + gap + answer, False)
            fits, tokens = whole[: len(ids)] == tuple(ids), whole[len(ids) :]
        if not fits or not tokens:
            raise Unusable(
                f"With the answer {answer!r:.40} the prompt of {place} becomes other tokens ({self._shown(whole)} instead of "
                f"{self._shown(ids)}); end the prompt with a whole word, and write the space before the answer if it has one."
            )
        return tokens

    def _ids(self, text: str, marks: bool) -> tuple[int, ...]:
        if text not in self._known:
            ids = self.tokenizer(text, add_special_tokens=marks, verbose=False)["input_ids"]
            self._known[text] = tuple(ids) if marks else (*self.begin, *ids)
        return self._known[text]

    def _word(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))

    def _shown(self, ids: Sequence[int]) -> str:
        words = "·".join(self._word(token) for token in ids[:SHOWN])
        return words + "..." * (len(ids) > SHOWN)


def _gap(prompt: str, answer: str) -> str:
    """What is written between a prompt and an answer: a space, unless the answer goes on with what the prompt ends in."""
    last, first = prompt[-1:], answer[:1]
    joined = last.isspace() or (last.isdigit() and first.isdigit()) or last in OPENING
    return "" if joined or max(map(ord, (last or " ", first or " "))) >= NO_SPACES else " "


def spaced(answers: Sequence[Answers]) -> bool:
    """Whether answers are written with the space before them, so that they are taken as they are."""
    return any(answer[:1].isspace() for some in answers for answer in (*some.right, *some.wrong))


def counts_of(problems: Sequence[Unusable], total: int) -> str:
    """A sentence about the examples that were left out, with the first of the reasons."""
    return f"{len(problems)} of {total} examples were left out, the first because: {problems[0]}" if problems else ""


def columns_of(examples: Sequence[Contrast], corrupted: bool) -> Mapping[str, list[tuple[int, ...]]]:
    """Tokens and answers of examples by the names that batches have for them."""
    return {
        "input_ids": [one.corrupted if corrupted else one.clean for one in examples],
        "right": [one.right for one in examples],
        "wrong": [one.wrong for one in examples],
    }
