"""Participants in the database: join, consent, withdraw, block."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Select, delete, select, update

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot, count_declined, forget, note
from accelerando.crowd.store.places import reserve
from accelerando.crowd.store.schema import answer, experiment, participant, served
from accelerando.crowd.store.store import insert_or_ignore
from accelerando.crowd.store.tokens import (
    Person,
    authenticate,
    get,
    invitation,
    is_equal,
    proof,
    token,
)

__all__ = [
    "Person",
    "authenticate",
    "consent",
    "continues",
    "delete_withdrawn",
    "get",
    "invitation",
    "is_invited",
    "join",
    "new_secret",
    "proof",
    "reinstate",
    "token",
    "touch",
    "withdraw",
]

_LONGEST = 200
_TOUCH_SECONDS = 30.0
_SUFFIX = 6  # signs that distinguish sessions of one id


def join(
    connection: Connection,
    snapshot: Snapshot,
    secret: bytes,
    parameters: Mapping[str, str],
    device: str,
    known: Person | None,
    clock: float,
    browser: str = "",
    own: str = "",
) -> Person:
    """Return the participant with these URL parameters: a known one, or a new one.

    An id in a link is a claim, because ids can be guessed. A session continues only with a proof:
    the token of the session (`known`), the random number that the same browser sent before
    (`browser`), or a personal link (see :func:`proof`). Somebody with the id of another participant
    and no proof gets their own session. A new participant gets the secret `own`, by default a
    random one.

    Raises
    ------
    ApiError
        Code "returning": the participant has finished before and may not return. Code "full":
        the experiment has all its participants. Code "no_invitation": the experiment admits people
        with its link only.
    """
    settings = snapshot.frame.settings.participants
    kept = {name: clean(value) for name, value in parameters.items()}
    given, external = _named(snapshot, secret, kept)
    proven = _is_proven(snapshot, secret, kept, given)
    mine = hashlib.sha256(browser.encode()).hexdigest() if browser else ""
    row = _by_cookie(known, external)
    if row is not None:
        return row
    row = _by_external(connection, snapshot, external)
    if row is not None and mine and row.browser == mine:
        return row
    returning = settings.returning
    unfinished = row is not None and row.outcome is None and row.state != "blocked"
    may_continue = returning == "resume" or (returning == "refuse" and unfinished)
    if row is not None and proven and row.proven and may_continue:
        return row
    squatted = row is not None and proven and not row.proven
    if returning == "refuse" and not squatted and _has_finished(connection, snapshot, external):
        raise ApiError("returning", "You have taken part already. Thank you.", 403)
    if settings.entry == "link" and not is_invited(snapshot, secret, parameters):
        raise ApiError("no_invitation", "Please open the complete link of this study.", 403)
    quota = reserve(connection, snapshot, clock)
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
        "secret": own or new_secret(),
        "quota": quota,
    }
    if row is not None and not squatted:
        values |= {"external": None, "name": _other_name(external)}
    add = insert_or_ignore(connection, participant).returning(participant)
    made = connection.execute(add, values).first()
    if made is None:  # another transaction has just taken the id: look again
        return join(connection, snapshot, secret, parameters, device, known, clock, browser, own)
    return made


def continues(
    snapshot: Snapshot, secret: bytes, parameters: Mapping[str, str], known: Person | None
) -> bool:
    """Return True if the participant of a token continues with these URL parameters.

    With the id of somebody else in the link its own session begins, see :func:`join`.
    """
    kept = {name: clean(value) for name, value in parameters.items()}
    return _by_cookie(known, _named(snapshot, secret, kept)[1]) is not None


def is_invited(snapshot: Snapshot, secret: bytes, parameters: Mapping[str, str]) -> bool:
    """Return True if a link has the experiment's invitation, or is a personal one."""
    kept = {name: clean(value) for name, value in parameters.items()}
    invited = is_equal(kept.get("invitation"), invitation(secret, snapshot))
    return invited or _is_proven(snapshot, secret, kept, _named(snapshot, secret, kept)[0])


def _is_proven(
    snapshot: Snapshot, secret: bytes, kept: Mapping[str, str], given: str | None
) -> bool:
    return given is not None and is_equal(kept.get("proof"), proof(secret, snapshot, given))


def _named(
    snapshot: Snapshot, secret: bytes, kept: Mapping[str, str]
) -> tuple[str | None, str | None]:
    """Return the id in a link, and under which name it is stored."""
    settings = snapshot.frame.settings.participants
    given = next((kept[name] for name in settings.id_parameters if kept.get(name)), None)
    if given is not None and settings.pseudonyms:
        return given, _pseudonym(secret, snapshot, given)
    return given, given


def new_secret() -> str:
    """Return the random secret of a new participant."""
    return secrets.token_hex(16)


def _other_name(external: str | None) -> str:
    return f"{_shortened(external)}-{secrets.token_hex(_SUFFIX // 2)}"


def _shortened(external: str | None) -> str:
    """Return as much of an id as fits into a name with a suffix."""
    return str(external)[: _LONGEST - _SUFFIX - 1]


