"""Criteria, compensation, tuning and recovery on a language model, at equal shares of the parameters that are not embeddings.

    python benchmarks/language_models.py run MODEL --data wikitext-2-test.raw.txt -o study --workers 12
    python benchmarks/language_models.py table study

An arm is a criterion and the way in which plans are made of it: as its authors do (`wanda-uniform`, `flap-global`, ...), or
by the budget of `prune --params` (`fisher`, `best`, ...). Each arm is a process that scores once, on blocks of 256 tokens of
every second document, and makes a plan for every share; an arm of which much is measured is a process for each share. What is
measured afterwards is what the arm names: the model as cut, with means in biases, tuned, refitted by least squares, or trained
for 200 steps; always its perplexity on the other documents, at lengths 1024 and 128, and with `--questions` its accuracy on
files of questions at the shares of `--asked-at`.
Every measurement is a file of the study, so that it goes on where it was. `table` needs no GPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import binomtest

import headcount as hc
from headcount.model.anatomy import Anatomy
from headcount.model.cutting.effects import parameters_removed
from headcount.plans import Plan, Unit
from headcount.stats.paired_tests import holm

LENGTHS = (1024, 128)
SHARES = (10, 20, 30, 40, 50)
BLOCKS = 512  # of 256 tokens, to score and to tune on
TUNED_ON = 128  # of them
STEPS, STEP_BLOCKS, STEP_LENGTH = 200, 16, 512  # of recovery
LONG = 4  # measurements of an arm at each share from which every share is a process
PROTECTED = (4, 2)  # blocks at the bottom and the top that LLM-Pruner leaves alone, of 32


class Arm(NamedTuple):
    """How a plan is made, and what is done to the model that is cut by it."""

    by: str
    plans: str  # uniform, uniform-middle, global: as the authors; params: the budget of `prune`
    units: str = "heads,neurons"
    after: tuple[str, ...] = ("cut",)  # at every share
    also: tuple[str, ...] = ()  # at the shares of --asked-at

    def ways(self, asked: bool) -> tuple[str, ...]:
        """What is done at a share."""
        return (*self.after, *self.also) if asked else self.after


ARMS_ASKED = ("cut", "mean", "mean+lstsq", "mean+lstsq-recover", "recover")  # after these, questions are asked as well
ARMS = {
    # by the budget of `prune --params`
    "fisher": Arm(
        "fisher", "params", after=("cut", "mean", "mean+lstsq", "mean+lstsq-recover"), also=("tune", "lstsq", "recover")
    ),
    # as their authors use them
    "flap-global": Arm("flap", "global", after=("cut", "mean"), also=("mean+lstsq", "recover")),
    "wanda-uniform": Arm("wanda", "uniform", also=("mean", "mean+lstsq", "recover")),
    "taylor-middle": Arm("taylor", "uniform-middle", also=("mean+lstsq", "recover")),
    "activation-uniform": Arm("activation", "uniform", also=("mean+lstsq", "recover")),
    "block-influence": Arm("block-influence", "global", "layers", also=("recover",)),
    "random-uniform": Arm("random", "uniform", also=("mean+lstsq", "recover")),
    # by the budget again
    "best": Arm("", "params"),
    "wanda": Arm("wanda", "params", also=("mean",)),
    "flap": Arm("flap", "params", also=("mean",)),
    "activation": Arm("activation", "params", also=("mean",)),
    "taylor": Arm("taylor", "params", also=("mean", "tune")),
    # one kind of unit alone
    "neurons": Arm("fisher", "params", "neurons", also=("mean+lstsq",)),
    "kv-groups+neurons": Arm("fisher", "params", "kv-groups,neurons", also=("mean+lstsq",)),
    "heads": Arm("fisher", "params", "heads"),
    "kv-groups": Arm("fisher", "params", "kv-groups"),
    "layers": Arm("fisher", "params", "layers"),
}


# -- plans as the authors make them -----------------------------------------------------------------------------------------


def uniform(anatomy: Anatomy, scores: Any, share: float, sites: Sequence[str]) -> Plan:
    """The same share of the units of every site: those with the lowest scores there."""
    units = list[Unit]()
    for name in sites:
        site = anatomy[name]
        order = sorted((Unit(name, number) for number in site.ids), key=lambda unit: scores[unit])
        units += order[: min(round(share * len(order)), len(order) - 1)]
    return Plan(frozenset(units))


def as_published(model: Any, scores: Any, arm: Arm, remove: int) -> Plan:
    """The smallest plan of this form that removes so many parameters."""
    anatomy = hc.find(model)
    if arm.plans == "global":  # one order over all sites (FLAP's scores are standardised for it), or over the layers
        order = scores.order()
        most = len(order) - (arm.units == "layers")  # one layer stays
        return smallest(most, lambda count: Plan(frozenset(order[:count])), model, remove)
    sites = [site.name for site in anatomy.sites]
    if arm.plans == "uniform-middle":
        blocks = len(anatomy.stacks[0])
        low, high = (round(count * blocks / 32) for count in PROTECTED)
        sites = [name for name in sites if low <= int(name.split(".")[0]) < blocks - high]
    return smallest(1000, lambda count: uniform(anatomy, scores, count / 1000, sites), model, remove)


def smallest(most: int, plan: Callable[[int], Plan], model: Any, remove: int) -> Plan:
    """The first plan of a growing row that removes so many parameters."""
    low, high = 0, most
    if parameters_removed(model, plan(most)) < remove:
        raise ValueError("even the last plan removes less")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if parameters_removed(model, plan(middle)) >= remove else (middle, high)
    return plan(high)


# -- texts and questions --------------------------------------------------------------------------------------------------------


def halves(path: Path, folder: Path) -> tuple[Path, Path]:
    """Two files in the folder: every second document, to score and to train on, and the others, to report on."""
    places = (folder / "score.txt", folder / "report.txt")
    text = path.read_text(encoding="utf-8")
    starts = [match.start() for match in re.finditer(r"^ = [^=].*? = $", text, re.MULTILINE)]
    documents = [text[start:end] for start, end in pairwise([*starts, len(text)])]
    for place, half in zip(places, (documents[::2], documents[1::2]), strict=True):
        if not place.exists():
            write_text(place, "".join(half))
    return places


class Texts(NamedTuple):
    """All that an arm reads: what it is scored on, trained on and measured on."""

    scoring: Any
    tuning: Any
    lessons: Any
    blocks: dict[str, Any]  # by their length
    questions: dict[str, Any]  # by the name of their file


def texts_of(args: argparse.Namespace) -> Texts:
    """The tasks, made once per process: texts take seconds to encode."""
    text = partial(hc.task, "language-modelling", tokenizer=args.tokenizer or args.model, metric="perplexity")
    scored_on, reported_on = halves(Path(args.data), Path(args.output))
    scoring = text(str(scored_on), max_length=256, batch_size=16)
    scoring = scoring.subset(spread(scoring.size, args.blocks))
    report = partial(text, str(reported_on))
    blocks = {str(length): report(max_length=length, batch_size=args.tokens // length) for length in LENGTHS}
    if args.limit:
        count = {length: args.limit * max(LENGTHS) // int(length) for length in blocks}
        blocks = {length: task.subset(spread(task.size, count[length])) for length, task in blocks.items()}
    questions = {}
    for path in filter(None, args.questions.split(",")):
        kind = "last-word" if "lambada" in path else "multiple-choice"
        metric = "accuracy" if kind == "last-word" else "accuracy-norm"
        task = hc.task(kind, path, tokenizer=args.tokenizer or args.model, metric=metric, batch_size=32)
        questions[Path(path).stem] = task.subset(spread(task.size, args.asked))
    lessons = text(str(scored_on), max_length=STEP_LENGTH)
    return Texts(scoring, scoring.subset(spread(scoring.size, TUNED_ON)), lessons, blocks, questions)


# -- one arm ------------------------------------------------------------------------------------------------------------------


def do_arm(name: str, args: argparse.Namespace) -> None:
    """Make a plan for every share, and measure what the arm names."""
    arm, folder = ARMS[name], Path(args.output) / name
    model, texts = loaded(args), texts_of(args)
    tables = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    embeddings = sum(table.numel() for table in set(tables))  # one, where they are tied
    total = sum(parameter.numel() for parameter in model.parameters())
    scores = None
    shares = "-".join(map(str, args.shares))
    with hc.runs.Run.open(folder / f"run-{shares}", {"arm": name, "model": args.model, "blocks": args.blocks}) as run:
        for share in args.shares:
            ways = [
                after for after in arm.ways(share in args.asked_at) if not args.ways or after in args.ways.split(",")
            ]
            wanted = [after for after in ways if not (folder / f"{share}-{after}.json").exists()]
            if not wanted:
                continue
            remove, start = int(share / 100 * (total - embeddings)), time.perf_counter()
            if arm.plans == "params":
                how = {"params": f"{100 * (1 - remove / total)}%", "by": arm.by or None, "multiple": 16, "length": 256}
                try:
                    plan = hc.pruning.choose(
                        model, score=texts.scoring, units=arm.units, brake=None, **how, run=run
                    ).plan
                except hc.errors.HeadcountError as error:  # heads alone are not so many
                    print(f"{name} {share} %: {error}", flush=True)
                    continue
            else:
                scores = scores or hc.score(model, texts.scoring, arm.by, units=arm.units, normalize=None, run=run)
                plan = as_published(model, scores, arm, remove)
            planned = time.perf_counter() - start
            for after in wanted:
                start = time.perf_counter()
                smaller = changed(model, plan, after, arm, args, texts, run)
                row = {"arm": name, "share": share, "after": after, "removed": parameters_removed(model, plan)}
                row |= {"of": total - embeddings, "units": len(plan), "planned_in": planned}
                row |= {"made_in": time.perf_counter() - start, "plan": plan.to_json()}
                asked = share in args.asked_at and after in ARMS_ASKED
                row["rows"] = measured(smaller, texts, asked)
                write(folder / f"{share}-{after}.json", row)
                print(f"{name} {share} % {after}: {perplexity(row['rows']['1024']):.2f}", flush=True)


def loaded(args: argparse.Namespace) -> Any:
    """The model on the device, in float32; matrices of it multiply in TF32 on a GPU."""
    torch.set_float32_matmul_precision("high")
    return hc.load(args.model, dtype=torch.float32).to("cuda" if torch.cuda.is_available() else "cpu")


def changed(model: Any, plan: Plan, after: str, arm: Arm, args: argparse.Namespace, texts: Texts, run: Any) -> Any:
    """A copy of the model, cut by the plan, with what comes after it; what was fitted is read back from the run."""
    first, _, then = after.partition("-")
    smaller = copy.deepcopy(model)
    if first in ("cut", "recover"):
        hc.cut(smaller, plan)
    else:
        way = {"tune": True} if first == "tune" else {"compensate": first.replace("+", ",")}
        task = texts.tuning if first == "tune" else texts.scoring
        choice = hc.pruning.choose(model, plan=plan, score=task, units=arm.units, brake=None, run=run, **way)
        if choice.note:
            print(choice.note, flush=True)
        hc.cut(smaller, choice.plan, **choice.changes)
    if "recover" in (first, then):
        from headcount.training import Recipe, train

        recipe = Recipe(
            steps=args.steps, batch_size=STEP_BLOCKS, lr=args.lr, precision="bf16", distill=0.5, temperature=1.0
        )
        train(smaller, texts.lessons, recipe, teacher=model)
    return smaller.eval()


def measured(model: Any, texts: Texts, asked: bool) -> dict[str, list[list[float]]]:
    """The loss and the tokens of every block, at each length; and the values of every question."""
    tasks = texts.blocks | (texts.questions if asked else {})
    return {name: np.round(hc.evaluate(model, task).rows, 4).tolist() for name, task in tasks.items()}


def perplexity(rows: list[list[float]]) -> float:
    """e to the power of the mean loss per token."""
    losses, tokens = np.array(rows).sum(0)
    return float(np.exp(losses / tokens))


def spread(size: int, count: int) -> list[int]:
    """So many numbers, evenly from 0 to the size."""
    return [place * size // count for place in range(count)] if count < size else list(range(size))


def write(path: Path, values: Any) -> None:
    """JSON that is there whole or not at all."""
    write_text(path, json.dumps(values))


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


# -- the study ----------------------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> None:
    """Every arm in a process of its own, so many at a time; the whole model first, and long arms before short ones."""
    names = [name for name in args.arms.split(",") if name] if args.arms else list(ARMS)
    long = [name for name in names if len(ARMS[name].after) >= LONG]
    first, *others = sorted(args.shares, key=lambda share: share not in args.asked_at)  # those with questions begin
    jobs = [("whole", ""), *((name, str(first)) for name in long)]
    jobs += [(name, ",".join(map(str, (first, *others)))) for name in names if name not in long]
    jobs += [(name, str(share)) for share in others for name in long]
    start = time.perf_counter()

    def one_job(job: tuple[str, str]) -> tuple[str, Path, int]:
        name, shares = job
        words = [
            sys.executable,
            __file__,
            "run",
            *sys.argv[2:],
            "--only",
            name,
            *(["--shares", shares] if shares else []),
        ]
        place = Path(args.output) / f"{'-'.join([name, *shares.split(',')]).strip('-')}.log"
        with place.open("w", encoding="utf-8") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(words, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
        return f"{name} {shares}", place, done.returncode

    Path(args.output).mkdir(parents=True, exist_ok=True)
    halves(Path(args.data), Path(args.output))
    with ThreadPoolExecutor(args.workers) as pool:
        for name, place, code in pool.map(one_job, jobs):
            log = place.read_text(encoding="utf-8")
            lines = [line for line in log.splitlines() if "%" in line and ":" in line and "it/s" not in line]
            failure = "" if code == 0 else "FAILED: " + "\n".join(log.splitlines()[-5:])
            print(f"{time.perf_counter() - start:6.0f} s  {name} {failure}", *lines, sep="\n", flush=True)


def whole(args: argparse.Namespace) -> None:
    """Measure the whole model."""
    path = Path(args.output) / "whole.json"
    if not path.exists():
        texts = texts_of(args)
        groups = {length: list(task.clusters or range(task.size)) for length, task in texts.blocks.items()}
        write(path, {"rows": measured(loaded(args), texts, True), "groups": groups})


# -- what came out --------------------------------------------------------------------------------------------------------------


class Study(NamedTuple):
    """The measurements of a study: the whole model's rows, and those of each arm, by what came after the cut and share."""

    whole: dict[str, list[list[float]]]
    documents: np.ndarray  # of the blocks of 1024 tokens
    rows: dict[tuple[str, str, int], dict[str, list[list[float]]]]

    @classmethod
    def read(cls, folder: Path) -> Study:
        """What a folder holds."""
        rows = {}
        for path in sorted(folder.glob("*/*.json")):
            if path.parent.name in ARMS and path.stem.split("-")[0].isdigit():
                row = json.loads(path.read_text(encoding="utf-8"))
                rows[row["arm"], row["after"], row["share"]] = row["rows"]
        base = json.loads((folder / "whole.json").read_text(encoding="utf-8"))
        return cls(base["rows"], np.unique(base["groups"]["1024"], return_inverse=True)[1], rows)

    @property
    def shares(self) -> list[int]:
        return sorted({share for *_, share in self.rows})

    @property
    def ways(self) -> list[tuple[str, str]]:
        return [(name, after) for name, arm in ARMS.items() for after in arm.ways(asked=True)]


