"""Heads by name: planted heads are named and no others, scores are those of plain loops, and so is how many examples suffice."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import planted_roles, zoo
from helpers.language import byte_tokenizer, small_llama
from helpers.same import alike, close
from helpers.small_models import word_tokenizer
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

import headcount as hc
from headcount.documents.circuits.named_heads import HeadsDocument
from headcount.errors import BadData, BadPlan, NotFound, OutOfMemory, Refused
from headcount.head_roles.by_name import kinds, naming, needles, pipeline, retrieval, successors, vocabulary
from headcount.head_roles.by_name.repeated import PERIODS, repeated_prompts
from headcount.head_roles.induction import Repeated
from headcount.stats.metrics import metric
from headcount.stats.paired_tests import holm
from headcount.stats.results import Result, compare_all

PATTERNS = [*kinds.PATTERNS]


# -- planted heads -----------------------------------------------------------------------------------------------------


@cache
def planted() -> planted_roles.Cast:
    return planted_roles.decoder()


def test_planted_heads_are_named_and_no_others() -> None:
    cast = planted()
    found = hc.heads(cast.model, PATTERNS, tokenizer=cast.tokenizer, prompts=8)
    assert {kind: found.named(kind) for kind in PATTERNS} == {
        "previous-token": ("0:1",),
        "duplicate-token": ("0:2",),
        "induction": ("1:2",),
        "sink": ("0:3",),
    }
    assert {cast.planted[unit] for kind in PATTERNS for unit in found.named(kind)} == {
        "back",
        "copying",
        "induction",
        "first",
    }


def writer(moves: dict[int, int], size: int, hidden: int = 64) -> nn.Module:
    """A GPT-2 of one layer with two heads; the first writes, where it looks at a token, the one that it is moved to."""
    config = GPT2Config(
        vocab_size=size, n_positions=128, n_embd=hidden, n_layer=1, n_head=2, n_inner=4, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    with torch.no_grad():
        model = GPT2LMHeadModel(config).eval()
        codes = torch.eye(size, hidden // 2)
        model.transformer.wte.weight.copy_(torch.cat([codes, -codes], 1))  # adds up to zero: norms only scale it
        model.transformer.wpe.weight.zero_()
        layer = model.transformer.h[0]
        for matrix in (layer.attn.c_attn, layer.attn.c_proj, layer.mlp.c_proj):
            matrix.weight.zero_()
        values = layer.attn.c_attn.weight[:, 2 * hidden : 2 * hidden + hidden // 2]
        values.copy_(torch.cat([torch.eye(hidden // 2), torch.zeros(hidden // 2, hidden // 2)]))
        for token, other in moves.items():
            layer.attn.c_proj.weight[token, other] = 1.0
            layer.attn.c_proj.weight[token, other + hidden // 2] = -1.0
    return model


def test_a_head_that_writes_what_it_looks_at_copies() -> None:
    model = writer({token: token for token in range(30)}, 30)
    found = hc.heads(model, "copying", prompts=6)
    assert found.named("copying") == ("0:0",)
    assert close(found["copying"].values, np.array([[1.0, 0.0]] * 6))
    assert hc.heads(writer({n: (n + 1) % 30 for n in range(30)}, 30), "copying", prompts=6)["copying"].values.max() == 0


def test_a_head_that_writes_the_next_word_is_a_successor_head() -> None:
    words = [*successors.SEQUENCES["days"], *successors.SEQUENCES["ordinals"], "other"]
    tokenizer = word_tokenizer(words)
    pairs, names = successors.successors(tokenizer)
    assert names == ["days", "ordinals"]
    assert len(pairs) == 6 + 9
    model = writer({pair.word: pair.following for pair in pairs}, len(tokenizer))
    found = hc.heads(model, "successor", tokenizer=tokenizer)
    assert found.named("successor") == ("0:0",)
    assert close(found["successor"].values, np.array([[1.0, 0.0]] * 15))
    assert close(found["successor"].chance, np.array([1 / 7] * 6 + [1 / 10] * 9))
    backwards = writer({pair.following: pair.word for pair in pairs}, len(tokenizer))
    assert hc.heads(backwards, "successor", tokenizer=tokenizer).named("successor") == ()


def copier() -> nn.Module:
    """The planted GPT-2, whose induction head now also writes the token that it looks at, louder than what is there."""
    cast = planted_roles.decoder()
    model: Any = cast.model
    space, width, code = planted_roles.GPT2, planted_roles.G_WIDTH, planted_roles.CODE
    layer, hidden = model.transformer.h[1], space.hidden
    with torch.no_grad():
        rows = range(2 * width, 2 * width + code)
        layer.attn.c_attn.weight[:, [2 * hidden + row for row in rows]] = space.basis[space.at["token"]].T
        layer.attn.c_proj.weight[list(rows)] = 3 * space.basis[space.at["token"]]
    return model


def test_a_head_that_looks_at_what_the_model_copies_is_a_retrieval_head() -> None:
    model = copier()
    sites = hc.find(model).heads
    needle, hay = list(range(20, 28)), list(range(40, 70))
    ids = (*hay[:12], 10, *needle, *hay[12:], 10)  # token 10 is the cue
    found = retrieval.retrieval_scores(model, sites, needles.Hidden(ids, 13, 21, 0.5), frozenset())
    units = [str(unit) for site in sites for unit in site.units]
    scores = dict(zip(units, found.scores.tolist(), strict=True))
    assert scores.pop("1:2") == 1.0
    assert max(scores.values()) < 0.2
    assert found.answered == 1.0
    assert 0 < found.chance < 0.05
    # without the needle there is nothing to copy
    away = retrieval.retrieval_scores(model, sites, needles.Hidden((*hay, 10), 3, 11, 0.5), frozenset())
    assert not away.scores[units.index("1:2")]


# -- plain loops -------------------------------------------------------------------------------------------------------


def attentions(model: Any, ids: list[int]) -> list[Tensor]:
    """What transformers itself hands out, layer by layer: (heads, queries, keys)."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_attentions=True)
    model.set_attn_implementation(before)
    return [layer[0] for layer in out.attentions]


