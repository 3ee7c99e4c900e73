"""Models in which it is known what every head looks at, because their weights were set by hand; and sentences for them.

A token's vector is made of parts that stand at right angles to each other: where it is, which verb or object it is, how rare it
is, and so on. A head is a pair of small matrices that say which part of the query is compared with which part of the
key. Every vector is as long as every other, so that layer norms only scale them. No dropout; MLPs add nothing.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
)

from headcount.data.sentences.conllu import Sentence, Word

SHARP = 40.0  # how much more a head likes what it looks for than anything else, before the softmax
Head = tuple[Tensor, Tensor]  # (width, parts) each: what is taken from the query and from the key
Links = frozenset[tuple[int, int]]


class Cast(NamedTuple):
    """A model, its tokenizer, the sentences, and the heads whose behaviour is known: unit -> what was planted there.

    A translator also has the translations and the links (word of the target, word of the source).
    """

    model: nn.Module
    tokenizer: Any
    sentences: list[Sentence]
    planted: dict[str, str]
    targets: list[str] | None = None
    links: list[Links] | None = None


# --- the parts of a vector ------------------------------------------------------------------------------------------


class Space:
    """Names for the parts of a hidden space of `hidden` numbers, at right angles, each adding up to zero."""

    def __init__(self, hidden: int, **sizes: int) -> None:
        self.hidden, self.at, begin = hidden, {}, 0
        for name, size in sizes.items():
            self.at[name] = range(begin, begin + size)
            begin += size
        assert 2 * begin <= hidden, "a part takes two numbers"
        self.parts = begin
        self.basis = torch.zeros(begin, hidden)
        for n in range(begin):
            self.basis[n, n], self.basis[n, n + hidden // 2] = 0.5**0.5, -(0.5**0.5)

    def unit(self, name: str, number: int = 0) -> Tensor:
        return torch.eye(self.parts)[self.at[name][number]]

    def filled(self, table: Tensor, norm: float) -> Tensor:
        """The table with as much of the part "rest" in each row as makes it so long."""
        missing = norm**2 - table.pow(2).sum(1)
        assert (missing >= 0).all()
        return table + missing.sqrt()[:, None] * self.unit("rest")


def taking(width: int, space: Space, parts: dict[int, list[tuple[str, int]]]) -> Tensor:
    """A matrix that puts the sum of some parts of a vector into each of its slots."""
    made = torch.zeros(width, space.parts)
    for slot, names in parts.items():
        for name, number in names:
            made[slot, space.at[name][number]] = 1.0
    return made


def shifted(width: int, space: Space, offset: int, codes: Tensor) -> Head:
    """Looks at the token so many places further on. Positions are told apart by their `codes` (positions, slots)."""
    query, key = torch.zeros(width, space.parts), torch.zeros(width, space.parts)
    slots = codes.shape[1]
    for position, part in enumerate(space.at["position"]):
        key[:slots, part] = codes[position]
        if 0 <= position + offset < len(codes):
            query[:slots, part] = SHARP * codes[position + offset]
    return query, key


def everyone_at(width: int, space: Space, part: str, sharp: float = SHARP, number: int = 0) -> Head:
    """All tokens look at the token that has most of this part."""
    return taking(width, space, {0: [("constant", 0)]}) * sharp, taking(width, space, {0: [(part, number)]})


def nothing(width: int, space: Space) -> Head:
    """Looks at everything alike."""
    return torch.zeros(width, space.parts), torch.zeros(width, space.parts)


def anything(width: int, space: Space, sharp: float = 3.0) -> Head:
    """Looks at words for reasons of no meaning."""
    noise = space.at["noise"]
    query, key = nothing(width, space)
    query[:, noise], key[:, noise] = torch.randn(2, width, len(noise)) * (sharp / width) ** 0.5
    return query, key


def by_rows(query: Tensor, key: Tensor, heads: Sequence[Head], space: Space, length: float) -> None:
    """Write heads into the matrices (out, hidden) of an attention whose layer norm leaves vectors of `length`."""
    scale = space.hidden**0.5 / length
    for number, (asks, answers) in enumerate(heads):
        width = len(asks)
        rows = slice(number * width, (number + 1) * width)
        query[rows] = width**0.5 * asks @ space.basis / scale
        key[rows] = answers @ space.basis / scale


def _named(heads: Sequence[Sequence[tuple[str, Head]]]) -> dict[str, str]:
    return {f"{n}:{m}": name for n, layer in enumerate(heads) for m, (name, _) in enumerate(layer) if name}


# --- sentences ------------------------------------------------------------------------------------------------------


def sentence(forms: Sequence[str], heads: Sequence[int] | None, relations: Sequence[str] | None, name: str) -> Sentence:
    words, start = [], 0
    for n, form in enumerate(forms):
        how = () if heads is None or relations is None else (heads[n], relations[n])
        words.append(Word(form, start, start + len(form), *how))
        start += len(form) + 1
    return Sentence(" ".join(forms), tuple(words), name)


def write_conllu(path: Path, sentences: Sequence[Sentence]) -> Path:
    blocks = []
    for one in sentences:
        lines = [f"# sent_id = {one.name}", f"# text = {one.text}"]
        for n, word in enumerate(one.words, 1):
            head = f"{word.head + 1}\t{word.relation}" if word.relation else "_\t_"
            lines.append(f"{n}\t{word.form}\t_\t_\t_\t_\t{head}\t_\t_")
        blocks.append("\n".join(lines) + "\n\n")
    path.write_text("".join(blocks), encoding="utf-8")
    return path


PAIRS, ADJECTIVES, FILLERS = 40, 10, 900


def verb(number: int) -> str:
    return f"verb{number}" + "ing" * (number % 4 == 0)  # every fourth is two tokens


def thing(number: int) -> str:
    return f"obj{number}" + "s" * (number % 7 == 0)


def filler(number: int) -> str:
    return f"word{number}" + "ing" * (number % 5 == 0)


def grammar(count: int, seed: int = 0) -> list[Sentence]:
    """Sentences of verbs and their objects (verb7 governs obj7, wherever it stands), adjectives, and words between them.

    An object follows its verb in nearly half of the cases; an adjective mostly comes right before its object.
    """
    draw, made = random.Random(seed), []
    frequencies = [1 / (n + 600) for n in range(FILLERS)]  # of 400 sentences, 500 words and more come twice
    for number in range(count):
        fillers = [[filler(n)] for n in draw.choices(range(FILLERS), frequencies, k=draw.randint(3, 6))]
        chunks, adjectives = list(fillers), {}
        pairs = draw.sample(range(PAIRS), draw.choice([1, 2, 2, 3]))
        for pair in pairs:
            if draw.random() < 0.4:
                chunks.append([verb(pair), thing(pair)])
                continue
            phrase = [thing(pair)]
            if draw.random() < 0.7:
                adjectives[f"adj{draw.randrange(ADJECTIVES)}"] = thing(pair)
                between = [] if draw.random() < 0.8 else [filler(draw.choices(range(FILLERS), frequencies)[0])]
                phrase = [[*adjectives][-1], *between, thing(pair)]
            chunks += [[verb(pair)], phrase]
        draw.shuffle(chunks)
        made.append(
            _parsed([form for chunk in chunks for form in chunk] + ["."], pairs, adjectives, draw, f"toy-{number}")
        )
    return made


def _parsed(forms: list[str], pairs: list[int], adjectives: dict[str, str], draw: random.Random, name: str) -> Sentence:
    root = draw.choice(pairs)
    governor = {thing(pair): (verb(pair), "obj") for pair in pairs}
    governor |= {verb(pair): (verb(root), "conj") for pair in pairs if pair != root}
    governor |= {form: (noun, "amod") for form, noun in adjectives.items()}
    heads, relations = [], []
    for form in forms[:-1]:
        by, relation = governor.get(form, (verb(root), "advmod"))
        heads.append(-1 if form == verb(root) else forms.index(by))
        relations.append("root" if form == verb(root) else relation)
    # the full stop is left out of the parse: whoever looks at all full stops would be right about it
    return sentence(forms, [*heads, -1], [*relations, ""], name)


def pieces(form: str) -> list[str]:
    """A word as the tokenizers here split it: stem and ending, if it ends in -ing, -en or in a digit and -s."""
    for ending in ("ing", "en"):
        if form.endswith(ending) and form[: -len(ending)][-1:].isdigit():
            return [form[: -len(ending)], f"##{ending}"]
    return [form[:-1], "##s"] if form[-2:-1].isdigit() and form.endswith("s") else [form]


def tokenizer(forms: Sequence[str], special: dict[str, str], template: str, longest: int) -> Any:
    """Word pieces; `special` are the names of special tokens, which get the first ids, and `template` where they stand."""
    names = [*dict.fromkeys(special.values())]
    vocabulary = [*names, *dict.fromkeys(piece for form in forms for piece in pieces(form))]
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    made = Tokenizer(models.WordPiece(ids, unk_token=special["unk_token"]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = [(name, ids[name]) for name in names if name in template]
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=marks) if marks else None
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=longest, **special)


# --- a BERT ---------------------------------------------------------------------------------------------------------

POSITIONS, HEADS, WIDTH, NOISE = 32, 6, 44, 8
BERT = Space(
    HEADS * WIDTH, position=POSITIONS, dependent=PAIRS, governor=PAIRS, rarity=1, separator=1, punctuation=1,
    constant=1, rest=1, noise=NOISE,
)  # fmt: skip


def baseline(sentences: Sequence[Sentence], relation: str = "obj") -> float:
    """How often the most frequent distance from a dependent to its governor is the right one."""
    found = Counter(w.head - n for one in sentences for n, w in enumerate(one.words) if w.relation == relation)
    return max(found.values()) / found.total()


def share_of(sentences: Sequence[Sentence], chosen: set[int]) -> float:
    """Which part of the objects belongs to these pairs."""
    found = Counter(int(pieces(w.form)[0][3:]) in chosen for one in sentences for w in one.words if w.relation == "obj")
    return found[True] / found.total()


def reaching(sentences: Sequence[Sentence], share: float) -> set[int]:
    """Pairs to which as nearly that part of all objects belongs as can be, but no more."""
    chosen: set[int] = set()
    for pair in range(PAIRS):
        if share_of(sentences, {*chosen, pair}) <= share:
            chosen.add(pair)
    return chosen


def encoder(sentences: Sequence[Sentence], seed: int = 0) -> Cast:
    """A BERT of 2 layers with 6 heads each, of which two look at nothing that has a name."""
    sentences = list(sentences)
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    everything = [f(n) for f in (verb, thing) for n in range(PAIRS)] + [w.form for one in sentences for w in one.words]
    words = tokenizer(everything, special, "[CLS] $A [SEP]", POSITIONS)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = _bert(len(words))
        vectors, word_length = _bert_words(words, sentences), 2.5
        model.embeddings.word_embeddings.weight.copy_(BERT.filled(vectors, word_length) @ BERT.basis)
        places = torch.stack([BERT.unit("position", n) for n in range(POSITIONS)])
        model.embeddings.position_embeddings.weight.copy_(places @ BERT.basis)
        model.embeddings.token_type_embeddings.weight.zero_()
        exact, best = torch.eye(POSITIONS), baseline(sentences)
        # "below" and "above" are just that of 10 points more than the best fixed distance
        heads = [
            [("back", shifted(WIDTH, BERT, -1, exact)), ("ahead", shifted(WIDTH, BERT, 1, exact)),
             ("rare", everyone_at(WIDTH, BERT, "rarity", 80.0)), ("sep", everyone_at(WIDTH, BERT, "separator")),
             ("", nothing(WIDTH, BERT)), ("", anything(WIDTH, BERT))],
            [("governor", _partly(set(range(PAIRS)))), ("dependent", _partly(set(range(PAIRS)))[::-1]),
             ("below", _partly(reaching(sentences, best + 0.095))), ("above", _partly(reaching(sentences, best + 0.125))),
             ("local", _near()), ("punctuation", everyone_at(WIDTH, BERT, "punctuation", 5.0))],
        ]  # fmt: skip
        for layer, named in zip(model.encoder.layer, heads, strict=True):
            part = layer.attention.self
            length = (word_length**2 + 1) ** 0.5
            by_rows(part.query.weight, part.key.weight, [head for _, head in named], BERT, length)
            layer.attention.output.dense.weight.zero_()
            layer.output.dense.weight.zero_()
    return Cast(model, words, sentences, _named(heads))


def _bert(size: int) -> Any:
    config = BertConfig(
        vocab_size=size, hidden_size=HEADS * WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=4,
        max_position_embeddings=POSITIONS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertModel(config).eval()


def _bert_words(words: Any, sentences: Sequence[Sentence]) -> Tensor:
    """What is known of every token: its verb or object, how rare its word is, whether it is [SEP] or a full stop."""
    counts = Counter(word.form for one in sentences for word in one.words)
    table = torch.zeros(len(words), BERT.parts)
    table[:, BERT.at["noise"]] = nn.functional.normalize(torch.randn(len(words), NOISE), dim=1)
    table += BERT.unit("constant")
    ids = words.get_vocab()
    for form, count in counts.items():
        table[ids[pieces(form)[0]]] += BERT.unit("rarity") * (1 - math.log(count) / math.log(counts.total()))
    for pair in range(PAIRS):
        table[ids[pieces(thing(pair))[0]]] += BERT.unit("dependent", pair)
        table[ids[pieces(verb(pair))[0]]] += BERT.unit("governor", pair)
    table[ids["[SEP]"]] += BERT.unit("separator")
    table[ids["."]] += BERT.unit("punctuation")
    return table


def _partly(chosen: set[int]) -> Head:
    """Objects look at their verbs if their pair is among the chosen, and at themselves if it is not."""
    slots = range(PAIRS)
    query = taking(WIDTH, BERT, {pair: [("dependent", pair)] for pair in slots})
    key = taking(WIDTH, BERT, {pair: [("governor" if pair in chosen else "dependent", pair)] for pair in slots})
    return SHARP * query, key


def _near() -> Head:
    """Looks at the five tokens around, at which of them most is a matter of their noise."""
    query, key = anything(WIDTH, BERT, 1.0)
    query[: WIDTH - POSITIONS], key[: WIDTH - POSITIONS] = query[POSITIONS:], key[POSITIONS:]
    query[:POSITIONS], key[:POSITIONS] = nothing(POSITIONS, BERT)
    around = {n: [("position", m) for m in range(max(0, n - 2), min(POSITIONS, n + 3))] for n in range(POSITIONS)}
    query[:POSITIONS] = 8.0 * taking(POSITIONS, BERT, around)
    key[:POSITIONS] = taking(POSITIONS, BERT, {n: [("position", n)] for n in range(POSITIONS)})
    return query, key


def redrawn(model: nn.Module, seed: int, std: float = 0.15) -> nn.Module:
    """The same model with random weights."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=std)
    return model


