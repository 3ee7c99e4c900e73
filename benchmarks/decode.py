"""Reading prompts and writing tokens: language models cut in several ways, against the whole one, and how they are launched.

    PYTHONPATH=src python benchmarks/decode.py                         # one GPU, about three minutes
    PYTHONPATH=src python benchmarks/decode.py --shapes tiny --dtype float32 --batch 1,2 --prompt 32 --tokens 8 --repeats 3

Weights are random, in the shapes of SmolLM2-135M and Llama-3.2-1B, so that no files are needed. All ways of cutting run in turns,
and a ratio is the median over repetitions of pairs that ran next to each other. *Eager* launches one operation after the other,
*CUDA graphs* replays a recorded pass or step, *compiled* is torch.compile with graphs of its own. What is eager writes fewer
tokens, because each takes as long as the next. Compiling takes long and comes last; what does not fit into --limit is named.
On a CPU everything is eager, and times are processor times, which other work on the machine disturbs less.

The JSON file is written after every measurement, and `--table FILE` prints its table again.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers
from torch import nn

import headcount as hc
from headcount.efficiency.benchmark import device_text
from headcount.efficiency.decoding import Writer
from headcount.efficiency.in_turns import Time, by_processor, compared, in_turns, orders_of, timed
from headcount.efficiency.launching import Launching, compiled, recorded, warm
from headcount.exports.even_groups import with_even_groups
from headcount.formatting import memory_text

SHAPES: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
    },
    "Llama-3.2-1B": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 192,
        "vocab_size": 320,
    },
}
LAUNCHED = {"eager": Launching(), "CUDA graphs": Launching(cuda_graphs=True), "compiled": Launching(True, True)}
COMPILED_ONLY = ("whole", "50 %, even groups", "50 %, uneven groups")  # compiling takes long
COMPILING = 30.0  # seconds for one model, until the first one tells


def main(words: Sequence[str] | None = None) -> None:
    given = _asked(words)
    if given.table:
        print(table(json.loads(Path(given.table).read_text(encoding="utf-8"))))
        return
    started = time.perf_counter()
    torch.set_num_threads(given.threads or torch.get_num_threads())
    device = torch.device(given.device)
    found: dict[str, Any] = {
        "device": device_text(device),
        "dtype": given.dtype,
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}",
        "command": " ".join(["python benchmarks/decode.py", *(sys.argv[1:] if words is None else words)]),
        "prompt": given.prompt,
        "models": [],
        "rows": [],
        "notes": [],
    }
    every = {shape: variants(shape, device, getattr(torch, given.dtype)) for shape in given.shapes.split(",")}
    for shape, models in every.items():
        whole = sum(p.numel() for p in models["whole"].parameters())
        for name, model in models.items():
            count = sum(p.numel() for p in model.parameters())
            heads = [len(site) for site in hc.find(model).heads]
            found["models"].append(
                {"shape": shape, "name": name, "parameters": count, "removed": 1 - count / whole, "heads": heads}
            )
    cost = COMPILING * len(COMPILED_ONLY)
    for launch, what, batch, shape in _cells(given, device):
        left = given.limit - (time.perf_counter() - started)
        if left < (cost if launch == "compiled" else 0):
            found["notes"].append(f"{shape}, {what}, batch {batch}, {launch}: left out for time (--limit).")
            continue
        before, models = time.perf_counter(), every[shape]
        if launch == "compiled":
            models = {name: models[name] for name in COMPILED_ONLY}
        _measure(found, given, shape, models, launch, batch, what)
        if launch == "compiled":
            cost = time.perf_counter() - before
    found["seconds"] = round(time.perf_counter() - started)
    _write(found, given.output)
    print(table(found))


def _cells(given: argparse.Namespace, device: torch.device) -> list[tuple[str, str, int, str]]:
    """What is measured, the most telling first: how launched, reading or writing, batch size, shape."""
    launched = [name for name in given.launched.split(",") if device.type == "cuda" or name == "eager"]
    quick, batches = [name for name in launched if name != "compiled"], [int(part) for part in given.batch.split(",")]
    cells = [(launch, "decode", batch) for batch in batches for launch in quick]
    # the passes of a large batch keep a GPU busy however they are launched
    cells += [
        (launch, "prefill", batch) for batch in batches for launch in (quick if batch == batches[0] else quick[:1])
    ]
    if "compiled" in launched:
        cells += [("compiled", what, batches[0]) for what in ("decode", "prefill")]
    cells = [cell for cell in cells if cell[1] in given.what.split(",")]
    return [(*cell, shape) for cell in cells for shape in reversed(given.shapes.split(","))]


def _asked(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default="SmolLM2-135M,Llama-3.2-1B", help=", ".join(SHAPES))
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--what", default="decode,prefill")
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--eager-tokens", type=int, default=10, help="tokens written eagerly, at most")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--eager-repeats", type=int, default=5)
    parser.add_argument("--launched", default="eager,CUDA graphs,compiled")
    parser.add_argument("--limit", type=float, default=160.0, help="seconds after which nothing more begins")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="on a CPU")
    parser.add_argument("--output", type=Path, default=Path("decode.json"))
    parser.add_argument("--table", help="print the table of a file that was written before")
    return parser.parse_args(words)


# -- models ----------------------------------------------------------------------------------------------------------------


def variants(shape: str, device: torch.device, dtype: torch.dtype) -> dict[str, nn.Module]:
    """The whole model and copies of it that are cut in different ways."""
    config = transformers.LlamaConfig(**SHAPES[shape], max_position_embeddings=4096, tie_word_embeddings=True)
    torch.manual_seed(0)
    with torch.device(device):
        whole = transformers.LlamaForCausalLM(config).to(dtype).eval()
    models: dict[str, nn.Module] = {"whole": whole}
    for share in (0.2, 0.5):
        label = f"{share:.0%}".replace("%", " %")
        even, uneven = _heads(whole, share, even=True), _heads(whole, share, even=False)
        neurons = _neurons(whole, share, len(even))
        models[f"{label}, even groups"] = _cut(whole, [*even, *neurons])
        models[f"{label}, uneven groups"] = _cut(whole, [*uneven, *neurons])
    padded, _ = with_even_groups(models["50 %, uneven groups"], "pad")
    models["50 %, uneven groups padded"] = padded
    models["half of the kv groups"] = _cut(whole, _groups(whole))
    layers = config.num_hidden_layers
    for share in (0.2, 0.5):  # from the middle on: the first and the last layers are the last to go
        gone = round(share * layers)
        first = (layers - gone) // 2
        models[f"{gone} of {layers} layers"] = _cut(whole, [f"layers:{n}" for n in range(first, first + gone)])
    return models


def _cut(whole: nn.Module, units: list[str]) -> nn.Module:
    smaller = copy.deepcopy(whole)
    hc.cut(smaller, units)
    return smaller


def _heads(whole: Any, share: float, even: bool) -> list[str]:
    """Some query heads of every layer, as many of each kv group; or as many drawn by lot so that groups are uneven and none is
    empty."""
    config, draw, out = whole.config, Random(0), list[str]()
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = heads // groups
    gone = max(1, int(share * size))
    for layer in range(config.num_hidden_layers):
        chosen = [head for head in range(heads) if head % size < gone]
        while not even:
            chosen = draw.sample(range(heads), gone * groups)
            left = Counter(head // size for head in range(heads) if head not in chosen)
            if len(left) == groups and len({*left.values()}) > 1:
                break
        out += [f"{layer}:{head}" for head in chosen]
    return out


def _neurons(whole: Any, share: float, heads: int) -> list[str]:
    """As many neurons of every layer as bring what is removed to this share of all parameters, in multiples of 16."""
    config = whole.config
    width = config.hidden_size // config.num_attention_heads
    missing = share * sum(p.numel() for p in whole.parameters()) - heads * 2 * width * config.hidden_size
    count = round(missing / config.num_hidden_layers / (3 * config.hidden_size) / 16) * 16
    count = max(0, min(count, config.intermediate_size - 16))
    return [f"{layer}.mlp:0-{count - 1}" for layer in range(config.num_hidden_layers) if count]


def _groups(whole: Any) -> list[str]:
    """Half of the kv groups of every layer, rounded down, with their query heads."""
    config = whole.config
    gone = config.num_key_value_heads // 2 * (config.num_attention_heads // config.num_key_value_heads)
    return [f"{layer}:0-{gone - 1}" for layer in range(config.num_hidden_layers)]


# -- measuring -------------------------------------------------------------------------------------------------------------


def _measure(
    found: dict[str, Any],
    given: argparse.Namespace,
    shape: str,
    models: dict[str, nn.Module],
    launch: str,
    batch: int,
    what: str,
) -> None:
    """One line per model: all of them in turns; what fails is a note, and the rest goes on."""
    tokens = min(given.tokens, given.eager_tokens) if launch == "eager" else given.tokens
    repeats = given.eager_repeats if launch == "eager" else given.repeats
    about = {"shape": shape, "launched": launch, "batch": batch, "what": what, "tokens": tokens}
    began, orders = time.perf_counter(), orders_of(len(models), repeats)
    try:
        with torch.no_grad():
            timing = reading if what == "prefill" else writing
            with timing(models, LAUNCHED[launch], batch, given, tokens) as (take, amount, caches):
                rows = list(compared(in_turns(take, orders), amount))
                sizes = caches()
        for name, row, cache in zip(models, rows, sizes, strict=True):
            found["rows"].append({**about, "model": name, **row._asdict(), "cache": cache})
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        found["notes"].append(f"{shape}, {what}, batch {batch}, {launch}: failed ({type(error).__name__}: {first}).")
    finally:
        torch.compiler.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    took = time.perf_counter() - began
    print(f"{shape}, {what}, batch {batch}, {launch}: {took:.1f} s", file=sys.stderr, flush=True)
    _write(found, given.output)


Timing = tuple[Callable[[int], Time], float, Callable[[], list[int | None]]]


@contextmanager
def reading(
    models: dict[str, nn.Module], launching: Launching, batch: int, given: argparse.Namespace, _: int
) -> Iterator[Timing]:
    """Passes over whole prompts that fill a cache and give the next token's logits."""
    device, prompts = _prompts(models, batch, given)
    calls = [partial(model, input_ids=prompts, use_cache=True, logits_to_keep=1) for model in models.values()]
    with _steps(models, launching) as steps:
        if launching.compile:
            calls = [partial(step, input_ids=prompts, use_cache=True, logits_to_keep=1) for step in steps]
        runs = [recorded(call, device) if launching.recorded else call for call in calls]
        for run in runs:
            (warm if launching.compile else _once)(run)
        yield lambda place: _clock(runs[place], device), batch * given.prompt, lambda: [None] * len(models)


