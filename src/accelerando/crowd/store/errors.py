"""Errors of the HTTP interface."""

from __future__ import annotations

from accelerando.exceptions import AccelerandoError

__all__ = ["ApiError"]


class ApiError(AccelerandoError):
    """A request that is refused, with a code for programs and a sentence for people.

    Raise it before anything is written, because other requests may share the transaction.

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
