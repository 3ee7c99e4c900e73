"""Small decoders of the families that llama.cpp holds, and tokenizers of the types that it reads."""

from __future__ import annotations

import json
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import nn
from transformers import PreTrainedTokenizerFast

from headcount.exports.llama_cpp import tokenizer as rules

VOCABULARY = 420
CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
NAMES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def decoder(family: str, seed: int = 0, **config: Any) -> nn.Module:
    """A decoder of four layers whose weights are large enough that every one of them is seen in the logits."""
    settings = {**CONFIG, **config}
    if family == "qwen2":  # its heads are as wide as the config says only where it is asked
        settings.pop("head_dim")
    made = getattr(transformers, f"{NAMES[family]}Config")(**settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = getattr(transformers, f"{NAMES[family]}ForCausalLM")(made).eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.5 if "embed" in name else parameter.shape[1] ** -0.5)
            elif name.endswith("bias"):
                parameter.data.normal_(std=0.5)
            else:
                parameter.data.normal_(mean=1.0, std=0.2)
    return model


def byte_tokenizer(pre: str = "gpt-2", **settings: Any) -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained on a few sentences, that splits texts as llama.cpp's `pre` does."""
    rule, whole = next(key for key, name in rules.NAMES.items() if name == pre)
    plain = rule.removeprefix("digits ") == rules.GPT2
    digits = [pre_tokenizers.Digits(individual_digits=True)] if rule.startswith("digits ") else []
    split = [] if plain else [pre_tokenizers.Split(Regex(rule), "isolated")]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*digits, *split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=plain)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*rules.TEXTS] * 3, trainer)
    data = json.loads(tokenizer.to_str())
    data["model"]["ignore_merges"] = whole
    names = {"unk_token": SPECIAL[0], "bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "pad_token": SPECIAL[2]}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(data)), **names, **settings)


def sentencepiece_tokenizer(prefix: str = "legacy") -> PreTrainedTokenizerFast:
    """A tokenizer as those made from sentencepiece are: marks for spaces, bytes for what is unknown, <s> before a text."""
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    words.train_from_iterator(
        [*rules.TEXTS[:2]] * 3, trainers.BpeTrainer(vocab_size=140, special_tokens=special, show_progress=False)
    )
    trained = json.loads(words.to_str())["model"]
    pieces = sorted(trained["vocab"], key=trained["vocab"].get)
    vocabulary = [*special, *(f"<0x{n:02X}>" for n in range(256)), *(piece for piece in pieces if piece not in special)]
    numbers = {piece: number for number, piece in enumerate(vocabulary)}
    merges = [tuple(pair) for pair in trained["merges"]]
    tokenizer = Tokenizer(models.BPE(numbers, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if prefix == "legacy":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix, split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
