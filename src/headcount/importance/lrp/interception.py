"""Models that hand relevance back in the place of gradients: the calls of torch that they make, taken over by rules.

Within `propagating`,

- matrix products and convolutions with constants go by the rule: `Epsilon` or `AlphaBeta`;
- non-linearities that act number by number let relevance through as it is (Ding et al. 2017, Voita et al. 2019);
- attention weights and the divisors of norms are constants (Ali et al. 2022): relevance flows to the values, and none to
  queries and keys; the centring of a norm keeps its gradient;
- a product of two things that both carry relevance gives one half to each;
- views, sums and whatever else is linear keep their gradient, which conserves relevance.

Everything else is refused by name (`check_graph`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from ...errors import Refused
from ...model.tensor_trees import tensors
from .rules import Affine, Book, Epsilon, Ledger, Map, Rule, through


class _Way(TorchFunctionMode):
    """While it is active, calls of torch with something that carries relevance go through the rules."""

    def __init__(self, rule: Rule, ledger: Ledger | None) -> None:
        super().__init__()
        self.rule, self.ledger = rule, ledger

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plain, in_place = _called(getattr(func, "__name__", ""))
        rule = _RULES.get(plain)
        if rule is None or not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors((args, kwargs))):
            return func(*args, **kwargs)
        if not in_place:
            return rule(self, partial(func), *args, **kwargs)
        # the rules keep what they read for the way back
        outside = getattr(Tensor, plain, None) or getattr(torch, plain)
        return args[0].copy_(rule(self, outside, args[0].clone(), *args[1:], **kwargs))

    @property
    def book(self) -> Book | None:
        return None if self.ledger is None else self.ledger.book()

    # the rules below call these

    def affine(self, x: Tensor, full_map: Map, sizes: Callable[[], Map], bias: Any = None) -> Tensor:
        return self.rule.affine(x, Affine(full_map, sizes, bias), self.book)

    def add(self, x: Any, y: Any) -> Tensor:
        like = x if isinstance(x, Tensor) else y
        x, y = (
            t if isinstance(t, Tensor) else torch.as_tensor(t, dtype=like.dtype, device=like.device) for t in (x, y)
        )
        return self.rule.add(x, y, self.book) if x.requires_grad or y.requires_grad else x + y

    def product(self, op: Callable[[Any, Any], Tensor], x: Any, y: Any, bias: Any = None) -> Tensor:
        """op(x, y), linear in both, of which one or both carry relevance."""
        if _carries(x) and _carries(y):
            first, second = self.product(op, x, y.detach(), bias), self.product(op, x.detach(), y, bias)
            return 0.5 * first + 0.5 * second
        if _carries(x):
            return self.affine(x, lambda t: op(t, y), lambda: partial(_with, op, y.detach().abs()), bias)
        if _carries(y):
            return self.affine(y, lambda t: op(x, t), lambda: partial(op, x.detach().abs()), bias)
        return op(x, y) if bias is None else self.add(op(x, y), bias)


@cache
def _called(name: str) -> tuple[str, bool]:
    """What a function or operator of torch is called, without the marks of operators, and whether it works in place."""
    in_place = re.fullmatch(r"__i(\w+)__|(\w*[a-z0-9])_", name)
    return (next(filter(None, in_place.groups())), True) if in_place else (name.strip("_"), False)


def _carries(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _with(op: Callable[[Any, Any], Tensor], second: Tensor, first: Tensor) -> Tensor:
    return op(first, second)


def _linear(way: _Way, f: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return way.product(linear, input, weight, bias)


def _matmul(way: _Way, f: Any, x: Tensor, y: Tensor, **options: Any) -> Tensor:
    return way.product(lambda a, b: f(a, b, **options), x, y)


def _rmatmul(way: _Way, f: Any, x: Tensor, y: Tensor) -> Tensor:
    return way.product(torch.matmul, y, x)


def _added_matmul(
    way: _Way, f: Any, input: Tensor, *factors: Tensor, beta: float = 1.0, alpha: float = 1.0, **named: Tensor
) -> Tensor:
    def op(x: Tensor, y: Tensor) -> Tensor:
        return alpha * torch.matmul(x, y)

    x, y = (*factors, *(named[name] for name in ("mat1", "batch1", "mat2", "batch2") if name in named))
    start = input if beta == 1 else beta * input
    if not (_carries(x) or _carries(y)) or _carries(start):
        return way.add(way.product(op, x, y), start)
    return way.product(op, x, y, start)


def _convolution(
    way: _Way, f: Any, input: Tensor, weight: Tensor, bias: Any = None, *extra_args: Any, **options: Any
) -> Tensor:
    if bias is not None:
        axis = input.dim() - weight.dim() + 1  # (batch, channels, ...), or without a batch
        bias = bias.view(-1, *[1] * (input.dim() - axis - 1))
    return way.product(lambda x, w: f(x, w, None, *extra_args, **options), input, weight, bias)


def _einsum(way: _Way, f: Any, equation: str, *operands: Any) -> Tensor:
    factors: Sequence[Tensor] = operands[0] if len(operands) == 1 and not isinstance(operands[0], Tensor) else operands
    if len(factors) != 2:
        return f(equation, *factors)
    return way.product(lambda x, y: f(equation, x, y), *factors)


def _attention(
    way: _Way,
    f: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    *extra_args: Any,
    **options: Any,
) -> Tensor:
    fixed = query.detach(), key.detach()
    mask = None if attn_mask is None else attn_mask.detach()

    def mix(values: Tensor) -> Tensor:
        return f(*fixed, values, mask, *extra_args, **options)

    return way.affine(value, mix, lambda: mix) if value.requires_grad else mix(value)


def _add(way: _Way, f: Any, x: Any, y: Any, *, alpha: float = 1) -> Tensor:
    return way.add(x, y if alpha == 1 else alpha * y)


def _subtract(way: _Way, f: Any, x: Any, y: Any, *, alpha: float = 1) -> Tensor:
    return x - y if alpha == 1 and _is_mean_of(x, y) else way.add(x, -alpha * y)


def _is_mean_of(x: Any, y: Any) -> bool:
    """Whether y is a mean of x: then x - y is the centring of a layer norm, spelt out."""
    if not (_carries(x) and _carries(y)) or y.grad_fn is None or not y.grad_fn.name().startswith("MeanBackward"):
        return False
    source = y.grad_fn.next_functions[0][0]
    return source is x.grad_fn or getattr(source, "variable", None) is x


def _subtract_from(way: _Way, f: Any, x: Any, y: Any) -> Tensor:
    return way.add(y, -x)


def _multiply(way: _Way, f: Any, x: Any, y: Any) -> Tensor:
    return 0.5 * (x * y.detach()) + 0.5 * (x.detach() * y) if _carries(x) and _carries(y) else x * y


def _divide(way: _Way, f: Any, x: Any, y: Any, **options: Any) -> Tensor:
    return f(x, y.detach() if isinstance(y, Tensor) else y, **options)


def _constant(way: _Way, f: Any, *args: Any, **options: Any) -> Any:
    with torch.no_grad():
        return f(*args, **options)


def _elementwise(way: _Way, f: Any, input: Tensor, *extra_args: Any, **options: Any) -> Tensor:
    options.pop("inplace", None)
    return through(input, lambda x: f(x, *extra_args, **options), way.book)


def _power(way: _Way, f: Any, x: Any, exponent: Any) -> Tensor:
    if _carries(exponent):
        return f(x, exponent)
    # roots and their inverses are divisors of norms
    return _constant(way, f, x, exponent) if float(exponent) < 1 else _elementwise(way, f, x, exponent)


def _gated_half(way: _Way, f: Any, input: Tensor, dim: int = -1) -> Tensor:
    x, gate = input.chunk(2, dim)
    return _multiply(way, None, x, _elementwise(way, torch.sigmoid, gate))


def _norm(way: _Way, x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """x, centred, over its standard deviation, which is a constant."""
    return (x - x.mean(axes, keepdim=True)) * (x.detach().var(axes, correction=0, keepdim=True) + eps).rsqrt()


def _scaled(way: _Way, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else _multiply(way, None, x, weight)
    return x if bias is None else way.add(x, bias)


def _layer_norm(
    way: _Way, f: Any, input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    return _scaled(way, _norm(way, input, axes, eps), weight, bias)


def _rms_norm(
    way: _Way, f: Any, input: Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return _scaled(way, input * (input.detach().square().mean(axes, keepdim=True) + eps).rsqrt(), weight, None)


def _group_norm(
    way: _Way, f: Any, input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    grouped = input.unflatten(1, (num_groups, -1))
    normed = _norm(way, grouped, tuple(range(2, grouped.dim())), eps).flatten(1, 2)
    weight, bias = (t if t is None else t.view(-1, *[1] * (input.dim() - 2)) for t in (weight, bias))
    return _scaled(way, normed, weight, bias)


def _batch_norm(
    way: _Way, f: Any, input: Tensor, mean: Any, var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    if training or mean is None:
        raise Refused("Relevance has no rule for batch norms without running statistics: score this model by taylor.")
    weight, bias, mean, var = (
        t if t is None else t.view(-1, *[1] * (input.dim() - 2)) for t in (weight, bias, mean, var)
    )
    scale = (var + eps).rsqrt() if weight is None else weight * (var + eps).rsqrt()
    return _scaled(way, input, scale, -mean * scale if bias is None else bias - mean * scale)


def _unit_length(
    way: _Way, f: Any, input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> Tensor:
    return input / input.detach().norm(p, dim, keepdim=True).clamp_min(eps)


_ELEMENTWISE = (
    "celu clamp clamp_max clamp_min clip elu erf gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish "
    "prelu relu relu6 rrelu selu sigmoid silu softplus softshrink softsign square tanh tanhshrink threshold"
)
_CONSTANT = (
    "softmax log_softmax softmin gumbel_softmax rsqrt sqrt reciprocal var std var_mean std_mean norm vector_norm"
)
_RULES: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    **dict.fromkeys(["matmul", "mm", "bmm", "mv", "grouped_mm"], _matmul),
    "rmatmul": _rmatmul,
    **dict.fromkeys(["addmm", "baddbmm"], _added_matmul),
    **dict.fromkeys(["conv1d", "conv2d", "conv3d"], _convolution),
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(["add", "radd"], _add),
    **dict.fromkeys(["sub", "subtract"], _subtract),
    "rsub": _subtract_from,
    **dict.fromkeys(["mul", "multiply", "rmul"], _multiply),
    **dict.fromkeys(["div", "divide", "true_divide", "truediv"], _divide),
    **dict.fromkeys(["rdiv", "rtruediv"], _constant),
    "pow": _power,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "normalize": _unit_length,
    "glu": _gated_half,
    **dict.fromkeys(_CONSTANT.split(), _constant),
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
}


# --- the model ------------------------------------------------------------------------------------------------------


@contextmanager
def propagating(root: nn.Module, rule: Rule, ledger: Ledger | None = None) -> Iterator[None]:
    """Within the block forward passes are recorded with this rule; call `backward` after it."""
    way = _Way(rule, ledger)
    with ExitStack() as stack:
        for module in filter(_is_activation, root.modules()):
            saved_inputs: list[Any] = []
            stack.callback(module.register_forward_pre_hook(partial(_apart, saved_inputs)).remove)
            stack.callback(module.register_forward_hook(partial(_joined, way, saved_inputs)).remove)
        stack.enter_context(way)
        yield


def _is_activation(module: nn.Module) -> bool:
    """Whether a module is a non-linearity number by number, in Python perhaps: its constants must not take a share."""
    name = type(module).__name__.lower()
    if next(module.children(), None) is not None or any(weight.dim() > 1 for weight in module.parameters()):
        return False
    listed = type(module).__module__ == "torch.nn.modules.activation" or re.search(
        "elu|silu|swish|mish|tanh|sigmoid|activation", name
    )
    return bool(listed) and not re.search("softm|^glu|gated|multihead", name)


def _apart(saved_inputs: list[Any], module: nn.Module, args: Any) -> Any:
    saved_inputs.append(args[0] if args else None)
    if not args:
        return None
    return (args[0].detach().clone() if getattr(module, "inplace", False) else args[0].detach(), *args[1:])


def _joined(way: _Way, saved_inputs: list[Any], module: nn.Module, _: Any, output: Any) -> Any:
    x = saved_inputs.pop()
    if not torch.is_grad_enabled() or not _carries(x):
        return None
    if not isinstance(output, Tensor) or output.shape != x.shape:
        raise Refused(
            f"{type(module).__name__} is no non-linearity number by number, and relevance has no other rule for it: score "
            "this model by taylor."
        )
    same = output.data_ptr() == x.data_ptr() and not getattr(module, "inplace", False)  # a function that does nothing
    return x if same else through(x, lambda _: output, way.book)


# Nodes of a graph that are linear in all that they read; those below only if they read one thing.
_LINEAR = (
    "AccumulateGrad Add Alias AsStrided Cat Clone ConstantPadNd Copy CopySlices Diagonal Expand Flip Gather Index IndexAdd "
    "IndexCopy IndexPut IndexSelect MaskedFill MaskedScatter MaskedSelect Max Mean Movedim Neg Permute PixelShuffle "
    "ReflectionPad1D ReflectionPad2D Repeat RepeatInterleave ReplicationPad Reshape ReshapeAlias Roll Scatter ScatterAdd Select "
    "SelectScatter Slice SliceScatter Split SplitWithSizes Squeeze Stack Sub Sum T ToCopy Transpose Tril Triu Unbind Unfold "
    "UnsafeSplit UnsafeView Unsqueeze View ViewAs ViewAsReal ViewAsComplex Where AdaptiveAvgPool1D AdaptiveAvgPool2D "
    "MkldnnAdaptiveAvgPool2D AvgPool2D AvgPool3D Col2Im Im2Col MaxPool2DWithIndices UpsampleBicubic2D UpsampleBilinear2D "
    "UpsampleNearest2D UpsampleNearestExact2D UpsampleLinear1D _BySign _SumBySign _Through"
)
_LINEAR_IN_ONE = "Mul Div"
_PRODUCTS = (
    "Addmm Mm Bmm Baddbmm Linear Mv Convolution ConvolutionOverrideable MkldnnConvolution CudnnConvolution GroupedMm "
    "ScaledDotProductFlashAttention ScaledDotProductFlashAttentionForCpu ScaledDotProductEfficientAttention "
    "ScaledDotProductCudnnAttention ScaledDotProductFusedAttentionOverrideable Dot"
)


def check_graph(root: nn.Module, start: Tensor, rule: Rule) -> None:
    """`Refused` if what `start` was computed by holds anything that would not conserve relevance.

    This sees also what no call of torch shows: compiled and scripted functions, kernels, functions with gradients of their own.
    """
    linear_in_one = _LINEAR_IN_ONE.split() + (_PRODUCTS.split() if isinstance(rule, Epsilon) else [])
    linear, visited, waiting = set(_LINEAR.split()), set(), [start.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        below = [following for following, _ in node.next_functions if following is not None]
        name = re.sub(r"(Backwards?)?\d*$", "", node.name().split("::")[-1])
        if name not in linear and not (name in linear_in_one and len(below) == 1):
            raise Refused(
                f"{type(root).__name__} computes something that relevance has no rule for ({name}): score it by taylor or "
                'gradient-activation, or load it with attn_implementation="eager" if that is its attention.'
            )
        waiting += below
