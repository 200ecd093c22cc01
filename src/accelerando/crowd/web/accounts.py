"""Accounts of experimenters: passwords, sessions, and a limit on wrong passwords."""

from __future__ import annotations

import hashlib
import secrets
from functools import cache
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import Connection, delete, func, select, update

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import note
from accelerando.crowd.store.schema import api_token, experimenter, session, sign_in_failure
from accelerando.crowd.web.signed import Signed
from accelerando.crowd.web.totp import accepted_step

__all__ = ["check_session", "set_password", "sign_in", "sign_out"]

SESSION_SECONDS = 12 * 3600.0
IDLE_SECONDS = 2 * 3600.0
_SEEN_SECONDS = 60.0  # last use is noted this often
_WINDOW = 300.0
_PER_CALLER = 8
# Wrong passwords for one account from all addresses.
_PER_NAME = 60
# Wrong one-time codes for one account from addresses where nobody has signed in. Only somebody who
# knows the password gets so far, so this limit locks out no owner whose password is secret.
_CODES_PER_NAME = 10
_KNOWN_SECONDS = 30 * 86400.0
_ID_DIGITS = 16
_COUNT_LOCK = 715_202_607

_hasher = PasswordHasher()


def password_hash(password: str) -> str:
    """Return the Argon2id hash of a password."""
    return _hasher.hash(password)


def change_password(connection: Connection, number: int, hashed: str) -> None:
    """Change the password of an account, which ends all its sessions and tokens.

    Raises
    ------
    ApiError
        The account was deleted meanwhile (401).
    """
    _set_hash(connection, number, hashed, must_change=False)


def _set_hash(connection: Connection, number: int, hashed: str, *, must_change: bool) -> None:
    found = connection.execute(
        update(experimenter)
        .where(experimenter.c.id == number)
        .values(password_hash=hashed, must_change=must_change)
    )
    if not found.rowcount:
        raise ApiError("sign_in", "Please sign in.", 401)
    for table in (session, api_token):
        connection.execute(delete(table).where(table.c.experimenter_id == number))


def set_password(
    connection: Connection,
    name: str,
    hashed: str,
    clock: float,
    *,
    admin: bool = True,
    must_change: bool = False,
) -> None:
    """Create an account or change its password, which ends all its sessions and tokens.

    Parameters
    ----------
    connection : Connection
    name, hashed : str
        Of the account, and the hash of its password.
    clock : float
        The Unix time.
    admin : bool
        Whether a new account may do everything.
    must_change : bool
        Whether somebody else knows the password, so that it has to be changed first.
    """
    row = connection.execute(select(experimenter.c.id).where(experimenter.c.name == name)).first()
    if row is None:
        connection.execute(
            experimenter.insert().values(
                name=name,
                password_hash=hashed,
                created=clock,
                admin=admin,
                must_change=must_change,
            )
        )
        return
    _set_hash(connection, row.id, hashed, must_change=must_change)


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


def count_attempt(connection: Connection, caller: str, name: str, clock: float) -> None:
    """Count an attempt to sign in before its password is checked.

    Each address has eight attempts. An account that many addresses guess at leaves one attempt to
    an address from which its owner has not signed in before: it is never locked altogether, because
    strangers could then lock out its owner.

    Raises
    ------
    ApiError
        There were too many attempts (429).
    """
    _one_at_a_time(connection)
    # Entries in the future are from a clock that was wrong.
    connection.execute(
        delete(sign_in_failure).where(
            sign_in_failure.c.key.not_like("known %"),
            (sign_in_failure.c.at < clock - _WINDOW) | (sign_in_failure.c.at > clock),
        )
    )
    known = connection.execute(
        select(sign_in_failure.c.id).where(
            sign_in_failure.c.key == _known_key(caller, name),
            sign_in_failure.c.at > clock - _KNOWN_SECONDS,
        )
    ).first()
    mine, all_of_them = (
        connection.execute(
            select(func.count()).select_from(sign_in_failure).where(sign_in_failure.c.key == key)
        ).scalar_one()
        for key in (caller, _name_key(name))
    )
    under_attack = all_of_them >= _PER_NAME and not known
    if mine >= (1 if under_attack else _PER_CALLER):
        raise ApiError("too_many", "Too many wrong passwords; try again in five minutes.", 429)
    connection.execute(
        sign_in_failure.insert(),
        [{"key": caller, "at": clock}, {"key": _name_key(name), "at": clock}],
    )


