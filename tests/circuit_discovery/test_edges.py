"""Scores of edges are hand loops and add up to scores of nodes; exact patches are those of one reader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers.contrasts import MASKED, ROWS, small_bert, words_tokenizer
from helpers.hand_patching import MODELS, contrast, difference, inputs_of, layers, projection, second
from helpers.same import close
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma2ForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

import headcount as hc
from headcount.circuit_discovery.edge_circuits import values_of_circuits
from headcount.circuit_discovery.edge_patching import patch_edges
from headcount.circuit_discovery.edges import score_edges
from headcount.errors import NotFound, Refused
from headcount.importance.attribution.exact import values_under


def opinionated(model: nn.Module) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.3)
    return model.eval()


def neox(parallel: bool) -> nn.Module:
    sizes = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"intermediate_size": 48, "max_position_embeddings": 64, "use_parallel_residual": parallel}
    return opinionated(GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, **more, bos_token_id=0, eos_token_id=1)))


def model_and_task(name: str) -> tuple[Any, Any]:
    model, task = contrast("llama" if name.startswith("neox") else name)
    return (neox(name == "neox-parallel") if name.startswith("neox") else model), task


FAMILIES = (*MODELS, "neox-parallel", "neox")


# --- by hand ---------------------------------------------------------------------------------------------------------


def norm_of(layer: Any, reader: str) -> nn.Module:
    """The norm in front of an attention or MLP."""
    if hasattr(layer, "ln_1"):
        return layer.ln_2 if reader == "mlp" else layer.ln_1  # type: ignore[no-any-return]
    return layer.post_attention_layernorm if reader == "mlp" else layer.input_layernorm  # type: ignore[no-any-return]


def matrices_of(layer: Any, reader: str) -> list[tuple[nn.Module, slice]]:
    """The matrices of a reader, "mlp" or a letter with the number of a head or key-value head, and its rows in them."""
    if reader == "mlp":
        mlp = layer.mlp
        return (
            [(mlp.c_fc, slice(None))]
            if hasattr(mlp, "c_fc")
            else [(m, slice(None)) for m in (mlp.gate_proj, mlp.up_proj)]
        )
    letter, head = reader[0], int(reader[1:])
    if hasattr(layer, "attn"):
        start = 32 * "qkv".index(letter) + 8 * head
        return [(layer.attn.c_attn, slice(start, start + 8))]
    module = {"q": "q_proj", "k": "k_proj", "v": "v_proj"}[letter]
    return [(getattr(layer.self_attn, module), slice(8 * head, 8 * head + 8))]


def read_differently(model: nn.Module, layer: int, reader: str, delta: Tensor, one: Any) -> Tensor:
    """The logit difference when one reader reads the stream plus a delta, all others the stream itself."""
    block = layers(model)[layer]
    norm, handles = norm_of(block, reader), []
    told: list[Tensor] = []

    def listen(module: nn.Module, args: Any, output: Tensor) -> None:
        if not told:
            told.append(args[0])
            told.append(norm(args[0] + delta))

    handles.append(norm.register_forward_hook(listen))
    for module, rows in matrices_of(block, reader):

        def answer(module: Any, args: Any, output: Tensor, rows: slice = rows) -> Tensor | None:
            if len(told) < 2 or answer_to.get(module):
                return None
            answer_to[module] = True
            other = module(told[1])
            mixed = torch.zeros_like(output)
            mixed[..., rows] = 1
            return output * (1 - mixed) + other * mixed

        handles.append(module.register_forward_hook(answer))
    answer_to: dict[Any, bool] = {}
    try:
        return difference(model, one)
    finally:
        for handle in handles:
            handle.remove()


def written_by(model: nn.Module, node: str, one: Any) -> Tensor:
    """What a node writes on a prompt."""
    if node == "embeddings":
        return inputs_of(layers(model)[0], lambda: difference(model, one))
    layer = layers(model)[int(node.split(":")[0].split(".")[0])]
    writer: Any = second(layer) if node.endswith("mlp") else projection(layer)
    x = inputs_of(writer, lambda: difference(model, one))
    if not node.endswith("mlp"):
        head = int(node.partition(":")[2])
        kept = torch.zeros_like(x)
        kept[..., 8 * head : 8 * head + 8] = x[..., 8 * head : 8 * head + 8]
        x = kept
    with torch.no_grad():
        return writer(x).detach()


CASES = {
    "gpt2": [("embeddings", "0:2.q", 0, "q2"), ("0:1", "0.mlp", 0, "mlp"), ("0.mlp", "1:3.k", 1, "k3")],
    "llama": [("0:1", "0.mlp", 0, "mlp"), ("0.mlp", "1.kv:1.k", 1, "k1"), ("0:0", "1:3.q", 1, "q3")],
}


@pytest.mark.parametrize("name", MODELS)
def test_scores_and_patches_of_edges_are_hand_loops(name: str) -> None:
    model, task = contrast(name)
    scores = score_edges(model, task, "attribution-patching")
    exact = patch_edges(model, task, [case[:2] for case in CASES[name]])
    for place, (writer, reader, layer, part) in enumerate(CASES[name]):
        gradients, patches = [], []
        for number in range(task.size):
            clean, corrupted = task.collate([number]), task.corrupted.collate([number])
            drop = written_by(model, writer, clean) - written_by(model, writer, corrupted)
            delta = torch.zeros_like(drop, requires_grad=True)
            read_differently(model, layer, part, delta, clean).backward()
            assert delta.grad is not None
            gradients.append(float((delta.grad * drop).sum()))
            with torch.no_grad():
                patches.append(float(difference(model, clean) - read_differently(model, layer, part, -drop, clean)))
        column = [one.name for one in scores.readers].index(reader)
        row = scores.writers.index(writer)
        assert scores.stderr is not None
        found = np.array([scores.mean[row, column], scores.stderr[row, column]])
        want = np.array([np.mean(gradients), np.std(gradients, ddof=1) / np.sqrt(task.size)])
        assert close(found, want, 1e-4), (writer, reader)
        assert close(exact[:, place], np.array(patches), 1e-4), (writer, reader)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("by", "steps"), [("attribution-patching", {}), ("eap-ig", {"steps": 2})])
def test_edges_of_a_node_add_up_to_its_score(name: str, by: str, steps: dict[str, int]) -> None:
    """The gradient at what a node writes is the sum of the gradients at all that read it."""
    model, task = model_and_task(name)
    edges = score_edges(model, task, by, **steps)
    nodes, heads = edges.node_scores(), hc.score(model, task, by=by, **steps)
    assert close(np.array([nodes[str(unit)] for unit in heads.units]), heads.raw, 1e-4)
    neurons = hc.score(model, task, by=by, units="neurons", **steps)
    for site in neurons.kinds:
        own = sum(neurons[unit] for unit in neurons.units if unit.site == site)
        assert close(np.array(nodes[site]), np.array(own), 1e-4)
    assert not edges.mean[~edges.there].any()


def test_where_the_mlp_runs_beside_the_attention_it_reads_no_head_of_its_layer() -> None:
    for name, reads in (("neox-parallel", False), ("neox", True)):
        model, task = model_and_task(name)
        edges = score_edges(model, task, "attribution-patching")
        column = [one.name for one in edges.readers].index("0.mlp")
        assert bool(edges.there[edges.writers.index("0:0"), column]) is reads


def test_the_strongest_edges_come_first_and_units_rank_by_them() -> None:
    model, task = contrast("llama")
    edges = score_edges(model, task)
    listed = edges.strongest(len(edges))
    assert len(listed) == len(edges) == len({edge[:2] for edge in listed})
    sizes = [abs(edge.score) for edge in listed]
    assert sizes == sorted(sizes, reverse=True)
    entered = {reader.name: reader.units for reader in edges.readers}
    for unit, rank in edges.unit_ranks().items():
        own = [abs(edge.score) for edge in listed if edge.writer == unit or unit in entered[edge.reader]]
        assert rank == max(own)


def test_models_whose_stream_is_no_sum_are_refused_by_name() -> None:
    task = hc.task("contrast", MASKED, tokenizer=words_tokenizer(mask=True))
    with says(Refused, about="BertForMaskedLM has no edges"):
        score_edges(small_bert(), task)
    sizes = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    config = Gemma2Config(
        **sizes, num_key_value_heads=2, intermediate_size=48, bos_token_id=0, eos_token_id=1, pad_token_id=2
    )
    task = hc.task("contrast", ROWS, tokenizer=words_tokenizer())
    with says(Refused, about="Gemma2ForCausalLM has no edges"):
        score_edges(opinionated(Gemma2ForCausalLM(config)), task)


def test_edges_that_are_not_there_are_refused() -> None:
    model, task = contrast("gpt2")
    for edge in (("1:0", "0.mlp"), ("0:0", "0:1.q"), ("logits", "logits"), ("0:0", "nowhere")):
        with says(NotFound, about="has no edge from"):
            patch_edges(model, task, [edge])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", FAMILIES)
def test_circuits_of_edges_are_the_runs_that_others_make(name: str) -> None:
    """None: the corrupted run; all: the clean one; all but one: that edge patched; all from some units: those units masked."""
    model, task = model_and_task(name)
    scores, anatomy = score_edges(model, task, "attribution-patching"), hc.find(model)
    there, kept = scores.there, ("embeddings", "0:1", "0.mlp", "1:3")
    column = [one.name for one in scores.readers].index("1:0.q")
    but_one, of_units = there.copy(), there & np.isin(scores.writers, kept)[:, None]
    but_one[scores.writers.index("0:1"), column] = False
    found = values_of_circuits(
        model, anatomy, scores.graph, task, [there & False, there, but_one, of_units], batch_size=2
    )
    assert close(found["kept"][:, 0], found["corrupted"], 1e-4)
    assert close(found["kept"][:, 1], found["clean"], 1e-4)
    exact = patch_edges(model, task, [("0:1", "1:0.q")])
    assert close(found["clean"] - found["kept"][:, 2], exact[:, 0], 1e-4)
    assert np.abs(exact).max() > 1e-3
    rest = anatomy.plan([unit if ":" in unit else f"{unit}:*" for unit in scores.writers[1:] if unit not in kept])
    masked = values_under(model, anatomy, task, {"rest": rest})
    assert close(found["kept"][:, 3], masked["patched"][:, 0], 1e-4)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
