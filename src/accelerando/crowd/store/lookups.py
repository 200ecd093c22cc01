"""Database lookups of query assignment: seen queries, and the queue of a sampler."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, delete, exists, func, select
from sqlalchemy.sql.dml import ReturningDelete

from accelerando.crowd._assignment import QueryQueue, SeenQueries
from accelerando.crowd._sampler import Query
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.schema import queue, served

__all__ = ["StoredQueue", "StoredSeen", "take_out"]

_MAX_LOOKUPS = 20

_SEEN = select(served.c.id).where(
    served.c.participant_id == bindparam("person"),
    served.c.head == bindparam("h"),
    served.c.low == bindparam("a"),
    served.c.high == bindparam("b"),
)
_ALL_SEEN = select(served.c.head, served.c.low, served.c.high).where(
    served.c.participant_id == bindparam("person")
)
_UNSEEN = (
    select(queue.c.id)
    .where(
        queue.c.experiment_id == bindparam("experiment"),
        queue.c.version == bindparam("version"),
        queue.c.sampler == bindparam("sampler"),
        ~exists().where(
            served.c.participant_id == bindparam("person"),
            served.c.head == queue.c.head,
            ((served.c.low == queue.c.left) & (served.c.high == queue.c.right))
            | ((served.c.low == queue.c.right) & (served.c.high == queue.c.left)),
        ),
    )
    .order_by(queue.c.place)
)


def _pop(among: int) -> ReturningDelete[Any]:
    """Return the statement that takes the first unseen query, or a random one of the first ones."""
    first = _UNSEEN.limit(among)
    if among > 1:
        near = first.subquery()
        first = select(near.c.id).order_by(func.random()).limit(1)
    else:
        # A row that another web process is taking is skipped, not waited for.
        first = first.with_for_update(skip_locked=True)
    return (
        delete(queue)
        .where(queue.c.id == first.scalar_subquery())
        .returning(queue.c.head, queue.c.left, queue.c.right, queue.c.score)
    )


_NEAR_THE_TOP = 40
_POP = _pop(1)


def take_out(connection: Connection, snapshot: Snapshot, head: int, left: int, right: int) -> None:
    """Delete a query that was asked from the queues."""
    connection.execute(
        delete(queue).where(
            queue.c.experiment_id == snapshot.frame.id,
            queue.c.version == snapshot.queue_version,
            queue.c.head == head,
            queue.c.left == left,
            queue.c.right == right,
        )
    )


class StoredSeen(SeenQueries):
    """The queries that a participant has seen, looked up in the database.

    The first lookups select one row each. After that all of the participant's queries are read at
    once.
    """

    def __init__(self, connection: Connection, person: int) -> None:
        self._connection, self.person = connection, person
        self._known: set[tuple[int, int, int]] = set()
        self._lookups = 0
        self._all = False

    def __contains__(self, key: object, /) -> bool:
        if key in self._known or self._all:
            return key in self._known
        self._lookups += 1
        if self._lookups > _MAX_LOOKUPS:
            rows = self._connection.execute(_ALL_SEEN, {"person": self.person})
            self._known.update((row.head, row.low, row.high) for row in rows)
            self._all = True
            return key in self._known
        assert isinstance(key, tuple)
        place = {"person": self.person, "h": key[0], "a": key[1], "b": key[2]}
        return self._connection.execute(_SEEN, place).first() is not None

    def add(self, key: tuple[int, int, int], /) -> None:
        """Remember a query that this transaction adds."""
        self._known.add(key)


class StoredQueue(QueryQueue):
    """The queue of a sampler in the database, for one participant."""

    def __init__(
        self,
        connection: Connection,
        snapshot: Snapshot,
        person: int,
        sampler: str,
        *,
        anywhere: bool = False,
    ) -> None:
        self._connection = connection
        self._pop = _pop(_NEAR_THE_TOP) if anywhere else _POP
        self._place = {
            "experiment": snapshot.frame.id,
            "version": snapshot.queue_version,
            "sampler": sampler,
            "person": person,
        }

    def pop(self, seen: SeenQueries) -> Query | None:
        """Delete and return the first query that the participant has not seen.

        The statement itself looks at the queries that the participant has seen, so `seen` is not
        needed.
        """
        del seen
        row = self._connection.execute(self._pop, self._place).first()
        return None if row is None else Query(row.head, row.left, row.right, row.score)
