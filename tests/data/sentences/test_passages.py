"""Tokens belong to the words they are made of, sides line up with what models read, and draws are those of tasks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import says
from helpers import small_models
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast
from transformers.models.bart.modeling_bart import shift_tokens_right

import headcount as hc
from headcount.data.columns import drawn_numbers
from headcount.data.encoding import encode, padded
from headcount.data.sentences import parsers, word_alignment
from headcount.data.sentences.conllu import Sentence, Word, read_conllu
from headcount.data.sentences.passages import Passages, Side, passages
from headcount.errors import BadData

TEXTS = [
    "The unbelievable dogs don't bark.",
    "Naïve façades ,  says “he”",
    "A dog",
    "barking dogs bite; 日本 too",
]


def wordpiece(**more: Any) -> Any:
    """A tokenizer in the manner of BERT: it parts punctuation off, drops accents, and splits words into ## pieces."""
    pieces = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "the", "un", "##believ", "##able", "dog", "##s", "don", "t"]
    pieces += ["bark", "##ing", "naive", "facade", "a", "bite", "he", "too", *"'.,;“”"]
    made = Tokenizer(models.WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    marks = [("[CLS]", 1), ("[SEP]", 2)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=marks)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=64, **names, **more)


def byte_level(**more: Any) -> Any:
    """A tokenizer in the manner of GPT-2: bytes, spaces before words, no token around the text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([*TEXTS, *TEXTS], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<end>", bos_token="<end>", unk_token="<end>", pad_token="<end>", **more
    )


def unigram(split: bool = True, **more: Any) -> Any:
    """A tokenizer in the manner of SentencePiece: ▁ for spaces, also before the text, and </s> after it."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    pieces += [
        (one, -2.0) for one in ["▁The", "▁un", "believ", "able", "▁dog", "s", "▁don", "'t", "▁bark", "ing", "▁a"]
    ]
    pieces += [(letter, -9.0) for letter in "abcdefghijklmnopqrstuvwxyzTNADïç.,;“”'"]
    made = Tokenizer(models.Unigram(pieces, unk_id=2))
    made.pre_tokenizer = pre_tokenizers.Metaspace(split=split)
    made.decoder = decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="</s>", pad_token="<pad>", unk_token="<unk>", **more
    )


KINDS: dict[str, Callable[..., Any]] = {"wordpiece": wordpiece, "bytes": byte_level, "unigram": unigram}


def sentence(text: str, name: str = "s") -> Sentence:
    """Words of letters, and each other sign alone; the first governs all others."""
    spans = [found.span() for found in re.finditer(r"\w+|[^\w\s]", text)]
    words = [Word(text[a:b], a, b, 0 if n else -1, "dep" if n else "root") for n, (a, b) in enumerate(spans)]
    return Sentence(text, tuple(words), name)


def pieces(side: Side, tokenizer: Any, number: int) -> dict[str, list[str]]:
    """The tokens of each word, by its form; those of no word by ""."""
    found: dict[str, list[str]] = {}
    for token, word in zip(side.ids[number], side.words[number], strict=True):
        form = side.sentences[number].words[word].form if word >= 0 else ""
        found.setdefault(form, []).append(tokenizer.convert_ids_to_tokens(token))
    return found


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ["", "bark: "])
def test_a_token_belongs_to_the_word_with_which_it_shares_most(kind: str, prefix: str) -> None:
    """Counted character by character, word by word."""
    tokenizer = KINDS[kind]()
    given = [sentence(text) for text in TEXTS]
    side = passages(given, tokenizer, prefix=prefix).source
    for number, one in enumerate(given):
        made = tokenizer(prefix + one.text, return_offsets_mapping=True, return_special_tokens_mask=True)
        assert side.ids[number] == made["input_ids"]
        assert side.special[number] == [mark == 1 for mark in made["special_tokens_mask"]]
        for place, (start, end) in enumerate(made["offset_mapping"]):
            letters = {at - len(prefix) for at in range(start, end) if not (prefix + one.text)[at].isspace()}
            shared = [len(letters & set(range(word.start, word.end))) for word in one.words]
            token = tokenizer.convert_ids_to_tokens(made["input_ids"][place])
            none = not max(shared) or token == "▁" or made["special_tokens_mask"][place]
            assert side.words[number][place] == (-1 if none else shared.index(max(shared)))


