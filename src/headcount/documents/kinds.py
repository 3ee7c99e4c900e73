"""The kinds of documents that a report can show, by the names of their files. No torch."""

from __future__ import annotations

from .ablation import AblationDocument, AllButOneDocument, TransferDocument
from .bench import Bench
from .circuits.logit_attribution import AttributionDocument
from .circuits.named_heads import HeadsDocument
from .circuits.weights import CircuitsDocument
from .claims import ClaimsDocument
from .curves import CurvesDocument, OverDocument, TradeoffDocument
from .discovery.circuit import CircuitDocument
from .interventions.patch import PatchDocument
from .learned import LearnedDocument
from .lottery import LotteryDocument
from .prune import PruneDocument
from .reading import JsonDocument
from .results import ResultDocument
from .roles import RolesDocument
from .scores import ScoresDocument
from .training import TrainingDocument

KINDS: dict[str, type[JsonDocument]] = {
    kind.NAME: kind
    for kind in (
        *(PruneDocument, LearnedDocument, CurvesDocument, OverDocument, TrainingDocument, ScoresDocument),
        *(AblationDocument, AllButOneDocument, TransferDocument, Bench, LotteryDocument, ResultDocument),
        *(RolesDocument, ClaimsDocument, TradeoffDocument, PatchDocument, CircuitDocument, HeadsDocument),
        *(AttributionDocument, CircuitsDocument),
    )
}
