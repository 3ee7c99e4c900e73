"""The state of a training in one file, so that a killed one goes on where it was: safetensors, and no pickle.

In it are the tensors that training changes (each once, however many names it has), the moments of the optimiser, the
state of the gates, and as JSON how far the training was and what it was asked, so that no other one is continued by it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import BadRun
from ..hashing import canonical, fingerprint, plain_json
from ..runs import write_whole

FORMAT = 1
SAMPLE = 4096  # numbers of a tensor that its fingerprint looks at
Question = Mapping[str, Any]


class TrainableGates(Protocol):
    """Gates that learn while a model trains, as the loop sees them: `learned_gates.gates.Gates` are such."""

    steps: int | None

    @property
    def weights_frozen(self) -> bool:
        """Whether the weights of the model stay as they are."""

    def step(self) -> None:
        """One step of their own optimiser, after that of the model."""

    def expected(self) -> float:
        """How many of them are open, on average."""

    def question(self) -> dict[str, Any]:
        """What makes them what they are, for a run folder."""

    def state(self) -> dict[str, Tensor]:
        """All that is needed to go on."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""


def changing(root: nn.Module) -> dict[str, Tensor]:
    """The tensors that training changes, by name: parameters that need a gradient, and buffers that are saved."""
    saved_state = root.state_dict(keep_vars=True)
    buffers = {name: tensor for name, tensor in root.named_buffers() if name in saved_state}
    return {name: tensor for name, tensor in root.named_parameters() if tensor.requires_grad} | buffers


def sampled(named: Iterable[tuple[str, Tensor]]) -> str:
    """A fingerprint of tensors that are not in the file: of their names and shapes, and of some of their numbers."""
    digest = hashlib.sha256()
    for name, tensor in named:
        digest.update(f"\n{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        some = tensor.detach().flatten()[:: max(1, tensor.numel() // SAMPLE)]
        digest.update(some.cpu().double().numpy().tobytes())
    return digest.hexdigest()[:32]


def question(
    root: nn.Module, recipe: Mapping[str, Any], data: str, gates: TrainableGates | None, teacher: nn.Module | None
) -> Question:
    """What tells one training from another, as plain JSON."""
    shapes = [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in changing(root).items()]
    frozen = [(name, tensor) for name, tensor in root.named_parameters() if not tensor.requires_grad]
    identity = {**recipe, "data": data, "the model's shape": fingerprint(shapes), "what is frozen": sampled(frozen)}
    identity["what it began with"] = sampled(changing(root).items())
    if gates is not None:
        identity |= gates.question()
    if teacher is not None:
        identity["teacher"] = sampled(teacher.named_parameters())
    return plain_json(identity, "What a training is asked")


def write(
    path: Path,
    identity: Question,
    notes: Mapping[str, Any],
    root: nn.Module,
    optimizer: Optimizer | None,
    gates: TrainableGates | None,
) -> None:
    """Replace the file by the state as it is now; the file is there whole at every moment. `notes` are plain JSON."""
    from safetensors.torch import save

    tensors = dict(_state(root, optimizer, gates))
    about = {"format": FORMAT, "asked": identity, "notes": plain_json(notes, "The notes of a training")}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(path, save(plain, metadata={"headcount": json.dumps(about)}))


def read(
    path: Path, identity: Question, root: nn.Module, optimizer: Optimizer | None, gates: TrainableGates | None
) -> dict[str, Any] | None:
    """Put the state of the file back, and return its notes; None if there is no file.

    Refused in one sentence, with nothing changed: a damaged file, and one of another training.
    """
    if not path.exists():
        return None
    about, tensors = _content(path)
    for name in {**about["asked"], **identity}:
        saved_value, current_value = (
            canonical(source.get(name, "not given"))[:60] for source in (about["asked"], identity)
        )
        if saved_value != current_value:
            hashed = len(saved_value) == len(current_value) == 34 and not {*saved_value[1:-1], *current_value[1:-1]} - {
                *"0123456789abcdef"
            }
            difference = (
                f"{name} is not the same" if hashed else f"{name} is {saved_value} there and {current_value} here"
            )
            raise BadRun(
                f"{path} belongs to another training: {difference}; delete it to start anew, or choose another run folder."
            )
    mine = changing(root)
    model = {name: tensors.get(f"model/{name}") for name in mine}
    if any(tensor is None or tensor.shape != mine[name].shape for name, tensor in model.items()):
        raise BadRun(f"{path} is damaged: it lacks tensors of the model; delete it to start anew.")
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(model[name])
    if optimizer is not None:
        _load_moments(optimizer, mine, tensors)
    if gates is not None:
        gates.load_state(
            {name.removeprefix("gates/"): tensor for name, tensor in tensors.items() if name.startswith("gates/")}
        )
    return about["notes"]


def _content(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as stored:
            about = json.loads(stored.metadata()["headcount"])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (it is no dict)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise BadRun(f"{path} is damaged ({why}); delete it to start the training anew.") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise BadRun(f"{path} was written by another version of headcount; delete it to start the training anew.")
    return about, tensors


def _state(root: nn.Module, optimizer: Optimizer | None, gates: TrainableGates | None) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in changing(root).items():
        yield f"model/{name}", tensor
        for key, value in optimizer.state.get(tensor, {}).items() if optimizer is not None else ():
            yield f"optimizer/{name}/{key}", value
    for name, tensor in gates.state().items() if gates is not None else ():
        yield f"gates/{name}", tensor


def _load_moments(optimizer: Optimizer, mine: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """The moments and step counts, where the optimiser would have made them itself."""
    on_device = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    places: dict[str, dict[str, Tensor]] = {name: {} for name in mine}
    for name, tensor in tensors.items():
        kind, _, location = name.partition("/")
        if kind == "optimizer":
            owner, _, key = location.rpartition("/")
            device = mine[owner].device if key != "step" or on_device else tensor.device
            places[owner][key] = tensor.to(device)
    for name, moments in places.items():
        if moments:
            optimizer.state[mine[name]] = moments
