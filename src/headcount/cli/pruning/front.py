"""The front of a model on the command line: found in its run folder or made, shown, and a row of it taken."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from ...data.example_sets import USES, Sets, sets_of, used_text
from ...errors import BadData, BadPlan, BadRun
from ..options import SCORED_ON, CommonFlags, make_task, other_task, out, specs_of
from ..run_folder import question_of, running
from .targets import even_in_question

if TYPE_CHECKING:
    from ...data.seen_examples import Seen
    from ...data.tasks import Task
    from ...documents.curves import TradeoffDocument
    from ...plans import Plan
    from ...runs import Run

GRADIENTS = "score-gradients-"  # pieces of a run that every criterion and every budget share


@dataclass(frozen=True)
class FrontRequest:
    """Which front is asked for: of which model, over which units, by which criteria."""

    name: str
    model: Any
    flags: CommonFlags
    units: str
    by: str | None
    step: str | None
    least: int
    only: list[str]
    multiple: int | None
    length: int | None
    threads: int | None
    runtime: str | None = None
    tensor_parallel: int | None = None
    groups: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What its rows depend on, beside the model and the data."""
        names = ("units", "by", "step", "least", "only", "multiple", "length", "runtime", "tensor_parallel")
        specs, kinds = specs_of(self.flags.spec), self.units.split(",")
        even = even_in_question(self.groups, self.model, kinds, specs, self.runtime or ())
        return {**{name: getattr(self, name) for name in names}, "groups": even}

    def find(self, sets: Sets, places: Iterable[Path], folder: Path | None = None) -> tuple[TradeoffDocument, Path]:
        """The front and its run folder: read where it was made before, else made now."""
        from ...documents.curves import TradeoffDocument
        from ...documents.prune import ExampleSet
        from ...efficiency.contention import threads
        from ...pruning.front import tradeoff

        assert sets.score is not None
        flags, options = replace(self.flags, output=folder), {**self.options, "threads": self.threads}
        with running("tradeoff", self.name, self.model, flags, {"score": sets.score}, **options) as run:
            if not run.finished:
                borrow_scoring(run, places)
                shared_options = {"batch_size": flags.batch_size, "seed": flags.seed, "specs": specs_of(flags.spec)}
                with threads(self.threads):
                    asked = {name: value for name, value in self.options.items() if value is not None}
                    asked["groups"] = self.groups
                    document = tradeoff(self.model, sets.score, **asked, **shared_options, run=run)
                used = tuple(
                    ExampleSet(role=role, data=task.name, n=task.size, what=what)
                    for role, task, what in (("score", sets.score, f"{USES['score']}, and to measure and pick plans"),)
                )
                document = replace(document, model=self.name, sets=used, command=flags.command)
                run.write_json(document.NAME, document.to_json(), replace=True)
            return TradeoffDocument.from_json(run.read_json(TradeoffDocument.NAME)), run.folder

    def show(self, sets: Sets, places: Iterable[Path], folder: Path | None = None) -> None:
        """Print the front, and how to carry out a row."""
        document, where = self.find(sets, places, folder)
        if self.flags.as_json:
            print(json.dumps({**document.to_json(), "run": str(where)}, indent=2))
            return
        self._print(document, where, used_text(sets))

    def show_instead(self, refusal: str, sets: Sets, places: Iterable[Path]) -> NoReturn:
        """Say why a plan is not carried out, and what can be had: exit code 1."""
        if sets.score is None:
            raise BadPlan(refusal)
        if not self.flags.as_json:
            out.print(f"{refusal} Nothing was written. This can be had:\n", soft_wrap=True, markup=False)
        document, where = self.find(sets, places)
        if self.flags.as_json:
            print(json.dumps({"refused": refusal, "tradeoff": document.to_json(), "run": str(where)}, indent=2))
        else:
            self._print(document, where, [])
        raise typer.Exit(1)

    def plan_of_row(self, row: int, sets: Sets, places: Iterable[Path], folder: Path | None) -> Plan:
        """The plan of a row; refused where the folder's front is of another model, or was made on other examples."""
        from ...documents.curves import TradeoffDocument
        from ...plans import Plan
        from ...runs import read

        if folder is None:
            document, _ = self.find(sets, places)
        else:
            record = read(folder)
            question = question_of("tradeoff", self.name, self.model, self.flags, _scored(sets), {})
            for key, what in (("model", "another model"), ("tasks", "other scoring examples")):
                ours, theirs = question.get(key) or {}, record.question.get(key) or {}
                side = ("weights", ours.get("weights"), theirs.get("weights"))
                if key == "tasks":
                    side = ("score", _fingerprint(ours), _fingerprint(theirs))
                if side[1] != side[2]:
                    raise BadRun(
                        f"The trade-off in {folder} is of {what}; give the model and the data flags it was made with."
                    )
            document = TradeoffDocument.from_json(record.read_json(TradeoffDocument.NAME))
        chosen = document.row(row)
        return Plan(chosen.plan.units, f"row {row} of the trade-off: {chosen.plan.why}")

    def _print(self, document: TradeoffDocument, where: Path, lines: list[str]) -> None:
        from ..text import tradeoff_text

        text = [*lines, "", tradeoff_text(document), ""] if lines else [tradeoff_text(document), ""]
        out.print("\n".join([*text, self._next(where), f"run folder: {where}"]), soft_wrap=True, markup=False)

    def _next(self, where: Path) -> str:
        """The command that carries out a row."""
        words = shlex.split(self.flags.command)[1:]
        words = [word for word in words if word not in ("--json", "--quiet", "-q", "--dry-run", "--force")]
        kept, skip = list[str](), 0
        for word in words[1:]:
            if skip:
                skip -= 1
            elif word in (
                "--step",
                "--flops",
                "--params",
                "--kv-cache",
                "--memory",
                "--context",
                "--batch",
                "--speedup",
                "--remove",
                "--output",
                "-o",
                "--run",
                "--brake",
            ):
                skip = 1
            else:
                kept.append(word)
        return (
            f"carry out a row: {shlex.join(['headcount', 'prune', *kept, '--tradeoff', str(where)])} --row N -o FOLDER"
        )


