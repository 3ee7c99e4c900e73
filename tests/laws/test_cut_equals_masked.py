"""The laws, family by family: what must hold for every model that headcount can find, whatever it is built like.

Each law is a function of a family. The planted bugs at the end show that the laws can fail.
"""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import zoo
from helpers.same import close, same_weights
from torch import nn
from transformers.generation import LogitsProcessor

import headcount as hc
from headcount.model.cutting import surgery
from headcount.model.cutting.rules import refusal

FAMILIES = list(zoo.ZOO)


def built(name: str) -> tuple[nn.Module, dict, hc.model.Anatomy]:
    model, inputs = zoo.build(name)
    return model, inputs, hc.find(model)


def state(model: nn.Module) -> dict:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def cuttable(model: nn.Module, anatomy: hc.model.Anatomy, kind: str) -> list[hc.model.Site]:
    return [s for s in anatomy if s.kind == kind and len(s) > 1 and refusal(s, anatomy, model) is None]


def uneven_heads(model: nn.Module, anatomy: hc.model.Anatomy) -> hc.Plan:
    """One head of every second attention, the first and the last of the others: uneven in layers and in kv groups."""
    sites = cuttable(model, anatomy, "head")
    chosen = {s.name: [1] if n % 2 == 0 else {0, len(s) - 1} if len(s) > 2 else [0] for n, s in enumerate(sites)}
    return hc.Plan.removing(chosen)


def third_of_neurons(model: nn.Module, anatomy: hc.model.Anatomy) -> hc.Plan:
    return hc.Plan.removing({s.name: range(0, len(s), 3) for s in cuttable(model, anatomy, "neuron")})


def whole_sites(model: nn.Module, anatomy: hc.model.Anatomy) -> hc.Plan:
    """All of the last attention and all of the first MLP."""
    heads, neurons = cuttable(model, anatomy, "head")[-1:], cuttable(model, anatomy, "neuron")[:1]
    return hc.Plan.removing({s.name: s.ids for s in (*heads, *neurons)})


def first_layers(model: nn.Module, anatomy: hc.model.Anatomy) -> hc.Plan:
    stacks = [s for s in anatomy.stacks if len(s) > 1 and refusal(s, anatomy, model) is None]
    return hc.Plan.removing({s.name: [s.ids[0]] for s in stacks if _attention_stays(s, anatomy)})


def _attention_stays(stack: hc.model.Stack, anatomy: hc.model.Anatomy) -> bool:
    return any(s.path.startswith(stack.path + ".") and s.layer != stack.ids[0] for s in anatomy.heads)


def everything(model: nn.Module, anatomy: hc.model.Anatomy) -> hc.Plan:
    layers = first_layers(model, anatomy)
    return layers | uneven_heads(model, anatomy) | third_of_neurons(model, anatomy)


PLANS = {f.__name__: f for f in (uneven_heads, third_of_neurons, whole_sites, first_layers, everything)}


# -- the laws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_gates_of_one_change_nothing(name: str) -> None:
    model, inputs, anatomy = built(name)
    base = zoo.output(model, inputs)
    before = hooks(model)
    stacks = [s for s in anatomy.stacks if "change the width" not in (refusal(s, anatomy, model) or "")]
    with hc.gated(model, {part.name: torch.ones(len(part)) for part in (*anatomy.sites, *stacks)}):
        assert hooks(model) > before
        output = zoo.output(model, inputs)
    assert hooks(model) == before
    assert close(output, base)


@pytest.mark.parametrize("name", FAMILIES)
def test_closing_any_head_changes_the_output(name: str) -> None:
    model, inputs, anatomy = built(name)
    base = zoo.output(model, inputs)
    for unit in [unit for site in anatomy.heads for unit in site.units]:
        with hc.masked(model, [unit]):
            assert not close(zoo.output(model, inputs), base), unit


