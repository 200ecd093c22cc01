"""Third block of the demo: chosen questions against random ones, with a simulated crowd."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from accelerando.crowd import AlienEggs

ITEMS = 30
WITHIN = 0.03  # the goal: held-out accuracy this close to that of the true positions
HELD_OUT = 10_000  # simulated answers that measure the accuracy
MOST = 3_000  # answers at which a simulation ends in any case
STEP = 1.25  # each checkpoint has this many times the answers of the one before


@dataclass(frozen=True)
class Asked:
    """One simulated experiment.

    Attributes
    ----------
    answers : float
        Answers until the goal, interpolated between checkpoints; NaN if it was not reached.
    positions : array of shape (ITEMS, 2)
        The map at the end.
    """

    answers: float
    positions: NDArray[np.float64]


Crowds = dict[str, list[Asked]]  # one per seed, by the way questions are chosen


def ask(seeds: Iterable[int], report: Callable[[str], None] = lambda text: None) -> Crowds:
    """Ask about alien eggs, which differ in smoothness only, until the map is good enough.

    The simulated people err like those who compared alien eggs in a published experiment.
    """
    from accelerando.crowd import ARR, AlienEggs, Random, triplet_accuracy

    smoothness = np.linspace(0.0, 1.0, ITEMS)
    crowd = AlienEggs(smoothness)
    found: Crowds = {"random": [], "chosen": []}
    for seed in seeds:
        held_out = _answers(crowd, np.random.default_rng(seed))
        goal = triplet_accuracy(smoothness[:, None], held_out) - WITHIN
        for label, sampler in (("random", Random()), ("chosen", ARR())):
            report(f"Asking {label} questions, seed {seed}")
            found[label].append(_until(goal, sampler, crowd, held_out, seed))
    return found


def _answers(crowd: AlienEggs, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return answers to random questions as triplets (head, winner, loser)."""
    rows = np.argsort(rng.random((HELD_OUT, ITEMS)), axis=1)[:, :3]
    left = crowd(rows, rng) == 1
    return np.where(left[:, None], rows, rows[:, [0, 2, 1]])


def _until(goal: float, sampler: Any, crowd: AlienEggs, held_out: Any, seed: int) -> Asked:
    """Simulate one experiment until its map reaches the goal."""
    from accelerando.crowd import OrdinalEmbedding, simulate

    checkpoints = [ITEMS]
    while checkpoints[-1] < MOST:
        checkpoints.append(min(MOST, int(np.ceil(checkpoints[-1] * STEP))))
    curve = [(0, 0.5)]  # without answers the accuracy is that of guessing
    maps = [np.zeros((ITEMS, 2))]

    def stop(triplets: NDArray[np.intp], positions: NDArray[np.float64] | None) -> bool:
        model = OrdinalEmbedding(n_components=2, n_items=ITEMS, random_state=seed)
        maps.append(model.fit(triplets, init=positions).embedding_)
        curve.append((len(triplets), model.score(held_out)))
        return curve[-1][1] >= goal

    simulate(
        ITEMS,
        sampler,
        crowd,
        n_answers=MOST,
        participants=20,
        embedding=OrdinalEmbedding(n_components=2),
        snapshots=checkpoints,
        stop=stop,
        random_state=seed,
    )
    (before, worse), (after, better) = curve[-2:]
    if better < goal:
        return Asked(float("nan"), maps[-1])
    share = (goal - worse) / (better - worse)
    return Asked(before + share * (after - before), maps[-1])
