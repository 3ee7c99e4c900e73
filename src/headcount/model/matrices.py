"""A matrix seen as (out, in), whatever its storage: Linear, Conv1D, 1x1 convolution, packed in_proj, stacked experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


@dataclass(frozen=True, eq=False)
class Matrix:
    """Where a matrix lives: the module that owns it, the names of its tensors, and which axes are its rows and columns.

    Rows are output features, columns are input features. `owner` is also the module that is called with the input,
    so a forward pre-hook on it sees the columns.
    """

    owner: nn.Module
    weight: str = "weight"
    bias: str | None = "bias"
    row_axis: int = 0
    column_axis: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns): output and input features."""
        sizes = getattr(self.owner, self.weight).shape
        return sizes[self.row_axis], sizes[self.column_axis]

    @property
    def bias_name(self) -> str | None:
        """The name of the bias, or None where this matrix has none."""
        return self.bias if self.bias is not None and getattr(self.owner, self.bias, None) is not None else None

    def parameters_per(self, axis: str) -> int:
        """How many parameters one row (with its share of the bias) or one column holds."""
        weight = getattr(self.owner, self.weight)
        if axis == "column":
            return weight.numel() // max(1, self.shape[1])
        bias = 0 if self.bias_name is None else getattr(self.owner, self.bias_name).numel() // max(1, self.shape[0])
        return weight.numel() // max(1, self.shape[0]) + bias

    def rows(self, index: Tensor) -> dict[str, Tensor]:
        """The tensors of this matrix with only the rows in `index`, in that order, by the names they are stored under."""
        weight = getattr(self.owner, self.weight).detach()
        out = {self.weight: take(weight, index, self.row_axis)}
        if self.bias_name is not None:
            bias = getattr(self.owner, self.bias_name).detach()
            out[self.bias_name] = take(bias, index, bias.dim() - 1)
        return out

    def columns(self, index: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
        """The weight with only the columns in `index`, each multiplied by its entry of `scale` if one is given."""
        weight = take(getattr(self.owner, self.weight).detach(), index, self.column_axis)
        if scale is not None:
            shape = [1] * weight.dim()
            shape[self.column_axis] = -1
            # multiply in float32 so that a gate folded into a half-precision matrix is rounded once, not twice
            weight = (weight.float() * scale.to(weight.device).float().view(shape)).to(weight.dtype)
        return {self.weight: weight}

    def with_numbers(self, tensors: dict[str, Tensor], numbers: Tensor) -> dict[str, Tensor]:
        """These tensors of this matrix with other numbers (rows, columns) in the weight, in its storage and number format."""
        weight = tensors[self.weight]
        values = numbers.to(weight.device, weight.dtype).movedim(0, self.row_axis).reshape(weight.shape)
        return {**tensors, self.weight: values.clone()}


def take(tensor: Tensor, index: Tensor, axis: int) -> Tensor:
    """`index_select` that lets an index made on the CPU choose from a tensor on any device, meta included."""
    if tensor.is_meta:
        sizes = list(tensor.shape)
        sizes[axis] = len(index)
        return torch.empty(sizes, dtype=tensor.dtype, device="meta")
    return tensor.index_select(axis, index.to(tensor.device)).clone()


def matrix(module: nn.Module | None) -> Matrix | None:
    """How to see `module` as a matrix, or None if it is not one that can be sliced row by row."""
    weight = getattr(module, "weight", None)
    if not isinstance(module, nn.Module) or not isinstance(weight, Tensor):
        return None
    if isinstance(module, nn.Embedding) or is_quantised(module):
        return None  # a quantised weight packs several numbers in one: slicing it would cut through them
    if isinstance(module, Bypass | Padded):
        return Matrix(module, row_axis=module.row_axis, column_axis=module.column_axis)
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        plain = module.groups == 1 and all(k == 1 for k in module.kernel_size)
        return Matrix(module) if plain else None
    if weight.dim() == 2 and type(module).__name__ == "Conv1D":
        return Matrix(module, row_axis=1, column_axis=0)
    if weight.dim() == 2 and _is_linear(module):
        return Matrix(module)
    if weight.dim() == 3 and hasattr(module, "num_experts"):
        return Matrix(module, bias=None, row_axis=1, column_axis=2)
    return None


def is_quantised(module: nn.Module) -> bool:
    """Whether a module is a matrix whose weights are integers, eight-bit floats or packed in a way of their own.

    Its scales lie beside the weights, by blocks that slicing would cut through.
    """
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor):
        wrapped = is_traceable_wrapper_subclass(weight) and type(weight).__module__.startswith("torchao")
        return wrapped or not weight.is_floating_point() or weight.element_size() == 1
    return _is_packed(module)


def has_int8_of_torch(root: nn.Module) -> bool:
    """Whether torch quantised some of a model: such modules compute in int8, without gradients, and live in memory only."""
    return any(type(module).__module__.startswith("torch.ao.nn.") for module in root.modules())


def is_matrix(module: nn.Module) -> bool:
    """Whether a module turns vectors into vectors by a matrix, be it one that can be sliced or a quantised one."""
    return isinstance(getattr(module, "weight", None), Tensor) or _is_packed(module)


