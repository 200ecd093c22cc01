"""Search algorithms as generators: each yields jobs and receives scores.

A generator yields a :class:`Step`: the jobs that have become possible (often none) and the models
that it will not need again. It receives one :class:`Outcome` at a time, in any order, and ends when
it needs no more work. It does not train, read a clock or draw random numbers, so the same scores
give the same decisions on one worker and on fifty.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple

from accelerando.search._plan import Bracket

__all__ = [
    "Job",
    "Outcome",
    "Step",
    "Steps",
    "async_halving",
    "best_first",
    "plateaued",
    "successive_halving",
    "train_all",
]


class Job(NamedTuple):
    """Train ``model`` until it has made ``calls`` calls, then score it."""

    model: int
    calls: int


class Outcome(NamedTuple):
    """The score of ``model`` at the end of its job.

    ``stopped`` is True if the model gets no more calls: it reached a plateau, or it failed.
    """

    model: int
    score: float
    stopped: bool = False


class Step(NamedTuple):
    """The jobs that have become possible, and the models that are no longer needed."""

    jobs: Sequence[Job] = ()
    dropped: Sequence[int] = ()


Steps = Generator[Step, Outcome, None]


def best_first(scores: Mapping[int, float]) -> list[int]:
    """Sort models by score, best first. NaN is last; ties are broken by the lower number."""
    return sorted(scores, key=lambda model: _rank(model, scores[model]))


def _rank(model: int, score: float) -> tuple[bool, float, int]:
    missing = math.isnan(score)
    return (missing, 0.0 if missing else -score, model)


def successive_halving(bracket: Bracket) -> Steps:
    """Train all models of a rung, and keep the best for the next rung.

    A model that stopped early keeps its rank with its last score, and gets no more calls.

    Examples
    --------
    >>> from accelerando.search._plan import halving_bracket
    >>> steps = successive_halving(halving_bracket(3, 1))
    >>> [job.model for job in next(steps).jobs]
    [0, 1, 2]
    >>> [len(steps.send(Outcome(model, score)).jobs) for model, score in [(2, 0.9), (0, 0.1)]]
    [0, 0]
    >>> steps.send(Outcome(1, 0.5))
    Step(jobs=[Job(model=2, calls=3)], dropped=[1, 0])
    """
    ranking = list(range(bracket.n_models))
    scores: dict[int, float] = {}
    stopped: set[int] = set()
    for rung in bracket.rungs:
        alive, dropped = ranking[: rung.n_models], ranking[rung.n_models :]
        jobs = [Job(model, rung.calls) for model in alive if model not in stopped]
        step = Step(jobs, dropped)
        for _ in range(len(jobs)):
            outcome = yield step
            step = Step()
            scores[outcome.model] = outcome.score
            if outcome.stopped:
                stopped.add(outcome.model)
        ranking = best_first({model: scores[model] for model in alive})


def train_all(n_models: int, calls: int) -> Steps:
    """Random search: train every model for all its calls, without comparisons."""
    step = Step([Job(model, calls) for model in range(n_models)])
    for _ in range(n_models):
        outcome = yield step
        step = Step(dropped=(outcome.model,))


def async_halving(
    n_models: int,
    rung_calls: Sequence[int],
    aggressiveness: int,
    in_flight: int | Callable[[], int],
    deterministic: bool = True,
) -> Steps:
    """ASHA: whenever a slot is free, promote a model or else start a new one.

    A model of rung k is promoted if it is among the best ``1 / aggressiveness`` of the models that
    have reached rung k so far. In the paper "so far" is the order in which workers finish. Here it
    is the order of a simulated clock, on which `in_flight` models are trained at a time and a call
    takes one unit of time. Outcomes are processed in that order, so the decisions do not depend on
    the speed or the number of the workers. But a slow model holds up all decisions after it. If
    `deterministic` is False, outcomes are processed as they arrive, as in the paper.

    References
    ----------
    L. Li, K. Jamieson, A. Rostamizadeh, E. Gonina, J. Ben-tzur, M. Hardt, B. Recht and
    A. Talwalkar. A system for massively parallel hyperparameter tuning. MLSys 2020, Algorithm 2.
    """
    now = in_flight if callable(in_flight) else lambda: in_flight
    return _AsyncHalving(n_models, rung_calls, aggressiveness, now, deterministic).steps()


class _AsyncHalving:
    """The state of :func:`async_halving`."""

    def __init__(
        self,
        n_models: int,
        rung_calls: Sequence[int],
        aggressiveness: int,
        in_flight: Callable[[], int],
        deterministic: bool,
    ) -> None:
        self.n_models = n_models
        self.rung_calls = rung_calls
        self.aggressiveness = aggressiveness
        self.in_flight = in_flight
        self.deterministic = deterministic
        self.rungs: list[list[tuple[bool, float, int]]] = [[] for _ in rung_calls]  # best first
        self.promoted: list[set[int]] = [set() for _ in rung_calls]
        self.stopped: set[int] = set()
        self.running: list[tuple[int, int, int]] = []  # heap of (clock at the end, model, rung)
        self.clock = 0
        self.n_started = 0

    def steps(self) -> Steps:
        arrived: dict[int, Outcome] = {}
        step = Step(self._fill_slots())
        while self.running:
            outcome = yield step
            arrived[outcome.model] = outcome
            jobs: list[Job] = []
            dropped: list[int] = []
            if not self.deterministic:  # what has arrived is next, whatever its time
                first = next(entry for entry in self.running if entry[1] == outcome.model)
                self.running.remove(first)
                self.running.insert(0, first)
            while self.running and self.running[0][1] in arrived:
                self.clock, model, k = self._pop()
                outcome = arrived.pop(model)
                bisect.insort(self.rungs[k], _rank(model, outcome.score))
                if outcome.stopped:
                    self.stopped.add(model)
                jobs += self._fill_slots()
                dropped += self._drop_hopeless() if k == 0 else []
                dropped += [model] if k == len(self.rungs) - 1 else []
            step = Step(jobs, dropped)

    def _pop(self) -> tuple[int, int, int]:
        if self.deterministic:
            return heapq.heappop(self.running)
        return self.running.pop(0)

    def _fill_slots(self) -> list[Job]:
        jobs = []
        while len(self.running) < self.in_flight() and (chosen := self._next_job()) is not None:
            model, k = chosen
            calls = self.rung_calls[k] - (self.rung_calls[k - 1] if k else 0)
            heapq.heappush(self.running, (self.clock + calls, model, k))
            jobs.append(Job(model, self.rung_calls[k]))
        return jobs

    def _next_job(self) -> tuple[int, int] | None:
        """Return a model and its next rung: a promotion if possible, otherwise a new model."""
        for k in range(len(self.rung_calls) - 2, -1, -1):
            for _, _, model in self.rungs[k][: len(self.rungs[k]) // self.aggressiveness]:
                if model not in self.promoted[k] and model not in self.stopped:
                    self.promoted[k].add(model)
                    return model, k + 1
        if self.n_started == self.n_models:
            return None
        self.n_started += 1
        return self.n_started - 1, 0

    def _drop_hopeless(self) -> list[int]:
        """Return the models of rung 0 that can no longer be promoted.

        Rung 0 receives ``n_models`` models in the end, so its promotions are known to be limited.
        """
        worse = self.rungs[0][self.n_models // self.aggressiveness :]
        hopeless = [model for _, _, model in worse if model not in self.promoted[0]]
        self.promoted[0].update(hopeless)  # so that they are returned once
        return hopeless


def plateaued(scores: Iterable[tuple[int, float]], patience: int, tol: float | None) -> bool:
    """Return True if the score improved by at most `tol` in the last `patience` calls.

    As in Dask-ML, a model is judged for the first time at call number `patience`, against its
    first score, and a `tol` of nan or None never ends anything.

    Parameters
    ----------
    scores : iterable of (calls, score)
        The scores of one model, ordered by calls.
    patience : int
        Number of calls to wait for an improvement.
    tol : float or None
        The improvement that is required.

    Examples
    --------
    >>> plateaued([(1, 0.5), (2, 0.7), (4, 0.7)], patience=2, tol=0.01)
    True
    >>> plateaued([(1, 0.5), (2, 0.7), (4, 0.8)], patience=2, tol=0.01)
    False
    """
    listed = [(calls, -math.inf if math.isnan(score) else score) for calls, score in scores]
    last = listed[-1][0]
    if tol is None or math.isnan(tol) or last < patience or len(listed) < 2:
        return False
    begin = max(last - patience, listed[0][0])
    before = max(score for calls, score in listed if calls <= begin)
    recent = max(score for calls, score in listed if calls > begin)
    return recent == before == -math.inf or recent - before <= tol