def table(folder: Path) -> None:
    """Perplexities of all arms, accuracies of some, and what ours are worth against each published one."""
    study = Study.read(folder)
    for length in map(str, LENGTHS):
        print(f"\nPerplexity at length {length}; whole model {perplexity(study.whole[length]):.2f}\n")
        print("| arm | after | " + " | ".join(f"{share} %" for share in study.shares) + " |")
        print("|---" * (len(study.shares) + 2) + "|")
        for arm, after in study.ways:
            cells = [study.rows.get((arm, after, share)) for share in study.shares]
            if any(cells):
                values = ["" if cell is None else f"{perplexity(cell[length]):.1f}" for cell in cells]
                print(f"| {arm} | {after} | " + " | ".join(values) + " |")
    for share in study.shares:
        print(*questions(study, share), sep="\n")
        for ours, theirs in (("mean+lstsq", PUBLISHED), ("mean+lstsq-recover", TRAINED)):
            print(*answers_against(study, share, ("fisher", ours), theirs), sep="\n")
        print(*against(study, share), sep="\n")


def questions(study: Study, share: int) -> Iterator[str]:
    """Shares of questions answered rightly, and how many more or fewer than by the whole model (paired bootstrap)."""
    names = [name for name in study.whole if not name.isdigit()]
    asked = [way for way in study.ways if (rows := study.rows.get((*way, share))) and names and names[0] in rows]
    if asked:
        right = [f"{correct(study.whole[name]).mean():.1f}" for name in names]
        yield f"\nQuestions at {share} %\n\n| arm | after | {' | '.join(names)} |\n" + "|---" * (len(names) + 2) + "|"
        yield f"| whole model | | {' | '.join(right)} |"
    for arm, after in asked:
        rows = study.rows[arm, after, share]
        cells = [answered(rows[name], study.whole[name]) for name in names]
        yield f"| {arm} | {after} | {' | '.join(cells)} |"


