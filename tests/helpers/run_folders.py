"""Run folders made by hand, as the commands write them: small, with numbers that are all different."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from headcount.documents.ablation import AblationDocument, AllButOneDocument, TransferDocument
from headcount.documents.bench import Bench
from headcount.documents.circuits.logit_attribution import AttributionDocument
from headcount.documents.circuits.named_heads import HeadsDocument
from headcount.documents.circuits.weights import CircuitsDocument
from headcount.documents.curves import CurvesDocument, OverDocument, TradeoffDocument
from headcount.documents.discovery.circuit import CircuitDocument
from headcount.documents.interventions.patch import PatchDocument
from headcount.documents.learned import LearnedDocument
from headcount.documents.lottery import LotteryDocument
from headcount.documents.prune import PruneDocument
from headcount.documents.reading import JsonDocument
from headcount.documents.results import ResultDocument
from headcount.documents.roles import RolesDocument
from headcount.documents.scores import Scores
from headcount.documents.training import TrainingDocument
from headcount.plans import Plan, Unit
from headcount.runs import Run
from headcount.stats.results import Comparison

Sites = Mapping[str, tuple[str, str | None, int]]  # name -> kind, type, units
CLASSIFIER: Sites = {"0": ("head", "encoder", 4), "1": ("head", "encoder", 3), "2": ("head", "encoder", 4)}  # ragged
TRANSLATOR: Sites = {
    "encoder.0": ("head", "encoder", 4),
    "encoder.1": ("head", "encoder", 4),
    "decoder.0": ("head", "decoder", 4),
    "decoder.0.cross": ("head", "cross", 4),
}


def _as(kind: type[JsonDocument], data: Mapping[str, Any]) -> dict[str, Any]:
    """A document as its class writes it; it has to be one."""
    return kind.from_json(json.loads(json.dumps(data))).to_json()


def units(sites: Sites) -> tuple[Unit, ...]:
    return tuple(Unit(name, index) for name, (_, _, count) in sites.items() for index in range(count))


def scores(sites: Sites = CLASSIFIER, by: str = "taylor", seed: int = 0, samples: int = 20) -> Scores:
    drawn = np.random.default_rng(seed)
    all_units = units(sites)
    rows = drawn.gamma(2.0, 1.0, (samples, len(all_units))) * drawn.gamma(2.0, 1.0, len(all_units))
    kinds, types = ({name: site[n] for name, site in sites.items()} for n in (0, 1))
    signature = f"by:{by}|model:tiny|data:dev.tsv#{seed:08x}|n:{samples}"
    return Scores(all_units, rows.mean(0), by, kinds, types, "layer", signature, rows)  # type: ignore[arg-type]


def scores_document(made: Scores) -> dict[str, Any]:
    return made.document(made.stability(resamples=10)).to_json()


def result(value: float, n: int = 200, metric: str = "accuracy") -> dict[str, Any]:
    span = {"low": value - 0.04, "high": value + 0.04}
    return _as(
        ResultDocument,
        {"metric": metric, "value": value, **span, "level": 0.95, "n": n, "signature": f"model:tiny|n:{n}"},
    )


def comparison(
    before: float, after: float, p: float = 0.2, p_holm: float | None = None, **other: Any
) -> dict[str, Any]:
    difference, loss = after - before, other.get("metric") == "loss"
    made = Comparison(
        metric=other.get("metric", "accuracy"),
        before=before,
        after=after,
        difference=difference,
        low=difference - (0.0021 if loss else 0.021),
        high=difference + (0.0021 if loss else 0.021),
        level=0.95,
        p=p,
        test="randomization",
        n=other.get("n", 200),
        higher_is_better=not loss,
        points=1.0 if loss else 100.0,
        p_holm=p_holm,
        p_bh=p_holm,
    )
    return made.to_json()


def ablation(names: Sequence[str], base: float = 0.9, seed: int = 1, metric: str = "accuracy") -> dict[str, Any]:
    """The second unit hurts beyond chance (accuracy), the third helps; the others do nothing that can be shown."""
    drawn = np.random.default_rng(seed).normal(0, 0.004, len(names)).round(6)
    rows = []
    for n, (name, wobble) in enumerate(zip(names, drawn.tolist(), strict=True)):
        after, p, holm = base + wobble, 0.3 + n / 1000, 1.0
        if n in (1, 2):
            after, p, holm = base + (-0.123 if n == 1 else 0.034), 0.00012, 0.0034 + n / 1000
        elif n == 3:  # would be called significant if it were the only one
            after, p, holm = base - 0.012, 0.02, 0.22
        rows.append({"closed": name, **comparison(base, after, p, holm, metric=metric)})
    return _as(AblationDocument, {"base": result(base, metric=metric), "test": "randomization", "ablations": rows})


def patching(
    shape: tuple[int, int] = (2, 3), units: str = "residual", direction: str = "denoising", seed: int = 1
) -> dict[str, Any]:
    """Layers x positions, or x heads, of which some lead far from no patch; the first is significant, the second is not."""
    drawn, base = np.random.default_rng(seed).normal(0, 0.15, shape), 0.0 if direction == "denoising" else 1.0
    rows = []
    for layer, place in np.ndindex(*shape):
        value = (
            base + (0.9 if direction == "denoising" else -0.9) * ((layer + place) % 5 == 0) + float(drawn[layer, place])
        )
        places = {"site": "layers", "layer": layer, "position": str(place - shape[1])}
        where = places if units == "residual" else {"site": str(layer)}
        name = f"layers:{layer}@{place - shape[1]}" if units == "residual" else f"{layer}:{place}"
        numbers = {"normalised": value, "normalised_low": value - 0.1, "normalised_high": value + 0.1}
        tested = comparison(
            -2.0, -2.0 + 5 * value, 0.001, 0.01 if (layer + place) % 5 == 0 else 1.0, metric="logit-difference"
        )
        rows.append({"patched": name, **where, **numbers, **tested})
    sides = {"clean": result(3.0, metric="logit-difference"), "corrupted": result(-2.0, metric="logit-difference")}
    head = {"direction": direction, "units": units, "at": "all", **sides, "test": "randomization"}
    return _as(PatchDocument, {**head, "patches": rows})


def _estimate(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1}


def circuit(layers: int = 2, heads: int = 3) -> dict[str, Any]:
    """Half of the units in a circuit whose faithfulness rises with its size, and edges that go up through it."""
    units = [
        name for layer in range(layers) for name in [*(f"{layer}:{head}" for head in range(heads)), f"{layer}.mlp"]
    ]
    size = len(units) // 2
    scored = [
        {"unit": unit, "score": 1.0 - 0.1 * rank, "stderr": 0.05, "rank": rank, "kept": rank <= size}
        for rank, unit in enumerate(units, 1)
    ]
    points = [
        {"kept": kept, "share": kept / len(units), "value": 3.0 * share, "faithfulness": _estimate(share)}
        | {"found": share, "random": share**3}
        for kept, share in ((0, 0.0), (size, 0.9), (len(units), 1.0))
    ]
    edges = [
        {
            "writer": one,
            "reader": f"{other}.q" if ":" in other else other,
            "units": [other],
            "score": 0.5,
            "stderr": 0.1,
        }
        for one, other in pairwise(["embeddings", "0:0", "0.mlp", "logits"])
    ]
    rest = {"0": "0-2", "0.mlp": "0-15"}
    ends = {"clean": result(3.0, metric="logit-difference"), "corrupted": result(-2.0, metric="logit-difference")}
    ends["nothing"] = result(0.0, metric="logit-difference")
    how = {"by": "eap-ig(5)", "ranked": "signed", "sets": "found on 4 examples of ioi, reported on 4 others of it"}
    areas = {"cpr": _estimate(0.7), "cmd": _estimate(0.3), "random_cpr": 0.3, "reach": 0.8, "size": size}
    plan = {"plan": {"format": 1, "remove": rest, "why": ""}, "units": scored, "edges": edges, "of_edges": 40}
    edges[0] |= {"exact": 0.45, "kept": True}
    areas["edge_circuit"] = {
        "points": [{**point, "kept": kept} for point, kept in zip(points, (0, 4, 40), strict=True)],
        **{"cpr": _estimate(0.8), "cmd": _estimate(0.2), "random_cpr": 0.2, "size": 4, "of": 40},
    }
    return _as(CircuitDocument, {**how, "signature": "by:eap-ig", **ends, "points": points, **areas, **plan})


def named_heads(layers: int = 2, heads: int = 3, kinds: Sequence[str] = ("induction", "sink")) -> dict[str, Any]:
    """Of each kind the first head is named; more examples show more."""
    units = [f"{layer}:{head}" for layer in range(layers) for head in range(heads)]
    made = []
    for number, kind in enumerate(kinds):
        rows = []
        for place, unit in enumerate(units):
            mean = 0.7 if place == number else 0.05 + 0.01 * place
            numbers = {
                "mean": mean,
                "low": mean - 0.04,
                "high": mean + 0.04,
                "p": 0.001 * place,
                "p_holm": 0.006 * place,
            }
            rows.append({"unit": unit, **numbers, "named": place == number})
        steps = [{"examples": n, "half_width": 0.2 / n**0.5, "same": 1 - 1 / n, "overlap": 1.0} for n in (4, 16, 64)]
        about = {
            "score": f"attention of {kind} heads",
            "source": "Somebody 2022",
            "read": "64 prompts",
            "notes": ["Made up."],
        }
        numbers = {"examples": 64, "at_least": 0.4, "chance": 0.02, "enough": 16}
        made.append({"kind": kind, **about, **numbers, "heads": rows, "steps": steps})
    return _as(
        HeadsDocument, {"model": "LlamaForCausalLM", "kinds": made, "seed": 0, "notes": ["retrieval was left out"]}
    )


def attribution(layers: int = 2, heads: int = 3, seed: int = 1) -> dict[str, Any]:
    """Heads and MLPs that add to logits; the first one beyond chance, the second not after correction."""
    units = [unit for layer in range(layers) for unit in [*(f"{layer}:{n}" for n in range(heads)), f"{layer}.mlp"]]
    drawn = np.random.default_rng(seed).normal(0, 0.5, len(units)).round(6).tolist()
    rows = [
        {"component": unit, **comparison(0.0, added, 0.001, 0.004 if n == 0 else 0.3, metric="mean")}
        for n, (unit, added) in enumerate(zip(units, drawn, strict=True))
    ]
    others = [{"component": name, **comparison(0.0, 0.1, 0.2, metric="mean")} for name in ("embeddings", "biases")]
    about = {
        "logits": "right - wrong",
        "total": sum(drawn) + 0.2,
        "n": 24,
        "test": "t",
        "notes": ["the scale is frozen"],
    }
    return _as(AttributionDocument, {**about, "signature": "model:tiny", "units": rows, "others": others})


def weights(layers: int = 2, heads: int = 3) -> dict[str, Any]:
    """Heads of which one copies, and what it promotes; two compositions."""
    words = [{"token": 5 + n, "score": 2.0 - n, "text": text} for n, text in enumerate((" a", "<b>", ""))]
    writes = {"token": words[0], "promoted": words, "demoted": words[::-1], "rank": 1, "looks_at": words[:1]}
    found = [
        {
            "unit": f"{layer}:{head}",
            "copying": {"score": 0.9 if layer == head == 1 else -0.1 * head, "baseline": 0.0, "highest": 0.2}
            | {"permutations": 10, "own": 0.5, "chance": 0.01, "top": 10},
            "writes": [writes] if layer == head == 1 else [],
            "pairs": [{"query": words[0], "key": words[1], "score": 3.5}],
        }
        for layer, head in np.ndindex(layers, heads)
    ]
    composed = [
        {"writer": "0:1", "reader": "1:1", "kind": kind, "score": 0.4, "baseline": 0.1, "sd": 0.01, "above": 0.3}
        for kind in ("K", "V")
    ]
    about = {"model": "tiny", "pairs_of_heads": heads**2, "notes": ["positions are left out"]}
    return _as(CircuitsDocument, {**about, "heads": found, "compositions": composed})


def curves(order: Sequence[Unit], steps: Sequence[int], seeds: int = 2, by: str = "taylor") -> dict[str, Any]:
    made = [_curve(by, order, steps, 0.08)]
    for seed in range(seeds):
        shuffled = [order[n] for n in np.random.default_rng(seed).permutation(len(order))]
        made.append(_curve("random", shuffled, steps, 0.2 + 0.05 * seed))
    return _as(
        CurvesDocument, {"sets": "chosen on 100 examples of train.tsv, reported on 200 of dev.tsv", "curves": made}
    )


def _curve(by: str, order: Sequence[Unit], steps: Sequence[int], slope: float, base: float = 0.9) -> dict[str, Any]:
    points = []
    for removed in steps:
        value = base - slope * (removed / len(order)) ** 2
        plan = Plan(frozenset(order[:removed]), "least first").to_json()
        compared = comparison(base, value, 0.5 if removed else 1.0)
        points.append({"removed": removed, "plan": plan, "result": result(value), "comparison": compared})
    for point in points:
        point["result"]["signature"] = f"by:{by}|slope:{slope}|without:{point['removed']}"
    return {"by": by, "of": len(order), "signature": f"by:{by}", "points": points}


def learned(
    sites: Sites = CLASSIFIER, label: str = "subset", keep: int = 4, seed: int = 0, lost: float = 0.01, **other: Any
) -> dict[str, Any]:
    """A run of learned gates that keeps the first so many units of an order drawn by the seed, and loses so much."""
    all_units = units(sites)
    order = [all_units[n] for n in np.random.default_rng(seed).permutation(len(all_units))]
    plan, of = Plan(frozenset(order[keep:]), "learned"), len(all_units)
    history = [
        {
            "step": step,
            "epoch": step / 20,
            "loss": 1 / (1 + step),
            "lr": 0.001,
            "dev": 0.5 + step / 200 if step % 20 == 0 else None,
        }
        | {"open": of - (of - keep) * step / 40 - seed / 100}
        for step in range(0, 41, 5)
    ]
    return _as(
        LearnedDocument,
        {
            "label": label,
            "method": label.split(",")[0],
            "units": "heads",
            "keep": keep,
            "of": of,
            "seed": seed,
            "trained": {"epochs": 3.0, "lr": 3e-5, "seed": seed, "steps": 40},
            "plan": plan.to_json(),
            "full": result(0.9),
            "learned": result(0.9 - lost) | {"signature": f"model:tiny|learned:{label}"},
            "comparison": comparison(0.9, 0.9 - lost, 0.03 + lost),
            "history": history,
            "sets": "learned on 100 examples of train.tsv, reported on 200 of dev.tsv",
            "penalty": 0.0123,
            "open": keep + 0.5,
            **other,
        },
    )


def over(
    order: Sequence[Unit], steps: Sequence[int], names: Sequence[str] = ("epoch-01", "epoch-02", "epoch-10")
) -> Any:
    """Checkpoints that are better the later they are, and lose less; two random orders beside the scores of each."""
    stages = []
    for place, name in enumerate(names, 1):
        base = 0.6 + 0.3 * place / len(names)
        made = [_curve("taylor", order, steps, 0.3 / place, base)]
        made += [_curve("random", order[::-1], steps, slope / place, base) for slope in (0.4, 0.5)]
        stages.append({"name": name, "place": place, "curves": made})
    return _as(
        OverDocument,
        {
            "sets": "chosen on 100 examples of train.tsv, reported on 200 of dev.tsv",
            "checkpoints": stages,
            "skipped": [],
        },
    )


def training() -> dict[str, Any]:
    history = [
        {"step": step, "epoch": step / 40, "loss": round(0.7 * 0.98**step, 6), "lr": 3e-5, "open": None}
        | {"dev": 0.6 + step / 1000 if step % 40 == 0 else None}
        for step in range(0, 121, 4)
    ]
    return _as(
        TrainingDocument,
        {
            "history": history,
            "recipe": {"epochs": 3.0, "batch_size": 32, "lr": 3e-5, "schedule": "linear"},
            "before": result(0.51),
            "after": result(0.72) | {"signature": "model:tiny|trained"},
            "comparison": comparison(0.51, 0.72, 0.001),
            "sets": "trained on 1280 examples of train.tsv, reported on 200 of dev.tsv",
        },
    )


def one_head(sites: Sites = CLASSIFIER) -> dict[str, Any]:
    rows = [
        {
            "site": site,
            "head": n,
            "chosen_on": 0.88 + n / 100,
            **comparison(0.9, 0.87 - n / 100, 0.01 * (n + 1), 0.03 * (n + 1)),
        }
        for n, site in enumerate(sites)
    ]
    return _as(
        AllButOneDocument,
        {"base": result(0.9), "test": "randomization", "sets": "chosen on 50, reported on 50", "attentions": rows},
    )


def transfer(names: Sequence[str]) -> dict[str, Any]:
    x = np.random.default_rng(3).normal(0, 0.01, (2, len(names))).round(5)
    kinds = {
        name: {"name": name, "value": value, "low": -0.2, "high": 0.7, "level": 0.95, "p": 0.04, "n": len(names)}
        for name, value in (("pearson", 0.31), ("spearman", 0.27))
    }
    damage = {"one": x[0].tolist(), "other": x[1].tolist()}
    return _as(
        TransferDocument,
        {"one": result(0.9), "other": result(0.8, 190), **kinds, "units": list(names), "damage": damage},
    )


def bench(whole: str = "tiny", smaller: str = "smaller", length: int | None = 32) -> dict[str, Any]:
    """Two models at two batch sizes; pictures have no length."""
    rows = []
    for batch, ratio, limit in ((1, 1.04, 1.2), (16, 1.17, 1.2)):
        for name, times, most in ((whole, 1.0, 1.0), (smaller, ratio, limit)):
            speed = {"examples_per_second": 100.0 * times, "low": 90.0 * times, "high": 110.0 * times}
            ratios = {
                "ratio": times,
                "ratio_low": times - 0.01,
                "ratio_high": times + 0.01,
                "flops": 1e9 / most,
                "limit": most,
            }
            arrived = (times - 1) / (most - 1) if most > 1 else None
            rows.append(
                {
                    "model": name,
                    "batch": batch,
                    "length": length,
                    **speed,
                    **ratios,
                    "arrived": arrived,
                    "peak_memory": 20 * 2**20 if length is None else None,
                }
            )
    models = [
        {"name": whole, "class": "Tiny", "parameters": 2_000_000, "bytes": 8_000_000},
        {"name": smaller, "class": "Tiny", "parameters": 1_500_000, "bytes": 6_000_000},
    ]
    about = {"device": "cpu, 2 threads", "dtype": "float32", "compile": False, "torch": "2.13.0", "repeats": 7}
    return _as(Bench, {**about, "models": models, "rows": rows, "notes": []})


def prune(order: Sequence[Unit], removed: int, sites: Sites = CLASSIFIER) -> dict[str, Any]:
    plan = Plan(frozenset(order[:removed]), "least first")
    steps = [
        {
            "removed": k,
            "value": 0.9 - 0.002 * k,
            "damage": 0.2 * k,
            "bound": 0.2 * k + 0.3,
            "p": 0.01 * k,
            "shown": k <= removed,
        }
        for k in range(1, removed + 2)
    ]
    promise = {"drop": 1.0, "alpha": 0.05, "metric": "accuracy", "test": "exact", "n": 400, "steps": steps, "base": 0.9}
    promise |= {
        "removed": removed,
        "sentence": "loses less than 1 points, 95 % sure: at most 1.10, shown on 400 examples by an exact paired test",
        "needed": 750,
    }
    sets = [
        {"role": role, "data": "dev.tsv", "n": 100 + n, "what": "x"}
        for n, role in enumerate(("score", "select", "report"))
    ]
    gone = plan.by_site()
    places = [
        {
            "name": name,
            "units": sites[name][2],
            "left": sites[name][2] - len(ids),
            "manner": "slim",
            "parameters": 1000 * len(ids),
        }
        for name, ids in gone.items()
    ]
    return _as(
        PruneDocument,
        {
            "how": {"kind": "max-drop", "value": 1.0},
            "sentence": f"{removed} of {len(order)} heads can go, and at most one point of accuracy with them.",
            "model": "tiny",
            "class": "Tiny",
            "by": "taylor",
            "units": "heads",
            "sets": sets,
            "guarantee": promise,
            "order": [str(unit) for unit in order],
            "plan": plan.to_json(),
            "removed": removed,
            "of": len(order),
            "before": result(0.9, 150),
            "after": result(0.894, 150) | {"signature": "model:tiny|n:150|cut"},
            "comparison": comparison(0.9, 0.894, 0.44, n=150),
            "parameters": [2_000_000, 1_500_000],
            "bytes": [8_000_000, 6_000_000],
            "speed": bench(),
            "sites": places,
            "output": "smaller",
            "command": "headcount prune tiny --data dev.tsv --max-drop 1.0 -o smaller",
            "signature": "prune|tiny",
            "versions": {"headcount": "0.1.0"},
        },
    )


BERT = {str(n): ("head", "encoder", 12) for n in range(12)} | {f"{n}.mlp": ("neuron", None, 3072) for n in range(12)}


def candidate(by: str, value: float, n: int, chosen: bool = False) -> dict[str, Any]:
    """A plan that was measured for a budget."""
    return {
        "by": by,
        "floor": 0.25,
        "costs": "counts",
        "removed": 12,
        "left": 0.5,
        "value": value,
        "n": n,
        "chosen": chosen,
    }


def tradeoff(
    values: Sequence[float] = (0.895, 0.88, 0.52), sites: Sites = CLASSIFIER, base: float = 0.9
) -> dict[str, Any]:
    """A front: so good with fewer and fewer units, the last without many of them."""
    order = list(units(sites))
    rows = [
        {
            "number": number,
            "plan": Plan(frozenset(order[: 2 * number]), "least first").to_json(),
            "removed": 2 * number,
            "flops": 1 - number / 5,
            "parameters": 1 - number / 6,
            "speed": {"value": 1 + number / 5, "low": 1 + number / 6, "high": 1 + number / 4, "by_processor": False},
            "result": result(value),
            "comparison": comparison(base, value),
            "by": "taylor",
            "ruined": value < 0.7,
        }
        for number, value in enumerate(values, 1)
    ]
    about = {
        "model": "tiny",
        "units": "heads",
        "of": len(order),
        "base": result(base),
        "constant": 0.5,
        "measured": 12,
        "n": 200,
    }
    sizes = {"flops": 1e9, "parameters": 1_000_000, "batch": 16, "length": 27, "device": "cpu, 2 threads"}
    used = [{"role": "score", "data": "train.tsv", "n": 200, "what": "to score the units"}]
    return _as(TradeoffDocument, {**about, **sizes, "rows": rows, "speed_note": "in processor time", "sets": used})


def structured(
    widths: Mapping[str, int], deleted: Sequence[int] = (), sites: Sites = BERT, **other: Any
) -> dict[str, Any]:
    """What `prune` wrote that left so many units of each site and deleted some layers: a budget, tuned and recovered."""
    left = {name: widths.get(name, site[2]) for name, site in sites.items()}
    gone = {Unit(name, n) for name, site in sites.items() for n in range(left[name], site[2])}
    plan = Plan(frozenset(gone | {Unit("layers", n) for n in deleted}), "least for their cost first")
    depth = sum(site[0] == "head" for site in sites.values())
    numbers = [int(name.split(".")[0]) for name in sites]
    structure = [
        {
            "name": name,
            "kind": site[0],
            "type": site[1],
            "layer": n,
            "units": site[2],
            "left": 0 if n in deleted else left[name],
        }
        for n, (name, site) in zip(numbers, sites.items(), strict=True)
    ]
    fits = [
        {"name": one["name"], "error": 0.05 + 0.02 * n, "tuned": (0.05 + 0.02 * n) * (0.6 if n % 4 else 1.0)}
        | {"low": 0.71, "high": 1.4 + n / 100, "used": bool(n % 4)}
        for n, one in enumerate(one for one in structure if one["left"])
    ]
    budget = {
        "what": "flops",
        "asked": "50%",
        "whole": 22.4e9,
        "allowed": 11.2e9,
        "predicted": 11.15e9,
        "measured": 11.12e9,
    }
    places = [
        {"name": name, "units": sites[name][2], "left": left[name], "manner": "slim", "parameters": 100 * len(ids)}
        for name, ids in plan.by_site().items()
        if name in sites
    ]
    units = "heads,neurons,layers" if deleted else "heads,neurons"
    return _as(
        PruneDocument,
        {
            **prune(list(plan), 1, {unit.site: ("head", None, 1) for unit in plan}),
            "how": {"kind": "flops", "value": "50%"},
            "sentence": "Half of the FLOPs are gone: accuracy went from 0.900 to 0.894 on 150 examples.",
            "units": units,
            "guarantee": None,
            "order": [],
            "plan": plan.to_json(),
            "removed": len(plan),
            "of": sum(site[2] for site in sites.values()) + (depth if deleted else 0),
            "sites": places,
            "structure": structure,
            "layers": [{"name": "layers", "units": depth, "gone": list(deleted)}],
            "budget": {**budget, "multiples": {"head": 1, "neuron": 16}},
            "candidates": [
                candidate("fisher", 0.871, 512),
                candidate("taylor", 0.898, 512, True),
                candidate("fisher", 0.6, 128),
            ],
            "brake": {
                "metric": "accuracy",
                "whole": 0.9,
                "value": 0.898,
                "constant": 0.5,
                "allowed": 20.0,
                "fell": 0.2,
                "n": 512,
            },
            "flops": [22_400_000_000, 11_120_000_000],
            "tuned": {"examples": 300, "positions": 8000, "sites": fits},
            "rearranged": 31,
            "recovered": {"before": 0.871, "epochs": 1.0, "examples": 5000, "distilled": True, "steps": 156},
            **other,
        },
    )


def lottery(
    tasks: Sequence[str] = ("SST-2", "QNLI", "RTE"),
    seeds: Sequence[int] = (0, 1, 2),
    sites: Sites | None = None,
    magnitude: bool = True,
) -> dict[str, Any]:
    """A lottery in which units survive by the luck of a draw; all summaries are numpy's."""
    if sites is None:
        sites = {f"{n}": ("head", "encoder", 12) for n in range(6)} | {f"{n}.mlp": ("mlp", None, 1) for n in range(6)}
    drawn = np.random.default_rng(5)
    luck = {name: drawn.uniform(0.2, 1.0, site[2]) for name, site in sites.items()}
    kinds = {
        "heads": [n for n, s in sites.items() if s[0] == "head"],
        "mlps": [n for n, s in sites.items() if s[0] == "mlp"],
    }
    of = {kind: sum(sites[name][2] for name in names) for kind, names in kinds.items()}
    draws, masks = [], {}
    for place, task in enumerate(tasks):
        for seed in seeds:
            alive = {name: drawn.random(site[2]) < luck[name] for name, site in sites.items()}
            masks[task, seed] = {
                kind: np.concatenate([alive[n] for n in names]) for kind, names in kinds.items() if names
            }
            full = 0.92 - 0.09 * place + 0.002 * seed
            left = {kind: int(mask.sum()) for kind, mask in masks[task, seed].items()} | {
                k: 0 for k, n in kinds.items() if not n
            }
            draws.append(
                _draw(task, seed, full, left, of, magnitude)
                | {"alive": {n: np.flatnonzero(a).tolist() for n, a in alive.items()}}
            )
    several = len(seeds) > 1

    def spread(values: Any, axis: int = 0) -> Any:
        return np.std(values, axis, ddof=1).tolist() if several else None

    survivors = {}
    for name, site in sites.items():
        counted = [
            np.sum([np.isin(np.arange(site[2]), d["alive"][name]) for d in draws if d["seed"] == seed], axis=0)
            for seed in seeds
        ]
        survivors[name] = {"mean": np.mean(counted, 0).tolist(), "sd": spread(counted)}
    overlap = {}
    for kind in (kind for kind, names in kinds.items() if names):
        both = [[[int((masks[a, s][kind] & masks[b, s][kind]).sum()) for b in tasks] for a in tasks] for s in seeds]
        overlap[kind] = {"mean": np.mean(both, 0).tolist(), "sd": spread(both)}
    agreement = []
    for n, task in enumerate(tasks):
        for kind in overlap:
            rows = np.array([masks[task, seed][kind] for seed in seeds])
            size = {"mean": float(rows.sum(1).mean()), "sd": spread(rows.sum(1))}
            known = (
                {"kappa": 0.21 + n / 50, "q": 3.1 + n, "p": 0.21 / (n + 1)}
                if several
                else dict.fromkeys(("kappa", "q", "p"))
            )
            agreement.append({"task": task, "kind": kind, **known, "in_all": int(rows.all(0).sum()), "size": size})
    return _as(
        LotteryDocument,
        {
            "format": 1,
            "model": "all-MiniLM-L6-v2",
            "class": "BertForSequenceClassification",
            "threshold": 0.9,
            "step": 0.1,
            "seeds": list(seeds),
            "recipe": {"epochs": 3.0, "lr": 2e-5},
            "tasks": [
                {"name": task, "metric": "accuracy", "higher_is_better": True, "majority": 0.51 + n / 100}
                | {
                    "sets": f"trained on 4000 examples of {task}/train.tsv, chosen on 400, reported on 872 of {task}/dev.tsv"
                }
                for n, task in enumerate(tasks)
            ],
            "sites": [
                {"name": name, "kind": site[0], "type": site[1], "layer": n, "units": site[2]}
                for n, (name, site) in enumerate(sites.items())
            ],
            "draws": draws,
            "survivors": survivors,
            "overlap": overlap,
            "agreement": agreement,
            "table": _lottery_table(tasks, draws, several, magnitude),
            "sentence": "Good sub-networks, retrained, come within a point of the full model; bad ones come close, too.",
            "versions": {"headcount": "0.1.0"},
        },
    )


