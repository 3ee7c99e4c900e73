"""The four matrices of a head, as they read from and write to the residual stream: queries, keys, values, output.

What a head reads goes through the norm in front of its attention, whose weights (and centring) are folded into the matrices; so
are those of a norm behind the output matrix, and of norms of queries and keys. The scales of norms differ from position to
position and are left out, as are biases where it is not said otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..data.tasks import device_of
from ..errors import Refused
from ..model.anatomy import Anatomy, Site
from ..model.distributed.refusals import in_one_place
from ..model.equivalence import evaluating
from ..model.matrices import matrix
from .norms import FrozenNorm, frozen_norm, is_norm
from .recording import projection, run, stream_of, writer_weight
from .stream import Trace, Tracing


@dataclass(frozen=True, eq=False)
class HeadMatrices:
    """Of one attention, by head: queries, keys, values (heads, width, hidden), outputs (heads, hidden, width), with norms."""

    site: Site
    queries: Tensor
    keys: Tensor
    values: Tensor
    outputs: Tensor
    reading: nn.Module | None  # the norm in front, which a token's embedding goes through


@dataclass(eq=False)
class Probe:
    """One pass over a few tokens, which shows where norms stand."""

    trace: Trace
    given: dict[str, Tensor]  # what attentions are given


def probe(root: nn.Module, anatomy: Anatomy, batch: Any) -> Probe:
    """The pass; of the batch only the norms' places matter."""
    given: dict[str, Tensor] = {}
    with evaluating(root), torch.no_grad(), Tracing(root, anatomy, False) as traced:
        for site in anatomy.heads:

            def before(_: nn.Module, args: Any, kwargs: Any, name: str = site.name) -> None:
                given.setdefault(name, stream_of(args, kwargs).detach().clone())

            traced.callback(site.module.register_forward_pre_hook(before, with_kwargs=True).remove)
        run(root, batch)
    return Probe(traced.trace, given)


def head_matrices(site: Site, seen: Probe, matching: bool = True) -> HeadMatrices:
    """The matrices of all heads of an attention, queries and keys only with `matching`; `Refused` where there are none."""
    norm = _norm_in_front(site, seen)
    folded = None if norm is None else norm[1]
    elsewhere = site.attention == "cross"  # keys and values read another stream
    values = _folded(_rows(site, 2), None if elsewhere else folded)
    queries, keys = _matching(site, folded) if matching else (values[:, :0], values[:, :0])
    return HeadMatrices(site, queries, keys, values, output_matrices(site, seen), None if norm is None else norm[0])


def output_matrices(site: Site, seen: Probe) -> Tensor:
    """The output matrix of every head, with the norm behind the attention: (heads, hidden, width)."""
    outputs = writer_weight(site).double().cpu().unflatten(1, (len(site), site.width)).movedim(1, 0)
    behind = _norm_behind(site, seen)
    if behind is not None:
        outputs = behind.weight[:, None] * outputs
        outputs = outputs - outputs.mean(1, keepdim=True) if behind.centred else outputs
    return outputs


def _matching(site: Site, folded: FrozenNorm | None) -> tuple[Tensor, Tensor]:
    """The matrices of queries and of keys."""
    queries = _folded(_rows(site, 0), folded)
    keys = _folded(_rows(site, 1), None if site.attention == "cross" else folded)
    if queries.shape != keys.shape:
        raise Refused(
            f"The queries of {site.name} have {queries.shape[1]} rows for each head and its keys {keys.shape[1]}: something "
            "besides queries is made by that matrix, such as gates, so its circuits cannot be read off the weights."
        )
    scales = [_own_norm(site, names) for names in ("q|query", "k|key")]
    queries, keys = (m if w is None else m * w[:, None] for m, w in zip((queries, keys), scales, strict=True))
    return queries, keys


def projected(site: Site, which: int, x: Tensor, position: int) -> Tensor:
    """Queries (0) or keys (1) of one head for vectors (tokens, hidden), with biases and norms, not rotated: (tokens, width)."""
    bias = _biases(site, which)
    made = x @ _rows(site, which)[position].T.to(x)
    made = made if bias is None else made + bias[position].to(x)
    norm = _norm_module(site, ("q|query", "k|key")[which])
    if norm is None:
        return made
    with torch.no_grad():
        return norm(made.to(next(norm.parameters()))).to(x).cpu()


