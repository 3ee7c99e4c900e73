"""Tasks: what a batch says of every example equals what the model says of it alone, for every kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import extra
import numpy as np
import pytest
import torch
from conftest import Fingerprint, says
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetForSequenceClassification,
)

import headcount as hc
from headcount.data.losses import translated
from headcount.data.task_types import task
from headcount.data.tasks import Task, custom_task
from headcount.errors import BadData

SENTENCES = [
    "the film is good",
    "it is long and it is dull and nobody laughs at all",
    "good",
    "a dull film about a long war",
    "nobody laughs and nobody cries",
    "the war is long",
    "a good film about nobody",
]
LABELS = [1, 0, 1, 0, 0, 0, 1]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
SIZES: dict[str, Any] = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def _tokenizer(begin: str = "<s>", end: str = "</s>", side: str = "right", **options: Any) -> Any:
    """A tokenizer of words, trained on the sentences; what begins and ends a text, and the padding, as asked."""
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.train_from_iterator(SENTENCES, trainers.WordLevelTrainer(special_tokens=SPECIAL))
    one = " ".join(part for part in (begin, "$A", end) if part)
    two = " ".join(part for part in (begin, "$A", end, "$B:1", f"{end}:1" if end else "") if part)
    words.post_processor = processors.TemplateProcessing(
        single=one, pair=two, special_tokens=[(token, SPECIAL.index(token)) for token in SPECIAL]
    )
    names = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    }
    names = {name: options.get(name, token) for name, token in names.items()} | {"cls_token": options.get("cls_token")}
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        padding_side=side,
        model_max_length=options.get("model_max_length", 30),
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{name: token for name, token in names.items() if token},
    )


def _build(make: Any, config: Any) -> Any:
    torch.manual_seed(0)
    model = make(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def _bert(**options: Any) -> Any:
    return _build(BertForSequenceClassification, BertConfig(**SIZES, **TINY, max_position_embeddings=32, **options))


def _gpt2(make: Any = GPT2ForSequenceClassification, **options: Any) -> Any:
    sizes = {**SIZES, "pad_token_id": None}
    return _build(make, GPT2Config(**sizes, n_embd=32, n_layer=2, n_head=4, n_positions=32, **options))


def _bart(make: Any = BartForConditionalGeneration, **options: Any) -> Any:
    layers = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    ffn = {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    config = BartConfig(
        **SIZES, **layers, **ffn, d_model=32, max_position_embeddings=64, decoder_start_token_id=2, **options
    )
    return _build(make, config)


def _t5() -> Any:
    config = T5Config(**SIZES, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)
    return _build(T5ForConditionalGeneration, config)


def _data(labels: Sequence[Any] = LABELS, pair: bool = False) -> list[dict[str, Any]]:
    others = [*SENTENCES[1:], SENTENCES[0]]
    rows = list(zip(SENTENCES, others, labels, strict=True))
    if pair:
        return [{"sentence1": one, "sentence2": other, "label": label} for one, other, label in rows]
    return [{"text": one, "label": label} for one, _, label in rows]


def _rows(asked: Task, model: nn.Module, batch_size: int = 3) -> np.ndarray:
    found = np.full((asked.size, len(asked.metric.columns)), np.nan)
    with torch.no_grad():
        for numbers in asked.batches(batch_size):
            found[list(numbers)] = asked.rows(model, asked.collate(numbers))
    return found


# --- classification and regression ----------------------------------------------------------------------------------

XLNET = XLNetConfig(
    vocab_size=40, d_model=32, n_layer=2, n_head=4, d_inner=48, pad_token_id=0, bos_token_id=1, eos_token_id=2
)
GPT2 = {"begin": "", "end": "", "pad_token": None}


def _roberta() -> Any:
    return _build(RobertaForSequenceClassification, RobertaConfig(**SIZES, **TINY, max_position_embeddings=34))


def _gpt2_with_another_padding_token() -> Any:
    model = _gpt2()
    model.config.pad_token_id = 7
    return model


CLASSIFIERS = {
    "bert": (_bert, {}, False),
    "bert, pairs": (_bert, {}, True),
    "bert, padded on the left": (_bert, {"side": "left", "cls_token": "<s>"}, False),
    "roberta": (_roberta, {}, True),
    "roberta, padded on the left": (_roberta, {"side": "left", "cls_token": "<s>"}, False),
    "gpt2, no padding token": (_gpt2, GPT2, False),
    "gpt2, padded on the left": (_gpt2, {**GPT2, "side": "left"}, False),
    "gpt2, the config names another padding token": (_gpt2_with_another_padding_token, {"begin": "", "end": ""}, False),
    "xlnet": (lambda: _build(XLNetForSequenceClassification, XLNET), {"side": "left"}, False),
    "bart": (lambda: _bart(BartForSequenceClassification, num_labels=2), {}, False),
}


@pytest.mark.parametrize("which", CLASSIFIERS)
def test_a_batch_says_of_each_example_what_the_model_says_of_it_alone(which: str) -> None:
    make, options, pair = CLASSIFIERS[which]
    model, tokenizer = make(), _tokenizer(**options)
    before = Fingerprint(model)
    asked = task("classification", _data(pair=pair), tokenizer=tokenizer)
    rows = _rows(asked, model)
    want = []
    for number, row in enumerate(_data(pair=pair)):
        texts = (row["sentence1"], row["sentence2"]) if pair else (row["text"],)
        inputs = dict(tokenizer(*texts, return_tensors="pt"))
        if not pair:
            assert not inputs.pop("token_type_ids").any()  # to which GPT-2 would add the embedding of token 0
        with torch.no_grad():
            logits = model(**inputs).logits
        loss = functional.cross_entropy(logits, torch.tensor([LABELS[number]]))
        want.append((LABELS[number], logits.argmax().item(), loss.item()))
    np.testing.assert_allclose(rows, want, rtol=1e-4, atol=1e-5)
    assert np.ptp(rows[:, 2]) > 0.01, "the examples differ"
    losses = asked.loss(model, asked.collate([4, 1, 2]))
    np.testing.assert_allclose(losses.detach(), rows[[4, 1, 2], 2], rtol=1e-4, atol=1e-5)
    losses.sum().backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    model.zero_grad()
    assert not before.changed(), "the config's padding token has been put back"


@pytest.mark.parametrize("size", [1, 2, 7])
def test_rows_do_not_depend_on_the_batch_size_or_the_order(size: int) -> None:
    model, asked = _bert(), task("classification", _data(), tokenizer=_tokenizer())
    rows = _rows(asked, model)
    np.testing.assert_allclose(_rows(asked, model, size), rows, rtol=1e-5, atol=1e-5)
    turned = asked.subset(range(6, -1, -1))
    np.testing.assert_allclose(_rows(turned, model, size), rows[::-1], rtol=1e-5, atol=1e-5)


def test_texts_are_filled_up_with_the_end_token_where_there_is_none_for_padding() -> None:
    for side, place in (("right", -1), ("left", 0)):
        batch = task("classification", _data(), tokenizer=_tokenizer(**GPT2, side=side)).collate([1, 2])
        assert (batch["input_ids"][1, place], batch["attention_mask"][1, place]) == (2, 0)
        assert batch["attention_mask"].sum(1).tolist() == [12, 1]


def test_a_tiled_batch_gives_tiled_rows() -> None:
    model, asked = _bart(), task("translation", _pairs(), tokenizer=_tokenizer(begin=""))
    batch = asked.collate([0, 1, 2])
    tiled = {
        name: torch.cat([one, one]) if isinstance(one, torch.Tensor) else [*one, *one] for name, one in batch.items()
    }
    for one in (asked, asked.with_metric("loss")):
        with torch.no_grad():
            once, twice = one.rows(model, batch), one.rows(model, tiled)
        np.testing.assert_allclose(twice, np.concatenate([once, once]), rtol=1e-5, atol=1e-5)


def test_metrics_of_classification_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    model, asked = _bert(), task("classification", _data(), tokenizer=_tokenizer())
    for name, value in (
        ("accuracy", sklearn.accuracy_score),
        ("f1", sklearn.f1_score),
        ("matthews", sklearn.matthews_corrcoef),
    ):
        rows = _rows(asked.with_metric(name), model)
        assert asked.with_metric(name).metric.value(rows) == pytest.approx(value(rows[:, 0], rows[:, 1]))
    assert asked.with_metric("loss").metric.value(rows) == pytest.approx(rows[:, 2].mean())
    with says(BadData, about="classification has no metric 'bleu'; choose one of accuracy, f1, matthews, loss"):
        asked.with_metric("bleu")
    three = _bert(num_labels=3)
    with says(BadData, about="has 2 labels and the model has 3 outputs"):
        _rows(asked.with_metric("f1"), three)
    assert np.isfinite(_rows(asked, three)).all()


def test_regression() -> None:
    model, scores = _bert(num_labels=1), [0.5, 4.0, 5.0, 2.25, 1.0, 0.0, 3.5]
    tokenizer = _tokenizer()
    asked = task("regression", _data(scores), tokenizer=tokenizer)
    with torch.no_grad():
        alone = [model(**tokenizer(one, return_tensors="pt")).logits.item() for one in SENTENCES]
    rows = _rows(asked, model)
    np.testing.assert_allclose(rows[:, :2], np.stack([scores, alone], 1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(rows[:, 2], (np.array(alone) - scores) ** 2, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(asked.loss(model, asked.collate(range(7))).detach(), rows[:, 2], rtol=1e-4, atol=1e-6)
    assert asked.metric.value(rows) == pytest.approx(np.corrcoef(scores, alone)[0, 1], abs=1e-4)
    with says(BadData, about="regression needs one per example"):
        _rows(asked, _bert())
    with says(BadData, about="classification needs"):
        _rows(task("classification", _data(), tokenizer=tokenizer), model)


def test_labels_are_those_of_the_model() -> None:
    names = ["negative", "positive"]
    words = [names[label] for label in LABELS]
    named = _bert(id2label={0: "POSITIVE", 1: "NEGATIVE"}, label2id={"POSITIVE": 0, "NEGATIVE": 1})
    asked = task("classification", _data(words), tokenizer=_tokenizer())
    assert _rows(asked, named)[:, 0].tolist() == [1 - label for label in LABELS]
    with says(BadData, about="labels="):
        _rows(asked, _bert())
    for given in (names, "negative,positive"):
        told = task("classification", _data(words), tokenizer=_tokenizer(), labels=given)
        assert _rows(told, _bert())[:, 0].tolist() == LABELS
    with says(BadData, about="has the label 5"):
        _rows(task("classification", _data([5, *LABELS[1:]]), tokenizer=_tokenizer()), _bert())
    with says(BadData, about="count from 1 to 2"):
        _rows(task("classification", _data([label + 1 for label in LABELS]), tokenizer=_tokenizer()), _bert())
    many = task("classification", _data() * 10, tokenizer=_tokenizer(), limit=5)  # 70 rows were seen, 5 are asked
    with says(BadData, about="2 different labels ('0', '1') and the model has 3 outputs"):
        _rows(many, _bert(num_labels=3))


def test_texts_are_cut_off_and_counted() -> None:
    asked = task("classification", _data(), tokenizer=_tokenizer(), max_length=8)
    assert asked.shortened == {1, 3}
    assert (asked.truncated, max(asked.lengths)) == (2, 8)
    assert asked.collate([1])["input_ids"][0, -1] == 2, "the end-of-text token stays"
    assert asked.subset([0, 3, 2]).shortened == {1}
    assert "2 cut off" in repr(asked)
    assert task("classification", _data(), tokenizer=_tokenizer()).truncated == 0
    unlimited = _tokenizer(model_max_length=int(1e30))
    long = task("classification", {"text": ["good " * 600], "label": [1]}, tokenizer=unlimited)
    assert (long.lengths, long.truncated) == ([512], 1)
    with says(BadData, about="has 512 tokens and the model has 32 positions; give the task max_length=32"):
        _rows(long, _bert())
    with says(BadData, about="no token in row 1 of the data"):
        task("classification", {"text": [""], "label": [1]}, tokenizer=_tokenizer(begin="", end=""))


def test_models_without_the_head_that_the_kind_needs() -> None:
    tokenizer = _tokenizer()
    classes, language = (task(kind, _data(), tokenizer=tokenizer) for kind in ("classification", "language-modelling"))
    bare = _build(BertModel, BertConfig(**SIZES, **TINY))
    with says(BadData, about="AutoModelForSequenceClassification"):
        _rows(classes, bare)
    with says(BadData, about="AutoModelForCausalLM"):
        _rows(language, _bert())
    with says(BadData, about="sees the words it would guess"):
        _rows(language, _build(BertForMaskedLM, BertConfig(**SIZES, **TINY)))
    with says(BadData, about="is an encoder-decoder, which language-modelling cannot use"):
        _rows(language, _bart())
    with says(BadData, about="is no encoder-decoder"):
        _rows(task("translation", _pairs(), tokenizer=tokenizer), _gpt2(GPT2LMHeadModel))


# --- language modelling ---------------------------------------------------------------------------------------------


def _surprise(model: Any, ids: list[int]) -> float:
    """Minus the log-probability of all tokens but the first, by the definition."""
    with torch.no_grad():
        chances = model(input_ids=torch.tensor([ids])).logits[0].double().softmax(-1)
    return -sum(math.log(chances[place - 1, ids[place]]) for place in range(1, len(ids)))


@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_of_a_table_are_guessed_one_by_one(side: str) -> None:
    model, tokenizer = _gpt2(GPT2LMHeadModel), _tokenizer(begin="", side=side, pad_token=None)
    asked = task("language-modelling", [{"text": one} for one in (*SENTENCES, "")], tokenizer=tokenizer)
    assert (asked.size, asked.skipped) == (7, 1), "there is nothing to guess in the last one"
    want = [_surprise(model, tokenizer(one)["input_ids"]) for one in SENTENCES]
    tokens = [len(one.split()) for one in SENTENCES]  # and the end, less the first
    rows = _rows(asked, model)
    np.testing.assert_allclose(rows, np.stack([want, tokens], 1), rtol=1e-4)
    assert asked.metric.value(rows) == pytest.approx(math.exp(sum(want) / sum(tokens)), rel=1e-4)
    np.testing.assert_allclose(asked.loss(model, asked.collate(range(7))).detach(), want, rtol=1e-4)


@pytest.mark.parametrize("begin", ["", "<s>"])
def test_plain_text_is_joined_and_cut_into_blocks(begin: str, tmp_path: Path) -> None:
    path = tmp_path / "wiki.txt"
    path.write_text("\n".join([*SENTENCES[:3], "", *SENTENCES[3:]]) + "\n", encoding="utf-8")
    tokenizer = _tokenizer(begin=begin, end="")
    model = _build(LlamaForCausalLM, LlamaConfig(**SIZES, **TINY))
    asked = task("language-modelling", path, tokenizer=tokenizer, max_length=8)
    ids = tokenizer(" ".join(SENTENCES), add_special_tokens=False)["input_ids"]
    first, step = ([1], 7) if begin else ([], 8)
    blocks = [first + ids[start : start + step] for start in range(0, len(ids), step)]
    rows = _rows(asked, model)
    np.testing.assert_allclose(rows[:, 0], [_surprise(model, block) for block in blocks], rtol=1e-4)
    assert rows[:, 1].sum() == len(ids) - (0 if begin else len(blocks))
    assert asked.describe(1).startswith("block 2 of ")
    drawn = task("language-modelling", path, tokenizer=tokenizer, max_length=8, limit=2)
    assert drawn.size == 2
    assert all(any(np.allclose(one, other, rtol=1e-4) for other in rows) for one in _rows(drawn, model))


@pytest.mark.parametrize("make", [BertForMaskedLM, RobertaForMaskedLM])
def test_positions_count_from_the_text_where_padding_is_on_the_left(make: Any) -> None:
    config = (BertConfig if make is BertForMaskedLM else RobertaConfig)(**SIZES, **TINY, max_position_embeddings=34)
    model, data = _build(make, config), [{"text": one} for one in SENTENCES]
    right, left = (
        task("masked-language-modelling", data, tokenizer=_tokenizer(side=side)) for side in ("right", "left")
    )
    assert left.collate([0, 1])["input_ids"][0, 0] == 0
    np.testing.assert_allclose(_rows(left, model, 7), _rows(right, model, 1), rtol=1e-4)


def test_masked_tokens_are_drawn_by_example_and_not_by_batch(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join([*SENTENCES[:2], "", *SENTENCES[2:]]), encoding="utf-8")
    tokenizer, model = _tokenizer(), _build(BertForMaskedLM, BertConfig(**SIZES, **TINY))
    asked = task("masked-language-modelling", path, tokenizer=tokenizer)
    assert asked.size == 7
    rows = _rows(asked, model)
    assert rows[:, 1].tolist() == [max(1, round(0.15 * len(one.split()))) for one in SENTENCES]
    for number, text in enumerate(SENTENCES):
        batch, plain = asked.collate([number]), tokenizer(text)["input_ids"]
        goals, seen = batch["labels"][0].tolist(), batch["input_ids"][0].tolist()
        hidden = [place for place, goal in enumerate(goals) if goal != -100]
        assert [plain[place] for place in hidden] == [goals[place] for place in hidden]
        assert seen == [4 if place in hidden else token for place, token in enumerate(plain)]
        with torch.no_grad():
            chances = model(input_ids=batch["input_ids"]).logits[0].double().log_softmax(-1)
        np.testing.assert_allclose(rows[number, 0], -sum(chances[place, goals[place]] for place in hidden), rtol=1e-4)
    few = task("masked-language-modelling", path, tokenizer=tokenizer, limit=3)
    assert all(any(np.allclose(one, other, rtol=1e-4) for other in rows) for one in _rows(few, model))
    assert few.fingerprint != task("masked-language-modelling", path, tokenizer=tokenizer, limit=3, seed=1).fingerprint
    same = task("masked-language-modelling", {"text": [SENTENCES[1]] * 9}, tokenizer=tokenizer).collate(range(9))
    assert len({tuple(goals) for goals in same["labels"].tolist()}) > 3, "equal texts in different rows differ in masks"
    with says(BadData, about="no mask token"):
        task("masked-language-modelling", path, tokenizer=_tokenizer(mask_token=None))


# --- translation ----------------------------------------------------------------------------------------------------


def _pairs() -> list[dict[str, str]]:
    return [
        {"source": one, "target": other} for one, other in zip(SENTENCES, [*SENTENCES[2:], *SENTENCES[:2]], strict=True)
    ]


@pytest.mark.parametrize("make", [_bart, _t5])
def test_translation_loss_is_the_models_own_on_single_examples(make: Any) -> None:
    model, tokenizer = make(), _tokenizer(begin="")
    asked = task("translation", _pairs(), tokenizer=tokenizer, metric="loss")
    want = []
    for pair in _pairs():
        goal = tokenizer(pair["target"], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            loss = model(input_ids=tokenizer(pair["source"], return_tensors="pt")["input_ids"], labels=goal).loss
        want.append((loss.item() * goal.shape[1], goal.shape[1]))
    rows = _rows(asked, model)
    np.testing.assert_allclose(rows, want, rtol=1e-4)
    assert not asked.generates
    assert asked.metric.value(rows) == pytest.approx(rows[:, 0].sum() / rows[:, 1].sum())
    losses = asked.loss(model, asked.collate(range(7)))
    np.testing.assert_allclose(losses.detach(), rows[:, 0], rtol=1e-4)
    losses.sum().backward()


def _wordy(ends: float = -100.0) -> Any:
    """A translator without sense that says words, other ones to other sources; `ends` is how gladly it ends."""
    model = _bart()
    # A random model would end at once, say what is no word, or one word for ever whatever it reads.
    words = torch.arange(40).ge(len(SPECIAL)) & torch.arange(40).lt(len(_tokenizer()))
    model.final_logits_bias[:, ~words] = -100
    model.final_logits_bias[:, 2] = ends
    model.generation_config.no_repeat_ngram_size = 2
    for layer in model.model.decoder.layers:
        layer.encoder_attn.out_proj.weight.data *= 10
    return model


@pytest.mark.parametrize("beams", [1, 3])
def test_scores_of_translations_are_those_of_sacrebleu_on_the_decoded_text(beams: int) -> None:
    import sacrebleu

    model, tokenizer = _wordy(), _tokenizer(begin="")
    before = Fingerprint(model)
    asked = task("translation", _pairs(), tokenizer=tokenizer, num_beams=beams, max_new_tokens=12)
    told = []
    for pair in _pairs():
        ids = tokenizer(pair["source"], return_tensors="pt")["input_ids"]
        out = model.generate(input_ids=ids, num_beams=beams, do_sample=False, max_new_tokens=13)  # the last is the end
        told.append(tokenizer.decode(out[0], skip_special_tokens=True))
    assert len(set(told)) > 3
    assert {len(one.split()) for one in told} == {12}
    goals = [pair["target"] for pair in _pairs()]
    for name, want in (("bleu", sacrebleu.corpus_bleu(told, [goals])), ("chrf", sacrebleu.corpus_chrf(told, [goals]))):
        measured = asked.with_metric(name)
        assert measured.generates
        assert measured.metric.value(_rows(measured, model)) == want.score
    assert not before.changed()


@pytest.mark.parametrize(("make", "beams"), [(_wordy, 1), (_wordy, 3), (_t5, 1)])
def test_a_translation_is_what_it_would_be_alone_with_its_own_limit(make: Any, beams: int) -> None:
    model, tokenizer = make(), _tokenizer(begin="")
    if make is _wordy:
        model.final_logits_bias[:, 2] = 0.0
    asked = task("translation", _pairs(), tokenizer=tokenizer, num_beams=beams)
    texts, ended = [], []
    for pair in _pairs():
        ids = tokenizer(pair["source"], return_tensors="pt")["input_ids"]
        limit = 2 * ids.shape[1] + 10
        settings = {"num_beams": beams, "do_sample": False, "forced_eos_token_id": 2}
        out = model.generate(input_ids=ids, max_new_tokens=limit + 1, **settings)[0]
        texts.append(tokenizer.decode(out, skip_special_tokens=True))
        ended.append(2 in out[1 : 1 + limit])
    for size in (2, 7):
        for numbers in asked.batches(size):
            made = translated(tokenizer, beams, model, asked.collate(numbers))
            assert made.texts == [texts[number] for number in numbers]
            assert made.unfinished.tolist() == [not ended[number] for number in numbers]


@pytest.mark.parametrize("beams", [1, 3])
def test_rows_of_a_translation_do_not_depend_on_what_else_is_in_the_data(beams: int) -> None:
    model, tokenizer = _wordy(0.0), _tokenizer(begin="")

    def rows(pairs: list[dict[str, str]], batch_size: int = 3) -> np.ndarray:
        return _rows(task("translation", pairs, tokenizer=tokenizer, num_beams=beams), model, batch_size)

    want = np.concatenate([rows([pair]) for pair in _pairs()])
    assert set(want[:, -1]) == {0.0, 1.0}, "some end by themselves, some have to be ended"
    longer = [{"source": "good " * 9, "target": "the war is long " * 5}, {"source": "dull", "target": "film"}]
    np.testing.assert_array_equal(rows(_pairs()[::-1])[::-1], want)
    for size in (2, 9):
        np.testing.assert_array_equal(rows([*_pairs(), *longer], size)[:7], want)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("has_an_end", [True, False])
def test_a_model_that_never_ends_is_stopped_at_the_limit_of_each_sentence(beams: int, has_an_end: bool) -> None:
    model, tokenizer = _wordy(), _tokenizer(begin="")
    if not has_an_end:
        model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    asked = task("translation", _pairs(), tokenizer=tokenizer, num_beams=beams)
    made = translated(tokenizer, beams, model, asked.collate(range(7)))
    assert [len(text.split()) for text in made.texts] == [2 * (len(one.split()) + 1) + 10 for one in SENTENCES]
    assert made.unfinished.all()
    result = hc.evaluate(model, asked)
    assert (result.unfinished, result.to_json()["unfinished"]) == (7, 7)
    assert hc.evaluate(model, asked.with_metric("loss")).unfinished is None


def test_translations_of_several_plans_at_once_have_the_limits_of_their_sentences() -> None:
    model, asked = _wordy(0.0), task("translation", _pairs(), tokenizer=_tokenizer(begin=""), num_beams=2)
    names = ("decoder.1.cross:0", "decoder.1.cross:1", "decoder.0.cross:1", "decoder.0.self:0")
    found = hc.ablate(model, asked, {name: hc.Plan.of(name) for name in names}, batch_size=4)
    one_by_one = []
    for name in ("", *names):
        with hc.masked(model, hc.Plan.of(name) if name else hc.Plan()):
            one_by_one.append(_rows(asked, model, batch_size=7))
    np.testing.assert_array_equal([found.base.rows, *found.rows], one_by_one)
    assert len(np.unique(np.sum(one_by_one, axis=1), axis=0)) > 2
    assert found.unfinished == [int(rows[:, -1].sum()) for rows in one_by_one[1:]]


def test_how_long_translations_get_is_settled_by_the_task() -> None:
    model, tokenizer = _wordy(), _tokenizer(begin="")
    model.generation_config.max_length = 3  # the model's own wish does not count
    lengths: list[int] = []
    for limit, kept in ((4, 4), (500, 63)):  # no more than the model has positions, less one for the start token
        asked = task("translation", _pairs(), tokenizer=tokenizer, max_new_tokens=limit)
        made = translated(tokenizer, 1, model, asked.collate(range(7)))
        assert {len(text.split()) for text in made.texts} == {kept}
    generate = model.generate
    model.generate = lambda **inputs: lengths.append((out := generate(**inputs)).shape[1]) or out
    _rows(task("translation", _pairs(), tokenizer=tokenizer), model, batch_size=3)
    # no longer than the longest source of the batch allows: a start token, 2n + 10, an end token
    assert lengths == [1 + 2 * tokens + 10 + 1 for tokens in (13, 6, 2)]


def test_a_signature_says_how_text_was_generated() -> None:
    model, tokenizer = _bart(), _tokenizer(begin="")
    asked = task("translation", _pairs(), tokenizer=tokenizer)
    assert "|metric:bleu|beams:1|limit:2n+10|" in hc.evaluate(model, asked).signature
    fixed = task("translation", _pairs(), tokenizer=tokenizer, num_beams=2, max_new_tokens=9, metric="chrf")
    assert "|metric:chrf|beams:2|limit:9|" in hc.evaluate(model, fixed).signature
    assert "beams" not in hc.evaluate(model, asked.with_metric("loss")).signature
    assert "|metric:loss|headcount:" in hc.score(model, asked).signature, (
        "which looks at the loss, whatever is measured"
    )


def test_a_batch_of_a_translation_task_proves_a_cut() -> None:
    model, asked = _bart(), task("translation", _pairs(), tokenizer=_tokenizer(begin=""))
    assert set(asked.batch()) == {"input_ids", "attention_mask", "decoder_input_ids"}
    assert asked.batch(3)["decoder_input_ids"].min() >= 0
    hc.cut(model, "encoder.0:1 decoder.1.cross:0", check=asked.batch())
    assert np.isfinite(_rows(asked, model)).all()


def test_a_prefix_is_put_before_every_source() -> None:
    plain, prefixed = (
        task("translation", _pairs(), tokenizer=_tokenizer(begin=""), prefix=one) for one in ("", "good film ")
    )
    assert [after - before for before, after in zip(plain.lengths, prefixed.lengths, strict=True)] == [2] * 7
    assert plain.fingerprint != prefixed.fingerprint


# --- pictures -------------------------------------------------------------------------------------------------------


def test_pictures_of_a_folder_are_classified(tmp_path: Path) -> None:
    if not extra.enable():
        pytest.skip("pillow is not installed")
    from PIL import Image
    from transformers import ViTConfig, ViTForImageClassification

    for number, name in enumerate(["cat/a.png", "cat/b.png", "dog/c.png"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L" if number else "RGB", (8, 8), 80 * number).save(tmp_path / name)

    def prepared(picture: Any) -> torch.Tensor:
        assert picture.mode == "RGB"
        return torch.tensor(np.asarray(picture, dtype=np.float32) / 255).permute(2, 0, 1)

    names = {0: "Dog", 1: "Cat"}
    config = ViTConfig(**TINY, image_size=8, patch_size=4, id2label=names, label2id={"Dog": 0, "Cat": 1})
    model = _build(ViTForImageClassification, config)
    asked = task("image-classification", tmp_path, tokenizer=prepared)
    rows = _rows(asked, model)
    assert rows[:, 0].tolist() == [1, 1, 0]
    with torch.no_grad():
        alone = model(pixel_values=prepared(Image.open(tmp_path / "dog/c.png").convert("RGB"))[None]).logits
    assert rows[2, 2] == pytest.approx(functional.cross_entropy(alone, torch.tensor([0])).item(), rel=1e-4)
    assert asked.describe(2) == "row 3 of " + tmp_path.name + ": 'c.png'"
    before = asked.fingerprint
    Image.new("RGB", (8, 8), 99).save(tmp_path / "dog/c.png")
    again = task("image-classification", tmp_path, tokenizer=prepared)
    assert again.fingerprint != before
    (tmp_path / "dog/c.png").write_bytes(b"no picture")
    with says(BadData, about="c.png"):
        task("image-classification", tmp_path, tokenizer=prepared).collate([2])


# --- the task itself ------------------------------------------------------------------------------------------------


def test_batches_hold_every_example_once_the_longest_first() -> None:
    asked = task("classification", _data(), tokenizer=_tokenizer(), batch_size=3)
    assert [asked.lengths[number] for numbers in asked.batches() for number in numbers] == sorted(
        asked.lengths, reverse=True
    )
    assert sorted(number for numbers in asked.batches() for number in numbers) == list(range(7))
    assert [len(numbers) for numbers in asked.batches()] == [3, 3, 1]
    assert [len(numbers) for numbers in asked.batches(5)] == [5, 2]
    assert set(asked.batch(2)) == {"input_ids", "attention_mask"}
    assert len(asked.batch(2)["input_ids"]) == 2
    for wrong in (
        lambda: asked.batches(0),
        lambda: task("classification", _data(), tokenizer=_tokenizer(), batch_size=0),
    ):
        with says(BadData, about="at least 1"):
            wrong()


def test_subsets_and_splits() -> None:
    asked = task("classification", _data(), tokenizer=_tokenizer())
    few = asked.subset([5, 2])
    assert few.describe(1) == "row 3 of the data: 'good'"
    assert few.collate([1])["input_ids"].tolist() == asked.collate([2])["input_ids"].tolist()
    assert (few.size, few.lengths) == (2, (asked.lengths[5], asked.lengths[2]))
    one, two, three = asked.split(0.5, 0.25, 0.25)
    told = [part.describe(number) for part in (one, two, three) for number in range(part.size)]
    assert sorted(told) == sorted(asked.describe(number) for number in range(7))
    assert asked.split(0.5, seed=1)[0].fingerprint != one.fingerprint == asked.split(0.5)[0].fingerprint
    for wrong in ((0.9, 0.2), (), (-0.5, 0.5), (0.01,)):
        with says(BadData):
            asked.split(*wrong)
    for numbers in ([], [1, 1], [7], [-1]):
        with says(BadData, about="different numbers from 0 to 6"):
            asked.subset(numbers)


def test_fingerprints_tell_tasks_apart_and_nothing_else_does() -> None:
    def fingerprint(data: Any = None, tokenizer: Any = None, kind: str = "classification", **options: Any) -> str:
        return task(kind, data or _data(), tokenizer=tokenizer or _tokenizer(), **options).fingerprint

    assert fingerprint() == fingerprint(batch_size=3) == fingerprint(max_length=29)
    asked = task("classification", _data(), tokenizer=_tokenizer())
    assert (
        asked.with_metric("f1").with_metric("accuracy").fingerprint
        == fingerprint()
        == asked.subset(range(7)).fingerprint
    )
    assert asked.subset([1, 0]).subset([1]).fingerprint == asked.subset([0]).fingerprint
    different = [
        fingerprint(),
        fingerprint(metric="f1"),
        fingerprint(_data([0, *LABELS[1:]])),
        fingerprint(tokenizer=_tokenizer(begin="")),
        fingerprint(max_length=8),
        fingerprint(limit=3),
        fingerprint(limit=3, seed=1),
        fingerprint(labels=["1", "0"]),
        fingerprint(kind="regression"),
        fingerprint(_pairs(), kind="translation"),
        fingerprint(_pairs(), kind="translation", num_beams=2),
        fingerprint(_pairs(), kind="translation", max_new_tokens=9),
    ]
    assert len(set(different)) == len(different)


def test_what_a_task_needs_is_said() -> None:
    with says(BadData, about="choose one of classification, regression, translation"):
        task("poetry", _data(), tokenizer=_tokenizer())
    with says(BadData, about="needs a tokenizer"):
        task("classification", _data())
    with says(BadData, about="no tokenizer in"):
        task("classification", _data(), tokenizer="/nowhere/at/all")
    with says(BadData, about="max_length is 1"):
        task("classification", _data(), tokenizer=_tokenizer(), max_length=1)
    for option in ("num_beams", "max_new_tokens"):
        with says(BadData, about=f"{option} is 0"):
            task("translation", _pairs(), tokenizer=_tokenizer(), **{option: 0})


def test_a_tokenizer_is_loaded_from_its_folder(tmp_path: Path) -> None:
    _tokenizer().save_pretrained(tmp_path)
    assert task("classification", _data(), tokenizer=tmp_path).lengths == [len(one.split()) + 2 for one in SENTENCES]


# --- the user's own -------------------------------------------------------------------------------------------------


def _own(sizes: Sequence[int] = (4, 3)) -> list[dict[str, Any]]:
    torch.manual_seed(1)
    return [
        {
            "x": torch.randn(size, 3 + size),
            "y": torch.randn(size),
            "names": [f"n{one}" for one in range(size)],
            "scale": 2.0,
        }
        for size in sizes
    ]


def _off(model: nn.Module, batch: Any) -> torch.Tensor:
    assert len(batch["names"]) == len(batch["x"])
    return (model(batch["x"].mean(1, keepdim=True))[:, 0] * batch["scale"] - batch["y"]) ** 2


def test_own_batches_and_functions_in_three_lines() -> None:
    model, batches = nn.Linear(1, 1), _own()
    asked = custom_task(batches, loss=_off, values=lambda model, batch: -_off(model, batch))
    want = torch.cat([_off(model, batch) for batch in batches]).detach()
    assert asked.size == 7
    assert asked.batches() == [(0, 1, 2, 3), (4, 5, 6)]
    assert asked.batches(2) == [(0, 1), (2, 3), (4, 5), (6,)], "batches are never mixed: their shapes differ"
    for size in (1, 2, 4):
        np.testing.assert_allclose(_rows(asked, model, size)[:, 0], -want, rtol=1e-5, atol=1e-6)
    assert asked.metric.value(_rows(asked, model)) == pytest.approx(-want.mean().item())
    assert asked.metric.higher_is_better
    losses = asked.loss(model, asked.collate([5, 4]))
    torch.testing.assert_close(losses, want[[5, 4]])
    losses.sum().backward()
    part = asked.subset([6, 1, 4])
    assert part.batches() == [(1,), (2, 0)]
    np.testing.assert_allclose(_rows(part, model)[:, 0], -want[[6, 1, 4]], rtol=1e-5, atol=1e-6)
    assert asked.batch(2)["names"] == ["n0", "n1"]
    assert asked.describe(4) == "example 1 of batch 2 of own batches"


def test_own_batches_that_cannot_be_taken_apart_are_one_example_each() -> None:
    batches = [{"x": torch.ones(2, 3), "y": torch.ones(5) * number} for number in range(3)]
    asked = custom_task(batches, values=lambda model, batch: batch["x"].sum() + batch["y"].sum())
    assert (asked.size, asked.rowwise, asked.batches()) == (3, False, [(0,), (1,), (2,)])
    assert _rows(asked, nn.Identity())[:, 0].tolist() == [6.0, 11.0, 16.0]
    assert custom_task(_own(), loss=_off).rowwise
    with says(BadData, about="made without loss="):
        asked.loss(nn.Identity(), asked.collate([0]))
    with says(BadData, about="different batches"):
        asked.collate([0, 1])
    with says(BadData, about="shape (2, 3) for a batch of 1"):
        custom_task(batches, values=lambda model, batch: batch["x"]).rows(nn.Identity(), batches[0])


def test_own_functions_must_give_one_number_per_example() -> None:
    with says(BadData, about="shape () for a batch of 4; it must give one per example, (4,)"):
        custom_task(_own(), loss=lambda model, batch: batch["y"].mean()).loss(nn.Identity(), _own()[0])
    only = custom_task(_own(), loss=_off)
    assert not only.metric.higher_is_better
    with says(BadData, about="at least one batch"):
        custom_task(_own())
    with says(BadData, about="there is no 'accuracy'"):
        only.with_metric("accuracy")


def test_fingerprints_of_own_tasks() -> None:
    one = custom_task(_own(), loss=_off).fingerprint
    assert one == custom_task(_own(), loss=_off).fingerprint
    changed = _own()
    changed[1]["y"][2] += 1
    other = [
        custom_task(changed, loss=_off),
        custom_task(_own(), loss=lambda m, b: _off(m, b)),
        custom_task(_own(), loss=_off, values=_off),
    ]
    assert len({one, *(each.fingerprint for each in other)}) == 4


# --- batches as a DataLoader gives them -----------------------------------------------------------------------------


def _squares(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, labels = batch
    inputs = inputs["x"] if isinstance(inputs, dict) else inputs
    return (model(inputs)[:, 0] - labels) ** 2


def _loader(**options: Any) -> Any:
    torch.manual_seed(2)
    return DataLoader(TensorDataset(torch.randn(7, 3), torch.randn(7)), batch_size=4, **options)


def test_a_data_loader_or_tuples_are_handed_to_the_functions_as_they_are() -> None:
    model, batches = nn.Linear(3, 1), list(_loader())
    want = torch.cat([_squares(model, batch) for batch in batches]).detach()
    named = [({"x": inputs}, labels) for inputs, labels in batches]
    for given in (_loader(), batches, [tuple(batch) for batch in batches], iter(batches), named):
        asked = custom_task(given, loss=_squares)
        assert (asked.size, asked.rowwise, asked.notes) == (7, True, ())
        np.testing.assert_allclose(_rows(asked, model, 2)[:, 0], want, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(asked.loss(model, asked.collate([5, 4])).detach(), want[[5, 4]])
    assert custom_task(named, loss=_squares).batch(2).keys() == {"x"}, "what the model takes"
    with says(BadData, about="do not name the arguments"):
        custom_task(batches, loss=_squares).batch()
    one = {"x": torch.ones(5, 3)}
    assert custom_task(one, loss=lambda model, batch: model(batch["x"])[:, 0]).size == 5, "a single batch"
    (note,) = custom_task(_loader(shuffle=True), loss=_squares).notes
    assert "shuffles" in note


def test_verbs_measure_tuples_as_they_measure_dicts() -> None:
    model, ids = _bert(num_labels=2), torch.randint(3, 40, (6, 5), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(6) % 2

    def loss(model: nn.Module, inputs: Any, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(input_ids=inputs).logits, labels, reduction="none")

    by_name = custom_task([{"ids": ids, "y": labels}], loss=lambda model, batch: loss(model, batch["ids"], batch["y"]))
    by_place = custom_task([(ids, labels)], loss=lambda model, batch: loss(model, *batch))
    np.testing.assert_allclose(hc.evaluate(model, by_place).rows, hc.evaluate(model, by_name).rows, rtol=1e-5)
    np.testing.assert_allclose(hc.score(model, by_place).values, hc.score(model, by_name).values, rtol=1e-4)


@pytest.mark.parametrize("batches", [[("a film", 1)], [torch.ones(2, 3)], ["a film"], [3], [([1.0, 2.0], 1)]])
def test_what_is_no_batch_is_refused_in_a_sentence(batches: Any) -> None:
    with says(BadData, about="A batch is a"):
        custom_task(batches, loss=_squares)