def by_hand(model: Any, prompt: Repeated, kind: str) -> tuple[list[float], float]:
    """The score of every head on one prompt, and what uniform attention would give."""
    begin, period = prompt.begin, prompt.period
    pairs = {
        "previous-token": [(t, t - 1) for t in range(2, len(prompt.ids))],
        "sink": [(t, 0) for t in range(1, len(prompt.ids))],
        "duplicate-token": [(t, t - period) for t in range(begin + period, len(prompt.ids))],
        "induction": [(t, t - period + 1) for t in range(begin + period, len(prompt.ids))],
    }[kind]
    if kind in ("duplicate-token", "induction"):
        assert all(prompt.ids[k - (kind == "induction")] == prompt.ids[t] for t, k in pairs)
    scores = [
        sum(float(head[t, k]) for t, k in pairs) / len(pairs)
        for layer in attentions(model, prompt.ids)
        for head in layer
    ]
    return scores, sum(1 / (t + 1) for t, _ in pairs) / len(pairs)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_scores_of_attention_are_those_of_plain_loops(name: str) -> None:
    model, tokenizer = small_llama() if name == "llama" else zoo.build("gpt2")[0], None
    tokenizer = byte_tokenizer() if name == "llama" else None
    before = Fingerprint(model)
    found = hc.heads(model, PATTERNS, tokenizer=tokenizer, prompts=5, batch_size=3, seed=4)
    assert before.changed() == []
    ordinary, begin = vocabulary.ordinary_tokens(model, tokenizer), vocabulary.begin_of(model, tokenizer)
    prompts = repeated_prompts(ordinary, begin, 5, 4, pipeline.positions_of(model))
    for kind in PATTERNS:
        expected = [by_hand(model, prompt, kind) for prompt in prompts]
        assert close(found[kind].values, np.array([scores for scores, _ in expected]))
        assert close(found[kind].chance, np.array([chance for _, chance in expected]))


