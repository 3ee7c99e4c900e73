"""`prune` once its flags are checked: choose, cut, save, measure, and write it all down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data.example_sets import USES, Sets
from ...errors import HeadcountError
from ..options import CommonFlags, specs_of
from ..run_folder import running
from ..training.options import Recovery
from . import targets
from .front import borrow_scoring
from .results import show, show_plan

if TYPE_CHECKING:
    from ...data.seen_examples import Seen
    from ...data.tasks import Task
    from ...plans import Plan
    from ...pruning.choices import Choice


@dataclass(frozen=True)
class Work:
    """One call of `prune` once its flags are checked: the model, the examples, what is wanted, and where it goes."""

    name: str
    model: Any
    flags: CommonFlags
    folder: Path | None
    sets: Sets
    tasks: dict[str, Task]
    lesson: Any
    recovery: Recovery
    plan: Plan | None
    chosen_on: dict[str, Any] | None
    seen_examples: Seen
    wanted: dict[str, Any]  # what `choose` is asked for
    options: dict[str, Any]  # what the run folder is named by
    places: list[Path]
    tries: int
    drawn_alike: bool  # selection examples and those to report on
    output: Path | None
    force: bool
    dry_run: bool
    report: bool
    needed: list[Path]  # what must not be replaced by the output
    places_of_exports: dict[str, Path] = field(default_factory=dict)
    budget_minutes: float | None = None


def train_along(work: Work) -> None:
    """What the other processes do that a launcher started: train what the first one has cut."""
    from ...training.followers import handed_out

    rows = specs_of(work.flags.spec)
    train = work.recovery.trainer(work.lesson, work.model, work.flags, None)
    assert train is not None
    train(handed_out(work.model, rows))


def carry_out(work: Work) -> None:
    """Choose, cut, save and measure; or with a dry run, choose and show."""
    from ...documents.prune import ExampleSet, PruneDocument
    from ...model.model_folders import claimed
    from ...pruning import ledger, pipeline, selection
    from ...pruning.time_budget import limited

    flags, sets, tasks, rows = work.flags, work.sets, dict(work.tasks), specs_of(work.flags.spec)
    wanted, own_flags = dict(work.wanted), replace(flags, output=work.folder)
    claim = claimed(None if work.dry_run else work.output, work.force, work.needed, Path(work.name))
    with claim, running("prune", work.name, work.model, own_flags, tasks, **work.options) as folder:
        borrow_scoring(folder, work.places)
        if work.budget_minutes is not None:
            sets, fitting = limited(work.model, sets, wanted, work.budget_minutes, folder, flags.seed, rows)
            wanted |= fitting
            tasks |= sets.tasks()

        def tried() -> ledger.Tries:
            assert sets.select is not None
            return ledger.tries(folder, sets.select, alpha=work.wanted["alpha"], planned=work.tries, places=work.places)

        choice = selection.choose(
            work.model,
            **wanted,
            tries=lambda: tried().shared,
            dtype=pipeline.number_format(work.name, trust_remote_code=flags.trust_remote_code)
            if wanted["tune"] or wanted.get("compensate") or wanted.get("memory")
            else None,
            plan=work.plan,
            score=sets.score,
            select=sets.select,
            batch_size=flags.batch_size,
            seed=flags.seed,
            run=folder,
            specs=rows,
        )
        if choice.scores is not None:
            folder.write_json("scores", choice.scores.to_json(), replace=True)
        counted = None if choice.guarantee is None else tried()
        choice = replace(choice, tried="" if counted is None or counted.shared == 1 else str(counted))
        if work.drawn_alike:  # a part of --data, drawn like the one to report on: there is nothing to compare
            choice = replace(choice, selected=None)
        # a run that came to its end before has told what its plan is worth
        told_before = (folder.folder / "prune.json").is_file()
        folder.write_json(
            "plan", _plan_file(choice, work.chosen_on, work.seen_examples, tasks, told_before), replace=True
        )
        about: dict[str, Any] = {"model": work.name, "command": flags.command, "sets_note": sets.how or None}
        about |= {"tries": None if counted is None else counted.to_json()}
        if work.dry_run:
            show_plan(work.model, choice, sets, flags, folder, rows, about)
            return
        assert work.output is not None
        about["sets"] = tuple(
            ExampleSet(role=role, data=tasks[role].name, n=tasks[role].size, what=USES[role])
            for role in USES
            if role in tasks
        )
        missing = [name for name in ("altair", "vl_convert", "jinja2") if find_spec(name) is None]
        no_page: list[str] = []  # why there is none

        def page(draft: Path) -> None:
            from ...reporting.page import report as write_page

            folder.finish()  # all is measured; the page should not say otherwise
            try:
                write_page([folder.folder], draft / "report.html")
            except (HeadcountError, MemoryError) as error:  # the model is worth more than the page about it
                no_page.append(str(error) or "there is too little memory for it")

        pruned = pipeline.save_pruned(
            work.model,
            work.output,
            sets.report,
            choice,
            source=work.name,
            force=work.force,
            trust_remote_code=flags.trust_remote_code,
            batch_size=flags.batch_size,
            length=work.wanted["length"],
            seed=flags.seed,
            run=folder,
            specs=rows,
            plan_file=_plan_file(choice, work.chosen_on, work.seen_examples, tasks, True),
            about=about,
            page=page if work.report and not missing else None,
            recover=work.recovery.trainer(work.lesson, work.model, flags, folder),
        )
        document = PruneDocument.from_json(folder.read_json("prune"), f"{folder.folder / 'prune'}.json")
        if missing:
            no_page.append(f"{missing[0]} is not installed; `headcount report {folder.folder}` writes it elsewhere")
        exports = None
        if work.places_of_exports:
            options = {"source": work.output, "force": work.force, "trust_remote_code": flags.trust_remote_code}
            exports = targets.exported(pruned.model, work.places_of_exports, **options)
        show(document, folder.folder, choice, sets, flags, work.output, no_page if work.report else None, exports)
    if exports is not None:
        targets.end(exports)


def _plan_file(
    choice: Choice, chosen_on: dict[str, Any] | None, seen_examples: Seen, tasks: Mapping[str, Task], is_reported: bool
) -> dict[str, Any]:
    """What plan.json says: the plan, and what it and the plan it was made of have seen, with what was told about it or not."""
    from ...data.seen_examples import marks, to_note, union

    roles = [role for role in tasks if role != "offered" and (is_reported or role in ("score", "select"))]
    file: dict[str, Any] = choice.plan.to_json()
    file |= {"chosen_on": chosen_on} if chosen_on is not None else {}
    file |= {"tuned": True} if choice.tuned is not None else {}
    mean = choice.fill or (choice.refit is not None and choice.refit.intercept)
    done = [word for word, found in (("mean", mean), ("lstsq", choice.refit is not None)) if found]
    file |= {"compensated": ",".join(done)} if done else {}
    return {**file, "seen": to_note(union(seen_examples, {role: marks(tasks[role]) for role in roles}))}