def _scored(sets: Sets) -> dict[str, Task]:
    return {} if sets.score is None else {"score": sets.score}


def _fingerprint(tasks: dict[str, Any]) -> Any:
    return (tasks.get("score") or {}).get("fingerprint")


def borrow_scoring(run: Run, places: Iterable[Path]) -> int:
    """Take over gradients that another run made of the same model, examples and units, and say how many pieces there were."""
    from ...runs import RUN, read

    own, borrowed = _scoring_of(run.question), 0
    for place in dict.fromkeys(places):
        for folder in sorted(path.parent for path in place.glob(f"*/{RUN}")):
            with suppress(BadRun):
                record = read(folder)
                if own is None or folder.resolve() == run.folder.resolve() or _scoring_of(record.question) != own:
                    continue
                for name in record.pieces:
                    if name.startswith(GRADIENTS) and not run.done(name):
                        run.write(name, record.read(name))
                        borrowed += 1
    return borrowed


def _scoring_of(question: dict[str, Any]) -> tuple[Any, ...] | None:
    """All that the gradients of a run depend on; None where it says too little, or scores nothing."""
    if question.get("command") not in ("prune", "tradeoff"):
        return None
    try:
        options, run, model = question["options"], question["run"], question["model"]
        weights, examples = model["weights"], question["tasks"]["score"]["fingerprint"]
        units = options["units"]
    except (KeyError, TypeError):
        return None
    dialect = json.dumps(run.get("dialect"))
    return (model["name"], weights, examples, run.get("dtype"), dialect, units) if weights else None


def sets_from(
    name: str,
    model: Any,
    flags: CommonFlags,
    needs: tuple[bool, bool],
    data_flags: tuple[Any, Any, Any, Any],
    chosen_on: dict[str, Any] | None = None,
    seen_examples: Seen | None = None,
) -> Sets:
    """The sets of examples that flags ask for; `data_flags` are --score-data, its limit, --select-data and its limit."""
    if data_flags[2] is not None and (flags.task or "").startswith("lm-eval:"):
        raise BadData(
            f"The guarantee is shown on documents of {flags.task}, as what is reported; leave --select-data out, and give "
            "text to score on with --score-data."
        )
    more = [
        None if data is None else other_task(name, model, flags, data, limit, sample=sample)
        for data, limit, sample in ((*data_flags[:2], SCORED_ON), (*data_flags[2:], None))
    ]
    return sets_of((make_task(name, model, flags), more[0], more[1]), needs, flags.seed, chosen_on, seen_examples)