def _draw(task: str, seed: int, full: float, left: Any, of: Any, magnitude: bool) -> dict[str, Any]:
    """One search: the score falls from step to step, and the last of each phase is taken back."""
    worth = {
        ("good", "pruned"): 0.035,
        ("good", "retrained"): 0.006,
        ("random", "pruned"): 0.17,
        ("random", "retrained"): 0.03,
    }
    worth |= {("bad", "pruned"): 0.31, ("bad", "retrained"): 0.04}
    steps, count = [], 5
    for n in range(1, count + 1):
        heads, mlps = (round(of[k] + (left[k] - of[k]) * n / count) for k in ("heads", "mlps"))
        steps.append({"phase": 1, "heads": heads, "mlps": mlps, "value": full - 0.015 * n, "kept": True})
    steps.append(
        {"phase": 1, "heads": max(0, left["heads"] - 5), "mlps": left["mlps"], "value": full * 0.86, "kept": False}
    )

    def networks(size: dict[str, Any], more: float) -> list[dict[str, Any]]:
        made = []
        for n, ((what, how), lost) in enumerate(worth.items()):
            value = full - lost - more - 0.003 * seed * (n + 1)
            told = {"what": what, "how": how, **size, "value": value, "n": 872}
            made.append({**told, "comparison": comparison(full, value, 0.01 * (n + 1), n=872)})
        return made

    other = {"left": 0.34 - seed / 100, "networks": networks({"left": 0.34 - seed / 100}, 0.01)}
    other["steps"] = [{"left": 1 - n / 10, "value": full - 0.012 * n, "kept": n < 7} for n in range(1, 8)]
    return {
        "task": task,
        "seed": seed,
        "full": {"select": full, "report": full - 0.01},
        "left": left,
        "of": of,
        "parameters": [22_000_000, 15_000_000 + seed],
        "steps": steps,
        "networks": networks({"heads": left["heads"], "mlps": left["mlps"]}, 0.0),
        "magnitude": other if magnitude else None,
    }


