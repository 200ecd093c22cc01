"""Former public names of ``accelerando.crowd``, which keep working with a warning."""

from __future__ import annotations

import warnings
from typing import Any

from accelerando.crowd import (
    _assignment,
    _attention,
    _dimension,
    _metrics,
    _noise,
    _plan,
    _posterior,
    _read,
    _sampler,
    _score,
    _search,
)
from accelerando.crowd._assignment import AssignedQuery, AssignmentState, QueryAssigner
from accelerando.crowd._calibration import CalibrationRecord
from accelerando.crowd._posterior import Array, Posterior

__all__ = ["DEPRECATED", "deprecated_name"]


class _Belief(Posterior):
    """:class:`Posterior` with the method names of earlier versions."""

    def posterior(self, heads: Any = None) -> Array:
        return self.probabilities(heads)


class _Desk(QueryAssigner):
    """:class:`QueryAssigner` with the method names of earlier versions."""

    def open(self, seed: int = 0) -> AssignmentState:
        return self.start(seed)

    def ask(self, state: AssignmentState, participant: str) -> AssignedQuery:
        return self.assign(state, participant)


_MODEL = "the fitted OrdinalEmbedding itself, as in search(model),"
_SIMULATE = "accelerando.crowd.simulate"

# Former name: (object, what to use instead).
DEPRECATED: dict[str, tuple[Any, str]] = {
    "AnswersNeeded": (_plan.AnswersNeeded, "the objects that accelerando.crowd.plan returns"),
    "Belief": (_Belief, _MODEL),
    "Claims": (CalibrationRecord, "accelerando.crowd.ARR(cautious=True)"),
    "Desk": (_Desk, _SIMULATE),
    "DeskState": (_assignment.AssignmentState, _SIMULATE),
    "DimensionChoice": (
        _dimension.DimensionChoice,
        "the object that accelerando.crowd.select_dimension returns",
    ),
    "Found": (_search.SearchResult, "the object that accelerando.crowd.search returns"),
    "Problem": (_read.Problem, "the objects in accelerando.crowd.Answers.problems"),
    "Query": (_sampler.Query, "rows (head, left, right)"),
    "Sampler": (_sampler.Sampler, "a sampler such as accelerando.crowd.ARR"),
    "SamplerState": (_sampler.SamplerState, _SIMULATE),
    "Served": (_assignment.AssignedQuery, _SIMULATE),
    "accuracy_band": (_metrics.accuracy_band, "statsmodels' proportion_confint(method='wilson')"),
    "head_entropy": (_score.head_entropy, "accelerando.crowd.information_gain"),
    "log_posterior": (_posterior.log_posterior, _MODEL),
    "nearest_neighbor_error": (
        _metrics.nearest_neighbor_error,
        "accelerando.crowd.nearest_neighbor_distance",
    ),
    "nearest_neighbour_distance": (
        _metrics.nearest_neighbor_distance,
        "accelerando.crowd.nearest_neighbor_distance",
    ),
    "nearest_neighbour_error": (
        _metrics.nearest_neighbor_error,
        "accelerando.crowd.nearest_neighbor_distance",
    ),
    "noise_model": (_noise.noise_model, "a class such as accelerando.crowd.TSTE"),
    "procrustes": (_metrics.procrustes, "scipy.spatial.procrustes"),
    "repeat_agreement": (_attention.repeat_agreement, "the column repeats_agreed of an export"),
    "uncertainty": (_score.uncertainty, "accelerando.crowd.search(model, score='uncertainty')"),
}


def deprecated_name(name: str) -> Any:
    """Return the object with this former name, and warn.

    Raises
    ------
    AttributeError
        There never was such a name.
    """
    if name not in DEPRECATED:
        raise AttributeError(f"module 'accelerando.crowd' has no attribute {name!r}")
    value, replacement = DEPRECATED[name]
    warnings.warn(
        f"accelerando.crowd.{name} is deprecated and will be removed in the next minor release. "
        f"Use {replacement} instead.",
        FutureWarning,
        stacklevel=3,
    )
    return value
