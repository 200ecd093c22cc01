"""Migrations: update the database to the present schema, one version at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, inspect, select, update

from accelerando.crowd.store.schema import SCHEMA_VERSION, meta, tables
from accelerando.exceptions import StateError

__all__ = ["STEPS", "migrate"]

# Version → function that updates a database from the version before.
STEPS: dict[int, Callable[[Connection], None]] = {}


def migrate(
    connection: Connection,
    steps: Mapping[int, Callable[[Connection], None]] = STEPS,
    to: int = SCHEMA_VERSION,
) -> int:
    """Create or update the tables in the caller's transaction; return the version found.

    Raises
    ------
    StateError
        A newer version of accelerando wrote the database.
    """
    if not inspect(connection).has_table("meta"):
        tables.create_all(connection)
        connection.execute(meta.insert().values(key="schema", value=str(to)))
        return to
    row = connection.execute(select(meta.c.value).where(meta.c.key == "schema")).first()
    found = int(row[0]) if row is not None else 0
    if found > to:
        raise StateError(
            f"The database has schema version {found}; this version of accelerando reads versions "
            f"up to {to}. Install the version that wrote the database, or a newer one."
        )
    for version in range(found + 1, to + 1):
        steps[version](connection)
        connection.execute(update(meta).where(meta.c.key == "schema").values(value=str(version)))
    return found
