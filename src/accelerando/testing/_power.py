"""A power cut: the possible states of the files that a program wrote."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from accelerando.testing._watch import Change, Watch


class Remains(NamedTuple):
    """One possible state of the disk after a power cut.

    Attributes
    ----------
    folder : Path
        A directory with the files.
    acknowledged : list
        What the program had acknowledged before; see :meth:`PowerCut.acknowledge`.
    after : Change or None
        The last change before the power cut.
    """

    folder: Path
    acknowledged: list[Any]
    after: Change | None


class _File:
    """The content of a file: what the program sees, and what is on the disk for sure."""

    def __init__(self, content: bytes = b"") -> None:
        self.seen, self.sure = bytearray(content), bytes(content)


_Names = dict[Path, _File | None]  # None: a directory


class PowerCut:
    """Record the changes of the files below a directory, and replay every prefix of them.

    The disk may have stored less than the program has written. Content is there for sure after
    ``fsync`` of the file; a name (of a new, renamed or removed file) after ``fsync`` of its
    directory. Before that, each may or may not have reached the disk, and of content it may be the
    first half. For each prefix of the recorded changes this class tries all names or only the sure
    ones, with all content, only the sure content, or half of the rest.

    Parameters
    ----------
    folder : path
        The directory.

    References
    ----------
    Pillai et al., "All File Systems Are Not Created Equal: On the Complexity of Crafting
    Crash-Consistent Applications", OSDI 2014.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from accelerando.testing import PowerCut
    >>> folder, elsewhere = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    >>> with PowerCut(folder) as power:
    ...     _ = (folder / "a").write_bytes(b"1234")  # nothing is flushed
    ...     power.acknowledge("a")
    >>> left = set()
    >>> for remains in power.remains(elsewhere):
    ...     if remains.acknowledged:
    ...         file = remains.folder / "a"
    ...         left.add(file.read_bytes() if file.exists() else None)
    >>> sorted(left, key=str)
    [None, b'', b'12', b'1234']
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._watch = Watch(folder, self._on_change)
        self._changes: list[Change] = []
        self._acknowledged: list[tuple[int, Any]] = []  # changes before, and what
        self._first = _read(self._watch.folder)

    def __enter__(self) -> PowerCut:
        self._watch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._watch.__exit__()

    def acknowledge(self, what: Any) -> None:
        """Note that from now on somebody relies on something being stored."""
        self._acknowledged.append((len(self._changes), what))

    def _on_change(self, change: Change, carry_out: Callable[[bytes], Any]) -> Any:
        found = carry_out(change.data)
        if change.kind == "write" and isinstance(found, int):
            change = change._replace(data=change.data[:found])
        self._changes.append(change)
        return found

    def remains(self, into: str | os.PathLike[str]) -> Iterator[Remains]:
        """Yield every possible state of the disk, each in a new directory.

        Parameters
        ----------
        into : path
            The directory for these directories. Each is removed when the next one is asked for.
        """
        disk = _Disk({name: _copy(one) for name, one in self._first.items()})
        seen: set[Any] = set()
        for number, change in enumerate([None, *self._changes]):
            if change is not None:
                disk.carry_out(change)
            acknowledged = [what for when, what in self._acknowledged if when <= number]
            for state in disk.possible():
                found = sorted((str(path), content) for path, content in state.items())
                key = (len(acknowledged), *found)
                if key in seen:
                    continue
                seen.add(key)
                folder = Path(into) / "after-a-power-cut"
                shutil.rmtree(folder, ignore_errors=True)
                _write(folder, self._watch.folder, state)
                yield Remains(folder, acknowledged, change)


class _Disk:
    """Files whose names and contents may not have reached the disk yet."""

    def __init__(self, names: _Names) -> None:
        self.seen, self.sure = dict(names), dict(names)

    def carry_out(self, change: Change) -> None:
        """Do to the model what was done to the files."""
        path, kind = change.path, change.kind
        if kind == "create":
            file = self.seen.get(path)
            if file is None:
                self.seen[path] = _File()
            else:
                file.seen.clear()
        elif kind in ("write", "truncate", "flush"):
            self._change_content(change)
        elif kind == "rename" and change.target is not None:
            self._rename(path, change.target)
        elif kind == "remove":
            self.seen.pop(path, None)
        elif kind == "make directory":
            self.seen[path] = None
        elif kind == "flush directory":
            for name in {*self.seen, *self.sure}:
                if name.parent == path:
                    _set(self.sure, name, self.seen)

    def _change_content(self, change: Change) -> None:
        file = self.seen.get(change.path)
        if file is None:
            return
        if change.kind == "flush":
            file.sure = bytes(file.seen)
            return
        if change.kind == "truncate":
            del file.seen[change.at :]
        missing = change.at - len(file.seen)
        file.seen.extend(bytes(max(0, missing)))
        file.seen[change.at : change.at + len(change.data)] = change.data

    def _rename(self, old: Path, new: Path) -> None:
        for name in [name for name in self.seen if old in (name, *name.parents)]:
            self.seen[new / name.relative_to(old) if name != old else new] = self.seen.pop(name)

    def possible(self) -> Iterator[dict[Path, bytes | None]]:
        """Yield what may be on the disk: names, and content or None for directories."""
        for names in (self.seen, self.sure):
            for content in (_all, _sure, _half):
                yield {
                    path: None if file is None else content(file)
                    for path, file in names.items()
                    if all(parent in names or parent not in self.seen for parent in path.parents)
                }


def _set(names: _Names, name: Path, source: _Names) -> None:
    if name in source:
        names[name] = source[name]
    else:
        names.pop(name, None)


def _all(file: _File) -> bytes:
    return bytes(file.seen)


def _sure(file: _File) -> bytes:
    return file.sure


def _half(file: _File) -> bytes:
    pairs = zip(file.seen, file.sure, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return bytes(file.seen[: same + (len(file.seen) - same) // 2])


def _copy(file: _File | None) -> _File | None:
    return None if file is None else _File(bytes(file.seen))


def _read(folder: Path) -> _Names:
    found: _Names = {}
    for path in sorted(folder.rglob("*")):
        found[path] = None if path.is_dir() else _File(path.read_bytes())
    return found


def _write(folder: Path, former: Path, state: dict[Path, bytes | None]) -> None:
    folder.mkdir(parents=True)
    for path, content in sorted(state.items()):
        target = folder / path.relative_to(former)
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
