"""Texts and pictures into padded batches of tensors. Everything here knows the tokenizer and nothing of the model."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import BadCheckpoint, BadData
from ..model_files import ModelFiles, tokenizer_files
from .checks.tokenizers import check_loaded, damaged_file

LONGEST = 512  # tokens, where the tokenizer does not know its model's limit
LONGEST_BLOCK = 1024  # tokens of running text that are read at once, unless the user says otherwise
MASKED_SHARE = 0.15  # Devlin et al. (2019)
KEPT_PIXELS = 2**30  # bytes of prepared pictures that stay in memory
IGNORED = -100  # transformers' mark for a position that is no label


@dataclass(frozen=True, eq=False)
class Encoded:
    """Token lists by the name of the model's argument, what each is filled up with and on which side."""

    columns: Mapping[str, Sequence[Sequence[int]]]
    fill: Mapping[str, int]
    side: str = "right"
    shortened: frozenset[int] = frozenset()

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of every example."""
        return [len(tokens) for tokens in self.columns["input_ids"]]

    def padded(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        """The examples of these numbers as tensors (examples, longest of them)."""
        return {
            name: padded([lists[number] for number in numbers], self.fill.get(name, 0), self.side)
            for name, lists in self.columns.items()
        }


def padded(lists: Sequence[Sequence[int]], fill: int, side: str = "right") -> Tensor:
    """Lists of numbers as one tensor, filled up to the longest."""
    longest = max(map(len, lists))
    paddings = [[fill] * (longest - len(row)) for row in lists]
    pad_left = side == "left"
    return torch.tensor(
        [[*more, *row] if pad_left else [*row, *more] for row, more in zip(lists, paddings, strict=True)],
        dtype=torch.long,
    )


def loaded_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer itself, or the one in that folder or of that name."""
    loaded = _from_pretrained(tokenizer, "AutoTokenizer", "a tokenizer")
    if isinstance(tokenizer, str | Path):
        check_loaded(loaded, tokenizer)
    return loaded


def loaded_processor(processor: Any) -> Any:
    """The image processor (any callable) itself, or the one in that folder or of that name."""
    return _from_pretrained(processor, "AutoImageProcessor", "an image processor")


def _from_pretrained(source: Any, auto: str, noun: str) -> Any:
    if source is None:
        raise BadData(f"The task needs {noun}; give tokenizer=, the object or the folder of the model.")
    if not isinstance(source, str | Path):
        return source
    import transformers

    try:
        files = tokenizer_files(source)
    except BadCheckpoint:  # a folder of nothing but a tokenizer
        files = ModelFiles(str(source), str(source))
    try:
        return getattr(transformers, auto).from_pretrained(files.folder, **files.keywords)
    except Exception as error:  # what is wrong with a file of a tokenizer is raised as whatever its reader meets first
        damaged = damaged_file(source)
        if damaged:
            raise BadData(f"{damaged} in {str(source)!r} is not JSON: it is damaged; fetch it again.") from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if files.gguf is not None and noun == "a tokenizer":
            raise BadData(
                f"transformers cannot read the tokenizer in {files.name} ({reason.split('. ')[0]:.160}); put tokenizer.json and "
                "tokenizer_config.json of the model beside the file, or give the folder that the file was made from."
            ) from error
        raise BadData(
            f"There is no {noun.split(' ', 1)[1]} in {str(source)!r} ({reason.split('. ')[0]:.160}); copy its files there from "
            "the model that it came from, or give the object or a folder that has it (in Python)."
        ) from error


def padding_token(tokenizer: Any) -> int:
    """The token that fills up batches: the padding token, or the end-of-text token where there is none (GPT-2)."""
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(token for token in candidates if token is not None)


def special_tokens(tokenizer: Any) -> frozenset[int]:
    """Tokens that stand for no piece of a text ([CLS], [SEP], </s>, padding); a mask or an unknown word stands for one."""
    words = (tokenizer.mask_token_id, tokenizer.unk_token_id)
    marks = (tokenizer.bos_token_id, tokenizer.eos_token_id)  # GPT-2's end of text is its unknown word, too
    return frozenset(tokenizer.all_special_ids) - {token for token in words if token not in marks}


def longest_input(tokenizer: Any, max_length: int | None) -> int:
    """The number of tokens after which texts are cut off: the user's, the tokenizer's, or 512."""
    if max_length is not None:
        if max_length < 2:
            raise BadData(f"max_length is {max_length}; it is a number of tokens, at least 2.")
        return max_length
    model_limit = getattr(tokenizer, "model_max_length", None)
    return model_limit if isinstance(model_limit, int) and 0 < model_limit < 1_000_000 else LONGEST


