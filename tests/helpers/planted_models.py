"""Models in which it is known which heads matter, because their weights were set by hand.

A text holds one word of each of three kinds, in two forms each, among filler words; the eight labels are the eight ways
to choose the forms. One head per kind looks for its word and writes the form into a direction of its own, the only ones
that are read at the end. All other heads look at noise and write noise, where nothing is read. No dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification, MarianConfig, MarianMTModel

import headcount as hc

KINDS = 3
HIDDEN, HEADS, WIDTH = 32, 4, 8
LENGTH = 10
FIRST, FILLERS = 1, 16  # token 0 begins a text; then two forms of each kind, then words that mean nothing, then labels
LABELS = FIRST + 2 * KINDS + FILLERS
VOCABULARY = LABELS + 2**KINDS
# What a token is made of, each a direction of the hidden space: which kind it is, which form, what was found, and noise
IS, FORM, FOUND, CONSTANT, NOISE = range(KINDS), KINDS, range(KINDS + 1, 2 * KINDS + 1), 2 * KINDS + 1, range(8, 16)
Batch = dict[str, Tensor]


class Planted(NamedTuple):
    """A model, its task, the heads that the task cannot do without, and fresh examples by number and seed."""

    model: nn.Module
    task: hc.data.Task
    essential: frozenset[hc.Unit]
    draw: Callable[[int, int], Batch]


def planted(seed: int = 0, layers: int = 3) -> Planted:
    """A BERT whose heads `essential`, three of `layers` times 4 at places chosen by the seed, carry the label to [CLS]."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "intermediate_size": HIDDEN}
        config = BertConfig(
            vocab_size=VOCABULARY, num_hidden_layers=layers, num_labels=2**KINDS, max_position_embeddings=LENGTH, **sizes,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.02,
        )  # fmt: skip
        model = BertForSequenceClassification(config).eval()
        places = _places([f"{layer}" for layer in range(layers)])
        with torch.no_grad():
            bert = model.bert
            bert.embeddings.word_embeddings.weight.copy_(_words())
            bert.embeddings.position_embeddings.weight.zero_()
            bert.embeddings.token_type_embeddings.weight.zero_()
            for number, layer in enumerate(bert.encoder.layer):
                parts = layer.attention.self, layer.attention.output.dense
                _fill(parts[0].query, parts[0].key, parts[0].value, parts[1], _kinds_of(places, f"{number}"))
                layer.output.dense.weight.zero_()  # the MLP adds nothing
            bert.pooler.dense.weight.zero_()
            for kind in range(KINDS):
                bert.pooler.dense.weight[kind] = 1.5 * _direction(FOUND[kind])
            model.classifier.weight.zero_()
            model.classifier.weight[:, :KINDS] = 2.0 * _forms(torch.arange(2**KINDS))

    def values(model: nn.Module, batch: Batch) -> Tensor:
        return (model(input_ids=batch["input_ids"]).logits.argmax(-1) == batch["labels"]).float()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(input_ids=batch["input_ids"]).logits, batch["labels"], reduction="none")

    task = hc.custom_task([texts(64, 1000 + number) for number in range(4)], loss=loss, values=values, name="planted")
    return Planted(model, task, frozenset(places.values()), texts)


