"""`roles` against brute force: plain loops over the probabilities that transformers hands out, one sentence at a time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documents.test_roles import by_hand
from helpers import zoo
from helpers.same import alike, close
from torch import Tensor, nn

import headcount as hc
from headcount.data.sentences.conllu import Sentence, Word
from headcount.data.sentences.passages import Passages, Side
from headcount.documents.roles import DIRECTIONS, Observed, Roles, SentenceSums
from headcount.errors import OutOfMemory, Refused
from headcount.head_roles import analysis
from headcount.head_roles.analysis import part_of, roles
from headcount.head_roles.counts import TO_SOURCE, AttentionSides, tallied
from headcount.head_roles.induction import repetitions
from headcount.head_roles.rules import named
from headcount.runs import Run
from headcount.stats.paired_tests import holm

START, END, FILL = 1, 2, 0
TESTED = ("nsubj", "obj", "nmod:poss")
RELATIONS = (*TESTED, "punct")
COUNTS = Counter({f"f{number}": 100 for number in range(500)} | {f"w{number}": 1 + number % 9 for number in range(60)})
COUNTS[","] = 5000
Links = list[frozenset[tuple[int, int]]]


def sentence(draw: random.Random, name: str, words: int, tree: Callable[[int, int], int] | None = None) -> Sentence:
    """Random words, some of them frequent, some punctuation, under a random tree or `tree(word, number of words)`."""
    forms = [
        draw.choice([f"w{draw.randrange(60)}", f"W{draw.randrange(60)}", f"f{draw.randrange(500)}", ","])
        for _ in range(words)
    ]
    found, place = [], 0
    for number, form in enumerate(forms):
        other = draw.randrange(words) if tree is None else tree(number, words)
        head = -1 if other == number else other
        found.append(Word(form, place, place + len(form), head, draw.choice(RELATIONS) if head >= 0 else "root"))
        place += len(form) + 1
    return Sentence(" ".join(forms), tuple(found), name)


def side(
    seed: int,
    count: int,
    *,
    first: bool = True,
    last: bool = True,
    pieces: int = 3,
    padding: str = "right",
    **more: Any,
) -> Side:
    """Sentences of 2 to 9 words of up to `pieces` tokens; the last words of some have none, as if they were cut off."""
    draw = random.Random(seed)
    sentences = [sentence(draw, f"s{number}", draw.randint(2, 9), **more) for number in range(count)]
    ids, words = [], []
    for one in sentences:
        kept = len(one.words) - (draw.random() < 0.2)
        of = [number for number in range(kept) for _ in range(draw.randint(1, pieces))]
        words.append([-1] * first + of + [-1] * last)
        ids.append([START] * first + [draw.randrange(4, zoo.VOCAB) for _ in of] + [END] * last)
    special = [[word < 0 for word in row] for row in words]
    names, texts = {START: "[CLS]", END: "[SEP]"}, {token: f"t{token}" for token in range(zoo.VOCAB)}
    return Side(ids, words, special, sentences, names, COUNTS, padding, {"input_ids": FILL}, texts=texts)


def encoder(seed: int = 0, **config: Any) -> nn.Module:
    from transformers import BertConfig, BertModel

    return randomised(BertModel, BertConfig(**zoo.ENCODER, **config), seed)


def decoder(seed: int = 0) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return randomised(GPT2LMHeadModel, GPT2Config(**{**zoo.GPT, "n_positions": 60}), seed)


def turning(seed: int = 0) -> nn.Module:
    """A decoder that knows only how far apart tokens are, so that padding on the left does not move them.

    Its softmax is one of float32, in which a float64 mask is infinite, and where all is masked there is no number left.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    return randomised(LlamaForCausalLM, LlamaConfig(**zoo.DECODER), seed).float()


def translator(seed: int = 0) -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    return randomised(MarianMTModel, MarianConfig(**{**zoo.SEQ2SEQ, "max_position_embeddings": 60}), seed)


