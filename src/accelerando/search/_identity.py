"""Identity of a search: what must be equal before a search continues from a checkpoint.

Every part of it is a fingerprint, which depends on content only, so that it is the same in another
process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.base import BaseEstimator

from accelerando.search._code import is_users_class
from accelerando.search._fingerprint import attributes_of, fingerprint

__all__ = ["differences", "search_identity"]

# Parameters of a search that change neither its scores nor which models continue.
WITHOUT_INFLUENCE = frozenset(
    (
        "checkpoint", "client", "cv", "estimator", "log", "max_call_seconds", "max_calls",
        "max_seconds", "max_time", "n_jobs", "parameters", "predict_meta", "predict_proba_meta",
        "prefix", "priority", "refit_all", "slice_seconds", "target_score", "transform_meta",
        "verbose",
    )
)  # fmt: skip


def search_identity(
    search: Any,
    X: Any,
    y: Any,
    groups: Any,
    fit_params: Mapping[str, Any],
    plan: Any,
    splits: Any = None,
) -> dict[str, str]:
    """Return what identifies a search, by name.

    Parameters
    ----------
    search : search
        All of its parameters count, unless they are in ``WITHOUT_INFLUENCE``.
    X, y, groups : array-like or Dask collection
        The data. A Dask collection is represented by its token.
    fit_params : mapping
        Parameters of ``partial_fit``.
    plan : object
        The brackets of the search.
    splits : list, optional
        The rows of each fold, which count in place of ``cv``.
    """
    parts: dict[str, Any] = {"X": X, "y": y, "groups": groups}
    if splits is not None:
        parts["splits of cv"] = splits
    parts |= {f"fit parameter {name!r}": value for name, value in fit_params.items()}
    estimator, cls = search.estimator, type(search.estimator)
    kind = f"{cls.__module__}.{cls.__qualname__}"
    parts |= {"search": type(search), "plan": plan, "estimator": kind}
    if is_users_class(cls):
        parts["code of the estimator"] = cls
    if getattr(cls, "__sklearn_clone__", None) is not BaseEstimator.__sklearn_clone__:
        parts["attributes of the estimator"] = attributes_of(estimator)  # its copies may have them
    parts |= {
        f"estimator parameter {name!r}": value
        for name, value in estimator.get_params(deep=False).items()
    }
    spaces = [search.parameters] if isinstance(search.parameters, Mapping) else search.parameters
    for i, space in enumerate(spaces):
        where = "" if len(spaces) == 1 else f" of space {i}"
        parts |= {f"parameters[{name!r}]{where}": values for name, values in space.items()}
    own = search.get_params(deep=False).items()
    parts |= {name: value for name, value in own if name not in WITHOUT_INFLUENCE}
    return {name: fingerprint(value) for name, value in parts.items()}


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return one phrase for each entry that differs.

    Examples
    --------
    >>> differences({"tol": "0.1", "X": "ndarray a1"}, {"tol": "0.2", "X": "ndarray a1"})
    ['tol: saved 0.1, now 0.2']
    """
    return [
        f"{name}: saved {saved.get(name, 'nothing')}, now {now.get(name, 'nothing')}"
        for name in sorted({*saved, *now})
        if saved.get(name) != now.get(name)
    ]
