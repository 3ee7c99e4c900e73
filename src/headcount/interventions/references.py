"""What parts of a model are given on reference examples: recorded as it is, and summed over positions that are no padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..errors import BadPlan, NotFinite, Refused
from ..evaluation.evaluator import device_of, fresh, in_parts, to_device
from ..hashing import fingerprint
from ..model.anatomy import Anatomy, Site, Stack, Units
from ..model.discovery import find, unwrap
from ..model.equivalence import evaluating
from ..model.gates import column_axis, handed_on
from ..model.matrices import Padded, index_on
from ..model.multihead import opened
from ..model.positions import Examples, Unclear, in_decoder, places, real_positions
from ..model.stand_ins import parts_masked
from ..progress import Bar

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

AT_ONCE = 128  # about so many examples are written together
Parts: TypeAlias = Mapping[str, Site | Stack]
Sums: TypeAlias = dict[tuple[str, str], np.ndarray]  # by what is summed, and the name of the part


@contextmanager
def watching(root: nn.Module, parts: Parts, see: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Within the block, `see(name, x)` for what parts are given: (rows, ..., columns) of writers, contributions of layers."""
    with ExitStack() as stack:
        stack.enter_context(opened(root))
        for name, part in parts.items():
            if isinstance(part, Stack):
                block = part.blocks[part.positions([int(name.rpartition(":")[2])])[0]]

                def contributed(
                    module: nn.Module, args: Any, kwargs: Any, output: Any, name: str = name, part: Stack = part
                ) -> None:
                    before, after = handed_on(part, module, args, kwargs, output)
                    see(name, (after - before).detach())

                handle = block.register_forward_hook(contributed, with_kwargs=True, prepend=True)
            else:

                def given(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                    x = (args[0] if args else next(iter(kwargs.values()))).detach()
                    axis = column_axis(module, x)
                    if isinstance(module, Padded):  # it picks its inputs itself
                        x = x.index_select(axis, index_on(module.places, x.device))
                    see(name, x.movedim(axis, -1).clone())

                handle = part.writer.register_forward_pre_hook(given, with_kwargs=True)
            stack.callback(handle.remove)
        yield


def recorded(root: nn.Module, parts: Parts, run: Callable[[], Any], size: int) -> dict[str, list[Tensor]]:
    """What each part is given in a pass, call by call: (examples, positions, columns)."""
    out: dict[str, list[Tensor]] = {name: [] for name in parts}
    with watching(root, parts, lambda name, x: out[name].append(x.reshape(size, -1, x.shape[-1]))):
        run()
    return out


def activations(model: nn.Module, units: Units, batch: Mapping[str, Any], **options: Any) -> dict[str, Tensor]:
    """What the parts that units belong to are given on a batch: (examples, positions, columns), for `masked(fill=...)`.

    Of an attention or MLP, what its output projection is given: the outputs of its heads side by side, or its neurons. Of a
    layer ("layers:3"), its contribution to the residual stream, output minus input. Padding is there, too.

    Args:
        model: The model; it is as it was afterwards.
        units: Units of the attentions, MLPs and layers to look at, as `masked` takes them.
        batch: What the model takes, by name.
        **options: `specs`, as in `hc.find`.

    Returns:
        A tensor for every attention or MLP by its name, and for every layer by its own.

    Examples:
        >>> model = hc.load("my-model")
        >>> clean, corrupted = (torch.tensor([[2, 9, 8, 3]]), torch.tensor([[2, 9, 7, 3]]))
        >>> fill = hc.interventions.activations(model, "3:7", {"input_ids": corrupted})
        >>> fill["3"].shape
        torch.Size([1, 4, 32])
        >>> with hc.masked(model, "3:7", fill=fill):  # patched from the corrupted text
        ...     logits = model(clean).logits
    """
    root = unwrap(model)
    anatomy = find(root, options.get("specs", ()))
    parts = parts_masked(anatomy, anatomy.plan(units))
    size = next(value.shape[0] for value in batch.values() if isinstance(value, Tensor) and value.dim())
    with evaluating(root), torch.no_grad():
        found = recorded(root, parts, lambda: root(**fresh(dict(batch))), size)
    for name, calls in found.items():
        if len(calls) != 1:
            raise Refused(
                f"{name} runs {len(calls)} times in one pass, so it has no one activation; look at another part."
            )
    return {name: calls[0] for name, calls in found.items()}


@dataclass(eq=False)
class Reference:
    """The examples of a reference set, and what some parts of a model are given on them."""

    root: nn.Module
    anatomy: Anatomy
    parts: Parts
    task: Task
    run: Run | None = None
    name: str = "fill"
    _digests: dict[int, bytes] = field(default_factory=dict)

    def digest(self, number: int) -> bytes:
        """What tells an example from others."""
        if number not in self._digests:
            self._digests[number] = self.task.digest(number)
        return self._digests[number]

    # -- as it is ----------------------------------------------------------------------------------------------------------

    def passed(self, numbers: Sequence[int]) -> tuple[Examples, dict[str, list[Tensor]]]:
        """One ordinary pass over these examples: the batch, and what every part was given."""
        batch = to_device(self.task.collate(numbers), device_of(self.root))
        examples = Examples(self.root, self.anatomy, batch, len(numbers))
        return examples, recorded(self.root, self.parts, lambda: self.task.rows(self.root, fresh(batch)), len(numbers))

    def of_each(self, numbers: Sequence[int]) -> dict[int, dict[str, list[Tensor]]]:
        """For each of these examples what every part was given, call by call, without padding: (positions, columns)."""
        out: dict[int, dict[str, list[Tensor]]] = {}
        groups = [numbers] if self.task.groups is None else self.task.groups
        for group in groups:
            mine = [number for number in group if number in set(numbers)]
            if not mine:
                continue
            for some, (examples, found) in in_parts(self.passed, "reference", self.task, mine):
                for row, number in enumerate(some):
                    out[number] = {
                        name: [x[row][examples.real(self.parts[name], x)[row]] for x in calls]
                        for name, calls in found.items()
                    }
        return out

    @cached_property
    def lengths(self) -> list[tuple[int, ...]]:
        """How many tokens each example has, in the text and in its target."""
        return [lengths_of(self.task.collate([number]), 1)[0] for number in range(self.task.size)]

    # -- summed ------------------------------------------------------------------------------------------------------------

    def summed(self) -> dict[str, dict[str, np.ndarray]]:
        """For each part, by position: how many there were, (positions,), sums and squares of columns, (positions, columns).

        Computed the first time, in an ordinary pass over the whole reference set.
        """
        return self._sums_of_parts

    @cached_property
    def _sums_of_parts(self) -> dict[str, dict[str, np.ndarray]]:
        size = None if all(part.per_example for part in self.parts.values()) else 1
        out: dict[str, dict[str, np.ndarray]] = {name: {} for name in self.parts}
        names, mark = list(self.parts), fingerprint(list(self.parts))[:8]
        with evaluating(self.root), torch.no_grad(), Bar("reference", total=self.task.size) as bar:
            chunks = {
                start: self.task.subset(range(start, min(start + AT_ONCE, self.task.size)))
                for start in range(0, self.task.size, AT_ONCE)
            }

            def compute(some: Task) -> dict[str, np.ndarray]:
                found = self._summed(some, size)
                return {f"{kind}.{names.index(name)}": values for (kind, name), values in found.items()}

            jobs = [(f"{self.name}-{mark}-sums-{start:06d}", partial(compute, some)) for start, some in chunks.items()]
            for some, arrays in zip(chunks.values(), runs.independent(self.run, jobs), strict=True):
                for key, values in arrays.items():
                    kind, _, place = key.partition(".")
                    known = out[names[int(place)]]
                    known[kind] = _added(known[kind], values) if kind in known else values
                bar.advance(some.size)
        return out

    def _summed(self, task: Task, size: int | None) -> Sums:
        """The sums over some examples."""
        out: Sums = {}
        for numbers in task.batches(size):
            for part, found in in_parts(lambda some: self._sums(task, some), "reference", task, numbers):
                bad = next((name for (_, name), values in found.items() if not np.isfinite(values).all()), None)
                if bad is not None:
                    raise NotFinite(
                        f"What {bad} writes from is not finite for {task.describe(part[0])} or another example "
                        "of its batch: look at them, or use a wider dtype."
                    )
                for key, values in found.items():
                    out[key] = _added(out[key], values) if key in out else values
        return out

    def _sums(self, task: Task, numbers: Sequence[int]) -> Sums:
        """The sums over a batch, example by example where padding cannot be told in it."""
        try:
            return self._one_pass(task, numbers)
        except Unclear as unclear:
            if len(numbers) == 1:
                raise Refused(str(unclear)) from None
        out: Sums = {}
        for number in numbers:
            for key, values in self._one_pass(task, [number]).items():
                out[key] = _added(out[key], values) if key in out else values
        return out

    def _one_pass(self, task: Task, numbers: Sequence[int]) -> Sums:
        """Sums over one batch by position."""
        device, size = device_of(self.root), len(numbers)
        batch = to_device(task.collate(numbers), device)
        wide = torch.float32 if device.type == "mps" else torch.float64
        out: Sums = {}

        def see(name: str, x: Tensor) -> None:
            part = self.parts[name]
            real = real_positions(batch, in_decoder(self.root, self.anatomy, part), x, size)
            x, place = x.reshape(size, -1, x.shape[-1])[real].to(wide), places(real)[real]  # (positions, columns)
            table = torch.zeros(int(place.max()) + 1 if len(place) else 0, x.shape[-1], dtype=wide, device=x.device)
            count = torch.zeros(len(table), dtype=wide, device=x.device)
            found = {
                "count": count.index_add(0, place, torch.ones_like(place, dtype=wide)),
                "sum": table.index_add(0, place, x),
                "square": table.index_add(0, place, x.square()),
            }
            for kind, values in found.items():
                array = values.double().cpu().numpy()
                out[kind, name] = _added(out[kind, name], array) if (kind, name) in out else array

        with watching(self.root, self.parts, see):
            task.loss(self.root, fresh(batch))
        return out

    def _of(self, name: str) -> dict[str, np.ndarray]:
        found = self.summed()[name]
        if not found or not found["count"].sum():
            raise Refused(
                f"{name} does not run on {self.task.name}, so it has no mean there; take reference data that it sees."
            )
        return found

    def mean(self, name: str) -> Tensor:
        """The mean over all positions of what a part is given: (columns,)."""
        found = self._of(name)
        return torch.from_numpy(found["sum"].sum(0) / found["count"].sum())

    def deviation(self, name: str) -> Tensor:
        """The standard deviation over all positions of what a part is given: (columns,)."""
        found = self._of(name)
        mean, count = self.mean(name).numpy(), found["count"].sum()
        return torch.from_numpy(np.sqrt(np.maximum(0.0, found["square"].sum(0) / count - mean**2)))

    def by_position(self, name: str) -> Tensor:
        """The mean of what a part is given at each position, counted without padding: (positions, columns)."""
        found = self._of(name)
        return torch.from_numpy(found["sum"] / np.maximum(1.0, found["count"])[:, None])


def means(model: nn.Module, units: Units, reference: Task, **options: Any) -> dict[str, Tensor]:
    """The mean over all positions of what the parts that units belong to are given, without padding: (columns,) each.

    For `masked(fill=...)` and `cut(fill=...)`: masked to its mean, or cut with its mean in the bias, a model computes the same.

    Args:
        model: The model; it is as it was afterwards.
        units: Units, as `masked` takes them.
        reference: The examples that the means are over.
        **options: `specs`, as in `hc.find`; `run`, a run folder.

    Returns:
        Means by the names of attentions and MLPs, and of layers ("layers:3").

    Examples:
        >>> model = hc.load("my-model")
        >>> reference = hc.task("classification", "train.tsv", tokenizer="my-model", limit=64)
        >>> fill = hc.interventions.means(model, "3:7", reference)
        >>> hc.cut(model, "3:7", fill=fill)  # what head 7 writes on average goes into the bias
    """
    root = unwrap(model)
    anatomy = find(root, options.get("specs", ()))
    parts = parts_masked(anatomy, anatomy.plan(units))
    for part in parts.values():
        refuse_uncalled(part)
    found = Reference(root, anatomy, parts, reference, options.get("run"))
    return {name: found.mean(name) for name in parts}


def refuse_uncalled(part: Site | Stack) -> None:
    """`Refused` for an attention that never calls its output projection: nothing can be seen or put there."""
    if isinstance(part, Site) and not part.calls_writer:
        raise Refused(
            f"{part.name} takes the weights of its output projection without calling it, so what it writes from cannot be seen "
            "and nothing can stand in for it: take fill zero."
        )


def lengths_of(batch: Mapping[str, Any], size: int) -> list[tuple[int, ...]]:
    """How many tokens each example of a batch has, in the text and in its target, as far as the batch says."""
    mask, ids, labels = (batch.get(key) for key in ("attention_mask", "input_ids", "labels"))
    counts: list[list[int]] = [[] for _ in range(size)]
    if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[0] == size:
        found = (mask > 0).sum(1)
    elif isinstance(ids, Tensor) and ids.dim() == 2 and ids.shape[0] == size:
        found = torch.full((size,), ids.shape[1])
    else:
        return [() for _ in range(size)]
    for row, count in zip(counts, found.tolist(), strict=True):
        row.append(count)
    if isinstance(labels, Tensor) and labels.dim() == 2 and labels.shape[0] == size:
        for row, count in zip(counts, (labels != -100).sum(1).tolist(), strict=True):
            row.append(count)
    return [tuple(row) for row in counts]


def _added(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The sum of tables by position, of which one may have more of them."""
    long, short = (one, other) if len(one) >= len(other) else (other, one)
    out = np.array(long)
    out[: len(short)] += short
    return out


def checked_reference(kind: str, reference: Task | None) -> Task:
    """The reference set that a fill needs."""
    if reference is None:
        raise BadPlan(f"fill {kind} comes from a reference set of examples: give reference=, a task.")
    return reference
