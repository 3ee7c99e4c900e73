"""Gates multiply units while a model runs, whatever runs it, and leave nothing behind."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import ROUNDING, close
from torch import Tensor, nn

import headcount as hc
from headcount.errors import BadPlan, NotFound, Refused
from headcount.model.gates import applied


def _gates(model: nn.Module, batch: int | None = None, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Random gates between 0.1 and 0.9 for every site and stack."""
    anatomy = hc.find(model)
    generator = torch.Generator().manual_seed(seed)
    shape = () if batch is None else (batch, 1)
    return {
        part.name: torch.rand(*shape, len(part), generator=generator, dtype=dtype) * 0.8 + 0.1
        for part in (*anatomy.sites, *anatomy.stacks)
    }


def _padded(inputs: zoo.Inputs) -> zoo.Inputs:
    """The inputs with the last two tokens of the second text hidden."""
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, -2:] = 0
    return inputs | {"attention_mask": mask}


def _loss(model: nn.Module, inputs: zoo.Inputs) -> Tensor:
    result = model(**inputs)
    tensor = result if isinstance(result, Tensor) else next(v for v in result.values() if isinstance(v, Tensor))
    return tensor.square().mean()


# -- what a gate means -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["bert", "modernbert", "deberta-v2", "longformer", "gpt2", "llama", "gemma3_text", "bloom", "mixtral", "t5",
     "bart", "clip"],
)  # fmt: skip
def test_gates_of_one_change_nothing_also_with_padding(name: str) -> None:
    model, inputs = zoo.build(name)
    inputs = _padded(inputs)
    want = zoo.output(model, inputs)
    for shape in ((), (2, 1)):
        ones = {part: torch.ones(*shape, gate.shape[-1]) for part, gate in _gates(model).items()}
        with hc.gated(model, ones):
            assert close(zoo.output(model, inputs), want)


@pytest.mark.parametrize("name", ["llama", "gpt2", "squeezebert", "wavlm", "torchvision-swin", "jetmoe", "t5", "swin"])
def test_closing_a_unit_is_zeroing_its_columns_of_the_writer(name: str) -> None:
    """Also where the writer is a convolution, is transposed, holds experts, or is never called as a module."""
    model, inputs = zoo.build(name)
    whole = zoo.output(model, inputs)
    for site in hc.find(model):
        writer = site.columns
        if writer is None:
            continue  # a grouped convolution: columns are not side by side
        other = copy.deepcopy(model)
        with torch.no_grad():
            weight = hc.find(other)[site.name].writer.weight.movedim(writer.column_axis, 0)
            weight[site.width : 2 * site.width] = 0
        want = zoo.output(other, inputs)
        with hc.masked(model, f"{site.name}:1"):
            assert close(zoo.output(model, inputs), want)
        if site.kind == "head":
            assert (want - whole).abs().max() > 1e-3, "the head matters, so the equality says something"


def test_gates_multiply_the_channels_of_a_convolution_and_not_its_positions() -> None:
    """SqueezeBERT writes with convolutions over (batch, channels, positions); here there are as many of both."""
    model = zoo.build("squeezebert")[0]
    site = hc.find(model).heads[0]
    gate, seen = torch.tensor([0.1, 0.4, 0.7, 1.0]), list[Tensor]()
    x = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(0))
    site.writer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with hc.gated(model, {site.name: gate}):
        site.writer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        site.writer(x)
    assert close(seen[1], (seen[0].unflatten(1, (4, 8)) * gate[:, None, None]).flatten(1, 2))


class Passing(nn.Module):
    """A layer that hands on what it takes in."""

    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        self.__dict__.update({k: v for k, v in vars(like).items() if not k.startswith("_")})

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden_states


@pytest.mark.parametrize("name", ["llama", "bert", "vit", "gemma2", "torchvision-vit"])
def test_a_closed_layer_hands_on_what_it_takes_in(name: str) -> None:
    model, inputs = zoo.build(name)
    (stack,) = hc.find(model).stacks
    with hc.masked(model, "layers:0"):
        got = zoo.output(model, inputs)
    container = model.get_submodule(stack.path)
    container[0] = Passing(container[0])
    assert close(got, zoo.output(model, inputs))