def test_a_word_of_three_pieces_has_three_tokens() -> None:
    for kind, expected in (("wordpiece", ["un", "##believ", "##able"]), ("unigram", ["▁un", "believ", "able"])):
        tokenizer = KINDS[kind]()
        side = passages([sentence(TEXTS[0])], tokenizer).source
        assert pieces(side, tokenizer, 0)["unbelievable"] == expected


def test_a_space_of_its_own_belongs_to_no_word_at_the_beginning_neither() -> None:
    tokenizer = unigram()
    side = passages(["xa dog xa"], tokenizer).source
    assert [tokenizer.convert_ids_to_tokens(one) for one in side.ids[0]] == [
        "▁",
        "x",
        "a",
        "▁dog",
        "▁",
        "x",
        "a",
        "</s>",
    ]
    assert side.words[0] == [-1, 0, 0, 1, -1, 2, 2, -1]


def test_spaces_inside_a_word_are_not_shared() -> None:
    made = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("^."), "isolated")  # a and "   bcc"
    given = Sentence("a   bcc", (Word("a   b", 0, 5), Word("cc", 5, 7)), "s")
    assert passages([given], PreTrainedTokenizerFast(tokenizer_object=made)).source.words == [[0, 1]]


def test_words_that_share_a_place_leave_their_tokens_to_the_first() -> None:
    both = Sentence("barks", (Word("bark", 0, 5), Word("es", 0, 5)), "s")
    assert set(passages([both], byte_level()).source.words[0]) == {0}


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_parse_words_are_the_tokenizers_and_punctuation_is_parted_off(kind: str) -> None:
    side = passages(["The dogs don't bark, “he” says..."], KINDS[kind]()).source
    forms = [word.form for word in side.sentences[0].words]
    middle = {"wordpiece": ["don", "'", "t"], "bytes": ["don", "'t"], "unigram": ["don't"]}[kind]
    end = [".", ".", "."] if kind == "wordpiece" else ["..."]
    assert forms == ["The", "dogs", *middle, "bark", ",", "“", "he", "”", "says", *end]
    assert all(word.relation == "" and word.head == -1 for word in side.sentences[0].words)
    assert set(range(len(forms))) <= set(side.words[0])


def test_a_tokenizer_that_does_not_part_words_is_helped_by_spaces() -> None:
    side = passages(["The dogs bark"], unigram(split=False)).source
    assert [word.form for word in side.sentences[0].words] == ["The", "dogs", "bark"]


def test_special_tokens_are_no_words_wherever_they_stand_and_unknown_words_are() -> None:
    tokenizer = wordpiece()
    side = passages(["a dog [SEP] a zebra"], tokenizer).source
    tokens = tokenizer.convert_ids_to_tokens(side.ids[0])
    assert tokens == ["[CLS]", "a", "dog", "[SEP]", "a", "[UNK]", "[SEP]"]
    assert side.special[0] == [True, False, False, True, False, False, True]
    assert [word >= 0 for word in side.words[0]] == [not mark for mark in side.special[0]]
    assert side.names == {1: "[CLS]", 2: "[SEP]"}


def test_words_that_are_cut_off_have_no_token() -> None:
    given = sentence(TEXTS[0])
    for kind, length in (("wordpiece", 4), ("bytes", 5), ("unigram", 3)):
        whole, cut = passages([given], KINDS[kind]()).source, passages([given], KINDS[kind](), max_length=length).source
        assert len(cut.ids[0]) == length
        assert cut.sentences == [given]
        assert max(cut.words[0]) < max(whole.words[0])
        kept = [word for word in cut.words[0] if word >= 0]
        assert kept == [word for word in whole.words[0] if word >= 0][: len(kept)]


