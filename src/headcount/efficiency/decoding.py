"""Writing: a decoder's next tokens one at a time, greedily and so many in any case, with its cache of keys and values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from torch import Tensor, nn

from ..documents.bench import Decoding
from ..errors import BadMeasure, HeadcountError
from ..model.discovery import unwrap
from ..runs import Arrays
from .flops import UNKNOWN
from .in_turns import Shape, Time, Work, compared, in_turns, where_it_fits
from .kv_cache import cache_costs, cached_tensors, keys_and_values
from .launching import WARM_UPS, Launching, compiled, recorded, warm

COLUMNS = ("seconds", "counted", "measured")


class Writer:
    """A decoder before a batch of prompts: `read` fills its cache with them, and `write` goes on from there.

    Plainly the cache grows with every token, as `generate` does it. Compiled or recorded code gets one of a fixed size, so that
    every step is the same code on the same memory; the prompt is read as it is, because its shape comes once.

    Args:
        model: The decoder, in evaluation mode.
        prompts: Token ids (batch, length), without padding.
        tokens: How many are written after the one that follows from the prompt.
        step: What makes a step in the place of the model: its compiled code.
        launching: How steps are launched.
    """

    def __init__(
        self,
        model: nn.Module,
        prompts: Tensor,
        tokens: int,
        step: Callable[..., Any] | None = None,
        launching: Launching | None = None,
    ) -> None:
        self.model, self.prompts, self.tokens, self.step = model, prompts, tokens, model if step is None else step
        self.launching = launching or Launching()
        last = "logits_to_keep" in inspect.signature(unwrap(model).forward).parameters
        self.only_last = {"logits_to_keep": 1} if last else {}
        room = prompts.shape[1] + max(tokens, WARM_UPS + 1)
        self.cache: Any = None if self.launching.plain else _fixed_cache(model, room, self.launching)
        self.token, self.written = prompts[:, -1:].clone(), list[Tensor]()
        self.replay: Callable[[], None] | None = None

    def read(self) -> None:
        """Fill the cache with the prompts, and take the token that follows."""
        if self.launching.plain:
            self.cache = None
        else:
            self.cache.reset()  # in place: recorded steps use this memory
        output = self.model(input_ids=self.prompts, past_key_values=self.cache, use_cache=True, **self.only_last)
        self.cache = output.past_key_values
        self.token.copy_(_best(output))
        self.written = [self.token.clone()]

    def write(self) -> None:
        """The next tokens."""
        if self.replay is not None:
            for _ in range(self.tokens):
                self.replay()
            return
        token = self.token
        for _ in range(self.tokens):
            output = self.step(input_ids=token, past_key_values=self.cache, use_cache=True)
            token = _best(output)
            self.written.append(token)

    def record(self) -> None:
        """Record a step as a CUDA graph, which `write` runs from now on."""
        self.read()

        def step() -> None:
            output = self.step(input_ids=self.token, past_key_values=self.cache, use_cache=True)
            self.token.copy_(_best(output))

        self.replay = recorded(step, self.prompts.device)

    def both(self) -> None:
        """Read, then write."""
        self.read()
        self.write()

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values that the cache holds now."""
        return sum(tensor.numel() * tensor.element_size() for tensor in keys_and_values(self.cache))


def look(work: Work, shape: Shape, tokens: int) -> Arrays:
    """About the seconds in which each model reads prompts and writes, and the bytes of its cache then, counted and measured;
    nothing where memory runs out. Bytes that cannot be counted are `UNKNOWN`."""

    def rows() -> Arrays:
        found = []
        for model, prompts in zip(work.models.values(), _prompts(work, shape), strict=True):
            writer = Writer(model, prompts, tokens)
            seconds = work.clock(writer.both, work.device).wall
            counted, texts = _counted(model), prompts.numel() + tokens * len(prompts)
            found.append((seconds, UNKNOWN if counted is None else counted * texts, writer.cache_bytes))
        return dict(zip(COLUMNS, np.array(found, dtype=float).T, strict=True))

    return where_it_fits(rows, {name: np.empty(0) for name in COLUMNS})