def correct(rows: list[list[float]]) -> np.ndarray:
    """Points of every question: 100 where the answer is right."""
    label, prediction = np.array(rows)[:, :2].T
    return 100.0 * (label == prediction)


def answered(rows: list[list[float]], whole: list[list[float]], resamples: int = 2000) -> str:
    """Points, and the difference to the whole model with its 95 % interval."""
    right, before = correct(rows), correct(whole)
    drawn = np.random.default_rng(0).integers(len(right), size=(resamples, len(right)))
    low, high = np.percentile((right - before)[drawn].mean(1), [2.5, 97.5])
    return f"{right.mean():.1f} ({(right - before).mean():+.1f} [{low:+.1f}, {high:+.1f}])"


def answers_against(
    study: Study, share: int, ours: tuple[str, str], others: Sequence[tuple[str, str]], resamples: int = 2000
) -> Iterator[str]:
    """Points that ours has more than each published one, file by file: interval, sign test, and p by Holm over all of these."""
    mine, found = study.rows.get((*ours, share), {}), list[tuple[float, str]]()
    for theirs, name in product(others, [name for name in mine if not name.isdigit()]):
        rows = study.rows.get((*theirs, share), {}).get(name)
        if rows is None:
            continue
        gaps = correct(mine[name]) - correct(rows)
        drawn = np.random.default_rng(0).integers(len(gaps), size=(resamples, len(gaps)))
        low, high = np.percentile(gaps[drawn].mean(1), [2.5, 97.5])
        wins, losses = int((gaps > 0).sum()), int((gaps < 0).sum())
        p = float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
        words = f"{name}: {' '.join(ours)} - {' '.join(theirs)}: {gaps.mean():+.1f} [{low:+.1f}, {high:+.1f}]"
        found.append((p, words))
    for (p, words), corrected in zip(found, holm([p for p, _ in found]), strict=True):
        if p < 0.05:
            yield f"{share} %, {words}, p = {p:.4f}, by Holm over {len(found)}: {corrected:.4f}"


