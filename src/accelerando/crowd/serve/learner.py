"""The worker's view of one experiment: answers in, embedding and queue out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from accelerando.crowd._assignment import DeskState
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._metrics import triplet_accuracy
from accelerando.crowd._posterior import Belief
from accelerando.crowd._sampler import Query, SamplerState, Search
from accelerando.crowd._simulate import Refitter
from accelerando.crowd.store import published
from accelerando.crowd.store.experiments import Frame, Now
from accelerando.crowd.store.published import Fitted

__all__ = ["LOOK_BACK", "Study", "turned"]

# On PostgreSQL an answer may become visible after one with a larger number, if it was written by
# another process at the same moment: look back this far.
LOOK_BACK = 1000
_TESTED_PER_ROW = 20


@dataclass
class Study:
    """What a worker remembers about an experiment; all of it can be rebuilt from the store."""

    frame: Frame
    revision: int
    refitter: Refitter
    states: dict[str, SamplerState]
    seen: set[int] = field(default_factory=set)
    last: int = 0
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    chosen: list[bool] = field(default_factory=list)  # of each row: whether a score chose its query
    untested: list[tuple[int, int, int]] = field(default_factory=list)
    right: float = 0.0
    tested: int = 0
    fresh: int = 0
    shown: NDArray[np.float64] | None = None

    @classmethod
    def open(cls, connection: Connection, now: Now) -> Study:
        """Begin where the worker before this one stopped."""
        frame, wishes = now.frame, now.frame.settings.embedding
        model = OrdinalEmbedding(
            wishes.dimensions,
            wishes.noise,
            wishes.lapse,
            n_items=frame.n_items,
            random_state=frame.settings.seed,
        )
        warmup = frame.n_items if wishes.warmup is None else wishes.warmup
        states = frame.desk.open(frame.settings.seed).samplers
        states |= {
            name: state
            for name, state in published.saved_states(connection, frame).items()
            if name in states
        }
        study = cls(frame, now.revision, Refitter(model, warmup, wishes.temper), states)
        study.take(connection, look_back=0)
        row = published.newest(connection, frame)
        if row is not None and len(study.rows) >= warmup:
            shape = frame.n_items, wishes.dimensions
            positions = np.array(row.positions, dtype=float)
            if positions.shape == shape:
                model.fit(study.triplets, init=positions)
                study.shown = positions
                study._face_the_same_way()
                study.refitter.cold_at = len(study.rows)
        # Answers that an earlier embedding may have seen cannot test it any more.
        study.untested.clear()
        return study

    @property
    def triplets(self) -> NDArray[np.intp]:
        """All answers as rows ``(head, winner, loser)``."""
        return np.array(self.rows, dtype=np.intp).reshape(-1, 3)

    def take(self, connection: Connection, look_back: int) -> int:
        """Read new answers; how many there were."""
        after = max(0, self.last - look_back)
        count = 0
        for row in published.new_answers(connection, self.frame.id, after):
            if row.seq in self.seen:
                continue
            self.seen.add(row.seq)
            self.last = max(self.last, row.seq)
            loser = row.right if row.winner == row.left else row.left
            self.rows.append((row.head, row.winner, loser))
            self.chosen.append(row.score is not None)
            if row.score is None and self._is_fair(row.sampler):
                self.untested.append(self.rows[-1])
            count += 1
        if len(self.seen) > 4 * LOOK_BACK + look_back:
            self.seen = {seq for seq in self.seen if seq > self.last - 2 * LOOK_BACK}
        self.fresh += count
        return count

    def _is_fair(self, sampler: str) -> bool:
        """Whether queries without a score of this sampler are random ones."""
        known = self.frame.settings.samplers.get(sampler)
        return known is not None and known.kind != "Validation"

    def is_due(self, ready: dict[str, list[Query]]) -> bool:
        """New answers to learn from, or a queue that runs dry."""
        if self.fresh and len(self.rows) >= self.refitter.warmup:
            return True
        adaptive = [name for name, s in self.frame.desk.samplers.items() if s.adaptive]
        return any(len(ready.get(name, [])) < self.frame.n_items for name in adaptive)

    def work(
        self, ready: dict[str, list[Query]], search: Search
    ) -> tuple[dict[str, list[Query]], Fitted | None]:
        """One turn: test, refit, search. New queues, and the new embedding if there is one."""
        begin = time.perf_counter()
        self._test()
        belief: Belief | None = None
        rows = self.triplets
        learnt = self.fresh > 0 or not hasattr(self.refitter.model, "embedding_")
        if len(rows) >= self.refitter.warmup and learnt:
            belief = self.refitter.turn(rows, np.array(self.chosen))
            self._face_the_same_way()
        elif len(rows) >= self.refitter.warmup:
            model = self.refitter.model
            belief = Belief.from_embedding(model, rows, temper=self.refitter.temper)
        state = DeskState(self.frame.settings.seed, samplers=self.states, queues=dict(ready))
        desk = self.frame.desk
        desk.refill(state, belief, search)
        self.states = state.samplers
        self.fresh = 0
        queues = {name: list(queue) for name, queue in state.queues.items()}
        if belief is None or not learnt:
            return queues, None
        return queues, self._fitted(time.perf_counter() - begin)

    def _face_the_same_way(self) -> None:
        """Turn the embedding as the one before: whoever watches sees items move, not a jump.

        Answers say something about distances only, so turning changes nothing that was learnt.
        """
        model = self.refitter.model
        if self.shown is not None:
            model.embedding_ = turned(model.embedding_, self.shown)
        self.shown = model.embedding_

    def _test(self) -> None:
        """Compare the embedding with random answers that it has not seen yet."""
        model = self.refitter.model
        if self.untested and hasattr(model, "embedding_"):
            share = triplet_accuracy(model.embedding_, self.untested)
            self.right += share * len(self.untested)
            self.tested += len(self.untested)
        self.untested.clear()

    def _fitted(self, seconds: float) -> Fitted:
        model = self.refitter.model
        accuracy, tested = None, 0
        if self.tested >= _TESTED_PER_ROW:
            accuracy, tested = self.right / self.tested, self.tested
            self.right, self.tested = 0.0, 0
        return Fitted(
            n_answers=len(self.rows),
            seconds=seconds,
            loss=float(model.loss_),
            lapse=float(model.lapse_),
            positions=np.round(model.embedding_, 5).tolist(),
            accuracy=accuracy,
            tested=tested,
        )


def turned(positions: NDArray[np.float64], like: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotate, mirror and shift positions so that they lie as near as possible to others.

    Examples
    --------
    >>> before = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> bool(np.allclose(turned(before[:, ::-1] + 7, before), before))
    True
    """
    centre = like.mean(axis=0)
    moved = positions - positions.mean(axis=0)
    left, _, right = np.linalg.svd(moved.T @ (like - centre))
    return np.asarray(moved @ (left @ right) + centre)