def encode(tokenizer: Any, texts: Sequence[Sequence[str]], max_length: int, *, target: bool = False) -> Encoded:
    """One or two columns of texts as tokens, cut off after `max_length`; `target` reads them as targets of translation."""

    def tokens(numbers: Sequence[int], **options: Any) -> Mapping[str, list[list[int]]]:
        columns = [[column[number] for number in numbers] for column in texts]
        named = {"text_target": columns[0]} if target else dict(zip(("text", "text_pair"), columns, strict=False))
        return tokenizer(**named, padding=False, verbose=False, **options)

    size = len(texts[0])
    full_encoding = tokens(range(size), truncation=False)
    ids = full_encoding["input_ids"]
    token_lists = {
        name: list(lists) for name, lists in full_encoding.items() if list(map(len, lists)) == list(map(len, ids))
    }
    token_lists.setdefault("attention_mask", [[1] * len(row) for row in ids])
    shortened = [number for number in range(size) if len(ids[number]) > max_length]
    if shortened:
        again = tokens(shortened, truncation=True, max_length=max_length)
        for name, lists in token_lists.items():
            for place, number in enumerate(shortened):
                lists[number] = again[name][place] if name in again else lists[number][: len(again["input_ids"][place])]
    # All zeros is what models assume without them; models that have none (GPT-2) would add the embedding of token 0.
    if not any(map(any, token_lists.get("token_type_ids", []))):
        token_lists.pop("token_type_ids", None)
    fill = {"input_ids": padding_token(tokenizer), "token_type_ids": getattr(tokenizer, "pad_token_type_id", 0)}
    # A text that begins with a token for the whole of it (BERT's [CLS]) is read there: padding must not push it away.
    whole_text = getattr(tokenizer, "cls_token_id", None)
    begins = whole_text is not None and all(row[:1] == [whole_text] for row in token_lists["input_ids"])
    side = "right" if begins else getattr(tokenizer, "padding_side", "right")
    return Encoded(token_lists, fill, side, frozenset(shortened))


def beginning(tokenizer: Any) -> list[int]:
    """The token that the tokenizer begins a text with (BOS), or nothing."""
    first = list(tokenizer("", verbose=False)["input_ids"])[:1]
    return first if first and first[0] == tokenizer.bos_token_id else []


class Block(NamedTuple):
    """Some tokens of a running text, and the character of it with which they begin, where the tokenizer tells."""

    ids: list[int]
    start: int | None


def longest_block(tokenizer: Any, max_length: int | None) -> int:
    """The number of tokens of a running text that are read at once: the user's, or the tokenizer's up to 1024."""
    longest = longest_input(tokenizer, max_length)
    return min(longest, LONGEST_BLOCK) if max_length is None else longest


def running_tokens(tokenizer: Any, text: str) -> tuple[list[int], list[int] | None]:
    """All tokens of a text, with nothing around them, and the character that each begins with, where the tokenizer tells."""
    where = {"return_offsets_mapping": True} if getattr(tokenizer, "is_fast", False) else {}
    read = tokenizer(text, add_special_tokens=False, verbose=False, **where)
    places = read.get("offset_mapping")
    return list(read["input_ids"]), None if places is None else [start for start, _ in places]


def blocks(tokenizer: Any, text: str, max_length: int | None) -> list[Block]:
    """A running text in pieces of at most `max_length` tokens, each begun as the tokenizer begins a text (BOS or nothing)."""
    ids, places = running_tokens(tokenizer, text)
    begin = beginning(tokenizer)
    step = longest_block(tokenizer, max_length) - len(begin)
    cut = [
        Block([*begin, *ids[start : start + step]], None if places is None else places[start])
        for start in range(0, len(ids), step)
    ]
    return [block for block in cut if len(block.ids) > 1]


def hidden_places(ids: Sequence[int], special: Collection[int], seed: str) -> list[int]:
    """The places to mask: 15 % of those that hold no special token, at least one; none where there are none."""
    places = [place for place, token in enumerate(ids) if token not in special]
    return sorted(random.Random(seed).sample(places, max(1, round(len(places) * MASKED_SHARE)))) if places else []


# --- pictures -------------------------------------------------------------------------------------------------------


def picture_reader(processor: Any, pictures: Sequence[Any], place: Callable[[int], str]) -> Callable[[int], Tensor]:
    """A function from numbers to prepared pictures (channels, height, width), which keeps the first gigabyte of them.

    `processor` is an image processor of transformers, or any function from a PIL image to a tensor.
    """
    cache: dict[int, Tensor] = {}

    def read(number: int) -> Tensor:
        if number in cache:
            return cache[number]
        prepared = _prepared(processor, _opened(pictures[number], place(number)))
        if (len(cache) + 1) * prepared.numel() * prepared.element_size() <= KEPT_PIXELS:  # they are all of one size
            cache[number] = prepared
        return prepared

    return read


def _prepared(processor: Any, picture: Any) -> Tensor:
    if hasattr(processor, "preprocess"):
        return torch.as_tensor(processor(images=picture, return_tensors="pt")["pixel_values"])[0]
    return torch.as_tensor(processor(picture))


def _opened(picture: Any, place: str) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise BadData("Pictures need pillow; install headcount[images].") from error
    if isinstance(picture, Mapping):  # how Parquet files of the hub hold pictures
        picture = io.BytesIO(picture["bytes"]) if picture.get("bytes") else picture.get("path")
    try:
        opened = picture if isinstance(picture, Image.Image) else Image.open(picture)
        return opened.convert("RGB")
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise BadData(f"The picture in {place} cannot be read ({error!s:.120}); mend or delete it.") from error
