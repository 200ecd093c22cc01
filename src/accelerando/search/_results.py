"""The attributes of a finished search, made from what the driver recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from accelerando.search._plan import Bracket
from accelerando.search._track import Model

__all__ = ["cv_results", "metadata_of", "model_history"]


def cv_results(models: Sequence[Model], metrics: Sequence[str]) -> dict[str, Any]:
    """Return one entry per scored model, under the names that Dask-ML gave to the columns."""
    last = [model.rows[-1] for model in models]
    results: dict[str, Any] = {
        "model_id": np.array([row["model_id"] for row in last]),
        "bracket": np.array([row["bracket"] for row in last]),
        "partial_fit_calls": np.array([model.calls for model in models]),
        "params": [model.params for model in models],
        "test_score": np.array([row["score"] for row in last], dtype=float),
    }
    results["rank_test_score"] = _ranks(results["test_score"])
    for name in metrics:
        scores = [row.get(f"score_{name}", math.nan) for row in last]
        results[f"test_{name}"] = np.array(scores, dtype=float)
        results[f"rank_test_{name}"] = _ranks(results[f"test_{name}"])
    for column in ("partial_fit_time", "score_time"):
        times = [_without_nan([row[column] for row in model.rows]) for model in models]
        results[f"mean_{column}"] = np.array([np.mean(t) if t else math.nan for t in times])
        results[f"std_{column}"] = np.array([np.std(t) if t else math.nan for t in times])
    results.update(_parameter_columns([model.params for model in models]))
    return results


def model_history(history: Sequence[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    """Group the rows of the history by model."""
    grouped: dict[Any, list[dict[str, Any]]] = {}
    for row in history:
        grouped.setdefault(row["model_id"], []).append(row)
    return grouped


def metadata_of(models: Sequence[Model], brackets: Sequence[Bracket]) -> dict[str, Any]:
    """Return what was done, in the form of the plan."""
    listed = []
    for bracket in sorted(brackets, key=lambda bracket: bracket.index):
        own = [model for model in models if model.track.index == bracket.index]
        reached = max((model.calls for model in own), default=0)
        listed.append(
            {
                "bracket": bracket.index,
                "n_models": len(own),
                "partial_fit_calls": sum(model.calls for model in own),
                "decisions": [rung.calls for rung in bracket.rungs if rung.calls <= reached],
            }
        )
    return {
        "partial_fit_calls": sum(entry["partial_fit_calls"] for entry in listed),
        "n_models": sum(entry["n_models"] for entry in listed),
        "brackets": listed,
    }


def _ranks(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    ranks = rankdata(-np.nan_to_num(scores, nan=-np.inf), method="min")
    return np.asarray(ranks).astype(np.int32)


def _without_nan(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _parameter_columns(params: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in sorted({name for one in params for name in one}):
        values = np.empty(len(params), dtype=object)
        mask = np.array([name not in one for one in params])
        for i, one in enumerate(params):
            values[i] = one.get(name)
        # As in scikit-learn: a parameter that another space does not have is masked there.
        columns[f"param_{name}"] = np.ma.MaskedArray(values, mask=mask)
    return columns
