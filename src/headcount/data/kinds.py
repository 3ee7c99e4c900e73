"""The names of the kinds of tasks and of their metrics, and the other names that people know them by."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches

from ..errors import BadData

KINDS: Mapping[str, tuple[str, ...]] = {
    "classification": ("accuracy", "f1", "matthews", "loss"),
    "regression": ("pearson", "spearman", "loss"),
    "translation": ("bleu", "chrf", "loss"),
    "language-modelling": ("perplexity", "loss"),
    "masked-language-modelling": ("perplexity", "loss"),
    "multiple-choice": ("accuracy", "accuracy-norm", "loss"),
    "last-word": ("accuracy", "loss"),
    "contrast": ("logit-difference", "probability-difference", "accuracy", "kl", "normalised", "loss"),
    "image-classification": ("accuracy", "f1", "matthews", "loss"),
}
KIND_ALIASES: Mapping[str, str] = {
    **dict.fromkeys(
        ("cls", "classify", "classifier", "text-classification", "sequence-classification"), "classification"
    ),
    **dict.fromkeys(("sentiment", "sentiment-analysis", "nli"), "classification"),
    **dict.fromkeys(("text-regression", "sequence-regression", "sts", "sts-b", "stsb"), "regression"),
    **dict.fromkeys(
        ("mt", "nmt", "translate", "seq2seq", "seq2seq-lm", "summarization", "summarisation"), "translation"
    ),
    **dict.fromkeys(("text2text", "text2text-generation", "text-to-text"), "translation"),
    **dict.fromkeys(("lm", "clm", "language-modeling", "language-model", "text-generation"), "language-modelling"),
    **dict.fromkeys(("causal-lm", "causal-language-modelling", "causal-language-modeling"), "language-modelling"),
    **dict.fromkeys(("mlm", "masked-lm", "fill-mask", "masked-language-modeling"), "masked-language-modelling"),
    **dict.fromkeys(("mc", "multichoice", "choice", "multiple-choice-question-answering"), "multiple-choice"),
    **dict.fromkeys(("lambada", "last-word-prediction"), "last-word"),
    **dict.fromkeys(
        ("contrastive", "contrast-pairs", "clean-corrupted", "counterfactual", "counterfactuals"), "contrast"
    ),
    **dict.fromkeys(("image", "images", "vision", "picture-classification"), "image-classification"),
}
METRIC_ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("acc", "accuracy-score"), "accuracy"),
    **dict.fromkeys(("acc-norm", "accuracy-normalised", "accuracy-normalized"), "accuracy-norm"),
    **dict.fromkeys(("f1-score", "f-1"), "f1"),
    **dict.fromkeys(("mcc", "matthews-correlation", "matthews-corrcoef"), "matthews"),
    **dict.fromkeys(("pearsonr", "pearson-correlation", "pearson-r"), "pearson"),
    **dict.fromkeys(("spearmanr", "spearman-correlation", "spearman-rho"), "spearman"),
    **dict.fromkeys(("sacrebleu", "bleu-score"), "bleu"),
    **dict.fromkeys(("ppl", "perp"), "perplexity"),
    **dict.fromkeys(("logit-diff", "ld"), "logit-difference"),
    **dict.fromkeys(("prob-diff", "probability-diff"), "probability-difference"),
    **dict.fromkeys(("kl-divergence", "kl-div"), "kl"),
    **dict.fromkeys(("normalized", "normalised-logit-difference", "normalized-logit-difference"), "normalised"),
    **dict.fromkeys(("cross-entropy", "crossentropy", "ce", "nll", "xent", "eval-loss"), "loss"),
}


def kind_named(name: str) -> str:
    """The kind of task of that name, or of another name for it: `lm` is `language-modelling`."""
    return _named(name, KINDS, KIND_ALIASES, "There is no kind of task {}")


def metric_named(kind: str, name: str) -> str:
    """The metric of that name, or of another name for it, that tasks of this kind have: `acc` is `accuracy`."""
    aliases = {**METRIC_ALIASES, "mse": "loss", "squared-error": "loss"} if kind == "regression" else METRIC_ALIASES
    return _named(name, KINDS[kind], aliases, f"{kind} has no metric {{}}")


def alias_notes(kind: str | None, metric: str | None, kind_name: str) -> tuple[str, ...]:
    """Sentences about what was asked for by another name; `kind_name` is the kind's own name."""
    notes = [] if kind in (None, kind_name) else [f"{kind} is the kind of task {kind_name}"]
    if metric is not None and metric != metric_named(kind_name, metric):
        notes.append(f"{metric} is the metric {metric_named(kind_name, metric)}")
    return tuple(notes)


def _named(name: str, names: Collection[str], aliases: Mapping[str, str], none: str) -> str:
    folded = re.sub(r"[\s_-]+", "-", str(name).strip().casefold())
    proper = aliases.get(folded, folded)
    if proper in names:
        return proper
    known = [*names, *(alias for alias, meant in aliases.items() if meant in names)]
    close = [aliases.get(match, match) for match in get_close_matches(folded, known, n=3, cutoff=0.7)]
    hint = f": did you mean {close[0]}?" if close else ";"
    raise BadData(
        f"{none.format(repr(name[:60]))}{hint} Choose one of {', '.join(names)}.".replace("; Choose", "; choose")
    )
