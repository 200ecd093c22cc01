"""Assign queries to participants: no query twice, and each queued query to one participant."""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, bindparam, select, update

from accelerando.crowd._assignment import AssignedQuery, AssignmentState, QueryAssigner
from accelerando.crowd._sampler import Query, SamplerState
from accelerando.crowd.store.experiments import Snapshot, one_sampler_assigner
from accelerando.crowd.store.lookups import StoredQueue, StoredSeen
from accelerando.crowd.store.participants import Person
from accelerando.crowd.store.places import room
from accelerando.crowd.store.schema import participant, served

__all__ = ["CHECK", "UNSHOWN", "AsRow", "ServedRow", "as_values", "open_queries", "top_up"]

ServedRow = Row[Any]
# Key of a participant's counts of items that did not load; samplers' names have no spaces.
UNSHOWN = " unshown"
CHECK = " check"  # key of the state of the attention checks
_TRIES = 20

_OPEN = (
    select(served)
    .where(served.c.participant_id == bindparam("person"), served.c.open)
    .order_by(served.c.number, served.c.at)
)
_ASKED = (
    update(participant)
    .where(participant.c.id == bindparam("person"))
    .values(asked=bindparam("n_asked"), personal=bindparam("own"))
)
_SERVE = served.insert()


def open_queries(connection: Connection, person: int) -> list[ServedRow]:
    """Return the participant's unanswered queries, oldest first."""
    return list(connection.execute(_OPEN, {"person": person}))


def top_up(
    connection: Connection,
    snapshot: Snapshot,
    person: Person,
    count: int,
    clock: float,
    *,
    anywhere: bool = False,
) -> tuple[list[ServedRow], str | None]:
    """Return the participant's open queries, with new ones until there are ``count``.

    Return the outcome of the session, too, if there is nothing left to ask. With `anywhere`, a
    query of a queue is a random one of its first ones.
    """
    if count == 0:
        return [], person.outcome
    waiting = open_queries(connection, person.id)
    if snapshot.paused:
        return waiting, person.outcome
    asker = _Asker(connection, snapshot, person, clock, anywhere)
    practising = sum(row.kind == "practice" for row in waiting)
    asking = sum(row.kind == "query" for row in waiting)
    to_practise = len(snapshot.frame.settings.practice) - person.practised - practising
    # Attention checks and repeats come in addition to the participant's own number of answers.
    left: float = math.inf
    full = "done"
    if person.quota is not None:
        left = person.quota - person.answered - asking
    elif snapshot.frame.settings.participants.total_answers is not None and len(waiting) < count:
        left = room(connection, snapshot, clock)
        full = "done" if person.answered else "full"
    while len(waiting) < count and left > 0:
        if to_practise > 0:
            waiting.append(asker.practice(person.practised + practising))
            practising, to_practise = practising + 1, to_practise - 1
            continue
        new = asker.next()
        if new is None:
            break
        waiting.append(new)
        left -= new.kind == "query"
    asker.finish()
    outcome: str | None = person.outcome
    if not waiting and outcome is None:
        outcome = full if left <= 0 else "done"
        connection.execute(
            update(participant).where(participant.c.id == person.id).values(outcome=outcome)
        )
    return waiting, outcome


