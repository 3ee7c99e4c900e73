"""Which files a model's name stands for: a folder, a GGUF file, a PEFT adapter, a sentence-transformers folder, or the hub.

Everything is read off names and small JSON files, no weights: commands and `hc.load` ask here before they read anything,
and whatever is no model is answered with what was seen and the nearest thing that can be loaded.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import BadCheckpoint, BadPlan
from .plans import read_json

GRAPHS = ("model.onnx", "openvino_model.xml")  # exports of headcount, and of others, with a config.json beside them
RECORD = "headcount.json"  # of a `torch.nn` model, which has no config
EXPORT = "export.json"  # of what was exported: how it was checked, and which files are part of it
ADAPTER = "adapter_config.json"
MODULES = "modules.json"  # of sentence-transformers
PICKLED = ".bin"
# What other libraries call their models, and what to do with each.
OTHERS = {
    "model_index.json": "a pipeline of diffusers; give the folder of one of its models, such as text_encoder",
    "tf_model.h5": "TensorFlow weights; save them for PyTorch with an older transformers (from_tf=True)",
    "flax_model.msgpack": "Flax weights; save them for PyTorch with an older transformers (from_flax=True)",
    "consolidated.00.pth": "weights as Meta publishes them; convert them with the script that transformers has for the family",
    "consolidated.safetensors": "weights as Mistral publishes them; give the folder of the transformers version of this model",
    "*.onnx": "an exported graph, whose heads can no longer be told apart; give the model that it was exported from",
    "*.ckpt": "a training checkpoint of another library; save the model in it with save_pretrained",
    "*.pt": "tensors that torch.save wrote; save the model in it with save_pretrained",
    "*.pth": "tensors that torch.save wrote; save the model in it with save_pretrained",
}
WEIGHTS_ALONE = ("*.safetensors", "*.bin")
LFS = b"version https://git-lfs"
PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


@dataclass(frozen=True)
class ModelFiles:
    """Where the config, the weights and the tokenizer of a model are.

    `folder` is a folder or a name on the hub; `gguf` is the file in it that stands for all three. `adapter` is the folder
    of a PEFT adapter that is merged into that model. `notes` say what is not plain from the name.
    """

    name: str
    folder: str
    gguf: str | None = None
    adapter: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether the files are here, and not on the hub."""
        return os.path.isdir(self.folder)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders whose other files (tokenizer, pooling, licence) belong to the model, nearest first."""
        places = [self.adapter, self.folder, self.name]
        return tuple(dict.fromkeys(Path(place) for place in places if place is not None and Path(place).is_dir()))

    @property
    def keywords(self) -> dict[str, Any]:
        """What `from_pretrained` needs to know besides the folder."""
        return {} if self.gguf is None else {"gguf_file": self.gguf}

    def fingerprinted(self) -> list[Path]:
        """The files whose content tells this model from others."""
        if self.gguf is not None:
            files = [Path(self.folder) / self.gguf]
        else:
            files = _configs_and_weights(Path(self.folder)) if self.is_local else []
        if self.adapter is not None:
            files += _configs_and_weights(Path(self.adapter))
        return sorted(files)


def model_files(name: str | Path) -> ModelFiles:
    """The files that a model's name stands for; `BadCheckpoint` says what else was seen.

    A name that is no path here is taken for one on the hub, which nothing is asked of yet.
    """
    try:
        if os.path.isfile(name):
            return _file(str(name), Path(name))
        if os.path.isdir(name):
            return _folder(str(name), Path(name))
    except OSError as error:
        raise BadCheckpoint(f"I cannot read {error.filename or name}: {error.strerror}.") from None
    if _is_path(str(name)):
        raise BadCheckpoint(f"There is no folder {name}; {near(name) or 'give a model folder or a name on the hub'}.")
    return ModelFiles(str(name), str(name))


def tokenizer_files(name: str | Path) -> ModelFiles:
    """Where the tokenizer is that goes with a model: in an adapter's own folder, or beside a GGUF file, where it is there."""
    files = model_files(name)
    if files.adapter is not None and any(Path(files.adapter).glob("tokenizer*")):
        return ModelFiles(files.name, files.adapter)
    if files.gguf is not None and (Path(files.folder) / "tokenizer.json").is_file():
        return ModelFiles(files.name, files.folder)
    return files


def near(name: str | Path) -> str:
    """The folders and GGUF files with nearly this name, as half a sentence; empty where there are none."""
    path = Path(name)
    parent = next((folder for folder in path.parents if os.path.isdir(folder)), Path())
    first, *rest = path.relative_to(parent).parts or ("",)
    try:
        beside = [entry.name for entry in parent.iterdir() if entry.is_dir() or entry.suffix == ".gguf"]
        lower = {entry.lower(): entry for entry in sorted(beside) if not entry.startswith(".")}
        matches = difflib.get_close_matches(first.lower(), lower, n=3, cutoff=0.6)
        paths = [parent.joinpath(lower[match], *rest) for match in matches]
        near_paths = [path for path in paths if path.exists()]
    except OSError:
        return ""
    return f"nearest here: {_some(near_paths)}" if near_paths else ""


