"""Saving a cut model and loading it again: an ordinary `save_pretrained` folder with the plan inside its config.

`load` lets the model be *born cut*: while its class's constructor runs, the plan is carried out on the empty model, and
transformers' own loader then fills it, so key renaming, tying, dtypes, shards and device maps stay transformers' business.
"""

from __future__ import annotations

import copy
import json
import os
import reprlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import BadCheckpoint, BadPlan, HeadcountError, LoadingNote, NotFound, Refused
from ..model_files import RECORD, ModelFiles, check_weights
from ..plans import Plan, kind_of, read_json
from .architectures import ModuleSpec
from .cutting import layers
from .cutting.biases import RECORDED, give_biases, recorded
from .cutting.surgery import cut, record, removed
from .discovery import unwrap
from .distributed.loading import checked, spread
from .distributed.refusals import in_one_process
from .loading.adapters import adapted_class, merged
from .loading.companions import at_the_root, companions
from .loading.configs import hub_keywords, model_class, named_files, read_config
from .loading.gguf_files import is_own, weights_in
from .loading.lazy_files import check_left_in_files, left_in_files, may_be_left_in_files, written_one_by_one
from .loading.number_formats import in_stored_format, is_widened, widen
from .loading.quantised import ADVICE, quantisation
from .loading.signpost import TABLE, put_up, take_down
from .matrices import has_int8_of_torch
from .model_folders import appears_whole, bring_along, disk_errors, set_aside
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
    in_one_process(model, "it is not saved from here", "what it was loaded from is its checkpoint")
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
    lazy: bool = False,
    trust_remote_code: bool = False,
    **kwargs: Any,
) -> Any:
    """The model in a folder, in a GGUF file or of that name on the hub, cut as it was saved, in evaluation mode.

    Its weights are in float32 on the CPU, also where the file has half precision, in which a CPU is many times slower;
    `save` writes them in the format of the file again. `dtype="auto"` keeps that format in memory, and any other `dtype` is
    taken. Where `device_map` names another device, the format stays that of the file. A `device_map` spreads a model over
    devices, the CPU and disk, `tp_plan="auto"` over processes.

    The class is the one that was saved; keywords such as `dtype` and `device_map` go to `from_pretrained`. A folder that
    was never cut loads as usual, also one with sharded weights or with `pytorch_model.bin`, of which only tensors are read
    and no code runs. The weights of a GGUF file are unpacked, a PEFT adapter is merged into the model that it names, and of
    a sentence-transformers folder it is the transformer; a `LoadingNote` says so. Of quantised checkpoints units can be
    masked, not cut. `into` is a fresh model for a folder saved from a plain `torch.nn` module. With `weights=False` the
    model is empty (on the meta device): enough to look at, in no memory. With `lazy` the weights stay in their safetensors
    files and each is read when something is computed with it: enough to cut and save a model larger than memory tensor by
    tensor, and to score it layer by layer (by criteria without gradients).

    Args:
        name: A folder, a GGUF file or a name on the hub.
        into: A fresh model to load into, for a folder saved from a plain `torch.nn` module.
        weights: Whether to read the weights.
        lazy: Leave the weights in their files, and read each when it is needed.
        trust_remote_code: Whether code that comes with the model may run.
        kwargs: Handed on to `from_pretrained`.

    Returns:
        The model, of the class that was saved.

    Examples:
        >>> model = hc.load("my-model")
        >>> type(model).__name__
        'BertForSequenceClassification'
        >>> model.dtype
        torch.float32
    """
    if into is not None and (lazy or not weights):
        raise BadCheckpoint("`into` takes weights in; leave out weights=False and lazy, or into.")
    if aside := set_aside(Path(name)):
        raise BadCheckpoint(
            f"{name} was to be replaced by a command that was killed half way; the earlier one is {aside}: rename it back."
        )
    files = named_files(name, kwargs)
    folder = Path(files.folder)
    if weights and (into is not None or ((folder / RECORD).is_file() and not (folder / "config.json").is_file())):
        return _load_plain(folder, into)
    for note in files.notes:
        warnings.warn(note, LoadingNote, stacklevel=2)
    config = read_config(files, trust_remote_code, kwargs)
    if TABLE in vars(config) and getattr(config, "headcount", None) is None:
        raise BadCheckpoint(
            f"{files.name} is an export whose key-value heads were repeated, which only the code in the folder holds; load what "
            "it was exported from, or this one by transformers with trust_remote_code=True."
        )
    kind = model_class(config, files, trust_remote_code)
    if files.adapter is not None:
        kind = adapted_class(kind, config, files.adapter)
    if not weights:
        return _empty(kind, config, files.name)
    check_weights(files)
    kwargs = spread(kwargs, files, config, lazy)
    options = {"trust_remote_code": trust_remote_code, **kwargs, **files.keywords, **hub_keywords(files, kwargs)}
    if lazy:
        may_be_left_in_files(files, config)
        with left_in_files():
            return check_left_in_files(_whole_or_cut(kind, config, files, options)[0], files.name)
    model, info = _whole_or_cut(kind, config, files, options)
    checked(model, options, files.name)
    return model if files.adapter is None else merged(model, files.adapter, info["missing_keys"]).eval()


