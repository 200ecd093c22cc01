"""The store itself: schema, migrations, archives, exports, numbers for the dashboard."""

import os
import shutil
import threading

import pytest

from accelerando.crowd.store import Store, experiments
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
