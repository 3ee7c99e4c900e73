"""A model run one layer at a time: all examples pass through a layer before the next one is looked at.

Of a model whose weights are in files (`load(..., lazy=True)`) only one layer is in memory then, and each layer is read once.
What comes between the layers is left to the model's own code: for every layer it runs once more from the start, with the layers
that are done answering with what they gave before, so that masks, positions and whatever else a layer is given are its own.
What the layers gave is kept on the CPU or, with a run, in files of its folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import runs
from ..errors import OutOfMemory, Refused
from ..model.anatomy import Anatomy, Site, Stack
from ..model.loading.lazy_tensors import kept
from ..model.tensor_trees import mapped, tensors
from ..progress import Bar
from .evaluator import device_of, fresh, is_out_of_memory, to_device
from .replay import answering
from .residual_stream import Enough

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

Arrays = dict[str, np.ndarray]
Look = Callable[[nn.Module, Sequence[int]], Arrays]  # a layer and the numbers of a batch: arrays with a row per example
FOLDER = "layer-outputs"  # in a run folder; empty at the end
ADVICE = "load the model whole (without lazy, or without --stream)"


@dataclass(frozen=True, eq=False)
class Streamed:
    """What is run layer by layer: a model on batches of a task. `probe` is one more batch, of which no arrays are kept."""

    root: nn.Module
    anatomy: Anatomy
    task: Task
    batches: Sequence[Sequence[int]]
    probe: Sequence[int] = ()

    @property
    def passes(self) -> list[Sequence[int]]:
        """Every batch that goes through the layers, in each of them the probe first."""
        return [*([self.probe] if self.probe else []), *self.batches]

    def run(self, numbers: Sequence[int]) -> None:
        """One pass of a batch, as far as the hooks and answers that are in place let it go."""
        batch = to_device(self.task.collate(numbers), device_of(self.root))
        with suppress(Enough):
            self.task.loss(self.root, fresh(batch))


def layer_by_layer(
    streamed: Streamed, look: Look, *, per_row: int = 1, run: Run | None = None, name: str = "score"
) -> Arrays:
    """The arrays that `look` gives for each layer and batch: a row per `per_row` examples, summed; layers are added up.

    `look` may run passes of the batch, which end after the layer; the first is that of the model as it is. With a run, each
    layer is a piece of it, and a run that was killed goes on after the last layer that it finished.
    """
    work = _Work(streamed, _layers(streamed.anatomy), _Outputs(run, name))
    total: Arrays = {}
    inside = {id(weight) for layer in work.layers for weight in _weights(layer)}
    rest = [weight for weight in _weights(streamed.root) if id(weight) not in inside]
    with kept(rest), Bar("layers", total=len(work.layers)) as bar:
        for number in range(len(work.layers)):
            piece = f"{name}-layer-{number:05d}"
            if run is None or not run.done(piece) or not work.resumed(run, name, number):
                layer = work.next_layer()
                if layer is None:
                    break  # the others do not run on these examples
                with kept(_weights(layer)):
                    found = work.through(layer, look, per_row)
                arrays = {**found, "layer": np.array(work.layers.index(layer))}
                work.done.append(layer)
                work.check_end()
                if run is not None and not run.done(piece):
                    run.write(piece, arrays)
                work.outputs.forget_all_but(work.needed())
            arrays = arrays if run is None else run.read(piece)
            for key, values in arrays.items():
                if key != "layer":
                    total[key] = total[key] + values if key in total else values
            bar.advance()
    work.outputs.forget_all_but(set())
    return total


def layer_of(layers: Sequence[nn.Module], part: Site | Stack) -> nn.Module | None:
    """The layer that a site is in; None where it is in none."""
    module = part.writer if isinstance(part, Site) else part.container
    return next((layer for layer in layers if any(module is one for one in layer.modules())), None)


def check_inside(anatomy: Anatomy, parts: Sequence[Site | Stack]) -> None:
    """Refuse parts that are in no layer of a stack, and models whose layers look at each other."""
    layers = _layers(anatomy)
    for part in parts:
        own = isinstance(part, Stack) and all(any(block is layer for layer in layers) for block in part.blocks)
        if not own and layer_of(layers, part) is None:
            raise Refused(f"{part.name} is in no list of layers that run one after the other; {ADVICE}.")
    for site in anatomy.heads:
        if getattr(getattr(site.module, "config", None), "num_kv_shared_layers", 0):
            raise Refused(f"{anatomy.model_name} has layers that take keys and values from earlier ones; {ADVICE}.")


def _layers(anatomy: Anatomy) -> tuple[nn.Module, ...]:
    """All layers that are not inside others."""
    blocks = [block for stack in anatomy.stacks for block in stack.blocks]
    nested = {id(inner) for block in blocks for inner in block.modules() if inner is not block}
    return tuple({id(block): block for block in blocks if id(block) not in nested}.values())


def _weights(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


# -- one layer after the other -------------------------------------------------------------------------------------------


@dataclass
class _Work:
    """Where one call of `layer_by_layer` is: the layers that are done, in the order in which they ran."""

    streamed: Streamed
    layers: tuple[nn.Module, ...]
    outputs: _Outputs
    done: list[nn.Module] = field(default_factory=list)

    def needed(self) -> set[int]:
        """The numbers of the layers whose outputs are still read: the last one of each stack."""
        return {self.done.index(self._latest(layer)) for layer in self.done}

    def _latest(self, layer: nn.Module) -> nn.Module:
        """The last layer that is done of the stack that a layer is in."""
        stack = next(stack for stack in self.streamed.anatomy.stacks if any(layer is block for block in stack.blocks))
        return [one for one in self.done if any(one is block for block in stack.blocks)][-1]

    def resumed(self, run: Run, name: str, number: int) -> bool:
        """Whether a layer that an earlier process finished need not run again; notes that it is done."""
        if number != len(self.done):
            return False  # an earlier one had to run again, so that this one has nothing to start from
        finished = 0
        while finished < len(self.layers) and run.done(f"{name}-layer-{finished:05d}"):
            finished += 1
        order = [self.layers[int(run.read(f"{name}-layer-{n:05d}")["layer"])] for n in range(finished)]
        if finished < len(self.layers):
            ahead = _Work(self.streamed, self.layers, self.outputs, order)
            passes = range(len(self.streamed.passes))
            if not all(self.outputs.has(n, batch) for n in ahead.needed() for batch in passes):
                return False
        self.done.append(order[number])
        return True

    def next_layer(self) -> nn.Module | None:
        """The layer that runs after those that are done; None where the model comes to its end without another.

        Refused where it is given something else if the layers before the last one had given something else: then it cannot be
        run from what is kept.
        """
        first, given = self._next(disturbed=False)
        if first is not None and len(self.done) > 1:
            again, other = self._next(disturbed=True)
            if again is not first or not _alike(given, other):
                raise Refused(
                    f"{type(first).__name__} is given what layers before the last one made, so that layers cannot be run one "
                    f"at a time; {ADVICE}."
                )
        return first

    def check_end(self) -> None:
        """Refused where all layers are done and one of them would run again.

        Losses of our own call the model once, so that its output embeddings, which nobody asks about, need not be read.
        """
        if len(self.done) == len(self.layers):
            root: Any = self.streamed.root
            head = root.get_output_embeddings() if hasattr(root, "get_output_embeddings") else None
            ends = {head: _stop} if head is not None and self.streamed.task.goal is not None else {}
            with answering(ends):
                self._next(disturbed=False)

    def _next(self, disturbed: bool) -> tuple[nn.Module | None, list[Tensor]]:
        """The next layer and the tensors that it is given.

        `disturbed`: all layers but the last one that is done of each stack answer something else than they gave.
        """
        found: list[tuple[nn.Module, list[Tensor]]] = []
        calls: list[nn.Module] = []

        def counted(layer: nn.Module, answer: Callable[..., Any]) -> Callable[..., Any]:
            def answered(*_: Any, **__: Any) -> Any:
                if layer in calls:
                    raise Refused(
                        f"{type(layer).__name__} runs more than once in a pass, so that layers cannot be run one at a time; "
                        f"{ADVICE}."
                    )
                calls.append(layer)
                output = answer()
                if disturbed and self._latest(layer) is not layer:
                    return mapped(output, lambda t: t + 1 if t.is_floating_point() else t)
                return output

            return answered

        def seen(layer: nn.Module) -> Callable[..., Any]:
            def answered(*args: Any, **kwargs: Any) -> Any:
                found.append((layer, [t.detach().clone() for t in tensors((args, kwargs))]))
                raise Enough

            return answered

        done = {layer: counted(layer, answer) for layer, answer in self._answers(0).items()}
        with answering({**done, **{layer: seen(layer) for layer in self.layers if layer not in self.done}}):
            self.streamed.run(self.streamed.passes[0])
        return found[0] if found else (None, [])

    def _answers(self, batch: int) -> dict[nn.Module, Callable[..., Any]]:
        """What each layer that is done answers in a pass of a batch: what the last one of its stack gave."""
        given = {n: self.outputs.get(n, batch, device_of(self.streamed.root)) for n in self.needed()}

        def answer(output: Any) -> Callable[..., Any]:
            return lambda *_, **__: mapped(output, torch.clone)  # the model may write into it

        return {layer: answer(given[self.done.index(self._latest(layer))]) for layer in self.done}

    def through(self, layer: nn.Module, look: Look, per_row: int) -> Arrays:
        """All batches through one layer: what was looked at, in rows; what it gave is kept."""
        rows = -(-self.streamed.task.size // per_row)
        out: Arrays = {}
        for batch, numbers in enumerate(self.streamed.passes):
            try:
                with self._alone(layer, batch):
                    arrays = look(layer, numbers)
                    if not self.outputs.has(len(self.done), batch):
                        self.streamed.run(numbers)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                raise OutOfMemory(
                    f"There is no memory for a batch of {len(numbers)} and one layer: use a smaller batch size, a shorter "
                    "max_length or a smaller dtype."
                ) from None
            if not self.outputs.has(len(self.done), batch):
                raise Refused(f"Some examples do not go through every layer that the first ones go through; {ADVICE}.")
            for key, values in arrays.items():
                into = out.setdefault(key, np.zeros((rows, values.shape[1])))
                np.add.at(into, [number // per_row for number in numbers], values)
        return out

    @contextmanager
    def _alone(self, layer: nn.Module, batch: int) -> Iterator[None]:
        """Within the block, a pass of a batch runs this layer and none of the others, and ends after it."""
        own, number = layer.forward, len(self.done)
        self.outputs.drop(number, batch)  # of a run that was killed within this layer

        def end(*_: Any) -> None:
            raise Enough

        def forward(*args: Any, **kwargs: Any) -> Any:
            hooks: Any = layer._forward_hooks
            hooks.move_to_end(handle.id)  # who looks at the output does so first
            held = sum(1 for _ in tensors((args, kwargs)))
            output = own(*args, **kwargs)
            if sum(1 for _ in tensors((args, kwargs))) != held:
                raise Refused(
                    f"{type(layer).__name__} hands on more than what it gives out, in what it was given; {ADVICE}."
                )
            if not self.outputs.has(number, batch):
                self.outputs.put(number, batch, output, type(layer).__name__)
            return output

        # a later layer is called only by code that calls the forward of this one, past its hooks
        rest = {one: _stop for one in self.layers if one not in self.done}
        handle = layer.register_forward_hook(end)
        try:
            with answering({**self._answers(batch), **rest, layer: forward}):
                yield
        finally:
            handle.remove()


def _stop(*_: Any, **__: Any) -> Any:
    raise Enough


def _alike(given: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether two lists hold the same tensors, but for rounding."""
    if [t.shape for t in given] != [t.shape for t in other]:
        return False
    return all(
        torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-3, equal_nan=True)
        for a, b in zip(given, other, strict=True)
    )


