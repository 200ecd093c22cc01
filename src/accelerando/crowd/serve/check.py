"""The command ``accelerando crowd check``: read a whole database, and say whether it is sound."""

from __future__ import annotations

import argparse

from sqlalchemy import Text, cast, func, select
from sqlalchemy.exc import DBAPIError

from accelerando.crowd.serve.backup import open_store
from accelerando.crowd.serve.commands import readable_by_others
from accelerando.crowd.store import Store
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.schema import answer, tables
from accelerando.crowd.store.store import RESTORE, StoreError, explained

__all__ = ["check", "run_check"]


def check(store: Store) -> dict[str, int]:
    """Read every row and every reference; return the number of answers of each experiment.

    The server may be running.

    Raises
    ------
    StoreError
        The database is damaged. The message names the command that restores a backup.
    """
    store.check()
    try:
        with store.read() as connection:
            if store.is_sqlite:
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                if broken:
                    what = f"{len(broken)} rows refer to rows that are missing, in {broken[0][0]}"
                    raise StoreError("damaged", f"The database is damaged: {what}. {RESTORE}.")
            else:
                for table in tables.tables.values():  # a count alone reads no large values
                    read = [func.sum(func.length(cast(column, Text))) for column in table.columns]
                    connection.execute(select(*read))
            return {
                name: connection.execute(
                    select(func.count()).where(
                        answer.c.experiment_id == stored.find(connection, name).frame.id,
                        answer.c.winner.is_not(None),
                    )
                ).scalar_one()
                for name in stored.names(connection)
            }
    except DBAPIError as error:
        raise explained(error) from None


def run_check(options: argparse.Namespace) -> int:
    """Check a database and print what is in it."""
    store = open_store(options)
    try:
        found = check(store)
        for note in readable_by_others(store.url):
            print(f"note: {note}")
    finally:
        store.close()
    for name, n_answers in found.items():
        print(f"{name}: {n_answers:,} answers")
    print("The database is sound.")
    return 0
