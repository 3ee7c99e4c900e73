"""`prune` of a decoder as it is typed: by its cache, by weights and cache, and with groups of query heads of one size."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import says
from helpers.small_decoders import byte_tokenizer, decoder
from helpers.small_models import ran, ran_json
from pruning.test_pipeline import quick  # noqa: F401 (a fixture)

import headcount as hc
from headcount.efficiency.kv_cache import Serving, bytes_per_token, memory_of
from headcount.errors import BadPlan, BadRun
from headcount.evaluation.ablation import plans_of
from headcount.pruning.legal_plans import STAY_EVEN

WORDS = tuple("the cat sat on a mat and the dog ran to see if it rains in may or in june while we sing".split())  # noqa: SIM905


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small Llama in bfloat16 and some text."""
    folder, draw = tmp_path_factory.mktemp("llama"), random.Random(0)
    model = decoder("llama", num_attention_heads=8, num_key_value_heads=4, head_dim=8, num_hidden_layers=2)
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    byte_tokenizer().save_pretrained(folder / "model")
    lines = [" ".join(draw.choices(WORDS, k=12)) for _ in range(120)]
    (folder / "dev.txt").write_text("\n".join(lines))
    return folder


def asked(place: Path, output: Path, *words: Any) -> list[Any]:
    """A command on this model and text."""
    start = ["prune", place / "model", "--data", place / "dev.txt", "--max-length", 32, "-o", output / "smaller"]
    return [*start, "--run", output / "run", "--brake", "off", "--no-report", "--quiet", *words]


def in_whole_groups(plan: hc.Plan, model: Any) -> bool:
    heads = {unit for unit in plan if "." not in unit.site}
    groups = [group.units for group in plans_of(hc.find(model), "kv-groups").values()]
    return bool(heads) and all(group <= heads or not group & heads for group in groups)


@pytest.mark.usefixtures("quick")
def test_half_of_the_cache(place: Path, tmp_path: Path) -> None:
    found = ran_json(*asked(place, tmp_path, "--kv-cache", "50%"))
    whole, smaller = hc.load(place / "model"), hc.load(tmp_path / "smaller")
    assert found["kv_cache"] == [bytes_per_token(whole), bytes_per_token(smaller)]
    assert (
        found["kv_cache"][1] == found["kv_cache"][0] / 2 == found["budget"]["measured"] == found["budget"]["predicted"]
    )
    assert in_whole_groups(hc.Plan.read(tmp_path / "smaller" / "plan.json"), whole)
    assert found["units"] == "heads"


@pytest.mark.usefixtures("quick")
def test_weights_and_cache_in_the_format_of_the_file(place: Path, tmp_path: Path) -> None:
    words = ("--memory", "230kB", "--context", 100, "--batch", 3)
    printed = ran(*asked(place, tmp_path, *words)).stdout
    whole, smaller = hc.load(place / "model"), hc.load(tmp_path / "smaller")
    serving = Serving(context=100, batch=3, number=2)
    assert memory_of(whole, serving) > 230_000 >= memory_of(smaller, serving) > 200_000
    assert f"of {memory_of(whole, serving) / 1000:.0f} kB: 230 kB allowed" in printed
    assert "KV cache of one token" in printed
    assert in_whole_groups(hc.Plan.read(tmp_path / "smaller" / "plan.json"), whole)


def test_flags_that_need_each_other(place: Path, tmp_path: Path) -> None:
    for words in (("--memory", "1MB"), ("--remove", 1, "--context", 9), ("--remove", 1, "--batch", 2)):
        done = ran(*asked(place, tmp_path, *words))
        assert done.exit_code == 2
        assert "it goes with --context" in " ".join(done.output.replace("│", " ").split())
    assert not (tmp_path / "smaller").exists()


@pytest.mark.usefixtures("quick")
def test_one_call_does_the_same(place: Path, tmp_path: Path) -> None:
    data, options = str(place / "dev.txt"), {"max_length": 32, "brake": None, "units": "kv-groups,neurons"}
    pruned = hc.prune(str(place / "model"), data, memory="230kB", context=100, batch=3, **options)
    assert pruned.choice.budget is not None
    assert pruned.choice.budget.what == "memory"
    assert memory_of(pruned.model, Serving(100, 3, 2)) <= 230_000
    pruned = hc.prune(str(place / "model"), data, kv_cache="50%", **options)
    assert pruned.kv_cache is not None
    assert pruned.kv_cache[1] == pruned.kv_cache[0] / 2


# -- groups of query heads ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_groups_stay_even_unless_they_may_not_and_the_run_folder_knows(place: Path, tmp_path: Path) -> None:
    words = ("--remove", 1, "--by", "magnitude", "--dry-run")
    start = asked(place, tmp_path, *words)
    found = ran_json(*start)
    assert found["groups"] == f"{STAY_EVEN} 2 units go instead of 1."
    assert len(hc.Plan.from_json(found["plan"])) == 2
    assert _options(tmp_path)["groups"] == "even"
    with says(BadRun, about="groups"):  # the rule is part of the question
        ran(*start, "--groups", "uneven")
    start[start.index("--run") + 1] = tmp_path / "free" / "run"
    free = ran_json(*start, "--groups", "uneven")
    assert "groups" not in free
    assert len(hc.Plan.from_json(free["plan"])) == 1
    assert "groups" not in _options(tmp_path / "free"), "as earlier versions wrote it"


@pytest.mark.usefixtures("quick")
def test_a_plan_in_a_file_is_taken_as_it_is(place: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(hc.find(hc.load(place / "model")).plan("0:1").to_json()))
    printed = " ".join(ran(*asked(place, tmp_path, "--plan", tmp_path / "plan.json")).stdout.split())
    assert (
        "different sizes in 1 attention, with which a decoder writes slower: headcount export --groups pad" in printed
    )
    assert hc.removed(hc.load(tmp_path / "smaller")).units == {hc.Unit("0", 1)}


def test_what_is_wrong_with_the_flag_is_said_first(place: Path, tmp_path: Path) -> None:
    with says(BadPlan, about='it must be "even" or "uneven"'):
        ran(*asked(place, tmp_path, "--remove", 1, "--groups", "odd"))
    with says(BadPlan, about="gguf holds even groups of query heads alone"):
        ran(*asked(place, tmp_path, "--remove", 1, "--groups", "uneven", "--for", "gguf"))


def _options(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "run.json").read_text())["question"]["options"]
    return found
