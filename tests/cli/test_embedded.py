"""What the package ships to be tried on: two small models, real sentences, and where all of it came from."""

from __future__ import annotations

import html
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
DOMAINS = {"movies": 2000, "products": 500, "news": 500, "tweets": 500}  # drawn; a few are left out of most
PAIRS = {"sentences": 300, "messages": 200}  # at least
SWEARING = re.compile(  # not the pattern of the script, which must find more
    r"\b(?:wtf|stfu|omfg|lmao|ass|arse|asshole|morons?|pricks?|douchebag|dyke|homo|tits|boobs|penis|vagina|kike|gook|spic)\b"
    r"|f[u*c]+ck|sh[i*]t|\bsh \*|\bf\*|bitch|cunt|nigg|nicca|wank|\bpiss|suck it|bastard(?! child)|slut|whore|fck|fuk",
    re.IGNORECASE,
)
REACHING = re.compile(  # an address that works: not @anonymous, not http://url_removed
    r"www\.|https?://(?!url_removed\b)|\w\.(?:com|org|net|ly|co\.uk)\b|\w@\w+\.\w|@(?!anonymous\b)\w"
    r"|\b\d{3}[-.) ]+\d{3}[-. ]\d{4}\b",
    re.IGNORECASE,
)


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


def every_text() -> list[str]:
    return [cell for domain in DOMAINS for cell, _ in labelled(domain)] + [
        cell for name in PAIRS for pair in pairs(name) for cell in pair
    ]


def told(kind: str) -> dict[str, list[float]]:
    """The table at the end of PROVENANCE.md: for every file its number of examples and its scores."""
    page = (EMBEDDED / f"{kind}-data" / "PROVENANCE.md").read_text(encoding="utf-8")
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.split("\n") if line.startswith("| ")
    ]
    table = {name: [float(cell) for cell in numbers] for name, *numbers in cells if name}
    assert set(table) == {path.stem for path in (EMBEDDED / f"{kind}-data").glob("*.tsv")}
    return table


def measured(kind: str, name: str, limit: int | None = None) -> float:
    """What `headcount evaluate` says of a shipped file, or of some of its examples."""
    model = hc.load(EMBEDDED / kind, dtype=torch.float32)
    task = {"classifier": "classification", "translator": "translation"}[kind]
    data = EMBEDDED / f"{kind}-data" / f"{name}.tsv"
    return hc.evaluate(model, hc.task(task, data, tokenizer=EMBEDDED / kind, limit=limit)).value


def unknown(kind: str, texts: list[str]) -> float:
    """The share of tokens that the tokenizer of a model has no piece for."""
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / kind)
    ids = [token for tokens in tokenizer(texts)["input_ids"] for token in tokens]
    assert max(ids) < hc.load(EMBEDDED / kind).config.vocab_size
    return ids.count(tokenizer.unk_token_id) / len(ids)


# --- the data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS)
def test_about_half_of_a_domain_is_positive_and_few_sentences_were_left_out(domain: str) -> None:
    found = Counter(label for _, label in labelled(domain))
    assert set(found) == {"negative", "positive"}
    assert 0.92 * DOMAINS[domain] <= found.total() <= DOMAINS[domain]
    assert 0.45 < found["positive"] / found.total() < 0.55


def test_movies_are_two_thousand_half_and_half() -> None:
    assert Counter(label for _, label in labelled("movies")) == {"negative": 1000, "positive": 1000}


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


def test_no_html_entity_is_left() -> None:
    assert [text for text in every_text() if html.unescape(text) != text] == []


def test_nobody_can_be_reached() -> None:
    live = [
        "see www.x.com",
        "at bit.ly/re5",
        "http://x.de",
        "a@b.de",
        "hi @somebody!",
        "call 555-123-4567",
        "on X.com now",
    ]
    assert all(map(REACHING.search, live))
    assert [text for text in every_text() if REACHING.search(text)] == []


