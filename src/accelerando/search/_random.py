"""Random search, and grids, trained in steps."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

from accelerando.search._base import BaseSearchCV
from accelerando.search._checks import check_positive
from accelerando.search._halving import train_all
from accelerando.search._plan import Bracket, Rung
from accelerando.search._sample import GridSampler, Sampler, check_space
from accelerando.search._track import Track, track

__all__ = ["RandomIncrementalSearchCV"]


class RandomIncrementalSearchCV(BaseSearchCV):
    """Random search in steps: every model gets ``max_iter`` calls, unless patience ends it.

    Parameters
    ----------
    estimator : estimator
        Anything with ``partial_fit``, ``get_params`` and ``set_params``. One that holds a Dask
        client in a parameter trains on the cluster itself: its calls are made in this process.
    parameters : dict or list of dicts
        Lists or distributions (with ``rvs``) by name. A model draws from one of several dicts.
    n_initial_parameters : int or "grid", default=10
        How many models, or every combination of lists.
    max_iter : int, default=100
        Calls of each model.
    fits_per_score : int, default=1
        Calls between scores.
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

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> search = RandomIncrementalSearchCV(
    ...     SGDClassifier(), {"alpha": [1e-4, 1e-2], "penalty": ["l1", "l2"]}, "grid", max_iter=5
    ... )
    >>> search.metadata["n_models"], search.metadata["partial_fit_calls"]
    (4, 20)
    """

    def __init__(
        self,
        estimator: Any,
        parameters: Any,
        n_initial_parameters: int | str = 10,
        test_size: float | int | None = None,
        patience: bool | int = False,
        tol: float = 1e-3,
        fits_per_score: int = 1,
        max_iter: int = 100,
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
        self.n_initial_parameters = n_initial_parameters
        self.test_size = test_size
        self.patience = patience
        self.tol = tol
        self.fits_per_score = fits_per_score
        self.max_iter = max_iter
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

    @property
    def _is_grid(self) -> bool:
        return isinstance(self.n_initial_parameters, str) and self.n_initial_parameters == "grid"

    def _brackets(self) -> tuple[Bracket, ...]:
        check_positive("max_iter", self.max_iter, kind=Integral)
        check_positive("fits_per_score", self.fits_per_score, kind=Integral)
        if self._is_grid:
            return (Bracket(0, (Rung(len(GridSampler(self._lists())), self.max_iter),)),)
        check_positive("n_initial_parameters", self.n_initial_parameters, kind=Integral)
        return (Bracket(0, (Rung(int(self.n_initial_parameters), self.max_iter),)),)

    def _lists(self) -> list[Any]:
        spaces = check_space(self.parameters)
        for space in spaces:
            for name, values in space.items():
                if hasattr(values, "rvs"):
                    raise ValueError(
                        f"parameters[{name!r}] is a distribution, which has no grid. Give a list, "
                        "or a number for n_initial_parameters."
                    )
        return spaces

    def _sampler(self, seed: int) -> Sampler:
        return GridSampler(self._lists()) if self._is_grid else super()._sampler(seed)

    def _tracks(self, sampler: Sampler) -> list[Track]:
        (bracket,) = self._brackets()
        return [track(bracket, train_all(bracket.n_models, bracket.max_calls))]

    def _score_every(self) -> int | None:
        return self.fits_per_score
