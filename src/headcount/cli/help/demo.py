"""The walk through everything on the embedded models: a list of commands, run by `headcount demo`."""

from __future__ import annotations

import shlex
from pathlib import Path

from ...embedded import copy_embedded
from ...errors import BadRun

COMMANDS = "commands.txt"  # what was run; a folder with it is ours to write to again


def unpack(folder: Path) -> None:
    """Copy the embedded models and data into a folder: a new one, an empty one, or one of an earlier demo."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / COMMANDS).is_file())):
        raise BadRun(f"{folder} exists and is not an earlier demo; choose another folder with -o.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / COMMANDS).write_text("".join(f"headcount {shlex.join(words)}\n" for words in walk(folder)))
        copy_embedded(folder)
    except OSError as error:
        raise BadRun(f"I cannot write to {folder}: {error.strerror}; choose another folder with -o.") from None


def walk(folder: Path) -> list[list[str]]:
    """The commands of the demo, in order; the last one writes the page."""
    classifier, translator, smaller = (str(folder / name) for name in ("classifier", "translator", "smaller"))
    data, pairs, runs = folder / "classifier-data", folder / "translator-data", folder / "runs"
    movies, products = ["--data", str(data / "movies.tsv")], ["--other-data", str(data / "products.tsv")]
    learned, half = ["--run", str(runs / "learn")], ["--units", "heads,neurons", "--flops", "50%", "--tune"]
    german = ["--data", str(pairs / "sentences.tsv"), "--metric", "loss"]
    pairs_of = ["--data", str(pairs / "sentences.tsv"), "--text", "source", "--target", "target"]

    def kept(name: str) -> list[str]:
        return ["-o", str(runs / name)]

    return [
        ["inspect", classifier],
        ["score", classifier, *movies, "--limit", "600", *kept("score")],
        ["ablate", classifier, *movies, "--limit", "400", "--each", *kept("ablate")],
        ["ablate", classifier, *movies, "--limit", "400", "--all-but-one", *kept("all-but-one")],
        ["transfer", classifier, *movies, *products, "--metric", "loss", "--limit", "300", *kept("transfer")],
        ["curve", classifier, *movies, "--by", "taylor,random", "--limit", "800", *kept("curve")],
        ["roles", classifier, *movies, "--limit", "60", *kept("roles")],
        ["prune", classifier, *movies, *half, "-o", str(folder / "half"), "--run", str(runs / "prune-half"), "--force"],
        ["prune", classifier, *movies, "--max-drop", "2", "-o", smaller, "--run", str(runs / "prune"), "--force"],
        ["learn", classifier, *movies, "--keep", "16", "--steps", "60", "--batch-size", "16", "--lr", "5e-5", *learned],
        ["bench", classifier, smaller, "--batch-size", "1,16", "--length", "32", "--seconds", "10", *kept("bench")],
        ["score", translator, *german, *kept("translator-score")],
        ["ablate", translator, *german, "--limit", "100", "--each", *kept("translator-ablate")],
        ["roles", translator, *pairs_of, "--limit", "60", *kept("translator-roles")],
        ["report", str(runs), "-o", str(folder / "report.html"), "--force"],
    ]
