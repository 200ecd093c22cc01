"""Priorities: a pure function that decides which model is trained next.

The search and the simulation of a search both use it.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Candidate", "prioritize", "shared_scores"]

# Workers are idle while they wait for the end of a rung, so the search takes longer than the
# remaining calls suggest. In replays of a recorded search on 16 workers a slack of 1 was 3 %
# slower, and more than 1.5 gained nothing.
SLACK = 1.5


class Candidate(NamedTuple):
    """A model that could be trained now."""

    model: int
    bracket: int
    score: float | None  # latest score; None before the first
    path: int  # calls until this model can end its bracket: the critical path
    issued: int  # position of its job in the order of issue


def prioritize(
    candidates: Sequence[Candidate],
    n_workers: int,
    priority: str = "score",
    calls_left: float = math.inf,
) -> list[Candidate]:
    """Sort candidates, the one to train first in front.

    ``"fifo"`` keeps the order in which the jobs were issued. ``"score"`` puts high scores first
    (dissertation, §2.4.1). Models with equal scores are ordered by the longest critical path, then
    by age. In each bracket the worst `n_workers` models share one priority, the median of their
    scores: they will run at the same time anyway, and the critical path should order them. A model
    without a score follows all models with one. A survivor of a rung has been selected, and a
    bracket that ends sooner produces a long-trained model sooner.

    Models that determine the end of the search precede all others. A model does so if the
    remaining calls would take the workers hardly longer (within ``SLACK``) than the critical path
    of this model. With two workers this happens near the end, with dozens at the start.

    Parameters
    ----------
    candidates : sequence of Candidate
        The models that could be trained now.
    n_workers : int
        Number of models that can be trained at a time.
    priority : {"score", "fifo"}
        The rule.
    calls_left : float
        Calls that the search still needs.

    Examples
    --------
    >>> jobs = [Candidate(0, 0, 0.2, 9, 0), Candidate(1, 0, 0.9, 9, 1), Candidate(2, 0, None, 9, 2)]
    >>> [job.model for job in prioritize(jobs, n_workers=1)]
    [1, 0, 2]
    >>> [job.model for job in prioritize(jobs, n_workers=1, priority="fifo")]
    [0, 1, 2]
    """
    if priority == "fifo":
        return sorted(candidates, key=lambda job: job.issued)
    shared = shared_scores(candidates, n_workers)

    def key(job: Candidate) -> tuple[int, float, float, int]:
        score = shared.get(job.model, job.score)
        if score is not None and math.isnan(score):
            return (3, 0.0, -job.path, job.issued)
        if SLACK * job.path * n_workers >= calls_left:
            return (0, -job.path, -math.inf if score is None else -score, job.issued)
        if score is None:
            return (2, 0.0, -job.path, job.issued)
        return (1, -score, -job.path, job.issued)

    return sorted(candidates, key=key)


def shared_scores(candidates: Sequence[Candidate], n_workers: int) -> dict[int, float]:
    """Return the median score of each bracket's worst `n_workers` models, by model."""
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
