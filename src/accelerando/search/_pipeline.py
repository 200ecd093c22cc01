"""Pipelines in a search: the last step is trained, the earlier ones only transform."""

from __future__ import annotations

import copy
from typing import Any

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

__all__ = ["check_pipeline", "copy_pipeline", "is_pipeline", "last_step", "transform"]


def is_pipeline(estimator: Any) -> bool:
    """Return True if `estimator` is a pipeline of scikit-learn, or behaves like one."""
    return hasattr(estimator, "steps") and hasattr(estimator, "named_steps")


def last_step(estimator: Any) -> Any:
    """Return the step of a pipeline that is trained; other estimators are returned as they are."""
    return estimator.steps[-1][1] if is_pipeline(estimator) else estimator


def transform(estimator: Any, X: Any) -> Any:
    """Return X as the last step of a pipeline sees it."""
    if is_pipeline(estimator):
        for _, step in estimator.steps[:-1]:
            X = X if step in (None, "passthrough") else step.transform(X)
    return X


def check_pipeline(pipeline: Any, names: set[str]) -> None:
    """Raise unless all steps before the last can transform without training.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    names : set of str
        Names of the parameters to search.
    """
    for name, step in pipeline.steps[:-1]:
        if step in (None, "passthrough") or not get_tags(step).requires_fit:
            continue
        try:
            check_is_fitted(step)
        except NotFittedError:
            raise ValueError(
                f"The step {name!r} of the pipeline must be stateless or fitted before the search, "
                "because only the last step is trained in steps. Call its fit with the training "
                "rows first."
            ) from None
        searched = sorted(one for one in names if one == name or one.startswith(f"{name}__"))
        if searched:
            raise ValueError(
                f"parameters contains {searched}, but the step {name!r} is already fitted and is "
                "not fitted again. Search parameters of the last step only."
            )


def copy_pipeline(pipeline: Any) -> Any:
    """Return a pipeline with the same fitted steps and an untrained last step."""
    copied = copy.copy(pipeline)
    name, last = pipeline.steps[-1]
    earlier = [(key, copy.deepcopy(step)) for key, step in pipeline.steps[:-1]]
    copied.steps = [*earlier, (name, clone(last))]
    return copied