def test_tokenizers_that_do_not_tell_where_tokens_stand_have_a_word_for_every_token() -> None:
    tokenizer, text = ByT5Tokenizer(), "Dög D"
    assert not tokenizer.is_fast
    side = passages([text, "x"], tokenizer, prefix="ab: ").source
    count = len(text.encode())
    assert side.words[0] == [-1] * 4 + list(range(count)) + [-1]
    assert len(side.sentences[0].words) == count
    found = [word for word in side.sentences[0].words if word.end > word.start]
    assert [(word.form, word.start) for word in found] == [("D", 0), ("g", 2), (" ", 3), ("D", 4)]
    cut = passages([text], tokenizer, prefix="ab: ", max_length=7).source
    assert cut.words[0] == [-1] * 4 + [0, 1, -1]
    late = passages([text], ByT5Tokenizer(truncation_side="left"), prefix="ab: ", max_length=4).source
    assert late.words[0] == [count - 3, count - 2, count - 1, -1]
    with says(BadData, about="fast tokenizer"):
        passages([sentence(text)], tokenizer)


# --- sides ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", ["left", "right"])
def test_what_is_known_of_tokens_lies_where_the_model_reads_them(kind: str, padding: str) -> None:
    tokenizer = KINDS[kind](padding_side=padding)
    found = passages(TEXTS, tokenizer)
    numbers = [2, 0, 3]
    batch, placed = found.inputs(numbers), found.source.placed(numbers)
    expected = encode(tokenizer, [[TEXTS[number] for number in numbers]], 512)
    assert {name: value.tolist() for name, value in batch.items()} == {
        name: value.tolist() for name, value in expected.padded(range(3)).items()
    }
    assert found.source.padding == ("right" if kind == "wordpiece" else padding)  # [CLS] stays where it is read
    assert torch.equal(placed.ids, batch["input_ids"])
    assert torch.equal(placed.real, batch["attention_mask"] == 1)
    assert placed.words.dtype == torch.long
    assert (placed.words[~placed.real] == -1).all()
    assert not placed.special[~placed.real].any()
    for row, number in enumerate(numbers):
        assert placed.words[row][placed.real[row]].tolist() == found.source.words[number]
        assert placed.special[row][placed.real[row]].tolist() == found.source.special[number]


