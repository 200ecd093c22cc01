"""Participants in the database: join, consent, withdraw, block."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, select, update

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot, forget, note
from accelerando.crowd.store.schema import answer, experiment, participant, served
from accelerando.crowd.store.store import insert_or_ignore

__all__ = [
    "consent",
    "delete_withdrawn",
    "get",
    "invitation",
    "join",
    "proof",
    "read_token",
    "reinstate",
    "token",
    "withdraw",
]

Person = Row[Any]

_LONGEST = 200
_GET = select(participant).where(participant.c.id == bindparam("person"))
_LOCK = _GET.with_for_update()


def token(secret: bytes, snapshot: Snapshot, person: int) -> str:
    """Return the signed token that authenticates a participant."""
    what = f"{snapshot.frame.id}.{person}"
    return f"{what}.{_sign(secret, snapshot.frame.created, what)}"


def read_token(secret: bytes, snapshot: Snapshot, shown: str | None) -> int | None:
    """Return the participant's id, or None if the token is not valid for this experiment."""
    what, _, signature = (shown or "").rpartition(".")
    number, _, person = what.partition(".")
    # Compared as text: converting thousands of digits is slow, and Python refuses it.
    if number != str(snapshot.frame.id) or len(person) > 18:
        return None
    if not (person.isascii() and person.isdigit()):
        return None
    good = _equal(signature, _sign(secret, snapshot.frame.created, what))
    return int(person) if good else None


def proof(secret: bytes, snapshot: Snapshot, given: str) -> str:
    """Return the signature of a personal link: it proves that the server gave this id."""
    return _short(secret, f"personal {snapshot.frame.created} {given}")


def invitation(secret: bytes, snapshot: Snapshot) -> str:
    """Return the unguessable part of the link that a recruiting service gets."""
    return _short(secret, f"invitation {snapshot.frame.created}")


def _short(secret: bytes, what: str) -> str:
    signed = hmac.digest(secret, what.encode("utf-8", "replace"), "sha256")
    return urlsafe_b64encode(signed[:16]).decode().rstrip("=")


def _equal(shown: str | None, expected: str) -> bool:
    return hmac.compare_digest((shown or "").encode("utf-8", "replace"), expected.encode())


def _sign(secret: bytes, created: float, what: str) -> str:
    # With the time of creation, tokens of a deleted experiment are not valid for its successor.
    return hmac.digest(secret, f"participant {created} {what}".encode(), "sha256").hex()


def get(connection: Connection, snapshot: Snapshot, person: int, *, lock: bool = False) -> Person:
    """Return the row of a participant.

    Raises
    ------
    ApiError
        This experiment has no participant with this id.
    """
    row = connection.execute(_LOCK if lock else _GET, {"person": person}).first()
    if row is None or row.experiment_id != snapshot.frame.id:
        raise ApiError("no_participant", "This session is unknown; please start again.", 401)
    return row


