"""Direct logit attribution against the model's own logits, and against plain loops over heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.contrasts import family
from helpers.same import close
from helpers.small_models import word_tokenizer
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

import headcount as hc
from headcount.circuits import direct_logit_attribution, prompt_pairs, read_prompts, token_circuits
from headcount.data.losses import LogitsAndTargets
from headcount.data.tasks import Task
from headcount.runs import Run

PAIRS = [([5, 9, 8, 31], 7, 6), ([4, 4, 3], 2, 1), ([11, 12, 13, 14], 15, 16)]
TEXTS = [name for name, family in zoo.ZOO.items() if family.generates and family.inputs is zoo.text]
# a projection or layers before the unembedding; norms behind the addition; routed heads
NOT_SPLIT = {"opt", "modernbert-decoder", "bert-generation", "openai-gpt", "jetmoe"}
RESTS = {"mixtral", "olmoe", "qwen3_moe", "dbrx", "gpt_oss", "deepseek_v2", "deepseek_v3", "lfm2"}


def logits(model: nn.Module, prompt: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0, -1].double()


@pytest.mark.parametrize("name", sorted(set(TEXTS) - NOT_SPLIT))
def test_components_add_up_to_the_difference_of_the_logits(name: str) -> None:
    model, _ = zoo.build(name)
    cap = getattr(model.config, "final_logit_softcapping", None)
    found = direct_logit_attribution(model, prompt_pairs(PAIRS))
    for number, (prompt, right, wrong) in enumerate(PAIRS):
        said = logits(model, prompt)
        said = cap * torch.atanh(said / cap) if cap else said
        assert close(torch.tensor(found.values[number].sum()), said[right] - said[wrong], 1e-4)
    assert any(one.endswith("rest") for one in found.components) == (name in RESTS)
    assert any("frozen" in note for note in found.notes)


@pytest.mark.parametrize("name", [*sorted(NOT_SPLIT), "bert", "roberta-prelayernorm"])
def test_what_does_not_add_up_is_refused(name: str) -> None:
    model, _ = zoo.build(name)
    with says(hc.errors.Refused):
        direct_logit_attribution(model, prompt_pairs(PAIRS[:1]))


@pytest.mark.parametrize(("name", "unembedding"), [("llama", "lm_head"), ("gpt2", "lm_head"), ("gemma2", "lm_head")])
def test_heads_and_neurons_are_what_plain_loops_say(name: str, unembedding: str) -> None:
    model, _ = zoo.build(name, torch.float64)
    heads = direct_logit_attribution(model, prompt_pairs(PAIRS[:1]))
    neurons = direct_logit_attribution(model, prompt_pairs(PAIRS[:1]), units="neurons")
    prompt, right, wrong = PAIRS[0]
    cache = hc.cached(
        model, torch.tensor([prompt]), ["head_outputs", "residual_after", "attention_outputs", "mlp_outputs", "neurons"]
    )
    end = cache["residual_after"]["layers:1"][0, -1]
    norm, weight = (model.transformer.ln_f, True) if name == "gpt2" else (model.model.norm, False)
    centred = end - end.mean() if weight else end
    scale = 1 / (centred.square().mean() + (norm.eps if hasattr(norm, "eps") else norm.variance_epsilon)).sqrt()
    gain = norm.weight.detach() + (1 if name == "gemma2" else 0)
    direction = (model.lm_head.weight[right] - model.lm_head.weight[wrong]).detach() * gain * scale

    def adds(written: torch.Tensor) -> float:
        return float(direction @ (written - written.mean() if weight else written))

    for layer in range(2):
        for head in range(len(hc.find(model)[str(layer)])):
            written = cache["head_outputs"][f"{layer}:{head}"][0, -1]
            if name == "gemma2":  # the norm behind the attention, its scale that of the whole output
                behind, whole = (
                    model.model.layers[layer].post_attention_layernorm,
                    cache["attention_outputs"][str(layer)][0, -1],
                )
                written = written * (1 + behind.weight.detach()) / (whole.square().mean() + behind.eps).sqrt()
            assert heads[f"{layer}:{head}"][0] == pytest.approx(adds(written), abs=1e-4)
        if name != "gemma2":
            own = hc.find(model)[f"{layer}.mlp"].writer.weight.detach()
            column = own[5] if name == "gpt2" else own[:, 5]
            want = adds(cache["neurons"][f"{layer}.mlp:5"][0, -1] * column)
            assert neurons[f"{layer}.mlp:5"][0] == pytest.approx(want, abs=1e-4)
    total = sum(heads[f"0:{head}"][0] for head in range(len(hc.find(model)["0"])))
    assert neurons["0"][0] == pytest.approx(total, abs=1e-4)


def test_a_text_is_attributed_at_each_of_its_tokens_and_an_encoder_decoder_by_its_targets() -> None:
    model, _ = zoo.build("llama")
    ids = torch.tensor([[5, 9, 8, 31], [7, 3, 3, 20]])
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    from dataclasses import replace

    from headcount.data.losses import next_tokens, summed_losses, target_tokens

    task = replace(hc.custom_task([batch], loss=lambda m, b: summed_losses(*next_tokens(m, b))), goal=next_tokens)
    found = direct_logit_attribution(model, task)
    with torch.no_grad():
        said = model(**batch).logits.double()
    right = said[:, :-1].gather(2, ids[:, 1:, None])[..., 0] - said[:, :-1].mean(-1)
    assert close(torch.tensor(found.totals), right.mean(1), 1e-4)
    plain = direct_logit_attribution(model, task, against="nothing")
    assert close(torch.tensor(plain.totals), said[:, :-1].gather(2, ids[:, 1:, None])[..., 0].mean(1), 1e-4)
    t5, inputs = zoo.build("t5")
    labels = inputs["decoder_input_ids"]
    batch = {"input_ids": inputs["input_ids"], "labels": labels}
    task = replace(hc.custom_task([batch], loss=lambda m, b: summed_losses(*target_tokens(m, b))), goal=target_tokens)
    found = direct_logit_attribution(t5, task)
    with torch.no_grad():
        said = t5(**batch).logits.double()
    assert close(torch.tensor(found.totals), (said.gather(2, labels[..., None])[..., 0] - said.mean(-1)).mean(1), 1e-4)
    assert not found["encoder.0:0"].any()
    assert found["decoder.1.cross:2"].any()


def test_a_cut_model_has_the_values_of_the_masked_one() -> None:
    model, _ = zoo.build("llama")
    task = prompt_pairs(PAIRS)
    with hc.masked(model, "0:3 1:1"):
        want = direct_logit_attribution(model, task)
    hc.cut(model, "0:3 1:1")
    got = direct_logit_attribution(model, task)
    assert set(got.components) == set(want.components) - {"0:3", "1:1"}
    assert all(np.allclose(got[name], want[name], atol=1e-4) for name in got.components)
    assert not want["1:1"].any()


def test_intervals_and_tests_are_those_of_plain_statistics() -> None:
    from scipy import stats

    model, _ = zoo.build("gpt2")
    pairs = [([3 + n, 9, 8 + n % 5], 7, 6) for n in range(12)]
    found = direct_logit_attribution(model, prompt_pairs(pairs))
    compared = found.comparisons()
    assert set(compared) == set(found.components)
    values = found["1:2"]
    assert compared["1:2"].difference == pytest.approx(values.mean())
    assert compared["1:2"].p == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-6)
    ps = {name: stats.ttest_1samp(found[name], 0).pvalue for name in found.units}
    smallest = min(ps, key=lambda name: ps[name])
    assert compared[smallest].p_holm == pytest.approx(min(1, ps[smallest] * len(ps)), rel=1e-6)
    document = found.document()
    again = type(document).from_json(document.to_json())
    assert again == document
    assert "1:2" in repr(found) or "1" in repr(found)
    with says(hc.errors.BadPlan, about="no component"):
        found["9:9"]


def test_prompts_are_read_from_a_table(tmp_path) -> None:
    tokenizer = word_tokenizer(["the", "film", "is", "good", "bad"])
    tokenizer.save_pretrained(tmp_path / "words")
    (tmp_path / "p.tsv").write_text("prompt\tright\twrong\nthe film is\tgood\tbad\nis the film\tbad\tgood\n")
    task = read_prompts(str(tmp_path / "p.tsv"), str(tmp_path / "words"), right="right", wrong="wrong")
    batch = task.collate([0, 1])
    words = tokenizer.convert_ids_to_tokens
    assert words(batch["labels"][:, -1].tolist()) == ["good", "bad"]
    assert words(batch["wrong"][:, -1].tolist()) == ["bad", "good"]
    assert words(batch["input_ids"][0].tolist())[-3:] == ["the", "film", "is"]
    (tmp_path / "same.tsv").write_text("prompt\tright\twrong\nthe film is\tgood\tgood\n")
    with says(hc.errors.BadData, about="same token"):
        read_prompts(str(tmp_path / "same.tsv"), str(tmp_path / "words"), right="right", wrong="wrong")
    with says(hc.errors.BadPlan, about="triples"):
        prompt_pairs([([1, 2], 3, None), ([1, 2], 3, 4)])


def test_several_calls_in_one_run_folder_do_not_read_each_other_s_pieces(tmp_path: Path) -> None:
    model, _ = zoo.build("llama")
    tasks = prompt_pairs(PAIRS), prompt_pairs(PAIRS[::-1])
    with Run.open(tmp_path / "run", {"command": "attribute"}) as run:
        first, second = (direct_logit_attribution(model, task, run=run) for task in tasks)
        neurons = direct_logit_attribution(model, tasks[0], "neurons", run=run)
        one, other = (
            token_circuits(model, head, top=2, permutations=1, run=run).heads[0].unit for head in ("0:1", "0:2")
        )
    assert close(second.values[::-1].copy(), first.values)
    assert not close(second.values, first.values)
    assert close(neurons.totals, first.totals)
    assert (one, other) == ("0:1", "0:2")


def test_contrast_prompts_are_attributed_right_less_wrong() -> None:
    model, tokenizer, rows = family("gpt2")
    single = [row for row in rows if isinstance(row["answer"], str) and isinstance(row["wrong"], str)]
    task = hc.task("contrast", single, tokenizer=tokenizer, group="answer")
    found = direct_logit_attribution(model, task)
    assert found.difference == "right - wrong"
    measured = hc.evaluate(model, task).rows[:, 0]
    assert close(found.totals, measured, 1e-4)
    assert found.clusters is not None
    with says(hc.errors.Refused, about="2 right and 1 wrong answers"):
        direct_logit_attribution(model, hc.task("contrast", rows, tokenizer=tokenizer))
    masked, tokenizer, rows = family("bert")
    with says(hc.errors.Refused, about="stands at a mask"):
        direct_logit_attribution(masked, hc.task("contrast", rows, tokenizer=tokenizer))


def test_an_encoder_decoder_goes_on_with_no_prompt_and_an_answer_is_one_token() -> None:
    model, _ = zoo.build("t5")
    with says(hc.errors.Refused, about="does not go on with a prompt"):
        direct_logit_attribution(model, prompt_pairs(PAIRS))
    with says(hc.errors.BadPlan, about="one token, a number"):
        prompt_pairs([([5, 9], [7, 8], 6)])  # type: ignore[list-item]


def classifier(name: str) -> tuple[nn.Module, Task]:
    """A classifier, and texts or pictures of three classes for it."""
    sizes = {"num_labels": 3, "pad_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "vit":
            model, inputs = zoo.build("vit")
        elif name == "gpt2":
            config = GPT2Config(
                vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0
            )
            config.num_labels, config.pad_token_id = 3, 0
            model = GPT2ForSequenceClassification(config)
        elif name == "llama":
            shape = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
            model = LlamaForSequenceClassification(LlamaConfig(**shape, **sizes, num_attention_heads=4))
        else:
            shape = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
            model = BertForSequenceClassification(BertConfig(**shape, **sizes, num_attention_heads=4))
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(std=0.3)
        texts = torch.randint(1, 40, (4, 6))
    texts[1, 4:] = 0  # padding
    batch = dict(inputs) if name == "vit" else {"input_ids": texts, "attention_mask": (texts > 0).long()}
    count = len(next(iter(batch.values())))
    batch["labels"] = torch.arange(count) % 2

    def goal(model: nn.Module, batch: Any) -> LogitsAndTargets:
        asked = {key: value for key, value in batch.items() if key != "labels"}
        return LogitsAndTargets(model(**asked).logits, batch["labels"])

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(*goal(model, batch), reduction="none")

    kind = "image-classification" if name == "vit" else "classification"
    return model.eval(), replace(hc.custom_task([batch], loss=loss), kind=kind, goal=goal)


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit"])
def test_what_units_add_to_the_logit_of_a_class_comes_to_that_logit(name: str) -> None:
    model, task = classifier(name)
    assert task.goal is not None
    found = direct_logit_attribution(model, task, against="nothing")
    with torch.no_grad():
        logits, labels = task.goal(model, task.collate(range(task.size)))
    assert close(found.totals, logits[torch.arange(len(labels)), labels].numpy(), 1e-4)
    assert np.abs(found.values).max() > 1e-2
    less_mean = direct_logit_attribution(model, task)
    assert less_mean.difference == "right - mean"
    assert close(less_mean.totals, found.totals - logits.mean(1).numpy(), 1e-4)


def test_a_head_of_a_classifier_adds_what_a_plain_loop_says() -> None:
    model, task = classifier("gpt2")
    found = direct_logit_attribution(model, task, against="nothing")
    batch = task.collate([1])
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    cache = hc.cached(model, inputs, ["head_outputs", "residual_after"])
    last = 3  # before the padding
    end, norm = cache["residual_after"]["layers:1"][0, last], model.transformer.ln_f
    scale = 1 / ((end - end.mean()).square().mean() + norm.eps).sqrt()
    direction = model.score.weight[int(batch["labels"][0])].detach() * norm.weight.detach() * scale
    written = cache["head_outputs"]["1:2"][0, last]
    assert found["1:2"][1] == pytest.approx(float(direction @ (written - written.mean())), abs=1e-4)


def test_a_pooler_that_is_not_linear_is_refused_by_name() -> None:
    with says(hc.errors.Refused, about="BertForSequenceClassification does not read the end of the residual stream"):
        direct_logit_attribution(*classifier("bert"))
