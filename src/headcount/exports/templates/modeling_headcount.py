"""Pruned models for transformers without headcount: stock classes, shaped by a table in config.json.

headcount writes this file beside models whose layers have different sizes. Its text is the same in every folder and holds
nothing of the model: what was pruned is data, `headcount_shapes` in config.json. A class that `auto_map` there names,
`modeling_headcount.BertModel` say, is the class of that name in transformers, and nothing else can be named. It is built as
usual, and then the modules in the table get smaller before the weights are loaded:

    {"version": 1, "modules": {PATH IN THE BASE MODEL: {
        "shapes": {"weight": [24, 32]},               parameters that have other sizes, and a bias that the stock matrix lacks
        "numbers": {"out_features": 24},              whole numbers that the module keeps about itself
        "outputs": 8,                                 a matrix with nothing left: it gives its bias, in this many numbers
        "rows": [0, 1, 4], "in_all": 6,               a matrix with some rows left, whose code counts on all: zeros stand in
        "columns": [0, 1, 4],                         a matrix with some columns left that is given all
        "config": {"num_attention_heads": 3},         numbers that the module reads in the config while it runs
        "kv_of": [0, 0, 1],                           the key-value head of each query head, where groups are uneven
        "heads": [0, 2, 3], "of": 4,                  which heads of the original are here
        "slices": [["position_bias", 2, 1]],          arguments (name, position, axis) with a slice for each head of the original
        "bias": true}}}                               whether the position bias that layers hand on has a slice for each, too
"""

from __future__ import annotations

import inspect
from functools import lru_cache, partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

TABLE = "headcount_shapes"
SIGN = "transformers_weights"  # where config.json says to stock classes that they cannot hold this model
KERNEL = "headcount_shapes"
KEYS = {"shapes", "numbers", "outputs", "rows", "columns", "in_all", "config", "kv_of", "heads", "of", "slices", "bias"}
OLDEST = 5  # version of transformers whose modules are meant
MOST = 64  # times as large as in the stock model is what a parameter may be at most


def __getattr__(name: str) -> Any:
    """The shaped class of a model class of transformers."""
    stock = None if name.startswith("_") else getattr(transformers, name, None)
    if not (isinstance(stock, type) and issubclass(stock, transformers.PreTrainedModel)):
        raise AttributeError(f"{name} is not a model class of transformers {transformers.__version__}")
    globals()[name] = shaped(stock)
    return globals()[name]


def shaped(stock: Any) -> Any:
    """A subclass of a model class, of the same name, whose instances are shaped by the table in their config."""

    class Shaped(stock):  # type: ignore[misc]
        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            table = getattr(config, TABLE, None)
            if table is not None:  # transformers may take this class for other models of its kind, too
                shape(self.base_model, table)

        @classmethod
        def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
            config = kwargs.get("config")
            if hasattr(config, SIGN):
                delattr(config, SIGN)
            return super().from_pretrained(*args, **kwargs)

    Shaped.__name__ = Shaped.__qualname__ = stock.__name__
    Shaped.__module__ = __name__
    Shaped.__doc__ = f"{stock.__name__} of transformers, pruned: see the top of this file."
    return Shaped


# -- the table -----------------------------------------------------------------------------------------------------------


def shape(base: nn.Module, table: Any) -> None:
    """Give the modules of a stock model the sizes in the table; what is no such table is a `ValueError`."""
    major = transformers.__version__.split(".")[0]
    need(int(major) >= OLDEST, f"modules are built in other ways by transformers {transformers.__version__}")
    need(isinstance(table, dict) and isinstance(table.get("modules"), dict), "it has no modules")
    need(table.get("version") == 1, f"its version is {table.get('version')!r:.20}, and this file reads version 1")
    modules = dict(base.named_modules())
    for path, row in table["modules"].items():
        need(path in modules, f"this model has no module {path!r:.80}")
        need(isinstance(row, dict) and row.keys() <= KEYS, f"the row of {path} has keys that mean nothing")
        shape_module(base, path, modules[path], row)


