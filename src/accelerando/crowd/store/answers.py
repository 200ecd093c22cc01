"""Answers in the database: each query is answered once."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Subquery, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot
from accelerando.crowd.store.participants import Person
from accelerando.crowd.store.schema import answer, participant, served
from accelerando.crowd.store.serving import AsRow, ServedRow, as_values

__all__ = ["StoredAnswer", "newer", "take_answer"]

# More of them in a session, without many answers, only use up the chosen queries of others.
_MOST_SKIPS = 300

_ONE = select(served).where(
    served.c.experiment_id == bindparam("experiment"), served.c.id == bindparam("query")
)
# Finds and closes an open query in one statement; what is refused afterwards is rolled back.
_CLOSE = (
    update(served)
    .where(
        served.c.experiment_id == bindparam("experiment"),
        served.c.id == bindparam("query"),
        served.c.open,
    )
    .values(open=False)
    .returning(served)
)
_ANSWER = {
    name: dialect.insert(answer).on_conflict_do_nothing().returning(answer.c.seq)
    for name, dialect in (("sqlite", sqlite), ("postgresql", postgresql))
}
# The caller has locked the row, so no other request changes the counters.
_COUNT = (
    update(participant)
    .where(participant.c.id == bindparam("person"))
    .values(
        {
            name: bindparam(f"new_{name}")
            for name in ("last", "answered", "extra", "skipped", "failed", "practised", "outcome")
        }
    )
)


def newer(most: int = 2**62) -> Subquery:
    """Return the first answers after one, with the parameters ``experiment`` and ``after``.

    The limit keeps databases from joining first: they would read all answers to find the new ones.
    """
    return (
        select(answer)
        .where(answer.c.experiment_id == bindparam("experiment"), answer.c.seq > bindparam("after"))
        .order_by(answer.c.seq)
        .limit(most)
        .subquery("newer")
    )


@dataclass(frozen=True)
class StoredAnswer:
    """Result of :func:`take_answer`, with the participant after it."""

    stored: bool
    person: Person
    reason: str | None = None


def take_answer(
    connection: Connection,
    snapshot: Snapshot,
    person: Person,
    query: int,
    winner: int | None,
    response_time: float | None,
    network_latency: float | None,
    clock: float,
) -> StoredAnswer:
    """Store an answer; ``winner=None`` is a skip. Repeated calls store it once.

    Raises
    ------
    ApiError
        The transaction must be rolled back, because the query may have been closed.
        The query was not assigned to this participant, the winner is not one of its feet, skipping
        is not allowed, or the session has ended.
    """
    place = {"experiment": snapshot.frame.id, "query": query}
    row = connection.execute(_CLOSE, place).first()
    is_open = row is not None
    if row is None:
        row = connection.execute(_ONE, place).first()
    if row is None or row.participant_id != person.id:
        raise ApiError("unknown_query", "This query was not asked in this session.", 404)
    if not is_open:
        return StoredAnswer(False, person, "already_answered")
    ended = person.withdrawn is not None or person.outcome in ("withdrawn", "no_consent")
    if person.state == "blocked" or ended:
        raise ApiError("finished", "This session has ended.", 409)
    if winner is None and not snapshot.frame.settings.skip:
        raise ApiError("bad_winner", "Queries of this experiment cannot be skipped.", 422)
    if winner is None and person.skipped >= max(_MOST_SKIPS, 3 * person.answered):
        raise ApiError("skips", "Too many queries of this session were skipped.", 409)
    if winner is not None and winner not in (row.left, row.right):
        raise ApiError(
            "bad_winner", f"The winner must be item {row.left} or item {row.right}.", 422
        )
    stored = connection.execute(
        _ANSWER[connection.dialect.name],
        {
            "experiment_id": snapshot.frame.id,
            "query_id": query,
            "winner": winner,
            "response_time": response_time,
            "network_latency": network_latency,
            "received": clock,
        },
    )
    if stored.first() is None:
        return StoredAnswer(False, person, "already_answered")
    return StoredAnswer(True, _count(connection, snapshot, person, row, winner, clock))


def _count(
    connection: Connection,
    snapshot: Snapshot,
    person: Person,
    row: ServedRow,
    winner: int | None,
    clock: float,
) -> Person:
    practice = row.kind == "practice"
    given = winner is not None and not practice
    counts = given and row.kind == "query"
    failed = given and row.kind == "check" and winner != row.winner
    checks, quota = snapshot.frame.settings.checks, person.quota
    outcome = person.outcome
    if outcome is None and failed and person.failed + 1 == checks.fail_after:
        outcome = "screened_out"
    if outcome is None and counts and quota is not None and person.answered + 1 >= quota:
        outcome = "done"
    after = {
        "last": clock,
        "answered": person.answered + counts,
        "extra": person.extra + (given and not counts),
        "skipped": person.skipped + (winner is None and not practice),
        "failed": person.failed + failed,
        "practised": person.practised + practice,
        "outcome": outcome,
    }
    connection.execute(_COUNT, {"person": person.id, **{f"new_{k}": v for k, v in after.items()}})
    return AsRow(**{**as_values(person), **after})  # type: ignore[return-value]