# --- a GPT-2 --------------------------------------------------------------------------------------------------------

LONGEST, CODE, G_HEADS, G_WIDTH, VOCABULARY = 64, 32, 4, 96, 200
GPT2 = Space(G_HEADS * G_WIDTH, position=LONGEST, token=CODE, before=CODE, constant=1, rest=1, noise=NOISE)


def decoder(count: int = 120, seed: int = 0) -> Cast:
    """A GPT-2 of 2 layers with 4 heads: one notes the token before, one finds what followed that token the last time."""
    draw = random.Random(seed)
    texts = [[filler(n) for n in draw.choices(range(VOCABULARY), k=draw.randint(5, 14))] for _ in range(count)]
    sentences = [sentence(forms, None, None, f"toy-{n}") for n, forms in enumerate(texts)]
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<end>"}
    words = tokenizer([filler(n) for n in range(VOCABULARY)], special, "$A", LONGEST)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        config = GPT2Config(
            vocab_size=len(words), n_positions=LONGEST, n_embd=G_HEADS * G_WIDTH, n_layer=2, n_head=G_HEADS, n_inner=4,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=2, eos_token_id=2,
        )  # fmt: skip
        model = GPT2LMHeadModel(config).eval()
        table = torch.zeros(len(words), GPT2.parts)
        table[:, GPT2.at["token"]] = _codes(len(words), CODE)
        table[:, GPT2.at["noise"]] = _codes(len(words), NOISE)
        table += GPT2.unit("constant")
        model.transformer.wte.weight.copy_(table @ GPT2.basis)
        places = torch.stack([GPT2.unit("position", n) for n in range(LONGEST)])
        model.transformer.wpe.weight.copy_(places @ GPT2.basis)
        heads = [[("", anything(G_WIDTH, GPT2)) for _ in range(G_HEADS)] for _ in range(2)]
        heads[0][1] = "back", shifted(G_WIDTH, GPT2, -1, torch.eye(LONGEST))
        heads[0][2] = "copying", _same("token")
        heads[0][3] = "first", everyone_at(G_WIDTH, GPT2, "position")
        heads[1][2] = "induction", _same("before")
        heads[1][3] = "", nothing(G_WIDTH, GPT2)
        # what enters the second layer also holds the token before, which the head that looks back writes there
        for number, (layer, named) in enumerate(zip(model.transformer.h, heads, strict=True)):
            length = (3.0 + 1.0 + number) ** 0.5
            asks, answers, gives = (torch.zeros(GPT2.hidden, GPT2.hidden) for _ in range(3))
            by_rows(asks, answers, [head for _, head in named], GPT2, length)
            layer.attn.c_proj.weight.zero_()
            layer.mlp.c_proj.weight.zero_()
            if number == 0:
                rows = range(G_WIDTH, G_WIDTH + CODE)  # of the second head
                gives[rows] = GPT2.basis[GPT2.at["token"]] / (GPT2.hidden**0.5 / length)
                layer.attn.c_proj.weight[rows] = GPT2.basis[GPT2.at["before"]]
            layer.attn.c_attn.weight.copy_(torch.cat([asks, answers, gives]).T)
    return Cast(model, words, sentences, _named(heads))


