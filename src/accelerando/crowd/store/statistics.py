"""Statistics of the dashboard, computed by the database."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
from sqlalchemy import Connection, Integer, case, cast, func, select

from accelerando.crowd._forecast import Point, answers_to_go
from accelerando.crowd._metrics import accuracy_band
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.schema import answer, model, participant, queue, served, worker

__all__ = ["dashboard", "embedding", "health", "summaries", "summary"]

ALIVE_SECONDS = 20.0
_BINS = 60
_BIN_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400]
_TESTED_PER_POINT = 40
# Readable edges of the histograms, in seconds.
_TIME_EDGES = [0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8, 12, 20, 60]
_LATENCY_EDGES = [0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5]


def summaries(
    connection: Connection, root: str, only: Container[str] | None = None
) -> list[dict[str, Any]]:
    """Return a summary of every experiment, or of those whose names are in `only`."""
    return [
        summary(connection, name, root)
        for name in stored.names(connection)
        if only is None or name in only
    ]


def summary(connection: Connection, name: str, root: str) -> dict[str, Any]:
    """Return a summary of an experiment."""
    snapshot = stored.find(connection, name)
    settings = snapshot.frame.settings
    answered, skipped, people = connection.execute(
        select(
            func.coalesce(func.sum(participant.c.answered), 0),
            func.coalesce(func.sum(participant.c.skipped), 0),
            func.count(),
        ).where(participant.c.experiment_id == snapshot.frame.id, participant.c.withdrawn.is_(None))
    ).one()
    return {
        "name": name,
        "title": settings.title,
        "state": snapshot.state,
        "created": snapshot.frame.created,
        "items": snapshot.frame.n_items,
        "dimensions": settings.embedding.dimensions,
        "samplers": list(settings.samplers),
        "answers": int(answered),
        "skips": int(skipped),
        "participants": int(people),
        "participant_url": f"{root}/e/{name}/",
        "dashboard_url": f"{root}/experiments/{name}",
        "api": f"{root}/api/v1/experiments/{name}",
    }


def dashboard(connection: Connection, name: str, root: str, clock: float) -> dict[str, Any]:
    """Return the data of the dashboard, except positions and participants."""
    snapshot = stored.find(connection, name)
    first = summary(connection, name, root)
    items = _items(connection, snapshot)
    asked = np.array(items["queries"])
    return {
        "summary": first,
        "now": clock,
        "activity": _activity(connection, snapshot, clock),
        "arrivals": _arrivals(connection, snapshot, clock),
        "rate_per_minute": _rate(connection, snapshot, clock),
        "samplers": _samplers(connection, snapshot),
        "active_share": _shares(connection, snapshot),
        "response_time": _histogram(connection, snapshot, answer.c.response_time, _TIME_EDGES),
        "network_latency": _histogram(
            connection, snapshot, answer.c.network_latency, _LATENCY_EDGES
        ),
        "items": items,
        "coverage": {
            "min": int(asked.min()),
            "median": float(np.median(asked)),
            "max": int(asked.max()),
            "never": int((asked == 0).sum()),
        },
        "accuracy": _accuracy(connection, snapshot, first["answers"]),
        "worker": _worker(connection, snapshot, clock),
        "queue": _queue(connection, snapshot),
        "quality": _quality(connection, snapshot),
        "embedding_version": _version(connection, snapshot),
    }


def embedding(connection: Connection, name: str) -> tuple[Snapshot, Any]:
    """Return the experiment and the row of the newest embedding, or None."""
    snapshot = stored.find(connection, name)
    row = connection.execute(
        select(model)
        .where(model.c.experiment_id == snapshot.frame.id, model.c.positions.is_not(None))
        .order_by(model.c.version.desc())
        .limit(1)
    ).first()
    return snapshot, row


def health(connection: Connection, clock: float) -> dict[str, Any]:
    """Return the state of the worker and the length of the queues."""
    row = connection.execute(select(worker)).first()
    waiting = connection.execute(select(func.count()).select_from(queue)).scalar_one()
    return {
        "database": connection.dialect.name,
        "queued": int(waiting),
        "worker": {
            # A time far in the future is from a clock that was wrong, and says nothing.
            "alive": row is not None and abs(clock - row.seen) < ALIVE_SECONDS,
            "seen_seconds_ago": None if row is None else round(max(0.0, clock - row.seen), 3),
            "turns": 0 if row is None else row.turns,
            "turn_seconds": None if row is None else row.turn_seconds,
            "error": None if row is None else row.error,
        },
    }


def _mine(snapshot: Snapshot) -> Any:
    gone = (
        select(served.c.id)
        .join(participant, participant.c.id == served.c.participant_id)
        .where(
            participant.c.experiment_id == snapshot.frame.id, participant.c.withdrawn.is_not(None)
        )
    )
    return (answer.c.experiment_id == snapshot.frame.id) & answer.c.query_id.not_in(gone)


def _activity(connection: Connection, snapshot: Snapshot, clock: float) -> dict[str, Any]:
    """Answers over time."""
    return _over_time(connection, answer.c.received, _mine(snapshot), snapshot, clock)


def _arrivals(connection: Connection, snapshot: Snapshot, clock: float) -> dict[str, Any]:
    """Return the number of new participants over time."""
    mine = participant.c.experiment_id == snapshot.frame.id
    return _over_time(connection, participant.c.created, mine, snapshot, clock)


def _over_time(
    connection: Connection, column: Any, mine: Any, snapshot: Snapshot, clock: float
) -> dict[str, Any]:
    first, last = connection.execute(select(func.min(column), func.max(column)).where(mine)).one()
    if first is None:
        return {"bin_seconds": 60, "start": snapshot.frame.created, "counts": []}
    span = max(60.0, min(clock, last + 60.0) - first)
    longest = 86400 * int(np.ceil(span / 86400 / _BINS))
    size = next((size for size in _BIN_SECONDS if span / size <= _BINS), longest)
    begin = float(np.floor(first / size) * size)
    bins = cast(func.floor((column - begin) / size), Integer)
    rows = connection.execute(
        select(bins, func.count()).where(mine).group_by(bins).order_by(bins)
    ).all()
    counts = [0] * (int(rows[-1][0]) + 1)
    for place, count in rows:
        counts[int(place)] = int(count)
    return {"bin_seconds": size, "start": begin, "counts": counts}


def _rate(connection: Connection, snapshot: Snapshot, clock: float) -> float:
    window = 60.0
    lately = connection.execute(
        select(func.count())
        .select_from(answer)
        .where(_mine(snapshot), answer.c.received > clock - window)
    ).scalar_one()
    return float(lately)


def _joined(snapshot: Snapshot, *columns: Any) -> Any:
    """Select from answers joined with their queries, without skips and practice."""
    return (
        select(*columns)
        .join_from(
            answer,
            served,
            (served.c.experiment_id == answer.c.experiment_id) & (served.c.id == answer.c.query_id),
        )
        .where(_mine(snapshot), answer.c.winner.is_not(None), served.c.kind != "practice")
    )


def _samplers(connection: Connection, snapshot: Snapshot) -> list[dict[str, Any]]:
    settings = snapshot.frame.settings
    counted = {
        row[0]: (int(row[1]), int(row[2]))
        for row in connection.execute(
            _joined(
                snapshot,
                served.c.sampler,
                func.count(),
                func.sum(case((served.c.fallback, 1), else_=0)),
            ).group_by(served.c.sampler)
        )
    }
    ready = _ready(connection, snapshot)
    shares = settings.shares or dict.fromkeys(settings.samplers, 1.0)
    total = sum(shares.values())
    found = [
        {
            "name": name,
            "class": sampler.kind,
            "share": shares[name] / total,
            "answers": counted.get(name, (0, 0))[0],
            "fallback": counted.get(name, (0, 0))[1],
            "queued": ready.get(name, 0),
        }
        for name, sampler in settings.samplers.items()
    ]
    found += [
        {"name": name, "class": name, "share": 0.0, "answers": n, "fallback": 0, "queued": 0}
        for name, (n, _) in counted.items()
        if name not in settings.samplers
    ]
    return found


def _shares(connection: Connection, snapshot: Snapshot) -> dict[str, int]:
    kind = case(
        (served.c.kind.in_(["check", "repeat"]), "check"),
        (served.c.score.is_not(None), "active"),
        (served.c.fallback, "fallback"),
        else_="random",
    )
    found = {"active": 0, "random": 0, "fallback": 0, "check": 0}
    found.update(
        {
            row[0]: int(row[1])
            for row in connection.execute(_joined(snapshot, kind, func.count()).group_by(kind))
        }
    )
    return found


def _histogram(
    connection: Connection, snapshot: Snapshot, column: Any, edges: list[float]
) -> dict[str, Any]:
    bins = case(
        *((column < edge, place) for place, edge in enumerate(edges[1:])), else_=len(edges) - 1
    )
    counts = [0] * len(edges)
    rows = connection.execute(
        select(bins, func.count()).where(_mine(snapshot), column.is_not(None)).group_by(bins)
    )
    for place, count in rows:
        counts[int(place)] = int(count)
    return {"edges": edges, "counts": counts}


def _items(connection: Connection, snapshot: Snapshot) -> dict[str, Any]:
    heads = np.zeros(snapshot.frame.n_items, dtype=int)
    feet = np.zeros(snapshot.frame.n_items, dtype=int)
    for column, where in ((served.c.head, heads), (served.c.left, feet), (served.c.right, feet)):
        for number, count in connection.execute(
            _joined(snapshot, column, func.count()).group_by(column)
        ):
            where[number] += int(count)
    return {"queries": (heads + feet).tolist(), "heads": heads.tolist()}


def _ready(connection: Connection, snapshot: Snapshot) -> dict[str, int]:
    rows = connection.execute(
        select(queue.c.sampler, func.count())
        .where(
            queue.c.experiment_id == snapshot.frame.id, queue.c.version == snapshot.queue_version
        )
        .group_by(queue.c.sampler)
    )
    return {row[0]: int(row[1]) for row in rows}


def _queue(connection: Connection, snapshot: Snapshot) -> dict[str, int]:
    return {"ready": sum(_ready(connection, snapshot).values()), "version": snapshot.queue_version}


def _version(connection: Connection, snapshot: Snapshot) -> int | None:
    return connection.execute(
        select(func.max(model.c.version)).where(
            model.c.experiment_id == snapshot.frame.id, model.c.positions.is_not(None)
        )
    ).scalar()


def _worker(connection: Connection, snapshot: Snapshot, clock: float) -> dict[str, Any]:
    found: dict[str, Any] = health(connection, clock)["worker"]
    newest = connection.execute(
        select(model.c.version, model.c.n_answers, model.c.seconds)
        .where(model.c.experiment_id == snapshot.frame.id)
        .order_by(model.c.version.desc())
        .limit(1)
    ).first()
    usable = connection.execute(
        _joined(snapshot, func.count())
        .join(participant, participant.c.id == served.c.participant_id)
        .where(participant.c.state != "blocked", served.c.kind == "query")
    ).scalar_one()
    fitted = 0 if newest is None else newest.n_answers
    warmup = snapshot.frame.settings.embedding.warmup or snapshot.frame.n_items
    found["model_version"] = None if newest is None else newest.version
    found["turn_seconds"] = None if newest is None else newest.seconds
    found["history"] = [
        {"at": row.at, "turn_seconds": row.seconds, "answers": row.n_answers}
        for row in reversed(
            connection.execute(
                select(model.c.at, model.c.seconds, model.c.n_answers)
                .where(model.c.experiment_id == snapshot.frame.id)
                .order_by(model.c.version.desc())
                .limit(100)
            ).all()
        )
    ]
    found["behind"] = max(0, int(usable) - fitted) if usable >= warmup else 0
    return found


def points(connection: Connection, snapshot: Snapshot) -> list[Point]:
    """Return held-out accuracies, merged until each point has enough tests."""
    rows = connection.execute(
        select(model.c.n_answers, model.c.accuracy, model.c.tested)
        .where(model.c.experiment_id == snapshot.frame.id, model.c.tested > 0)
        .order_by(model.c.version)
    )
    found: list[Point] = []
    right = tested = 0.0
    weighted = 0.0
    for n_answers, accuracy, count in rows:
        right += accuracy * count
        tested += count
        weighted += n_answers * count
        # Later points merge more tests, which limits the number of points to about fifty.
        if tested >= max(_TESTED_PER_POINT, 0.02 * sum(point.tested for point in found)):
            found.append(Point(weighted / tested, right / tested, int(tested)))
            right = tested = weighted = 0.0
    return found


def _accuracy(connection: Connection, snapshot: Snapshot, answers: int) -> dict[str, Any]:
    curve = points(connection, snapshot)
    target = snapshot.frame.settings.target_accuracy
    shown = []
    for point in curve:
        low, high = accuracy_band(point.accuracy, point.tested)
        shown.append(
            {
                "answers": round(point.answers),
                "accuracy": point.accuracy,
                "low": low,
                "high": high,
                "tested": point.tested,
            }
        )
    estimate = answers_to_go(curve, answers, target)
    return {
        "points": shown,
        "latest": shown[-1] if shown else None,
        "target": estimate.target,
        "answers_to_go": estimate.to_go,
        "answers_to_go_band": estimate.band,
        "sentence": estimate.sentence,
    }


def _quality(connection: Connection, snapshot: Snapshot) -> dict[str, int]:
    asked, passed = connection.execute(
        _joined(
            snapshot,
            func.count(),
            func.coalesce(func.sum(case((answer.c.winner == served.c.winner, 1), else_=0)), 0),
        ).where(served.c.kind == "check")
    ).one()
    people, blocked = connection.execute(
        select(
            func.count(),
            func.coalesce(func.sum(case((participant.c.state == "blocked", 1), else_=0)), 0),
        ).where(participant.c.experiment_id == snapshot.frame.id)
    ).one()
    return {
        "participants": int(people),
        "blocked": int(blocked),
        "checks": int(asked),
        "passed_checks": int(passed),
    }
