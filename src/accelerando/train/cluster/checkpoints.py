"""Checkpoints whose parts come from several ranks, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Checkpoints:
    """Know which parts of a checkpoint have come."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], dict[str, str]] = {}
        self._stale: list[str] = []

    def complete(self, note: dict[str, Any], segment: int, places: Sequence[str]) -> list[str]:
        """Take in that a part has come; return the names of all, in order, if it was the last.

        Parameters
        ----------
        note : dict
            With ``place``, ``name``, ``segment`` and ``update``.
        segment : int
            The present one; what belongs to another will never be complete.
        places : sequence of str
            Who has a part in it.

        Examples
        --------
        >>> checkpoints = Checkpoints()
        >>> note = {"name": "first", "place": "rank-0", "segment": 1, "update": 10}
        >>> checkpoints.complete(note, 1, ["rank-0", "rank-1"])
        []
        >>> note = {"name": "second", "place": "rank-1", "segment": 1, "update": 10}
        >>> checkpoints.complete(note, 1, ["rank-0", "rank-1"])
        ['first', 'second']
        """
        if note["segment"] != segment or note["place"] not in places:
            self._stale.append(note["name"])
            return []
        key = (segment, note["update"])
        parts = self._parts.setdefault(key, {})
        parts[note["place"]] = note["name"]
        if len(parts) < len(places):
            return []
        del self._parts[key]
        older = [key for key in self._parts if key < (segment, note["update"])]
        for one in older:
            self._stale.extend(self._parts.pop(one).values())
        return [parts[place] for place in places]

    def stale(self) -> list[str]:
        """Return the names of parts that nobody needs any more, once."""
        found, self._stale = self._stale, []
        return found
