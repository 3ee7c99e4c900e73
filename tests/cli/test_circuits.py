"""The commands `attribute` and `weights`, as a user types them."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import says
from helpers import zoo
from helpers.small_models import WORDS, ran, ran_json, word_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

import headcount as hc
from headcount.documents.circuits.logit_attribution import AttributionDocument
from headcount.documents.circuits.weights import CircuitsDocument


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small Llama (`model`), prompts with right and wrong words, and a text."""
    folder = tmp_path_factory.mktemp("circuits")
    tokenizer = word_tokenizer(WORDS)
    model, _ = zoo.build("llama")
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = [f"the {WORDS[n % 16]} is\tgood\tbad" for n in range(6)]
    (folder / "prompts.tsv").write_text("\n".join(["prompt\tright\twrong", *rows]) + "\n")
    (folder / "text.tsv").write_text(
        "\n".join(["text", *(f"{WORDS[n]} {WORDS[n + 2]} is good" for n in range(6))]) + "\n"
    )
    return folder


def test_attribute_gives_what_the_function_gives_and_goes_on_from_its_folder(place: Path, tmp_path: Path) -> None:
    words = ["attribute", place / "model", "--data", place / "prompts.tsv", "--right", "right", "--wrong", "wrong"]
    found = ran_json(*words, "-o", tmp_path / "run")
    task = hc.circuits.read_prompts(str(place / "prompts.tsv"), str(place / "model"), right="right", wrong="wrong")
    want = hc.circuits.direct_logit_attribution(hc.load(place / "model"), task)
    got = {one["component"]: one["difference"] for one in [*found["units"], *found["others"]]}
    assert got == pytest.approx(want.means, abs=1e-5)
    assert found["total"] == pytest.approx(want.totals.mean(), abs=1e-5)
    again = ran_json(*words, "-o", tmp_path / "run")
    assert again["units"] == found["units"]
    AttributionDocument.from_json({key: value for key, value in found.items() if key != "run"})
    text = ran(*words, "-o", tmp_path / "run").output
    assert "right - wrong" in text
    assert "scale frozen" in text
    assert "beyond chance" in text


def test_attribute_takes_texts_and_neurons(place: Path, tmp_path: Path) -> None:
    found = ran_json(
        "attribute", place / "model", "--data", place / "text.tsv", "--units", "neurons", "-o", tmp_path / "run"
    )
    assert found["logits"] == "right - mean"
    assert len(found["units"]) == 2 * (48 + 1)


def test_attribute_takes_contrast_prompts_and_classes(place: Path, tmp_path: Path) -> None:
    words = ["--task", "contrast:induction", "--limit", "8", "-o", tmp_path / "contrast"]
    found = ran_json("attribute", place / "model", *words)
    assert (found["logits"], found["n"]) == ("right - wrong", 8)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokenizer = word_tokenizer(WORDS)
    config = LlamaConfig(vocab_size=len(tokenizer), **sizes, num_labels=2, pad_token_id=tokenizer.pad_token_id)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "classifier")
    tokenizer.save_pretrained(tmp_path / "classifier")
    rows = [f"{WORDS[n]} {WORDS[n + 1]}\t{n % 2}" for n in range(6)]
    (tmp_path / "labelled.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    of_class = ran_json(
        "attribute", tmp_path / "classifier", "--data", tmp_path / "labelled.tsv", "-o", tmp_path / "classes"
    )
    assert (of_class["logits"], of_class["n"], len(of_class["units"])) == ("right - mean", 6, 10)


def test_circuits_of_all_heads_and_of_one(place: Path, tmp_path: Path) -> None:
    every = ran_json("weights", place / "model", "--permutations", "2", "-o", tmp_path / "all")
    assert len(every["heads"]) == 16
    assert every["pairs_of_heads"] == 64
    assert not every["heads"][0]["pairs"]
    CircuitsDocument.from_json({key: value for key, value in every.items() if key != "run"})
    words = [
        "weights",
        place / "model",
        "1:3",
        "--tokens",
        "good, film",
        "--permutations",
        "2",
        "-o",
        tmp_path / "one",
    ]
    one = ran_json(*words)
    (head,) = one["heads"]
    assert [writes["token"]["text"] for writes in head["writes"]] == ["good", "film"]
    text = ran(*words).output
    assert "1:3 when it looks at 'good'" in text
    assert "-> 1:3" in text
    assert "distance zero" in text


def test_wrong_questions_are_answered_in_one_sentence(place: Path, tmp_path: Path) -> None:
    with says(hc.errors.BadData, about="no column"):
        ran("attribute", place / "model", "--data", place / "prompts.tsv", "--right", "rihgt", "-o", tmp_path / "a")
    assert "--right" in ran("attribute", place / "model", "--data", place / "prompts.tsv", "--wrong", "wrong").output
    assert "--data" in ran("attribute", place / "model").output
    with says(hc.errors.BadPlan):
        ran("weights", place / "model", "1.mlp:3", "-o", tmp_path / "b")
    with says(hc.errors.BadPlan, about="mean or nothing"):
        ran("attribute", place / "model", "--data", place / "text.tsv", "--against", "median", "-o", tmp_path / "c")