def check_weights(files: ModelFiles) -> None:
    """Refuse weights that are not all there: missing parts of a sharded checkpoint, and pointers of Git LFS."""
    for folder in {
        Path(place) for place in (files.folder, files.adapter) if place is not None and Path(place).is_dir()
    }:
        for index in sorted(folder.glob("*.index*.json")):
            try:
                parts = sorted({str(part) for part in read_json(index, largest=2**28)["weight_map"].values()})
            except (BadPlan, TypeError, KeyError, AttributeError):
                continue  # transformers says what is wrong with it
            missing = [part for part in parts if not (folder / part).is_file()]
            if missing:
                raise BadCheckpoint(
                    f"{len(missing)} of the {len(parts)} files of weights in {folder} are missing, first {missing[0]}; copy them "
                    f"there, too (they are listed in {index.name})."
                )
        for path in _configs_and_weights(folder):
            if path.stat().st_size < 1024 and path.read_bytes().startswith(LFS):
                raise BadCheckpoint(
                    f"{path} is a pointer of Git LFS and not the weights: run git lfs pull in {folder}, or download it again."
                )


# -- one file ------------------------------------------------------------------------------------------------------------


def _file(name: str, path: Path) -> ModelFiles:
    folder = path.parent
    if path.suffix == ".gguf":
        return _gguf(name, path)
    if path.name == ADAPTER or path.name.startswith("adapter_model"):
        return _folder(name, folder)
    if (folder / "config.json").is_file() and (path.name == "config.json" or path.match("*model*.*")):
        return replace(_folder(str(folder), folder), name=str(folder))
    if path.suffix in (".safetensors", PICKLED):
        raise BadCheckpoint(
            f"{name} is a file of weights without a config.json beside it: put it into a folder with the config.json of its "
            "model, and give the folder."
        )
    text = next(
        (text for pattern, text in OTHERS.items() if path.match(pattern)), "a file, and no model that I can read"
    )
    hint = "" if ";" in text else "; give a model folder, a GGUF file or a name on the hub"
    raise BadCheckpoint(f"{name} is {text}{hint}.")


def _gguf(name: str, path: Path) -> ModelFiles:
    with path.open("rb") as file:
        start = file.read(len(LFS))
    if start == LFS:
        raise BadCheckpoint(
            f"{path} is a pointer of Git LFS and not the weights: run git lfs pull, or download it again."
        )
    if not start.startswith(b"GGUF"):
        raise BadCheckpoint(
            f"{path} does not begin as a GGUF file does: it may be truncated or damaged; download it again."
        )
    if PART.search(path.name):
        raise BadCheckpoint(
            f"{path} is one part of a GGUF file that was split; put the parts together with llama-gguf-split --merge, and give "
            "the whole."
        )
    note = (
        "the weights come from a GGUF file and are unpacked when they are loaded; what is saved is an ordinary folder"
    )
    return ModelFiles(name, str(path.parent), path.name, notes=(note,))


# -- one folder ----------------------------------------------------------------------------------------------------------


def _folder(name: str, folder: Path) -> ModelFiles:
    ggufs = sorted(folder.glob("*.gguf"))
    has_weights = any(any(folder.glob(pattern)) for pattern in WEIGHTS_ALONE)
    graph = next((file for file in GRAPHS if (folder / file).is_file()), None)
    if graph is not None and not any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "pytorch_model*.bin")):
        raise BadCheckpoint(f"{name} holds {graph}, {OTHERS['*.onnx']}.")
    if (folder / ADAPTER).is_file() and not (folder / "config.json").is_file():
        return _adapter(name, folder)
    if ((folder / "config.json").is_file() and (has_weights or not ggufs)) or (folder / RECORD).is_file():
        return ModelFiles(name, str(folder), notes=_pickle_notes(folder))
    if (folder / MODULES).is_file():
        return _sentence_transformer(name, folder)
    if len(ggufs) == 1:
        return _gguf(name, ggufs[0])
    if ggufs and not PART.search(ggufs[0].name):
        raise BadCheckpoint(f"{name} holds {len(ggufs)} GGUF files; give one of them: {_some(ggufs)}.")
    if ggufs:
        return _gguf(name, ggufs[0])
    raise BadCheckpoint(_no_model(name, folder))


