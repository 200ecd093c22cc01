"""A disk that fails, is full, or whose process is killed at the n-th change of a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from accelerando.testing._watch import Change, Watch

DiskFaultKind = Literal["error", "full", "kill"]
_GROWING = ("create", "write", "make directory")


class Killed(BaseException):
    """The process is gone: nothing that it does afterwards reaches the disk."""


class DiskFault:
    """Fail at the n-th change of the files below a directory, as a context manager.

    A change is a file that is created, written to, truncated, flushed, renamed or removed. Of a
    write that fails, the first half is stored: the system reports a short write, and the error with
    the write after it.

    Parameters
    ----------
    folder : path
        The directory.
    at : int
        The change that fails; the first one is 1.
    kind : {"error", "full", "kill"}
        "error": this change raises ``OSError(EIO)``, later ones work. "full": this and all later
        changes that need space raise ``OSError(ENOSPC)``. "kill": this and all later changes raise
        an exception that no ``except Exception`` catches, as if the process had been killed:
        nothing that the program does afterwards changes a file.

    Attributes
    ----------
    happened : bool
        Whether the n-th change was reached.
    change : Change or None
        That change.
    n_changes : int
        The changes so far.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from accelerando.testing import DiskFault
    >>> file = Path(tempfile.mkdtemp()) / "state"
    >>> with DiskFault(file.parent, at=2, kind="full") as fault:
    ...     file.write_bytes(b"0123456789")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device
    >>> fault.change.kind, file.read_bytes()
    ('write', b'01234')
    """

    def __init__(
        self, folder: str | os.PathLike[str], at: int, kind: DiskFaultKind = "error"
    ) -> None:
        if kind not in ("error", "full", "kill"):
            raise ValueError(
                "The 'kind' parameter of DiskFault must be 'error', 'full' or 'kill'. "
                f"Got {kind!r} instead."
            )
        self.at, self.kind = at, kind
        self.happened = False
        self.change: Change | None = None
        self.n_changes = 0
        self._short: Path | None = None  # a file whose next write fails
        self._watch = Watch(folder, self._on_change)

    def __enter__(self) -> DiskFault:
        self._watch.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        self._watch.__exit__()
        return kind is not None and issubclass(kind, Killed)

    def _on_change(self, change: Change, carry_out: Callable[[bytes], Any]) -> Any:
        if self.happened and self.kind == "kill":
            raise Killed
        self.n_changes += 1
        fails = self.n_changes == self.at
        if fails:
            self.happened, self.change = True, change
        elif change.kind == "write" and change.path == self._short:
            self._short = None
        elif not (self.happened and self.kind == "full" and change.kind in _GROWING):
            return carry_out(change.data)
        half = change.data[: len(change.data) // 2]
        if fails and half:
            found = carry_out(half)
            if self.kind != "kill":
                self._short = change.path
                return found
        if self.kind == "kill":
            raise Killed
        number = errno.EIO if self.kind == "error" else errno.ENOSPC
        if self.kind == "full" and change.kind not in _GROWING:
            return carry_out(change.data)  # a full disk renames and removes
        raise OSError(number, os.strerror(number))
