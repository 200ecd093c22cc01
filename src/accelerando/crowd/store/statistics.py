"""Statistics of the dashboard, from running counts of the answers."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

import numpy as np
from sqlalchemy import Connection, case, func, select

from accelerando.crowd._forecast import Point, answers_to_go
from accelerando.crowd._metrics import accuracy_band
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.schema import model, participant, queue, worker
from accelerando.crowd.store.tally import LATENCY_EDGES, TIME_EDGES, Tallies, Tally, Timeline
from accelerando.crowd.store.unshown import unshown_items

__all__ = ["dashboard", "embedding", "health", "summaries", "summary", "visible_error"]

ALIVE_SECONDS = 20.0
# Between what the worker notes about two experiments.
_ONE_ERROR = re.compile(r"; (?=[a-z0-9][a-z0-9_-]*: [A-Za-z]+: )")


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
    # As the embedding counts: `answered` has neither checks nor repeats.
    used = case((participant.c.state == "blocked", 0), else_=participant.c.answered)
    answered, skipped, people = connection.execute(
        select(
            func.coalesce(func.sum(used), 0),
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
        "declined": stored.declined(connection, snapshot.frame.id),
        "participant_url": f"{root}/e/{name}/",
        "dashboard_url": f"{root}/experiments/{name}",
        "api": f"{root}/api/v1/experiments/{name}",
    }


def dashboard(
    connection: Connection, name: str, root: str, clock: float, tallies: Tallies | None = None
) -> dict[str, Any]:
    """Return the data of the dashboard, except positions and participants.

    With `tallies`, which later calls get again, only new answers are read.
    """
    snapshot = stored.find(connection, name)
    first = summary(connection, name, root)
    tally, curve = (tallies or Tallies()).look(connection, snapshot, clock)
    asked = tally.heads + tally.feet
    return {
        "summary": first,
        "now": clock,
        "activity": tally.activity.to_json(snapshot.frame.created),
        "arrivals": _arrivals(connection, snapshot),
        "rate_per_minute": float(tally.recent),
        "samplers": _samplers(connection, snapshot, tally),
        "active_share": {
            how: tally.shares[how] for how in ("active", "random", "fallback", "check")
        },
        "response_time": {"edges": TIME_EDGES, "counts": tally.times.tolist()},
        "network_latency": {"edges": LATENCY_EDGES, "counts": tally.latencies.tolist()},
        "unshown": unshown_items(connection, snapshot.frame.id),
        "items": {"queries": asked.tolist(), "heads": tally.heads.tolist()},
        "coverage": {
            "min": int(asked.min()),
            "median": float(np.median(asked)),
            "max": int(asked.max()),
            "never": int((asked == 0).sum()),
        },
        "accuracy": _accuracy(snapshot, curve, first["answers"]),
        "worker": _worker(connection, snapshot, clock, tally.usable),
        "queue": _queue(connection, snapshot),
        "quality": _quality(connection, snapshot, tally),
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


def visible_error(error: str | None, names: Container[str] | None) -> str | None:
    """Return what the worker says about these experiments; of others only that they fail.

    Parameters
    ----------
    error : str or None
        What the worker has noted: ``"name: reason"`` for each experiment that fails.
    names : container of str or None
        Experiments that the reader may see; None for all.
    """
    if error is None or names is None:
        return error
    parts = _ONE_ERROR.split(error)
    seen = [part for part in parts if part.partition(":")[0] in names]
    return "; ".join(seen + ["another experiment fails"] * (len(seen) < len(parts)))


def _arrivals(connection: Connection, snapshot: Snapshot) -> dict[str, Any]:
    """Return the number of new participants over time."""
    came = Timeline()
    mine = participant.c.experiment_id == snapshot.frame.id
    came.add(connection.execute(select(participant.c.created).where(mine)).scalars().all())
    return came.to_json(snapshot.frame.created)


def _samplers(connection: Connection, snapshot: Snapshot, tally: Tally) -> list[dict[str, Any]]:
    settings = snapshot.frame.settings
    ready = _ready(connection, snapshot)
    shares = settings.shares or dict.fromkeys(settings.samplers, 1.0)
    total = sum(shares.values())
    found = [
        {
            "name": name,
            "class": sampler.kind,
            "share": shares[name] / total,
            "answers": tally.samplers[name],
            "fallback": tally.fallbacks[name],
            "queued": ready.get(name, 0),
        }
        for name, sampler in settings.samplers.items()
    ]
    found += [
        {"name": name, "class": name, "share": 0.0, "answers": n, "fallback": 0, "queued": 0}
        for name, n in tally.samplers.items()
        if name not in settings.samplers
    ]
    return found


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


def _worker(
    connection: Connection, snapshot: Snapshot, clock: float, usable: int
) -> dict[str, Any]:
    found: dict[str, Any] = health(connection, clock)["worker"]
    found["error"] = visible_error(found["error"], [snapshot.frame.name])
    newest = connection.execute(
        select(model.c.version, model.c.n_answers, model.c.seconds)
        .where(model.c.experiment_id == snapshot.frame.id)
        .order_by(model.c.version.desc())
        .limit(1)
    ).first()
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
    found["behind"] = max(0, usable - fitted) if usable >= warmup else 0
    return found


def _accuracy(snapshot: Snapshot, curve: list[Point], answers: int) -> dict[str, Any]:
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


def _quality(connection: Connection, snapshot: Snapshot, tally: Tally) -> dict[str, int]:
    people, blocked = connection.execute(
        select(
            func.count(),
            func.coalesce(func.sum(case((participant.c.state == "blocked", 1), else_=0)), 0),
        ).where(participant.c.experiment_id == snapshot.frame.id)
    ).one()
    return {
        "participants": int(people),
        "blocked": int(blocked),
        "checks": tally.checks,
        "passed_checks": tally.passed,
    }
