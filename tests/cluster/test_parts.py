"""Parts of a run: shares, claims, who is at work, and what becomes of it all when processes die."""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import processes

from headcount.cluster import parts, presence
from headcount.cluster.claims import Claims
from headcount.cluster.parts import Part, PartEnds, Share
from headcount.cluster.presence import Present, Worker, workers_in
from headcount.errors import BadRun
from headcount.runs import Arrays, Job, Run, independent, read

QUESTION = {"command": "count", "pieces": 12}
NAMES = [f"count-{n:03d}" for n in range(12)]


def value(name: str) -> Arrays:
    """The same bytes on every machine."""
    return {"rows": np.random.default_rng(int(name[-3:])).integers(0, 1 << 30, 50)}


def jobs(done: Callable[[str], object] = lambda name: None, names: list[str] = NAMES) -> list[Job]:
    def compute(name: str) -> Arrays:
        done(name)
        return value(name)

    return [(name, lambda name=name: compute(name)) for name in names]  # type: ignore[misc]


def part_of(folder: Path, text: str, done: Callable[[str], object] = lambda name: None) -> PartEnds | None:
    """What a part in this process ends with."""
    with Part.shared(folder, QUESTION, Share.read(text)) as run:
        try:
            list(independent(run, jobs(done)))
            run.conclude()
        except PartEnds as end:
            return end
    return None


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """The pieces as one process writes them."""
    with Run.open(tmp_path / "whole", QUESTION) as run:
        list(run.independent(jobs()))
    return pieces(tmp_path / "whole")


