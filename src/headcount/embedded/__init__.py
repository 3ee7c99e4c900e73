"""Two small models and their sentences, which ship with the package: for the demo and for experiments. No torch."""

from __future__ import annotations

import shutil
from pathlib import Path

EMBEDDED = Path(__file__).parent


def copy_embedded(folder: Path) -> None:
    """Copy the embedded models and data into a folder that is there."""
    for part in sorted(EMBEDDED.iterdir()):
        if part.is_dir() and part.name != "__pycache__":
            shutil.copytree(part, folder / part.name, dirs_exist_ok=True)
