"""A small llama as a GGUF file, with its tokenizer, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries and keys in llama.cpp's order: the two halves of a head in turns."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(model: Any, path: Path, architecture: str = "llama") -> Path:
    """The weights of a LlamaForCausalLM in float32, and a tokenizer that knows as many words as the model."""
    import gguf

    config, writer = model.config, gguf.GGUFWriter(str(path), architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    words = ["<s>", "</s>", *(chr(ord("a") + n) for n in range(26))]
    words += ["ab", "ba"]
    words += [f"w{n}" for n in range(config.vocab_size - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, *[1] * (len(words) - 2)])
    writer.add_token_merges(["a b", "b a"])  # of one alone some readers make a text
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for name, tensor in model.state_dict().items():
        place, values = _name(name), tensor.detach().float().numpy()
        if place.endswith("attn_q.weight"):
            values = _interleaved(values, config.num_attention_heads)
        if place.endswith("attn_k.weight"):
            values = _interleaved(values, config.num_key_value_heads)
        writer.add_tensor(place, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _name(name: str) -> str:
    if name == "lm_head.weight":
        return "output.weight"
    if name.startswith("model.embed_tokens"):
        return "token_embd.weight"
    if name.startswith("model.norm"):
        return "output_norm.weight"
    layer, _, inner = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[inner.removesuffix('.weight')]}.weight"