@contextmanager
def writing(
    models: dict[str, nn.Module], launching: Launching, batch: int, given: argparse.Namespace, tokens: int
) -> Iterator[Timing]:
    """Tokens after prompts, one at a time; the reading of the prompts is not timed."""
    device, prompts = _prompts(models, batch, given)
    with _steps(models, launching) as steps:
        writers = [
            Writer(model, prompts, tokens, step, launching) for model, step in zip(models.values(), steps, strict=True)
        ]
        for writer in writers:
            if launching.recorded:
                writer.record()
            (warm if launching.compile else _once)(writer.both)

        def take(place: int) -> Time:
            writers[place].read()
            return _clock(writers[place].write, device)

        yield take, batch * tokens, lambda: [writer.cache_bytes for writer in writers]


@contextmanager
def _steps(models: dict[str, nn.Module], launching: Launching) -> Iterator[list[Any]]:
    if launching.compile:
        with compiled(models, launching) as steps:
            yield steps
    else:
        yield list(models.values())


def _prompts(models: dict[str, nn.Module], batch: int, given: argparse.Namespace) -> tuple[torch.device, torch.Tensor]:
    whole: Any = models["whole"]
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(whole.config.vocab_size, (batch, given.prompt), generator=draw)
    return whole.device, prompts.to(whole.device)


