"""Many commands: in order, side by side or alone, each once, and whatever becomes of a process, the rest is done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import headcount as hc
from headcount.reproduction import runner
from headcount.reproduction.runner import Step


def act(words: Sequence[str]) -> None:
    """A command of these tests: it keeps a journal of when it was here, then does what its words say."""
    journal, what, *rest = words
    start = time.monotonic()
    _write(journal, ["begin", what, *rest, os.getpid()])
    if "slow" in rest:
        time.sleep(0.5)
    if what == "fail":
        raise hc.errors.BadRun(" ".join(rest))
    if what == "exit":
        raise SystemExit(int(rest[0]))
    if what == "bug":
        raise KeyError(rest[0])
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "threads":
        import torch

        print(torch.get_num_threads(), os.environ["TOKENIZERS_PARALLELISM"])
    if what == "until":  # another step, or a test, leaves a sign
        while not Path(rest[0]).exists() and time.monotonic() - start < 200:
            time.sleep(0.01)
    if what == "sign":
        Path(rest[0]).touch()
    print("said by", what, *rest)
    sys.stderr.write("and complained\n")
    _write(journal, ["end", what, *rest])


def _write(journal: str, line: list[object]) -> None:
    with open(journal, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def _read(journal: Path) -> list[list]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def _begun(journal: Path) -> list[str]:
    return [line[1] for line in _read(journal) if line[0] == "begin"]


def _silent(text: str) -> None:
    pass


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_in_one_process_they_run_in_the_order_of_the_list_and_print_into_files(journal, tmp_path, capsys) -> None:
    steps = [Step(name, (str(journal), name)) for name in ("b", "a", "c")]
    told: list[str] = []
    outcome = runner.run(steps, tmp_path / "x", act, say=told.append)
    assert outcome == runner.Outcome(("b", "a", "c"), {}, {})
    assert outcome.complete
    assert _begun(journal) == ["b", "a", "c"]
    log = (tmp_path / "x" / "logs" / "a.txt").read_text()
    assert log.splitlines() == [f"$ headcount {journal} a", "said by a", "and complained"]
    assert [line.split(" · ")[:2] for line in told] == [[f"{n} of 3", name] for n, name in enumerate("bac", 1)]
    assert capsys.readouterr().out == ""


def test_shown_it_reads_like_a_session_at_the_prompt(journal, tmp_path, capsys) -> None:
    runner.run([Step("one", (str(journal), "a", "two words"))], tmp_path / "x", act, show=True)
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[:2] == [f"$ headcount {journal} a 'two words'", "said by a two words"]
    assert not (tmp_path / "x" / "logs").exists()


def test_what_is_done_is_not_done_again_unless_the_command_or_what_it_wrote_has_changed(journal, tmp_path) -> None:
    made = tmp_path / "made"
    steps = [Step("a", (str(journal), "a")), Step("b", (str(journal), "sign", str(made), "-o", str(made)))]

    def again(*which: Step) -> list[str]:
        before = len(_begun(journal))
        assert runner.run(which or steps, tmp_path / "x", act, say=_silent).complete
        return sorted(_begun(journal)[before:])

    assert again() == ["a", "sign"]
    assert json.loads((tmp_path / "x" / "done" / "a.json").read_text()) == {"words": list(steps[0].words)}
    assert again() == []
    assert again(Step("a", (str(journal), "other"))) == ["other"]
    assert again() == ["a"]  # the note is of the other words now
    made.unlink()
    assert again() == ["sign"]
    (tmp_path / "x" / "done" / "a.json").write_text("{")
    assert again() == ["a"]
    chain = [*steps, Step("c", (str(journal), "c"), ("a",)), Step("d", (str(journal), "d"), ("c", "b"))]
    assert again(*chain) == ["c", "d"]
    chain[0] = Step("a", (str(journal), "other"))
    assert again(*chain) == ["c", "d", "other"]  # and everything that comes after it


@pytest.mark.parametrize("workers", [1, 2])
def test_what_fails_is_named_and_so_is_what_needed_it_and_the_rest_is_done(workers, journal, tmp_path) -> None:
    steps = [
        Step("refused", (str(journal), "fail", "no such file; give another.")),
        Step("needs-it", (str(journal), "a"), ("refused",)),
        Step("and-that", (str(journal), "b"), ("needs-it", "fine")),
        Step("code", (str(journal), "exit", "3")),
        Step("bug", (str(journal), "bug", "key")),
        Step("zero", (str(journal), "exit", "0")),
        Step("fine", (str(journal), "c")),
        Step("last", (str(journal), "d"), ("fine",)),
    ]
    outcome = runner.run(steps, tmp_path / "x", act, workers=workers, say=_silent)
    assert outcome.done == ("zero", "fine", "last")
    assert outcome.failed == {
        "refused": "no such file; give another.",
        "code": "it ended with exit code 3",
        "bug": "KeyError: 'key'",
    }
    assert outcome.waiting == {"needs-it": "refused", "and-that": "refused"}
    assert not outcome.complete
    assert sorted(_begun(journal)) == ["bug", "c", "d", "exit", "exit", "fail"]
    logs = tmp_path / "x" / "logs"
    assert "Traceback" in (logs / "bug.txt").read_text()
    assert "headcount: no such file; give another.\n" in (logs / "refused.txt").read_text()
    assert {path.stem for path in (tmp_path / "x" / "done").iterdir()} == {"zero", "fine", "last"}


def test_several_run_side_by_side_each_with_one_thread_and_a_log_of_its_own(journal, tmp_path, monkeypatch) -> None:
    """Two of them end only when the step after them has begun, beside them; the last begins when they have ended."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    signs = [str(tmp_path / f"sign-{n}") for n in (1, 2)]
    pair = [Step(f"sign-{n}", (str(journal), "sign", signs[n])) for n in (0, 1)]
    wait = [Step(f"until-{n}", (str(journal), "until", signs[n])) for n in (0, 1)]
    steps = [wait[0], pair[0], wait[1], pair[1], Step("threads", (str(journal), "threads"), ("until-0", "until-1"))]
    outcome = runner.run(steps, tmp_path / "x", act, workers=2, say=_silent)
    assert outcome.complete
    assert _begun(journal)[-1] == "threads"
    pids = {line[-1] for line in _read(journal) if line[0] == "begin"}
    assert len(pids) == len(steps), "a process for every step"
    assert os.getpid() not in pids
    log = (tmp_path / "x" / "logs" / "threads.txt").read_text()
    assert log.splitlines() == [f"$ headcount {journal} threads", "1 false", "said by threads", "and complained"]


