"""`save_pruned`: what was chosen, cut for real, perhaps trained once more, saved, loaded again and measured again."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import notebook
from ..data.losses import asked_tokens
from ..data.seen_examples import short, to_note
from ..data.splits import marks, without
from ..documents.prune import (
    CutSite,
    GuaranteeDocument,
    How,
    LeftAlone,
    PruneDocument,
    Recovery,
    SiteLeft,
    StackLeft,
)
from ..documents.reading import read
from ..documents.results import ResultDocument
from ..efficiency.benchmark import Bench, bench
from ..efficiency.costs import homes, operations_of_both
from ..efficiency.kv_cache import cache_sizes
from ..errors import BadData, CheckFailed
from ..evaluation.evaluator import device_of, evaluate, measure, result_of, to_device
from ..exports.several import NONE, Exports
from ..formatting import bytes_text, flops_text
from ..hashing import versions
from ..model.architectures import ModuleSpec
from ..model.checkpoints import load, weight_files, write_into
from ..model.cutting.effects import CutEffect, cut_effects
from ..model.cutting.surgery import cut
from ..model.discovery import find, unwrap
from ..model.equivalence import differs
from ..model.equivalence import run as outputs
from ..model.gates import masked
from ..model.loading.number_formats import remember_format, stored_format
from ..model.model_folders import appears_whole, disk_errors, may_be_written
from ..model.portable import stock_differences
from ..model_files import ADAPTER, model_files
from ..plans import Plan
from ..progress import Bar
from ..reporting.model_card import card
from ..reporting.model_warnings import of_results
from ..stats.constant_answer import entropy
from ..stats.guarantee import cap_in_words, unit_of
from ..stats.metrics import TOKENS
from ..stats.results import Comparison, Result, compare
from .choices import Choice
from .plan_tests import defined, format_of, known_before, mark
from .selection import usual_length

if TYPE_CHECKING:
    from ..data.tasks import Task
    from ..runs import Run

ADVICE = ": what was measured is kept"  # when a disk is full


@dataclass(frozen=True, eq=False)
class Pruned:
    """A smaller checkpoint: what was chosen, and the model before and after; `after` is the checkpoint, loaded again."""

    choice: Choice
    before: Result
    after: Result
    comparison: Comparison
    parameters: tuple[int, int]
    bytes: tuple[int, int]
    speed: Bench | None
    cut_effects: tuple[CutEffect, ...]
    output: Path | None  # None where the smaller model was not to be kept in a folder
    flops: tuple[int, int] | None = None  # of one pass of one example of the usual length, two per multiply-add
    recovered: dict[str, Any] | None = None  # how it was trained once more, and what it was worth before that
    suspicion: str = ""  # that the model knew the examples which the guarantee was shown on, if it looks so
    constant: float | None = None  # what a constant answer is worth, where the rows do not tell: losses over tokens
    model: Any = None  # the smaller model, as it was loaded again
    examples: tuple[str, ...] = ()  # which examples were used for what, a line for each use
    kv_cache: tuple[int, int] | None = None  # bytes per token of a decoder, as measured
    exports: Exports = NONE  # what it was exported to, and what it could not be

    @property
    def documents(self) -> tuple[ResultDocument, ResultDocument]:
        """The model before and after, without the values of examples."""
        both = (ResultDocument.of(self.before), ResultDocument.of(self.after))
        before, after = (
            replace(one, constant=one.constant if self.constant is None else self.constant) for one in both
        )
        return before, after

    def rows(self) -> list[tuple[str, str, str, str]]:
        """What it came to: a line for each thing that was measured, before and after."""
        (had, has), (took, takes), metric = self.parameters, self.bytes, self.before.metric.name
        values = [f"{result.value:.{3 if abs(self.before.value) < 10 else 1}f}" for result in (self.before, self.after)]
        rows = [(metric, values[0], values[1], str(self.comparison))]
        rows.append(("parameters", f"{had:,}", f"{has:,}", f"{has / max(1, had) - 1:+.1%}"))
        rows.append(("on disk", bytes_text(took), bytes_text(takes), f"{takes / max(1, took) - 1:+.1%}"))
        if self.flops is not None:
            counted, left = self.flops
            rows.append(("FLOPs", flops_text(counted), flops_text(left), f"{left / max(1, counted) - 1:+.1%}"))
        if self.kv_cache is not None:
            took, takes = self.kv_cache
            rows.append(("KV cache", f"{took:,} B/token", f"{takes:,} B/token", f"{takes / max(1, took) - 1:+.1%}"))
        return rows

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}} -> {c:>{widths[2]}}  {d}" for a, b, c, d in rows]
        speed = [] if self.speed is None else self.speed.sentences()
        about = [*speed, *self.examples, self._where(), *self.exports.lines()]
        return "\n".join([sentence(self), *of_results(*self.documents), *lines, *about])

    def _where(self) -> str:
        where = "not kept in a folder" if self.output is None else f"in {self.output}"
        return f"the smaller model is {where}, and .model here"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        speed = [] if self.speed is None else self.speed.sentences()
        texts = [*of_results(*self.documents), *speed, *self.examples, self._where(), *self.exports.lines()]
        table = notebook.table(["", "before", "after", ""], self.rows())
        return notebook.block(notebook.line(sentence(self), bold=True), table, *map(notebook.line, texts))


def save_pruned(
    model: nn.Module,
    output: str | Path,
    report: Task,
    choice: Choice,
    *,
    source: str | Path | None = None,
    force: bool = False,
    trust_remote_code: bool = False,
    batch_size: int = 16,
    length: int | None = None,
    seed: int = 0,
    run: Run | None = None,
    specs: Iterable[ModuleSpec] = (),
    plan_file: dict[str, Any] | None = None,
    about: dict[str, Any] | None = None,
    page: Callable[[Path], None] | None = None,
    recover: Callable[[nn.Module], dict[str, Any]] | None = None,
) -> Pruned:
    """Cut what was chosen, save it to a folder, load it again and measure it on `report`; the model is as it was.

    `source` is the folder or hub name that the model came from: the checkpoint is cut from the weights as they are
    there, and tokenizer and processor come along. What is loaded again must compute what the model computes with the
    same units masked, or there is a `CheckFailed`. The folder appears whole or not at all: with its weights, the plan,
    a model card, and what `page` writes into it. `about` are facts for the card: the command, the data sets; `plan_file`
    is what plan.json says, if it says more than the plan. `recover` trains the smaller model in place before it is saved
    and gives facts about that for the card (`epochs`, `examples`, `steps`, `distilled`, each if known); what is loaded
    again must then compute what the trained model computes. The checkpoint is in the number format of the source; a model
    that was tuned under a guarantee is in the one that it was tested for (`choose(dtype=...)`).

    Args:
        model: The model; it is as it was afterwards.
        output: The folder to write.
        report: Data to report on, which nothing else has used.
        choice: What to remove, from `hc.pruning.choose`.
        source: The folder or hub name that the model came from.
        force: Replace the output folder if it exists.
        trust_remote_code: Whether code that comes with the model may run.
        batch_size: Examples per forward pass, also when speed is measured.
        length: Sequence length at which speed is measured.
        seed: Random seed.
        run: A run folder (`headcount.runs.Run`), in which results are kept as they come and found again.
        specs: Names of the modules of an architecture that headcount does not know (`hc.model.ModuleSpec`).
        plan_file: What plan.json says, if more than the plan.
        about: Facts for the model card.
        page: Writes a report into the folder.
        recover: Trains the cut model in place before it is saved.

    Returns:
        Results before and after, their comparison, and what was saved.

    Examples:
        >>> model = hc.load("my-model")
        >>> report = hc.task("classification", "dev.tsv", tokenizer="my-model", limit=64)
        >>> scored = hc.task("classification", "train.tsv", tokenizer="my-model", limit=64)
        >>> choice = hc.pruning.choose(model, remove="25%", score=scored)
        >>> pruned = hc.pruning.save_pruned(model, "smaller", report, choice, source="my-model")
        >>> len(hc.removed(hc.load("smaller")))
        12
    """
    rows, target = tuple(specs), Path(output)
    origin = None if source is None else Path(source)
    keep = [] if origin is None else [origin]
    may_be_written(target, force, keep, origin)
    report, left_out = _unused(report, choice)
    device = device_of(unwrap(model))
    before = evaluate(model, report, run=run)
    defined(before, report)
    batch = to_device(report.batch(), device)
    with masked(model, choice.plan, fill=choice.fill, specs=rows):
        want = outputs(model, batch)
    cost = tuple(cut_effects(model, choice.plan, specs=rows))
    dtype = format_of(model)
    changed, facts = None, None
    if choice.changes or recover is not None:  # other numbers than the source's: made and proved here
        changed = copy.deepcopy(model)
        cut(changed, choice.plan, check=batch, specs=rows, **choice.changes)
    if changed is not None and recover is not None:
        as_cut = measure(changed, report, [Plan()], run=run, name=f"as-cut-{mark(choice.plan)}")[0]
        facts = {"before": report.metric.value(as_cut), **recover(changed)}
    with appears_whole(target, force, keep, origin) as draft:
        # what was shown holds for these very numbers
        tested = None if choice.guarantee is None else choice.dtype or dtype
        with Bar("cutting and saving"):
            took, stock = _write(model, choice.plan, draft, source, trust_remote_code, rows, changed, tested)
        if changed is not None:  # what was written may have fewer digits than what was tuned or trained
            _read_back(changed, draft)
            want = outputs(changed, batch)
        with Bar("loading what was saved"):
            smaller = load(draft, dtype=dtype, trust_remote_code=trust_remote_code).to(device)
        remember_format(smaller, draft)
        if difference := differs(want, outputs(smaller, batch)):
            variant = "masked" if changed is None else "tuned" if recover is None else "trained"
            raise CheckFailed(
                f"The checkpoint, loaded again, differs from the {variant} model by {difference}; not kept."
            )
        after = result_of(report, evaluate(smaller, report).rows, before.signature + "|cut")
        pair = {"whole": model, "smaller": smaller}
        result = Pruned(
            choice,
            before,
            after,
            compare(before, after, seed=seed),
            (_parameters(model), _parameters(smaller)),
            (_on_disk(source) or took, _on_disk(draft)),
            bench(pair, batch_sizes=(batch_size,), lengths=(length or usual_length(report),), seconds=10.0, seed=seed),
            cost,
            target,
            operations_of_both(model, smaller, length or usual_length(report)),
            facts,
            "" if choice.selected is None else known_before(choice.selected, before, seed),
            _constant_loss(report),
            smaller,
            kv_cache=cache_sizes(model, smaller),
        )
        facts_of = {"task": report.kind, "stock": stock, "base_card": _old_card(source), "sets_note": left_out or None}
        facts_of.update(about or {})
        document = document_of(result, model, facts_of)
        marks_by_role = {"choose": choice.used, "report": marks(report)}
        plan = {
            **choice.plan.to_json(),
            "seen": to_note({role: frozenset(map(short, some)) for role, some in marks_by_role.items()}),
        }
        _write_documents(draft, plan_file or plan, document, run, page)
    return result


def _unused(report: Task, choice: Choice) -> tuple[Task, str]:
    """The examples to report on that had no part in the choice, which is made; and a sentence about all that was left out."""
    unused = without(report, choice.used)
    if unused is None:
        raise BadData(
            f"All {report.size} examples to report on had a part in choosing; never choose and report on the same ones: "
            "split them, or give others."
        )
    count, notes = report.size - unused.size, [choice.left_out]
    if count:
        notes.append(f"{count} examples of {report.name} to report on were left out, having had a part in the choice")
    return unused, "; ".join(note for note in notes if note)


def number_format(source: str | Path, *, trust_remote_code: bool = False) -> torch.dtype:
    """The number format that the weights of a checkpoint are in: `choose(dtype=...)` for what will be saved like it."""
    return format_of(load(source, dtype="auto", trust_remote_code=trust_remote_code))


def document_of(result: Pruned, model: nn.Module, about: dict[str, Any]) -> PruneDocument:
    """All that a card and a report need, without the values of examples; `about` are more fields of it."""
    choice, root = result.choice, unwrap(model)
    sites, stacks = structure(model, choice.plan)
    before, after = result.documents
    document = PruneDocument(
        how=How(*choice.how),
        sentence=sentence(result),
        model=str(getattr(getattr(root, "config", None), "name_or_path", "") or type(root).__name__),
        class_name=type(root).__name__,
        by=choice.scores.by if choice.scores is not None else None,
        units=choice.units,
        guarantee=None if choice.guarantee is None else GuaranteeDocument.of(choice.guarantee),
        order=tuple(str(unit) for unit in choice.order[:10_000]),
        plan=choice.plan,
        removed=len(choice.plan),
        of=choice.of,
        left_alone=tuple(LeftAlone(site, reason) for site, reason in choice.left_alone),
        before=before,
        after=after,
        comparison=result.comparison,
        parameters=result.parameters,
        bytes=result.bytes,
        speed=result.speed,
        flops=result.flops,
        kv_cache=result.kv_cache,
        steps=choice.told(),
        suspicion=result.suspicion or None,
        recovered=None if result.recovered is None else read(Recovery, result.recovered),
        structure=sites,
        layers=stacks,
        sites=tuple(CutSite(p.name, p.units, p.left, p.mode, p.parameters) for p in result.cut_effects),
        output="" if result.output is None else result.output.name,
        signature=result.before.signature,
        versions=versions(),
    )
    return replace(document, **about)


def structure(model: nn.Module, plan: Plan) -> tuple[tuple[SiteLeft, ...], tuple[StackLeft, ...]]:
    """What is left of every attention and MLP, and which layers are gone."""
    anatomy, removed_indices = find(model), plan.by_site()
    deleted = {name for name, home in homes(anatomy).items() if home in plan}
    sites = [
        SiteLeft(
            name=site.name,
            kind=site.kind,
            type=site.attention,
            layer=site.layer,
            units=len(site),
            left=0 if site.name in deleted else len(site) - len(removed_indices.get(site.name, ())),
        )
        for site in anatomy
    ]
    stacks = [StackLeft(stack.name, len(stack), removed_indices.get(stack.name, ())) for stack in anatomy.stacks]
    return tuple(sites), tuple(stacks)


def sentence(result: Pruned) -> str:
    """The answer in one sentence."""
    choice, metric = result.choice, result.before.metric
    units = choice.units.replace(",", " and ")
    removal_text = f"{len(choice.plan)} of {choice.of} {units} ({100 * len(choice.plan) / choice.of:.0f} %) are gone"
    if choice.budget is not None:
        removal_text += f" and {choice.budget}"
    held = choice.guarantee
    digits = 3 if abs(result.before.value) < 10 else 1  # an accuracy, a loss; a BLEU
    values = f"from {result.before.value:.{digits}f} to {result.after.value:.{digits}f} on {result.before.n} examples"
    if held is None:
        return f"{removal_text}: {metric.name} went {values}."
    sure = f"{100 * (1 - held.alpha):g} %"
    verb = "falls" if metric.higher_is_better else "rises"
    points = f" {unit_of(metric.name, held.drop)}" if unit_of(metric.name) == "points" else ""
    capped = cap_in_words(held.cap, metric.name, held.groups)
    promise = f"{metric.name} {verb} by less than {held.drop:g}{points}{capped}, {sure} sure"
    more = ", more than promised" if result.comparison.damage >= held.drop else ""
    attempt_text = choice.tried or (f"at level {held.alpha:g} / {held.tries}" if held.tries > 1 else "")
    evidence = f"shown on {held.n} examples{', ' * bool(attempt_text)}{attempt_text}"
    text = f"{removal_text}, and {promise} ({evidence}): it went {values} that had no part in it{more}."
    return f"{text} {result.suspicion}".rstrip()


def _constant_loss(task: Task) -> float | None:
    """The loss or perplexity of always guessing tokens as often as they occur; None where no tokens are guessed."""
    if task.metric.columns != TOKENS or not ("language" in task.kind or task.kind == "translation"):
        return None
    counts = torch.zeros(0, dtype=torch.long)
    for numbers in task.batches():
        own = asked_tokens(task.collate(numbers)).bincount(minlength=len(counts))
        own[: len(counts)] += counts
        counts = own
    loss = entropy(counts.numpy())
    return math.exp(loss) if task.metric.name == "perplexity" else loss


# -- writing -------------------------------------------------------------------------------------------------------------


def _write(
    model: nn.Module,
    plan: Plan,
    draft: Path,
    source: str | Path | None,
    trust: bool,
    rows: tuple[ModuleSpec, ...],
    changed: nn.Module | None,
    tested: torch.dtype | None,
) -> tuple[int, bool]:
    """Write the smaller checkpoint: the source, cut, or what has `changed` besides.

    It is in the number format of the source; changed numbers about which something was shown are in the one `tested`.
    Gives the bytes of the weights before the cut, and whether a stock `from_pretrained` reads what was written rightly.
    """
    saved_model = copy.deepcopy(model) if source is None else load(source, trust_remote_code=trust)
    stored = stored_format(saved_model)
    took = sum(p.numel() * (stored or p.dtype).itemsize for p in saved_model.parameters())
    if changed is None:
        cut(saved_model, plan, specs=rows)
    else:
        dtype = tested or stored or format_of(saved_model)
        saved_model = copy.deepcopy(changed)
        _rounded(saved_model, dtype)
    with disk_errors(draft.parent, ADVICE):
        write_into(saved_model, draft, source=source)
    root = unwrap(saved_model)
    return took, hasattr(root, "config") and not stock_differences(root, root.config)


def _rounded(model: nn.Module, dtype: torch.dtype) -> None:
    """Turn the parameters into another number format; buffers stay, because models make them anew."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def _read_back(model: nn.Module, folder: Path) -> None:
    """Give the model the numbers that were written, which may have fewer digits; what was not written stays as it is."""
    from safetensors.torch import load_file

    state = model.state_dict()
    with torch.no_grad():
        for path in weight_files(folder):
            for name, tensor in load_file(path).items():
                if name in state and state[name].shape == tensor.shape:
                    state[name].copy_(tensor)


