"""Calibration: are answers to chosen queries predicted as well as the embedding claims?

The guard (:mod:`accelerando.crowd._guard`) has replaced this record, which misses what makes chosen
queries worse than random ones on real items; it is kept under its former public name, ``Claims``.

A query is chosen because the embedding expects its answer to be informative. Before an answer is
used in a fit, the embedding predicts it with a probability, its *confidence*. If the noise model
and the number of dimensions are right, the predictions are correct as often as their confidence
says. If they are not, for example if people see five dimensions where two are fitted, predictions
for chosen queries are correct far less often. Chosen queries then refine a wrong model, and random
queries are the better choice.

The trust in an embedding is a function of

    t = (accuracy − ½ + 1.5 s) / ((mean confidence − ½) (1 − k/N)),

the share of the claimed accuracy above chance that was achieved. The term with the standard error
s = ½/√m of m predictions gives the embedding the benefit of the doubt. An embedding with k free
coordinates fitted to N answers is overconfident even if the model is right; the factor 1 − k/N is a
rule of thumb for that, fitted to simulated alien eggs. Very noisy answers lower the trust, too,
although their model may be right: in that case chosen queries gained nothing over random ones. Only
predictions for the later half of the answers count, because early embeddings are poor whatever the
model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._triplets import Triplets

__all__ = ["CalibrationRecord"]

# Trust grows linearly with t between these two values.
_NO_TRUST, _FULL_TRUST = 0.6, 0.8
# Weight of the standard error s in t.
_DOUBT = 1.5
# Smallest trust: some queries are still chosen, so that a better embedding can prove itself.
_LEAST = 0.2


@dataclass
class CalibrationRecord:
    """Predictions for answers to chosen queries, and whether they were correct.

    Parameters
    ----------
    answer : list of int, optional
        Index of the answer that each prediction is about, in the list of all answers.
    confidence : list of float, optional
        Probability that the embedding gave to the answer it predicted: ½ or more.
    correct : list of bool, optional
        True if the prediction was correct. All three lists are empty at first; :meth:`add` fills
        them.

    Examples
    --------
    >>> record = CalibrationRecord()
    >>> record.trust(n_answers=0, n_coordinates=177)
    1.0
    """

    answer: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)

    def add(self, model: OrdinalEmbedding, triplets: Triplets, chosen: NDArray[np.bool_]) -> None:
        """Record the model's predictions for new answers that it was not fitted to."""
        rows = triplets[chosen]
        if len(rows) == 0:
            return
        winner = model.predict_proba(rows)[:, 0]
        self.answer.extend((model.n_answers_ + np.flatnonzero(chosen)).tolist())
        self.confidence.extend(np.maximum(winner, 1.0 - winner).tolist())
        self.correct.extend((winner > 0.5).tolist())

    def trust(self, n_answers: int, n_coordinates: int) -> float:
        """Return the trust, from 0.2 (overconfident) to 1 (calibrated, or no predictions yet)."""
        late = np.array(self.answer, dtype=np.intp) >= n_answers // 2
        if not late.any() or n_answers <= n_coordinates:
            return 1.0
        claimed = float(np.array(self.confidence)[late].mean()) - 0.5
        achieved = float(np.array(self.correct)[late].mean()) - 0.5
        doubt = _DOUBT * 0.5 / np.sqrt(late.sum())
        kept = (achieved + doubt) / max(claimed * (1.0 - n_coordinates / n_answers), 1e-3)
        return float(np.clip((kept - _NO_TRUST) / (_FULL_TRUST - _NO_TRUST), _LEAST, 1.0))