# -- what layers gave ----------------------------------------------------------------------------------------------------


@dataclass
class _Outputs:
    """What layers gave for each batch, by the numbers of both: in memory, or in a run folder."""

    run: Run | None
    name: str
    held: dict[tuple[int, int], tuple[str, dict[str, Tensor]]] = field(default_factory=dict)

    def put(self, layer: int, batch: int, output: Any, kind: str) -> None:
        """Keep an output; it is whole or not there."""
        parts: list[Tensor] = []
        shape = json.dumps(_shape(output, parts, kind))
        named = {str(n): t.detach().to("cpu", copy=True).contiguous() for n, t in enumerate(parts)}
        if self.run is None:
            self.held[layer, batch] = shape, named
            return
        from safetensors.torch import save

        runs.write_whole(self._file(layer, batch), save(named, metadata={"shape": shape}))

    def get(self, layer: int, batch: int, device: torch.device) -> Any:
        """An output as it was given, on the device."""
        if self.run is None:
            shape, named = self.held[layer, batch]
        else:
            from safetensors import safe_open

            with safe_open(self._file(layer, batch), framework="pt") as file:
                shape, named = file.metadata()["shape"], {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return _built(json.loads(shape), {key: t.to(device) for key, t in named.items()})

    def has(self, layer: int, batch: int) -> bool:
        """Whether an output is kept."""
        return (layer, batch) in self.held if self.run is None else self._file(layer, batch).is_file()

    def drop(self, layer: int, batch: int) -> None:
        """Forget one output, if it is there."""
        self.held.pop((layer, batch), None)
        if self.run is not None:
            self._file(layer, batch).unlink(missing_ok=True)

    def forget_all_but(self, layers: set[int]) -> None:
        """Forget the outputs of all other layers."""
        self.held = {key: value for key, value in self.held.items() if key[0] in layers}
        if self.run is None or not (folder := self.run.folder / FOLDER).is_dir():
            return
        for path in folder.glob(f"{self.name}-*.safetensors"):
            if int(path.stem.split("-")[-2]) not in layers:
                path.unlink()
        with suppress(OSError):  # others are in it
            folder.rmdir()

    def _file(self, layer: int, batch: int) -> Path:
        assert self.run is not None
        return self.run.folder / FOLDER / f"{self.name}-{layer:05d}-{batch:06d}.safetensors"


def _shape(value: Any, parts: list[Tensor], kind: str) -> Any:
    """A nest as JSON, with the numbers of its tensors in their places."""
    if isinstance(value, Tensor):
        parts.append(value)
        return {"tensor": len(parts) - 1}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_shape(part, parts, kind) for part in value]}
    if isinstance(value, Mapping) and type(value) is dict:
        return {"dict": {str(key): _shape(part, parts, kind) for key, part in value.items()}}
    if value is None or isinstance(value, bool | int | float | str):
        return {"plain": value}
    raise Refused(
        f"{kind} gives out a {type(value).__name__}, which cannot be kept until the next layer is read; {ADVICE}."
    )


def _built(shape: Any, named: Mapping[str, Tensor]) -> Any:
    ((kind, content),) = shape.items()
    if kind == "tensor":
        return named[str(content)]
    if kind == "dict":
        return {key: _built(part, named) for key, part in content.items()}
    if kind == "plain":
        return content
    parts = [_built(part, named) for part in content]
    return tuple(parts) if kind == "tuple" else parts
