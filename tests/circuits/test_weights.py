"""Circuits off the weights, against matrices that are made whole with numpy."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch
from conftest import says
from helpers import zoo
from torch import nn

import headcount as hc
from headcount.circuits import composition_scores, token_circuits
from headcount.circuits.ov_qk import top_pairs

LLAMAS = ["llama", "gpt2"]  # RMSNorm computes in float32 whatever the model does, hence tolerances of 1e-4


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


class Whole:
    """The matrices of one layer's heads as they stand in the model, in numpy, norms folded in by hand."""

    def __init__(self, name: str, model: nn.Module, layer: int) -> None:
        if name == "llama":
            block = model.model.layers[layer]
            q, k, v = (array(getattr(block.self_attn, f"{x}_proj").weight).reshape(-1, 8, 32) for x in "qkv")
            k, v = np.repeat(k, 2, 0), np.repeat(v, 2, 0)
            o = array(block.self_attn.o_proj.weight).reshape(32, 8, 8).transpose(1, 0, 2)
            norm, self.final, table, end = (
                block.input_layernorm,
                model.model.norm,
                model.model.embed_tokens,
                model.lm_head,
            )
            self.biases = [np.zeros((8, 8))] * 3
        else:
            block = model.transformer.h[layer]
            q, k, v = array(block.attn.c_attn.weight).T.reshape(3, 4, 8, 32)
            self.biases = [*array(block.attn.c_attn.bias).reshape(3, 4, 8)]
            o = array(block.attn.c_proj.weight).T.reshape(32, 4, 8).transpose(1, 0, 2)
            norm, self.final, table, end = block.ln_1, model.transformer.ln_f, model.transformer.wte, model.lm_head
        self.q, self.k, self.v, self.o = q, k, v, o
        self.norm, self.embeddings, self.unembedding = norm, array(table.weight), array(end.weight)
        with torch.no_grad():
            self.given = array(norm(table.weight.detach()))
        gain = array(self.final.weight)
        self.logits = self.unembedding * gain
        self.fold = np.diag(array(norm.weight))
        if name == "gpt2":
            centre = np.eye(32) - 1 / 32
            self.logits, self.fold = self.logits @ centre, self.fold @ centre
        self.logits = self.logits - self.logits.mean(0)
        # what the norm gives apart from its bias: that of values is the same for every token
        self.x = self.given - (array(norm.bias) if name == "gpt2" else 0)


@pytest.mark.parametrize("name", LLAMAS)
def test_ov_circuits_are_those_of_the_whole_matrix(name: str) -> None:
    model, _ = zoo.build(name, torch.float64)
    whole = Whole(name, model, 1)
    head = token_circuits(model, "1:2", tokens=[5, 9], top=4, permutations=3)["1:2"]
    circuit = whole.logits @ whole.o[2] @ whole.v[2] @ whole.x.T  # (tokens out, tokens in)
    eigenvalues = np.linalg.eigvals(circuit)
    assert head.copying.score == pytest.approx(eigenvalues.real.sum() / np.abs(eigenvalues).sum(), abs=1e-4)
    for writes, token in zip(head.writes, (5, 9), strict=True):
        order = np.argsort(-circuit[:, token])
        assert [one.token for one in writes.promoted] == order[:4].tolist()
        assert [one.token for one in writes.demoted] == order[:-5:-1].tolist()
        assert [one.score for one in writes.promoted] == pytest.approx(circuit[order[:4], token].tolist(), abs=1e-4)
        assert order[writes.rank - 1] == token
        assert writes.token.score == pytest.approx(circuit[token, token], abs=1e-4)
    size = len(circuit)
    places = (circuit > np.diag(circuit)).sum(0)
    assert head.copying.own == pytest.approx((places < 4).mean())
    assert head.copying.chance == pytest.approx(4 / size)


