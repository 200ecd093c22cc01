"""ARR as it was in version 0.2: t-STE, a fifth at random, and trust by the calibration record.

human_replay.py compares the present ARR with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from accelerando.crowd import ARR, search
from accelerando.crowd._calibration import CalibrationRecord
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._sampler import Query, deal, draw_queries


@dataclass(frozen=True, kw_only=True)
class FormerARR(ARR):
    random_share: float = 0.2

    def propose(self, state, count, model=None, search=search):
        rng = np.random.default_rng([state.seed, state.turn])
        items = self._items(state.n_items)
        at_random = rng.random(count) < (1.0 if model is None else self._share(model))
        heads, deck = deal(items, state.deck, int((~at_random).sum()), rng)
        queries = draw_queries(items, count, rng)
        if heads and model is not None:
            repeats = max(heads.count(head) for head in heads)
            found = search(
                model, heads=heads, items=items, pairs=self.pairs, top=repeats, random_state=rng
            )
            best = {head: [] for head in heads}
            for row, score in zip(found.queries.tolist(), found.scores.tolist(), strict=True):
                best[row[0]].append(Query(*row, score))
            for place, head in zip(np.flatnonzero(~at_random).tolist(), heads, strict=True):
                if best[head]:
                    queries[place] = best[head].pop(0)
        return queries, replace(state, turn=state.turn + 1, deck=deck)

    def put_back(self, state, queries):
        heads = tuple(query.head for query in queries if query.score is not None)
        return replace(state, deck=heads + state.deck)


@dataclass
class FormerRefitter:
    """Refits with cold starts at every doubling, and trust by calibration on chosen queries."""

    model: object
    warmup: int
    temper: float
    cold_at: int = 0
    n_refits: int = 0
    calibration: CalibrationRecord = field(default_factory=CalibrationRecord)

    def update(self, triplets, chosen=None):
        if len(triplets) < self.warmup:
            return None
        self.n_refits += 1
        if hasattr(self.model, "embedding_"):
            known = self.model.n_answers_
            self.calibration.add(self.model, triplets[known:], chosen[known:])
        if len(triplets) >= 2 * self.cold_at:
            self.cold_at = len(triplets)
            self.model.set_params(warm_start=True).fit(triplets)
        else:
            self.model.partial_fit(triplets[self.model.n_answers_ :])
        n_items, d = self.model.embedding_.shape
        trust = self.calibration.trust(len(triplets), n_items * d - d * (d + 1) // 2)
        return Posterior.from_embedding(self.model, triplets, temper=self.temper, trust=trust)
