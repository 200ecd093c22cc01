"""The algorithms as generators: each yields work and is sent scores.

A generator yields :class:`Step`: the jobs that have become possible (often none) and the models
that it will never ask for again. It is sent one :class:`Outcome` at a time, in any order, and ends
when it wants nothing more. It never trains, never looks at a clock and never draws a
random number, so the same scores give the same decisions on one worker and on fifty.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
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

    ``stopped`` says that the model takes no more calls: it is on a plateau, or it failed.
    """

    model: int
    score: float
    stopped: bool = False


class Step(NamedTuple):
    """What has become possible, and which models are no longer needed."""

    jobs: Sequence[Job] = ()
    dropped: Sequence[int] = ()


Steps = Generator[Step, Outcome, None]


def best_first(scores: Mapping[int, float]) -> list[int]:
    """Sort models by score, best first; NaN is worse than all, ties go to the lower number."""
    return sorted(scores, key=lambda model: _place(model, scores[model]))


def _place(model: int, score: float) -> tuple[bool, float, int]:
    missing = math.isnan(score)
    return (missing, 0.0 if missing else -score, model)


def successive_halving(bracket: Bracket) -> Steps:
    """Train all models of a rung, keep the best for the next one.

    A model that stopped early keeps its place in the ranking with its last score, and gets no
    more work.

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
    """Random search: every model gets all its calls, none is compared with another."""
    step = Step([Job(model, calls) for model in range(n_models)])
    for _ in range(n_models):
        outcome = yield step
        step = Step(dropped=(outcome.model,))


def async_halving(
    n_models: int, rung_calls: Sequence[int], aggressiveness: int, in_flight: int
) -> Steps:
    """ASHA: whenever a place is free promote a model, or else start a new one.

    A model of rung k is promoted when it is among the best ``1 / aggressiveness`` of the models
    that have reached rung k so far. In the paper "so far" is the order in which workers happen to
    finish. Here it is the order of a clock of the algorithm's own, in which ``in_flight`` models
    are trained at a time and a call takes one unit: outcomes wait for their turn, so the decisions
    do not depend on how fast or how many the real workers are.

    References
    ----------
    L. Li, K. Jamieson, A. Rostamizadeh, E. Gonina, J. Ben-tzur, M. Hardt, B. Recht and
    A. Talwalkar. A system for massively parallel hyperparameter tuning. MLSys 2020, Algorithm 2.
    """
    rungs: list[list[tuple[bool, float, int]]] = [[] for _ in rung_calls]  # best first
    promoted: list[set[int]] = [set() for _ in rung_calls]
    stopped: set[int] = set()
    arrived: dict[int, Outcome] = {}
    running: list[tuple[int, int, int]] = []  # (clock at the end, model, rung): a heap
    clock = 0
    started = 0

    def next_job() -> tuple[int, int] | None:
        nonlocal started
        for k in range(len(rung_calls) - 2, -1, -1):
            for _, _, model in rungs[k][: len(rungs[k]) // aggressiveness]:
                if model not in promoted[k] and model not in stopped:
                    promoted[k].add(model)
                    return model, k + 1
        if started == n_models:
            return None
        started += 1
        return started - 1, 0

    def fill() -> list[Job]:
        jobs = []
        while len(running) < in_flight and (chosen := next_job()) is not None:
            model, k = chosen
            calls = rung_calls[k] - (rung_calls[k - 1] if k else 0)
            heapq.heappush(running, (clock + calls, model, k))
            jobs.append(Job(model, rung_calls[k]))
        return jobs

    def hopeless() -> list[int]:
        # Rung 0 ends with n_models models, so who has that many betters is never promoted.
        worse = rungs[0][n_models // aggressiveness :]
        out = [model for _, _, model in worse if model not in promoted[0]]
        promoted[0].update(out)
        return out

    step = Step(fill())
    while running:
        outcome = yield step
        arrived[outcome.model] = outcome
        jobs: list[Job] = []
        dropped: list[int] = []
        while running and running[0][1] in arrived:
            clock, model, k = heapq.heappop(running)
            outcome = arrived.pop(model)
            bisect.insort(rungs[k], _place(model, outcome.score))
            if outcome.stopped:
                stopped.add(model)
            jobs += fill()
            dropped += hopeless() if k == 0 else []
            dropped += [model] if k == len(rungs) - 1 else []
        step = Step(jobs, dropped)


def plateaued(scores: Iterable[tuple[int, float]], patience: int, tol: float) -> bool:
    """Tell whether the last ``patience`` calls brought less than ``tol``.

    Parameters
    ----------
    scores : iterable of (calls, score)
        The scores of one model in the order of its calls.
    patience : int
        How many calls to wait for an improvement.
    tol : float
        What counts as one.

    Examples
    --------
    >>> plateaued([(1, 0.5), (2, 0.7), (4, 0.7)], patience=2, tol=0.01)
    True
    >>> plateaued([(1, 0.5), (2, 0.7), (4, 0.8)], patience=2, tol=0.01)
    False
    """
    listed = [(calls, -math.inf if math.isnan(score) else score) for calls, score in scores]
    last = listed[-1][0]
    before = [score for calls, score in listed if calls <= last - patience]
    recent = [score for calls, score in listed if calls > last - patience]
    return bool(before) and not max(recent) > max(before) + tol
