"""Accounts of experimenters: passwords, sessions, and a limit on wrong passwords."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from functools import cache

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import Connection, delete, func, select, update

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import experimenter, session, sign_in_failure

__all__ = ["Signed", "check_session", "set_password", "sign_in", "sign_out"]

SESSION_SECONDS = 12 * 3600.0
_WINDOW = 300.0
_PER_CALLER = 8
_PER_NAME = 60

_hasher = PasswordHasher()


@dataclass(frozen=True)
class Signed:
    """A signed-in experimenter."""

    id: int
    name: str
    csrf: str


def password_hash(password: str) -> str:
    """Return the Argon2id hash of a password."""
    return _hasher.hash(password)


def set_password(connection: Connection, name: str, hashed: str, clock: float) -> None:
    """Create an account or change its password, which ends all its sessions."""
    row = connection.execute(select(experimenter.c.id).where(experimenter.c.name == name)).first()
    if row is None:
        connection.execute(
            experimenter.insert().values(name=name, password_hash=hashed, created=clock)
        )
        return
    connection.execute(
        update(experimenter).where(experimenter.c.id == row.id).values(password_hash=hashed)
    )
    connection.execute(delete(session).where(session.c.experimenter_id == row.id))


def has_account(connection: Connection) -> bool:
    """Return True if there is an account."""
    return connection.execute(select(experimenter.c.id).limit(1)).first() is not None


def stored_hash(connection: Connection, name: str) -> tuple[int | None, str]:
    """Return id and password hash of an account; for unknown names a hash that nothing matches."""
    row = connection.execute(
        select(experimenter.c.id, experimenter.c.password_hash).where(experimenter.c.name == name)
    ).first()
    return (None, _nobody()) if row is None else (row.id, row.password_hash)


@cache
def _nobody() -> str:
    """Return a hash to check for unknown names, so that they take as long as wrong passwords."""
    return _hasher.hash(secrets.token_hex(16))


def matches(hashed: str, password: str) -> bool:
    """Return True if the password matches. Slow on purpose: do not call it in a transaction."""
    try:
        return _hasher.verify(hashed, password)
    except (VerificationError, InvalidHashError):
        return False


def caller_key(secret: bytes, address: str) -> str:
    """Return a keyed hash that identifies a caller without storing the address."""
    return hmac.new(secret, f"caller {address}".encode(), hashlib.sha256).hexdigest()[:32]


def check_failures(connection: Connection, caller: str, name: str, clock: float) -> None:
    """Raise ApiError with status 429 after too many wrong passwords."""
    connection.execute(delete(sign_in_failure).where(sign_in_failure.c.at < clock - _WINDOW))
    for key, most in ((caller, _PER_CALLER), (_name_key(name), _PER_NAME)):
        count = connection.execute(
            select(func.count()).select_from(sign_in_failure).where(sign_in_failure.c.key == key)
        ).scalar_one()
        if count >= most:
            raise ApiError("too_many", "Too many wrong passwords; try again in five minutes.", 429)


def add_failure(connection: Connection, caller: str, name: str, clock: float) -> None:
    """Record a wrong password."""
    connection.execute(
        sign_in_failure.insert(),
        [{"key": caller, "at": clock}, {"key": _name_key(name), "at": clock}],
    )


def sign_in(connection: Connection, number: int, caller: str, clock: float) -> str:
    """Create a session and return its token; the database stores a hash only."""
    made = secrets.token_urlsafe(32)
    connection.execute(delete(session).where(session.c.expires < clock))
    connection.execute(delete(sign_in_failure).where(sign_in_failure.c.key == caller))
    connection.execute(
        session.insert().values(
            token_hash=_hash(made),
            experimenter_id=number,
            csrf=secrets.token_urlsafe(24),
            expires=clock + SESSION_SECONDS,
        )
    )
    return made


def sign_out(connection: Connection, token: str) -> None:
    """End a session."""
    connection.execute(delete(session).where(session.c.token_hash == _hash(token)))


def check_session(connection: Connection, token: str | None, clock: float) -> Signed | None:
    """Return the experimenter of a session, or None if the session is not valid."""
    if not token:
        return None
    row = connection.execute(
        select(experimenter.c.id, experimenter.c.name, session.c.csrf)
        .join(session, session.c.experimenter_id == experimenter.c.id)
        .where(session.c.token_hash == _hash(token), session.c.expires > clock)
    ).first()
    return None if row is None else Signed(row.id, row.name, row.csrf)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _name_key(name: str) -> str:
    return "name " + hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:32]
