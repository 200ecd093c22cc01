"""Participants: who they are, and where they stand."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, select, update

from accelerando.crowd.store.errors import Refused
from accelerando.crowd.store.experiments import Now, forget
from accelerando.crowd.store.schema import answer, experiment, participant, served
from accelerando.crowd.store.store import insert_or_ignore

__all__ = ["consent", "get", "join", "read_token", "token", "withdraw"]

Person = Row[Any]

_LONGEST = 200
_GET = select(participant).where(participant.c.id == bindparam("person"))
_LOCK = _GET.with_for_update()


def token(secret: bytes, now: Now, person: int) -> str:
    """What a participant shows with every request: their number, signed."""
    what = f"{now.frame.id}.{person}"
    return f"{what}.{_sign(secret, now.frame.created, what)}"


def read_token(secret: bytes, now: Now, shown: str | None) -> int | None:
    """The participant's number, or None if this is not a token for this experiment."""
    what, _, signature = (shown or "").rpartition(".")
    number, _, person = what.partition(".")
    if not (number.isascii() and number.isdigit() and person.isascii() and person.isdigit()):
        return None
    if int(number) != now.frame.id or len(person) > 18:
        return None
    good = hmac.compare_digest(signature.encode(), _sign(secret, now.frame.created, what).encode())
    return int(person) if good else None


def _sign(secret: bytes, created: float, what: str) -> str:
    # The time of creation keeps tokens of a deleted experiment from opening its successor.
    return hmac.digest(secret, f"participant {created} {what}".encode(), "sha256").hex()


def get(connection: Connection, now: Now, person: int, *, lock: bool = False) -> Person:
    """The row of a participant.

    Raises
    ------
    Refused
        There is none of this number in this experiment.
    """
    row = connection.execute(_LOCK if lock else _GET, {"person": person}).first()
    if row is None or row.experiment_id != now.frame.id:
        raise Refused("no_participant", "This session is not known here; begin again.", 401)
    return row


def join(
    connection: Connection,
    now: Now,
    secret: bytes,
    parameters: Mapping[str, str],
    device: str,
    known: int | None,
    clock: float,
) -> Person:
    """The participant who comes with these URL parameters: known from before, or new.

    Raises
    ------
    Refused
        Code "returning": came back where that is not wanted; "full": there are enough.
    """
    wishes = now.frame.settings.participants
    kept = {name: clean(value) for name, value in parameters.items()}
    given = next((kept[name] for name in wishes.id_parameters if kept.get(name)), None)
    external = given
    if given is not None and wishes.pseudonyms:
        external = _pseudonym(secret, now, given)
    if known is not None:
        row = connection.execute(_GET, {"person": known}).first()
        # Two people at one computer: the name in the link counts more than the cookie.
        if row is not None and row.experiment_id == now.frame.id:
            same = external is None or row.external == external
            if same or (row.external is None and row.name.startswith(f"{external}-")):
                return row
    if external is not None:
        row = connection.execute(
            select(participant).where(
                participant.c.experiment_id == now.frame.id, participant.c.external == external
            )
        ).first()
        if row is not None and wishes.returning == "resume":
            return row
        if row is not None and wishes.returning == "refuse":
            raise Refused("returning", "You have taken part already. Thank you.", 403)
    else:
        row = None
    _require_room(connection, now)
    name = external or secrets.token_hex(6)
    if row is not None:  # "new": another session of the same person, told apart by its name
        name, external = f"{external}-{secrets.token_hex(3)}", None
    wanted = set(wishes.keep_parameters)
    if not wishes.pseudonyms:
        wanted |= set(wishes.id_parameters)
    connection.execute(
        insert_or_ignore(connection, participant).values(
            experiment_id=now.frame.id,
            external=external,
            name=name,
            created=clock,
            last=clock,
            device=device,
            parameters={key: value for key, value in kept.items() if key in wanted},
            personal={},
        )
    )
    # Two tabs at once: the second finds what the first has made.
    found = participant.c.name == name if external is None else participant.c.external == external
    row = connection.execute(
        select(participant).where(participant.c.experiment_id == now.frame.id, found)
    ).first()
    assert row is not None
    return row


def consent(connection: Connection, now: Now, person: Person, agreed: bool, clock: float) -> None:
    """Write down what the participant said to the consent text."""
    text = now.frame.settings.consent
    values: dict[str, Any] = {"last": clock}
    if agreed:
        values |= {
            "consented": clock,
            "consent_version": None if text is None else text.version,
            "outcome": None if person.outcome == "no_consent" else person.outcome,
        }
    elif person.answered == 0:
        values |= {"outcome": "no_consent"}
    connection.execute(update(participant).where(participant.c.id == person.id).values(**values))


def withdraw(connection: Connection, now: Now, person: int, clock: float) -> None:
    """Delete all that this participant has answered; the person stays, as withdrawn."""
    _drop_answers(connection, now, person)
    connection.execute(
        update(participant)
        .where(participant.c.id == person)
        .values(
            outcome="withdrawn", last=clock, answered=0, skipped=0, failed=0, asked=0, personal={}
        )
    )


def remove(connection: Connection, now: Now, person: int) -> None:
    """Delete a participant with everything that belongs to them."""
    _drop_answers(connection, now, person)
    connection.execute(delete(participant).where(participant.c.id == person))


def set_blocked(connection: Connection, now: Now, person: int, blocked: bool) -> None:
    """A blocked participant gets no queries, and the embedding is fitted without their answers."""
    connection.execute(
        update(participant)
        .where(participant.c.id == person)
        .values(state="blocked" if blocked else "active")
    )
    _start_afresh(connection, now)


def _drop_answers(connection: Connection, now: Now, person: int) -> None:
    theirs = select(served.c.id).where(served.c.participant_id == person)
    connection.execute(
        delete(answer).where(answer.c.experiment_id == now.frame.id, answer.c.query_id.in_(theirs))
    )
    connection.execute(delete(served).where(served.c.participant_id == person))
    _start_afresh(connection, now)


def _start_afresh(connection: Connection, now: Now) -> None:
    forget(connection)
    connection.execute(
        update(experiment)
        .where(experiment.c.id == now.frame.id)
        .values(revision=experiment.c.revision + 1)
    )


def _require_room(connection: Connection, now: Now) -> None:
    most = now.frame.settings.participants.total_participants
    if most is None:
        return
    # Locked, so that two who come at the same moment do not both get the last place.
    connection.execute(
        select(experiment.c.id).where(experiment.c.id == now.frame.id).with_for_update()
    )
    there = connection.execute(
        select(func.count())
        .select_from(participant)
        .where(
            participant.c.experiment_id == now.frame.id,
            participant.c.outcome.is_(None) | participant.c.outcome.in_(["done", "screened_out"]),
        )
    ).scalar_one()
    if there >= most:
        raise Refused("full", "The experiment has all the participants it needs.", 403)


def _pseudonym(secret: bytes, now: Now, given: str) -> str:
    what = f"pseudonym {now.frame.created} {given}".encode()
    return "p" + hmac.new(secret, what, hashlib.sha256).hexdigest()[:15]


def clean(word: object) -> str:
    """Text that every database can hold: no NUL, no half characters, not too long."""
    text = str(word).encode("utf-8", "replace").decode("utf-8")
    return text.replace("\x00", "")[:_LONGEST]
