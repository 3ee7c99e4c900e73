"""Voita et al. 2019, *Analyzing Multi-Head Self-Attention*: its experiments."""

from __future__ import annotations

from ..experiment import Experiment
from . import all_types, encoder, roles

PAPER = "Voita et al. 2019"
EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "voita-encoder",
        PAPER,
        "the figure of BLEU against encoder heads",
        "How few encoder heads does a translator need if gates learn which to keep?",
        encoder.steps,
        encoder.claims,
        encoder.sheets,
    ),
    Experiment(
        "voita-all",
        PAPER,
        "Table 2 and the figure of all types",
        "Is a pruned translator better than one that was trained small, and heads of which type and layer survive?",
        all_types.steps,
        all_types.claims,
        all_types.sheets,
    ),
    Experiment(
        "voita-roles",
        PAPER,
        "Table 1 and the figure of functions",
        "What do heads look at, and are those with a function the last to be pruned?",
        roles.steps,
        roles.claims,
        roles.sheets,
    ),
)
