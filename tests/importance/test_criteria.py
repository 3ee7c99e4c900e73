"""`score`: each criterion against its formula, computed by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import close
from helpers.small_models import (
    by_gates,
    class_loss,
    class_task,
    classifier,
    loss_of,
    naive,
    padded_task,
    ragged_pairs,
    ragged_texts,
    texts,
    zoo_task,
)
from model.test_discovery import HEADS, MLP, Stranger, X
from torch import Tensor, nn

import headcount as hc
from headcount.importance import gradients
from headcount.importance.attention import per_token, watched
from headcount.stats.metrics import metric


def derivatives(model: nn.Module, task: hc.data.Task) -> dict[str, np.ndarray]:
    """For each part the derivatives (examples, units), one backward pass per example."""
    each = [by_gates(model, task, example) for example in range(task.size)]
    return {name: np.stack([one[name] for one in each]).astype(np.float64) for name in each[0]}


def joined(parts: dict[str, np.ndarray], *names: str) -> np.ndarray:
    return np.concatenate([parts[name] for name in names])


HEADS_OF = ("0", "1", "2")


# -- from gradients ----------------------------------------------------------------------------------------------------


def test_taylor_at_its_granularities(monkeypatch) -> None:
    monkeypatch.setattr(gradients, "BLOCK", 3)
    model, task = classifier(), ragged_texts(7)
    g = derivatives(model, task)
    hand = {
        "example": {name: np.abs(value).mean(0) for name, value in g.items()},
        "signed": {name: -value.mean(0) for name, value in g.items()},
        "batch": {name: np.abs(np.add.reduceat(value, [0, 3, 6])).sum(0) / 7 for name, value in g.items()},
    }
    for granularity, want in hand.items():
        heads = hc.score(model, task, granularity=granularity, normalize=None)
        assert close(heads.raw, joined(want, *HEADS_OF)), granularity
        neurons = hc.score(model, task, granularity=granularity, units="neurons", normalize=None)
        assert close(neurons.raw, joined(want, "0.mlp", "1.mlp", "2.mlp")), granularity
        layers = hc.score(model, task, granularity=granularity, units="layers", normalize=None)
        assert close(layers.raw, want["layers"]), granularity
        assert close(heads.samples.mean(0), heads.raw)
        assert len(heads.samples) == (3 if granularity == "batch" else 7)
    assert not close(hand["example"]["0"], hand["batch"]["0"])


def test_taylor_per_token() -> None:
    model, task = classifier(), class_task(5)
    kept: dict[str, Tensor] = {}
    batch, anatomy = task.collate(range(5)), hc.find(model)

    def keep(name: str) -> Any:
        def hook(_: nn.Module, args: Any) -> None:
            args[0].retain_grad()
            kept[name] = args[0]

        return hook

    handles = [site.writer.register_forward_pre_hook(keep(site.name)) for site in anatomy]
    class_loss(model, batch).sum().backward()
    for handle in handles:
        handle.remove()
    want = {}
    for site in anatomy:
        context, gradient = kept[site.name].detach(), kept[site.name].grad
        each = (context * gradient).unflatten(-1, (len(site), site.width)).sum(-1)
        read = 5 if site.layer == 2 else 5 * 9  # of the last layer the first token only
        want[site.name] = (each.abs().sum((0, 1)) / read).numpy()
    assert close(hc.score(model, task, granularity="token", normalize=None).raw, joined(want, *HEADS_OF))
    found = hc.score(model, task, granularity="token", normalize=None, units="neurons")
    assert close(found.raw, joined(want, "0.mlp", "1.mlp", "2.mlp"))


def test_fisher() -> None:
    model, task = classifier(), class_task(7)
    g = derivatives(model, task)
    want = {name: (value**2).mean(0) / 2 for name, value in g.items()}
    scores = hc.score(model, task, "fisher", units="heads,layers")
    assert close(scores.raw, joined(want, *HEADS_OF, "layers"))
    assert scores.normalize is None
    assert close(hc.score(model, task, "fisher", units="neurons").raw, joined(want, "0.mlp", "1.mlp", "2.mlp"))


@pytest.mark.parametrize("how", ["layer", "type", "global", None])
def test_normalised_as_asked(how: str | None) -> None:
    model, _ = zoo.build("bart")
    model.config.pad_token_id = 1
    scores = hc.score(model, ragged_pairs(), normalize=how)
    values, want = scores.raw.reshape(6, 4), scores.raw.reshape(6, 4).copy()
    sites = [unit.site for unit in scores.units[::4]]
    groups = {"layer": sites, "type": [scores.types[s] for s in sites], "global": ["all"] * 6, None: range(6)}[how]
    for group in set(groups):
        rows = [n for n, one in enumerate(groups) if one == group]
        want[rows] = values[rows] / (np.sqrt((values[rows] ** 2).sum()) if how else 1)
    assert close(scores.values, want.ravel(), 1e-10)


def test_taylor_is_normalised_per_layer_as_published() -> None:
    model, task = classifier(), class_task(7)
    scores = hc.score(model, task)
    assert scores.normalize == "layer"
    assert np.allclose((scores.values.reshape(3, 4) ** 2).sum(1), 1)
    start = "by:taylor|granularity:example|norm:layer|model:BertForSequenceClassification|task:own|data:own batches#"
    assert scores.signature.startswith(start)


def test_units_of_different_kinds_have_samples_where_they_match() -> None:
    model, task = classifier(), class_task(7)
    both = hc.score(model, task, units=["heads", "neurons"], normalize=None)
    assert both.samples is None  # a row is an example here, and a block of them there
    assert [both.kinds[unit.site] for unit in both.units] == ["head"] * 12 + ["neuron"] * 144
    assert close(both.raw[:12], hc.score(model, task, normalize=None).raw)
    assert hc.score(model, task, units="layers,heads").samples.shape == (7, 15)


def test_signed_taylor_is_exact_where_the_loss_is_linear_in_the_gate() -> None:
    model, _ = zoo.build("gpt2", torch.float64)  # little is left of a difference of two large losses
    model.transformer.ln_f = nn.Identity()  # what the last MLP writes now reaches the loss as it is
    weights = torch.randn(9, 32, generator=torch.Generator().manual_seed(1)).double()

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        return (model.transformer(**batch).last_hidden_state * weights).sum((1, 2))

    task = hc.custom_task([{"input_ids": texts(5)}], loss=loss)
    signed = hc.score(model, task, granularity="signed", units="neurons", normalize=None).only("1.mlp")
    plans = [hc.Plan(), *(hc.Plan(frozenset([unit])) for unit in signed.units)]
    losses = naive(model, task, plans)[:, :, 0].mean(1)
    assert close(signed.raw, losses[1:] - losses[0], 1e-5)
    assert {True, False} == set((signed.raw > 0).tolist())


def test_signed_taylor_goes_with_the_change_of_the_loss() -> None:
    model, task = zoo_task("gpt2")
    signed = hc.score(model, task, granularity="signed", units="heads,neurons", normalize=None)
    plans = [hc.Plan(), *(hc.Plan(frozenset([unit])) for unit in signed.units)]
    losses = hc.evaluation.measure(model, task, plans)[:, :, 0].mean(1)
    assert np.corrcoef(signed.raw, losses[1:] - losses[0])[0, 1] > 0.8


# -- from weights ------------------------------------------------------------------------------------------------------


def rows_of(linear: nn.Linear, head: int, width: int = 8) -> Tensor:
    return linear.weight[head * width : (head + 1) * width].detach().double()


def norm(*weights: Tensor) -> float:
    return float(sum((w**2).sum() for w in weights) ** 0.5)


def test_magnitude_of_bert() -> None:
    model = classifier(2)
    want = []
    for layer in model.bert.encoder.layer:
        part, out = layer.attention.self, layer.attention.output.dense.weight.detach().double()
        for head in range(4):
            read = [rows_of(linear, head) for linear in (part.query, part.key, part.value)]
            want.append(norm(*read, out[:, head * 8 : head * 8 + 8]))
    assert close(hc.score(model, by="magnitude").raw, np.array(want), 1e-9)
    mlp = model.bert.encoder.layer[1]
    neurons = [norm(mlp.intermediate.dense.weight[n], mlp.output.dense.weight[:, n]) for n in range(48)]
    assert close(hc.score(model, by="magnitude", units="neurons").only("1.mlp").raw, np.array(neurons), 1e-5)
    layers = [norm(*(p.detach().double() for p in layer.parameters())) for layer in model.bert.encoder.layer]
    assert close(hc.score(model, by="magnitude", units="layers").raw, np.array(layers), 1e-9)


def test_magnitude_of_gpt2_whose_matrices_are_fused_and_turned() -> None:
    model, _ = zoo.build("gpt2")
    want = []
    for block in model.transformer.h:
        fused, out = block.attn.c_attn.weight.detach().double(), block.attn.c_proj.weight.detach().double()
        assert fused.shape == (32, 96)
        for head in range(4):
            parts = [fused[:, 32 * part + 8 * head : 32 * part + 8 * head + 8] for part in range(3)]
            want.append(norm(*parts, out[8 * head : 8 * head + 8]))
    scores = hc.score(model, by="magnitude")
    assert close(scores.raw, np.array(want), 1e-9)
    assert scores.samples is None
    assert scores.signature == "by:magnitude|GPT2LMHeadModel"


def test_magnitude_of_llama_counts_shared_keys_and_values_for_each_head() -> None:
    model, _ = zoo.build("llama")
    want = []
    for layer in model.model.layers:
        part = layer.self_attn
        each = part.q_proj.weight.shape[0] // 8 // (part.k_proj.weight.shape[0] // 8)
        assert each > 1
        for head in range(8):
            keys = [rows_of(linear, head // each) for linear in (part.k_proj, part.v_proj)]
            out = part.o_proj.weight.detach().double()[:, 8 * head : 8 * head + 8]
            want.append(norm(rows_of(part.q_proj, head), *keys, out))
    assert close(hc.score(model, by="magnitude").raw, np.array(want), 1e-9)
    mlp = model.model.layers[0].mlp
    neurons = [
        norm(mlp.gate_proj.weight[n], mlp.up_proj.weight[n], mlp.down_proj.weight[:, n])
        for n in range(mlp.up_proj.weight.shape[0])
    ]
    assert close(hc.score(model, by="magnitude", units="neurons").only("0.mlp").raw, np.array(neurons), 1e-5)


def test_random_is_seeded() -> None:
    model = classifier()
    one, again, other = (hc.score(model, by="random", seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.raw, again.raw)
    assert not np.array_equal(one.raw, other.raw)
    assert len(set(one.raw)) == 12
    assert "seed:1" in one.signature


# -- from attention ----------------------------------------------------------------------------------------------------


def attentions_by_hand(model: nn.Module, task: hc.data.Task, kind: str) -> list[tuple[Tensor, ...]]:
    """Attention probabilities of each example alone, unpadded, from an eager copy."""
    eager = copy.deepcopy(model)
    # up to transformers 5.19, a model does not tell its parts that have a copy of its config
    for part in eager.modules():
        if hasattr(part, "set_attn_implementation"):
            part.set_attn_implementation("eager")
    inputs = [
        {k: v for k, v in task.collate([n]).items() if kind == "labels" or k != "labels"} for n in range(task.size)
    ]
    with torch.no_grad():
        outputs = [eager(**one, output_attentions=True) for one in inputs]
    if kind != "labels":
        return [output.attentions for output in outputs]
    return [
        (
            *o.encoder_attentions,
            *(a for pair in zip(o.decoder_attentions, o.cross_attentions, strict=True) for a in pair),
        )
        for o in outputs
    ]


def looked(per_example: list[tuple[Tensor, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean over all tokens of all examples: of the largest weight, and of minus the entropy."""
    return over_tokens(per_example, lambda a: a.amax(-1)), over_tokens(
        per_example, lambda a: (a * a.clamp(min=1e-30).log()).sum(-1)
    )