def shape_module(base: nn.Module, path: str, module: Any, row: dict[str, Any]) -> None:
    """Carry out one row of the table."""
    tensors = {name: resized(path, module, name, sizes) for name, sizes in mapping(path, row, "shapes").items()}
    if row.keys() & {"outputs", "rows", "columns"}:
        need(path != "" and isinstance(getattr(module, "weight", None), Tensor), f"{path} is not a matrix")
        parent, _, name = path.rpartition(".")
        if "outputs" in row:
            outputs = whole(path, row["outputs"])
            need(
                outputs <= MOST * max(module.weight.shape), f"{path} would give more than {MOST} times as many numbers"
            )
            setattr(base.get_submodule(parent), name, Empty(module, tensors, outputs))
            return
        places = {key: tuple(whole(path, place) for place in items(path, row, key)) for key in ("rows", "columns")}
        rows, columns = (places[key] if key in row else None for key in ("rows", "columns"))
        of = whole(path, row.get("in_all")) if rows is not None else 0
        need(of <= MOST * max(module.weight.shape), f"{path} would have more than {MOST} times as many rows")
        need(all(place < of for place in rows or ()), f"{path} has rows beyond its last")
        setattr(base.get_submodule(parent), name, Partial(module, tensors, rows, columns, of))
        return
    for name, tensor in tensors.items():
        setattr(module, name, tensor)
    for name, value in mapping(path, row, "numbers").items():
        need(type(vars(module).get(name)) is int, f"{path} has no whole number {name!r:.40}")
        setattr(module, name, whole(path, value))
    attend_to_heads(path, module, row)


def attend_to_heads(path: str, module: Any, row: dict[str, Any]) -> None:
    """What an attention needs to know while it runs: its own head counts, and its heads among those of the original."""
    own: dict[str, Any] = {}
    for name, value in mapping(path, row, "config").items():
        need(type(getattr(getattr(module, "config", None), name, None)) is int, f"{path} reads no {name!r:.40}")
        own[name] = whole(path, value)
    heads = tuple(whole(path, head) for head in items(path, row, "heads"))
    kv_of = tuple(whole(path, head) for head in items(path, row, "kv_of"))
    need(all(head < whole(path, row.get("of")) for head in heads), f"{path} has heads beyond the last of the original")
    if kv_of or row.get("bias"):
        module.headcount_kv_of, module.headcount_bias_of = kv_of or None, heads if row.get("bias") else None
        own["_attn_implementation"] = KERNEL
        transformers.AttentionInterface.register(KERNEL, attend)
    if own:
        module.config = View(module.config, own)
    slices = [tuple(entry) for entry in items(path, row, "slices") if isinstance(entry, list) and len(entry) == 3]
    need(len(slices) == len(row.get("slices", ())), f"the slices of {path} are not triples")
    need(bool(heads and whole(path, row["of"])) or not slices, f"{path} picks slices for no heads")
    names = list(inspect.signature(type(module).forward).parameters)[1:]
    for name, position, axis in slices:
        need(names[whole(path, position) : position + 1] == [name] and axis in (0, 1), f"{path} takes no {name!r:.40}")
    if slices:
        hook = partial(slice_arguments, slices, heads, row["of"])
        module.register_forward_pre_hook(hook, with_kwargs=True)


def need(right: bool, what: str) -> None:
    """A `ValueError` about the table unless something is right."""
    if not right:
        advice = "take the folder as headcount wrote it, and the transformers_version that config.json names"
        raise ValueError(f"{TABLE} in config.json cannot be used: {what}; {advice}.")


def whole(path: str, value: Any) -> int:
    """A whole number that is not negative."""
    need(type(value) is int and value >= 0, f"{value!r:.40} for {path} is no whole number from 0 on")
    return int(value)


def mapping(path: str, row: dict[str, Any], key: str) -> dict[str, Any]:
    """An entry of a row that maps names to values; empty if it is not there."""
    need(isinstance(row.get(key, {}), dict), f"{key} of {path} does not map names to values")
    return dict(row.get(key, {}))


def items(path: str, row: dict[str, Any], key: str) -> list[Any]:
    """An entry of a row that is a list; empty if it is not there."""
    need(isinstance(row.get(key, []), list), f"{key} of {path} is no list")
    return list(row.get(key, []))


