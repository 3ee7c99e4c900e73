"""An experiment of a paper that nobody wrote: three small commands, and statements whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence

from headcount.documents.ablation import AblationDocument
from headcount.documents.results import ResultDocument
from headcount.reproduction.experiment import (
    CONFIRMED,
    NOT_CONFIRMED,
    Claim,
    Experiment,
    RunDocuments,
    Setting,
    Sheet,
    Step,
)


def steps(setting: Setting) -> list[Step]:
    """Three commands on the first task: two that anything can go before, and one that needs the first."""
    if not setting.material.corpora:
        return []
    corpus = setting.material.corpora[0]
    model, before = setting.classifier(corpus, 0)
    data = (*corpus.on("dev"), "--task", corpus.kind)

    def step(name: str, *words: str, after: Sequence[str] = ()) -> Step:
        kept = ("-o", setting.run(name), *setting.flags)
        return Step(name, (*words, model, *data, *kept), (*(one.name for one in before), *after))

    limit = setting.limit(20)
    out = [*before, step("planted-whole", "evaluate"), step("planted-few", "evaluate", "--limit", "10")]
    return [*out, step("planted-each", "ablate", "--each", *limit, after=["planted-whole"])]


def claims(found: RunDocuments) -> list[Claim]:
    whole, each = found.document("planted-whole", ResultDocument), found.document("planted-each", AblationDocument)
    made = []
    if whole is not None:
        n = whole.n
        made.append(Claim("There are 24.", f"{n} are here.", CONFIRMED if n == 24 else NOT_CONFIRMED, "If n is 24."))
    if each is not None:
        closed = " ".join(row.closed for row in each.ablations)
        made.append(Claim("Each of 4 heads.", closed, CONFIRMED, "Always."))
    return made


def sheets(found: RunDocuments) -> list[Sheet]:
    return [Sheet("Counts", ("theirs", "ours"), (("24", "24"),))]


PLANTED = Experiment("planted-heads", "Planted et al. 2020", "Table 1", "Does it grow?", steps, claims, sheets)
