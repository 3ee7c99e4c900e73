"""Gates that learn inside the user's own `transformers.Trainer`: one step of theirs after each of its optimiser's.

What the gates know goes into Trainer's own record of a checkpoint, `trainer_state.json`, and nowhere else: a checkpoint can
be moved and resumed from, and its weights, optimiser and schedule are what they would be without gates.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import BadCheckpoint, Refused
from .gates import Gates

OPEN = "open_gates"  # in the logs: how many units are expected to be open


def trainer_callback(gates: Gates) -> Any:
    """A callback that lets the gates of a `learning` block learn with a Trainer: `Trainer(..., callbacks=[it])`.

    Call `trainer.train()` inside the block. The gates take one step per optimiser step, the number of steps from the
    Trainer where they have none, and their state from the checkpoint when it resumes. Logs get `open_gates`.
    """
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class HeadcountGates(TrainerCallback, ExportableState):  # type: ignore[valid-type, misc]
        frozen: tuple[nn.Parameter, ...] = ()

        def on_train_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **extra: Any) -> None:
            _begin(gates, args, state)
            if gates.weights_frozen:
                _check_frozen(args, model)
                self.frozen = tuple(parameter for parameter in model.parameters() if parameter.requires_grad)
                for parameter in self.frozen:
                    parameter.requires_grad_(False)

        def on_optimizer_step(self, *extra: Any, **named: Any) -> None:
            gates.step()

        def on_log(self, args: Any, state: Any, control: Any, *, logs: dict[str, Any], **extra: Any) -> None:
            if "loss" in logs:
                logs[OPEN] = state.log_history[-1][OPEN] = round(gates.expected(), 4)  # Trainer has filed its own copy

        def on_train_end(self, args: Any, state: Any, *extra: Any, **named: Any) -> None:
            for parameter in self.frozen:
                parameter.requires_grad_(True)
            if args.load_best_model_at_end and state.best_model_checkpoint is not None:
                file = Path(state.best_model_checkpoint) / "trainer_state.json"
                best = type(state).load_from_json(str(file))
                gates.load_state(_unpacked(best, str(file)))  # the weights are its, so the gates must be

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"packed": _packed(gates)}}

    return HeadcountGates()


def _begin(gates: Gates, args: Any, state: Any) -> None:
    """Bring the gates to where the Trainer is: at its first step, or where the checkpoint was written."""
    if args.fp16:
        raise Refused("With fp16 the loss is scaled and steps are skipped, which gates do not follow; use bf16=True.")
    if args.auto_find_batch_size:
        raise Refused("With auto_find_batch_size the training may begin again halfway; set the batch size yourself.")
    if gates.steps is None:
        gates.steps = state.max_steps
    if gates.steps > state.max_steps or (gates.weights_frozen and gates.steps < state.max_steps):
        raise Refused(
            f"The gates learn for {gates.steps} steps and the Trainer trains for {state.max_steps}; make the two equal, or "
            "leave steps= out to take the Trainer's."
        )
    if state.global_step:
        gates.load_state(_unpacked(state, "the checkpoint"))
    if gates.done != state.global_step:
        raise Refused(
            f"The gates have taken {gates.done} steps and the Trainer begins at {state.global_step}; begin the training anew "
            "in a new block of learning."
        )


def _check_frozen(args: Any, model: nn.Module) -> None:
    if args.gradient_checkpointing and (args.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
        raise Refused(
            "With use_reentrant=True nothing comes back to the gates of a frozen model; checkpoint with use_reentrant=False."
        )
    if args.world_size > 1 and any(parameter.requires_grad for parameter in model.parameters()):
        raise Refused(
            "With several processes a pipelined model is frozen before the Trainer is made, because that wraps it; call "
            "model.requires_grad_(False) first."
        )


def _packed(gates: Gates) -> str:
    from safetensors.torch import save

    state = {name: value.detach().cpu().contiguous() for name, value in gates.state().items()}
    return base64.b64encode(save(state)).decode()


def _unpacked(state: Any, where: str) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    callback_state = (state.stateful_callbacks or {}).get(
        "HeadcountGates"
    )  # filed under the name of the callback's class
    if not isinstance(callback_state, dict):
        raise BadCheckpoint(
            f"There are no gates in {where}: it was written by a training without them; resume from one of this callback's."
        )
    try:
        return load(base64.b64decode(callback_state["attributes"]["packed"], validate=True))
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise BadCheckpoint(
            f"The gates in {where} are damaged ({str(error)[:80]}); resume from another checkpoint."
        ) from None
