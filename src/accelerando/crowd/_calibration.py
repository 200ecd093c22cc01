"""Do the answers to chosen queries bear out the embedding that chose them?

A query is chosen because the embedding expects much of its answer. Before the answer is taken in,
the embedding names the likelier one with a probability: its *claim*. If the model can be right
about these items, as many claims come true as it says. If it cannot — people see five
dimensions where two are fitted — chosen queries, which go where the embedding is thought to be
sharp, come true far less often than claimed. Asking more of them refines what two
dimensions can say at the cost of everything else; random queries are better then.

The trust in an embedding is

    t = (share that came true − ½ + 1.5 s) / ((mean claim − ½) (1 − k/N)),

the part of what was claimed, beyond a guess, that came true. The standard error s = ½/√m of m
answers gives the benefit of the doubt. An embedding with k free coordinates fitted to N answers
claims too much even where the model is right; the factor 1 − k/N is a rule of thumb for that, seen
to fit simulated alien eggs. Very noisy answers are distrusted too, although their model may be
right: there chosen queries gained nothing over random ones. Only claims about the later half of
the answers count: early embeddings are poor whatever the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._triplets import Triplets

__all__ = ["Claims"]

# Below the first of these values of t the embedding is not trusted, above the second fully.
_NO_TRUST, _FULL_TRUST = 0.6, 0.8
# Standard errors of the share that came true, given as the benefit of the doubt.
_DOUBT = 1.5
# What is left without trust: some chosen queries go on, so that a better embedding can show.
_LEAST = 0.2


@dataclass
class Claims:
    """What embeddings claimed about answers to chosen queries, and what came true.

    Parameters
    ----------
    number : list of int, optional
        Which answer each claim is about, counted from 0 over all answers.
    claimed : list of float, optional
        The probability that the embedding gave the answer it found likelier: ½ or more.
    came_true : list of bool, optional
        Whether that was the answer. All three lists are empty at first; :meth:`add` fills them.

    Examples
    --------
    >>> claims = Claims()
    >>> claims.trust(n_answers=0, n_coordinates=177)
    1.0
    """

    number: list[int] = field(default_factory=list)
    claimed: list[float] = field(default_factory=list)
    came_true: list[bool] = field(default_factory=list)

    def add(self, model: OrdinalEmbedding, triplets: Triplets, chosen: NDArray[np.bool_]) -> None:
        """Compare new answers, not yet fitted, with what the model expects of them."""
        rows = triplets[chosen]
        if len(rows) == 0:
            return
        winner = model.predict_proba(rows)[:, 0]
        self.number.extend((model.n_answers_ + np.flatnonzero(chosen)).tolist())
        self.claimed.extend(np.maximum(winner, 1.0 - winner).tolist())
        self.came_true.extend((winner > 0.5).tolist())

    def trust(self, n_answers: int, n_coordinates: int) -> float:
        """From 0.2 (claims do not come true) to 1 (they do, or there are none yet)."""
        late = np.array(self.number, dtype=np.intp) >= n_answers // 2
        if not late.any() or n_answers <= n_coordinates:
            return 1.0
        claim = float(np.array(self.claimed)[late].mean()) - 0.5
        true = float(np.array(self.came_true)[late].mean()) - 0.5
        doubt = _DOUBT * 0.5 / np.sqrt(late.sum())
        kept = (true + doubt) / max(claim * (1.0 - n_coordinates / n_answers), 1e-3)
        return float(np.clip((kept - _NO_TRUST) / (_FULL_TRUST - _NO_TRUST), _LEAST, 1.0))
