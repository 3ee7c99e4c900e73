"""How far a layer, an attention or an MLP turns the residual stream: block influence, in one forward pass.

Of a layer, its input and its output are compared (Men et al. 2024); of an attention or an MLP, the residual stream before and
after its output is added (as He et al. 2024 do).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from .. import runs
from ..errors import Refused
from ..evaluation.evaluator import device_of, fresh, to_device
from ..evaluation.layer_by_layer import Streamed, check_inside, layer_by_layer
from ..evaluation.residual_stream import Enough, Passes, ResidualTarget, landing, rows_of
from ..model.anatomy import Anatomy, Site, Stack
from ..model.equivalence import evaluating
from ..model.loading.lazy_tensors import is_lazy
from ..model.multihead import opened
from ..model.positions import in_decoder, real_positions
from ..model.tensor_trees import tensors
from ..progress import Bar, track
from .activations import alone_where_unclear, each_alone_where_unclear, finite_rows
from .attention import halved, per_token

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

Parts = Sequence[Site | Stack]


def block_influence(
    root: nn.Module,
    anatomy: Anatomy,
    parts: Parts,
    task: Task,
    *,
    batch_size: int | None = None,
    run: Run | None = None,
    name: str = "score",
) -> dict[str, np.ndarray]:
    """For each part, samples (examples, blocks) whose mean is 1 - the mean cosine over all positions that are no padding.

    The blocks of a stack are its layers; an attention and an MLP are one block.
    """
    sums = {part.name: np.zeros((task.size, _blocks(part))) for part in parts}
    counts = {part.name: np.zeros((task.size, _blocks(part))) for part in parts}
    size = batch_size if all(part.per_example for part in parts) else 1
    with evaluating(root), torch.inference_mode(False), torch.no_grad():
        if is_lazy(root):
            with opened(root):
                return _layer_by_layer(root, anatomy, parts, task, size, run, f"{name}-influence")
        landings = _landings(root, anatomy, [part for part in parts if isinstance(part, Site)], task)
        with opened(root), Bar("block influence", total=task.size) as bar:
            batches, one = task.batches(size), partial(_pass, root, anatomy, parts, landings, task)
            batch = partial(each_alone_where_unclear, one)
            jobs = [
                (f"{name}-influence-{number:06d}", partial(halved, batch, "block influence", task, numbers))
                for number, numbers in enumerate(batches)
            ]
            for numbers, arrays in zip(batches, runs.independent(run, jobs), strict=True):
                for part in parts:
                    sums[part.name][list(numbers)] = arrays[f"turned.{part.name}"]
                    counts[part.name][list(numbers)] = arrays[f"positions.{part.name}"]
                bar.advance(len(numbers))
    return {part.name: per_token(sums[part.name], counts[part.name]) for part in parts}


def _layer_by_layer(
    root: nn.Module, anatomy: Anatomy, parts: Parts, task: Task, size: int | None, run: Run | None, name: str
) -> dict[str, np.ndarray]:
    """The same of a model whose weights are in files: every example through one layer after the other."""
    check_inside(anatomy, parts)
    sites, landings = [part for part in parts if isinstance(part, Site)], dict[str, ResidualTarget]()
    probe = [task.batches()[-1][0]] if sites else []  # where sites write is seen on the shortest example

    def look(layer: nn.Module, numbers: Sequence[int]) -> dict[str, np.ndarray]:
        inside = set(layer.modules())
        own = [part for part in parts if inside & ({part.writer} if isinstance(part, Site) else set(part.blocks))]
        if numbers is probe:
            landings.update(_landings(root, anatomy, [part for part in own if isinstance(part, Site)], task))
            return {}
        return _pass(root, anatomy, own, landings, task, numbers, layer)

    def gathered(size: int | None, name: str) -> dict[str, np.ndarray]:
        streamed = Streamed(root, anatomy, task, [list(numbers) for numbers in task.batches(size)], probe)
        return layer_by_layer(streamed, look, run=run, name=name)

    out = alone_where_unclear(gathered, size, name)
    for part in parts:
        positions = out.get(f"positions.{part.name}")
        if positions is None or not positions.any(0).all():
            raise _does_not_run(part, task)
    return {part.name: per_token(out[f"turned.{part.name}"], out[f"positions.{part.name}"]) for part in parts}


def _does_not_run(part: Site | Stack, task: Task) -> Refused:
    return Refused(
        f"{part.name} does not run on {task.name}, so there is nothing to say about it; score it on data that it sees."
    )


def _blocks(part: Site | Stack) -> int:
    return len(part) if isinstance(part, Stack) else 1


def _landings(root: nn.Module, anatomy: Anatomy, sites: Sequence[Site], task: Task) -> dict[str, ResidualTarget]:
    """Where what each site writes is added to the residual stream, seen on the shortest example."""
    passes, batch, out = Passes(root, anatomy, task), task.collate(task.batches()[-1][:1]), {}
    for site in track(sites, "where sites write"):
        able = site.calls_writer and site.columns is not None
        target = landing(partial(passes.run, batch), anatomy, site) if able else None
        if target is None or target.module is site.writer:
            raise Refused(
                f"What {site.name} writes is not seen to be added to a residual stream, so there is no block to compare it "
                "with; score the layers by block-influence, or the units by another criterion."
            )
        out[site.name] = target
    return out


def _pass(
    root: nn.Module,
    anatomy: Anatomy,
    parts: Parts,
    landings: Mapping[str, ResidualTarget],
    task: Task,
    numbers: Sequence[int],
    layer: nn.Module | None = None,
) -> dict[str, np.ndarray]:
    """For each part, sums over positions of 1 - cosine and how many these are: (examples, blocks) each.

    `layer` is the one that runs, where the others are not run.
    """
    size, batch = len(numbers), to_device(task.collate(numbers), device_of(root))
    out = {f"{kind}.{p.name}": np.zeros((size, _blocks(p))) for p in parts for kind in ("turned", "positions")}
    with ExitStack() as stack:
        for part in parts:
            real = partial(real_positions, batch, in_decoder(root, anatomy, part))

            def add(before: Tensor, after: Tensor, place: int = 0, name: str = part.name, real: Any = real) -> None:
                # half the squared distance of unit vectors is 1 - their cosine, and exact also where they are nearly the same
                one, other = (normalize(x.float(), dim=-1) for x in (before, after))
                turned = (one - other).square().sum(-1)
                mask = real(after, size)
                turned = torch.where(mask, turned.reshape(size, -1) / 2, 0)
                out[f"turned.{name}"][:, place] += turned.sum(1).double().cpu().numpy()
                out[f"positions.{name}"][:, place] += mask.sum(1).cpu().numpy()

            for handle in _listen(part, landings, add, layer):
                stack.callback(handle.remove)
        with suppress(Enough):
            task.loss(root, fresh(batch))
    for part in parts:
        if layer is None and not out[f"positions.{part.name}"].any(0).all():
            raise _does_not_run(part, task)
        finite_rows(out[f"turned.{part.name}"], f"What {part.name} makes of the residual stream", task, numbers)
    return out


def _listen(
    part: Site | Stack, landings: Mapping[str, ResidualTarget], add: Any, layer: nn.Module | None
) -> Iterator[Any]:
    """Hooks that hand on the residual stream before and after each block of a part, or after the one layer that runs."""
    if isinstance(part, Stack):
        for place, block in enumerate(part.blocks):
            if layer is not None and block is not layer:
                continue

            def through(module: nn.Module, args: Any, kwargs: Any, output: Any, place: int = place) -> None:
                before, after = next(tensors((args, kwargs))), next(tensors(output))
                if before.shape != after.shape:
                    raise Refused(
                        f"A layer of {part.name} ({type(module).__name__}) does not hand on what it takes in: what it does to "
                        "the residual stream cannot be measured; score its heads."
                    )
                add(before.to(after.device), after, place)

            yield block.register_forward_hook(through, with_kwargs=True)
        return
    written: list[Tensor] = []  # what the site wrote and is not added yet

    def wrote(_: nn.Module, __: Any, output: Tensor) -> None:
        written[:] = [rows_of(part, output.detach()).clone()]  # code may add to it in place

    def landed(stream: Tensor) -> None:
        if written and rows_of(part, stream).shape == written[0].shape:
            after = rows_of(part, stream.detach())
            add(after.float() - written.pop().to(after.device).float(), after)

    yield part.writer.register_forward_hook(wrote)
    yield landings[part.name].hook(landed)