@pytest.mark.parametrize("name", ["bert", "llama", "wavlm", "torch-encoder", "t5"])
def test_nested_contexts_multiply(name: str) -> None:
    model, inputs = zoo.build(name)
    one, two = _gates(model, seed=1), _gates(model, seed=2)
    with hc.gated(model, {part: one[part] * two[part] for part in one}):
        want = zoo.output(model, inputs)
    with hc.gated(model, one), hc.gated(model, two):
        assert close(zoo.output(model, inputs), want)
    with hc.masked(model, "0:1" if "0" in one else "encoder.0:1"), hc.gated(model, {}):
        closed = zoo.output(model, inputs)
    assert not close(closed, want, 1e-3)


def test_closed_gives_the_plan_and_gated_gives_the_gates() -> None:
    model, _ = zoo.build("bert")
    with hc.masked(model, "1:* 0:2") as plan:
        assert plan == hc.Plan.of("0:2", "1:0-3")
    gates = {"0": torch.ones(4)}
    with hc.gated(model, gates) as given:
        assert given["0"] is gates["0"]


# -- gates that differ from example to example -----------------------------------------------------------------------

EVEN = 8  # a length that two examples divide, so that a mistaken axis goes unnoticed by everything but the result


def _even(name: str) -> zoo.Inputs:
    inputs = zoo.build(name)[1]
    if "src" in inputs:
        return {"src": torch.randn(EVEN, 2, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}
    tokens = torch.randint(3, 60, (2, EVEN), generator=torch.Generator().manual_seed(0))
    texts = {key: tokens for key in inputs if key in ("input_ids", "decoder_input_ids")}
    floats = {key: value.double() for key, value in inputs.items() if value.is_floating_point()}
    return inputs | texts | floats


PER_EXAMPLE = [
    "bert", "llama", "gpt2", "squeezebert", "opt", "t5", "bart", "fsmt", "swin", "hiera", "timesformer", "sam_vision",
    "patchtst", "jetmoe", "switch_transformers", "deepseek_v3", "wavlm", "torch-encoder-seq-first", "torchvision-swin",
]  # fmt: skip
LAST_AXIS_FIRST = "torch-encoder-seq-first"
FLOAT32 = ROUNDING[torch.float32]  # many families normalise or turn in float32, whatever their weights are


@pytest.mark.parametrize("name", PER_EXAMPLE)
def test_gates_per_example_equal_each_example_with_its_own_gates_or_are_refused(name: str) -> None:
    model = zoo.build(name, torch.float64)[0]
    inputs = _even(name)
    axis = 1 if name == LAST_AXIS_FIRST else 0
    done = 0
    for part, gate in _gates(model, batch=2, dtype=torch.float64).items():
        try:
            with hc.gated(model, {part: gate}):
                got = zoo.output(model, inputs).unbind(axis)
            with hc.gated(model, {part: gate[:1].expand(2, -1, -1)}):
                same = zoo.output(model, inputs)
        except Refused:
            continue
        done += 1
        for n in range(2):
            with hc.gated(model, {part: gate[n, 0]}):
                alone = zoo.output(model, {k: v.narrow(axis, n, 1) for k, v in inputs.items()})
                assert close(got[n], alone.squeeze(axis), FLOAT32), f"{part}, example {n}"
        with hc.gated(model, {part: gate[0, 0]}):
            assert close(same, zoo.output(model, inputs), FLOAT32)
    assert done or name == "fsmt"


MIXED = [
    ("qwen2_vl", "visual.0"),
    ("qwen2_vl", "visual.0.mlp"),
    ("qwen2_vl", "visual.layers"),
    ("switch_transformers", "encoder.1.mlp.expert_0"),
    ("jetmoe", "0"),
    ("fsmt", "encoder.0"),
    ("fsmt", "encoder.0.mlp"),
    ("fsmt", "encoder.layers"),
    ("wavlm", "0"),
    ("torchvision-swin", "1.0"),
]


@pytest.mark.parametrize(("name", "part"), MIXED)
def test_sites_that_do_not_see_examples_one_by_one_refuse_gates_per_example(name: str, part: str) -> None:
    """Their rows are patches of pictures of any size, tokens sorted by expert, or positions; or no writer is called."""
    model, inputs = zoo.build(name)
    units = len(hc.find(model)[part])
    before = Fingerprint(model)
    with says(Refused, about="example"), hc.gated(model, {part: torch.ones(2, 1, units)}):
        zoo.output(model, inputs)
    assert not before.changed()
    with hc.gated(model, {part: torch.zeros(units)}):
        assert not close(zoo.output(model, inputs), zoo.output(zoo.build(name)[0], inputs), 1e-3)


def test_a_batch_that_gates_do_not_divide_is_a_bad_plan() -> None:
    model, inputs = zoo.build("bert")
    with says(BadPlan, about="3 examples"), hc.gated(model, {"0": torch.ones(3, 1, 4)}):
        zoo.output(model, inputs)


# -- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["starcoder2", "gpt2", "bart", "wavlm", "torch-encoder", "squeezebert"])
def test_gradients_equal_finite_differences_for_heads_neurons_and_layers(name: str) -> None:
    model, inputs = zoo.build(name, torch.float64)
    gates = {part: gate.requires_grad_() for part, gate in _gates(model, dtype=torch.float64).items()}
    with hc.gated(model, gates):
        loss = _loss(model, inputs)
    gradients = dict(zip(gates, torch.autograd.grad(loss, list(gates.values())), strict=True))
    step = 3e-3  # large against the noise of what is computed in float32, whatever the weights are
    for part, gate in gates.items():
        assert gradients[part].abs().max() > 0
        for index in {0, 1, gate.numel() - 1}:
            ends = []
            for sign in (1, -1):
                moved = gate.detach().clone()
                moved[index] += sign * step
                with torch.no_grad(), hc.gated(model, {**gates, part: moved}):
                    ends.append(float(_loss(model, inputs)))
            difference = (ends[0] - ends[1]) / (2 * step)
            allowed = 1e-3 * float(gradients[part].abs().max())
            assert float(gradients[part][index]) == pytest.approx(difference, abs=allowed), f"{part}:{index}"


def test_gradients_per_example_add_up_to_the_shared_one() -> None:
    model, inputs = zoo.build("llama", torch.float64)
    shared, single = (
        {"1": torch.full(shape, 0.7, dtype=torch.float64).requires_grad_()} for shape in ((8,), (2, 1, 8))
    )
    gradients = []
    for gates in (shared, single):
        with hc.gated(model, gates):
            gradients += torch.autograd.grad(_loss(model, inputs), [gates["1"]])
    largest = gradients[0].abs().max()
    assert (gradients[0] - gradients[1].sum(0)[0]).abs().max() <= FLOAT32 * largest
    assert (gradients[1][0] - gradients[1][1]).abs().max() > 0.1 * largest


@pytest.mark.parametrize(
    ("name", "reentrant"), [("llama", False), ("llama", True), ("bert", False), ("bert", True), ("wavlm", False)]
)
def test_gradient_checkpointing_gives_the_same_gradients(name: str, reentrant: bool) -> None:
    results = []
    for checkpointing in (False, True):
        model, inputs = zoo.build(name)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        for key, value in vars(model.config).items():
            if "drop" in key and isinstance(value, float):
                setattr(model.config, key, 0.0)
        model.config.mask_time_prob = model.config.mask_feature_prob = 0.0
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        for module in model.modules():
            for key, value in vars(module).items():
                if "drop" in key and isinstance(value, float):
                    setattr(module, key, 0.0)
        model.train()
        gates = {part: gate.requires_grad_() for part, gate in _gates(model).items()}
        with hc.gated(model, gates):
            _loss(model, inputs).backward()
        results.append([gate.grad for gate in gates.values()])
    for plain, checkpointed in zip(*results, strict=True):
        assert plain.abs().max() > 0
        assert (plain - checkpointed).abs().max() <= 1e-4 * plain.abs().max()


def test_autocast_runs_and_the_gate_is_live() -> None:
    for name in ("bert", "llama", "wavlm", "torch-encoder"):
        model, inputs = zoo.build(name)
        gates = {part: gate.requires_grad_() for part, gate in _gates(model).items()}
        with torch.autocast("cpu", dtype=torch.bfloat16), hc.gated(model, gates):
            loss = _loss(model, inputs)
        for part, gradient in zip(gates, torch.autograd.grad(loss, list(gates.values())), strict=True):
            assert gradient.isfinite().all()
            assert gradient.dtype == torch.float32
            assert gradient.abs().max() > 0, f"{name} {part}"


# -- nothing is left behind ------------------------------------------------------------------------------------------

LEAVERS = ["bert", "t5", "wavlm", "torch-encoder", "torchvision-swin"]


def _first(model: nn.Module) -> str:
    return hc.find(model).heads[0].name


def _leave_normally(model: nn.Module, inputs: zoo.Inputs) -> None:
    with hc.gated(model, _gates(model)):
        zoo.output(model, inputs)


def _leave_by_error(model: nn.Module, inputs: zoo.Inputs, error: BaseException | None = None) -> None:
    error = error or ValueError("inside")
    with pytest.raises(type(error)), hc.gated(model, _gates(model)):
        _raise_after(lambda: zoo.output(model, inputs), error)


def _raise_after(action: Callable[[], Any], error: BaseException) -> None:
    action()
    raise error


def _leave_by_interrupt(model: nn.Module, inputs: zoo.Inputs) -> None:
    _leave_by_error(model, inputs, KeyboardInterrupt())


def _steps(model: nn.Module, inputs: zoo.Inputs) -> Iterator[Tensor]:
    with hc.gated(model, _gates(model)):
        while True:
            yield zoo.output(model, inputs)


def _leave_by_closing_a_generator(model: nn.Module, inputs: zoo.Inputs) -> None:
    generator = _steps(model, inputs)
    next(generator)
    generator.close()


def _leave_by_throwing_into_a_generator(model: nn.Module, inputs: zoo.Inputs) -> None:
    generator = _steps(model, inputs)
    next(generator)
    with pytest.raises(ValueError, match="thrown"):
        generator.throw(ValueError("thrown"))


def _fail_by_name(model: nn.Module, inputs: zoo.Inputs) -> None:
    with says(NotFound), hc.gated(model, {**_gates(model), "nowhere": torch.ones(4)}):
        pytest.fail("entered")


def _fail_by_shape(model: nn.Module, inputs: zoo.Inputs) -> None:
    gates = _gates(model)
    last = list(gates)[-1]
    with says(BadPlan, about=last), hc.gated(model, {**gates, last: torch.ones(gates[last].numel() + 1)}):
        pytest.fail("entered")


WAYS = [
    _leave_normally,
    _leave_by_error,
    _leave_by_interrupt,
    _leave_by_closing_a_generator,
    _leave_by_throwing_into_a_generator,
    _fail_by_name,
    _fail_by_shape,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
@pytest.mark.parametrize("name", LEAVERS)
def test_nothing_is_left_behind(name: str, way: Callable[[nn.Module, zoo.Inputs], None]) -> None:
    model, inputs = zoo.build(name)
    want, before = zoo.output(model, inputs), Fingerprint(model)
    way(model, inputs)
    assert not before.changed()
    assert close(zoo.output(model, inputs), want)


@pytest.mark.parametrize("error", [ValueError("inside"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("name", ["bert", "wavlm", "torch-encoder"])
def test_nothing_is_left_behind_when_the_model_itself_stops_halfway(name: str, error: BaseException) -> None:
    """WavLM is stopped between the moment its output projection is gated and the moment it is used."""
    model, inputs = zoo.build(name)
    whole, before = zoo.output(model, inputs), Fingerprint(model)
    attention = hc.find(model).heads[1].module
    inside = attention.gru_rel_pos_linear if name == "wavlm" else hc.find(model).heads[1].writer
    with hc.gated(model, _gates(model)):
        want = zoo.output(model, inputs)
        handle = inside.register_forward_pre_hook(lambda *_: _raise_after(list, error))
        with pytest.raises(type(error)):
            zoo.output(model, inputs)
        handle.remove()
        assert close(zoo.output(model, inputs), want), "the next run inside is as before"
    handle = inside.register_forward_pre_hook(lambda *_: _raise_after(list, error))
    with pytest.raises(type(error)), hc.gated(model, _gates(model)):
        zoo.output(model, inputs)
    handle.remove()
    assert not before.changed()
    assert close(zoo.output(model, inputs), whole)


def test_an_interrupt_does_not_gate_the_next_run_twice() -> None:
    """WavLM's output projection is never called: its weight is gated for a run, and an interrupt skips the end of it."""
    model, inputs = zoo.build("wavlm")
    inside = hc.find(model)["0"].module.gru_rel_pos_linear
    with hc.gated(model, {"0": torch.full((4,), 0.5)}):
        want = zoo.output(model, inputs)
        handle = inside.register_forward_pre_hook(lambda *_: _raise_after(list, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            zoo.output(model, inputs)
        handle.remove()
        assert close(zoo.output(model, inputs), want)


def test_nothing_is_left_behind_of_gates_that_change_when_the_model_stops_halfway() -> None:
    """They may be multiplied into a copy of the weight, and an interrupt skips the hook that takes it away."""
    model, inputs = zoo.build("bert")
    texts = {name: value.repeat(4, 1) for name, value in inputs.items()}
    before, anatomy = Fingerprint(model), hc.find(model)
    writer, copied = anatomy["1"].writer, list[bool]()

    def stop(*_: Any) -> None:
        copied.append("weight" in vars(writer))
        raise KeyboardInterrupt

    with applied(model, anatomy, {"1": lambda: torch.full((4,), 0.5)}):
        handle = writer.register_forward_pre_hook(stop)
        with pytest.raises(KeyboardInterrupt):
            model(**texts)
    handle.remove()
    assert copied == [True]
    assert not before.changed()


# -- whatever runs the model -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "vit", "whisper"])
def test_kernels_agree_under_gates(name: str) -> None:
    outputs = []
    for kernel in ("sdpa", "eager"):
        model, inputs = zoo.build(name)
        model.set_attn_implementation(kernel)
        with hc.gated(model, _gates(model)):
            outputs.append(zoo.output(model, _padded(inputs) if "input_ids" in inputs else inputs))
    assert close(*outputs)


class Counting:
    """A backend for `torch.compile` that runs the graph as it is and counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, example_inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


def _compile_module(model: nn.Module, backend: Counting) -> Callable[..., Any]:
    return torch.compile(model, backend=backend)


def _compile_in_place(model: nn.Module, backend: Counting) -> Callable[..., Any]:
    model.compile(backend=backend)
    return model


def _compile_every_layer(model: nn.Module, backend: Counting) -> Callable[..., Any]:
    for stack in hc.find(model).stacks:
        for block in stack.blocks:
            block.compile(backend=backend)
    return model


@pytest.mark.exact
@pytest.mark.parametrize("when", ["before", "inside", "after"])
@pytest.mark.parametrize(
    ("name", "compiler"),
    [
        ("bert", _compile_module),
        ("bert", _compile_in_place),
        ("bert", _compile_every_layer),
        pytest.param("wavlm", _compile_module, marks=pytest.mark.slow),
        ("torchvision-vit", _compile_module),
    ],
)
def test_compiled_code_never_gives_a_stale_result(name: str, compiler: Callable[..., Any], when: str) -> None:
    torch.compiler.reset()
    model, inputs = zoo.build(name)
    whole = zoo.output(model, inputs)
    with hc.masked(model, "0:1"):
        one = zoo.output(model, inputs)
    with hc.masked(model, "1:2 layers:0"):
        two = zoo.output(model, inputs)
    assert not close(one, whole, 1e-3)
    assert not close(two, whole, 1e-3)
    backend = Counting()
    run = compiler(model, backend) if when == "before" else model
    if when == "before":
        assert close(zoo.output(run, inputs), whole)
    for n, (what, want) in enumerate([("0:1", one), ("1:2 layers:0", two), ("0:1", one)]):
        with hc.masked(run, what):
            run = compiler(model, backend) if when == "inside" and n == 0 else run
            assert close(zoo.output(run, inputs), want)
        run = compiler(model, backend) if when == "after" and n == 0 else run
        assert close(zoo.output(run, inputs), whole)
    assert backend.graphs > 0
    torch.compiler.reset()


@pytest.mark.exact
@pytest.mark.parametrize("name", ["bert", "torch-encoder", "wavlm"])
def test_ending_the_first_of_two_contexts_leaves_the_second_in_force(name: str) -> None:
    model, inputs = zoo.build(name)
    want = zoo.output(model, inputs)
    torch.compile(nn.Identity(), backend=Counting())  # from here on, contexts have compiled code to think of

    def hold(what: str) -> Iterator[None]:
        with hc.masked(model, what):
            yield

    with hc.masked(model, "1:2"):
        second_only = zoo.output(model, inputs)
    first, second = hold("0:1"), hold("1:2")
    next(first)
    next(second)
    first.close()
    assert close(zoo.output(model, inputs), second_only)
    assert not close(second_only, want, 1e-3)
    second.close()
    assert close(zoo.output(model, inputs), want)
    backend = Counting()
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    torch.compiler.set_stance("default")  # whatever has happened here, later tests start anew
    assert backend.graphs == 1, "torch.compile compiles again"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first ends first", "last ends first"])
def test_torchs_encoder_packs_padded_texts_when_the_last_context_has_ended_and_not_before(
    order: tuple[int, int],
) -> None:
    """It packs them into a nested tensor, which only its own attention can read."""
    model, inputs = zoo.build("torch-encoder")
    encoder = next(module for module in model.modules() if isinstance(module, nn.TransformerEncoder))
    padded = {**inputs, "src_key_padding_mask": torch.tensor([[False] * 7, [False] * 4 + [True] * 3])}
    names = ("0:1", "1:2")
    alone = []
    for name in names:
        with hc.masked(model, name):
            alone.append(zoo.output(model, padded))
    encoder.use_nested_tensor = True
    contexts = [hc.masked(model, name) for name in names]
    for context in contexts:
        context.__enter__()
    contexts[order[0]].__exit__(None, None, None)
    left = zoo.output(model, padded)
    contexts[order[1]].__exit__(None, None, None)
    assert close(left, alone[order[1]])
    assert encoder.use_nested_tensor


@pytest.mark.exact
def test_how_the_user_wants_to_compile_is_his_own_affair() -> None:
    model, inputs = zoo.build("bert")
    backend = Counting()
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    with torch.compiler.set_stance("force_eager"):
        with hc.masked(model, "0:1"):
            zoo.output(model, inputs)
        compiled(torch.ones(3))
        assert backend.graphs == 0
    compiled(torch.ones(3))
    assert backend.graphs == 1


@pytest.mark.exact
def test_what_was_compiled_before_a_context_is_not_compiled_again_after_it() -> None:
    model, _ = zoo.build("bert")
    backend = Counting()
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    for _ in range(3):
        compiled(torch.ones(3))
        with hc.masked(model, "0:1"):
            pass
    compiled(torch.ones(3))
    assert backend.graphs == 1


FIRST = """
import sys, torch, headcount as hc
from torch import nn

class Net(nn.Module):
    head_dim = 4

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (4, 4)).transpose(1, 2) for w in (self.q_proj, self.k_proj, self.v_proj))
        return x + self.o_proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

def backend(graph, example_inputs):
    graphs.append(graph)
    return graph.forward

def check(run, want):
    torch.testing.assert_close(run(x), want, rtol=0, atol=1e-5)

torch.manual_seed(0)
graphs, model, x = [], nn.Sequential(Net(), Net()).eval(), torch.randn(2, 5, 16)
whole = model(x)
with hc.masked(model, "0:1"):
    one = model(x)
with hc.masked(model, "0:1 1:2"):
    both = model(x)
assert "torch._dynamo" not in sys.modules
with hc.masked(model, "0:1"):
    compiled = torch.compile(model, backend=backend)
    check(compiled, one)
    with hc.masked(model, "1:2"):
        check(compiled, both)
    check(compiled, one)
check(compiled, whole)
with hc.masked(model, "0:1"):
    check(compiled, one)
check(compiled, whole)
assert min((one - whole).abs().max(), (both - one).abs().max()) > 1e-3
print("same", len(graphs) > 0)
"""


def test_the_first_compilation_of_a_process_may_happen_inside_a_context(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(FIRST)
    done = subprocess.run([sys.executable, tmp_path / "first.py"], capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["same", "True"], done.stderr[-2000:]


PARTS = {
    "llama": ["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", "model.layers.0", "model.layers.1"],
    "bert": ["bert.embeddings", "cls", "bert.encoder.layer.0", "bert.encoder.layer.1"],
}


@pytest.mark.parametrize("how", ["device map", "cpu", "disk", "part"])
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_offloaded_models_can_be_closed_and_are_cut_only_where_their_weights_are(
    name: str, how: str, tmp_path: Path
) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, inputs = zoo.build(name)
    what = "0:1-2 1.mlp:3-9 1:0"
    with hc.masked(model, what):
        want = zoo.output(model, inputs)
    whole = zoo.output(model, inputs)
    if how == "device map":
        model = accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    elif how == "cpu":
        model = accelerate.cpu_offload(model, torch.device("cpu"))
    elif how == "disk":
        model = accelerate.disk_offload(model, str(tmp_path), torch.device("cpu"))
    else:
        places = dict.fromkeys(PARTS[name], "cpu") | {PARTS[name][-1]: "disk"}
        model = accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True)
    assert any(p.is_meta for p in model.parameters()) == (how != "device map")
    with hc.masked(model, what):
        assert close(zoo.output(model, inputs), want)
    assert close(zoo.output(model, inputs), whole)
    if how == "device map":
        hc.cut(model, what)
        assert close(zoo.output(model, inputs), want)
        return
    for some in ("1:0", "1.mlp:3-9"):
        with says(Refused, about="offloaded"):
            hc.cut(model, some)
    assert close(zoo.output(model, inputs), whole)


@pytest.mark.parametrize("matrix", ["v_proj", "o_proj"])
def test_one_matrix_that_is_offloaded_is_enough_to_refuse_a_cut(matrix: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, _ = zoo.build("llama")
    accelerate.cpu_offload(model.model.layers[0].self_attn.get_submodule(matrix), torch.device("cpu"))
    with says(Refused, about="offloaded"):
        hc.cut(model, "0:0-1")
    hc.cut(model, "1:0-1")


CLOSED = {
    "llama": "0:1-2 1:0 1.mlp:3-9",
    "t5": "encoder.0:1 decoder.0.self:0-1 decoder.1.cross:2 decoder.0.mlp:5-20",
    "bart": "encoder.0:1 decoder.0.self:0-1 decoder.1.cross:2 decoder.0.mlp:5-20",
}


@pytest.mark.parametrize("layer", [False, True], ids=["units", "units and a layer"])
@pytest.mark.parametrize("name", CLOSED)
def test_generating_with_a_cache_equals_computing_every_token_anew(name: str, layer: bool) -> None:
    model, inputs = zoo.build(name)
    what = CLOSED[name] + (" layers:0" if name == "llama" else " decoder.layers:1") * layer
    steps = 6
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    key = "input_ids" if name == "llama" else "decoder_input_ids"
    texts = {"input_ids": inputs["input_ids"]}
    start = inputs["input_ids"] if name == "llama" else torch.full((2, 1), model.config.decoder_start_token_id)
    with hc.masked(model, what), torch.no_grad():
        fast = model.generate(**texts, max_new_tokens=steps, min_new_tokens=steps, do_sample=False, num_beams=1)
        slow = start
        for _ in range(steps):
            logits = model(**{**texts, key: slow}, use_cache=False).logits[:, -1]
            slow = torch.cat([slow, logits.argmax(-1, keepdim=True)], 1)
    assert torch.equal(fast, slow)
    with torch.no_grad():
        whole = model.generate(**texts, max_new_tokens=steps, min_new_tokens=steps, do_sample=False, num_beams=1)
    assert not torch.equal(fast, whole), "closing these units changes the text"


# -- wrong requests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (3,), (5,), (1, 4), (4, 1), (2, 2, 4), (2, 1, 3), (1, 2, 1, 4), (0,)])
def test_a_wrong_shape_is_a_bad_plan_that_says_the_right_one(shape: tuple[int, ...]) -> None:
    model, _ = zoo.build("bert")
    with says(BadPlan, about="(4,) or (batch, 1, 4)"), hc.gated(model, {"0": torch.ones(shape)}):
        pytest.fail("entered")


@pytest.mark.parametrize("gate", [1.0, [1.0, 0.0, 1.0], ["a", "b", "c", "d"], [[1.0], 1.0], {1.0}, None, "1 0 1 1"])
def test_a_gate_that_is_no_tensor_is_a_bad_plan(gate: Any) -> None:
    model, _ = zoo.build("bert")
    with says(BadPlan), hc.gated(model, {"0": gate}):
        pytest.fail("entered")


@pytest.mark.parametrize(("what", "kind"), [("7:0", NotFound), ("0:4", BadPlan), ("0", BadPlan), ("layers:2", BadPlan)])
def test_a_wrong_unit_is_one_sentence(what: str, kind: type[Exception]) -> None:
    model, _ = zoo.build("bert")
    before = Fingerprint(model)
    with says(kind), hc.masked(model, what):
        pytest.fail("entered")
    assert not before.changed()


def test_a_layer_that_changes_the_shape_cannot_be_closed() -> None:
    model, inputs = zoo.build("hiera")
    with says(Refused, about="HieraLayer"), hc.masked(model, "1.layers:0"):
        zoo.output(model, inputs)