def _lottery_table(tasks: Sequence[str], draws: Sequence[Any], several: bool, magnitude: bool) -> list[dict[str, Any]]:
    rows = []
    for task in tasks:
        own = [draw for draw in draws if draw["task"] == task]
        groups = {("structured", "full", "whole"): [draw["full"]["report"] for draw in own]}
        for draw in own:
            for kind, found in (
                ("structured", draw["networks"]),
                ("magnitude", (draw["magnitude"] or {}).get("networks", ())),
            ):
                for one in found:
                    groups.setdefault((kind, one["what"], one["how"]), []).append(one["value"])
        for (kind, what, how), values in groups.items():
            sd = float(np.std(values, ddof=1)) if several else None
            told = {"task": task, "kind": kind, "what": what, "how": how, "mean": float(np.mean(values)), "sd": sd}
            rows.append({**told, "seeds": len(values)})
    return rows


MINILM: Sites = {str(n): ("head", "encoder", 12) for n in range(6)}
MAIN = (
    *("positional", "syntactic", "alignment", "rare", "induction"),
    *("copying", "local", "punctuation", "sink", "none"),
)
SENTENCE = ("[CLS]", "the", "cat", "that", "slept", "sat", "on", "the", "mat", ".", "[SEP]")


def roles(
    sites: Sites = MINILM, seed: int = 6, tokens: Sequence[str] = SENTENCE, sentences: int = 2, **other: Any
) -> dict[str, Any]:
    """What `roles` writes: early layers have most of the positional heads, late ones of the sinks; every role occurs."""
    drawn = np.random.default_rng(seed)
    heads, texts, attention = [], {}, dict[str, dict[str, list[str]]]()
    names = list(sites)
    for number, unit in enumerate(units(sites)):
        depth = names.index(unit.site) / max(1, len(names) - 1)
        weights = np.array([3 - 2.5 * depth, 2, 0.4, 1, 0.4, 0.4, 1.2, 0.6, 0.5 + 3 * depth, 1.5])
        main = MAIN[number] if number < len(MAIN) else MAIN[int(drawn.choice(len(MAIN), p=weights / weights.sum()))]
        value, confidence, entropy = drawn.uniform(0.5, 0.98), drawn.uniform(0.2, 0.95), drawn.uniform(0.3, 3.0)
        what = {"positional": "-1", "syntactic": "nsubj, dependent to governor", "sink": "[SEP]"}.get(main, "")
        sentence = f"looks by its {main} way at {100 * value:.0f} % of tokens"
        earned = [
            {"role": main, "what": what, "value": value, "low": value - 0.02, "high": value + 0.01, "baseline": None}
            | {"p": 0.003, "sure": bool(number % 3), "text": sentence}
        ]
        type_ = sites[unit.site][1]
        heads.append(
            {
                "unit": str(unit),
                "site": unit.site,
                "type": type_,
                "main": main,
                "confidence": [confidence, confidence - 0.01, confidence + 0.012],
                "entropy": [entropy, entropy - 0.05, entropy + 0.05],
                "roles": [] if main == "none" else earned,
                "offsets": {"-1": value, "0": 0.01, "2": 0.005},
                "mass": {"[CLS]": 0.021, "[SEP]": 0.3, "punctuation": 0.11},
                "local": [0.4, 0.39, 0.41, 0.2],
                "rare": None,
                "induction": None,
                "copying": None,
            }
        )
        if main != "none":
            texts[str(unit)] = f"{main} ({what})" if what else main
        for _ in range(sentences):
            rows = drawn.dirichlet(np.full(len(tokens), 0.2), len(tokens))
            found = "".join(f"{round(255 * weight):02x}" for weight in rows.ravel())
            attention.setdefault(str(type_), {}).setdefault(str(unit), []).append(found)
    examples = [
        {"name": f"{type_}, sentence {n + 1}", "type": type_, "queries": list(tokens), "keys": None}
        | {"attention": {unit: found[n] for unit, found in own.items()}}
        for type_, own in attention.items()
        for n in range(sentences)
    ]
    best = [head["unit"] for head in heads][:10]
    relations = []
    for n, relation in enumerate(("nsubj", "obj", "amod", "advmod", "det")):
        for direction in ("dependent to governor", "governor to dependent"):
            base, gains = 0.3 + 0.05 * n, 0.35 - 0.07 * n - np.arange(len(best)) * 0.04
            won = [unit for unit, gain in zip(best, gains, strict=True) if gain >= 0.1]
            found = {u: [base + g, g, g - 0.03, g + 0.03, 0.001] for u, g in zip(best, gains.tolist(), strict=True)}
            told = {"type": heads[0]["type"], "relation": relation, "direction": direction, "offset": n - 2}
            counts = {"baseline": base, "pairs": 1000 - n, "sentences": 500 - n}
            # chosen on other sentences than it is told on, so another head than the first, and other numbers
            fresh = {"unit": best[1], "numbers": [value - 0.01 for value in found[best[1]][:4]]} if n < 4 else None
            relations.append({**told, **counts, "heads": found, "earned": won, "best": fresh})
    return _as(
        RolesDocument,
        {
            "format": 1,
            "model": "Tiny",
            "sentences": 2001,
            "tokens": 25148,
            "sets": "2,001 sentences of dev.conllu with gold parses; from a word's first token, to all of its tokens",
            "roles": texts,
            "heads": heads,
            "relations": relations,
            "examples": examples,
            "rules": {"positional": 0.9, "gain": 0.1},
            "versions": {"headcount": "0.1.0"},
            **other,
        },
    )


