"""Simulation of a search: replay a recorded search on any number of workers."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerando._validation import check_choice, check_integer, check_number
from accelerando.search._schedule import Candidate, prioritize

__all__ = ["SimulatedSearch", "simulate"]


@dataclass(frozen=True)
class SimulatedSearch:
    """A simulated search.

    Attributes
    ----------
    seconds : float
        Duration of the search.
    work_seconds : float
        Sum of the durations of all tasks.
    n_workers : int
        Number of tasks at a time.
    history : list of dict
        The recorded rows with simulated ``elapsed_wall_time``, ordered by it.
    """

    seconds: float
    work_seconds: float
    n_workers: int
    history: list[dict[str, Any]]

    @property
    def speedup(self) -> float:
        """Duration on one worker divided by the duration on `n_workers`."""
        return self.work_seconds / self.seconds

    def seconds_to(self, score: float) -> float | None:
        """Return the time at which a model first reached `score`; None if none did."""
        reached = (row["elapsed_wall_time"] for row in self.history if row["score"] >= score)
        return next(reached, None)


def simulate(
    history: Any,
    n_workers: int,
    fit_seconds: float | None = 1.0,
    score_seconds: float | None = 1.5,
    priority: str = "score",
) -> SimulatedSearch:
    """Replay a search with the same models and scores, but other workers and durations.

    Each row of the history is a task: the calls since the previous row of the model, and one score.
    A rung begins when the previous rung has ended, as in the recorded search. In a recorded ASHA,
    which has no such rule, a model continues as soon as possible. The function that orders tasks
    is the one that the search uses.

    Parameters
    ----------
    history : list of dict, data frame, or fitted search
        ``history_`` of a search.
    n_workers : int
        Number of tasks that run at a time.
    fit_seconds, score_seconds : float or None
        Durations of a call and of a score. None uses the recorded durations.
    priority : {"score", "fifo"}
        As for the search.

    Returns
    -------
    SimulatedSearch
        ``seconds`` is the duration of the search on ``n_workers`` workers and ``work_seconds``
        its duration on one. ``speedup`` is their quotient. ``history`` has the recorded rows with
        simulated times, and ``seconds_to(score)`` the time at which a model first reached a score.

    Examples
    --------
    >>> rows = [
    ...     {"model_id": m, "bracket": 0, "partial_fit_calls": c, "job_calls": c, "score": s,
    ...      "elapsed_wall_time": t}
    ...     for t, (m, c, s) in enumerate([(0, 1, 0.1), (1, 1, 0.5), (2, 1, 0.2), (1, 3, 0.7)])
    ... ]
    >>> simulate(rows, n_workers=1, fit_seconds=1, score_seconds=0).seconds
    5.0
    >>> simulate(rows, n_workers=3, fit_seconds=1, score_seconds=0).seconds
    3.0
    """
    check_integer("simulate", "n_workers", n_workers)
    check_choice("simulate", "priority", priority, ("score", "fifo"))
    recorded = {None: "None (the recorded durations)"}
    check_number("simulate", "fit_seconds", fit_seconds, minimum=0, also=recorded)
    check_number("simulate", "score_seconds", score_seconds, minimum=0, also=recorded)
    rows = sorted(_rows(history), key=lambda row: float(row["elapsed_wall_time"]))
    return _Simulation(rows, n_workers, fit_seconds, score_seconds).run(priority)


class _Simulation:
    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        n_workers: int,
        fit_seconds: float | None,
        score_seconds: float | None,
    ) -> None:
        self.n_workers = n_workers
        self.fit_seconds = fit_seconds
        self.score_seconds = score_seconds
        self.names = list(dict.fromkeys(row["model_id"] for row in rows))
        number = {name: i for i, name in enumerate(self.names)}
        self.left: list[deque[Mapping[str, Any]]] = [deque() for _ in self.names]
        self.bracket = [0] * len(self.names)
        # (bracket, job_calls) -> number of rows that must end before the next rung begins
        self.unfinished: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.longest: defaultdict[int, int] = defaultdict(int)
        for row in rows:
            model = number[row["model_id"]]
            bracket = self.bracket[model] = int(row.get("bracket", 0))
            self.left[model].append(row)
            self.unfinished[bracket, int(row["job_calls"])] += 1
            self.longest[bracket] = max(self.longest[bracket], int(row["partial_fit_calls"]))
        self.barriers = _has_barriers(rows)
        self.calls = [0] * len(self.names)
        self.calls_left = sum(int(left[-1]["partial_fit_calls"]) for left in self.left)
        self.score: list[float | None] = [None] * len(self.names)

    def run(self, priority: str) -> SimulatedSearch:
        running: list[tuple[float, int]] = []  # (end, model): a heap
        idle = set(range(len(self.names)))
        issued = {model: model for model in idle}
        now, work, n_issued = 0.0, 0.0, len(issued)
        history = []
        while running or any(self.left[model] for model in idle):
            ready = [
                self._candidate(model, issued[model]) for model in idle if self._is_ready(model)
            ]
            places = self.n_workers - len(running)
            order = prioritize(ready, self.n_workers, priority, self.calls_left)
            for job in order[:places]:
                seconds = self._seconds(self.left[job.model][0], self.calls[job.model])
                work += seconds
                heapq.heappush(running, (now + seconds, job.model))
                idle.discard(job.model)
            now, model = heapq.heappop(running)
            row = self.left[model].popleft()
            self.unfinished[self.bracket[model], int(row["job_calls"])] -= 1
            self.calls_left -= int(row["partial_fit_calls"]) - self.calls[model]
            self.calls[model] = int(row["partial_fit_calls"])
            self.score[model] = float(row["score"])
            history.append({**row, "elapsed_wall_time": now})
            idle.add(model)
            issued[model] = n_issued
            n_issued += 1
        return SimulatedSearch(now, work, self.n_workers, history)

    def _is_ready(self, model: int) -> bool:
        if not self.left[model]:
            return False
        if not self.barriers:
            return True
        bracket, rung = self.bracket[model], int(self.left[model][0]["job_calls"])
        return not any(
            count and other == bracket and calls < rung
            for (other, calls), count in self.unfinished.items()
        )

    def _candidate(self, model: int, issued: int) -> Candidate:
        bracket = self.bracket[model]
        path = self.longest[bracket] - self.calls[model]
        return Candidate(model, bracket, self.score[model], path, issued)

    def _seconds(self, row: Mapping[str, Any], done: int) -> float:
        fit = row["partial_fit_time"] if self.fit_seconds is None else self.fit_seconds
        score = row["score_time"] if self.score_seconds is None else self.score_seconds
        return float((int(row["partial_fit_calls"]) - done) * fit + score)


def _has_barriers(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if in each bracket every rung began after the previous rung had ended."""
    last: defaultdict[int, int] = defaultdict(int)
    for row in rows:
        bracket, rung = int(row.get("bracket", 0)), int(row["job_calls"])
        if rung < last[bracket]:
            return False
        last[bracket] = rung
    return True


def _rows(history: Any) -> list[Mapping[str, Any]]:
    history = getattr(history, "history_", history)
    if hasattr(history, "to_dict"):
        history = history.to_dict("records")
    rows = list(history)
    if not rows:
        raise ValueError("history is empty. Pass the history_ of a fitted search.")
    missing = {"model_id", "partial_fit_calls", "job_calls", "score", "elapsed_wall_time"} - set(
        rows[0]
    )
    if missing:
        raise ValueError(
            f"history must be the history_ of a search, but it lacks {sorted(missing)}."
        )
    return rows