def randomised(kind: Any, config: Any, seed: int) -> nn.Module:
    """Weights that are large enough for heads to prefer something.

    In float64: of two tokens with nearly the same weight, float32 may put either first, and each way to compute another.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.3)
    return model.double()


def texts(count: int = 40, seed: int = 0, **more: Any) -> Passages:
    return Passages("toys", 4, side(seed, count, **more), parsed="made up")


def pairs(count: int = 40, seed: int = 0) -> Passages:
    """Sentences, others that are said to be translations of them, and random alignments."""
    source, written = side(seed, count, first=False), side(seed + 1, count, first=False)
    read = replace(
        written,
        ids=[[START, *one[:-1]] for one in written.ids],
        words=[[-1, *one[:-1]] for one in written.words],
        special=[[True, *one[:-1]] for one in written.special],
    )
    draw = random.Random(seed)
    links: Links = []
    for goal, origin in zip(written.sentences, source.sentences, strict=True):
        every = [(t, s) for t in range(len(goal.words)) for s in range(len(origin.words))]
        links.append(frozenset(draw.sample(every, len(every) // 4)))
    return Passages("toys", 4, source, read, written, links, "made up")


# --- brute force ----------------------------------------------------------------------------------------------------

Counts = dict[Any, list[tuple[np.ndarray, float]]]  # for each statistic, e of all heads and n of each sentence


def attentions(model: Any, passages: Passages, number: int) -> dict[str, np.ndarray]:
    """All heads' probabilities on one sentence, by type, as transformers gives them: (heads, queries, keys)."""
    model.set_attn_implementation("eager")
    inputs = {"input_ids": torch.tensor([passages.source.ids[number]])}
    if passages.written is not None:
        inputs["labels"] = torch.tensor([passages.written.ids[number]])
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
    model.set_attn_implementation("sdpa")
    kinds = {"encoder": "attentions"} if "Bert" in type(model).__name__ else {"decoder": "attentions"}
    if passages.written is not None:
        kinds = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    return {kind: torch.cat([layer[0] for layer in out[name]]).double().numpy() for kind, name in kinds.items()}


def brute(model: Any, passages: Passages, rule: str = "first") -> dict[str, Counts]:
    found: dict[str, Counts] = {}
    for number in range(passages.size):
        for kind, weights in attentions(model, passages, number).items():
            query = passages.source if kind == "encoder" or passages.read is None else passages.read
            key = query if kind != "cross" else passages.source
            counts = found.setdefault(kind, {})
            of_tokens(counts, weights, query, key, number, kind)
            of_words(
                counts, weights, query, key, number, rule, passages if kind == "cross" else None, kind == "decoder"
            )
    return found


def add(counts: Counts, name: Any, e: Any, n: float) -> None:
    counts.setdefault(name, []).append((np.asarray(e, dtype=float), float(n)))


def of_tokens(counts: Counts, weights: np.ndarray, query: Side, key: Side, number: int, kind: str) -> None:
    queries = [place for place, mark in enumerate(query.special[number]) if not mark]
    marks, ids = key.special[number], key.ids[number]
    ordinary = [place for place, mark in enumerate(marks) if not mark]
    size = len(queries)
    add(counts, "confidence", sum(weights[:, q][:, ordinary].max(1) for q in queries), size)
    rows = [weights[:, q] for q in queries]
    add(
        counts,
        "entropy",
        -sum((np.where(row > 0, row * np.log(np.where(row > 0, row, 1)), 0)).sum(1) for row in rows),
        size,
    )
    mass = dict.fromkeys(["[CLS]", "[SEP]", "first token", "punctuation"], np.zeros(len(weights)))
    for row in rows:
        for place, token in enumerate(ids):
            if marks[place]:
                mass[key.names[token]] = mass[key.names[token]] + row[:, place]
            elif place == 0:
                mass["first token"] = mass["first token"] + row[:, place]
            if key.words[number][place] >= 0 and key.sentences[number].words[key.words[number][place]].form == ",":
                mass["punctuation"] = mass["punctuation"] + row[:, place]
    for name, total in mass.items():
        add(counts, ("mass", name), total, size)
    add(counts, "sink", sum(total for name, total in mass.items() if name != "punctuation"), size)
    if kind == "cross":
        return
    for offset in range(-10, 11):
        able = [q for q in queries if 0 <= q + offset < len(ids)]
        add(
            counts,
            ("offset", offset),
            sum(((weights[:, q].argmax(1) == q + offset) * 1.0 for q in able), np.zeros(len(weights))),
            len(able),
        )
    near, uniform = np.zeros(len(weights)), 0.0
    for q in queries:
        close = [place for place in ordinary if abs(place - q) <= 2]
        near += weights[:, q][:, close].sum(1)
        seen = range(q + 1) if kind == "decoder" else range(len(ids))
        uniform += len([place for place in close if place in seen]) / len(seen)
    add(counts, "local", near, size)
    add(counts, "uniform", np.full(len(weights), uniform), size)