def _by_cookie(known: Person | None, external: str | None) -> Person | None:
    """Return the participant of the cookie, unless the link has the name of another one.

    Two people may share a computer, so the name in the link has precedence.
    """
    if known is None:
        return None
    same = external is None or known.external == external
    is_other_session = known.external is None and known.name.startswith(f"{_shortened(external)}-")
    return known if same or is_other_session else None


def _has_finished(connection: Connection, snapshot: Snapshot, external: str | None) -> bool:
    """Return True if a session under this id has ended, be it the first one or another one."""
    if external is None:
        return False
    names = connection.execute(
        select(participant.c.external, participant.c.name).where(
            participant.c.experiment_id == snapshot.frame.id,
            participant.c.outcome.is_not(None) | (participant.c.state == "blocked"),
            participant.c.name.startswith(_shortened(external), autoescape=True),
        )
    )
    return any(
        row.external == external
        or (row.external is None and row.name[: -_SUFFIX - 1] == _shortened(external))
        for row in names
    )


def _by_external(connection: Connection, snapshot: Snapshot, external: str | None) -> Person | None:
    """Return the participant with this id in the link, if there is one."""
    if external is None:
        return None
    return connection.execute(
        select(participant).where(
            participant.c.experiment_id == snapshot.frame.id, participant.c.external == external
        )
    ).first()


def touch(connection: Connection, person: Person, clock: float) -> None:
    """Note that a participant is there, so that the places of the session are not given away."""
    if not 0 <= clock - person.last < _TOUCH_SECONDS:
        connection.execute(
            update(participant).where(participant.c.id == person.id).values(last=clock)
        )


def consent(
    connection: Connection, snapshot: Snapshot, person: Person, agreed: bool, clock: float
) -> bool:
    """Record whether the participant gave consent; return False if nothing is kept of them.

    Of somebody who refuses before the first answer only the number of such people is kept. Who has
    answered, such as after a former version of the text, has ended, and the answers stay: it is
    :func:`withdraw` that takes them back, with a delay and a note in the audit log.
    """
    if person.withdrawn is not None or person.outcome not in (None, "no_consent"):
        return True  # a session that has ended stays as it is
    mine = participant.c.id == person.id
    has_answered = person.answered + person.extra + person.skipped > 0
    if not agreed and person.consented is None and not has_answered:
        connection.execute(delete(answer).where(answer.c.query_id.in_(_asked(person.id))))
        connection.execute(delete(served).where(served.c.participant_id == person.id))
        connection.execute(delete(participant).where(mine))
        count_declined(connection, snapshot.frame.id)
        return False
    text = snapshot.frame.settings.consent
    values: dict[str, Any] = {"last": clock}
    if agreed:
        values |= {
            "consented": clock,
            "consent_version": None if text is None else text.version,
            "outcome": None if person.outcome == "no_consent" else person.outcome,
        }
    elif person.outcome is None:
        values |= {"outcome": "no_consent"}
    connection.execute(update(participant).where(mine).values(**values))
    return True


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
        select(participant.c.id)
        .where(
            mine,
            participant.c.withdrawn <= clock - delay,
            (participant.c.answered + participant.c.skipped + participant.c.asked) > 0,
        )
        .with_for_update()  # an experimenter may reinstate somebody at this moment
    ).scalars()
    found = list(due)
    for person in found:
        _drop_answers(connection, snapshot, person)
        connection.execute(
            update(participant)
            .where(participant.c.id == person)
            .values(
                answered=0,
                extra=0,
                skipped=0,
                failed=0,
                asked=0,
                practised=0,
                personal={},
                parameters={},
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
    limit = snapshot.frame.settings.checks.fail_after
    outcome = None
    if limit is not None and person.failed >= limit:
        outcome = "screened_out"
    elif person.quota is not None and person.answered >= person.quota:
        outcome = "done"
    connection.execute(
        update(participant)
        .where(participant.c.id == person.id)
        .values(withdrawn=None, outcome=outcome)
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
    connection.execute(
        delete(answer).where(
            answer.c.experiment_id == snapshot.frame.id, answer.c.query_id.in_(_asked(person))
        )
    )
    connection.execute(delete(served).where(served.c.participant_id == person))
    _new_revision(connection, snapshot)


def _asked(person: int) -> Select[Any]:
    return select(served.c.id).where(served.c.participant_id == person)


def _new_revision(connection: Connection, snapshot: Snapshot) -> None:
    forget(connection)
    connection.execute(
        update(experiment)
        .where(experiment.c.id == snapshot.frame.id)
        .values(revision=experiment.c.revision + 1)
    )


def _pseudonym(secret: bytes, snapshot: Snapshot, given: str) -> str:
    what = f"pseudonym {snapshot.frame.created} {given}".encode()
    return "p" + hmac.new(secret, what, hashlib.sha256).hexdigest()[:15]


def clean(word: object) -> str:
    """Return text that every database can store: no NUL, no surrogates, limited length."""
    text = str(word).encode("utf-8", "replace").decode("utf-8")
    return text.replace("\x00", "")[:_LONGEST]