def measured(work: Work, shape: Shape, tokens: int, orders: list[list[int]], step: Callable[[], None]) -> Arrays:
    """Seconds in which each model writes, a row per repetition; no rows where memory runs out."""

    def take() -> Arrays:
        with _writers(work, shape, tokens) as writers:

            def timing(place: int) -> Time:
                writers[place].read()  # not timed: passes over whole prompts are timed by themselves
                took = work.clock(writers[place].write, work.device)
                step()
                return took

            return in_turns(timing, orders)

    return where_it_fits(take, {name: np.empty((0, len(work.models))) for name in Time._fields})


def rows(names: Sequence[str], shape: Shape, tokens: int, look: Arrays, timings: Arrays) -> Iterator[Decoding]:
    """The row of each model from the seconds of all of them; none if there are no seconds."""
    batch, length = shape
    assert length is not None
    for place, row in enumerate(compared(timings, batch * tokens)):
        counted = look["counted"][place]
        cache = float(look["measured"][place]), None if counted == UNKNOWN else float(counted)
        yield Decoding(names[place], batch, length, tokens, *row[:6], *cache, *row[6:])


def check(models: Mapping[str, nn.Module], lengths: Sequence[int | None], tokens: int) -> None:
    """`BadMeasure` for models that write nothing, and where a text would get longer than a model reads."""
    if type(tokens) is not int or tokens < 1:
        raise BadMeasure(
            f"Tokens to generate (--generate) are a whole number from 1 on; I got {tokens!r:.40}: give 128."
        )
    for name, model in models.items():
        root = unwrap(model)
        if not cached_tensors(root):
            raise BadMeasure(
                f"{name} ({type(root).__name__}) is no decoder that keeps a cache of keys and values, so there is nothing to "
                "time with generate (--generate); leave it out to time passes."
            )
        config = root.config.get_text_config()
        most, longest = getattr(config, "max_position_embeddings", None), max(length or 0 for length in lengths)
        if isinstance(most, int) and 0 < most < longest + tokens:
            raise BadMeasure(
                f"Prompts of {longest} tokens with {tokens} more (--generate) are {longest + tokens} positions, and {name} has "
                f"{most}; use at most {most} in all, for example --length {max(1, most - tokens)}."
            )


@contextmanager
def _writers(work: Work, shape: Shape, tokens: int) -> Iterator[list[Writer]]:
    """Within the block a writer for each model, with its code compiled or its step recorded, and warm."""
    prompts, launching = _prompts(work, shape), work.launching
    code = compiled(work.models, launching) if launching.compile else nullcontext([*work.models.values()])
    with code as steps:
        writers = [
            Writer(model, ids, tokens, step, launching)
            for model, ids, step in zip(work.models.values(), prompts, steps, strict=True)
        ]
        for writer in writers:
            if launching.recorded:
                writer.record()
            (warm if launching.compile else _once)(writer.both)
        yield writers


def _once(run: Callable[[], object]) -> None:
    run()


def _prompts(work: Work, shape: Shape) -> list[Tensor]:
    return [batch["input_ids"] for batch in work.batches(shape)]


def _best(output: Any) -> Tensor:
    """The likeliest next token of each text: (batch, 1)."""
    best: Tensor = output.logits[:, -1:].argmax(-1)
    return best


def _counted(model: nn.Module) -> float | None:
    """The bytes of cache per token by the shapes of the heads; None where it holds something else."""
    try:
        return cache_costs(model).whole
    except HeadcountError:
        return None


def _fixed_cache(model: nn.Module, length: int, launching: Launching) -> Any:
    """A cache with room for texts of this length and no more."""
    from transformers import StaticCache

    root: Any = unwrap(model)
    cache = StaticCache(config=root.config, max_cache_len=length)
    if launching.recorded and any(getattr(layer, "is_sliding", False) for layer in cache.layers):
        raise BadMeasure(
            f"{type(root).__name__} has layers with a sliding window, whose cache counts outside the GPU, so that its steps "
            "cannot be recorded (--cuda-graphs); add --compile, or leave it out."
        )
    return cache
