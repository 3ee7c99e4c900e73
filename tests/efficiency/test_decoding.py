"""Writing tokens: what is timed is what `generate` writes, and the cache holds what is counted. Nothing here is timed."""

from __future__ import annotations

import copy
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import says
from helpers import run_folders, zoo
from helpers.small_models import classifier
from typer.testing import CliRunner

import headcount as hc
from headcount.cli.app import app
from headcount.cli.text import bench_text
from headcount.documents.bench import Bench, Decoding, Ratio
from headcount.efficiency import contention, decoding
from headcount.efficiency.benchmark import Runtime, Time, bench
from headcount.efficiency.decoding import Writer
from headcount.efficiency.kv_cache import keys_and_values
from headcount.efficiency.launching import WARM_UPS, Launching
from headcount.errors import BadMeasure
from headcount.reporting.findings import gather
from headcount.reporting.sections import pruning
from headcount.runs import Run

CUTS = {
    "": "",
    "uneven": "0:0 1:0-2,7",
    "even": "0:0,2,4,6",
    "groups": "0:0-3 1:2-3",
    "layer": "layers:0 1:1",
    "empty": "1:*",
}


def decoder(cut: str = "") -> Any:
    model, _ = zoo.build("llama")
    if cut:
        hc.cut(model, cut)
    return model.eval()


def steady(run: Any, device: torch.device) -> Time:
    """A clock on which everything takes a second."""
    run()
    return Time(1.0, 1.0)