def over_tokens(per_example: list[tuple[Tensor, ...]], value: Callable[[Tensor], Tensor]) -> np.ndarray:
    """Of each attention's heads, the mean over the queries of all examples: a loop over tokens."""
    means = []
    for layers in zip(*per_example, strict=True):
        tokens = [value(a[0])[:, query] for a in layers for query in range(a.shape[2])]  # (heads,) each
        means.append(torch.stack(tokens).mean(0))
    return torch.cat(means).numpy()


def test_confidence_and_entropy_of_bert_leave_padding_out() -> None:
    model, task = classifier(), ragged_texts()
    surest, certainty = looked(attentions_by_hand(model, task, "texts"))
    confidence = hc.score(model, task, "confidence")
    assert close(confidence.raw, surest)
    assert confidence.normalize is None
    assert close(hc.score(model, task, "entropy").raw, certainty)
    assert close(hc.score(model, task, "confidence", batch_size=1).raw, surest)
    assert confidence.samples.shape == (7, 12)


def test_confidence_of_gpt2() -> None:
    model, _ = zoo.build("gpt2")
    rows = [{"input_ids": ids[: 4 + n], "attention_mask": [1] * (4 + n)} for n, ids in enumerate(texts(5).tolist())]
    task = padded_task(rows, lambda m, b: m(**b).logits[:, 0, 0], {"input_ids": 0, "attention_mask": 0}, 5)
    surest, certainty = looked(attentions_by_hand(model, task, "texts"))
    assert close(hc.score(model, task, "confidence").raw, surest)
    assert close(hc.score(model, task, "entropy").raw, certainty)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_confidence_of_encoder_decoders(name: str) -> None:
    model, _ = zoo.build(name)
    model.config.pad_token_id = 1
    task = ragged_pairs()
    per_example = attentions_by_hand(model, task, "labels")
    sites = [site.name for site in hc.find(model).heads]
    assert sites == ["encoder.0", "encoder.1", "decoder.0.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross"]
    assert close(hc.score(model, task, "confidence").raw, looked(per_example)[0])


