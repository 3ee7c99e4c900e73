"""GGUF files that headcount wrote: the model's config and the record of its cut lie in them, and its weights are put back.

llama.cpp holds a cut model in an order and with fillings of its own: rows of queries and keys in pairs for its rotation, a
layer of nothing left out, an attention or MLP of nothing as one of zeros, uneven groups made even. The skeleton that the config
describes says what of that is the model.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import nn

from ...errors import BadCheckpoint
from ...model_files import ModelFiles

CONFIG = "headcount.config"  # the key of a GGUF file that holds the config of the model, with the record of its cut
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# of the layers; llama.cpp's names are followed by .weight or .bias as transformers' are
QUERY, KEY, VALUE = "attn_q", "attn_k", "attn_v"
LAYER_NAMES = {
    "self_attn.q_proj": QUERY,
    "self_attn.k_proj": KEY,
    "self_attn.v_proj": VALUE,
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
IDLE = {
    "self_attn.o_proj": ("input_layernorm", "self_attn.q_norm", "self_attn.k_norm"),
    "mlp.down_proj": ("post_attention_layernorm",),
}
OTHER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PAIRED = ("llama", "deci")  # architectures whose rotation takes neighbouring rows, where transformers takes halves
COUNTS = ("head_count", "head_count_kv")
UNEVEN = ("deci", "openelm")  # architectures whose layers may have sizes of their own
LARGEST_STRING = 2**26
# the types of values in the head of a file; 8 are texts, 9 arrays
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


# -- the head of a file --------------------------------------------------------------------------------------------------


def head(path: Path) -> dict[str, Any]:
    """The keys of a GGUF file that come before its tokenizer, which is most of the head; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            magic, version, _, count = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version < 2:
                return {}
            return dict(_keys(file, count))
    except (OSError, struct.error, UnicodeDecodeError, ValueError):
        return {}  # damaged: who reads the whole of it says so


def _keys(file: BinaryIO, count: int) -> Iterator[tuple[str, Any]]:
    for _ in range(count):
        key = _text(file)
        if key.startswith("tokenizer."):
            return
        (kind,) = struct.unpack("<I", file.read(4))
        yield key, _value(file, kind)


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == 8:
        return _text(file)
    if kind == 9:
        inner, size = struct.unpack("<IQ", file.read(12))
        if size > LARGEST_STRING or inner == 9:
            raise ValueError("an array of a size that no head has")
        return [_value(file, inner) for _ in range(size)]
    if kind not in SCALARS:
        raise ValueError("a type of value that GGUF does not have")
    form = "<" + SCALARS[kind]
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _text(file: BinaryIO) -> str:
    (size,) = struct.unpack("<Q", file.read(8))
    if size > LARGEST_STRING:
        raise ValueError("a text of a size that no head has")
    return file.read(size).decode("utf-8")


# -- the config ----------------------------------------------------------------------------------------------------------


def is_own(files: ModelFiles) -> bool:
    """Whether a model's file is a GGUF file that headcount wrote."""
    return files.gguf is not None and files.is_local and CONFIG in head(Path(files.folder) / files.gguf)


def config_in(path: Path) -> Any:
    """The config that headcount wrote into a GGUF file; None where another program wrote the file.

    Where layers have sizes of their own and no config says which model that is, it is `BadCheckpoint`.
    """
    keys = head(path)
    architecture = str(keys.get("general.architecture", ""))
    if CONFIG not in keys:
        if architecture in UNEVEN:
            raise BadCheckpoint(
                f"{path} is of llama.cpp's architecture {architecture}, whose layers differ in size, and headcount did not write "
                "it: transformers has no model for it; give the folder that it was made from."
            )
        return None
    import transformers

    try:
        written = json.loads(keys[CONFIG])
        kind = transformers.CONFIG_MAPPING[written["model_type"]]
        if written["model_type"] not in CLASSES:
            raise KeyError(written["model_type"])
        return kind.from_dict({**written, "architectures": [CLASSES[written["model_type"]]]})
    except Exception as error:  # whatever a config raises on values that it was not written for
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadCheckpoint(f"The config in {path} is damaged ({first[:200]}); export the model again.") from error


# -- the weights ---------------------------------------------------------------------------------------------------------


