"""The run folder of a command that several processes work on together: the first one writes, all go on with what it has.

Every process of a tensor-parallel model has to run every pass, so all of them must agree on which pieces are done already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from ...errors import HeadcountError
from ...model.discovery import unwrap
from ...model.distributed.tensor_parallel import is_tensor_parallel
from ...runs import Arrays, Run

Told = TypeVar("Told")


@dataclass(frozen=True, eq=False)
class SharedRun(Run):
    """The run folder of the first process, asked there and told to the others."""

    run: Run | None = None  # open in the first process

    @property
    def own(self) -> Run:
        """The run folder, in the first process."""
        assert self.run is not None
        return self.run

    def piece(self, name: str, compute: Callable[[], Mapping[str, Any]]) -> Arrays:
        """The arrays of the piece: all processes compute it, or none, and all go on with those of the first."""
        if not self.done(name):
            arrays = compute()
            from_the_first(lambda: self.own.write(name, arrays))
        return from_the_first(lambda: self.own.read(name))

    def done(self, name: str) -> bool:
        """Whether the piece is finished."""
        return from_the_first(lambda: self.own.done(name))

    def read(self, name: str) -> Arrays:
        """The arrays of a finished piece."""
        return from_the_first(lambda: self.own.read(name))

    def read_json(self, name: str) -> Any:
        """The data of a document."""
        return from_the_first(lambda: self.own.read_json(name))

    def write(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Write a piece."""
        from_the_first(lambda: self.own.write(name, arrays))

    def write_json(self, name: str, data: Any, *, replace: bool = False) -> None:
        """Write a document."""
        from_the_first(lambda: self.own.write_json(name, data, replace=replace))

    def finish(self) -> None:
        """Note that the run came to its end."""
        from_the_first(lambda: self.own.finish())

    def discard_if_empty(self) -> None:
        """Take the folder away again if nothing has been written to it."""
        if is_first():  # after an error, where the others need not come
            self.own.discard_if_empty()


@contextmanager
def run_of(model: nn.Module, folder: Path, question: Mapping[str, Any]) -> Iterator[Run]:
    """Within the block, the run folder of a command on this model; of a tensor-parallel one it is that of the first process."""
    if not isinstance(model, nn.Module) or not is_tensor_parallel(unwrap(model)):
        with Run.open(folder, question) as run:
            yield run
        return
    with ExitStack() as stack:
        mine: list[Run] = []

        def opened() -> dict[str, Any]:
            mine.append(stack.enter_context(Run.open(folder, question)))
            return {name: value for name, value in vars(mine[0]).items() if name != "lock"}

        fields = from_the_first(opened)
        own = mine[0] if mine else None
        yield SharedRun(**fields, lock=None if own is None else own.lock, run=own)  # type: ignore[arg-type]


def has_document(run: Run, name: str) -> bool:
    """Whether a document is in the run folder, as the first process sees it."""

    def there() -> bool:
        return (run.folder / f"{name}.json").is_file()

    return from_the_first(there) if isinstance(run, SharedRun) else there()


def is_first() -> bool:
    """Whether this is the first of the processes that work together."""
    return torch.distributed.get_rank() == 0


def from_the_first(compute: Callable[[], Told]) -> Told:
    """What this is in the first process, or what keeps it from being done there, in all of them."""
    told: list[Any] = [None, None]
    if is_first():
        try:
            told[0] = compute()
        except HeadcountError as error:
            told[1] = error
    torch.distributed.broadcast_object_list(told, src=0)
    if told[1] is not None:
        raise told[1]
    value: Told = told[0]
    return value
