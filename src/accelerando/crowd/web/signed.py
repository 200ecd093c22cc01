"""Authentication of a request: an experimenter who has signed in, or a program with a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, select

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import api_token, experimenter, session

__all__ = ["Role", "Signed", "require_still"]

Role = Literal["viewer", "editor", "owner"]


@dataclass(frozen=True)
class Signed:
    """A signed-in experimenter."""

    id: int
    name: str
    csrf: str
    admin: bool = True
    must_change: bool = False
    seen: float = 0.0
    # "read" or "write" for tokens of programs; "" for people who signed in.
    scope: str = ""
    experiment_id: int | None = None  # the only one of a token
    key: str = ""  # hash of the session or the token
    # The experiment of the request, and the role that it needs.
    needs: tuple[str, Role] | None = None


def require_still(connection: Connection, signed: Signed) -> None:
    """Raise ApiError (401) unless the session or token of a request has not ended meanwhile.

    A request may take seconds: files are read, and passwords are hashed. Until this transaction
    ends, PostgreSQL lets nobody delete the account; SQLite has one writer at a time.
    """
    table = api_token if signed.scope else session
    found = connection.execute(
        select(experimenter.c.id)
        .join(table, table.c.experimenter_id == experimenter.c.id)
        .where(table.c.token_hash == signed.key)
        .with_for_update(read=True, of=experimenter)
    ).first()
    if found is None:
        raise ApiError("sign_in", "Please sign in.", 401)
