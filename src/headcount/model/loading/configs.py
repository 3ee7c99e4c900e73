"""The config of a model in a folder, a GGUF file or on the hub, and the class it was saved from."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...errors import BadCheckpoint
from ...model_files import ModelFiles, model_files, near, read_json_or_refuse
from .gguf_files import config_in

HUB_KEYWORDS = ("revision", "token", "cache_dir", "local_files_only", "subfolder")
PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def named_files(name: str | Path, keywords: dict[str, Any]) -> ModelFiles:
    """The files of a model; `gguf_file` and `subfolder` are taken out of the keywords where they are part of its path."""
    gguf, local = keywords.pop("gguf_file", None), os.path.isdir(name)
    if local and keywords.get("subfolder"):
        name = Path(name) / keywords.pop("subfolder")
    if gguf is None:
        return model_files(name)
    return model_files(Path(name) / gguf) if local else replace(model_files(name), gguf=gguf)


def read_config(files: ModelFiles, trust_remote_code: bool, keywords: dict[str, Any]) -> Any:
    """The config of a model, or `BadCheckpoint` with what keeps it from being read."""
    from transformers import AutoConfig

    if files.gguf is not None and find_spec("gguf") is None:
        raise BadCheckpoint(
            f"{files.name} is a GGUF file, and the package that reads them is not installed: pip install 'headcount[gguf]'."
        )
    if files.is_local and files.gguf is None:
        read_json_or_refuse(Path(files.folder) / "config.json")
    if files.is_local and files.gguf is not None and (own := config_in(Path(files.folder) / files.gguf)) is not None:
        return own
    try:
        return AutoConfig.from_pretrained(
            files.folder, trust_remote_code=trust_remote_code, **files.keywords, **hub_keywords(files, keywords)
        )
    except Exception as error:  # whatever the hub, a proxy or a damaged file raises
        raise BadCheckpoint(_sentence(files, error)) from error


def hub_keywords(files: ModelFiles, keywords: dict[str, Any]) -> dict[str, Any]:
    """The keywords that say where on the hub; without a way there only files downloaded before are looked at."""
    chosen = {key: keywords[key] for key in HUB_KEYWORDS if key in keywords}
    if not files.is_local and "local_files_only" not in chosen and not _can_reach_hub():
        chosen["local_files_only"] = True  # or it is asked for half a minute, again and again
    return chosen


def _can_reach_hub() -> bool:
    """Whether the name of the hub leads anywhere from here; taken for granted where a proxy looks names up."""
    if any(os.environ.get(name) for name in PROXIES):
        return True
    from huggingface_hub import constants

    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def _sentence(files: ModelFiles, error: Exception) -> str:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if files.gguf is not None:
        return f"I cannot read the GGUF file {files.name}: {first[:200]}"
    if files.is_local:
        return f"I cannot read the config of {files.name}: {first[:300]}"
    offer = near(files.folder)
    offer = f" ({offer})" if offer else ""
    causes = _names_of(error)
    here = f"There is no folder {files.folder} here{offer}, and"
    if "HFValidationError" in causes:
        return f"{here} it is no name on the hub either: those are NAME or OWNER/NAME; give a model folder."
    if "GatedRepoError" in causes:
        return f"{here} on the hub {files.folder} is gated: accept its terms there, and log in with hf auth login."
    if "RepositoryNotFoundError" in causes:
        return f"{here} no public model of that name on the hub; look at the spelling, or log in with hf auth login."
    if causes & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectError", "ConnectionError"}:
        return (
            f"{here} the hub cannot be asked for it from here (no connection, or offline mode), nor was it downloaded before; "
            "give a model folder, or go online."
        )
    if "EntryNotFoundError" in causes or "config.json" in first:
        return f"{here} {files.folder} on the hub has no config.json: it is no model of transformers ({first[:200]})"
    return f"{here} as a name on the hub it cannot be read: {first[:300]}"


def _names_of(error: BaseException | None) -> set[str]:
    """The names of an exception's class and of those behind it."""
    names: set[str] = set()
    while error is not None and len(names) < 20:
        names |= {kind.__name__ for kind in type(error).__mro__}
        error = error.__cause__ or error.__context__
    return names


def model_class(config: Any, files: ModelFiles, trust_remote_code: bool) -> Any:
    """The class that was saved; where the config names none, the one its type stands for."""
    import transformers

    architectures, code = getattr(config, "architectures", None) or [None], getattr(config, "auto_map", None) or {}
    if not isinstance(architectures, list | str) or not isinstance(code, dict):
        raise BadCheckpoint(f"The config of {files.name} is damaged: architectures are a list, auto_map an object.")
    saved = architectures[0]
    if saved is None and files.gguf is not None and type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForCausalLM
    if saved is None:
        cut = getattr(config, "headcount", None) is not None
        return transformers.MODEL_MAPPING[type(config)] if cut else transformers.AutoModel
    kind = getattr(transformers, saved, None) if isinstance(saved, str) else None
    if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
        return kind
    references = [ref for ref in code.values() if isinstance(ref, str) and ref.endswith(f".{saved}")]
    if trust_remote_code and references:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        return get_class_from_dynamic_module(references[0], files.folder)
    raise BadCheckpoint(
        f"{files.name} was saved from {saved}, which transformers does not have; "
        "if it ships its own code and you trust it, pass trust_remote_code."
    )