PUBLISHED = (
    ("flap-global", "mean"),
    ("wanda-uniform", "cut"),
    ("activation-uniform", "cut"),
    ("taylor-middle", "cut"),
    ("block-influence", "cut"),
    ("random-uniform", "cut"),
)  # without training; and after 200 steps
TRAINED = tuple((name, "recover") for name, _ in PUBLISHED)


def against(study: Study, share: int) -> Iterator[str]:
    """Our ways against each published one, document by document: the ratio of perplexities with its interval."""
    for ours in [("best", "cut"), *(("fisher", after) for after in ARMS["fisher"].after)]:
        mine = study.rows.get((*ours, share))
        if mine is None:
            continue
        low, middle, high = ratio(mine["1024"], study.whole["1024"], study.documents)
        yield f"{share} %: {' '.join(ours)} / whole model: {middle:.3f} [{low:.3f}, {high:.3f}]"
        for theirs in TRAINED if "recover" in ours[1] else PUBLISHED:
            other = study.rows.get((*theirs, share))
            if other:
                low, middle, high = ratio(mine["1024"], other["1024"], study.documents)
                yield f"{share} %: {' '.join(ours)} / {' '.join(theirs)}: {middle:.3f} [{low:.3f}, {high:.3f}]"


def ratio(
    ours: list[list[float]], theirs: list[list[float]], documents: np.ndarray, resamples: int = 2000
) -> tuple[float, float, float]:
    """The ratio of two perplexities of the same blocks, with its 95 % interval (paired bootstrap over documents)."""
    mine, other = np.array(ours), np.array(theirs)
    if not np.array_equal(mine[:, 1], other[:, 1]):
        raise ValueError("the blocks are not the same")
    gaps, tokens = np.bincount(documents, mine[:, 0] - other[:, 0]), np.bincount(documents, mine[:, 1])
    drawn = np.random.default_rng(0).integers(len(gaps), size=(resamples, len(gaps)))
    means = gaps[drawn].sum(1) / tokens[drawn].sum(1)
    low, high = np.exp(np.percentile(means, [2.5, 97.5]))
    return float(low), float(np.exp(gaps.sum() / tokens.sum())), float(high)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("model")
    running.add_argument("--tokenizer", help="where it is not beside the model")
    running.add_argument("--data", required=True, help="a text with headings such as WikiText's")
    running.add_argument("--questions", default="", help="files, separated by commas; lambada: the last word")
    running.add_argument("--asked", type=int, default=1000, help="questions of each file")
    running.add_argument("--asked-at", default="20", help="shares at which questions are asked")
    running.add_argument("-o", "--output", required=True)
    running.add_argument("--shares", default=",".join(map(str, SHARES)))
    running.add_argument("--arms", default="")
    running.add_argument("--ways", default="", help="of those that an arm names, only these: cut, mean, lstsq, ...")
    running.add_argument("--workers", type=int, default=1)
    running.add_argument("--blocks", type=int, default=BLOCKS, help="of 256 tokens, to score on")
    running.add_argument(
        "--limit", type=int, help="tokens to report on at each length, in blocks of the longest; default: all"
    )
    running.add_argument("--tokens", type=int, default=8192, help="of a batch")
    running.add_argument("--lr", type=float, default=1e-4, help="of recovery")
    running.add_argument("--steps", type=int, default=STEPS, help="of recovery")
    running.add_argument("--only", help=argparse.SUPPRESS)
    commands.add_parser("table").add_argument("folder", type=Path)
    args = parser.parse_args()
    if args.command == "table":
        table(args.folder)
        return
    args.shares, args.asked_at = ([int(share) for share in text.split(",")] for text in (args.shares, args.asked_at))
    if args.only == "whole":
        whole(args)
    elif args.only:
        do_arm(args.only, args)
    else:
        run(args)


if __name__ == "__main__":
    main()
