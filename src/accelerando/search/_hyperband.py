"""Hyperband: all brackets of Algorithm 1, run at once."""

from __future__ import annotations

import math
import warnings
from typing import Any

from accelerando.search._base import BaseSearchCV
from accelerando.search._checks import check_patience
from accelerando.search._halving import successive_halving
from accelerando.search._plan import Bracket, hyperband_brackets
from accelerando.search._sample import Sampler
from accelerando.search._track import Track, track

__all__ = ["HyperbandSearchCV"]


class HyperbandSearchCV(BaseSearchCV):
    """Hyperband: successive halving in brackets from very aggressive to not at all.

    Takes the arguments of Dask-ML's class of this name, and has its attributes. It runs on the
    current Dask client if there is one, else in this process; the result is the same.

    Parameters
    ----------
    estimator : estimator
        Anything with ``partial_fit``, ``get_params`` and ``set_params``. One that holds a Dask
        client in a parameter trains on the cluster itself: its calls are made in this process.
    parameters : dict or list of dicts
        Lists or distributions (with ``rvs``) by name. A model draws from one of several dicts.
    max_iter : int, default=81
        Calls of ``partial_fit`` for the longest trained models.
    aggressiveness : int, default=3
        One in ``aggressiveness`` models survives a rung; 4 suits a first look.
    patience : bool or int, default=False
        Stop a model whose score has not risen by ``tol`` in so many calls. True is
        ``max_iter // aggressiveness``.
    tol : float, default=0.001
        The rise that patience asks for.
    test_size : float or int, optional
        Rows held out for validation, once for all models. Default: a fifth, or one block of a Dask
        array with more than five.
    random_state : int, RandomState or None
        An int makes the search repeatable, on any number of workers. It also seeds every
        ``random_state`` of the models that is None.
    scoring : str, callable, list or dict, optional
        As in scikit-learn; default is the estimator's ``score``.
    verbose : bool, default=False
        Show a progress table.
    prefix : str
        The name of the search in that table.
    predict_meta, predict_proba_meta, transform_meta : array, optional
        An empty array like the result, for Dask arrays; found with one row of zeros by default.
    refit : str or True
        Which of several metrics decides.
    client : "default", None or dask.distributed.Client
        "default": the current client, or this process if there is none. None: this process.
    priority : {"score", "fifo"}
        Train high scorers first, or in the order of the plan. The result is the same, but with
        "score" good models come sooner.
    slice_seconds : float, default=1.5
        Work is cut into pieces of about this length, scored after each, so that a better model does
        not wait for a long rung.
    chunk_size : int, optional
        Rows of a call when the data is in memory; default all. A Dask array has its own blocks.
    sampler : {"random", "tpe"}
        "tpe" draws brackets one after the other, from a density of what the ones before showed.
    error_score : float or "raise", default=nan
        The score of a model that raises. NaN never wins.
    max_seconds, max_calls : optional
        End with the best so far.
    checkpoint : path, optional
        A directory for history and model states; a search that is started again with it goes on
        where it was. The files are pickles: use directories that you trust.

    Attributes
    ----------
    best_estimator_, best_params_, best_score_, best_index_
        The winner; the index is into ``cv_results_``.
    cv_results_ : dict of arrays
        One entry per model.
    history_ : list of dict
        One entry per score, in the order of time; ``model_history_`` has them by model.
    metadata, metadata_ : dict
        The plan, and what was done; equal unless the search ended early.
    best_so_far_ : dict or None
        The best at this moment; ask from another thread while ``fit`` runs.
    stop_reason_ : str
        "finished", "stopped" (by :meth:`stop` or Ctrl-C), "interrupted" (by a second Ctrl-C in the
        middle of a call), "max_seconds" or "max_calls".
    n_iter_ : int
        Calls of the winner.
    n_live_models_ : int
        The largest number of models that were kept at a time. A model lives from its first call
        until its bracket drops it, so this is at most ``metadata["n_models"]``; besides, the best
        of the dropped ones is kept.
    scorer_, n_splits_, multimetric_
        As in scikit-learn.

    References
    ----------
    L. Li, K. Jamieson, G. DeSalvo, A. Rostamizadeh and A. Talwalkar. Hyperband: a novel
    bandit-based approach to hyperparameter optimization. JMLR 18(185), 2018.

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.linear_model import SGDClassifier
    >>> X, y = make_classification(n_samples=400, random_state=0)
    >>> search = HyperbandSearchCV(
    ...     SGDClassifier(), {"alpha": loguniform(1e-5, 1)}, max_iter=9, random_state=0
    ... ).fit(X, y)
    >>> search.metadata_["n_models"], search.metadata_["partial_fit_calls"]
    (17, 69)
    >>> search.score(X, y) > 0.8
    True
    """

    def __init__(
        self,
        estimator: Any,
        parameters: Any,
        max_iter: int = 81,
        aggressiveness: int = 3,
        patience: bool | int = False,
        tol: float = 1e-3,
        test_size: float | int | None = None,
        random_state: Any = None,
        scoring: Any = None,
        verbose: bool | float = False,
        prefix: str = "",
        predict_meta: Any = None,
        predict_proba_meta: Any = None,
        transform_meta: Any = None,
        *,
        refit: str | bool = True,
        client: Any = "default",
        priority: str = "score",
        slice_seconds: float = 1.5,
        chunk_size: int | None = None,
        sampler: str = "random",
        error_score: float | str = math.nan,
        max_seconds: float | None = None,
        max_calls: int | None = None,
        checkpoint: Any = None,
    ) -> None:
        self.estimator = estimator
        self.parameters = parameters
        self.max_iter = max_iter
        self.aggressiveness = aggressiveness
        self.patience = patience
        self.tol = tol
        self.test_size = test_size
        self.random_state = random_state
        self.scoring = scoring
        self.verbose = verbose
        self.prefix = prefix
        self.predict_meta = predict_meta
        self.predict_proba_meta = predict_proba_meta
        self.transform_meta = transform_meta
        self.refit = refit
        self.client = client
        self.priority = priority
        self.slice_seconds = slice_seconds
        self.chunk_size = chunk_size
        self.sampler = sampler
        self.error_score = error_score
        self.max_seconds = max_seconds
        self.max_calls = max_calls
        self.checkpoint = checkpoint

    def _brackets(self) -> tuple[Bracket, ...]:
        return hyperband_brackets(self.max_iter, self.aggressiveness)

    def _tracks(self, sampler: Sampler) -> list[Track]:
        return [track(bracket, successive_halving(bracket)) for bracket in self._brackets()]

    def _patience_calls(self) -> int | None:
        automatic = max(1, self.max_iter // self.aggressiveness)
        calls = check_patience(self.patience, lambda: automatic)
        if calls is not None and calls < automatic:
            warnings.warn(
                f"patience={calls} is less than max_iter // aggressiveness = {automatic}: it will "
                "stop models that Hyperband itself would have judged. Use True or a larger number.",
                stacklevel=3,
            )
        return calls

    def _model_id(self, bracket: int, model: int) -> Any:
        return f"bracket={bracket}-{model}"

    def _described(self, metadata: dict[str, Any]) -> dict[str, Any]:
        plan = {bracket.index: bracket for bracket in self._brackets()}
        for entry in metadata["brackets"]:
            bracket = plan[entry["bracket"]]
            entry["SuccessiveHalvingSearchCV params"] = {
                "n_initial_parameters": bracket.n_models,
                "n_initial_iter": bracket.rungs[0].calls,
                "max_iter": self.max_iter,
                "aggressiveness": self.aggressiveness,
                "patience": self.patience,
                "tol": self.tol,
                "test_size": self.test_size,
                "random_state": self.random_state,
                "scoring": self.scoring,
                "verbose": self.verbose,
                "prefix": self.prefix,
            }
        return metadata
