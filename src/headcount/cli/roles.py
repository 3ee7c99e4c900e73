"""The commands `roles` and `look`: what every head looks at, on many sentences and on one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .measure import Model, keep
from .options import Running, flag, load_model, out, quieten, specs_of
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


def look(
    model: Model,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="What the model reads.")],
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="TEXT",
            help="What a decoder reads (translations).",
            show_default="what the model writes",
        ),
    ] = None,
    heads: Annotated[
        str | None, typer.Option("--heads", metavar="HEADS", help="The heads to show: 3:7 5:*.", show_default="all")
    ] = None,
    masked: Annotated[
        str | None, typer.Option("--masked", metavar="UNITS", help="Units that are masked meanwhile: 3:7.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")] = Path(
        "attention.html"
    ),
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing page.")] = False,
    max_length: Annotated[int, typer.Option("--max-length", help="Truncate the text after this many tokens.")] = 512,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, ...", show_default="a GPU if there is one, or the CPU")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Number format of the weights: float32, bfloat16.")] = "float32",
    spec: Annotated[
        list[str] | None,
        typer.Option("--module-spec", metavar="JSON", help="Names of the modules of an unknown architecture."),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that ships with the model.")
    ] = False,
) -> None:
    """Write a page that shows what heads look at on one text: all of them small, one of them large, token by token.

    The page is one HTML file that opens offline in any browser and loads nothing; pictures of it can be saved as SVG and PNG.

    Examples:

        headcount look my-model --text "The film is not bad." --open

        headcount look my-model --text "The film is not bad." --heads "3:7 5:*" --masked 2:1 -o page.html

        headcount look my-translator --text "Ein Mann mit Hut." --target "A man with a hat."
    """
    quieten()
    from ..head_roles.attention_view import look as look_at
    from ..reporting.pictures.attention_page import free_path

    free_path(output, force)
    flags = Running(device=device, dtype=dtype, trust_remote_code=trust_remote_code)
    subject = load_model(model, flags)
    options = {"heads": heads, "masked": masked, "max_length": max_length, "specs": specs_of(spec)}
    view = look_at(subject, text, tokenizer=model, target=target, **options)
    view.save(output, force=force)
    out.print(f"{view.summary} · written to {output}", soft_wrap=True, markup=False)
    if open_page:
        typer.launch(output.resolve().as_uri())
