"""Checks of a search before anything is trained: parameters, estimator, scoring, fit parameters."""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import cloudpickle
import numpy as np
from distributed import Client, default_client
from sklearn.metrics import check_scoring
from sklearn.utils import get_tags

from accelerando._validation import (
    check,
    check_choice,
    check_integer,
    check_number,
    did_you_mean,
    is_integer,
    is_number,
    parameter_error,
)
from accelerando.exceptions import UnsupportedError
from accelerando.search._limits import limit_seconds
from accelerando.search._parameters import SharedParameters
from accelerando.search._pipeline import check_pipeline, is_pipeline, last_step
from accelerando.search._sample import RandomSampler, check_space, grid_size
from accelerando.search._train import TrainingSpec, copy_estimator

__all__ = [
    "check_estimator",
    "check_fit_params",
    "check_metrics",
    "check_parameters",
    "check_pickle",
    "check_size",
    "choose_client",
    "make_scorer",
    "patience_calls",
    "tags_of",
]


def check_parameters(search: Any, n_brackets: int) -> None:
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
            "sampler='tpe' learns from earlier brackets, but this search has only one. "
            "Use HyperbandSearchCV with max_iter >= aggressiveness, or sampler='random'."
        )
    unlimited = {math.inf: "infinity"}
    check_number(search, "slice_seconds", search.slice_seconds, above=0, also=unlimited)
    check_number(
        search, "max_seconds", search.max_seconds, above=0, also={None: "None", **unlimited}
    )
    seconds = search.max_call_seconds
    check_number(search, "max_call_seconds", seconds, above=0, also={None: "None"})
    target = search.target_score
    check(target is None or is_number(target), search, "target_score", "a number or None", target)
    jobs = search.n_jobs
    allowed = "an integer of at least 1, -1 (all cores) or None"
    check(jobs is None or is_integer(jobs, 1) or jobs == -1, search, "n_jobs", allowed, jobs)
    if jobs is not None and not (search.client is None or search.client == "default"):
        raise ValueError("n_jobs starts its own processes, so client cannot be passed as well.")
    check_choice(search, "refit_all", search.refit_all, (True, False))
    limit_seconds(search)
    given = search.validation_data
    pair = given is None or (isinstance(given, (tuple, list)) and len(given) == 2)
    check(pair, search, "validation_data", "a tuple (X, y) or None", type(given).__name__)
    if given is not None and search.test_size is not None:
        raise ValueError("validation_data takes the place of test_size; pass only one of them.")
    folder = search.checkpoint
    is_path = folder is None or isinstance(folder, (str, os.PathLike))
    check(is_path, search, "checkpoint", "the path of a directory or None", folder)
    if folder is not None and os.path.exists(folder) and not os.path.isdir(folder):
        raise NotADirectoryError(f"checkpoint={str(folder)!r} is a file. Pass a directory.")
    check_integer(search, "max_calls", search.max_calls, also={None: "None"})
    check_tol(search)
    verbose = search.verbose
    shown = isinstance(verbose, (bool, np.bool_)) or (is_number(verbose) and 0 <= verbose <= 1)
    check(shown, search, "verbose", "a Boolean or a number with 0 <= verbose <= 1", verbose)
    check_integer(search, "chunk_size", search.chunk_size, also={None: "None (all rows)"})
    score: Any = search.error_score
    raises = isinstance(score, str) and score == "raise"
    number = isinstance(score, Real) and not isinstance(score, (bool, np.bool_))
    check(raises or number, search, "error_score", "'raise' or a number", score)


