"""Checks of a search before anything is trained: parameters, estimator, scoring, fit parameters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import cloudpickle
from distributed import Client, default_client
from sklearn.metrics import check_scoring
from sklearn.utils import get_tags

from accelerando._validation import (
    check,
    check_choice,
    check_integer,
    check_number,
    did_you_mean,
    parameter_error,
)
from accelerando.search._parameters import SharedParameters
from accelerando.search._sample import check_space
from accelerando.search._train import TrainingSpec

__all__ = [
    "check_estimator",
    "check_fit_params",
    "check_metrics",
    "check_parameters",
    "check_pickle",
    "choose_client",
    "make_scorer",
    "patience_calls",
]


def check_parameters(search: SharedParameters, n_brackets: int) -> None:
    """Raise unless the shared parameters of a search are valid.

    Parameters
    ----------
    search : SharedParameters
        The search.
    n_brackets : int
        Number of brackets in its plan.
    """
    check_choice(search, "priority", search.priority, ("score", "fifo"))
    check_choice(search, "sampler", search.sampler, ("random", "tpe"))
    if search.sampler == "tpe" and n_brackets == 1:
        raise ValueError(
            "sampler='tpe' learns from brackets that have ended, but this search has only one. "
            "Use HyperbandSearchCV with max_iter >= aggressiveness, or sampler='random'."
        )
    unlimited = {math.inf: "infinity"}
    check_number(search, "slice_seconds", search.slice_seconds, above=0, also=unlimited)
    check_number(
        search, "max_seconds", search.max_seconds, above=0, also={None: "None", **unlimited}
    )
    check_integer(search, "max_calls", search.max_calls, also={None: "None"})
    check_integer(search, "chunk_size", search.chunk_size, also={None: "None (all rows)"})
    score: Any = search.error_score
    raises = isinstance(score, str) and score == "raise"
    check(raises or isinstance(score, Real), search, "error_score", "'raise' or a number", score)


def patience_calls(search: Any, automatic: int) -> int | None:
    """Return the calls to wait for an improvement; None if models are not stopped.

    Parameters
    ----------
    search : search
        Has the parameter ``patience``.
    automatic : int
        The number for ``patience=True``.
    """
    patience = search.patience
    if patience is None or patience is False:
        return None
    if patience is True:
        return automatic
    further = {False: "False", True: "True (chosen for you)"}
    check_integer(search, "patience", patience, minimum=2, also=further)
    return int(patience)


def check_estimator(estimator: Any, parameters: Any, y: Any) -> None:
    """Raise unless the estimator can be trained in steps and has the parameters to search.

    Parameters
    ----------
    estimator : estimator
        The estimator.
    parameters : dict or list of dicts
        The spaces to search.
    y : array-like or None
        The targets.
    """
    name = type(estimator).__name__
    if not hasattr(estimator, "partial_fit"):
        raise TypeError(
            f"estimator must have partial_fit, but {name} does not have it. The search trains "
            "models in steps. For estimators that only have fit, use scikit-learn's "
            "RandomizedSearchCV."
        )
    known = estimator.get_params(deep=True)
    for parameter in sorted({key for space in check_space(parameters) for key in space}):
        # skorch and other estimators accept names with a prefix that they do not list
        if parameter not in known and "__" not in parameter:
            hint = did_you_mean(parameter, known) or f"Its parameters: {sorted(known)}."
            raise ValueError(
                f"parameters contains {parameter!r}, but {name} has no such parameter. {hint}"
            )
    if y is None and get_tags(estimator).target_tags.required:
        raise ValueError(f"{name} requires y to be passed, but the target y is None")


def check_fit_params(estimator: Any, fit_params: Mapping[str, Any]) -> None:
    """Raise unless ``partial_fit`` accepts the parameters that were passed to ``fit``."""
    accepted = inspect.signature(estimator.partial_fit).parameters
    unknown = sorted(set(fit_params) - set(accepted))
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in accepted.values()):
        raise TypeError(
            f"fit got {unknown}, but {type(estimator).__name__}.partial_fit accepts only "
            f"{sorted(accepted)}."
        )


def make_scorer(estimator: Any, scoring: Any) -> Callable[..., Any]:
    """Return the scorer for `scoring`; by default the ``score`` method of the estimator."""
    scorer: Callable[..., Any]
    if hasattr(estimator, "fit"):
        scorer = check_scoring(estimator, scoring=scoring)
        return scorer
    # scikit-learn requires fit, which a search in steps does not need
    if scoring is not None:
        scorer = check_scoring(scoring=scoring)
        return scorer
    if not hasattr(estimator, "score"):
        raise TypeError(
            f"scoring is None, so estimator must have score, but {type(estimator).__name__} does "
            "not have it. Pass scoring='accuracy', for example."
        )
    return _score_of_estimator


def _score_of_estimator(estimator: Any, *rows: Any) -> Any:
    return estimator.score(*rows)


def check_metrics(search: SharedParameters, scorer: Callable[..., Any]) -> Sequence[str]:
    """Return the names of the metrics if there are several; raise unless ``refit`` is one."""
    metrics = list(getattr(scorer, "_scorers", ()))
    if metrics and search.refit not in metrics:
        allowed = f"one of {metrics}, the metric that decides, because scoring has several"
        raise parameter_error(search, "refit", allowed, search.refit)
    return metrics


def choose_client(search: SharedParameters) -> Client | None:
    """Return the client that trains the models; None for this process."""
    client = search.client
    if isinstance(client, str) and client == "default":
        try:
            client = default_client()
        except ValueError:
            client = None
    if client is not None and not isinstance(client, Client):
        allowed = "'default', None or a dask.distributed.Client"
        raise TypeError(str(parameter_error(search, "client", allowed, client)))
    values = search.estimator.get_params(deep=True).values()
    if any(isinstance(value, Client) for value in values):
        return None  # the estimator trains on the cluster, and must not wait for our tasks there
    if client is not None and client.asynchronous:
        raise TypeError("client must not be asynchronous, because fit waits for its results.")
    return client


def check_pickle(spec: TrainingSpec) -> None:
    """Raise unless the estimator and the scorer can be sent to workers."""
    try:
        cloudpickle.dumps(spec)
    except Exception as error:
        raise TypeError(
            f"The estimator {type(spec.estimator).__name__} or scoring cannot be pickled "
            f"({error}), so it can neither be sent to workers nor saved. Pass client=None and no "
            "checkpoint to search in this process. (A Dask client in a parameter cannot be saved "
            "either.)"
        ) from error
