"""Models to train and the command that trains them: sizes and seeds, tokenizers, heads, what is never trained on."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import small_models, zoo
from helpers.same import alike, close, close_weights, felt, same_weights
from helpers.small_models import WEATHER, ran, ran_json, weather
from torch import nn
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel, MarianMTModel

import headcount as hc
from headcount.cli.training import options as training_options
from headcount.cli.training import train as train_command
from headcount.data.splits import digests
from headcount.errors import BadCheckpoint, BadData, HeadcountError
from headcount.training import loop, new_models

GERMAN = ["der Hund", "die Katze", "das Kind", "ein Mann", "eine Frau", "das Pferd"]
ENGLISH = ["the dog", "the cat", "the child", "a man", "a woman", "the horse"]
ACTS = [("schläft", "sleeps"), ("läuft", "runs"), ("isst", "eats"), ("sieht über den Zaun", "looks over the fence")]
PAIRS = [
    (f"{who} {act}", f"{whom} {does}") for who, whom in zip(GERMAN, ENGLISH, strict=True) for act, does in ACTS
] + [("ja", "yes"), ("nein", "no"), ("danke", "thanks"), ("bitte", "please"), ("hallo", "hello"), ("gut", "good")]
TINY = {"layers": 1, "heads": 2, "width": 32, "ffn": 32, "vocabulary": 320, "dropout": 0.0}


@pytest.fixture
def translator() -> tuple[Any, Any]:
    return new_models.new_translator([text for pair in PAIRS for text in pair], **TINY)


# --- translators ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "back"),
    [
        ("der Hund läuft", "der Hund läuft"),
        ("  zwei\tWorte \n", "zwei Worte"),
        ("u\u0308ber", "über"),
        ("日本語 und 🙂!", "日本語 und 🙂!"),  # no such character was ever seen
        ("it's 3.5 , isn't it ?", "it's 3.5 , isn't it ?"),
        ("he wrote </s> and <pad>", "he wrote </s> and <pad>"),
    ],
)
def test_what_is_encoded_comes_back_normalised_and_ends_once(translator: tuple[Any, Any], text: str, back: str) -> None:
    model, tokenizer = translator
    for found in (tokenizer(text)["input_ids"], tokenizer(text_target=text)["input_ids"]):
        assert tokenizer.decode(found, skip_special_tokens=True) == back
        assert [place for place, token in enumerate(found) if token in tokenizer.all_special_ids] == [len(found) - 1]
        assert found[-1] == model.config.eos_token_id == tokenizer.eos_token_id


def test_special_tokens_are_the_same_everywhere(translator: tuple[Any, Any]) -> None:
    model, tokenizer = translator
    for place in (model.config, model.generation_config):
        assert (place.pad_token_id, place.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
        assert place.decoder_start_token_id == tokenizer.pad_token_id
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer) == model.config.vocab_size


def test_sizes_are_those_asked_for() -> None:
    texts = [text for pair in PAIRS for text in pair]
    sizes = {"layers": 3, "decoder_layers": 1, "heads": 4, "width": 24, "ffn": 40, "vocabulary": 280, "longest": 50}
    model, tokenizer = new_models.new_translator(texts, **sizes, dropout=0.25)
    found = hc.find(model)
    assert [site.name for site in found if site.kind == "head"] == [
        *("encoder.0", "encoder.1", "encoder.2"),
        *("decoder.0.self", "decoder.0.cross"),
    ]
    assert all((len(site), site.width) == (4, 6) for site in found if site.kind == "head")
    assert all(len(site) == 40 for site in found if site.kind == "neuron")
    assert len(tokenizer) == 280
    assert (
        tokenizer.model_max_length == model.config.max_position_embeddings == model.generation_config.max_length == 50
    )
    assert model.config.dropout == 0.25


def test_the_seed_decides_and_the_random_state_stays() -> None:
    texts = [text for pair in PAIRS for text in pair]
    before = torch.get_rng_state()
    models = [new_models.new_translator(texts, **TINY, seed=seed)[0] for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert same_weights(models[0], models[1])
    assert not same_weights(models[0], models[2])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"width": 30, "heads": 4}, "width is 30 and cannot be shared by 4 heads; take a width of 32"),
        ({"layers": 0}, "layers is 0"),
        ({"decoder_layers": -1}, "decoder_layers is -1"),
        ({"vocabulary": 100}, "vocabulary is 100"),
        ({"dropout": 1.0}, "dropout is 1"),
        ({"longest": 1}, "longest is 1"),
    ],
)
def test_sizes_that_make_no_model_are_refused_in_a_sentence(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(BadData, match=says) as caught:
        new_models.new_translator(["ein Text"], **{**TINY, **wrong})
    assert "\n" not in str(caught.value)


def test_no_text_no_tokenizer() -> None:
    with pytest.raises(BadData, match="no text to learn a tokenizer from"):
        new_models.new_translator(["", "  "], **TINY)


def test_a_new_translator_is_saved_and_loaded_with_its_tokenizer(translator: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = translator
    hc.save(model, tmp_path / "new", tokenizer=tokenizer)
    read, again = hc.load(tmp_path / "new"), AutoTokenizer.from_pretrained(tmp_path / "new")
    tasks = [
        hc.task("translation", {"source": ["der Hund </s>"], "target": ["the dog"]}, tokenizer=one, metric="loss")
        for one in (tokenizer, again)
    ]
    assert tasks[0].fingerprint == tasks[1].fingerprint
    batch = tasks[0].collate([0])
    with torch.no_grad():
        assert close(tasks[0].loss(model, batch), tasks[1].loss(read, batch))
    assert same_weights(read, model)
    assert read.generation_config.to_dict() == model.generation_config.to_dict()


# --- heads ----------------------------------------------------------------------------------------------------------


def encoder(folder: Path, words: list[str], **config: Any) -> Path:
    """A folder with a BertModel and a tokenizer of these words."""
    tokenizer = small_models.word_tokenizer(words)
    settings = {**zoo.ENCODER, "num_hidden_layers": 2, "vocab_size": len(tokenizer), **config}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(77)  # no seed that a test gives to what it builds
        hc.save(BertModel(BertConfig(**settings)), folder, tokenizer=tokenizer)
    return folder


def test_an_encoder_gets_a_head_for_the_labels(tmp_path: Path) -> None:
    folder = encoder(tmp_path / "base", ["a", "b"])
    model = new_models.with_head(folder, "classification", ["bad", "fair", "good"])
    assert model.config.id2label == {0: "bad", 1: "fair", 2: "good"}
    assert model.config.label2id == {"bad": 0, "fair": 1, "good": 2}
    assert same_weights(model.bert, hc.load(folder))
    batch = {"input_ids": torch.tensor([[1, 2, 3]])}
    assert model(**batch).logits.shape == (1, 3)
    again, other = (new_models.with_head(folder, "classification", ["0", "1"], seed=seed) for seed in (0, 1))
    assert not torch.equal(again.classifier.weight, other.classifier.weight)
    number = new_models.with_head(folder, "regression", [])
    assert (number.config.num_labels, number.config.problem_type) == (1, "regression")


def test_a_cut_encoder_stays_cut_under_its_head(tmp_path: Path) -> None:
    base = hc.load(encoder(tmp_path / "base", ["a", "b"]))
    hc.cut(base, "0:1 1.mlp:0-3 layers:0")
    hc.save(base, tmp_path / "cut", source=tmp_path / "base")
    model = new_models.with_head(tmp_path / "cut", "classification", ["no", "yes"])
    assert hc.removed(model) == hc.removed(base)
    assert same_weights(model.bert, base)
    hc.save(model, tmp_path / "headed")
    assert same_weights(hc.load(tmp_path / "headed"), model)


def test_a_classifier_is_loaded_as_it_is_or_refused(tmp_path: Path) -> None:
    folder = encoder(tmp_path / "base", ["a", "b"])
    model = new_models.with_head(folder, "classification", ["neg", "pos"])
    hc.cut(model, "1:0")
    hc.save(model, tmp_path / "judge", source=folder)
    for labels in (["neg", "pos"], ["POS", "neg"], ["0", "1"]):  # any order: names are matched; numbers are outputs
        assert same_weights(new_models.with_head(tmp_path / "judge", "classification", labels), model)
    with pytest.raises(BadData, match=r"labels 'neg', 'pos' and the data has 'cold', 'warm'.*--new-head"):
        new_models.with_head(tmp_path / "judge", "classification", ["cold", "warm"])
    with pytest.raises(BadData, match="regression needs one"):
        new_models.with_head(tmp_path / "judge", "regression", [])
    assert same_weights(
        new_models.with_head(tmp_path / "judge", "classification", ["cold", "warm"], in_order=True), model
    )
    fresh = new_models.with_head(tmp_path / "judge", "classification", ["cold", "warm"], new_head=True, seed=1)
    assert fresh.config.id2label == {0: "cold", 1: "warm"}
    assert hc.removed(fresh) == hc.removed(model)
    assert same_weights(fresh.bert, model.bert)
    assert not torch.equal(fresh.classifier.weight, model.classifier.weight)


def test_what_cannot_have_a_head_is_refused(translator: tuple[Any, Any], tmp_path: Path) -> None:
    hc.save(translator[0], tmp_path / "marian", tokenizer=translator[1])
    with pytest.raises(BadData, match="cannot get a head for classification"):
        new_models.with_head(tmp_path / "marian", "classification", ["a", "b"])
    with pytest.raises(BadData, match="two or more"):
        new_models.with_head(encoder(tmp_path / "base", ["a"]), "classification", ["only"])


def test_labels_of_a_new_head_are_in_their_natural_order() -> None:
    assert new_models.ordered(["10", "2", "1", "2"]) == ("1", "2", "10")
    assert new_models.ordered(["good", "10", "bad"]) == ("10", "bad", "good")


# --- born again -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "marian", "llama", "t5"])
def test_a_reborn_model_has_the_same_units_and_other_weights(name: str) -> None:
    model, inputs = zoo.build(name)
    anatomy = hc.find(model)
    heads = next(site for site in anatomy if site.kind == "head")
    plan = [hc.Unit(heads.name, heads.ids[0]), hc.Unit(anatomy.stacks[0].name, 1)]
    hc.cut(model, plan)
    state = torch.get_rng_state()
    one, two, other = (new_models.reinitialized(model, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert {key: value.shape for key, value in one.state_dict().items()} == shapes
    assert hc.removed(one) == hc.removed(model)
    assert len(hc.removed(one)) == 2
    assert same_weights(one, two)
    drawn = [key for key, value in one.named_parameters() if value.dim() > 1 and value.requires_grad]
    for model_like in (model, other):
        values = model_like.state_dict()
        assert all(not torch.equal(one.state_dict()[key], values[key]) for key in drawn)
    with torch.no_grad():
        assert zoo.judged(one.eval()(**inputs)).shape == zoo.judged(model(**inputs)).shape


def test_a_plain_module_cannot_be_reborn() -> None:
    with pytest.raises(BadCheckpoint, match="no config"):
        new_models.reinitialized(nn.Linear(2, 2))


# --- the command ----------------------------------------------------------------------------------------------------


def table(path: Path, columns: tuple[str, str], rows: list[tuple[Any, Any]]) -> Path:
    path.write_text("\n".join("\t".join(map(str, row)) for row in [columns, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return encoder(tmp_path / "base", WEATHER)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return table(tmp_path / "pairs.tsv", ("source", "target"), PAIRS)


QUICK = ("--lr", 3e-3, "--batch-size", 16, "--quiet")
SIZES = [word for name, size in TINY.items() for word in (f"--{name}", size)]


def test_an_encoder_learns_a_toy_task(base: Path, tmp_path: Path) -> None:
    data = table(tmp_path / "train.tsv", ("sentence", "label"), weather(240, 0))
    dev = table(tmp_path / "dev.tsv", ("sentence", "label"), weather(60, 1))
    told = ran_json(
        *("train", base, "--task", "classification", "--data", data, "--dev-data", dev, "-o", tmp_path / "out"),
        *("--epochs", 4, "--checkpoints", "--run", tmp_path / "run", *QUICK),
    )
    assert told["after"]["value"] > 0.9
    assert (told["after"]["n"], told["before"], told["comparison"]) == (60, None, None)
    model = hc.load(tmp_path / "out")
    assert model.config.id2label == {0: "cold", 1: "warm"}
    kept = json.loads((tmp_path / "run" / "training.json").read_text())
    assert {*kept} == {"history", "recipe", "before", "after", "comparison", "sets"}
    assert kept["recipe"]["lr"] == 3e-3
    epochs = [row["dev"] for row in kept["history"] if row["dev"] is not None]
    assert len(epochs) == 4
    found = ran_json("evaluate", tmp_path / "out", "--data", dev, "-o", tmp_path / "again")
    assert found["value"] == told["after"]["value"] == epochs[-1]
    # the checkpoints are models of their own, the last one that which came out
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["epoch-01", "epoch-02", "epoch-03", "epoch-04"]
    assert same_weights(hc.load(tmp_path / "run" / "checkpoints" / "epoch-04"), model)
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "checkpoints" / "epoch-01")("warm1")["input_ids"]


def test_a_new_translator_learns_toy_pairs(pairs: Path, tmp_path: Path) -> None:
    dev = table(tmp_path / "dev.tsv", ("source", "target"), [("gut , danke", "good , thanks"), PAIRS[-1]])
    told = ran_json(
        *("train", "new-marian", "--data", pairs, "--dev-data", dev, "-o", tmp_path / "out", "--run", tmp_path / "run"),
        *("--epochs", 60, "--metric", "loss", "--lr", 1e-2, "--batch-size", 10, *SIZES),
    )
    first, last = told["history"][0]["loss"], told["history"][-1]["loss"]
    assert last < first / 10
    assert told["before"] is None
    assert "1 example of" in told["sets"]
    assert "to train on was left out, being among those to measure on" in told["sets"]
    model, tokenizer = hc.load(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    made = model.generate(**tokenizer([PAIRS[0][0], "nein"], return_tensors="pt", padding=True))
    assert tokenizer.batch_decode(made, skip_special_tokens=True) == [PAIRS[0][1], "no"]
    found = ran_json("evaluate", tmp_path / "out", "--data", dev, "-o", tmp_path / "again", "--metric", "loss")
    assert found["value"] == pytest.approx(told["after"]["value"], rel=1e-5)


class Watched:
    """The texts that a class of models saw while it was trained, and those that it was measured on."""

    def __init__(self, kind: Any, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trained: set[str] = set()
        self.measured: set[str] = set()
        forward = kind.forward

        @wraps(forward)
        def watched(model: Any, input_ids: Any = None, **rest: Any) -> Any:
            seen = self.trained if model.training else self.measured
            seen |= {read(row) for row in input_ids} if input_ids is not None else set()
            return forward(model, input_ids=input_ids, **rest)

        monkeypatch.setattr(kind, "forward", watched)


def test_the_tenth_that_is_set_aside_is_never_trained_on(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = weather(300, 2)
    data = table(tmp_path / "all.tsv", ("sentence", "label"), rows + rows[:40])  # some are there twice
    tokenizer = AutoTokenizer.from_pretrained(base)
    seen = Watched(
        BertForSequenceClassification, lambda row: tokenizer.decode(row, skip_special_tokens=True), monkeypatch
    )
    told = ran_json(
        *("train", base, "--task", "classification", "--data", data, "-o", tmp_path / "out"),
        *("--epochs", 1, "--run", tmp_path / "run", *QUICK),
    )
    assert not seen.trained & seen.measured
    assert seen.trained | seen.measured == {text for text, _ in rows}
    assert 15 <= len(seen.measured) <= 50  # a tenth, by chance
    assert told["after"]["n"] >= len(seen.measured)
    assert f"measured on {told['after']['n']} others of it" in told["sets"]


def test_no_tokenizer_is_learned_from_what_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"satz {n} {n % 7}", f"sentence {n} {n % 7}") for n in range(80)]
    data, learned, made = table(tmp_path / "all.tsv", ("source", "target"), rows), set[str](), new_models.new_translator

    def watched(texts: Any, **sizes: Any) -> Any:
        listed = list(texts)
        learned.update(listed)
        model, tokenizer = made(listed, **sizes)
        read = lambda row: tokenizer.decode(row, skip_special_tokens=True)  # noqa: E731
        watched.seen = Watched(MarianMTModel, read, monkeypatch)  # type: ignore[attr-defined]
        return model, tokenizer

    monkeypatch.setattr(new_models, "new_translator", watched)
    ran_json(
        *("train", "new-marian", "--data", data, "-o", tmp_path / "out", "--metric", "loss"),
        *("--epochs", 1, "--run", tmp_path / "run", *QUICK, *SIZES),
    )
    seen = watched.seen  # type: ignore[attr-defined]
    assert seen.trained == {text for text in learned if text.startswith("satz")}
    assert seen.measured == {text for text, _ in rows} - seen.trained
    assert learned == {text for row in rows if row[0] in seen.trained for text in row}


def test_at_most_so_many_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    task = hc.custom_task([{"x": torch.arange(1000)}], loss=lambda model, batch: batch["x"])
    whole = training_options.held_out(task, "measure", 0, {}).tasks
    assert 60 <= whole["measure"].size <= 140
    assert whole["measure"].size + whole["train"].size == 1000
    assert digests(training_options.held_out(task, "measure", 1, {}).tasks["measure"]) != digests(whole["measure"])
    monkeypatch.setattr(training_options, "MOST", 20)
    few = training_options.held_out(task, "measure", 0, {}).tasks
    assert (few["measure"].size, few["train"].size) == (20, 980)
    assert digests(few["measure"]) < digests(whole["measure"])


def cut_classifier(base: Path, folder: Path) -> Any:
    model = new_models.with_head(base, "classification", ["cold", "warm"])
    hc.cut(model, "0:1,2 1.mlp:0-9")
    hc.save(model, folder, source=base)
    return model


def test_a_cut_model_recovers_and_stays_cut(base: Path, tmp_path: Path) -> None:
    model = cut_classifier(base, tmp_path / "cut")
    data = table(tmp_path / "train.tsv", ("sentence", "label"), weather(200, 3))
    done = ran(
        *("train", tmp_path / "cut", "--data", data, "-o", tmp_path / "out", "--run", tmp_path / "run", *QUICK),
        *("--epochs", 2, "--teacher", tmp_path / "cut", "--freeze", "embeddings"),
    )
    assert done.exit_code == 0, done.output
    found = hc.load(tmp_path / "out")
    assert hc.removed(found) == hc.removed(model)
    assert same_weights(found.bert.embeddings, model.bert.embeddings)
    assert not same_weights(found.bert.encoder, model.bert.encoder)
    told = json.loads((tmp_path / "run" / "training.json").read_text())
    before, after, n = told["before"]["value"], told["after"]["value"], told["after"]["n"]
    assert (told["comparison"]["before"], told["comparison"]["after"]) == (before, after)
    lines = (f"before: accuracy {before:.2f}"[:19], "after:  accuracy", f"(n={n})", "trained model:", "epoch")
    for line in (*lines, "in Python: import headcount; model = headcount.load("):
        assert line in done.output


def test_from_scratch_it_is_as_cut_with_other_weights(base: Path, tmp_path: Path) -> None:
    model = cut_classifier(base, tmp_path / "cut")
    data = table(tmp_path / "train.tsv", ("sentence", "label"), weather(80, 4))
    told = ran_json(
        *("train", tmp_path / "cut", "--scratch", "--data", data, "-o", tmp_path / "out", "--run", tmp_path / "run"),
        *("--steps", 1, "--lr", 1e-12, "--seed", 3),
    )
    assert told["before"] is None
    found, born = hc.load(tmp_path / "out"), new_models.reinitialized(model, 3)
    assert hc.removed(found) == hc.removed(model)
    assert not torch.equal(found.classifier.weight, model.classifier.weight)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found.parameters(), born.parameters(), strict=True))


def test_killed_and_given_again_it_ends_with_the_same_model(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = table(tmp_path / "train.tsv", ("sentence", "label"), weather(200, 5))
    command = ("train", base, "--task", "classification", "--data", data, "--epochs", 2, "--save-every", 3, *QUICK)
    ran_json(*command, "-o", tmp_path / "whole", "--run", tmp_path / "one")
    step, steps = loop.safe_step, []

    def killed(work: Any) -> None:
        steps.append(work.done)
        if len(steps) == 9:
            raise RuntimeError("killed")
        step(work)

    monkeypatch.setattr(loop, "safe_step", killed)
    again = (*command, "-o", tmp_path / "resumed", "--run", tmp_path / "two")
    with pytest.raises(RuntimeError, match="killed"):
        ran(*again)
    assert not (tmp_path / "resumed").exists()
    told = ran_json(*again)
    assert steps[9] == 6  # it went on from the last state
    resumed, whole = (felt(hc.load(tmp_path / name)) for name in ("resumed", "whole"))
    assert close_weights(resumed, whole, 2e-5)  # the last step has 1e-4
    first = json.loads((tmp_path / "one" / "training.json").read_text())
    assert alike(told["history"], first["history"])
    assert alike(told["after"], first["after"])
    assert told["before"] is None


def test_of_several_processes_only_the_first_writes_and_speaks(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = table(tmp_path / "train.tsv", ("sentence", "label"), weather(120, 6))
    seen = Watched(BertForSequenceClassification, lambda row: str(row.tolist()), monkeypatch)
    monkeypatch.setenv("RANK", "1")  # as a launcher sets it in the second one
    done = ran(
        *("train", base, "--task", "classification", "--data", data, "--steps", 2),
        *("--checkpoints", "-o", tmp_path / "out", "--run", tmp_path / "run", "--device", "cpu"),
    )
    assert (done.exit_code, done.output) == (0, "")
    assert seen.trained
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "train.tsv"]


def test_flags_are_arguments_of_the_library_with_the_same_defaults() -> None:
    flags = {
        **signature(train_command.train).parameters,
        **{field.name: field for field in fields(training_options.TrainingOptions)},
    }
    recipe = {field.name: field.default for field in fields(loop.Recipe) if field.name not in ("betas", "seed")}
    for name, default in recipe.items():
        assert flags[name].default in (None, default)
    sizes = {name: p for name, p in signature(new_models.new_translator).parameters.items() if name != "texts"}
    assert {*sizes} - {"longest", "seed"} <= {*flags}
    helped = " ".join(ran("train", "--help").output.split())
    assert "headcount train" in helped


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["new-marian", "--width", 30, "--heads", 4], "width is 30"),
        (["new-marian", "--vocabulary", 10], "vocabulary is 10"),
        (["new-marian", "--schedule", "square"], "square"),
        (["new-marian", "--freeze", "nothing"], "nothing"),
        (["new-marian", "--text", "source", "--target", "nowhere"], "nowhere"),
        (["base", "--task", "classification", "--text", "source"], "no column of labels"),
        (["base"], "--task classification"),
        (["base", "--task", "translation"], "unknown to the tokenizer"),
    ],
)
def test_what_cannot_be_trained_is_said_in_a_sentence_and_leaves_nothing(
    words: list[Any], says: str, base: Path, pairs: Path, tmp_path: Path
) -> None:
    words = [base if word == "base" else word for word in words]
    places = ("-o", tmp_path / "out", "--run", tmp_path / "run", "--metric", "loss")
    with pytest.raises(HeadcountError, match=says) as caught:
        ran("train", *words, "--data", pairs, "--limit", 30, "--dev-data", pairs, "--dev-limit", 3, *places)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--data"),
        (["--data", "x.tsv"], "-o FOLDER"),
        (["--data", "x.tsv", "-o", "y", "--width", 8], "size of new-marian"),
        (["--data", "x.tsv", "-o", "y", "--distill", 0.5], "--teacher"),
        (["--data", "x.tsv", "-o", "y", "--dtype", "bfloat16"], "--precision"),
        (["--data", "x.tsv", "-o", "y", "--dev-limit", 5], "--dev-data"),
        (["--data", "x.tsv", "-o", "y", "--run", "y/z"], "neither inside the other"),
    ],
)
def test_wrong_usage_is_said_at_once(words: list[Any], says: str, base: Path) -> None:
    done = ran("train", base, *words)
    assert done.exit_code == 2
    assert says in " ".join(done.output.replace("│", " ").split())


def test_nothing_that_is_there_is_replaced_without_force(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    for force in ([], ["--force"]):  # even then only a model
        with pytest.raises(BadCheckpoint, match="out"):
            ran("train", "new-marian", "--data", pairs, "-o", tmp_path / "out", *force)
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"
    with pytest.raises(BadData, match="too few to set a tenth aside"):
        ran("train", "new-marian", "--data", pairs, "--limit", 2, "-o", tmp_path / "new", *SIZES)