def test_what_measures_time_runs_when_nothing_else_does(journal, tmp_path) -> None:
    steps = [
        Step("first", (str(journal), "first", "slow"), alone=True),
        *(Step(f"n{n}", (str(journal), f"n{n}", "slow")) for n in range(4)),
        Step("second", (str(journal), "second"), ("n1",), alone=True),
        Step("late", (str(journal), "late"), ("first",)),
    ]
    assert runner.run(steps, tmp_path / "x", act, workers=3, say=_silent).complete
    lines = [(line[0], line[1]) for line in _read(journal)]
    assert len(lines) == 14
    for name in ("first", "second"):
        assert lines[lines.index(("begin", name)) + 1] == ("end", name)
        before = lines[: lines.index(("begin", name))]
        assert {what for kind, what in before if kind == "begin"} == {what for kind, what in before if kind == "end"}


def test_a_process_that_dies_costs_its_step_and_nothing_else(journal, tmp_path) -> None:
    steps = [Step("dies", (str(journal), "die")), Step("after", (str(journal), "x"), ("dies",))]
    steps += [Step(f"n{n}", (str(journal), f"n{n}")) for n in range(3)]
    outcome = runner.run(steps, tmp_path / "x", act, workers=2, say=_silent)
    assert outcome.done == ("n0", "n1", "n2")
    assert list(outcome.failed) == ["dies"]
    assert "died (by signal 9" in outcome.failed["dies"]
    assert outcome.waiting == {"after": "dies"}


def test_states_of_trainings_are_deleted_when_these_have_ended(journal, tmp_path) -> None:
    run, model = tmp_path / "run", tmp_path / "model"
    for folder in (run, model):
        folder.mkdir()
        (folder / "training-state.safetensors").touch()
    (run / "run.json").touch()
    words = (str(journal), "a", "-o", str(model), "--run", str(run))
    assert not runner.run([Step("no", (*words[:1], "fail", *words[2:]))], tmp_path / "x", act, say=_silent).complete
    assert (run / "training-state.safetensors").exists()  # it goes on from there
    assert runner.run([Step("a", words)], tmp_path / "x", act, say=_silent).complete
    assert sorted(path.name for path in tmp_path.glob("*/*.safetensors")) == ["training-state.safetensors"]
    assert (model / "training-state.safetensors").exists()  # not a run folder: none of ours


SCRIPT = """
import sys
from pathlib import Path
from headcount.reproduction import runner
from reproduction.test_runner import act
if __name__ == "__main__":
    journal, sign, folder = sys.argv[1:]
    steps = [runner.Step(n, (journal, n)) for n in ("a", "b")]
    steps += [runner.Step(f"until-{n}", (journal, "until", sign, str(n)), ("a", "b")) for n in (1, 2)]
    steps += [runner.Step("last", (journal, "last"), ("until-1",))]
    print(runner.run(steps, Path(folder), act, workers=2, say=lambda text: None).complete)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_or_stopped_it_leaves_no_process_behind_and_goes_on_from_there(how, journal, tmp_path) -> None:
    script, sign = tmp_path / "script.py", tmp_path / "sign"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script), str(journal), str(sign), str(tmp_path / "x")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)
    _await(lambda: _begun(journal).count("until") == 2)
    pids = {line[-1] for line in _read(journal) if line[0] == "begin"}
    process.send_signal(how)
    assert process.wait(60) != 0
    _await(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids) if os.path.isdir("/proc") else True)
    assert "last" not in _begun(journal)
    sign.touch()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "True\n"
    assert sorted(_begun(journal)) == ["a", "b", "last", *["until"] * 4]  # what was done was not done again


def _await(true: object) -> None:
    end = time.monotonic() + 100
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


def test_steps_of_one_name_are_one_step() -> None:
    a, b = Step("a", ("score", "x")), Step("b", ("score", "x"))
    assert runner.named_once([a, b, a]) == [a, b]
    with pytest.raises(AssertionError, match="two commands are called a: headcount score x and headcount score y"):
        runner.named_once([a, Step("a", ("score", "y"))])