@pytest.mark.parametrize("name", FAMILIES)
def test_the_gradient_of_a_gate_is_its_finite_difference(name: str) -> None:
    model, inputs = zoo.build(name, torch.float64)
    site = hc.find(model).heads[-1]
    generator = torch.Generator().manual_seed(0)
    gate = (0.5 + torch.rand(len(site), dtype=torch.float64, generator=generator)).requires_grad_()
    weights: list[torch.Tensor] = []

    def loss(values: torch.Tensor) -> torch.Tensor:
        with hc.gated(model, {site.name: values}), torch.set_grad_enabled(values.requires_grad):
            output = zoo.judged(model(**inputs))
        weights.append(torch.randn(output.shape, dtype=output.dtype, generator=generator))
        return (output * weights[0]).sum()

    (gradient,) = torch.autograd.grad(loss(gate), gate)
    assert gradient.abs().max() > 0
    for unit in range(min(2, len(site))):
        errors = []
        # many families normalise in float32 whatever their weights are: the step has to be large against that noise; within
        # a large step a ReLU may open or close, so there is a small one too
        for step in (3e-3, 1e-4):
            shift = torch.zeros(len(site), dtype=torch.float64)
            shift[unit] = step
            slope = (loss((gate + shift).detach()) - loss((gate - shift).detach())) / (2 * step)
            errors.append(abs(slope - gradient[unit]))
        assert min(errors) <= 1e-2 * float(gradient.abs().max())


def law_cut_equals_closed(name: str, kind: str) -> None:
    """The law: what the cut model computes is what the whole one computes with the same units masked."""
    model, inputs, anatomy = built(name)
    plan = PLANS[kind](model, anatomy)
    if not plan:
        return
    with hc.masked(model, plan):
        want = zoo.output(model, inputs)
    before = sum(p.numel() for p in model.parameters())
    promised = hc.model.parameters_removed(model, plan)
    hc.cut(model, plan)
    assert close(zoo.output(model, inputs), want)
    assert before - sum(p.numel() for p in model.parameters()) == promised
    left = hc.find(model)
    known = {part.name for part in (*left.sites, *left.stacks)}  # a site inside a layer that is gone is gone with it
    assert hc.removed(model).units == {unit for unit in plan if unit.site in known}


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("name", FAMILIES)
def test_cut_equals_closed(name: str, kind: str) -> None:
    law_cut_equals_closed(name, kind)


@pytest.mark.parametrize("name", FAMILIES)
def test_two_cuts_equal_one_and_survivors_keep_their_names(name: str) -> None:
    model, inputs, anatomy = built(name)
    one, other = copy.deepcopy(model), model
    first = uneven_heads(model, anatomy) | third_of_neurons(model, anatomy)
    sites = [*cuttable(model, anatomy, "head")[-1:], *cuttable(model, anatomy, "neuron")[-1:]]
    second = hc.Plan.removing({s.name: [s.ids[2]] for s in sites if len(s) > 3}) - first | first_layers(model, anatomy)
    second -= hc.Plan(frozenset(u for u in second if u in first))
    hc.cut(one, first | second)
    hc.cut(other, first)
    hc.cut(other, second)
    assert same_weights(one, other)
    assert close(zoo.output(one, inputs), zoo.output(other, inputs))
    assert [s.units for s in hc.find(one)] == [s.units for s in hc.find(other)]
    left = {unit for site in anatomy for unit in site.units} - (first | second).units
    assert {unit for site in hc.find(one) for unit in site.units} <= left


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_refused_leaves_the_model_as_it_was(name: str) -> None:
    model, inputs, anatomy = built(name)
    refused = [p for p in (*anatomy.sites, *anatomy.stacks) if refusal(p, anatomy, model) is not None]
    before, base, modules = state(model), zoo.output(model, inputs), list(model.modules())
    for part in refused:
        with pytest.raises(
            hc.errors.Refused, match=r"^[^\n]+ cannot be cut exactly: [^\n]+; it can still be masked\.$"
        ):
            hc.cut(model, [part.units[0]])
    assert list(model.modules()) == modules
    assert same_weights(model, before)
    assert close(zoo.output(model, inputs), base)


class Dictated(LogitsProcessor):
    """Lets a model say what its logits are highest for, or what is dictated, and writes down both at every step."""

    def __init__(self, tokens: list[torch.Tensor] | None) -> None:
        self.dictated, self.tokens, self.logits = tokens, list[torch.Tensor](), list[torch.Tensor]()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        said = scores.argmax(-1) if self.dictated is None else self.dictated[len(self.tokens)]
        self.tokens.append(said)
        self.logits.append(scores.nan_to_num(neginf=0.0))  # tokens that are forbidden
        return torch.full_like(scores, -torch.inf).scatter(1, said[:, None], 0.0)


