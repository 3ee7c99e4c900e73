"""What stands in for units, against loops with hooks written by hand, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import close
from helpers.small_models import class_loss, class_task, classifier, loss_of, ragged_pairs, ragged_texts, texts
from torch import Tensor, nn

import headcount as hc
from headcount.data.tasks import Task
from headcount.documents.results import FillDocument
from headcount.interventions import Fill, activations, means
from headcount.pruning.tuning.compensation import unit_means
from headcount.stats.metrics import metric

# a head, where its output projection is in the model, and which of the columns that it is given are the head's
BY_HAND = {
    "bert": ("1:2", "bert.encoder.layer.1.attention.output.dense", slice(16, 24)),
    "gpt2": ("0:3", "transformer.h.0.attn.c_proj", slice(24, 32)),
    "llama": ("1:5", "model.layers.1.self_attn.o_proj", slice(40, 48)),  # eight heads share four of keys and values
    "t5": ("decoder.1.cross:1", "decoder.block.1.layer.1.EncDecAttention.o", slice(8, 16)),
    "marian": ("decoder.0.cross:6", "model.decoder.layers.0.encoder_attn.out_proj", slice(24, 28)),
}


def simple(name: str, count: int = 4, seed: int = 0) -> Task:
    """Texts of one length, and of as long a target where the model has a decoder of its own."""
    batch = {"input_ids": texts(count, seed=seed)}
    if name in ("t5", "marian"):
        batch["decoder_input_ids"] = texts(count, length=5, seed=seed + 50)
    return hc.custom_task([batch], loss=loss_of, name=f"{name}-{seed}")


@contextmanager
def given(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """By hand: what a module is given is changed."""
    handle = module.register_forward_pre_hook(lambda _, args: (change(args[0].clone()), *args[1:]))
    try:
        yield
    finally:
        handle.remove()


def seen_by(model: nn.Module, module: nn.Module, task: Task, numbers: Sequence[int]) -> Tensor:
    """By hand: what a module is given on these examples, (examples, positions, columns)."""
    seen: list[Tensor] = []
    with given(module, lambda x: (seen.append(x), x)[1]), torch.no_grad():
        task.rows(model, task.collate(numbers))
    return seen[0]


def by_hand(model: nn.Module, module: nn.Module, task: Task, change: Callable[[Tensor, int], Tensor]) -> np.ndarray:
    """By hand: values of each example, alone, with what the module is given changed: `change(x, number)`."""
    out = []
    for number in range(task.size):
        with given(module, lambda x, number=number: change(x, number)), torch.no_grad():  # type: ignore[misc]
            out.append(task.rows(model, task.collate([number]))[0])
    return np.array(out)


def put(columns: slice, values: Any, positions: Any = slice(None)) -> Callable[[Tensor, int], Tensor]:
    """A change that puts values into some columns; `values` may be a function of the example's number."""

    def change(x: Tensor, number: int) -> Tensor:
        x[:, positions, columns] = (values(number) if callable(values) else values).to(x)
        return x

    return change


def rows_with(model: nn.Module, task: Task, unit: str, fill: Fill | str, **options: Any) -> np.ndarray:
    """Values of every example without a unit; means over draws come with a column that counts."""
    found = hc.ablate(model, task, {"it": hc.find(model).plan(unit)}, fill=fill, **options)
    return found.rows[0][:, :1]