def test_further_columns_go_with_the_tokens() -> None:
    side = passages(TEXTS, wordpiece()).source
    typed = replace(side, more={"token_type_ids": [[1] * len(one) for one in side.ids]}, fill={"token_type_ids": 7})
    numbers = [2, 0]
    for some in (typed.inputs(numbers), typed.chosen([0, 2]).inputs([1, 0])):
        assert torch.equal(some["token_type_ids"] == 7, some["attention_mask"] == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_reads_what_it_has_written_one_place_later(kind: str) -> None:
    tokenizer = KINDS[kind](padding_side="left")
    found = passages(TEXTS, tokenizer, target=[sentence(text) for text in reversed(TEXTS)])
    read, written = found.read, found.written
    assert read is not None
    assert written is not None
    for number, ids in enumerate(written.ids):
        assert len(read.ids[number]) == len(ids)
        assert read.special[number][0]
        assert read.words[number][0] == -1
        for column in ("ids", "words", "special"):
            assert getattr(read, column)[number][1:] == getattr(written, column)[number][:-1]
        assert read.ids[number][0] in read.names
    numbers = [1, 3, 0]
    labels = padded([written.ids[number] for number in numbers], -100)
    shifted = shift_tokens_right(labels, tokenizer.pad_token_id, read.ids[0][0])  # as models do
    placed = read.placed(numbers)
    assert torch.equal(placed.real, labels != -100)
    assert torch.equal(found.inputs(numbers)["decoder_input_ids"][placed.real], shifted[placed.real])
    assert torch.equal(written.placed(numbers).ids[placed.real], labels[placed.real])


def test_tokens_are_written_as_people_read_them() -> None:
    found = passages(["the dogs 日"], byte_level(), target=["a dog"])
    for side in (found.source, found.read, found.written):
        assert side is not None
        assert {token for ids in side.ids for token in ids} <= set(side.texts)
        assert all(text and text == text.strip() and "\ufffd" not in text for text in side.texts.values())
    assert "".join(found.written.texts[token] for token in found.written.ids[0]) == "adog"


def test_batches_hold_every_sentence_once_the_longest_first() -> None:
    found = passages(TEXTS * 3, byte_level(), batch_size=5)
    batches = found.batches()
    assert [len(batch) for batch in batches] == [5, 5, 2]
    lengths = [len(found.source.ids[number]) for batch in batches for number in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert sorted(number for batch in batches for number in batch) == list(range(12))
    assert len(found.batches(1)) == 12
    with says(BadData, about="batch size"):
        found.batches(0)


def same(a: Side | None, b: Side | None) -> bool:
    if a is None or b is None:
        return a is b
    columns = ("ids", "words", "special", "sentences", "counts", "padding")
    return all(list(getattr(a, one)) == list(getattr(b, one)) for one in columns)


# --- data -----------------------------------------------------------------------------------------------------------


def rows(count: int) -> list[str]:
    return [
        " ".join(small_models.WORDS[(3 * place + step) % 16] for step in range(2 + place % 5)) for place in range(count)
    ]


def parallel(folder: Path, count: int = 20) -> tuple[Path, Path]:
    source, target = folder / "text.de", folder / "text.en"
    source.write_text("\n".join(rows(count)) + "\n", encoding="utf-8")
    target.write_text("\n".join(reversed(rows(count))) + "\n", encoding="utf-8")
    return source, target


def test_a_limit_draws_what_tasks_draw_and_counts_in_all_of_the_data(tmp_path: Path) -> None:
    source, target = parallel(tmp_path)
    tokenizer = small_models.word_tokenizer(small_models.WORDS)
    whole = passages(source, tokenizer, target="en")
    for seed in (0, 3):
        some = passages(source, tokenizer, target=target, limit=7, seed=seed)
        task = hc.task("translation", source, tokenizer=tokenizer, target=target, limit=7, seed=seed)
        batch = task.collate(range(7))
        for name, value in some.source.inputs(range(7)).items():
            assert torch.equal(value, batch[name])
        assert some.written is not None
        assert torch.equal(padded(some.written.ids, -100), batch["labels"])
        part = whole.subset(drawn_numbers(20, 7, seed))
        assert all(same(getattr(some, side), getattr(part, side)) for side in ("source", "read", "written"))
        assert some.links == part.links
        assert some.fingerprint == part.fingerprint != whole.fingerprint
    assert whole.source.counts == Counter(word for row in rows(20) for word in row.split())
    assert len(whole) == whole.size == 20
    assert whole.name == f"{tmp_path.name}/text.de"


def test_alignments_are_learned_from_all_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def align(sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> list[frozenset[tuple[int, int]]]:
        asked.append((sources, targets))
        return [frozenset({(0, number)}) for number in range(len(sources))]

    monkeypatch.setattr(word_alignment, "align", align)
    source, target = ["The FILM is", "good Film"] * 3, ["War", "love Song and"] * 3
    tokenizer = small_models.word_tokenizer([*small_models.WORDS, "FILM"])
    found = passages(source, tokenizer, target=target, limit=2)
    assert asked == [([one.lower().split() for one in source], [one.lower().split() for one in target])]
    assert found.links == [frozenset({(0, number)}) for number in drawn_numbers(6, 2, 0)]


def bank(folder: Path, name: str, texts: Sequence[str]) -> Path:
    path = folder / name
    lines = [
        "\n".join(
            f"{place}\t{word}\t_\t_\t_\t_\t{place - 1}\t{'dep' if place > 1 else 'root'}\t_\t_"
            for place, word in enumerate(text.split(), 1)
        )
        for text in texts
    ]
    path.write_text("\n\n".join(lines) + "\n\n", encoding="utf-8")
    return path


def test_data_may_be_of_any_kind(tmp_path: Path) -> None:
    tokenizer = small_models.word_tokenizer(small_models.WORDS)
    source, target = parallel(tmp_path)
    parsed = bank(tmp_path, "text.conllu", rows(20))
    table = tmp_path / "table.tsv"
    cells = zip(rows(20), reversed(rows(20)), strict=True)
    table.write_text("\n".join(["first\tother", *("\t".join(pair) for pair in cells)]) + "\n", encoding="utf-8")
    plain = passages(rows(20), tokenizer, target=list(reversed(rows(20))))
    assert (plain.name, plain.parsed) == ("texts", "")
    for given in (
        passages(source, tokenizer, target=target),
        passages(str(tmp_path / "text"), tokenizer, text="de", target="en"),
        passages(table, tokenizer, text="first", target="other"),
        passages(parsed, tokenizer, target=target),
        passages(source, tokenizer, target=bank(tmp_path, "goal.conllu", list(reversed(rows(20))))),
    ):
        for side in ("source", "read", "written"):
            assert getattr(given, side).ids == getattr(plain, side).ids
            assert getattr(given, side).words == getattr(plain, side).words
            assert getattr(given, side).counts == getattr(plain, side).counts
        assert given.links == plain.links
    alone = passages(table, tokenizer, text="first")
    assert alone.read is alone.written is alone.links is None
    assert alone.source.sentences[4].name == f"{tmp_path.name}/table.tsv:5"
    assert "decoder_input_ids" not in alone.inputs([0])
    gold = passages(parsed, tokenizer)
    assert gold.source.sentences == read_conllu(parsed)
    assert gold.parsed == f"gold parses of {tmp_path.name}/text.conllu"
    assert passages(read_conllu(parsed), tokenizer).source.words == gold.source.words


def test_blank_lines_part_texts_and_rows_without_text_are_named(tmp_path: Path) -> None:
    tokenizer = small_models.word_tokenizer(small_models.WORDS)
    path = tmp_path / "text.txt"
    path.write_text("the film\n\nis good\n", encoding="utf-8")
    found = passages(path, tokenizer)
    assert [one.name for one in found.source.sentences] == [f"{tmp_path.name}/text.txt:{line}" for line in (1, 3)]
    with says(BadData, about=f"no token in the text of {tmp_path.name}/text.txt:2"):
        passages(path, tokenizer, target=["the", "film", "is"])
    with says(BadData, about="no token in the text of text 3"):
        passages(["the", "film", "is"], tokenizer, target=["the", "film", ""])
    with says(BadData, about="has 2 sentences"):
        passages(["the", "film"], tokenizer, target=["the"])


def test_a_parser_parses_what_is_drawn_and_splits_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, list[str]] = {}

    def parse(name: str, texts: Sequence[str]) -> list[Sentence]:
        calls[f"parse {name}"] = list(texts)
        return [sentence(text) for text in texts]

    def split(name: str, texts: Sequence[str]) -> list[Sentence]:
        calls[f"split {name}"] = list(texts)
        return [sentence(text) for text in texts]

    monkeypatch.setattr(parsers, "parse", parse)
    monkeypatch.setattr(parsers, "split", split)
    drawn = drawn_numbers(4, 2, 0)
    found = passages(TEXTS, wordpiece(), parser="spacy:en_small", limit=2)
    assert calls == {
        "parse spacy:en_small": [TEXTS[one] for one in drawn],
        "split spacy:en_small": [TEXTS[one] for one in range(4) if one not in drawn],
    }
    assert found.parsed == "spaCy en_small"
    assert found.source.sentences == [sentence(TEXTS[one], f"text {one + 1}") for one in drawn]
    assert found.source.counts == Counter(word.form.casefold() for text in TEXTS for word in sentence(text).words)
    both = passages(TEXTS, wordpiece(), target=TEXTS, parser="spacy:en_small", target_parser="stanza:en")
    assert both.parsed == "spaCy en_small and Stanza en"
    assert both.written is not None
    assert both.written.sentences == both.source.sentences
    with says(BadData, about="need translations"):
        passages(TEXTS, wordpiece(), target_parser="stanza:en")


def test_alignments_of_words_between_spaces_become_those_of_our_words(tmp_path: Path) -> None:
    path = tmp_path / "links.txt"
    path.write_text("0-0 1-1\n\n0-1\n", encoding="utf-8")
    source = [sentence("Hunde, bellen"), sentence("ja"), sentence("doch")]
    target = [sentence("dogs bark!"), sentence("yes"), sentence("oh yes")]
    found = passages(source, byte_level(), target=target, alignments=path)
    # Hunde , bellen / dogs bark !
    assert found.links == [frozenset({(0, 0), (0, 1), (1, 2), (2, 2)}), frozenset(), frozenset({(1, 0)})]
    for text, said in (
        ("0-0\n", "has 1 lines"),
        ("0-2\n\n\n", "Line 1"),
        ("\n0:0\n\n", "Line 2"),
        ("1-0\n" * 3, "Line 2"),
    ):
        path.write_text(text, encoding="utf-8")
        with says(BadData, about=said):
            passages(source, byte_level(), target=target, alignments=path)
    with says(BadData, about="There is no file"):
        passages(source, byte_level(), target=target, alignments=tmp_path / "none.txt")
    with says(BadData, about="need translations"):
        passages(source, byte_level(), alignments=path)


def test_frequencies_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("Dog 7\nthe\t9\ndog\t3\n\n", encoding="utf-8")
    assert passages(TEXTS, byte_level(), frequencies=path).source.counts == Counter({"dog": 10, "the": 9})
    for text in ("dog\n", "dog many\n", "7\n"):
        path.write_text(text, encoding="utf-8")
        with says(BadData, about="Line 1"):
            passages(TEXTS, byte_level(), frequencies=path)
    path.write_text("\n\n", encoding="utf-8")
    with says(BadData, about="no word"):
        passages(TEXTS, byte_level(), frequencies=path)


def test_the_fingerprint_is_that_of_what_is_read_and_counted(tmp_path: Path) -> None:
    given = [sentence(text) for text in TEXTS]

    def made(data: Any = given, tokenizer: Any = None, **more: Any) -> Passages:
        return passages(data, tokenizer or byte_level(), **more)

    path, links = tmp_path / "words.txt", tmp_path / "links.txt"
    path.write_text("dog 7\n", encoding="utf-8")
    links.write_text("0-0\n" * 4, encoding="utf-8")
    other = [given[0]._replace(words=(given[0].words[0]._replace(relation="x"), *given[0].words[1:])), *given[1:]]
    found = [
        made(),
        made(other),
        made([given[0]._replace(words=given[0].words[:-1]), *given[1:]]),
        made(given[::-1]),
        made(max_length=4),
        made(prefix="a "),
        made(limit=3),
        made(frequencies=path),
        made(tokenizer=wordpiece()),
        made(tokenizer=byte_level(padding_side="left")),
        made(target=TEXTS),
        made(target=TEXTS[::-1]),
        made(target=TEXTS, alignments=links),
    ]
    assert len({one.fingerprint for one in found}) == len(found)
    assert made(batch_size=3).fingerprint == made().fingerprint == made().subset(range(4)).fingerprint


def test_a_subset_has_the_sentences_of_its_numbers() -> None:
    found = passages(TEXTS, byte_level(), target=TEXTS[::-1])
    part = found.subset([3, 1])
    assert [one.text for one in part.source.sentences] == [TEXTS[3], TEXTS[1]]
    assert part.links == [found.links[3], found.links[1]]
    assert torch.equal(part.inputs([0, 1])["decoder_input_ids"], found.inputs([3, 1])["decoder_input_ids"])
    assert part.source.counts == found.source.counts
    assert TEXTS[1][:12] in part.describe(1)
    for numbers in ([], [0, 0], [4]):
        with says(BadData, about="A subset needs"):
            found.subset(numbers)


def test_settings_that_make_no_sense_are_refused() -> None:
    for more, said in (({"batch_size": 0}, "batch size"), ({"limit": 0}, "limit"), ({"max_length": 1}, "max_length")):
        with says(BadData, about=said):
            passages(TEXTS, byte_level(), **more)
    with says(BadData, about="tokenizer"):
        passages(TEXTS, None)
    with says(BadData, about="There is no file"):
        passages("nowhere.conllu", byte_level())
