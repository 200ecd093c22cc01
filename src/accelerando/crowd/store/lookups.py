"""What a desk asks about a participant and about a queue, answered by the store."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, bindparam, delete, exists, select

from accelerando.crowd._assignment import Asked, Queue
from accelerando.crowd._sampler import Query
from accelerando.crowd.store.experiments import Now
from accelerando.crowd.store.schema import queue, served

__all__ = ["Seen", "Top"]

_SEEN = select(served.c.id).where(
    served.c.participant_id == bindparam("person"),
    served.c.head == bindparam("h"),
    served.c.low == bindparam("a"),
    served.c.high == bindparam("b"),
)
_ALL_SEEN = select(served.c.head, served.c.low, served.c.high).where(
    served.c.participant_id == bindparam("person")
)
_FIRST = (
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
    .limit(1)
    # Two web processes do not wait for each other, they take the next one.
    .with_for_update(skip_locked=True)
)
_POP = (
    delete(queue)
    .where(queue.c.id == _FIRST.scalar_subquery())
    .returning(queue.c.head, queue.c.left, queue.c.right, queue.c.score)
)


class Seen(Asked):
    """What a participant has been asked, looked up in the store; all at once if often."""

    def __init__(self, connection: Connection, person: int) -> None:
        self._connection, self.person = connection, person
        self.new: tuple[int, int, int] | None = None  # the store has just said so
        self._known: set[tuple[int, int, int]] = set()
        self._lookups = 0
        self._all = False

    def __contains__(self, key: object, /) -> bool:
        if key in self._known or self._all or key == self.new:
            return key in self._known
        self._lookups += 1
        if self._lookups > 20:
            rows = self._connection.execute(_ALL_SEEN, {"person": self.person})
            self._known.update((row.head, row.low, row.high) for row in rows)
            self._all = True
            return key in self._known
        assert isinstance(key, tuple)
        place = {"person": self.person, "h": key[0], "a": key[1], "b": key[2]}
        return self._connection.execute(_SEEN, place).first() is not None

    def add(self, key: tuple[int, int, int], /) -> None:
        self._known.add(key)


class Top(Queue):
    """The queue of a sampler in the store: looking at its first query takes it."""

    def __init__(self, connection: Connection, now: Now, seen: Seen, sampler: str) -> None:
        self._connection, self._seen = connection, seen
        self._place = {
            "experiment": now.frame.id,
            "version": now.queue_version,
            "sampler": sampler,
            "person": seen.person,
        }

    def __iter__(self) -> Iterator[Query]:
        row = self._connection.execute(_POP, self._place).first()
        if row is not None:
            query = Query(row.head, row.left, row.right, row.score)
            self._seen.new = query.key
            yield query

    def __delitem__(self, place: int, /) -> None:
        """Already taken."""