def folder(
    path: Path,
    command: str,
    documents: Mapping[str, Any],
    *,
    model: str = "models/tiny",
    weights: str = "a1b2",
    data: str = "dev.tsv",
    fingerprint: str = "f",
    finished: bool = True,
    others: Sequence[tuple[str, str]] = (("smaller", "c3d4"),),
    **options: Any,
) -> Path:
    """A run folder with these documents; `bench` asks about several models and no data; `options` are those of `learn`."""
    roles = {"transfer": ("one", "other"), "curve": ("select", "report"), "over": ("select", "report")}
    roles |= {"learn": ("train", "report"), "train": ("train", "report")}
    tasks = {
        role: {"data": data if n == 0 else f"{data} again", "n": 200, "fingerprint": fingerprint * 16}
        for n, role in enumerate(roles.get(command, ("data",)))
    }
    question = {"command": command, "model": {"name": model, "weights": weights}, "tasks": tasks}
    question |= {"run": {"dtype": "float32", "seed": 0}, "options": {"by": "taylor", "folder": path.name}}
    if command == "learn":
        question["options"] = {"only": [], "pipelined": False, "freeze": [], **options}
    if command == "bench":
        question["others"] = [{"name": name, "weights": weights} for name, weights in others]
        del question["tasks"]
    with Run.open(path, question) as run:
        for name, document in documents.items():
            run.write_json(name, document)
        if finished:
            run.finish()
    return path


