"""Run folders: killed at any moment they go on to the identical result, and nothing is half written or overwritten."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import says
from helpers import processes

import headcount as hc
from headcount import hashing, runs
from headcount.errors import BadRun
from headcount.runs import Run

QUESTION = {
    "command": "ablate",
    "model": {"name": "models/tiny-bert", "fingerprint": "a1"},
    "data": "b2",
    "options": {"seed": 1, "test": "randomization", "heads": [0, 1, 2]},
}


def arrays(number: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(number)
    return {"rows": draw.normal(size=(50, 3)), "numbers": draw.integers(0, 9, 7), "name": np.array(f"head {number}")}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    """Bit for bit, so that NaN equals itself and 0 is not -0."""
    kinds = [{key: (x.dtype, x.shape, x.tobytes()) for key, x in each.items()} for each in (a, b)]
    return kinds[0] == kinds[1]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != runs.LOCK}


def timeless(folder: Path) -> dict[str, Any]:
    """All files of a run, byte for byte, but for the time at which it was begun."""
    document = json.loads((folder / "run.json").read_text())
    return {**content(folder), "run.json": {**document, "created": ""}}


# -- killed ----------------------------------------------------------------------------------------------------------------

WORK = """
import os, signal, sys, time
import numpy as np
from headcount import runs

os.fsync = lambda handle: None  # for power cuts; the system itself keeps what a killed process wrote

def work(folder, counter, pieces, pause=0.0, most=1000):
    begun = []
    with runs.Run.open(folder, {"command": "count", "pieces": pieces}) as run:
        for number in range(pieces):
            def compute():
                begun.append(number)
                if len(begun) > most:
                    time.sleep(300)  # whoever wants to kill it may come late
                with open(counter, "a") as lines:
                    lines.write(f"piece-{number}\\n")
                time.sleep(pause)
                return {"x": np.random.default_rng(number).normal(size=20_000), "number": np.array(number)}
            run.piece(f"piece-{number}", compute)
        run.write_json("summary", {"total": sum(int(run.read(name)["number"]) for name in run.pieces)})
        run.finish()
"""


def start(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def finished(child: subprocess.Popen[str]) -> str:
    try:
        out, err = child.communicate(timeout=300)
    finally:
        child.kill()
    assert child.returncode == 0, err
    return out


def forked(code: str, output: Path, *arguments: object) -> BaseProcess:
    """The same in a process that need not import anything again; what it complains of is in `output`.err."""

    def work() -> None:
        sys.argv = ["-c", *map(str, arguments)]
        exec(compile(code, "-c", "exec"), {})

    return processes.forked(work, output)


def ended(child: BaseProcess, output: Path) -> int:
    child.join(300)
    assert child.exitcode in (0, -signal.SIGKILL), Path(f"{output}.err").read_text()
    return child.exitcode


def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    code = WORK + "work(sys.argv[1], sys.argv[2], 16, 0.002, int(sys.argv[3]))"
    said = tmp_path / "said"
    assert ended(forked(code, said, tmp_path / "quiet", tmp_path / "quiet.txt", 16), said) == 0
    assert (tmp_path / "quiet.txt").read_text().split() == [f"piece-{number}" for number in range(16)]

    chance, folder, counter = random.Random(7), tmp_path / "killed", tmp_path / "killed.txt"
    counter.touch()
    kills, before = 0, list[str]()
    while True:
        done = runs.read(folder).pieces if folder.exists() else ()
        some, delay = chance.randint(1, 3), chance.uniform(0, 0.006)
        child = forked(code, said, folder, counter, some if kills < 5 else 16)
        enough = len(before) + some
        processes.wait_until(lambda: len(counter.read_text().split()) >= enough, child, 0.0005)  # noqa: B023
        if kills < 5:
            time.sleep(delay)
            child.kill()
        code_of_exit = ended(child, said)
        after = counter.read_text().split()
        assert not set(after[len(before) :]) & set(done), "a finished piece was computed again"
        if code_of_exit == 0:
            break
        kills, before = kills + 1, after
    assert kills == 5
    assert len(after) <= 16 + kills  # at most the piece that was under way, each time
    assert timeless(folder) == timeless(tmp_path / "quiet")
    for number in range(16):
        expected = {"x": np.random.default_rng(number).normal(size=20_000), "number": np.array(number)}
        assert same(runs.read(folder).read(f"piece-{number}"), expected)


def test_a_kill_before_any_line_of_ours_does_no_harm(tmp_path: Path) -> None:
    """The process kills itself before the n-th line that it runs in runs.py, for many n, twice each."""
    code = """
