"""Let every change of files below a directory pass through a function.

The functions of Python that change files (``open``, ``os.open``, ``os.replace``, …) are replaced
while a watch is active, in all threads. What libraries in C write by themselves (SQLite) is not
seen; :class:`~accelerando.testing.ConnectionFault` is for databases.
"""

from __future__ import annotations

import _io
import builtins
import errno
import io
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

_LOCK = threading.RLock()


class Change(NamedTuple):
    """One change of the files below a directory.

    Attributes
    ----------
    kind : str
        "create" (a new or emptied file), "write", "truncate", "flush" (fsync of a file),
        "flush directory", "rename", "remove" or "make directory".
    path : Path
        The file or the directory.
    data : bytes
        What is written.
    at : int
        Where it is written; the new length of a file that is truncated.
    target : Path or None
        The new name.
    """

    kind: str
    path: Path
    data: bytes = b""
    at: int = 0
    target: Path | None = None


OnChange = Callable[[Change, Callable[[bytes], Any]], Any]


class Watch:
    """A context manager that shows all changes below a directory to a function.

    Parameters
    ----------
    folder : path
        The directory.
    on_change : callable
        Called with a change and a function that carries it out, which takes the bytes to write.
    """

    def __init__(self, folder: str | os.PathLike[str], on_change: OnChange) -> None:
        self.folder = Path(folder).resolve()
        self._on_change = on_change
        self._open_files: dict[int, Path] = {}
        self._stack = ExitStack()
        self._real = {name: getattr(os, name) for name in _REPLACED}
        self._real_open = builtins.open

    def __enter__(self) -> Watch:
        for name, replacement in _REPLACED.items():
            method = getattr(self, replacement)
            self._stack.enter_context(mock.patch.object(os, name, method))
        for module in (builtins, io, _io):
            self._stack.enter_context(mock.patch.object(module, "open", self._open))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def change(self, change: Change, carry_out: Callable[[bytes], Any]) -> Any:
        """Pass a change on; changes of several threads are shown one after the other."""
        with _LOCK:
            return self._on_change(change, carry_out)

    def _inside(self, path: Any) -> Path | None:
        """Return the absolute path of a file below the directory; None for any other."""
        if isinstance(path, int):
            return self._open_files.get(path)
        try:
            found = Path(os.fsdecode(path)).absolute()
            resolved = found.parent.resolve() / found.name
        except (TypeError, ValueError, OSError):
            return None
        return resolved if self.folder in (resolved, *resolved.parents) else None

    # -- replacements -----------------------------------------------------------------------------

    def _open(
        self, file: Any, mode: str = "r", buffering: int = -1, *args: Any, **named: Any
    ) -> Any:
        opener = named.get("opener")
        if opener is not None and set(mode) & set("wax+"):  # tempfile's; it knows its own flags
            file = opener(file, os.O_RDWR | os.O_CREAT)
            del named["opener"]
        path = self._inside(file)
        if path is None or not set(mode) & set("wax+"):
            return self._real_open(file, mode, buffering, *args, **named)
        closefd = named.pop("closefd", True)
        letters = mode.replace("b", "").replace("t", "")
        if not isinstance(file, int) and ("w" in mode or not path.exists()):
            self.change(Change("create", path), lambda _: self._empty(file, mode))
            if "a" not in mode:
                letters = "r+"  # it exists now, and is empty
        raw = _Raw(file, letters, closefd, path, self)
        if buffering == 0:
            return raw
        pair = io.BufferedRandom if "+" in mode else io.BufferedWriter
        buffered = pair(raw, io.DEFAULT_BUFFER_SIZE if buffering < 2 else buffering)
        if "b" in mode:
            return buffered
        text: dict[str, Any] = {**named, "line_buffering": buffering == 1}
        return io.TextIOWrapper(buffered, *args, **text)

    def _empty(self, file: Any, mode: str) -> None:
        self._real_open(file, "xb" if "x" in mode else "wb").close()

    def _os_open(self, path: Any, flags: int, *args: Any, **named: Any) -> int:
        found = self._inside(path)
        if found is None:
            return int(self._real["open"](path, flags, *args, **named))

        def carry_out(_: bytes = b"") -> int:
            return int(self._real["open"](path, flags, *args, **named))

        creates = flags & os.O_TRUNC or (flags & os.O_CREAT and not found.exists())
        made = self.change(Change("create", found), carry_out) if creates else carry_out()
        self._open_files[made] = found
        return int(made)

    def _os_close(self, descriptor: int) -> None:
        self._open_files.pop(descriptor, None)
        self._real["close"](descriptor)

    def _os_write(self, descriptor: int, data: Any) -> int:
        path = self._open_files.get(descriptor)
        if path is None:
            return int(self._real["write"](descriptor, data))
        at = os.lseek(descriptor, 0, os.SEEK_CUR)
        change = Change("write", path, bytes(data), at)
        return int(self.change(change, lambda some: self._real["write"](descriptor, some)))

    def _flush(self, descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        path = self._open_files.get(number)
        if path is None:
            self._real["fsync"](descriptor)
            return
        kind = "flush directory" if path.is_dir() else "flush"
        self.change(Change(kind, path), lambda _: self._real["fsync"](descriptor))

    def _rename(self, source: Any, target: Any, **named: Any) -> None:
        old, new = self._inside(source), self._inside(target)
        if old is None or new is None:
            self._real["replace"](source, target, **named)
            return
        self.change(
            Change("rename", old, target=new),
            lambda _: self._real["replace"](source, target, **named),
        )

    def _remove(self, path: Any, **named: Any) -> None:
        found = self._inside(path)
        if found is None or named:
            self._real["unlink"](path, **named)
            return
        self.change(Change("remove", found), lambda _: self._real["unlink"](path))

    def _make_directory(self, path: Any, *args: Any, **named: Any) -> None:
        found = self._inside(path)
        if found is None or found.exists():
            self._real["mkdir"](path, *args, **named)
            return
        self.change(
            Change("make directory", found), lambda _: self._real["mkdir"](path, *args, **named)
        )

    def _truncate(self, file: Any, length: int) -> None:
        path = self._inside(file)
        if path is None:
            self._real["truncate"](file, length)
            return
        change = Change("truncate", path, at=length)
        self.change(change, lambda _: self._real["truncate"](file, length))

    def _copy(self, target: int, *args: Any, **named: Any) -> int:
        """Refuse to copy inside the kernel, so that shutil writes what it copies."""
        if target in self._open_files:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return int(self._real["sendfile"](target, *args, **named))


_REPLACED = {
    "open": "_os_open",
    "close": "_os_close",
    "write": "_os_write",
    "fsync": "_flush",
    "fdatasync": "_flush",
    "replace": "_rename",
    "rename": "_rename",
    "unlink": "_remove",
    "remove": "_remove",
    "mkdir": "_make_directory",
    "truncate": "_truncate",
    "ftruncate": "_truncate",
    "sendfile": "_copy",
}


class _Raw(io.FileIO):
    """A file whose writes pass through a watch."""

    def __init__(self, file: Any, mode: str, closefd: bool, path: Path, watch: Watch) -> None:
        super().__init__(file, mode, closefd)
        self._path, self._watch, self._appends = path, watch, "a" in mode
        watch._open_files[self.fileno()] = path

    def write(self, data: Any) -> int:
        at = path_size(self._path) if self._appends else self.tell()
        write = super().write
        return int(self._watch.change(Change("write", self._path, bytes(data), at), write) or 0)

    def truncate(self, size: int | None = None) -> int:
        length = self.tell() if size is None else size
        truncate = super().truncate
        change = Change("truncate", self._path, at=length)
        return int(self._watch.change(change, lambda _: truncate(length)))

    def close(self) -> None:
        if not self.closed:
            self._watch._open_files.pop(self.fileno(), None)
        super().close()


def path_size(path: Path) -> int:
    """Return the length of a file; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0
