"""What the driver keeps of brackets and models, and the settings it needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from accelerando.search._halving import Steps
from accelerando.search._plan import Bracket

__all__ = ["Model", "Settings", "Track", "track"]


@dataclass
class Track:
    """A bracket under way: its generator, and the numbers of its models."""

    index: int
    steps: Steps
    n_models: int
    max_calls: int
    planned_calls: int
    first: int = 0
    ended: bool = False


def track(bracket: Bracket, steps: Steps) -> Track:
    """Put a planned bracket on its way."""
    return Track(
        bracket.index, steps, bracket.n_models, bracket.max_calls, bracket.partial_fit_calls
    )


@dataclass
class Model:
    """What the driver knows of a model; the model itself is with a worker."""

    number: int
    track: Track
    params: dict[str, Any]
    calls: int = 0
    score: float | None = None
    fit_seconds: float | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """The part of a search's parameters that the driver needs."""

    priority: str = "score"
    slice_seconds: float = 1.5
    max_seconds: float | None = None
    max_calls: int | None = None
    error_score: float | str = math.nan
    metric: str = "score"
    model_id: Callable[[int, int], Any] = lambda bracket, number: number
