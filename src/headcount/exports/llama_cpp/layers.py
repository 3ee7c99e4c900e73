"""A cut decoder as llama.cpp holds it: the architecture that can, the sizes of each layer, and its matrices.

Stock architectures have one number of heads and neurons for all layers. `deci` has them per layer, and `openelm` with norms of
queries and keys, for Qwen3. Three fillings of zeros change nothing: an attention of nothing becomes one head whose output is
zero, an MLP of nothing 32 neurons of zeros, and neurons are filled up to a multiple. A layer of nothing is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ...model.discovery import unwrap
from ...model.loading.gguf_files import CLASSES, PAIRED, is_empty, pairs, written_layers
from ...model.matrices import Bypass
from ..even_groups import group_limits
from ..formats import Limit, Settings

NO_NEURONS = 32  # zero neurons in the place of an MLP that is gone: llama.cpp drops the attention beside one of 0
ELSEWHERE = "export to transformers or onnx, which hold it"
ROPES = ("default", "linear", "llama3")  # rotations whose frequencies do not depend on the length of the text
MATRICES: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MATRICES += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class Sizes(NamedTuple):
    """A layer as it is written: its place in the model, query and key-value heads, and neurons."""

    place: int
    heads: int
    kv_heads: int
    neurons: int


class Tensor(NamedTuple):
    """A tensor of the file: its name, its shape, and what makes it in float32."""

    name: str
    shape: tuple[int, ...]
    make: Callable[[], torch.Tensor]

    @property
    def is_matrix(self) -> bool:
        """Whether it is stored in the number format of the file; vectors are in float32."""
        return len(self.shape) > 1


@dataclass(frozen=True)
class Layout:
    """How llama.cpp holds a model."""

    architecture: str
    head_size: int
    layers: tuple[Sizes, ...]

    @property
    def is_even(self) -> bool:
        """Whether all layers have the same sizes."""
        return len({layer[1:] for layer in self.layers}) == 1


# -- what cannot be held -------------------------------------------------------------------------------------------------


def layer_limits(model: nn.Module, settings: Settings) -> list[Limit]:
    """What of a model no architecture of llama.cpp holds; shapes are read, and no weights."""
    root: Any = unwrap(model)
    strange = _family_limit(root)
    if strange is not None:
        return [strange]
    config = root.config
    limits = list(_config_limits(config))
    wrong = [
        f"{path} in layer {n} is a {type(layer.get_submodule(path)).__name__}"
        for n, layer in enumerate(root.model.layers)
        for path in MATRICES
        if type(layer.get_submodule(path)) not in (nn.Linear, Bypass)
    ]
    if wrong:
        limits.append(
            Limit(f"{wrong[0]}, and the file holds plain matrices", "load the model without quantisation or adapters")
        )
        return limits
    sizes = {int(layer.self_attn.head_dim) for layer in root.model.layers}
    if len(sizes) > 1 or min(sizes) % 2:
        limits.append(Limit(f"its heads are {sorted(sizes)} wide, and llama.cpp has one even width for all", ELSEWHERE))
    if any(getattr(layer.self_attn, "headcount_kv_of", None) is not None for layer in root.model.layers):
        return [*limits, *group_limits(model)]
    if limits:
        return limits
    layout = layout_of(root, settings)
    if config.model_type == "qwen3" and layout.architecture == "openelm":
        limits += _openelm_limits(root)
    return limits


def _family_limit(root: Any) -> Limit | None:
    config = getattr(root, "config", None)
    kind, family = type(root).__name__, getattr(config, "model_type", None)
    if kind in CLASSES.values() and family in CLASSES:
        return None
    held = "Llama, Mistral, Qwen2, Qwen3 and SmolLM with their language-model heads"
    if family in CLASSES:
        return Limit(
            f"it is a {kind}, and the decoders that can be written are {held}", "export to transformers or onnx"
        )
    if hasattr(config, "num_experts") or hasattr(config, "num_local_experts") or "moe" in str(family):
        return Limit(f"{kind} is a mixture of experts, and the decoders that can be written are {held}", ELSEWHERE)
    return Limit(f"it is a {kind}, and the decoders that can be written are {held}", ELSEWHERE)


def _config_limits(config: Any) -> Iterator[Limit]:
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()) or (
        window is not None and config.model_type == "mistral" and window < config.max_position_embeddings
    ):
        yield Limit(
            f"its attention has a sliding window of {window} tokens, which no architecture with layers of uneven sizes has",
            ELSEWHERE,
        )
    if config.hidden_act not in ("silu", "swish"):
        yield Limit(f"its MLPs have the activation {config.hidden_act}, and llama.cpp's have silu", ELSEWHERE)
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind not in ROPES:
        yield Limit(f"its positions are scaled by {kind}, and what can be written is {', '.join(ROPES)}", ELSEWHERE)
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        yield Limit("only a part of each head is rotated", ELSEWHERE)


def _openelm_limits(root: Any) -> Iterator[Limit]:
    uneven = "uneven layers of Qwen3 go into llama.cpp's openelm, which has no"
    if root.lm_head.weight is not root.model.embed_tokens.weight:
        yield Limit(
            f"{uneven} output matrix beside the embeddings",
            f"{ELSEWHERE}; or cut the same number of heads and neurons in every layer",
        )
    if any(
        getattr(layer.get_submodule(path), "bias", None) is not None for layer in root.model.layers for path in MATRICES
    ):
        yield Limit(f"{uneven} biases", ELSEWHERE)
    if rope_factors(root) is not None:
        yield Limit(f"{uneven} scaling of positions", ELSEWHERE)


# -- the layout ----------------------------------------------------------------------------------------------------------


def layout_of(model: nn.Module, settings: Settings) -> Layout:
    """The architecture and the sizes of the layers of a model that is within the limits."""
    root: Any = unwrap(model)
    layers, family = root.model.layers, root.config.model_type
    places = written_layers(layers)
    width = int(layers[0].self_attn.head_dim)
    deci = family != "qwen3"
    sizes = tuple(_sizes(layers[place], place, number, width, settings, deci) for number, place in enumerate(places))
    even = Layout({"qwen2": "qwen2", "qwen3": "qwen3"}.get(family, "llama"), width, sizes)
    if family == "qwen3":
        stock = not _biased(root, MATRICES) and rope_factors(root) is None
    elif family == "qwen2":
        stock = not _biased(root, MATRICES[3:]) and rope_factors(root) is None
    else:
        stock = not _biased(root, MATRICES)
    if even.is_even and stock and sizes[0].heads:
        return even
    return Layout("deci" if deci else "openelm", width, sizes)


def _biased(root: Any, paths: tuple[str, ...]) -> bool:
    return any(
        getattr(layer.get_submodule(path), "bias", None) is not None for layer in root.model.layers for path in paths
    )


def _sizes(layer: Any, place: int, number: int, width: int, settings: Settings, deci: bool) -> Sizes:
    attention, mlp = layer.self_attn, layer.mlp
    heads, kv_heads = (int(m.weight.shape[0]) // width for m in (attention.q_proj, attention.k_proj))
    if is_empty(attention.o_proj):
        # llama.cpp does not load a first layer of no heads; a bias of the output needs a head to be added to
        stays = number == 0 or not deci or attention.o_proj.bias is not None
        heads = kv_heads = 1 if stays else 0
    neurons = int(mlp.down_proj.weight.shape[1]) or NO_NEURONS
    step = settings.multiple or 1
    return Sizes(place, heads, kv_heads, -(-neurons // step) * step)


def rope_factors(model: nn.Module) -> torch.Tensor | None:
    """By what the frequencies of the rotation are divided (half a head), or None where they are plain."""
    root: Any = unwrap(model)
    rotary, config = root.model.rotary_emb, root.config
    width = int(root.model.layers[0].self_attn.head_dim)
    theta = float(config.rope_parameters["rope_theta"])
    plain = theta ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    factors = plain / rotary.inv_freq.double().cpu()
    return None if torch.allclose(factors, torch.ones_like(factors), rtol=1e-5) else factors.float()


# -- the matrices --------------------------------------------------------------------------------------------------------


def tensors_of(model: nn.Module, layout: Layout) -> Iterator[Tensor]:
    """The tensors of the file in order; none is in memory before it is made."""
    root: Any = unwrap(model)
    embeddings, head = root.model.embed_tokens.weight, root.lm_head.weight
    yield _plain("token_embd.weight", embeddings)
    yield _plain("output_norm.weight", root.model.norm.weight)
    if head is not embeddings:
        yield _plain("output.weight", head)
    factors = rope_factors(root)
    if factors is not None:
        yield _plain("rope_freqs.weight", factors)
    for number, sizes in enumerate(layout.layers):
        layer = root.model.layers[sizes.place]
        name = f"blk.{number}."
        if sizes.heads:
            yield _plain(name + "attn_norm.weight", layer.input_layernorm.weight)
            for tensor in _attention(layer.self_attn, sizes, layout):
                yield tensor._replace(name=name + tensor.name)
        yield _plain(name + "ffn_norm.weight", layer.post_attention_layernorm.weight)
        for tensor in _mlp(layer.mlp, sizes):
            yield tensor._replace(name=name + tensor.name)


def _plain(name: str, weight: torch.Tensor) -> Tensor:
    return Tensor(name, tuple(weight.shape), lambda: float32(weight))


def float32(weight: torch.Tensor) -> torch.Tensor:
    """A weight as it is written, before it is rounded."""
    return weight.detach().to("cpu", torch.float32)


def _attention(attention: Any, sizes: Sizes, layout: Layout) -> Iterator[Tensor]:
    """Queries, keys and values (heads x size, hidden), the output (hidden, heads x size), and what else there is of them."""
    width, paired = layout.head_size, layout.architecture in PAIRED
    rows = {"q": sizes.heads * width, "k": sizes.kv_heads * width, "v": sizes.kv_heads * width}
    made = {}
    for letter, count in rows.items():
        matrix = attention.get_submodule(f"{letter}_proj")
        turned = width if paired and letter != "v" else None
        made[letter] = list(_filled_rows(f"attn_{letter}", matrix, count, turned))
    if layout.architecture == "openelm":
        weights = [tensors[0] for tensors in made.values()]
        shape = (sum(rows.values()), weights[0].shape[1])
        yield Tensor("attn_qkv.weight", shape, lambda: torch.cat([tensor.make() for tensor in weights]))
    else:
        for tensors in made.values():
            yield from tensors
    for letter in ("q", "k"):
        norm = getattr(attention, f"{letter}_norm", None)
        if norm is not None:
            yield _plain(f"attn_{letter}_norm.weight", norm.weight)
    yield from _filled_columns("attn_output", attention.o_proj, sizes.heads * width)


def _mlp(mlp: Any, sizes: Sizes) -> Iterator[Tensor]:
    """Gate and up (neurons, hidden) and down (hidden, neurons)."""
    yield from _filled_rows("ffn_gate", mlp.gate_proj, sizes.neurons)
    yield from _filled_rows("ffn_up", mlp.up_proj, sizes.neurons)
    yield from _filled_columns("ffn_down", mlp.down_proj, sizes.neurons)


def _filled_rows(name: str, matrix: Any, rows: int, turned: int | None = None) -> Iterator[Tensor]:
    """A matrix (and its bias) with rows of zeros at its end; `turned` is the width of heads whose rows go into pairs."""

    def made(tensor: torch.Tensor) -> torch.Tensor:
        tensor = float32(tensor)
        filled = torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])
        return filled if turned is None else pairs(filled, turned)

    weight, bias = matrix.weight, matrix.bias
    yield Tensor(f"{name}.weight", (rows, weight.shape[1]), lambda: made(weight))
    if bias is not None:
        # the bias of what is gone has no rows, or those of the phantom unit that stands for it
        bias = bias[: len(weight)]
        yield Tensor(f"{name}.bias", (rows,), lambda: made(bias))


def _filled_columns(name: str, matrix: Any, columns: int) -> Iterator[Tensor]:
    """A matrix (and its bias) with columns of zeros at its end."""

    def made() -> torch.Tensor:
        tensor = float32(weight)
        return torch.cat([tensor, tensor.new_zeros(len(tensor), columns - tensor.shape[1])], dim=1)

    weight = matrix.weight
    yield Tensor(f"{name}.weight", (weight.shape[0], columns), made)
    if matrix.bias is not None:
        yield _plain(f"{name}.bias", matrix.bias)


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The numbers of a tensor side by side in memory."""
    return np.ascontiguousarray(tensor.numpy())
