"""What other programs load: cut models as transformers folders, GGUF files and graphs, compared before they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_attributes

if TYPE_CHECKING:
    from .pipeline import Exported, export

__all__ = ["Exported", "export"]

__getattr__ = lazy_attributes(__name__, {"Exported": ".pipeline", "export": ".pipeline"})
