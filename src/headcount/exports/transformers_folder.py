"""Folders that transformers loads without headcount: stock classes, shaped by a table in config.json and one fixed file of code.

The table is what `headcount_shapes` holds: how the cut model differs, module by module, from the stock model of the same config.
It is read off the two models, so that every family which can be cut exactly can be written. The code that reads it is
`templates/modeling_headcount.py`, the same text in every folder. Where a stock config says all of it, there is no code.
"""

from __future__ import annotations

import copy
import json
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..efficiency.random_inputs import main_input
from ..model.anatomy import MODULE_STAMPS, Site
from ..model.checkpoints import write_into
from ..model.cutting.per_head import HEAD_COUNTS, KV_COUNTS, NEURON_COUNTS, ConfigView
from ..model.discovery import find, unwrap
from ..model.equivalence import run
from ..model.loading.number_formats import STORED, stored_format
from ..model.loading.quantised import is_to_be_quantised
from ..model.loading.signpost import KEY, TABLE, TRUST
from ..model.matrices import Bypass, Padded, is_quantised
from ..model.model_folders import TOKENIZER_FILES
from ..model.portable import empty_model, plain_values, portable_config, stock_differences
from .formats import Check, Limit, Settings

CODE = Path(__file__).with_name("templates") / "modeling_headcount.py"
FORMATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Of the largest output: the same sums of the same numbers, rounded a few hundred times in another order.
ALLOWED = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
NEAREST = "save it with hc.save, which headcount.load reads, or export a graph (--to onnx)"


def limits(model: nn.Module, settings: Settings) -> list[Limit]:
    """What of a model, or of what is asked for, such a folder cannot hold."""
    root = unwrap(model)
    out = []
    if settings.int8:
        out.append(Limit("weights of eight bits are for graphs", "leave out --int8, or export one (--to onnx)"))
    if settings.multiple is not None:
        out.append(Limit("widths of any size run in transformers", "leave out --multiple"))
    if settings.dtype is not None and settings.dtype not in FORMATS:
        out.append(Limit(f"it has no weights of {settings.dtype!r:.20}", f"choose --dtype {' or '.join(FORMATS)}"))
    return out or model_limits(root)


def model_limits(root: Any) -> list[Limit]:
    """What of a model the table cannot say."""
    import transformers

    kind = type(root)
    if not (isinstance(root, transformers.PreTrainedModel) and getattr(transformers, kind.__name__, None) is kind):
        return [Limit(f"{kind.__name__} is not a class of transformers", NEAREST)]
    if is_to_be_quantised(root) or any(is_quantised(module) for module in root.modules()):
        return [Limit("its weights are quantised", "load it without quantisation, and quantise what is loaded")]
    if stock_config(root) is not None:
        return []
    table, out = shape_table(root)
    if not out and not any("shapes" in row for row in table.values()):
        out = [Limit("a stock class would load its weights and compute something else", NEAREST)]
    return out


def write(
    model: nn.Module, target: Path, settings: Settings, *, source: str | None, tokenizer: Any = None, sign: bool = True
) -> tuple[str, ...]:
    """Write the folder: weights, config with the table, the fixed file, and what goes along; returns notes for the user.

    With `sign`, config.json tells a stock class that it cannot hold the model, and what to do.
    """
    root: Any = unwrap(model)
    config = stock_config(root)
    along = {"source": source, "tokenizer": tokenizer}
    with quiet(), _in_format(root, settings.dtype):
        if config is not None:
            write_into(root, target, portable=True, **along)
            _without_code(target)
            return (
                "a stock config holds this cut: from_pretrained needs no trust_remote_code",
                *_missing(root, target),
            )
        write_into(root, target, config=folder_config(root), **along)
    shutil.copyfile(CODE, target / CODE.name)
    if sign:
        _write_config(target, _config(target) | {KEY: TRUST})
    note = f"load it with trust_remote_code=True, which runs {CODE.name}: fixed text, torch and transformers only"
    return (note, *_missing(root, target))


def _config(folder: Path) -> dict[str, Any]:
    """What config.json of a folder says."""
    values: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return values


