"""Refitting: update an embedding and its posterior while answers arrive.

The simulator and the worker of the web service share this step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from accelerando.crowd._choice import Candidate, ModelChoice
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._guard import Guard
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._triplets import Triplets

__all__ = ["Refitter"]

# Cold starts join, and "auto" chooses again, whenever the number of answers has grown so much.
_COLD_GROWTH = 2.0
_CHOICE_GROWTH = 1.3


@dataclass
class Refitter:
    """Refit a model to a growing list of answers and compute the posterior of its positions.

    Refits continue from the present positions. Cold starts join whenever the number of answers has
    doubled since they last did: early embeddings sit in poor local minima, late ones are not worth
    leaving. A model with ``noise="auto"`` chooses again when the number has grown by 30 %.

    Parameters
    ----------
    model : OrdinalEmbedding
    warmup : int
        Number of answers before the first fit.
    temper : float
        Exponent of the posterior.
    cold_at, chosen_at : int, default=0
        Number of answers when cold starts last joined, and when the noise model was last chosen.
    n_refits : int, default=0
        Number of refits so far.
    guard : Guard, optional
        Decides which share of the queries is chosen.
    choice : ModelChoice, optional
        The last choice of a noise model.

    Examples
    --------
    >>> refitter = Refitter(OrdinalEmbedding(n_items=3, random_state=0), warmup=2, temper=0.3)
    >>> refitter.update(np.array([[0, 1, 2]])) is None
    True
    >>> refitter.update(np.array([[0, 1, 2], [1, 0, 2]])).n_items
    3
    """

    model: OrdinalEmbedding
    warmup: int
    temper: float
    cold_at: int = 0
    chosen_at: int = 0
    n_refits: int = 0
    guard: Guard = field(default_factory=Guard)
    choice: ModelChoice | None = None

    def update(
        self,
        triplets: Triplets,
        chosen: NDArray[np.bool_] | None = None,
        participants: NDArray[Any] | None = None,
        left: NDArray[np.bool_] | None = None,
    ) -> Posterior | None:
        """Refit to all answers; return the posterior, or None while there are too few answers.

        Parameters
        ----------
        triplets : array of shape (n_answers, 3)
            All answers so far; the first ``model.n_answers_`` are those of the last call.
        chosen : array of bool, optional
            True for answers to queries that a score chose. Without it the guard does not watch, and
            the posterior has full trust in the embedding.
        participants : array, optional
            Who gave each answer: their reliability is then fitted, too.
        left : array of bool, optional
            True if the winner was shown on the left.
        """
        if len(triplets) < self.warmup:
            return None
        self.n_refits += 1
        if chosen is not None and hasattr(self.model, "embedding_"):
            self.guard.predict(triplets, chosen, self.model.n_answers_, self.model.embedding_)
        elif chosen is not None and len(triplets) >= 2 * self.warmup:
            self._catch_up(triplets, chosen)
        self._fit(triplets, chosen, participants, left)
        weights = self.weights(participants)
        trust = 1.0
        if chosen is not None:
            positions = self.model.embedding_
            model = Candidate(
                self.model.noise_, self.model.lapse_, positions.shape[1], self.model.ridge_
            )
            self.guard.look(triplets, chosen, model, positions, weights=weights)
            trust = self.guard.trust
        return Posterior.from_embedding(
            self.model, triplets, temper=self.temper, trust=trust, weights=weights
        )

    def _catch_up(self, triplets: Triplets, chosen: NDArray[np.bool_]) -> None:
        """Test a fit to the first half of many answers on the second half of them."""
        half = len(triplets) // 2
        first = clone(self.model)
        if first.n_items is None:
            first.set_params(n_items=int(triplets.max()) + 1)
        first.fit(triplets[:half], fair=~chosen[:half])
        self.guard.predict(triplets, chosen, half, first.embedding_)

    def weights(self, participants: NDArray[Any] | None) -> NDArray[np.float64] | None:
        """Return the weight of each answer by the reliability of its participant."""
        people = self.model.reliability_
        if people is None or participants is None:
            return None
        return np.clip(people.mixture(participants)[1], 0.0, 1.0)

    def _fit(
        self,
        triplets: Triplets,
        chosen: NDArray[np.bool_] | None,
        participants: NDArray[Any] | None,
        left: NDArray[np.bool_] | None,
    ) -> None:
        n_answers = len(triplets)
        cold = n_answers >= _COLD_GROWTH * self.cold_at
        automatic = "auto" in (self.model.noise, self.model.lapse, self.model.n_components)
        if cold or (automatic and n_answers >= _CHOICE_GROWTH * self.chosen_at):
            self.chosen_at = n_answers
            self.cold_at = n_answers if cold else self.cold_at
            fair = None if chosen is None else ~chosen
            self.model.set_params(warm_start=True)
            self.model.fit(triplets, participants=participants, left=left, fair=fair)
            self.choice = self.model.choice_ or self.choice
            return
        new = slice(self.model.n_answers_, None)
        self.model.partial_fit(
            triplets[new],
            participants=None if participants is None else participants[new],
            left=None if left is None else left[new],
        )
