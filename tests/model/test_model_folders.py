"""Folders of models: they appear whole or not at all, nothing else is ever lost, and a kill leaves what the next one mends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import says
from helpers import zoo

import headcount as hc
from headcount.errors import BadCheckpoint
from headcount.model import model_folders
from headcount.model.model_folders import appears_whole, claimed, may_be_written


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that `save` wrote: a bert without its head 0:1, with what came along."""
    source = tmp_path_factory.mktemp("source")
    model, _ = zoo.build("bert")
    model.save_pretrained(source)
    for name in ("tokenizer.json", "1_Pooling/config.json", "notes/history.txt", "LICENSE"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("{}")
    hc.cut(model, "0:1")
    return hc.save(model, tmp_path_factory.mktemp("good") / "cut", source=source)


def _model(folder: Path, mark: str = "old") -> Path:
    """A folder that looks like a model's, with a mark by which it is known again."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"mark": mark}))
    (folder / "model.safetensors").write_bytes(b"weights of " + mark.encode())
    return folder


def _mark(folder: Path) -> str:
    mark: str = json.loads((folder / "config.json").read_text())["mark"]
    assert (folder / "model.safetensors").read_bytes() == b"weights of " + mark.encode(), "it is whole"
    return mark


def _write(target: Path, mark: str = "new", force: bool = False, **options: Any) -> None:
    with appears_whole(target, force, **options) as draft:
        draft.rmdir()
        _model(draft, mark)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- saving is all or nothing ----------------------------------------------------------------------------------------


class Failing:
    """A tokenizer whose folder cannot be written: it fails when everything else is in place."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def save_pretrained(self, folder: Path) -> None:
        (Path(folder) / "half").write_text("x")
        raise self.error


@pytest.mark.parametrize("error", [ValueError("full"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_save_leaves_no_trace(error: BaseException, tmp_path: Path) -> None:
    model, _ = zoo.build("bert")
    hc.cut(model, "0:1")
    expected = BadCheckpoint if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        hc.save(model, tmp_path / "deep" / "new", tokenizer=Failing(error))
    assert _names(tmp_path) == []
    folder = hc.save(model, tmp_path / "old")
    before = _files(tmp_path)
    hc.cut(model, "1:0")
    with pytest.raises(expected):
        hc.save(model, folder, tokenizer=Failing(error), force=True)
    assert _files(tmp_path) == before
    assert _names(tmp_path) == ["old"]
    hc.save(model, folder, force=True)
    assert _names(tmp_path) == ["old"]
    assert hc.removed(hc.load(folder)) == hc.removed(model)


@contextmanager
def _failing_renames(monkeypatch: pytest.MonkeyPatch, *failing: int) -> Iterator[list[Any]]:
    """Within the block, renames with these numbers fail as on a full disk."""
    rename, calls = os.rename, list[Any]()

    def planted(*args: Any) -> None:
        calls.append(args)
        if len(calls) in failing:
            raise OSError(28, "No space left on device")
        rename(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", planted)
        yield calls


@pytest.mark.parametrize("number", [1, 2])
def test_a_swap_that_fails_halfway_gives_the_old_folder_back(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = _model(tmp_path / "old")
    with _failing_renames(monkeypatch, number) as calls, says(BadCheckpoint, about="No space left on device"):
        _write(target, force=True)
    assert len(calls) >= number
    assert _mark(target) == "old"
    assert _names(tmp_path) == ["old"]


def test_where_not_even_the_old_folder_can_be_put_back_neither_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = _model(tmp_path / "model")
    with _failing_renames(monkeypatch, 2, 3), says(BadCheckpoint, about="No space left on device"):
        _write(target, force=True)
    marks = {_mark(path) for path in tmp_path.iterdir()}
    assert marks == {"old", "new"}
    with says(BadCheckpoint, about="killed half way; the earlier one is"):
        hc.load(target)
    with says(BadCheckpoint, about="exists and is not empty"):
        _write(target)
    assert f"is back as {target}" in capsys.readouterr().err
    assert _mark(target) == "old"
    assert _names(tmp_path) == ["model"]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    model, _ = zoo.build("bert")
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file" / "inside", Path("/proc/headcount"), tmp_path / ("x" * 240)):
        with says(BadCheckpoint):
            hc.save(model, place)
    assert _names(tmp_path) == ["file"]


def test_what_takes_the_name_in_the_meantime_stays_and_the_new_model_too(tmp_path: Path) -> None:
    for force in (False, True):
        target = tmp_path / f"model-{force}"
        with says(BadCheckpoint, about=f"complete, but it is in {target}-2"), appears_whole(target, force) as draft:
            draft.rmdir()
            _model(draft, "new")
            target.mkdir()
            (target / "thesis.txt").write_text("do not touch")
        assert _names(target) == ["thesis.txt"]
        assert _mark(tmp_path / f"{target.name}-2") == "new"
    assert _names(tmp_path) == ["model-False", "model-False-2", "model-True", "model-True-2"]


# -- what force may replace ------------------------------------------------------------------------------------------


def _add(name: str, content: str = "do not touch") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)

    return change


NOT_OURS: dict[str, Callable[[Path], Any]] = {
    "a thesis": _add("thesis.txt"),
    "a hidden file": _add(".notes"),
    "a thesis in a folder": _add("chapters/1.tex"),
    "another model in it": lambda folder: _model(folder / "archive"),
    "a file named like one of a model, in a folder": _add("mine/README.md"),
    "a checkpoint of a training": _add("checkpoint-500/optimizer.pt"),
    "a table": _add("results.json"),
    "weights of another kind": _add("mine.safetensors"),
    "a link to a folder": lambda folder: (folder / "data").symlink_to(folder.parent),
    "a repository": _add(".git/HEAD"),
    "no config": lambda folder: (folder / "config.json").unlink(),
}


@pytest.mark.parametrize("change", NOT_OURS.values(), ids=NOT_OURS)
def test_force_replaces_no_folder_with_something_of_somebody_else(
    change: Callable[[Path], Any], tmp_path: Path
) -> None:
    target = _model(tmp_path / "model")
    _write(target, "again", force=True)
    assert _mark(target) == "again"
    change(target)
    before = _files(tmp_path)
    with says(BadCheckpoint, about="choose another folder"):
        _write(target, force=True)
    assert _files(tmp_path) == before
    assert _names(tmp_path) == ["model"]


def test_an_existing_folder_is_replaced_only_by_force_and_only_if_it_is_a_model(good: Path, tmp_path: Path) -> None:
    model, _ = zoo.build("bert")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not touch")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("do not touch")
    before = _files(tmp_path)
    for name in ("full", "file"):
        with says(BadCheckpoint, about="(--force)"):
            hc.save(model, tmp_path / name)
        with says(BadCheckpoint, about="is not a model folder"):
            hc.save(model, tmp_path / name, force=True)
    assert _files(tmp_path) == before
    for name in ("empty", "new/deep/er"):
        hc.load(hc.save(model, tmp_path / name))
    assert _names(tmp_path) == ["empty", "file", "full", "new"]


def test_what_came_along_from_the_model_does_not_keep_its_smaller_one_from_being_replaced(
    good: Path, tmp_path: Path
) -> None:
    """`cut my-model -o smaller` twice: the notes in `smaller` are copies of those in the model, until somebody edits them."""
    source, target = tmp_path / "source", tmp_path / "smaller"
    shutil.copytree(good, source)
    model = hc.load(source)
    for _ in range(2):
        hc.save(model, target, source=source, force=True)
    assert (target / "notes/history.txt").is_file()
    with says(BadCheckpoint, about="notes/history.txt"):
        hc.save(model, target, force=True)
    (target / "notes/history.txt").write_text("and so it went on")
    with says(BadCheckpoint, about="notes/history.txt, which is no part of a model"):
        hc.save(model, target, source=source, force=True)
    assert (target / "notes/history.txt").read_text() == "and so it went on"


def test_a_folder_saved_over_its_own_source_keeps_what_came_along(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    model = hc.load(folder)
    hc.cut(model, "0:2")
    before = _files(folder)
    hc.save(model, folder, source=folder, force=True)
    changed = {name for name, content in _files(folder).items() if before.get(name) != content}
    assert changed == {"config.json", "model.safetensors"}
    assert set(_files(folder)) == set(before)
    assert len(hc.removed(hc.load(folder))) == 2
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("main")
    with says(BadCheckpoint, about=".git/HEAD"):
        hc.save(model, folder, source=folder, force=True)


def test_the_folder_we_are_in_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = _model(tmp_path / "model")
    (target / "1_Pooling").mkdir()
    may_be_written(target, force=True)
    for folder, names in ((target, (".", "../model", str(target))), (target / "1_Pooling", ("..", "."))):
        monkeypatch.chdir(folder)
        for name in names:
            with says(BadCheckpoint, about="the folder we are in"):
                may_be_written(Path(name), force=True)
    monkeypatch.chdir(tmp_path)
    may_be_written(Path("model"), force=True)


def test_what_a_command_needs_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = _model(tmp_path / "model")
    (target / "vocab.txt").write_text("the data, by a name that a model has as well")
    (tmp_path / "link").symlink_to(target)
    monkeypatch.chdir(tmp_path)
    for name in ("model", "./model/", "link", "../" + tmp_path.name + "/model"):
        for needed in (target, target / "vocab.txt", Path("model"), Path("link") / "vocab.txt"):
            with says(BadCheckpoint, about="still needed"):
                may_be_written(Path(name), True, [tmp_path / "other", needed])
        may_be_written(Path(name), True, [tmp_path, tmp_path / "other", target / "none", tmp_path / "model-2"])
    assert _mark(target) == "old"


# -- links -----------------------------------------------------------------------------------------------------------


def test_through_a_link_the_folder_is_written_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    target = _model(tmp_path / "disk" / "model")
    link = tmp_path / "here"
    link.symlink_to(target)
    with says(BadCheckpoint, about="(--force)"):
        _write(link)
    _write(link, force=True)
    assert link.is_symlink()
    assert _mark(target) == _mark(link) == "new"
    assert (_names(tmp_path), _names(tmp_path / "disk")) == (["disk", "here"], ["model"])


@pytest.mark.parametrize("name", ["nowhere", "nowhere/model", "loop"])
def test_a_link_that_leads_nowhere_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "unmounted" / "disk")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for force in (False, True):
        with says(BadCheckpoint, about="is a link to"):
            _write(tmp_path / name, force=force)
    assert _names(tmp_path) == ["loop", "nowhere"]


def test_links_of_the_source_are_followed_only_where_they_lead_to_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder in the cache of the hub is links to its blobs; a diary that a link leads to is no part of a model."""
    hub = tmp_path / "models--x"
    snapshot = _model(hub / "snapshots" / "abc")
    (hub / "blobs").mkdir()
    (hub / "blobs" / "1").write_text("from the hub")
    (tmp_path / "home" / "letters").mkdir(parents=True)
    for name in ("diary", "vocabulary", "letters/1.txt"):
        (tmp_path / "home" / name).write_text(name)
    (snapshot / "real.txt").write_text("real")
    links = {
        "blob.txt": hub / "blobs" / "1",
        "inside.txt": Path("real.txt"),
        "vocab.txt": tmp_path / "home" / "vocabulary",
    }
    links |= {
        "mine.txt": tmp_path / "home" / "diary",
        "letters": tmp_path / "home" / "letters",
        "gone.txt": Path("none"),
    }
    for name, place in links.items():
        (snapshot / name).symlink_to(place)
    draft = tmp_path / "draft"
    draft.mkdir()
    model_folders.bring_along(snapshot, draft)
    assert _files(draft) == {
        "real.txt": b"real",
        "inside.txt": b"real",
        "blob.txt": b"from the hub",
        "vocab.txt": b"vocabulary",
    }
    assert not any(path.is_symlink() for path in draft.iterdir())
    notes = capsys.readouterr().err.splitlines()
    assert [Path(line.split()[1]).name for line in notes] == ["gone.txt", "letters", "mine.txt"]
    assert all("does not come along" in line for line in notes)


# -- kills -----------------------------------------------------------------------------------------------------------

WRITER = """
import os, signal, sys, time
from pathlib import Path
from headcount.model import model_folders

target, moment, force = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "force"

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def before(real, number):
    calls = []
    def planted(*args, **options):
        calls.append(args)
        return die() if len(calls) == number else real(*args, **options)
    return planted

with model_folders.appears_whole(target, force) as draft:
    (draft / "config.json").write_text('{"mark": "new"}')
    if moment == "wait":
        print("ready", flush=True)
        time.sleep(300)  # until it is killed
    if moment == "in the middle":
        die()
    (draft / "model.safetensors").write_bytes(b"weights of new")
    if moment.startswith("rename"):
        os.rename = before(os.rename, int(moment[-1]))
    if moment == "deleting the old":
        model_folders.shutil.rmtree = before(model_folders.shutil.rmtree, 1)
"""


def _writer(target: Path, moment: str, force: str = "force") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(target), moment, force]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _killed(target: Path, moment: str, force: str = "force") -> None:
    process = _writer(target, moment, force)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, errors[-500:]


@pytest.mark.parametrize("moment", ["in the middle", "rename 1"])
def test_a_draft_that_a_kill_left_is_deleted_by_the_next_command_that_writes_there(
    moment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "model"
    _killed(target, moment, "")
    assert not target.exists()
    draft = next(path for path in tmp_path.iterdir() if path.name.endswith(".unfinished"))
    _write(tmp_path / "other")
    assert (
        f"{draft} is left of a command that was killed; delete it, or write {target} again" in capsys.readouterr().err
    )
    assert draft.is_dir(), "only who writes the same folder knows that nobody needs it"
    _write(target)
    assert f"deleted {draft}" in capsys.readouterr().err
    assert _names(tmp_path) == ["model", "other"]
    assert _mark(target) == "new"


@pytest.mark.parametrize(
    ("moment", "mark"),
    [
        pytest.param("in the middle", "old", marks=pytest.mark.slow),
        pytest.param("rename 1", "old", marks=pytest.mark.slow),
        ("rename 2", "old"),
        ("deleting the old", "new"),
    ],
)
def test_a_kill_while_a_model_is_replaced_loses_neither(
    moment: str, mark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = _model(tmp_path / "model")
    _killed(target, moment)
    assert len(_names(tmp_path)) > 1
    if moment == "rename 2":  # the one moment at which there is no model of that name: whoever reads it is told
        with says(BadCheckpoint, about="the earlier one is"):
            hc.load(target)
    with says(BadCheckpoint, about="exists and is not empty"):
        _write(target)
    assert _mark(target) == mark
    assert _names(tmp_path) == ["model"]
    assert ("is back as" in capsys.readouterr().err) == (moment == "rename 2")


def test_an_old_model_whose_name_is_taken_by_now_gets_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = _model(tmp_path / "model")
    _killed(target, "rename 2")
    _model(target, "by other means")
    _write(target, "newer", force=True)
    assert _mark(target) == "newer"
    assert _mark(tmp_path / "model-2") == "old"
    assert _names(tmp_path) == ["model", "model-2"]
    assert f"is back as {tmp_path / 'model-2'}" in capsys.readouterr().err


# -- two at once -----------------------------------------------------------------------------------------------------


def test_of_two_processes_that_write_one_folder_the_second_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "model"
    first = _writer(target, "wait", "")
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        for force in (False, True):
            with says(BadCheckpoint, about="is being written by another process"):
                _write(target, force=force)
        _write(tmp_path / "other")
        assert capsys.readouterr().err == "", "nothing is said about the folder of a process that lives"
        drafts = [name for name in _names(tmp_path) if name.endswith(".unfinished")]
        assert len(drafts) == 1, "the draft of a process that lives is left alone"
    finally:
        first.kill()
        first.communicate()
    _write(target)
    assert _mark(target) == "new"
    assert _names(tmp_path) == ["model", "other"]


def test_a_claim_is_the_thread_s_own_and_ends_with_its_block(tmp_path: Path) -> None:
    target, errors = tmp_path / "deep" / "model", list[str]()

    def elsewhere() -> None:
        try:
            _write(target)
        except BadCheckpoint as error:
            errors.append(str(error))

    with claimed(target):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        _write(target)
    assert "elsewhere in this one" in errors[0]
    assert _mark(target) == "new"
    elsewhere()
    assert "exists and is not empty" in errors[1]
    with claimed(tmp_path / "nothing" / "written"):
        pass
    assert _names(tmp_path) == ["deep"]


def test_a_model_that_was_written_since_the_command_began_is_seen_when_the_claim_is_free(tmp_path: Path) -> None:
    target = tmp_path / "model"
    may_be_written(target, force=False)
    _write(target, "of the first")
    with says(BadCheckpoint, about="exists and is not empty"), claimed(target):
        raise AssertionError("the work of hours begins")
    assert _mark(target) == "of the first"
