"""Heads of which it is known what they look at are named so, and no others: on planted weights, and on random ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint
from helpers import planted_roles as plant
from helpers.small_models import ran_json

from headcount.data.sentences.passages import Passages, passages
from headcount.documents.roles import Roles
from headcount.head_roles.analysis import roles

DOWN, UP = "governor to dependent", "dependent to governor"
# what each planted head has to be called; "below" is right as often as one may be without earning anything
NAMED = {
    "back": "positional (-1), local",
    "ahead": "positional (+1), local",
    "rare": "rare",
    "sep": "sink ([SEP])",
    "governor": f"syntactic (obj, {UP})",
    "dependent": f"syntactic (obj, {DOWN})",
    "below": "",
    "above": f"syntactic (obj, {UP})",
    "local": "local",
    "punctuation": "punctuation",
    "first": "sink (first token)",
    "copying": "copying",
    "induction": "induction",
    "read": "alignment (read)",
    "written": "alignment (written)",
}


def named(found: Roles) -> dict[str, str]:
    return {head.unit: ", ".join(map(str, head.roles)) for head in found.heads}


def expected(cast: plant.Cast, found: Roles) -> dict[str, str]:
    return {head.unit: NAMED[cast.planted[head.unit]] if head.unit in cast.planted else "" for head in found.heads}


def unit(cast: plant.Cast, what: str) -> str:
    return next(name for name, planted in cast.planted.items() if planted == what)


@pytest.fixture(scope="module")
def bert() -> plant.Cast:
    return plant.encoder(plant.grammar(420))


@pytest.fixture(scope="module")
def read(bert: plant.Cast) -> Passages:
    return passages(bert.sentences, bert.tokenizer, batch_size=32)


@pytest.fixture(scope="module")
def found(bert: plant.Cast, read: Passages) -> Roles:
    return roles(bert.model, read)


def test_every_planted_head_of_an_encoder_is_named_and_no_other(bert, found) -> None:
    assert named(found) == expected(bert, found)
    main = {u: text.split(" ")[0].split(",")[0] for u, text in named(found).items()}
    assert found.main == {u: role or "none" for u, role in main.items()}


def test_the_rare_word_is_always_found_where_there_is_one(bert, found) -> None:
    counts = Counter(word.form for one in bert.sentences for word in one.words)
    assert counts.most_common(500)[-1][1] == 2  # so that the words that occur once are the rare ones
    rare = [one for one in bert.sentences if min(counts[w.form] for w in one.words) == 1 and len(one.words) >= 6]
    sets = []
    for one in rare:
        second = sorted(counts[word.form] for word in one.words)[1]
        sets.append(sum(counts[word.form] <= second for word in one.words))
    head = next(head for head in found.heads if head.unit == unit(bert, "rare"))
    assert head.rare.rarest[0] == head.rare.two[0] == 1.0
    assert head.rare.chance == pytest.approx(sum(sets) / sum(len(one.words) for one in rare), abs=1e-6)


@pytest.mark.parametrize("seed", [1, 2])
def test_it_is_so_on_other_sentences_and_with_other_noise(seed: int) -> None:
    cast = plant.encoder(plant.grammar(420, seed), seed)
    found = roles(cast.model, passages(cast.sentences, cast.tokenizer, batch_size=64))
    assert named(found) == expected(cast, found)


def test_a_head_is_syntactic_from_ten_points_above_the_best_distance(bert, found) -> None:
    relation = next(one for one in found.relations if (one.relation, one.direction) == ("obj", UP))
    best = plant.baseline(bert.sentences)
    assert relation.baseline == pytest.approx(best, abs=1e-6)
    assert relation.pairs == sum(word.relation == "obj" for one in bert.sentences for word in one.words)
    for what, goal in (("below", 0.095), ("above", 0.125)):
        share = plant.share_of(bert.sentences, plant.reaching(bert.sentences, best + goal))
        accuracy, gain, low, high, p = relation.heads[unit(bert, what)]
        assert accuracy == pytest.approx(share, abs=1e-6)
        assert gain == pytest.approx(share - best, abs=1e-6)
        assert low < gain < high
        assert p < 0.05  # both are above the best distance beyond doubt; that is not enough
        assert (gain >= 0.1) == (what == "above") == (unit(bert, what) in relation.earned)
        assert abs(gain - 0.1) < 0.04
    assert unit(bert, "governor") in relation.earned
    assert relation.heads[unit(bert, "governor")][0] == 1.0
    role = next(role for role in found.of(unit(bert, "above")) if role.role == "syntactic")
    assert role.sure is False  # the interval reaches below ten points


def test_a_positional_head_is_not_syntactic_where_the_other_word_is_its_neighbour(bert, found) -> None:
    """An adjective mostly stands right before its noun: who looks ahead is right, and no more than the best distance."""
    relation = next(one for one in found.relations if (one.relation, one.direction) == ("amod", UP))
    accuracy, gain, *_ = relation.heads[unit(bert, "ahead")]
    assert relation.offset == 1
    assert accuracy == pytest.approx(relation.baseline, abs=1e-6)
    assert relation.baseline > 0.7
    assert gain == pytest.approx(0.0, abs=1e-6)


def looked(cast: plant.Cast, model: Any, rule: str) -> dict[str, Any]:
    """What `roles` has to count, by loops over sentences, heads, words and tokens, from the attentions themselves."""
    right: dict[tuple[str, str, str], list[bool]] = {}
    offsets: dict[str, Counter[int]] = {}
    neighbours: Counter[int] = Counter()
    means: dict[str, list[tuple[float, float, float]]] = {}
    model.set_attn_implementation("eager")
    for one in cast.sentences:
        made = cast.tokenizer(one.text, return_offsets_mapping=True, return_tensors="pt")
        spans = made.pop("offset_mapping")[0].tolist()
        owner = [next((n for n, w in enumerate(one.words) if w.start <= a < b <= w.end), None) for a, b in spans]
        with torch.no_grad():
            layers = model(**made, output_attentions=True).attentions
        tokens = range(1, len(spans) - 1)
        neighbours.update(o for t in tokens for o in range(-10, 11) if 0 <= t + o < len(spans))
        for layer, weights in enumerate(layers):
            for head, rows in enumerate(weights[0].double().numpy()):
                name = f"{layer}:{head}"
                offsets.setdefault(name, Counter()).update(int(rows[t].argmax()) - t for t in tokens)
                entropy = [-(rows[t][rows[t] > 0] * np.log(rows[t][rows[t] > 0])).sum() for t in tokens]
                each = zip((rows[t][1:-1].max() for t in tokens), entropy, (rows[t][-1] for t in tokens), strict=True)
                means.setdefault(name, []).extend(each)
                best = []
                for n in range(len(one.words)):
                    mine = [t for t in tokens if owner[t] == n]
                    row = rows[mine[0]] if rule == "first" else rows[mine].mean(0)
                    sums = [sum(row[t] for t in tokens if owner[t] == m) for m in range(len(one.words))]
                    best.append(int(np.argmax(sums)))
                for n, word in enumerate(one.words):
                    if word.head >= 0:
                        right.setdefault((name, word.relation, UP), []).append(best[n] == word.head)
                        right.setdefault((name, word.relation, DOWN), []).append(best[word.head] == n)
    return {"right": right, "offsets": offsets, "neighbours": neighbours, "means": means}


@pytest.mark.parametrize("rule", ["first", "mean"])
def test_random_weights_earn_nothing_and_are_counted_as_loops_count(rule: str) -> None:
    cast = plant.encoder(plant.grammar(60, 3))
    model = plant.redrawn(cast.model, 0).double()  # float32 may put either of two like weights first
    found = roles(model, passages(cast.sentences, cast.tokenizer, batch_size=8), words=rule)
    assert set(named(found).values()) == {""}
    counted = looked(cast, model, rule)
    assert {(one.relation, one.direction) for one in found.relations} >= {("obj", UP), ("conj", DOWN), ("advmod", UP)}
    for one in found.relations:
        assert len(one.heads) == 10
        for name, (accuracy, *_) in one.heads.items():
            assert accuracy == pytest.approx(np.mean(counted["right"][name, one.relation, one.direction]), abs=1e-6)
    for head in found.heads:
        confidence, entropy, separator = np.mean(counted["means"][head.unit], axis=0)
        assert (head.confidence[0], head.entropy[0]) == pytest.approx((confidence, entropy), abs=1e-5)
        assert head.mass["[SEP]"] == pytest.approx(separator, abs=1e-5)
        for offset, share in head.offsets.items():
            whole = counted["neighbours"][int(offset)]
            assert share == pytest.approx(counted["offsets"][head.unit][int(offset)] / whole, abs=1e-6)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_weights_earn_nothing_on_many_sentences(seed: int) -> None:
    cast = plant.encoder(plant.grammar(300, seed))
    found = roles(plant.redrawn(cast.model, seed), passages(cast.sentences, cast.tokenizer, batch_size=64))
    assert named(found) == dict.fromkeys(named(found), "")


def test_batches_and_kernels_do_not_matter_and_nothing_is_left_behind(bert, read, found) -> None:
    bert.model.set_attn_implementation("sdpa")
    before = Fingerprint(bert.model)
    again = roles(bert.model, passages(bert.sentences, bert.tokenizer, batch_size=7))
    assert before.changed() == []
    assert named(again) == named(found)
    for one, other in zip(found.heads, again.heads, strict=True):
        assert one.confidence == pytest.approx(other.confidence, abs=1e-5)


def test_the_heads_of_a_decoder_that_repeat_what_was_there_are_named() -> None:
    cast = plant.decoder()
    found = roles(cast.model, passages(cast.sentences, cast.tokenizer, batch_size=32))
    # a head that looks for a copy has none to look for in most sentences; on repeated tokens it has
    assert named(found) == expected(cast, found)
    assert (
        roles(cast.model, passages(cast.sentences, cast.tokenizer), probe=False).main[unit(cast, "induction")] == "none"
    )
    drawn = roles(plant.redrawn(cast.model, 1), passages(cast.sentences, cast.tokenizer, batch_size=32))
    assert named(drawn) == dict.fromkeys(named(drawn), "")


@pytest.fixture(scope="module")
def marian() -> plant.Cast:
    return plant.translator()


@pytest.fixture(scope="module")
def gold(marian: plant.Cast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The word alignments as fast_align writes them."""
    path = tmp_path_factory.mktemp("gold") / "gold.align"
    path.write_text("".join(" ".join(f"{s}-{t}" for t, s in sorted(links)) + "\n" for links in marian.links or ()))
    return path