def _whole_or_cut(kind: Any, config: Any, files: ModelFiles, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model of a config with its weights, born cut if the config has the record of a cut; and how loading went."""
    written = getattr(config, "headcount", None)
    own = is_own(files)
    if own:  # the weights have other names and another order there
        skeleton = _empty(kind, copy.deepcopy(config), files.name)
        options["state_dict"] = weights_in(Path(files.folder) / str(files.gguf), skeleton)
    if written is None:
        if own or files.adapter is not None:
            options = {**options, "config": config}  # with the labels of the adapter's head
        model, info = _from_pretrained(kind, files, config, **options)
        vars(model)[MISSING] = tuple(sorted(info.get("missing_keys", ()))) if files.adapter is None else ()
        return model.eval(), info
    plan, specs = read_record(written)
    restore_config(config, written)
    if any((Path(files.folder) / _weights_name(VARIANT, sharded)).is_file() for sharded in (False, True)):
        options["variant"] = VARIANT
    with _born_cut(kind, plan, specs, written):
        model, info = _from_pretrained(kind, files, config, config=config, **options)
    groups = ["mismatched_keys", "unexpected_keys"] + ["missing_keys"] * (
        files.adapter is None
    )  # that may bring a head
    wrong = [key for group in groups for key in info.get(group, ())]
    if wrong:
        raise BadCheckpoint(
            f"The weights in {files.name} do not fit its plan, first at {wrong[0]}: nothing was loaded."
        )
    return model.eval(), info


def missing_weights(model: Any) -> tuple[str, ...]:
    """The weights that no file of the model held when it was loaded, and that are random numbers until it is trained."""
    return tuple(vars(model).get(MISSING, ()))


def _from_pretrained(kind: Any, files: ModelFiles, stored_config: Any, **options: Any) -> tuple[Any, Any]:
    """The model in the number format that is wanted and how its loading went; whatever goes wrong is one sentence."""
    options["output_loading_info"] = True
    widened = is_widened(options) and quantisation(stored_config) is None
    place = None if "state_dict" in options else files.folder
    if place is None:
        options.pop("gguf_file", None)
    elif files.gguf is not None:
        from transformers import GgufConfig

        options.setdefault("quantization_config", GgufConfig(dequantize=True))
    try:
        if not widened:
            return kind.from_pretrained(place, **options)
        return widen(lambda dtype: kind.from_pretrained(place, **{**options, "dtype": dtype}), stored_config)
    except (HeadcountError, MemoryError):
        raise
    except Exception as error:
        text = str(error)
        if "ignore_mismatched_sizes" in text:  # transformers prints a report, and points to it
            raise BadCheckpoint(
                f"The weights in {files.name} have other shapes than its plan says: nothing loaded."
            ) from error
        first = (text.strip().splitlines() or [type(error).__name__])[0]
        advice = f"; {ADVICE}" if quantisation(stored_config) else ""
        raise BadCheckpoint(f"{files.name} does not load ({type(error).__name__}: {first[:300]}){advice}.") from error


def _empty(kind: Any, config: Any, name: str) -> Any:
    """The model of a config without its weights, cut as it was saved: enough to look at, in no memory."""
    written = getattr(config, "headcount", None)
    if hasattr(kind, "_model_mapping"):
        kind = kind._model_mapping[type(config)]
    if written is None:
        with _buildable(name):
            return empty_model(kind, config).eval()
    plan, specs = read_record(written)
    restore_config(config, written)
    with _buildable(name), _born_cut(kind, plan, specs, written):
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
    """The plan and the user's module specs in a config's record, or `BadPlan` for what is wrong with it."""
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
    config: Any = None,
) -> None:
    """Write the model, and what goes with it, into a folder that is there and empty, as `save` does.

    `config` is one to write in the place of the model's own, for code that comes along: the weights have the names that the
    modules have, because transformers does not rename weights for such code.
    """
    root = unwrap(model)
    if has_int8_of_torch(root):
        raise Refused(
            f"{type(root).__name__} is quantised to int8 by torch, and no folder that loads again can hold that: save it before "
            "it is quantised, and quantise what is loaded."
        )
    with in_stored_format(root), written_one_by_one(root):
        if not hasattr(root, "save_pretrained"):
            _save_plain(root, draft, portable)
        elif config is not None:
            _save_as(root, config, draft, max_shard_size, save_original_format=False)
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
    """What belongs to the model and is not the model: the other files of its folders, or what the hub has of it."""
    folders, keywords = companions(source)
    for number, folder in enumerate(folders):
        bring_along(folder, draft, without=folders[:number])
    at_the_root(folders, draft)
    if folders:
        return
    from transformers import AutoProcessor, AutoTokenizer

    for kind in (AutoTokenizer, AutoProcessor):
        try:
            kind.from_pretrained(**keywords).save_pretrained(draft)
        except (OSError, ValueError, KeyError, ImportError):
            continue  # this model has none of that kind


def _save_cut(root: Any, draft: Path, max_shard_size: str) -> None:
    differences = stock_differences(root, root.config) if removed(root) else []
    # A stock loader refuses tensors of another shape. Where only the code would behave differently, nothing would stop
    # it, so the weights get a name that it does not look for.
    silent = bool(differences) and not any(difference.shape for difference in differences)
    variant = VARIANT if silent else None
    root.save_pretrained(draft, max_shard_size=max_shard_size, variant=variant)
    if differences:
        put_up(draft)


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
    _save_as(root, config, draft, max_shard_size)
    (draft / RECORD).write_text(json.dumps(removed(root).to_json(), indent=2) + "\n", encoding="utf-8")


def _save_as(root: Any, config: Any, draft: Path, max_shard_size: str, **options: Any) -> None:
    """Write the model under a config that is not its own."""
    own = root.config
    try:
        root.config = config
        root.save_pretrained(draft, max_shard_size=max_shard_size, **options)
    finally:
        root.config = own


def _save_plain(root: nn.Module, draft: Path, portable: bool) -> None:
    from safetensors.torch import save_model

    if portable:
        raise Refused("A torch.nn model has no stock config to be portable by; save it without portable.")
    save_model(root, str(draft / "model.safetensors"))
    (draft / RECORD).write_text(json.dumps(record(root), indent=2) + "\n", encoding="utf-8")


# -- reading -------------------------------------------------------------------------------------------------------------


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
    take_down(config)


def _part_of(config: Any, path: list[str]) -> Any:
    """The config inside a config that a path of names leads to; None if it leads to anything else."""
    for part in path:
        config = vars(config).get(part)
        if not hasattr(config, "to_dict"):
            return None
    return config


@contextmanager
def _born_cut(kind: Any, plan: Plan, specs: list[ModuleSpec], written: dict[str, Any]) -> Iterator[None]:
    """Within the block, instances of `kind` are cut as soon as they are made, and get the biases that the record names."""
    own = "__init__" in vars(kind)
    init, names = kind.__init__, recorded(written)

    def born(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if type(self) is kind:
            try:
                cut(self, plan, specs=specs)
                give_biases(self, names, specs)
            except (NotFound, Refused) as error:
                raise BadPlan(f"The plan does not fit the model: {error}") from None
            if record(self)["config"] != written.get("config", {}):
                raise BadPlan("The record's counts of layers do not agree with the layers that its plan removes.")
            if names:
                record(self)[RECORDED] = names

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
        if names := recorded(written):
            give_biases(model, names, specs)
            record(model)[RECORDED] = names
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
