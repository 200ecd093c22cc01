"""Queries whose items did not load on a participant's page: replaced, counted per item.

The counts are kept with the participant, next to the states of samplers: they go when the
participant goes, and an archive has them.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, Text, cast, delete, select, update

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.participants import Person
from accelerando.crowd.store.schema import participant, served
from accelerando.crowd.store.serving import UNSHOWN, AsRow, as_values

__all__ = ["replace_query", "unshown_items"]

_MOST = 300


def replace_query(
    connection: Connection,
    snapshot: Snapshot,
    person: Person,
    query: int,
    failed: Collection[int],
) -> Person:
    """Forget an open query, count its items that did not load, and return the participant.

    A query that is not open any more changes nothing, because the request may come twice.

    Raises
    ------
    ApiError
        The query has none of these items, or too many queries were replaced in this session.
    """
    mine = (served.c.experiment_id == snapshot.frame.id) & (served.c.id == query)
    row = connection.execute(
        select(served).where(mine, served.c.participant_id == person.id, served.c.open)
    ).first()
    if row is None:
        return person
    if not set(failed) <= {row.head, row.left, row.right}:
        raise ApiError("bad_item", "These items are not part of the query.", 422)
    counts = dict(person.personal.get(UNSHOWN, {}))
    if sum(counts.values()) >= _MOST:
        raise ApiError("unshown", "Too many items of this session could not be loaded.", 409)
    for item in failed:
        counts[str(item)] = counts.get(str(item), 0) + 1
    connection.execute(delete(served).where(mine))
    after = {
        "personal": {**person.personal, UNSHOWN: counts},
        # A practice query is passed over: the same one would come again.
        "practised": person.practised + (row.kind == "practice"),
    }
    connection.execute(update(participant).where(participant.c.id == person.id).values(**after))
    return AsRow(**{**as_values(person), **after})  # type: ignore[return-value]


def unshown_items(connection: Connection, number: int) -> list[dict[str, int]]:
    """Return the items that did not load, with how often and for how many participants."""
    found: dict[int, list[int]] = {}
    for row in connection.execute(
        select(participant.c.personal).where(
            participant.c.experiment_id == number,
            cast(participant.c.personal, Text).contains(f'"{UNSHOWN}"'),
        )
    ):
        for item, times in row.personal.get(UNSHOWN, {}).items():
            found.setdefault(int(item), []).append(times)
    return [
        {"item": item, "times": sum(times), "participants": len(times)}
        for item, times in sorted(found.items())
    ]
