"""One pass through the residual stream: what goes into it, part by part, and how logits are read off its end.

Where what the attention and the MLP of a layer write adds up to what the layer adds to the stream, each part has its share of
every logit: through the final norm, whose scale at each position is taken as it was (frozen), logits are linear in the stream.
A norm between an output matrix and the addition (Gemma 2) is frozen likewise. Where parts do not add up, as with norms behind
the addition (BERT), nothing is split and the reason is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Refused
from ..model.anatomy import Anatomy, Site, Stack
from ..model.gates import applied
from ..model.tensor_trees import tensors
from .norms import FrozenNorm, factor, frozen_norm, is_close, is_norm
from .recording import stream_of, writer_input

Norms = Mapping[nn.Module, list[tuple[Tensor, Tensor]]]  # what each was given and gave, run by run
Rows = Callable[[Tensor], Tensor]  # the positions that are asked about, (positions, hidden)


@dataclass(eq=False)
class Trace:
    """What came by in one pass: (given, gave) of writers, layers and norms, and of the unembedding."""

    writers: dict[str, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    layers: dict[str, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    norms: dict[nn.Module, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    unembedding: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class Tracing(ExitStack):
    """Within the block, what writers, layers, norms and the unembedding are given and give is kept in `trace`."""

    def __init__(self, root: nn.Module, anatomy: Anatomy, unembeds: bool = True) -> None:
        super().__init__()
        self.trace = Trace()
        self.enter_context(applied(root, anatomy, {}))
        for site in anatomy.sites:
            self._keep(site.writer, self.trace.writers.setdefault(site.name, []), site)
        for stack in anatomy.stacks:
            for unit, block in zip(stack.units, stack.blocks, strict=True):
                self._keep(block, self.trace.layers.setdefault(str(unit), []))
        inside = {id(norm) for site in anatomy.sites for norm in site.module.modules() if site.kind == "head"}
        for module in root.modules():
            if is_norm(module) and id(module) not in inside and not list(module.children()):
                self._keep(module, self.trace.norms.setdefault(module, []))
        if unembeds:
            self._keep(ending_of(root), self.trace.unembedding)

    def _keep(self, module: nn.Module, into: list[tuple[Tensor, Tensor]], site: Site | None = None) -> None:
        def after(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given = stream_of(args, kwargs) if site is None else writer_input(site, args, kwargs)
            gave = next(tensors(output)).detach()
            into.append((given.detach(), gave if site is None else gave.clone()))  # some add to it in place (Falcon)

        self.callback(module.register_forward_hook(after, with_kwargs=True).remove)


def unembedding_of(root: nn.Module) -> nn.Module:
    """The matrix that turns the end of the residual stream into logits of tokens."""
    found = getattr(root, "get_output_embeddings", lambda: None)()
    if not isinstance(found, nn.Module) or getattr(getattr(found, "weight", None), "dim", lambda: 0)() != 2:
        raise Refused(
            f"{type(root).__name__} has no matrix that turns its residual stream into logits of tokens (an unembedding): load "
            "the model with the head of a language model."
        )
    return found


def ending_of(root: nn.Module) -> nn.Module:
    """The matrix that logits come from: of tokens, or of the classes of a classifier."""
    if not isinstance(getattr(root, "get_output_embeddings", lambda: None)(), nn.Module):
        head = _class_head(root)
        if head is not None:
            return head
    return unembedding_of(root)


def _class_head(root: nn.Module) -> nn.Module | None:
    """The matrix that gives logits of classes: the last one outside the body of the model."""
    body = getattr(root, str(getattr(root, "base_model_prefix", "")), None)
    if not isinstance(body, nn.Module) or body is root:
        return None
    heads = [child for child in root.children() if child is not body]
    matrices = [module for head in heads for module in head.modules() if isinstance(module, nn.Linear)]
    return matrices[-1] if matrices else None


@dataclass(frozen=True, eq=False)
class Addend:
    """What one site adds to the stream: its writer's output, through a norm of its own if one follows it, times a factor."""

    site: Site
    x: Tensor  # what the writer is given, (positions, columns)
    norm: FrozenNorm | None
    factor: float

    def back(self, direction: Tensor) -> Tensor:
        """The direction of the writer's output that a direction of the stream is."""
        direction = direction * self.factor
        return direction if self.norm is None else self.norm.back(direction)

    def of_biases(self, direction: Tensor) -> Tensor:
        """What the biases of the writer and of the norm behind it give: (positions,)."""
        bias = getattr(self.site.writer, "bias", None)
        total = torch.zeros_like(direction[:, 0]) if self.norm is None else self.norm.of_bias(direction * self.factor)
        return total if bias is None else total + (self.back(direction) * bias.detach().to(direction)).sum(-1)