def _is_packed(module: nn.Module) -> bool:
    """Whether a module says how many features it maps, and holds no weight as a tensor: int8 of torch, GPTQ, AWQ."""
    sizes = (getattr(module, "in_features", None), getattr(module, "out_features", None))
    if not all(type(size) is int for size in sizes) or isinstance(getattr(module, "weight", None), Tensor):
        return False
    return not any(isinstance(getattr(inner, "weight", None), Tensor) for inner in module.modules())


def _is_linear(module: nn.Module) -> bool:
    kind = type(module).__name__
    return isinstance(module, nn.Linear) or (kind.endswith("Linear") and not kind.startswith("Quant"))


def features(module: nn.Module) -> dict[str, int]:
    """The sizes that a matrix module writes down about itself, as they should read for its present weight."""
    weight_matrix = matrix(module)
    if weight_matrix is None:
        return {}
    rows, columns = weight_matrix.shape
    true = {
        "out_features": rows,
        "in_features": columns,
        "nf": rows,
        "nx": columns,
        "out_channels": rows,
        "in_channels": columns,
        "output_size": rows,
        "input_size": columns,
    }
    return {name: size for name, size in true.items() if isinstance(getattr(module, name, None), int)}


class Bypass(nn.Module):
    """What is left of a matrix whose units are all gone: no rows (or no columns), and what masking would have returned.

    As a reader it gives zeros for one phantom unit, so that the code around it runs unchanged and a cache still counts
    positions; as a writer it gives its bias, whatever comes in. Its empty weight keeps its name in the state dict.
    """

    def __init__(self, original: Matrix, tensors: dict[str, Tensor], outputs: int) -> None:
        super().__init__()
        weight = getattr(original.owner, original.weight)
        self.weight = nn.Parameter(tensors[original.weight], requires_grad=weight.requires_grad)
        bias = tensors.get(original.bias or "", getattr(original.owner, original.bias or "", None))
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=weight.requires_grad)
        self.outputs = outputs
        self.row_axis, self.column_axis = original.row_axis, original.column_axis
        self.feature_axis = 1 if isinstance(original.owner, nn.Conv1d | nn.Conv2d) else -1

    def forward(self, x: Tensor, *_: object) -> Tensor:
        """Zeros for the phantom unit, or the bias of the matrix."""
        shape = list(x.shape)
        shape[self.feature_axis] = self.outputs
        dtype, device = self.weight.dtype, x.device.type
        if torch.is_autocast_enabled(device) and dtype != torch.float64:  # as autocast does with a matrix
            dtype = torch.get_autocast_dtype(device)
        zeros = x.new_zeros(shape, dtype=dtype)
        if self.bias is None or not len(self.bias):
            return zeros
        bias = self.bias.to(dtype)
        return zeros + (bias if self.feature_axis == -1 else bias.view(-1, *[1] * (x.dim() - 2)))

    def extra_repr(self) -> str:
        """What printing the model shows."""
        return f"outputs={self.outputs}"


class Padded(nn.Module):
    """A matrix some of whose units are gone while the code around it still counts them.

    As a reader it has fewer rows and fills the places of the missing ones with zeros; as a writer it has fewer columns
    and picks its inputs at the places that are left. `places` are those rows or columns, `of` is how many there were.
    """

    def __init__(
        self, original: Matrix, tensors: dict[str, Tensor], places: tuple[int, ...], of: int, reads: bool
    ) -> None:
        super().__init__()
        weight = getattr(original.owner, original.weight)
        self.weight = nn.Parameter(tensors[original.weight], requires_grad=weight.requires_grad)
        bias = tensors.get(original.bias or "", getattr(original.owner, original.bias or "", None))
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=weight.requires_grad)
        self.places, self.of, self.reads = places, of, reads
        self.row_axis, self.column_axis = original.row_axis, original.column_axis
        self.feature_axis = getattr(
            original.owner, "feature_axis", 1 if isinstance(original.owner, nn.Conv1d | nn.Conv2d) else -1
        )

    def forward(self, x: Tensor) -> Tensor:
        """What the whole matrix would give, if the missing units gave zero."""
        axis = self.feature_axis
        index = index_on(self.places, x.device)
        if not self.reads:
            x = x.index_select(axis, index)
        weight = self.weight if self.row_axis == 0 else self.weight.t()
        if axis == 1:
            convolve = functional.conv1d if weight.dim() == 3 else functional.conv2d
            y = convolve(x, weight, self.bias)
        else:
            y = functional.linear(x, weight, self.bias)
        if not self.reads:
            return y
        shape = list(y.shape)
        shape[axis] = self.of
        return y.new_zeros(shape).index_copy(axis, index, y)

    def extra_repr(self) -> str:
        """What printing the model shows."""
        return f"{len(self.places)} of {self.of} {'rows' if self.reads else 'columns'}"


def index_on(places: tuple[int, ...], device: torch.device) -> Tensor:
    """The places as an index on a device, made once: a copy to a GPU in every forward pass would make it wait."""
    # while torch.export traces, tensors are made up: one that is kept would reach every model that is run later
    make = _index_on.__wrapped__ if torch.compiler.is_exporting() else _index_on
    return make(places, device)


@lru_cache(maxsize=4096)
def _index_on(places: tuple[int, ...], device: torch.device) -> Tensor:
    # made outside inference mode, or a later backward pass could not use it
    with torch.inference_mode(False):
        return torch.tensor(places, dtype=torch.long, device=device)
