"""Counters of ids, which continue after a restore: no id is given twice."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, Table, func, select, text

from accelerando.crowd.store.schema import api_token, experiment, experimenter, participant

__all__ = ["COUNTED", "advance", "last_ids"]

COUNTED: tuple[Table, ...] = (experimenter, experiment, api_token, participant)


def last_ids(connection: Connection) -> dict[str, int]:
    """Return the largest id that each table ever had."""
    return {table.name: _last(connection, table) for table in COUNTED}


def advance(connection: Connection, least: Mapping[str, int] | None = None) -> None:
    """Let the next ids be larger than all former ones, those of `least` and those in the tables."""
    for table in COUNTED:
        there = connection.execute(select(func.coalesce(func.max(table.c.id), 0))).scalar_one()
        last = max(there, _last(connection, table), (least or {}).get(table.name, 0))
        if last == 0:
            continue
        values = {"name": table.name, "last": last}
        if connection.dialect.name == "postgresql":
            sequence = func.pg_get_serial_sequence(table.name, "id")
            connection.execute(select(func.setval(sequence, last, True)))
            continue
        changed = connection.execute(
            text("UPDATE sqlite_sequence SET seq = :last WHERE name = :name"), values
        )
        if not changed.rowcount:
            connection.execute(
                text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)"), values
            )


def _last(connection: Connection, table: Table) -> int:
    if connection.dialect.name == "postgresql":
        find = text("SELECT pg_sequence_last_value(pg_get_serial_sequence(:name, 'id')::regclass)")
    else:
        find = text("SELECT seq FROM sqlite_sequence WHERE name = :name")
    return int(connection.execute(find, {"name": table.name}).scalar() or 0)
