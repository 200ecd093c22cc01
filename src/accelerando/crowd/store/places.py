"""Places: how many people and answers an experiment still takes.

Who begins reserves all answers of a session, so that nobody is sent away in the middle. A dropout's
places are free again after a while without activity.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, func, select

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.schema import experiment, participant, served

__all__ = ["reserve", "room"]


def reserve(connection: Connection, snapshot: Snapshot, clock: float) -> int | None:
    """Return how many answers a new participant may give; None without an end.

    The last participant of an experiment with `total_answers` gets the answers that are left.

    Raises
    ------
    ApiError
        Code "full": all places are taken.
    """
    settings = snapshot.frame.settings.participants
    if settings.total_participants is None and settings.total_answers is None:
        return settings.answers
    _lock(connection, snapshot)
    takes_part = _takes_part(snapshot, clock)
    ended = participant.c.outcome.in_(["done", "screened_out"])
    quota = func.coalesce(participant.c.quota, 0)
    held = case(
        (and_(takes_part, quota > participant.c.answered), quota), else_=participant.c.answered
    )
    people, answers = connection.execute(
        select(
            func.coalesce(func.sum(case((takes_part | ended, 1), else_=0)), 0),
            func.coalesce(func.sum(held), 0),
        ).where(*_counts(snapshot))
    ).one()
    most = settings.total_participants
    if most is not None and people >= most:
        raise ApiError("full", "The experiment has all the participants it needs.", 403)
    if settings.total_answers is None:
        return settings.answers
    left = settings.total_answers - int(answers)
    if left <= 0:
        raise ApiError("full", "The experiment has all the answers it needs.", 403)
    return None if settings.answers is None else min(settings.answers, left)


def room(connection: Connection, snapshot: Snapshot, clock: float) -> int:
    """Return how many more queries to hand out if sessions have no end but the experiment has one.

    Queries that are open on somebody's screen have a place.
    """
    total = snapshot.frame.settings.participants.total_answers
    if total is None:
        raise ValueError("The experiment has no total_answers.")
    _lock(connection, snapshot)
    answered = connection.execute(
        select(func.coalesce(func.sum(participant.c.answered), 0)).where(*_counts(snapshot))
    ).scalar_one()
    on_screens = connection.execute(
        select(func.count())
        .select_from(served)
        .join(participant, participant.c.id == served.c.participant_id)
        .where(
            *_counts(snapshot),
            _takes_part(snapshot, clock),
            served.c.open,
            served.c.kind == "query",
        )
    ).scalar_one()
    return max(0, total - int(answered) - int(on_screens))


def _lock(connection: Connection, snapshot: Snapshot) -> None:
    """Lock the experiment's row, so that two participants cannot both take the last place."""
    connection.execute(
        select(experiment.c.id).where(experiment.c.id == snapshot.frame.id).with_for_update()
    )


def _counts(snapshot: Snapshot) -> tuple[ColumnElement[Any], ...]:
    """Return the condition of people whose answers the embedding uses."""
    return (
        participant.c.experiment_id == snapshot.frame.id,
        participant.c.withdrawn.is_(None),
        participant.c.state != "blocked",
    )


def _takes_part(snapshot: Snapshot, clock: float) -> ColumnElement[bool]:
    """Return the condition of people who have not finished and are not dropouts."""
    seconds = 60 * snapshot.frame.settings.participants.dropout_minutes
    # A time far in the future was written by a clock that was wrong; it would never expire.
    seen = and_(participant.c.last > clock - seconds, participant.c.last < clock + seconds)
    return and_(participant.c.outcome.is_(None), seen)