def spoken(model: nn.Module, inputs: dict, tokens: list[torch.Tensor] | None = None) -> Dictated:
    """What a model generates, or what is dictated to it, with its logits at every step."""
    inputs = {key: value for key, value in inputs.items() if not key.startswith("decoder_")}
    diary = Dictated(tokens)
    model.generate(**inputs, max_new_tokens=4, do_sample=False, num_beams=1, logits_processor=[diary])
    return diary


def law_cut_generates_as_closed(name: str, plan: hc.Plan) -> None:
    """The law: with its cache, the cut model has the logits of the masked one at every step of the same texts.

    The texts themselves could differ where the two best tokens are as good as equal.
    """
    model, inputs, _ = built(name)
    with hc.masked(model, plan):
        want = spoken(model, inputs)
    hc.cut(model, plan)
    got = spoken(model, inputs, want.tokens)
    assert len(got.logits) == len(want.logits) > 1
    assert close(torch.stack(got.logits), torch.stack(want.logits))


@pytest.mark.parametrize("name", [name for name in FAMILIES if zoo.ZOO[name].generates])
def test_the_cut_model_generates_what_the_closed_one_does(name: str) -> None:
    model, _, anatomy = built(name)
    law_cut_generates_as_closed(name, uneven_heads(model, anatomy) | whole_sites(model, anatomy))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_saved_model_loads_as_it_was(name: str, tmp_path) -> None:
    model, inputs, anatomy = built(name)
    fresh = None if hasattr(model, "save_pretrained") else copy.deepcopy(model)
    plan = everything(model, anatomy) | whole_sites(model, anatomy)
    hc.cut(model, plan)
    want = zoo.output(model, inputs)
    hc.save(model, tmp_path / "smaller")
    loaded = hc.load(tmp_path / "smaller", into=fresh) if fresh is not None else hc.load(tmp_path / "smaller")
    if hasattr(loaded, "set_experts_implementation"):
        loaded.set_experts_implementation("eager")  # as in the zoo; not part of a saved config
    assert type(loaded) is type(model)
    assert same_weights(loaded, model)
    assert close(zoo.output(loaded, inputs), want)
    assert hc.removed(loaded) == hc.removed(model)
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in model.parameters())


# -- planted bugs: the laws must see them --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "llama", "bart", "whisper", "vit"])
def test_the_law_sees_the_wrong_head_removed(name: str, monkeypatch) -> None:
    right = surgery.survivors

    def next_head(site, drop):
        return right(site, [(position + 1) % len(site) for position in drop])

    monkeypatch.setattr(surgery, "survivors", next_head)
    with pytest.raises(AssertionError):
        law_cut_equals_closed(name, "uneven_heads")


@pytest.mark.parametrize("name", ["bert", "llama", "bart", "clip"])
def test_the_law_sees_shifted_key_rows(name: str, monkeypatch) -> None:
    right = surgery.sources

    def shifted(site, sharing):
        for n, source in enumerate(right(site, sharing)):
            yield source.roll(site.widths[1]) if n == 1 else source

    monkeypatch.setattr(surgery, "sources", shifted)
    with pytest.raises(AssertionError):
        law_cut_equals_closed(name, "uneven_heads")


@pytest.mark.parametrize("name", ["t5", "mpnet", "bloom", "swin"])
def test_the_law_sees_a_forgotten_companion(name: str, monkeypatch) -> None:
    monkeypatch.setattr(surgery, "update_counts", lambda *_: None)
    monkeypatch.setattr(surgery, "take_per_head", lambda *_: None)
    with pytest.raises((AssertionError, RuntimeError, AttributeError)):
        law_cut_equals_closed(name, "uneven_heads")


def test_the_law_sees_layers_that_are_not_renumbered(monkeypatch) -> None:
    law_cut_generates_as_closed("llama", hc.Plan.of("layers:0"))
    monkeypatch.setattr("headcount.model.cutting.layers.POSITION_NAMES", ())
    with pytest.raises((AssertionError, IndexError)):
        law_cut_generates_as_closed("llama", hc.Plan.of("layers:0"))