def join(
    connection: Connection,
    snapshot: Snapshot,
    secret: bytes,
    parameters: Mapping[str, str],
    device: str,
    known: int | None,
    clock: float,
    browser: str = "",
) -> Person:
    """Return the participant with these URL parameters: a known one, or a new one.

    An id in a link is a claim, because ids can be guessed. A session continues only with a proof:
    the token of the session (`known`), the random number that the same browser sent before
    (`browser`), or a personal link (see :func:`proof`). Somebody with the id of another participant
    and no proof gets a session of their own.

    Raises
    ------
    ApiError
        Code "returning": the participant has taken part before and may not return. Code "full":
        the experiment has all its participants. Code "no_invitation": the experiment admits people
        with its link only.
    """
    settings = snapshot.frame.settings.participants
    kept = {name: clean(value) for name, value in parameters.items()}
    given = next((kept[name] for name in settings.id_parameters if kept.get(name)), None)
    external = given
    if given is not None and settings.pseudonyms:
        external = _pseudonym(secret, snapshot, given)
    proven = given is not None and _equal(kept.get("proof"), proof(secret, snapshot, given))
    mine = hashlib.sha256(browser.encode()).hexdigest() if browser else ""
    row = _by_cookie(connection, snapshot, known, external)
    if row is not None:
        return row
    row = _by_external(connection, snapshot, external)
    if row is not None and mine and row.browser == mine:
        return row
    if row is not None and proven and row.proven and settings.returning == "resume":
        return row
    squatted = row is not None and proven and not row.proven
    if row is not None and settings.returning == "refuse" and not squatted:
        raise ApiError("returning", "You have taken part already. Thank you.", 403)
    invited = proven or _equal(kept.get("invitation"), invitation(secret, snapshot))
    if settings.entry == "link" and not invited:
        raise ApiError("no_invitation", "Please open the complete link of this study.", 403)
    _check_capacity(connection, snapshot)
    if squatted and row is not None:
        # Somebody used the id before the person to whom it belongs.
        connection.execute(
            update(participant)
            .where(participant.c.id == row.id)
            .values(external=None, name=_other_name(external))
        )
    wanted = set(settings.keep_parameters)
    if not settings.pseudonyms:
        wanted |= set(settings.id_parameters)
    values = {
        "experiment_id": snapshot.frame.id,
        "external": external,
        "name": external or secrets.token_hex(6),
        "created": clock,
        "last": clock,
        "device": device,
        "parameters": {key: value for key, value in kept.items() if key in wanted},
        "personal": {},
        "proven": proven,
        "browser": mine,
    }
    if row is not None and not squatted:
        values |= {"external": None, "name": _other_name(external)}
    add = insert_or_ignore(connection, participant).returning(participant)
    made = connection.execute(add, values).first()
    if made is None:  # another transaction has just taken the id: look again
        return join(connection, snapshot, secret, parameters, device, known, clock, browser)
    return made


def _other_name(external: str | None) -> str:
    return f"{external}-{secrets.token_hex(3)}"


def _by_cookie(
    connection: Connection, snapshot: Snapshot, known: int | None, external: str | None
) -> Person | None:
    """Return the participant of the cookie, unless the link has the name of another one.

    Two people may share a computer, so the name in the link has precedence.
    """
    if known is None:
        return None
    row = connection.execute(_GET, {"person": known}).first()
    if row is None or row.experiment_id != snapshot.frame.id:
        return None
    same = external is None or row.external == external
    is_other_session = row.external is None and row.name.startswith(f"{external}-")
    return row if same or is_other_session else None


def _by_external(connection: Connection, snapshot: Snapshot, external: str | None) -> Person | None:
    """Return the participant with this id in the link, if there is one."""
    if external is None:
        return None
    return connection.execute(
        select(participant).where(
            participant.c.experiment_id == snapshot.frame.id, participant.c.external == external
        )
    ).first()


def consent(
    connection: Connection, snapshot: Snapshot, person: Person, agreed: bool, clock: float
) -> None:
    """Record whether the participant gave consent; a session that has ended stays as it is."""
    if person.withdrawn is not None or person.outcome not in (None, "no_consent"):
        return
    text = snapshot.frame.settings.consent
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


def withdraw(connection: Connection, snapshot: Snapshot, person: int, clock: float) -> None:
    """Mark all answers of a participant as withdrawn; they count nowhere from now on.

    They are deleted after the delay of the experiment, see :func:`delete_withdrawn`. Until then
    the experimenter can undo a withdrawal that the participant did not want.
    """
    connection.execute(
        update(participant)
        .where(participant.c.id == person, participant.c.withdrawn.is_(None))
        .values(outcome="withdrawn", last=clock, withdrawn=clock)
    )
    note(connection, clock, "(participant)", "withdraw", f"{snapshot.frame.name} {person}")
    _new_revision(connection, snapshot)
    if snapshot.frame.settings.participants.withdrawn_days == 0:
        delete_withdrawn(connection, snapshot, clock)


