"""Writes that share a transaction, and what happens when somebody else holds the lock."""

import asyncio
import contextlib
import sqlite3
import threading

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, OperationalError

from accelerando.crowd.store import Store, experiments
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.web import group_commit
from accelerando.crowd.web.group_commit import GroupCommit


def _note(connection, number):
    where = threading.current_thread().name
    connection.execute(text("INSERT INTO notes VALUES (:n, :w)"), {"n": number, "w": where})
    return number


def _store(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/crowd.sqlite")
    with store.write() as connection:
        connection.execute(text("CREATE TABLE notes (number INTEGER, place TEXT)"))
    return store


def _notes(store):
    with store.read() as connection:
        return connection.execute(text("SELECT number, place FROM notes ORDER BY number")).all()


async def _ten(writer):
    return await asyncio.gather(*(writer.run(_note, number) for number in range(10)))


def test_what_comes_together_is_committed_together_in_the_loop(tmp_path):
    store = _store(tmp_path)
    writer = GroupCommit(store)
    assert asyncio.run(_ten(writer)) == list(range(10))
    assert writer.batches == 1
    assert _notes(store) == [(n, "MainThread") for n in range(10)]
    writer.close()
    store.close()


def test_while_somebody_else_writes_the_loop_goes_on_and_a_thread_waits(tmp_path):
    store, other = _store(tmp_path), Store(f"sqlite:///{tmp_path}/crowd.sqlite")
    writer = GroupCommit(store)

    async def busy():
        with other.write() as connection:
            connection.execute(text("INSERT INTO notes VALUES (-1, 'other')"))
            waiting = asyncio.ensure_future(_ten(writer))
            for _ in range(10):  # the loop is free: this one runs while they wait
                await asyncio.sleep(0.02)
            assert not waiting.done()
        return await waiting

    assert asyncio.run(busy()) == list(range(10))
    assert _notes(store) == [(-1, "other"), *((n, "writer") for n in range(10))]
    assert asyncio.run(_ten(writer)) == list(range(10))  # and in the loop again afterwards
    assert [place for _, place in _notes(store)].count("MainThread") == 10
    writer.close()
    store.close()
    other.close()


@pytest.mark.parametrize("in_loop", [True, False])
def test_nobody_is_told_before_the_commit(tmp_path, monkeypatch, in_loop):
    """A commit that fails, such as on a full disk, has acknowledged nothing."""
    store = _store(tmp_path)
    writer = GroupCommit(store)
    write, commits = store.write, []

    @contextlib.contextmanager
    def failing(**options):
        with write(**options) as connection:
            yield connection
            commits.append(1)
            raise OSError("the disk is full")

    monkeypatch.setattr(store, "write", failing)
    monkeypatch.setattr(store, "is_sqlite", in_loop)

    async def ten():
        return await asyncio.gather(
            *(writer.run(_note, number) for number in range(10)), return_exceptions=True
        )

    found = asyncio.run(ten())
    assert {str(one) for one in found} == {"the disk is full"}
    assert commits
    monkeypatch.undo()
    assert _notes(store) == []
    writer.close()
    store.close()


def test_one_that_fails_takes_nobody_with_it(tmp_path):
    store = _store(tmp_path)
    writer = GroupCommit(store)

    def broken(connection):
        raise ZeroDivisionError

    async def both():
        return await asyncio.gather(
            writer.run(_note, 1), writer.run(broken), writer.run(_note, 2), return_exceptions=True
        )

    one, error, two = asyncio.run(both())
    assert (one, two) == (1, 2)
    assert isinstance(error, ZeroDivisionError)
    assert [number for number, _ in _notes(store)] == [1, 2]
    writer.close()
    store.close()


def _statements(store):
    """All statements of the database from now on."""
    found = []
    event.listen(
        store.engine, "before_cursor_execute", lambda *given: found.append(given[2].split()[0])
    )
    return found


@pytest.mark.parametrize("in_loop", [True, False])
def test_what_is_refused_is_undone_alone(tmp_path, in_loop):
    store, other = _store(tmp_path), Store(f"sqlite:///{tmp_path}/crowd.sqlite")
    store.is_sqlite = in_loop  # otherwise writes go to the thread, as with PostgreSQL
    writer = GroupCommit(store)

    def refused(connection, number):
        _note(connection, number)
        raise ApiError("no", "Not like this.", 409)

    async def many(refusals):
        numbers = range(10)
        return await asyncio.gather(
            *(writer.run(refused if n in refusals else _note, n) for n in numbers),
            return_exceptions=True,
        )

    seen = _statements(store)
    rounds: list[set[int]] = [set(), {3, 7}, {0}, set()]
    for refusals in rounds:
        found = asyncio.run(many(refusals))
        for number, one in enumerate(found):
            assert isinstance(one, ApiError) if number in refusals else one == number
    kept = [number for number, _ in _notes(other)]
    assert kept == sorted(n for gone in rounds for n in range(10) if n not in gone)
    assert seen.count("INSERT") < 60, "a batch runs at most twice, and later ones once"
    asyncio.run(many(set(range(10))))
    with pytest.raises(ApiError):
        asyncio.run(writer.run(refused, 99))
    assert [number for number, _ in _notes(other)] == kept
    writer.close()
    store.is_sqlite = True
    store.close()
    other.close()


def test_later_writes_do_not_see_an_experiment_as_a_refused_one_had_changed_it(lab):
    """A transaction keeps the experiment that it has read; a rollback does not change that."""
    lab = lab("name: eggs\nitems: 8\n")
    number, writer = lab.find().frame.id, GroupCommit(lab.store)

    def pause(connection):
        experiments.set_state(connection, number, "paused")
        assert lab.find_in(connection).state == "paused"
        raise ApiError("no", "Not like this.", 409)

    async def both():
        writer._wary = 1  # as after a refusal: both share a transaction, with savepoints
        return await asyncio.gather(
            writer.run(pause), writer.run(lab.find_in), return_exceptions=True
        )

    refused, seen = asyncio.run(both())
    writer.close()
    assert isinstance(refused, ApiError)
    assert seen.state == "running"


def test_writes_without_refusals_need_no_savepoints(tmp_path):
    store = _store(tmp_path)
    writer = GroupCommit(store)
    seen = _statements(store)
    asyncio.run(_ten(writer))
    assert seen.count("INSERT") == 10
    assert "SAVEPOINT" not in seen
    writer.close()
    store.close()


def test_closing_waits_for_a_write_that_is_running(tmp_path):
    store = _store(tmp_path)
    store.is_sqlite = False  # writes go to the thread, as with PostgreSQL
    writer = GroupCommit(store)
    started, release = threading.Event(), threading.Event()

    def slow(connection):
        started.set()
        assert release.wait(60)
        return _note(connection, 1)

    async def write():
        loop = asyncio.get_running_loop()
        writing = asyncio.ensure_future(writer.run(slow))
        await loop.run_in_executor(None, started.wait)
        closing = loop.run_in_executor(None, writer.close)
        release.set()
        await closing
        assert await writing == 1
        return await writer.run(_note, 2)  # a later write starts a new thread

    assert asyncio.run(write()) == 2
    writer.close()
    store.is_sqlite = True
    assert [number for number, _ in _notes(store)] == [1, 2]
    store.close()


def test_a_savepoint_that_fails_is_an_error_of_sqlalchemy(store):
    """Only those are classified: a full disk would be a 500."""
    with pytest.raises(DBAPIError), store.write() as connection:
        group_commit._execute(connection, "RELEASE SAVEPOINT that_is_not_there")


class _Locked(sqlite3.OperationalError):
    sqlite_errorcode = 5


@pytest.mark.parametrize(("is_sqlite", "tries"), [(True, 1), (False, 3)])
def test_a_lock_that_stays_is_waited_for_a_few_times_and_not_once_per_write(
    tmp_path, monkeypatch, is_sqlite, tries
):
    """Fifty writes that each waited for a lock would take minutes, and later ones wait for them."""
    store = _store(tmp_path)
    writer, waited = GroupCommit(store), []

    @contextlib.contextmanager
    def locked(**_):
        waited.append(1)
        raise OperationalError("BEGIN", {}, _Locked("database is locked"))
        yield

    monkeypatch.setattr(store, "write", locked)
    monkeypatch.setattr(store, "is_sqlite", is_sqlite)

    async def ten():
        loop = asyncio.get_running_loop()
        writes = [group_commit._Write(_note, (n,), loop, loop.create_future()) for n in range(10)]
        writer._n_queued = 10
        writer._run_batch(writes, patient=True)
        return await asyncio.gather(*(one.future for one in writes), return_exceptions=True)

    found = asyncio.run(ten())
    assert [type(error) for error in found] == 10 * [OperationalError]
    assert len(waited) == tries
    assert writer._n_queued == 0
    writer.close()
    store.close()


def test_one_locked_row_fails_its_own_write_only(tmp_path):
    store = _store(tmp_path)
    writer = GroupCommit(store)

    def fail(connection):
        raise OperationalError("SELECT", {}, _Unavailable("lock timeout"))

    async def three():
        return await asyncio.gather(
            writer.run(_note, 1), writer.run(fail), writer.run(_note, 2), return_exceptions=True
        )

    found = asyncio.run(three())
    assert (found[0], type(found[1]), found[2]) == (1, OperationalError, 2)
    writer.close()
    store.close()


class _Unavailable(Exception):
    sqlstate = "53100"  # any trouble of this write
