"""Relevance: every rule against its formula in loops, conservation over families of models, and the three criteria."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import same, zoo
from helpers.planted_models import planted, planted_translator
from helpers.same import close
from helpers.small_models import (  # fmt: skip
    WEATHER,
    class_task,
    classifier,
    ragged_pairs,
    ragged_texts,
    ran_json,
    texts,
    weather,
    word_tokenizer,
    zoo_task,
)
from torch import Tensor, nn
from torch.nn import functional as F

import headcount as hc
from headcount.data.losses import LogitsAndTargets
from headcount.importance import gradients
from headcount.importance.lrp.interception import check_graph, propagating
from headcount.importance.lrp.relevance import RULES, SMALLEST, flow
from headcount.importance.lrp.rules import AlphaBeta, Epsilon, Rule

RULES_TO_TRY = [Epsilon(0.3), Epsilon(0.0), AlphaBeta(0.5), AlphaBeta(1.0), AlphaBeta(2.0)]
BOTH = [Epsilon(), AlphaBeta()]
every_rule = pytest.mark.parametrize("rule", RULES_TO_TRY, ids=str)
both_rules = pytest.mark.parametrize("rule", BOTH, ids=lambda rule: type(rule).__name__)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def textbook(rule: Rule, w: Tensor, b: Tensor, x: Tensor, after: Tensor) -> Tensor:
    """The relevance of each input of z_j = sum_i w_ji x_i + b_j from that of each output, one contribution at a time."""
    before = torch.zeros_like(x)
    for j in range(len(after)):
        parts = [float(w[j, i] * x[i]) for i in range(len(x))]
        everything = [*parts, float(b[j])]
        z, positive = sum(everything), sum(part for part in everything if part > 0)
        negative = sum(part for part in everything if part < 0)
        for i, part in enumerate(parts):
            if isinstance(rule, Epsilon):
                share = part / (z + rule.epsilon * (1 if z >= 0 else -1))
            elif not positive or not negative:
                share = part / z
            else:
                share = rule.alpha * part / positive if part > 0 else (1 - rule.alpha) * part / negative
            before[i] += share * after[j]
    return before


def propagated(
    f: Callable[[Tensor], Tensor], rule: Rule, x: Tensor, after: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What f gives for x, and the relevance of x if that of f(x) is `after`, or one each."""
    x = x.clone().requires_grad_()
    with propagating(nn.Module(), rule):
        z = f(x)
    check_graph(nn.Module(), z, rule)
    after = torch.ones_like(z) if after is None else after
    z.backward(after / z.detach())
    return z.detach(), (x * x.grad).detach()


# -- one operation at a time -------------------------------------------------------------------------------------------

W, V, KERNEL, MIX = (
    numbers(6, 4, seed=1),
    numbers(2, 6, seed=2),
    numbers(2, 3, 2, seed=3),
    numbers(3, 3, seed=4).softmax(-1),
)
QUERY, KEY = numbers(1, 3, 2, seed=5), numbers(1, 3, 2, seed=6)
GAIN, SHIFT = numbers(4, seed=7), numbers(4, seed=8)


def in_place(x: Tensor) -> Tensor:
    x.add_(SHIFT)
    return x


LINEAR = {
    "linear": ((3, 4), lambda x: F.linear(x, W)),
    "linear, by name": ((3, 4), lambda x: F.linear(input=x, weight=W)),
    "linear with a bias": ((3, 4), lambda x: F.linear(x, W, numbers(6, seed=9))),
    "matmul": ((3, 4), lambda x: x @ W.T),
    "a constant times": ((4, 3), lambda x: torch.matmul(W, x)),
    "addmm": ((3, 4), lambda x: torch.addmm(numbers(6, seed=9), x, W.T)),
    "baddbmm": ((2, 3, 4), lambda x: numbers(2, 3, 6).baddbmm(batch1=x, batch2=W.T.expand(2, 4, 6), beta=0.5, alpha=2)),
    "einsum": ((3, 4), lambda x: torch.einsum("ti,oi->to", x, W)),
    "conv1d": ((2, 3, 5), lambda x: F.conv1d(x, KERNEL, numbers(2, seed=9), padding=1)),
    "conv1d without a batch": ((3, 5), lambda x: F.conv1d(x, KERNEL, numbers(2, seed=9), stride=2)),
    "attention": ((1, 3, 4), lambda x: F.scaled_dot_product_attention(QUERY, KEY, x)),
    "attention in the open": ((1, 3, 4), lambda x: (QUERY @ KEY.mT / 2**0.5).softmax(-1) @ x),
    "a constant more": ((3, 4), lambda x: x + SHIFT),
    "a constant less": ((3, 4), lambda x: 2.0 - x),
    "in place": ((3, 4), lambda x: in_place(1.0 * x)),
    "batch norm": ((3, 4), lambda x: F.batch_norm(x, SHIFT, GAIN.abs(), GAIN)),
}  # fmt: skip


