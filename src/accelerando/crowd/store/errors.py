"""What the service says no to."""

from __future__ import annotations

from accelerando.exceptions import AccelerandoError

__all__ = ["Refused"]


class Refused(AccelerandoError):  # noqa: N818 (it is an answer, not a mistake)
    """A request that cannot be granted, with a code for programs and a sentence for people.

    It is raised before anything is written, so that others in the same transaction do not suffer.
    """

    def __init__(self, code: str, message: str, status: int = 409) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
