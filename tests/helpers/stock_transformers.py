"""Loads exported folders in an interpreter that has no headcount, and writes what their models give: a script for tests.

    python -I stock_transformers.py JOBS.json

A job is {"folder", "auto", "inputs": FILE, "outputs": FILE, "generate": bool, "saved": FOLDER or null}; what goes wrong is in the
file "errors" beside the jobs, by folder.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from pathlib import Path


class NoHeadcount:
    """An entry of sys.meta_path that lets nobody import headcount."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.split(".")[0] == "headcount":
            raise ModuleNotFoundError("there is no headcount here", name=name)


sys.meta_path.insert(0, NoHeadcount())  # type: ignore[arg-type]
warnings.simplefilter("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def done(job: dict) -> None:
    """Load one folder, run it, save it as transformers does, and run what was saved."""
    auto = getattr(transformers, job["auto"])
    model = auto.from_pretrained(job["folder"], trust_remote_code=True, dtype=torch.float32).eval()
    inputs = load_file(job["inputs"])
    outputs = answers(model, inputs, job["generate"])
    if job["saved"]:
        model.save_pretrained(job["saved"], max_shard_size="30KB")
        again = auto.from_pretrained(job["saved"], trust_remote_code=True, dtype=torch.float32).eval()
        outputs |= {f"again {name}": value for name, value in answers(again, inputs, job["generate"]).items()}
    save_file(outputs, job["outputs"])


def answers(model: torch.nn.Module, inputs: dict, generates: bool) -> dict:
    """The logits (or hidden states) of a batch, and what is generated greedily after its first example."""
    with torch.no_grad():
        result = model(**inputs)
    out = {"logits": result.get("logits", result.get("last_hidden_state")).contiguous()}
    if generates:
        first = {
            name: value[:1] for name, value in inputs.items() if name not in ("decoder_input_ids", "attention_mask")
        }
        out["tokens"] = model.generate(**first, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    return out


if __name__ == "__main__":
    jobs = Path(sys.argv[1])
    errors = {}
    for job in json.loads(jobs.read_text()):
        try:
            done(job)
        except Exception:
            errors[job["folder"]] = traceback.format_exc()
    (jobs.parent / "errors").write_text(json.dumps(errors))
