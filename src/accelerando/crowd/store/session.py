"""A participant's session, request by request: each function is one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from accelerando.crowd.store import participants, serving
from accelerando.crowd.store.answers import Taken, take_answer
from accelerando.crowd.store.errors import Refused
from accelerando.crowd.store.experiments import Now, find
from accelerando.crowd.store.participants import Person

__all__ = ["Standing", "answer", "begin", "consent", "look", "withdraw"]


@dataclass(frozen=True)
class Standing:
    """Where a participant stands after a request.

    Attributes
    ----------
    now : Now
        The experiment.
    person : Row or None
        None if nobody was let in.
    queries : sequence of rows
        Open, oldest first.
    outcome : str or None
        How the session ended, or "paused".
    taken : Taken or None
        What became of the answer that was sent.
    """

    now: Now
    person: Person | None
    queries: Sequence[Any] = field(default=())
    outcome: str | None = None
    taken: Taken | None = None

    @property
    def consent_required(self) -> bool:
        """Whether the participant still has to agree."""
        return self.person is not None and needs_consent(self.now, self.person)


def begin(
    connection: Connection,
    name: str,
    secret: bytes,
    parameters: Mapping[str, str],
    device: str,
    shown: str | None,
    count: int,
    clock: float,
) -> Standing:
    """Somebody opens the page: the same person as before, or a new one."""
    now = find(connection, name)
    known = participants.read_token(secret, now, shown)
    try:
        person = participants.join(connection, now, secret, parameters, device, known, clock)
    except Refused as refused:
        if refused.code != "full":
            raise
        return Standing(now, None, outcome="full")
    person = participants.get(connection, now, person.id, lock=True)
    return _standing(connection, now, person, count, clock)


def look(
    connection: Connection, name: str, secret: bytes, shown: str | None, count: int, clock: float
) -> Standing:
    """The open queries, topped up to ``count``."""
    now = find(connection, name)
    number = _require(secret, now, shown)
    # Locked: a second tab waits, and then finds the queries that the first was given.
    person = participants.get(connection, now, number, lock=True)
    return _standing(connection, now, person, count, clock)


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
    """Store an answer, and hand out what comes next."""
    now = find(connection, name)
    number = _require(secret, now, shown)
    person = participants.get(connection, now, number, lock=True)
    taken = take_answer(
        connection, now, person, query, winner, response_time, network_latency, clock
    )
    return _standing(connection, now, taken.person, count, clock, taken)


def consent(
    connection: Connection, name: str, secret: bytes, shown: str | None, agreed: bool, clock: float
) -> Standing:
    """The participant agrees to take part, or does not."""
    now = find(connection, name)
    number = _require(secret, now, shown)
    person = participants.get(connection, now, number, lock=True)
    participants.consent(connection, now, person, agreed, clock)
    return _standing(connection, now, participants.get(connection, now, number), 2, clock)


def withdraw(
    connection: Connection, name: str, secret: bytes, shown: str | None, clock: float
) -> Standing:
    """The participant takes back all they have said."""
    now = find(connection, name)
    number = _require(secret, now, shown)
    if not now.frame.settings.participants.withdraw:
        raise Refused("not_allowed", "Please write to the experimenter to withdraw.", 403)
    participants.get(connection, now, number, lock=True)
    participants.withdraw(connection, now, number, clock)
    return _standing(connection, now, participants.get(connection, now, number), 0, clock)


def needs_consent(now: Now, person: Person) -> bool:
    """Whether there is a text to agree to, and this participant has not agreed to it."""
    text = now.frame.settings.consent
    return text is not None and person.consent_version != text.version


def _standing(
    connection: Connection,
    now: Now,
    person: Person,
    count: int,
    clock: float,
    taken: Taken | None = None,
) -> Standing:
    if person.state == "blocked":
        return Standing(now, person, outcome="blocked", taken=taken)
    if person.outcome is not None:
        return Standing(now, person, outcome=person.outcome, taken=taken)
    if needs_consent(now, person):
        return Standing(now, person, taken=taken)
    if now.paused:
        return Standing(now, person, outcome="paused", taken=taken)
    queries, outcome = serving.top_up(connection, now, person, count, clock)
    return Standing(now, person, queries, outcome, taken)


def _require(secret: bytes, now: Now, shown: str | None) -> int:
    number = participants.read_token(secret, now, shown)
    if number is None:
        raise Refused("no_participant", "This session is not known here; begin again.", 401)
    return number