def weights_in(path: Path, skeleton: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of a file that headcount wrote, in float32, by the names and shapes of its model, which is `skeleton`."""
    import gguf

    keys, base = head(path), _base(skeleton)
    architecture = str(keys["general.architecture"])
    try:
        stored = {tensor.name: tensor for tensor in gguf.GGUFReader(str(path)).tensors}

        def read(name: str) -> torch.Tensor:
            one = stored[name]
            return torch.from_numpy(np.array(gguf.quants.dequantize(one.data, one.tensor_type), dtype=np.float32))

        state = {}
        for name in skeleton.state_dict():
            owner, _, ending = name.rpartition(".")
            if owner in OTHER_NAMES and not (owner == "lm_head" and skeleton.config.tie_word_embeddings):
                state[name] = read(f"{OTHER_NAMES[owner]}.{ending}")
        places = written_layers(base.layers)
        for number, place in enumerate(places):
            heads, kv_heads = (_of_layer(keys[f"{architecture}.attention.{key}"], number) for key in COUNTS)
            layer = _Layer(base.layers[place], number, heads, kv_heads, architecture)
            state |= {f"model.layers.{place}.{name}": value for name, value in _layer(layer, read).items()}
        idle = idle_norms(skeleton)
        left_out = {name: p.shape for name, p in skeleton.state_dict().items() if not p.numel() or name in idle}
        state |= {name: torch.ones(shape) for name, shape in left_out.items()}
        if len(places) != keys[f"{architecture}.block_count"]:
            raise ValueError(f"{keys[f'{architecture}.block_count']} layers, where the config has {len(places)}")
    except (KeyError, ValueError, IndexError, RuntimeError, OSError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadCheckpoint(f"The weights in {path} do not fit its config ({first[:200]}); export it again.") from error
    return state


def written_layers(layers: Iterable[nn.Module]) -> list[int]:
    """The places of the layers that a file holds: one of nothing hands on what it takes in, and is left out."""
    parts = ("self_attn.o_proj", "mlp.down_proj")
    places = [
        n for n, layer in enumerate(layers) if not all(gives_nothing(layer.get_submodule(part)) for part in parts)
    ]
    return places or [0]


def idle_norms(model: nn.Module) -> set[str]:
    """The names of norms before an attention or MLP whose units are all gone: their numbers change nothing."""
    names = set[str]()
    for number, layer in enumerate(_base(model).layers):
        present = layer.state_dict()
        names |= {f"model.layers.{number}.{norm}.weight" for norm in _idle(layer) if f"{norm}.weight" in present}
    return names


def _idle(layer: nn.Module) -> set[str]:
    return {norm for writer, norms in IDLE.items() if is_empty(layer.get_submodule(writer)) for norm in norms}


def gives_nothing(writer: Any) -> bool:
    """Whether all units that a matrix writes for are gone, and it has no bias that would stay."""
    return is_empty(writer) and (writer.bias is None or not len(writer.bias))


def is_empty(matrix: Any) -> bool:
    """Whether all units of a matrix are gone."""
    return int(matrix.weight.numel()) == 0


class _Layer(NamedTuple):
    """A layer of the model, its number in the file, and the heads that the file gives it."""

    module: nn.Module
    number: int
    heads: int
    kv_heads: int
    architecture: str


def _layer(layer: _Layer, read: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of one layer by transformers' names within it."""
    size = int(_attention(layer.module).head_dim)
    places, out = _places(layer), {}
    idle = _idle(layer.module)
    for name, parameter in layer.module.state_dict().items():
        if not parameter.numel() or name.rpartition(".")[0] in idle:
            continue
        owner, _, ending = name.rpartition(".")
        theirs = LAYER_NAMES[owner]
        if layer.architecture == "openelm" and theirs in (QUERY, KEY, VALUE):
            rows = [count * size for count in (layer.heads, layer.kv_heads, layer.kv_heads)]
            parts = read(f"blk.{layer.number}.attn_qkv.{ending}").split(rows)
            value = parts[(QUERY, KEY, VALUE).index(theirs)]
        else:
            value = read(f"blk.{layer.number}.{theirs}.{ending}")
        if theirs in (QUERY, KEY) and layer.architecture in PAIRED:
            value = halves(value, size)
        if theirs in places:
            value = value[(torch.tensor(places[theirs])[:, None] * size + torch.arange(size)).flatten()]
        for axis, count in enumerate(parameter.shape):  # neurons of zeros are behind the others
            more = value.narrow(axis, count, value.shape[axis] - count)
            if more.any():
                raise ValueError(
                    f"{name} has {value.shape[axis]} numbers along axis {axis}, where the config has {count}"
                )
            value = value.narrow(axis, 0, count)
        out[name] = value.contiguous()
    return out


def _places(layer: _Layer) -> dict[str, list[int]]:
    """Where the key-value heads of the model are among those of the file, by matrix; nothing where they are the same.

    Uneven groups may be written with a copy of its key-value head for each query head; the first copy is the one.
    """
    attention = _attention(layer.module)
    if is_empty(attention.o_proj):
        return {}
    queries, keys = (int(m.weight.shape[0]) // int(attention.head_dim) for m in (attention.q_proj, attention.k_proj))
    if (queries, keys) == (layer.heads, layer.kv_heads):
        return {}
    kv_of = getattr(attention, "headcount_kv_of", None)
    if kv_of is None or not layer.heads == layer.kv_heads == queries:
        raise ValueError(f"layer {layer.number} has {layer.heads} heads, where the config has {queries}")
    own = [list(kv_of).index(group) for group in range(keys)]
    return {KEY: own, VALUE: own}


def halves(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Rows of heads (heads x size, ...) in transformers' order, from pairs that are turned together as llama.cpp has them."""
    return rows.reshape(-1, size // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def pairs(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Rows of heads (heads x size, ...) in llama.cpp's order, where the two that are turned together are neighbours."""
    return rows.reshape(-1, 2, size // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _of_layer(value: Any, number: int) -> int:
    return int(value[number] if isinstance(value, list) else value)


def _attention(layer: nn.Module) -> Any:
    return layer.get_submodule("self_attn")


def _base(model: nn.Module) -> Any:
    return model.get_submodule("model")
