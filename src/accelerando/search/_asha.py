"""ASHA: asynchronous successive halving on a simulated clock."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

from accelerando._validation import check, check_integer
from accelerando.search._base import BaseSearchCV
from accelerando.search._bracket_run import BracketRun
from accelerando.search._halving import async_halving
from accelerando.search._parameters import search_class
from accelerando.search._plan import Bracket, Rung

__all__ = ["AsyncHalvingSearchCV"]


@search_class
class AsyncHalvingSearchCV(BaseSearchCV):
    """ASHA: promote a model as soon as it is among the best of its rung, without waiting.

    Parameters
    ----------
    n_initial_parameters : int, default=81
        Number of models at the start.
    n_initial_iter : int, default=1
        Calls of the first rung.
    max_iter : int, default=81
        Calls of the last rung.
    aggressiveness : int, default=3
        The best one in ``aggressiveness`` models of a rung are promoted.
    in_flight : int, default=8
        Number of models in training at a time on the simulated clock (see Notes). More workers
        than this stay idle.

    Attributes
    ----------
    metadata, metadata_ : dict
        The plan, and the work that was done. ``partial_fit_calls`` of the plan is a lower bound:
        promotions that turn out to be premature cost more calls.

    Notes
    -----
    In the paper a promotion depends on which worker finishes first. Here results are processed in
    the order of a simulated clock in which every call takes one unit of time, so that one
    ``random_state`` gives the same search on any number of workers.

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

    n_initial_parameters: int = 81
    n_initial_iter: int = 1
    max_iter: int = 81
    aggressiveness: int = 3
    test_size: float | int | None = None
    patience: bool | int = False
    tol: float = 1e-3
    random_state: Any = None
    scoring: Any = None
    verbose: bool | float = False
    prefix: str = ""
    predict_meta: Any = None
    predict_proba_meta: Any = None
    transform_meta: Any = None
    _: KW_ONLY
    in_flight: int = 8

    def _rung_calls(self) -> tuple[int, ...]:
        calls = [self.n_initial_iter]
        while calls[-1] * self.aggressiveness <= self.max_iter:
            calls.append(calls[-1] * self.aggressiveness)
        # The last rung is max_iter (R of Algorithm 1), not the largest power below it.
        calls[-1] = self.max_iter
        return tuple(calls)

    def _brackets(self) -> tuple[Bracket, ...]:
        """Return the plan if no model is promoted too early."""
        for name in ("n_initial_parameters", "n_initial_iter", "max_iter", "in_flight"):
            check_integer(self, name, getattr(self, name))
        check_integer(self, "aggressiveness", self.aggressiveness, minimum=2)
        first, last = self.n_initial_iter, self.max_iter
        check(last >= first, self, "max_iter", f"at least n_initial_iter={first}", last)
        n, eta = self.n_initial_parameters, self.aggressiveness
        rungs = [Rung(n // eta**k, calls) for k, calls in enumerate(self._rung_calls())]
        return (Bracket(0, tuple(rung for rung in rungs if rung.n_models)),)

    def _bracket_runs(self) -> list[BracketRun]:
        n, calls = self.n_initial_parameters, self._rung_calls()
        steps = async_halving(n, calls, self.aggressiveness, self.in_flight)
        return [BracketRun(self._brackets()[0], steps)]
