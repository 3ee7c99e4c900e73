"""Criteria from activations alone, each against its formula in plain loops over examples, positions and columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import close
from helpers.small_models import (
    class_loss,
    class_task,
    classifier,
    folder_and_data,
    padded_task,
    ragged_pairs,
    ragged_texts,
    ran,
    ran_json,
    texts,
    zoo_task,
)
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

import headcount as hc
from headcount.importance import activations
from headcount.runs import Run

SITES = ("wanda", "flap", "activation")


def ragged_prose(count: int = 6) -> hc.data.Task:
    """Texts of different lengths for a decoder, padded at their ends."""
    rows = [{"input_ids": row[: 3 + n % 5]} for n, row in enumerate(texts(count).tolist())]
    rows = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(**batch).logits * batch["attention_mask"][..., None]
        return logits.tanh().flatten(1).sum(1)

    return padded_task(rows, loss, {"input_ids": 0, "attention_mask": 0}, 3)


def made(name: str) -> tuple[nn.Module, hc.data.Task]:
    """An encoder, a decoder with grouped heads, an encoder-decoder; each with examples of different lengths."""
    if name == "encoder":
        return classifier(), ragged_texts()
    if name == "decoder":
        model = zoo.build("llama")[0]
        assert any(site.kv_heads < len(site) for site in hc.find(model).heads)
        return model, ragged_prose()
    model = zoo.build("bart")[0]
    model.config.pad_token_id = 1
    return model, ragged_pairs()


KINDS = ("encoder", "decoder", "encoder-decoder")


def inputs(model: nn.Module, task: hc.data.Task) -> dict[str, list[np.ndarray]]:
    """What each writer is given, (positions, columns) for each example, run alone: nothing is padded."""
    seen: dict[str, list[np.ndarray]] = {site.name: [] for site in hc.find(model)}
    handles = []
    for site in hc.find(model):

        def keep(_: nn.Module, args: Any, name: str = site.name) -> None:
            seen[name].append(args[0].detach().double().flatten(0, -2).numpy())

        handles.append(site.writer.register_forward_pre_hook(keep))
    with torch.no_grad():
        for number in range(task.size):
            task.loss(model, task.collate([number]))
    for handle in handles:
        handle.remove()
    return seen


def by_loops(model: nn.Module, task: hc.data.Task, by: str, kind: str) -> np.ndarray:
    """The scores, number by number as the papers write them."""
    seen, out = inputs(model, task), []
    for site in (site for site in hc.find(model) if site.kind == kind):
        weight = site.writer.weight.detach().double().numpy()
        weight = weight.T if type(site.writer).__name__ == "Conv1D" else weight
        x = np.concatenate(seen[site.name])  # (all positions of all examples, columns)
        columns = []
        for j in range(x.shape[1]):
            if by == "wanda":
                norm = np.sqrt(sum(value**2 for value in x[:, j]) / len(x))
                columns.append(sum(abs(weight[i, j]) * norm for i in range(len(weight))))
            elif by == "flap":
                mean = sum(x[:, j]) / len(x)
                variance = sum((value - mean) ** 2 for value in x[:, j]) / len(x)
                columns.append(variance * sum(weight[i, j] ** 2 for i in range(len(weight))))
        for unit in range(len(site)):
            own = range(unit * site.width, (unit + 1) * site.width)
            if by == "wanda":
                out.append(sum(columns[j] for j in own))
            elif by == "flap":
                out.append(np.mean([(columns[j] - np.mean(columns)) / np.std(columns, ddof=1) for j in own]))
            else:
                out.append(np.mean([np.sqrt(sum(row[j] ** 2 for j in own)) for row in x]))
    return np.array(out)


@pytest.mark.parametrize("by", SITES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_criterion_is_its_formula_in_loops(kind: str, by: str) -> None:
    model, task = made(kind)
    for units in ("head", "neuron"):
        scores = hc.score(model, task, by, units=f"{units}s")
        assert close(scores.raw, by_loops(model, task, by, units)), units
        assert close(scores.samples.mean(0), scores.raw)
        assert len(scores.samples) == task.size
    assert close(hc.score(model, task, by, units="heads,neurons").samples[:, -1], scores.samples[:, -1])


def test_neurons_of_an_activation_are_their_mean_absolute_values() -> None:
    model, task = made("encoder")
    x = np.concatenate(inputs(model, task)["1.mlp"])
    scores = hc.score(model, task, "activation", units="neurons").only("1.mlp")
    assert close(scores.raw, np.abs(x).mean(0))


@pytest.mark.parametrize("by", SITES)
def test_standard_errors_are_those_of_leaving_examples_out(by: str) -> None:
    model, task = classifier(2), ragged_texts(40)
    scores = hc.score(model, task, by)
    without = [[n for n in range(40) if n != left] for left in range(40)]
    each = np.stack([hc.score(model, task.subset(some), by).raw for some in without])
    jackknife = np.sqrt(39 / 40 * ((each - each.mean(0)) ** 2).sum(0))
    assert scores.stderr is not None
    assert np.abs(scores.stderr / jackknife - 1).max() < 0.2


@pytest.mark.parametrize("by", [*SITES, "block-influence"])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_padding_and_order_do_not_matter(kind: str, by: str) -> None:
    model, task = made(kind)
    alone = hc.score(model, task, by, units="heads,neurons", batch_size=1).samples
    assert len({tuple(v.shape) for b in task.batches(2) for v in task.collate(b).values()}) > 2  # lengths differ
    for size in (2, task.size):
        assert close(alone, hc.score(model, task, by, units="heads,neurons", batch_size=size).samples)
    turned = list(reversed(range(task.size)))
    assert close(alone[turned], hc.score(model, task.subset(turned), by, units="heads,neurons").samples)


def test_rows_of_many_examples_are_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = made("encoder")
    whole = {by: hc.score(model, task, by) for by in SITES}
    monkeypatch.setattr(activations, "ROWS", 3)
    monkeypatch.setattr(activations, "CHUNK", 4)
    for by, scores in whole.items():
        blocks = hc.score(model, task, by)
        assert len(blocks.samples) == 3
        assert close(blocks.raw, scores.raw)
        assert close(blocks.samples.mean(0), blocks.raw)
        assert blocks.stderr.min() > 0


# -- block influence -------------------------------------------------------------------------------------------------------


def test_block_influence_of_layers_is_one_minus_the_mean_cosine_over_all_positions() -> None:
    turned: dict[str, list[Tensor]] = {}
    for kind in KINDS:
        model, task = made(kind)
        turned.clear()
        handles = []
        for stack in hc.find(model).stacks:
            for unit, block in zip(stack.units, stack.blocks, strict=True):

                def see(_: nn.Module, args: Any, kwargs: Any, output: Any, name: str = str(unit)) -> None:
                    before = args[0] if args else kwargs["hidden_states"]
                    after = output if isinstance(output, Tensor) else output[0]
                    turned.setdefault(name, []).append(1 - cosine_similarity(before.double(), after.double(), -1)[0])

                handles.append(block.register_forward_hook(see, with_kwargs=True))
        with torch.no_grad():
            for number in range(task.size):
                task.loss(model, task.collate([number]))
        for handle in handles:
            handle.remove()
        scores = hc.score(model, task, "block-influence", units="layers")
        want = np.array([torch.cat(turned[str(unit)]).mean().item() for unit in scores.units])
        assert close(scores.raw, want), kind
        assert scores.stderr is not None


def test_block_influence_of_attentions_and_mlps_is_of_the_stream_around_them() -> None:
    """In a Llama, by hand: x, x + attention(norm(x)), and that + mlp(norm(that))."""
    model, task = made("decoder")
    turned: dict[str, list[Tensor]] = {}

    def see(place: int, layer: nn.Module, args: Any, kwargs: Any, _: Any) -> None:
        x = args[0] if args else kwargs["hidden_states"]
        rest = {name: value for name, value in kwargs.items() if name != "hidden_states"}
        middle = x + layer.self_attn(hidden_states=layer.input_layernorm(x), **rest)[0]
        end = middle + layer.mlp(layer.post_attention_layernorm(middle))
        for name, before, after in ((f"{place}", x, middle), (f"{place}.mlp", middle, end)):
            turned.setdefault(name, []).append(1 - cosine_similarity(before.double(), after.double(), -1)[0])

    with torch.no_grad():
        for number in range(task.size):
            handles = [
                layer.register_forward_hook(lambda m, a, k, o, place=place: see(place, m, a, k, o), with_kwargs=True)
                for place, layer in enumerate(model.model.layers)
            ]
            task.loss(model, task.collate([number]))
            for handle in handles:
                handle.remove()
    scores = hc.score(model, task, "block-influence", units="heads,neurons")
    for site in hc.find(model):
        own = scores.at([site.name])
        assert own.raw.sum() == pytest.approx(torch.cat(turned[site.name]).mean().item(), rel=1e-4), site.name
        assert close(own.raw, np.full(len(site), own.raw[0]))


def test_block_influence_after_norms_is_of_the_sums_that_are_normed() -> None:
    """In a BERT, by hand: the input of a norm, and that without what the dense layer before it gave."""
    model, task = made("encoder")
    turned: dict[str, list[Tensor]] = {}
    places = {}
    for number, layer in enumerate(model.bert.encoder.layer):
        places[f"{number}"], places[f"{number}.mlp"] = layer.attention.output, layer.output
    written: dict[str, Tensor] = {}
    with torch.no_grad():
        for number in range(task.size):
            handles = []
            for name, output in places.items():

                def wrote(_: nn.Module, __: Any, y: Tensor, name: str = name) -> None:
                    written[name] = y.double()

                def normed(_: nn.Module, args: Any, name: str = name) -> None:
                    z = args[0].double()
                    turned.setdefault(name, []).append(1 - cosine_similarity(z - written[name], z, -1)[0])

                handles += [
                    output.dense.register_forward_hook(wrote),
                    output.LayerNorm.register_forward_pre_hook(normed),
                ]
            task.loss(model, task.collate([number]))
            for handle in handles:
                handle.remove()
    scores = hc.score(model, task, "block-influence", units="heads,neurons")
    for name in places:
        assert scores.at([name]).raw.sum() == pytest.approx(torch.cat(turned[name]).mean().item(), rel=1e-4)


@pytest.mark.exact  # shaken digits of the stream are more than the nothing that is written
def test_an_attention_that_writes_nothing_has_no_influence_and_goes_first() -> None:
    model, task = made("decoder")
    model.model.layers[1].self_attn.o_proj.weight.data *= 1e-4
    scores = hc.score(model, task, "block-influence")
    assert {unit.site for unit in scores.order()[: len(hc.find(model)["1"])]} == {"1"}


# -- models of all sorts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["albert", "gpt2", "t5", "opt", "falcon", "torch-encoder-seq-first", "vit"])
def test_families(name: str) -> None:
    model, task = zoo_task(name)
    before = Fingerprint(model)
    for by in SITES:
        scores = hc.score(model, task, by, units="heads,neurons")
        assert np.isfinite(scores.raw).all()
        assert len(set(scores.raw.round(9))) > 1
    assert before.changed() == []


def test_a_model_that_was_cut_is_scored_by_what_is_left_also_where_its_matrices_are_padded() -> None:
    for name in ("llama", "nystromformer"):
        model, task = zoo_task(name)
        site = hc.find(model).heads[-1].name
        with hc.masked(model, {site: [1]}):
            want = {by: hc.score(model, task, by) for by in ("wanda", "activation")}
        hc.cut(model, {site: [1]})
        for by, whole in want.items():
            scores = hc.score(model, task, by)
            stay = [n for n, unit in enumerate(whole.units) if unit in scores.units]
            assert close(scores.raw, whole.raw[stay]), (name, by)


def test_examples_are_run_alone_where_a_batch_does_not_tell_padding() -> None:
    """A mask that is one longer than the text, as of models that put a token of their own before it."""
    model, _ = made("encoder")
    odd = padded_task(
        [{"input_ids": row, "more": [1] * (len(row) + 1)} for row in ([5, 6, 7], [8, 9, 10, 11, 12], [4, 4])],
        lambda m, b: m(input_ids=b["input_ids"], attention_mask=b["attention_mask"][:, 1:]).logits.sum(1),
        {"input_ids": 0, "more": 0},
        3,
    )
    collate = odd.collate
    object.__setattr__(
        odd, "collate", lambda n: {(k if k != "more" else "attention_mask"): v for k, v in collate(n).items()}
    )
    alone = hc.score(model, odd, "wanda", batch_size=1)
    assert close(hc.score(model, odd, "wanda").samples, alone.samples)


# -- runs, wrong requests and commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by", "units"), [("flap", "heads"), ("block-influence", "layers")])
def test_a_run_is_resumed(by: str, units: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "CHUNK", 3)
    model, task, ran_on = classifier(), ragged_texts(), []
    loss = task.loss

    def interrupted(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        ran_on.append(len(batch["labels"]))
        if len(ran_on) == 2:
            raise KeyboardInterrupt
        return loss(model, batch)

    object.__setattr__(task, "loss", interrupted)
    with Run.open(tmp_path / "run", {"command": "x"}) as run:
        with pytest.raises(KeyboardInterrupt):
            hc.score(model, task, by, units=units, run=run)
        first = hc.score(model, task, by, units=units, run=run)
        seen = len(ran_on)
        again = hc.score(model, task, by, units=units, run=run)
        assert len(ran_on) == seen
        if units == "heads":  # one pass gives all three
            hc.score(model, task, "wanda", run=run)
            assert len(ran_on) == seen
    assert close(first.samples, again.samples)
    assert close(first.samples, hc.score(model, ragged_texts(), by, units=units).samples)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_fewer_examples_where_memory_runs_out(most: int) -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        if len(batch["labels"]) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return class_loss(model, batch)

    model = classifier()
    if not most:
        with says(hc.errors.OutOfMemory, about="activations of one example alone"):
            hc.score(model, class_task(7, loss=loss), "wanda")
        return
    assert close(hc.score(model, class_task(7, loss=loss), "wanda").raw, hc.score(model, class_task(7), "wanda").raw)


@pytest.mark.parametrize("by", SITES)
def test_layers_have_no_such_criterion(by: str) -> None:
    with says(hc.errors.BadPlan, about=f"{by} is of heads and neurons"):
        hc.score(classifier(), class_task(7), by, units="heads,layers")


def test_what_cannot_be_said_is_said() -> None:
    for by in (*SITES, "block-influence"):
        with says(hc.errors.BadPlan, about="give a task"):
            hc.score(classifier(), by=by)
    model, inputs = zoo.build("clip")
    one_tower = hc.custom_task(
        [{"pixel_values": inputs["pixel_values"]}], loss=lambda m, b: m.vision_model(**b).pooler_output.sum(1)
    )
    with says(hc.errors.Refused, about="does not run on"):
        hc.score(model, one_tower, "flap")
    with says(hc.errors.Refused, about="not seen to be added"):
        hc.score(model, one_tower, "block-influence")
    model = classifier()
    model.bert.encoder.layer[1].intermediate.dense.bias.data[3] = torch.inf
    with says(hc.errors.NotFinite, about="is not finite for"):
        hc.score(model, class_task(7), "wanda", units="neurons")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier and its data."""
    return folder_and_data(tmp_path_factory.mktemp("activations"), layers=3)