def test_confidence_neither_asks_nor_looks_at_special_tokens() -> None:
    model, task = classifier(), ragged_texts()
    special = sorted({int(token) for n in range(3) for token in task.collate([n])["input_ids"][0, ::3]})
    surest = []
    for n, layers in enumerate(attentions_by_hand(model, task, "texts")):
        words = [
            place for place, token in enumerate(task.collate([n])["input_ids"][0].tolist()) if token not in special
        ]
        surest.append(tuple(a[:, :, words][:, :, :, words] for a in layers))
    task = replace(task, special=frozenset(special))
    plain, found = hc.score(model, ragged_texts(), "confidence"), hc.score(model, task, "confidence")
    assert close(found.raw, over_tokens(surest, lambda a: a.amax(-1)))
    assert (found.raw < plain.raw - 1e-4).any()
    assert close(hc.score(model, task, "entropy").raw, hc.score(model, ragged_texts(), "entropy").raw)


def test_confidence_of_a_decoder_leaves_its_start_and_special_targets_out() -> None:
    model, _ = zoo.build("bart")
    model.config.pad_token_id = 1
    task = ragged_pairs()
    ids = [
        (task.collate([n])["input_ids"][0].tolist(), task.collate([n])["labels"][0].tolist()) for n in range(task.size)
    ]
    special = {ids[0][0][1], ids[3][1][0], ids[2][1][1]}
    surest = []
    for (source, target), layers in zip(ids, attentions_by_hand(model, task, "labels"), strict=True):
        seen = [place for place, token in enumerate(source) if token not in special]
        read = [
            place + 1 for place, token in enumerate(target[:-1]) if token not in special
        ]  # a start token is before them
        sides = [(seen, seen)] * 2 + [(read, read), (read, seen)] * 2
        surest.append(tuple(a[:, :, q][:, :, :, k] for a, (q, k) in zip(layers, sides, strict=True)))
    found = hc.score(model, replace(task, special=frozenset(special)), "confidence")
    assert close(found.raw, over_tokens(surest, lambda a: a.amax(-1)))


