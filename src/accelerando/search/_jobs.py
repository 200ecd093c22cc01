"""Jobs of a search: which are ready, which are running, and how they are cut into tasks.

A job is long: it trains a model to the end of a rung. A slice is a part of a job that takes about
``slice_seconds``, so that the scheduler can change its mind in between. A task consists of one or
more slices for one worker.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from accelerando.search._bracket_run import Model, Settings
from accelerando.search._halving import Job
from accelerando.search._schedule import Candidate, prioritize
from accelerando.search._train import Row, Slice
from accelerando.search._workers import Workers

__all__ = ["JobQueue", "RunningMean"]

MIN_TASK_SECONDS = 0.02  # smallest target duration of a task, when a rung is nearly over
SCORE_SHARE = 4  # a slice trains at least this many times as long as its score takes
FIRST_LIMIT = 16  # calls of a slice before the duration of a call is known


class JobQueue:
    """The unfinished jobs of a search.

    Parameters
    ----------
    settings : Settings
        Limits and priorities.
    models : mapping
        The driver's models by number. A model has at most one unfinished job.

    Attributes
    ----------
    ready : dict
        Jobs that wait for a slot, by model, each with the time at which it was issued, counted in
        jobs.
    running : dict
        Jobs with a slice on a worker, by model, each with the slice.
    """

    def __init__(self, settings: Settings, models: Mapping[int, Model]) -> None:
        self.settings = settings
        self.models = models
        self.ready: dict[int, tuple[Job, int]] = {}
        self.running: dict[int, tuple[Job, Slice]] = {}
        self._n_issued = 0
        self._fit_mean = RunningMean()
        self._score_mean = RunningMean()

    def issue(self, job: Job) -> None:
        """Add a job."""
        self.ready[job.model] = (job, self._n_issued)
        self._n_issued += 1

    def pop(self, model: int) -> Job:
        """Remove and return the running job of a model."""
        job, _ = self.running.pop(model)
        return job

    def measure(self, model: Model, rows: Sequence[Row]) -> None:
        """Record the durations of calls and scores, for estimates."""
        done = model.calls
        for row in rows:
            self._fit_mean.add(row.fit_seconds, row.calls - done)
            self._score_mean.add(row.score_seconds)
            model.fit_seconds = row.fit_seconds
            done = row.calls

    def calls_left(self, calls: int) -> float:
        """Return the number of calls until ``max_calls``, without those of running slices.

        Parameters
        ----------
        calls : int
            Calls that were reported so far.
        """
        if self.settings.max_calls is None:
            return math.inf
        running = sum(min(s.limit, s.stop) - s.start for _, s in self.running.values())
        return self.settings.max_calls - calls - running

    def tasks(
        self, workers: Workers, calls: int, planned: float, seconds_left: float
    ) -> Iterator[tuple[list[Slice], float]]:
        """Yield tasks with their estimated durations, as long as the workers have free slots.

        Parameters
        ----------
        workers : Workers
            The tasks must be submitted to them before the next one is requested.
        calls : int
            Calls that were reported so far.
        planned : float
            Calls that the search still needs according to its plan.
        seconds_left : float
            Time until ``max_seconds``.
        """
        n_slots = workers.n_slots
        candidates = list(self._candidates())
        order = deque(prioritize(candidates, n_slots, self.settings.priority, planned))
        while order and workers.free_slots and self.calls_left(calls) > 0:
            share = -(-len(order) // n_slots)
            first = order.popleft()
            worker = workers.location(first.model)
            slices = [self._next_slice(first.model, calls, seconds_left, workers)]
            seconds = self._estimate(slices[0])
            # The next rung waits for all models of this one, so the last tasks of a rung are small.
            rest = seconds * (1 + sum(other.bracket == first.bracket for other in order))
            target = min(workers.min_task_seconds, self.settings.slice_seconds)
            target = min(target, max(MIN_TASK_SECONDS, rest / (2 * n_slots)))
            while order and seconds < target and len(slices) < share and self.calls_left(calls) > 0:
                other = workers.location(order[0].model)
                if worker is not None and other not in (None, worker):
                    break  # a state would have to move
                worker = worker or other
                slices.append(self._next_slice(order.popleft().model, calls, seconds_left, workers))
                seconds += self._estimate(slices[-1])
            yield slices, seconds

    def _candidates(self) -> Iterator[Candidate]:
        for number, (_, issued) in self.ready.items():
            model = self.models[number]
            path = model.bracket.plan.max_calls - model.calls
            yield Candidate(number, model.bracket.index, model.score, path, issued)

    def _next_slice(self, number: int, calls: int, seconds_left: float, workers: Workers) -> Slice:
        """Move a job from ready to running and return its next slice."""
        job, _ = self.ready.pop(number)
        model = self.models[number]
        seconds = max(self.settings.slice_seconds, SCORE_SHARE * (self._score_mean.value or 0.0))
        seconds = min(seconds, seconds_left)
        fit = model.fit_seconds or self._fit_mean.value
        # The clock ends a slice; this bound decides which chunks are sent to the worker.
        bound = FIRST_LIMIT if fit is None else max(1, math.ceil(2 * seconds / max(fit, 1e-6)))
        limit = min(job.calls, model.calls + min(bound, workers.most_calls(model.calls)))
        limit = int(min(limit, model.calls + self.calls_left(calls)))
        part = Slice(number, model.params, model.calls, job.calls, limit, seconds)
        self.running[number] = (job, part)
        return part

    def _estimate(self, part: Slice) -> float:
        """Return the expected duration of a slice in seconds."""
        fit = self.models[part.model].fit_seconds or self._fit_mean.value
        if fit is None:
            return math.inf
        return fit * (part.limit - part.start) + (self._score_mean.value or 0.0)


class RunningMean:
    """Weighted mean of the values so far.

    Examples
    --------
    >>> mean = RunningMean()
    >>> print(mean.value)
    None
    >>> mean.add(1.0, weight=3)
    >>> mean.add(5.0)
    >>> mean.value
    2.0
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.weight = 0

    def add(self, value: float, weight: int = 1) -> None:
        """Add a value."""
        self.total += value * weight
        self.weight += weight

    @property
    def value(self) -> float | None:
        """The mean; None before the first value."""
        return self.total / self.weight if self.weight else None