def _write_config(folder: Path, values: Mapping[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _without_code(folder: Path) -> None:
    """Take the code that the source named out of config.json: a stock class has the model, and no other is meant."""
    values = _config(folder)
    if values.pop("auto_map", None) is not None:
        _write_config(folder, values)


def has_own_code(folder: Path) -> bool:
    """Whether the code that config.json names is the fixed file, and that file is as it was written: it alone may run."""
    named = _config(folder).get("auto_map") or {}
    own = all(isinstance(name, str) and name.rpartition(".")[0] == CODE.stem for name in named.values())
    there = folder / CODE.name
    return bool(named) and own and there.is_file() and there.read_bytes() == CODE.read_bytes()


def _missing(root: Any, target: Path) -> Iterator[str]:
    """What a reader of texts is not usable without."""
    if main_input(root) == "input_ids" and not any(any(target.glob(name)) for name in TOKENIZER_FILES):
        yield "there is no tokenizer in the folder: none came with the model"


def check(model: nn.Module, target: Path, settings: Settings, *, batch: Mapping[str, Any]) -> Check:
    """Load the folder as its users do, and compare all outputs for a batch with the model's."""
    import transformers

    dtype = next(model.parameters()).dtype
    with _loaded(model, target, dtype) as loaded:
        apart = difference(run(model, batch), run(loaded, batch))
    size = len(next(iter(batch.values())))
    rounded = FORMATS.get(settings.dtype or "", dtype)
    allowed = max(ALLOWED.get(kind, 1e-5) for kind in (dtype, rounded))
    return Check(f"transformers {transformers.__version__}", apart, allowed, f"the outputs for {size} examples")


def stock_config(root: Any) -> Any:
    """The stock config that says all of a cut, or None if there is none."""
    try:
        config = portable_config(root)
        type(config).from_dict(config.to_dict())  # some configs check themselves
    except Exception:  # whatever a config raises on numbers it was not written for
        return None
    return None if stock_differences(root, config) else config


def folder_config(root: Any) -> Any:
    """The model's config with the table, the classes of the file, and for decoders the sizes of every layer."""
    config = copy.deepcopy(root.config)
    setattr(config, TABLE, {"version": 1, "modules": shape_table(root)[0]})
    config.auto_map = auto_map(root)
    layers = per_layer_config(root)
    if layers:
        if getattr(config, "head_dim", None) is None:  # which would be worked out from a number of heads
            config.head_dim = next(site.width for site in find(root).heads)
        config.allow_global_per_layer_attribute_access = True  # configs validate themselves by the values of the whole
        config.per_layer_config = layers
    return config


def auto_map(root: Any) -> dict[str, str]:
    """For each auto class that gives this kind of model, and for AutoModel, the class in the fixed file."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

    out = {}
    for name, auto in vars(modeling_auto).items():
        mapping: Any = getattr(auto, "_model_mapping", None)
        if not isinstance(auto, type) or not issubclass(auto, _BaseAutoModelClass) or mapping is None:
            continue
        kinds = mapping.get(type(root.config), ())
        if type(root) in (kinds if isinstance(kinds, tuple | list) else (kinds,)):
            out[name] = f"{CODE.stem}.{type(root).__name__}"
    base, plain = type(root.base_model), modeling_auto.MODEL_MAPPING.get(type(root.config), None)
    if base is type(root) and isinstance(plain, type):  # T5ForConditionalGeneration has all of a T5Model, not as a part
        paths = {path for path, _ in empty_model(plain, _without_record(root.config)).named_modules()}
        base = plain if paths <= {path for path, _ in root.named_modules()} else base
    return {**out, "AutoModel": out.get("AutoModel", f"{CODE.stem}.{base.__name__}")}


def per_layer_config(root: Any) -> dict[int, dict[str, int]]:
    """The head counts and MLP widths of each layer of a decoder, by the names in its config; only what is not the whole's.

    An attention without heads runs on one that gives zeros.
    """
    anatomy, config = find(root), root.config
    layers = [tuple(stack.blocks) for stack in anatomy.stacks]
    single = len(layers) == 1 and len(layers[0]) == getattr(config, "num_hidden_layers", None)
    if not single or any(site.attention != "decoder" for site in anatomy.heads):
        return {}
    if len({site.width for site in anatomy.heads}) != 1:
        return {}
    numbers = {path: place for place, block in enumerate(layers[0]) for path in map(id, block.modules())}
    out: dict[int, dict[str, int]] = {}
    for site in anatomy:
        if id(site.writer) in numbers:
            out.setdefault(numbers[id(site.writer)], {}).update(_layer_values(config, site))
    return {layer: values for layer, values in sorted(out.items()) if values}


def _layer_values(config: Any, site: Site) -> dict[str, int]:
    """What a site's layer has instead of the numbers of the whole model."""
    numbers: list[tuple[tuple[str, ...], int, int | None]] = [(NEURON_COUNTS, len(site), site.of)]
    if site.kind == "head":
        numbers = [(HEAD_COUNTS, len(site), site.of), (KV_COUNTS, site.kv_heads if len(site) else 1, None)]
    out = {}
    for names, value, whole in numbers:
        known = {name: getattr(config, name, None) for name in names}
        name = next((name for name, n in known.items() if type(n) is int and whole in (None, n)), None)
        if name is not None and known[name] != max(1, value):
            out[name] = max(1, value)
    return out


def _without_record(config: Any) -> Any:
    config = copy.deepcopy(config)
    config.headcount = None
    return config


# -- the table -----------------------------------------------------------------------------------------------------------


def shape_table(root: Any) -> tuple[dict[str, dict[str, Any]], list[Limit]]:
    """A row for each module of the base model that is not as in the stock model of its config; and what no row can say."""
    stock = empty_model(type(root), _without_record(root.config))
    base = root.base_model
    prefix = next((path for path, module in root.named_modules() if module is base), "")
    ours, theirs = dict(root.named_modules()), dict(stock.named_modules())
    table: dict[str, dict[str, Any]] = {}
    out: list[Limit] = []
    for path in dict.fromkeys((*ours, *theirs)):
        if path not in ours or path not in theirs:
            out.append(Limit(f"{path} is {'gone' if path not in ours else 'not in the stock model'}", NEAREST))
            continue
        row, reason = _row(ours[path], theirs[path])
        inside = not prefix or path.startswith(prefix + ".")
        if row and not inside:
            reason = "is cut and no part of the base model"
        if reason is not None:
            out.append(Limit(f"{path} {reason}", NEAREST))
        elif row:
            table[path[len(prefix) + 1 :] if prefix else path] = row
    return table, out


def _row(ours: nn.Module, theirs: nn.Module) -> tuple[dict[str, Any], str | None]:
    """How a module differs from the stock model's: a row of the table, and why there is none."""
    if isinstance(ours, Padded):
        kept = {"rows": list(ours.places), "in_all": ours.of} if ours.reads else {"columns": list(ours.places)}
        return {**kept, "shapes": _other_sizes(ours, theirs)}, None
    if isinstance(ours, Bypass):
        return {"outputs": ours.outputs, "shapes": _other_sizes(ours, theirs)}, None
    if (type(ours).__module__, type(ours).__qualname__) != (type(theirs).__module__, type(theirs).__qualname__):
        return {}, f"is a {type(ours).__name__} and the stock model's a {type(theirs).__name__}"
    row: dict[str, Any] = {"shapes": _other_sizes(ours, theirs), "numbers": _other_values(ours, theirs)}
    if None in row["shapes"].values():
        return {}, "has a parameter that the stock model's has not, or another way round"
    strange = next((name for name, value in row["numbers"].items() if type(value) is not int), None)
    if strange is not None:
        return {}, f"has another {strange} than the stock model's"
    config = getattr(ours, "config", None)
    if isinstance(config, ConfigView):
        row["config"] = {name: value for name, value in config.own.items() if type(value) is int}
    row["kv_of"] = list(getattr(ours, "headcount_kv_of", None) or ())
    heads = getattr(ours, "headcount_bias_of", None)
    row["bias"] = heads is not None
    hooks = [hook for hook in ours._forward_pre_hooks.values() if isinstance(hook, partial)]
    if len(hooks) > 1:
        return {}, "has several hooks"
    for hook in hooks:
        arguments, heads, _ = hook.args
        row["slices"] = [list(argument) for argument in ((one.name, one.position, one.axis) for one in arguments)]
    if heads is not None:
        row["heads"] = list(heads)
        row["of"] = getattr(ours, MODULE_STAMPS["head"]).of
    return {name: value for name, value in row.items() if value}, None


def _other_sizes(ours: nn.Module, theirs: nn.Module) -> dict[str, Any]:
    """The sizes of parameters that are not as large as in the stock model, and of a bias that is in ours only.

    None stands for what else is in one only, and for buffers.
    """
    mine, stock = _sizes(ours), _sizes(theirs)
    names = [name for name in dict.fromkeys((*mine, *stock)) if mine.get(name) != stock.get(name)]
    known = {name: name in mine and name in stock and name in ours._parameters for name in names}
    if (
        "bias" in mine and "bias" not in stock and type(theirs) is nn.Linear
    ):  # one that makes up for units that are gone
        known["bias"] = mine["bias"] == [theirs.out_features]
    return {name: mine[name] if known[name] else None for name in names}


def _sizes(module: nn.Module) -> dict[str, list[int]]:
    """The sizes of a module's own parameters and buffers."""
    tensors = {**dict(module._parameters), **dict(module._buffers)}
    return {name: list(tensor.shape) for name, tensor in tensors.items() if tensor is not None}


def _other_values(ours: nn.Module, theirs: nn.Module) -> dict[str, Any]:
    """The plain values that a module keeps about itself and that are not the stock model's."""
    mine, stock = plain_values(ours), plain_values(theirs)
    return {name: mine.get(name) for name in dict.fromkeys((*mine, *stock)) if mine.get(name) != stock.get(name)}


# -- writing and loading ---------------------------------------------------------------------------------------------------


@contextmanager
def _in_format(root: nn.Module, dtype: str | None) -> Iterator[None]:
    """Within the block the weights are in the number format that was asked for."""
    wanted = FORMATS.get(dtype or "")
    parameters = [p for p in root.parameters() if p.is_floating_point()] if wanted is not None else []
    full, stored = [p.data for p in parameters], stored_format(root)
    try:
        if wanted is not None:
            setattr(root, STORED, None)
        for parameter in parameters:
            parameter.data = parameter.data.to(wanted)
        yield
    finally:
        setattr(root, STORED, stored)
        for parameter, data in zip(parameters, full, strict=True):
            parameter.data = data


@contextmanager
def _loaded(model: nn.Module, folder: Path, dtype: torch.dtype) -> Iterator[nn.Module]:
    """The model in a folder as transformers loads it, on the device of the original."""
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    root: Any = unwrap(model)
    code = _config(folder)["auto_map"] if has_own_code(folder) else {}
    wanted = f"{CODE.stem}.{type(root).__name__}"
    name = next((auto for auto, value in code.items() if value == wanted), None)
    kind: Any = type(root)
    if name is not None:
        kind = getattr(transformers, name)
    elif code:  # no auto class gives this kind
        kind = get_class_from_dynamic_module(wanted, folder)
    with quiet():
        config = transformers.AutoConfig.from_pretrained(folder)
        loaded = kind.from_pretrained(folder, config=config, dtype=dtype, trust_remote_code=bool(code))
        try:
            yield loaded.to(next(model.parameters()).device).eval()
        finally:
            forget_code(loaded)


def forget_code(loaded: nn.Module) -> None:
    """Delete the copy that transformers made of the code of a draft, under the draft's name."""
    module = sys.modules.get(type(loaded).__module__)
    if module is not None and module.__file__ and "unfinished" in module.__name__:
        sys.modules.pop(module.__name__)
        shutil.rmtree(Path(module.__file__).parent.parent, ignore_errors=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block transformers does not warn of configs with sizes of their own for each layer."""
    logger = logging.getLogger("transformers.integrations.heterogeneity.configuration_utils")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def difference(want: list[Tensor], got: list[Tensor]) -> float:
    """The largest difference of two outputs, relative to the largest entry (or 1); infinite if their shapes differ."""
    if [t.shape for t in want] != [t.shape for t in got]:
        return float("inf")
    out = 0.0
    for a, b in zip(want, got, strict=True):
        if a.numel():
            apart = float((a.double() - b.double()).abs().max())
            out = max(out, apart / max(1.0, float(a.double().abs().max()))) if apart == apart else float("inf")
    return out