@every_rule
@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear_is_propagated_by_the_textbook(name: str, rule: Rule) -> None:
    shape, f = LINEAR[name]
    x = numbers(*shape)
    flat = x.numel()
    b = f(torch.zeros(shape, dtype=torch.float64)).flatten()
    w = torch.stack([f(one.view(shape)).flatten() - b for one in torch.eye(flat, dtype=torch.float64)], 1)
    w = w.where(w.abs() > 1e-12, 0.0)  # what rounding leaves of b - b has a sign, and would count as a contribution
    after = numbers(len(b), seed=11)
    if name in ("a constant more", "a constant less", "in place", "batch norm") and rule == Epsilon(0.3):
        rule = Epsilon(0.0)  # sums are not stabilised: there is nothing to divide by
    z, before = propagated(f, rule, x, after.view(f(x).shape))
    assert torch.allclose(z, f(x), rtol=1e-12)
    assert torch.allclose(before.flatten(), textbook(rule, w, b, x.flatten(), after), atol=1e-10)


def spelt_out(x: Tensor) -> Tensor:
    x = 1.0 * x
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, correction=0, keepdim=True) + 1e-5) * GAIN + SHIFT


@every_rule
@pytest.mark.parametrize(
    ("shape", "f"),
    [
        ((4,), lambda x: F.layer_norm(x, (4,), GAIN, SHIFT)),
        ((4,), spelt_out),
        ((1, 4, 1), lambda x: F.group_norm(x, 1, GAIN, SHIFT)),
    ],
)
def test_norms_divide_by_a_constant(shape: tuple[int, ...], f: Callable[[Tensor], Tensor], rule: Rule) -> None:
    x, after, zeros = numbers(4), numbers(4, seed=11), torch.zeros(4)
    z, before = propagated(f, rule, x.view(shape), after.view(shape))
    assert torch.allclose(z.flatten(), F.layer_norm(x, (4,), GAIN, SHIFT), rtol=1e-12)
    plain, eye = Epsilon(0.0), torch.eye(4, dtype=torch.float64)
    inside = textbook(plain if isinstance(rule, Epsilon) else rule, eye, SHIFT, z.flatten() - SHIFT, after)
    assert torch.allclose(before.flatten(), textbook(plain, eye - 0.25, zeros, x, inside), atol=1e-10)


@every_rule
def test_two_layers(rule: Rule) -> None:
    x, after, nothing = numbers(4), numbers(2, seed=11), torch.zeros(2, dtype=torch.float64)
    b = numbers(6, seed=9)
    hidden = F.gelu(F.linear(x, W, b))
    want = textbook(rule, V, nothing, hidden, after)  # the non-linearity lets it through
    want = textbook(rule, W, b, x, want)
    _, before = propagated(lambda t: F.linear(F.gelu(F.linear(t, W, b)), V), rule, x, after)
    assert torch.allclose(before, want, atol=1e-10)


NUMBERWISE = [F.relu, F.silu, torch.tanh, torch.sigmoid, F.hardtanh, lambda x: x.clamp(min=-0.3), lambda x: x**2]


@both_rules
@pytest.mark.parametrize("f", NUMBERWISE)
def test_non_linearities_let_relevance_through(f: Callable[[Tensor], Tensor], rule: Rule) -> None:
    x, after = numbers(9).abs() + 0.1, numbers(9, seed=1)
    z, before = propagated(f, rule, x, after)
    assert same.close(z, f(x))
    assert torch.allclose(before, after)


@both_rules
def test_products_give_half_to_each_and_sums_by_the_rule(rule: Rule) -> None:
    x, y, after = numbers(9), numbers(9, seed=1), numbers(9, seed=2)
    for product in (lambda x, y: x * y, lambda x, y: F.glu(torch.cat([x, y])), lambda x, y: x * torch.rsqrt(y * y) * y):
        _, before = propagated(lambda both, f=product: f(both[:9], both[9:]), rule, torch.cat([x, y]), after)
        assert torch.allclose(before, torch.cat([after, after]) / 2)
    _, before = propagated(lambda both: both[:9] - both[9:], rule, torch.cat([x, y]), after)
    eye = torch.eye(9, dtype=torch.float64)
    plain = Epsilon(0.0) if isinstance(rule, Epsilon) else rule
    want = textbook(plain, torch.cat([eye, -eye], 1), torch.zeros(9), torch.cat([x, y]), after)
    assert torch.allclose(before, want, atol=1e-10)


