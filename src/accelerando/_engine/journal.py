"""The journal of a run: its records, in files that are written once.

A state holds the rows that were recorded lately. Older rows are in files; each names the one before
it, and the state names the newest. A file says at which row it starts, and its rows replace those
after that point: rows that changed after they were written are written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from accelerando._engine import checkpoint
from accelerando._engine.checkpoint import Content
from accelerando._engine.position import Part, plain_number
from accelerando._engine.state import Records, Table
from accelerando._folder import Folder
from accelerando.exceptions import StateError

ROWS_PER_FILE = 1000
_NAME = re.compile(r"records-[\w-]+(\.pt)?")

Rows = list[dict[str, Any]]


class Mark(NamedTuple):
    """A point of a run's records: the number of rows before it.

    Attributes
    ----------
    updates, epochs : int
        Rows of the two tables.
    history, batches : int
        Epochs of the history, and batches of the epoch that follows them.
    """

    updates: int = 0
    epochs: int = 0
    history: int = 0
    batches: int = 0


def records_between(records: Records, history: Rows, start: Mark, stop: Mark | None) -> Content:
    """Return the rows between two marks as JSON text and tensors; to the end without `stop`."""
    updates, epochs = records.updates.tensor(start.updates), records.epochs.tensor(start.epochs)
    end = None if stop is None else stop.history + 1
    rows = [dict(row) for row in history[start.history : end]]
    for number, row in enumerate(rows):
        row["batches"] = row["batches"][start.batches if number == 0 else 0 :]
    if stop is not None:
        updates = updates[: stop.updates - start.updates]
        epochs = epochs[: stop.epochs - start.epochs]
        skipped = start.batches if stop.history == start.history else 0
        rows[-1]["batches"] = rows[-1]["batches"][: stop.batches - skipped]
    plain = {"start": list(start), "columns": list(records.updates.columns), "history": rows}
    text = json.dumps(plain, default=plain_number)
    return {"json": text, "tensors": {"updates": updates, "epochs": epochs}}


def join_records(pieces: Sequence[Content], columns: Sequence[str]) -> tuple[Content, Rows]:
    """Return the tables and the history of consecutive pieces. Later pieces replace rows."""
    history: Rows = []
    updates, epochs = Table(columns), Records().epochs
    for piece in pieces:
        plain = json.loads(piece["json"])
        start, rows = Mark(*plain["start"]), plain["history"]
        _extend(updates, start.updates, piece["tensors"]["updates"], plain["columns"])
        _extend(epochs, start.epochs, piece["tensors"]["epochs"], epochs.columns)
        before: Rows = history[start.history :]
        if rows and before:
            rows[0]["batches"] = before[0]["batches"][: start.batches] + rows[0]["batches"]
        history = history[: start.history] + rows
    return {"updates": updates.tensor(), "epochs": epochs.tensor()}, history


def _extend(table: Table, start: int, rows: torch.Tensor, columns: Sequence[str]) -> None:
    new = Table(table.columns)
    new.load(rows, columns)
    del table.values[start * len(table.columns) :]
    table.values.extend(new.values)


def with_records(content: Content, folder: Folder) -> Content:
    """Return a state with all rows of its run, from the files that it refers to.

    Raises
    ------
    StateError
        If one of these files is missing or damaged.
    """
    journal = content["journal"]
    try:
        pieces, previous, seen = [journal], journal["previous"], set()
        while previous:
            # A file may have been tampered with: it names no file elsewhere, and no circle.
            if _NAME.fullmatch(previous) is None or previous in seen:
                raise StateError(f"A checkpoint in {folder.path('')} names impossible records.")
            seen.add(previous)
            piece = checkpoint.parse(folder.read(previous), folder.path(previous))
            pieces.append(piece["journal"])
            previous = piece["journal"]["previous"]
        return _filled(content, pieces[::-1])
    except FileNotFoundError as error:
        raise StateError(f"{folder.path(previous)} is missing.") from error
    except StateError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
        raise StateError(f"The records in {folder.path('')} are damaged: {error!r}") from error


def without_old_records(content: Content) -> Content:
    """Return a state with the rows in its own file only; the others cannot be read."""
    try:
        piece = content["journal"]
        plain = json.loads(piece["json"])
        start = Mark(*plain["start"])
        # The epoch that was the last one when records were sealed is in the history of both files.
        rows = plain["history"][max(0, start.epochs - start.history) :]
        text = json.dumps({**plain, "start": Mark(), "history": rows})
        return _filled(content, [{**piece, "json": text}])
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError) as error:
        raise StateError(f"The records of the state are damaged: {error!r}") from error


def _filled(content: Content, pieces: Sequence[Content]) -> Content:
    plain = json.loads(content["json"])
    columns = json.loads(pieces[-1]["json"])["columns"]
    tables, history = join_records(pieces, columns)
    plain["parts"] |= Part.RECORDS.value
    plain["columns"], plain["host"]["history"] = columns, history
    return {"json": json.dumps(plain), "tensors": {**content["tensors"], **tables}}


class Journal:
    """Files of a run's records, and the number of records in them.

    Attributes
    ----------
    sealed : Mark
        What is in files.
    files : list of str
        Their names.
    """

    def __init__(self) -> None:
        self.sealed = Mark()
        self.files: list[str] = []
        self._history: object = None

    def follow(self, records: Records, history: object, rows: Rows) -> bool:
        """Notice rows that changed after they were sealed; return True if no file is needed.

        Parameters
        ----------
        records : Records
            The tables.
        history, rows : object, list of dict
            The history, and the list of its rows.
        """
        sealed = self.sealed
        for name in ("updates", "epochs"):
            table: Table = getattr(records, name)
            sealed = sealed._replace(
                **{name: min(getattr(sealed, name), table.changed_from, len(table))}
            )
            table.changed_from = len(table)
        batches = len(rows[sealed.history]["batches"]) if sealed.history < len(rows) else -1
        if history is not self._history or batches < sealed.batches:
            sealed = sealed._replace(history=0, batches=0)
        self.sealed, self._history = sealed, history
        is_new = bool(self.files) and not any(sealed)
        if is_new:
            self.files = []
        return is_new

    def next_mark(self, records: Records, rows: Rows) -> Mark | None:
        """Return up to where the next file seals the records; None if it is too early.

        The last epoch and its last batch stay open: callbacks may still add to them.
        """
        last = max(0, len(rows) - 1)
        batches = max(0, len(rows[last]["batches"]) - 1) if rows else 0
        mark = Mark(len(records.updates), len(records.epochs), last, batches)
        skipped = self.sealed.batches if mark.history == self.sealed.history else 0
        new = mark.updates + mark.epochs + batches - sum(self.sealed[:2]) - skipped
        return mark if new >= ROWS_PER_FILE else None
