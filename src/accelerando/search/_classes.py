"""Classes of a classifier, which the first call of ``partial_fit`` needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
from sklearn.base import is_classifier

from accelerando.search._limits import compute, no_limit
from accelerando.search._pipeline import last_step

__all__ = ["find_classes"]


def find_classes(
    estimator: Any,
    y: Any,
    fit_params: dict[str, Any],
    check: Callable[[], None] = no_limit,
) -> dict[str, Any]:
    """Return the parameter ``classes`` for the first call of a classifier, if it needs one.

    `check` raises if the search must end while a cluster looks for the classes.
    """
    needed = "classes" in inspect.signature(last_step(estimator).partial_fit).parameters
    known = hasattr(estimator, "__sklearn_tags__")
    if y is None or "classes" in fit_params or not (needed and known and is_classifier(estimator)):
        return {}
    if dask.is_dask_collection(y):
        import dask.array as da

        values = y.to_dask_array() if hasattr(y, "to_dask_array") else y
        (found,) = compute(da.unique(values.ravel()), check=check)
        return {"classes": np.sort(found)}
    return {"classes": np.unique(np.asarray(y))}
