"""The command line: what it prints agrees with the library, what it writes loads, what it refuses is one sentence."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers import processes, zoo

import headcount as hc
from headcount.cli.app import main
from headcount.model import checkpoints


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in this process."""

    def call(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["headcount", *map(str, args)])
        capsys.readouterr()
        try:
            main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code or 0
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a llama (tied or not), a bert, a cut llama and a bitnet."""
    import transformers

    place = tmp_path_factory.mktemp("models")
    for name in ("llama", "bert", "gpt2", "bitnet"):
        zoo.build(name)[0].save_pretrained(place / name)
    (place / "llama" / "tokenizer.json").write_text("{}")
    small, _ = zoo.build("llama")
    hc.cut(small, "1:3 layers:0 1.mlp:0-9")
    hc.save(small, place / "small")
    config = transformers.LlamaConfig(**zoo.GQA, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(place / "tied")
    (place / "empty").mkdir()
    (place / "notes").mkdir()
    (place / "notes" / "config.json").write_text('{"colour": "blue"}')
    return place


def _one_sentence(result: Result, code: int = 1) -> None:
    assert result.code == code
    assert result.out == ""
    assert result.err.startswith("headcount: ")
    assert result.err.count("\n") == 1
    assert result.err.endswith("\n")
    assert "Traceback" not in result.err


# -- in a process of its own -----------------------------------------------------------------------------------------


def _process(*args: object) -> Result:
    done = subprocess.run([sys.executable, "-m", "headcount", *map(str, args)], capture_output=True, text=True)
    return Result(done.returncode, done.stdout, done.stderr)


def test_a_missing_folder_ends_a_process_with_1_and_one_sentence(tmp_path: Path) -> None:
    process = processes.command(["inspect", tmp_path / "none"], tmp_path / "said")
    process.join()
    result = Result(process.exitcode, *((tmp_path / f"said.{kind}").read_text() for kind in ("out", "err")))
    _one_sentence(result)
    assert str(tmp_path / "none") in result.err


def test_json_is_all_that_a_process_prints(folders: Path) -> None:
    result = _process("inspect", folders / "small", "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["class"] == "LlamaForCausalLM"


def test_a_usage_error_ends_a_process_with_2_and_no_import_of_torch() -> None:
    code = """
import sys
from headcount.cli.app import main
sys.argv = ["headcount", "cut", "x"]
try:
    main()
finally:
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.split() == ["False"]
    assert "--plan" in done.stderr
    assert "Traceback" not in done.stderr


# -- help ------------------------------------------------------------------------------------------------------------


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"headcount {hc.__version__}\n", "")