@pytest.mark.parametrize("name", LLAMAS)
def test_the_baseline_of_copying_is_of_shuffled_tokens(name: str) -> None:
    model, _ = zoo.build(name, torch.float64)
    whole = Whole(name, model, 0)
    found = token_circuits(model, "0:1", permutations=3, seed=4)["0:1"].copying
    draw, scores = np.random.default_rng(4), []
    for _ in range(3):
        circuit = whole.logits[draw.permutation(len(whole.x))] @ whole.o[1] @ whole.v[1] @ whole.x.T
        eigenvalues = np.linalg.eigvals(circuit)
        scores.append(eigenvalues.real.sum() / np.abs(eigenvalues).sum())
    assert found.baseline == pytest.approx(np.mean(scores), abs=1e-4)
    assert found.highest == pytest.approx(max(scores), abs=1e-4)


@pytest.mark.parametrize("name", LLAMAS)
def test_qk_circuits_are_those_of_the_whole_matrix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = import_module("headcount.circuits.ov_qk")
    monkeypatch.setattr(blocks, "BLOCK", 200)  # three rows at a time
    model, _ = zoo.build(name, torch.float64)
    whole = Whole(name, model, 1)
    head = blocks.token_circuits(model, "1:3", tokens=[7], top=5, permutations=1)["1:3"]
    queries, keys = (whole.given @ m[3].T + b[3] for m, b in ((whole.q, whole.biases[0]), (whole.k, whole.biases[1])))
    scores = queries @ keys.T
    order = np.argsort(-scores.ravel())[:5]
    assert [(pair.query.token, pair.key.token) for pair in head.pairs] == [divmod(int(n), len(scores)) for n in order]
    assert [pair.score for pair in head.pairs] == pytest.approx(scores.ravel()[order].tolist(), abs=1e-4)
    assert [one.token for one in head.writes[0].looks_at] == np.argsort(-scores[7])[:5].tolist()


def test_scores_at_distance_zero_are_those_of_the_rotated_queries_and_keys() -> None:
    model, _ = zoo.build("llama", torch.float64)
    ids = torch.tensor([[5, 9, 11]])
    cache = hc.cached(model, ids, ["queries", "keys"])
    for position, token in enumerate(ids[0].tolist()):
        pair = token_circuits(model, "0:3", tokens=[token], top=66 - 2, permutations=1)["0:3"].writes[0]
        own = next(one.score for one in pair.looks_at if one.token == token)
        query, key = (cache[kind]["0:3"][0, position] for kind in ("queries", "keys"))
        assert own == pytest.approx(float(query @ key), abs=1e-4)  # layer 0 reads embeddings alone


@pytest.mark.parametrize("name", LLAMAS)
def test_compositions_are_norms_of_whole_products(name: str) -> None:
    model, _ = zoo.build(name, torch.float64)
    first, second = (Whole(name, model, layer) for layer in range(2))
    found = {(one.writer, one.reader, one.kind): one for one in composition_scores(model)}
    norm = np.linalg.norm
    for one in range(len(first.q)):
        written = first.o[one] @ first.v[one] @ first.fold
        for two in range(len(second.q)):
            q, k, v = (m[two] @ second.fold for m in (second.q, second.k, second.v))
            qk, ov = q.T @ k, second.o[two] @ v
            want = {"Q": norm(qk.T @ written), "K": norm(qk @ written), "V": norm(ov @ written)}
            for kind, value in want.items():
                below = norm(ov if kind == "V" else qk) * norm(written)
                assert found[f"0:{one}", f"1:{two}", kind].score == pytest.approx(value / below, abs=1e-4)
    assert len(found) == 3 * len(first.q) * len(second.q)
    some = composition_scores(model, "1:2")
    assert {key for key in found if key[1] == "1:2"} == {(one.writer, one.reader, one.kind) for one in some}
    assert [one.above for one in some] == sorted((one.above for one in some), reverse=True)


def test_the_baseline_of_composition_is_what_random_heads_score() -> None:
    model, _ = zoo.build("gpt2", torch.float64)
    found = composition_scores(model, draws=20)
    generator = np.random.default_rng(0)
    scores = []
    for _ in range(200):
        o1, q, k = generator.normal(size=(32, 8)), generator.normal(size=(8, 32)), generator.normal(size=(8, 32))
        v1 = generator.normal(size=(8, 32))
        qk, ov = q.T @ k, o1 @ v1
        scores.append(np.linalg.norm(qk @ ov) / np.linalg.norm(qk) / np.linalg.norm(ov))
    assert found[0].baseline == pytest.approx(np.mean(scores), abs=0.02)
    assert all(one.above == pytest.approx(one.score - one.baseline) for one in found)


