"""What becomes of an experiment that was run: its claims, kept in its run folder, and its page. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from ..documents.claims import FORMAT, ClaimsDocument, MaterialNames
from ..errors import HeadcountError
from ..reporting import page as report_page
from ..runs import RUN, Run, write_whole
from .experiment import RunDocuments, Setting
from .registry import Planned
from .runner import Outcome, Step
from .seeds import Collapsed

COMMANDS, PAGE = "commands.txt", "report.html"


def judged(
    planned: Sequence[Planned], setting: Setting, outcome: Outcome, runs: dict[str, Run], failed: Collapsed
) -> tuple[list[ClaimsDocument], list[str]]:
    """The claims of each experiment, as kept in its run folder; and sentences about those that cannot be judged."""
    documents, problems = [], []
    for plan in planned:
        run = runs[plan.experiment.name]
        write_whole(run.folder / COMMANDS, "".join(f"{step.text}\n" for step in plan.steps).encode())
        try:
            document = _claims(plan, RunDocuments(setting, failed.steps), failed)
        except HeadcountError as error:  # a document that is not what a command writes
            problems.append(f"{plan.experiment.name} cannot be judged: {error}")
            continue
        run.write_json(document.NAME, document.to_json(), replace=True)
        documents.append(document)
        if all(step.name in outcome.done for step in plan.steps):
            run.finish()
    return documents, problems


def _claims(planned: Planned, results: RunDocuments, failed: Collapsed) -> ClaimsDocument:
    """The statements of the paper beside what the runs show, as far as they are there and say something."""
    experiment, setting = planned.experiment, results.setting
    missed = [failed.told[step.name] for step in planned.steps if step.name in failed.told]
    return ClaimsDocument(
        format=FORMAT,
        experiment=experiment.name,
        paper=experiment.paper,
        shows=experiment.shows,
        asks=experiment.asks,
        material=MaterialNames(setting.material.name, setting.material.about),
        full=setting.full,
        seeds=tuple(setting.seeds),
        claims=tuple(experiment.claims(results)),
        sheets=tuple(experiment.sheets(results)),
        commands=tuple(step.text for step in planned.steps),
        left_out=(*planned.left_out, *missed),
    )


def shown(planned: Planned, setting: Setting, failed: Collapsed) -> list[str]:
    """The steps to show beside the statements: of one seed, and none that only prepares others or did not learn."""
    joined = {name for step in planned.steps if "--join" in step.words for name in step.after}
    models = str(Path(setting.model("x")).parent)
    names = [step.name for step in planned.steps if not any(word.startswith(models) for word in _written(step))]
    names = [name for name in names if name not in joined and name not in failed.steps]
    seeds = {str(seed) for seed in setting.seeds}
    first: dict[str, str] = {}
    for name in names:
        stem, _, end = name.rpartition("-")
        first.setdefault(stem if end in seeds else name, name)
    return list(first.values())


def _written(step: Step) -> list[str]:
    return [word for flag, word in pairwise(step.words) if flag in ("-o", "--output")]


def page(planned: Planned, setting: Setting, failed: Collapsed) -> str:
    """Write the page of an experiment; a sentence that says where it is, or why there is none."""
    folder = setting.folder / planned.experiment.name
    runs = [Path(setting.run(name)) for name in shown(planned, setting, failed)]
    existing_runs = [run for run in runs if (run / RUN).is_file()]
    try:
        try:
            return f"page: {report_page.report([folder, *existing_runs], folder / PAGE, force=True)}"
        except HeadcountError as error:  # too much for one page, or a run that it cannot show
            alone = report_page.report([folder], folder / PAGE, force=True)
            return f"page: {alone}, without the runs ({error})"
    except HeadcountError as error:
        return f"There is no page: {error}"
    except ImportError as error:
        return f"There is no page, because {error.name} is not installed; the claims are in {folder / 'claims.json'}."
