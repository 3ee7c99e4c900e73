"""The command `heads`: which heads are induction, previous-token, successor, retrieval heads, and so on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import BadPlan, BadRun, HeadcountError
from ..measure import Model, keep
from ..options import Running, load_model, out, quieten, specs_of
from ..run_folder import running
from .text import heads_text

if TYPE_CHECKING:
    from ...head_roles.by_name.results import NamedHeads


@dataclass(frozen=True)
class Prompts(Running):
    """Flags of a command that makes its own prompts."""


def heads(
    model: Model,
    flags: Prompts,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="previous-token, duplicate-token, induction, copying, successor, sink, retrieval; several with commas.",
            show_default="all of them",
        ),
    ] = None,
    prompts: Annotated[int, typer.Option("--prompts", help="Prompts of each kind.")] = 64,
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths",
            metavar="TOKENS",
            help="Retrieval: tokens of a prompt; several with commas, in turns.",
            show_default="1024, or what the model has positions for",
        ),
    ] = None,
    haystack: Annotated[
        str | None,
        typer.Option(
            "--haystack", metavar="FILE", help="Retrieval: a text to hide needles in.", show_default="made sentences"
        ),
    ] = None,
    at_least: Annotated[
        str | None,
        typer.Option(
            "--at-least",
            metavar="KIND=SCORE",
            help="Mean score from which on a head is named, such as induction=0.5,sink=0.6.",
            show_default="as in the docs",
        ),
    ] = None,
    retrieval_list: Annotated[
        Path | None,
        typer.Option(
            "--retrieval-list",
            metavar="FILE.json",
            help="Write the retrieval heads as JSON for KV-cache tools, and FILE-scores.json beside it.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing list.")] = False,
    top: Annotated[int, typer.Option("--top", help="How many heads of each kind are shown.")] = 8,
) -> None:
    """Find heads by name in a language model: induction, copying, previous-token, duplicate-token, successor, sink, retrieval.

    Each head gets a score on every prompt, so each mean has an interval and a test (Holm over heads), and it is said how many
    prompts are enough. Prompts are made by the command: random tokens said twice, words in a row, needles in a haystack.

    Examples:

        headcount heads my-model

        headcount heads my-model --kind induction,previous-token,sink --prompts 128 -o runs/heads

        headcount heads my-model --kind retrieval --lengths 1024,4096 --haystack book.txt --retrieval-list heads.json
    """
    if retrieval_list is not None and retrieval_list.is_dir():
        raise BadRun(f"{retrieval_list} is a folder; give the name of a file.")
    sizes, least = _lengths(lengths), _least(at_least)
    quieten()
    from ...hashing import fingerprint_of_files
    from ...head_roles.by_name.kinds import chosen_kinds
    from ...head_roles.by_name.pipeline import heads as find_heads

    kinds = chosen_kinds(kind)  # a name that is none is said before the model is loaded
    if retrieval_list is not None and "retrieval" not in kinds:
        raise BadPlan("--retrieval-list is a list of retrieval heads: add retrieval to --kind.")
    text = None
    if haystack is not None:
        from ...head_roles.by_name.needles import haystack_file

        text = fingerprint_of_files([haystack_file(haystack)])
    subject = load_model(model, flags)
    asked: dict[str, Any] = {"kinds": kind and kinds, "prompts": prompts, "lengths": sizes, "at_least": least}
    with running("heads", model, subject, flags, {}, haystack=text, **asked) as run:
        options: dict[str, Any] = {"batch_size": flags.batch_size, "seed": flags.seed, "haystack": haystack, "run": run}
        options |= {"tokenizer": _tokenizer(model, kind and kinds), "specs": specs_of(flags.spec), **asked}
        found = find_heads(subject, **options)
        document = found.document()
        keep(run, document, flags, heads_text(document, top))
        if "retrieval" in found.measured:
            run.write_json("retrieval-heads", found.retrieval_list(), replace=True)
            run.write_json("retrieval-scores", found.head_scores(), replace=True)
    if retrieval_list is not None:
        _write(found, retrieval_list, force)
        if not flags.as_json:
            out.print(f"retrieval heads: {retrieval_list}", soft_wrap=True, markup=False)


def _tokenizer(name: str, kinds: tuple[str, ...] | str | None) -> Any:
    """The model's tokenizer; None where it has none and no kind that was named needs one."""
    from ...data.encoding import loaded_tokenizer

    try:
        return loaded_tokenizer(name)
    except HeadcountError:
        if {"successor", "retrieval"} & set(kinds or ()):
            raise
        return None


def _lengths(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"--lengths wants numbers of tokens, such as 1024,2048; I got {text!r:.60}.")
    return [int(part) for part in parts]


def _least(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise typer.BadParameter(
                f"--at-least wants kinds and scores, such as induction=0.5; I got {text!r:.60}."
            ) from None
    return found


def _lists(path: Path | None) -> list[Path]:
    """The two files of a list: the heads, and beside them the scores of all heads."""
    return [] if path is None else [path, path.with_name(f"{path.stem}-scores{path.suffix}")]


def _write(found: NamedHeads, path: Path, force: bool) -> None:
    """Write both files; one that is there and says something else is overwritten only with --force."""
    from ...runs import write_whole

    for file, data in zip(_lists(path), (found.retrieval_list(), found.head_scores()), strict=True):
        content = (json.dumps(data, indent=2) + "\n").encode()
        if file.is_file() and file.read_bytes() == content:
            continue
        if file.exists() and not force:
            raise BadRun(f"{file} is there already; choose another name, or write over it with --force.")
        write_whole(file, content, "write to")
