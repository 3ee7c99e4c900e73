"""Examples that belong together: they go the same way in every split, are drawn as one, and near copies are said."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import says
from helpers.small_models import WORDS, ran, ran_json, word_tokenizer
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
)

import headcount as hc
from headcount.cli import run_folder
from headcount.cli.training.options import held_out
from headcount.data import seen_examples as seeing
from headcount.data import splits
from headcount.data.checks.near_copies import near_copies
from headcount.data.columns import Table, read_table
from headcount.data.places import place as place_of
from headcount.data.running_text import FEWEST, documents, grouped_blocks
from headcount.data.tasks import clustered
from headcount.errors import BadData, BadPlan, BadRun
from headcount.pruning import plan_tests
from headcount.stats.paired_tests import interval

COPIES = 5


def _sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 9))) for _ in range(count)]


def _rows(groups: int, seed: int, name: str) -> list[tuple[str, int, str]]:
    """Sentences, each of them once plain and four times with a word behind it, which is a group."""
    ends = ["", " song", " war", " love", " film"]
    texts = list(dict.fromkeys(_sentences(2 * groups, seed)))[:groups]
    rows = [(text + end, n % 2, f"{name}{n}") for n, text in enumerate(texts) for end in ends]
    random.Random(seed).shuffle(rows)
    return rows


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier and a translator, and data in groups of five for both."""
    folder, tokenizer = tmp_path_factory.mktemp("place"), word_tokenizer(WORDS)
    torch.manual_seed(0)
    sizes = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**sizes, intermediate_size=24, max_position_embeddings=16, pad_token_id=0)
    sides = {f"{a}_{b}": 2 for a in ("encoder", "decoder") for b in ("layers", "attention_heads", "ffn_dim")}
    special = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": 2}
    translator = MarianMTModel(MarianConfig(vocab_size=24, d_model=16, max_position_embeddings=64, **sides, **special))
    for name, model in (("classifier", BertForSequenceClassification(config)), ("translator", translator)):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.4) if parameter.dim() > 1 else None
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for name, groups, seed in (("dev", 40, 0), ("train", 30, 1)):
        lines = ["sentence\tlabel\torigin", *("\t".join(map(str, row)) for row in _rows(groups, seed, name))]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def _data(place: Path, name: str, **more: Any) -> hc.data.Task:
    asked = {"tokenizer": str(place / "classifier"), "group": "origin", **more}
    return hc.task("classification", place / f"{name}.tsv", **asked)


def _model(place: Path) -> Any:
    return hc.load(place / "classifier", dtype=torch.float32).eval()


def _names(task: hc.data.Task) -> list[str | None]:
    assert task.clusters is not None
    return [task.cluster_names[cluster] for cluster in task.clusters]


def _masking() -> Any:
    """A tokenizer with a mask token."""
    tokenizer = word_tokenizer([*WORDS, "=", "[MASK]"])
    tokenizer.mask_token = "[MASK]"
    return tokenizer


# -- the data ------------------------------------------------------------------------------------------------------------

TABLE = [
    {"text": "a", "label": 1, "who": 7, "target": "x"},
    {"text": "b", "label": 0, "who": None, "target": "x"},
    {"text": "c", "label": "-", "who": 9, "target": "x"},
    {"text": "d", "label": 0, "who": 7.0, "target": "x"},
    {"text": "e", "label": 1, "who": " ", "target": "x"},
    {"text": "f", "label": 1, "who": "9", "target": "x"},
]


def test_a_column_names_groups_and_an_empty_cell_is_a_group_of_its_own() -> None:
    table = read_table(TABLE, "label", group="who")
    assert table.groups == ["7", None, "7", None, "9"], "rows without a label are gone, and their groups with them"
    assert table.chosen([4, 0]).groups == ["9", "7"]
    assert read_table(TABLE, "target", text="text", target="target", group="WHO").groups == [
        "7",
        None,
        "9",
        "7",
        None,
        "9",
    ]
    assert read_table(TABLE, "text", group=3).groups == ["7", None, "9", "7", None, "9"], "by its number"
    assert read_table(TABLE, "label").groups is None
    with says(BadData, about="has no column 'whom'"):
        read_table(TABLE, "label", group="whom")
    assert clustered(["7", None, "7", None, "9"]) == {
        "clusters": (0, 1, 0, 2, 3),
        "cluster_names": ("7", None, None, "9"),
    }


