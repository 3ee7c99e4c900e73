"""The relevance of heads: how much of a model's answer came through each of them, by layer-wise relevance propagation.

Relevance 1 starts at the top-1 logit of every step (Voita et al. 2019, section 4) and is handed backward by the rules of
`rules`. What arrives at the columns of a head in the input of the output projection is the head's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ...data.encoding import IGNORED
from ...errors import BadPlan, NotFound, Refused
from ...evaluation.evaluator import device_of, to_device
from ...model.anatomy import Anatomy, Site, Stack
from ...model.discovery import find, unwrap
from ...model.equivalence import evaluating, frozen
from ...model.gates import applied
from ...model.tensor_trees import mapped, tensors
from ...plans import Unit
from ..checkpointing import is_asked
from ..gradients import Contributions, contributions
from .interception import check_graph, propagating
from .rules import AlphaBeta, Epsilon, Ledger, Rule

if TYPE_CHECKING:
    from ...data.tasks import Task
    from ...model.architectures import ModuleSpec
    from ...runs import Run

RULES: dict[str, Rule | None] = {
    "gradient-activation": None,
    "lrp-epsilon": Epsilon(),
    "lrp-alpha-beta": AlphaBeta(),
}
SMALLEST = 1e-6  # of a logit that relevance starts from
Batch = dict[str, Any]


def relevances(
    root: nn.Module,
    anatomy: Anatomy,
    parts: Sequence[Site | Stack],
    task: Task,
    by: str,
    *,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "score",
) -> Contributions:
    """For each example the relevance of every unit of these attentions and MLPs, `signed`.

    By `gradient-activation` it is the sum of x * d(logit)/dx over the unit's columns and positions, for the mean top-1
    logit of the example's steps.
    """
    rule = RULES[by]
    stack = next((part for part in parts if isinstance(part, Stack)), None)
    if stack is not None:
        raise BadPlan(f"{by} is of heads and neurons; layers are scored by taylor, contribution or their place.")
    closed = next((part for part in parts if isinstance(part, Site) and not part.calls_writer), None)
    if rule is not None and closed is not None:
        raise Refused(
            f"{closed.name} ({type(closed.module).__name__}) never calls its output projection as a module, so relevance "
            "cannot be read there: score it by taylor or gradient-activation."
        )
    if isinstance(rule, Epsilon) and any(parameter.dtype == torch.bfloat16 for parameter in root.parameters()):
        raise Refused(
            f"{by} divides by sums in which positive and negative parts may nearly cancel, and bfloat16 is too coarse for that: "
            "load the model in float32 (dtype=torch.float32, --dtype float32)."
        )
    if rule is not None and is_asked():
        raise Refused(
            f"{by} sets the rules of a layer when it first runs, so it cannot run a second time: leave checkpointing out, or "
            "score by taylor, fisher or gradient-activation."
        )
    logit_task = replace(
        task, loss=partial(_start, task, rule, None)
    )  # what the gradients of a loss are, of another number
    return contributions(root, anatomy, parts, logit_task, batch_size=batch_size, run=run, name=f"{name}-{by}")


def _start(task: Task, rule: Rule | None, ledger: Ledger | None, model: nn.Module, batch: Batch) -> Tensor:
    """One number per example to go back from: the mean of the top-1 logits of its steps.

    With a rule each logit is divided by its own size, so that the relevance of every step is 1.
    """
    if task.goal is None:
        raise Refused(
            f"Relevance starts at the logit of what the model says, and {task.name} does not show logits: score it by "
            "taylor, which needs a loss only."
        )
    if rule is None:
        return _mean(*_top(*task.goal(model, batch)))
    with propagating(model, rule, ledger):
        goal = task.goal(model, batch)
    top, steps = _top(*goal)
    if top.requires_grad:
        check_graph(model, top, rule)
    size = top.detach()
    return _mean(top / (size + torch.where(size < 0, -SMALLEST, SMALLEST)), steps)


def _top(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of every step, (examples, steps), and which of them count: those where there is something to say."""
    if targets.is_floating_point():
        return logits[:, None], torch.ones_like(logits[:, None], dtype=torch.bool)
    largest = logits.to(torch.promote_types(logits.dtype, torch.float32)).max(-1).values
    shape = len(targets), -1  # one step where a text has one class
    return largest.view(shape), (targets != IGNORED).view(shape)


def _mean(values: Tensor, steps: Tensor) -> Tensor:
    return torch.where(steps, values, 0.0).sum(1) / steps.sum(1).clamp(min=1)


# --- conservation ---------------------------------------------------------------------------------------------------


class Flow(NamedTuple):
    """The relevance of an example that came to the output of a layer, left through its inputs, and was absorbed inside.

    Biases and other constants absorb it, and the stabiliser of the epsilon rule. `came` equals `left` plus `absorbed`.
    """

    layer: Unit
    came: float
    left: float
    absorbed: float


def flow(
    model: nn.Module, task: Task, rule: Rule, *, batch_size: int | None = None, specs: Iterable[ModuleSpec] = ()
) -> list[Flow]:
    """Where relevance went, layer by layer, as the mean over the examples of the task: shows that it is conserved."""
    root, anatomy = unwrap(model), find(model, tuple(specs))
    ledger = Ledger()
    came, outgoing = defaultdict[str, float](float), defaultdict[str, float](float)
    blocks = [(unit, block) for stack in anatomy.stacks for unit, block in zip(stack.units, stack.blocks, strict=True)]
    if not blocks:
        raise NotFound(
            f"{anatomy.model_name} has no layers that are modules of a list, so there is nothing to count at."
        )
    with ExitStack() as stack:
        for context in (evaluating(root), frozen(root), torch.inference_mode(False), torch.enable_grad()):
            stack.enter_context(context)
        stack.enter_context(applied(root, anatomy, {}))
        for unit, block in blocks:
            enter, leave = partial(_enter, ledger, outgoing, str(unit)), partial(_leave, ledger, came, str(unit))
            stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
            # before the hooks by which transformers records hidden states: some models go on from those
            stack.callback(block.register_forward_hook(leave, prepend=True).remove)
        for numbers in task.batches(batch_size):
            batch = to_device(task.collate(numbers), device_of(root))
            _start(task, rule, ledger, root, batch).sum().backward()
    sums = came, outgoing, ledger.absorbed
    return [Flow(unit, *(totals[str(unit)] / task.size for totals in sums)) for unit, _ in blocks]


def _enter(ledger: Ledger, outgoing: dict[str, float], layer: str, _: nn.Module, args: Any, kwargs: Any) -> Any:
    ledger.here.append(layer)
    first = next(t for t in tensors((args, kwargs)) if t.is_floating_point())
    # what comes into the first layer carries relevance, too; masks and tables of positions do not
    fresh = None if first.requires_grad else first.detach().requires_grad_()
    return mapped((args, kwargs), lambda t: _counted(fresh if t is first and fresh is not None else t, outgoing, layer))


def _leave(ledger: Ledger, came: dict[str, float], layer: str, _: nn.Module, __: Any, output: Any) -> Any:
    ledger.here.pop()
    return mapped(output, lambda t: _counted(t, came, layer))


def _counted(x: Tensor, sums: dict[str, float], layer: str) -> Tensor:
    """A view of x, so that other readers of it do not count; what comes back to it is added to the layer's sum."""
    if not x.requires_grad:
        return x
    values, view = x.detach().clone(), x.view_as(x)

    def back(gradient: Tensor) -> None:
        sums[layer] += float((values.double() * gradient.double()).sum())

    view.register_hook(back)
    return view
