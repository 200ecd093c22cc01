"""Data that the worker reads and publishes: new answers, embeddings, queues, and its lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select, update

from accelerando.crowd._read import why_left_out
from accelerando.crowd._sampler import Query, SamplerState
from accelerando.crowd.store.answers import newer
from accelerando.crowd.store.experiments import Frame, Snapshot, forget
from accelerando.crowd.store.schema import (
    experiment,
    model,
    participant,
    queue,
    served,
    worker,
)

__all__ = [
    "LEASE_SECONDS",
    "Fitted",
    "left_in_queue",
    "new_answers",
    "newest",
    "publish",
    "renew_lease",
    "report",
    "saved_states",
]

LEASE_SECONDS = 15.0
# Key of the learner's report among the samplers' states; no sampler can have this name.
_REPORT = "_report"

_answer = newer().c
_NEW = (
    select(
        _answer.seq,
        _answer.query_id,
        served.c.head,
        served.c.left,
        served.c.right,
        _answer.winner,
        served.c.score,
        served.c.sampler,
        served.c.participant_id,
        served.c.kind,
        participant.c.state,
    )
    .join(
        served,
        (served.c.experiment_id == _answer.experiment_id) & (served.c.id == _answer.query_id),
    )
    .join(participant, participant.c.id == served.c.participant_id)
    .where(
        _answer.winner.is_not(None),
        participant.c.withdrawn.is_(None),
    )
    .order_by(_answer.seq)
)


@dataclass(frozen=True)
class Fitted:
    """A fitted embedding and its statistics."""

    n_answers: int
    seconds: float
    loss: float
    lapse: float
    positions: list[list[float]]
    accuracy: float | None = None
    tested: int = 0


def new_answers(connection: Connection, number: int, after: int) -> list[Row[Any]]:
    """Return the answers that count, with a larger sequence number than `after`."""
    rows: Any = connection.execute(_NEW, {"experiment": number, "after": after})
    return [row for row in rows if why_left_out(row.kind, blocked=row.state == "blocked") is None]


def left_in_queue(connection: Connection, snapshot: Snapshot) -> dict[str, list[Query]]:
    """Return the queries in the queue, by sampler."""
    rows = connection.execute(
        select(queue)
        .where(
            queue.c.experiment_id == snapshot.frame.id, queue.c.version == snapshot.queue_version
        )
        .order_by(queue.c.sampler, queue.c.place)
    )
    found: dict[str, list[Query]] = {}
    for row in rows:
        found.setdefault(row.sampler, []).append(Query(row.head, row.left, row.right, row.score))
    return found


def newest(connection: Connection, frame: Frame) -> Row[Any] | None:
    """Return the last published embedding."""
    return connection.execute(
        select(model)
        .where(model.c.experiment_id == frame.id, model.c.positions.is_not(None))
        .order_by(model.c.version.desc())
        .limit(1)
    ).first()


def saved_states(connection: Connection, frame: Frame) -> dict[str, SamplerState]:
    """Return the samplers' states of the last published queue."""
    kept = connection.execute(
        select(experiment.c.worker_state).where(experiment.c.id == frame.id)
    ).scalar()
    return {name: SamplerState(**state) for name, state in (kept or {}).items() if name != _REPORT}


def report(connection: Connection, number: int) -> dict[str, Any]:
    """Return what the learner last reported about its model, its guard and its data."""
    kept = connection.execute(
        select(experiment.c.worker_state).where(experiment.c.id == number)
    ).scalar()
    return dict((kept or {}).get(_REPORT, {}))


def publish(
    connection: Connection,
    snapshot: Snapshot,
    queues: Mapping[str, Sequence[Query]],
    states: Mapping[str, SamplerState],
    fitted: Fitted | None,
    clock: float,
    facts: Mapping[str, Any] | None = None,
) -> int:
    """Publish embedding, queue, states and report in one transaction; return the new version."""
    number = snapshot.frame.id
    forget(connection)
    last = connection.execute(
        select(func.max(model.c.version)).where(model.c.experiment_id == number)
    ).scalar()
    version = max(snapshot.queue_version, last or 0) + 1
    rows = [
        {
            "experiment_id": number,
            "version": version,
            "sampler": name,
            "place": place,
            "head": query.head,
            "left": query.left,
            "right": query.right,
            "score": query.score,
        }
        for name, queries in queues.items()
        for place, query in enumerate(queries)
    ]
    # Keep the queries of the previous version: a concurrent request may be taking one.
    connection.execute(
        delete(queue).where(
            queue.c.experiment_id == number, queue.c.version < snapshot.queue_version
        )
    )
    if rows:
        connection.execute(queue.insert(), rows)
    if fitted is not None:
        # Keep the accuracies of all tested embeddings, but only the newest positions.
        mine = model.c.experiment_id == number
        connection.execute(delete(model).where(mine, model.c.tested == 0))
        connection.execute(
            update(model).where(mine, model.c.positions.is_not(None)).values(positions=None)
        )
        connection.execute(
            model.insert().values(experiment_id=number, version=version, at=clock, **asdict(fitted))
        )
    connection.execute(
        update(experiment)
        .where(experiment.c.id == number)
        .values(
            queue_version=version,
            worker_state={
                **{name: asdict(state) for name, state in states.items()},
                _REPORT: dict(facts or {}),
            },
        )
    )
    return version


def renew_lease(
    connection: Connection,
    owner: str,
    clock: float,
    turns: int,
    turn_seconds: float | None,
    error: str | None,
    dead: tuple[str, int] | None = None,
) -> tuple[str, int] | None:
    """Renew the lease of this worker.

    Clocks jump, and those of two computers differ, so no times are compared. Each renewal increases
    a number, the beat. Who sees the same beat of the same owner for long enough by its own
    stopwatch passes both as `dead` and gets the lease.

    Returns
    -------
    tuple of str and int, or None
        Owner and beat of another worker that holds the lease; None if this one does.
    """
    row = connection.execute(select(worker).with_for_update()).first()
    values = {
        "owner": owner,
        "seen": clock,
        "turns": turns,
        "turn_seconds": turn_seconds,
        "error": error,
    }
    if row is None:
        connection.execute(worker.insert().values(id=1, beat=1, **values))
        return None
    if row.owner not in ("", owner) and (row.owner, row.beat) != dead:
        return row.owner, row.beat
    connection.execute(
        update(worker).where(worker.c.id == row.id).values(beat=row.beat + 1, **values)
    )
    return None


def release_lease(connection: Connection, owner: str) -> None:
    """Give up the lease, so that another worker can take over at once."""
    connection.execute(update(worker).where(worker.c.owner == owner).values(owner="", seen=0.0))