def moved(name: str) -> Any:
    """A model of two layers whose norms make a difference."""
    model: Any = small_llama() if name == "llama" else zoo.build(name)[0]
    with torch.no_grad():
        for module in model.modules():
            if "RMSNorm" in type(module).__name__:
                module.weight.copy_(torch.linspace(-0.8, 2, len(module.weight)).roll(len(module.weight) // 3))
    return model


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_copying_is_that_of_plain_loops(name: str) -> None:
    """Gemma 2 also has a norm behind its attention, and adds one to the weights of its norms."""
    model = moved(name)
    heads, kv_heads = model.config.num_attention_heads, model.config.num_key_value_heads
    width, one = model.model.layers[0].self_attn.head_dim, 1.0 if name == "gemma2" else 0.0
    found = hc.heads(model, "copying", prompts=3)["copying"]
    begin = vocabulary.begin_of(model)
    prompts = repeated_prompts(vocabulary.ordinary_tokens(model), begin, 3, 0, pipeline.positions_of(model))
    given: list[Tensor] = []
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda _, __, kwargs: given.append(kwargs["hidden_states"][0]), with_kwargs=True
        )
        for layer in model.model.layers
    ]
    for prompt, scores, chance in zip(prompts, found.values, found.chance, strict=True):
        given.clear()
        with torch.no_grad():
            model(torch.tensor([prompt.ids]))
        tokens, expected = prompt.ids[len(begin) : len(begin) + prompt.period], []
        for layer, x in zip(model.model.layers, given, strict=True):
            for head in range(heads):
                group = head // (heads // kv_heads)
                values = x @ layer.self_attn.v_proj.weight[width * group : width * (group + 1)].T
                right = 0
                for place, token in enumerate(tokens, len(begin)):
                    wrote = layer.self_attn.o_proj.weight[:, width * head : width * (head + 1)] @ values[place]
                    wrote = wrote * (one + layer.post_attention_layernorm.weight) if one else wrote
                    wrote = wrote * (one + model.model.norm.weight)
                    logits = [float(model.lm_head.weight[other] @ wrote) for other in tokens]
                    right += tokens[int(np.argmax(logits))] == token
                expected.append(right / len(tokens))
        assert close(scores, np.array(expected))
        assert chance == 1 / len(tokens)
    for hook in hooks:
        hook.remove()
    assert found.values.max() > 0


def retrieved(model: Any, prompt: needles.Hidden, steps: int) -> list[float]:
    """The share of the needle's tokens that each head copies, every step read anew from the beginning."""
    ids, span = list(prompt.ids), range(prompt.start, prompt.end)
    copied: list[set[int]] | None = None
    for _ in range(steps):
        heads = [head for layer in attentions(model, ids) for head in layer]
        with torch.no_grad():
            token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        copied = copied or [set() for _ in heads]
        for own, head in zip(copied, heads, strict=True):
            place = int(head[-1].argmax())
            if place in span and prompt.ids[place] == token:
                own.add(place)
        ids.append(token)
    assert copied is not None
    return [len(own) / len(span) for own in copied]


def small_mistral() -> nn.Module:
    """Its cache holds the last tokens alone."""
    config = MistralConfig(
        vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        sliding_window=16, max_position_embeddings=128,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = MistralForCausalLM(config).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.3)
    return model


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_retrieval_is_that_of_plain_loops(name: str) -> None:
    model = (
        small_llama(vocab_size=40) if name == "llama" else zoo.build("gpt2")[0] if name == "gpt2" else small_mistral()
    )
    for seed in (2, 3):  # prompts of which something is copied by chance
        ids = tuple(np.random.default_rng(seed).integers(3, 40, 20).tolist())
        prompt = needles.Hidden(ids, 2, 18, 0.5)
        found = retrieval.retrieval_scores(model, hc.find(model).heads, prompt, frozenset())
        expected = retrieved(model, prompt, 16 + retrieval.SPARE)
        assert close(found.scores.numpy(), np.array(expected))
        assert max(expected) > 0


