"""What makes numbers wrong without an error is refused or said: by every command, and by `hc.task`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers import zoo
from helpers.small_models import WORDS, classifier, ran, word_tokenizer
from safetensors.torch import load_file, save_file
from torch import nn

import headcount as hc
from headcount.cli.app import app
from headcount.cli.options import SCORED_ON
from headcount.cli.pruning import curve, work
from headcount.data.checks import first_batch, lengths, model_fit, tokenizers
from headcount.embedded import EMBEDDED
from headcount.errors import BadCheckpoint, BadData
from headcount.model.checkpoints import load, missing_weights
from headcount.runs import read

ENCODER, DATA = EMBEDDED / "classifier", EMBEDDED / "classifier-data" / "products.tsv"
SENTENCES = ["the film is good", "it is long and it is dull and nobody laughs at all", "a dull film about love"]


def _copy(folder: Path, *left_out: str) -> Path:
    shutil.copytree(ENCODER, folder, ignore=lambda _, names: [name for name in names if name in left_out])
    return folder


@pytest.fixture(scope="module")
def no_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _copy(tmp_path_factory.mktemp("models") / "bare", "tokenizer.json", "tokenizer_config.json")


# --- tokenizers ---------------------------------------------------------------------------------------------------------

COMMANDS: dict[str, tuple[str, ...]] = {
    "evaluate": (),
    "score": (),
    "ablate": (),
    "transfer": ("--other-data", str(EMBEDDED / "classifier-data" / "news.tsv")),
    "curve": (),
    "prune": ("--remove", "10%", "--dry-run"),
    "learn": ("--keep", "2", "--epochs", "1"),
    "train": ("--epochs", "1"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_measures_with_a_tokenizer_that_was_made_up(
    no_tokenizer: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = ("-o", tmp_path / "out") if command == "train" else ()
    with says(BadData, about="no tokenizer in"):
        ran(command, no_tokenizer, "--data", DATA, "--limit", 40, *COMMANDS[command], *output)
    assert not (tmp_path / "runs").exists(), "nothing was begun"


def test_neither_does_a_task(no_tokenizer: Path) -> None:
    with says(BadData, about="special tokens and no words"):
        hc.task("classification", DATA, tokenizer=no_tokenizer)
    with says(BadData, about="no tokenizer in"):
        hc.task("classification", DATA, tokenizer=str(no_tokenizer))


def test_a_tokenizer_that_is_far_smaller_than_the_embedding_is_refused(tmp_path: Path) -> None:
    folder = _copy(tmp_path / "model", "tokenizer.json", "tokenizer_config.json")
    word_tokenizer(WORDS).save_pretrained(folder)
    data = [{"text": text, "label": number % 2} for number, text in enumerate(SENTENCES)]
    with says(BadData, about="it has 20 tokens"):
        hc.task("classification", data, tokenizer=folder)
    with says(BadData, about="it has 20 tokens"):  # the embedding decides where the config says nothing
        built = hc.task("classification", data, tokenizer=word_tokenizer(WORDS))
        model_fit.check_tokens(built, "the model", load(ENCODER))
    rows = 20 * tokenizers.FAR_TOO_SMALL
    tokenizers.check_vocabulary(20, 19, rows, "the model")
    with says(BadData, about="cut the embedding to it"):
        tokenizers.check_vocabulary(20, 19, rows + 1, "the model")
    with says(BadData, about="gave token 20, and the model knows 20"):
        tokenizers.check_vocabulary(20, 20, 20, "the model")


def test_tokens_beyond_the_embedding_are_refused_wherever_in_the_data_they_are() -> None:
    """The longest example alone does not show it."""
    words = [*WORDS, *(f"w{number}" for number in range(50))]
    data = [{"text": " ".join(WORDS[:9]), "label": 0}] * 600 + [{"text": "w49", "label": 1}]
    small = classifier(vocab_size=24)
    with says(BadData, about="does not belong to the model"):
        model_fit.check_tokens(hc.task("classification", data, tokenizer=word_tokenizer(words)), "small", small)
    model_fit.check_tokens(hc.task("classification", data[:5], tokenizer=word_tokenizer(WORDS)), "small", small)


def test_verbs_say_so_too() -> None:
    data = [{"text": " ".join(WORDS[-3:]), "label": 0}] * 4
    task = hc.task("classification", data, tokenizer=word_tokenizer(WORDS))
    small = classifier(vocab_size=8)
    with says(BadData, about="knows 8; make the task with the model's own tokenizer"):
        hc.evaluate(small, task)
    small.bert.embeddings.position_embeddings = nn.Embedding(1, small.config.hidden_size)
    with pytest.raises(IndexError):  # what has another reason stays as it is
        hc.evaluate(small, hc.task("classification", [{"text": "", "label": 0}], tokenizer=word_tokenizer(WORDS)))


def test_words_that_the_tokenizer_does_not_know_are_refused_or_said() -> None:
    known, foreign = " ".join(WORDS[:10]), " ".join(f"x{number}" for number in range(10))
    tokenizer = word_tokenizer(WORDS)

    def task(known_count: int, foreign_count: int) -> hc.data.Task:
        rows = [{"text": text, "label": 0} for text in [known] * known_count + [foreign] * foreign_count]
        return hc.task("classification", rows, tokenizer=tokenizer)

    with says(BadData, about="75% of the words of the data are unknown"):
        task(1, 3)
    assert [note[:40] for note in task(3, 1).notes] == ["25% of the words of the data are unknown"]
    assert task(9, 1).notes == ()
    assert task(0, 1).tokens is not None, "ten words say nothing"
    for kind in ("masked-language-modelling", "language-modelling", "translation"):
        rows = [{"text": foreign, "source": foreign, "target": known}] * 5
        if kind == "masked-language-modelling":
            tokenizer.mask_token = "[PAD]"
        with says(BadData, about="100% of the words"):
            hc.task(kind, rows, tokenizer=tokenizer)


def test_a_damaged_tokenizer_file_is_named(tmp_path: Path) -> None:
    folder = _copy(tmp_path / "model")
    for content in ('{"version": ', "[" * 100_000):
        (folder / "tokenizer.json").write_text(content)
        with says(BadData, about="tokenizer.json in"):
            hc.task("classification", DATA, tokenizer=folder)
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Nothing"}}')
    with says(BadData, about="no tokenizer in"):
        hc.task("classification", DATA, tokenizer=folder)


# --- untrained weights --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def no_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier whose files hold everything but its head."""
    folder = _copy(tmp_path_factory.mktemp("models") / "headless")
    weights = load_file(folder / "model.safetensors")
    kept_weights = {name: value for name, value in weights.items() if not name.startswith("classifier")}
    assert len(kept_weights) < len(weights)
    save_file(kept_weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("command", ["evaluate", "score", "ablate", "curve", "prune"])
def test_a_head_of_random_numbers_is_not_measured(
    no_head: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with says(BadCheckpoint, about="has no weights for classifier"):
        ran(command, no_head, "--data", DATA, "--limit", 40, *COMMANDS[command])


def test_it_may_be_trained_and_what_was_trained_is_measured(no_head: Path, tmp_path: Path) -> None:
    assert missing_weights(load(no_head))
    assert not missing_weights(load(ENCODER))
    done = ran(
        "train", no_head, "--data", DATA, "--limit", 60, "--steps", 2, "-o", tmp_path / "new", "--run", tmp_path / "run"
    )
    assert done.exit_code == 0, done.output
    assert not missing_weights(load(tmp_path / "new"))


# --- labels -------------------------------------------------------------------------------------------------------------


def test_labels_in_another_order_are_said_with_the_flag_that_mends_it(tmp_path: Path) -> None:
    asked = ("evaluate", ENCODER, "--data", DATA, "--limit", 120, "-q")
    right = ran(*asked, "-o", tmp_path / "right")
    assert "another order" not in right.stderr
    wrong = ran(*asked, "--labels", "positive,negative", "-o", tmp_path / "wrong")
    assert "--labels negative,positive" in wrong.stderr
    notes = read(tmp_path / "wrong").read_json("notes")["notes"]
    assert [note for note in notes if "another order" in note] == [
        line.removeprefix("note: ") for line in wrong.stderr.splitlines() if "another order" in line
    ]
    again = ran(*asked, "--labels", "positive,negative", "-o", tmp_path / "wrong")
    assert again.stderr == wrong.stderr, "said again, without a second look"


def test_another_order_is_only_believed_where_chance_does_not_explain_it() -> None:
    draw = np.random.default_rng(0)
    codes = draw.integers(0, 3, 64)
    order, right = first_batch.better_order((codes + 1) % 3, codes, codes, 3)
    assert (order, right) == ({0: 1, 1: 2, 2: 0}, 64)
    assert first_batch.better_order(codes, codes, codes, 3)[0] == {}, "they are right as they are"
    swapped = np.where(codes == 0, 1, np.where(codes == 1, 0, 2))  # two of three: a third is right, as by chance
    assert first_batch.better_order(swapped, codes, codes, 3)[0] == {0: 1, 1: 0, 2: 2}
    for seed in range(200):
        guesses = np.random.default_rng(seed).integers(0, 3, 64)
        assert first_batch.better_order(guesses, codes, codes, 3)[0] == {}, "random guesses"
    rare = np.array([1] * 6 + [0] * 58)
    assert first_batch.better_order(np.ones(64, int), rare, rare, 2)[0] == {}, "a model that always says the same"
    few = np.array([0, 1] * 4)
    assert first_batch.better_order(1 - few, few, few, 2)[0] == {}, "eight examples are too few to be sure"


def test_no_label_of_an_untrained_head_is_doubted(no_head: Path, tmp_path: Path) -> None:
    done = ran(
        "learn", no_head, "--data", DATA, "--limit", 60, "--keep", 4, "--method", "random", "-o", tmp_path / "new"
    )
    assert "another order" not in done.stderr


# --- padding ------------------------------------------------------------------------------------------------------------


class ReadsPadding(nn.Module):
    """A model that forgets the attention mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.model(input_ids=input_ids)


def test_padding_that_is_read_is_said() -> None:
    data = [{"text": text, "label": number} for number, text in enumerate(SENTENCES)]
    task = hc.task("classification", data, tokenizer=word_tokenizer(WORDS))
    model = classifier(vocab_size=24)
    assert first_batch.warnings(model, task, 0) == []

    class Deaf(type(model)):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, attention_mask: Any = None, **rest: Any) -> Any:
            return super().forward(input_ids=input_ids, **rest)

    model.__class__ = Deaf
    (warning,) = first_batch.warnings(model, task, 0)
    assert "padding changes what the model says" in warning
    assert "--batch-size 1" in warning
    single = hc.task("classification", data, tokenizer=word_tokenizer(WORDS), batch_size=1)
    assert first_batch.warnings(model, single, 0) == [], "there is no padding then"


# --- lengths ------------------------------------------------------------------------------------------------------------


def test_what_is_cut_off_or_left_out_is_said_by_commands_and_kept_many_first(tmp_path: Path) -> None:
    lines = ["sentence\tlabel", *(f"{'good ' * (3 + 9 * (n < 5))}film\t{n % 2}" for n in range(60)), "no label\t-"]
    (tmp_path / "data.tsv").write_text("\n".join(lines))
    done = ran("score", ENCODER, "--data", tmp_path / "data.tsv", "--max-length", 8, "-o", tmp_path / "run", "-q")
    first, second, *_ = done.stderr.splitlines()
    assert "5 of 60 examples" in first
    assert "longer than 8 tokens" in first
    assert "1 rows of" in second
    kept_notes = read(tmp_path / "run").read_json("notes")["notes"]
    assert kept_notes == [line.removeprefix("note: ") for line in done.stderr.splitlines()]
    few = hc.task("classification", tmp_path / "data.tsv", tokenizer=ENCODER, max_length=8)
    rare = few.subset([*range(5, 60)])
    assert [note[:20] for note in lengths.notes({"a": rare.subset([0])})] == ["1 rows of " + few.name[:10]]
    assert "5 of 60" in lengths.notes({"a": few})[0], "more than a twentieth comes first"


def test_a_text_is_cut_off_where_the_positions_of_the_model_end() -> None:
    tokenizer = word_tokenizer(WORDS)
    model = classifier(vocab_size=24, max_position_embeddings=8)
    assert model_fit.longest_input(tokenizer, model) == (8, [])
    assert model_fit.longest_input(tokenizer, classifier(vocab_size=24, max_position_embeddings=16)) == (None, [])
    tokenizer.model_max_length = int(1e30)
    assert model_fit.longest_input(tokenizer, model) == (8, [])
    limit, (note,) = model_fit.longest_input(tokenizer, classifier(vocab_size=24, max_position_embeddings=600))
    assert limit is None
    assert "cut off after 512 tokens; the model has 600 positions" in note


def test_positions_of_roberta_begin_after_its_padding() -> None:
    model, _ = zoo.build("roberta")
    assert model_fit.positions_of(model) == model.config.max_position_embeddings - model.config.pad_token_id - 1


# --- sizes --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More examples to score on than are scored on without being asked."""
    path = tmp_path_factory.mktemp("data") / "large.tsv"
    lines = [f"good film {number}\t{('negative', 'positive')[number % 2]}" for number in range(SCORED_ON + 60)]
    path.write_text("\n".join(["sentence\tlabel", *lines]))
    return path


@pytest.mark.parametrize(
    ("limit", "scored"),
    [
        ((), SCORED_ON),
        (("--score-limit", "all"), SCORED_ON + 60),
        (("--score-limit", "50"), 50),
        (("--limit", "70"), 70),
    ],
)
@pytest.mark.parametrize("command", ["curve", "prune"])
def test_a_sample_is_scored_on_where_no_limit_is_given(
    large: Path, command: str, limit: tuple[str, ...], scored: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: dict[str, Any] = {}

    class Enough(Exception):
        pass

    def stop(command: str, name: str, model: Any, flags: Any, used: dict[str, Any], **_: Any) -> Any:
        tasks.update(used)
        raise Enough

    monkeypatch.setattr(curve if command == "curve" else work, "running", stop)
    more = () if command == "curve" else ("--remove", "10%", "--dry-run")
    with pytest.raises(Enough):
        ran(command, ENCODER, "--data", DATA, "--score-data", large, *limit, *more)
    task = tasks["select" if command == "curve" else "score"]
    assert task.size == scored
    said = [note for note in task.notes if "--score-limit all takes all" in note]
    assert bool(said) == (not limit)
    if said:
        assert "2,048 of the 2,108 examples" in said[0]


def test_a_limit_that_is_no_number_is_refused() -> None:
    with says(BadData, about="a number of examples, or all; I got 'many'"):
        ran("curve", ENCODER, "--data", DATA, "--score-data", DATA, "--score-limit", "many")


# --- names --------------------------------------------------------------------------------------------------------------


def test_other_names_of_kinds_and_metrics_are_taken_and_said(tmp_path: Path) -> None:
    asked = ("evaluate", ENCODER, "--data", DATA, "--limit", 40, "-q")
    plain = ran(*asked, "-o", tmp_path / "plain")
    done = ran(*asked, "--task", "Text_Classification", "--metric", "acc", "-o", tmp_path / "plain")
    assert done.stdout == plain.stdout, "it is the same question"
    assert "note: Text_Classification is the kind of task classification" in done.stderr
    assert "note: acc is the metric accuracy" in done.stderr
    task = hc.task("classification", DATA, tokenizer=ENCODER, limit=8)
    assert task.with_metric("mcc").metric.name == "matthews"
    assert (
        hc.task("lm", ["the film is good"], tokenizer=word_tokenizer(WORDS), metric="ppl").kind == "language-modelling"
    )
    for about, options in {
        "did you mean accuracy?": {"metric": "acuracy"},
        "classification has no metric 'bleu'": {"metric": "bleu"},
    }.items():
        with says(BadData, about=about):
            hc.task("classification", DATA, tokenizer=ENCODER, **options)
    with says(BadData, about="did you mean masked-language-modelling?"):
        hc.task("masked-language-modlling", DATA, tokenizer=ENCODER)
    assert app is not None


def test_every_other_name_leads_to_a_kind_or_a_metric() -> None:
    from headcount.data.kinds import KIND_ALIASES, KINDS, METRIC_ALIASES, kind_named

    assert {kind_named(alias) for alias in KIND_ALIASES} == set(KINDS)
    assert set(METRIC_ALIASES.values()) <= {metric for metrics in KINDS.values() for metric in metrics}
    assert not set(KIND_ALIASES) & set(KINDS)


def test_a_prefix_that_a_model_was_trained_with_is_missed() -> None:
    model, _ = zoo.build("t5")
    task = hc.task("translation", [{"source": "the film", "target": "good"}], tokenizer=word_tokenizer(WORDS))
    assert model_fit.missing_prefix(model, task) == []
    model.config.task_specific_params = {"translation_en_to_de": {"prefix": "translate English to German: "}}
    (note,) = model_fit.missing_prefix(model, task)
    assert "'translate English to German: '" in note
    model.config.task_specific_params = {"a": {"prefix": "the "}}
    assert model_fit.missing_prefix(model, task) == []


def test_notes_are_json_in_the_run_folder(tmp_path: Path) -> None:
    ran("evaluate", ENCODER, "--data", DATA, "--limit", 40, "-o", tmp_path / "run", "-q")
    assert json.loads((tmp_path / "run" / "notes.json").read_text()) == {"notes": [], "first_batch": []}