def resized(path: str, module: nn.Module, name: str, sizes: Any) -> nn.Parameter:
    """A new parameter of these sizes in the place of one of a module, with its first values where it gets smaller."""
    old = module._parameters.get(name)
    need(isinstance(sizes, list), f"the sizes of {path}.{name} are no list")
    sizes = [whole(path, size) for size in sizes]
    if old is None and name == "bias" and type(module) is nn.Linear:  # which makes up for units that are gone
        need(
            sizes == [module.out_features], f"{path} gives {module.out_features} numbers, and its bias has other sizes"
        )
        return nn.Parameter(module.weight.detach().new_zeros(sizes), requires_grad=module.weight.requires_grad)
    need(old is not None and old.dim() == len(sizes), f"{path} has no parameter {name!r:.40} of {len(sizes)} axes")
    assert old is not None
    fits = all(size <= MOST * had for size, had in zip(sizes, old.shape, strict=True))
    need(fits, f"{path}.{name} would be more than {MOST} times as large as in the stock model")
    values = torch.zeros(sizes, dtype=old.dtype, device=old.device)
    first = tuple(slice(min(size, had)) for size, had in zip(sizes, old.shape, strict=True))
    values[first] = old.detach()[first]
    return nn.Parameter(values, requires_grad=old.requires_grad)


# -- what stock modules cannot do ------------------------------------------------------------------------------------------


class Empty(nn.Module):
    """A matrix with nothing left: without rows it gives zeros for one unit, without columns its bias."""

    def __init__(self, old: Any, tensors: dict[str, nn.Parameter], outputs: int) -> None:
        super().__init__()
        self.weight = tensors.get("weight", old.weight)
        self.bias = tensors.get("bias", getattr(old, "bias", None))
        self.outputs = outputs
        self.axis = 1 if isinstance(old, nn.Conv1d | nn.Conv2d) else -1
        if self.bias is not None and len(self.bias) not in (0, outputs):
            raise ValueError(f"{TABLE} in config.json gives a bias of {len(self.bias)} to {outputs} outputs.")

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        """x: (..., inputs) -> (..., outputs); convolutions have their channels on axis 1."""
        sizes = list(x.shape)
        sizes[self.axis] = self.outputs
        zeros = x.new_zeros(sizes)
        if self.bias is None or not len(self.bias):
            return zeros
        return zeros + (self.bias if self.axis == -1 else self.bias.view(-1, *[1] * (x.dim() - 2)))