# -- what is written -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CUTS)
def test_what_is_timed_is_what_generate_writes(name: str) -> None:
    model = decoder(CUTS[name])
    prompts = torch.randint(1, zoo.VOCAB, (3, 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        writer = Writer(model, prompts, 6)
        writer.both()
        writer.both()  # every repetition begins anew
        how: dict[str, Any] = {"do_sample": False, "max_new_tokens": 7, "eos_token_id": None, "pad_token_id": 0}
        want = model.generate(prompts, attention_mask=torch.ones_like(prompts), **how)
    assert torch.cat(writer.written, 1).tolist() == want[:, 5:].tolist()


def test_compiled_steps_write_the_same_into_a_cache_of_a_fixed_size() -> None:
    model = decoder(CUTS["uneven"])
    prompts = torch.randint(1, zoo.VOCAB, (2, 5), generator=torch.Generator().manual_seed(0))
    step: Any = torch.compile(model, backend="eager", dynamic=False)
    try:
        with torch.no_grad():
            plain, fixed = Writer(model, prompts, 6), Writer(model, prompts, 6, step, Launching(compile=True))
            plain.both()
            for _ in range(2):
                fixed.both()
                assert torch.cat(fixed.written, 1).tolist() == torch.cat(plain.written, 1).tolist()
        assert fixed.cache_bytes == plain.cache_bytes
    finally:
        torch.compiler.reset()


def test_a_recorded_step_goes_on_in_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no GPU a recording is the step itself: what it reads and writes lies where it lay when it was recorded."""
    model = decoder(CUTS["uneven"])
    prompts = torch.randint(1, zoo.VOCAB, (2, 5), generator=torch.Generator().manual_seed(0))

    def recorded(run: Any, device: torch.device) -> Any:
        for _ in range(WARM_UPS):
            run()
        return run

    monkeypatch.setattr(decoding, "recorded", recorded)
    # transformers leaves out the mask of a cache of a fixed size unless it sees that a step is recorded
    monkeypatch.setattr("transformers.utils.import_utils.is_cuda_stream_capturing", lambda: True)
    with torch.no_grad():
        plain, writer = Writer(model, prompts, 6), Writer(model, prompts, 6, launching=Launching(cuda_graphs=True))
        plain.both()
        writer.record()
        memory = [tensor.data_ptr() for tensor in (writer.token, *keys_and_values(writer.cache))]
        for _ in range(2):
            writer.read()
            for token in plain.written[1:]:
                assert writer.replay is not None
                writer.replay()
                assert torch.equal(writer.token, token)
        writer.both()
        assert torch.equal(writer.token, plain.written[-1])
        assert memory == [tensor.data_ptr() for tensor in (writer.token, *keys_and_values(writer.cache))]
    assert writer.cache_bytes == plain.cache_bytes


@pytest.mark.parametrize("name", [name for name in CUTS if name])
def test_the_cache_holds_what_is_counted(name: str) -> None:
    models = {"whole": decoder(), "smaller": decoder(CUTS[name])}
    found = bench(models, batch_sizes=[1, 3], lengths=[4], repeats=1, generate=5, clock=steady)
    assert [(row.model, row.batch) for row in found.decoding] == [(m, b) for b in (1, 3) for m in models]
    for row in found.decoding:
        assert row.cache == row.cache_counted
        assert (row.length, row.tokens) == (4, 5)
    whole = 2 * 4 * 8 * 4 * 2 * 9  # keys and values of 4 heads of 8 numbers of 4 bytes, in 2 layers, of 9 tokens
    assert [row.cache for row in found.decoding if row.model == "whole"] == [whole, 3 * whole]
    assert found.decoding[1].cache == whole * {"uneven": 7, "even": 8, "groups": 5, "layer": 4, "empty": 5}[name] / 8


# -- times ---------------------------------------------------------------------------------------------------------------


def test_speeds_are_tokens_by_the_seconds_of_writing_alone() -> None:
    model = decoder()
    asked: list[int] = []

    def clock(run: Any, device: torch.device) -> Time:
        with_lengths: list[int] = []
        handle = model.register_forward_pre_hook(
            lambda _, args, kwargs: with_lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        run()
        handle.remove()
        asked.append(len(with_lengths))
        return Time(0.5 * (len(with_lengths) or 1), 1.0)

    found = bench({"model": model}, batch_sizes=[4], lengths=[3], repeats=2, generate=6, clock=clock)
    (row,) = found.decoding
    assert asked[-2:] == [6, 6], "so many steps of one token, without the prompt"
    assert (row.tokens_per_second, row.low, row.high) == (8.0, 8.0, 8.0)
    assert row.ratio == 1.0


def test_processor_time_is_compared_where_others_disturb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.efficiency.in_turns.is_busy", lambda share: True)
    monkeypatch.setattr("headcount.efficiency.benchmark.SHORTEST", 1e-6)
    models = {"whole": decoder(), "smaller": decoder(CUTS["uneven"])}
    with contention.threads(1):
        found = bench(models, batch_sizes=[1], lengths=[3], repeats=2, generate=2)
    assert all(row.disturbed and row.work is not None for row in (*found.rows, *found.decoding))
    assert Bench.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_what_a_run_folder_holds_is_not_written_again(tmp_path: Path) -> None:
    models = {"model": decoder()}
    asked: dict[str, Any] = {"batch_sizes": [1, 2], "lengths": [3], "repeats": 2, "generate": 4}
    left = [4 + 2 * 2 + 2]  # looks at two shapes twice, two repetitions of each pass, and one size of writing

    def stops(run: Any, device: torch.device) -> Time:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return steady(run, device)

    def never(run: Any, device: torch.device) -> Time:
        raise AssertionError

    with Run.open(tmp_path / "run", {"command": "bench"}) as run:
        with pytest.raises(KeyboardInterrupt):
            bench(models, run=run, clock=stops, **asked)
        assert [name for name in run.pieces if "generate" in name and "look" not in name] == [
            "bench-2-generate-00004-00001-00003"
        ]
        found = bench(models, run=run, clock=steady, **asked)
        assert found == bench(models, run=run, clock=never, **asked)
    assert found.decoding == bench(models, clock=steady, **asked).decoding


# -- refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "about"),
    [
        ("llama", {"generate": 0}, "from 1 on; I got 0"),
        ("llama", {"generate": 1.5}, "I got 1.5"),
        ("llama", {"lengths": [5, 30], "generate": 11}, "--length 29"),
        ("bert", {"generate": 4}, "no decoder that keeps a cache"),
        ("t5", {"generate": 4}, "no decoder that keeps a cache"),
        (
            "llama",
            {"generate": 4, "runtime": Runtime("onnxruntime 1", "float32", {}, dict)},
            "onnxruntime 1 runs the models",
        ),
        ("llama", {"cuda_graphs": True}, "the models are on the cpu"),
    ],
)
def test_bad_questions_are_one_sentence(name: str, options: dict[str, Any], about: str) -> None:
    model = classifier() if name == "bert" else zoo.build(name)[0]
    if "lengths" in options:
        model.config.max_position_embeddings = 40
    with says(BadMeasure, about=about):
        bench({"m": model}, **{"batch_sizes": [1], "lengths": [5], "repeats": 1, **options})


# -- documents, words, the command ---------------------------------------------------------------------------------------


def found_before() -> Bench:
    numbers = {"batch": 32, "length": 128, "tokens": 64, "low": 90.0, "high": 110.0}
    rows = (
        Decoding(
            model="tiny", tokens_per_second=100.0, ratio=1.0, ratio_low=1.0, ratio_high=1.0, cache=2**21, **numbers
        ),
        Decoding(
            model="smaller", tokens_per_second=150.0, ratio=1.5, ratio_low=1.4, ratio_high=1.6, cache=2**20, **numbers
        ),
    )
    return replace(Bench.from_json(run_folders.bench()), decoding=rows)


def test_words_and_tables_say_what_was_written() -> None:
    found = found_before()
    sentence = (
        "At batch 32, 64 tokens after 128, smaller writes 1.50 times as many tokens per second as tiny; its cache then takes "
        "1.0 MiB, and that of tiny 2.0 MiB."
    )
    assert found.sentences()[-1] == sentence
    lines = [" ".join(line.split()) for line in bench_text(found).splitlines()]
    assert "tiny 32 128 64 100 (90 to 110) 2.0 MiB".replace("100 (90 to 110)", "100.0 (90.0 to 110.0)") in lines
    assert "smaller 32 128 64 150.0 (90.0 to 110.0) 1.50 (1.40 to 1.60) 1.0 MiB" in lines
    assert "tokens/s" in found._repr_html_()
    assert "150" in str(found)
    doubtful = Decoding("b", 1, 2, 3, 1.0, 1.0, 1.0, 1.0, 0.9, 1.1, 8.0, None, 0.5, True)
    assert doubtful.measured is None
    assert Decoding(*list(doubtful.__dict__.values())[:-1], Ratio(1.3, 1.2, 1.4, True)).measured == Ratio(
        1.3, 1.2, 1.4, True
    )


def test_documents_without_writing_are_read_and_written_as_before() -> None:
    data = run_folders.bench()
    read = Bench.from_json(data)
    assert (read.decoding, read.cuda_graphs) == ((), False)
    assert {"decoding", "cuda_graphs"}.isdisjoint(read.to_json())


def test_the_report_has_a_table_of_what_was_written(tmp_path: Path) -> None:
    run_folders.folder(tmp_path / "b", "bench", {"bench": found_before().to_json()})
    (part,) = gather([tmp_path / "b"])
    (section,) = pruning.speeds(part)
    table = next(table for table in section.tables if table.name == "decoding")
    assert [row[0] for row in table.shown] == ["tiny", "smaller"]
    assert table.shown[1][-1] == "1.0\u00a0MiB"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding")
    model = decoder()
    model.save_pretrained(folder / "whole")
    smaller = copy.deepcopy(model)
    hc.cut(smaller, CUTS["uneven"])
    hc.save(smaller, folder / "smaller")
    return folder


def ask(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", *words])


def test_the_command_writes_and_shows_it_again(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    words = [
        "whole",
        "smaller",
        "--batch",
        "1,2",
        "--length",
        "5",
        "--repeats",
        "2",
        "--generate",
        "3",
        "-o",
        str(tmp_path / "r"),
    ]
    done = ask(*words)
    assert done.exit_code == 0, done.output
    kept = Bench.from_json(json.loads((tmp_path / "r" / "bench.json").read_text()))
    assert [(row.model, row.batch, row.tokens) for row in kept.decoding] == [
        (name, batch, 3) for batch in (1, 2) for name in ("whole", "smaller")
    ]
    again = ask(*words)
    assert bench_text(kept) in again.stdout
    assert json.loads((tmp_path / "r" / "run.json").read_text())["question"]["options"]["generate"] == 3


@pytest.mark.parametrize(
    ("words", "code", "about"),
    [
        (["whole", "--generate", "0"], 1, "from 1 on; I got 0"),
        (["whole", "--generate", "4", "--runtime", "onnxruntime"], 2, "--generate"),
        (["whole", "--cuda-graphs", "--device", "cpu"], 1, "--cuda-graphs"),
    ],
)
def test_wrong_commands_leave_nothing(
    words: list[str], code: int, about: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    done = ask(*words, "-o", "new")
    assert done.exit_code == code, done.output
    assert about in (done.output if code == 2 else str(done.exception))
    assert not (place / "new").exists()


# -- the benchmark ---------------------------------------------------------------------------------------------------------


def test_the_benchmark_runs_in_its_smallest_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "decode.py"
    spec = importlib.util.spec_from_file_location("decode_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    words = [
        "--shapes",
        "tiny",
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--batch",
        "1,2",
        "--prompt",
        "6",
        "--tokens",
        "2",
    ]
    script.main([*words, "--eager-repeats", "1", "--output", str(tmp_path / "d.json")])
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "d.json").read_text())
    assert found["notes"] == []
    names = [model["name"] for model in found["models"]]
    assert {(row["what"], row["batch"]) for row in found["rows"]} == {
        (w, b) for w in ("prefill", "decode") for b in (1, 2)
    }
    assert [row["model"] for row in found["rows"]] == names * 4, "the rest is for a GPU"
    removed = {model["name"]: model["removed"] for model in found["models"]}
    for name in names:
        assert name in printed
        if "%" in name and "padded" not in name:
            assert removed[name] == pytest.approx(float(name.split()[0]) / 100, abs=0.03)
    script.main(["--table", str(tmp_path / "d.json")])
    assert capsys.readouterr().out == printed
