"""Migrations: update the database to the present schema, one version at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, Table, inspect, select, update
from sqlalchemy.schema import CreateColumn

from accelerando.crowd.store.schema import (
    SCHEMA_VERSION,
    answer,
    api_token,
    experimenter,
    media,
    media_copy,
    meta,
    participant,
    role,
    session,
    tables,
    worker,
)
from accelerando.exceptions import StateError

__all__ = ["STEPS", "migrate"]


def _to_2(connection: Connection) -> None:
    """Add withdrawals that wait, proofs of identity, and the worker's beat."""
    _add(connection, {participant: ("withdrawn", "proven", "browser"), worker: ("beat",)})


def _to_3(connection: Connection) -> None:
    """Add roles, tokens and what accounts need; who has an account now may do everything."""
    for table in (role, api_token):
        table.create(connection)
    own = ("admin", "must_change", "totp", "totp_step")
    _add(connection, {experimenter: own, session: ("created", "seen")})
    connection.execute(update(experimenter).values(admin=True))


def _to_4(connection: Connection) -> None:
    """Add the index by which new answers are found without reading the old ones."""
    (index,) = answer.indexes
    index.create(connection)


def _to_5(connection: Connection) -> None:
    """Add smaller copies of pictures, and the files that pictures were made from."""
    _add(connection, {media: ("source",)})
    media_copy.create(connection)


def _add(connection: Connection, added: Mapping[Table, tuple[str, ...]]) -> None:
    for table, names in added.items():
        for name in names:
            column = CreateColumn(table.c[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f'ALTER TABLE "{table.name}" ADD COLUMN {column}')


# Version → function that updates a database from the version before.
STEPS: dict[int, Callable[[Connection], None]] = {2: _to_2, 3: _to_3, 4: _to_4, 5: _to_5}


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
    there = set(inspect(connection).get_table_names())
    if "meta" not in there:
        foreign = sorted(there & set(tables.tables))
        if foreign:
            raise StateError(
                f"The database has tables of another program ({', '.join(foreign)}). Use a "
                "database of its own for the service."
            )
        tables.create_all(connection)
        connection.execute(meta.insert().values(key="schema", value=str(to)))
        return to
    shape = {column["name"] for column in inspect(connection).get_columns("meta")}
    row = None
    if shape == set(meta.columns.keys()):
        row = connection.execute(select(meta.c.value).where(meta.c.key == "schema")).first()
    if row is None or not str(row[0]).isdigit() or not 1 <= len(str(row[0])) < 9:
        raise StateError(
            "The database has a table 'meta' without the version of our schema: another program "
            "made it, or it is damaged. Use another database, or restore a backup."
        )
    found = int(row[0])
    if found > to:
        raise StateError(
            f"The database has schema version {found}; this version of accelerando reads versions "
            f"up to {to}. Install the version that wrote the database, or a newer one."
        )
    for version in range(found + 1, to + 1):
        steps[version](connection)
        connection.execute(update(meta).where(meta.c.key == "schema").values(value=str(version)))
    return found
