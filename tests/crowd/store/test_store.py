"""The store itself: schema, migrations, archives, exports, numbers for the dashboard."""

import contextlib
import os
import shutil
import threading

import pytest
from sqlalchemy.exc import DBAPIError

from accelerando.crowd.store import Store, experiments
from accelerando.crowd.store import store as module
from accelerando.crowd.store.errors import NoConnectionError, classify
from accelerando.crowd.store.store import settle


def test_opening_twice_changes_nothing(store):
    Store(store.url).close()
    with store.read() as connection:
        assert experiments.names(connection) == []


def test_processes_that_start_at_once_agree_on_the_secret(store):
    found = []

    def another():
        other = Store(store.url)
        with other.write() as connection:
            found.append(other.secret(connection))
        other.close()

    thread = threading.Thread(target=another)
    with store.write() as connection:
        found.append(store.secret(connection))  # not committed yet: the other cannot see it
        thread.start()
        thread.join(0.2)
    thread.join()
    assert found == 2 * found[:1]


def test_every_commit_is_on_disk_before_it_returns(store):
    """On every connection, also of threads and after the pool was emptied."""
    found = []

    def look():
        for opened in (store.read, store.write):
            with opened() as connection:
                if store.is_sqlite:
                    asked = ("journal_mode", "synchronous", "foreign_keys")
                    rows = [connection.exec_driver_sql(f"PRAGMA {name}") for name in asked]
                    found.append(tuple(row.scalar() for row in rows))
                else:
                    row = connection.exec_driver_sql("SHOW synchronous_commit")
                    found.append((row.scalar(),))

    look()
    store.engine.dispose()
    thread = threading.Thread(target=look)
    with store.read():
        thread.start()
        thread.join()
    assert found == 4 * [("wal", 2, 1) if store.is_sqlite else ("on",)]


@pytest.mark.parametrize("url", ["mysql://x/y", "crowd.sqlite", "sqlite:memory"])
def test_other_databases_are_refused_without_showing_passwords(url):
    with pytest.raises(ValueError, match="sqlite:///FILE or postgresql"):
        Store(url)


def test_the_file_of_a_new_database_is_of_its_owner_only(tmp_path):
    """It holds the key that signs sessions: everybody on the computer could read it."""
    before = os.umask(0o022)
    try:
        new = Store(f"sqlite:///{tmp_path}/crowd.sqlite")
        with new.write() as connection:
            new.secret(connection)
            there = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        new.close()
        (tmp_path / "old.sqlite").touch()  # the rights of a file that is there are its owner's
        Store(f"sqlite:///{tmp_path}/old.sqlite").close()
    finally:
        os.umask(before)
    assert set(there.values()) == {0o600}
    assert len(there) == 3
    assert (tmp_path / "old.sqlite").stat().st_mode & 0o777 == 0o644


def test_what_processes_left_in_the_log_of_sqlite_goes_into_the_file(tmp_path):
    store = Store(f"sqlite:///{tmp_path / 'crowd.sqlite'}")
    with store.read() as connection:
        connection.exec_driver_sql("SELECT * FROM meta")
    with store.write() as connection:
        secret = store.secret(connection)
    left = tmp_path / "left"
    left.mkdir()
    for file in tmp_path.glob("crowd.sqlite*"):  # as the files of killed processes are
        shutil.copy(file, left)
    store.close()
    assert (left / "crowd.sqlite-wal").stat().st_size > 0
    settle(f"sqlite:///{left / 'crowd.sqlite'}")
    assert [file.name for file in left.iterdir()] == ["crowd.sqlite"]
    again = Store(f"sqlite:///{left / 'crowd.sqlite'}")
    with again.read() as connection:
        assert again.secret(connection) == secret
    again.close()


def test_a_lock_of_another_program_is_not_waited_for_without_end(store, monkeypatch):
    """PostgreSQL has no limit by default: a table that somebody locked stopped the service."""
    if store.is_sqlite:
        pytest.skip("SQLite has a limit of its own: tests/crowd/web/test_group_commit.py")
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)
    other = Store(store.url)
    with store.write() as connection:
        connection.exec_driver_sql("LOCK TABLE participant IN EXCLUSIVE MODE")
        with pytest.raises(DBAPIError) as raised, other.write() as mine:
            mine.exec_driver_sql("LOCK TABLE participant IN EXCLUSIVE MODE")
    assert classify(raised.value) == "locked"
    with other.write(migrating=True) as mine:  # a migration elsewhere may take long
        assert mine.exec_driver_sql("SHOW lock_timeout").scalar() == "0"
    with other.write() as mine:
        assert mine.exec_driver_sql("SHOW lock_timeout").scalar() == "50ms"
        assert mine.exec_driver_sql("SHOW tcp_keepalives_idle").scalar() == "30"
    other.close()


def test_a_pool_without_free_connections_is_trouble_and_no_mistake_of_ours():
    assert classify(NoConnectionError("QueuePool limit reached")) == "unreachable"


@pytest.mark.parametrize(("rested", "fails"), [(0.0, False), (1e9, True)])
def test_a_connection_that_rested_is_tried_before_it_is_used(store, monkeypatch, rested, fails):
    """Connections in constant use are not asked each time; after one failure all are new."""
    if store.is_sqlite:
        pytest.skip("SQLite has no connections that somebody else closes")
    monkeypatch.setattr(module, "_RESTED_SECONDS", rested)
    with store.read() as connection:
        number = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
    other = Store(store.url)
    with other.write() as connection:
        connection.exec_driver_sql(f"SELECT pg_terminate_backend({number}, 10000)")
    other.close()
    expected = pytest.raises(DBAPIError) if fails else contextlib.nullcontext()
    with expected as raised, store.read() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    assert not fails or classify(raised.value) == "unreachable"
    with store.read() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
