"""Tokens per second of GGUF files in llama.cpp, reading a prompt and writing after it, measured in turns.

Reading is limited by multiply-adds, writing by the bytes of the weights, which are all read for every token: so each has a
limit of its own, and the ratios of a small file beside a whole one differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch

from ..documents.bench import Ratio
from ..efficiency.contention import is_busy, waited
from ..efficiency.contention import threads as torch_threads
from ..efficiency.in_turns import FEWEST, MOST, orders_of, quartiles
from ..errors import BadMeasure
from ..model.loading.gguf_files import head
from ..progress import Bar
from .llama_cpp import runtime

READING, WRITING = "prompt", "generation"
SPARE = 8  # places of the cache beyond the tokens that are needed


class TokenSpeed(NamedTuple):
    """One file at one kind of work, in tokens per second: the median over the repetitions and its quartiles.

    `ratio` is the speed over that of the first file; `limit` is what the multiply-adds of a prompt or the bytes that are read
    for a token allow. Where other programs used the processor for a share `waited` of the time that is too large (`disturbed`),
    the ratio's bounds are the smallest and the largest instead of quartiles.
    """

    file: str
    work: str  # "prompt" or "generation"
    tokens: int
    tokens_per_second: float
    low: float
    high: float
    ratio: Ratio
    limit: float
    waited: float
    disturbed: bool


class _Facts(NamedTuple):
    """Multiply-adds of a token of a prompt, bytes that are read to write one, and how many different tokens there are."""

    multiply_adds: int
    read: int
    vocabulary: int


def token_speeds(
    files: Mapping[str, str | Path],
    *,
    prompt: int = 128,
    generated: int = 32,
    repeats: int | None = None,
    seconds: float = 60.0,
    threads: int | None = None,
    seed: int = 0,
) -> list[TokenSpeed]:
    """How fast llama.cpp reads a prompt and writes after it with each file, compared to the first one.

    All files are in memory at once, and in every repetition each of them runs once, next to the others, so that what slows the
    machine down slows all of them. Prompts are random tokens, and no file may stop writing before the others.

    Args:
        files: GGUF files by name; the first is what the others are compared to.
        prompt: The tokens of a prompt.
        generated: The tokens that are written after it.
        repeats: How often each file runs; without it, as often as about `seconds` allow, 5 to 25 times.
        seconds: About how long all of it may take.
        threads: Threads of llama.cpp; None takes as many as torch.
        seed: What prompts and orders are drawn from.

    Returns:
        For each file a row for prompts and one for generation.

    Examples:
        >>> rows = token_speeds({"whole": Path("whole.gguf"), "pruned": Path("pruned.gguf")})
        >>> [(row.file, row.work) for row in rows][:2]
        [('whole', 'prompt'), ('whole', 'generation')]
    """
    if not runtime.is_installed():
        raise BadMeasure(
            f"llama.cpp is not installed here, so nothing can be timed in it: pip install {runtime.WHEEL}."
        )
    if not files or min(prompt, generated) < 1 or (repeats is not None and repeats < 1):
        raise BadMeasure("Give at least one file, and a prompt, tokens to write and repetitions of at least 1 each.")
    count = torch.get_num_threads() if threads is None else threads
    facts = [_facts(path) for path in files.values()]
    for path in files.values():
        keys = head(Path(path))
        most = keys.get(f"{keys.get('general.architecture')}.context_length", prompt + generated)
        if prompt + generated > most:
            raise BadMeasure(
                f"{path} reads at most {most} tokens, and {prompt} + {generated} were asked for; ask for fewer."
            )
    vocabulary = min(one.vocabulary for one in facts)
    draw = Random(seed)
    with ExitStack() as stack:
        stack.enter_context(torch_threads(count))  # by which the time waited is divided
        running = [
            stack.enter_context(runtime.running(path, prompt + generated + SPARE, threads=count))
            for path in files.values()
        ]
        asked = {"n_predict": generated, "temperature": 0.0, "cache_prompt": False, "ignore_eos": True}

        def measured(place: int, ids: list[int]) -> tuple[float, float, float, float]:
            before = waited()
            times = runtime.completed(running[place], {**asked, "prompt": ids})["timings"]
            return (
                times["prompt_ms"] / 1000,
                times["predicted_ms"] / 1000,
                max(0.0, waited() - before),
                times["predicted_n"],
            )

        first = [
            measured(place, _prompt(draw, prompt, vocabulary)) for place in range(len(files))
        ]  # warm, and how long
        if repeats is None:
            repeats = min(MOST, max(FEWEST, int(seconds / max(sum(sum(row[:2]) for row in first), 1e-9))))
        table = np.empty((repeats, len(files), 4))
        with Bar("measuring", repeats) as bar:
            for number, order in enumerate(orders_of(len(files), repeats, seed)):
                ids = _prompt(draw, prompt, vocabulary)
                for place in order:
                    table[number, place] = measured(place, ids)
                bar.advance()
    return list(_rows(list(files), facts, table, prompt))


def _rows(names: list[str], facts: list[_Facts], table: np.ndarray, prompt: int) -> Iterator[TokenSpeed]:
    """Rows from seconds of reading and writing, seconds waited and tokens written (repetitions, files, 4)."""
    share = float(table[:, :, 2].sum() / max(table[:, :, :2].sum(), 1e-12))
    busy = is_busy(share)
    for place, name in enumerate(names):
        for column, work in enumerate((READING, WRITING)):
            wall = table[:, :, column]
            tokens = prompt if work == READING else int(np.median(table[:, place, 3]))
            low, middle, high = quartiles(tokens / wall[:, place])
            ratios = wall[:, 0] / wall[:, place]
            bounds = quartiles(ratios)
            if busy:  # quartiles look steady where all repetitions are wrong alike
                bounds = (float(ratios.min()), bounds[1], float(ratios.max()))
            ratio = Ratio(bounds[1], bounds[0], bounds[2])
            limit = facts[0][column] / facts[place][column]
            yield TokenSpeed(name, work, tokens, middle, low, high, ratio, limit, share, busy)


def _facts(path: str | Path) -> _Facts:
    from gguf import GGUFReader

    try:
        tensors = {tensor.name: tensor for tensor in GGUFReader(str(path)).tensors}
        embeddings = tensors["token_embd.weight"]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise BadMeasure(f"{path} is no GGUF file of a language model ({error!s:.100}); export one first.") from error
    layers = [tensor for name, tensor in tensors.items() if name.startswith("blk.") and len(tensor.shape) > 1]
    output = tensors.get("output.weight", embeddings)
    read = sum(int(tensor.n_bytes) for tensor in (*layers, output))
    return _Facts(sum(prod(map(int, tensor.shape)) for tensor in layers), read, int(embeddings.shape[1]))


def _prompt(draw: Random, length: int, vocabulary: int) -> list[int]:
    """Tokens from the middle of the vocabulary: special ones lie at its ends."""
    return [draw.randrange(vocabulary // 4, max(vocabulary * 3 // 4, vocabulary // 4 + 1)) for _ in range(length)]


# -- for bench, which times whatever can be called with a batch ------------------------------------------------------------


def caller(path: Path) -> Callable[..., object]:
    """A function that has llama.cpp read a batch, one text after the other, as a model is called with one."""
    return _Caller(path)


class _Caller:
    """llama.cpp with one file, as many threads as torch has, and a cache for the longest batch so far."""

    def __init__(self, path: Path) -> None:
        self.path, self.fits, self.stack, self.server = path, (0, 0), ExitStack(), None

    def __call__(self, input_ids: torch.Tensor, **_: Any) -> object:
        """The answers for each row of tokens (texts, tokens)."""
        length, threads = int(input_ids.shape[1]), torch.get_num_threads()
        if length > self.fits[0] or threads != self.fits[1]:
            self.server = None
            self.stack.close()
            self.server = self.stack.enter_context(runtime.running(self.path, length + SPARE, threads=threads))
            self.fits = (length, threads)
        asked = {"n_predict": 1, "temperature": 0.0, "cache_prompt": False}
        return [runtime.completed(self.server, {**asked, "prompt": row}) for row in input_ids.tolist()]
