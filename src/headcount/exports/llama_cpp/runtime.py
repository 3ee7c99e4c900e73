"""llama.cpp itself, where its wheel is installed: what a GGUF file gives, in the words of the check and of the clock."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any

from ...errors import CheckFailed

WHEEL = "xllamacpp"
QUIET = -1
SECRET = token_hex(16)  # it listens on this machine while it runs, and answers nobody else


def is_installed() -> bool:
    """Whether llama.cpp can be run from here."""
    return find_spec(WHEEL) is not None


def name() -> str:
    """llama.cpp and its version, in words."""
    try:
        return f"llama.cpp ({WHEEL} {version(WHEEL)})"
    except PackageNotFoundError:
        return "llama.cpp"


@contextmanager
def running(path: str | Path, context: int, *, threads: int = 1, exact: bool = False) -> Iterator[Any]:
    """llama.cpp with a file within the block, for texts of up to `context` tokens; `exact` keeps its cache in float32."""
    import xllamacpp as x

    params = x.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.n_gpu_layers = context, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.warmup, params.verbosity, params.api_keys = False, QUIET, [SECRET]
    if exact:
        params.cache_type_k = params.cache_type_v = x.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    try:
        server = x.Server(params)
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckFailed(f"{name()} does not load {Path(path).name} ({first[:200]}).") from error
    # A server that is given up before its loop has begun waits for it for ever; one that has answered has begun.
    server.handle_completions({"prompt": [0], "n_predict": 1, "temperature": 0.0})
    yield server


def top_logprobs(server: Any, ids: Sequence[int], count: int) -> list[tuple[int, float]]:
    """The most likely tokens after these, and the logarithms of their probabilities."""
    # The token that is taken has no bearing on the probabilities, and must be text, or the answer is held back.
    taken = [[tokens(server, "a", around=False)[-1], 1000.0]]
    asked = {"prompt": list(ids), "n_predict": 1, "n_probs": count, "temperature": 0.0, "cache_prompt": False}
    asked["logit_bias"] = taken
    rows = completed(server, asked)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return [(int(row["id"]), float(row["logprob"])) for row in rows]


def completed(server: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """What llama.cpp answers."""
    answer = server.handle_completions(asked)
    answer = json.loads(answer) if isinstance(answer, str | bytes) else answer
    if "choices" not in answer:
        raise CheckFailed(f"{name()} gives no tokens ({str(answer)[:200]}).")
    return dict(answer)


def tokens(server: Any, text: str, around: bool = True) -> list[int]:
    """The tokens that llama.cpp makes of a text, with or without those around it."""
    body = json.dumps({"content": text, "add_special": around, "parse_special": True}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET}"}
    request = urllib.request.Request(f"{server.listening_address}/tokenize", body, headers)
    here = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is this process: no proxy leads there
    with here.open(request, timeout=60) as answer:
        return [int(number) for number in json.load(answer)["tokens"]]
