"""Migrations: update the database to the present schema, one version at a time."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping

from sqlalchemy import Connection, Table, delete, func, inspect, select, update
from sqlalchemy.schema import CreateColumn

from accelerando.crowd.store.schema import (
    SCHEMA_VERSION,
    answer,
    api_token,
    audit,
    experiment,
    experimenter,
    media,
    media_copy,
    meta,
    participant,
    role,
    served,
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


def _to_6(connection: Connection) -> None:
    """Never reuse ids, reserve places, and keep nothing of people who refused consent."""
    _add(
        connection,
        {experiment: ("declined",), participant: ("secret", "extra", "quota", "code_used")},
    )
    for table in (experimenter, experiment, api_token, participant):
        _number_for_good(connection, table)
    _separate_reused(connection)
    _forget_declined(connection)
    # Checks and repeats counted as answers before.
    given = (
        select(func.count())
        .join_from(
            answer,
            served,
            (served.c.experiment_id == answer.c.experiment_id) & (served.c.id == answer.c.query_id),
        )
        .where(served.c.participant_id == participant.c.id, answer.c.winner.is_not(None))
    )
    connection.execute(
        update(participant).values(
            answered=given.where(served.c.kind == "query").scalar_subquery(),
            extra=given.where(served.c.kind.in_(["check", "repeat"])).scalar_subquery(),
        )
    )
    rows = connection.execute(select(experiment.c.id, experiment.c.settings)).all()
    for number, settings in rows:
        connection.execute(
            update(participant)
            .where(participant.c.experiment_id == number)
            .values(quota=settings.get("participants", {}).get("answers", 50))
        )


def _number_for_good(connection: Connection, table: Table) -> None:
    """Rebuild a table of SQLite, so that it does not give the id of a deleted row to a new one."""
    if connection.dialect.name != "sqlite":
        return  # PostgreSQL's sequences do not go back
    if connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one():
        # Dropping the old table would delete the rows of all tables that refer to it.
        raise StateError("Migrate with PRAGMA foreign_keys = OFF, as Store does.")
    name, old = table.name, f"{table.name}_before"
    columns = [column["name"] for column in inspect(connection).get_columns(name)]
    shared = ", ".join(f'"{column}"' for column in columns if column in table.c)
    # The legacy form of RENAME leaves the references of other tables as they are.
    connection.exec_driver_sql("PRAGMA legacy_alter_table = ON")
    connection.exec_driver_sql(f'ALTER TABLE "{name}" RENAME TO "{old}"')
    connection.exec_driver_sql("PRAGMA legacy_alter_table = OFF")
    for index in inspect(connection).get_indexes(old):
        connection.exec_driver_sql(f'DROP INDEX "{index["name"]}"')
    table.create(connection)
    copy = f'INSERT INTO "{name}" ({shared}) SELECT {shared} FROM "{old}"'  # noqa: S608 (our names)
    connection.exec_driver_sql(copy)
    connection.exec_driver_sql(f'DROP TABLE "{old}"')


def _separate_reused(connection: Connection) -> None:
    """Give people with the id of a deleted person a secret, which ends the other one's access.

    Other sessions of a former version continue with the token that they have.
    """
    subjects = connection.execute(
        select(audit.c.subject).where(audit.c.action == "delete participant")
    ).scalars()
    deleted = {int(found[1]) for s in subjects if (found := re.search(r" participant (\d+)$", s))}
    for number in connection.execute(select(participant.c.id)).scalars().all():
        if number in deleted:
            connection.execute(
                update(participant)
                .where(participant.c.id == number)
                .values(secret=secrets.token_hex(16))
            )


def _forget_declined(connection: Connection) -> None:
    """Delete people who refused consent, and count them."""
    refused = (participant.c.outcome == "no_consent") & (participant.c.answered == 0)
    counts = connection.execute(
        select(participant.c.experiment_id, func.count())
        .where(refused)
        .group_by(participant.c.experiment_id)
    ).all()
    for number, count in counts:
        connection.execute(
            update(experiment).where(experiment.c.id == number).values(declined=count)
        )
    theirs = select(participant.c.id).where(refused)
    connection.execute(delete(served).where(served.c.participant_id.in_(theirs)))
    connection.execute(delete(participant).where(refused))


def _add(connection: Connection, added: Mapping[Table, tuple[str, ...]]) -> None:
    for table, names in added.items():
        there = {column["name"] for column in inspect(connection).get_columns(table.name)}
        for name in names:
            if name in there:  # an earlier step created the table as it is now
                continue
            column = CreateColumn(table.c[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f'ALTER TABLE "{table.name}" ADD COLUMN {column}')


# Version → function that updates a database from the version before.
STEPS: dict[int, Callable[[Connection], None]] = {2: _to_2, 3: _to_3, 4: _to_4, 5: _to_5, 6: _to_6}


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
                "separate database for the service."
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