def _adapter(name: str, folder: Path) -> ModelFiles:
    settings = _json(folder / ADAPTER)
    base, kind = settings.get("base_model_name_or_path"), str(settings.get("peft_type", "PEFT"))
    if not isinstance(base, str) or not base:
        raise BadCheckpoint(
            f"{name} is an adapter ({kind[:40]}) whose {ADAPTER} does not name the model that it belongs to; write that into "
            '"base_model_name_or_path".'
        )
    beside = folder / base
    place = str(beside) if not Path(base).exists() and beside.is_dir() else base
    try:
        files = model_files(place)
    except BadCheckpoint as error:
        raise BadCheckpoint(
            f"{name} is an adapter ({kind[:40]}) for {base}, and that cannot be read: {error}"
        ) from None
    if files.adapter is not None:
        raise BadCheckpoint(
            f"{name} is an adapter for {base}, itself an adapter: load that, save it, and name the result."
        )
    note = f"{name} is a PEFT adapter ({kind[:40]}): it is merged into {base} when the weights are loaded"
    return replace(files, name=name, adapter=str(folder), notes=(*files.notes, note))


def _sentence_transformer(name: str, folder: Path) -> ModelFiles:
    """The transformer among the modules of a sentence-transformers folder: the first module that has a config."""
    modules = read_json_or_refuse(folder / MODULES)
    rows = [row for row in modules if isinstance(row, dict)] if isinstance(modules, list) else []
    paths = [folder / str(row.get("path", "")) for row in rows]
    inside = [path for path in paths if path.resolve().is_relative_to(folder.resolve())]
    inner = next((path for path in inside if (path / "config.json").is_file() and any(path.glob("*model*"))), None)
    if inner is None:
        kinds = ", ".join(str(row.get("type", "")).rpartition(".")[2] for row in rows) or "no modules"
        raise BadCheckpoint(f"{name} is a sentence-transformers folder without a transformer in it ({kinds[:120]}).")
    files = _folder(name, inner)
    note = f"{name} is a sentence-transformers folder: its transformer is in {inner.name}, and its pooling is no part of it"
    return replace(files, notes=(*files.notes, note))


def _no_model(name: str, folder: Path) -> str:
    """What a folder holds instead of a model, and what to do."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    if not entries:
        return f"{name} is an empty folder; give a model folder, with config.json and weights."
    for pattern, text in OTHERS.items():
        if any(folder.glob(pattern)):
            return f"{name} has no config.json; it holds {text}."
    if any(any(folder.glob(pattern)) for pattern in WEIGHTS_ALONE):
        return f"{name} has weights and no config.json: copy the config.json of the same model into it."
    if any(folder.glob("tokenizer*")):
        return f"{name} has a tokenizer and no config.json: the model itself is elsewhere, or was not saved to the end."
    if (folder / "run.json").is_file():
        return (
            f"{name} is a run folder, with results and no model; give the folder that -o named, or the model measured."
        )
    inside = [path.parent for path in (*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json"))]
    inside += [path.parent for path in folder.glob(f"*/{ADAPTER}")] + list(folder.glob("*/*.gguf"))
    if inside:
        return f"{name} has no config.json, and is no model itself; there is one in {_some(dict.fromkeys(inside))}: give that."
    seen = ", ".join(entry.name + "/" * entry.is_dir() for entry in entries[:4]) + (" ..." if len(entries) > 4 else "")
    return (
        f"{name} has no config.json and is not a model folder (it holds {seen}); "
        "give one written by save or save_pretrained."
    )


def _pickle_notes(folder: Path) -> tuple[str, ...]:
    if any(folder.glob("*.safetensors")) or not any(folder.glob(f"pytorch_model*{PICKLED}")):
        return ()
    return (
        f"the weights in {folder} are a pickle: only tensors are read from it (weights_only=True), and no code in it runs; "
        "what is saved is safetensors",
    )


def _configs_and_weights(folder: Path) -> list[Path]:
    names = ("config.json", ADAPTER)
    return [path for path in folder.iterdir() if path.name in names or path.suffix in (".safetensors", PICKLED)]


def _json(path: Path) -> dict[str, Any]:
    data = read_json_or_refuse(path)
    if not isinstance(data, dict):
        raise BadCheckpoint(f"{path} must be a JSON object; it is damaged.")
    return data


def read_json_or_refuse(path: Path) -> Any:
    """The JSON in a file of a model folder, or `BadCheckpoint`."""
    try:
        return read_json(path)
    except BadPlan as error:
        raise BadCheckpoint(str(error)) from None


def _some(paths: Iterable[Path]) -> str:
    names = [str(path) for path in paths]
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")


def _is_path(name: str) -> bool:
    """Whether a name that is not there can only be a path: names on the hub are NAME or OWNER/NAME."""
    marks = name.startswith((".", "~")) or name.endswith(("/", ".gguf", ".safetensors", ".bin")) or "\\" in name
    return marks or name.count("/") > 1 or Path(name).is_absolute()


def exported_files(folder: Path) -> dict[str, int]:
    """The files that are part of an export, with their sizes, as it says itself; none of a folder that is no export."""
    try:
        files = read_json(folder / EXPORT)["files"]
        return {str(name): size for name, size in files.items() if type(size) is int}
    except (BadPlan, KeyError, TypeError, AttributeError):
        return {}