def test_the_commands_take_them(place: Path, tmp_path: Path) -> None:
    model, data = place / "model", ["--data", place / "data.tsv"]
    for by in (*SITES, "block-influence"):
        scores = ran_json("score", model, *data, "--by", by, "-o", tmp_path / by)
        assert scores["by"] == by
        assert scores["sites"]["0"]["stderr"]
        how = ["--units", "heads", "--by", by, "--remove", "2", "--brake", "off", "--dry-run"]
        done = ran("prune", model, *data, *how, "--run", tmp_path / f"p-{by}")
        assert done.exit_code == 0, done.output
        assert len(hc.Plan.read(tmp_path / f"p-{by}" / "plan.json")) == 2
    every = ",".join((*SITES, "block-influence"))
    drawn = ran_json("curve", model, *data, "--by", every, "--step", "50%", "-o", tmp_path / "curve")
    assert [one["by"] for one in drawn["curves"]] == every.split(",")
    done = ran("tradeoff", model, *data, "--by", "flap", "--step", "25%", "-o", tmp_path / "tradeoff")
    assert done.exit_code == 0, done.output
    with says(hc.errors.BadPlan, about="score layers by block-influence"):
        ran("score", model, *data, "--by", "wanda", "--units", "layers", "-o", tmp_path / "layers")
