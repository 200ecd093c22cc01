"""Bring a database to the present schema, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, inspect, select, update

from accelerando.crowd.store.schema import SCHEMA_VERSION, meta, tables
from accelerando.exceptions import StateError

__all__ = ["STEPS", "migrate"]

# Version → what turns a database of the version before it into this one.
STEPS: dict[int, Callable[[Connection], None]] = {}


def migrate(
    connection: Connection,
    steps: Mapping[int, Callable[[Connection], None]] = STEPS,
    to: int = SCHEMA_VERSION,
) -> int:
    """Create the tables or move them up, within the caller's transaction; returns the version met.

    Raises
    ------
    StateError
        The database was written by a newer version, which this one cannot read.
    """
    if not inspect(connection).has_table("meta"):
        tables.create_all(connection)
        connection.execute(meta.insert().values(key="schema", value=str(to)))
        return to
    row = connection.execute(select(meta.c.value).where(meta.c.key == "schema")).first()
    found = int(row[0]) if row is not None else 0
    if found > to:
        raise StateError(
            f"the database has schema version {found}, this accelerando reads up to {to}; "
            "install the version that wrote it, or a newer one."
        )
    for version in range(found + 1, to + 1):
        steps[version](connection)
        connection.execute(update(meta).where(meta.c.key == "schema").values(value=str(version)))
    return found
