"""Directories of files that are written completely or not at all: on a disk, or through fsspec.

A local directory is written with :func:`~accelerando._files.atomic_write`. Any other place that
fsspec reaches (``s3://``, ``gs://``, ``memory://``, ...) gets every file in one request, which such
stores carry out completely or not at all.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

from accelerando._files import atomic_write, make_directory

Save = Callable[[IO[bytes]], None]


class Folder(Protocol):
    """A directory of files."""

    def create(self) -> None:
        """Create the directory if it does not exist."""

    def exists(self) -> bool:
        """Return True if the directory exists."""

    def names(self) -> list[str]:
        """Return the names of the files in it; none if it does not exist."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""

    def write(self, name: str, save: Save) -> None:
        """Replace a file with what `save` writes; leave it as it is if that fails."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def path(self, name: str) -> str:
        """Return where a file is, for messages."""


class LocalFolder:
    """A directory on this machine.

    Parameters
    ----------
    path : Path
        Of the directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self) -> None:
        make_directory(self._path)
        if not os.access(self._path, os.W_OK | os.X_OK):
            raise PermissionError(f"{self._path} cannot be written.")

    def exists(self) -> bool:
        return self._path.is_dir()

    def names(self) -> list[str]:
        return [entry.name for entry in self._path.iterdir()] if self.exists() else []

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def write(self, name: str, save: Save) -> None:
        with atomic_write(self._path / name) as file:
            save(file)

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)

    def path(self, name: str) -> str:
        return str(self._path / name)


class RemoteFolder:
    """A directory of a file system of fsspec.

    Parameters
    ----------
    files : fsspec.AbstractFileSystem
        The file system.
    path, url : str
        Of the directory: inside the file system, and for messages.
    """

    def __init__(self, files: Any, path: str, url: str) -> None:
        self._files, self._path, self._url = files, path.rstrip("/"), url.rstrip("/")

    def create(self) -> None:
        self._files.makedirs(self._path, exist_ok=True)

    def exists(self) -> bool:
        self._files.invalidate_cache(self._path)
        return bool(self._files.isdir(self._path))

    def names(self) -> list[str]:
        if not self.exists():
            return []
        return [path.rsplit("/", 1)[-1] for path in self._files.ls(self._path, detail=False)]

    def read(self, name: str) -> bytes:
        return bytes(self._files.cat_file(f"{self._path}/{name}"))

    def write(self, name: str, save: Save) -> None:
        # A file object of fsspec that is closed by an error would store the half of it.
        buffer = io.BytesIO()
        save(buffer)
        self._files.pipe_file(f"{self._path}/{name}", buffer.getvalue())

    def remove(self, name: str) -> None:
        if self._files.exists(f"{self._path}/{name}"):
            self._files.rm_file(f"{self._path}/{name}")

    def path(self, name: str) -> str:
        return f"{self._url}/{name}"


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """Return the directory that a path or a URL names. It need not exist.

    Raises
    ------
    ValueError
        If fsspec does not know the protocol of a URL, or a package for it is missing.

    Examples
    --------
    >>> folder = open_folder("memory://doc/run")
    >>> folder.create()
    >>> folder.write("a", lambda file: file.write(b"1 2 3"))
    >>> folder.read("a"), folder.names(), folder.path("a")
    (b'1 2 3', ['a'], 'memory://doc/run/a')
    """
    text = os.fspath(path)
    if "://" not in text and "::" not in text:
        return LocalFolder(Path(text))
    import fsspec  # type: ignore[import-untyped]
    from fsspec.implementations.local import (  # type: ignore[import-untyped]
        LocalFileSystem,
    )

    try:
        files, inside = fsspec.core.url_to_fs(text)
    except (ValueError, ImportError) as error:
        raise ValueError(f"{text} cannot be opened with fsspec: {error}") from error
    if isinstance(files, LocalFileSystem):
        return LocalFolder(Path(inside))
    return RemoteFolder(files, inside, text)


def split_path(path: str | os.PathLike[str]) -> tuple[Folder, str]:
    """Return the directory of a file, and the file's name in it.

    Examples
    --------
    >>> folder, name = split_path("memory://doc/run/state.pt")
    >>> folder.path(name), name
    ('memory://doc/run/state.pt', 'state.pt')
    """
    text = os.fspath(path)
    if "://" not in text:
        return LocalFolder(Path(text).parent), Path(text).name
    parent, _, name = text.rpartition("/")
    return open_folder(parent), name