def _codes(count: int, size: int) -> Tensor:
    return nn.functional.normalize(torch.randn(count, size), dim=1)


def _same(part: str) -> Head:
    """Looks for its own token in this part of the others, but not in its own."""
    query, key = nothing(G_WIDTH, GPT2)
    query[:CODE, GPT2.at["token"]], key[:CODE, GPT2.at[part]] = 2 * SHARP * torch.eye(CODE), torch.eye(CODE)
    places = torch.eye(LONGEST)
    query[CODE:, GPT2.at["position"]], key[CODE:, GPT2.at["position"]] = -2 * SHARP * places, places
    return query, key


# --- a Marian translator --------------------------------------------------------------------------------------------

WORDS, M_HEADS, M_WIDTH, LOUD = 40, 4, 48, 20.0  # words are so much louder than their sinusoids of position
MARIAN = Space(M_HEADS * M_WIDTH, source=WORDS, target=WORDS, noise=NOISE)


def foreign(number: int) -> str:
    return f"a{number}" + "en" * (number % 5 == 0)


def translator(count: int = 150, seed: int = 0, *, counting: bool = True) -> Cast:
    """A Marian with two cross-attentions, in which one head looks at the word that is read, one at that being written.

    A sentence is a run of numbers, counted up in the translation, so that the next word is known, and in any order in the
    source, between words without a translation. Without `counting` they are any numbers, and nothing is known.
    """
    draw, sources, targets, links = random.Random(seed), [], [], []
    for _ in range(count):
        first, length = draw.randrange(WORDS), draw.randint(4, 8)
        numbers = [(first + n) % WORDS for n in range(length)] if counting else draw.sample(range(WORDS), length)
        source = [*numbers, *[-1 - draw.randrange(3) for _ in range(draw.randint(0, 2))]]
        draw.shuffle(source)
        sources.append([foreign(n) if n >= 0 else f"c{-n}" for n in source])
        targets.append(" ".join(f"b{n}" for n in numbers))
        links.append(frozenset((place, source.index(n)) for place, n in enumerate(numbers)))
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    forms = [*map(foreign, range(WORDS)), *(f"b{n}" for n in range(WORDS)), "c1", "c2", "c3"]
    words = tokenizer(forms, special, "$A </s>", 32)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        sides = {f"{side}_{name}": v for side in ("encoder", "decoder") for name, v in _SIDE.items()}
        config = MarianConfig(
            vocab_size=len(words), d_model=MARIAN.hidden, max_position_embeddings=32, dropout=0.0, scale_embedding=False,
            pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=1, **sides,
        )  # fmt: skip
        model = MarianMTModel(config).eval()
        ids, table = words.get_vocab(), torch.zeros(len(words), MARIAN.parts)
        table[:, MARIAN.at["noise"]] = 0.5 * _codes(len(words), NOISE)
        for n in range(WORDS):
            table[ids[pieces(foreign(n))[0]]] += MARIAN.unit("source", n)
            table[ids[f"b{n}"]] += MARIAN.unit("target", n)
        model.model.shared.weight.copy_(LOUD * table @ MARIAN.basis)
        for side in (model.model.encoder, model.model.decoder):
            for number, layer in enumerate(side.layers):
                _marian(layer.self_attn, [anything(M_WIDTH, MARIAN, 1.0)] * M_HEADS)
                if side is model.model.decoder:
                    heads = [anything(M_WIDTH, MARIAN, 1.0) for _ in range(M_HEADS)]
                    heads[2 - number] = _partner(number)
                    _marian(layer.encoder_attn, heads)
                layer.fc2.weight.zero_()
    planted = {"decoder.0.cross:2": "read"} | ({"decoder.1.cross:1": "written"} if counting else {})
    made = [sentence(forms, None, None, f"toy-{n}") for n, forms in enumerate(sources)]
    return Cast(model, words, made, planted, targets, links)


_SIDE = {"layers": 2, "attention_heads": M_HEADS, "ffn_dim": 4}


def _partner(further: int) -> Head:
    """A target word looks at the source word of the number so much higher."""
    query = taking(M_WIDTH, MARIAN, {(n + further) % WORDS: [("target", n)] for n in range(WORDS)})
    return SHARP * query, taking(M_WIDTH, MARIAN, {n: [("source", n)] for n in range(WORDS)})


def _marian(attention: Any, heads: Sequence[Head]) -> None:
    by_rows(attention.q_proj.weight, attention.k_proj.weight, heads, MARIAN, 1.1)
    attention.out_proj.weight.zero_()
