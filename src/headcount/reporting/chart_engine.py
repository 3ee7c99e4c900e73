"""What vl-convert does for a report: Vega for the page, charts as SVG and PNG. In a process of its own. No torch.

vl-convert holds a JavaScript engine, which reserves tens of gigabytes of addresses when it starts. Where a machine limits
them (`ulimit -v`, some clusters) it does not raise an error but ends the process, and with it a prune that is nearly done.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

from ..errors import BadRun, HeadcountError
from ..runs import write_whole
from .theme import Spec, for_file

MISSING = (
    "The charts of this page are left out: the chart engine (vl-convert) could not start on the machine that made it, as "
    "happens where addresses are limited (ulimit -v). The tables have all their numbers; headcount report draws the charts "
    "where it can start."
)
SECONDS = 300  # for the engine to start and answer, on a machine that is kept busy
_BUNDLE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle(None).encode())"
_DRAW = """
import base64, json, sys, vl_convert
drawn = []
for spec in json.load(sys.stdin.buffer):
    png = base64.b64encode(vl_convert.vegalite_to_png(spec, scale=2)).decode()
    drawn.append([vl_convert.vegalite_to_svg(spec), png])
sys.stdout.buffer.write(json.dumps(drawn).encode())
"""


@cache
def script() -> str | None:
    """Vega, Vega-Lite and vega-embed as one JavaScript text, from vl-convert's own copy: no network. None without engine.

    It takes seconds to put together, so that it is kept in the user's cache, with its hash.
    """
    cache_path = _cache_file()
    text = _read(cache_path)
    if text is None:
        output = _run(_BUNDLE, b"")
        if not output:
            return None
        text = output.decode("utf-8")
        _keep(cache_path, text)
    return text


def figures(specs: Sequence[Spec]) -> list[tuple[bytes, bytes]]:
    """Charts as SVG and PNG, twice as large as on a screen, in the light palette on white."""
    if not specs:
        return []
    output = _run(_DRAW, json.dumps([for_file(spec) for spec in specs]).encode())
    if output is None:
        raise BadRun(
            "I cannot write charts as SVG and PNG: the chart engine (vl-convert) could not start here, as happens where "
            "addresses are limited (ulimit -v); leave --figures out."
        )
    return [(svg.encode(), base64.b64decode(png)) for svg, png in json.loads(output)]


def _run(code: str, content: bytes) -> bytes | None:
    """What Python code writes in a process of its own, which finds modules where this one does; None where it fails."""
    words = [sys.executable or "python3", "-I", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"]
    try:
        done = subprocess.run(words, input=content, capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


# -- the cache -------------------------------------------------------------------------------------------------------------


def _cache_file() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "headcount"
    except RuntimeError:  # a user without a home
        return None
    return folder / f"vega-{metadata.version('vl-convert-python')}.js"


def _read(cache_path: Path | None) -> str | None:
    """The script in the cache, if it is whole: its first line has the hash of the rest."""
    try:
        head, _, text = cache_path.read_text(encoding="utf-8").partition("\n") if cache_path else ("", "", "")
    except (OSError, UnicodeDecodeError):
        return None
    return text if text and head == f"// {hashlib.sha256(text.encode()).hexdigest()}" else None


def _keep(cache_path: Path | None, text: str) -> None:
    if cache_path is None:
        return
    try:
        cache_path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(cache_path, f"// {hashlib.sha256(text.encode()).hexdigest()}\n{text}".encode())
    except (OSError, HeadcountError):  # it is put together again the next time
        return