def check_tol(search: Any) -> None:
    """Raise unless ``tol`` is a number, nan or None."""
    tol = search.tol
    number = is_number(tol) or (isinstance(tol, Real) and math.isnan(tol))
    check(tol is None or number, search, "tol", "a number, nan or None (which never stop)", tol)


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
    if patience is None or (is_integer(patience, 0) and patience == 0) or patience is False:
        return None
    if patience is True:
        return automatic
    if not is_integer(patience, 2):
        allowed = "an integer of at least 2, False or True (chosen for you)"
        why = (
            "patience must be an integer with patience >= 2: one call would always detect a plateau"
        )
        raise ValueError(f"{parameter_error(search, 'patience', allowed, patience)} ({why}.)")
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
    if not hasattr(last_step(estimator), "partial_fit"):
        trained = type(last_step(estimator)).__name__
        raise TypeError(
            f"estimator must have partial_fit, but {trained} does not have it. The search trains "
            "models in steps. Wrap an estimator that has warm_start (and XGBoost's or LightGBM's) "
            "in accelerando.search.WarmStart; for others use scikit-learn's RandomizedSearchCV."
        )
    if is_pipeline(estimator):
        check_pipeline(estimator, {key for space in check_space(parameters) for key in space})
    known = estimator.get_params(deep=True)
    for parameter in sorted({key for space in check_space(parameters) for key in space}):
        # skorch and other estimators accept names with a prefix that they do not list
        if parameter not in known and "__" not in parameter:
            hint = did_you_mean(parameter, known) or f"Its parameters: {sorted(known)}."
            raise ValueError(
                f"parameters contains {parameter!r}, but {name} has no such parameter. {hint}"
            )
        _check_prefixed(name, parameter, known)
    for space in check_space(parameters):
        _try_parameters(estimator, space)
    tags = tags_of(estimator)
    if y is None and tags is not None and tags.target_tags.required:
        raise ValueError(f"{name} requires y to be passed, but the target y is None")


def _check_prefixed(name: str, parameter: str, known: Mapping[str, Any]) -> None:
    """Raise if a name such as ``module__hiden`` is no argument of what its prefix names.

    skorch passes these arguments on when it builds the module, which is after training has begun.
    """
    prefix, _, rest = parameter.partition("__")
    target = known.get(prefix)
    rest = rest.partition("__")[0]
    if not rest or not callable(target) or hasattr(target, "get_params") or rest == "param_groups":
        return
    try:
        accepted = inspect.signature(target).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return
    if rest in accepted or any(one.kind is one.VAR_KEYWORD for one in accepted.values()):
        return
    hint = did_you_mean(rest, accepted) or f"Its arguments: {sorted(accepted)}."
    raise ValueError(
        f"parameters contains {parameter!r}, but {prefix} of {name}, which is "
        f"{getattr(target, '__name__', target)!r}, has no argument {rest!r}. {hint}"
    )


def _try_parameters(estimator: Any, space: Mapping[str, Any]) -> None:
    """Raise if the estimator refuses parameters of a space."""
    drawn = RandomSampler([space], seed=0).draw(0)
    try:
        copied = copy_estimator(estimator)
    except Exception:  # found when it is sent to workers, and reported there
        return
    try:
        copied.set_params(**drawn)
    except Exception as error:
        raise ValueError(
            f"{type(estimator).__name__}.set_params refuses parameters of the space ({drawn}): "
            f"{error}"
        ) from error


def tags_of(estimator: Any) -> Any:
    """Return the tags of an estimator; None if it has none, which scikit-learn does not allow."""
    return get_tags(estimator) if hasattr(estimator, "__sklearn_tags__") else None


def check_size(search: Any, n_models: int) -> None:
    """Warn if a space of lists has fewer combinations than the plan has models."""
    size = grid_size(check_space(search.parameters))
    if size is not None and size < n_models:
        warnings.warn(
            f"The space has {size} combinations, fewer than the {n_models} models of the plan, so "
            f"each is trained about {n_models / size:.1f} times. Use more values or distributions, "
            'or IncrementalSearchCV with n_initial_parameters="grid".',
            stacklevel=4,
        )


def check_fit_params(estimator: Any, fit_params: Mapping[str, Any]) -> None:
    """Raise unless ``partial_fit`` accepts the parameters that were passed to ``fit``."""
    accepted = inspect.signature(last_step(estimator).partial_fit).parameters
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


def check_metrics(search: Any, scorer: Callable[..., Any]) -> Sequence[str]:
    """Return the names of the metrics if there are several; raise unless ``refit`` is one."""
    metrics = list(getattr(scorer, "_scorers", ()))
    scoring = search.scoring
    own = callable(scoring) and not hasattr(scoring, "_score_func")  # may return a dict
    named = own and isinstance(search.refit, str) and bool(search.refit)
    if not metrics and search.refit is not True and not named:
        allowed = "True (the best model is always kept), because scoring has one metric"
        raise parameter_error(search, "refit", allowed, search.refit)
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
    if client is not None and (client.asynchronous or client.status != "running"):
        allowed = "a connected, synchronous client, because fit waits for its results"
        raise UnsupportedError(str(parameter_error(search, "client", allowed, client)))
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