import random, traceback

runs.versions = lambda known=runs.versions(): known  # slow to be found 45 times
front, back = os.pipe()

def lives(fatal, *arguments):
    if os.fork() == 0:
        count = 0
        def trace(frame, event, _):
            nonlocal count
            if frame.f_code.co_filename != runs.__file__:
                return None
            count += event == "line"
            if event == "line" and count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace
        sys.settrace(trace)
        try:
            work(*arguments)
            os.write(back, b"%d" % count)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.wait()[1])

top = sys.argv[1]
assert lives(0, f"{top}/quiet", f"{top}/quiet.txt", 2) == 0
lines, chance = int(os.read(front, 20)), random.Random(11)
for fatal in chance.sample(range(1, lines), 15):
    run = f"{top}/{fatal}", f"{top}/{fatal}.txt", 2
    assert lives(fatal, *run) == -signal.SIGKILL
    assert lives(chance.randint(1, lines), *run) in (0, -signal.SIGKILL)
    assert lives(0, *run) == 0
"""
    finished(start(WORK + code, tmp_path))
    folders = sorted(path for path in tmp_path.iterdir() if path.is_dir() and path.name != "quiet")
    assert len(folders) == 15
    for folder in folders:
        assert timeless(folder) == timeless(tmp_path / "quiet"), folder.name
        assert len((tmp_path / f"{folder.name}.txt").read_text().split()) <= 4
    assert runs.read(tmp_path / "quiet").pieces == ("piece-0", "piece-1")


def test_a_kill_in_the_middle_of_a_write_leaves_no_half_of_it(tmp_path: Path) -> None:
    """Half of the n-th file is on the disk when the process is killed, for every file that a run writes."""
    code = """