@both_rules
def test_matrices_that_both_carry_relevance_get_half_each(rule: Rule) -> None:
    both, after = numbers(24), numbers(3, 3, seed=1)
    _, before = propagated(lambda t: t[:12].view(3, 4) @ t[12:].view(4, 3), rule, both, after)
    first = propagated(lambda t: t @ both[12:].view(4, 3), rule, both[:12].view(3, 4), after)[1]
    second = propagated(lambda t: both[:12].view(3, 4) @ t, rule, both[12:].view(4, 3), after)[1]
    assert torch.allclose(before, torch.cat([first.flatten(), second.flatten()]) / 2, atol=1e-10)


@both_rules
def test_divisors_are_constants(rule: Rule) -> None:
    x, after = numbers(9), numbers(9, seed=1)
    for f in (lambda x: x / (x * x).sum(), lambda x: x * (1 / (x * x).sum()), lambda x: F.normalize(x, dim=0)):
        assert torch.allclose(propagated(f, rule, x, after)[1], after)
    assert torch.allclose(propagated(lambda x: F.rms_norm(x, (9,), x.detach()), rule, x, after)[1], after)


def test_without_biases_and_non_linearities_it_is_gradient_times_input() -> None:
    def f(x: Tensor) -> Tensor:
        return F.linear(MIX @ F.linear(x, W), V)

    x = numbers(3, 4).requires_grad_()
    z = f(x)
    (gradient,) = torch.autograd.grad(z, x, 1 / z.detach())
    assert torch.allclose(propagated(f, Epsilon(0.0), x.detach())[1], x.detach() * gradient, atol=1e-10)


def test_queries_and_keys_get_nothing() -> None:
    q, k, v = (numbers(1, 2, 3, 4, seed=seed).requires_grad_() for seed in range(3))
    with propagating(nn.Module(), AlphaBeta()):
        z = F.scaled_dot_product_attention(q, k, v) + (q @ k.mT).softmax(-1) @ v
    z.sum().backward()
    assert q.grad is None
    assert k.grad is None
    assert bool(v.grad.any())


# -- conservation ------------------------------------------------------------------------------------------------------


def goal(model: nn.Module, batch: dict[str, Any]) -> LogitsAndTargets:
    logits = zoo.judged(model(**{name: value for name, value in batch.items() if name != "whole"}))
    return LogitsAndTargets(logits, torch.zeros(logits.shape[:-1], dtype=torch.long))


def family(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, hc.data.Task]:
    model, task = zoo_task(name, dtype)
    return model, replace(task, goal=goal)


FAMILIES = [
    "bert",
    "deberta",
    "modernbert",
    "albert",
    "gpt2",
    "bloom",
    "falcon",
    "llama",
    "gemma2",
    "mixtral",
    "gpt_oss",
]
FAMILIES += ["t5-gated", "marian", "bart", "vit", "swin", "llava", "wav2vec2", "torch-encoder", "torch-transformer"]


@both_rules
@pytest.mark.parametrize("name", FAMILIES)
def test_every_layer_conserves_relevance(name: str, rule: Rule) -> None:
    model, task = family(name)
    flow(model, task, rule)
    before = Fingerprint(model)  # some models set attributes, or hooks of their own, when they first run
    rows = flow(model, task, rule)
    assert [str(row.layer) for row in rows] == [str(unit) for stack in hc.find(model).stacks for unit in stack.units]
    for row in rows:
        # norms that compute in float32 whatever they are given leave its rounding
        assert row.came == pytest.approx(row.left + row.absorbed, rel=1e-6, abs=1e-6), row
        assert abs(row.came) > 1e-3
    assert not before.changed()


def test_relevance_starts_with_one_and_constants_absorb_it() -> None:
    model, task = family("llama")
    assert [row.came for row in flow(model, task, AlphaBeta())] == pytest.approx([1, 1], abs=1e-6)
    assert [row.absorbed for row in flow(model, task, Epsilon(0.0))] == [0, 0]  # nor a bias, nor a stabiliser
    assert all(abs(row.absorbed) > 1e-4 for row in flow(model, task, Epsilon(0.01)))
    rows = flow(*family("bert"), AlphaBeta())
    assert all(abs(row.absorbed) > 0.01 for row in rows)