def test_without_a_cache_retrieval_is_the_same() -> None:
    model: Any = small_llama(vocab_size=40)
    prompt = needles.Hidden(tuple(np.random.default_rng(5).integers(3, 12, 20).tolist()), 2, 18, 0.5)
    sites = hc.find(model).heads
    whole = retrieval.retrieval_scores(model, sites, prompt, frozenset())
    plain = model.forward
    model.forward = lambda input_ids, use_cache=None: plain(input_ids, use_cache=False)
    without = retrieval.retrieval_scores(model, sites, prompt, frozenset())
    assert torch.equal(whole.scores, without.scores)
    assert (whole.chance, whole.answered) == (without.chance, without.answered)


def test_an_answer_ends_where_the_model_ends_it() -> None:
    model = copier()
    ids = (*range(40, 52), 10, *range(20, 28), *range(52, 70), 10)
    found = retrieval.retrieval_scores(model, hc.find(model).heads, needles.Hidden(ids, 13, 21, 0.5), frozenset({24}))
    assert found.scores.max() == 0.5
    assert found.answered == 0.5


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_prompts_are_drawn_by_seed_and_number() -> None:
    ordinary = list(range(100))
    some, more = (repeated_prompts(ordinary, [7], count, 0, None) for count in (4, 9))
    assert more[:4] == some
    assert repeated_prompts(ordinary, [7], 4, 1, None) != some
    assert {prompt.period for prompt in repeated_prompts(ordinary, [], 300, 0, None)} == set(
        range(PERIODS[0], PERIODS[1] + 1)
    )
    for prompt in more:
        tokens = prompt.ids[1 : 1 + prompt.period]
        assert prompt.ids == [7, *tokens, *tokens]
        assert len(set(tokens)) == prompt.period
    assert max(len(prompt.ids) for prompt in repeated_prompts(ordinary, [7], 9, 0, 33)) <= 33


@pytest.mark.parametrize("length", [420, 600])
def test_needles_lie_where_they_should(length: int) -> None:
    tokenizer = byte_tokenizer()
    text = needles.read_haystack(None, tokenizer, length, 0)
    prompts = needles.hidden_needles(text, tokenizer, [0], 20, [length], 0)
    assert needles.hidden_needles(text, tokenizer, [0], 7, [length], 0) == prompts[:7]
    for number, prompt in enumerate(prompts):
        own = needles.needle(0, number)
        assert len(prompt.ids) == length
        assert tokenizer.decode(prompt.ids[prompt.start : prompt.end]) == own.answer
        whole = tokenizer.decode(prompt.ids[1:])
        assert whole.count(own.before + own.answer + own.after) == 1
        assert whole.endswith(own.question)
        assert prompt.depth == number % 10 / 9
        before = whole[: whole.index(own.before + own.answer)]
        assert before.endswith(".") or "." not in before[-100:]
        room = length - 1 - len(needles.ids_of(tokenizer, own.before + own.answer + own.after + own.question))
        cut = prompt.start - 1 - len(own.before) + 1  # one token for a space and the letter behind it
        assert 0 <= round(prompt.depth * room) - cut <= needles.SEARCHED


def test_no_made_sentence_says_what_anybody_keeps() -> None:
    assert "keep" not in needles.made_text(0, 500)
    assert not any(person in needles.made_text(0, 500) for person in needles.PEOPLE)


