"""What heads look at: attention probabilities, batch by batch, reduced on the spot. The matrices are never kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..errors import Refused
from ..evaluation.evaluator import device_of, in_parts, to_device
from ..model.anatomy import Anatomy, Site
from ..model.equivalence import evaluating
from ..progress import Bar
from .attention_parts import watched as watched_parts

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

See = Callable[[Site, Tensor], None]  # takes probabilities (batch, heads, queries, keys)


@contextmanager
def watched(root: nn.Module, sites: Sequence[Site], see: See) -> Iterator[None]:
    """Within the block, `see(site, probabilities)` is called whenever one of these attentions has run.

    The model computes what it computes anyway: fused kernels stay, and what they do not hand out is worked out beside them.
    """
    with watched_parts(root, sites, lambda site, parts: see(site, parts.patterns)):
        yield


def confidence_and_entropy(
    root: nn.Module,
    anatomy: Anatomy,
    task: Task,
    *,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "score",
) -> dict[str, dict[str, np.ndarray]]:
    """Samples whose mean over examples is, for each head, the mean over all tokens of the largest weight, and of the entropy.

    Confidence is that of Voita et al. 2019, who leave the end of the sentence out: special tokens are neither asked nor
    looked at, and what the others get is not scaled up. Entropy is that of all that is not padding, in nats. Arrays
    (examples, heads) by site.
    """
    sites = anatomy.heads
    # sums over the tokens of each example, (examples, heads), and how many tokens these are, (examples, 1)
    sums = {kind: {s.name: np.zeros((task.size, len(s))) for s in sites} for kind in ("confidence", "entropy")}
    counts = {kind: {s.name: np.zeros((task.size, 1)) for s in sites} for kind in sums}
    with evaluating(root), torch.no_grad(), Bar("attention", total=task.size) as bar:
        batches, batch = task.batches(batch_size), partial(_batch, root, sites, task)
        jobs = [
            (f"{name}-tokens-{number:06d}", partial(halved, batch, "attention", task, numbers))
            for number, numbers in enumerate(batches)
        ]
        for numbers, arrays in zip(batches, runs.independent(run, jobs), strict=True):
            for kind in sums:
                for site in sites:
                    sums[kind][site.name][list(numbers)] = arrays[f"{kind}.{site.name}"]
                    counts[kind][site.name][list(numbers)] = arrays[f"{kind}-tokens.{site.name}"]
            bar.advance(len(numbers))
    return {
        kind: {site: per_token(array, counts[kind][site]) for site, array in by_site.items()}
        for kind, by_site in sums.items()
    }


def per_token(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Samples (examples, heads) whose mean is the mean over all tokens: sum of the sums / sum of the counts.

    A long example has more tokens, and so more weight. The samples are those of a ratio estimator: the ratio, and what each
    example adds to it to first order. Their standard error is the ratio's; sums in units of the mean length would have that
    of the lengths in it.
    """
    tokens = counts.mean(0)
    if not tokens.all():
        return np.zeros_like(sums)  # no token was asked
    ratio = sums.mean(0) / tokens
    return ratio + (sums - ratio * counts) / tokens


def halved(
    compute: Callable[[Sequence[int]], dict[str, np.ndarray]], label: str, task: Task, numbers: Sequence[int]
) -> dict[str, np.ndarray]:
    """What `compute` gives for a batch, or for its halves one after the other where memory runs out.

    Attention probabilities grow with the square of the length.
    """
    parts = [arrays for _, arrays in in_parts(compute, label, task, numbers)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _batch(root: nn.Module, sites: Sequence[Site], task: Task, numbers: Sequence[int]) -> dict[str, np.ndarray]:
    size, batch = len(numbers), to_device(task.collate(numbers), device_of(root))
    decodes = bool(getattr(getattr(root, "config", None), "is_encoder_decoder", False))
    sums: dict[str, list[Tensor]] = {}

    def see(site: Site, weights: Tensor) -> None:
        weights = weights.detach().float()
        real = tokens(batch, site, weights)
        query_mask, key_mask = (~mask for mask in _special(batch, task.special, site, weights, decodes))
        query_mask = query_mask * real
        surest = ((weights * key_mask[:, None, None]).amax(-1) * query_mask[:, None]).sum(-1)
        entropy = -(torch.special.xlogy(weights, weights).sum(-1) * real[:, None]).sum(-1)
        counts = (query_mask.sum(-1, keepdim=True), real.sum(-1, keepdim=True))
        totals = [_per_example(t, size) for t in (surest, entropy, *counts)]
        sums[site.name] = (
            totals if site.name not in sums else [a + b for a, b in zip(sums[site.name], totals, strict=True)]
        )

    with watched(root, sites, see):
        task.loss(root, dict(batch))
    silent = [site.name for site in sites if site.name not in sums]
    if silent:
        raise Refused(
            f"{silent[0]} does not run on {task.name}, so there is nothing that it looks at; score it on data that it sees."
        )
    out = {}
    for name, (surest, entropy, query_counts, real) in sums.items():
        out[f"confidence.{name}"], out[f"confidence-tokens.{name}"] = surest.cpu().numpy(), query_counts.cpu().numpy()
        out[f"entropy.{name}"], out[f"entropy-tokens.{name}"] = entropy.cpu().numpy(), real.cpu().numpy()
    return out


def tokens(batch: dict[str, Any], site: Site, weights: Tensor) -> Tensor:
    """Which queries are tokens and not padding: (batch, queries), ones where the batch does not say."""
    rows, length = weights.shape[0], weights.shape[2]
    if site.attention == "encoder" or "decoder_attention_mask" not in batch:
        mask = batch.get("attention_mask")
        labels = batch.get("labels")
        if site.attention in ("decoder", "cross") and isinstance(labels, Tensor) and labels.dim() == 2:
            mask = labels != -100
    else:
        mask = batch["decoder_attention_mask"]
    if isinstance(mask, Tensor) and mask.shape == (rows, length):
        return mask.to(weights.device, weights.dtype)
    return torch.ones(rows, length, device=weights.device)


def _special(
    batch: dict[str, Any], special: frozenset[int], site: Site, weights: Tensor, decodes: bool
) -> tuple[Tensor, Tensor]:
    """Which queries and which keys are special tokens: (batch, queries) and (batch, keys), none where ids do not say.

    The decoder of an encoder-decoder reads a start token, and then the targets but for the last.
    """
    marks = torch.tensor(sorted(special), device=weights.device)

    def marked(ids: Any, length: int) -> Tensor:
        none = torch.zeros(weights.shape[0], length, dtype=torch.bool, device=weights.device)
        fits = isinstance(ids, Tensor) and ids.shape == none.shape and not ids.is_floating_point()
        return torch.isin(ids.to(none.device), marks) if special and fits else none

    ids, labels = batch.get("input_ids"), batch.get("labels")
    queries, keys = weights.shape[2:]
    if not decodes or site.attention not in ("decoder", "cross"):
        return marked(ids, queries), marked(ids, keys)
    read = marked(labels, queries).roll(1, dims=1)
    read[:, 0] = bool(special)
    return read, marked(ids, keys) if site.attention == "cross" else read


def _per_example(values: Tensor, size: int) -> Tensor:
    """Sums of rows that belong to one example (windows of a picture); rows come example by example."""
    return values.reshape(size, -1, values.shape[-1]).sum(1)