@both_rules
def test_what_has_no_rule_is_refused_by_name(rule: Rule) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * g

    for f, name in ((torch.exp, "Exp"), (Doubled.apply, "Doubled"), (lambda x: torch.cumprod(x, 0), "Cumprod")):
        with says(hc.errors.Refused, about=f"({name})"):
            propagated(f, rule, numbers(3))
    model, task = family("wavlm", torch.float32)
    with says(hc.errors.Refused, about="never calls its output projection"):
        hc.score(model, task, "lrp-epsilon")
    model, task = family("xlm")
    with says(hc.errors.NotFound, about="has no layers"):
        flow(model, task, rule)


# -- criteria ----------------------------------------------------------------------------------------------------------

every_criterion = pytest.mark.parametrize("by", RULES)


def class_goal(model: nn.Module, batch: dict[str, Tensor]) -> LogitsAndTargets:
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return LogitsAndTargets(model(**inputs).logits, batch["labels"].flatten())


def pair_goal(model: nn.Module, batch: dict[str, Tensor]) -> LogitsAndTargets:
    return LogitsAndTargets(model(**batch).logits, batch["labels"])


def pairs() -> tuple[nn.Module, hc.data.Task]:
    model, _ = zoo.build("bart")
    model.config.pad_token_id = 1
    return model, replace(ragged_pairs(), goal=pair_goal)


def by_hand(model: nn.Module, task: hc.data.Task, rule: Rule) -> np.ndarray:
    """The relevance of each head for each example alone, from hooks on the writers."""
    rows = []
    for number in range(task.size):
        kept: list[Tensor] = []

        def keep(_: nn.Module, args: Any, kept: list[Tensor] = kept) -> Any:
            kept.append(args[0] if args[0].requires_grad else args[0].detach().requires_grad_())
            kept[-1].retain_grad()
            return (kept[-1], *args[1:])

        heads = hc.find(model).heads
        handles = [site.writer.register_forward_pre_hook(keep) for site in heads]
        with gradients.frozen(model), propagating(model, rule):
            logits, targets = task.goal(model, task.collate([number]))
        top = logits[0].reshape(-1, logits.shape[-1])[targets.reshape(-1) != -100].max(-1).values
        (top / (top.detach() + SMALLEST * top.detach().sign())).mean().backward()
        each = [(x * x.grad)[0].reshape(-1, len(s), s.width).sum((0, 2)) for x, s in zip(kept, heads, strict=True)]
        rows.append(torch.cat(each).detach().numpy())
        for handle in handles:
            handle.remove()
    return np.stack(rows)


@pytest.mark.parametrize("by", ["lrp-epsilon", "lrp-alpha-beta"])
@pytest.mark.parametrize("made", [lambda: (classifier(), replace(ragged_texts(), goal=class_goal)), pairs])
def test_relevance_of_heads(made: Callable[[], tuple[nn.Module, hc.data.Task]], by: str) -> None:
    model, task = made()
    model.double()  # the rules divide by sums that nearly cancel, and rounding of float32 is not small beside those
    before = Fingerprint(model)
    scores = hc.score(model, task, by)
    assert not before.changed()
    want = by_hand(model, task, RULES[by])
    assert close(scores.samples, want)
    assert close(scores.raw, want.mean(0))
    assert (want.mean(0) < 0).any() or by == "lrp-alpha-beta"
    assert scores.normalize == "layer"
    assert f"by:{by}|norm:layer|" in scores.signature
    assert "metric:logit" in scores.signature
    assert close(hc.score(model, task, by, batch_size=2).raw, scores.raw)
    neurons = hc.score(model, task, by, units="neurons")
    assert np.isfinite(neurons.raw).all()
    assert len(neurons) == sum(len(site) for site in hc.find(model) if site.kind == "neuron")


