"""ASHA: asynchronous successive halving on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any

from accelerando._validation import check, check_choice, check_integer
from accelerando.search._base import BaseSearchCV
from accelerando.search._bracket_run import BracketRun
from accelerando.search._halving import async_halving
from accelerando.search._parameters import search_class
from accelerando.search._plan import Bracket, Rung

__all__ = ["AsyncHalvingSearchCV"]

IN_FLIGHT = 8  # a number that does not depend on the workers


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
    in_flight : int, optional
        Number of models in training at a time. More workers than this stay idle. By default it is
        8, or, if ``deterministic`` is False, twice the number of models that the workers can train
        at this moment.
    deterministic : bool, default=True
        True makes the same decisions on any number of workers. False decides in the order in which
        models arrive, so that no worker waits for a slow model (see Notes).

    Attributes
    ----------
    metadata, metadata_ : dict
        The plan, and the work that was done. ``partial_fit_calls`` of the plan is a lower bound:
        promotions that turn out to be premature cost more calls.

    Notes
    -----
    In the paper a promotion depends on which worker finishes first. Here results are processed in
    the order of a simulated clock in which every call takes one unit of time, so that one
    ``random_state`` gives the same search on any number of workers. That has a price: if calls
    take different times, decisions wait for slow models, and so do workers. Calls that differ by a
    factor of ten can keep more than half of the workers idle. Use ``deterministic=False`` then.

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
    tol: float | None = 1e-3
    random_state: Any = None
    scoring: Any = None
    verbose: bool | float = False
    prefix: str = ""
    predict_meta: Any = None
    predict_proba_meta: Any = None
    transform_meta: Any = None
    _: KW_ONLY
    in_flight: int | None = None
    deterministic: bool = True

    def _rung_calls(self) -> tuple[int, ...]:
        calls = [self.n_initial_iter]
        while calls[-1] * self.aggressiveness <= self.max_iter:
            calls.append(calls[-1] * self.aggressiveness)
        # The last rung is max_iter (R of Algorithm 1), not the largest power below it.
        calls[-1] = self.max_iter
        return tuple(calls)

    def _brackets(self) -> tuple[Bracket, ...]:
        """Return the plan if no model is promoted too early."""
        for name in ("n_initial_parameters", "n_initial_iter", "max_iter"):
            check_integer(self, name, getattr(self, name))
        check_integer(self, "in_flight", self.in_flight, also={None: "None (chosen for you)"})
        check_choice(self, "deterministic", self.deterministic, (True, False))
        check_integer(self, "aggressiveness", self.aggressiveness, minimum=2)
        first, last = self.n_initial_iter, self.max_iter
        check(last >= first, self, "max_iter", f"at least n_initial_iter={first}", last)
        n, eta = self.n_initial_parameters, self.aggressiveness
        rungs = [Rung(n // eta**k, calls) for k, calls in enumerate(self._rung_calls())]
        return (Bracket(0, tuple(rung for rung in rungs if rung.n_models)),)

    def _bracket_runs(self, n_slots: Callable[[], int] = lambda: 1) -> list[BracketRun]:
        n, calls = self.n_initial_parameters, self._rung_calls()
        in_flight: int | Callable[[], int]
        if self.in_flight is not None:
            in_flight = self.in_flight
        else:
            in_flight = IN_FLIGHT if self.deterministic else lambda: 2 * n_slots()
        steps = async_halving(n, calls, self.aggressiveness, in_flight, self.deterministic)
        return [BracketRun(self._brackets()[0], steps)]