def test_a_head_that_copies_is_found() -> None:
    """A head whose values and outputs are the transposes of each other writes each token's own direction."""
    model, _ = zoo.build("llama", torch.float64)
    attention = model.model.layers[1].self_attn
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        attention.o_proj.weight[:, 24:32] = attention.v_proj.weight[8:16].T
    found = token_circuits(model, "1:*", permutations=5)
    best = max(found.heads, key=lambda head: head.copying.score)
    assert best.unit == "1:3"
    assert best.copying.score > 0.9 > abs(best.copying.baseline) + 0.3
    assert best.copying.own > 3 * best.copying.chance


@pytest.mark.parametrize("name", ["llama", "mt5", "gpt2"])
def test_a_cut_model_has_the_circuits_of_its_heads_under_their_old_numbers(name: str) -> None:
    model, _ = zoo.build(name, torch.float64)
    sites = [site.name for site in hc.find(model).heads if site.attention == "decoder"]
    before = token_circuits(model, f"{sites[-1]}:3", permutations=1)
    compositions = {
        (one.writer, one.reader, one.kind): one.score for one in composition_scores(model, f"{sites[-1]}:3")
    }
    hc.cut(model, f"{sites[-1]}:0 {sites[0]}:1")
    after = token_circuits(model, f"{sites[-1]}:3", permutations=1)
    assert after.heads[0].unit == before.heads[0].unit
    assert after.heads[0].copying.score == pytest.approx(before.heads[0].copying.score, abs=1e-4)
    assert after.heads[0].pairs[0].score == pytest.approx(before.heads[0].pairs[0].score, abs=1e-4)
    for one in composition_scores(model, f"{sites[-1]}:3"):
        assert one.score == pytest.approx(compositions[one.writer, one.reader, one.kind], abs=1e-4)


def test_what_weights_do_not_say_is_refused_in_one_sentence() -> None:
    latent, _ = zoo.build("deepseek_v2")
    with says(hc.errors.Refused, about="multi-head latent attention"):
        token_circuits(latent, "1:0")
    gated, _ = zoo.build("qwen3_next")
    with says(hc.errors.Refused, about="such as gates"):
        composition_scores(gated)
    normed, _ = zoo.build("olmo2")
    with says(hc.errors.Refused, about="of all heads together"):
        composition_scores(normed)
    assert any(
        "of all heads together" in note for note in token_circuits(normed, "1:0").notes
    )  # and the OV circuit is there
    t5, _ = zoo.build("t5")
    with says(hc.errors.Refused, about="the encoder's stream"):
        token_circuits(t5, "encoder.0:1")
    picture, _ = zoo.build("vit")
    with says(hc.errors.Refused, about="give batch="):
        token_circuits(picture)
    llama, _ = zoo.build("llama")
    for wrong in ({"units": "1.mlp:3"}, {"tokens": [4000]}, {"top": 0}, {"permutations": 0}):
        with says(hc.errors.BadPlan):
            token_circuits(llama, **{"units": "1:0", **wrong})  # type: ignore[arg-type]
    with says(hc.errors.BadPlan, about="Compositions are of heads"):
        composition_scores(llama, "1.mlp:3")


def test_pictures_compose_when_a_batch_is_given() -> None:
    model, inputs = zoo.build("vit")
    assert len(composition_scores(model, batch=inputs)) == 3 * 4 * 4


def test_top_pairs_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = import_module("headcount.circuits.ov_qk")
    numbers = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(31, 4, generator=numbers, dtype=torch.float64) for _ in range(2))
    whole = top_pairs(queries, keys, 6)
    monkeypatch.setattr(blocks, "BLOCK", 1)
    assert [(pair.query.token, pair.key.token) for pair in top_pairs(queries, keys, 6)] == [
        (pair.query.token, pair.key.token) for pair in whole
    ]


def test_documents_are_read_back() -> None:
    model, _ = zoo.build("gpt2")
    found = token_circuits(model, "1:0", tokens=[4], permutations=2)
    assert type(found).from_json(found.to_json()) == found
