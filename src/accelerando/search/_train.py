"""What happens to a model on a worker: some calls of ``partial_fit``, then a score.

Nothing here knows where it runs. A slice is cut by the clock so that priorities can bite, but the
chunk and the random numbers of a call and the scores that decide depend on its number only, so
how a model was cut changes nothing about it.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from distributed import Client
from sklearn.base import BaseEstimator, clone

from accelerando.search._data import Chunk, chunk_of_call, nbytes
from accelerando.search._halving import plateaued

__all__ = ["MAIN", "Recipe", "Report", "Row", "Slice", "State", "copy_estimator", "train_slice"]

MAIN = "score"  # the name of the deciding metric when there is only one


class Row(NamedTuple):
    """One score of a model."""

    calls: int
    scores: dict[str, float]
    fit_seconds: float  # mean over the calls since the row before
    score_seconds: float
    before_end: float  # seconds from this row to the end of the slice


@dataclass(frozen=True)
class Recipe:
    """All that the models of a search share; placed on every worker once."""

    estimator: Any
    scorer: Callable[..., Any]
    metric: str
    seed: int
    n_chunks: int
    fit_params: dict[str, Any] = field(default_factory=dict)
    patience: int | None = None
    tol: float = 0.0
    score_every: int | None = None  # calls between the scores that patience looks at

    def start(self, model: int, params: Mapping[str, Any]) -> State:
        """Make a model that has not been trained."""
        estimator = copy_estimator(self.estimator)
        estimator.set_params(**{name: clone(value, safe=False) for name, value in params.items()})
        _set_random_states(estimator, [self.seed, model])
        return State(estimator)


@dataclass
class State:
    """A model in training. It travels as one piece."""

    estimator: Any
    calls: int = 0
    scores: list[tuple[int, float]] = field(default_factory=list)  # every ``score_every`` calls

    def __sizeof__(self) -> int:
        return 64 + nbytes(self.estimator)


class Slice(NamedTuple):
    """A piece of a job: train ``model`` towards ``stop`` calls, about ``seconds`` long.

    A model whose state was lost is first trained again up to ``start``, with the same chunks and
    random numbers and therefore to the same state.
    """

    model: int
    params: Mapping[str, Any]
    start: int
    stop: int
    limit: int  # not further than this, even if there is time
    seconds: float


@dataclass
class Report:
    """What a slice did."""

    model: int
    calls: int
    rows: list[Row] = field(default_factory=list)
    stopped: bool = False  # on a plateau, or failed
    error: BaseException | None = None
    seconds: float = 0.0
    nbytes: int = 0  # about the size of the model, where that matters


def train_slice(
    recipe: Recipe,
    state: State | None,
    piece: Slice,
    *,
    chunk: Callable[[int], Chunk],
    validation: Chunk,
    halt: Callable[[], bool] = lambda: False,
    alone: bool = True,
) -> tuple[State | None, Report]:
    """Train and score one model; the state that is passed in is changed.

    A ``partial_fit`` or score that raises ends the model: the error is in the report. ``alone``
    says that no other thread of this process trains: then the global random generators are ours
    for the time, and are seeded for every call.
    """
    if not alone:
        return _train(recipe, state, piece, chunk=chunk, validation=validation, halt=halt)
    with _global_generators_restored():
        return _train(
            recipe,
            state,
            piece,
            chunk=chunk,
            validation=validation,
            halt=halt,
            seed=_seed_global_generators,
        )


def _train(
    recipe: Recipe,
    state: State | None,
    piece: Slice,
    *,
    chunk: Callable[[int], Chunk],
    validation: Chunk,
    halt: Callable[[], bool],
    seed: Callable[..., None] = lambda *numbers: None,
) -> tuple[State | None, Report]:
    report = Report(piece.model, piece.start)
    begin = time.perf_counter()
    fit_seconds, fits = 0.0, 0
    ends: list[float] = []
    try:
        if state is None:
            state = recipe.start(piece.model, piece.params)
        while state.calls < piece.stop:
            rows = chunk(chunk_of_call(state.calls, recipe.n_chunks, recipe.seed))
            seed(recipe.seed, piece.model, state.calls)
            before = time.perf_counter()
            _call(state.estimator, rows, recipe.fit_params)
            after = time.perf_counter()
            state.calls += 1
            again = state.calls <= piece.start
            if not again:
                report.calls = state.calls
                fit_seconds += after - before
                fits += 1
            late = after - begin >= piece.seconds or halt()
            over = state.calls >= min(piece.limit, piece.stop) or late
            due = recipe.score_every is not None and state.calls % recipe.score_every == 0
            if not due and (again or not over):
                continue
            seed(recipe.seed, piece.model, -state.calls)
            scores = _score(recipe, state.estimator, validation)
            if due:
                state.scores.append((state.calls, scores[recipe.metric]))
            if again:
                continue
            ends.append(time.perf_counter())
            report.rows.append(Row(state.calls, scores, fit_seconds / fits, ends[-1] - after, 0.0))
            fit_seconds, fits = 0.0, 0
            report.stopped = (
                due
                and recipe.patience is not None
                and plateaued(state.scores, recipe.patience, recipe.tol)
            )
            if over or report.stopped:
                break
    except Exception as error:  # whatever a user's estimator raises must not end the search
        report.error = error
        report.stopped = True
        state = None
    finish = time.perf_counter()
    report.seconds = finish - begin
    report.rows = [
        row._replace(before_end=finish - end) for row, end in zip(report.rows, ends, strict=True)
    ]
    return state, report


def copy_estimator(estimator: Any) -> Any:
    """Clone an estimator, sharing a Dask client that it holds.

    A client is a connection: it cannot be copied, and a copy would not be wanted.
    """
    params = estimator.get_params(deep=False)
    clients = {name: value for name, value in params.items() if isinstance(value, Client)}
    own_clone = getattr(type(estimator), "__sklearn_clone__", None)
    if not clients or own_clone not in (None, BaseEstimator.__sklearn_clone__):
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


def _score(recipe: Recipe, estimator: Any, validation: Chunk) -> dict[str, float]:
    if validation.y is None:
        scores = recipe.scorer(estimator, validation.X)
    else:
        scores = recipe.scorer(estimator, validation.X, validation.y)
    if not isinstance(scores, dict):
        scores = {MAIN: scores}
    return {name: _number(name, value) for name, value in scores.items()}


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"scoring must return a number, got {value!r} of type {type(value)} for {name!r}."
        ) from None


def _set_random_states(estimator: Any, seed: list[int]) -> None:
    """Give a seed to every ``random_state`` that is still None, nested ones too."""
    seeds = np.random.SeedSequence(seed)
    missing = {
        name: int(seeds.spawn(1)[0].generate_state(1)[0] >> 1)
        for name, value in sorted(estimator.get_params(deep=True).items())
        if value is None and (name == "random_state" or name.endswith("__random_state"))
    }
    if missing:
        estimator.set_params(**missing)


@contextlib.contextmanager
def _global_generators_restored() -> Iterator[None]:
    """Leave NumPy's, Python's and PyTorch's global generators as they were found."""
    numpy_state = np.random.get_state()
    python_state = random.getstate()
    torch = sys.modules.get("torch")
    torch_state = torch.get_rng_state() if torch is not None else None
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        if torch is not None:
            torch.set_rng_state(torch_state)


def _seed_global_generators(*numbers: int) -> None:
    """Make a call's draws from global generators depend on its number only.

    Estimators without ``random_state`` (skorch's nets) draw from the global generators. Threads of
    one process share these, so such estimators repeat exactly on workers with one thread only.
    """
    seed = hash(numbers) % (2**32 - 1)
    np.random.seed(seed)
    random.seed(seed)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
