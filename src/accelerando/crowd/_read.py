"""Reading answers: the CSV export, Salmon's responses, and arrays in the format of cblearn.

Every row that cannot be used is reported with its line.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from accelerando.crowd._triplets import Triplets

__all__ = ["Answers", "Problem", "read_answers"]

_RANDOM_SCORE = -9999.0  # Salmon's score of random queries


@dataclass(frozen=True)
class Problem:
    """A row that cannot be used.

    Attributes
    ----------
    line : int
        Its line in the file, or its row in the array.
    reason : str
        Why it cannot be used.
    """

    line: int
    reason: str


@dataclass(frozen=True)
class Answers:
    """Answers from a file.

    Attributes
    ----------
    items : list of str
        Names or numbers of the items in the file; triplets contain indices into this list.
    triplets : array of shape (n_answers, 3)
        Rows ``(head, winner, loser)``.
    at_random : array of bool
        Answers known to come from randomly chosen queries.
    participants : int or None
        Number of participants, if the file has a column for them.
    names : dict of str to str
        File names or texts of the items, if the file has columns for them.
    problems : list of Problem
        Rows that cannot be used, with the attributes ``line`` and ``reason``.
    left_out : dict of str to int
        Numbers of rows that an embedding does not use, by their kind, or "blocked".
    """

    items: list[str]
    triplets: Triplets
    at_random: NDArray[np.bool_]
    participants: int | None = None
    names: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)


def read_answers(path: str | Path) -> Answers:
    """Read a CSV with a header, or a ``.npy``/``.npz`` array.

    A CSV needs the columns ``head, winner, loser`` or ``head, left, right, winner``; Salmon's
    responses have both. The columns ``participant`` (or ``puid``), ``at_random`` and ``score`` are
    optional. Rows that the service's embedding does not use are left out and counted: practice,
    attention checks, repeats and participants who are blocked, by the columns ``kind`` and
    ``blocked`` of the service's export. A ``.npy`` file contains rows ``(head, winner, loser)``;
    a ``.npz`` file contains ``triplets``, or ``queries`` and ``responses`` (True or 1: the second
    column is nearer to the first, False or −1: the third).

    Parameters
    ----------
    path : str or Path
        The file; its suffix determines the format.

    Returns
    -------
    Answers
        Items, triplets, and the rows that cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "answers.csv"
    >>> lines = ["head,winner,loser", "0,1,2", "0,0,2"]
    >>> file.write_text(chr(10).join(lines)) > 0
    True
    >>> answers = read_answers(file)
    >>> answers.triplets.tolist(), answers.problems[0].line
    ([[0, 1, 2]], 3)
    """
    file = Path(path)
    if file.suffix in (".npy", ".npz"):
        return _read_arrays(file)
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        return read_csv(stream, str(file))


def read_csv(stream: TextIO, name: str = "the file") -> Answers:
    """Return the answers in an open CSV file."""
    reader = csv.reader(stream)
    header = [column.strip().lower() for column in next(_rows(reader, []), (0, []))[1]]
    columns = {column: place for place, column in enumerate(header)}
    by_sides = {"head", "left", "right", "winner"} <= set(columns)
    if not by_sides and not {"head", "winner", "loser"} <= set(columns):
        raise ValueError(
            f"{name} must have the columns head, winner, loser or head, left, right, winner. "
            f"Got {', '.join(header) or 'no header'} instead."
        )
    table = _Table(columns, by_loser=not by_sides)
    for line, row in _rows(reader, table.problems):
        if row:
            table.add(line, row)
    return table.answers()


def _rows(reader: Any, problems: list[Problem]) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with their line; rows that the CSV reader refuses become problems."""
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problems.append(Problem(reader.line_num, f"This is not CSV: {error}."))
            continue
        yield reader.line_num, row


