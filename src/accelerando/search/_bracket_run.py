"""State of a running search: brackets, models, and the settings that the driver needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from accelerando.search._halving import Steps
from accelerando.search._plan import Bracket

__all__ = ["BracketRun", "Model", "Settings"]


@dataclass
class BracketRun:
    """A bracket in progress: its plan, its generator of decisions, and the numbers of its models.

    Numbers are unique in the search. The generator counts the models of its bracket from 0.
    """

    plan: Bracket
    steps: Steps
    first: int = 0  # number of its first model
    in_last_rung: bool = False
    ended: bool = False

    @property
    def index(self) -> int:
        """Index of the bracket in the search."""
        return self.plan.index

    @property
    def models(self) -> range:
        """Numbers of its models."""
        return range(self.first, self.first + self.plan.n_models)


@dataclass
class Model:
    """The driver's record of a model. A worker holds the estimator itself."""

    number: int
    bracket: BracketRun
    params: dict[str, Any]
    calls: int = 0
    score: float | None = None
    fit_seconds: float | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Sort key, best model first. NaN and no score are last; ties keep the order of numbers."""
        score = self.score
        if score is None or math.isnan(score):
            return (True, 0.0, self.number)
        return (False, -score, self.number)


@dataclass(frozen=True)
class Settings:
    """The parameters of a search that the driver needs."""

    priority: str = "score"
    slice_seconds: float = 1.5
    max_seconds: float | None = None
    max_calls: int | None = None
    target_score: float | None = None
    error_score: float | str = math.nan
    metric: str = "score"
    model_id: Callable[[int, int], Any] = lambda bracket, number: number
