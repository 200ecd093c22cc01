"""Classes of a classifier, which the first call of ``partial_fit`` needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
from sklearn.base import is_classifier
from sklearn.multioutput import MultiOutputClassifier

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

    A classifier of several outputs gets the classes of each column of `y`. Classes that were passed
    as a Dask collection are computed. `check` raises if the search must end while a cluster looks
    for the classes.
    """
    if dask.is_dask_collection(fit_params.get("classes")):
        (given,) = compute(fit_params["classes"], check=check)
        return {"classes": np.sort(given)}
    last = last_step(estimator)
    needed = "classes" in inspect.signature(last.partial_fit).parameters
    known = hasattr(estimator, "__sklearn_tags__")
    if y is None or "classes" in fit_params or not (needed and known and is_classifier(estimator)):
        return {}
    several = isinstance(last, MultiOutputClassifier)
    if dask.is_dask_collection(y):
        import dask.array as da

        values = y.to_dask_array() if hasattr(y, "to_dask_array") else y
        several = several and values.ndim == 2
        columns = [values] if values.ndim == 1 else [values[:, i] for i in range(values.shape[1])]
        # One by one, because an array of unknown length cannot be raveled.
        found = list(compute(*map(da.unique, columns), check=check))
    else:
        values = np.asarray(y)
        several = several and values.ndim == 2
        found = [_unique(column) for column in (values.T if several else [values])]
    found = [_without_missing(one) for one in found]
    return {"classes": found if several else _unique(np.concatenate(found))}


def _unique(values: Any) -> Any:
    try:
        return np.unique(values)
    except TypeError as error:  # numbers and texts, or None among texts
        kinds = sorted({type(value).__name__ for value in np.ravel(values).tolist()})
        raise ValueError(
            f"y must have labels of one type. Got labels of the types {kinds}. Convert them, for "
            "example to str, or drop the rows without a label."
        ) from error


def _without_missing(classes: Any) -> Any:
    if classes.dtype.kind == "f" and np.isnan(classes).any():
        raise ValueError("y must have a label in every row. Got NaN. Drop these rows.")
    return classes