def test_a_haystack_of_the_user_is_read(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    file.write_text("Nothing happens here. " * 60)
    found = hc.heads(
        small_llama(max_position_embeddings=900),
        "retrieval",
        tokenizer=byte_tokenizer(),
        prompts=2,
        lengths=[450],
        haystack=file,
    )
    assert "book.txt" in found["retrieval"].read
    with says(BadData, about="needs 3"):
        hc.heads(
            small_llama(max_position_embeddings=9000),
            "retrieval",
            tokenizer=byte_tokenizer(),
            lengths=[4000],
            haystack=file,
        )


# -- statistics --------------------------------------------------------------------------------------------------------


def drawn(means: list[float], n: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return np.clip(draw.normal(means, 0.1, (n, len(means))), 0, 1), draw.uniform(0.02, 0.05, n)


def test_p_values_are_those_of_the_t_test_and_of_holm() -> None:
    values, chance = drawn([0.03, 0.08, 0.5, 0.02, 0.3])
    values[:, 3] = 0.0
    mean = metric("mean", higher_is_better=True)
    before = Result(mean, chance[:, None])
    compared = compare_all(before, np.moveaxis(values, 1, 0)[:, :, None], test="t", alternative="greater")
    found = naming.named(values, chance, 0.25)
    assert np.allclose(found.p, [one.p for one in compared], rtol=1e-9)
    assert np.allclose(found.p_holm, [one.p_holm for one in compared], rtol=1e-9)
    assert found.named.tolist() == [False, False, True, False, True]
    assert naming.above(np.array([[0.5, 0.0]])).tolist() == [1.0, 1.0]  # one example proves nothing
    assert naming.above(np.array([[0.5, 0.0, -0.1]] * 3)).tolist() == [naming.SMALLEST, 1.0, 1.0]


def test_intervals_are_those_of_a_result() -> None:
    values, _ = drawn([0.1, 0.5])
    low, high = naming.intervals(values, resamples=1000, seed=12345)
    for n in range(2):
        assert np.allclose(Result(metric("mean", higher_is_better=True), values[:, [n]]).interval(), (low[n], high[n]))


def test_enough_is_a_plain_loop_over_draws() -> None:
    values, chance = drawn([0.03, 0.27, 0.5, 0.6], n=12)
    rows = naming.enough(values, chance, 0.25, resamples=40, seed=3)
    assert [row.examples for row in rows] == [4, 8, 12]
    generator, whole = np.random.default_rng(3), {1, 2, 3}
    for row in rows:
        same, overlap, means = 0, 0.0, []
        for _ in range(40):
            numbers = generator.integers(0, 12, row.examples)
            some, levels = values[numbers], chance[numbers]
            p = naming.above(some - levels[:, None])
            found = {n for n in range(4) if holm(p)[n] <= 0.05 and some[:, n].mean() >= 0.25}
            same += found == whole
            overlap += len(found & whole) / len(found | whole)
            means.append([some[:, n].mean() for n in sorted(whole)])
        width = np.diff(np.quantile(means, [0.025, 0.975], axis=0), axis=0).mean() / 2
        assert alike(tuple(row[1:]), (width, same / 40, overlap / 40))


def test_with_more_examples_intervals_shrink_and_names_settle() -> None:
    values, chance = drawn([0.03] * 6 + [0.28, 0.6], n=128)
    rows = naming.enough(values, chance, 0.25)
    for row in rows:  # half of 2 * 1.96 standard errors
        assert row.half_width == pytest.approx(1.96 * 0.1 / row.examples**0.5, rel=0.3)
    assert rows[0].same < naming.STABLE < rows[-1].same
    assert naming.enough_at(rows) in (32, 64, 128)
    sure, level = drawn([0.03, 0.9], n=32)
    assert naming.enough_at(naming.enough(sure, level, 0.25)) == 4
    close_call, level = drawn([0.25] * 6, n=16)
    assert naming.enough_at(naming.enough(close_call, level, 0.25)) is None
    none, level = drawn([0.03] * 8, n=16)
    assert naming.enough(none, level, 0.25)[-1].same == 1.0


# -- the verb ----------------------------------------------------------------------------------------------------------


@cache
def everything() -> Any:
    return hc.heads(small_llama(max_position_embeddings=900), tokenizer=byte_tokenizer(), prompts=3, lengths=[400, 450])


def test_every_kind_has_a_score_for_every_head_and_example() -> None:
    found = everything()
    assert [*found.measured] == [*kinds.KINDS]
    for kind, one in found.measured.items():
        assert one.values.shape == (len(one.chance), 8) == (3 if kind != "successor" else len(one.values), 8)
        assert ((one.values >= 0) & (one.values <= 1)).all()
        assert ((one.chance >= 0) & (one.chance < 0.5)).all()
    document = found.document()
    assert HeadsDocument.from_json(document.to_json()) == document
    assert [len(kind.heads) for kind in document.kinds] == [8] * 7
    assert all(head.low <= head.mean <= head.high for kind in document.kinds for head in kind.heads)
    assert "induction: " in str(found)
    assert "<table" in found._repr_html_()


def test_the_size_of_batches_does_not_matter() -> None:
    some, others = (hc.heads(small_llama(), [*PATTERNS, "copying"], prompts=5, batch_size=size) for size in (1, 5))
    for kind in some.measured:
        assert close(some[kind].values, others[kind].values)


def test_heads_are_named_by_their_scores_the_highest_first() -> None:
    cast = planted()
    found = hc.heads(cast.model, "sink", tokenizer=cast.tokenizer, prompts=6, at_least={"sink": 0})
    assert found.named("sink")[0] == "0:3"
    values, chance = np.tile([0.3, 0.9, 0.5, 0.01], (6, 1)), np.full(6, 0.02)
    like = pipeline.NamedHeads(
        "", ("a", "b", "c", "d"), (), {"sink": found["sink"]._replace(values=values, chance=chance)}
    )
    assert like.named("sink") == ("b", "c", "a")
    (kind,) = like.document().kinds
    assert tuple(head.unit for head in kind.named) == ("b", "c", "a")
    assert [head.unit for head in kind.ranking] == ["b", "c", "a", "d"]


def test_lists_for_other_programs() -> None:
    cast = planted()
    found = hc.heads(cast.model, "sink", tokenizer=cast.tokenizer, prompts=4)
    with says(NotFound, about="No retrieval heads"):
        found.retrieval_list()
    like = pipeline.NamedHeads("", found.heads, found.places, {"retrieval": found["sink"]._replace(at_least=0.5)})
    (one,) = like.retrieval_list()
    assert (one["layer"], one["head"], one["unit"], one["score"]) == (0, 3, "0:3", pytest.approx(1.0))
    scores = like.head_scores()
    assert [*scores] == [f"{layer}-{head}" for layer, head in itertools.product(range(2), range(4))]
    assert all(len(row) == 4 for row in scores.values())


def test_heads_keep_their_numbers_in_a_model_that_was_cut() -> None:
    model, _ = zoo.build("gpt2")
    hc.cut(model, "0:1 1:0")
    found = hc.heads(model, "sink", prompts=2)
    assert found.heads == ("0:0", "0:2", "0:3", "1:1", "1:2", "1:3")
    assert found.places == ((0, 0), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3))


@pytest.mark.parametrize("name", ["falcon", "falcon-mqa", "gpt_neox", "gemma2", "deepseek_v3", "mixtral", "bloom"])
def test_other_families_are_read_as_well(name: str) -> None:
    model, _ = zoo.build(name)
    found = hc.heads(model, [*PATTERNS, "copying"], prompts=2)
    assert all(
        one.values.shape[1] == sum(len(site) for site in hc.find(model).heads) for one in found.measured.values()
    )
    assert not any(one.values[:, 0].std() > 0.5 for one in found.measured.values())


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_llama(max_position_embeddings=900)
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "prompts": 3, "lengths": [400, 450]}
    done: list[int] = []

    def stopped(*args: Any) -> Any:
        done.append(1)
        if len(done) == 2:
            raise KeyboardInterrupt
        return retrieval.retrieval_scores(*args)

    monkeypatch.setattr(pipeline, "retrieval_scores", stopped)
    with pytest.raises(KeyboardInterrupt), hc.runs.Run.open(tmp_path / "run", {"command": "heads"}) as run:
        hc.heads(model, run=run, **options)
    with hc.runs.Run.open(tmp_path / "run", {"command": "heads"}) as run:
        again = hc.heads(model, run=run, **options)
    assert len(done) == 4
    for kind, one in everything().measured.items():
        assert close(again[kind].values, one.values)
        assert close(again[kind].chance, one.chance)


