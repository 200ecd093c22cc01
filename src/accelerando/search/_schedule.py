"""Which model is trained next: a pure decision, used by the search and by the simulation."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Candidate", "in_order", "worst_share"]

# Barriers leave workers idle, so the end is nearer than the calls that are left say. In replays of
# a recorded search on 16 workers 1 was 3 % slower, and more than 1.5 gained nothing.
SLACK = 1.5


class Candidate(NamedTuple):
    """A model that could be trained now."""

    model: int
    bracket: int
    score: float | None  # its latest score; None before the first
    path: int  # calls that its bracket still needs along this model: the critical path
    turn: int  # when the job was issued


def in_order(
    candidates: Sequence[Candidate],
    n_workers: int,
    priority: str = "score",
    calls_left: float = math.inf,
) -> list[Candidate]:
    """Sort candidates, the one to be trained first in front.

    ``"fifo"``: in the order the jobs were issued. ``"score"``: high scores first (dissertation,
    §2.4.1), among equal ones the longest critical path, then the oldest. In each bracket the worst
    ``n_workers`` models share one priority, the median of their scores: with that many workers
    they run side by side anyway, and the critical path should order them. A model without a score
    comes after all that have one: a survivor of a rung has been chosen, and a bracket that is
    brought to its end sooner shows a long trained model sooner.

    Before all of this come models that the end of the search depends on: when the calls that are
    left would take the workers hardly longer than one model's path (within ``SLACK``), a longer
    wait of that model makes the search longer. Two workers get there near the end,
    dozens at the start.

    Examples
    --------
    >>> jobs = [Candidate(0, 0, 0.2, 9, 0), Candidate(1, 0, 0.9, 9, 1), Candidate(2, 0, None, 9, 2)]
    >>> [job.model for job in in_order(jobs, n_workers=1)]
    [1, 0, 2]
    >>> [job.model for job in in_order(jobs, n_workers=1, priority="fifo")]
    [0, 1, 2]
    """
    if priority == "fifo":
        return sorted(candidates, key=lambda job: job.turn)
    shared = worst_share(candidates, n_workers)

    def key(job: Candidate) -> tuple[int, float, float, int]:
        score = shared.get(job.model, job.score)
        if score is not None and math.isnan(score):
            return (3, 0.0, -job.path, job.turn)
        if SLACK * job.path * n_workers >= calls_left:
            return (0, -job.path, -math.inf if score is None else -score, job.turn)
        if score is None:
            return (2, 0.0, -job.path, job.turn)
        return (1, -score, -job.path, job.turn)

    return sorted(candidates, key=key)


def worst_share(candidates: Sequence[Candidate], n_workers: int) -> dict[int, float]:
    """Return the shared score of each bracket's worst ``n_workers`` models."""
    brackets: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for job in candidates:
        if job.score is not None and not math.isnan(job.score):
            brackets[job.bracket].append((job.score, job.model))
    shared = {}
    for scored in brackets.values():
        worst = sorted(scored)[:n_workers]
        median = statistics.median(score for score, _ in worst)
        shared.update(dict.fromkeys((model for _, model in worst), median))
    return shared