@pytest.mark.parametrize("command", ["", "inspect", "cut"])
def test_help_shows_examples(run: Run, command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.code == 0
    assert f"headcount {command or 'inspect'} " in result.out
    assert "Examples" in result.out


def test_no_arguments_show_the_help(run: Run) -> None:
    result = run()
    assert "inspect" in result.out + result.err
    assert "Traceback" not in result.err


# -- inspect ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2", "small", "tied", "bitnet"])
def test_inspect_agrees_with_find_and_with_the_weights(run: Run, folders: Path, name: str) -> None:
    model = hc.load(folders / name)
    anatomy = hc.find(model)
    result = run("inspect", folders / name, "--json")
    assert (result.code, result.err) == (0, "")
    seen = json.loads(result.out)
    assert seen["class"] == type(model).__name__
    assert seen["parameters"] == sum(p.numel() for p in model.parameters())
    assert [row["site"] for row in seen["sites"]] == [site.name for site in anatomy]
    for row, site in zip(seen["sites"], anatomy, strict=True):
        assert (row["units"], row["of"], row["width"]) == (len(site), site.of, site.width)
        assert (row["kind"], row["attention"], row["layer"]) == (site.kind, site.attention, site.layer)
        assert row["kv_heads"] == (site.kv_heads if site.kind == "head" else None)
        assert row["path"] == site.path
        matrices = (*site.readers, site.writer)
        assert row["parameters"] == sum(p.numel() for matrix in matrices for p in matrix.parameters())
    stacks = [{"stack": s.name, "path": s.path, "layers": list(s.ids), "of": s.of} for s in anatomy.stacks]
    assert seen["stacks"] == stacks


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2"])
def test_the_parameters_of_a_unit_are_what_its_removal_saves(run: Run, folders: Path, name: str) -> None:
    for row in json.loads(run("inspect", folders / name, "--json").out)["sites"][:2]:
        model = hc.load(folders / name)
        before = sum(p.numel() for p in model.parameters())
        hc.cut(model, f"{row['site']}:0")
        assert row["parameters_per_unit"] == before - sum(p.numel() for p in model.parameters()) > 0


def test_the_table_counts_what_is_left(run: Run, folders: Path) -> None:
    lines = [line.split() for line in run("inspect", folders / "small").out.splitlines()]
    (head,) = [line for line in lines if line[:2] == ["1", "decoder"]]
    (mlp,) = [line for line in lines if line[:1] == ["1.mlp"]]
    assert head[2:5] == ["7", "of", "8"]
    assert mlp[2:5] == ["38", "of", "48"]
    assert ["layers:", "1", "of", "2", "layers"] in lines


def test_the_table_joins_layers_that_are_alike_unless_asked_not_to(run: Run, folders: Path) -> None:
    def sites(*args: str) -> list[str]:
        return [line.split()[0] for line in run("inspect", folders / "llama", *args).out.splitlines()[2:-1]]

    assert sites() == ["0-1", "0-1.mlp"]
    assert sites("--all") == ["0", "0.mlp", "1", "1.mlp"]


def test_the_table_says_what_cannot_be_cut_and_why(run: Run, folders: Path) -> None:
    out = " ".join(run("inspect", folders / "bitnet").out.split())
    assert "normalises over all" in out
    assert "attn_sub_norm" in out


# -- cut -------------------------------------------------------------------------------------------------------------

UNITS = ("0:0-1", "1:3", "1.mlp:0-4,7")


def _equal(folder: Path, model: Any) -> None:
    again = hc.load(folder)
    assert list(again.state_dict()) == list(model.state_dict())
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert hc.removed(again) == hc.removed(model)


def test_cut_writes_the_model_that_the_library_cuts(run: Run, folders: Path, tmp_path: Path) -> None:
    result = run("cut", folders / "llama", *UNITS, "-o", tmp_path / "out")
    assert (result.code, result.err) == (0, "")
    assert "proved equal" in result.out
    assert "\n9 units, " in result.out
    assert "\n1 unit, " in run("cut", folders / "llama", "0:0", "--dry-run").out
    model = hc.load(folders / "llama")
    hc.cut(model, UNITS)
    _equal(tmp_path / "out", model)
    assert (tmp_path / "out" / "tokenizer.json").is_file(), "what belongs to the model comes along"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("dry", [True, False], ids=["dry", "wet"])
def test_cut_counts_what_goes(run: Run, folders: Path, tmp_path: Path, dry: bool) -> None:
    args = ["--dry-run"] if dry else ["--no-check"]
    result = run("cut", folders / "tied", *UNITS, "layers:0", "-o", tmp_path / "out", "--json", *args)
    assert (result.code, result.err) == (0, "")
    seen = json.loads(result.out)
    model = hc.load(folders / "tied")
    before = sum(p.numel() for p in model.parameters())
    plan = hc.cut(model, [*UNITS, "layers:0"])
    assert seen["parameters"] == [before, sum(p.numel() for p in model.parameters())]
    assert hc.Plan.from_json(seen["plan"]) == plan
    assert not seen["checked"]
    assert seen["output"] == (None if dry else str(tmp_path / "out"))
    assert (tmp_path / "out").exists() == (not dry)
    assert not dry or list(tmp_path.iterdir()) == []


def test_a_dry_run_needs_no_weights_and_no_output(run: Run, folders: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folders / "llama" / "config.json").read_bytes())
    result = run("cut", tmp_path, "0:0", "--dry-run")
    assert (result.code, result.err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_plan_file_may_stand_for_units_or_add_to_them(run: Run, folders: Path, tmp_path: Path) -> None:
    hc.Plan.of("0:0-1", why="as planned").write(tmp_path / "plan.json")
    for units in ((), ("1:3",)):
        out = tmp_path / f"out{len(units)}"
        assert run("cut", folders / "llama", *units, "--plan", tmp_path / "plan.json", "-o", out).code == 0
        model = hc.load(folders / "llama")
        hc.cut(model, ["0:0-1", *units])
        _equal(out, model)


def test_a_cut_folder_can_be_cut_again(run: Run, folders: Path, tmp_path: Path) -> None:
    assert run("cut", folders / "small", "1:0", "-o", tmp_path / "smaller").code == 0
    model = hc.load(folders / "llama")
    hc.cut(model, "1:0,3 layers:0 1.mlp:0-9")
    _equal(tmp_path / "smaller", model)


def test_an_existing_folder_is_replaced_only_by_force(run: Run, folders: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("do not touch")
    args = ("cut", folders / "bert", "0:0", "-o", tmp_path / "out")
    result = run(*args)
    _one_sentence(result)
    assert "--force" in result.err
    result = run(*args, "--force")
    _one_sentence(result)
    assert "is not a model folder" in result.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    (tmp_path / "out" / "thesis.txt").unlink()
    for unit in ("0:0", "0:1"):
        assert run("cut", folders / "bert", unit, "-o", tmp_path / "out", "--force").code == 0
        assert hc.removed(hc.load(tmp_path / "out")) == hc.Plan.of(unit)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


REPLACING = {
    "cut": ("cut", "model", "0:0"),
    "prune": ("prune", "model", "--data", "data.tsv", "--remove", "1"),
    "train": ("train", "model", "--data", "data.tsv", "--epochs", "1"),
    "learn": ("learn", "model", "--data", "data.tsv", "--keep", "2", "--epochs", "1"),
}
NEEDED = {
    "the model": ("model", {}),
    "a folder with the model in it": ("outer", {"model": "outer/model"}),
    "a folder with the data in it": ("other", {"data.tsv": "other/vocab.txt"}),
    "the folder we are in": (".", {}),
}


@pytest.mark.parametrize("command", REPLACING)
@pytest.mark.parametrize("what", NEEDED)
def test_no_command_replaces_what_it_needs(
    run: Run, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, what: str
) -> None:
    """In each case the folder is one that --force would replace if it were not needed."""
    target, names = NEEDED[what]
    words = [names.get(word, word) for word in REPLACING[command]]
    if "data" in what and command == "cut":
        (tmp_path / "other").mkdir()
        words += ["--plan", "other/plan.json"]
    for name in ("model", "outer/model", "other"):
        shutil.copytree(folders / "bert", tmp_path / name, dirs_exist_ok=True)
    shutil.copy(folders / "bert" / "config.json", tmp_path / "outer")
    for name in ("data.tsv", "other/vocab.txt", "other/plan.json"):
        (tmp_path / name).write_text("{}")
    here = tmp_path / "other" if target == "." else tmp_path
    if target == ".":
        words[1] = "../model"
    monkeypatch.chdir(here)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    result = run(*words, "-o", target, "--force")
    _one_sentence(result)
    assert ("the folder we are in" if target == "." else "still needed") in result.err
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}.keys() == before.keys()


def test_a_full_disk_is_one_sentence_and_leaves_nothing(run: Run, folders: Path, tmp_path: Path) -> None:
    """No file may grow beyond 50 kB, which for whoever writes is a full disk; the weights alone have more."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        result = run("cut", folders / "llama", "0:0", "-o", tmp_path / "out", "--no-check")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    _one_sentence(result)
    assert f"I cannot write {tmp_path / 'out'}" in result.err
    assert "make room" in result.err
    assert list(tmp_path.iterdir()) == []


# -- stopped ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_stopped_command_says_where_its_work_is_and_leaves_no_half_model(
    run: Run, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    """Stopped by Ctrl-C, `kill` or a closed terminal: in the midst of a measurement, and of writing a model."""
    number = getattr(signal, name)
    before = signal.getsignal(number)

    def stop(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr("headcount.efficiency.benchmark.bench", stop)
        words = ("bench", folders / "bert", folders / "llama", "-o", tmp_path / "run", "--length", "8")
        result = run(*words)
    assert result.code == code
    assert f"stopped; {tmp_path / 'run'} keeps what is done: the same command goes on from there." in result.err
    with monkeypatch.context() as patch:
        patch.setattr("headcount.model.checkpoints.bring_along", stop)
        assert run("cut", folders / "bert", "0:0", "-o", tmp_path / "out").code == code
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert signal.getsignal(number) is before


def test_a_closed_terminal_does_not_stop_what_was_started_with_nohup(
    run: Run, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, load = signal.signal(signal.SIGHUP, signal.SIG_IGN), checkpoints.load

    def closed(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGHUP)
        return load(*arguments, **options)

    try:
        monkeypatch.setattr(checkpoints, "load", closed)
        assert run("inspect", folders / "bert").code == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_portable_folder_has_no_record_in_its_config(run: Run, folders: Path, tmp_path: Path) -> None:
    result = run("cut", folders / "bert", "layers:1", "-o", tmp_path / "out", "--portable")
    assert (result.code, result.err) == (0, "")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "headcount" not in config
    assert config["num_hidden_layers"] == 1
    _one_sentence(run("cut", folders / "bert", "0:0", "-o", tmp_path / "other", "--portable"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "units", "about"),
    [
        ("llama", ["7:0"], "no site '7'"),
        ("llama", ["0:8"], "from 0 to 7"),
        ("llama", ["0:x"], "SITE:INDICES"),
        ("llama", ["0"], "SITE:INDICES"),
        ("llama", ["layers:*"], "at least one layer"),
        ("small", ["1:3"], "has been cut already"),
        ("bitnet", ["0:0"], "normalises over all"),
        ("none", ["0:0"], "none"),
        ("empty", ["0:0"], "config.json"),
        ("notes", ["0:0"], "config"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_1(
    run: Run, folders: Path, tmp_path: Path, model: str, units: list[str], about: str
) -> None:
    for more in (["-o", tmp_path / "out"], ["--dry-run"]):
        result = run("cut", folders / model, *units, *more)
        _one_sentence(result)
        assert about in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", ["none", "empty", "notes"])
def test_inspecting_what_is_no_model_is_one_sentence_and_1(run: Run, folders: Path, model: str) -> None:
    _one_sentence(run("inspect", folders / model))
    _one_sentence(run("inspect", folders / model, "--json"))


DEEP = b"[" * 900 + b"]" * 900  # json.loads reads it, and whoever works on it by recursion falls over


@pytest.mark.parametrize(
    "content",
    [
        *[None, b"", b"[]", b'{"format": 1', b"\xff", b'{"format": 1, "remove": {"9": [1]}}', DEEP],
        *[b'{"format": 1, "remove": {"0": [1]}, "why": %s}' % DEEP, b'{"format": 1, "remove": {"0": %s}}' % DEEP],
        b'{"format": 1, "remove": {"0": [1]}, "more": %s}' % DEEP,
    ],
    ids=range(10),
)
def test_a_bad_plan_file_is_one_sentence_and_1(run: Run, folders: Path, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "plan.json").write_bytes(content)
    _one_sentence(run("cut", folders / "llama", "--plan", tmp_path / "plan.json", "--dry-run"))


@pytest.mark.parametrize(
    "row",
    [
        *["wq", "3", "[]", '{"reads": 3, "writes": ["wo"]}', '{"reads": ["wq"]}', '{"reads": ["q"]'],
        *["[" * 100_000, DEEP.decode(), '{"reads": ["__class__"], "writes": ["wo"]}'],
    ],
    ids=range(9),
)
def test_a_bad_dialect_is_one_sentence_and_1(run: Run, folders: Path, row: str) -> None:
    _one_sentence(run("inspect", folders / "bert", "--module-spec", row))


@pytest.mark.parametrize(
    "args", [("cut", "x"), ("cut", "x", "0:0"), ("cut",), ("inspect",), ("inspect", "x", "--colour"), ("prune", "x")]
)
def test_a_usage_error_is_2(run: Run, args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.code == 2
    assert result.out == ""
    assert "Traceback" not in result.err