def _clock(run: Callable[[], object], device: torch.device) -> Time:
    return (by_processor if device.type == "cpu" else timed)(run, device)


def _once(run: Callable[[], object]) -> None:
    run()


# -- what is written ---------------------------------------------------------------------------------------------------------


def _write(found: dict[str, Any], path: Path) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1), encoding="utf-8")
    part.replace(path)


def table(found: dict[str, Any]) -> str:
    """The measurements as Markdown: a table for each shape and way of launching, a line per model."""
    lines = []
    pairs = {(row["shape"], row["launched"]) for row in found["rows"]}
    keys = sorted(pairs, key=lambda pair: (list(SHAPES).index(pair[0]), list(LAUNCHED).index(pair[1])))
    about = {(model["shape"], model["name"]): model for model in found["models"]}
    for shape, launch in keys:
        rows = [row for row in found["rows"] if (row["shape"], row["launched"]) == (shape, launch)]
        cells = list(dict.fromkeys((row["what"], row["batch"], row["tokens"]) for row in rows))
        heads = [_heading(found, *cell) for cell in cells]
        largest = max(row["batch"] for row in rows)
        lines += [f"### {shape}, {launch}", ""]
        lines += [
            "| | parameters | " + " | ".join(heads) + f" | cache, batch {largest} |",
            "|---" * (len(heads) + 3) + "|",
        ]
        for name in dict.fromkeys(row["model"] for row in rows):
            of_model = {(row["what"], row["batch"], row["tokens"]): row for row in rows if row["model"] == name}
            cache = of_model.get(next((cell for cell in cells if cell[:2] == ("decode", largest)), cells[0]), {}).get(
                "cache"
            )
            values = [_cell(of_model.get(cell), name) for cell in cells]
            count = f"{about[shape, name]['parameters']:,}"
            lines.append(f"| {name} | {count} | " + " | ".join(values) + f" | {memory_text(cache) if cache else ''} |")
        lines.append("")
    lines += [f"- {note}" for note in found["notes"]]
    lines += [""] * bool(found["notes"])
    lines += ["```", f"PYTHONPATH=src {found['command']}", "```", ""]
    took = f", {found['seconds']} s in all" if "seconds" in found else ""
    lines.append(f"{found['device']}, {found['dtype']}, {found['versions']}{took}.")
    return "\n".join(lines)


def _heading(found: dict[str, Any], what: str, batch: int, tokens: int) -> str:
    length = f"{found['prompt']:,}"
    return f"prefill {length}, batch {batch}" if what == "prefill" else f"{tokens} after {length}, batch {batch}"


def _cell(row: dict[str, Any] | None, name: str) -> str:
    if row is None:
        return ""
    if name == "whole":
        return f"{row['speed']:,.0f} tokens/s"
    doubt = "?" if row["disturbed"] else ""
    return f"**{row['ratio']:.2f}**{doubt} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"


if __name__ == "__main__":
    main()