def everything(root: Path, sites: Sites = CLASSIFIER, **naming: str) -> dict[str, Any]:
    """One folder of every kind under `root`, and the documents in them."""
    made = scores(sites)
    order, names = made.order(), [str(unit) for unit in units(sites)]
    documents: dict[str, dict[str, Any]] = {
        "score": {"scores": scores_document(made)},
        "ablate": {"ablation": ablation(names)},
        "one": {"all-but-one": one_head(sites)},
        "curve": {"curves": curves(order, [0, 3, 6, len(order)]), "scores-taylor": made.to_json()},
        "transfer": {"transfer": transfer(names)},
        "prune": {"prune": prune(order, 4, sites), "scores": scores_document(made)},
        "bench": {"bench": bench()},
    }
    for name, found in documents.items():
        folder(root / name, name, found, **naming)  # type: ignore[arg-type]
    return {name: document for found in documents.values() for name, document in found.items()} | {"order": order}


def taught(root: Path, sites: Sites = CLASSIFIER, **naming: str) -> dict[str, Any]:
    """Runs that train, of the model of `everything`: two learned methods, one with three seeds; checkpoints; a training."""
    made = {}
    plain = [("l0", 4, 0, 0.03), ("l0", 7, 0, 0.008)]
    seeds = [
        ("subset, joint", keep, seed, 0.004 * (12 - keep) + 0.001 * seed**2) for keep in (4, 8) for seed in range(3)
    ]
    for label, keep, seed, lost in plain + seeds:
        name = f"learn-{label.split(',')[0]}-{keep}-{seed}"
        made[name] = learned(sites, label, keep, seed, lost)
        kept = {"learned": made[name], "scores": scores(sites, label.split(",")[0], keep + seed).to_json()}
        folder(root / name, "learn", kept, **naming)  # type: ignore[arg-type]
    order = scores(sites).order()
    made |= {"over": over(order, [0, 3, 6, len(order)]), "training": training()}
    folder(root / "over", "over", {"over": made["over"]}, **naming)  # type: ignore[arg-type]
    folder(root / "train", "train", {"training": made["training"]}, **naming)  # type: ignore[arg-type]
    return made
