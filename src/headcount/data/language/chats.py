"""Conversations: messages written out by the tokenizer's chat template, of which only the assistant's answers are guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import BadData
from ..encoding import IGNORED

ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}  # ShareGPT's words
ANSWERS = "assistant"


class Chat(NamedTuple):
    """The tokens of a conversation, and the same with `IGNORED` where nothing is to be guessed."""

    ids: list[int]
    labels: list[int]
    shortened: bool = False

    @property
    def asks(self) -> bool:
        """Whether there is a token to guess."""
        return any(label != IGNORED for label in self.labels[1:])


def encoded_chats(tokenizer: Any, conversations: Sequence[Any], limit: int, places: Sequence[str]) -> list[Chat]:
    """Every conversation as tokens, cut off after `limit`; `places` says where each is from, for messages.

    An answer is what the template writes between the words that ask for one (`add_generation_prompt`) and the next message:
    the content, and the token that ends it.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise BadData(
            "The tokenizer has no chat template, by which messages become one text; give the tokenizer of the instructed model, "
            "or set its chat_template, or give the conversations as texts."
        )
    if not getattr(tokenizer, "is_fast", False):
        raise BadData(
            "The tokenizer does not tell where a token stands in the text, so that answers cannot be told from questions; take "
            "a fast tokenizer."
        )
    return [
        _encoded(tokenizer, _messages(one, place), limit, place)
        for one, place in zip(conversations, places, strict=True)
    ]


def _messages(conversation: Any, place: str) -> list[dict[str, str]]:
    """The messages as templates take them: a role and a content, both texts."""
    found = []
    for message in conversation if isinstance(conversation, list | tuple) else [None]:
        said = message if isinstance(message, Mapping) else {}
        role, content = said.get("role", said.get("from")), said.get("content", said.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            raise BadData(
                f"The messages in {place} are {str(message)!r:.80}; each must have a role and a content that are texts: "
                '{"role": "user", "content": "..."}.'
            )
        found.append({"role": ROLES.get(role, role), "content": content})
    return found


def _written(tokenizer: Any, messages: list[dict[str, str]], place: str, *, ask: bool = False) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask))
    except Exception as error:  # templates raise what they like, and their engine what it does
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadData(
            f"The chat template refuses the messages in {place} ({reason:.160}); mend them, for example the order of the roles."
        ) from error


def _encoded(tokenizer: Any, messages: list[dict[str, str]], limit: int, place: str) -> Chat:
    if not messages:
        return Chat([], [])
    text, spans = _written(tokenizer, messages, place), list[tuple[int, int]]()
    for number, message in enumerate(messages):
        if message["role"] != ANSWERS:
            continue
        before = _written(tokenizer, messages[:number], place, ask=True) if number else ""
        through = _written(tokenizer, messages[: number + 1], place)
        if text.startswith(through) and through.startswith(before):  # else the template writes it otherwise in the end
            spans.append((len(before), len(through.rstrip())))
    read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids = list(read["input_ids"])
    labels = [IGNORED] * len(ids)
    for number, (start, end) in enumerate(read["offset_mapping"]):
        if start < end and any(first < end and start < last for first, last in spans):  # a token at the seam counts
            labels[number] = ids[number]
    labels[:1] = [IGNORED] * len(labels[:1])  # is read from nothing
    return Chat(ids[:limit], labels[:limit], len(ids) > limit)