def test_the_spread_of_a_mean_over_tokens_is_that_of_the_ratio_and_not_of_the_lengths() -> None:
    rng = np.random.default_rng(0)
    found, errors = [], []
    for _ in range(400):
        counts = rng.integers(5, 60, size=(80, 1))
        each = 0.6 + 0.1 * rng.normal(size=(80, 1))  # of an example: its tokens go together
        sums = counts * each + np.sqrt(counts) * 0.2 * rng.normal(size=(80, 1))
        samples = per_token(sums, counts)
        found.append(samples.mean())
        errors.append(samples.std(ddof=1) / np.sqrt(80))
        assert found[-1] == pytest.approx(sums.sum() / counts.sum())
    assert np.mean(errors) == pytest.approx(np.std(found), rel=0.12)  # 1 / sqrt(2 x 400) is 3.5 %


def test_a_head_that_is_never_asked_has_no_confidence() -> None:
    none = per_token(np.zeros((3, 2)), np.zeros((3, 1)))
    assert np.array_equal(none, np.zeros((3, 2)))
    some = per_token(np.array([[2.0], [0.0]]), np.array([[4.0], [0.0]]))  # a sentence of special tokens alone
    assert some.mean() == 0.5


@pytest.mark.parametrize(("kernel", "inside"), [("sdpa", "sdpa"), ("flex_attention", "eager")])
@pytest.mark.parametrize("stop", [False, True])
def test_the_kernel_of_the_model_comes_back(kernel: str, inside: str, stop: bool) -> None:
    """A kernel that is made of calls that can be watched stays; another one makes way for the attention in the open."""
    model, task = classifier(), class_task(7)
    assert model.config._attn_implementation == "sdpa"
    with torch.no_grad():
        base = model(texts(2), output_hidden_states=True).logits  # transformers now has its own hooks in place
    model.set_attn_implementation(kernel)
    before, settings = Fingerprint(model), dict(vars(model.config))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        assert model.config._attn_implementation == inside
        given = class_loss(model, batch)
        if stop:
            raise KeyboardInterrupt
        return given

    if stop:
        with pytest.raises(KeyboardInterrupt):
            hc.score(model, class_task(7, loss=loss), "confidence")
    else:
        hc.score(model, class_task(7, loss=loss), "entropy")
    assert before.changed() == []
    assert vars(model.config) == settings
    assert model.config._attn_implementation == kernel
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        output = model(**{"input_ids": texts(2)})
    assert close(output.logits.numpy(), base.numpy())
    assert output.attentions is None
    assert task.size == 7


