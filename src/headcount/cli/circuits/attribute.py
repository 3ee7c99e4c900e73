"""The command `attribute`: direct logit attribution."""

from __future__ import annotations

from typing import Annotated

import typer

from ..measure import Draws, Model, Test, keep
from ..options import CommonFlags, load_model, make_task, names_examples, quieten, specs_of
from ..run_folder import running
from .text import attribution_text


def attribute(
    model: Model,
    flags: CommonFlags,
    right: Annotated[
        str | None, typer.Option("--right", metavar="COLUMN", help="The column of the right word after each prompt.")
    ] = None,
    wrong: Annotated[
        str | None,
        typer.Option("--wrong", metavar="COLUMN", help="The column of the wrong word: logits are right - wrong."),
    ] = None,
    units: Annotated[
        str, typer.Option("--units", help="heads (and whole MLPs), or neurons (and whole attentions).")
    ] = "heads",
    against: Annotated[
        str,
        typer.Option("--against", help="What logits are compared with where there is no --wrong: mean or nothing."),
    ] = "mean",
    test: Test = "t",
    resamples: Draws = None,
) -> None:
    """Direct logit attribution: what each head and MLP adds by itself to the logits of the right tokens.

    Straight through the final norm, with its scale frozen; all parts add up to the model's logit, which is checked. The data are
    prompts with --right (and --wrong) words, contrast prompts, texts, of which every next token is a right one, or
    labelled examples of a classifier.

    Examples:

        headcount attribute my-model --data prompts.tsv --text prompt --right right --wrong wrong

        headcount attribute my-model --task contrast:ioi --limit 100

        headcount attribute my-model --data wiki.txt --limit 100
    """
    if not names_examples(flags):
        raise typer.BadParameter("say which prompts or texts to attribute on with --data FILE.")
    if wrong is not None and right is None:
        raise typer.BadParameter("--wrong goes with --right: name both columns.")
    quieten()
    from ...circuits.logit_attribution import direct_logit_attribution
    from ...circuits.prompts import read_prompts

    subject = load_model(model, flags)
    if right is None:
        task = make_task(model, subject, flags)
    else:
        options = {"limit": flags.limit, "seed": flags.seed, "max_length": flags.max_length, "split": flags.split}
        task = read_prompts(flags.data, model, right=right, wrong=wrong, text=flags.text, **options)
    asked = {"units": units, "against": against}
    with running("attribute", model, subject, flags, {"data": task}, **asked) as run:
        found = direct_logit_attribution(subject, task, units, against=against, run=run, specs=specs_of(flags.spec))
        document = found.document(test, resamples=resamples or 1000, seed=flags.seed)
        keep(run, document, flags, attribution_text(document))