def delete_withdrawn(connection: Connection, snapshot: Snapshot, clock: float) -> int:
    """Delete the answers that were withdrawn long enough ago; return the number of participants."""
    mine = participant.c.experiment_id == snapshot.frame.id
    # A time in the future was written by a clock that was wrong.
    connection.execute(
        update(participant).where(mine, participant.c.withdrawn > clock).values(withdrawn=clock)
    )
    delay = 86400 * snapshot.frame.settings.participants.withdrawn_days
    due = connection.execute(
        select(participant.c.id).where(
            mine,
            participant.c.withdrawn <= clock - delay,
            (participant.c.answered + participant.c.skipped + participant.c.asked) > 0,
        )
    ).scalars()
    found = list(due)
    for person in found:
        _drop_answers(connection, snapshot, person)
        connection.execute(
            update(participant)
            .where(participant.c.id == person)
            .values(
                answered=0, skipped=0, failed=0, asked=0, practised=0, personal={}, parameters={}
            )
        )
        what = f"{snapshot.frame.name} {person}"
        note(connection, clock, "(service)", "delete withdrawn answers", what)
    return len(found)


def reinstate(connection: Connection, snapshot: Snapshot, person: Person) -> None:
    """Undo a withdrawal whose answers have not been deleted yet.

    Raises
    ------
    ApiError
        The participant has not withdrawn, or the answers have been deleted.
    """
    if person.withdrawn is None or person.asked == 0:
        raise ApiError("not_withdrawn", "There are no withdrawn answers of this participant.", 409)
    quota = snapshot.frame.settings.participants.answers
    done = quota is not None and person.answered >= quota
    connection.execute(
        update(participant)
        .where(participant.c.id == person.id)
        .values(withdrawn=None, outcome="done" if done else None)
    )
    _new_revision(connection, snapshot)


def remove(connection: Connection, snapshot: Snapshot, person: int) -> None:
    """Delete a participant and all of their data."""
    _drop_answers(connection, snapshot, person)
    connection.execute(delete(participant).where(participant.c.id == person))


def set_blocked(connection: Connection, snapshot: Snapshot, person: int, blocked: bool) -> None:
    """Block a participant, who gets no queries and whose answers the fit ignores, or unblock."""
    connection.execute(
        update(participant)
        .where(participant.c.id == person)
        .values(state="blocked" if blocked else "active")
    )
    _new_revision(connection, snapshot)


def _drop_answers(connection: Connection, snapshot: Snapshot, person: int) -> None:
    theirs = select(served.c.id).where(served.c.participant_id == person)
    connection.execute(
        delete(answer).where(
            answer.c.experiment_id == snapshot.frame.id, answer.c.query_id.in_(theirs)
        )
    )
    connection.execute(delete(served).where(served.c.participant_id == person))
    _new_revision(connection, snapshot)


def _new_revision(connection: Connection, snapshot: Snapshot) -> None:
    forget(connection)
    connection.execute(
        update(experiment)
        .where(experiment.c.id == snapshot.frame.id)
        .values(revision=experiment.c.revision + 1)
    )


def _check_capacity(connection: Connection, snapshot: Snapshot) -> None:
    most = snapshot.frame.settings.participants.total_participants
    if most is None:
        return
    # Lock the row, so that two participants cannot both take the last place.
    connection.execute(
        select(experiment.c.id).where(experiment.c.id == snapshot.frame.id).with_for_update()
    )
    there = connection.execute(
        select(func.count())
        .select_from(participant)
        .where(
            participant.c.experiment_id == snapshot.frame.id,
            participant.c.outcome.is_(None) | participant.c.outcome.in_(["done", "screened_out"]),
        )
    ).scalar_one()
    if there >= most:
        raise ApiError("full", "The experiment has all the participants it needs.", 403)


def _pseudonym(secret: bytes, snapshot: Snapshot, given: str) -> str:
    what = f"pseudonym {snapshot.frame.created} {given}".encode()
    return "p" + hmac.new(secret, what, hashlib.sha256).hexdigest()[:15]


def clean(word: object) -> str:
    """Return text that every database can store: no NUL, no surrogates, limited length."""
    text = str(word).encode("utf-8", "replace").decode("utf-8")
    return text.replace("\x00", "")[:_LONGEST]
