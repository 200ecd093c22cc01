"""Training of one model: some calls of ``partial_fit``, then a score.

The module does not know where it runs. The clock decides how long a slice is, so that priorities
take effect soon. The chunk and the random numbers of a call depend on the number of the call only,
and so do the scores that decide. Therefore the length of the slices does not change the result.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from distributed import Client
from sklearn.base import BaseEstimator, clone

from accelerando.search._data import Chunk, Data, chunk_of_call, take_chunk
from accelerando.search._generators import generators_restored, seed_generators
from accelerando.search._halving import plateaued
from accelerando.search._pipeline import copy_pipeline, is_pipeline, last_step, transform
from accelerando.search._sizes import nbytes
from accelerando.search._unchanged import unchanged

__all__ = ["MAIN_METRIC", "Folds", "Report", "Row", "Slice", "State", "TrainingSpec"]
__all__ += ["copy_estimator", "train_slice"]

MAIN_METRIC = "score"  # name of the deciding metric if there is only one


class Row(NamedTuple):
    """One score of a model."""

    calls: int
    scores: dict[str, float]
    fit_seconds: float  # mean over the calls since the previous row
    score_seconds: float
    before_end: float  # seconds from this row to the end of the slice
    splits: tuple[float, ...] = ()  # the score of each fold, with ``cv``


@dataclass(frozen=True)
class Folds:
    """Rows of the folds of a search with ``cv``, as indices into its only chunk."""

    chunks: list[list[Any]]  # for each fold the rows of each training chunk
    validation: list[Any]

    def rows(self, number: int, whole: Chunk) -> tuple[Callable[[int], Chunk], Chunk]:
        """Return the training chunks and the validation rows of model number `number`."""
        fold = number % len(self.validation)
        chunks, held_out = self.chunks[fold], self.validation[fold]
        return lambda i: take_chunk(whole, chunks[i]), take_chunk(whole, held_out)


@dataclass(frozen=True)
class TrainingSpec:
    """The settings that all models of a search share. Each worker receives them once."""

    estimator: Any
    scorer: Callable[..., Any]
    metric: str
    seed: int
    n_chunks: int
    fit_params: dict[str, Any] = field(default_factory=dict)
    patience: int | None = None
    tol: float | None = 0.0
    score_every: int | None = None  # calls between the scores that patience uses
    max_call_seconds: float | None = None
    folds: Folds | None = None

    def without_scores(self, data: Data) -> TrainingSpec:
        """Return the settings for training without scores, on other data."""
        n = len(data.locations)
        return replace(self, n_chunks=n, patience=None, score_every=None, folds=None)

    def start(self, model: int, params: Mapping[str, Any]) -> State:
        """Return the state of a model before its first call."""
        estimator = copy_estimator(self.estimator)
        estimator.set_params(**{name: clone(value, safe=False) for name, value in params.items()})
        _set_random_states(estimator, [self.seed, model])
        return State(estimator)


@dataclass
class State:
    """A model in training: the unit that moves between workers.

    Checkpoints hold pickles of this class, so its name, module and attributes must not change.
    """

    estimator: Any
    calls: int = 0
    scores: list[tuple[int, float]] = field(default_factory=list)  # every ``score_every`` calls

    def __sizeof__(self) -> int:
        return 64 + nbytes(self.estimator)


class Slice(NamedTuple):
    """A part of a job: train ``model`` toward ``stop`` calls for about ``seconds`` seconds.

    A model whose state was lost is first trained again up to ``start``. It sees the same chunks
    and random numbers, so it reaches the same state.
    """

    model: int
    params: Mapping[str, Any]
    start: int
    stop: int
    limit: int  # upper bound for the calls, even if there is time left
    seconds: float


@dataclass
class Report:
    """Result of a slice."""

    model: int
    calls: int
    rows: list[Row] = field(default_factory=list)
    stopped: bool = False  # on a plateau, or failed
    error: BaseException | None = None
    seconds: float = 0.0
    nbytes: int = 0  # size of the model, on a cluster
    hung: bool = False  # a call took too long and still runs


def train_slice(
    spec: TrainingSpec,
    state: State | None,
    part: Slice,
    *,
    chunk: Callable[[int], Chunk],
    validation: Chunk,
    stop_requested: Callable[[], bool] = lambda: False,
    single_thread: bool = True,
) -> tuple[State | None, Report]:
    """Train and score one model.

    Parameters
    ----------
    spec : TrainingSpec
        Settings of the search.
    state : State or None
        State of the model, which is changed. None starts the model.
    part : Slice
        The work to do.
    chunk : callable
        Returns a chunk of training rows by its index.
    validation : Chunk
        Rows for the score.
    stop_requested : callable
        Returns True if the slice should end after the current call.
    single_thread : bool
        Whether no other thread of this process trains. If so, the global random generators are
        seeded before every call, and restored at the end.

    Returns
    -------
    state : State or None
        None if ``partial_fit`` or the score raised an exception.
    report : Report
        It contains the exception, if there was one.
    """
    if spec.folds is not None:
        chunk, validation = spec.folds.rows(part.model, chunk(0))
    training = _SliceTraining(spec, state, part, chunk, validation, stop_requested)
    if not single_thread:
        return training.run()
    training.seed = seed_generators
    with generators_restored():
        return training.run()


class _SliceTraining:
    """The variables of one slice while it is trained."""

    def __init__(
        self,
        spec: TrainingSpec,
        state: State | None,
        part: Slice,
        chunk: Callable[[int], Chunk],
        validation: Chunk,
        stop_requested: Callable[[], bool],
    ) -> None:
        self.spec = spec
        self.state = state
        self.part = part
        self.chunk = chunk
        self.validation = validation
        self.stop_requested = stop_requested
        self.call = _call_last_step if is_pipeline(spec.estimator) else _call
        self.seed: Callable[..., None] = lambda *numbers: None
        self.report = Report(part.model, part.start)
        self.begin = time.perf_counter()
        self.fit_seconds, self.fits = 0.0, 0  # since the previous row
        self.row_times: list[float] = []

    def run(self) -> tuple[State | None, Report]:
        try:
            if self.state is None:
                self.state = self.spec.start(self.part.model, self.part.params)
            while self.state.calls < self.part.stop and not self._step(self.state):
                pass
        except (Exception, SystemExit) as error:  # of a user's estimator: the search continues
            self.report.error = error
            self.report.hung = isinstance(error, CallTimeoutError)
            self.report.stopped = True
            self.state = None
        end = time.perf_counter()
        self.report.seconds = end - self.begin
        self.report.rows = [
            row._replace(before_end=end - at)
            for row, at in zip(self.report.rows, self.row_times, strict=True)
        ]
        return self.state, self.report

    def _step(self, state: State) -> bool:
        """Make one call, and score the model if a score is due. Return True at the end."""
        spec, part = self.spec, self.part
        rows = self.chunk(chunk_of_call(state.calls, spec.n_chunks, spec.seed))
        self.seed(spec.seed, part.model, state.calls)
        call = partial(self.call, state.estimator, rows, spec.fit_params)
        if spec.max_call_seconds is not None:
            call = partial(_call_in_time, call, spec.max_call_seconds)
        before = time.perf_counter()
        if state.calls:
            call()
        else:
            unchanged("partial_fit", rows, call)
        after = time.perf_counter()
        state.calls += 1
        repeated = state.calls <= part.start  # the model's state had been lost
        if not repeated:
            self.report.calls = state.calls
            self.fit_seconds += after - before
            self.fits += 1
        late = after - self.begin >= part.seconds or self.stop_requested()
        over = not repeated and (state.calls >= min(part.limit, part.stop) or late)
        due = spec.score_every is not None and state.calls % spec.score_every == 0
        if due or over:
            self._score(state, due, None if repeated else after)
        return over or self.report.stopped

    def _score(self, state: State, due: bool, fitted_at: float | None) -> None:
        """Score the model, and add a row unless the calls are repeated (`fitted_at` is None)."""
        spec = self.spec
        self.seed(spec.seed, self.part.model, -state.calls)
        if self.part.start:
            scores = _score(spec, state.estimator, self.validation)
        else:  # the first score of the model
            score = partial(_score, spec, state.estimator, self.validation)
            scores = unchanged("score", self.validation, score)
        if due:
            state.scores.append((state.calls, scores[spec.metric]))
        if fitted_at is None:
            return
        now = time.perf_counter()
        self.row_times.append(now)
        seconds = self.fit_seconds / self.fits
        self.report.rows.append(Row(state.calls, scores, seconds, now - fitted_at, 0.0))
        self.fit_seconds, self.fits = 0.0, 0
        self.report.stopped = (
            due and spec.patience is not None and plateaued(state.scores, spec.patience, spec.tol)
        )


def copy_estimator(estimator: Any) -> Any:
    """Clone an estimator; the clone shares the Dask clients in its parameters.

    A client is a connection and cannot be copied.
    """
    if is_pipeline(estimator):
        return copy_pipeline(estimator)
    if not isinstance(estimator, BaseEstimator) and not hasattr(estimator, "__sklearn_clone__"):
        try:
            return clone(estimator)
        except Exception:  # an object that is like an estimator, but not built like one
            return copy.deepcopy(estimator)
    params = estimator.get_params(deep=False)
    clients = {name: value for name, value in params.items() if isinstance(value, Client)}
    custom_clone = getattr(type(estimator), "__sklearn_clone__", None)
    if not clients or custom_clone not in (None, BaseEstimator.__sklearn_clone__):
        return clone(estimator)
    return type(estimator)(
        **{
            name: value if name in clients else clone(value, safe=False)
            for name, value in params.items()
        }
    )


def _call(estimator: Any, rows: Chunk, fit_params: Mapping[str, Any]) -> None:
    if rows.y is None:
        estimator.partial_fit(rows.X, **fit_params, **rows.params)
    else:
        estimator.partial_fit(rows.X, rows.y, **fit_params, **rows.params)


def _call_last_step(pipeline: Any, rows: Chunk, fit_params: Mapping[str, Any]) -> None:
    _call(last_step(pipeline), rows._replace(X=transform(pipeline, rows.X)), fit_params)


class CallTimeoutError(TimeoutError):
    """A call of ``partial_fit`` took longer than ``max_call_seconds``."""


def _call_in_time(call: Callable[[], None], seconds: float) -> None:
    """Make a call in a thread, and leave the thread behind if the call takes too long."""
    error: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as raised:
            error.append(raised)

    thread = threading.Thread(target=run, name="partial_fit", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise CallTimeoutError(f"partial_fit took longer than max_call_seconds={seconds:g}")
    if error:
        raise error[0]


def _score(spec: TrainingSpec, estimator: Any, validation: Chunk) -> dict[str, float]:
    if validation.y is None:
        scores = spec.scorer(estimator, validation.X)
    else:
        scores = spec.scorer(estimator, validation.X, validation.y)
    if not isinstance(scores, dict):
        scores = {spec.metric: scores}
    if spec.metric not in scores:
        raise ScoringError(
            f"scoring returns a dict with {sorted(scores)}, so refit must name the one of them "
            f"that decides. Got refit={True if spec.metric == MAIN_METRIC else spec.metric!r}."
        )
    return {name: _number(name, value) for name, value in scores.items()}


class ScoringError(ValueError):
    """The scores do not contain the one that decides, which no other model can change."""


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes | np.complexfloating):  # float() would take them
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"scoring must return a number for {name!r}. Got {value!r} of type "
            f"{type(value).__name__} instead."
        ) from None


def _set_random_states(estimator: Any, seed: list[int]) -> None:
    """Set every ``random_state`` that is None, nested ones included, from `seed`."""
    seeds = np.random.SeedSequence(seed)
    missing = {
        name: int(seeds.spawn(1)[0].generate_state(1)[0] >> 1)
        for name, value in sorted(estimator.get_params(deep=True).items())
        if value is None and (name == "random_state" or name.endswith("__random_state"))
    }
    if missing:
        estimator.set_params(**missing)