def planted_translator(seed: int = 0, layers: int = 2) -> Planted:
    """An encoder-decoder whose decoder says the label as one word, which three heads of its cross-attentions see."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in _MARIAN.items()}
        sides |= {"encoder_layers": layers, "decoder_layers": layers}
        config = MarianConfig(
            vocab_size=VOCABULARY, d_model=HIDDEN, max_position_embeddings=LENGTH, dropout=0.0, scale_embedding=False,
            pad_token_id=0, eos_token_id=0, decoder_start_token_id=0, tie_word_embeddings=False, **sides,
        )  # fmt: skip
        model = MarianMTModel(config).eval()
        places = _places([f"decoder.{layer}.cross" for layer in range(layers)])
        with torch.no_grad():
            for side in (model.model.encoder, model.model.decoder):
                side.embed_tokens.weight.copy_(_words())
                side.embed_positions.weight.zero_()
                for number, layer in enumerate(side.layers):
                    _fill_marian(layer.self_attn, {})
                    if side is model.model.decoder:
                        _fill_marian(layer.encoder_attn, _kinds_of(places, f"decoder.{number}.cross"))
                    layer.fc2.weight.zero_()
            found = torch.stack([_direction(direction) for direction in FOUND])
            model.lm_head.weight.zero_()
            model.lm_head.weight[LABELS:] = 3.0 * _forms(torch.arange(2**KINDS)) @ found
            model.final_logits_bias[:, :LABELS] = -20.0

    def pairs(count: int, seed: int) -> Batch:
        batch = texts(count, seed)
        return {**batch, "labels": batch["labels"][:, None] + LABELS}

    def values(model: nn.Module, batch: Batch) -> Tensor:
        return (model(**batch).logits.argmax(-1) == batch["labels"]).float()[:, 0]

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(**batch).logits[:, 0], batch["labels"][:, 0], reduction="none")

    task = hc.custom_task([pairs(64, 1000 + number) for number in range(4)], loss=loss, values=values, name="planted")
    return Planted(model, task, frozenset(places.values()), pairs)


_MARIAN = {"attention_heads": HEADS, "ffn_dim": HIDDEN}


def texts(count: int, seed: int) -> Batch:
    """Texts with their labels: a first token, one word of each kind and fillers, in any order."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(2**KINDS, (count,), generator=draw)
    words = FIRST + 2 * KINDS + torch.randint(FILLERS, (count, LENGTH - 1), generator=draw)
    words[:, :KINDS] = FIRST + 2 * torch.arange(KINDS) + (_forms(labels) > 0)
    order = torch.rand(count, LENGTH - 1, generator=draw).argsort(1)
    begin = torch.zeros(count, 1, dtype=torch.long)
    return {"input_ids": torch.cat([begin, words.gather(1, order)], 1), "labels": labels}


# --- weights --------------------------------------------------------------------------------------------------------


def _forms(labels: Tensor) -> Tensor:
    """(labels,) -> (labels, kinds): which form each label stands for, as -1 and 1."""
    return (labels[:, None] >> torch.arange(KINDS) & 1) * 2.0 - 1.0


def _direction(number: int) -> Tensor:
    """A direction whose entries add up to zero, so that layer norms only scale it."""
    out = torch.zeros(HIDDEN)
    out[number], out[number + HIDDEN // 2] = 0.5**0.5, -(0.5**0.5)
    return out


def _words() -> Tensor:
    """The embedding of every token. Both forms of a kind have the same noise: it says nothing about the form."""
    table = 3.0 * _direction(CONSTANT).repeat(VOCABULARY, 1)
    noise = torch.randn(VOCABULARY, len(NOISE)) @ torch.stack([_direction(number) for number in NOISE])
    for kind in range(KINDS):
        word = FIRST + 2 * kind
        table[word : word + 2] += 3.0 * _direction(IS[kind])
        table[word] -= 2.0 * _direction(FORM)
        table[word + 1] += 2.0 * _direction(FORM)
        noise[word + 1] = noise[word]
    return table + noise


def _places(sites: list[str]) -> dict[int, hc.Unit]:
    """Kind -> the head that finds it."""
    heads = [hc.Unit(site, head) for site in sites for head in range(HEADS)]
    return {kind: heads[place] for kind, place in enumerate(torch.randperm(len(heads))[:KINDS].tolist())}


def _kinds_of(places: dict[int, hc.Unit], site: str) -> dict[int, int]:
    return {unit.index: kind for kind, unit in places.items() if unit.site == site}


def _fill_marian(attention: Any, kinds: dict[int, int]) -> None:
    _fill(attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj, kinds)


def _fill(query: nn.Linear, key: nn.Linear, value: nn.Linear, output: nn.Linear, kinds: dict[int, int]) -> None:
    """Set the weights of an attention: heads in `kinds` find the word of their kind, the others stir the noise."""
    noise = torch.stack([_direction(number) for number in NOISE])
    for linear in (query, key, value, output):
        linear.bias.zero_()
    for head in range(HEADS):
        rows = slice(head * WIDTH, (head + 1) * WIDTH)
        if head not in kinds:
            for linear in (query, key, value):
                linear.weight[rows] = torch.randn(WIDTH, len(NOISE)) @ noise
            output.weight[:, rows] = 0.1 * noise.T @ torch.randn(len(NOISE), WIDTH)
            continue
        kind, mix = kinds[head], torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q  # so that no column stands out
        query.weight[rows] = 10.0 * mix[:, :1] * _direction(CONSTANT)
        key.weight[rows] = 6.0 * mix[:, :1] * _direction(IS[kind])
        value.weight[rows] = mix[:, 1:2] * _direction(FORM)
        output.weight[:, rows] = _direction(FOUND[kind])[:, None] * mix[:, 1]
