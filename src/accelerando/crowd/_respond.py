"""Response models: how simulated participants answer.

A response model is a callable ``(queries, rng) -> answers``. It takes an array of queries
``(head, left, right)`` and returns 1 (left), 0 (right) or −1 (no answer) for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelerando.crowd._noise import NoiseModel, noise_model
from accelerando.crowd._triplets import Triplets, as_triplets

__all__ = ["AlienEggs", "FromEmbedding", "Replay", "ResponseModel"]

Answers = NDArray[np.int8]
ResponseModel = Callable[[Triplets, np.random.Generator], Answers]


@dataclass(frozen=True)
class AlienEggs:
    """A model of human answers about alien eggs, which differ in smoothness only.

    With distances ``u = |h − a|``, ``v = |h − b|`` and the ratio ``r = max(u, v) / (u + v)``, the
    nearer egg is chosen with probability ``ε + (1 − 2ε) / (1 + exp(−k (r − ½)))``: a guess at
    r = ½, and one careless answer in fourteen for easy queries.

    Parameters
    ----------
    smoothness : array of shape (n_items,) or (n_items, n_dimensions)
        For example ``range(90)``; with several columns distances are Euclidean.
    floor : float, default=0.0707
        ε, fitted to 20,086 human answers.
    rate : float, default=17.55
        k, fitted likewise.

    References
    ----------
    Sievert, dissertation 2021, Figure 4.7, after Jamieson et al., "NEXT", NeurIPS 2015.

    Examples
    --------
    >>> eggs = AlienEggs(range(90))
    >>> round(float(eggs.probability(np.array([[0, 1, 80]]))[0]), 3)
    0.929
    """

    smoothness: ArrayLike
    floor: float = 0.0707
    rate: float = 17.55

    def probability(self, queries: Triplets) -> NDArray[np.float64]:
        """Return the probability of the answer "left" to each query."""
        position = np.asarray(self.smoothness, dtype=np.float64)
        position = position[:, None] if position.ndim == 1 else position
        left, right = (
            np.linalg.norm(position[queries[:, 0]] - position[queries[:, k]], axis=1)
            for k in (1, 2)
        )
        total = np.maximum(left + right, np.finfo(float).tiny)
        # The formula is symmetric about ½, so right/(u+v) gives the probability of "left".
        sharp = 1.0 / (1.0 + np.exp(-self.rate * (right / total - 0.5)))
        return np.asarray(self.floor + (1.0 - 2.0 * self.floor) * sharp)

    def __call__(self, queries: Triplets, rng: np.random.Generator) -> Answers:
        return (rng.random(len(queries)) < self.probability(queries)).astype(np.int8)


@dataclass(frozen=True)
class FromEmbedding:
    """Participants who answer according to a noise model on known positions.

    Parameters
    ----------
    positions : array of shape (n_items, n_dimensions)
        True positions.
    noise : str or NoiseModel, default="tste"
        As in :class:`OrdinalEmbedding`.
    lapse : float, default=0.05
        Share of careless answers.
    """

    positions: ArrayLike
    noise: str | NoiseModel = "tste"
    lapse: float = 0.05

    def __call__(self, queries: Triplets, rng: np.random.Generator) -> Answers:
        where = np.asarray(self.positions, dtype=np.float64)
        left, right = (
            np.square(where[queries[:, 0]] - where[queries[:, k]]).sum(axis=1) for k in (1, 2)
        )
        chosen = noise_model(self.noise, where.shape[1]).probability(left, right, self.lapse)
        return (rng.random(len(queries)) < chosen).astype(np.int8)


@dataclass(frozen=True)
class Replay:
    """Recorded answers: a random one of those to the query, or no answer if there are none.

    Parameters
    ----------
    triplets : array of shape (n_answers, 3)
        Recorded rows ``(head, winner, loser)``.

    Examples
    --------
    >>> oracle = Replay([[0, 1, 2]])
    >>> oracle(np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2]]), np.random.default_rng(0)).tolist()
    [1, 0, -1]
    """

    triplets: ArrayLike
    _lower_won: dict[tuple[int, int, int], list[bool]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        recorded: dict[tuple[int, int, int], list[bool]] = {}
        for head, winner, loser in as_triplets(self.triplets).tolist():
            key = head, min(winner, loser), max(winner, loser)
            recorded.setdefault(key, []).append(winner < loser)
        object.__setattr__(self, "_lower_won", recorded)

    def __call__(self, queries: Triplets, rng: np.random.Generator) -> Answers:
        answers = np.full(len(queries), -1, dtype=np.int8)
        for row, (head, left, right) in enumerate(queries.tolist()):
            given = self._lower_won.get((head, min(left, right), max(left, right)))
            if given:
                lower = given[int(rng.integers(len(given)))]
                answers[row] = lower == (left < right)
        return answers
