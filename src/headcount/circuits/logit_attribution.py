"""Direct logit attribution: what each head and MLP adds to the logits of given tokens, straight through the final norm.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; Wang et al. 2023 use it to find name movers. It is the
direct effect alone: what later layers make of what a unit writes counts for those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..data.encoding import IGNORED
from ..documents.circuits.logit_attribution import AGAINST, BIASES, EMBEDDINGS, REST, Attribution
from ..errors import BadPlan, Refused
from ..evaluation.evaluator import device_of, fresh, signature, to_device
from ..hashing import fingerprint
from ..importance.attention import halved
from ..model.anatomy import Anatomy
from ..model.architectures import ModuleSpec
from ..model.discovery import find, unwrap
from ..model.distributed.refusals import in_one_place
from ..model.equivalence import evaluating
from ..progress import Bar
from .class_logits import at_positions
from .prompts import of_contrasts
from .recording import writer_weight
from .stream import Addend, Stream, Tracing, read_stream

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

TOGETHER = 8  # examples in a pass: all that layers write is kept until its end
CLASSES = ("classification", "image-classification")
EXACT = 1e-3  # of the largest logit: what rounding may come to


def direct_logit_attribution(
    model: nn.Module,
    task: Task,
    units: str = "heads",
    *,
    against: str = "mean",
    batch_size: int | None = None,
    run: Run | None = None,
    specs: Iterable[ModuleSpec] = (),
) -> Attribution:
    """Direct logit attribution: what each unit adds by itself to the logits of the right tokens, example by example.

    What a unit writes goes through the final norm, with the norm's scale at each position as it was (frozen), and through the
    unembedding; biases and embeddings are components of their own, and all components add up to the model's logit, which is
    checked on every batch. Where the examples have wrong tokens beside the right ones (`prompt_pairs`), it is the difference of
    the two logits. An example's value is the mean over its positions. Of a classifier that reads one position of the stream
    through its final norm (GPT-2, Llama, ViT) it is the logit of the example's class.

    Args:
        model: A language model that adds what its layers write (pre-norm): GPT-2, Llama, Gemma, T5, ...
        task: Its data: a task with tokens to guess (language-modelling, last-word, translation), `prompt_pairs`, a contrast
            task, or classification.
        units: "heads" (and whole MLPs), or "neurons" (and whole attentions).
        against: What the logit is compared with where no wrong tokens are given: "mean" (over the vocabulary, or classes) or
            "nothing".
        batch_size: Examples per pass; by default 8.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).

    Returns:
        The values of every example for every component, with intervals and tests.

    Examples:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=60, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes))
        >>> pairs = [([5, 9, 8], 7, 6), ([4, 4, 3], 2, 1)]  # prompt, right and wrong token
        >>> found = hc.circuits.direct_logit_attribution(model, hc.circuits.prompt_pairs(pairs))
        >>> found.components[:3]
        ('embeddings', '0:0', '0:1')
        >>> found.values.shape
        (2, 12)
    """
    if units not in ("heads", "neurons"):
        raise BadPlan(f"Logits are attributed to heads or to neurons; I got {units!r:.40}.")
    if against not in AGAINST:
        raise BadPlan(f"against is {' or '.join(AGAINST)}; I got {against!r:.40}.")
    task = task if task.corrupted is None else of_contrasts(task)
    if task.goal is None:
        raise Refused(f"{task.name} ({task.kind}) has no tokens to guess, so there are no logits to attribute.")
    root = unwrap(model)
    in_one_place(root, "logits are not taken apart")
    anatomy = find(root, specs)
    names = _names(anatomy, units)
    values, totals = np.zeros((task.size, len(names))), np.zeros(task.size)
    notes: dict[str, None] = {}
    batches = task.batches(batch_size or min(task.batch_size, TOGETHER))
    mark = fingerprint([units, against, task.fingerprint, [list(numbers) for numbers in batches]])[:8]
    with evaluating(root), torch.no_grad(), Bar("attribution", total=task.size) as bar:
        for number, numbers in enumerate(batches):
            compute = partial(
                halved, partial(_batch, root, anatomy, task, units, against), "attribution", task, numbers
            )
            arrays = runs.piece(run, f"attribution-{mark}-{number:06d}", compute)
            values[list(numbers)], totals[list(numbers)] = arrays["values"], arrays["totals"]
            notes |= dict.fromkeys(str(note) for note in arrays["notes"])
            bar.advance(len(numbers))
    # what never is anything: layers whose parts are all known, and sites that never ran
    kept = [n for n, name in enumerate(names) if values[:, n].any() or not name.endswith(REST)]
    difference = "right - wrong" if "right - wrong" in notes else "right" if against == "nothing" else "right - mean"
    return Attribution(
        components=tuple(names[n] for n in kept),
        values=values[:, kept],
        totals=totals,
        difference=difference,
        notes=tuple(note for note in notes if note != difference),
        signature=signature(root, task, metric="direct logit attribution", of=difference),
        clusters=None if task.clusters is None else np.array(task.clusters),
    )


def _names(anatomy: Anatomy, units: str) -> list[str]:
    """The components, in the order of the model."""
    names = [EMBEDDINGS]
    for site in anatomy.sites:
        each = (site.kind == "head") == (units == "heads")
        names += [str(unit) for unit in site.units] if each else [site.name] if len(site) else []
    return [*names, *(f"{unit} {REST}" for stack in anatomy.stacks for unit in stack.units), BIASES]


def _batch(
    root: nn.Module, anatomy: Anatomy, task: Task, units: str, against: str, numbers: Sequence[int]
) -> dict[str, np.ndarray]:
    """Values (examples, components) and totals (examples,) of a batch."""
    batch = to_device(task.collate(numbers), device_of(root))
    assert task.goal is not None
    with Tracing(root, anatomy) as traced:
        logits, targets = task.goal(root, fresh(batch))
    if task.kind in CLASSES and logits.dim() == 2:
        logits, targets = at_positions(root, traced.trace, logits, targets)
    if targets.is_floating_point() or logits.dim() != 3:
        raise Refused(f"{task.name} ({task.kind}) asks for no tokens, so there are no logits of tokens to attribute.")
    positions = targets != IGNORED
    stream = read_stream(root, anatomy, traced.trace, logits, positions)
    right = targets[positions].cpu()
    wrong = batch["wrong"].to(targets.device)[positions].cpu() if "wrong" in batch else None
    by_name = attributed(stream, right, against if wrong is None else wrong, units)
    said = logits[positions].double().cpu()
    if not any("soft cap" in note for note in stream.notes):
        _check(sum(by_name.values()), said, right, against if wrong is None else wrong)
    owner = positions.nonzero()[:, 0].cpu()
    counts = torch.bincount(owner, minlength=len(numbers)).clamp(min=1)
    names = _names(anatomy, units)
    zero = torch.zeros(len(right), dtype=torch.float64)
    table = torch.stack([by_name.get(name, zero) for name in names], 1)
    per_example = (
        torch.zeros(len(numbers), len(names), dtype=torch.float64).index_add_(0, owner, table) / counts[:, None]
    )
    notes = [*stream.notes, *(["right - wrong"] if wrong is not None else [])]
    return {"values": per_example.numpy(), "totals": per_example.sum(1).numpy(), "notes": np.array(notes, dtype=str)}


def attributed(stream: Stream, right: Tensor, against: Tensor | str, units: str) -> dict[str, Tensor]:
    """By component, what it adds to the logit at each position: (positions,). The sum is the logit (difference)."""
    direction, biases = stream.end.direction(right, against)
    out = {EMBEDDINGS: (stream.start * direction).sum(-1)}
    for addend in stream.addends:
        out |= _units(addend, direction, units)
        biases = biases + addend.of_biases(direction)
    out |= {f"{name} {REST}": (rest * direction).sum(-1) for name, rest in stream.rests.items()}
    return {**out, BIASES: biases}


def _units(addend: Addend, direction: Tensor, units: str) -> dict[str, Tensor]:
    """What the units of one site add, or the site as a whole."""
    site = addend.site
    columns = addend.x * (addend.back(direction) @ writer_weight(site).double().cpu())  # (positions, columns)
    if (site.kind == "head") != (units == "heads"):
        return {site.name: columns.sum(-1)}
    each = columns.unflatten(-1, (len(site), site.width)).sum(-1)
    return {str(unit): each[:, n] for n, unit in enumerate(site.units)}


def _check(total: Any, said: Tensor, right: Tensor, against: Tensor | str) -> None:
    """`Refused` where components do not add up to the model's logit."""
    rows = torch.arange(len(right))
    logit = said[rows, right]
    if isinstance(against, Tensor):
        logit = logit - said[rows, against]
    elif against == "mean":
        logit = logit - said.mean(-1)
    off = float((total - logit).abs().max())
    if not off <= EXACT * max(1.0, float(said.abs().max())):
        raise Refused(
            f"What the parts of this model add does not come to its logits (off by {off:.3g}): something else happens to its "
            "residual stream, so they cannot be split; use a wider dtype if the model computes in half precision."
        )
