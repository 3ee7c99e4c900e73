"""A tokenizer of bytes that knows every text, and a small Llama with weights large enough that it has opinions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT = (
    "{% for message in messages %}<{{ message['role'] }}>\n{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)


def byte_tokenizer(begin: bool = True, template: str | None = None, longest: int = 128) -> Any:
    """One token for every byte, and merges of a space with a letter, as byte-level BPE has them at the seams of words."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "</s>", "<pad>"]
    merges = [("Ġ", letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
    words = [*special, *letters, *(first + second for first, second in merges)]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    if begin:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=longest, chat_template=template, **names)


def small_llama(seed: int = 0, **config: Any) -> nn.Module:
    """Two layers, four heads, two of keys."""
    sizes = {"vocab_size": 290, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 128, "bos_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(**{**sizes, **more, "eos_token_id": 1, "pad_token_id": 2, **config})
        ).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.3)
    return model


def saved(folder: Path, tokenizer: Any, **config: Any) -> Path:
    """The small Llama and the tokenizer in a folder, as a command takes them."""
    small_llama(**config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def log_probabilities(model: nn.Module, ids: Sequence[int]) -> Tensor:
    """The log-probability of every token but the first, each from those before it, one text at a time."""
    with torch.no_grad():
        logits = model(torch.tensor([list(ids)])).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(list(ids))[1:, None])[:, 0]
