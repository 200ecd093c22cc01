"""Exports: answers, positions and participants as CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import IO, Any

from sqlalchemy import Connection, Row, Select, select

from accelerando._extras import MissingExtraError, require
from accelerando.crowd._read import why_left_out
from accelerando.crowd.experiment import Item
from accelerando.crowd.store.answers import newer
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.experiments import Snapshot, find, items_of
from accelerando.crowd.store.published import report
from accelerando.crowd.store.schema import participant, served

__all__ = ["CODEBOOK", "answers_csv", "answers_parquet", "embedding_csv", "salmon_csv"]

COLUMNS: dict[str, str] = {
    "query": "Number of the query; unique within the experiment.",
    "participant": "Name of the participant, or a pseudonym.",
    "number": "Position of this query in the participant's session, starting at 1.",
    "head": "Number of the item on top, starting at 0.",
    "left": "Number of the item shown on the left.",
    "right": "Number of the item shown on the right.",
    "winner": "Number of the item that was chosen; empty in skips.csv.",
    "loser": "Number of the other item.",
    "side": "left or right: position of the winner.",
    "kind": "query, check (attention check) or repeat (an earlier query with swapped sides).",
    "passed": "For checks: true if the answer is the known one.",
    "sampler": "Name of the sampler that chose the query.",
    "score": "Information gain in nats; empty if no score chose the query.",
    "at_random": "true if the query was drawn at random: a fair test of an embedding.",
    "fallback": "true if the query was drawn at random because no chosen query was ready.",
    "model_version": "Version of the embedding that chose the queue.",
    "response_time": "Seconds from showing the query to the click, measured in the browser.",
    "network_latency": "Seconds the browser waited for the reply that brought this query.",
    "served": "Time when the query was assigned, UTC.",
    "received": "Time when the answer was stored, UTC.",
    "device": "phone, tablet or computer, as reported by the browser.",
    "blocked": "true if the participant is blocked; the embedding ignores such answers.",
    "left_out": "Why the embedding does not use the answer; empty if it does.",
    "head_name": "Text or file name of the item on top.",
    "winner_name": "Text or file name of the chosen item.",
    "loser_name": "Text or file name of the other item.",
}
CODEBOOK = "\n".join(
    ["# Columns of answers.csv and answers.parquet", ""]
    + [f"- `{name}`: {meaning}" for name, meaning in COLUMNS.items()]
    + ["", "One row per answer, in the order in which they were stored, without practice."]
)
_CHUNK = 2000
_BATCH = 10_000
# A cell that begins like this, perhaps after blanks, is a formula in some spreadsheet. The last
# four are the full-width forms, which spreadsheets in East Asia take for the plain ones.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_CONTROL = ("\t", "\r", "\n")
_BLANK = " \t\r\n\v\f\u00a0\u3000\ufeff\u200b"


def rows_query(most: int) -> Select[Any]:
    """Return the first `most` answers after one, with all that their rows need."""
    new = newer(most).c
    return (
        select(
            new.seq,
            served,
            new.winner.label("chosen"),
            new.response_time,
            new.network_latency,
            new.received,
            participant.c.name,
            participant.c.device,
            participant.c.state,
            participant.c.withdrawn,
        )
        .join(served, (served.c.experiment_id == new.experiment_id) & (served.c.id == new.query_id))
        .join(participant, participant.c.id == served.c.participant_id)
        .order_by(new.seq)
    )


_ROWS = rows_query(_CHUNK)
# Opens a transaction, or returns an open one.
Open = Callable[[], AbstractContextManager[Connection]]


def rows(open_: Open, snapshot: Snapshot, *, skips: bool = False) -> Iterator[dict[str, Any]]:
    """Yield answers, or skips, with all columns.

    Parameters
    ----------
    open_ : callable
        Called for every 2,000 answers; returns a context manager of a connection. With short
        transactions a slow reader holds up nobody.
    snapshot : Snapshot
        The experiment.
    skips : bool
        Whether to yield skips.

    Raises
    ------
    ApiError
        Answers were deleted or withdrawn meanwhile, so that the rows do not belong together.
    """
    with open_() as connection:
        items = items_of(connection, snapshot.frame.id)
    fair = {
        name for name, one in snapshot.frame.settings.samplers.items() if one.kind != "Validation"
    }
    for row in _read(open_, snapshot):
        if row.withdrawn is not None or row.kind == "practice" or (row.chosen is None) != skips:
            continue
        loser = None if skips else row.right if row.chosen == row.left else row.left
        yield {
            "query": row.id,
            "participant": row.name,
            "number": row.number,
            "head": row.head,
            "left": row.left,
            "right": row.right,
            "winner": row.chosen,
            "loser": loser,
            "side": None if skips else "left" if row.chosen == row.left else "right",
            "kind": row.kind,
            "passed": row.chosen == row.winner if row.kind == "check" and not skips else None,
            "sampler": row.sampler,
            "score": row.score,
            "at_random": row.kind == "query" and row.score is None and row.sampler in fair,
            "fallback": bool(row.fallback),
            "model_version": row.version,
            "response_time": row.response_time,
            "network_latency": row.network_latency,
            "served": _utc(row.at),
            "received": _utc(row.received),
            "device": row.device,
            "blocked": row.state == "blocked",
            "left_out": why_left_out(row.kind, blocked=row.state == "blocked"),
            "head_name": items[row.head].text,
            "winner_name": None if skips else items[row.chosen].text,
            "loser_name": None if loser is None else items[loser].text,
        }


def _read(open_: Open, snapshot: Snapshot) -> Iterator[Row[Any]]:
    after, frame = 0, snapshot.frame
    while True:
        with open_() as connection:
            now = find(connection, frame.name)
            if (now.frame.id, now.frame.created, now.revision) != (
                *(frame.id, frame.created),
                snapshot.revision,
            ):
                raise ApiError("changed", "Answers were deleted meanwhile; try again.", 409)
            place = {"experiment": frame.id, "after": after}
            found: Sequence[Row[Any]] = connection.execute(_ROWS, place).all()
        yield from found
        if len(found) < _CHUNK:
            return
        after = found[-1].seq


def answers_csv(open_: Open, snapshot: Snapshot, *, skips: bool = False) -> Iterator[str]:
    """Yield a CSV file with the columns of `COLUMNS`, in chunks; see :func:`rows`."""
    return _csv(list(COLUMNS), rows(open_, snapshot, skips=skips))


def answers_parquet(connection: Connection, snapshot: Snapshot, stream: IO[bytes]) -> None:
    """Write a Parquet file with the columns of `COLUMNS`."""
    try:
        require("parquet", "A Parquet file")
    except MissingExtraError as error:
        raise ApiError("no_parquet", f"{error}. The CSV file has the same answers.", 503) from None
    import pyarrow
    import pyarrow.parquet

    kinds: dict[str, Any] = dict.fromkeys(COLUMNS, pyarrow.string())
    for name in ("query", "number", "head", "left", "right", "winner", "loser", "model_version"):
        kinds[name] = pyarrow.int64()
    for name in ("score", "response_time", "network_latency"):
        kinds[name] = pyarrow.float64()
    for name in ("passed", "at_random", "fallback", "blocked"):
        kinds[name] = pyarrow.bool_()
    schema = pyarrow.schema(list(kinds.items()))
    with pyarrow.parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        batch: list[dict[str, Any]] = []
        for row in rows(lambda: nullcontext(connection), snapshot):
            batch.append(row)
            if len(batch) == _BATCH:
                writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
                batch = []
        writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))


_PLACES = ("left", "right", "head", "winner", "loser")
SALMON_COLUMNS = [
    *("head", "left", "right", "winner", "sampler", "score", "puid", "response_time"),
    *("network_latency", "time_received", "loser"),
    *(f"{place}_html" for place in _PLACES),
    *(f"{place}_filename" for place in _PLACES),
    *("time_received_since_start", "datetime_received", "start_time", "puid_num_responses"),
    "num_responses",
]


def salmon_csv(connection: Connection, snapshot: Snapshot) -> Iterator[str]:
    """Yield a CSV file with the columns of Salmon's responses, in chunks.

    Salmon has no column for attention checks, repeats or blocked people, so the file has only the
    answers that the embedding uses.
    """
    items = items_of(connection, snapshot.frame.id)
    people: dict[str, int] = {}

    def here() -> AbstractContextManager[Connection]:
        return nullcontext(connection)

    for row in _used(here, snapshot):
        people[row["participant"]] = people.get(row["participant"], 0) + 1
    total = sum(people.values())

    def lines() -> Iterator[dict[str, Any]]:
        for row in _used(here, snapshot):
            received = datetime.fromisoformat(row["received"])
            made = {
                name: row[name] for name in ("head", "left", "right", "winner", "loser", "sampler")
            }
            made |= {
                "score": -9999 if row["score"] is None else row["score"],
                "puid": row["participant"],
                "response_time": _or(row["response_time"], -1),
                "network_latency": _or(row["network_latency"], -1),
                "time_received": received.timestamp(),
                "time_received_since_start": received.timestamp() - snapshot.frame.created,
                "datetime_received": received.replace(tzinfo=None).isoformat(sep=" "),
                "start_time": snapshot.frame.created,
                "puid_num_responses": people[row["participant"]],
                "num_responses": total,
            }
            for place in _PLACES:
                item = items[row[place]]
                made[f"{place}_html"] = _html(item)
                made[f"{place}_filename"] = item.text
            yield made

    return _csv(SALMON_COLUMNS, lines())


def _used(open_: Open, snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    return (row for row in rows(open_, snapshot) if row["left_out"] is None)


def embedding_csv(
    connection: Connection, snapshot: Snapshot, positions: list[list[float]]
) -> Iterator[str]:
    """Yield a CSV file with one row per item, in chunks.

    An item that nobody was asked about has no position; its cells are empty.
    """
    items = items_of(connection, snapshot.frame.id)
    axes = [f"x{k + 1}" for k in range(len(positions[0]))]
    unsure = report(connection, snapshot.frame.id).get("uncertainty")

    def lines() -> Iterator[dict[str, Any]]:
        for k, (item, place) in enumerate(zip(items, positions, strict=True)):
            row: dict[str, Any] = {"item": k, "name": item.text, "kind": item.kind}
            row["asked"] = "" if unsure is None else unsure[k] is not None
            row["uncertainty"] = None if unsure is None else unsure[k]
            if unsure is None or unsure[k] is not None:
                row |= dict(zip(axes, place, strict=True))
            yield row

    return _csv(["item", "name", "kind", *axes, "uncertainty", "asked"], lines())


def participants_csv(
    connection: Connection, snapshot: Snapshot, qualities: Iterable[dict[str, Any]]
) -> Iterator[str]:
    """Yield a CSV file with one row per participant, in chunks.

    Parameters of the participant's link become columns ``parameter_NAME``.
    """
    stored = {
        row.id: row
        for row in connection.execute(
            select(
                participant.c.id,
                participant.c.parameters,
                participant.c.outcome,
                participant.c.consent_version,
                participant.c.consented,
            ).where(participant.c.experiment_id == snapshot.frame.id)
        )
    }
    settings = snapshot.frame.settings.participants
    known = [*settings.id_parameters, *settings.keep_parameters]
    came = [name for name in known if any(name in row.parameters for row in stored.values())]
    columns = [
        *("id", "participant", "state", "device", "answered", "skipped", "started", "last"),
        *("median_response_time", "left_share", "checks_passed", "checks_asked"),
        *("repeats_agreed", "repeats_asked", "agreement", "flags"),
        *("outcome", "consent_version", "consented"),
        *(f"parameter_{name}" for name in came),
    ]

    def lines() -> Iterator[dict[str, Any]]:
        for one in qualities:
            made = {name: one[name] for name in columns if name in one}
            for group, names in (("checks", ("passed", "asked")), ("repeats", ("agreed", "asked"))):
                made |= {f"{group}_{name}": one[group][name] for name in names}
            made |= {"started": _utc(one["started"]), "last": _utc(one["last"])}
            made["flags"] = " ".join(one["flags"])
            row = stored[one["id"]]
            made |= {"outcome": row.outcome, "consent_version": row.consent_version}
            made["consented"] = None if row.consented is None else _utc(row.consented)
            made |= {f"parameter_{name}": row.parameters.get(name) for name in came}
            yield made

    return _csv(columns, lines())


def _csv(columns: list[str], lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns)
    writer.writeheader()
    for number, line in enumerate(lines, start=1):
        writer.writerow({name: safe_cell(value) for name, value in line.items()})
        if number % _CHUNK == 0:
            yield stream.getvalue()
            stream.seek(0)
            stream.truncate()
    yield stream.getvalue()


def safe_cell(value: Any) -> Any:
    """Return a cell of a CSV file that no spreadsheet takes for a formula."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and (
        value[:1] in _CONTROL or value.strip(_BLANK)[:1] in _FORMULA or value[:1] in _FORMULA
    ):
        return "'" + value  # a spreadsheet would evaluate it as a formula
    return value


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _html(item: Item) -> str:
    if item.kind == "html":
        return item.html
    return f"<{item.kind} {item.text}>" if item.media else item.text


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
