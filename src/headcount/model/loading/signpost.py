"""A sign on folders of cut models that a stock `from_pretrained` cannot read: its error names headcount and what to do.

`transformers_weights` in a config names the file of weights. Where it names none, transformers stops before it loads
anything and shows the value; so the value is the sentence that a person needs there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KEY = "transformers_weights"
TABLE = "headcount_shapes"  # of an exported folder, for the code in it
START = "THIS MODEL WAS CUT BY HEADCOUNT"
SENTENCE = (
    f"{START}, and stock classes cannot hold it: pip install headcount, then in Python "
    'headcount.load("THIS FOLDER") in the place of from_pretrained("THIS FOLDER"); or once in a shell '
    'headcount export "THIS FOLDER" --to transformers -o EXPORTED, which from_pretrained reads without headcount'
)
# and on folders that bring the code that can hold them
TRUST = "THIS MODEL COMES WITH CODE THAT STOCK CLASSES NEED: pass trust_remote_code=True to from_pretrained of an Auto class"


def put_up(folder: Path) -> None:
    """Write the sign into the config of a folder."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config[KEY] = SENTENCE
    path.write_text(json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def take_down(config: Any) -> None:
    """Take the sign out of a config that headcount has read, and what the code in an exported folder would have read.

    headcount carries out the record itself, and runs no code of a folder for it.
    """
    sign = str(getattr(config, KEY, None) or "")
    if sign.startswith(START) or sign == TRUST:
        delattr(config, KEY)
    if TABLE not in vars(config):
        return
    config.per_layer_config = None
    for name in (TABLE, "auto_map", "allow_global_per_layer_attribute_access"):
        vars(config).pop(name, None)


def needs_headcount(folder: Path) -> bool:
    """Whether a folder carries the sign: only `headcount.load` reads it."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # a record and weights of a model without a config
    return str(config.get(KEY) or "").startswith(START)