# -- ablation ----------------------------------------------------------------------------------------------------------


def test_ablation_is_a_loop_over_closed() -> None:
    model, task = classifier(), class_task(7)
    scores = hc.score(model, task, "ablation", units="heads,layers")
    plans = [hc.Plan(), *(hc.Plan(frozenset([unit])) for unit in scores.units)]
    values = naive(model, task, plans)[:, :, 0]
    assert close(scores.raw, (values[1:] - values[0]).mean(1))  # less loss is better
    assert close(scores.samples, (values[1:] - values[0]).T)
    better = hc.score(model, class_task(7, values=class_loss, loss=class_loss), "ablation")
    assert close(better.raw, -scores.raw[:12])


def test_samples_of_an_ablation_per_token_average_to_it() -> None:
    def rows(model: nn.Module, batch: dict[str, Tensor]) -> np.ndarray:
        losses, tokens = class_loss(model, batch).double().numpy(), batch["labels"].numpy() + 1.0
        return np.stack([losses, tokens], axis=1)

    task = replace(class_task(7), rows=rows, metric=metric("loss", columns=("loss", "tokens")))
    scores = hc.score(classifier(), task, "ablation")
    assert close(scores.samples.mean(0), scores.raw)
    assert np.abs(scores.raw).max() > 1e-3


def test_rows_of_ones_own_reach_every_criterion() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Stranger().eval()
    task = hc.custom_task([{"x": X}], loss=lambda m, b: m(b["x"]).sum((1, 2)))
    for by in ("taylor", "fisher", "ablation", "magnitude", "random"):
        scores = hc.score(model, task, by, units="heads,neurons", specs=iter((HEADS, MLP)), normalize=None)
        assert len(scores) == sum(len(site) for site in hc.find(model, (HEADS, MLP))), by


def test_a_run_is_resumed(tmp_path) -> None:
    asked: list[int] = []

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        asked.append(1)
        return class_loss(model, batch)

    model, task = classifier(), class_task(7, loss=loss)
    for by in ("ablation", "confidence", "taylor"):
        with hc.runs.Run.open(tmp_path / by, {"by": by}) as run:
            first = hc.score(model, task, by, run=run)
        much = len(asked)
        with hc.runs.Run.open(tmp_path / by, {"by": by}) as run:
            again = hc.score(model, task, by, run=run)
        assert close(first.raw, again.raw, 1e-10)
        assert len(asked) - much <= (3 if by == "taylor" else 0)  # whether examples see each other is asked again
        del asked[:]