def of_words(
    counts: Counts,
    weights: np.ndarray,
    query: Side,
    key: Side,
    number: int,
    rule: str,
    cross: Passages | None,
    causal: bool,
) -> None:
    def best(words: Sequence[int], word: int) -> np.ndarray:
        """The word that each head looks at most from this one."""
        tokens = [place for place, one in enumerate(words) if one == word]
        row = weights[:, tokens[0]] if rule == "first" else weights[:, tokens].mean(1)
        there = key.words[number]
        sums = {w: row[:, [p for p, one in enumerate(there) if one == w]].sum(1) for w in sorted({*there} - {-1})}
        return np.array(list(sums))[np.stack(list(sums.values())).argmax(0)]

    here, there = sorted({*query.words[number]} - {-1}), sorted({*key.words[number]} - {-1})
    if cross is None:
        for word, one in enumerate(query.sentences[number].words):
            if one.head >= 0 and word in here and one.head in here and one.relation != "punct":
                for name, a, b in ((DIRECTIONS[0], word, one.head), (DIRECTIONS[1], one.head, word)):
                    if causal and b > a:
                        continue
                    add(counts, (one.relation, name, number), best(query.words[number], a) == b, 1)
                    add(counts, ("pair", one.relation, name), number, b - a)
    elif cross.links is not None and cross.written is not None:
        for name, words in (("written", cross.written.words[number]), ("read", cross.read.words[number])):  # type: ignore[union-attr]
            for word in sorted({*words} - {-1}):
                right = {s for t, s in cross.links[number] if t == word and s in there}
                if right:
                    add(counts, (name, TO_SOURCE, number), [b in right for b in best(words, word)], 1)
                    add(counts, ("pair", name, TO_SOURCE), number, 0)
                    counts.setdefault(("sets", name, TO_SOURCE), []).append(
                        (np.array([s - word for s in right]), number)
                    )
    forms = [key.sentences[number].words[word].form.casefold() for word in there]
    rare = sorted(COUNTS[form] for form in forms)
    if len(there) >= 6 and rare[0] < 100:
        rarest = [w for w, form in zip(there, forms, strict=True) if COUNTS[form] == rare[0]]
        two = [w for w, form in zip(there, forms, strict=True) if COUNTS[form] <= rare[1]]
        asked = [word for word in here if not causal or all(word >= other for other in two)]
        looked = [best(query.words[number], word) for word in asked]
        zero = np.zeros(len(weights))
        add(counts, "rarest", sum((np.isin(one, rarest) * 1.0 for one in looked), zero), len(asked))
        add(counts, "two", sum((np.isin(one, two) * 1.0 for one in looked), zero), len(asked))
        seen = [[other for other in there if not causal or other <= word] for word in asked]
        add(counts, "chance", np.full(len(weights), sum(len(two) / len(some) for some in seen)), len(asked))


def ratio(counts: Counts, name: Any, head: int, most: float = 1.0) -> list[float]:
    """Value, low and high within [0, most]."""
    e, n = np.array([one[0][head] for one in counts[name]]), np.array([one[1] for one in counts[name]])
    return list(np.clip(by_hand(e, n)[:3], 0, most))


