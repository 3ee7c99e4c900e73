"""Data and scripts inside a page of HTML: nothing in them can end the element that they stand in. No torch."""

from __future__ import annotations

import json
from typing import Any


def embedded(data: Any) -> str:
    """JSON that can stand inside a script element: ASCII, and without a character that HTML would read."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def as_script(text: str) -> str:
    """A script that cannot end its own element."""
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
