"""Errors of the HTTP interface."""

from __future__ import annotations

from typing import Literal

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionError

from accelerando.exceptions import AccelerandoError

__all__ = ["ApiError", "NoConnectionError", "Trouble", "classify"]


class ApiError(AccelerandoError):
    """A request that is refused, with a code for programs and a sentence for people.

    What the request has written is rolled back; other requests may share the transaction.

    Parameters
    ----------
    code : str
        A short identifier, such as ``"unknown_experiment"``.
    message : str
        A sentence for people.
    status : int, default=409
        The HTTP status.
    """

    def __init__(self, code: str, message: str, status: int = 409) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


Trouble = Literal["locked", "full", "unreachable", "readonly", "damaged", "refused", "other"]

# Primary result codes of SQLite.
_SQLITE: dict[int, Trouble] = {
    5: "locked",  # BUSY
    6: "locked",  # LOCKED
    7: "full",  # NOMEM
    8: "readonly",
    10: "full",  # IOERR
    11: "damaged",  # CORRUPT
    13: "full",
    14: "unreachable",  # CANTOPEN
    26: "damaged",  # NOTADB
}
# Classes and codes of PostgreSQL's SQLSTATE.
_POSTGRES: dict[str, Trouble] = {
    "08": "unreachable",
    "25006": "readonly",
    "28": "refused",
    "3D": "refused",
    "40001": "locked",
    "40P01": "locked",
    "53": "full",
    "55P03": "locked",
    "57P": "unreachable",
    "58": "full",
    "XX001": "damaged",
    "XX002": "damaged",
}


def classify(error: BaseException) -> Trouble:
    """Return what is wrong with the database, from the codes of SQLite and PostgreSQL."""
    if isinstance(error, NoConnectionError):  # all connections of the pool are in use for long
        return "unreachable"
    if not isinstance(error, DBAPIError):
        return "other"
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE.get(code & 0xFF, "other")
    state = getattr(error.orig, "sqlstate", None)
    for length in (5, 3, 2):
        if state is not None and state[:length] in _POSTGRES:
            return _POSTGRES[state[:length]]
    lost = error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return "unreachable" if state is None and lost else "other"
