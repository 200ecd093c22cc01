"""Cross-validation of the models of a search: each model is trained once per fold.

The driver does not know about folds. It gives slices of models to :class:`FoldWorkers`, which
gives a slice per fold to other workers, and reports the mean of the folds' scores when the last of
them has ended. Folds of one model run at the same time as far as there are free slots.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import dask
import numpy as np
from sklearn.base import is_classifier
from sklearn.model_selection import check_cv

from accelerando._sklearn import count_rows
from accelerando._validation import is_integer, parameter_error
from accelerando.search._data import Chunk, ChunkGroup, Data, divide, rows_of
from accelerando.search._halving import plateaued
from accelerando.search._train import Folds, Report, Row, Slice, State, TrainingSpec
from accelerando.search._workers import Workers

__all__ = ["FoldWorkers", "Splits", "fold_data", "make_splits"]

Splits = list[tuple[Any, Any]]  # (training rows, validation rows) of each fold


def make_splits(search: Any, X: Any, y: Any, groups: Any) -> Splits | None:
    """Return the rows of each fold; None if the search has no ``cv``. Raise if it is wrong."""
    cv = search.cv
    if cv is None:
        return None
    if isinstance(cv, (str, bool, float)) or (is_integer(cv) and cv < 2):
        allowed = "an integer of at least 2, a splitter, an iterable of (train, test) or None"
        raise parameter_error(search, "cv", allowed, cv)
    for name in ("test_size", "validation_data"):
        if getattr(search, name) is not None:
            raise ValueError(f"cv takes the place of {name}; pass only one of them.")
    if any(map(dask.is_dask_collection, (X, y))):
        raise ValueError(
            "cv is supported for data in memory only, but X or y is a Dask collection. Pass NumPy "
            "arrays, or leave cv out: test_size rows of each block are held out then."
        )
    estimator = search.estimator
    stratified = hasattr(estimator, "__sklearn_tags__") and is_classifier(estimator)
    splitter = check_cv(cv, y, classifier=stratified)
    n_rows = count_rows(X)
    splits = [
        (np.arange(n_rows)[train], np.arange(n_rows)[test])  # masks become indices
        for train, test in splitter.split(X, y, groups)
    ]
    if not splits or not all(len(train) and len(test) for train, test in splits):
        found = "no fold at all" if not splits else "a fold without training or validation rows"
        raise ValueError(f"cv must give folds that can be trained and scored. Got {found}.")
    return splits


def fold_data(
    X: Any, y: Any, splits: Splits, chunk_size: int | None, seed: int, fit_params: dict[str, Any]
) -> tuple[Data, dict[str, Any], Folds]:
    """Return all rows as one chunk, the constant fit parameters, and the chunks of each fold.

    The rows are sent to a worker once, not once per fold.
    """
    whole, constant = rows_of(X, y, fit_params)
    # All folds have the same number of chunks, so that a call means the same in each.
    rows = min(len(train) for train, _ in splits)
    n_chunks = 1 if chunk_size is None else max(1, -(-rows // chunk_size))
    orders = [np.random.default_rng([seed, i]).permutation(s[0]) for i, s in enumerate(splits)]
    chunks = [divide(order, chunk_size, n_chunks) for order in orders]
    folds = Folds(chunks, [test for _, test in splits])
    return Data([ChunkGroup([whole])], [(0, 0)], Chunk(None, None, {})), constant, folds


class FoldWorkers:
    """Workers that train a model once per fold. See :class:`Workers` for the methods.

    Slices end after a number of calls, not by the clock, so that all folds have made the same
    calls when their mean is taken.

    Parameters
    ----------
    inner : Workers
        Train the folds; the number of a fold is ``model * n_folds + fold``.
    spec : TrainingSpec
        Settings of the search. Patience looks at the mean, so `inner` must not know it.
    """

    min_task_seconds = 0.0  # a task per fold

    def __init__(self, inner: Workers, spec: TrainingSpec) -> None:
        assert spec.folds is not None
        self.inner = inner
        self.spec = spec
        self.n_folds = len(spec.folds.validation)
        self.queue: deque[tuple[Slice, float]] = deque()
        self.running: dict[int, dict[int, Report]] = {}  # model -> reports that have arrived
        self.calls: dict[int, int] = {}
        self.scores: dict[int, list[tuple[int, float]]] = {}  # means that patience looks at

    @property
    def n_slots(self) -> int:
        """Number of folds that can be trained at a time."""
        return self.inner.n_slots

    @property
    def free_slots(self) -> int:
        """Number of tasks that can be submitted now."""
        return 0 if self.queue else self.inner.free_slots

    @property
    def busy(self) -> bool:
        """Whether a fold is unfinished."""
        return bool(self.running)

    @property
    def present(self) -> bool:
        """Whether there is a worker."""
        return self.inner.present

    def want(self, n_jobs: int) -> None:
        """Say that `n_jobs` models could be trained at the same time."""
        self.inner.want(n_jobs * self.n_folds)

    def most_calls(self, first: int) -> int:
        """Return how many calls from number `first` on a slice makes.

        The first slice of a model is one call, because its duration is not known and the clock
        does not end it. Patience looks at the end of a slice.
        """
        every = None if self.spec.patience is None else self.spec.score_every
        due = math.inf if every is None else every - first % every
        return int(min(1 if first == 0 else self.inner.most_calls(first), due))

    def submit(self, slices: Sequence[Slice], seconds: float) -> None:
        """Start a task per fold of each model."""
        for part in slices:
            self.running[part.model] = {}
            for fold in self._folds_of(part.model):
                own = part._replace(model=fold, seconds=math.inf)
                self.queue.append((own, seconds / len(slices)))
        self._feed()

    def _feed(self) -> None:
        while self.queue and self.inner.free_slots:
            part, seconds = self.queue.popleft()
            self.inner.submit([part], seconds)

    def _folds_of(self, model: int) -> range:
        return range(model * self.n_folds, (model + 1) * self.n_folds)

    def wait(self, timeout: float) -> list[Report]:
        """Return the reports of models whose folds have all ended."""
        self._feed()
        for report in self.inner.wait(timeout):
            self.running[report.model // self.n_folds][report.model % self.n_folds] = report
        self._feed()
        ended = [model for model, seen in self.running.items() if len(seen) == self.n_folds]
        return [self._merge(model, self.running.pop(model)) for model in ended]

    def _merge(self, model: int, seen: dict[int, Report]) -> Report:
        reports = [seen[fold] for fold in range(self.n_folds)]
        calls = min(report.calls for report in reports)
        merged = Report(model, calls, seconds=max(report.seconds for report in reports))
        failed = [report.error for report in reports if report.error is not None]
        rows = zip(*(report.rows for report in reports), strict=not failed)
        merged.rows = [_mean(row, self.spec.metric) for row in rows]
        self.calls[model] = calls
        every, spec = self.spec.score_every, self.spec
        history = self.scores.setdefault(model, [])
        for row in merged.rows:
            if every is not None and row.calls % every == 0:
                history.append((row.calls, row.scores[spec.metric]))
        if failed:
            merged.error, merged.stopped = failed[0], True
            self.inner.drop(list(self._folds_of(model)))
        elif spec.patience is not None and history and history[-1][0] == calls:
            merged.stopped = plateaued(history, spec.patience, spec.tol)
        return merged

    def location(self, model: int) -> str | None:
        """Return a worker that holds a fold of `model`; None if the model has no state."""
        return self.inner.location(self._folds_of(model)[0])

    def drop(self, models: Sequence[int]) -> None:
        """Release the states of models that are no longer needed."""
        self.inner.drop([fold for model in models for fold in self._folds_of(model)])

    def put(self, model: int, state: State) -> None:
        """Store a state that was read from a checkpoint."""
        self.calls[model], self.scores[model] = state.calls, list(state.scores)
        for fold, blob in zip(self._folds_of(model), state.estimator, strict=True):
            self.inner.put(fold, cloudpickle.loads(blob))

    def get(self, model: int) -> State | None:
        """Return a state without an estimator: the winner is trained again on all rows."""
        return State(None, self.calls[model]) if model in self.calls else None

    def pickled(self, model: int) -> Callable[[], bytes | None]:
        """Return a function that returns the pickled states that the folds have now."""
        folds = [self.inner.pickled(fold) for fold in self._folds_of(model)]
        calls, scores = self.calls.get(model, 0), list(self.scores.get(model, ()))

        def dumped() -> bytes | None:
            blobs = [blob() for blob in folds]
            if any(blob is None for blob in blobs):
                return None
            return bytes(cloudpickle.dumps(State(blobs, calls, scores)))

        return dumped

    def close(self) -> None:
        """Cancel unfinished tasks and release all resources."""
        self.queue.clear()
        self.running.clear()
        self.inner.close()


def _mean(rows: Sequence[Row], metric: str) -> Row:
    """Return the mean of the rows that the folds have for the same call."""
    names = rows[0].scores
    return Row(
        rows[0].calls,
        {name: float(np.mean([row.scores[name] for row in rows])) for name in names},
        float(np.mean([row.fit_seconds for row in rows])),
        float(np.mean([row.score_seconds for row in rows])),
        min(row.before_end for row in rows),
        tuple(row.scores[metric] for row in rows),
    )
