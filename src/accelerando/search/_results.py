"""Attributes of a fitted search, computed from the records of the driver."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from scipy.stats import rankdata

from accelerando._cluster.driver.failures import scheduler_gone
from accelerando.exceptions import ClusterError
from accelerando.search._bracket_run import Model
from accelerando.search._driver import Driver
from accelerando.search._plan import Bracket
from accelerando.search._train import State

__all__ = ["best_model", "cv_results", "metadata_of", "model_history", "without_scheduler"]


def best_model(driver: Driver) -> tuple[Model, State]:
    """Return the best model of a search that has ended, and its state.

    Raise an error if no model has a score. A model without a state is skipped: a second Ctrl-C
    interrupted one of its calls.
    """
    scored = [model for model in driver.models.values() if model.rows]
    for model in sorted(scored, key=lambda model: model.rank):
        if model.score is None or math.isnan(model.score):
            break
        state = driver.state_of(model)
        if state is not None:
            return model, state
    if scored:
        error = f" The last error was {driver.last_error!r}." if driver.last_error else ""
        raise ValueError(
            f"There is no best model: all {len(scored)} scored models have the score NaN.{error}"
        )
    if driver.reason == "interrupted":
        raise KeyboardInterrupt("The search was interrupted before a model was scored.")
    raise ValueError(f"The search ended ({driver.reason}) before a model was scored.")


def without_scheduler(driver: Driver, address: str) -> ClusterError:
    """Return the error of a search whose scheduler is gone, and all models with it."""
    best = driver.best
    held = f"The search had made {driver.calls} of {driver.planned_calls} calls."
    if best is not None:
        held = f"{held[:-1]}; its best score was {best.score} with {best.params}."
    if driver.checkpoint is None:
        remedy = "The models are lost. With checkpoint=, fit could continue on another cluster."
    else:
        remedy = (
            f"fit with the client of another cluster and checkpoint="
            f"{str(driver.checkpoint.directory)!r} continues: finished jobs are not repeated."
        )
    return scheduler_gone(address, "Dask's client has given up", held, remedy)


def cv_results(models: Sequence[Model], metrics: Sequence[str]) -> dict[str, Any]:
    """Return ``cv_results_``: one entry per scored model, with the column names of Dask-ML."""
    last = [model.rows[-1] for model in models]
    results: dict[str, Any] = {
        "model_id": np.array([row["model_id"] for row in last]),
        "bracket": np.array([row["bracket"] for row in last]),
        "partial_fit_calls": np.array([model.calls for model in models]),
        "params": _objects([model.params for model in models]),
        "test_score": np.array([row["score"] for row in last], dtype=float),
    }
    results["rank_test_score"] = _ranks(results["test_score"])
    for name in metrics:
        scores = [row.get(f"score_{name}", math.nan) for row in last]
        results[f"test_{name}"] = np.array(scores, dtype=float)
        results[f"rank_test_{name}"] = _ranks(results[f"test_{name}"])
    folds = max((len(row.get("split_scores", ())) for row in last), default=0)
    if folds:  # a model that failed has no scores of its folds
        missing = (math.nan,) * folds
        by_fold = np.array([row.get("split_scores", missing) for row in last], dtype=float)
        results |= {f"split{i}_test_score": by_fold[:, i] for i in range(folds)}
        results["mean_test_score"] = results["test_score"]
        results["std_test_score"] = by_fold.std(axis=1)
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
    """Return the work that was done, with the keys of the plan."""
    listed = []
    for bracket in sorted(brackets, key=lambda bracket: bracket.index):
        trained = [model for model in models if model.bracket.index == bracket.index]
        reached = max((model.calls for model in trained), default=0)
        listed.append(
            {
                "bracket": bracket.index,
                "n_models": len(trained),
                "partial_fit_calls": sum(model.calls for model in trained),
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
    return np.asarray(ranks).astype(np.int64)


def _without_nan(values: Sequence[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _objects(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    column = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        column[i] = value
    return column


def _parameter_columns(params: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in sorted({name for one in params for name in one}):
        mask = np.array([name not in one for one in params])
        values = _objects([one.get(name) for one in params])
        if all(isinstance(value, Real) and not isinstance(value, bool) for value in values):
            values = np.array(values.tolist())  # numbers, as in scikit-learn
        # As in scikit-learn: the entry is masked where a model's space lacks the parameter.
        columns[f"param_{name}"] = np.ma.MaskedArray(values, mask=mask)
    return columns