def _old_card(source: str | Path | None) -> dict[str, Any] | None:
    """What stays true of the smaller model in the card of the whole one: its licence, language and data."""
    path = Path(source) / "README.md" if source is not None else None
    if path is None or not path.is_file():
        return None
    from huggingface_hub import metadata_load

    try:
        metadata = metadata_load(path) or {}
    except (ValueError, OSError):
        return None
    fields = {
        name: metadata[name]
        for name in ("license", "language", "datasets")
        if isinstance(metadata.get(name), str | list)
    }
    return fields or None


def _write_documents(
    draft: Path, plan: dict[str, Any], document: PruneDocument, run: Run | None, page: Callable[[Path], None] | None
) -> None:
    if run is not None:
        run.write_json("plan", plan, replace=True)
        run.write_json(document.NAME, document.to_json(), replace=True)
    with disk_errors(draft.parent, ADVICE):
        (draft / "plan.json").write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
        (draft / "README.md").write_text(card(document), encoding="utf-8")
        if page is not None:
            with Bar("drawing the report"):
                page(draft)


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _on_disk(source: str | Path | None) -> int:
    """The size of a checkpoint's weights, an adapter's among them; 0 if they are not in a folder here."""
    if source is None:
        return 0
    files = model_files(source)
    folders = [Path(place) for place in (files.folder, files.adapter) if place is not None]
    weights = [path for folder in folders for path in weight_files(folder)]
    if files.gguf is not None:
        weights = [path for path in files.fingerprinted() if path.name != ADAPTER]
    return sum(path.stat().st_size for path in weights)
