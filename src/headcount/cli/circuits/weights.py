"""The command `weights`: what the weights of heads say, without any data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ...errors import Refused
from ..measure import Model, keep
from ..options import Running, load_model, quieten, specs_of
from ..run_folder import running
from .text import circuits_text


@dataclass(frozen=True)
class Weights(Running):
    """Flags of a command that reads weights."""


def weights(
    model: Model,
    flags: Weights,
    units: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HEADS]...", help="Heads, such as 3:7 or 5:*; all of them if none is named."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", metavar="WORDS", help="Words with commas: what heads write when they look at these."),
    ] = None,
    top: Annotated[int, typer.Option("--top", help="How many tokens or pairs of each kind.")] = 10,
    permutations: Annotated[
        int, typer.Option("--permutations", help="Shuffles of the vocabulary for the baseline of copying.")
    ] = 10,
    draws: Annotated[int, typer.Option("--draws", help="Random matrices for the baseline of composition.")] = 20,
    composition: Annotated[
        bool, typer.Option("--composition/--no-composition", help="Also how heads compose with heads of other layers.")
    ] = True,
) -> None:
    """Circuits read off the weights, with no data: which heads copy, what they promote and look at, and how heads compose.

    OV and QK circuits on tokens and Q-, K- and V-composition, each beside its random baseline.

    Examples:

        headcount weights my-model

        headcount weights my-model 3:7 --tokens "Paris,the"
    """
    quieten()
    from ...circuits.composition import composition_scores
    from ...circuits.ov_qk import said, token_circuits
    from ...documents.circuits.weights import CircuitsDocument, Composition, TokenCircuits

    subject = load_model(model, flags)
    texts, ids = _tokens(model, subject, tokens)
    chosen, rows = " ".join(units) if units else None, specs_of(flags.spec)
    shared = {"seed": flags.seed, "specs": rows}
    asked = {
        "units": chosen,
        "tokens": ids,
        "top": top,
        "permutations": permutations,
        "draws": draws,
        "composition": composition,
    }
    with running("weights", model, subject, flags, {}, **asked) as run:
        found, notes = TokenCircuits(heads=()), list[str]()
        try:
            options: dict[str, Any] = {"tokens": ids, "top": top, "permutations": permutations, **shared}
            found = said(token_circuits(subject, chosen, run=run, **options), texts)
        except Refused as error:  # composition may still be had
            if not composition or ids:
                raise
            notes.append(str(error))
        compositions: tuple[Composition, ...] = ()
        if composition:
            try:
                compositions = composition_scores(subject, chosen, draws=draws, **shared)
            except Refused as error:
                if not found.heads:
                    raise
                notes.append(str(error))
        most = compositions[: max(top, 100)]
        document = CircuitsDocument(
            model=model,
            heads=found.heads,
            compositions=most,
            pairs_of_heads=len({(one.writer, one.reader) for one in compositions}),
            notes=(*found.notes, *notes),
        )
        keep(run, document, flags, circuits_text(document, top))


def _tokens(name: str, subject: Any, words: str | None) -> tuple[list[str], list[int]]:
    """What every token says, and the first token of each word; nothing where the model has no tokenizer."""
    from ...data.encoding import loaded_tokenizer
    from ...errors import HeadcountError

    try:
        tokenizer = loaded_tokenizer(name)
    except HeadcountError:
        if words:
            raise
        return [], []
    size = len(tokenizer)
    texts = tokenizer.batch_decode([[token] for token in range(size)])
    ids = []
    for word in [word.strip() for word in (words or "").split(",") if word.strip()]:
        found = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        ids += found[:1]
    return texts, ids