class Partial(nn.Module):
    """A matrix some of whose rows, or columns, are left, while the code around it counts on all of them.

    Rows that are gone give zeros, and of what comes in the columns that are left are picked.
    """

    def __init__(self, old: Any, tensors: dict[str, nn.Parameter], rows: Any, columns: Any, of: int) -> None:
        super().__init__()
        self.weight = tensors.get("weight", old.weight)
        self.bias = tensors.get("bias", getattr(old, "bias", None))
        self.rows, self.columns, self.of = rows, columns, of
        self.transposed = type(old).__name__ == "Conv1D"
        self.axis = 1 if isinstance(old, nn.Conv1d | nn.Conv2d) else -1

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., all columns) -> (..., all rows); convolutions have their channels on axis 1."""
        if self.columns is not None:
            x = x.index_select(self.axis, index_of(self.columns, x.device))
        weight = self.weight.t() if self.transposed else self.weight
        apply = {2: functional.linear, 3: functional.conv1d, 4: functional.conv2d}[weight.dim()]
        y = apply(x, weight, self.bias)
        if self.rows is None:
            return y
        sizes = list(y.shape)
        sizes[self.axis] = self.of
        return y.new_zeros(sizes).index_copy(self.axis, index_of(self.rows, x.device), y)


class View:
    """A config with a few values of its own on top, as one attention sees it."""

    def __init__(self, base: Any, own: dict[str, Any]) -> None:
        self.__dict__.update(base=base, own=own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "base" not in self.__dict__:
            raise AttributeError(name)
        own = self.__dict__["own"]
        return own[name] if name in own else getattr(self.__dict__["base"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["base"], name, value)


@lru_cache(maxsize=4096)
def index_of(places: tuple[int, ...], device: torch.device) -> Tensor:
    """Places as an index on a device, made once: a copy in every pass would let a GPU wait."""
    with torch.inference_mode(False):  # or a later backward pass could not use it
        return torch.tensor(places, dtype=torch.long, device=device)


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **kwargs: Any) -> Any:
    """The attention that the model's config names, after every query head got its own key, value and bias.

    query: (batch, heads, length, width); key and value: (batch, kv heads, length, width), as the cache holds them.
    """
    bias = kwargs.get("position_bias")
    if module.headcount_bias_of is not None and bias is not None and bias.shape[1] > 1:
        kwargs["position_bias"] = heads_at(bias, module.headcount_bias_of)
    scope = inspect.unwrap(type(module).forward).__globals__
    name = module.config.base._attn_implementation
    kernel = scope["ALL_ATTENTION_FUNCTIONS"].get_interface(name, scope["eager_attention_forward"])
    kv_of = module.headcount_kv_of
    if kv_of is None:
        return kernel(module, query, key, value, mask, **kwargs)
    if name == "sdpa" and bias is None and is_one_position(query, mask):
        arrange = side_by_side.__wrapped__ if torch.compiler.is_compiling() else side_by_side
        slots, places = arrange(kv_of)
        # the heads of a kv head as positions of one query, so that the cache is read where it lies
        query = heads_at(query, slots).view(query.shape[0], key.shape[1], -1, query.shape[3])
        output, weights = kernel(module, query, key, value, mask, **{**kwargs, "is_causal": False})
        return heads_at(output.flatten(1, 2), places).unsqueeze(1), weights
    return kernel(module, query, heads_at(key, kv_of), heads_at(value, kv_of), mask, **kwargs)


def is_one_position(query: Tensor, mask: Tensor | None) -> bool:
    """Whether there is one position to compute, under a mask that is the same for all heads; a trace does not ask."""
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if traced or torch.compiler.is_exporting():
        return False
    return query.shape[2] == 1 and (mask is None or (mask.dim() == 4 and mask.shape[1:3] == (1, 1)))


@lru_cache(maxsize=4096)
def side_by_side(kv_of: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The query head in each slot of a table of kv heads by heads of the largest group, and where each head is in the output."""
    groups = [[head for head, kv in enumerate(kv_of) if kv == group] for group in range(max(kv_of) + 1)]
    size = max(map(len, groups))
    slots = [head for heads in groups for head in [*heads, *heads[:1] * (size - len(heads))]]
    places = [groups[kv].index(head) * len(groups) + kv for head, kv in enumerate(kv_of)]
    return tuple(slots), tuple(places)


def heads_at(tensor: Tensor, places: tuple[int, ...]) -> Tensor:
    """The entries of axis 1 at these places; slices in compiled code, which an index would make copy to the GPU in every pass."""
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        return torch.cat([tensor[:, place : place + 1] for place in places], 1)
    return tensor.index_select(1, index_of(places, tensor.device))


def slice_arguments(
    slices: list[Any], heads: tuple[int, ...], of: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pre-hook of an attention: its bias arguments with only the slices of the heads that are left."""
    given = list(args)
    for name, position, axis in slices:
        if name in kwargs:
            kwargs = {**kwargs, name: heads_of(kwargs[name], axis, heads, of)}
        elif len(given) > position:
            given[position] = heads_of(given[position], axis, heads, of)
    return tuple(given), kwargs


def heads_of(bias: Any, axis: int, heads: tuple[int, ...], of: int) -> Any:
    """The slices of some heads: axis 1 of (batch, heads, query, key), axis 0 of (heads, ...) or (batch * heads, ...)."""
    if not isinstance(bias, Tensor) or bias.dim() != 3 + axis or bias.shape[axis] % of:
        return bias  # one that all heads share
    index = index_of(heads, bias.device)
    if axis == 1:
        return bias.index_select(1, index)
    return bias.unflatten(0, (-1, of)).index_select(1, index).flatten(0, 1)
