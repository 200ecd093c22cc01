"""Attention of participants: response times, attention checks and repeats."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, select

from accelerando.crowd._attention import repeat_agreement
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.published import report
from accelerando.crowd.store.schema import answer, model, participant, served

__all__ = ["People", "qualities", "with_reliability"]

# Thresholds of the flags, from data of inattentive people: answers in under 0.4 s, nine of ten on
# one side, and attention checks or repeats no better than chance.
_FAST = 0.4
_ONE_SIDED = 0.9
_ENOUGH = 10
_PER_READ = 100  # participants whose answers are in memory at once
_PER_LOOK = 25  # participants who are compared with a new embedding at each look
_MOST_KEPT = 50  # experiments

_PEOPLE = (
    select(
        participant.c.id,
        participant.c.name,
        participant.c.state,
        participant.c.outcome,
        participant.c.device,
        participant.c.answered,
        participant.c.skipped,
        participant.c.created,
        participant.c.last,
        participant.c.withdrawn,
    )
    .where(participant.c.experiment_id == bindparam("experiment"))
    .order_by(participant.c.id.desc())
)
_ANSWERS = (
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
        served,
        answer,
        (served.c.experiment_id == answer.c.experiment_id) & (served.c.id == answer.c.query_id),
    )
    .where(
        served.c.participant_id.in_(bindparam("people", expanding=True)),
        answer.c.winner.is_not(None),
        served.c.kind != "practice",
    )
    .order_by(served.c.participant_id, answer.c.seq)
)


def qualities(
    connection: Connection, snapshot: Snapshot, only: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield one entry per participant, newest first; a hundred of them are in memory at once."""
    people = _PEOPLE if only is None else _PEOPLE.where(participant.c.id == only)
    found = connection.execute(people, {"experiment": snapshot.frame.id}).all()
    return _describe(connection, found, _newest(connection, snapshot)[1])


class People:
    """The entries of all participants, of which each look computes only those that changed.

    An entry is computed again when its participant has answered. After a new embedding the others
    follow, some at each look.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, float], dict[int, _Entry]] = {}
        self._lock = threading.Lock()

    def look(self, connection: Connection, snapshot: Snapshot) -> list[dict[str, Any]]:
        """Return one entry per participant, newest first."""
        place = snapshot.frame.id, snapshot.frame.created
        version, positions = _newest(connection, snapshot)
        people = connection.execute(_PEOPLE, {"experiment": snapshot.frame.id}).all()
        with self._lock:
            if len(self._kept) >= _MOST_KEPT and place not in self._kept:
                self._kept.clear()
            before = self._kept.get(place, {})
            kept = {one.id: before[one.id] for one in people if one.id in before}
            due = [one for one in people if one.id not in kept or kept[one.id][0] != tuple(one)]
            late = [one for one in people if one.id in kept and kept[one.id][1] != version]
            late.sort(key=lambda one: kept[one.id][1])
            due += [one for one in late[:_PER_LOOK] if kept[one.id][0] == tuple(one)]
            for one, made in zip(due, _describe(connection, due, positions), strict=True):
                kept[one.id] = tuple(one), version, made
            self._kept[place] = kept
            return [kept[one.id][2] for one in people]


# The participant's row, the version of the embedding, and the entry.
_Entry = tuple[tuple[Any, ...], int, dict[str, Any]]


def with_reliability(
    connection: Connection, snapshot: Snapshot, found: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the participants with what the newest joint fit says about each of them."""
    fitted = report(connection, snapshot.frame.id).get("people", {})
    return [one | {"reliability": fitted.get(str(one["id"]))} for one in found]


def _describe(
    connection: Connection, people: Sequence[Any], positions: Any
) -> Iterator[dict[str, Any]]:
    for start in range(0, len(people), _PER_READ):
        some = people[start : start + _PER_READ]
        here = [one.id for one in some if one.withdrawn is None]
        rows = connection.execute(_ANSWERS, {"people": here})
        given = {
            person: list(answers) for person, answers in groupby(rows, attrgetter("participant_id"))
        }
        for one in some:
            yield _quality(one, given.get(one.id, []), positions)


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


def _newest(connection: Connection, snapshot: Snapshot) -> tuple[int, Any]:
    """Return version and positions of the newest embedding; -1 and None before the first."""
    found = connection.execute(
        select(model.c.version, model.c.positions)
        .where(model.c.experiment_id == snapshot.frame.id, model.c.positions.is_not(None))
        .order_by(model.c.version.desc())
        .limit(1)
    ).first()
    return (-1, None) if found is None else (found.version, np.array(found.positions))


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
