"""`look`: what is shown is what the model computes, in the open as without; values are weighted as a plain loop does it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from helpers import zoo
from helpers.same import close
from helpers.small_models import word_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import headcount as hc
from headcount.cli.app import app
from headcount.embedded import EMBEDDED
from headcount.errors import BadData, BadPlan, BadRun, NotFound, Refused
from headcount.head_roles import attention_view
from headcount.head_roles.token_texts import token_texts
from headcount.importance.attention import watched
from headcount.reporting.pictures.attention_page import AttentionView, as_bytes, as_weights, shares

TOKENS = word_tokenizer([f"w{n}" for n in range(20)])
TEXT, TARGET = "w1 w2 w3 w4 w1 w2", "w5 w6 w1"
PAIRS = {"marian", "t5"}


@cache
def seen(name: str) -> tuple[Any, AttentionView]:
    model, _ = zoo.build(name)
    return model, hc.look(model, TEXT, tokenizer=TOKENS, target=TARGET if name in PAIRS else None)


def in_the_open(model: Any, name: str) -> dict[str, torch.Tensor]:
    """The attention that transformers itself hands out, by type: (layers, heads, queries, keys)."""
    ids = torch.tensor([TOKENS(TEXT)["input_ids"]])
    more = {}
    if name in PAIRS:
        more["decoder_input_ids"] = torch.tensor(
            [[model.config.decoder_start_token_id, *TOKENS(TARGET)["input_ids"][:-1]]]
        )
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(input_ids=ids, output_attentions=True, **more)
    kinds = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    names = kinds if name in PAIRS else {hc.find(model).heads[0].attention: "attentions"}
    return {str(kind): torch.stack(list(out[key]))[:, 0] for kind, key in names.items()}


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "marian", "t5"])
def test_weights_are_those_that_the_model_hands_out(name: str) -> None:
    _model, view = seen(name)
    for kind, expected in in_the_open(zoo.build(name)[0], name).items():
        (found,) = (one for one in view.kinds if one.kind == kind)
        assert found.causal == (kind == "decoder")
        for layer, (_, heads) in enumerate(found.rows):
            for n, head in enumerate(heads):
                # half a step of a byte, on the scale of square roots
                assert (
                    abs(np.sqrt(view.weights(head.unit)) - expected[layer, n].numpy() ** 0.5).max() <= 0.5 / 255 + 1e-5
                )


def test_a_weight_is_kept_as_a_byte_and_small_ones_are_told_from_nothing() -> None:
    weights = np.linspace(0, 1, 10001, dtype=np.float32)
    again = as_weights(as_bytes(weights))
    assert abs(np.sqrt(again) - np.sqrt(weights)).max() <= 0.5 / 255 + 1e-6
    assert as_bytes(np.array([0.0, 0.0001, 1.0])).tolist() == [0, 3, 255]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "gpt_neox", "phi3", "bloom", "qwen3", "opt"])
def test_what_a_head_takes_from_each_token_adds_up_to_what_it_writes(name: str) -> None:
    """The norms are those of vectors: attention times W_O v, summed over keys, is what the head adds to the residual stream."""
    model, view = seen(name)
    assert all(head.norms is not None for _, head in view._each())
    anatomy = hc.find(model)
    kind = view.kinds[0]
    site = anatomy[kind.rows[0][0]]
    given: list[torch.Tensor] = []
    hook = site.writer.register_forward_pre_hook(lambda _, args: given.append(args[0].detach()[0]))  # type: ignore[union-attr]
    inputs = {"input_ids": torch.tensor([TOKENS(TEXT)["input_ids"]])}
    if name in PAIRS:
        inputs["decoder_input_ids"] = torch.tensor([[model.config.decoder_start_token_id]])
    with torch.no_grad():
        model(**inputs)
    hook.remove()
    columns = site.columns  # type: ignore[union-attr]
    weight = getattr(columns.owner, columns.weight).detach()
    weight = weight if columns.column_axis else weight.T
    (attention,) = (one for key, one in in_the_open(zoo.build(name)[0], name).items() if key == kind.kind)
    tried = 0
    for n, head in enumerate(kind.rows[0][1]):
        part = slice(n * site.width, (n + 1) * site.width)  # type: ignore[union-attr]
        # values from what the head hands on: attention has full column rank here, so that they are what it is made of
        values = torch.linalg.lstsq(attention[0, n].double(), given[-1][:, part].double()).solution
        expected = (values @ weight[:, part].double().T).norm(dim=1)
        if torch.linalg.matrix_rank(attention[0, n].double(), rtol=1e-3) == attention.shape[-1]:
            assert np.allclose(head.norms, expected.numpy(), rtol=0.05, atol=1e-4), head.unit
            tried += 1
    assert tried


def test_value_weights_are_shares_of_each_row() -> None:
    _, view = seen("gpt2")
    unit = view.heads[-1]
    head = view._head(unit)
    assert head.norms is not None
    expected = view.weights(unit) * head.norms
    assert np.allclose(view.value_weights(unit), expected / expected.sum(1, keepdims=True), atol=1e-6)
    assert shares(np.zeros((1, 2), np.float32), np.ones(2)).tolist() == [[0, 0]]


def test_the_rows_of_keys_are_not_taken_for_values(monkeypatch) -> None:
    """Where the values cannot be found, nothing is weighted by them: here the last part of the reader is held back."""
    whole = attention_view._tables
    monkeypatch.setattr(attention_view, "_tables", lambda site: [parts[:-1] for parts in whole(site)])
    view = hc.look(zoo.build("gpt2")[0], TEXT, tokenizer=TOKENS)
    assert all(head.norms is None for _, head in view._each())
    with says(NotFound, about="values of 0:0"):
        view.value_weights("0:0")


def test_a_model_that_computes_something_else_in_the_open_is_refused(monkeypatch) -> None:
    """As Falcon, whose attention in the open has no causal mask where its fused one has it: it is read as it is."""
    view = hc.look(zoo.build("falcon-mqa")[0], TEXT, tokenizer=TOKENS)
    assert view.kinds[0].causal

    @contextmanager
    def changing(root: Any, sites: Any, see: Any) -> Any:
        hook = root.lm_head.register_forward_hook(lambda _, __, output: 1.2 * output)
        with watched(root, sites, see):
            yield
        hook.remove()

    monkeypatch.setattr(attention_view, "watched", changing)
    with says(Refused, about="something else"):
        hc.look(zoo.build("falcon-mqa")[0], TEXT, tokenizer=TOKENS)


def test_with_a_head_masked_later_layers_look_elsewhere_and_it_is_marked() -> None:
    model, whole = seen("gpt2")
    before = Fingerprint(model)
    view = hc.look(model, TEXT, tokenizer=TOKENS, masked="0:1")
    assert before.changed() == []
    assert view.masked == "0:1"
    assert [head.unit for _, head in view._each() if head.masked] == ["0:1"]
    assert all(np.array_equal(view._head(f"0:{n}").weights, whole._head(f"0:{n}").weights) for n in range(4))
    assert not all(np.array_equal(view._head(f"1:{n}").weights, whole._head(f"1:{n}").weights) for n in range(4))
    assert view._head("0:1").norms is not None
    assert "Seen with 0:1 masked" in view.html()


def test_some_heads_alone() -> None:
    model, whole = seen("marian")
    view = hc.look(model, TEXT, tokenizer=TOKENS, target=TARGET, heads="encoder.1:0,2 decoder.0.cross:*")
    crossing = [str(unit) for unit in hc.find(model)["decoder.0.cross"].units]
    assert view.heads == ("encoder.1:0", "encoder.1:2", *crossing)
    assert close(view.weights("encoder.1:2"), whole.weights("encoder.1:2"), 0.02)


def test_the_decoder_reads_the_target_or_what_the_model_writes() -> None:
    _model, view = seen("marian")
    queries, keys = view.tokens("decoder.0.cross:0")
    assert queries[1:] == ("[CLS]", *TARGET.split())  # what begins the targets of this tokenizer; not the end
    assert keys == ("[CLS]", *TEXT.split(), "[SEP]")
    assert view.weights("decoder.0.cross:0").shape == (5, 8)
    written = hc.look(str(EMBEDDED / "translator"), "ein Mann mit einem Hut .", heads="decoder.0.cross:0")
    assert "The model wrote the target itself" in written.notes[0]
    assert written.tokens("decoder.0.cross:0")[0][1:4] == ("A", "man", "in")


def test_a_long_text_is_cut_off_and_it_is_said() -> None:
    model, _ = zoo.build("bert")
    view = hc.look(model, TEXT * 3, tokenizer=TOKENS, max_length=5)
    assert view.weights("0:0").shape == (5, 5)
    assert "of which the first 5 were read" in view.notes[0]


@pytest.mark.parametrize(
    ("name", "options", "error", "about"),
    [
        ("bert", {"target": "w1"}, BadData, "no decoder"),
        ("bert", {"heads": "0.mlp:3"}, BadPlan, "is not an attention head"),
        ("bert", {"tokenizer": None}, BadData, "do not know the tokenizer"),
        ("bert", {"text": "  "}, BadData, "no text"),
        ("jetmoe", {}, Refused, "does not weight values"),
        (
            "bert",
            {"tokenizer": word_tokenizer([f"w{n}" for n in range(200)]), "text": "w150 w190 w199"},
            BadData,
            "embeddings",
        ),
    ],
)
def test_what_cannot_be_shown_is_said(name: str, options: dict[str, Any], error: Any, about: str) -> None:
    with says(error, about=about):
        hc.look(zoo.build(name)[0], **{"text": TEXT, "tokenizer": TOKENS, **options})


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_tokens_are_shown_as_people_read_them() -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ["a film", "the film", "### ##", "### ##"],
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=letters, special_tokens=["<s>"]),
    )
    tokens = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")
    read = token_texts(tokens, tokens("<s>the film é\n")["input_ids"])
    assert [token.text for token in read] == ["<s>", "the", "film", "␣", "‹C3›", "‹A9›", "⏎"]
    assert [token.glued for token in read] == [False, True, False, False, True, True, True]
    assert [token.special for token in read] == [True, *[False] * 6]
    read = token_texts(TOKENS, TOKENS("w1 w2")["input_ids"])  # of whole words
    assert [(token.text, token.glued) for token in read[1:-1]] == [("w1", False), ("w2", False)]
    forms = ["</s>", "▁Fuß", "b", "äl", "▁", "<0xC3>"]  # as of SentencePiece
    words = models.WordLevel({form: n for n, form in enumerate(forms)}, unk_token="</s>")
    read = token_texts(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="</s>"), range(1, 6))
    assert [token.text for token in read] == ["Fuß", "b", "äl", "␣", "‹C3›"]
    assert [token.glued for token in read] == [False, True, True, False, True]
    pieces = hc.data.encoding.loaded_tokenizer(str(EMBEDDED / "classifier"))
    read = token_texts(pieces, pieces("unwatchable films")["input_ids"])
    assert read[0] == ("[CLS]", False, True)
    assert not any("##" in token.text for token in read)
    assert "".join(token.text if token.glued else f" {token.text}" for token in read[1:-1]) == " unwatchable films"


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page_and_overwrites_none(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["look", str(EMBEDDED / "classifier"), "--text", "a dull film", "--heads", "0:1 5:*", "-o", str(page)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.output.split(" · ")[0] == "9 heads on 5 tokens"
    text = page.read_text(encoding="utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert [len(row["heads"]) for row in data["kinds"][0]["rows"]] == [1, 8]
    again = CliRunner().invoke(app, words)
    assert isinstance(again.exception, BadRun)
    assert "there already" in str(again.exception)
    assert CliRunner().invoke(app, [*words, "--force", "--masked", "0:1"]).exit_code == 0
    assert "Seen with 0:1 masked" in page.read_text(encoding="utf-8")