# -- sentences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"by": "importance"}, "taylor, fisher, gradient-activation"),
        ({"granularity": "word"}, "example, token, batch, signed"),
        ({"by": "fisher", "granularity": "token"}, "Only taylor has granularities"),
        ({"units": "head"}, "heads, neurons, layers"),
        ({"units": []}, "none"),
        ({"normalize": "l1"}, '"layer", "type", "global" or None'),
        ({"by": "confidence", "units": "neurons"}, "Only heads have confidence"),
    ],
)
def test_wrong_requests(options: dict[str, Any], about: str) -> None:
    with says(hc.errors.BadPlan, about=about):
        hc.score(classifier(), class_task(7), **options)


@pytest.mark.parametrize("by", ["taylor", "fisher", "lrp-epsilon", "ablation", "confidence", "entropy"])
def test_criteria_that_look_at_data_need_a_task(by: str) -> None:
    with says(hc.errors.BadPlan, about="give a task"):
        hc.score(classifier(), by=by)


def test_parts_that_are_not_there_or_show_nothing() -> None:
    model, task = zoo_task("mixtral")
    with says(hc.errors.NotFound, about="no neurons"):
        hc.score(model, task, units="neurons")
    model, task = zoo_task("torch-encoder")
    with says(hc.errors.Refused, about="does not weight values by one distribution"):
        hc.score(model, task, "confidence")
    model, task = zoo_task("wavlm")
    with says(hc.errors.Refused, about="never shows its positions"):
        hc.score(model, task, granularity="token")
    model, inputs = zoo.build("clip")
    one_tower = hc.custom_task(
        [{"pixel_values": inputs["pixel_values"]}], loss=lambda m, b: m.vision_model(**b).pooler_output.sum(1)
    )
    with says(hc.errors.Refused, about="does not run on"):
        hc.score(model, one_tower, "confidence")
    assert hc.score(model, one_tower, normalize=None).raw.min() == 0  # nothing depends on the other tower


def test_contributions_need_a_loss() -> None:
    with says(hc.errors.BadData, about="loss"):
        hc.score(classifier(), class_task(7, values=loss_of))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart", "t5", "deberta-v2", "falcon", "whisper"])
def test_watching_attention_leaves_no_hook_and_no_setting_behind(name: str) -> None:
    model, inputs = zoo.build(name)
    sites, before, seen = hc.find(model).heads, Fingerprint(model), set()
    with torch.no_grad(), watched(model, sites, lambda site, _: seen.add(site.name)):
        model(**inputs)
    assert seen == {site.name for site in sites}
    assert before.changed() == []


class Shown(nn.Module):
    """An attention that hands out what it is told to."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))
        self.num_heads, self.weights = 2, weights

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.weights


@pytest.mark.parametrize(
    ("sums", "shown"),
    [
        ([1.0, 1.0, 1.0], True),
        ([1.01, 0.99, 1.0], True),  # as coarse as bfloat16
        ([1.0, 0.0, 1.0], True),  # a token that may look at nothing
        ([1.0, 1.03, 1.0], False),
        ([1.0, 0.97, 1.0], False),
        ([1.0, 0.5, 1.0], False),
        ([0.0, 0.0, 0.0], False),
    ],
)
def test_attention_weights_of_a_token_sum_to_one_or_are_all_zero(sums: list[float], shown: bool) -> None:
    """Anything else that has their shape, as a bias by position, is not taken for them."""
    weights = torch.full((1, 2, 3, 4), 0.25) * torch.tensor(sums)[:, None]
    model, seen = nn.Sequential(Shown(weights)), list[Tensor]()
    with watched(model, hc.find(model).heads, lambda _, given: seen.append(given)):
        if shown:
            model(torch.zeros(1, 3, 8))
        else:
            with says(hc.errors.Refused, about="does not weight values by one distribution"):
                model(torch.zeros(1, 3, 8))
    assert [torch.equal(given, weights) for given in seen] == [True] * shown


@pytest.mark.parametrize("most", [0, 1, 3])
def test_attention_of_fewer_examples_where_memory_runs_out(most: int) -> None:
    asked: list[int] = []

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        asked.append(len(batch["labels"]))
        if asked[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return class_loss(model, batch)

    model = classifier()
    if not most:
        with says(hc.errors.OutOfMemory, about="attention of one example alone"):
            hc.score(model, class_task(7, loss=loss), "entropy")
        return
    want = hc.score(model, class_task(7), "entropy")
    got = hc.score(model, class_task(7, loss=loss), "entropy")
    assert close(want.samples, got.samples)
    assert max(asked) > most
