"""Saving a cut model and loading it again: an ordinary `save_pretrained` folder with the plan inside its config.

`load` lets the model be *born cut*: while its class's constructor runs, the plan is carried out on the empty model, and
transformers' own loader then fills it, so key renaming, tying, dtypes, shards and device maps stay transformers' business.
"""

from __future__ import annotations

import copy
import json
import os
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import BadCheckpoint, BadPlan, HeadcountError, NotFound, Refused
from ..plans import Plan, kind_of, read_json
from .architectures import ModuleSpec
from .cutting import layers
from .cutting.surgery import cut, record, removed
from .discovery import unwrap
from .model_folders import RECORD, appears_whole, bring_along, disk_errors, set_aside
from .portable import empty_model, portable_config, stock_differences

VARIANT = "headcount"
MISSING = "_headcount_missing_weights"  # an attribute of a model that was loaded
MOST_LAYERS = 1000  # that a record may remove: the deepest transformers have as many, and building more takes minutes
MOST_ROWS = 100


def save(
    model: nn.Module,
    folder: str | Path,
    *,
    tokenizer: Any = None,
    source: str | Path | None = None,
    portable: bool = False,
    force: bool = False,
    max_shard_size: str = "50GB",
) -> Path:
    """Write the model (and a tokenizer or processor) to a folder that `load` reads; returns its path.

    `source` is the folder or hub name the model came from: what else is there (tokenizer, processor, pooling) comes along.
    The folder appears whole or not at all. An existing one is replaced only with `force`, and only if there is nothing in it
    but a model. With `portable`, it can be
    read by a stock `from_pretrained` without headcount; where the cut is not expressible by a stock config, that is
    `Refused` with the reason. A `torch.nn` model without a config is written as weights and a record: give `load` a
    fresh one to fill.

    Args:
        model: The model, cut or not.
        folder: The folder to write.
        tokenizer: A tokenizer or processor to write along.
        source: The folder or hub name that the model came from: its other files come along.
        portable: Write what a stock `from_pretrained` loads, or refuse.
        force: Replace the folder if it exists and there is nothing in it but a model.
        max_shard_size: Maximum size of a file of weights.

    Returns:
        The path of the folder.

    Examples:
        >>> model = hc.load("my-model")
        >>> plan = hc.cut(model, "0:1 2:0-3")
        >>> folder = hc.save(model, "smaller", source="my-model")
        >>> hc.removed(hc.load(folder)).units == plan.units
        True
    """
    target, origin = Path(folder), None if source is None else Path(source)
    # a model may be saved over the folder it came from: what else is there comes along
    keep = [] if origin is None or os.path.realpath(origin) == os.path.realpath(target) else [origin]
    with appears_whole(target, force, keep, origin) as draft, disk_errors(target):
        write_into(model, draft, tokenizer=tokenizer, source=source, portable=portable, max_shard_size=max_shard_size)
    return target


def load(
    name: str | Path,
    *,
    into: nn.Module | None = None,
    weights: bool = True,
    trust_remote_code: bool = False,
    **kwargs: Any,
) -> Any:
    """The model in a folder or of that name on the hub, cut as it was saved, in evaluation mode.

    The class is the one that was saved; keywords such as `dtype` and `device_map` go to `from_pretrained`. A folder that
    was never cut loads as usual. `into` is a fresh model for a folder saved from a plain `torch.nn` module. With
    `weights=False` the model is empty (on the meta device): enough to look at, in no memory.

    Args:
        name: A folder or a name on the hub.
        into: A fresh model to load into, for a folder saved from a plain `torch.nn` module.
        weights: Whether to read the weights.
        trust_remote_code: Whether code that comes with the model may run.
        kwargs: Handed on to `from_pretrained`.

    Returns:
        The model, of the class that was saved.

    Examples:
        >>> model = hc.load("my-model")
        >>> type(model).__name__
        'BertForSequenceClassification'
    """
    if not weights:
        if into is not None:
            raise BadCheckpoint("`into` takes weights in; leave out weights=False, or into.")
        return _empty(name, trust_remote_code, kwargs)
    if into is not None or ((Path(name) / RECORD).is_file() and not (Path(name) / "config.json").is_file()):
        return _load_plain(Path(name), into)
    config = _read_config(name, trust_remote_code, kwargs)
    written = getattr(config, "headcount", None)
    kind = _model_class(config, name, trust_remote_code)
    options = {"trust_remote_code": trust_remote_code, **kwargs}
    if written is None:
        model, info = _from_pretrained(kind, name, output_loading_info=True, **options)
        vars(model)[MISSING] = tuple(sorted(info.get("missing_keys", ())))
        return model.eval()
    plan, specs = read_record(written)
    restore_config(config, written)
    if (Path(name) / _weights_name(VARIANT)).is_file() or (Path(name) / _weights_name(VARIANT, True)).is_file():
        options["variant"] = VARIANT
    with _born_cut(kind, plan, specs, written.get("config", {})):
        model, info = _from_pretrained(kind, name, config=config, output_loading_info=True, **options)
    wrong = [key for group in ("missing_keys", "mismatched_keys", "unexpected_keys") for key in info.get(group, ())]
    if wrong:
        raise BadCheckpoint(f"The weights in {name} do not fit its plan, first at {wrong[0]}: nothing was loaded.")
    return model.eval()


