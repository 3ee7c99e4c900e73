"""A cut decoder as one GGUF file, which stock llama.cpp runs: what it cannot hold, the file, and the comparison.

The layers are in `llama_cpp/layers.py`, the tokenizer in `llama_cpp/tokenizer.py`. The model's config with the record of its cut
lies in the file, too, so that `load` gives the cut model back.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import BadCheckpoint, LoadingNote, Refused
from ..formatting import counted
from ..model.checkpoints import load
from ..model.cutting.biases import RECORDED, given_biases
from ..model.cutting.surgery import cut, record, removed
from ..model.discovery import find, unwrap
from ..model.loading.gguf_files import CONFIG, UNEVEN, head, idle_norms, is_empty
from ..model.loading.number_formats import stored_format
from ..model.portable import empty_model
from .even_groups import with_even_groups
from .formats import Check, Limit, Settings
from .llama_cpp import runtime
from .llama_cpp.layers import Layout, Tensor, layer_limits, layout_of, tensors_of
from .llama_cpp.tokenizer import Proof, Vocabulary, vocabulary

DTYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
BLOCK = 32  # numbers of a row that q8_0 and q4_0 store together, with one scale
BLOCKED = ("q8_0", "q4_0")
STORED = {torch.float16: "f16", torch.bfloat16: "bf16"}
PROOFS = "headcount.tokenized"  # the key of the texts whose tokens llama.cpp is asked for
# Log-probabilities of llama.cpp may differ by so much from torch's: sums of float32 come in other orders. Where the weights are
# in a smaller format, it may round what it multiplies with them, too: by that, their root mean square may differ twice over.
ALLOWED = 0.004
SPARE = 8  # places of its cache beyond the tokens of a text
# how far a number may be from the model's, as a share of the largest of its row, where a scale is shared
ROUNDED = {"q8_0": 1 / 200, "q4_0": 1 / 7.5}
MOST_LIKELY = 10
PLACES = 4  # of each text, at which the next token is compared


# -- what it cannot hold -------------------------------------------------------------------------------------------------


def limits(model: nn.Module, settings: Settings) -> list[Limit]:
    """What of this model and these settings GGUF and llama.cpp cannot hold."""
    found = list(_settings_limits(settings))
    of_layers = layer_limits(model, settings)
    if found or of_layers:
        return [*of_layers, *found]
    dtype = chosen_dtype(model, settings)
    return list(_width_limits(model, settings, dtype)) if dtype in BLOCKED else []


def _settings_limits(settings: Settings) -> Iterator[Limit]:
    dtype = settings.dtype
    if dtype is not None and "_k" in dtype.lower():
        yield Limit(
            f"{dtype} is made by llama.cpp's own quantiser",
            f"export with --dtype f16 --multiple 256 and run llama-quantize FILE.gguf OUT.gguf {dtype.upper()}",
        )
    elif dtype is not None and dtype not in DTYPES:
        yield Limit(f"there is no number format {dtype!r:.20}", f"use one of {', '.join(DTYPES)}")
    if settings.int8:
        yield Limit("--int8 is for onnx and openvino", "use --dtype q8_0")
    if settings.tensor_parallel != 1:
        yield Limit("--tensor-parallel is for vllm", "leave it out: llama.cpp shares layers out by itself")


def _width_limits(model: nn.Module, settings: Settings, dtype: str) -> Iterator[Limit]:
    root: Any = unwrap(model)
    hidden = root.config.hidden_size
    if hidden % BLOCK:
        yield Limit(
            f"{dtype} stores {BLOCK} numbers of a row together, and this model is {hidden} wide", "use --dtype f16"
        )
    for layer in layout_of(root, settings).layers:
        if layer.neurons % BLOCK:
            yield Limit(
                f"layer {layer.place} has {layer.neurons:,} neurons, and {dtype} stores {BLOCK} numbers of a row together",
                f"use --multiple {BLOCK}, which fills up with neurons of zeros (exact), or --dtype f16",
            )


def chosen_dtype(model: nn.Module, settings: Settings) -> str:
    """The number format of the matrices: what the user chose, or else the one that the weights are stored in."""
    if settings.dtype is not None:
        return settings.dtype
    root: Any = unwrap(model)
    return STORED.get(stored_format(root) or root.dtype, "f32")


# -- the file ------------------------------------------------------------------------------------------------------------


def write(model: nn.Module, target: Path, settings: Settings, *, source: str | None, tokenizer: Any) -> tuple[str, ...]:
    """Write the model and its tokenizer to a file that is not there; returns notes for the user."""
    import gguf

    root: Any = unwrap(model)
    words = vocabulary(tokenizer, source, root.get_input_embeddings().weight.shape[0])
    layout, dtype = layout_of(root, settings), chosen_dtype(root, settings)
    tensors = [(tensor, _format_of(tensor, dtype)) for tensor in tensors_of(root, layout)]
    writer = gguf.GGUFWriter(str(target), layout.architecture)
    try:
        _write_keys(writer, root, layout, dtype)
        _write_tokenizer(writer, words)
        for tensor, kind in tensors:
            size = (
                gguf.quants.quant_shape_to_byte_shape(tensor.shape, kind) if kind.name.startswith(("Q", "B")) else None
            )
            itemsize = 2 if kind.name == "F16" else 4
            bytes_of = int(np.prod(size)) if size else int(np.prod(tensor.shape)) * itemsize
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), bytes_of, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor, kind in tensors:
            writer.write_tensor_data(_stored(tensor, kind))
    finally:
        writer.close()
    return (*words.notes, *_notes(root, layout, settings, tensors, dtype))


def _format_of(tensor: Tensor, dtype: str) -> Any:
    """The number format of a tensor: float32 for vectors, float16 where rows do not come out in blocks.

    Four bits are too few for embeddings and what makes the output.
    """
    from gguf import GGMLQuantizationType

    if not tensor.is_matrix:
        return GGMLQuantizationType.F32
    if dtype in BLOCKED and tensor.shape[-1] % BLOCK:
        return GGMLQuantizationType.F16
    if dtype == "q4_0" and not tensor.name.startswith("blk."):
        return GGMLQuantizationType.Q8_0
    return GGMLQuantizationType[dtype.upper()]


def _stored(tensor: Tensor, kind: Any) -> np.ndarray:
    """The numbers of a tensor as they are in the file."""
    from gguf.quants import quantize

    values = tensor.make()
    if tuple(values.shape) != tensor.shape:
        raise BadCheckpoint(f"{tensor.name} has the shape {tuple(values.shape)}, and {tensor.shape} was announced.")
    if kind.name == "F16" and not bool(torch.isfinite(values.half()).all()):
        largest = float(values.abs().max())
        raise Refused(
            f"gguf cannot hold this model in f16: {tensor.name} has a number of {largest:.3g}, beyond 65504: use --dtype bf16 "
            "or f32."
        )
    return np.ascontiguousarray(quantize(values.contiguous().numpy(), kind))


def _write_keys(writer: Any, root: Any, layout: Layout, dtype: str) -> None:
    """What llama.cpp and `load` need to know about the model."""
    import gguf

    config, layers = root.config, layout.layers
    names = {"f32": "ALL_F32", **{name: f"MOSTLY_{name.upper()}" for name in DTYPES if name != "f32"}}
    writer.add_type("model")
    writer.add_name(str(getattr(config, "name_or_path", "") or type(root).__name__).rstrip("/").rpartition("/")[2])
    writer.add_file_type(int(gguf.LlamaFileType[names[dtype]]))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_string(CONFIG, json.dumps(_config(root)))
    writer.add_block_count(len(layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    uneven = layout.architecture in UNEVEN
    per_layer = (writer.add_head_count, writer.add_head_count_kv, writer.add_feed_forward_length)
    for add, counts in zip(per_layer, zip(*(layer[1:] for layer in layers), strict=True), strict=True):
        add(list(counts) if uneven else counts[0])
    writer.add_key_length(layout.head_size)
    writer.add_value_length(layout.head_size)
    writer.add_rope_dimension_count(layout.head_size)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(root.get_input_embeddings().weight.shape[0])


def _config(root: Any) -> dict[str, Any]:
    """The config as a folder would have it: with the record of the cut, and the number format of the weights."""
    written = json.loads(root.config.to_json_string(use_diff=False))
    written["headcount"] = getattr(root.config, "headcount", None) or _record(root)
    dtype = stored_format(root) or root.dtype
    return {**written, "dtype": str(dtype).removeprefix("torch."), "tie_word_embeddings": _is_tied(root)}


def _record(root: Any) -> dict[str, Any] | None:
    """The record of what was cut, made again where repeating key-value heads has taken it away; None of a whole model."""
    plan = removed(root)
    if not plan:
        return None
    config = copy.deepcopy(root.config)
    stacks = [stack for stack in find(root).stacks if len(stack) < stack.of]
    for stack in stacks:
        config.num_hidden_layers = stack.of
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:1] * stack.of  # they are all of one type
    whole = empty_model(type(root), config)
    cut(whole, plan)
    names = given_biases(whole, root)
    return {**record(whole), **({RECORDED: names} if names else {})}


def _is_tied(root: Any) -> bool:
    return root.lm_head.weight is root.get_input_embeddings().weight


def _write_tokenizer(writer: Any, words: Vocabulary) -> None:
    writer.add_string(PROOFS, json.dumps([proof._asdict() for proof in words.proofs]))
    writer.add_tokenizer_model(words.model)
    writer.add_tokenizer_pre(words.pre)
    writer.add_token_list(words.pieces)
    writer.add_token_types(words.kinds)
    if words.merges:
        writer.add_token_merges(words.merges)
    if words.scores:
        writer.add_token_scores(words.scores)
    for name, number in words.special.items():
        getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(words.add_bos)
    writer.add_add_eos_token(words.add_eos)
    if words.space_prefix is not None:
        writer.add_add_space_prefix(words.space_prefix)
    if words.chat_template is not None:
        writer.add_chat_template(words.chat_template)


def _notes(
    root: Any, layout: Layout, settings: Settings, tensors: list[tuple[Tensor, Any]], dtype: str
) -> Iterator[str]:
    """What was filled up or left out, and what it means."""
    beside = " with the embeddings in q8_0" if dtype == "q4_0" else ""
    yield f"llama.cpp's architecture {layout.architecture}, {dtype}{beside}"
    layers = root.model.layers
    gone = len(layers) - len(layout.layers)
    if gone:
        yield f"{counted(gone, 'layer')} of nothing {'is' if gone == 1 else 'are'} left out"
    phantom = sum(bool(row.heads) and is_empty(layers[row.place].self_attn.o_proj) for row in layout.layers)
    if phantom:
        yield f"{counted(phantom, 'attention')} of nothing {'is' if phantom == 1 else 'are'} one head with zero output"
    added = sum(row.neurons - layers[row.place].mlp.down_proj.weight.shape[1] for row in layout.layers)
    if added:
        yield f"{added:,} neurons of zeros are added"
    odd = [tensor.name for tensor, kind in tensors if dtype in BLOCKED and tensor.is_matrix and kind.name == "F16"]
    if odd:
        yield f"{len(odd)} matrices whose rows are no multiple of {BLOCK} are in f16, first {odd[0]}"
    if (settings.multiple or 1) % 256 == 0:
        yield "for K-quants run llama.cpp's own quantiser on it: llama-quantize FILE.gguf OUT.gguf Q4_K_M"


# -- the comparison ------------------------------------------------------------------------------------------------------


def check(model: nn.Module, target: Path, settings: Settings, *, batch: dict[str, Any]) -> Check:
    """Read the file again, compare its weights with the model's, and what llama.cpp gives with what these weights give."""
    root: Any = unwrap(model)
    dtype = chosen_dtype(root, settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoadingNote)
        loaded = load(target, dtype=torch.float32)
    reference = with_even_groups(root, "pad")[0] if settings.groups == "pad" else root
    beyond = _beyond_rounding(reference, loaded, dtype)
    if beyond > 0:
        return Check("headcount's own reader", beyond, 0.0, "the weights in the file, beyond their rounding,")
    if not runtime.is_installed():
        note = f"llama.cpp is not installed here (pip install {runtime.WHEEL}): neither its numbers nor its tokens were compared"
        return Check(
            "headcount's own reader", 0.0, 0.0, f"the weights in the file, beyond their rounding to {dtype},", (note,)
        )
    rows = _texts(batch)
    whole, plain = ([_log_probabilities(one, row) for row in rows] for one in (root, loaded))
    gaps = []
    with runtime.running(target, max(map(len, rows)) + SPARE, exact=True) as server:
        for row, table in zip(rows, plain, strict=True):
            for place in _places(len(row)):
                likely = runtime.top_logprobs(server, row[: place + 1].tolist(), min(MOST_LIKELY, table.shape[1]))
                gaps.append(_apart(likely, table[place]))
        _compare_tokens(server, target)
    apart = torch.cat(gaps)
    compared = f"log-probabilities of the {MOST_LIKELY} likeliest next tokens at {PLACES} places of {len(rows)} texts"
    if dtype == "f32":
        return Check(runtime.name(), float(apart.max()), ALLOWED, compared)
    with _rounded_inputs(loaded, dtype):
        noise = _noise([_log_probabilities(loaded, row) for row in rows], plain)
    moved = f"rounding the weights to {dtype} moves these log-probabilities by {_noise(plain, whole):.1e} (root mean square)"
    return Check(runtime.name(), _rms(apart), ALLOWED + 2 * noise, f"{compared} (root mean square)", (moved,))


