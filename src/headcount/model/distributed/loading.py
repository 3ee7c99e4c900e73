"""Where the weights of a model go when it is loaded: over devices (`device_map`) or processes (`tp_plan`)."""

from __future__ import annotations

from typing import Any

from ...errors import BadCheckpoint
from ...model_files import ModelFiles
from .refusals import shared_out


def spread(keywords: dict[str, Any], files: ModelFiles, config: Any, lazy: bool) -> dict[str, Any]:
    """The keywords for `from_pretrained`, with `tp_plan` as its version takes it; `BadCheckpoint` for bad ones."""
    name = files.name
    chosen = [word for word in ("device_map", "tp_plan", "distributed_config") if keywords.get(word) is not None]
    if lazy and chosen:
        raise BadCheckpoint(
            f"With lazy the weights of {name} stay in their files, and {chosen[0]} says where to load them: leave out one of "
            "the two."
        )
    if not set(chosen) & {"tp_plan", "distributed_config"}:
        return keywords
    if files.gguf is not None:
        raise BadCheckpoint(f"{name} is a GGUF file, which is unpacked in one process; load it without {chosen[-1]}.")
    if getattr(config, "headcount", None) is not None:
        raise BadCheckpoint(
            f"{name} was cut, and its heads and neurons need not divide evenly among processes; load it without {chosen[-1]} "
            "(device_map spreads it over devices, too)."
        )
    if getattr(keywords.get("distributed_config"), "pp_size", 1) not in (None, 1):
        raise BadCheckpoint(f"{name} is not loaded with its layers in several processes; take tp_plan or device_map.")
    plan = keywords.get("tp_plan")
    if plan is None:
        return keywords
    return {**{word: value for word, value in keywords.items() if word != "tp_plan"}, **_as_taken(plan)}


def checked(model: Any, keywords: dict[str, Any], name: str) -> Any:
    """The model, or `BadCheckpoint` where it was to be shared out among processes and transformers has no plan for it."""
    asked = any(keywords.get(word) is not None for word in ("tp_plan", "distributed_config"))
    if asked and shared_out(model) is None:
        raise BadCheckpoint(
            f"transformers has no tensor-parallel plan for {type(model).__name__}, so {name} was not shared out; load it without "
            "tp_plan (device_map spreads it over devices, too), or give a plan of your own."
        )
    return model


def _as_taken(plan: Any) -> dict[str, Any]:
    """`tp_plan` as a keyword of its own, or in the config that transformers 5.18 and later want."""
    try:
        from transformers.distributed import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_plan=plan)}
    except (ImportError, TypeError):
        return {"tp_plan": plan}
