"""The learner of one experiment: reads answers, fits the embedding, fills the queues."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from accelerando.crowd._assignment import AssignmentState, QueryList
from accelerando.crowd._choice import Candidate
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._guard import Guard
from accelerando.crowd._metrics import triplet_accuracy
from accelerando.crowd._noise import TSTE, NoiseModel
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._refit import Refitter
from accelerando.crowd._sampler import Query, SamplerState, Search
from accelerando.crowd._uncertainty import position_uncertainty
from accelerando.crowd.experiment.settings import EmbeddingSettings
from accelerando.crowd.store import published
from accelerando.crowd.store.experiments import Frame, Snapshot
from accelerando.crowd.store.published import Fitted

__all__ = ["LOOK_BACK", "Learner", "aligned", "model_settings"]

# With PostgreSQL an answer may become visible after one with a larger sequence number, if two
# processes write at the same time. Each read starts this many numbers earlier.
LOOK_BACK = 1000
_TESTED_PER_ROW = 20


@dataclass
class Learner:
    """State of the worker for one experiment, which can be rebuilt from the database.

    Attributes
    ----------
    frame : Frame
        The experiment.
    revision : int
        Revision of the answers; a new one requires a new learner.
    refitter : Refitter
    states : dict of str to SamplerState
    seen, last
        Sequence numbers of the recent answers that were read, and the largest one.
    rows : list
        All answers ``(head, winner, loser)``.
    chosen : list of bool
        For each row, whether a score chose its query.
    people : list of int
        For each row, who answered.
    left : list of bool
        For each row, whether the winner was on the left.
    untested : list
        Random answers that the embedding was neither fitted to nor tested on.
    right, tested : float, int
        Number of correct predictions and of tests since accuracy was last published.
    fresh : int
        Number of answers since the last turn.
    shown : array or None
        The positions that were published last.
    report : dict
        What is published about the model, the guard, the people and the items.
    """

    frame: Frame
    revision: int
    refitter: Refitter
    states: dict[str, SamplerState]
    seen: set[int] = field(default_factory=set)
    last: int = 0
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    chosen: list[bool] = field(default_factory=list)
    people: list[int] = field(default_factory=list)
    left: list[bool] = field(default_factory=list)
    untested: list[tuple[int, int, int]] = field(default_factory=list)
    right: float = 0.0
    tested: int = 0
    fresh: int = 0
    shown: NDArray[np.float64] | None = None
    report: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, connection: Connection, snapshot: Snapshot) -> Learner:
        """Return a learner that continues from the last published state."""
        frame, settings = snapshot.frame, snapshot.frame.settings.embedding
        model = OrdinalEmbedding(
            **model_settings(settings), n_items=frame.n_items, random_state=frame.settings.seed
        )
        warmup = frame.n_items if settings.warmup is None else settings.warmup
        states = frame.assigner.start(frame.settings.seed).samplers
        states |= {
            name: state
            for name, state in published.saved_states(connection, frame).items()
            if name in states
        }
        learner = cls(frame, snapshot.revision, Refitter(model, warmup, settings.temper), states)
        learner.take(connection, look_back=0)
        learner.report = published.report(connection, frame.id)
        guard = learner.report.get("guard", {})
        learner.refitter.guard = Guard(
            share=guard.get("share", 1.0),
            begun=guard.get("begun", False),
            looked_at=guard.get("looked_at", 0),
            reason=guard.get("reason", Guard.reason),
        )
        row = published.newest(connection, frame)
        if row is not None and len(learner.rows) >= warmup:
            positions = np.array(row.positions, dtype=float)
            if len(positions) == frame.n_items and settings.dimensions in (
                "auto",
                positions.shape[1],
            ):
                model.fit(
                    learner.triplets,
                    init=positions,
                    fair=~np.array(learner.chosen),
                    participants=learner._who,
                    left=None if learner._who is None else np.array(learner.left),
                )
                learner.shown = positions
                learner._align()
                learner.refitter.cold_at = len(learner.rows)
        # The published embedding was fitted to some of these answers, so they cannot test it.
        learner.untested.clear()
        return learner

    @property
    def triplets(self) -> NDArray[np.intp]:
        """All answers as rows ``(head, winner, loser)``."""
        return np.array(self.rows, dtype=np.intp).reshape(-1, 3)

    def take(self, connection: Connection, look_back: int) -> int:
        """Read new answers; return how many there are."""
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
            self.people.append(row.participant_id)
            self.left.append(row.winner == row.left)
            if row.score is None and self._is_fair(row.sampler):
                self.untested.append(self.rows[-1])
            count += 1
        if len(self.seen) > 4 * LOOK_BACK + look_back:
            self.seen = {seq for seq in self.seen if seq > self.last - 2 * LOOK_BACK}
        self.fresh += count
        return count

    def _is_fair(self, sampler: str) -> bool:
        """Return True if queries of this sampler without a score are random ones."""
        known = self.frame.settings.samplers.get(sampler)
        return known is not None and known.kind != "Validation"

    def is_due(self, ready: dict[str, list[Query]]) -> bool:
        """Return True if there are new answers or a queue is nearly empty."""
        if self.fresh and len(self.rows) >= self.refitter.warmup:
            return True
        adaptive = [name for name, s in self.frame.assigner.samplers.items() if s.adaptive]
        return any(len(ready.get(name, [])) < self.frame.n_items for name in adaptive)

    def work(
        self, ready: dict[str, list[Query]], search: Search
    ) -> tuple[dict[str, list[Query]], Fitted | None]:
        """Take a turn: test, refit, search. Return new queues, and the embedding if it is new."""
        begin = time.perf_counter()
        self._test()
        posterior: Posterior | None = None
        rows = self.triplets
        is_new = self.fresh > 0 or not hasattr(self.refitter.model, "embedding_")
        if len(rows) >= self.refitter.warmup and is_new:
            left = None if self._who is None else np.array(self.left)
            posterior = self.refitter.update(rows, np.array(self.chosen), self._who, left)
            self._align()
            self.report = self._report()
        elif len(rows) >= self.refitter.warmup:
            posterior = Posterior.from_embedding(
                self.refitter.model,
                rows,
                temper=self.refitter.temper,
                trust=self.refitter.guard.trust,
                weights=self.refitter.weights(self._who),
            )
        state = AssignmentState(self.frame.settings.seed, samplers=self.states)
        state.queues.update({name: QueryList(queries) for name, queries in ready.items()})
        assigner = self.frame.assigner
        assigner.refill(state, posterior, search)
        self.states = state.samplers
        self.fresh = 0
        queues = {
            name: queue.queries
            for name, queue in state.queues.items()
            if isinstance(queue, QueryList)
        }
        if posterior is None or not is_new:
            return queues, None
        return queues, self._fitted(time.perf_counter() - begin)

    @property
    def _who(self) -> NDArray[np.intp] | None:
        """Participant of each answer, or None if the experiment does not fit their reliability."""
        settings = self.frame.settings.embedding
        if not settings.reliability or settings.noise in ("gnmds", "soe"):
            return None
        return np.array(self.people, dtype=np.intp)

    def _report(self) -> dict[str, Any]:
        """Return what the dashboard shows about the model, the guard, the people and the items."""
        model, guard, choice = self.refitter.model, self.refitter.guard, self.refitter.choice
        used = Candidate(model.noise_, model.lapse_, model.n_components_, model.ridge_)
        facts: dict[str, Any] = {
            "model": str(used if choice is None else choice.best),
            "reason": "as the experiment says" if choice is None else choice.reason,
            "guard": {
                "share": guard.share,
                "begun": guard.begun,
                "looked_at": guard.looked_at,
                "reason": guard.reason,
            },
            "uncertainty": [
                None if np.isnan(value) else round(float(value), 5)
                for value in position_uncertainty(
                    model.embedding_,
                    self.triplets,
                    model.noise_,
                    lapse=model.lapse_,
                    ridge=model.ridge_,
                    weights=self.refitter.weights(self._who),
                )
            ]
            if model.noise_.probabilistic
            else None,
            "people": {},
        }
        people = model.reliability_
        if people is not None:
            columns = people.slope, people.low, people.high, people.side_bias
            facts["people"] = {
                str(person): [round(float(column[k]), 3) for column in columns]
                for k, person in enumerate(people.people.tolist())
            }
        return facts

    def _align(self) -> None:
        """Align the embedding with the one shown before, so that the map does not jump.

        Answers depend on distances only, so a rotation or reflection does not change the fit.
        """
        model = self.refitter.model
        if self.shown is not None and self.shown.shape == model.embedding_.shape:
            model.embedding_ = aligned(model.embedding_, self.shown)
        self.shown = model.embedding_

    def _test(self) -> None:
        """Test the embedding on random answers that it was not fitted to."""
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


def model_settings(settings: EmbeddingSettings) -> dict[str, Any]:
    """Return the parameters of the embedding that an experiment asks for."""
    noise: str | NoiseModel = settings.noise
    if settings.alpha is not None:
        noise = TSTE(alpha=settings.alpha)
    lapse = settings.lapse
    if lapse is None:
        lapse = "auto" if settings.noise == "auto" else 0.05
    return {"n_components": settings.dimensions, "noise": noise, "lapse": lapse}


def aligned(positions: NDArray[np.float64], like: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotate, reflect and shift positions to minimize their distance to others.

    Examples
    --------
    >>> before = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> bool(np.allclose(aligned(before[:, ::-1] + 7, before), before))
    True
    """
    center = like.mean(axis=0)
    moved = positions - positions.mean(axis=0)
    left, _, right = np.linalg.svd(moved.T @ (like - center))
    return np.asarray(moved @ (left @ right) + center)
