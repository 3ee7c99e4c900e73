"""Compensation: the means of what is gone are put back, in every way of pruning, and what is saved computes just that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.same import close, same_weights
from helpers.small_models import WORDS, class_task, classifier, ragged_texts, ran, ran_json, word_tokenizer
from torch import Tensor, nn

import headcount as hc
from headcount.pruning import pipeline
from headcount.pruning.tuning.compensation import Ways, unit_means, ways_of


def by_hand(model: nn.Module, task: hc.data.Task, name: str) -> Tensor:
    """The mean of each column, from each example alone."""
    seen: list[Tensor] = []
    handle = hc.find(model)[name].writer.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()[0]))
    with torch.no_grad():
        for number in range(task.size):
            task.loss(model, task.collate([number]))
    handle.remove()
    return torch.cat(seen).mean(0)


def test_means_are_those_of_all_positions_without_padding() -> None:
    model, task = classifier(), ragged_texts()
    plan = hc.find(model).plan("0:1 1.mlp:0-9 layers:2 2:0")
    means = unit_means(model, hc.find(model), plan, task)
    assert set(means) == {"0", "1.mlp"}  # the layer goes with all that is in it
    for name, values in means.items():
        assert close(values.float(), by_hand(model, task, name))


@pytest.mark.parametrize("name", ["classifier", "llama"])
def test_a_choice_is_cut_as_it_was_measured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hc.prune` from end to end, on a family with biases and on one without."""
    if name == "classifier":
        model, task = classifier(2), class_task(40)
        report = class_task(12)
    else:
        model = zoo.build("llama")[0]
        ids = torch.randint(3, zoo.VOCAB - 1, (40, 7), generator=torch.Generator().manual_seed(0))

        def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
            return model(**batch).logits.tanh().flatten(1).sum(1)

        task, report = (hc.custom_task([{"input_ids": some}], loss=loss) for some in (ids[:28], ids[28:]))
    how = {"remove": "30%", "units": "heads,neurons", "score": task, "brake": None}
    plain = hc.pruning.choose(model, **how)
    choice = hc.pruning.choose(model, compensate="mean", **how)
    assert choice.plan == plain.plan
    assert choice.compensated == task.size
    for site, values in choice.fill.items():
        again = unit_means(model, hc.find(model), choice.plan, task)[site]
        assert close(values.float(), again.float())  # sums in float64 of numbers that the model computed in float32
    if name == "classifier":
        return
    monkeypatch.setattr(pipeline, "bench", lambda *_, **__: None)  # takes ten seconds, and is not what this is about
    with hc.masked(model, choice.plan, fill=choice.fill):
        want = hc.evaluate(model, report)
    pruned = hc.pruning.save_pruned(model, tmp_path / "smaller", report, choice)
    assert close(pruned.after.rows, want.rows, 1e-4)
    assert not close(pruned.after.rows, hc.evaluate(model, report).rows, 1e-4)
    again = hc.load(tmp_path / "smaller", dtype=torch.float32)
    assert same_weights(again, pruned.model)
    assert (
        "Compensated: what removed units write on average over 28 examples"
        in (tmp_path / "smaller/README.md").read_text()
    )


def test_a_promise_is_tested_with_what_was_put_back() -> None:
    model, task = classifier(2), class_task(60)
    select = class_task(60).subset(range(30, 60))
    how = {
        "max_drop": 50.0,
        "units": "heads",
        "score": task.subset(range(30)),
        "select": select,
        "step": 1,
        "cap": 100.0,
    }
    choice = hc.pruning.choose(model, compensate="mean", **how)
    with hc.masked(model, choice.plan, fill=choice.fill):
        want = hc.evaluate(model, select).value
    kept = next(s for s in choice.guarantee.steps if s.removed == len(choice.plan))
    assert kept.damage == pytest.approx(want - hc.evaluate(model, select).value, abs=1e-4)


def test_ways() -> None:
    assert ways_of(None, False) == Ways()
    assert ways_of(None, True) == Ways(tune=True)
    assert ways_of("mean", False) == Ways(mean=True)
    assert ways_of("lstsq", False) == Ways(lstsq=True)
    assert ways_of("mean,lstsq", False) == ways_of("lstsq, mean", False) == Ways(mean=True, lstsq=True)
    assert [ways_of(said, False).compensate for said in ("lstsq,mean", "mean", None)] == ["mean,lstsq", "mean", None]
    for wrong in ("median", "", "mean,median"):
        with says(hc.errors.BadPlan, about="mean, lstsq, or both"):
            ways_of(wrong, False)
    for way in ("mean", "lstsq", "mean,lstsq"):
        with says(hc.errors.BadPlan, about="take compensate or tune"):
            ways_of(way, True)
    with says(hc.errors.BadPlan, about="Compensation looks at examples"):
        hc.pruning.choose(classifier(), remove=1, by="magnitude", compensate="mean")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "bench", lambda *_, **__: None)
    tokenizer = word_tokenizer(WORDS)
    classifier(2, vocab_size=len(tokenizer), num_labels=2).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [f"{WORDS[n % 16]} {WORDS[n * 7 % 15]} {WORDS[n * 3 % 13]}\t{n % 2}" for n in range(60)]
    (tmp_path / "data.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    others = [f"not {row}" for row in rows]
    (tmp_path / "other.tsv").write_text("\n".join(["sentence\tlabel", *others]) + "\n")
    start = ["prune", tmp_path / "model", "--data", tmp_path / "data.tsv", "--brake", "off"]
    how = ["--by", "flap", "--remove", "2", "--compensate", "mean", "--no-report", "--run", tmp_path / "run"]
    made = ran_json(*start, *how, "-o", tmp_path / "smaller")
    assert made["compensated"] > 10
    whole, smaller = (
        hc.load(tmp_path / "model", dtype=torch.float32),
        hc.load(tmp_path / "smaller", dtype=torch.float32),
    )
    sites = set(hc.removed(smaller).by_site())
    for name in ("0", "1"):
        biases = [hc.find(model)[name].writer.bias for model in (whole, smaller)]
        assert torch.equal(*biases) == (name not in sites)
    plan = tmp_path / "run" / "plan.json"
    start[3] = tmp_path / "other.tsv"
    said = ran(*start, "--plan", plan, "--dry-run", "--run", tmp_path / "again")
    assert "was compensated, which is not in the plan" in said.output + said.stderr
    for wrong in (["--compensate", "mean"], ["--compensate", "mean", "--tradeoff", "x"]):
        assert ran(*start, *wrong, "-o", tmp_path / "x").exit_code == 2


def test_means_are_kept_in_the_run(tmp_path: Path) -> None:
    from headcount.runs import Run

    model, task = classifier(2), class_task(20)
    with Run.open(tmp_path / "run", {"command": "x"}) as run:
        plan = hc.Plan.of("0:1")
        first = unit_means(model, hc.find(model), plan, task, run)
        for parameter in model.parameters():
            parameter.data.zero_()
        again = unit_means(model, hc.find(model), plan, task, run)
        assert np.array_equal(first["0"].numpy(), again["0"].numpy())