def missing_weights(model: Any) -> tuple[str, ...]:
    """The weights that no file of the model held when it was loaded, and that are random numbers until it is trained."""
    return tuple(vars(model).get(MISSING, ()))


def _from_pretrained(kind: Any, name: str | Path, **options: Any) -> Any:
    """`from_pretrained`, with whatever goes wrong in one sentence."""
    try:
        return kind.from_pretrained(name, **options)
    except (HeadcountError, MemoryError):
        raise
    except Exception as error:
        text = str(error)
        if "ignore_mismatched_sizes" in text:  # transformers prints a report, and points to it
            raise BadCheckpoint(
                f"The weights in {name} have other shapes than its plan says: nothing loaded."
            ) from error
        first = (text.strip().splitlines() or [type(error).__name__])[0]
        raise BadCheckpoint(f"{name} does not load ({type(error).__name__}: {first[:300]}).") from error


def _empty(name: str | Path, trust_remote_code: bool, kwargs: dict[str, Any]) -> Any:
    """The model of a folder or hub name without its weights, cut as it was saved: enough to look at, in no memory."""
    config = _read_config(name, trust_remote_code, kwargs)
    written = getattr(config, "headcount", None)
    kind = _model_class(config, name, trust_remote_code)
    if hasattr(kind, "_model_mapping"):
        kind = kind._model_mapping[type(config)]
    if written is None:
        with _buildable(name):
            return empty_model(kind, config).eval()
    plan, specs = read_record(written)
    restore_config(config, written)
    with _buildable(name), _born_cut(kind, plan, specs, written.get("config", {})):
        return empty_model(kind, config).eval()


@contextmanager
def _buildable(name: str | Path) -> Iterator[None]:
    """Whatever a constructor says within the block about a config that is damaged is said in one sentence."""
    try:
        yield
    except (HeadcountError, MemoryError):
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadCheckpoint(f"No model can be built from the config of {name} ({first[:200]}).") from error


def read_record(written: object) -> tuple[Plan, list[ModuleSpec]]:
    """The plan and the user's dialect rows in a config's record, or `BadPlan` for what is wrong with it."""
    plan = Plan.from_json(written)
    assert isinstance(written, dict)
    rows = written.get("dialects", [])
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        raise BadPlan(f'The record\'s "dialects" must be a list of at most {MOST_ROWS} rows.')
    return plan, [ModuleSpec.from_json(row) for row in rows]


# -- writing -------------------------------------------------------------------------------------------------------------


def write_into(
    model: nn.Module,
    draft: Path,
    *,
    tokenizer: Any = None,
    source: str | Path | None = None,
    portable: bool = False,
    max_shard_size: str = "50GB",
) -> None:
    """Write the model, and what goes with it, into a folder that is there and empty, as `save` does."""
    root = unwrap(model)
    if not hasattr(root, "save_pretrained"):
        _save_plain(root, draft, portable)
    elif portable:
        _save_portable(root, draft, max_shard_size)
    else:
        _save_cut(root, draft, max_shard_size)
    if source is not None:
        _bring_along(source, draft)
    if tokenizer is not None:
        tokenizer.save_pretrained(draft)
    for path in weight_files(draft):  # safetensors lets only the owner read them, whatever the umask says
        path.chmod((draft / "config.json").stat().st_mode if (draft / "config.json").is_file() else 0o644)


