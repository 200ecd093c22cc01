"""Migrations of the schema."""

import pytest
from sqlalchemy import text

from accelerando.crowd.store import Store
from accelerando.crowd.store.migrate import migrate
from accelerando.exceptions import StateError


def test_migrations_run_in_order_and_once(store):
    ran = []
    steps = {v: lambda connection, v=v: ran.append(v) for v in (2, 3)}
    with store.write() as connection:
        migrate(connection, steps, to=3)
        migrate(connection, steps, to=3)
    assert ran == [2, 3]


def test_a_step_that_fails_leaves_the_database_as_it_was(store):
    def fail(connection):
        connection.execute(text("CREATE TABLE half (x INTEGER)"))
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError), store.write() as connection:
        migrate(connection, {2: fail}, to=2)
    with store.write() as connection:
        ran = []
        migrate(connection, {2: lambda c: ran.append(2)}, to=2)
    assert ran == [2]


def test_a_database_of_the_future_is_refused(store):
    with store.write() as connection:
        connection.execute(text("UPDATE meta SET value = '99' WHERE key = 'schema'"))
    with pytest.raises(StateError, match="version 99"):
        Store(store.url)