@dataclass(frozen=True, eq=False)
class Stream:
    """The residual stream at some positions as a sum: its start, what sites add, and what else layers add; and its end."""

    start: Tensor  # (positions, hidden): embeddings
    addends: tuple[Addend, ...]
    rests: Mapping[str, Tensor]  # by layer: what else it adds, such as routed experts
    end: Ending
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Ending:
    """How logits are read off the end of the stream: norm, factor, unembedding, factor."""

    norm: FrozenNorm | None
    factor: float
    weight: Tensor  # (vocabulary, hidden)
    bias: Tensor | None

    def direction(self, tokens: Tensor, against: Tensor | str | None) -> tuple[Tensor, Tensor]:
        """The direction of the stream's end that is the logits of these tokens (less others), and what biases give them."""
        chosen, bias = self.weight[tokens], self._bias(tokens)
        if isinstance(against, Tensor):
            chosen, bias = chosen - self.weight[against], bias - self._bias(against)
        elif against == "mean":
            chosen = chosen - self.weight.mean(0)
            bias = bias if self.bias is None else bias - self.bias.mean()
        chosen = chosen * self.factor
        bias = bias + (self.norm.of_bias(chosen) if self.norm is not None else 0.0)
        return (chosen if self.norm is None else self.norm.back(chosen)), bias

    def _bias(self, tokens: Tensor) -> Tensor:
        return torch.zeros(len(tokens), dtype=self.weight.dtype) if self.bias is None else self.bias[tokens]


def read_stream(root: nn.Module, anatomy: Anatomy, trace: Trace, logits: Tensor, positions: Tensor) -> Stream:
    """The stream at these positions (a mask, (batch, length)); `Refused` where its parts do not add up."""
    stack, norm, scale = _end_of(root, anatomy, trace)

    def rows(tensor: Tensor) -> Tensor:
        return tensor[positions.to(tensor.device)].double().cpu()

    unembedding = ending_of(root)
    multiplier, notes = _logits(root, trace, logits)
    frozen = None
    if norm is not None:
        x, y = trace.norms[norm][-1]
        frozen = frozen_norm(norm, rows(x), rows(y))
        if frozen is None:
            raise Refused(
                f"The final norm ({type(norm).__name__}) is neither a LayerNorm nor an RMSNorm, so logits cannot be split."
            )
        notes.append(f"through the final norm ({type(norm).__name__}) with its scale frozen")
    bias = getattr(unembedding, "bias", None)
    weight = unembedding.weight.detach().double().cpu()  # type: ignore[operator, union-attr]
    ending = Ending(
        frozen, scale * multiplier, weight, None if bias is None else multiplier * bias.detach().double().cpu()
    )
    addends: list[Addend] = []
    rests: dict[str, Tensor] = {}
    for unit, block in zip(stack.units, stack.blocks, strict=True):
        some, rest, through = _layer(anatomy, trace, str(unit), block, rows)
        addends += some
        notes += [note for note in through if note not in notes]
        if rest is not None:
            rests[str(unit)] = rest
    return Stream(rows(trace.layers[str(stack.units[0])][0][0]), tuple(addends), rests, ending, tuple(notes))


def _end_of(root: nn.Module, anatomy: Anatomy, trace: Trace) -> tuple[Stack, nn.Module | None, float]:
    """The stack whose end logits are read from, the norm between (or None), and the factor behind that."""
    if len(trace.unembedding) != 1:
        raise Refused(
            f"The unembedding of {type(root).__name__} ran {len(trace.unembedding)} times in a pass, and should run once."
        )
    given = trace.unembedding[0][0].double()
    for stack in anatomy.stacks:
        seen = trace.layers[str(stack.units[-1])] if len(stack) else []
        if len(seen) != 1 or seen[0][1].shape != given.shape:
            continue
        last = seen[0][1]
        if (c := factor(given, last.double())) is not None:
            return stack, None, c
        for norm, calls in trace.norms.items():
            for x, y in calls:
                if x.shape == last.shape and torch.equal(x, last) and (c := factor(given, y.double())) is not None:
                    return stack, norm, c
    raise Refused(
        f"Between the last layer of {type(root).__name__} and its unembedding stands something else than one norm (a projection, "
        "or another layer), so what each unit adds to a logit cannot be told; models with norms behind their additions, such as "
        "BERT, are of that kind."
    )


