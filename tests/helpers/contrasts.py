"""Contrast tasks for tests: tokenizers of whole words with and without a mask, tiny models, and prompts with answers."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from helpers.language import small_llama

WORDS = [
    "when",
    "mary",
    "john",
    "anna",
    "and",
    "went",
    "to",
    "the",
    "store",
    "park",
    "gave",
    "a",
    "book",
    "is",
    "red",
    "blue",
]
ROWS = [
    {"clean": "when mary and john went john gave a book to", "corrupted": "when mary and john went mary gave a book to",
     "answer": "mary", "wrong": "john"},
    {"clean": "anna and mary went to the park and mary gave to", "corrupted": "anna and mary went to the park and anna gave to",
     "answer": ["anna", "john"], "wrong": ["mary"]},
    {"clean": "when john went to anna john gave", "corrupted": "when john went to anna mary gave",
     "answer": "anna", "wrong": ["john", "mary", "red"]},
    {"clean": "the book is red and the store is", "corrupted": "the book is blue and the store is",
     "answer": "red", "wrong": "blue"},
    {"clean": "mary and anna went to the store and anna gave", "corrupted": "mary and anna went to the store and mary gave",
     "answer": "mary", "wrong": "anna"},
]  # fmt: skip
MASKED = [
    {**row, "clean": f"{row['clean']} [MASK] and a book", "corrupted": f"{row['corrupted']} [MASK] and a book"}
    for row in ROWS
]


def words_tokenizer(mask: bool = False, longest: int = 64) -> Any:
    """One token for each of the words; with a mask it puts nothing around a text either."""
    special = ["<s>", "</s>", "<pad>", "<unk>", *["[MASK]"] * mask]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    names |= {"mask_token": "[MASK]"} if mask else {}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=longest, **names)


def _opinionated(model: nn.Module, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.3)
    return model.eval()


def small_gpt2(layers: int = 2) -> nn.Module:
    """Two layers of four heads."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=32, n_embd=32, n_layer=layers, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=1
    )
    return _opinionated(GPT2LMHeadModel(config))


def small_bert(layers: int = 2) -> nn.Module:
    """Two layers of four heads that guess masked words."""
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 4, "intermediate_size": 48}
    return _opinionated(BertForMaskedLM(BertConfig(vocab_size=32, max_position_embeddings=64, pad_token_id=2, **sizes)))


def family(name: str) -> tuple[nn.Module, Any, list[dict[str, Any]]]:
    """A model, its tokenizer and rows of contrast data for it: gpt2, llama (grouped queries) or bert (masked words)."""
    if name == "bert":
        return small_bert(), words_tokenizer(mask=True), MASKED
    model = small_gpt2() if name == "gpt2" else small_llama(vocab_size=32)
    return model, words_tokenizer(), ROWS


FAMILIES = ("gpt2", "llama", "bert")


def alone(model: nn.Module, tokenizer: Any, prompt: str) -> Tensor:
    """The logits where a prompt is asked, in a pass of its own without padding: at its mask or its last token."""
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    at = ids.index(tokenizer.mask_token_id) if tokenizer.mask_token_id in ids else len(ids) - 1
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0, at].double()