def _log_probabilities(model: Any, row: torch.Tensor) -> torch.Tensor:
    """Of every next token (places, tokens)."""
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=row[None]).logits[0].double(), -1)


def _noise(tables: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """How far tables are apart at the places that are compared, among the likeliest tokens of the second."""
    gaps = []
    for table, other in zip(tables, others, strict=True):
        places = torch.tensor(_places(len(table)))
        top = other[places].topk(min(MOST_LIKELY, other.shape[1]))
        gaps.append((table[places].gather(1, top.indices) - top.values).flatten())
    return _rms(torch.cat(gaps))


def _rms(gaps: torch.Tensor) -> float:
    return float(gaps.square().mean().sqrt())


@contextmanager
def _rounded_inputs(model: nn.Module, dtype: str) -> Iterator[None]:
    """Within the block what is multiplied with a matrix is rounded before, as llama.cpp does for weights in this format."""

    def rounded(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        x = inputs[0]
        if dtype == "bf16":
            return x.bfloat16().float()
        if dtype == "f16" or x.shape[-1] % BLOCK:
            return x.half().float()
        blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        return ((blocks / scale.clamp(min=1e-30)).round() * scale.half().float()).reshape(x.shape)

    matrices = [module for module in model.modules() if isinstance(module, nn.Linear)] if dtype != "f32" else []
    hooks = [module.register_forward_pre_hook(rounded) for module in matrices]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _beyond_rounding(root: Any, loaded: Any, dtype: str) -> float:
    """How far weights that were read again are from the model's, beyond what their number format rounds."""
    worst, read, idle = 0.0, loaded.state_dict(), idle_norms(root)
    for name, weight in root.state_dict().items():
        mine, theirs = weight.detach().float().cpu(), read[name]
        if mine.shape != theirs.shape:
            raise BadCheckpoint(
                f"{name} came back from the file as {tuple(theirs.shape)}, and was {tuple(mine.shape)}."
            )
        if not mine.numel() or name in idle:
            continue
        if mine.dim() < 2 or dtype == "f32":
            apart = (mine - theirs).abs()
        elif dtype in BLOCKED:
            apart = (mine - theirs).abs() - mine.abs().amax(-1, keepdim=True) * ROUNDED[dtype]
        else:
            rounded = mine.half() if dtype == "f16" else mine.bfloat16()
            apart = (rounded.float() - theirs).abs()
        worst = max(worst, float(apart.max()))
    return worst


def _texts(batch: dict[str, Any]) -> list[torch.Tensor]:
    """The tokens of each text of a batch, without what fills it up."""
    if "input_ids" not in batch:
        raise BadCheckpoint("The batch to compare on has no input_ids, which is what a decoder reads; leave batch out.")
    ids = torch.as_tensor(batch["input_ids"]).cpu()
    mask = torch.as_tensor(batch.get("attention_mask", torch.ones_like(ids))).cpu().bool()
    return [row[kept] for row, kept in zip(ids, mask, strict=True)]


def _places(length: int) -> Sequence[int]:
    """Places in a text, the last one among them."""
    return sorted({length * n // PLACES - 1 for n in range(1, PLACES + 1)} - {-1})


def _apart(likely: list[tuple[int, float]], ours: torch.Tensor) -> torch.Tensor:
    """The differences between llama.cpp's likeliest tokens and ours: token by token, and rank by rank."""
    theirs = torch.tensor([value for _, value in likely], dtype=torch.float64)
    same_token = ours[[number for number, _ in likely]]
    same_rank = ours.topk(len(likely)).values
    gaps = torch.cat([theirs - same_token, theirs.sort(descending=True).values - same_rank]).abs()
    return gaps.nan_to_num(float("inf"))


def _compare_tokens(server: Any, target: Path) -> None:
    """`Refused` where llama.cpp makes other tokens of the texts in the file than the model's own tokenizer."""
    for row in json.loads(head(target).get(PROOFS, "[]")):
        proof = Proof(row["text"], tuple(row["ids"]), row["around"])
        got = runtime.tokens(server, proof.text, proof.around)
        if tuple(got) != proof.ids:
            raise Refused(
                f"gguf cannot hold this tokenizer: llama.cpp makes {got[:12]} of {proof.text[:40]!r}, and the model's own makes "
                f"{list(proof.ids[:12])}; export to transformers or onnx, which take it as it is."
            )
