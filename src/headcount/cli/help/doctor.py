"""The command `doctor`: what is installed, where things run, and whether a cut model equals the masked one here."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from ... import __version__
from ...errors import HeadcountError
from ..options import out, quieten

# what each part needs, and how to get it
EXTRAS = {
    "data": ("data sets by name, Parquet files", ("datasets", "pyarrow")),
    "images": ("pictures", ("pillow",)),
}
PAGES = ("altair", "vl-convert-python", "jinja2")  # reports
NEEDED = ("torch", "transformers", "safetensors", "numpy", "scipy")
CLOSE = 1e-5


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Say what is installed, which device is used, what is missing, and whether cutting is exact on this machine.

    A tiny random model is cut and compared with the masked one. Exit code 1 if anything that every command needs is wrong.

    Examples:

        headcount doctor

        headcount doctor --json
    """
    quieten()
    findings = examined()
    if as_json:
        print(json.dumps(findings, indent=2))
    else:
        out.print("\n".join(in_words(findings)), soft_wrap=True, markup=False)
    if findings["problems"]:
        raise typer.Exit(1)


def examined() -> dict[str, Any]:
    """What there is, and what is wrong with it."""
    versions = {name: _version(name) for name in (*NEEDED, *PAGES)}
    extras = {name: [part for part in parts if _version(part) is None] for name, (_, parts) in EXTRAS.items()}
    problems = [f"{name} is not installed: pip install {name}" for name in NEEDED if versions[name] is None]
    findings: dict[str, Any] = {"headcount": __version__, "versions": versions, "missing": extras}
    if not problems:
        findings |= _machine()
        law = the_law()
        findings["law"] = law
        problems += [] if law["holds"] else [f"the cut model is not the masked one: {law['said']}"]
    cache = cache_folder()
    findings["cache"] = {"folder": str(cache), "writable": _writable(cache)}
    if not findings["cache"]["writable"]:
        problems.append(f"{cache} cannot be written to: set XDG_CACHE_HOME to a folder of yours")
    return {**findings, "problems": problems}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    """The device that commands run on, and how many threads of the processors."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"device": gpu or "cpu", "threads": torch.get_num_threads(), "processors": os.cpu_count()}


def the_law() -> dict[str, Any]:
    """Whether a tiny random model computes, cut, what it computes masked: the difference, and what was said if it failed."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from ...model.cutting.surgery import cut
    from ...model.gates import masked

    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            model: Any = BertForSequenceClassification(BertConfig(vocab_size=64, **sizes)).eval()
            tokens = torch.randint(3, 64, (2, 8))
            whole = model(tokens).logits
            with masked(model, "0:1 1:0-1 1.mlp:0-9"):
                want = model(tokens).logits
            cut(model, "0:1 1:0-1 1.mlp:0-9")
            difference = float((model(tokens).logits - want).abs().max())
            moved = float((want - whole).abs().max())
    except (HeadcountError, RuntimeError, ImportError) as error:
        return {"holds": False, "difference": None, "said": str(error).strip().partition("\n")[0][:200]}
    holds = difference <= CLOSE < moved
    said = "" if holds else f"they differ by {difference:.2g}, where masking moves the output by {moved:.2g}"
    return {"holds": holds, "difference": difference, "said": said}


def cache_folder() -> Path:
    """Where measured times are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "headcount"


def _writable(folder: Path) -> bool:
    """Whether files can be written there, or the folder be made; nothing is."""
    place = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    return place.is_dir() and os.access(place, os.W_OK)


def in_words(findings: dict[str, Any]) -> list[str]:
    """The lines that a person reads."""
    installed = ", ".join(f"{name} {version}" for name, version in findings["versions"].items() if version is not None)
    lines = [f"headcount {findings['headcount']}", f"installed: {installed}"]
    if "device" in findings:
        threads = findings["threads"]
        lines.append(
            f"runs on:   {findings['device']}, {threads} thread{'s' * (threads != 1)} of {findings['processors']} processors"
        )
    for name, (what, _) in EXTRAS.items():
        missing = findings["missing"][name]
        state = (
            "installed" if not missing else f"{' and '.join(missing)} not installed: pip install 'headcount[{name}]'"
        )
        lines.append(f"extra {name}: {what}: {state}")
    pages = [name for name in PAGES if findings["versions"][name] is None]
    lines.append(f"reports:   {'cannot be drawn: pip install ' + ' '.join(pages) if pages else 'can be drawn'}")
    if "law" in findings and findings["law"]["holds"]:
        lines.append(
            f"exact:     a tiny model, cut, equals the masked one (largest difference {findings['law']['difference']:.1g})"
        )
    lines.append(f"cache:     {findings['cache']['folder']}")
    return [
        *lines,
        *(f"problem: {problem}" for problem in findings["problems"]),
        *["all is well"] * (not findings["problems"]),
    ]
