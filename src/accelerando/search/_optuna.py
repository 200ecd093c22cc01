"""A search as a study of Optuna."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sklearn.utils.validation import check_is_fitted

from accelerando._extras import require

__all__ = ["to_study"]

PLAIN = (type(None), bool, int, float, str)  # what Optuna accepts as a category


def to_study(search: Any, study_name: str | None, storage: Any) -> Any:
    """Return a study with a trial for each model of a fitted search.

    The scores of a model are the intermediate values of its trial. A model that was dropped is a
    pruned trial, and a model that failed a failed one.
    """
    require("tpe", "to_optuna")
    import optuna

    check_is_fitted(search, "history_")
    results = search.cv_results_
    longest = max(results["partial_fit_calls"])
    names = sorted({name for params in results["params"] for name in params})
    kinds = {
        name: _distribution(
            optuna, [params[name] for params in results["params"] if name in params]
        )
        for name in names
    }
    try:
        study = optuna.create_study(study_name=study_name, storage=storage, direction="maximize")
    except optuna.exceptions.DuplicatedStudyError as error:
        raise ValueError(
            f"The storage already has a study with study_name={study_name!r}. Pass another name, "
            "or delete that study with optuna.delete_study."
        ) from error
    states = optuna.trial.TrialState
    brackets = results.get("bracket", [0] * len(results["params"]))
    for i, params in enumerate(results["params"]):
        model = results["model_id"][i].item()
        score = float(results["test_score"][i])
        rows = search.model_history_[model]
        state = states.COMPLETE if results["partial_fit_calls"][i] == longest else states.PRUNED
        state = states.FAIL if math.isnan(score) else state
        trial = optuna.trial.create_trial(
            state=state,
            value=None if state == states.FAIL else score,
            params={name: _plain(params[name], kinds[name]) for name in params},
            distributions={name: kinds[name] for name in params},
            intermediate_values={
                row["partial_fit_calls"]: row["score"]
                for row in rows
                if not math.isnan(row["score"])
            },
            user_attrs={"model_id": model, "bracket": int(brackets[i])},
        )
        study.add_trial(trial)
    return study


def _distribution(optuna: Any, values: Sequence[Any]) -> Any:
    """Return the distribution of the values that were drawn; they are all that is known."""
    items = [value.item() if hasattr(value, "item") else value for value in values]
    if all(type(item) is int for item in items):
        return optuna.distributions.IntDistribution(min(items), max(items))
    if all(type(item) in (int, float) and math.isfinite(item) for item in items):
        low, high = float(min(items)), float(max(items))
        return optuna.distributions.FloatDistribution(low, high, log=0 < low < high / 100)
    shown = dict.fromkeys(item if isinstance(item, PLAIN) else repr(item) for item in items)
    return optuna.distributions.CategoricalDistribution(list(shown))


def _plain(value: Any, kind: Any) -> Any:
    item = value.item() if hasattr(value, "item") else value
    if not hasattr(kind, "choices"):
        return float(item) if hasattr(kind, "log") and isinstance(item, float) else item
    return item if isinstance(item, PLAIN) else repr(item)
