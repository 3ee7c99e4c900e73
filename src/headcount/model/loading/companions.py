"""What goes along with a model when it is saved elsewhere: where its tokenizer, processor and pooling are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import BadCheckpoint
from ...model_files import MODULES, model_files, tokenizer_files
from ...plans import read_json


def companions(source: str | Path) -> tuple[tuple[Path, ...], dict[str, Any]]:
    """The folders whose files go along, nearest first; without one, keywords by which `from_pretrained` makes them."""
    try:
        files = model_files(source)
        reads = tokenizer_files(source) if files.gguf is not None else files
    except BadCheckpoint:  # a folder of nothing but a tokenizer, say
        return ((Path(source),) if Path(source).is_dir() else ()), {"pretrained_model_name_or_path": str(source)}
    keywords = {"pretrained_model_name_or_path": reads.folder, **reads.keywords}
    return (files.folders if files.gguf is None else ()), keywords


def at_the_root(folders: Sequence[Path], draft: Path) -> None:
    """Let modules.json say that the transformer is now in the folder itself, if it was in one of its folders."""
    path = draft / MODULES
    if len(folders) < 2 or not path.is_file() or folders[0].parent != folders[-1]:
        return
    modules = read_json(path)
    for row in modules if isinstance(modules, list) else ():
        if isinstance(row, dict) and row.get("path") == folders[0].name:
            row["path"] = ""
    path.write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