class _Table:
    """Rows of a CSV file, usable and not."""

    def __init__(self, columns: dict[str, int], *, by_loser: bool) -> None:
        self._columns = columns
        self._by_loser = by_loser
        self._rows: list[tuple[str, str, str]] = []
        self._at_random: list[bool] = []
        self._participants: set[str] = set()
        self._names: dict[str, str] = {}
        self._numbers: bool | None = None
        self.problems: list[Problem] = []
        self.left_out: Counter[str] = Counter()

    def add(self, line: int, row: list[str]) -> None:
        cells = {c: row[k].strip() for c, k in self._columns.items() if k < len(row)}
        reason = why_left_out(cells.get("kind", ""), blocked=_is_true(cells.get("blocked", "")))
        if reason is not None:
            self.left_out[reason] += 1
            return
        try:
            triplet = self._triplet(cells)
        except ValueError as error:
            self.problems.append(Problem(line, str(error)))
            return
        self._rows.append(triplet)
        self._at_random.append(_is_random(cells))
        self._participants.add(cells.get("participant") or cells.get("puid") or "")
        for role, item in zip(("head", "winner", "loser"), triplet, strict=True):
            name = cells.get(f"{role}_filename") or cells.get(f"{role}_html")
            if name:
                self._names.setdefault(item, name)

    def _triplet(self, cells: dict[str, str]) -> tuple[str, str, str]:
        head, winner = self._item(cells, "head"), self._item(cells, "winner")
        if self._by_loser:
            loser = self._item(cells, "loser")
        else:
            left, right = self._item(cells, "left"), self._item(cells, "right")
            if winner not in (left, right):
                raise ValueError(
                    f"The winner {winner} is neither left ({left}) nor right ({right})."
                )
            loser = right if winner == left else left
            if cells.get("loser") and self._item(cells, "loser") != loser:
                raise ValueError(
                    f"The loser {cells['loser']} is not the other item of the query, {loser}."
                )
        if len({head, winner, loser}) < 3:
            raise ValueError(
                f"A row must have three different items. Got {head}, {winner}, {loser} instead."
            )
        return head, winner, loser

    def _item(self, cells: dict[str, str], column: str) -> str:
        value = cells.get(column, "")
        if not value:
            raise ValueError(f"The column {column} is empty.")
        number = value.isascii() and value.isdigit()
        if self._numbers is None:
            # The first item determines whether the file has numbers or names.
            self._numbers = number
        if self._numbers and not number:
            raise ValueError(f"{column} must be an integer of at least 0. Got {value!r} instead.")
        return str(int(value)) if self._numbers else value

    def answers(self) -> Answers:
        names = {item for row in self._rows for item in row}
        items = sorted(names, key=(lambda item: (len(item), item)) if self._numbers else None)
        index = {item: k for k, item in enumerate(items)}
        triplets = [[index[item] for item in row] for row in self._rows]
        known = {"participant", "puid"} & set(self._columns)
        return Answers(
            items=items,
            triplets=np.array(triplets, dtype=np.intp).reshape(-1, 3),
            at_random=np.array(self._at_random, dtype=bool),
            participants=len(self._participants) if known else None,
            names=self._names,
            problems=self.problems,
            left_out=dict(self.left_out),
        )


def why_left_out(kind: str, *, blocked: bool) -> str | None:
    """Return why an embedding does not use an answer; None if it does.

    This rule decides for `crowd embed`, for the service's worker, for the counts of its dashboard
    and for the column ``left_out`` of its exports.

    Examples
    --------
    >>> why_left_out("query", blocked=False), why_left_out("check", blocked=False)
    (None, 'check')
    """
    if blocked:
        return "blocked"
    return kind if kind not in ("", "query") else None


def _is_true(cell: str) -> bool:
    return cell.lower() in ("1", "true", "yes")


def _is_random(cells: dict[str, str]) -> bool:
    if "at_random" in cells:
        return _is_true(cells["at_random"])
    try:
        return float(cells.get("score", "nan")) == _RANDOM_SCORE
    except ValueError:
        return False


def _read_arrays(file: Path) -> Answers:
    # No pickles: an array file must not be able to run code.
    loaded = np.load(file, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return from_arrays(loaded)
    with loaded:
        if "triplets" in loaded:
            return from_arrays(loaded["triplets"])
        if {"queries", "responses"} <= set(loaded):
            return from_arrays(loaded["queries"], loaded["responses"])
        raise ValueError(
            f"{file} must contain 'triplets', or 'queries' and 'responses'. "
            f"Got {sorted(loaded)} instead."
        )


def from_arrays(rows: NDArray[Any], responses: NDArray[Any] | None = None) -> Answers:
    """Return answers from arrays in the format of cblearn; problems count rows from 1."""
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise ValueError(
            "The array must have shape (n, 3), one item per column. "
            f"Got shape {rows.shape} instead."
        )
    if responses is not None and responses.shape != (len(rows),):
        raise ValueError(
            f"responses must have shape ({len(rows)},), one entry per query. "
            f"Got shape {responses.shape} instead."
        )
    table = _Table({"head": 0, "winner": 1, "loser": 2}, by_loser=True)
    for number, row in enumerate(rows.tolist(), start=1):
        cells = [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in row]
        if responses is not None:
            response = responses[number - 1]
            left = bool(response) if responses.dtype == np.bool_ else response == 1
            right = not response if responses.dtype == np.bool_ else response == -1
            if right:
                cells = [cells[0], cells[2], cells[1]]
            elif not left:  # cblearn writes 0 for undecided answers
                table.problems.append(
                    Problem(
                        number, f"A response must be True, False, 1 or −1. Got {response} instead."
                    )
                )
                continue
        table.add(number, cells)
    return table.answers()
