"""Read answers from files: our export, Salmon's responses, arrays as cblearn has them.

Every row that cannot be used is reported with its line; none is dropped in silence.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from accelerando.crowd._triplets import Triplets

__all__ = ["Answers", "Problem", "read_answers"]

_RANDOM_SCORE = -9999.0  # what Salmon writes for queries that no score chose


@dataclass(frozen=True)
class Problem:
    """A row that could not be used.

    Attributes
    ----------
    line : int
        Its line in the file, or row of the array.
    reason : str
        Why it could not be used, for people to read.
    """

    line: int
    reason: str


@dataclass(frozen=True)
class Answers:
    """Answers from a file.

    Attributes
    ----------
    items : list of str
        What the file calls each item; triplets hold places in this list.
    triplets : array of shape (n_answers, 3)
        Rows ``(head, winner, loser)``.
    at_random : array of bool
        Answers known to come from randomly chosen queries.
    participants : int or None
        How many there were, if the file says.
    names : dict of str to str
        File names or texts of the items, where the file has them.
    problems : list of Problem
    """

    items: list[str]
    triplets: Triplets
    at_random: NDArray[np.bool_]
    participants: int | None = None
    names: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_answers(path: str | Path) -> Answers:
    """Read a CSV with a header, or a ``.npy``/``.npz`` array.

    A CSV needs the columns ``head, winner, loser`` or ``head, left, right, winner``; Salmon's
    responses have both. ``participant`` (or ``puid``), ``at_random`` and ``score`` are used if
    there.
    A ``.npy`` holds rows ``(head, winner, loser)``; a ``.npz`` holds ``triplets``, or ``queries``
    and ``responses`` (true or 1: the second column is nearer to the first, false or −1: the third).

    Parameters
    ----------
    path : str or Path
        The file; its ending tells which kind it is.

    Returns
    -------
    Answers
        Items, triplets, and the rows that could not be used.

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
    """Read answers from an open CSV."""
    reader = csv.reader(stream)
    header = [column.strip().lower() for column in next(_rows(reader, []), (0, []))[1]]
    columns = {column: place for place, column in enumerate(header)}
    by_sides = {"head", "left", "right", "winner"} <= set(columns)
    if not by_sides and not {"head", "winner", "loser"} <= set(columns):
        raise ValueError(
            f"{name} must have the columns head, winner, loser or head, left, right, winner; "
            f"got {', '.join(header) or 'no header'}."
        )
    table = _Table(columns, by_loser=not by_sides)
    for line, row in _rows(reader, table.problems):
        if row:
            table.add(line, row)
    return table.answers()


def _rows(reader: Any, problems: list[Problem]) -> Iterator[tuple[int, list[str]]]:
    """Rows with their line; what the CSV reader itself refuses becomes a problem."""
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problems.append(Problem(reader.line_num, f"not readable as CSV: {error}"))
            continue
        yield reader.line_num, row


class _Table:
    """Rows of a CSV as they come in, good and bad."""

    def __init__(self, columns: dict[str, int], *, by_loser: bool) -> None:
        self._columns = columns
        self._by_loser = by_loser
        self._rows: list[tuple[str, str, str]] = []
        self._at_random: list[bool] = []
        self._participants: set[str] = set()
        self._names: dict[str, str] = {}
        self._numbers: bool | None = None
        self.problems: list[Problem] = []

    def add(self, line: int, row: list[str]) -> None:
        cells = {c: row[k].strip() for c, k in self._columns.items() if k < len(row)}
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
                    f"the winner {winner} is neither left ({left}) nor right ({right})"
                )
            loser = right if winner == left else left
            if cells.get("loser") and self._item(cells, "loser") != loser:
                raise ValueError(
                    f"the loser {cells['loser']} is not the other side of the query, {loser}"
                )
        if len({head, winner, loser}) < 3:
            raise ValueError(f"three different items needed; got {head}, {winner}, {loser}")
        return head, winner, loser

    def _item(self, cells: dict[str, str], column: str) -> str:
        value = cells.get(column, "")
        if not value:
            raise ValueError(f"no {column}")
        number = value.isascii() and value.isdigit()
        if self._numbers is None:
            self._numbers = number  # the first item decides whether the file has numbers or names
        if self._numbers and not number:
            raise ValueError(f"{column} must be a whole number of at least 0; got {value!r}")
        return str(int(value)) if self._numbers else value

    def answers(self) -> Answers:
        names = {item for row in self._rows for item in row}
        items = sorted(names, key=(lambda item: (len(item), item)) if self._numbers else None)
        place = {item: k for k, item in enumerate(items)}
        triplets = [[place[item] for item in row] for row in self._rows]
        known = {"participant", "puid"} & set(self._columns)
        return Answers(
            items=items,
            triplets=np.array(triplets, dtype=np.intp).reshape(-1, 3),
            at_random=np.array(self._at_random, dtype=bool),
            participants=len(self._participants) if known else None,
            names=self._names,
            problems=self.problems,
        )


def _is_random(cells: dict[str, str]) -> bool:
    if "at_random" in cells:
        return cells["at_random"].lower() in ("1", "true", "yes")
    try:
        return float(cells.get("score", "nan")) == _RANDOM_SCORE
    except ValueError:
        return False


def _read_arrays(file: Path) -> Answers:
    # Never a pickle: an array file from somebody else must not be able to run code.
    loaded = np.load(file, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return from_arrays(loaded)
    with loaded:
        if "triplets" in loaded:
            return from_arrays(loaded["triplets"])
        if {"queries", "responses"} <= set(loaded):
            return from_arrays(loaded["queries"], loaded["responses"])
        raise ValueError(
            f"{file} must hold 'triplets', or 'queries' and 'responses'; got {sorted(loaded)}."
        )


def from_arrays(rows: NDArray[Any], responses: NDArray[Any] | None = None) -> Answers:
    """Answers from arrays as cblearn has them; rows are counted from 1 in problems."""
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise ValueError(
            f"the array must have shape (n, 3), one item per column; got {rows.shape}."
        )
    if responses is not None and responses.shape != (len(rows),):
        raise ValueError(
            f"responses must hold one entry per query, shape ({len(rows)},); got {responses.shape}."
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
            elif not left:  # cblearn writes 0 where somebody could not decide
                table.problems.append(
                    Problem(number, f"response must be true, false, 1 or −1; got {response}")
                )
                continue
        table.add(number, cells)
    return table.answers()
