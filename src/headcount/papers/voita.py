"""Voita et al. 2019, *Analyzing Multi-Head Self-Attention*: its experiments."""

from __future__ import annotations

from . import voita_all, voita_encoder, voita_roles
from .experiments import Experiment

PAPER = "Voita et al. 2019"
EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "voita-encoder",
        PAPER,
        "the figure of BLEU against encoder heads",
        "How few encoder heads does a translator need if gates learn which to keep?",
        voita_encoder.steps,
        voita_encoder.claims,
        voita_encoder.sheets,
    ),
    Experiment(
        "voita-all",
        PAPER,
        "Table 2 and the figure of all types",
        "Is a pruned translator better than one that was trained small, and heads of which type and layer survive?",
        voita_all.steps,
        voita_all.claims,
        voita_all.sheets,
    ),
    Experiment(
        "voita-roles",
        PAPER,
        "Table 1 and the figure of functions",
        "What do heads look at, and are those with a function the last to be pruned?",
        voita_roles.steps,
        voita_roles.claims,
        voita_roles.sheets,
    ),
)