class _Asker:
    """Choose queries for one participant within one transaction."""

    def __init__(
        self,
        connection: Connection,
        snapshot: Snapshot,
        person: Person,
        clock: float,
        anywhere: bool = False,
    ) -> None:
        self.anywhere = anywhere
        self.connection, self.snapshot, self.person, self.clock = (
            connection,
            snapshot,
            person,
            clock,
        )
        self.frame = snapshot.frame
        self.asked = person.asked
        self.personal: dict[str, Any] = dict(person.personal)
        self.changed = False
        self.seen = StoredSeen(connection, person.id)

    def practice(self, number: int) -> ServedRow:
        known = self.frame.settings.practice[number]
        query = Query(known.head, known.left, known.right)
        return self._serve(
            AssignedQuery(query, "practice"), "practice", number - 1000, known.winner
        )

    def next(self) -> ServedRow | None:
        """Assign and return the next query; None if the participant has seen all queries."""
        number = self.asked + 1
        made = self._fixed(number) or self._check(number) or self._repeat(number)
        if made is None:
            try:
                made = self._that_can_be_shown(number), "query", None
            except LookupError:
                return None
        self.asked = number
        self.changed = True
        return self._serve(made[0], made[1], number, made[2])

    def finish(self) -> None:
        if self.changed:
            self.connection.execute(
                _ASKED,
                {"person": self.person.id, "n_asked": self.asked, "own": self.personal},
            )

    def _fixed(self, number: int) -> tuple[AssignedQuery, str, int | None] | None:
        fixed = self.frame.settings.fixed.get(number)
        if fixed is None:
            return None
        if fixed.query is not None:
            query = Query(*fixed.query)
            return AssignedQuery(query, fixed.sampler or "fixed"), "query", None
        return None

    def _check(self, number: int) -> tuple[AssignedQuery, str, int | None] | None:
        check, every = self.frame.check, self.frame.settings.checks.every
        if check is None or number % every:
            return None
        state = self._state(CHECK) or check.start(self.frame.n_items, self._seed())
        (query,), after = check.propose(state, 1)
        self.personal[CHECK] = _plain(after)
        known = {
            Query(*asked).key: winner
            for asked, winner in zip(check.queries, check.winners or (), strict=True)
        }
        return AssignedQuery(query, "check"), "check", known[query.key]

    def _repeat(self, number: int) -> tuple[AssignedQuery, str, int | None] | None:
        """Return an earlier query of the participant with swapped sides."""
        every = self.frame.settings.checks.repeat_every
        if every is None or number % every:
            return None
        earlier = self.connection.execute(
            select(served.c.head, served.c.left, served.c.right)
            .where(
                served.c.participant_id == self.person.id,
                served.c.kind == "query",
                served.c.number <= number - every + 1,
                served.c.number > number - 4 * every,
                ~served.c.open,
            )
            .order_by(served.c.number)
        ).all()
        if not earlier:
            return None
        rng = np.random.default_rng([*self._own_seed(), number])
        head, left, right = earlier[int(rng.integers(len(earlier)))]
        return AssignedQuery(Query(head, right, left), "repeat"), "repeat", None

    def _assigner(self, number: int) -> QueryAssigner:
        settings = self.frame.settings
        fixed = settings.fixed.get(number)
        if fixed is not None and fixed.sampler is not None:
            name = fixed.sampler
        elif settings.participants.one_sampler:
            names = list(settings.samplers)
            weights = np.array(
                [1.0 if settings.shares is None else settings.shares[n] for n in names]
            )
            rng = np.random.default_rng(self._own_seed())
            name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        else:
            return self.frame.assigner
        described = settings.samplers[name].model_dump_json(by_alias=True)
        return one_sampler_assigner(self.frame.n_items, name, described)

    def _that_can_be_shown(self, number: int) -> AssignedQuery:
        """Return a query without items that did not load for this participant, if there is one."""
        assigner = self._assigner(number)
        made = self._from_assigner(assigner)
        missing = {int(item) for item in self.personal.get(UNSHOWN, ())}
        if missing:
            for _ in range(_TRIES):
                if not missing & set(made.query[:3]):
                    break
                self.asked += 1
                made = self._from_assigner(assigner)
        return made

    def _from_assigner(self, assigner: QueryAssigner) -> AssignedQuery:
        state = self._assignment_state(assigner)
        made = assigner.assign(state, str(self.person.id))
        for (name, _), personal in state.personal.items():
            self.personal[name] = _plain(personal)
        return made

    def _assignment_state(self, assigner: QueryAssigner) -> AssignmentState:
        """Return the state for this request; it is the same after a restart of the server."""
        seed, turn = self._seed(), self.asked
        state = AssignmentState(seed, assigned=turn)
        me = str(self.person.id)
        state.seen[me] = self.seen
        for number, (name, sampler) in enumerate(assigner.samplers.items()):
            if sampler.adaptive:
                state.queues[name] = StoredQueue(
                    *(self.connection, self.snapshot, self.person.id, name),
                    anywhere=self.anywhere,
                )
            elif sampler.personal:
                known = self._state(name)
                if known is not None:
                    state.personal[name, me] = known
            else:
                begin = SamplerState(self.frame.n_items, seed=seed + number + 1, turn=turn)
                state.samplers[name] = begin
        return state

    def _state(self, name: str) -> SamplerState | None:
        found = self.personal.get(name)
        return None if found is None else SamplerState(**{**found, "deck": tuple(found["deck"])})

    def _seed(self) -> int:
        """Return the seed of everything that is drawn for this participant."""
        own, seed = self.person.secret, self.frame.settings.seed
        if not own:  # a participant of a former version
            return 1_000_003 * int(self.person.id) + 17 * seed
        return int(hashlib.sha256(f"{own} {seed}".encode()).hexdigest()[:12], 16)

    def _own_seed(self) -> list[int]:
        if self.person.secret:
            return [self._seed()]
        return [self.frame.settings.seed, int(self.person.id)]

    def _serve(self, made: AssignedQuery, kind: str, number: int, winner: int | None) -> ServedRow:
        head, left, right, score = made.query
        row = {
            "experiment_id": self.frame.id,
            "id": secrets.randbits(52),
            "participant_id": self.person.id,
            "number": number,
            "kind": kind,
            "head": head,
            "left": left,
            "right": right,
            "low": min(left, right),
            "high": max(left, right),
            "winner": winner,
            "sampler": made.sampler,
            "score": score,
            "fallback": made.fallback,
            "version": self.snapshot.queue_version,
            "at": self.clock,
            "open": True,
        }
        self.connection.execute(_SERVE, row)
        self.seen.add((head, min(left, right), max(left, right)))
        return AsRow(**row)  # type: ignore[return-value]


class AsRow:
    """A row that was just written, with the attributes of a selected row."""

    def __init__(self, **values: Any) -> None:
        self._mapping = values
        self.__dict__.update(values)


def as_values(row: Any) -> dict[str, Any]:
    """Return the values of a row by their names, without SQLAlchemy's lookup of each name."""
    return row._mapping if isinstance(row, AsRow) else dict(zip(row._fields, row, strict=True))


def _plain(state: SamplerState) -> dict[str, Any]:
    return asdict(replace(state, deck=tuple(int(card) for card in state.deck)))
