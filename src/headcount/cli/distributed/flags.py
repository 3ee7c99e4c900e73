"""`--device-map` and `--tp-plan`: where the weights of a large model go."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import BadData
from ..options import HOW, Running, flag

MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


@dataclass(frozen=True)
class Placement:
    """The flags, as they were given."""

    device_map: Annotated[
        str | None,
        flag(
            "--device-map",
            panel=HOW,
            metavar="MAP",
            help="Spread the weights over devices, the CPU and disk: auto, balanced, sequential, or a JSON file such as "
            '{"model.layers.0": 0, "model.layers.1": "cpu", ...}.',
            show_default="one device",
        ),
    ] = None
    tp_plan: Annotated[
        str | None,
        flag(
            "--tp-plan",
            panel=HOW,
            metavar="PLAN",
            help="Tensor parallelism: auto, and start the command with torchrun.",
            show_default="one process",
        ),
    ] = None

    def keywords(self, flags: Running, *, lazy: bool) -> dict[str, Any]:
        """What `hc.load` is to be told; nothing where the model goes to one device."""
        given = {"--device-map": self.device_map, "--tp-plan": self.tp_plan, "--device": flags.device}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise typer.BadParameter(f"{' and '.join(named)} all say where the weights go; give one of them.")
        if lazy and named and named != ["--device"]:
            raise typer.BadParameter(f"--stream reads the weights from their files; leave out {named[0]}.")
        if self.device_map is not None:
            return {"device_map": _parsed(self.device_map)}
        if self.tp_plan is None:
            return {}
        if self.tp_plan != "auto":
            raise typer.BadParameter(f"--tp-plan is auto; I got {self.tp_plan!r:.40}.")
        if int(os.environ.get("WORLD_SIZE", "1")) < 2:
            raise BadData(
                "--tp-plan shares a model out among processes, and this is the only one; start the command with torchrun "
                "--nproc-per-node N --no-python headcount ..."
            )
        return {"tp_plan": "auto"}


def _parsed(text: str) -> Any:
    """A device map from its name or from JSON, in a file or as it is."""
    if text in MAPS:
        return text
    try:
        parsed = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict) and parsed and all(type(place) in (int, str) for place in parsed.values()):
        return parsed
    raise BadData(f"--device-map is {', '.join(MAPS)}, or JSON of modules and devices; I got {text!r:.60}.")