# -- against loops by hand, family by family -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(BY_HAND))
def test_mean_and_positions_and_other_examples_are_those_of_a_loop(name: str) -> None:
    model, _ = zoo.build(name)
    unit, path, columns = BY_HAND[name]
    module, task, reference = model.get_submodule(path), simple(name), simple(name, 5, seed=1)
    other = seen_by(model, module, reference, range(5))[..., columns]  # (examples, positions, columns of the head)

    want = by_hand(model, module, task, put(columns, other.mean((0, 1))))
    assert close(rows_with(model, task, unit, Fill("mean", reference)), want)

    want = by_hand(model, module, task, put(columns, other.mean(0)))
    assert close(rows_with(model, task, unit, Fill("mean-per-position", reference)), want)

    each = [by_hand(model, module, task, put(columns, one)) for one in other]
    assert close(rows_with(model, task, unit, Fill("resample", reference, draws=5)), np.mean(each, axis=0))
    drawn = rows_with(model, task, unit, Fill("resample", reference, seed=7))
    assert all(any(close(row, one[number]) for one in each) for number, row in enumerate(drawn))

    pair = simple(name, 4, seed=2)
    theirs = seen_by(model, module, pair, range(4))[..., columns]
    want = by_hand(model, module, task, put(columns, lambda number: theirs[number]))
    assert close(rows_with(model, task, unit, Fill("counterfactual", pair)), want)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_head_is_not_a_slice_of_what_the_projection_gives(name: str) -> None:
    """The classic mistake: the projection mixes the heads, so zeroing a slice of its output ablates none of them."""
    model, inputs = zoo.build(name)
    unit, path, columns = BY_HAND[name]
    module = model.get_submodule(path)
    with hc.masked(model, unit):
        ours = zoo.output(model, inputs)
    with given(module, lambda x: put(columns, torch.zeros(8))(x, 0)):
        assert close(zoo.output(model, inputs), ours)
    # the same from the weights: the output less what this head's rows of the matrix make of the head
    weight = module.weight[columns] if name == "gpt2" else module.weight[:, columns].T

    def without(_: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output - args[0][..., columns] @ weight

    handle = module.register_forward_hook(without)
    assert close(zoo.output(model, inputs), ours)
    handle.remove()

    def sliced(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[..., columns] = 0
        return output

    handle = module.register_forward_hook(sliced)
    wrong = zoo.output(model, inputs)
    handle.remove()
    assert not close(wrong, ours, 1e-2)


@pytest.mark.parametrize("kind", ["mean", "mean-per-position", "resample", "counterfactual"])
def test_what_stands_in_for_a_layer_is_added_to_what_goes_into_it(kind: str) -> None:
    model, task, reference = classifier(), class_task(4), class_task(4, values=class_loss)
    reference = hc.custom_task([{"input_ids": texts(4, seed=1), "labels": torch.arange(4) % 3}], loss=class_loss)
    block = model.bert.encoder.layer[1]
    added: list[Tensor] = []

    def see(_: nn.Module, args: Any, output: Any) -> None:
        added.append((output[0] if isinstance(output, tuple) else output) - args[0])

    handle = block.register_forward_hook(see)
    with torch.no_grad():
        reference.rows(model, reference.collate(range(4)))
    handle.remove()
    contribution = {
        "mean": lambda _: added[0].mean((0, 1)),
        "mean-per-position": lambda _: added[0].mean(0),
        "counterfactual": lambda number: added[0][number],
    }
    if kind == "resample":
        found = rows_with(model, task, "layers:1", Fill(kind, reference, draws=4))
        contribution[kind] = lambda number: added[0][number]
    else:
        found = rows_with(model, task, "layers:1", Fill(kind, reference))

    def passed_over(number: int, of: Callable[[int], Tensor]) -> float:
        def stands_in(_: nn.Module, args: Any, output: Any) -> Any:
            mixed = args[0] + of(number)
            return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

        handle = block.register_forward_hook(stands_in)
        try:
            with torch.no_grad():
                return float(task.rows(model, task.collate([own])).item())
        finally:
            handle.remove()

    want = np.empty((4, 1))
    for own in range(4):
        numbers = range(4) if kind == "resample" else [own]
        want[own] = np.mean([passed_over(number, contribution[kind]) for number in numbers])
    assert close(found, want)


def test_means_are_those_of_compensation_and_the_cut_has_them_in_its_bias() -> None:
    model, reference = classifier(), ragged_texts()
    plan = hc.find(model).plan("0:1 2:* 1.mlp:0-9")
    found = means(model, plan, reference)
    want = unit_means(model, hc.find(model), plan, reference)
    assert found.keys() == want.keys()
    assert all(close(found[name].float(), want[name].float()) for name in want)
    task, batch = class_task(5), {"input_ids": texts(5)}
    with hc.masked(model, plan, fill=Fill("mean", reference)):
        masked = zoo.output(model, batch)
        values = hc.evaluate(model, task).rows
    assert close(hc.ablate(model, task, {"it": plan}, fill=Fill("mean", reference)).rows[0], values)
    hc.cut(model, plan, fill=found)
    assert close(zoo.output(model, batch), masked)


# -- padding, lengths, order ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mean", "mean-per-position", "resample", "noise", "counterfactual"])
def test_neither_batches_nor_order_nor_other_examples_change_an_example(kind: str) -> None:
    model, task, reference = classifier(), ragged_texts(), replace(ragged_texts(9), name="reference")
    reference = task if kind == "counterfactual" else reference.subset([8, 7, 2, 3, 0])
    fill, unit = Fill(kind, reference, seed=2), "0:1 1.mlp:0-9 layers:2"
    want = rows_with(model, task, unit, fill)
    assert close(rows_with(model, task, unit, fill, batch_size=1), want)
    assert close(rows_with(model, task, unit, fill, batch_size=3, replay=False), want)
    order = [4, 0, 6]
    pairs = replace(fill, originals=task) if kind == "counterfactual" else fill
    assert close(rows_with(model, task.subset(order), unit, pairs), want[order])
    if kind in ("resample", "noise"):
        assert not close(rows_with(model, task, unit, replace(fill, seed=3)), want)


def test_padding_is_in_no_mean_and_targets_have_their_own() -> None:
    model, _ = zoo.build("marian")
    model.config.pad_token_id, task = 1, ragged_pairs()
    encoder, cross = (
        model.model.encoder.layers[0].self_attn.out_proj,
        model.model.decoder.layers[0].encoder_attn.out_proj,
    )
    found = means(model, "encoder.0:0 decoder.0.cross:0", task)
    for name, module in (("encoder.0", encoder), ("decoder.0.cross", cross)):
        alone = torch.cat([seen_by(model, module, task, [n])[0] for n in range(task.size)])  # (all positions, columns)
        assert close(found[name].float(), alone.mean(0))


def test_positions_that_the_other_example_does_not_have_get_the_mean() -> None:
    model, task = classifier(), ragged_texts()
    module, columns = model.bert.encoder.layer[1].attention.output.dense, slice(8, 16)
    longest, short = 6, 1  # nine and four tokens
    reference = task.subset([short, 0])
    donors = [seen_by(model, module, reference, [n])[0] for n in range(2)]
    mean = torch.cat(donors).mean(0)
    each = []
    for donor in donors:
        value = torch.cat([donor, mean.expand(9 - len(donor), -1)])[:, columns]
        each.append(by_hand(model, module, task.subset([longest]), put(columns, value)))
    found = rows_with(model, task.subset([longest]), "1:1", Fill("resample", reference, draws=2))
    assert close(found, np.mean(each, axis=0))
    # of those that are at least as long it takes one of them: here the only one
    donor = seen_by(model, module, task, [5])[0]
    want = by_hand(model, module, task.subset([4]), put(columns, donor[:7, columns]))
    for seed in range(3):
        drawn = Fill("resample", task.subset([0, 5, 1]), seed=seed)
        assert close(rows_with(model, task.subset([4]), "1:1", drawn), want)


def test_an_example_is_never_given_itself() -> None:
    model, task = classifier(), class_task(4)
    whole = hc.evaluate(model, task).rows
    for seed in range(4):
        assert not np.isclose(rows_with(model, task, "0:*", Fill("resample", task, seed=seed)), whole, atol=1e-6).any()
    with says(hc.errors.BadData, about="no other example"):
        rows_with(model, task.subset([1]), "0:*", Fill("resample", task.subset([1])))


# -- positions -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "positions"),
    [
        ("last", [-1]),
        ("first", [0]),
        (1, [1]),
        ("-2", [-2]),
        ("0:2", [0, 1]),
        ("-3:", [-3, -2, -1]),
        (":", slice(None)),
    ],
)
@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_units_are_masked_at_these_positions_only(at: Any, positions: Any, kind: str) -> None:
    model, task = classifier(), ragged_texts()
    module, columns = model.bert.encoder.layer[0].attention.output.dense, slice(16, 24)
    value = torch.zeros(8)
    if kind == "mean":
        value = means(model, "0:2", task)["0"][columns].float()
    want = by_hand(model, module, task, put(columns, value, positions))
    fill = Fill(kind, task if kind == "mean" else None, at=at)
    assert close(rows_with(model, task, "0:2", fill), want)
    tensors = {"0": means(model, "0:2", task)["0"]} if kind == "mean" else "zero"
    with hc.masked(model, "0:2", fill=tensors, at=at):
        assert close(hc.evaluate(model, task).rows, want)  # padded: the batch says which tokens there are
    assert not close(want, hc.evaluate(model, task).rows)


def test_positions_of_each_example_s_own_and_masks() -> None:
    model, task = classifier(), class_task(3)
    module, columns = model.bert.encoder.layer[0].attention.output.dense, slice(16, 24)
    own = [[0, 3], "last", "2:4"]
    where = [[0, 3], [-1], [2, 3]]
    want = by_hand(model, module, task, lambda x, n: put(columns, torch.zeros(8), where[n])(x, n))
    assert close(rows_with(model, task, "0:2", Fill("zero", at=own)), want)
    assert close(rows_with(model, task, "0:2", Fill("zero", at=own), batch_size=1), want)
    mask = torch.zeros(3, 9, dtype=torch.bool)
    for row, places in enumerate(where):
        mask[row, places] = True
    with hc.masked(model, "0:2", at=mask):
        assert close(hc.evaluate(model, task).rows, want)


# -- numbers of one's own, in `masked` -----------------------------------------------------------------------------------


def test_activations_of_another_batch_are_patched_in() -> None:
    model, _ = zoo.build("gpt2")
    clean, corrupted = {"input_ids": texts(3)}, {"input_ids": texts(3, seed=1)}
    before = Fingerprint(model)
    with torch.no_grad():
        whole, other = model(**clean).logits, model(**corrupted).logits
    units = "0:* 0.mlp:* 1:* 1.mlp:* layers:1"
    with hc.masked(model, units, fill=activations(model, units, clean)), torch.no_grad():
        assert close(model(**clean).logits, whole)
    _, path, columns = BY_HAND["gpt2"]
    module = model.get_submodule(path)
    seen = activations(model, "0:3", corrupted)["0"]
    with given(module, lambda x: put(columns, seen[..., columns])(x, 0)), torch.no_grad():
        want = model(**clean).logits
    with hc.masked(model, "0:3", fill={"0": seen}), torch.no_grad():
        assert close(model(**clean).logits, want)
        assert close(model(**clean).logits, want)  # and again
        with says(hc.errors.BadPlan, about="aligned position by position"):
            model(input_ids=texts(3, length=5))
    with hc.masked(model, "layers:*", fill=activations(model, "layers:*", corrupted)), torch.no_grad():
        late = model(**clean).logits  # all layers hand on what they did there, and the words stay
    assert not close(late, whole)
    assert not close(late, other)
    assert before.changed() == []


def test_a_row_of_numbers_for_each_position() -> None:
    model, task = classifier(), ragged_texts()
    module, columns = model.bert.encoder.layer[0].attention.output.dense, slice(16, 24)
    table = torch.randn(9, 32, generator=torch.Generator().manual_seed(0))

    def by_row(x: Tensor, number: int) -> Tensor:
        return put(columns, table[: x.shape[1], columns])(x, number)

    want = by_hand(model, module, task, by_row)
    with hc.masked(model, "0:2", fill={"0": table}):
        assert close(hc.evaluate(model, task).rows, want)
    with hc.masked(model, "0:2", fill={"0": table[:4]}), says(hc.errors.BadPlan, about="has 4 positions"):
        hc.evaluate(model, task)


def test_a_model_that_was_cut_by_padding_is_masked_like_others() -> None:
    """Its writers pick their inputs themselves, among places of units that are gone."""
    model, inputs = zoo.build("codegen")
    with hc.masked(model, "0:0 0:2"):
        want = zoo.output(model, inputs)
    fill = means(model, "0:2", hc.custom_task([inputs], loss=loss_of))["0"]
    with hc.masked(model, "0:0 0:2", fill={"0": torch.where(torch.arange(32) // 8 == 2, fill, 0.0)}):
        filled = zoo.output(model, inputs)
    hc.cut(model, "0:0")
    with hc.masked(model, "0:2"):
        assert close(zoo.output(model, inputs), want)
    with hc.masked(model, "0:2", fill={"0": fill[8:]}):
        assert close(zoo.output(model, inputs), filled)
    reference = hc.custom_task([inputs], loss=loss_of)
    with hc.masked(model, "0:2", fill=Fill("mean", reference)):
        zoo.output(model, inputs)
    assert rows_with(model, reference, "0:2", Fill("noise", reference)).shape == (2, 1)


# -- draws, and what results say -----------------------------------------------------------------------------------------


def _accuracy(count: int = 6) -> Task:
    """The rows that classification has: label, prediction, loss."""
    task = class_task(count)

    def rows(model: nn.Module, batch: dict[str, Any]) -> np.ndarray:
        logits = model(input_ids=batch["input_ids"]).logits
        loss = nn.functional.cross_entropy(logits, batch["labels"], reduction="none")
        return torch.stack([batch["labels"], logits.argmax(1), loss], 1).double().numpy()

    return replace(task, metric=metric("accuracy"), rows=rows)


def test_draws_are_averaged_in_what_the_metric_adds_up() -> None:
    model, task = classifier(), _accuracy()
    one = [hc.ablate(model, task, "attentions", fill=Fill("noise", task, seed=0)) for _ in range(2)]
    assert close(one[0].rows, one[1].rows)
    assert one[0].base.metric.columns == ("label", "prediction", "loss")
    several = hc.ablate(model, task, "attentions", fill=Fill("noise", task, draws=3))
    assert several.base.value == one[0].base.value  # the whole model is not drawn
    correct = several.rows[..., 0]
    assert np.allclose(correct * 3, np.round(correct * 3))  # means of three
    assert close(several.values, correct.mean(1))
    assert len(several.comparisons()) == 3
    with says(hc.errors.BadMeasure, about="McNemar"):
        several.comparisons("mcnemar")
    with says(hc.errors.BadMeasure, about="draws have no mean"):
        pearson = replace(task, metric=metric("pearson", columns=("label", "prediction", "loss")))
        hc.ablate(model, pearson, "attentions", fill=Fill("noise", task, draws=3))


@pytest.mark.parametrize(
    ("kind", "at"),
    [("mean", "last"), ("mean-per-position", None), ("resample", "last"), ("counterfactual", None), ("noise", None)],
)
def test_scores_by_ablation_are_the_damage_of_ablating_with_that_fill(kind: str, at: str | None) -> None:
    model, task = classifier(), class_task(5)
    other = hc.custom_task(
        [{"input_ids": texts(5, seed=9), "labels": torch.zeros(5, dtype=torch.long)}], loss=class_loss
    )
    fill = Fill(kind, other, at=at, draws=2 if kind in ("resample", "noise") else 1)
    scores = hc.score(model, task, "ablation", units="layers", fill=fill)
    found = hc.ablate(model, task, "layers", fill=fill)
    assert [str(unit) for unit in scores.units] == list(found.names)
    assert close(scores.raw, found.damage)
    assert scores.samples is not None
    assert close(scores.samples.mean(0), found.damage)
    assert not close(scores.raw, hc.ablate(model, task, "layers").damage)
    assert f"fill:{fill.signature}|" in scores.signature


def test_only_ablation_puts_something_in_the_place_of_units() -> None:
    with says(hc.errors.BadPlan, about="taylor masks none"):
        hc.score(classifier(), class_task(3), "taylor", fill=Fill("mean", class_task(3)))


def test_results_say_what_stood_in_and_others_are_not_compared() -> None:
    model, task, reference = classifier(), _accuracy(), class_task(5)
    found = hc.ablate(model, task, "layers", fill=Fill("mean", reference))
    assert found.fill == Fill("mean", reference).document
    assert f"fill:mean(own batches#{reference.fingerprint[:8]})|" in found.signature
    assert found.signature in found.scores().signature
    assert "masked units are given their mean over 5 examples of own batches" in str(found)
    zero = hc.ablate(model, task, "layers")
    assert zero.fill is None
    assert "fill" not in zero.scores().signature
    scores = hc.score(model, by="magnitude")
    curves = [hc.curve(model, task, scores, step="50%", fill=fill) for fill in (None, Fill("mean", reference))]
    hc.compare(curves[0][0].result, curves[1][1].result)  # the whole model, and without half
    hc.compare(curves[1][1].result, curves[1][2].result)
    with says(hc.errors.BadMeasure, about="zero in their place before and mean(own"):
        hc.compare(curves[0][1].result, curves[1][1].result)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (FillDocument(kind="zero", at="last"), "zero, at the last position only"),
        (FillDocument(kind="mean", reference="a", n=3), "their mean over 3 examples of a"),
        (
            FillDocument(kind="resample", reference="a", n=3, draws=2, seed=0, at="0:2"),
            "what they are at the same position of another of 3 examples of a, mean of 2 draws, at positions 0:2 only",
        ),
    ],
)
def test_words(document: FillDocument, words: str) -> None:
    assert document.words == words


def test_a_curve_that_is_cut_is_the_curve_that_is_masked() -> None:
    model, task, reference = classifier(), class_task(), ragged_texts()
    scores, fill = hc.score(model, by="magnitude"), Fill("mean", reference)
    masked = hc.curve(model, task, scores, step="30%", fill=fill)
    cut = hc.curve(model, task, scores, step="30%", fill=fill, really_cut=True)
    zero = hc.curve(model, task, scores, step="30%")
    for one, other, none in zip(masked.points[1:], cut.points[1:], zero.points[1:], strict=True):
        assert close(one.result.rows, other.result.rows)
        assert not close(one.result.rows, none.result.rows)
    with says(hc.errors.Refused, about="and a bias does not"):
        hc.curve(model, task, scores, fill=Fill("noise", reference), really_cut=True)
    layers = hc.score(model, by="random", units=["layers"])
    with says(hc.errors.Refused, about="is passed over"):
        hc.curve(model, task, layers, fill=fill, really_cut=True)


def test_sums_are_kept_in_the_run_folder(tmp_path: Any) -> None:
    model, task, reference = classifier(), class_task(), ragged_texts()
    seen = [0]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        seen[0] += 1
        return ragged_texts().loss(model, batch)

    fill = Fill("mean", replace(reference, loss=loss))
    with hc.runs.Run.open(tmp_path / "run", {"command": "ablate"}) as run:
        first = hc.ablate(model, task, run=run, fill=fill)
    passes = seen[0]
    assert passes
    with hc.runs.Run.open(tmp_path / "run", {"command": "ablate"}) as run:
        again = hc.ablate(model, task, run=run, fill=fill)
    assert seen[0] == passes
    assert np.array_equal(first.rows, again.rows)


# -- what is refused -----------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_said() -> None:
    model, task = classifier(), class_task()
    for make, about in (
        (lambda: Fill("median", task), "zero, mean, mean-per-position"),
        (lambda: Fill("mean"), "give reference="),
        (lambda: Fill("mean", task, draws=2), "at least 1 of resample and noise"),
        (lambda: Fill("mean", task, originals=task), "Only counterfactual has originals"),
        (lambda: Fill("zero", at="middle"), 'a slice such as "0:5"'),
        (lambda: Fill("zero", at=1.5), "a list with one of these"),
        (lambda: rows_with(model, task, "0:1", "mean"), "Fill('mean', reference)"),
        (lambda: rows_with(model, task, "0:1", {"0": torch.zeros(32)}), "tensors are for `masked`"),  # type: ignore[arg-type]
        (lambda: rows_with(model, task, "0:1", Fill("zero", at=["last"])), "named for 1 examples"),
        (lambda: rows_with(model, task, "0:1", Fill("zero", at=12)), "Position 12 is not there"),
    ):
        with says(hc.errors.BadPlan, about=about):
            make()  # type: ignore[no-untyped-call]
    for fill, about in (
        ("median", "comes from data"),
        (Fill("noise", task), "depends on the examples"),
        ({"layers": torch.zeros(3)}, "have no fill"),
        ({"0:1": torch.zeros(32)}, "for all columns of 0"),
        ({"0": torch.zeros(2, 3)}, "with 32 columns"),
        ({"0": torch.full((2, 32), torch.nan)}, "finite numbers"),
    ):
        with says(hc.errors.BadPlan, about=about), hc.masked(model, "0:1", fill=fill):
            pass


def test_counterparts_have_to_be_aligned() -> None:
    model, task = classifier(), ragged_texts()
    with says(hc.errors.BadData, about="has 6 examples"):
        rows_with(model, task, "0:1", Fill("counterfactual", task.subset(range(6))))
    with says(hc.errors.BadData, about="aligned token by token"):
        rows_with(model, task, "0:1", Fill("counterfactual", task.subset([1, 0, 2, 3, 4, 5, 6])))
    with says(hc.errors.BadData, about="no counterpart"):
        rows_with(model, task, "0:1", Fill("counterfactual", task.subset([0, 1]), task.subset([0, 1])))


def test_generated_text_has_no_positions_yet() -> None:
    model, _ = zoo.build("gpt2")
    task = replace(hc.custom_task([{"input_ids": texts(3)}], loss=loss_of), generates=True)
    with says(hc.errors.Refused, about="generated text"):
        rows_with(model, task, "0:1", Fill("noise", task))
    assert rows_with(model, task, "0:1", Fill("mean", task)).shape == (3, 1)
