"""Base class of the searches: checks, then the driver, then the attributes."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import dask
from distributed import Client
from sklearn.base import clone
from sklearn.utils import check_random_state

from accelerando._dask import has_given_up
from accelerando._progress import LiveDisplay
from accelerando._sklearn import count_rows
from accelerando.search import _checks as checks
from accelerando.search._bracket_run import BracketRun, Settings
from accelerando.search._checkpoint import Checkpoint
from accelerando.search._classes import find_classes
from accelerando.search._cluster import DaskWorkers
from accelerando.search._data import Data, split, without_empty_groups
from accelerando.search._delegate import BestModelMixin
from accelerando.search._driver import Driver
from accelerando.search._fingerprint import fingerprint
from accelerando.search._folds import FoldWorkers, Splits, fold_data, make_splits
from accelerando.search._identity import search_identity
from accelerando.search._limits import Limits, limit_seconds
from accelerando.search._local import LocalWorkers
from accelerando.search._parameters import SharedParameters
from accelerando.search._plan import Bracket, total
from accelerando.search._progress import Progress
from accelerando.search._refit import (
    all_rows,
    futures_resolved,
    opened_client,
    resolve,
    thread_given_back,
    train_once,
)
from accelerando.search._results import (
    best_model,
    cv_results,
    metadata_of,
    model_history,
    without_scheduler,
)
from accelerando.search._running import RunningMixin
from accelerando.search._sample import RandomSampler, Sampler, check_space
from accelerando.search._train import MAIN_METRIC, Slice, TrainingSpec, copy_estimator
from accelerando.search._workers import Workers

__all__ = ["BaseSearchCV"]


class BaseSearchCV(SharedParameters, RunningMixin, BestModelMixin):
    """A search; a subclass decides which brackets it runs."""

    # Positional parameters: each subclass has them, in the order of Dask-ML's class.
    patience: bool | int
    tol: float | None
    test_size: float | int | None
    random_state: Any
    scoring: Any
    verbose: bool | float
    prefix: str

    stop_reason_: str
    _without_columns: tuple[str, ...] = ()  # of history_ and cv_results_
    _is_clone = False  # a clone has its own checkpoint, such as each fold of cross_val_score

    # ---- defined by the subclasses -----------------------------------------------------------

    @abstractmethod
    def _brackets(self) -> tuple[Bracket, ...]:
        """Return the plan, after a check of its parameters."""

    @abstractmethod
    def _bracket_runs(self, n_slots: Callable[[], int] = lambda: 1) -> list[BracketRun]:
        """Return the brackets with the generators that decide.

        `n_slots` returns the number of models that the workers can train at this moment.
        """

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

    def fit(self, X: Any, y: Any = None, *, groups: Any = None, **fit_params: Any) -> Any:
        """Search.

        Parameters
        ----------
        X, y : array-like, Dask array or Dask future
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
        if "_limits" in vars(self):
            raise RuntimeError("fit is running in another thread. Use clone(search) for another.")
        limits = self._limits = Limits(self)
        try:
            with thread_given_back(self, X, y), futures_resolved(self, limits.check):
                return self._fit(*(resolve(v, limits.check) for v in (X, y, groups, fit_params)))
        finally:
            del self._limits

    def _fit(self, X: Any, y: Any, groups: Any, fit_params: dict[str, Any]) -> Any:
        checks.check_parameters(self, len(self._brackets()))
        patience = self._patience_calls()
        checks.check_estimator(self.estimator, self.parameters, y)
        checks.check_fit_params(self.estimator, fit_params)
        scorer = checks.make_scorer(self.estimator, self.scoring)
        metrics = checks.check_metrics(self, scorer)
        check = self._limits.check
        fit_params = {**fit_params, **find_classes(self.estimator, y, fit_params, check)}
        splits = make_splits(self, X, y, groups)
        with (
            self._opened_checkpoint(X, y, groups, fit_params, splits) as (checkpoint, seed),
            opened_client(self) as client,
        ):
            folds = None
            if splits is not None:
                data, constant, folds = fold_data(X, y, splits, self.chunk_size, seed, fit_params)
            else:
                data, constant = split(
                    X,
                    y,
                    test_size=self.test_size,
                    chunk_size=self.chunk_size,
                    seed=seed,
                    groups=groups,
                    fit_params=fit_params,
                    validation=self.validation_data,
                    check=check,
                )
            data = without_empty_groups(data, client, check)
            spec = TrainingSpec(
                estimator=self.estimator,
                scorer=scorer,
                metric=str(self.refit) if isinstance(self.refit, str) else MAIN_METRIC,
                seed=seed,
                n_chunks=len(data.locations) if folds is None else len(folds.chunks[0]),
                folds=folds,
                fit_params=constant,
                patience=patience,
                tol=self.tol,
                score_every=self._score_every(patience),
                max_call_seconds=self.max_call_seconds,
            )
            self._search(spec, data, client, checkpoint, metrics)
            if self.refit_all or folds is not None:
                ended = self._ended
                everything = all_rows(X, y, self.chunk_size, seed, fit_params, client, ended)
                workers = self._workers(spec.without_scores(everything), everything, client)
                with contextlib.closing(workers):
                    self.best_estimator_ = train_once(workers, self._best_job, ended)
            self._copy_feature_names()
        return self

    def to_optuna(self, study_name: str | None = None, storage: Any = None) -> Any:
        """Return the search as a study of Optuna, with a trial for each model.

        Parameters
        ----------
        study_name : str, optional
            Name of the study.
        storage : str or optuna storage, optional
            Where the study is written, such as "sqlite:///search.db", which optuna-dashboard shows.
            By default it is in memory.

        Returns
        -------
        optuna.Study
        """
        from accelerando.search._optuna import to_study

        return to_study(self, study_name, storage)

    # ---- the search --------------------------------------------------------------------------

    def _search(
        self,
        spec: TrainingSpec,
        data: Data,
        client: Client | None,
        checkpoint: Checkpoint | None,
        metrics: Sequence[str],
    ) -> None:
        """Run the driver, and set the attributes while the workers still hold the models."""
        sampler = self._sampler(spec.seed)
        plan = total(self._brackets())
        scheduler = "" if client is None else client.scheduler.address
        limits = self._limits
        limits.restart()

        def show(driver: Driver) -> None:
            display.show(lambda: Progress(driver, plan, self.prefix))

        with contextlib.ExitStack() as stack:
            workers = self._workers(spec, data, client, limits.stopped, limits.over)
            stack.callback(workers.close)
            display = stack.enter_context(LiveDisplay(bool(self.verbose), keep=True))
            self._driver = Driver(
                self._bracket_runs(lambda: workers.n_slots),
                sampler,
                self._settings(spec.metric),
                checkpoint=checkpoint,
                stop_requested=limits.stopped,
                on_progress=show,
                local_workers=lambda: None if data.lazy else self._workers(spec, data, None),
            )
            stack.callback(self.__dict__.pop, "_driver")
            try:
                try:
                    with limits.interrupt:
                        self._driver.run(workers)
                except KeyboardInterrupt:
                    self._driver.reason = "interrupted"
                if checkpoint is not None:
                    checkpoint.flush()  # while the workers hold the states
            except Exception as error:
                if client is not None and has_given_up(client):
                    raise without_scheduler(self._driver, scheduler) from error
                if checkpoint is None or error is not checkpoint.error:
                    raise
                self._driver.reason = "checkpoint"
                self._set_attributes(self._driver, spec.scorer, metrics)
                raise
            self._set_attributes(self._driver, spec.scorer, metrics)

    def _ended(self) -> str | None:
        """Return why no worker should be waited for any longer; None if one may be."""
        return self._limits.reason() if self.stop_reason_ == "finished" else self.stop_reason_

    def _settings(self, metric: str) -> Settings:
        return Settings(
            priority=self.priority,
            slice_seconds=self.slice_seconds,
            max_seconds=limit_seconds(self),
            max_calls=self.max_calls,
            target_score=self.target_score,
            error_score=self.error_score,
            metric=metric,
            model_id=self._model_id,
        )

    def _sampler(self, seed: int) -> Sampler:
        spaces = check_space(self.parameters)
        n_models = sum(bracket.n_models for bracket in self._brackets())
        checks.check_size(self, n_models)
        if self.sampler == "tpe":
            from accelerando.search._tpe import TPESampler

            return TPESampler(spaces, seed, n_models)
        return RandomSampler(spaces, seed, n_models)

    def _workers(
        self,
        spec: TrainingSpec,
        data: Data,
        client: Client | None,
        stop_requested: Callable[[], bool] = lambda: False,
        ended: Callable[[], bool] = lambda: False,
    ) -> Workers:
        if client is not None or self.checkpoint is not None:
            checks.check_pickle(spec)
        if spec.folds is not None:  # patience looks at the mean; all folds make the same calls
            inner = replace(spec, patience=None)
            if client is None:
                return FoldWorkers(LocalWorkers(inner, data, lambda: False), spec)
            return FoldWorkers(DaskWorkers(client, inner, data, ended), spec)
        if client is None:
            return LocalWorkers(spec, data, stop_requested)
        return DaskWorkers(client, spec, data, ended)

    @contextlib.contextmanager
    def _opened_checkpoint(
        self, X: Any, y: Any, groups: Any, fit_params: dict[str, Any], splits: Splits | None
    ) -> Iterator[tuple[Checkpoint | None, int]]:
        """Yield the checkpoint, if there is one, and the seed of the search."""
        random_state = self.random_state
        if self.checkpoint is None:
            yield None, int(check_random_state(random_state).randint(2**31 - 1))
            return
        identity = search_identity(self, X, y, groups, fit_params, self._brackets(), splits)
        directory = Path(self.checkpoint)
        if self._is_clone:
            directory = directory / "clones" / fingerprint(identity).split()[-1]
        rows = X.npartitions if dask.is_dask_collection(X) else count_rows(X)
        former = {
            "search": type(self).__name__,
            "plan": total(self._brackets()),
            "estimator": type(self.estimator).__name__,
            "parameters": [sorted(space) for space in check_space(self.parameters)],
            "rows": int(rows),
            "random_state": repr(self.random_state),
            "patience": self._patience_calls(),
            "sampler": self.sampler,
        }
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        checkpoint = Checkpoint(directory, identity, seed, former)
        try:
            yield checkpoint, checkpoint.seed
        finally:
            checkpoint.close()

    def _set_attributes(
        self, driver: Driver, scorer: Callable[..., Any], metrics: Sequence[str]
    ) -> None:
        best, state = best_model(driver)
        scored = [model for model in driver.models.values() if model.rows]
        history = sorted(driver.history, key=lambda row: float(row["elapsed_wall_time"]))
        self.history_ = [
            {name: value for name, value in row.items() if name not in self._without_columns}
            for row in history
        ]
        self.model_history_ = model_history(self.history_)
        self.metadata_ = self._described(metadata_of(scored, self._brackets()))
        self.best_index_ = scored.index(best)
        self._best_job = Slice(best.number, best.params, best.calls, best.calls, best.calls, inf)
        self.best_estimator_ = state.estimator
        self.best_score_ = best.score
        self.best_params_ = best.params
        several = [name.removeprefix("score_") for name in best.rows[-1] if name[:6] == "score_"]
        several = [name for name in several if name != "time"]
        metrics = metrics or several  # a scorer of the user's own may return a dict
        results = cv_results(scored, metrics)
        self.cv_results_ = {k: v for k, v in results.items() if k not in self._without_columns}
        self.multimetric_ = bool(metrics)
        self.scorer_ = getattr(scorer, "_scorers", scorer)
        self.n_splits_ = len(best.rows[-1].get("split_scores", [0]))
        self.n_iter_ = best.calls
        self.stop_reason_ = driver.reason
        self.n_live_models_ = driver.n_live
        self._best_so_far = self.best_so_far_

    def _copy_feature_names(self) -> None:
        names = getattr(self.best_estimator_, "feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = names

    def __sklearn_clone__(self) -> Any:
        # A Dask client is a connection: it is shared, also if the estimator holds it.
        copies = {"client": lambda value: value, "estimator": _copy}
        params = {
            name: copies[name](value) if name in copies else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        copied = type(self)(**params)
        copied._is_clone = True
        return copied


def _copy(estimator: Any) -> Any:
    return copy_estimator(estimator) if hasattr(estimator, "get_params") else estimator
