"""Connections that are lost before or after a statement, or a commit."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from accelerando.crowd.store import Store
from accelerando.testing import ConnectionFault, every_fault


@pytest.fixture
def store(tmp_path):
    made = Store(f"sqlite:///{tmp_path}/it.sqlite")
    with made.write() as connection:
        connection.execute(text("CREATE TABLE notes (number INTEGER)"))
    yield made
    made.close()


def note(store):
    with store.write() as connection:
        connection.execute(text("INSERT INTO notes VALUES (1)"))
        connection.execute(text("INSERT INTO notes VALUES (2)"))


def notes(store):
    with store.read() as connection:
        return connection.execute(text("SELECT count(*) FROM notes")).scalar()


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_statement_and_the_commit_are_reached(store, when):
    reached, stored = [], []
    for fault in every_fault(lambda n: ConnectionFault(store.engine, n, when)):
        before = notes(store)
        try:
            with fault:
                note(store)
        except DBAPIError as error:
            assert "connection lost" in str(error)  # noqa: PT017
        reached.append(fault.statement.split()[0] if fault.happened else "")
        stored.append(notes(store) - before)
    assert reached == ["BEGIN", "INSERT", "INSERT", "COMMIT", ""]
    assert stored == [0, 0, 0, 2 if when == "after" else 0, 2]


def test_everything_is_put_back(store):
    commit = store.engine.dialect.do_commit
    with ConnectionFault(store.engine, 1000):
        note(store)
    assert store.engine.dialect.do_commit == commit
    note(store)
    assert notes(store) == 4


def test_when_is_checked(store):
    with pytest.raises(ValueError, match=r"'before' or 'after'. Got 'never' instead"):
        ConnectionFault(store.engine, 1, "never")