# -- what cannot be done -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "error", "about"),
    [
        ("bert", {}, Refused, "no causal language model"),
        ("t5", {}, Refused, "no causal language model"),
        ("jetmoe", {"kinds": "sink"}, Refused, "does not weight values"),
        ("opt", {"kinds": "copying"}, Refused, "a projection stands between"),
        ("gpt2", {"kinds": "induction,famous"}, BadPlan, "'famous' is no kind"),
        ("gpt2", {"kinds": []}, BadPlan, "is no kind"),
        ("gpt2", {"kinds": "sink", "prompts": 1}, BadPlan, "2 prompts or more"),
        ("gpt2", {"kinds": "sink", "at_least": {"sink": 3}}, BadPlan, "from 0 to 1"),
        ("gpt2", {"kinds": "successor"}, BadData, "give tokenizer"),
        ("gpt2", {"kinds": "retrieval"}, BadData, "give tokenizer"),
        ("gpt2", {"kinds": "successor", "tokenizer": word_tokenizer(["a", "b"])}, BadData, "no days, months"),
        (
            "gpt2",
            {"kinds": "sink", "tokenizer": word_tokenizer([f"w{n}" for n in range(200)])},
            BadData,
            "does not belong",
        ),
    ],
)
def test_what_cannot_be_done_is_said(name: str, options: dict[str, Any], error: Any, about: str) -> None:
    with says(error, about=about):
        hc.heads(zoo.build(name)[0], **options)


