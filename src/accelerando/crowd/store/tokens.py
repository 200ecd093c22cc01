"""Tokens of participants, personal links and invitations: what the server's key signs."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.schema import participant

__all__ = ["Person", "authenticate", "get", "invitation", "is_equal", "proof", "token"]

Person = Row[Any]

_GET = select(participant).where(participant.c.id == bindparam("person"))
_LOCK = _GET.with_for_update()


def token(secret: bytes, snapshot: Snapshot, person: Person) -> str:
    """Return the signed token that authenticates a participant."""
    what = f"{snapshot.frame.id}.{person.id}"
    return f"{what}.{_sign(secret, snapshot.frame.created, what, person.secret)}"


def authenticate(
    connection: Connection,
    secret: bytes,
    snapshot: Snapshot,
    shown: str | None,
    *,
    lock: bool = False,
) -> Person | None:
    """Return the participant of a token, or None if it is not valid for this experiment."""
    what, _, signature = (shown or "").rpartition(".")
    number, _, person = what.partition(".")
    # Compared as text: converting thousands of digits is slow, and Python refuses it.
    if number != str(snapshot.frame.id) or len(person) > 18:
        return None
    if not (person.isascii() and person.isdigit()):
        return None
    row = connection.execute(_LOCK if lock else _GET, {"person": int(person)}).first()
    if row is None or row.experiment_id != snapshot.frame.id:
        return None
    good = is_equal(signature, _sign(secret, snapshot.frame.created, what, row.secret))
    return row if good else None


def proof(secret: bytes, snapshot: Snapshot, given: str) -> str:
    """Return the signature of a personal link: it proves that the server gave this id."""
    return _short(secret, f"personal {snapshot.frame.created} {given}")


def invitation(secret: bytes, snapshot: Snapshot) -> str:
    """Return the unguessable part of the link that a recruiting service gets."""
    return _short(secret, f"invitation {snapshot.frame.created}")


def _short(secret: bytes, what: str) -> str:
    signed = hmac.digest(secret, what.encode("utf-8", "replace"), "sha256")
    return urlsafe_b64encode(signed[:16]).decode().rstrip("=")


def is_equal(shown: str | None, expected: str) -> bool:
    """Compare two signatures in constant time."""
    return hmac.compare_digest((shown or "").encode("utf-8", "replace"), expected.encode())


def _sign(secret: bytes, created: float, what: str, own: str) -> str:
    # With the time of creation, tokens of a deleted experiment are not valid for its successor, and
    # with the secret those of a deleted participant, if a number should ever be given again.
    text = f"participant {created} {what}{own and ' ' + own}"
    return hmac.digest(secret, text.encode(), "sha256").hex()


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