def test_plain_text_takes_its_groups_from_a_file(tmp_path: Path) -> None:
    for name, lines in (("a.de", "ja nein ja"), ("a.en", "yes no yes"), ("a.who", "one  one"), ("few", "one")):
        (tmp_path / name).write_text("\n".join(lines.split(" ")) + "\n")
    pair = (tmp_path / "a.de", tmp_path / "a.en")
    assert read_table(pair, "target", group=tmp_path / "a.who").groups == ["one", None, "one"]
    assert read_table(tmp_path / "a.de", "text", group=str(tmp_path / "a.who")).groups == ["one", None, "one"]
    with says(BadData, about="a.de has 3 lines and"):
        read_table(pair, "target", group=tmp_path / "few")
    for data, wants in ((pair, "target"), (tmp_path / "a.de", "text")):
        with says(BadData, about="plain text without columns"):
            read_table(data, wants, group="speaker")


def test_every_kind_of_task_keeps_the_groups_of_its_examples() -> None:
    texts = _sentences(12, 3)
    rows = [{"text": text, "label": n % 2, "target": text, "who": n // 3} for n, text in enumerate(texts)]
    rows[4]["who"] = None
    want = ["0", "0", "0", "1", None, "1", "2", "2", "2", "3", "3", "3"]
    tokenizer = _masking()
    for kind, more in (
        ("classification", {}),
        ("regression", {}),
        ("translation", {"text": "text", "target": "target"}),
        ("language-modelling", {}),
        ("masked-language-modelling", {}),
    ):
        task = hc.task(kind, rows, tokenizer=tokenizer, group="who", **more)
        assert _names(task) == want, kind
        assert task.clusters == (0, 0, 0, 1, 2, 1, 3, 3, 3, 4, 4, 4)
        drawn = hc.task(kind, rows, tokenizer=tokenizer, group="who", limit=5, **more)
        told = [task.describe(n) for n in range(12)]
        assert _names(drawn) == [want[told.index(drawn.describe(n))] for n in range(5)]
    kept = hc.task(
        "masked-language-modelling", [rows[0], {"text": "", "who": 0}, rows[6]], tokenizer=tokenizer, group="who"
    )
    assert _names(kept) == ["0", "2"], "what has nothing to guess takes its group along"


def test_pictures_of_a_table_have_groups(tmp_path: Path) -> None:
    rows = [{"image": tmp_path / f"{n}.png", "label": n % 2, "who": n // 2} for n in range(4)]
    task = hc.task("image-classification", rows, tokenizer=lambda picture: torch.zeros(3, 4, 4), group="who")
    assert task.clusters == (0, 0, 1, 1)
    assert task.texts is None


def test_a_task_of_ones_own_has_groups_too() -> None:
    batches = [{"x": torch.arange(3.0)}, {"x": torch.arange(2.0)}]
    task = hc.custom_task(batches, loss=lambda model, batch: batch["x"], group=["a", "b", "a", None, "b"])
    assert task.clusters == (0, 1, 0, 2, 1)
    assert _names(task.subset([4, 1, 3])) == ["b", "b", None]
    with says(BadData, about="2 groups for 5 examples"):
        hc.custom_task(batches, loss=lambda model, batch: batch["x"], group=["a", "b"])


def test_groups_are_a_part_of_the_fingerprint_only_where_there_are_some(place: Path) -> None:
    plain, grouped = _data(place, "dev", group=None), _data(place, "dev")
    assert plain.fingerprint != grouped.fingerprint
    assert grouped.subset(range(200)).fingerprint == grouped.fingerprint
    same = hc.data.Task(**{**_fields(grouped), "clusters": None, "cluster_names": ()})
    assert same.fingerprint == plain.fingerprint, "run folders without groups are those of before"


def _fields(task: hc.data.Task) -> dict[str, Any]:
    return {name: getattr(task, name) for name in task.__dataclass_fields__}


# -- splits --------------------------------------------------------------------------------------------------------------


def _apart(*tasks: hc.data.Task) -> None:
    """All groups are whole, none is in two of the tasks, and every example is somewhere."""
    names = [set(_names(task)) for task in tasks]
    assert sum(map(len, names)) == len(set.union(*names))
    assert sum(task.size for task in tasks) == COPIES * len(set.union(*names))


def test_no_split_parts_a_group(place: Path) -> None:
    task = _data(place, "dev")
    for seed in range(5):
        _apart(*task.split(0.3, 0.5, 0.2, seed=seed))
        _apart(*splits.share_out(task, {"score": 0.3, "report": 0.7}, seed).tasks.values())
        _apart(*held_out(task, "measure", seed, {}).tasks.values())
    one, two = task.split(0.5, 0.5)
    assert one.size + two.size == 200
    assert [one.describe(n) for n in range(3)] == [task.describe(n) for n in sorted(_numbers(task, one))[:3]]
    first = splits.share_out(task, {"score": 0.4, "report": 0.6}, 3).tasks["score"]
    for example in range(first.size):
        name = _names(first)[example]
        assert place_of(splits.keys(first)[example], 3) < 0.4
        assert splits.keys(task)[_names(task).index(name)] == splits.keys(first)[example]
    with says(BadData, about="in 2 groups"):
        task.subset([n for n, cluster in enumerate(task.clusters or ()) if cluster < 2]).split(0.1, 0.9)


def _numbers(task: hc.data.Task, part: hc.data.Task) -> list[int]:
    places = {task.describe(n): n for n in range(task.size)}
    return [places[part.describe(n)] for n in range(part.size)]


def test_without_groups_the_example_itself_decides(place: Path) -> None:
    task = _data(place, "dev", group=None)
    first = [n for n in range(task.size) if place_of(task.digest(n), 3) < 0.4]
    assert _numbers(task, task.split(0.4, 0.5, seed=3)[0]) == first
    assert _numbers(task, splits.share_out(task, {"score": 0.4, "report": 0.6}, 3).tasks["score"]) == first


def test_a_group_falls_into_the_same_part_whatever_file_it_is_in(place: Path) -> None:
    task = _data(place, "dev")
    few = task.subset([n for n in range(task.size) if n % 3])  # other examples of the same groups
    parts, again = (splits.share_out(one, {"score": 0.5, "report": 0.5}, 1).tasks for one in (task, few))
    for role in parts:
        assert set(_names(again[role])) <= set(_names(parts[role]))


def test_a_group_in_two_sets_is_dropped_from_the_one_that_matters_less(place: Path) -> None:
    task = _data(place, "dev")
    first = {name: n for n, name in reversed(list(enumerate(_names(task))))}
    used = task.subset(sorted(first.values())[:10])  # one example of ten groups
    rest = splits.without(task, splits.marks(used))
    assert rest is not None
    assert rest.size == task.size - 10 * COPIES
    alone = splits.without(task, splits.digests(used))
    assert alone is not None
    assert alone.size == task.size - 10, "examples alone"
    assert not set(_names(rest)) & set(_names(used))


def test_what_an_older_plan_was_chosen_on_is_left_out_group_by_group(place: Path) -> None:
    task, plain = _data(place, "dev"), _data(place, "dev", group=None)
    old = splits.share_out(
        plain, {"score": 0.1, "report": 0.9}, 2
    ).tasks  # a plan of an earlier version knows of no groups
    same = splits.later(plain, 2, 0.1)
    assert same is not None
    assert same.fingerprint == old["report"].fingerprint
    fresh = splits.later(task, 2, 0.1)
    assert fresh is not None
    before = [place_of(task.digest(n), 2) < 0.1 for n in range(task.size)]
    seen = {name for name, chosen in zip(_names(task), before, strict=True) if chosen}
    assert set(_names(fresh)) == set(_names(task)) - seen


def test_a_plan_has_seen_the_groups_of_its_examples(place: Path) -> None:
    task, plain = _data(place, "dev"), _data(place, "dev", group=None)
    some = [n for n, name in enumerate(_names(task)) if name in ("dev1", "dev2")]
    few, rest = task.subset([some[0]]), task.subset([n for n in range(task.size) if n not in some])
    for known in (seeing.marks(task.subset(some)), seeing.marks(plain.subset(some))):  # with groups then, and without
        fresh = seeing.unseen(task, known)
        assert fresh is not None
        assert fresh.fingerprint == rest.fingerprint
    for known in (seeing.marks(few), seeing.marks(plain.subset([some[0]]))):
        fresh = seeing.unseen(task, known)
        assert fresh is not None
        assert set(_names(task)) - set(_names(fresh)) == set(_names(few)), "one example is enough"
    apart = seeing.unseen(plain, seeing.marks(few))
    assert apart is not None
    assert apart.size == plain.size - 1, "nothing is known of groups"


# -- results -------------------------------------------------------------------------------------------------------------


def test_results_of_every_verb_draw_groups_whole(place: Path) -> None:
    model, task = _model(place), _data(place, "dev")
    found = hc.evaluate(model, task)
    assert found.clusters is not None
    assert found.clusters.tolist() == list(task.clusters or ())
    assert found.interval() == interval(found.metric, found.rows, clusters=np.array(task.clusters))
    ablation = hc.ablate(model, task)
    assert ablation.base.clusters is not None
    plain = hc.ablate(model, _data(place, "dev", group=None))
    wide, narrow = ablation.comparisons(resamples=1000), plain.comparisons(resamples=1000)
    assert {one.groups for one in wide} == {40}
    assert sum(one.high - one.low for one in wide) > sum(one.high - one.low for one in narrow)
    # less of the spread over heads is more than noise
    assert ablation.reliability(resamples=500) < plain.reliability(resamples=500)
    scores = hc.score(model, by="random")
    assert hc.curve(model, task, scores, step="50%").points[1].comparison.groups == 40
    assert hc.evaluation.transfer(model, (task, _data(place, "train"))).other.base.groups == 30


# -- commands ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, hc.data.Task]:
    """The tasks of the commands that a test runs, by role."""
    found: dict[str, hc.data.Task] = {}
    notes = run_folder.data_notes

    def look(tasks: Mapping[str, Any]) -> list[str]:
        found.update(tasks)
        return notes(tasks)

    monkeypatch.setattr(run_folder, "data_notes", look)
    return found


def _asked(place: Path, command: str, *more: object) -> tuple[object, ...]:
    return (command, place / "classifier", "--data", place / "dev.tsv", "--group", "origin", *more)


def test_evaluate_prints_how_many_groups_there_are_and_a_wider_interval(place: Path, tmp_path: Path) -> None:
    shown = ran(*_asked(place, "evaluate", "-o", tmp_path / "one"))
    assert "(n=200 in 40 groups)" in shown.stdout
    assert "near copies" not in shown.stderr, "they are named"
    grouped = ran_json(*_asked(place, "evaluate", "-o", tmp_path / "one"))
    plain = ran_json("evaluate", place / "classifier", "--data", place / "dev.tsv", "-o", tmp_path / "two")
    assert (grouped["groups"], grouped["value"]) == (40, plain["value"])
    assert grouped["high"] - grouped["low"] > 1.2 * (plain["high"] - plain["low"])
    with says(BadRun):  # another question
        ran(*_asked(place, "evaluate", "-o", tmp_path / "two"))


def test_ablations_and_curves_keep_groups_together(place: Path, tmp_path: Path, seen: dict[str, hc.data.Task]) -> None:
    found = ran_json(*_asked(place, "ablate", "--each", "-o", tmp_path / "each"))
    assert {row["groups"] for row in found["ablations"]} == {found["base"]["groups"]} == {40}
    seen.clear()
    found = ran_json(*_asked(place, "ablate", "--all-but-one", "-o", tmp_path / "one"))
    _apart(seen["select"], seen["report"])
    assert found["attentions"][0]["groups"] == found["base"]["groups"] == 20
    seen.clear()
    found = ran_json(*_asked(place, "curve", "--step", "50%", "-o", tmp_path / "curve"))
    _apart(seen["select"], seen["report"])
    assert found["curves"][0]["points"][1]["comparison"]["groups"] == 20


def test_groups_that_are_in_two_files_are_left_out_of_what_is_chosen_on(
    place: Path, tmp_path: Path, seen: dict[str, hc.data.Task]
) -> None:
    lines = (place / "dev.tsv").read_text().splitlines()
    few = [next(line for line in lines if line.endswith(f"\t{name}")) for name in ("dev3", "dev8")]
    more = "\n".join([*(place / "train.tsv").read_text().splitlines(), *few])
    (tmp_path / "both.tsv").write_text(more + "\n")
    asked = _asked(place, "curve", "--step", "50%", "--score-data", tmp_path / "both.tsv", "-o", tmp_path / "curve")
    found = ran_json(*asked)
    assert "2 examples of" in found["sets"]
    assert "to score on were left out, being among those to report on, or of a group that is" in found["sets"]
    assert (seen["select"].size, seen["report"].size) == (150, 200)
    seen.clear()
    prune = ("--remove", 2, "--score-data", tmp_path / "both.tsv", "--dry-run", "--run", tmp_path / "prune")
    shown = ran(*_asked(place, "prune", *prune))
    assert (seen["score"].size, seen["report"].size) == (150, 200)
    assert "to score on were left out, being among those to report on, or of a group that is" in shown.stdout
    with says(BadData, about="are also among those to report on"):
        ran(*_asked(place, "curve", "--score-data", place / "dev.tsv", "-o", tmp_path / "same"))


def test_transfer_draws_the_groups_of_both_files(place: Path, tmp_path: Path) -> None:
    found = ran_json(*_asked(place, "transfer", "--other-data", place / "train.tsv", "-o", tmp_path / "run"))
    assert (found["one"]["groups"], found["other"]["groups"]) == (40, 30)


def test_training_and_learning_set_whole_groups_aside(
    place: Path, tmp_path: Path, seen: dict[str, hc.data.Task]
) -> None:
    quick = ("--steps", 1, "--quiet", "--seed", 1)
    told = ran_json(*_asked(place, "train", *quick, "-o", tmp_path / "trained", "--run", tmp_path / "train"))
    _apart(seen["train"], seen["dev"])
    assert told["comparison"]["groups"] == told["after"]["groups"] == len(seen["dev"].cluster_names)
    seen.clear()
    learn = ("--method", "random", "--keep", 4, "--epochs", 0, "--seed", 1)
    told = ran_json(*_asked(place, "learn", *learn, "--run", tmp_path / "learn"))
    _apart(seen["train"], seen["report"])
    assert told["comparison"]["groups"] == told["learned"]["groups"] == len(seen["report"].cluster_names)
    seen.clear()
    study = ("--dev-data", place / "train.tsv", "--seeds", 0, "--steps", 1, "--no-retrain", "--seed", 1)
    told = ran_json(*_asked(place, "lottery", *study, "--step", "50%", "-o", tmp_path / "lottery"))
    _apart(seen["train"], seen["select"])
    assert told["draws"][0]["networks"][0]["comparison"]["groups"] == 30


def test_a_new_translator_sets_whole_groups_aside(tmp_path: Path, seen: dict[str, hc.data.Task]) -> None:
    texts = _sentences(60, 8)
    for name, lines in (("a.de", texts), ("a.en", reversed(texts)), ("a.who", [f"g{n % 12}" for n in range(60)])):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    sizes = ("--layers", 1, "--heads", 2, "--width", 8, "--ffn", 8, "--vocabulary", 300, "--steps", 1, "--quiet")
    told = ran_json(
        *(
            "train",
            "new-marian",
            "--data",
            tmp_path / "a.de",
            "--target",
            tmp_path / "a.en",
            *sizes,
            "--metric",
            "loss",
        ),
        *("--group", tmp_path / "a.who", "-o", tmp_path / "out", "--run", tmp_path / "run", "--seed", 3),
    )
    _apart(seen["train"], seen["dev"])
    assert told["after"]["groups"] == len(seen["dev"].cluster_names)


def test_parallel_text_brings_a_file_of_groups_for_each_pair(place: Path, tmp_path: Path) -> None:
    for name, seed in (("a.de", 1), ("a.en", 2), ("b.de", 3), ("b.en", 4)):
        (tmp_path / name).write_text("\n".join(_sentences(6, seed)) + "\n")
    for name in ("a.who", "b.who"):
        (tmp_path / name).write_text("\n".join(f"{name[0]}{n // 2}" for n in range(6)) + "\n")
    side = {one: tmp_path / one for one in ("a.de", "a.en", "a.who", "b.de", "b.en", "b.who")}
    asked = ("curve", place / "translator", "--data", side["a.de"], "--target", side["a.en"], "--group", side["a.who"])
    more = ("--metric", "loss", "--step", "100%", "-o", tmp_path / "run")
    other = ",".join(str(side[one]) for one in ("b.de", "b.en", "b.who"))
    found = ran_json(*asked, "--score-data", other, *more)
    assert found["curves"][0]["points"][0]["result"]["groups"] == 3
    with says(BadPlan, about="SOURCE,TARGET,GROUPS"):
        ran(*asked, "--score-data", f"{side['b.de']},{side['b.en']}", *more)
    with says(BadPlan, about="FILE,GROUPS"):
        ran(*asked, "--score-data", side["b.de"], *more)


def test_prune_shares_groups_out_and_draws_them_whole(
    place: Path, tmp_path: Path, seen: dict[str, hc.data.Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, real_test = list[Any](), plan_tests.fixed_sequence_test
    monkeypatch.setattr(
        plan_tests,
        "fixed_sequence_test",
        lambda *a, **k: (drawn.append(k["clusters"]), real_test(*a, **k))[1],
    )
    asked = ("--max-drop", 90, "--step", "50%", "--dry-run", "--run", tmp_path / "dry")
    dry = ran_json(*_asked(place, "prune", *asked))
    _apart(seen["score"], seen["select"], seen["report"])
    assert dry["guarantee"]["n"] == seen["select"].size
    assert drawn[0].tolist() == list(seen["select"].clusters or ()), "the promise is about groups"
    chosen = {*_names(seen["score"]), *_names(seen["select"])}
    seen.clear()
    again = (
        "--plan",
        tmp_path / "dry" / "plan.json",
        "-o",
        tmp_path / "smaller",
        "--run",
        tmp_path / "run",
        "--no-report",
    )
    found = ran_json(*_asked(place, "prune", *again))
    assert not chosen & set(_names(seen["report"]))
    assert found["before"]["groups"] == found["after"]["groups"] == found["comparison"]["groups"]


def test_choosing_scores_on_no_group_that_is_selected_on(place: Path) -> None:
    task, model = _data(place, "dev"), _model(place)
    first = {name: n for n, name in reversed(list(enumerate(_names(task))))}
    ones = sorted(first.values())
    others = [n for n in range(task.size) if n not in set(ones)]
    with says(BadData, about="All 160 examples of"):
        hc.pruning.choose(model, max_drop=5, score=task.subset(others), select=task.subset(ones))
    choice = hc.pruning.choose(model, remove=2, score=task.subset(ones))
    with says(BadData, about="All 160 examples to report on had a part in choosing"):
        hc.pruning.save_pruned(model, "/nowhere/at/all", task.subset(others), choice)


# -- running text --------------------------------------------------------------------------------------------------------


def _articles(count: int, blank: bool = True) -> str:
    """Articles in the way of WikiText, each with a part."""
    between = " \n" if blank else ""
    return "".join(
        f"{between} = {title} = \n{between} {' '.join(body)} \n{between} = = about = = \n{between} {' '.join(body[::-1])} \n"
        for title, *body in (_sentences(9, seed) for seed in range(count))
    )


@pytest.mark.parametrize("blank", [True, False])
def test_a_document_begins_at_a_title(blank: bool) -> None:
    lines = _articles(12, blank).split("\n")
    names = documents(lines)
    assert len(set(names) - {None}) == 12
    titles = [n for n, line in enumerate(lines) if line.startswith(" = ") and not line.startswith(" = =")]
    known = [name for name in names if name is not None]
    assert [known.index(names[n]) for n in titles] == [4 * n for n in range(12)], "all four lines are one document"
    assert documents(_articles(14, blank).split("\n"))[: len(names) - 3] == names[:-3], "named after what they say"


def test_what_only_looks_like_a_title_in_the_middle_of_a_text_is_none() -> None:
    lines = ["", " = One = ", "", " where x", " = 5 and y = ", " = 6 . ", "", " = Two = ", "", " text "]
    names = documents(lines)
    assert len(set(names) - {None}) == 2
    assert names[1] == names[3] == names[4] == names[5] != names[7] == names[9]


def test_a_block_that_begins_with_the_end_of_a_line_begins_with_the_next() -> None:
    bodies = [f"{'x' * (n + 1)} y" for n in range(12)]
    text = "\n".join(f"{body}\n" for body in bodies)
    table = Table("text", (text.split("\n"),), plain=True)
    starts = [place for body in bodies for place in (text.index(body), text.index(body) + len(body) - 1)]
    groups, _ = grouped_blocks(table, starts)
    assert groups is not None
    assert groups[::2] == groups[1::2]
    assert len(set(groups)) == 12
    ends = [text.index(body) + len(body) for body in bodies]  # the newline behind each
    shifted, _ = grouped_blocks(table, [*starts, *ends])
    assert shifted is not None
    assert shifted[24:35] == groups[2::2], "of the next document"


def test_without_titles_a_document_begins_after_a_blank_line() -> None:
    names = documents(["one", "two", "", " ", "three", "four = five", "", "one", "two"])
    assert [None if name is None else sorted(set(names) - {None}).index(name) for name in names].count(None) == 3  # type: ignore[type-var]
    assert names[0] == names[1] != names[4] == names[5]
    assert names[7] == names[0], "the same text is the same document"


@pytest.mark.parametrize("begin", [False, True])
def test_blocks_belong_to_the_document_that_they_begin_in(tmp_path: Path, begin: bool) -> None:
    tokenizer = word_tokenizer([*WORDS, "="])
    if begin:
        tokenizer.bos_token = "[CLS]"
    text = _articles(12)
    (tmp_path / "text.txt").write_text(text)
    task = hc.task("language-modelling", tmp_path / "text.txt", tokenizer=tokenizer, max_length=8)
    assert task.clusters is not None
    words = text.split()
    first = np.cumsum([0, *(len(article.split()) for article in _split(text))])  # the first word of every article
    step, seen = 8 - begin, dict[int, str | None]()
    for number in range(task.size):
        block = task.collate([number])["input_ids"][0].tolist()[begin:]
        assert tokenizer.convert_ids_to_tokens(block) == words[step * number : step * number + len(block)]
        article = int(np.searchsorted(first, step * number, side="right")) - 1
        assert seen.setdefault(article, _names(task)[number]) == _names(task)[number]
    assert len(set(seen.values())) == 12
    drawn = hc.task("language-modelling", tmp_path / "text.txt", tokenizer=tokenizer, max_length=8, limit=20)
    texts = {str(task.collate([n])["input_ids"].tolist()): name for n, name in enumerate(_names(task))}
    assert _names(drawn) == [texts[str(drawn.collate([n])["input_ids"].tolist())] for n in range(20)]


def _split(text: str) -> list[str]:
    lines, out = text.split("\n"), list[str]()
    for line in lines:
        if line.startswith(" = ") and not line.startswith(" = ="):
            out.append("")
        if out:
            out[-1] += line + "\n"
    return out


def test_few_documents_leave_blocks_on_their_own_and_it_is_said(tmp_path: Path) -> None:
    tokenizer = word_tokenizer([*WORDS, "="])
    options = {"tokenizer": tokenizer, "max_length": 8}
    (tmp_path / "few.txt").write_text(_articles(FEWEST - 1))
    few = hc.task("language-modelling", tmp_path / "few.txt", **options)
    assert few.clusters is None
    assert f"are from {FEWEST - 1} documents, too few" in few.notes[0]
    (tmp_path / "short.txt").write_text("\n\n".join(_sentences(40, 1)))
    short = hc.task("language-modelling", tmp_path / "short.txt", tokenizer=tokenizer, max_length=24)
    assert (short.clusters, short.notes) == (None, ()), "every block begins in another one"
    names = tmp_path / "names"
    lines = (tmp_path / "few.txt").read_text().count("\n")
    names.write_text("".join(f"{n * 3 // lines}\n" for n in range(lines)))
    given = hc.task("language-modelling", tmp_path / "few.txt", group=names, **options)
    assert sorted(set(_names(given)), key=str) == ["0", "1", "2"]
    slow = type("Slow", (), {"is_fast": False, "__call__": lambda self, *a, **k: tokenizer(*a, **k)})()
    slow.__dict__ |= {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0, "all_special_ids": [0]}
    slow.__dict__ |= {"mask_token_id": None, "unk_token_id": None, "model_max_length": 8}
    assert "does not tell" in hc.task("language-modelling", tmp_path / "few.txt", tokenizer=slow).notes[0]
    with says(BadData, about="fast tokenizer"):
        hc.task("language-modelling", tmp_path / "few.txt", tokenizer=slow, group=names)


def test_lines_of_a_document_are_masked_on_their_own_and_belong_together(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(_articles(12))
    tokenizer = _masking()
    task = hc.task("masked-language-modelling", tmp_path / "text.txt", tokenizer=tokenizer)
    assert task.clusters == tuple(n // 4 for n in range(48))
    (tmp_path / "list.txt").write_text("\n".join(_sentences(40, 1)))
    assert hc.task("masked-language-modelling", tmp_path / "list.txt", tokenizer=tokenizer).clusters is None


def test_perplexity_of_a_running_text_is_printed_with_its_documents(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = word_tokenizer([*WORDS, "="])
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=2, n_positions=16))
    hc.save(model, tmp_path / "model", tokenizer=tokenizer)
    for name, count in (("many", 12), ("few", 3)):
        (tmp_path / f"{name}.txt").write_text(_articles(count))
    asked = ("evaluate", tmp_path / "model", "--max-length", 8)
    many = ran(*asked, "--data", tmp_path / "many.txt", "-o", tmp_path / "run")
    assert "in 12 groups)" in many.stdout
    few = ran(*asked, "--data", tmp_path / "few.txt", "-o", tmp_path / "run-few")
    assert "groups" not in few.stdout
    assert "note: the " in few.stderr
    assert "are from 3 documents, too few to draw them whole" in few.stderr


# -- near copies ---------------------------------------------------------------------------------------------------------


def _near(*texts: str) -> list[int]:
    return [n for n, near in enumerate(near_copies([[(text,) for text in texts]])[0]) if near]


def test_the_same_words_and_a_text_inside_another_are_near_copies() -> None:
    assert _near("A good film!", "a GOOD film", "a good song", "good film") == [0, 1]
    assert _near("it is a very good film", "so it is a very good film, he said", "a very good war") == [0, 1]
    assert _near("a very good", "it is a very good film") == [], "three words are inside others by chance"
    assert _near("it is a very good film", "it is a very goodly film", "is it a very good film") == []
    assert _near("is a very good", "it is a very good film", "it is a very good") == [0, 1, 2]
    assert _near("", "...", "a") == [0, 1], "nothing is said twice"
    assert _near("Straße und Haus", "STRASSE UND HAUS") == [0, 1]


def test_pairs_are_near_copies_where_both_texts_are() -> None:
    pairs = [
        ("a film", "b"),
        ("A film.", "B!"),
        ("a film", "c"),
        ("a film is very good", "b c d e"),
        ("x", "b c d e f"),
    ]
    assert [bool(near) for near in near_copies([pairs])[0]] == [True, True, False, False, False]


def test_near_copies_in_other_sets_are_told_apart() -> None:
    one = [("it is a very good film",), ("nobody",)]
    two = [("so it is a very good film",), ("Nobody",), ("somebody",), ("nobody!",)]
    assert near_copies([one, two]) == [[0b10, 0b10], [0b01, 0b11, 0, 0b11]]


def test_near_copies_are_those_of_a_slow_search() -> None:
    draw = random.Random(5)
    texts = [" ".join(draw.choices(["a", "b", "c"], k=draw.randint(1, 12))) for _ in range(300)]

    def holds(outer: str, inner: str) -> bool:
        return outer == inner or (len(inner.split()) >= 4 and f" {inner} " in f" {outer} ")

    want = [
        n
        for n, text in enumerate(texts)
        if any(m != n and (holds(text, other) or holds(other, text)) for m, other in enumerate(texts))
    ]
    assert 20 < len(want) < 300
    assert _near(*texts) == want


def test_near_copies_are_said_by_the_command_unless_groups_are_named(
    place: Path, tmp_path: Path, seen: dict[str, hc.data.Task]
) -> None:
    plain = ("--data", place / "dev.tsv")
    said = ran("evaluate", place / "classifier", *plain, "-o", tmp_path / "run")
    assert (
        "note: 200 of 200 examples are near copies of others (the same words, or one inside the other)" in said.stderr
    )
    assert "name what belongs together with --group" in said.stderr
    assert "near copies" not in said.stdout
    prune = ("--remove", 2, "--dry-run", "--run", tmp_path / "dry")
    said = ran("prune", place / "classifier", *plain, *prune)
    many = sum(bool(near & 1) for near in near_copies([_texts(seen["score"]), _texts(seen["report"])])[1])
    assert many > 10
    assert (
        f"{many} of {seen['report'].size} examples to report on are near copies of examples to score on" in said.stderr
    )
    said = ran(*_asked(place, "prune", "--remove", 2, "--dry-run", "--run", tmp_path / "grouped"))
    assert "near copies" not in said.stderr
    lines = (place / "dev.tsv").read_text().splitlines()
    apart = [line for line in lines[1:] if line.split("\t")[0].split()[-1] == "never"] or lines[1:2]
    (tmp_path / "one.tsv").write_text("\n".join([lines[0], *apart]) + "\n")
    said = ran("evaluate", place / "classifier", "--data", tmp_path / "one.tsv", "-o", tmp_path / "few")
    assert "near copies" not in said.stderr


def _texts(task: hc.data.Task) -> list[tuple[str, ...]]:
    assert task.texts is not None
    return [task.texts(n) for n in range(task.size)]


def test_copies_inside_what_is_trained_on_are_no_matter_and_those_in_what_is_measured_on_are(
    place: Path, tmp_path: Path
) -> None:
    lines = (place / "dev.tsv").read_text().splitlines()
    texts = list(dict.fromkeys(_sentences(60, 77)))[:40]
    (tmp_path / "new.tsv").write_text("\n".join([lines[0], *(f"{t}\t{n % 2}\tx" for n, t in enumerate(texts))]) + "\n")
    asked = ("train", place / "classifier", "--data", place / "dev.tsv", "--steps", 1, "--quiet")
    said = ran(*asked, "--dev-data", tmp_path / "new.tsv", "-o", tmp_path / "one", "--run", tmp_path / "run")
    assert said.exit_code == 0, said.output
    assert "near copies of others" not in said.stderr
    said = ran(*asked, "-o", tmp_path / "two", "--run", tmp_path / "run-two")
    assert "examples to measure on are near copies of examples to train on" in said.stderr


def test_many_texts_that_begin_alike_take_no_time() -> None:
    draw = random.Random(1)
    begin = "what do you think about this film which is "
    texts = [(begin + " ".join(draw.choices(WORDS, k=draw.randint(9, 40))),) for _ in range(4000)]
    assert sum(map(bool, near_copies([texts])[0])) == 0