class Half:
    left = int(sys.argv[3])

    def __init__(self, *arguments):
        self.stream = open(*arguments)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, content):
        Half.left -= 1
        if Half.left == 0:
            self.stream.write(content[: len(content) // 2])
            self.stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self.stream.write(content)

runs.open = Half
work(sys.argv[1], sys.argv[2], 2)
"""
    said = tmp_path / "said"
    assert ended(forked(WORK + code, said, tmp_path / "quiet", tmp_path / "quiet.txt", 0), said) == 0
    for number in range(1, 6):  # the question, two pieces, the summary, the question with its end
        run = tmp_path / f"{number}", tmp_path / f"{number}.txt"
        assert ended(forked(WORK + code, said, *run, number), said) == -signal.SIGKILL
        names = {path.name for path in run[0].iterdir() if path.suffix != ".draft"}
        assert len(names - {runs.LOCK}) == min(number - 1, 4), "half a file has the name of a whole one"
        assert ended(forked(WORK + code, said, *run, 0), said) == 0
        assert timeless(run[0]) == timeless(tmp_path / "quiet")


HOLD = (
    WORK
    + """
with runs.Run.open(sys.argv[1], {"command": "hold"}) as run:
    run.write("first", {"x": np.arange(3)})
    print("open", flush=True)
    sys.stdin.read()
"""
)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    child = start(HOLD, tmp_path / "run", stdin=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    yield tmp_path / "run", child
    child.kill()
    child.communicate()


def test_a_second_process_is_refused_until_the_first_is_killed(holder: tuple[Path, subprocess.Popen[str]]) -> None:
    folder, child = holder
    before = content(folder)
    with says(BadRun, about=f"{folder} is in use"), Run.open(folder, {"command": "hold"}):
        pass
    assert runs.read(folder).pieces == ("first",)  # reading needs no lock
    assert content(folder) == before
    child.kill()
    child.wait()
    with Run.open(folder, {"command": "hold"}) as run:
        assert run.read("first")["x"].tolist() == [0, 1, 2]


def test_a_second_process_is_let_in_after_the_first_has_ended(holder: tuple[Path, subprocess.Popen[str]]) -> None:
    folder, child = holder
    child.communicate("")
    with Run.open(folder, {"command": "hold"}) as run:
        assert run.done("first")


def test_a_run_is_open_once_in_a_process_too(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        with says(BadRun, about="in use"), Run.open(tmp_path, QUESTION):
            pass
        run.write("still", arrays())
    with Run.open(tmp_path, QUESTION) as run:
        assert run.done("still")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_an_error_inside_closes_the_run_and_is_not_taken_for_ours(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error, match="mine"), Run.open(tmp_path / "run", QUESTION) as run:  # noqa: PT012
        run.write("a", arrays())
        run.piece("b", lambda: (_ for _ in ()).throw(error("mine")))
    assert sorted(content(tmp_path / "run")) == ["a.npz", "run.json"]
    with Run.open(tmp_path / "run", QUESTION) as run:
        assert run.pieces == ("a",)


# -- the question ----------------------------------------------------------------------------------------------------------


def test_a_new_run_says_what_was_asked_and_with_what(tmp_path: Path) -> None:
    with Run.open(tmp_path / "deep" / "run", QUESTION) as run:
        assert run.folder == tmp_path / "deep" / "run"
        assert run.question == QUESTION
        assert not run.finished
        run.finish()
        run.finish()
        assert run.finished
    document = json.loads((tmp_path / "deep" / "run" / "run.json").read_text())
    assert sorted(document) == ["created", "finished", "format", "question", "signature", "versions"]
    assert document["format"] == 1
    assert document["signature"] == f"{runs.fingerprint(QUESTION)[:8]} ablate tiny-bert"
    assert document["versions"]["numpy"] == np.__version__
    assert document["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    record = runs.read(str(tmp_path / "deep" / "run"))
    assert not isinstance(record, Run)
    assert (record.question, record.versions, record.created) == (QUESTION, document["versions"], document["created"])
    assert (record.signature, record.finished, record.pieces) == (document["signature"], True, ())


def test_the_same_question_in_other_words_resumes(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        run.write("a", arrays())
    backwards = {key: QUESTION[key] for key in reversed(QUESTION)} | {
        "options": {"heads": (0, 1, 2), "test": "randomization", "seed": 1}
    }
    with Run.open(str(tmp_path), backwards) as run:
        assert run.done("a")
        assert run.question == QUESTION


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": "c3"}, 'data is "b2" there and "c3" here'),
        ({"options": {**QUESTION["options"], "seed": 2}}, "options.seed is 1 there and 2 here"),
        ({"options": {**QUESTION["options"], "seed": True}}, "options.seed is 1 there and true here"),
        ({"options": {**QUESTION["options"], "seed": 1.0}}, "options.seed is 1 there and 1.0 here"),
        ({"options": {**QUESTION["options"], "heads": [0, 5, 7]}}, "options.heads.1 is 1 there and 5 here"),
        ({"options": {**QUESTION["options"], "heads": [0, 1]}}, "options.heads.2 is 2 there and not given here"),
        ({"options": {"seed": 1, "heads": [0, 1, 2]}}, 'options.test is "randomization" there and not given here'),
        ({"options": None}, "there and null here"),
        ({"limit": {}}, "limit is not given there and {} here"),
        ({"data": "b2" + "x" * 500}, 'data is "b2" there and …"b2xxx'),
    ],
)
def test_another_question_is_refused_by_the_first_difference(tmp_path: Path, change: Any, words: str) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        run.write("a", arrays())
    before = content(tmp_path)
    with says(BadRun, about=words), Run.open(tmp_path, {**QUESTION, **change}):
        pass
    assert content(tmp_path) == before


def test_long_values_are_shown_where_they_part(tmp_path: Path) -> None:
    long = "x" * 300
    with Run.open(tmp_path, {"plan": long + "left" + long}):
        pass
    with says(BadRun, about="left") as caught, Run.open(tmp_path, {"plan": long + "right" + long}):
        pass
    assert "right" in str(caught.value)


@pytest.mark.parametrize(
    "question",
    [{"a": float("nan")}, {"a": {1, 2}}, {"a": Path("x")}, {"a": np.int64(3)}, {(1, 2): 3}, ["a"], "a", None],
)
def test_a_question_that_is_not_plain_is_refused(tmp_path: Path, question: Any) -> None:
    with says(BadRun), Run.open(tmp_path / "run", question):
        pass
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "a.npz", "run.json.old", ".0123456789abcde.draft"])
def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with says(BadRun, about=f"holds {name} and is not a run folder"), Run.open(tmp_path, QUESTION):
        pass
    with says(BadRun, about="not a run folder"):
        runs.read(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with says(BadRun, about="Not a directory"), Run.open(tmp_path / "run", QUESTION):
        pass
    with says(BadRun, about="not a run folder"):
        runs.read(tmp_path / "run")
    with says(BadRun, about="not a run folder"):
        runs.read(tmp_path / "nowhere")
    assert (tmp_path / "run").read_text() == "mine"


def test_an_empty_folder_and_one_left_by_a_kill_at_birth_are_used(tmp_path: Path) -> None:
    (tmp_path / runs.LOCK).touch()
    (tmp_path / ".0123456789abcdef.draft").write_text("{")
    with Run.open(tmp_path, QUESTION) as run:
        run.write("a", arrays())
    assert sorted(content(tmp_path)) == ["a.npz", "run.json"]


def test_drafts_of_a_killed_process_are_removed_and_nothing_else(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION):
        pass
    for name in (".0123456789abcdef.draft", "report.html", ".notes"):
        (tmp_path / name).write_text("x")
    with Run.open(tmp_path, QUESTION):
        assert sorted(content(tmp_path)) == [".notes", "report.html", "run.json"]


def _without(document: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: len(text) // 2], "damaged"),
        (lambda text: "", "damaged"),
        (lambda text: "[" * 100_000, "damaged"),
        (lambda text: text.replace("tiny", "tony"), "its question or signature"),
        (lambda text: json.dumps({**json.loads(text), "format": 2}), "has format 2; this headcount reads 1"),
        (lambda text: json.dumps({**json.loads(text), "finished": "no"}), "its finished"),
        (lambda text: json.dumps(_without(json.loads(text), "versions")), "its versions"),
        (lambda text: '{"epochs": 3}', "not written by headcount"),
        (lambda text: "[1, 2]", "not written by headcount"),
    ],
)
def test_a_damaged_or_foreign_run_json_is_refused(tmp_path: Path, damage: Callable[[str], str], words: str) -> None:
    with Run.open(tmp_path, QUESTION):
        pass
    (tmp_path / "run.json").write_text(damage((tmp_path / "run.json").read_text()))
    before = content(tmp_path)
    with says(BadRun, about=words), Run.open(tmp_path, QUESTION):
        pass
    with says(BadRun, about=words):
        runs.read(tmp_path)
    assert content(tmp_path) == before


# -- pieces ----------------------------------------------------------------------------------------------------------------

KINDS: dict[str, np.ndarray] = {
    "float": np.array([0.0, -0.0, np.nan, np.inf, 5e-324]),
    "half": np.arange(6, dtype=np.float16).reshape(2, 3),
    "big-endian": np.arange(4, dtype=">i4"),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(20.0)[::3],
    "none": np.zeros((0, 3)),
    "scalar": np.array(3),
    "truth": np.array([True, False]),
    "texts": np.array(["ü", "", "long text"]),
    "bytes": np.array([b"x", b"yz"]),
    "complex": np.array([1 + 2j]),
}


def test_arrays_come_back_as_they_were_and_numpy_reads_them(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        fresh = run.piece("kinds", lambda: KINDS)
        again = run.piece("kinds", lambda: pytest.fail("computed twice"))
        run.write("empty", {})
        assert run.read("empty") == {}
    assert same(fresh, KINDS)
    assert same(again, KINDS)
    fresh["float"][0] = 7  # the caller's own
    with np.load(tmp_path / "kinds.npz", allow_pickle=False) as archive:
        assert same(dict(archive), KINDS)


def test_equal_pieces_are_equal_files_whenever_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, moment in (("a", 1e9), ("b", 1.5e9)):
        monkeypatch.setattr(time, "time", lambda moment=moment: moment)
        with Run.open(tmp_path / name, QUESTION) as run:
            run.write("piece", arrays())
    assert content(tmp_path / "a")["piece.npz"] == content(tmp_path / "b")["piece.npz"]


def test_a_run_can_be_written_from_another_thread(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION) as run, ThreadPoolExecutor(4) as threads:
        pieces = list(threads.map(lambda number: run.piece(f"head-{number}", lambda: arrays(number)), range(20)))
    assert all(same(piece, arrays(number)) for number, piece in enumerate(pieces))
    assert len(runs.read(tmp_path).pieces) == 20


def test_a_finished_piece_is_never_overwritten(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        run.write("a", {"x": np.array([0.0, np.nan])})
        run.write_json("summary", {"x": [1, 2]})
        before = content(tmp_path)
        run.write("a", {"x": np.array([0.0, np.nan])})
        run.write_json("summary", {"x": (1, 2)})
        for other in ({"x": np.array([-0.0, np.nan])}, {"y": np.array([0.0, np.nan])}, {"x": np.zeros(2, np.float32)}):
            with says(BadRun, about="a.npz is finished and holds other arrays"):
                run.write("a", other)
        with says(BadRun, about="summary.json is there"):
            run.write_json("summary", {"x": [1, 2.0]})
        assert content(tmp_path) == before
        run.write_json("summary", {"x": 3}, replace=True)
        assert run.read_json("summary") == {"x": 3}


def test_pieces_are_listed_by_their_numbers(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        for name in ("head-10", "head-9", "baseline", "10", "9"):
            run.write(name, {})
        run.write_json("head-11", 1)
        assert run.pieces == ("9", "10", "baseline", "head-9", "head-10")
        assert run.done("head-9")
        assert not run.done("head-11")
        with says(BadRun, about="no finished piece head-11"):
            run.read("head-11")
        with says(BadRun, about="head-9.json"):
            run.read_json("head-9")


BAD_NAMES: list[Any] = ["", ".", "..", "a/b", "/a", ".lock", "a b", "ü", "a\n", "x" * 201, 3, None, "a\0"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_names_are_checked(tmp_path: Path, name: Any) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        before = content(tmp_path)
        for call in (
            lambda: run.piece(name, dict),
            lambda: run.write(name, {}),
            lambda: run.read(name),
            lambda: run.done(name),
            lambda: run.write_json(name, 1),
            lambda: run.read_json(name),
            lambda: run.write("piece", {name: np.zeros(1)}),
            lambda: runs.piece(None, name, dict),
        ):
            with says(BadRun, about="letters, digits"):
                call()
        assert content(tmp_path) == before


def test_no_document_takes_the_place_of_the_question(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        with says(BadRun, about="not run"):
            run.write_json("run", {}, replace=True)
        run.write("run", arrays())
        assert runs.read(tmp_path).question == QUESTION


UNFIT: dict[str, Any] = {
    "objects": np.array([{}, None]),
    "mixed": [1, None],
    "ragged": [[1], [1, 2]],
    "masked": np.ma.masked_array([1, 2], [0, 1]),
    "fields": np.zeros(2, [("a", int)]),
}


@pytest.mark.parametrize("value", UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize("stored", [True, False])
def test_what_would_not_come_back_is_refused(tmp_path: Path, value: Any, stored: bool) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        with says(BadRun, about="x of piece a"):
            runs.piece(run if stored else None, "a", lambda: {"x": value})
        with says(BadRun, about="Piece a must be a dict"):
            runs.piece(run if stored else None, "a", lambda: [1, 2])  # type: ignore[arg-type, return-value]
        assert sorted(content(tmp_path)) == ["run.json"]


@pytest.mark.parametrize("data", [float("inf"), [float("nan")], {"a": np.zeros(2)}, object()])
def test_a_document_that_is_not_plain_is_refused(tmp_path: Path, data: Any) -> None:
    with Run.open(tmp_path, QUESTION) as run, says(BadRun, about="The document a must be plain JSON"):
        run.write_json("a", data)


def test_without_a_run_pieces_are_just_computed() -> None:
    calls = []
    for _ in range(2):
        assert same(runs.piece(None, "a", lambda: calls.append(1) or arrays()), arrays())
    assert len(calls) == 2


def test_a_closed_run_writes_no_more_and_still_reads(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        run.write("a", arrays())
    for call in (
        lambda: run.piece("b", lambda: pytest.fail("computed in vain")),
        lambda: run.write("b", {}),
        lambda: run.write_json("b", 1),
        run.finish,
    ):
        with says(BadRun, about="is closed"):
            call()
    assert same(run.read("a"), arrays())


def test_no_damage_to_a_piece_goes_unseen(tmp_path: Path) -> None:
    """Every byte is changed in turn, and many lengths tried: the arrays are the same, or the file is named."""
    small = {"x": np.arange(3.0), "y": np.array([7, 8])}
    with Run.open(tmp_path, QUESTION) as run:
        run.write("small", small)
    path = tmp_path / "small.npz"
    whole = path.read_bytes()
    damaged = [
        whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :] for at in range(len(whole)) for flip in (1, 255)
    ]
    damaged += [whole[:length] for length in range(0, len(whole), 5)]
    refused = 0
    for each in damaged:
        path.write_bytes(each)
        try:
            assert same(run.read("small"), small)
        except BadRun as error:
            refused += 1
            assert str(error).startswith(f"{path} is damaged (")  # noqa: PT017
            assert str(error).endswith("delete this file and run the command again to have it anew.")  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
    assert refused > len(damaged) / 2


def test_a_damaged_piece_is_named_and_computed_anew_once_deleted(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        run.write("a", arrays())
        path = tmp_path / "a.npz"
        path.write_bytes(path.read_bytes()[:-30])
        for call in (lambda: run.piece("a", lambda: pytest.fail("computed")), lambda: run.write("a", arrays())):
            with says(BadRun, about=f"{path} is damaged"):
                call()
        path.unlink()
        assert same(run.piece("a", arrays), arrays())


def test_a_piece_under_another_name_is_not_taken_for_that_one(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        run.write("a", arrays())
        (tmp_path / "a.npz").rename(tmp_path / "b.npz")
        with says(BadRun, about="its checksum is not that of this piece"):
            run.read("b")


def test_pickled_objects_are_never_read(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    with Run.open(tmp_path / "run", QUESTION) as run:
        np.savez(tmp_path / "run" / "a.npz", x=np.array([Trap()], dtype=object))
        with open(tmp_path / "run" / "a.npz", "r+b") as stream:  # with a comment in it, as ours have
            stream.seek(-2, os.SEEK_END)
            stream.write(b"\x01\x00a")
        with says(BadRun, about="Object arrays cannot be loaded"):
            run.read("a")
    assert not (tmp_path / "sprung").exists()


def test_a_damaged_document_is_named(tmp_path: Path) -> None:
    with Run.open(tmp_path, QUESTION) as run:
        run.write_json("summary", {"a": 1})
        (tmp_path / "summary.json").write_text('{"a":')
        with says(BadRun, about="summary.json is damaged"):
            run.read_json("summary")


# -- the disk --------------------------------------------------------------------------------------------------------------


def _fail(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


class FullDisk:
    """A file on which the second half of what is written finds no room."""

    def __init__(self, *arguments: Any) -> None:
        self.stream = open(*arguments)  # noqa: SIM115

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def write(self, content: Any) -> None:
        self.stream.write(content[: len(content) // 2])
        _fail(errno.ENOSPC)()


@pytest.mark.parametrize(
    ("owner", "name", "replacement", "words"),
    [
        (runs, "open", FullDisk, "No space left on device"),
        (runs, "open", _fail(errno.EROFS), "Read-only file system"),
        (os, "replace", _fail(errno.ENOSPC), "No space left on device"),
        (os, "fsync", _fail(errno.EIO), "Input/output error"),
    ],
    ids=["write", "create", "replace", "flush"],
)
def test_a_disk_that_refuses_gives_one_sentence_and_keeps_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, replacement: Any, words: str
) -> None:
    with Run.open(tmp_path / "run", QUESTION) as run:
        run.write("a", arrays())
        run.write_json("summary", 1)
        before = content(tmp_path / "run")
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, replacement, raising=False)
            for call in (
                lambda: run.piece("b", arrays),
                lambda: run.write("b", arrays()),
                lambda: run.write_json("other", 1),
                lambda: run.write_json("summary", 2, replace=True),
                run.finish,
            ):
                with says(BadRun, about=f": {words}; what is finished is safe"):
                    call()
            with says(BadRun, about=words), Run.open(tmp_path / "new", QUESTION):
                pass
        assert content(tmp_path / "run") == before
        assert not (tmp_path / "new").exists() or content(tmp_path / "new") == {}
        run.write("b", arrays())  # and goes on when there is room again
    with Run.open(tmp_path / "new", QUESTION):
        pass


def test_a_real_limit_on_the_disk_gives_one_sentence(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Run.open(tmp_path, QUESTION) as run:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
            with says(BadRun, about="File too large"):
                run.write("large", {"x": np.zeros(100_000)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(content(tmp_path)) == ["run.json"]


def test_a_read_only_folder_gives_one_sentence_and_can_be_read() -> None:
    code = (
        WORK
        + """
from headcount.errors import BadRun
runs.read(sys.argv[1]).read("a")  # loads what reading needs
if os.geteuid() == 0:
    os.setuid(65534)  # root may write everywhere
for folder in sys.argv[1:]:
    try:
        with runs.Run.open(folder, {"command": "count"}):
            print("opened")
    except BadRun as error:
        print(error)
print(runs.read(sys.argv[1]).read("a")["x"].tolist())
"""
    )
    with tempfile.TemporaryDirectory() as top:
        old, inside, empty = (Path(top, name) for name in ("old", "old/inside", "empty"))
        with Run.open(old, {"command": "count"}) as run:
            run.write("a", {"x": np.arange(3)})
        empty.mkdir()
        for folder in (old, empty, Path(top)):
            folder.chmod(0o555)
        (old / runs.LOCK).chmod(0o444)
        try:
            out = finished(start(code, old, inside, empty)).splitlines()
        finally:
            for folder in (old, empty, Path(top)):
                folder.chmod(0o755)
        assert [path.name for path in empty.iterdir()] == []
    assert out == [
        f"I cannot use {old}: Permission denied; choose another folder.",
        f"I cannot write {inside}: Permission denied; what is finished is safe, so see to the disk and run the same again.",
        f"I cannot use {empty}: Permission denied; choose another folder.",
        "[0, 1, 2]",
    ]


def test_a_piece_is_flushed_before_it_gets_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = []
    flush, replace = os.fsync, os.replace

    def noting_flush(handle: int) -> None:
        at = os.readlink(f"/proc/self/fd/{handle}") if sys.platform == "linux" else ""
        happened.append(("flush", Path(at).suffix))
        flush(handle)

    def noting_replace(draft: Path, path: Path) -> None:
        happened.append(("rename", path.name))
        replace(draft, path)

    with Run.open(tmp_path / "run", QUESTION) as run:
        monkeypatch.setattr(os, "fsync", noting_flush)
        monkeypatch.setattr(os, "replace", noting_replace)
        run.write("a", arrays())
    drafts = ".draft" if sys.platform == "linux" else ""
    assert happened == [("flush", drafts), ("rename", "a.npz"), ("flush", "")]


# -- fingerprints ----------------------------------------------------------------------------------------------------------


def test_a_fingerprint_is_sha256_of_the_json_in_its_shortest_form() -> None:
    # printf '{"a":1,"b":[1,2]}' | sha256sum
    assert runs.fingerprint({"b": (1, 2), "a": 1}) == "8baa73198470c7bb4c3ce142a8fd651a"
    # printf '"ü"' | sha256sum
    assert runs.fingerprint("ü") == "e4c77d3f26dacb0bcd1ef966781f0988"
    assert runs.fingerprint("\udcff")  # a file name that is no text
    with says(BadRun, about="must be plain JSON"):
        runs.fingerprint(float("nan"))


def test_files_are_the_same_wherever_they_lie_and_in_any_order(tmp_path: Path) -> None:
    for top in ("here", "there"):
        for part, text in (("de", b"ein Hund"), ("en", b"a dog")):
            (tmp_path / top / part).mkdir(parents=True)
            (tmp_path / top / part / "test.txt").write_bytes(text)
    here, there = ([tmp_path / top / part / "test.txt" for part in ("de", "en")] for top in ("here", "there"))
    whole = hashing.fingerprint_of_files(here)
    assert len(whole) == 32
    assert hashing.fingerprint_of_files(reversed(there)) == whole
    assert hashing.fingerprint_of_files([str(path) for path in here]) == whole
    assert hashing.fingerprint_of_files(here[:1]) != whole
    assert hashing.fingerprint_of_files(here[:1]) == hashing.fingerprint_of_files(there[:1])
    assert hashing.fingerprint_of_files([]) != whole
    there[0].write_bytes(b"a dog")
    there[1].write_bytes(b"ein Hund")
    assert hashing.fingerprint_of_files(there) != whole, "which file is which matters"
    with says(BadRun, about="No such file"):
        hashing.fingerprint_of_files([tmp_path / "missing"])


@pytest.mark.parametrize("size", [1, 40, 41, 79, 80, 90, 400, 401])
def test_every_changed_byte_is_seen_and_of_a_huge_file_those_in_blocks_from_end_to_end(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "BLOCK", 20)
    monkeypatch.setattr(hashing, "WHOLE", 80)
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(size))
    before, seen = hashing.fingerprint_of_files([path]), set()
    for at in range(size):
        data = bytearray(size)
        data[at] = 1
        path.write_bytes(data)
        if hashing.fingerprint_of_files([path]) != before:
            seen.add(at)
    assert {0, size - 1} <= seen
    assert len(seen) == size if size <= 80 else len(seen) >= 80
    path.write_bytes(bytes(size + 1))
    assert hashing.fingerprint_of_files([path]) != before


@pytest.mark.parametrize(
    ("question", "start"),
    [
        ({"command": "ablate", "model": "textattack/bert-base-uncased-SST-2"}, "ablate-bert-base-uncased-SST-2-"),
        ({"command": "ablate", "model": "./models/tiny/"}, "ablate-tiny-"),
        ({"command": "ablate", "model": {"name": "a/b c:d", "fingerprint": "x"}}, "ablate-b-c-d-"),
        ({"command": "ablate", "model": ".."}, "ablate-"),
        ({"command": "ablate", "model": "a/" + "x" * 300}, f"ablate-{'x' * 60}-"),
        ({"model": 3}, ""),
    ],
)
def test_a_question_has_a_folder_of_its_own(question: dict[str, Any], start: str) -> None:
    folder = runs.default_folder(question)
    assert folder == Path("runs") / (start + runs.fingerprint(question)[:8])
    assert folder == runs.default_folder(dict(reversed(question.items())))
    assert folder != runs.default_folder({**question, "seed": 1})


def test_versions_are_the_installed_ones_and_nothing_is_imported() -> None:
    code = """
import sys, json
from headcount import runs
print(json.dumps(runs.versions()))
print(json.dumps([name for name in ("torch", "transformers", "sacrebleu", "scipy") if name in sys.modules]))"""
    found, imported = map(json.loads, finished(start(code)).splitlines())
    names = ["numpy", "scipy", "torch", "transformers", "sacrebleu"]
    own = {"python": sys.version.split()[0], "headcount": hc.__version__}
    assert found == own | {name: metadata.version(name) for name in names}
    assert imported == []


def test_a_package_that_is_not_there_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "PACKAGES", ("numpy", "no-such-package"))
    assert runs.versions()["no-such-package"] == "not installed"
