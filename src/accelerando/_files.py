"""Files that are written completely or not at all, and paths that are checked beforehand."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

FIGURE_FORMATS = (".png", ".pdf", ".svg")


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces `path` when the block ends without an error.

    The content goes to a temporary file in the same directory, is flushed to disk and then renamed.
    The directory is flushed, too, so that the rename itself survives a power cut. If the block
    raises, the temporary file is removed and `path` is what it was.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers"
    >>> with atomic_write(path) as file:
    ...     _ = file.write(b"1 2 3")
    >>> path.read_bytes()
    b'1 2 3'
    """
    target = Path(path).absolute()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def sync_directory(path: Path) -> None:
    """Flush a directory, so that files that were renamed or removed in it stay that way."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a directory
        return
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def make_directory(path: Path) -> None:
    """Create a directory and its parents, so that they are still there after a power cut."""
    new = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in reversed(new):
        sync_directory(one.parent)


def lock_file(path: Path) -> int | None:
    """Create and lock a file; return its descriptor, or None if another process has locked it.

    The lock ends when the descriptor is closed, also by the death of the process.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        import fcntl
    except ImportError:  # Windows has no such locks; the file is only a sign there
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # a file system without locks, such as some network file systems
        return descriptor
    return descriptor


def check_owner(path: Path, *, argument: str) -> None:
    """Raise PermissionError if somebody else could have written a file that will be unpickled.

    It has to belong to the user of this process or to root, and must not be writable for everybody.
    Where files have no owners (Windows), nothing is checked.

    Parameters
    ----------
    path : Path
        A file or a directory; nothing is checked if it does not exist.
    argument : str
        How the user named it, for the message.
    """
    user = getattr(os, "geteuid", None)
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if user is None:
        return
    if found.st_uid not in (user(), 0):
        problem, remedy = f"belongs to user {found.st_uid}", "chown"
    elif found.st_mode & 0o002:
        problem, remedy = "can be written by everybody", "chmod o-w"
    else:
        return
    raise PermissionError(
        f"{argument}: {path} {problem}, and it holds pickles, which can run any code when they are "
        f"read. If you trust its content, make it yours first ({remedy})."
    )


def check_output(output: str | os.PathLike[str], formats: Sequence[str] = FIGURE_FORMATS) -> Path:
    """Return the path that a command's ``--output`` names; raise if it cannot be written.

    Commands call it before the work, so that a wrong path does not cost a training run.

    Parameters
    ----------
    output : str or path
        The path of the file to write.
    formats : sequence of str
        The suffixes that are allowed.
    """
    path = Path(output)
    if path.suffix.lower() not in formats:
        raise ValueError(
            f"--output must end in one of {', '.join(formats)}. Got {str(output)!r} instead."
        )
    if not path.absolute().parent.is_dir():
        raise ValueError(
            f"--output: there is no folder {str(path.parent)!r}. Create it, or choose another one."
        )
    return path