def _logits(root: nn.Module, trace: Trace, logits: Tensor) -> tuple[float, list[str]]:
    """The factor between what the unembedding gives and the model's logits, and what is done to them besides."""
    own = trace.unembedding[0][1]
    cap = getattr(getattr(root, "config", None), "final_logit_softcapping", None)
    own64, logits64 = own.double(), logits.double()
    if (c := factor(logits64, own64)) is not None and not cap:
        return c, [] if c == 1 else [f"logits are what the unembedding gives times {c:.6g}"]
    if cap and own.shape == logits.shape and is_close(cap * torch.tanh(own64 / cap), logits64):
        return 1.0, [f"logits before their soft cap of {cap:g}, which is not linear"]
    raise Refused(
        f"The logits of {type(root).__name__} are not what its unembedding gives, nor a multiple of that, so what each unit adds "
        "to them cannot be told."
    )


def _layer(
    anatomy: Anatomy, trace: Trace, name: str, block: nn.Module, rows: Rows
) -> tuple[list[Addend], Tensor | None, list[str]]:
    """What the sites of a layer add to the stream, what else it adds (or None), and notes on how."""
    if len(trace.layers[name]) != 1:
        raise Refused(
            f"{name} runs {len(trace.layers[name])} times in a pass, so what each of its units adds cannot be told."
        )
    before, after = map(rows, trace.layers[name][0])
    inside = {id(module) for module in block.modules()}
    sites = [site for site in anatomy.sites if id(site.writer) in inside and len(site)]
    norms = {norm: calls for norm, calls in trace.norms.items() if id(norm) in inside}
    written = {site.name: part for site in sites if (part := _written(site, trace, norms, rows)) is not None}
    notes = [f"through the norm behind {what} with its scale frozen" for what in _normed(written)]
    total = sum((value for _, value in written.values()), torch.zeros_like(before))
    change = after - before
    times = factor(change, total)
    if times is not None and len(written) == len(sites):
        notes += [] if times == 1 else [f"what sites write is added times {times:.4g}"]
        return [_addend(part, times) for part, _ in written.values()], None, notes
    found = _around_the_unknown(written, before, after, norms, rows)
    if found is None or _is_normed(after, norms, rows):
        raise Refused(
            f"What the attention and the MLP of {name} write does not add up to what the layer adds to the residual stream, as "
            "with norms behind the addition (post-norm), so what each unit adds to a logit cannot be told."
        )
    return [*found[0]], found[1], notes


def _around_the_unknown(
    written: Mapping[str, tuple[Addend, Tensor]], before: Tensor, after: Tensor, norms: Norms, rows: Rows
) -> tuple[list[Addend], Tensor] | None:
    """Where a half of a layer is no site (routed experts, a convolution): the addends of the other half, and what this one adds.

    The stream between the halves is what a norm is given.
    """
    shown = [rows(x) for calls in norms.values() for x, _ in calls if x.dim() == 3 and x.shape[-1] == before.shape[-1]]
    for kind, sign, start in (("head", 1, before), ("neuron", -1, after)):
        parts = [part for part in written.values() if part[0].site.kind == kind]
        middle = start + sign * sum((value for _, value in parts), torch.zeros_like(before))
        if parts and any(is_close(x, middle) for x in shown):
            return [addend for addend, _ in parts], (after - middle if kind == "head" else middle - before)
    return None


def _is_normed(after: Tensor, norms: Norms, rows: Rows) -> bool:
    """Whether what a layer gives is what a norm gives."""
    gave = [rows(y) for calls in norms.values() for _, y in calls if y.dim() == 3 and y.shape[-1] == after.shape[-1]]
    return any(is_close(y, after) for y in gave)


def _addend(part: Addend, times: float) -> Addend:
    return Addend(part.site, part.x, part.norm, times)


def _normed(written: Mapping[str, tuple[Addend, Tensor]]) -> list[str]:
    kinds = {part.site.kind for part, _ in written.values() if part.norm is not None}
    return [{"head": "each attention", "neuron": "each MLP"}[kind] for kind in sorted(kinds)]


def _written(site: Site, trace: Trace, norms: Norms, rows: Rows) -> tuple[Addend, Tensor] | None:
    """What a site writes, through a norm that is given exactly that; None where it does not run once on all positions."""
    calls = trace.writers[site.name]
    if len(calls) != 1 or calls[0][0].dim() != 3 or calls[0][1].dim() != 3:
        return None
    x, y = calls[0]
    for norm, own in norms.items():
        for given, gave in own:
            if given.shape == y.shape and (given.data_ptr() == y.data_ptr() or torch.equal(given, y)):
                frozen = frozen_norm(norm, rows(given), rows(gave))
                return None if frozen is None else (Addend(site, rows(x), frozen, 1.0), rows(gave))
    return Addend(site, rows(x), None, 1.0), rows(y)