@pytest.mark.parametrize("made", [lambda: (classifier(), replace(ragged_texts(), goal=class_goal)), pairs])
def test_gradient_activation_is_taylor_of_the_top_logit(made: Callable[[], tuple[nn.Module, hc.data.Task]]) -> None:
    model, task = made()

    def top(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits, targets = task.goal(model, batch)
        if targets.dim() == 1:
            return logits.max(-1).values
        steps = targets != -100
        return (logits.max(-1).values * steps).sum(1) / steps.sum(1)

    want = hc.score(model, replace(task, loss=top))
    got = hc.score(model, task, "gradient-activation")
    assert close(got.samples, want.samples)
    assert close(got.values, want.values)


def test_numbers_start_from_the_one_output() -> None:
    model = classifier(num_labels=1).double()
    task = replace(
        class_task(4), goal=lambda m, b: LogitsAndTargets(m(input_ids=b["input_ids"]).logits[:, 0], b["labels"].float())
    )
    one = replace(
        task,
        goal=lambda m, b: LogitsAndTargets(m(input_ids=b["input_ids"]).logits, torch.zeros(len(b["labels"])).long()),
    )
    for by in RULES:
        assert close(hc.score(model, task, by).samples, hc.score(model, one, by).samples)


@every_criterion
def test_a_run_is_resumed_and_the_criteria_keep_apart(by: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(gradients, "CHUNK", 3)
    asked: list[int] = []

    def counted(model: nn.Module, batch: dict[str, Tensor]) -> LogitsAndTargets:
        asked.append(torch.is_grad_enabled())
        return class_goal(model, batch)

    model, task = classifier(), replace(class_task(7), goal=counted)
    with hc.runs.Run.open(tmp_path / "run", {"by": "all"}) as run:
        first = {name: hc.score(model, task, name, run=run).raw for name in RULES}
        hc.score(model, task, run=run)
        del asked[:]
        again = hc.score(model, task, by, run=run)
    assert not any(asked)
    assert close(again.raw, first[by], 1e-10)
    assert all(name == by or not close(first[name], first[by]) for name in RULES)


@pytest.mark.parametrize("by", ["lrp-epsilon", "lrp-alpha-beta"])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("made", [planted, planted_translator])
def test_planted_heads_are_the_relevant_ones(made: Any, seed: int, by: str) -> None:
    model, task, essential, _ = made(seed)
    task = replace(task.subset(range(64)), goal=class_goal if made is planted else pair_goal)
    scores = hc.score(model, task, by, normalize=None)
    assert set(scores.order()[-3:]) == essential


@every_criterion
def test_what_cannot_be_asked(by: str) -> None:
    model = classifier()
    with says(hc.errors.Refused, about="does not show logits"):
        hc.score(model, class_task(4), by)
    with says(hc.errors.BadPlan, about="heads and neurons"):
        hc.score(model, replace(class_task(4), goal=class_goal), by, units="heads,layers")
    with says(hc.errors.BadPlan, about="give a task"):
        hc.score(model, by=by)


def test_the_epsilon_rule_needs_more_than_bfloat16() -> None:
    """It divides by what may be almost zero; on a real classifier its order in bfloat16 was another one."""
    with says(hc.errors.Refused, about="bfloat16"):
        hc.score(classifier().to(torch.bfloat16), class_task(4), "lrp-epsilon")
    mixed = classifier()
    mixed.bert.encoder.to(torch.bfloat16)
    with says(hc.errors.Refused, about="bfloat16"):
        hc.score(mixed, class_task(4), "lrp-epsilon")


@every_criterion
def test_the_command(by: str, tmp_path) -> None:
    tokenizer = word_tokenizer(WEATHER)
    model = classifier(num_labels=2, vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    lines = [f"{text}\t{int(kind == 'warm')}" for text, kind in weather(12, 0)]
    (tmp_path / "data.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    asked = ("score", tmp_path / "model", "--data", tmp_path / "data.tsv", "--by", by, "-o", tmp_path / "run")
    found = hc.documents.Scores.from_json(ran_json(*asked))
    task = hc.task("classification", tmp_path / "data.tsv", tokenizer=tokenizer)
    assert close(found.raw, hc.score(model, task, by).raw, 1e-4)


def test_texts_alone_and_beside_others() -> None:
    """The same example has the same relevance in any company, also in a language model."""
    model, _ = zoo.build("gpt2", torch.float64)
    ids = texts(5)
    mask = torch.ones_like(ids)
    mask[2:, 6:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    task = hc.custom_task([batch], loss=lambda m, b: b["input_ids"].sum(1))

    def said(model: nn.Module, batch: dict[str, Tensor]) -> LogitsAndTargets:
        return LogitsAndTargets(
            model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits, batch["labels"]
        )

    task = replace(task, goal=said)
    for by in RULES:
        together = hc.score(model, task, by, normalize=None).samples
        short = replace(task, collate=lambda n: {k: v[:, :6] if min(n) > 1 else v for k, v in task.collate(n).items()})
        assert close(hc.score(model, short, by, batch_size=1, normalize=None).samples, together)
