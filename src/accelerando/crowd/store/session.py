"""The session of a participant: each function handles one request in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from accelerando.crowd.store import participants, serving
from accelerando.crowd.store.answers import StoredAnswer, take_answer
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot, find
from accelerando.crowd.store.participants import Person
from accelerando.crowd.store.unshown import replace_query

__all__ = ["Standing", "answer", "begin", "consent", "look", "replace", "see", "withdraw"]


@dataclass(frozen=True)
class Standing:
    """The state of a session after a request.

    Attributes
    ----------
    snapshot : Snapshot
        The experiment.
    person : Row or None
        The participant; None if the experiment is full, or after a refused consent.
    queries : sequence of rows
        Open queries, oldest first.
    outcome : str or None
        How the session ended, or "paused".
    taken : StoredAnswer or None
        The result of the answer that was sent.
    """

    snapshot: Snapshot
    person: Person | None
    queries: Sequence[Any] = field(default=())
    outcome: str | None = None
    taken: StoredAnswer | None = None

    @property
    def consent_required(self) -> bool:
        """True if the participant has not given consent yet."""
        return self.person is not None and needs_consent(self.snapshot, self.person)


def begin(
    connection: Connection,
    name: str,
    secret: bytes,
    parameters: Mapping[str, str],
    device: str,
    shown: str | None,
    count: int,
    clock: float,
    browser: str = "",
) -> Standing:
    """Start or continue a session when the page opens."""
    snapshot = find(connection, name)
    known = participants.authenticate(connection, secret, snapshot, shown)
    try:
        person = participants.join(
            connection, snapshot, secret, parameters, device, known, clock, browser
        )
    except ApiError as error:
        if error.code != "full":
            raise
        return Standing(snapshot, None, outcome="full")
    person = participants.get(connection, snapshot, person.id, lock=True)
    participants.touch(connection, person, clock)
    return _standing(connection, snapshot, person, count, clock)


def look(
    connection: Connection, name: str, secret: bytes, shown: str | None, count: int, clock: float
) -> Standing:
    """Return the open queries, with new ones until there are ``count``."""
    snapshot = find(connection, name)
    # Lock the row: a second tab waits and then finds the queries of the first.
    person = _authenticate(connection, secret, snapshot, shown, lock=True)
    return _standing(connection, snapshot, person, count, clock)


def see(
    connection: Connection, name: str, secret: bytes, shown: str | None, count: int
) -> Standing:
    """Return the open queries, and change nothing."""
    snapshot = find(connection, name)
    person = _authenticate(connection, secret, snapshot, shown)
    ended = _ended(snapshot, person)
    if ended is not None:
        return ended
    return Standing(snapshot, person, serving.open_queries(connection, person.id)[:count])


def answer(
    connection: Connection,
    name: str,
    secret: bytes,
    shown: str | None,
    query: int,
    winner: int | None,
    response_time: float | None,
    network_latency: float | None,
    count: int,
    clock: float,
) -> Standing:
    """Store an answer and assign the next queries."""
    snapshot = find(connection, name)
    person = _authenticate(connection, secret, snapshot, shown, lock=True)
    taken = take_answer(
        connection, snapshot, person, query, winner, response_time, network_latency, clock
    )
    return _standing(connection, snapshot, taken.person, count, clock, taken)


def replace(
    connection: Connection,
    name: str,
    secret: bytes,
    shown: str | None,
    query: int,
    failed: Sequence[int],
    count: int,
    clock: float,
) -> Standing:
    """Forget a query whose items did not load, and assign others."""
    snapshot = find(connection, name)
    person = _authenticate(connection, secret, snapshot, shown, lock=True)
    # Also while the experiment is paused: the page will not show this query again.
    if person.state == "active" and person.outcome is None:
        person = replace_query(connection, snapshot, person, query, failed)
    return _standing(connection, snapshot, person, count, clock)


def consent(
    connection: Connection, name: str, secret: bytes, shown: str | None, agreed: bool, clock: float
) -> Standing:
    """Record whether the participant gives consent."""
    snapshot = find(connection, name)
    person = _authenticate(connection, secret, snapshot, shown, lock=True)
    if not participants.consent(connection, snapshot, person, agreed, clock):
        return Standing(snapshot, None, outcome="no_consent")
    person = participants.get(connection, snapshot, person.id)
    return _standing(connection, snapshot, person, 2, clock)


def withdraw(
    connection: Connection, name: str, secret: bytes, shown: str | None, clock: float
) -> Standing:
    """Mark all answers of the participant as withdrawn and end the session."""
    snapshot = find(connection, name)
    person = _authenticate(connection, secret, snapshot, shown, lock=True)
    if not snapshot.frame.settings.participants.withdraw:
        raise ApiError("not_allowed", "Please write to the experimenter to withdraw.", 403)
    participants.withdraw(connection, snapshot, person.id, clock)
    person = participants.get(connection, snapshot, person.id)
    return _standing(connection, snapshot, person, 0, clock)


def needs_consent(snapshot: Snapshot, person: Person) -> bool:
    """Return True if the experiment asks for consent and the participant has not given it."""
    text = snapshot.frame.settings.consent
    return text is not None and person.consent_version != text.version


def _standing(
    connection: Connection,
    snapshot: Snapshot,
    person: Person,
    count: int,
    clock: float,
    taken: StoredAnswer | None = None,
) -> Standing:
    ended = _ended(snapshot, person, taken)
    if ended is not None:
        return ended
    queries, outcome = serving.top_up(connection, snapshot, person, count, clock)
    return Standing(snapshot, person, queries, outcome, taken)


def _ended(
    snapshot: Snapshot, person: Person, taken: StoredAnswer | None = None
) -> Standing | None:
    """Return the standing of a participant who gets no queries now, else None."""
    if person.state == "blocked":
        return Standing(snapshot, person, outcome="blocked", taken=taken)
    if person.outcome is not None:
        return Standing(snapshot, person, outcome=person.outcome, taken=taken)
    if needs_consent(snapshot, person):
        return Standing(snapshot, person, taken=taken)
    if snapshot.paused:
        return Standing(snapshot, person, outcome="paused", taken=taken)
    return None


def _authenticate(
    connection: Connection,
    secret: bytes,
    snapshot: Snapshot,
    shown: str | None,
    *,
    lock: bool = False,
) -> Person:
    person = participants.authenticate(connection, secret, snapshot, shown, lock=lock)
    if person is None:
        raise ApiError("no_participant", "This session is unknown; please start again.", 401)
    return person
