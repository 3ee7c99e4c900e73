"""Models that accelerate has spread over devices (`device_map`): their weights may be on another device, in memory, or on disk.

Its hooks sit in the `forward` of modules, inside of the hooks of torch that gate and watch, and bring weights and inputs
together there. Whoever reads an offloaded weight outside of a pass has to have it brought first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from .tensor_parallel import is_distributed


def is_offloaded(model: nn.Module) -> bool:
    """Whether some weights of a model come to the device only while their module runs."""
    return any(_offloads(module) for module in model.modules())


@contextmanager
def weights_present(*modules: nn.Module) -> Iterator[None]:
    """Within the block, the weights of these modules (not of those inside them) are whole, where the modules run.

    They are brought from where they were offloaded, and put together from the parts of all processes.
    """
    with ExitStack() as stack:
        for module in modules:
            if _offloads(module):
                from accelerate.utils import align_module_device

                stack.enter_context(align_module_device(module))
            for name, parameter in list(module._parameters.items()):
                if parameter is not None and is_distributed(parameter):
                    whole = parameter.detach().full_tensor()  # type: ignore[attr-defined]
                    module._parameters[name] = nn.Parameter(whole, requires_grad=False)
                    stack.callback(module._parameters.__setitem__, name, parameter)
        yield


def _offloads(module: nn.Module) -> bool:
    hook = getattr(module, "_hf_hook", None)
    return any(getattr(one, "offload", False) for one in (hook, *getattr(hook, "hooks", ())))