def _bring_along(source: str | Path, draft: Path) -> None:
    """What belongs to the model and is not the model: the other files of its folder, or what the hub has of it."""
    if Path(source).is_dir():
        bring_along(Path(source), draft)
        return
    from transformers import AutoProcessor, AutoTokenizer

    for kind in (AutoTokenizer, AutoProcessor):
        try:
            kind.from_pretrained(source).save_pretrained(draft)
        except (OSError, ValueError, KeyError, ImportError):
            continue  # this model has none of that kind


def _save_cut(root: Any, draft: Path, max_shard_size: str) -> None:
    differences = stock_differences(root, root.config) if removed(root) else []
    # A stock loader refuses tensors of another shape. Where only the code would behave differently, nothing would stop
    # it, so the weights get a name that it does not look for.
    silent = bool(differences) and not any(difference.shape for difference in differences)
    variant = VARIANT if silent else None
    root.save_pretrained(draft, max_shard_size=max_shard_size, variant=variant)


def _save_portable(root: Any, draft: Path, max_shard_size: str) -> None:
    stock = f"a stock {type(root).__name__}"
    try:
        config = portable_config(root)
        type(config).from_dict(config.to_dict())  # some configs check themselves, and would refuse to be read again
    except Exception as error:  # whatever a config raises on numbers it was not written for
        first = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
        raise Refused(f"This cut is not expressible by {stock}: {first[:200]}; save it without portable.") from None
    differences = stock_differences(root, config)
    if differences:
        raise Refused(f"This cut is not expressible by {stock}: {differences[0].text}; save it without portable.")
    own = root.config
    try:
        root.config = config
        root.save_pretrained(draft, max_shard_size=max_shard_size)
    finally:
        root.config = own
    (draft / RECORD).write_text(json.dumps(removed(root).to_json(), indent=2) + "\n", encoding="utf-8")


def _save_plain(root: nn.Module, draft: Path, portable: bool) -> None:
    from safetensors.torch import save_model

    if portable:
        raise Refused("A torch.nn model has no stock config to be portable by; save it without portable.")
    save_model(root, str(draft / "model.safetensors"))
    (draft / RECORD).write_text(json.dumps(record(root), indent=2) + "\n", encoding="utf-8")


# -- reading -------------------------------------------------------------------------------------------------------------


def _read_config(name: str | Path, trust_remote_code: bool, kwargs: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    if aside := set_aside(Path(name)):
        raise BadCheckpoint(
            f"{name} was to be replaced by a command that was killed half way; the earlier one is {aside}: rename it back."
        )
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise BadCheckpoint(f"{name} has no config.json; give a folder written by save or save_pretrained.")
        try:
            read_json(Path(name) / "config.json")
        except BadPlan as error:
            raise BadCheckpoint(str(error)) from None
    elif os.sep in str(name) and (Path(name).is_absolute() or str(name).startswith(".")):
        raise BadCheckpoint(f"There is no folder {name}; give a model folder or a name on the hub.")
    hub = {key: kwargs[key] for key in ("revision", "token", "cache_dir", "local_files_only") if key in kwargs}
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code, **hub)
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        where = "" if Path(name).exists() else "there is no such folder here, and as a name on the hub: "
        raise BadCheckpoint(f"I cannot read the config of {name}: {where}{first[:300]}") from error


def _model_class(config: Any, name: str | Path, trust_remote_code: bool) -> Any:
    """The class that was saved; where the config names none, the one its type stands for."""
    import transformers

    architectures, code = getattr(config, "architectures", None) or [None], getattr(config, "auto_map", None) or {}
    if not isinstance(architectures, list | str) or not isinstance(code, dict):
        raise BadCheckpoint(f"The config of {name} is damaged: architectures are a list, auto_map an object.")
    saved = architectures[0]
    if saved is None:
        return (
            transformers.AutoModel
            if getattr(config, "headcount", None) is None
            else transformers.MODEL_MAPPING[type(config)]
        )
    model_class = getattr(transformers, saved, None) if isinstance(saved, str) else None
    if isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel):
        return model_class
    references = [ref for ref in code.values() if isinstance(ref, str) and ref.endswith(f".{saved}")]
    if trust_remote_code and references:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        return get_class_from_dynamic_module(references[0], str(name))
    raise BadCheckpoint(
        f"{name} was saved from {saved}, which transformers does not have; "
        "if it ships its own code and you trust it, pass trust_remote_code."
    )


