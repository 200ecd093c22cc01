"""Trust in checkpoints: whose pickles a search reads.

Pickles can run any code when they are read, and a directory that somebody was given and copied
belongs to the one who copied it. So every record has a signature, made with a key that each user
has, and a search reads only what was signed with the key of its user.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

__all__ = ["TRUSTED", "is_trusted", "key_path", "own_key"]

TRUSTED = "ACCELERANDO_TRUSTED_CHECKPOINTS"  # an environment variable: folders, as in PATH
KEY_BYTES = 32


def is_trusted(directory: Path) -> bool:
    """Return True if the user trusts all checkpoints in a folder that contains `directory`.

    Examples
    --------
    >>> os.environ[TRUSTED] = os.pathsep.join(["/checkpoints", "/old/search"])
    >>> is_trusted(Path("/checkpoints/search")), is_trusted(Path("/old/search2"))
    (True, False)
    >>> del os.environ[TRUSTED]
    """
    folders = [
        Path(name).resolve() for name in os.environ.get(TRUSTED, "").split(os.pathsep) if name
    ]
    inner = directory.resolve()
    return any(inner.is_relative_to(folder) for folder in folders)


def key_path() -> Path:
    """Return the file with the key of this user: in ``$XDG_CONFIG_HOME``, or in ``~/.config``."""
    given = os.environ.get("XDG_CONFIG_HOME")
    return (Path(given) if given else Path.home() / ".config") / "accelerando" / "checkpoint-key"


def own_key(*, needed: bool = True) -> bytes:
    """Return the key of this user; make it if there is none.

    Parameters
    ----------
    needed : bool
        Whether to raise PermissionError if there is none and none can be made, or if others know
        it. Otherwise the key is empty then, which signs nothing.
    """
    try:
        return _read_or_make(key_path())
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        if not needed:
            return b""
        raise PermissionError(
            f"The checkpoint of a search needs a key that only you can read ({error}). Set "
            "XDG_CONFIG_HOME to a folder in which it can be kept, or set the environment variable "
            f"{TRUSTED} to the folder of your checkpoints, if nobody else can write there."
        ) from error


def _read_or_make(path: Path) -> bytes:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".key", dir=path.parent)  # for this user only
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # made by another process meanwhile
                os.link(name, path)
        finally:
            os.unlink(name)
    user = getattr(os, "geteuid", None)
    found = path.stat()
    if user is not None and (found.st_uid != user() or found.st_mode & 0o077):
        raise PermissionError(f"{path} is not only yours; chmod 600 {path}, or delete it")
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise PermissionError(f"{path} is damaged; delete it")
    return key
