"""Base class of the searches: checks, then the driver, then the attributes."""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import dask
from sklearn.base import clone
from sklearn.utils import check_random_state

from accelerando._engine.runtime.process import Interrupt
from accelerando._progress import LiveDisplay
from accelerando._sklearn import count_rows
from accelerando.search import _checks as checks
from accelerando.search._bracket_run import BracketRun, Settings
from accelerando.search._checkpoint import Checkpoint
from accelerando.search._cluster import DaskWorkers
from accelerando.search._data import Data, find_classes, split
from accelerando.search._delegate import BestModelMixin
from accelerando.search._driver import Driver
from accelerando.search._local import LocalWorkers
from accelerando.search._parameters import SharedParameters
from accelerando.search._plan import Bracket, total
from accelerando.search._progress import progress_table
from accelerando.search._results import best_model, cv_results, metadata_of, model_history
from accelerando.search._sample import RandomSampler, Sampler, check_space
from accelerando.search._train import MAIN_METRIC, TrainingSpec, copy_estimator
from accelerando.search._workers import Workers

__all__ = ["BaseSearchCV"]


class BaseSearchCV(SharedParameters, BestModelMixin):
    """A search; a subclass decides which brackets it runs."""

    # Positional parameters: each subclass has them, in the order of Dask-ML's class.
    patience: bool | int
    tol: float
    test_size: float | int | None
    random_state: Any
    scoring: Any
    verbose: bool | float
    prefix: str

    # ---- defined by the subclasses -----------------------------------------------------------

    @abstractmethod
    def _brackets(self) -> tuple[Bracket, ...]:
        """Return the plan, after a check of its parameters."""

    @abstractmethod
    def _bracket_runs(self) -> list[BracketRun]:
        """Return the brackets with the generators that decide."""

    def _patience_calls(self) -> int | None:
        longest = max(bracket.max_calls for bracket in self._brackets())
        return checks.patience_calls(self, automatic=max(1, longest // 3))

    def _score_every(self, patience: int | None) -> int | None:
        """Return the number of calls between two scores for `patience`."""
        return None if patience is None else max(1, patience // 3)

    def _model_id(self, bracket: int, model: int) -> Any:
        return model

    def _described(self, metadata: dict[str, Any]) -> dict[str, Any]:
        return metadata

    # ---- public ------------------------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, Any]:
        """The plan: number of models and calls, in total and per bracket."""
        return self._described(total(self._brackets()))

    @property
    def best_so_far_(self) -> dict[str, Any] | None:
        """The best model at this moment, also while ``fit`` runs in another thread."""
        driver: Driver | None = getattr(self, "_driver", None)
        if driver is not None:
            model = driver.best
            if model is None or not model.rows:
                return None
            keys = ("model_id", "params", "score", "partial_fit_calls", "elapsed_wall_time")
            return {key: model.rows[-1][key] for key in keys}
        return getattr(self, "_best_so_far", None)

    def stop(self) -> None:
        """End a running search; ``fit`` then returns with the best model so far."""
        requested: threading.Event | None = getattr(self, "_stop", None)
        if requested is None:
            raise RuntimeError(
                "stop was called, but no search is running. Call it while fit runs in another "
                "thread."
            )
        requested.set()

    def fit(self, X: Any, y: Any = None, *, groups: Any = None, **fit_params: Any) -> Any:
        """Search.

        Parameters
        ----------
        X, y : array-like or Dask array
            All data. The search holds out ``test_size`` of it for validation, the same rows for
            all models.
        groups : array-like, optional
            Rows with the same label are on the same side of the split.
        **fit_params
            Passed to every ``partial_fit``. Parameters with a value per row, such as
            ``sample_weight``, are split with the rows. ``classes`` is found in ``y`` if the
            estimator needs it.

        Returns
        -------
        self
        """
        checks.check_parameters(self, len(self._brackets()))
        patience = self._patience_calls()
        checks.check_estimator(self.estimator, self.parameters, y)
        checks.check_fit_params(self.estimator, fit_params)
        scorer = checks.make_scorer(self.estimator, self.scoring)
        metrics = checks.check_metrics(self, scorer)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        checkpoint = self._open_checkpoint(X, seed, patience)
        seed = seed if checkpoint is None else checkpoint.seed
        data, constant = split(
            X,
            y,
            test_size=self.test_size,
            chunk_size=self.chunk_size,
            seed=seed,
            groups=groups,
            fit_params={**find_classes(self.estimator, y, fit_params), **fit_params},
        )
        spec = TrainingSpec(
            estimator=self.estimator,
            scorer=scorer,
            metric=str(self.refit) if metrics else MAIN_METRIC,
            seed=seed,
            n_chunks=len(data.locations),
            fit_params=constant,
            patience=patience,
            tol=self.tol,
            score_every=self._score_every(patience),
        )
        self._search(spec, data, checkpoint, metrics)
        return self

    # ---- the search --------------------------------------------------------------------------

    def _search(
        self, spec: TrainingSpec, data: Data, checkpoint: Checkpoint | None, metrics: Sequence[str]
    ) -> None:
        """Run the driver, and set the attributes while the workers still hold the models."""
        sampler = self._sampler(spec.seed)
        plan = self.metadata
        interrupt = Interrupt()
        requested = threading.Event()

        def stop_requested() -> bool:
            return interrupt.pending or requested.is_set()

        def show(driver: Driver) -> None:
            display.show(lambda: progress_table(driver, plan, self.prefix))

        with contextlib.ExitStack() as stack:
            self._stop = requested
            stack.callback(self.__dict__.pop, "_stop")
            workers = self._workers(spec, data, stop_requested)
            stack.callback(workers.close)
            display = stack.enter_context(LiveDisplay(bool(self.verbose), keep=True))
            self._driver = Driver(
                self._bracket_runs(),
                sampler,
                self._settings(spec.metric),
                checkpoint=checkpoint,
                stop_requested=stop_requested,
                on_progress=show,
            )
            stack.callback(self.__dict__.pop, "_driver")
            try:
                with interrupt:
                    self._driver.run(workers)
            except KeyboardInterrupt:
                self._driver.reason = "interrupted"
            self._set_attributes(self._driver, spec.scorer, metrics)

    def _settings(self, metric: str) -> Settings:
        return Settings(
            priority=self.priority,
            slice_seconds=self.slice_seconds,
            max_seconds=self.max_seconds,
            max_calls=self.max_calls,
            error_score=self.error_score,
            metric=metric,
            model_id=self._model_id,
        )

    def _sampler(self, seed: int) -> Sampler:
        spaces = check_space(self.parameters)
        if self.sampler == "tpe":
            from accelerando.search._tpe import TPESampler

            return TPESampler(spaces, seed)
        return RandomSampler(spaces, seed)

    def _workers(
        self, spec: TrainingSpec, data: Data, stop_requested: Callable[[], bool]
    ) -> Workers:
        client = checks.choose_client(self)
        if client is not None or self.checkpoint is not None:
            checks.check_pickle(spec)
        if client is None:
            return LocalWorkers(spec, data, stop_requested)
        return DaskWorkers(client, spec, data)

    def _open_checkpoint(self, X: Any, seed: int, patience: int | None) -> Checkpoint | None:
        if self.checkpoint is None:
            return None
        rows = X.npartitions if dask.is_dask_collection(X) else count_rows(X)
        identity = {
            "search": type(self).__name__,
            "plan": total(self._brackets()),
            "estimator": type(self.estimator).__name__,
            "parameters": [sorted(space) for space in check_space(self.parameters)],
            "rows": int(rows),
            "random_state": repr(self.random_state),
            "patience": patience,
            "sampler": self.sampler,
        }
        return Checkpoint(self.checkpoint, identity, seed)

    def _set_attributes(
        self, driver: Driver, scorer: Callable[..., Any], metrics: Sequence[str]
    ) -> None:
        best, state = best_model(driver)
        scored = [model for model in driver.models.values() if model.rows]
        self.history_ = sorted(driver.history, key=lambda row: float(row["elapsed_wall_time"]))
        self.model_history_ = model_history(self.history_)
        self.cv_results_ = cv_results(scored, metrics)
        self.metadata_ = self._described(metadata_of(scored, self._brackets()))
        self.best_index_ = scored.index(best)
        self.best_estimator_ = state.estimator
        self.best_score_ = best.score
        self.best_params_ = best.params
        self.multimetric_ = bool(metrics)
        self.scorer_ = getattr(scorer, "_scorers", scorer) if metrics else scorer
        self.n_splits_ = 1
        self.n_iter_ = best.calls
        self.stop_reason_ = driver.reason
        self.n_live_models_ = driver.n_live
        self._best_so_far = self.best_so_far_
        names = getattr(state.estimator, "feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = names

    def __sklearn_clone__(self) -> Any:
        # A Dask client is a connection: it is shared, also if the estimator holds it.
        copies = {"client": lambda value: value, "estimator": _copy}
        params = {
            name: copies[name](value) if name in copies else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        return type(self)(**params)


def _copy(estimator: Any) -> Any:
    return copy_estimator(estimator) if hasattr(estimator, "get_params") else estimator
