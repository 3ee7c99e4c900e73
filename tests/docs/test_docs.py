"""The pages tell the truth: their programs run, their commands parse, their links lead somewhere, their lists are whole."""

from __future__ import annotations

import contextlib
import io
import random
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from helpers.contrasts import small_gpt2, words_tokenizer
from helpers.small_models import word_tokenizer
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    MarianConfig,
    MarianMTModel,
)
from typer.testing import CliRunner

from headcount.cli.app import app
from headcount.data import kinds
from headcount.importance import criteria, layer_orders
from headcount.stats import paired_tests

ROOT = Path(__file__).parents[2]
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "coverage.md"]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
RUNS = re.compile(r"<!-- runs -->\n```python\n(.*?)```", re.DOTALL)
WORDS = ["the", "film", "is", "good", "bad", "dull", "long", "short", "war", "love", "song", "and", "not", "very"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of, in small: a model of 6 layers with 12 heads, a translator, SST-2, a run."""
    folder = tmp_path_factory.mktemp("pages")
    draw = random.Random(0)
    (folder / "SST-2").mkdir()
    for name, count in (("dev", 16), ("train", 24)):
        rows = [f"{' '.join(draw.choices(WORDS, k=draw.randint(3, 6)))}\t{number % 2}" for number in range(count)]
        (folder / "SST-2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    tokenizer = word_tokenizer(WORDS)
    tokenizer.save_pretrained(folder / "minilm-sst2")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        labels = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}
        sizes = {"hidden_size": 24, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 8}
        bert = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **sizes, **labels)
        BertForSequenceClassification(bert).save_pretrained(folder / "minilm-sst2")
        layers = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in MARIAN.items()}
        marian = MarianConfig(vocab_size=20, d_model=16, pad_token_id=0, decoder_start_token_id=0, **layers)
        MarianMTModel(marian).save_pretrained(folder / "multi30k-de-en")
    small_gpt2().save_pretrained(folder / "SmolLM2-135M")
    words_tokenizer().save_pretrained(folder / "SmolLM2-135M")
    with contextlib.chdir(folder):
        made = CliRunner().invoke(app, [*shlex.split(CURVE), "-o", "runs/curve"])
    assert made.exit_code == 0, made.output
    return folder


MARIAN = {"layers": 2, "attention_heads": 4, "ffn_dim": 8}
CURVE = "curve minilm-sst2 --data SST-2/dev.tsv --by random --random-seeds 1 --quiet"


def _batches() -> list[dict[str, Any]]:
    return [{"ids": torch.tensor([[1, 5, 6, 2], [1, 7, 8, 2]]), "labels": torch.tensor([0, 1])}]


@pytest.mark.parametrize("name", [n for n, path in zip(NAMES, PAGES, strict=True) if RUNS.search(path.read_text())])
def test_the_programs_of_a_page_run_one_after_the_other(name, place, tmp_path, monkeypatch) -> None:
    work = tmp_path / "work"
    shutil.copytree(place, work)
    monkeypatch.chdir(work)
    space: dict[str, Any] = {"batches": _batches()}
    for code in RUNS.findall((ROOT / name).read_text(encoding="utf-8")):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, name, "exec"), space)


def _commands(text: str) -> list[str]:
    """Lines of code that begin with headcount, with a prompt or without, and commands with a flag inside a line of text."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shown = [line for block in blocks for line in re.findall(r"^(?:\$ )?headcount (.+)$", block, re.MULTILINE)]
    return shown + [one.replace("\n", " ") for one in re.findall(r"`headcount (\w+ [^`]*-[^`]*)`", text)]


@pytest.mark.parametrize("name", [*NAMES, "README.md"])
def test_every_command_of_a_page_parses(name) -> None:
    group = typer.main.get_command(app)
    for line in _commands((ROOT / name).read_text(encoding="utf-8")):
        verb, *rest = shlex.split(line, comments=True)
        command = group.commands.get(verb)  # type: ignore[attr-defined]
        assert command is not None, line
        with command.make_context(verb, rest) as context:  # an unknown flag or a missing argument is a UsageError
            chosen = context.params.get("by") or ""
        assert set(filter(None, chosen.split(","))) <= {*criteria.CRITERIA, layer_orders.EVERY_OTHER}, line


def test_there_are_commands_and_programs_to_test() -> None:
    texts = [path.read_text(encoding="utf-8") for path in PAGES]
    assert sum(len(_commands(text)) for text in texts) > 20
    assert sum(len(RUNS.findall(text)) for text in texts) > 15


def _anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*NAMES, "README.md", "CONTRIBUTING.md"])
def test_every_link_of_a_page_leads_somewhere(name) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = (ROOT / name).parent / file if file else ROOT / name
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("name", NAMES)
def test_no_page_names_a_place_on_some_machine(name) -> None:
    assert not re.search(r"(?<![\w.])/(tmp|work|home|root|mnt|data)/", (ROOT / name).read_text(encoding="utf-8"))


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w./-]+\.md)\)", index))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - {"README.md"} <= linked


def _first_cells(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    under = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", under, re.MULTILINE).group().splitlines()[2:]  # type: ignore[union-attr]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_tables_list_what_there_is() -> None:
    shown = {row[0].strip("`"): tuple(row[2].split(", ")) for row in _first_cells("tasks.md", "Kinds")}
    assert shown == {**kinds.KINDS, "your own": ("mean",)}
    assert [row[0].strip("`") for row in _first_cells("score.md", "The criteria")] == list(criteria.CRITERIA)
    tests = [re.match(r"`(\w+)`", row[0]).group(1) for row in _first_cells("statistics.md", "The tests")]  # type: ignore[union-attr]
    assert tests == list(paired_tests.TESTS)