def pieces(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.npz"))}


# -- shares --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [1, 3, 5, 40])
def test_every_piece_is_in_one_share(of: int) -> None:
    shares = [Share.read(f"{part}/{of}") for part in range(1, of + 1)]
    assert all(sum(number in share for share in shares) == 1 for number in range(100))
    sizes = [sum(number in share for number in range(100)) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["0/4", "5/4", "4", "a/b", "1/0", "-1/4", "1/4/2", ""])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(BadRun, match="A part is written as 3/16"):
        Share.read(text)


def test_parts_one_after_the_other_write_what_one_process_writes(whole: dict[str, bytes], tmp_path: Path) -> None:
    computed: list[str] = []
    ends = [part_of(tmp_path / "run", text, computed.append) for text in ("2/3", "3/3", "1/3")]
    assert [(end.computed, end.missing) for end in ends if end] == [(4, 8), (4, 4), (4, 0)]
    assert sorted(computed) == NAMES
    assert pieces(tmp_path / "run") == whole
    with Run.open(tmp_path / "run", QUESTION) as run:
        list(run.independent(jobs(computed.append)))
        parts.tidy(run)
    assert len(computed) == 12
    assert sorted(os.listdir(tmp_path / "run")) == sorted([".lock", "run.json", *whole])


def test_a_whole_run_does_what_parts_have_left(whole: dict[str, bytes], tmp_path: Path) -> None:
    computed: list[str] = []
    part_of(tmp_path / "run", "2/3")
    with Run.open(tmp_path / "run", QUESTION) as run:
        list(run.independent(jobs(computed.append)))
    assert computed == [name for number, name in enumerate(NAMES) if number % 3 != 1]
    assert pieces(tmp_path / "run") == whole


def test_a_piece_may_need_pieces_of_its_own(tmp_path: Path) -> None:
    def compute() -> Arrays:
        return {"sum": sum(arrays["rows"] for arrays in run.independent(jobs()))}

    with Part.shared(tmp_path / "run", QUESTION, Share(1, 2)) as run:
        found = run.piece("sum", compute)["sum"]
    assert (found == sum(value(name)["rows"] for name in NAMES)).all()
    with Part.shared(tmp_path / "other", QUESTION, Share(2, 2)) as run, pytest.raises(PartEnds):
        run.piece("sum", compute)
    assert read(tmp_path / "other").pieces == ()


def test_parts_write_no_documents(tmp_path: Path) -> None:
    with Part.shared(tmp_path / "run", QUESTION, Share(1, 1)) as run:
        run.write_json("result", {"a": 1}, replace=True)
        run.write("samples", {"a": 1})
        run.finish()
    assert sorted(os.listdir(tmp_path / "run")) == [".claims", ".lock", ".workers", "run.json"]
    assert not read(tmp_path / "run").finished


def test_another_question_is_refused(tmp_path: Path) -> None:
    part_of(tmp_path / "run", "1/2")
    with (
        pytest.raises(BadRun, match="another question: pieces is 12 there and 13 here"),
        Part.shared(tmp_path / "run", {**QUESTION, "pieces": 13}, Share(1, 2)),
    ):
        pass


# -- beside each other ----------------------------------------------------------------------------------------------------


def test_parts_share_the_folder_and_keep_a_whole_run_out(tmp_path: Path) -> None:
    with (
        Part.shared(tmp_path / "run", QUESTION, Share(1, 2)) as one,
        Part.shared(tmp_path / "run", QUESTION, Share(2, 2)),
    ):
        assert one.lock.is_locked
        with pytest.raises(BadRun, match="in use"), Run.open(tmp_path / "run", QUESTION):
            pass
    with (
        Run.open(tmp_path / "run", QUESTION),
        pytest.raises(BadRun, match="in use"),
        Part.shared(tmp_path / "run", QUESTION, Share(1, 2)),
    ):
        pass
    assert not one.lock.is_locked
    one.inside.append("x")
    with pytest.raises(BadRun, match="closed"):
        one.write("x", {"a": 1})


def test_a_draft_of_another_part_is_left_alone(tmp_path: Path) -> None:
    with Part.shared(tmp_path / "run", QUESTION, Share(1, 2)) as run:
        run.me.say(state="waiting", piece="none")
        draft = tmp_path / "run" / f".{'0' * 16}.draft"
        draft.write_bytes(b"half")
        part_of(tmp_path / "run", "2/2")
        assert draft.exists()


def _at_once(folder: Path, texts: list[str], journal: Path, pause: float = 0.01) -> list[int]:
    """So many parts at the same time, each of which notes what it computes; their exit codes."""

    def note(name: str) -> None:
        with open(journal, "a", encoding="utf-8") as stream:
            stream.write(f"{name}\n")
        time.sleep(pause)

    started = [
        processes.forked(lambda text=text: part_of(folder, text, note), folder.with_name(f"out-{n}"))
        for n, text in enumerate(texts)
    ]  # type: ignore[misc]
    for one in started:
        one.join(60)
    return [one.exitcode or 0 for one in started]


@pytest.mark.parametrize("texts", [["1/1", "1/1", "1/1"], ["1/2", "2/2"], ["1/3", "1/3", "2/3", "3/3"]])
def test_processes_at_once_do_every_piece_once(texts: list[str], whole: dict[str, bytes], tmp_path: Path) -> None:
    assert set(_at_once(tmp_path / "run", texts, tmp_path / "journal")) == {0}
    assert sorted((tmp_path / "journal").read_text().split()) == NAMES
    assert pieces(tmp_path / "run") == whole
    assert os.listdir(tmp_path / "run" / ".claims") == []
    assert os.listdir(tmp_path / "run" / ".workers") == []


def test_a_part_waits_for_another_one_that_is_at_work(tmp_path: Path) -> None:
    """So that a command with several stages goes on where all its parts run."""
    order = tmp_path / "order"

    def second_stage(text: str) -> None:
        with Part.shared(tmp_path / "run", QUESTION, Share.read(text)) as run:
            for names in (NAMES[:6], NAMES[6:]):

                def note(name: str) -> None:
                    with open(order, "a", encoding="utf-8") as stream:
                        stream.write(f"{name}\n")
                    time.sleep(0.02 if text == "1/2" else 0)

                list(run.independent(jobs(note, names)))

    started = [processes.forked(lambda text=text: second_stage(text), tmp_path / text[0]) for text in ("1/2", "2/2")]  # type: ignore[misc]
    for one in started:
        one.join(60)
    assert [one.exitcode for one in started] == [0, 0]
    done = order.read_text().split()
    assert sorted(done) == NAMES
    assert set(done[:6]) == set(NAMES[:6]), "no piece of the second stage before all of the first"


# -- who dies --------------------------------------------------------------------------------------------------------------


def test_what_a_killed_part_had_claimed_is_done_by_the_next_one(whole: dict[str, bytes], tmp_path: Path) -> None:
    def stop(name: str) -> None:
        if name == NAMES[4]:
            time.sleep(60)

    process = processes.forked(lambda: part_of(tmp_path / "run", "1/1", stop), tmp_path / "out")
    processes.wait_until(lambda: any(one.piece == NAMES[4] for one, _ in workers_in(tmp_path / "run")), process)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(30)
    ((worker, silent),) = workers_in(tmp_path / "run")
    assert (worker.done, worker.piece, silent) == (4, NAMES[4], None), "dead, and it says with what"
    computed: list[str] = []
    part_of(tmp_path / "run", "1/1", computed.append)
    assert computed == NAMES[4:]
    assert pieces(tmp_path / "run") == whole
    assert os.listdir(tmp_path / "run" / ".claims") == []


@pytest.fixture
def present(tmp_path: Path) -> Iterator[Callable[..., Present]]:
    made: list[Present] = []

    def make(**about: object) -> Present:
        made.append(Present(tmp_path, Worker(**{"name": "part 1 of 2", **about})))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.go()


def test_of_two_that_see_a_dead_claim_one_takes_it(present: Callable[..., Present], tmp_path: Path) -> None:
    dead, one, other = present(), present(), present()
    assert Claims(tmp_path, dead).take("a")
    claims = Claims(tmp_path, one), Claims(tmp_path, other)
    assert not claims[0].take("a")
    dead.go()
    assert claims[0].take("a")
    assert not claims[1].take("a")
    claims[0].release("a")
    assert os.listdir(tmp_path / ".claims") == []
    assert claims[1].take("a")


def test_a_claim_without_a_name_is_held_until_it_is_old(present: Callable[..., Present], tmp_path: Path) -> None:
    """Its process was killed between two lines, or the disk is full."""
    claims = Claims(tmp_path, present())
    bare = tmp_path / ".claims" / "a.0"
    bare.touch()
    assert not claims.take("a")
    os.utime(bare, (0, time.time() - 2 * presence.SILENCE))
    assert claims.take("a")


def test_a_worker_of_another_machine_lives_as_long_as_it_gives_signs(
    present: Callable[..., Present], tmp_path: Path
) -> None:
    far, here = present(host="elsewhere", pid=1 << 22), present()
    assert here.lives(far.id)
    assert here.others_at_work(lambda name: False)
    far.say(state="waiting", piece="a")
    assert not here.others_at_work(lambda name: False)
    assert here.others_at_work(lambda name: name == "a"), "it will see at once that what it waits for is there"
    far.say(state="computing", piece=None)
    file = tmp_path / ".workers" / f"{far.id}.json"
    os.utime(file, (0, time.time() - 2 * presence.SILENCE))
    assert not here.lives(far.id)
    assert not here.others_at_work(lambda name: False)
    gone = present(host=platform.node(), pid=1 << 22)  # no process has such a number
    assert not here.lives(gone.id)
    assert not here.lives("nobody")


def test_an_error_in_a_piece_lets_it_go(tmp_path: Path) -> None:
    def fail(name: str) -> None:
        if name == NAMES[2]:
            raise BadRun("no")

    with pytest.raises(BadRun, match="no"):
        part_of(tmp_path / "run", "1/1", fail)
    assert os.listdir(tmp_path / "run" / ".claims") == []
    assert os.listdir(tmp_path / "run" / ".workers") == []
    end = part_of(tmp_path / "run", "1/1")
    assert end is not None
    assert end.computed == 10


def test_what_another_one_has_finished_meanwhile_stays(tmp_path: Path) -> None:
    """A process that slept longer than a claim lasts finds its piece there, with the last digit of another machine."""
    with Part.shared(tmp_path / "run", QUESTION, Share(1, 1)) as run:

        def slow() -> Arrays:
            run.inside.append("as the other one")
            Part.write(run, "a", {"rows": np.ones(3)})
            return {"rows": np.full(3, 2.0)}

        assert (run.piece("a", slow)["rows"] == 1).all()
