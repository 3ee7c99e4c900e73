"""The command `roles`: what every head looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from .measure import Model, keep
from .options import Running, flag, load_model, quieten, specs_of
from .run_folder import running
from .text import roles_text


@dataclass(frozen=True)
class Texts(Running):
    """What is read, and how it is parsed. No flag without a library argument of the same name."""

    data: Annotated[
        str | None, flag("--data", metavar="FILE", help="CoNLL-U with gold parses, TSV, CSV, JSON, text, or a name.")
    ] = None
    text: Annotated[str | None, flag("--text", help="The column of the text.")] = None
    target: Annotated[
        str | None, flag("--target", help="Translations, for a decoder to read: a file (also CoNLL-U), or a column.")
    ] = None
    parser: Annotated[
        str | None, flag("--parser", metavar="NAME", help="Parse the texts: spacy:en_core_web_sm, stanza:de, ...")
    ] = None
    target_parser: Annotated[
        str | None, flag("--target-parser", metavar="NAME", help="Parse the translations, likewise.")
    ] = None
    alignments: Annotated[
        str | None,
        flag("--alignments", metavar="FILE", help="Word alignments (0-0 1-2 ... per line).", show_default="estimated"),
    ] = None
    frequencies: Annotated[
        str | None,
        flag(
            "--frequencies",
            metavar="FILE",
            help="Word frequencies: a word and its count per line.",
            show_default="counted in --data",
        ),
    ] = None
    split: Annotated[str | None, flag("--split", help="Split of a data set loaded by name: train, validation, ...")] = (
        None
    )
    limit: Annotated[int | None, flag("--limit", help="Use this many sentences, sampled by --seed.")] = None
    max_length: Annotated[int | None, flag("--max-length", help="Truncate texts after this many tokens.")] = None
    prefix: Annotated[str, flag("--prefix", help="Prefix of every source text (T5).")] = ""


def roles(
    model: Model,
    texts: Texts,
    words: Annotated[
        str,
        typer.Option("--words", help="Attention of a word of several tokens: that of its first token, or the mean."),
    ] = "first",
    probe: Annotated[
        bool,
        typer.Option("--probe/--no-probe", help="Decoders: probe with repeated random tokens (induction, copying)."),
    ] = True,
) -> None:
    """Say what every head looks at: neighbours, the other end of a dependency, rare words, separators, translations.

    Only statistics are kept, never attention itself. Each share comes with an interval, and roles that are tested many
    times over are corrected for it. `headcount report` draws them on the map of heads, and which ones pruning keeps.

    Examples:

        headcount roles my-model --data en_ewt-ud-dev.conllu --run runs/roles

        headcount roles my-model --data dev.tsv --parser spacy:en_core_web_sm --limit 2000

        headcount roles my-translator --data val.de --target val.en
    """
    if texts.data is None:
        raise typer.BadParameter("say which sentences to look at with --data FILE.")
    quieten()
    from ..data.sentences.passages import passages
    from ..head_roles import analysis

    subject = load_model(model, texts)
    read = passages(
        texts.data,
        model,
        target=texts.target,
        text=texts.text,
        parser=texts.parser,
        target_parser=texts.target_parser,
        alignments=texts.alignments,
        frequencies=texts.frequencies,
        split=texts.split,
        limit=texts.limit,
        seed=texts.seed,
        max_length=texts.max_length,
        prefix=texts.prefix,
        batch_size=texts.batch_size,
    )
    with running("roles", model, subject, texts, {"data": read}, words=words, probe=probe) as run:
        head_roles = analysis.roles(
            subject, read, words=words, seed=texts.seed, probe=probe, run=run, specs=specs_of(texts.spec)
        )
        document = head_roles.document()
        keep(run, document, texts, roles_text(document))