def test_cross_attention_is_named_after_the_word_that_is_read_or_written(marian, gold) -> None:
    texts = [one.text for one in marian.sentences]
    made = passages(texts, marian.tokenizer, target=marian.targets, alignments=gold, batch_size=32)
    assert list(made.links) == marian.links
    found = roles(marian.model, made)
    assert named(found) == expected(marian, found)
    by_name = {one.relation: one for one in found.relations}
    words = sum(len(target.split()) for target in marian.targets)
    assert by_name["read"].pairs == by_name["written"].pairs == words
    assert by_name["read"].heads[unit(marian, "read")][0] == 1.0
    # the first word that is written cannot be known from what was read
    assert 1 - len(marian.targets) / words <= by_name["written"].heads[unit(marian, "written")][0] < 1.0


def test_alignments_that_are_estimated_name_the_same_head() -> None:
    cast = plant.translator(300, counting=False)
    texts = [one.text for one in cast.sentences]
    made = passages(texts, cast.tokenizer, target=cast.targets, batch_size=32)
    right = sum(len(a & b) for a, b in zip(made.links, cast.links, strict=True))
    assert right >= 0.95 * sum(map(len, cast.links))
    found = roles(cast.model, made)
    assert named(found) == expected(cast, found)  # and what is written next is anyone's guess


