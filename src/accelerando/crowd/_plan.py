"""Planning: simulate an experiment to estimate how many answers it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelerando._validation import check_integer, check_number
from accelerando.crowd._adaptive import ARR
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._metrics import triplet_accuracy
from accelerando.crowd._passive import Random
from accelerando.crowd._respond import AlienEggs
from accelerando.crowd._sampler import Sampler
from accelerando.crowd._simulate import simulate
from accelerando.crowd._triplets import Triplets

__all__ = ["AnswersNeeded", "plan"]

Array = NDArray[np.float64]

_HELD_OUT = 10_000
# Each checkpoint has this many times the answers of the one before.
_STEP = 1.25


@dataclass(frozen=True)
class AnswersNeeded:
    """Result of :func:`plan` for one sampler.

    Attributes
    ----------
    sampler : str
    answers : array of shape (n_runs,)
        Answers that each simulated experiment needed; the largest number tried if it did not reach
        the goal.
    reached : int
        Number of runs that reached the goal.
    """

    sampler: str
    answers: Array
    reached: int

    @property
    def middle(self) -> float:
        """Median over the runs."""
        return float(np.median(self.answers))

    @property
    def band(self) -> tuple[float, float]:
        """Smallest and largest value of the runs."""
        return float(self.answers.min()), float(self.answers.max())


def plan(
    items: int,
    dimensions: int = 2,
    *,
    within: float = 0.03,
    runs: int = 5,
    max_answers: int | None = None,
    random_state: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[AnswersNeeded]:
    """Return the number of answers until held-out accuracy is ``within`` of the best possible one.

    Each run draws items uniformly in a cube of ``dimensions`` dimensions. Simulated participants
    answer like people who compared alien eggs (:class:`accelerando.crowd.AlienEggs`). Each run
    tries random queries and queries chosen by :class:`accelerando.crowd.ARR`.

    Parameters
    ----------
    items : int
        Number of items.
    dimensions : int, default=2
        Dimensions of the true positions and of the fit.
    within : float, default=0.03
        The goal: how close the accuracy must be to that of the true positions.
    runs : int, default=5
        Number of simulated experiments.
    max_answers : int, optional
        Maximum number of answers of a run; ``100 · items · dimensions`` by default.
    random_state : int, default=0
        Seed of the simulations.
    progress : callable, optional
        Called with a sentence after each run.

    Returns
    -------
    list of AnswersNeeded
        One entry per sampler, with the attributes ``sampler`` (its name), ``answers`` (array, one
        number per run), ``middle`` (median), ``band`` (smallest and largest) and ``reached`` (how
        many runs reached the goal).

    Examples
    --------
    >>> random, active = plan(12, 1, within=0.05, runs=2)
    >>> random.sampler, active.sampler
    ('Random', 'ARR')
    >>> 12 < random.middle <= 1200
    True
    """
    check_integer("plan", "items", items, minimum=4)
    check_integer("plan", "dimensions", dimensions)
    check_integer("plan", "runs", runs)
    check_number("plan", "within", within, above=0, below=0.5)
    limit = 100 * items * dimensions if max_answers is None else max_answers
    samplers: dict[str, Sampler] = {"Random": Random(), "ARR": ARR()}
    needed: dict[str, list[tuple[float, bool]]] = {name: [] for name in samplers}
    for run in range(runs):
        rng = np.random.default_rng([random_state, run])
        truth = rng.random((items, dimensions))
        crowd = AlienEggs(truth)
        held_out = _random_triplets(crowd, items, rng)
        goal = triplet_accuracy(truth, held_out) - within
        most = limit
        for name, sampler in samplers.items():
            found = _answers_until(
                goal, sampler, crowd, held_out, shape=(items, dimensions), most=most, seed=run
            )
            needed[name].append(found)
            # Chosen queries need not be simulated far beyond what random ones needed.
            most = min(limit, int(1.5 * found[0]))
            if progress is not None:
                progress(f"run {run + 1} of {runs}, {name}: {found[0]:,.0f} answers")
    return [
        AnswersNeeded(name, np.array([count for count, _ in found]), sum(ok for _, ok in found))
        for name, found in needed.items()
    ]


def _answers_until(
    goal: float,
    sampler: Sampler,
    crowd: AlienEggs,
    held_out: Triplets,
    *,
    shape: tuple[int, int],
    most: int,
    seed: int,
) -> tuple[float, bool]:
    """Return the number of answers, interpolated, and whether the goal was reached."""
    items, dimensions = shape
    checkpoints = [min(items, most)]
    while checkpoints[-1] < most:
        checkpoints.append(min(most, int(np.ceil(checkpoints[-1] * _STEP))))
    seen = [(0.0, 0.5)]  # (answers, accuracy); without answers the accuracy is that of guessing

    def reached(triplets: Triplets, positions: Array | None) -> bool:
        model = OrdinalEmbedding(n_components=dimensions, n_items=items, random_state=seed)
        accuracy = model.fit(triplets, init=positions).score(held_out)
        seen.append((float(len(triplets)), accuracy))
        return accuracy >= goal

    simulate(
        items,
        sampler,
        crowd,
        n_answers=most,
        participants=max(10, most // 50),
        embedding=OrdinalEmbedding(n_components=dimensions),
        refit_every=max(10, items // 4),
        snapshots=checkpoints,
        stop=reached,
        random_state=seed,
    )
    (before, worse), (after, better) = seen[-2:]
    if better < goal:
        return after, False
    return before + (goal - worse) / (better - worse) * (after - before), True


def _random_triplets(crowd: AlienEggs, items: int, rng: np.random.Generator) -> Triplets:
    rows = np.argsort(rng.random((_HELD_OUT, items)), axis=1)[:, :3]
    left = crowd(rows, rng) == 1
    return np.where(left[:, None], rows, rows[:, [0, 2, 1]])