def relations(
    counts: Counts, heads: int, told: dict[tuple[str, str], Any], passages: Passages
) -> dict[tuple[str, str], Any]:
    """For every relation in 20 sentences: baseline, pairs, sentences, accuracy, gain, low, high and p of each head.

    And the head that gains most on one half of the sentences, with its accuracy, gain, low and high on the other half.
    """
    out = {}
    for _, relation, direction in [name for name in counts if name[0] == "pair"]:
        hits: dict[int, list[np.ndarray]] = {}
        for name, values in counts.items():
            if name[:2] == (relation, direction):
                hits[name[2]] = [value for value, _ in values]
        if len(hits) < 20:
            continue
        sets = counts.get(("sets", relation, direction))
        rows = sets if sets else [(np.array([one[1]]), int(one[0])) for one in counts["pair", relation, direction]]
        often = Counter(int(o) for row, _ in rows for o in row)
        offset = told[relation, direction].offset
        right = often[offset]
        assert right == max(often.values())
        base = {number: sum(offset in row for row, n in rows if n == number) for number in hits}
        n = np.array([len(values) for values in hits.values()], dtype=float)
        e = np.array([np.sum(values, axis=0) for values in hits.values()], dtype=float)
        more = e - np.array(list(base.values()))[:, None]
        gains = [by_hand(more[:, head], n) for head in range(heads)]
        half = np.array([part_of(passages, number) for number in hits])
        best = int(more[half == 0].sum(0).argmax())
        fresh = [(e[half == 1, best].sum() / n[half == 1].sum()), *by_hand(more[half == 1, best], n[half == 1])[:3]]
        out[relation, direction] = (right / n.sum(), n.sum(), len(hits), e.sum(0) / n.sum(), gains, best, fresh)
    return out


def agrees(found: Roles, counted: dict[str, Counts], passages: Passages) -> None:
    """Every number of every head."""
    for kind, counts in counted.items():
        heads = [head for head in found.heads if head.type == kind]
        for number, head in enumerate(heads):
            assert head.confidence == pytest.approx(ratio(counts, "confidence", number), abs=3e-6)
            assert head.entropy == pytest.approx(ratio(counts, "entropy", number, np.inf), abs=1e-5)
            for name, value in head.mass.items():
                assert value == pytest.approx(ratio(counts, ("mass", name), number)[0], abs=3e-6)
            rest = [name for name in ("[CLS]", "[SEP]", "first token") if name not in head.mass]
            assert not any(ratio(counts, ("mass", name), number)[0] for name in rest)
            if kind != "cross":
                values = {o: ratio(counts, ("offset", o), number)[0] for o in range(-10, 11)}
                assert sorted(head.offsets.values()) == pytest.approx(sorted(values.values())[-3:], abs=3e-6)
                assert all(value == pytest.approx(values[int(o)], abs=3e-6) for o, value in head.offsets.items())
                want = [*ratio(counts, "local", number), ratio(counts, "uniform", number)[0]]
                assert head.local == pytest.approx(want, abs=3e-6)
            assert head.rare is not None
            for name in ("rarest", "two"):
                assert getattr(head.rare, name) == pytest.approx(ratio(counts, name, number), abs=3e-6)
            assert head.rare.chance == pytest.approx(ratio(counts, "chance", number)[0], abs=3e-6)
        told = {(one.relation, one.direction): one for one in found.relations if one.type == kind}
        want = relations(counts, len(heads), told, passages)
        assert set(told) == set(want)
        p = np.array([[gain[3] for gain in one[4]] for one in want.values()])
        corrected = dict(zip(want, holm(p.ravel()).reshape(p.shape), strict=True))
        for name, (baseline, size, sentences, accuracy, gains, best, fresh) in want.items():
            one = told[name]
            assert one.best is not None
            assert one.best.unit == heads[best].unit
            assert one.best.numbers == pytest.approx(np.clip(fresh, -1, 1), abs=3e-6)
            assert (one.pairs, one.sentences, one.baseline) == (size, sentences, pytest.approx(baseline, abs=1e-6))
            for number, head in enumerate(heads):
                numbers = [accuracy[number], *gains[number][:3]]
                assert one.heads[head.unit][:4] == pytest.approx(numbers, abs=3e-6)
                assert one.heads[head.unit][4] == pytest.approx(corrected[name][number], rel=1e-3)


CASES: dict[str, tuple[Callable[..., nn.Module], Callable[..., Passages]]] = {
    "encoder": (encoder, texts),
    "decoder": (decoder, lambda **more: texts(first=False, last=False, **more)),
    "translator": (translator, pairs),
}