def test_a_redrawn_translator_earns_nothing(gold) -> None:
    cast = plant.translator()
    model = plant.redrawn(cast.model, 2)
    texts = [one.text for one in cast.sentences]
    found = roles(model, passages(texts, cast.tokenizer, target=cast.targets, alignments=gold, batch_size=32))
    assert named(found) == dict.fromkeys(named(found), "")


def test_the_command_says_the_same_of_a_treebank(bert, found, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    bert.model.save_pretrained("toy")
    bert.tokenizer.save_pretrained("toy")
    plant.write_conllu(tmp_path / "dev.conllu", bert.sentences)
    printed = ran_json("roles", "toy", "--data", "dev.conllu", "-o", "runs/roles", "--batch-size", 32, "--quiet")
    kept = Roles.read(tmp_path / "runs" / "roles" / "roles.json")
    assert json.loads(json.dumps(printed))["roles"] == {u: text for u, text in named(found).items() if text}
    assert named(kept) == named(found)
    for head, other in zip(kept.heads, found.heads, strict=True):
        assert (*head.confidence, *head.entropy) == pytest.approx((*other.confidence, *other.entropy), abs=1e-5)
        assert head.mass == pytest.approx(other.mass, abs=1e-5)
    for one, other in zip(kept.relations, found.relations, strict=True):
        assert (one[:7], one.earned) == (other[:7], other.earned)
        for name in one.earned:  # of words that a head looks at alike, rounding says which one it looks at most
            assert one.heads[name] == pytest.approx(other.heads[name], abs=1e-5)