def test_no_text_swears() -> None:
    assert [text for text in every_text() if SWEARING.search(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "a complete piece of sh ***.",
        "what the f*ck",
        "f**k that",
        "F*&N&* that",
        "Wtf is this",
        "OMFG, stfu!",
        "kiss my ass",
        "bring ur ass and suck it up",
        "fckng fool",
        "a bastard coated bastard",
        "so pissed",
        "get it at www.example.com",
        "auction: bit.ly/abc",
        "on Example.com today",
        "http://example.org/a",
        "write to me@example.org",
        "RT @somebody hello",
        "RT somebody: hello",
        "call (555) 123-4567",
        "call 555-123-4567 now",
    ],
)
def test_what_is_not_presentable_is_not_shipped(text: str) -> None:
    assert not demo_data.presentable(text)


@pytest.mark.parametrize(
    "text",
    [
        "Damn it, what the hell, this is crap!",
        "long, wistful gazes, and a cunning assault on the classes",
        "a bastard child of two genres, swanky but prickly",
        "@anonymous and @anonymous's cat, RT @anonymous: look http://url_removed",
        "it has 800 numbers, 130-140 pictures in the U.S. and costs $1.25",
        "*head* *desk*",
    ],
)
def test_what_is_presentable_is_shipped(text: str) -> None:
    assert demo_data.presentable(text)


def test_sentences_are_left_out_by_digest_whatever_their_punctuation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_data, "READ_OUT", frozenset({demo_data.digest("John Q. Private ate a pie.")}))
    assert not demo_data.presentable("John Q. Private ate a pie!")
    assert demo_data.presentable("John Q. Public ate a pie.")


def test_nothing_shipped_would_be_left_out_by_the_script() -> None:
    assert [text for domain in DOMAINS for text, _ in labelled(domain) if not demo_data.presentable(text)] == []


def test_entities_are_turned_into_characters_however_often_they_were_encoded() -> None:
    assert demo_data.unescaped("A &amp;amp; B, it&amp;#39;s &lt;3 &#38; R&D") == "A & B, it's <3 & R&D"


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
    page = " ".join((folder / "PROVENANCE.md").read_text(encoding="utf-8").split())
    assert licence in page
    assert not re.search(r"(?<![\w.])/(work|tmp|home|root)\b", page)
    for path in folder.glob("*.tsv"):
        count = len(path.read_text(encoding="utf-8").splitlines()) - 1
        assert f"`{path.name}` ({count:,})" in page
        assert told(kind)[path.stem][0] == count
    assert "are ours, under Apache-2.0" in page
    assert "keep their own licences and are not shipped" in page


def test_the_page_says_what_the_licence_of_the_collection_does_not_cover() -> None:
    page = " ".join((EMBEDDED / "classifier-data" / "PROVENANCE.md").read_text(encoding="utf-8").split())
    assert "does not cover the copyright of the reviews, editorials and tweets" in page
    positive = [sum(label == "positive" for _, label in labelled(domain)) for domain in DOMAINS]
    assert "{:,}, {}, {} and {} sentences".format(*positive) in page
    out = sum(DOMAINS.values()) - sum(len(labelled(domain)) for domain in DOMAINS)
    assert f"After drawing, {out} sentences were taken out" in page
    assert f"by reading, {len(demo_data.READ_OUT)} more" in page


# --- the models -----------------------------------------------------------------------------------------------------


def test_the_classifier_has_six_attentions_of_eight_heads() -> None:
    model = hc.load(EMBEDDED / "classifier", dtype="auto")
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


@pytest.mark.parametrize(
    ("kind", "name", "within"),
    [
        ("classifier", "products", 0.002),
        pytest.param("classifier", "news", 0.002, marks=pytest.mark.slow),
        pytest.param("classifier", "tweets", 0.002, marks=pytest.mark.slow),
        ("translator", "messages", 0.3),
        pytest.param("translator", "sentences", 0.3, marks=pytest.mark.slow),
    ],
)
def test_the_page_says_what_evaluate_says(kind: str, name: str, within: float) -> None:
    assert measured(kind, name) == pytest.approx(told(kind)[name][1], abs=within)


def test_the_page_says_nearly_what_evaluate_says_of_some_movies() -> None:
    assert measured("classifier", "movies", limit=400) > told("classifier")["movies"][1] - 0.035  # two standard errors
