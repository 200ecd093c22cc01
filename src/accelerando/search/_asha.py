"""ASHA: asynchronous successive halving, in a clock of its own."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

from accelerando.search._base import BaseSearchCV
from accelerando.search._checks import check_positive
from accelerando.search._halving import async_halving
from accelerando.search._plan import Bracket, Rung, halving_bracket
from accelerando.search._sample import Sampler
from accelerando.search._track import Track, track

__all__ = ["AsyncHalvingSearchCV"]


class AsyncHalvingSearchCV(BaseSearchCV):
    """ASHA: a model is promoted as soon as it is among the best of its rung, no one waits.

    Parameters
    ----------
    estimator : estimator
        Anything with ``partial_fit``, ``get_params`` and ``set_params``. One that holds a Dask
        client in a parameter trains on the cluster itself: its calls are made in this process.
    parameters : dict or list of dicts
        Lists or distributions (with ``rvs``) by name. A model draws from one of several dicts.
    n_initial_parameters : int, default=81
        How many models start.
    n_initial_iter : int, default=1
        Calls of the first rung.
    max_iter : int, default=81
        Calls of the last rung.
    aggressiveness : int, default=3
        The best one in ``aggressiveness`` models of a rung are promoted.
    in_flight : int, default=8
        How many models the algorithm has in training at a time, in its own clock (see Notes).
        More workers than this stay idle.
    test_size : float or int, optional
        Rows held out for validation, once for all models. Default: a fifth, or one block of a Dask
        array with more than five.
    patience : bool or int, default=False
        Stop a model whose score has not risen by ``tol`` in so many calls. True is a third of the
        calls of the longest trained models.
    tol : float, default=0.001
        The rise that patience asks for.
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
    sampler : {"random"}
        How parameters are drawn. "tpe" is refused: it learns from brackets that are over, and here
        there is only one; :class:`HyperbandSearchCV` has several.
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
        The plan, and what was done. ``partial_fit_calls`` of the plan is what it needs at least:
        early promotions that turn out not to be among the best cost more, and ``metadata_`` says
        how much.
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

    Notes
    -----
    In the paper a promotion depends on which worker finished first. Here results are taken in the
    order of a clock in which every call takes one unit, so that a ``random_state`` gives the same
    search on any number of workers.

    References
    ----------
    L. Li et al. A system for massively parallel hyperparameter tuning. MLSys 2020.

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> search = AsyncHalvingSearchCV(SGDClassifier(), {"alpha": [1e-4, 1e-2]}, max_iter=9)
    >>> search.metadata["brackets"][0]["decisions"]
    [1, 3, 9]
    """

    def __init__(
        self,
        estimator: Any,
        parameters: Any,
        n_initial_parameters: int = 81,
        n_initial_iter: int = 1,
        max_iter: int = 81,
        aggressiveness: int = 3,
        test_size: float | int | None = None,
        patience: bool | int = False,
        tol: float = 1e-3,
        random_state: Any = None,
        scoring: Any = None,
        verbose: bool | float = False,
        prefix: str = "",
        predict_meta: Any = None,
        predict_proba_meta: Any = None,
        transform_meta: Any = None,
        *,
        in_flight: int = 8,
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
        self.n_initial_parameters = n_initial_parameters
        self.n_initial_iter = n_initial_iter
        self.max_iter = max_iter
        self.aggressiveness = aggressiveness
        self.test_size = test_size
        self.patience = patience
        self.tol = tol
        self.random_state = random_state
        self.scoring = scoring
        self.verbose = verbose
        self.prefix = prefix
        self.predict_meta = predict_meta
        self.predict_proba_meta = predict_proba_meta
        self.transform_meta = transform_meta
        self.in_flight = in_flight
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

    def _rung_calls(self) -> tuple[int, ...]:
        calls = [self.n_initial_iter]
        while calls[-1] * self.aggressiveness <= self.max_iter:
            calls.append(calls[-1] * self.aggressiveness)
        # Algorithm 1's R: the last rung is exactly max_iter, not a power that falls short of it.
        calls[-1] = self.max_iter
        return tuple(calls)

    def _brackets(self) -> tuple[Bracket, ...]:
        check_positive("in_flight", self.in_flight, kind=Integral)
        # Checks the arguments, and is the plan when no model is promoted too early.
        halving_bracket(self.n_initial_parameters, self.n_initial_iter, self.aggressiveness)
        check_positive("max_iter", self.max_iter, kind=Integral)
        if self.max_iter < self.n_initial_iter:
            raise ValueError(
                f"max_iter={self.max_iter} must be at least n_initial_iter={self.n_initial_iter}."
            )
        n, eta = self.n_initial_parameters, self.aggressiveness
        rungs = [Rung(n // eta**k, calls) for k, calls in enumerate(self._rung_calls())]
        return (Bracket(0, tuple(rung for rung in rungs if rung.n_models)),)

    def _tracks(self, sampler: Sampler) -> list[Track]:
        n, calls = self.n_initial_parameters, self._rung_calls()
        steps = async_halving(n, calls, self.aggressiveness, self.in_flight)
        return [track(self._brackets()[0], steps)]
