"""What the package ships to be tried on: two small models, real sentences, and where all of it came from."""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import demo_data
import pytest
import torch
from transformers import AutoTokenizer

import headcount as hc

EMBEDDED = Path(str(files("headcount"))) / "embedded"
MB = 1_000_000
DOMAINS = {"movies": 2000, "products": 500, "news": 500, "tweets": 500}
PAIRS = {"sentences": 300, "messages": 200}  # at least


def rows(path: Path, header: tuple[str, str]) -> list[tuple[str, str]]:
    """The rows of a TSV file, each of which must have two cells with something in them."""
    first, *rest = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert tuple(first.split("\t")) == header
    found = [tuple(line.split("\t")) for line in rest]
    assert all(len(row) == 2 and all(cell and cell == " ".join(cell.split()) for cell in row) for row in found)
    return found


def labelled(domain: str) -> list[tuple[str, str]]:
    return rows(EMBEDDED / "classifier-data" / f"{domain}.tsv", ("sentence", "label"))


def pairs(name: str) -> list[tuple[str, str]]:
    return rows(EMBEDDED / "translator-data" / f"{name}.tsv", ("source", "target"))


def unknown(kind: str, texts: list[str]) -> float:
    """The share of tokens that the tokenizer of a model has no piece for."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / kind)
    ids = [token for tokens in tokenizer(texts)["input_ids"] for token in tokens]
    assert max(ids) < hc.load(EMBEDDED / kind).config.vocab_size
    return ids.count(tokenizer.unk_token_id) / len(ids)


# --- the data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS)
def test_half_of_a_domain_is_positive(domain: str) -> None:
    assert Counter(label for _, label in labelled(domain)) == {
        "negative": DOMAINS[domain] // 2,
        "positive": DOMAINS[domain] // 2,
    }


@pytest.mark.parametrize("name", PAIRS)
def test_there_are_enough_pairs(name: str) -> None:
    assert len(pairs(name)) >= PAIRS[name]


def test_no_sentence_is_there_twice() -> None:
    texts = [text for domain in DOMAINS for text, _ in labelled(domain)]
    for side in (0, 1):
        both = [pair[side] for name in PAIRS for pair in pairs(name)]
        for group in (texts, both):
            found = Counter(demo_data.letters(text) for text in group)
            assert found.most_common(1)[0][1] == 1, found.most_common(1)


def test_a_fence_keeps_parts_and_near_copies_out_and_lets_the_rest_pass() -> None:
    fence = demo_data.Fence(["It doesn't work, and that's a pity for all of the good people in it.", "Never again!"])
    part = ["it does n't work", "a pity", "good people in it!", "'s a pity for all", "IT DOESN'T WORK"]
    near = ["Yes: that's a pity for all of the good people we know"]
    assert all(map(fence.bars, [*part, *near]))
    assert all(map(demo_data.Fence(["So far, so good."]).bars, ["so far so good", "Well, so far so good, he said."]))
    assert not any(map(fence.bars, ["good", "it works", "a pity that it works", "the people in it", "again, never"]))


def test_pairs_stay_apart_from_those_that_share_nearly_all_words() -> None:
    shipped = [("Der Hund schläft auf dem Sofa.", "The dog is sleeping on the sofa.")]
    near = ("Der Hund schläft auf dem alten Sofa!", "There is a dog.")
    same = ("Da liegt er.", "the dog is sleeping on the sofa")
    far = ("Der Hund schläft.", "The dog is asleep on a chair.")
    assert demo_data.apart([near, same, far], shipped) == [far]


def test_a_catalogue_gives_its_plain_messages(tmp_path: Path) -> None:
    entries = [
        'msgid ""\nmsgstr "Language: de\\n"',
        'msgid "Save"\nmsgstr "Speichern"',
        'msgid ""\n"Two "\n"lines"\nmsgstr "Zwei \\"Zeilen\\""',
        '#, fuzzy\nmsgid "Guess"\nmsgstr "Vielleicht"',
        'msgid "page"\nmsgid_plural "pages"\nmsgstr[0] "Seite"\nmsgstr[1] "Seiten"',
        'msgid "Untranslated"\nmsgstr ""',
        '#~ msgid "Old"\n#~ msgstr "Alt"',
    ]
    (tmp_path / "django.po").write_text("\n\n".join(entries), encoding="utf-8")
    found = demo_data.catalogue(tmp_path / "django.po")
    assert found == [("Speichern", "Save"), ('Zwei "Zeilen"', "Two lines")]


# --- where it came from ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "limit"), [("classifier", 8), ("translator", 12)])
def test_a_model_and_its_data_are_small(kind: str, limit: int) -> None:
    paths = [path for folder in (kind, f"{kind}-data") for path in (EMBEDDED / folder).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in paths) <= limit * MB
    assert {path.suffix for path in paths} <= {".json", ".safetensors", ".tsv", ".md", ".txt"}, "no pickle"


@pytest.mark.parametrize(
    ("kind", "licence", "words"),
    [
        ("classifier", "LICENSE-vaderSentiment.txt", ["The MIT License", "C.J. Hutto"]),
        ("translator", "LICENSE-wagtail.txt", ["Torchbox", "Redistributions of source code must retain"]),
    ],
)
def test_licence_and_provenance_lie_beside_the_data(kind: str, licence: str, words: list[str]) -> None:
    folder = EMBEDDED / f"{kind}-data"
    text = (folder / licence).read_text(encoding="utf-8")
    assert all(word in text for word in words)
    told = (folder / "PROVENANCE.md").read_text(encoding="utf-8")
    assert licence in told
    assert all(path.name in told for path in folder.glob("*.tsv"))
    assert not re.search(r"(?<![\w.])/(work|tmp|home|root)\b", told)


# --- the models -----------------------------------------------------------------------------------------------------


def test_the_classifier_has_six_attentions_of_eight_heads() -> None:
    model = hc.load(EMBEDDED / "classifier")
    anatomy = hc.find(model)
    attentions = [site for site in anatomy.sites if site.kind == "head"]
    assert [(site.attention, len(site.ids)) for site in attentions] == [("encoder", 8)] * 6
    assert model.config.id2label == {0: "negative", 1: "positive"}
    assert next(model.parameters()).dtype == torch.float16


def test_the_translator_has_three_types_of_attention() -> None:
    sites = [site for site in hc.find(hc.load(EMBEDDED / "translator")).sites if site.kind == "head"]
    assert Counter((site.attention, len(site.ids)) for site in sites) == {
        ("encoder", 8): 3,
        ("decoder", 8): 3,
        ("cross", 8): 3,
    }


def test_the_tokenizers_know_the_text() -> None:
    assert unknown("classifier", [text for domain in DOMAINS for text, _ in labelled(domain)]) < 0.002
    assert unknown("translator", [text for name in PAIRS for pair in pairs(name) for text in pair]) < 0.002


def test_a_translation_is_spelled_as_the_reference_is() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / "translator")
    texts = [text for name in PAIRS for pair in pairs(name) for text in pair]
    again = tokenizer.batch_decode(tokenizer(texts)["input_ids"], skip_special_tokens=True)
    assert sum(one != other for one, other in zip(texts, again, strict=True)) <= 0.01 * len(texts)


@pytest.mark.parametrize(("domain", "floor"), [("movies", 0.75), ("products", 0.7), ("news", 0.65), ("tweets", 0.75)])
def test_the_classifier_tells_good_from_bad(domain: str, floor: float) -> None:
    model = hc.load(EMBEDDED / "classifier", dtype=torch.float32)
    data = EMBEDDED / "classifier-data" / f"{domain}.tsv"
    task = hc.task("classification", data, tokenizer=EMBEDDED / "classifier", limit=300)
    assert hc.evaluate(model, task).value > floor


@pytest.mark.parametrize(("name", "floor"), [("sentences", 20), ("messages", 10)])
def test_the_translator_translates(name: str, floor: float) -> None:
    model = hc.load(EMBEDDED / "translator", dtype=torch.float32)
    data = EMBEDDED / "translator-data" / f"{name}.tsv"
    task = hc.task("translation", data, tokenizer=EMBEDDED / "translator", limit=60)
    assert hc.evaluate(model, task).value > floor
