"""The face of every search: checks first, then the driver, then the attributes."""

from __future__ import annotations

import inspect
import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import cloudpickle
import dask
import numpy as np
from distributed import Client, default_client
from sklearn.base import is_classifier
from sklearn.metrics import check_scoring
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.validation import _num_samples

from accelerando._interrupt import Interrupt
from accelerando._progress import LiveDisplay
from accelerando.search._checkpoint import Checkpoint
from accelerando.search._checks import check_choice, check_patience, check_positive
from accelerando.search._cluster import Cluster
from accelerando.search._data import Data, split
from accelerando.search._delegate import BestModelMixin
from accelerando.search._local import ThisProcess
from accelerando.search._plan import Bracket, total
from accelerando.search._progress import progress_table
from accelerando.search._results import cv_results, metadata_of, model_history
from accelerando.search._run import Run, Workers
from accelerando.search._sample import RandomSampler, Sampler, check_space
from accelerando.search._track import Settings, Track
from accelerando.search._train import MAIN, Recipe, copy_estimator

__all__ = ["BaseSearchCV"]


class BaseSearchCV(BestModelMixin):
    """What the searches share; a search says which brackets it runs."""

    # ---- what a search says of itself --------------------------------------------------------

    @abstractmethod
    def _brackets(self) -> tuple[Bracket, ...]:
        """Return the plan, before anything is trained."""

    @abstractmethod
    def _tracks(self, sampler: Sampler) -> list[Track]:
        """Return the generators that carry the plan out."""

    def _patience_calls(self) -> int | None:
        return check_patience(self.patience, lambda: max(1, self._longest() // 3))

    def _score_every(self) -> int | None:
        patience = self._patience_calls()
        return None if patience is None else max(1, patience // 3)

    def _longest(self) -> int:
        return max(bracket.max_calls for bracket in self._brackets())

    def _model_id(self, bracket: int, model: int) -> Any:
        return model

    # ---- what can be asked -------------------------------------------------------------------

    @property
    def metadata(self) -> dict[str, Any]:
        """The plan: models and calls, in all and by bracket. Asking changes nothing."""
        return self._described(total(self._brackets()))

    def _described(self, metadata: dict[str, Any]) -> dict[str, Any]:
        return metadata

    @property
    def best_so_far_(self) -> dict[str, Any] | None:
        """The best model at this moment, also while ``fit`` runs in another thread."""
        run: Run | None = getattr(self, "_run", None)
        if run is not None:
            model = run.best
            if model is None or not model.rows:
                return None
            keys = ("model_id", "params", "score", "partial_fit_calls", "elapsed_wall_time")
            return {key: model.rows[-1][key] for key in keys}
        return getattr(self, "_best_so_far", None)

    def stop(self) -> None:
        """Ask a running search to end; ``fit`` then returns with the best so far."""
        asked: threading.Event | None = getattr(self, "_stop", None)
        if asked is None:
            raise RuntimeError("no search is running: call stop while fit runs in another thread.")
        asked.set()

    # ---- fit ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, groups: Any = None, **fit_params: Any) -> Any:
        """Search.

        Parameters
        ----------
        X, y : array-like or Dask array
            All data; the search holds out ``test_size`` of it for validation, once for all models.
        groups : array-like, optional
            Rows of a group go to the same side of the split.
        **fit_params
            Passed to every ``partial_fit``. Arguments with a value per row, like
            ``sample_weight``, are split with the rows. ``classes`` is found in ``y`` if the
            estimator needs it.

        Returns
        -------
        self
        """
        settings, scorer, metrics = self._check()
        if y is None and get_tags(self.estimator).target_tags.required:
            raise ValueError(
                f"{type(self.estimator).__name__} requires y to be passed, but the target y is None"
            )
        self._check_taken(fit_params)
        fit_params = {**self._classes(y, fit_params), **fit_params}
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        checkpoint = self._open_checkpoint(X, seed)
        seed = seed if checkpoint is None else checkpoint.seed
        data, constant = split(
            X,
            y,
            test_size=self.test_size,
            chunk_size=self.chunk_size,
            seed=seed,
            groups=groups,
            fit_params=fit_params,
        )
        recipe = Recipe(
            estimator=self.estimator,
            scorer=scorer,
            metric=settings.metric,
            seed=seed,
            n_chunks=len(data.where),
            fit_params=constant,
            patience=self._patience_calls(),
            tol=self.tol,
            score_every=self._score_every(),
        )
        sampler = self._sampler(seed)
        self._stop = threading.Event()
        interrupt = Interrupt()

        def stop_asked() -> bool:
            return interrupt.pending or self._stop.is_set()

        workers = self._workers(recipe, data, stop_asked)
        display = LiveDisplay(bool(self.verbose), keep=True)
        plan = self.metadata
        run = self._run = Run(
            self._tracks(sampler),
            sampler,
            settings,
            checkpoint=checkpoint,
            stop_asked=stop_asked,
            watch=lambda run: display.show(lambda: progress_table(run, plan, self.prefix)),
        )
        try:
            with display:
                try:
                    with interrupt:
                        run.go(workers)
                except KeyboardInterrupt:
                    run.reason = "interrupted"
                self._keep(run, scorer, metrics)
        finally:
            workers.close()
            del self._run, self._stop
        return self

    def _keep(self, run: Run, scorer: Callable[..., Any], metrics: Sequence[str]) -> None:
        scored = [model for model in run.models.values() if model.rows]
        best, state = _best_with_state(run)
        if best is None:
            raise_without_best(run, len(scored))
        self.history_ = sorted(run.history, key=lambda row: float(row["elapsed_wall_time"]))
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
        self.stop_reason_ = run.reason
        self.n_live_models_ = run.n_live
        self._best_so_far = self.best_so_far_
        names = getattr(state.estimator, "feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = names

    # ---- checks, before hours are spent ------------------------------------------------------

    def _check(self) -> tuple[Settings, Callable[..., Any], list[str]]:
        self._brackets()
        self._patience_calls()
        if not hasattr(self.estimator, "partial_fit"):
            raise TypeError(
                f"estimator must have partial_fit, but {type(self.estimator).__name__} has not. "
                "The search trains models in steps; for estimators that only fit, use "
                "scikit-learn's RandomizedSearchCV."
            )
        check_choice("priority", self.priority, ("score", "fifo"))
        check_choice("sampler", self.sampler, ("random", "tpe"))
        if self.sampler == "tpe" and len(self._brackets()) == 1:
            raise ValueError(
                "sampler='tpe' learns from brackets that are over, and this search has only one. "
                "Use HyperbandSearchCV with max_iter >= aggressiveness, or sampler='random'."
            )
        check_positive("slice_seconds", self.slice_seconds)
        check_positive("max_seconds", self.max_seconds, optional=True)
        check_positive("max_calls", self.max_calls, optional=True, kind=Integral)
        raises = isinstance(self.error_score, str) and self.error_score == "raise"
        if not raises and not isinstance(self.error_score, Real):
            raise ValueError(f"error_score must be 'raise' or a number, got {self.error_score!r}.")
        spaces = check_space(self.parameters)
        known = self.estimator.get_params(deep=True)
        for name in sorted({name for space in spaces for name in space}):
            # skorch and other estimators accept names that they do not list, by their prefix
            if name not in known and "__" not in name:
                raise ValueError(
                    f"parameters has {name!r}, which {type(self.estimator).__name__} does not "
                    f"know; it knows {sorted(known)}."
                )
        scorer = self._scorer()
        metrics = list(getattr(scorer, "_scorers", ()))
        if metrics and self.refit not in metrics:
            raise ValueError(
                f"refit must name the metric that decides, one of {metrics}, because scoring has "
                f"several; got {self.refit!r}."
            )
        settings = Settings(
            priority=self.priority,
            slice_seconds=self.slice_seconds,
            max_seconds=self.max_seconds,
            max_calls=self.max_calls,
            error_score=self.error_score,
            metric=self.refit if metrics else MAIN,
            model_id=self._model_id,
        )
        return settings, scorer, metrics

    def _check_taken(self, fit_params: dict[str, Any]) -> None:
        taken = inspect.signature(self.estimator.partial_fit).parameters
        unknown = sorted(set(fit_params) - set(taken))
        if unknown and not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
            raise TypeError(
                f"fit got {unknown}, but {type(self.estimator).__name__}.partial_fit takes only "
                f"{sorted(taken)}."
            )

    def _scorer(self) -> Callable[..., Any]:
        if hasattr(self.estimator, "fit"):
            scorer: Callable[..., Any] = check_scoring(self.estimator, scoring=self.scoring)
            return scorer
        # scikit-learn insists on fit, which a search in steps has no use for
        if self.scoring is not None:
            scorer = check_scoring(scoring=self.scoring)
            return scorer
        if not hasattr(self.estimator, "score"):
            raise TypeError(
                f"scoring is None, so estimator must have score, but "
                f"{type(self.estimator).__name__} has not. Pass scoring='accuracy', for example."
            )
        return _own_score

    def _classes(self, y: Any, fit_params: dict[str, Any]) -> dict[str, Any]:
        """Find the classes that a classifier must be told at its first call."""
        wanted = "classes" in inspect.signature(self.estimator.partial_fit).parameters
        if y is None or "classes" in fit_params or not wanted or not is_classifier(self.estimator):
            return {}
        if dask.is_dask_collection(y):
            import dask.array as da

            values = y.to_dask_array() if hasattr(y, "to_dask_array") else y
            return {"classes": np.sort(da.unique(values.ravel()).compute())}
        return {"classes": np.unique(np.asarray(y))}

    def _sampler(self, seed: int) -> Sampler:
        spaces = check_space(self.parameters)
        if self.sampler == "tpe":
            from accelerando.search._tpe import TPESampler

            return TPESampler(spaces, seed)
        return RandomSampler(spaces, seed)

    def _workers(self, recipe: Recipe, data: Data, stop_asked: Callable[[], bool]) -> Workers:
        client = self.client
        if isinstance(client, str) and client == "default":
            try:
                client = default_client()
            except ValueError:
                client = None
        if client is not None and not isinstance(client, Client):
            raise TypeError(f"client must be 'default', None or a dask Client, got {client!r}.")
        if _holds_client(self.estimator):
            client = None  # it trains on the cluster itself; its workers must not wait for ours
        if client is not None or self.checkpoint is not None:
            _check_pickle(recipe)
        if client is None:
            return ThisProcess(recipe, data, stop_asked)
        if client.asynchronous:
            raise TypeError("client must not be asynchronous: fit waits for its results.")
        return Cluster(client, recipe, data)

    def _open_checkpoint(self, X: Any, seed: int) -> Checkpoint | None:
        if self.checkpoint is None:
            return None
        rows = X.npartitions if dask.is_dask_collection(X) else _num_samples(X)
        spaces = check_space(self.parameters)
        identity = {
            "search": type(self).__name__,
            "plan": total(self._brackets()),
            "estimator": type(self.estimator).__name__,
            "parameters": [sorted(space) for space in spaces],
            "rows": int(rows),
            "random_state": repr(self.random_state),
            "patience": self._patience_calls(),
            "sampler": self.sampler,
        }
        return Checkpoint(self.checkpoint, identity, seed)

    def __sklearn_clone__(self) -> Any:
        from sklearn.base import clone

        # A client is a connection and cannot be copied, nor can one that the estimator holds.
        copies = {"client": lambda value: value, "estimator": _copied}
        params = {
            name: copies[name](value) if name in copies else clone(value, safe=False)
            for name, value in self.get_params(deep=False).items()
        }
        return type(self)(**params)


def raise_without_best(run: Run, n_scored: int) -> None:
    """Say why there is no best model."""
    if n_scored:
        raise ValueError(
            f"all {n_scored} scored models have the score NaN, so there is no best one"
            + (f"; the last failure was {run.last_error!r}." if run.last_error else ".")
        )
    if run.reason == "interrupted":
        raise KeyboardInterrupt("the search was stopped before a model was scored")
    raise ValueError(f"the search ended ({run.reason}) before a model was scored.")


def _best_with_state(run: Run) -> tuple[Any, Any]:
    """Return the best model and its state.

    Only a model that a second Ctrl-C caught in the middle of a call has no state; then it is the
    next best.
    """
    scored = [m for m in run.models.values() if m.score is not None and not math.isnan(m.score)]
    for model in sorted(scored, key=lambda m: (-(m.score or 0.0), m.number)):
        state = run.state_of(model)
        if state is not None:
            return model, state
    return None, None


def _copied(estimator: Any) -> Any:
    return copy_estimator(estimator) if hasattr(estimator, "get_params") else estimator


def _own_score(estimator: Any, *rows: Any) -> Any:
    return estimator.score(*rows)


def _holds_client(estimator: Any) -> bool:
    return any(isinstance(value, Client) for value in estimator.get_params(deep=True).values())


def _check_pickle(recipe: Recipe) -> None:
    try:
        cloudpickle.dumps(recipe)
    except Exception as error:
        raise TypeError(
            f"estimator {type(recipe.estimator).__name__} or scoring cannot be pickled ({error}), "
            "so it can neither be sent to workers nor saved. Pass client=None and no checkpoint "
            "to search in this process. (A Dask client in a parameter cannot be saved either.)"
        ) from error