@pytest.mark.parametrize("rule", ["first", "mean"])
@pytest.mark.parametrize("case", CASES)
def test_every_number_is_that_of_plain_loops(case: str, rule: str) -> None:
    model, passages = CASES[case][0](), CASES[case][1]()
    found = roles(model, passages, words=rule)
    counted = brute(model, passages, rule)
    assert {head.type for head in found.heads} == set(counted)
    assert found.tokens == sum(not mark for row in passages.source.special for mark in row)
    agrees(found, counted, passages)


def nearly(one: Roles, other: Roles) -> bool:
    """Whether two answers are the same but for rounding."""

    def flat(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [part for name in sorted(value) for part in [name, *flat(value[name])]]
        return [part for each in value for part in flat(each)] if isinstance(value, list) else [value]

    a, b = (flat({**roles.to_json(), "examples": []}) for roles in (one, other))
    return len(a) == len(b) and all(
        x == pytest.approx(y, abs=1e-5, rel=1e-3) if isinstance(x, float) and isinstance(y, float) else x == y
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("case", CASES)
def test_batches_and_the_order_of_sentences_do_not_matter(case: str) -> None:
    model, passages = CASES[case][0](), CASES[case][1]()
    found = roles(model, passages)
    assert nearly(found, roles(model, passages, batch_size=1))
    assert nearly(found, roles(model, passages, batch_size=64))
    mixed = random.Random(0).sample(range(passages.size), passages.size)
    assert nearly(roles(model, passages, probe=False), roles(model, passages.subset(mixed), probe=False))


@pytest.mark.parametrize("make", [turning, decoder])
def test_the_side_of_the_padding_does_not_matter(make: Callable[[], nn.Module]) -> None:
    model, passages = make(), texts(last=False)
    left = replace(passages, source=replace(passages.source, padding="left"))
    assert nearly(roles(model, passages), roles(model, left))


def test_pieces_of_data_give_the_same_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, passages = encoder(), texts()
    found = roles(model, passages)
    monkeypatch.setattr(analysis, "CHUNK", 7)
    assert nearly(found, roles(model, passages))


# --- what is left behind --------------------------------------------------------------------------------------------


def state(model: Any) -> Any:
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    modes = [module.training for module in model.modules()]
    return model.config._attn_implementation, model.config.to_dict(), hooks, modes


@pytest.mark.parametrize("case", CASES)
def test_the_model_is_left_as_it_was_also_after_an_error(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, passages = CASES[case][0]().train(), CASES[case][1](count=8)
    model.set_attn_implementation("sdpa")
    before = state(model)
    roles(model, passages)
    assert state(model) == before
    monkeypatch.setattr(AttentionSides, "counted", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        roles(model, passages)
    assert state(model) == before


def test_a_run_that_was_interrupted_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(analysis, "CHUNK", 16)
    model, passages = decoder(), texts(first=False, last=False)
    whole = roles(model, passages)
    ran: list[int] = []

    def counting(_: nn.Module, args: Any, kwargs: Any) -> None:
        ran.append(len(kwargs["input_ids"]))
        if sum(ran) > 20 and len(limit):
            raise KeyboardInterrupt

    limit = [True]
    model.register_forward_pre_hook(counting, with_kwargs=True)
    with pytest.raises(KeyboardInterrupt), Run.open(tmp_path / "run", {"command": "roles"}) as run:
        roles(model, passages, run=run)
    limit.clear()
    ran.clear()
    with Run.open(tmp_path / "run", {"command": "roles"}) as run:
        resumed = roles(model, passages, run=run)
        assert sum(ran) == passages.size - 16 + 2 + 32  # without the first piece; two examples, the repetitions
        ran.clear()
        again = roles(model, passages, run=run)
    assert ran == []
    assert nearly(resumed, whole)
    assert again == resumed


def test_where_memory_runs_out_batches_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    model, passages = encoder(), texts(16)
    found, really = roles(model, passages, examples=0), AttentionSides.counted

    def small(ground: AttentionSides, laid: Any, weights: Tensor) -> Tensor:
        if len(weights) > most:
            raise torch.OutOfMemoryError
        return really(ground, laid, weights)

    monkeypatch.setattr(AttentionSides, "counted", small)
    most = 3
    assert nearly(found, roles(model, passages, batch_size=16, examples=0))
    most = 0
    with pytest.raises(OutOfMemory, match="one example alone"):
        roles(model, passages)


class Twofold(nn.Module):
    """Two encoders, of which one runs, or one that reads every text twice over."""

    def __init__(self, *, longer: bool) -> None:
        super().__init__()
        self.one, self.longer = encoder(), longer
        self.two = None if longer else encoder(1)
        self.one.set_attn_implementation("eager")  # type: ignore[operator]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        ids = torch.cat([input_ids] * 2, 1) if self.longer else input_ids
        return self.one(input_ids=ids)


@pytest.mark.parametrize(
    ("longer", "says"), [(True, "cannot be said at which tokens"), (False, "does not run on toys")]
)
def test_attention_that_is_not_from_token_to_token_is_refused(longer: bool, says: str) -> None:
    model = Twofold(longer=longer)
    with pytest.raises(Refused, match=says) as refused:
        roles(model, texts(4))
    assert any(str(refused.value).startswith(site.name) for site in hc.find(model).heads)


def test_without_translations_only_the_encoder_is_looked_at() -> None:
    model, passages = translator(), texts(first=False)
    found = roles(model, passages)
    assert {head.type for head in found.heads} == {"encoder"}
    both = roles(model, replace(pairs(), source=passages.source))
    assert alike(found.heads, tuple(head for head in both.heads if head.type == "encoder"))


def test_heads_keep_their_names_in_a_model_that_was_cut() -> None:
    model, passages = encoder(), texts(8)
    hc.cut(model, "0:1 1:0 1:2")
    assert list(roles(model, passages).main) == ["0:0", "0:2", "0:3", "1:1", "1:3"]


@pytest.mark.parametrize("name", ["falcon", "falcon-mqa", "deepseek_v3"])
def test_the_model_computes_what_it_computes_without_being_looked_at(name: str) -> None:
    """Falcon's attention in the open has no causal mask, and latent attentions hand nothing out: they are read as they are."""
    model, _ = zoo.build(name)
    passages, outputs = texts(4, first=False), list[Tensor]()
    hook = model.lm_head.register_forward_hook(lambda _, __, output: outputs.append(output.detach()))  # type: ignore[union-attr]
    roles(model, passages, probe=False, examples=0)
    with torch.no_grad():
        model(**passages.inputs(range(4)))
    hook.remove()
    assert len(outputs) == 2
    assert close(outputs[0], outputs[1])


def test_an_attention_that_all_layers_share_is_the_mean_over_them() -> None:
    from transformers import AlbertConfig, AlbertModel

    model: Any = randomised(AlbertModel, AlbertConfig(**zoo.ENCODER, embedding_size=16), 0)
    passages = texts(8)
    found = roles(model, passages)
    model.set_attn_implementation("eager")
    surest, count = np.zeros(4), 0
    for ids, marks in zip(passages.source.ids, passages.source.special, strict=True):
        ordinary = torch.tensor(marks) == 0
        for layer in model(input_ids=torch.tensor([ids]), output_attentions=True).attentions:
            surest += layer[0][:, ordinary][:, :, ordinary].amax(-1).sum(-1).detach().numpy()
            count += int(ordinary.sum())
    assert [head.confidence[0] for head in found.heads] == pytest.approx(surest / count, abs=2e-6)


# --- examples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_examples_are_short_sentences_with_the_weights_of_every_head(case: str) -> None:
    model, passages = CASES[case][0](), CASES[case][1]()
    found = roles(model, passages, examples=2, seed=3)
    assert Counter(one.type for one in found.examples) == {head.type: 2 for head in found.heads}
    for one in found.examples:
        source = one.type == "encoder" or passages.read is None
        number = next(n for n, other in enumerate(passages.source.sentences) if other.name == one.name)
        rows = len(one.queries)
        columns = rows if one.keys is None else len(one.keys)
        assert max(rows, columns) <= 14
        ids = (passages.source if source else passages.read).ids[number]  # type: ignore[union-attr]
        assert list(one.queries) == [f"t{token}" for token in ids]
        want = attentions(model, passages, number)[one.type]
        units = [head.unit for head in found.heads if head.type == one.type]
        assert list(one.attention) == units
        for head, text in enumerate(one.attention.values()):
            got = np.frombuffer(bytes.fromhex(text), np.uint8).reshape(rows, columns) / 255
            assert np.abs(got - want[head]).max() < 0.5 / 255 + 1e-5
    assert roles(model, passages, examples=0).examples == ()
    assert roles(model, passages, seed=3).examples == found.examples


# --- repetitions ----------------------------------------------------------------------------------------------------


def test_repetitions_are_two_copies_of_different_ordinary_tokens() -> None:
    there = side(0, 40)
    found = repetitions(there, 0)
    assert len(found) == 32
    assert len({one.period for one in found}) > 5
    for one in found:
        half = one.ids[1 : 1 + one.period]
        assert one.ids == [START, *half, *half]
        assert 12 <= one.period == len(set(half)) <= 24
        assert min(half) > END
    assert found == repetitions(there, 0) != repetitions(there, 1)
    assert max(one.period for one in repetitions(there, 0, longest=31)) <= 15
    assert repetitions(there, 0, longest=24) == []


@pytest.mark.parametrize("case", ["decoder", "translator"])
def test_induction_and_copying_are_those_of_plain_loops(case: str) -> None:
    model: Any = CASES[case][0]()
    passages = CASES[case][1]()
    found = roles(model, passages, seed=5)
    e: dict[str, list[np.ndarray]] = {"induction": [], "copying": []}
    n = []
    sequences = repetitions(passages.source if passages.read is None else passages.read, 5, 60)
    model.set_attn_implementation("eager")
    for number, one in enumerate(sequences):
        if case == "decoder":
            out = model(input_ids=torch.tensor([one.ids]), output_attentions=True).attentions
        else:
            inputs = {"input_ids": torch.tensor([passages.source.ids[number % passages.size]])}
            start = torch.tensor([[model.config.decoder_start_token_id, *one.ids[1:]]])
            out = model(**inputs, decoder_input_ids=start, output_attentions=True).decoder_attentions
        weights = torch.cat([layer[0] for layer in out]).detach().numpy()
        second = range(len(one.ids) - one.period, len(one.ids))
        n.append(one.period)
        e["copying"].append(sum((weights[:, q].argmax(1) == q - one.period) * 1.0 for q in second))
        e["induction"].append(sum((weights[:, q].argmax(1) == q - one.period + 1) * 1.0 for q in second))
    for kind, values in e.items():
        for head, told in enumerate(one for one in found.heads if one.type == "decoder"):
            want = by_hand(np.array(values)[:, head], np.array(n, dtype=float))[:3]
            assert getattr(told, kind) == pytest.approx(np.clip(want, 0, 1), abs=2e-6)
    assert all(head.induction is None for head in found.heads if head.type != "decoder")
    assert all(head.copying is None for head in roles(model, passages, probe=False).heads)


# --- planted and random heads ---------------------------------------------------------------------------------------

PLANTED = ("one back", "two ahead", "governor", "rarest", "[SEP]", "uniform")


def planted(ground: AttentionSides, numbers: Sequence[int]) -> Tensor:
    """Weights that look where their names say, or at their own token where there is no such thing."""
    placed = ground.query.placed(numbers)
    out = torch.zeros(len(numbers), len(PLANTED), *[placed.ids.shape[1]] * 2)
    for row, number in enumerate(numbers):
        start, words = int(placed.real[row].int().argmax()), ground.query.words[number]
        one, size = ground.query.sentences[number], len(words)
        there = sorted({*words} - {-1})
        rarest = min(there, key=lambda word: COUNTS[one.words[word].form.casefold()])
        for place, word in enumerate(words):
            governor = one.words[word].head if word >= 0 else -1
            goals = [max(place - 1, 0), min(place + 2, size - 1), words.index(governor) if governor in there else place]
            goals += [words.index(rarest), size - 1]
            for head, goal in enumerate(goals):
                out[row, head, start + place, start + goal] = 1
            out[row, -1, start + place, start : start + size] = 1 / size
    return out


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("rule", ["first", "mean"])
def test_planted_heads_are_named_and_a_uniform_one_is_not(rule: str, padding: str) -> None:
    passages = texts(120, padding=padding)
    ground = AttentionSides("encoder", passages.source, passages.source, words=rule)
    total = None
    for numbers in passages.batches():
        laid = ground.laid(numbers)
        part = SentenceSums(ground.names, tallied(ground.counted(laid, planted(ground, numbers)), laid.n))
        total = part if total is None else total + part
    assert total is not None
    gain = total["two",].value - total["chance",].value
    np.testing.assert_allclose(total["two gain",].value, gain)
    assert gain[PLANTED.index("rarest")] > 0.5
    seen = Observed("encoder", tuple(f"0:{number}" for number in range(len(PLANTED))), total, ground.tested)
    found = named([seen], model="planted", sentences=passages.size, tokens=0, sets="")
    assert list(found.main.values()) == ["positional", "positional", "syntactic", "rare", "sink", "none"]
    assert [found.of(f"0:{number}")[0].what for number in (0, 1, 4)] == ["-1", "+2", "[SEP]"]
    assert {role.what for role in found.of("0:2") if role.role == "syntactic"} == {
        f"{relation}, {DIRECTIONS[0]}" for relation in TESTED
    }
    assert all(role.value == 1.0 for role in found.of("0:2") if role.role == "syntactic")
    assert found.heads[3].rare.rarest == (1.0, 1.0, 1.0)  # type: ignore[index]


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.parametrize("padding", ["right", "left"])
def test_what_uniform_attention_has_is_what_uniform_attention_is_counted_to_have(kind: str, padding: str) -> None:
    passages = texts(60, padding=padding)
    ground = AttentionSides(kind, passages.source, passages.source)
    total = None
    for numbers in passages.batches():
        laid, real = ground.laid(numbers), passages.source.placed(numbers).real
        place = torch.arange(real.shape[1])
        seen = real[:, None] & ((place[:, None] >= place) if kind == "decoder" else torch.tensor(True))
        weights = (seen.double() / seen.sum(-1, keepdim=True).clamp(min=1)).expand(-1, len(place), -1)
        part = SentenceSums(ground.names, tallied(ground.counted(laid, weights[:, None]), laid.n))
        total = part if total is None else total + part
    assert total is not None
    for name, uniform in (
        ("sink", "sink, uniform"),
        (("mass", "punctuation"), "punctuation, uniform"),
        ("local", "uniform"),
    ):
        counted = total[name if isinstance(name, tuple) else (name,)].value
        np.testing.assert_allclose(counted, total[uniform,].value, atol=1e-12)
        assert 0 < counted[0] < 1


def test_on_short_texts_a_random_head_is_no_sink() -> None:
    """Of four tokens two are special: half of any attention is there."""
    from transformers import BertConfig, BertModel

    every = texts(200, pieces=1)
    passages = every.subset([number for number, ids in enumerate(every.source.ids) if len(ids) == 4])
    assert len(passages) >= 20
    for seed in range(3):
        torch.manual_seed(seed)
        found = roles(BertModel(BertConfig(**zoo.ENCODER)).eval(), passages, examples=0)
        assert max(sum(head.mass[name] for name in ("[CLS]", "[SEP]")) for head in found.heads) > 0.5
        assert "sink" not in found.main.values()


def test_random_heads_earn_no_syntactic_role() -> None:
    """Also where most governors are next to their dependents, and where heads prefer some words to others."""
    passages = texts(60, tree=lambda word, size: min(word + 1, size - 1) if word % 3 else size // 2)
    assert len(AttentionSides("encoder", passages.source, passages.source).tested) == 2 * len(TESTED)
    for seed in range(20):
        found = roles(encoder(seed), passages, batch_size=64, examples=0)
        assert not any(role.role in ("syntactic", "positional") for head in found.heads for role in head.roles)


def test_relations_in_few_sentences_are_not_tested() -> None:
    passages = texts(12)
    found = roles(encoder(), passages)
    assert found.relations == ()
    assert Roles.from_json(found.to_json()) == found


def test_a_rule_that_there_is_not_is_refused() -> None:
    with pytest.raises(hc.HeadcountError, match='"first" token or the "mean"'):
        roles(encoder(), texts(4), words="last")
