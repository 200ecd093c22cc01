"""Refitting: update an embedding and its posterior while answers arrive.

The simulator and the worker of the web service share this step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from accelerando.crowd._calibration import CalibrationRecord
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._triplets import Triplets

__all__ = ["Refitter"]


@dataclass
class Refitter:
    """Refit a model to a growing list of answers and compute the posterior of its positions.

    Refits continue from the present positions. Cold starts join whenever the number of answers has
    doubled since they last did: early embeddings sit in poor local minima, late ones are not worth
    leaving.

    Parameters
    ----------
    model : OrdinalEmbedding
    warmup : int
        Number of answers before the first fit.
    temper : float
        Exponent of the posterior.
    cold_at : int, default=0
        Number of answers when cold starts last joined.
    n_refits : int, default=0
        Number of refits so far.
    calibration : CalibrationRecord, optional
        Predictions for answers to chosen queries, and whether they were correct.

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
    n_refits: int = 0
    calibration: CalibrationRecord = field(default_factory=CalibrationRecord)

    def update(
        self, triplets: Triplets, chosen: NDArray[np.bool_] | None = None
    ) -> Posterior | None:
        """Refit to all answers; return the posterior, or None while there are too few answers.

        Parameters
        ----------
        triplets : array of shape (n_answers, 3)
            All answers so far; the first ``model.n_answers_`` are those of the last call.
        chosen : array of bool, optional
            True for answers to queries that a score chose. Without it the posterior has full trust
            in the embedding.
        """
        if len(triplets) < self.warmup:
            return None
        self.n_refits += 1
        if chosen is not None and hasattr(self.model, "embedding_"):
            known = self.model.n_answers_
            self.calibration.add(self.model, triplets[known:], chosen[known:])
        if len(triplets) >= 2 * self.cold_at:
            self.cold_at = len(triplets)
            self.model.set_params(warm_start=True).fit(triplets)
        else:
            self.model.partial_fit(triplets[self.model.n_answers_ :])
        n_items, d = self.model.embedding_.shape
        # A shift and a rotation of the whole embedding are not free coordinates.
        trust = self.calibration.trust(len(triplets), n_items * d - d * (d + 1) // 2)
        return Posterior.from_embedding(self.model, triplets, temper=self.temper, trust=trust)
