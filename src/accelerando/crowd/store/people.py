"""Attention of participants: response times, attention checks and repeats."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from sqlalchemy import Connection, select

from accelerando.crowd._attention import repeat_agreement
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.schema import answer, model, participant, served

__all__ = ["qualities"]

# Thresholds of the flags, from data of inattentive people: answers in under 0.4 s, nine of ten on
# one side, and attention checks or repeats no better than chance.
_FAST = 0.4
_ONE_SIDED = 0.9
_ENOUGH = 10


def qualities(
    connection: Connection, snapshot: Snapshot, only: int | None = None
) -> list[dict[str, Any]]:
    """Return one entry per participant, newest first."""
    people = select(participant).where(participant.c.experiment_id == snapshot.frame.id)
    rows = (
        select(
            served.c.participant_id,
            served.c.kind,
            served.c.head,
            served.c.left,
            served.c.right,
            served.c.winner.label("known"),
            answer.c.winner,
            answer.c.response_time,
        )
        .join_from(
            answer,
            served,
            (served.c.experiment_id == answer.c.experiment_id) & (served.c.id == answer.c.query_id),
        )
        .join(participant, participant.c.id == served.c.participant_id)
        .where(
            answer.c.experiment_id == snapshot.frame.id,
            participant.c.withdrawn.is_(None),
            answer.c.winner.is_not(None),
            served.c.kind != "practice",
        )
        .order_by(answer.c.seq)
    )
    if only is not None:
        people = people.where(participant.c.id == only)
        rows = rows.where(served.c.participant_id == only)
    given: dict[int, list[Any]] = defaultdict(list)
    for row in connection.execute(rows):
        given[row.participant_id].append(row)
    positions = _positions(connection, snapshot)
    return [
        _quality(person, given.get(person.id, []), positions)
        for person in connection.execute(people.order_by(participant.c.id.desc()))
    ]


def _quality(person: Any, answers: list[Any], positions: Any) -> dict[str, Any]:
    times = [row.response_time for row in answers if row.response_time is not None]
    checks = [row.winner == row.known for row in answers if row.kind == "check"]
    lefts = [row.winner == row.left for row in answers]
    queries = [(row.head, row.left, row.right) for row in answers if row.kind != "check"]
    winners = [row.winner for row in answers if row.kind != "check"]
    repeats = sum(row.kind == "repeat" for row in answers)
    agreed = repeat_agreement(queries, winners) if repeats else None
    median = float(np.median(times)) if times else None
    left_share = float(np.mean(lefts)) if lefts else None
    flags = []
    if median is not None and len(times) >= _ENOUGH and median < _FAST:
        flags.append("fast")
    one_sided = left_share is not None and not 1 - _ONE_SIDED <= left_share <= _ONE_SIDED
    if one_sided and len(lefts) >= _ENOUGH:
        flags.append("one_sided")
    if len(checks) >= 2 and np.mean(checks) <= 0.5:
        flags.append("failed_checks")
    if agreed is not None and repeats >= 3 and agreed <= 0.5:
        flags.append("inconsistent")
    return {
        "id": person.id,
        "participant": person.name,
        "state": person.state if person.state == "blocked" else person.outcome or "active",
        "device": person.device,
        "answered": person.answered,
        "skipped": person.skipped,
        "started": person.created,
        "last": person.last,
        "median_response_time": median,
        "left_share": left_share,
        "checks": {"passed": int(sum(checks)), "asked": len(checks)},
        "repeats": {
            "agreed": 0 if agreed is None else round(agreed * repeats),
            "asked": repeats,
        },
        "agreement": _agreement(answers, positions),
        "flags": flags,
    }


def _positions(connection: Connection, snapshot: Snapshot) -> Any:
    found = connection.execute(
        select(model.c.positions)
        .where(model.c.experiment_id == snapshot.frame.id, model.c.positions.is_not(None))
        .order_by(model.c.version.desc())
        .limit(1)
    ).scalar()
    return None if found is None else np.array(found)


def _agreement(answers: list[Any], positions: Any) -> float | None:
    """Return the share of answers that the present embedding predicts."""
    if positions is None or not answers:
        return None
    head, left, right, winner = (
        np.array([getattr(row, name) for row in answers])
        for name in ("head", "left", "right", "winner")
    )
    loser = np.where(winner == left, right, left)
    near = np.square(positions[head] - positions[winner]).sum(axis=1)
    far = np.square(positions[head] - positions[loser]).sum(axis=1)
    return float(np.mean(near < far))
