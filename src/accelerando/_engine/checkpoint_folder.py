"""A directory of checkpoints: the cost of one does not depend on how long the run is.

A checkpoint is a file ``state-<number>.pt`` with the model and the rows that were recorded lately.
Older rows are in files ``records-<run>-<number>.pt``, the :mod:`~accelerando._engine.journal`. A
state is written after the records that it refers to, and older files are removed after that, so
that a crash at any moment leaves the newest complete state readable. Every file has a checksum; a
damaged state is passed over.

Files are written in a thread. What they contain is copied before training continues.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import uuid
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from accelerando._engine import checkpoint
from accelerando._engine.checkpoint import Content
from accelerando._engine.journal import Journal, Mark, records_between, without_old_records
from accelerando._engine.state import Records
from accelerando._folder import Folder, open_folder
from accelerando.exceptions import StateError

log = logging.getLogger("accelerando")

_STATE = re.compile(r"state-(\d{8,})(-best)?\.pt")
_RECORDS = re.compile(r"records-[0-9a-f]{8}-\d{8,}\.pt")
_UNFINISHED = re.compile(r"\.(state|records)-.*\.part")
_FORMER = "state.pt"  # the only file of a directory, until version 5 of the format

# -- reading --------------------------------------------------------------------------------------


def _order(name: str) -> int:
    found = _STATE.fullmatch(name)
    return -1 if found is None else int(found.group(1))


def states_in(folder: Folder) -> list[str]:
    """Return the names of the checkpoints in a directory, the newest first."""
    found = [name for name in folder.names() if name == _FORMER or _STATE.fullmatch(name)]
    return sorted(found, key=_order, reverse=True)


def newest(folder: Folder, *, best: bool = False) -> tuple[str, Content] | None:
    """Return name and content of the newest checkpoint that can be read; None if there is none.

    Parameters
    ----------
    folder : Folder
        The directory.
    best : bool
        Look only at checkpoints of epochs that were the best so far.

    Raises
    ------
    StateError
        If there are checkpoints, and none can be read.
    """
    names = [name for name in states_in(folder) if not best or "-best" in name]
    damaged: list[str] = []
    for name in names:
        try:
            content = checkpoint.read_from(folder, name)
        except (StateError, FileNotFoundError) as error:  # another process may have removed it
            damaged.append(str(error))
            continue
        if damaged:
            _warn(
                f"{' '.join(damaged)} The run continues from {folder.path(name)}, which is older."
            )
        return name, content
    for name in names:  # a model without all of its records is better than none
        try:
            content = without_old_records(checkpoint.parse(folder.read(name), folder.path(name)))
        except (StateError, FileNotFoundError):
            continue
        _warn(f"{' '.join(damaged)} The run continues without the records before these files.")
        return name, content
    if damaged:
        raise StateError(f"No checkpoint can be read. {' '.join(damaged)}")
    return None


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=5)


# -- writing --------------------------------------------------------------------------------------


class CheckpointWriter:
    """Write the checkpoints of one run, in the background, one at a time.

    Parameters
    ----------
    path : path or URL
        The directory.
    keep : int
        The number of newest checkpoints to keep.
    continues : str or None
        The name of the checkpoint from which the run continues. Newer ones, and all without it, are
        of no use: they are removed when the first checkpoint of this run is complete.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep: int, continues: str | None) -> None:
        self.path, self.keep = path, keep
        self.folder = open_folder(path)
        self.folder.create()
        self._journal = Journal()
        self._run = uuid.uuid4().hex[:8]
        names = self.folder.names()
        states = states_in(self.folder)
        self._number = 1 + max(map(_order, states), default=0)
        self._states = sorted(states, key=_order)  # those that are there, the oldest first
        # Checkpoints that may refer to records of which this object does not know.
        self._foreign = set(states)
        self._outdated = {
            name for name in states if continues is None or _order(name) > _order(continues)
        }
        self._unfinished = [name for name in names if _UNFINISHED.fullmatch(name)]
        self._stray = any(_RECORDS.fullmatch(name) for name in names)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._warned = False

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()  # a copy of the estimator in another process has its own writer

    def save(
        self, content: Content, records: Records, history: Sequence[Any], *, best: bool
    ) -> None:
        """Copy a state and write it in the background; wait if the former is still being written.

        Parameters
        ----------
        content : dict
            What ``state_dict`` returned, without records.
        records, history : Records, list of dict
            What the run has recorded so far.
        best : bool
            Whether the run has been nowhere better at the end of an epoch.
        """
        self.wait()
        journal, rows = self._journal, list(history)
        if journal.follow(records, history, rows):
            self._foreign.update(self._states)
        mark, segment = journal.next_mark(records, rows), None
        if mark is not None:
            segment = records_between(records, rows, journal.sealed, mark)
        tail = records_between(records, rows, mark or journal.sealed, None)
        content = {"json": content["json"], "tensors": copied(content["tensors"], {})}
        name = f"state-{self._number:08d}{'-best' if best else ''}.pt"
        self._number += 1
        self._thread = threading.Thread(
            target=self._write, args=(name, content, tail, segment, mark), name="checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the newest checkpoint is on disk; warn if one could not be written."""
        if self._thread is not None:
            self._thread.join()  # a second Ctrl-C leaves here, and the thread is awaited later
            self._thread = None
        error, self._error = self._error, None
        if error is None:
            return
        last = self.folder.path(self._states[-1]) if self._states else "none"
        text = (
            f"A checkpoint could not be written to {self.path}: {error!r}. Training continues; the "
            f"last complete checkpoint is {last}."
        )
        log.info("%s", text)  # every time; a warning would be printed if there is no handler
        if not self._warned:
            self._warned = True
            _warn(text)

    def _write(
        self,
        name: str,
        content: Content,
        tail: Content,
        segment: Content | None,
        mark: Mark | None,
    ) -> None:
        journal = self._journal
        try:
            if segment is not None and mark is not None:
                file = f"records-{self._run}-{self._number:08d}.pt"
                self._put(file, {"journal": self._linked(segment)})
                journal.files.append(file)
                journal.sealed = mark
            self._put(name, {**content, "journal": self._linked(tail)})
            self._states.append(name)
            self._remove_old()
        except Exception as error:  # a full disk, a lost connection: training is worth more
            self._error = error

    def _put(self, name: str, content: Mapping[str, Any]) -> None:
        whole = {"json": "{}", "tensors": {}, **content}
        self.folder.write(name, lambda file: checkpoint.dump(whole, file))

    def _linked(self, piece: Content) -> Content:
        files = self._journal.files
        return {**piece, "previous": files[-1] if files else None}

    def _remove_old(self) -> None:
        """Remove what no checkpoint needs any more, after a newer one is complete."""
        states = [name for name in self._states if name not in self._outdated]
        bests = [name for name in states if "-best" in name]
        kept = {*states[-self.keep :], *bests[-1:]}
        for name in [*self._unfinished, *(one for one in self._states if one not in kept)]:
            self.folder.remove(name)
        self._unfinished, self._outdated = [], set()
        self._states = [name for name in states if name in kept]
        if self._foreign and self._foreign.isdisjoint(kept):
            self._foreign = set()
            self._stray = True
        if self._stray and not self._foreign:
            self._stray = False
            needed = set(self._journal.files)
            for name in self.folder.names():
                if _RECORDS.fullmatch(name) and name not in needed:
                    self.folder.remove(name)


def copied(value: Any, known: dict[Any, torch.Tensor]) -> Any:
    """Return a copy on the CPU of all tensors in a value; equal views of a storage stay one."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or not value.numel():
            return value.detach().to("cpu", copy=True)
        place = (value.device, value.untyped_storage().data_ptr(), value.storage_offset())
        view = (*place, value.shape, value.stride(), value.dtype)
        if view not in known:
            known[view] = value.detach().to("cpu", copy=True)
        return known[view]
    if isinstance(value, dict):
        return {key: copied(one, known) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(one, known) for one in value)
    return value
