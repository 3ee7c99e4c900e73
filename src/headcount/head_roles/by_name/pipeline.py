"""`heads`: which heads of a language model are induction, previous-token, successor, retrieval heads, and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from ... import runs
from ...data.checks.model_fit import positions_of
from ...data.encoding import loaded_tokenizer, padding_token
from ...errors import BadData, BadPlan, Refused
from ...formatting import counted
from ...model.anatomy import Anatomy, Site
from ...model.architectures import ModuleSpec
from ...model.discovery import find, unwrap
from ...model.equivalence import evaluating
from ...progress import Bar
from .kinds import PATTERNS, chosen_kinds, thresholds
from .needles import hidden_needles, read_haystack
from .repeated import Scores, repeated_prompts, repeated_scores
from .results import Measured, NamedHeads
from .retrieval import SPARE, retrieval_scores
from .successors import successor_scores, successors
from .vocabulary import begin_of, needs_tokenizer, ordinary_tokens
from .written import Directions

if TYPE_CHECKING:
    from ...runs import Run

LENGTH = 1024  # tokens of a prompt with a needle, unless the user says otherwise
ANSWER = 128  # positions that are left for the answer where a model has fewer than that


def heads(
    model: nn.Module,
    kinds: str | Sequence[str] | None = None,
    *,
    tokenizer: Any = None,
    prompts: int = 64,
    lengths: Sequence[int] | None = None,
    haystack: str | Path | None = None,
    at_least: Mapping[str, float] | None = None,
    batch_size: int = 8,
    seed: int = 0,
    run: Run | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> NamedHeads:
    """Heads of a causal language model by the names of the field: induction, previous token, successor, retrieval and others.

    Every head gets a score on every prompt. A head is named if the mean of its scores is at least what the kind asks for, and
    above chance by a one-sided t-test over prompts, corrected for the number of heads (Holm).

    Args:
        model: A causal language model.
        kinds: Some of "previous-token", "duplicate-token", "induction", "copying", "successor", "sink", "retrieval"; by default
            all of them that the model and its tokenizer allow.
        tokenizer: The model's tokenizer, or its folder; successor and retrieval heads need it.
        prompts: The number of prompts of each kind. Of successor heads, an example is a pair of words, and all pairs are used.
        lengths: Tokens of the prompts for retrieval heads, in turns; by default 1024, or what the model has positions for.
        haystack: A text file in which needles are hidden, for retrieval heads; by default plain sentences are made.
        at_least: Mean scores from which on heads are named, by kind, where they should not be the usual ones.
        batch_size: Prompts per pass, but for retrieval heads, whose prompts are read one at a time.
        seed: Random seed of the prompts.
        run: A run folder (`headcount.runs.Run`), in which scores are kept as they come and found again.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The scores of all heads on all prompts, by kind.

    Examples:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes))
        >>> found = hc.heads(model, ["induction", "sink"], prompts=4)
        >>> found["induction"].values.shape
        (4, 8)
    """
    chosen = chosen_kinds(kinds)
    least = thresholds(chosen, at_least)
    if prompts < 2 or batch_size < 1:
        raise BadPlan(f"An interval needs 2 prompts or more, and a batch 1; I got {prompts} and {batch_size}.")
    root = unwrap(model)
    anatomy = find(root, specs)
    asked = _Asked(
        *(root, anatomy, _sites(root, anatomy), None if tokenizer is None else loaded_tokenizer(tokenizer)),
        *(prompts, batch_size, seed, run),
    )
    steps: dict[tuple[str, ...], Callable[[], Mapping[str, Measured]]] = {
        PATTERNS: partial(_patterns, asked, [kind for kind in chosen if kind in PATTERNS], least),
        ("copying",): partial(_patterns, asked, ["copying"], least),
        ("successor",): partial(_successor, asked, least),
        ("retrieval",): partial(_retrieval, asked, least, lengths, haystack),
    }
    whatever = kinds is None and lengths is None and haystack is None
    measured, notes = dict[str, Measured](), list[str]()
    with evaluating(root):
        for of, measure in steps.items():
            if not {*of} & {*chosen}:
                continue
            try:
                measured |= measure()
            except (Refused, BadData, BadPlan) as error:
                if not whatever or of == PATTERNS:
                    raise
                notes.append(f"{of[0]} heads were left out: {error}")
    places = tuple(
        (number if site.layer is None else site.layer, index)
        for number, site in enumerate(asked.sites)
        for index in site.ids
    )
    names = tuple(str(unit) for site in asked.sites for unit in site.units)
    ordered = {kind: measured[kind] for kind in chosen if kind in measured}
    return NamedHeads(type(root).__name__, names, places, ordered, seed, tuple(notes))


@dataclass(frozen=True, eq=False)
class _Asked:
    """What is asked of which model."""

    root: nn.Module
    anatomy: Anatomy
    sites: tuple[Site, ...]
    tokenizer: Any
    prompts: int
    batch_size: int
    seed: int
    run: Run | None

    @cached_property
    def directions(self) -> Directions:
        """What heads write into logits; made when it is first needed, outside the passes in which attention is watched."""
        return Directions(self.root, self.anatomy)

    @cached_property
    def begin(self) -> list[int]:
        """What every prompt begins with."""
        return begin_of(self.root, self.tokenizer)

    def piece(self, name: str, compute: Callable[[], Mapping[str, Scores]]) -> dict[str, np.ndarray]:
        """Scores by kind, kept in the run as "induction.values", "induction.chance" and so on."""

        def arrays() -> dict[str, np.ndarray]:
            scores = compute().items()
            return {
                f"{kind}.{part}": getattr(one, part).numpy() for kind, one in scores for part in ("values", "chance")
            }

        return runs.piece(self.run, name, arrays)


def _sites(root: nn.Module, anatomy: Anatomy) -> tuple[Site, ...]:
    """The attentions of a causal language model; `Refused` for any other model."""
    sites = tuple(site for site in anatomy.heads if len(site) and site.attention == "decoder")
    if bool(getattr(getattr(root, "config", None), "is_encoder_decoder", False)) or not sites:
        raise Refused(
            f"{type(root).__name__} is no causal language model, and these kinds of heads are those of decoders alone; give a "
            "causal language model, or ask `headcount roles` what heads look at."
        )
    if not callable(getattr(root, "get_output_embeddings", None)) or root.get_output_embeddings() is None:
        raise Refused(
            f"{type(root).__name__} gives no logits of tokens; load the model with the head of a language model."
        )
    return sites


def _patterns(asked: _Asked, kinds: Sequence[str], least: Mapping[str, float]) -> dict[str, Measured]:
    """The kinds that random tokens, said twice, show."""
    ordinary = ordinary_tokens(asked.root, asked.tokenizer)
    prompts = repeated_prompts(ordinary, asked.begin, asked.prompts, asked.seed, positions_of(asked.root))
    fill = 0 if asked.tokenizer is None else padding_token(asked.tokenizer)
    directions = asked.directions if "copying" in kinds else None
    name = "copying" if "copying" in kinds else "patterns"
    found: list[dict[str, np.ndarray]] = []
    with Bar(f"random tokens, said twice ({name})", total=len(prompts)) as bar:
        for number, start in enumerate(range(0, len(prompts), asked.batch_size)):
            some = prompts[start : start + asked.batch_size]
            compute = partial(repeated_scores, asked.root, asked.sites, some, kinds, directions, fill)
            found.append(asked.piece(f"heads-{name}-{number:05d}", compute))
            bar.advance(len(some))
    shortest, longest = min(prompt.period for prompt in prompts), max(prompt.period for prompt in prompts)
    read = f"{len(prompts)} prompts of {shortest} to {longest} random tokens, said twice"
    notes = (
        () if asked.begin else ("No token begins or ends texts of this model, so prompts begin with an ordinary one.",)
    )
    joined = {key: np.concatenate([one[key] for one in found]) for key in found[0]}
    return {
        kind: Measured(joined[f"{kind}.values"], joined[f"{kind}.chance"], least[kind], read, notes) for kind in kinds
    }


def _successor(asked: _Asked, least: Mapping[str, float]) -> dict[str, Measured]:
    pairs, names = successors(asked.tokenizer)

    def compute() -> dict[str, Scores]:
        return {"successor": successor_scores(asked.root, asked.sites, pairs, asked.begin, asked.directions)}

    found = asked.piece("heads-successor", compute)
    read = f"{len(pairs)} pairs of neighbours, one token each, among {', '.join(names)}"
    return {"successor": Measured(found["successor.values"], found["successor.chance"], least["successor"], read)}


def _retrieval(
    asked: _Asked, least: Mapping[str, float], lengths: Sequence[int] | None, haystack: str | Path | None
) -> dict[str, Measured]:
    needs_tokenizer(asked.tokenizer, "retrieval")
    positions = positions_of(asked.root)
    if lengths is None:
        lengths = [LENGTH if positions is None or positions >= LENGTH + ANSWER else max(1, positions - ANSWER)]
    if not lengths or min(lengths) < 1:
        raise BadPlan(f"Lengths are numbers of tokens, at least one of them; I got {list(lengths)!s:.60}.")
    text = read_haystack(haystack, asked.tokenizer, max(lengths), asked.seed)
    prompts = hidden_needles(text, asked.tokenizer, asked.begin, asked.prompts, lengths, asked.seed)
    longest = max(len(prompt.ids) + prompt.end - prompt.start + SPARE for prompt in prompts)
    if positions is not None and longest > positions:
        raise BadPlan(
            f"A prompt of {max(lengths):,} tokens and its answer are {longest:,} long, and {type(asked.root).__name__} has "
            f"{positions:,} positions; give shorter prompts (--lengths)."
        )
    ends = _ends(asked)
    values, chance, answered = [], [], []
    with Bar("needles in a haystack", total=len(prompts)) as bar:
        for number, prompt in enumerate(prompts):

            def compute(prompt: Any = prompt) -> dict[str, np.ndarray]:
                one = retrieval_scores(asked.root, asked.sites, prompt, ends)
                return {
                    "values": one.scores.numpy(),
                    "chance": np.array(one.chance),
                    "answered": np.array(one.answered),
                }

            piece = runs.piece(asked.run, f"heads-retrieval-{number:05d}", compute)
            values.append(piece["values"])
            chance.append(float(piece["chance"]))
            answered.append(float(piece["answered"]))
            bar.advance(1)
    sizes = ", ".join(f"{length:,}" for length in lengths)
    depths = counted(len({prompt.depth for prompt in prompts}), "depth")
    read = f"{len(prompts)} needles at {depths} of {text.name}, prompts of {sizes} tokens"
    said = f"The model's answers have {np.mean(answered):.0%} of the needles' tokens; what it does not say, no head can copy."
    return {"retrieval": Measured(np.stack(values), np.array(chance), least["retrieval"], read, (said,))}


def _ends(asked: _Asked) -> frozenset[int]:
    """Tokens that end an answer."""
    config = getattr(asked.root, "config", None)
    own = getattr(config, "eos_token_id", None)
    listed = own if isinstance(own, list) else [own]
    return frozenset(token for token in [*listed, asked.tokenizer.eos_token_id] if token is not None)