def _rows(site: Site, which: int) -> Tensor:
    """The rows of every head in the matrix of queries, keys or values: (heads, width, hidden)."""
    owner, name, axis, table, _ = _owned(site, which)
    weight = getattr(owner, name).detach().movedim(axis, 0).flatten(1).double().cpu()
    return weight[table]


def _biases(site: Site, which: int) -> Tensor | None:
    owner, _, _, table, bias = _owned(site, which)
    return None if bias is None else getattr(owner, bias).detach().double().cpu()[table]


def _owned(site: Site, which: int) -> tuple[nn.Module, str, int, Tensor, str | None]:
    """The module that holds a matrix, the names of its tensors, the axis of its rows, and the rows of every head."""
    in_one_place(site.module, "circuits cannot be read off them")
    if isinstance(site.module, nn.MultiheadAttention) and site.module.in_proj_weight is not None:
        table = [table for parts in site.tables() for table in parts][which]
        return site.module, "in_proj_weight", 0, table, "in_proj_bias" if site.module.in_proj_bias is not None else None
    reader, table = projection(site, which)
    own = matrix(reader)
    if own is None:
        raise Refused(f"The matrices of {site.name} are packed or quantised, so its circuits cannot be read off them.")
    return own.owner, own.weight, own.row_axis, table, own.bias_name


def _folded(rows: Tensor, norm: FrozenNorm | None) -> Tensor:
    if norm is None:
        return rows
    rows = rows * norm.weight
    return rows - rows.mean(-1, keepdim=True) if norm.centred else rows


def _norm_in_front(site: Site, seen: Probe) -> tuple[nn.Module, FrozenNorm] | None:
    """The norm that gives what an attention is given, or None where it is given the stream itself."""
    given = seen.given.get(site.name)
    if given is None:
        raise Refused(
            f"{site.name} does not run on a few tokens, so where its norms stand cannot be seen; give batch=."
        )
    for norm, calls in seen.trace.norms.items():
        for x, y in calls:
            if y.shape == given.shape and torch.equal(y, given):
                frozen = frozen_norm(norm, x.double().cpu().flatten(0, -2), y.double().cpu().flatten(0, -2))
                if frozen is not None:
                    return norm, frozen
    return None


def _norm_behind(site: Site, seen: Probe) -> FrozenNorm | None:
    """The norm that is given exactly what an attention writes (Gemma 2), or None."""
    for _, wrote in seen.trace.writers[site.name][:1]:
        for norm, calls in seen.trace.norms.items():
            for x, y in calls:
                if x.shape == wrote.shape and torch.equal(x, wrote):
                    return frozen_norm(norm, x.double().cpu().flatten(0, -2), y.double().cpu().flatten(0, -2))
    return None


def _norm_module(site: Site, names: str) -> nn.Module | None:
    """The norm of queries or of keys inside an attention, where it works head by head; `Refused` for one of another kind."""
    for path, module in site.module.named_modules():
        last = path.rpartition(".")[2]
        if is_norm(module) and not list(module.children()) and re.match(rf"({names})([_.]|norm|layernorm|ln)", last):
            weight = next(iter(module.parameters()), None)
            if weight is not None and weight.shape == (_rows(site, 0).shape[1],):
                return module
            raise Refused(
                f"{site.name}.{path} normalises queries or keys of all heads together, so the circuit of one head cannot be read "
                "off the weights."
            )
    return None


def _own_norm(site: Site, names: str) -> Tensor | None:
    """The weights of the norm of queries or keys, as it uses them: (width,)."""
    norm = _norm_module(site, names)
    if norm is None:
        return None
    weight = next(norm.parameters())
    x = torch.linspace(-1, 1, weight.numel(), dtype=weight.dtype, device=weight.device)[None].repeat(2, 1)
    with torch.no_grad():
        frozen = frozen_norm(norm, x.double().cpu(), norm(x).double().cpu())
    return weight.detach().double().cpu() if frozen is None else frozen.weight


def small_batch(root: nn.Module) -> dict[str, Tensor]:
    """A few tokens for a model of text; `Refused` for one that reads something else."""
    config = getattr(root, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    size = getattr(text, "vocab_size", None)
    if type(size) is not int or getattr(root, "main_input_name", "input_ids") != "input_ids":
        raise Refused(f"{type(root).__name__} does not read tokens, so I cannot make a batch for it; give batch=.")
    device = device_of(root)
    ids = torch.arange(1, 7, device=device)[None] % size
    return {"input_ids": ids, **({"decoder_input_ids": ids} if getattr(config, "is_encoder_decoder", False) else {})}