@pytest.mark.parametrize(
    ("options", "error", "about"),
    [
        ({"lengths": [120]}, BadData, "give longer prompts"),
        ({"lengths": [890]}, BadPlan, "900 positions"),
        ({"lengths": []}, BadPlan, "at least one of them"),
        ({"haystack": "nowhere.txt"}, BadData, "There is no file 'nowhere.txt'"),
    ],
)
def test_a_haystack_that_does_not_fit_is_said(options: dict[str, Any], error: Any, about: str) -> None:
    with says(error, about=about):
        hc.heads(
            small_llama(max_position_embeddings=900), "retrieval", tokenizer=byte_tokenizer(), prompts=2, **options
        )


def test_kinds_that_cannot_be_had_are_left_out_and_it_is_said_where_none_was_asked_for() -> None:
    found = hc.heads(zoo.build("opt")[0], prompts=2)
    assert [*found.measured] == [kind for kind in kinds.KINDS if kind in PATTERNS]
    assert [note.partition(" ")[0] for note in found.document().notes] == ["copying", "successor", "retrieval"]
    with says(BadData, about="no file"):
        hc.heads(small_llama(), tokenizer=byte_tokenizer(), prompts=2, haystack="nowhere.txt")
    with says(Refused, about="does not weight values"):
        hc.heads(zoo.build("jetmoe")[0], prompts=2)


def test_a_model_that_reads_too_little_is_refused() -> None:
    with says(Refused, about="7 positions"):
        hc.heads(small_llama(max_position_embeddings=7), "sink", prompts=2)


def test_no_memory_for_a_prompt_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = small_llama()

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model.model, "forward", full)
    with says(OutOfMemory, about="prompt of 5 tokens"):
        retrieval.retrieval_scores(model, hc.find(model).heads, needles.Hidden((1, 2, 3, 4, 5), 1, 3, 0.0), frozenset())
