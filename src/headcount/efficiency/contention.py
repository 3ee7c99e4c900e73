"""How long programs waited for the processor: whether a timing on a CPU can be believed. No torch.

Quartiles do not show it: beside another program every repetition is slow alike, and a ratio of two models can be wrong by half and
look steady. The operating system knows: Linux counts the time in which some program was ready to run and had no processor.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

BUSY = 0.2  # share of the time; on a quiet machine it is about 0.01, beside one other busy program 0.5
PRESSURE = Path("/proc/pressure/cpu")


def waited() -> float | None:
    """Seconds in which some program has waited for a processor, since the machine was started; None where nobody counts."""
    try:
        text = PRESSURE.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    match = re.search(r"^some .*total=(\d+)", text, re.MULTILINE)
    return None if match is None else int(match[1]) / 1e6


class Watch:
    """The share of the time since it was made in which some program waited for a processor."""

    def __init__(self) -> None:
        self._began, self._waited = time.monotonic(), waited()

    def share(self) -> float | None:
        """From 0 to 1; None where the operating system does not count it."""
        now, passed = waited(), time.monotonic() - self._began
        if now is None or self._waited is None or passed <= 0:
            return None
        return min(1.0, max(0.0, (now - self._waited) / passed))


def is_busy(share: float | None) -> bool:
    """Whether others used so much of the processor that timings say little."""
    return share is not None and share > BUSY


def busy_text(share: float) -> str:
    """What to think of timings that were taken meanwhile."""
    return (
        f"Programs waited for the processor in {share:.0%} of the time: these speeds are those of a busy machine, and may be far "
        "from what a quiet one gives."
    )
