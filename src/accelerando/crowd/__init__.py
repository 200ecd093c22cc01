"""Ask a crowd the most informative questions, and turn the answers into an embedding."""

import sys as _sys
from typing import Any as _Any

from accelerando.crowd import _embedding, _noise
from accelerando.crowd._adaptive import ARR as ARR
from accelerando.crowd._adaptive import Greedy as Greedy
from accelerando.crowd._adaptive import Uncertainty as Uncertainty
from accelerando.crowd._attention import Validation as Validation
from accelerando.crowd._dimension import select_dimension as select_dimension
from accelerando.crowd._embedding import OrdinalEmbedding as OrdinalEmbedding
from accelerando.crowd._metrics import nearest_neighbor_distance as nearest_neighbor_distance
from accelerando.crowd._metrics import triplet_accuracy as triplet_accuracy
from accelerando.crowd._noise import CKL as CKL
from accelerando.crowd._noise import GNMDS as GNMDS
from accelerando.crowd._noise import SOE as SOE
from accelerando.crowd._noise import STE as STE
from accelerando.crowd._noise import TSTE as TSTE
from accelerando.crowd._noise import Logistic as Logistic
from accelerando.crowd._noise import NoiseModel as NoiseModel
from accelerando.crowd._passive import Random as Random
from accelerando.crowd._passive import RoundRobin as RoundRobin
from accelerando.crowd._plan import plan as plan
from accelerando.crowd._read import Answers as Answers
from accelerando.crowd._read import read_answers as read_answers
from accelerando.crowd._respond import AlienEggs as AlienEggs
from accelerando.crowd._respond import FromEmbedding as FromEmbedding
from accelerando.crowd._respond import Replay as Replay
from accelerando.crowd._score import information_gain as information_gain
from accelerando.crowd._search import search as search
from accelerando.crowd._simulate import Simulation as Simulation
from accelerando.crowd._simulate import simulate as simulate

__all__ = [
    "ARR",
    "CKL",
    "GNMDS",
    "SOE",
    "STE",
    "TSTE",
    "AlienEggs",
    "Answers",
    "FromEmbedding",
    "Greedy",
    "Logistic",
    "NoiseModel",
    "OrdinalEmbedding",
    "Random",
    "Replay",
    "RoundRobin",
    "Simulation",
    "Uncertainty",
    "Validation",
    "information_gain",
    "nearest_neighbor_distance",
    "plan",
    "read_answers",
    "search",
    "select_dimension",
    "simulate",
    "triplet_accuracy",
]

# Estimators that earlier versions pickled name these modules.
_sys.modules.setdefault(f"{__name__}.embedding", _embedding)
_sys.modules.setdefault(f"{__name__}.noise", _noise)


def __getattr__(name: str) -> _Any:
    from accelerando.crowd._deprecated import deprecated_name

    return deprecated_name(name)