def _one_at_a_time(connection: Connection) -> None:
    """Wait until no other transaction counts: two processes could both see the last free attempt.

    SQLite has one writer at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_COUNT_LOCK)))


def count_code(connection: Connection, caller: str, name: str, clock: float) -> None:
    """Count a one-time code before it is checked: a million of them are soon tried.

    Raises
    ------
    ApiError
        There were too many wrong codes for this account (429).
    """
    _one_at_a_time(connection)
    key = _code_key(name)
    tried, known = (
        connection.execute(
            select(func.count())
            .select_from(sign_in_failure)
            .where(sign_in_failure.c.key == one, sign_in_failure.c.at > clock - seconds)
        ).scalar_one()
        for one, seconds in ((key, _WINDOW), (_known_key(caller, name), _KNOWN_SECONDS))
    )
    if tried >= _CODES_PER_NAME * (2 if known else 1):
        raise ApiError("too_many", "Too many wrong codes; try again in five minutes.", 429)
    connection.execute(sign_in_failure.insert().values(key=key, at=clock))


def take_back_attempt(connection: Connection, caller: str, name: str) -> None:
    """Take back the attempt that was counted last, because it was right.

    Earlier wrong ones stay: somebody with an account could otherwise guess at others for ever, with
    their own password in between.
    """
    for key in (caller, _name_key(name)):
        _forget_newest(connection, key)


def _forget_newest(connection: Connection, key: str) -> None:
    newest = (
        select(func.max(sign_in_failure.c.id)).where(sign_in_failure.c.key == key).scalar_subquery()
    )
    connection.execute(delete(sign_in_failure).where(sign_in_failure.c.id == newest))


def sign_in(
    connection: Connection, number: int, hashed: str, caller: str, name: str, clock: float
) -> str:
    """Create a session and return its token; the database stores a hash only.

    Raises
    ------
    ApiError
        The password with this hash was checked, and was changed meanwhile (401).
    """
    mine = select(experimenter.c.password_hash).where(experimenter.c.id == number)
    if connection.execute(mine.with_for_update()).scalar() != hashed:
        raise ApiError("wrong_password", "Wrong name or password.", 401)
    made = secrets.token_urlsafe(32)
    connection.execute(delete(session).where(session.c.expires < clock))
    known = _known_key(caller, name)
    take_back_attempt(connection, caller, name)
    connection.execute(delete(sign_in_failure).where(sign_in_failure.c.key == known))
    connection.execute(delete(sign_in_failure).where(sign_in_failure.c.at < clock - _KNOWN_SECONDS))
    connection.execute(sign_in_failure.insert().values(key=known, at=clock))
    note(connection, clock, name, "sign in", "")
    connection.execute(
        session.insert().values(
            token_hash=_hash(made),
            experimenter_id=number,
            csrf=secrets.token_urlsafe(24),
            expires=clock + SESSION_SECONDS,
            created=clock,
            seen=clock,
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
    account = experimenter.c
    row = connection.execute(
        select(
            account.id, account.name, account.admin, account.must_change, session.c.csrf,
            session.c.seen, session.c.token_hash.label("key"),
        )
        .join(session, session.c.experimenter_id == account.id)
        .where(
            session.c.token_hash == _hash(token),
            session.c.expires > clock,
            # A session of a clock that was ahead would never end.
            session.c.expires <= clock + SESSION_SECONDS,
            session.c.seen > clock - IDLE_SECONDS,
        )
    ).first()  # fmt: skip
    return None if row is None else Signed(**row._mapping)


def is_due(signed: Signed, clock: float) -> bool:
    """Return True if the use of a session should be noted now."""
    return not signed.scope and not 0 <= clock - signed.seen < _SEEN_SECONDS


def touch(connection: Connection, token: str, clock: float) -> None:
    """Note that a session was used."""
    connection.execute(
        update(session).where(session.c.token_hash == _hash(token)).values(seen=clock)
    )


def sessions_of(connection: Connection, number: int, clock: float) -> list[dict[str, Any]]:
    """Return the sessions of an account that have not ended, newest first."""
    rows = connection.execute(
        select(session)
        .where(
            session.c.experimenter_id == number,
            session.c.expires > clock,
            session.c.seen > clock - IDLE_SECONDS,
        )
        .order_by(session.c.created.desc())
    ).all()
    return [
        {
            "id": row.token_hash[:_ID_DIGITS],
            "created": row.created,
            "seen": row.seen,
            "expires": row.expires,
        }
        for row in rows
    ]


def session_id(token: str) -> str:
    """Return the id under which a session is listed."""
    return _hash(token)[:_ID_DIGITS]


def end_session(connection: Connection, number: int, which: str) -> bool:
    """End a session of an account; return False if it has none of this id."""
    found = connection.execute(
        delete(session).where(
            session.c.experimenter_id == number,
            session.c.token_hash.startswith(which, autoescape=True),
        )
    )
    return bool(found.rowcount)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _known_key(caller: str, name: str) -> str:
    return "known " + _hash(f"{caller} {name}")[:32]


def _name_key(name: str) -> str:
    return "name " + hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:32]


def _code_key(name: str) -> str:
    return "code " + _hash(name)[:32]


def totp_of(connection: Connection, number: int) -> tuple[str | None, int]:
    """Return the key of an account's one-time passwords, and the step of the last one used.

    Raises
    ------
    ApiError
        The account was deleted meanwhile (401).
    """
    row = connection.execute(
        select(experimenter.c.totp, experimenter.c.totp_step).where(experimenter.c.id == number)
    ).first()
    if row is None:
        raise ApiError("sign_in", "Please sign in.", 401)
    return row.totp, row.totp_step


def set_totp(connection: Connection, number: int, key: str | None, step: int) -> None:
    """Set or remove the key of one-time passwords, or note that one was used."""
    connection.execute(
        update(experimenter).where(experimenter.c.id == number).values(totp=key, totp_step=step)
    )


def use_code(connection: Connection, number: int, name: str, code: str, clock: float) -> None:
    """Use up a one-time password if the account has them; raise ApiError (401) if it is wrong.

    It has been counted by :func:`count_code`; a right one is not held against the owner.
    """
    key, last = totp_of(connection, number)
    if key is None:
        return
    if not code:
        raise ApiError("code", "Please also type the code of your app.", 401)
    step = accepted_step(key, code, clock, last)
    used = None
    if step is not None:  # two processes may check the same code at the same time
        used = connection.execute(
            update(experimenter)
            .where(experimenter.c.id == number, experimenter.c.totp_step < step)
            .values(totp_step=step)
        )
    if used is None or not used.rowcount:
        raise ApiError("code", "Wrong code, or it was used before.", 401)
    _forget_newest(connection, _code_key(name))