def restore_config(config: Any, written: dict[str, Any]) -> None:
    """Give the config back the numbers of layers it had before the cut, so that the whole model is built first."""
    values = written.get("config", {})
    if not isinstance(values, dict):
        raise BadPlan('The record\'s "config" must map names to values.')
    removed_layers = sum(kind_of(str(unit)) == "layer" for unit in Plan.from_json(written).units)
    if removed_layers > MOST_LAYERS:
        raise BadPlan(f"The record removes {removed_layers:,} layers, which is more than any model has: not loaded.")
    changes = []
    for dotted, value in values.items():
        *path, name = str(dotted).split(".")
        owner = _part_of(config, path)
        if owner is None or name not in vars(owner) or not layers.is_about_layers(name):
            raise BadPlan(
                f"The record wants to set {str(dotted)[:60]!r} in the config, which is not a count of layers."
            )
        if not layers.may_have_been(name, value, vars(owner)[name], removed_layers):
            raise BadPlan(
                f"The record wants to set {str(dotted)[:60]!r} in the config to {reprlib.repr(value)}, and its plan removes "
                f"{removed_layers} layers from {reprlib.repr(vars(owner)[name])}: they do not agree."
            )
        changes.append((owner, name, value))
    for owner, name, value in changes:
        setattr(owner, name, value)
    config.headcount = None


def _part_of(config: Any, path: list[str]) -> Any:
    """The config inside a config that a path of names leads to; None if it leads to anything else."""
    for part in path:
        config = vars(config).get(part)
        if not hasattr(config, "to_dict"):
            return None
    return config


@contextmanager
def _born_cut(kind: Any, plan: Plan, specs: list[ModuleSpec], counts: dict[str, Any]) -> Iterator[None]:
    """Within the block, instances of `kind` are cut as soon as they are made; `counts` are the config's before the cut."""
    own = "__init__" in vars(kind)
    init = kind.__init__

    def born(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if type(self) is kind:
            try:
                cut(self, plan, specs=specs)
            except (NotFound, Refused) as error:
                raise BadPlan(f"The plan does not fit the model: {error}") from None
            if record(self)["config"] != counts:
                raise BadPlan("The record's counts of layers do not agree with the layers that its plan removes.")

    kind.__init__ = born
    try:
        yield
    finally:
        if own:
            kind.__init__ = init
        else:
            del kind.__init__


def _load_plain(folder: Path, into: nn.Module | None) -> nn.Module:
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    if into is None:
        raise BadCheckpoint(f"{folder} holds a torch.nn model: pass into=, a fresh model of the same shape, to fill.")
    try:
        written = read_json(folder / RECORD)
        plan, specs = read_record(written)
        model = copy.deepcopy(into)
        if plan:
            cut(model, plan, specs=specs)
        load_model(model, str(folder / "model.safetensors"))
    except (NotFound, Refused) as error:
        raise BadPlan(f"The plan does not fit the model given: {error}") from None
    except (OSError, RuntimeError, SafetensorError) as error:
        raise BadCheckpoint(
            f"The weights in {folder} do not fit the model given: {str(error).splitlines()[0][:200]}"
        ) from None
    return model.eval()


def weight_files(folder: Path) -> list[Path]:
    """The files in a folder that hold a model's weights: safetensors where there are any, else torch's own."""
    for suffix in (".safetensors", ".bin"):
        paths = sorted(path for path in folder.glob(f"*{suffix}") if path.is_file()) if folder.is_dir() else []
        if paths:
            return paths
    return []


def _weights_name(variant: str, sharded: bool = False) -> str:
    return f"model.safetensors.index.{variant}.json" if sharded else f"model.{variant}.safetensors"
