"""The service under a fault at every statement: an acknowledged answer is stored exactly once."""

from __future__ import annotations

import sqlite3
import zipfile
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from accelerando.crowd.serve.backup import backup, restore
from accelerando.crowd.store import Store, experiments
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import SCHEMA_VERSION, experiment, meta, participant
from accelerando.crowd.store.schema import answer as answers
from accelerando.exceptions import StateError
from accelerando.testing import ConnectionFault, DiskFault, PowerCut, every_fault
from tests.crowd.conftest import *  # noqa: F403  fixtures: url, store, lab, answered
from tests.crowd.web.conftest import *  # noqa: F403  fixtures: site, visitor
from tests.crowd.web.conftest import answer, begin

WHEN = pytest.mark.parametrize("when", ["before", "after"])
FAILURES = (DBAPIError, ApiError, StateError)


def rows(store):
    with store.read() as connection:
        return connection.execute(
            select(answers.c.query_id, answers.c.winner).order_by(answers.c.seq)
        ).all()


@WHEN
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
def test_an_acknowledged_answer_is_stored_once_and_any_other_at_most_once(site, when, lasting):
    client, fates = site.visitor(raise_server_exceptions=False), set()
    for number, fault in enumerate(
        every_fault(lambda n: ConnectionFault(site.store.engine, n, when, lasting=lasting))
    ):
        session = begin(site.visitor(), participant=f"p{number}")
        client.headers["authorization"] = f"Bearer {session['token']}"
        query, before = session["queries"][0], len(rows(site.store))
        with fault:
            reply = answer(client, query)
        stored = len(rows(site.store)) - before
        fates.add((reply.status_code, stored))
        assert "Traceback" not in reply.text
        again = answer(client, query)  # as the page does that has heard nothing
        assert again.status_code == 200
        assert again.json()["stored"] == (stored == 0)
        assert len(rows(site.store)) - before == 1
    if not lasting:
        assert fates == {(200, 1)}, "the service tries again"
    elif when == "before":
        assert fates == {(503, 0), (200, 1)}
    else:
        assert fates == {(503, 0), (503, 1), (200, 1)}, "lost after the commit: stored once"


@WHEN
def test_a_session_begins_once_or_not_at_all(site, when):
    visitor = site.visitor(raise_server_exceptions=False)
    path = "/api/v1/experiments/eggs/participants"
    for number, fault in enumerate(
        every_fault(lambda n: ConnectionFault(site.store.engine, n, when))
    ):
        body = {"parameters": {"participant": f"q{number}"}}
        with fault:
            reply = visitor.post(path, json=body)
        assert reply.status_code == 200 or reply.status_code >= 500
        assert "Traceback" not in reply.text
    with site.store.read() as connection:
        people = connection.execute(select(func.count()).select_from(participant)).scalar_one()
    assert people <= number + 1


def test_a_restore_stores_everything_or_nothing(answered, tmp_path):
    file, key = tmp_path / "b.zip", tmp_path / "b.key"
    backup(answered.store, file, key)
    whole = rows(answered.store)
    stores = []

    def fault_of_a_new_store(at):
        stores.append(Store(f"sqlite:///{tmp_path}/other-{at}.sqlite"))
        return ConnectionFault(stores[-1].engine, at)

    for fault in every_fault(fault_of_a_new_store):
        other = stores[-1]
        try:
            with fault:
                restore(other, file, key)
        except FAILURES:
            assert rows(other) == []
            with other.read() as connection:
                assert experiments.names(connection) == []
            restore(other, file, key)
        assert len(rows(other)) == len(whole)
        other.close()


def test_a_backup_is_whole_or_the_former_one(answered, tmp_path):
    folder = tmp_path / "backups"
    folder.mkdir()
    file, key = folder / "b.zip", folder / "b.key"
    backup(answered.store, file, key)
    secret = key.read_text()
    for kind in ("error", "full", "kill"):
        for fault in every_fault(lambda n, kind=kind: DiskFault(folder, n, kind)):
            with fault:
                try:
                    backup(answered.store, file, key)
                except OSError:
                    assert fault.happened
            with zipfile.ZipFile(file) as bundle:
                assert bundle.testzip() is None
            assert key.read_text() == secret
    for fault in every_fault(lambda n: ConnectionFault(answered.store.engine, n)):
        try:
            with fault:
                backup(answered.store, file, key)
        except DBAPIError:
            assert fault.happened
        with zipfile.ZipFile(file) as bundle:
            assert bundle.testzip() is None


def test_a_backup_survives_a_power_cut_with_its_key(answered, tmp_path):
    folder = tmp_path / "backups"
    folder.mkdir()
    with PowerCut(folder) as power:
        backup(answered.store, folder / "b.zip", folder / "b.key")
        power.acknowledge("done")
    done = 0
    for remains in power.remains(tmp_path / "left"):
        file, key = remains.folder / "b.zip", remains.folder / "b.key"
        if file.exists():
            with zipfile.ZipFile(file) as bundle:
                assert bundle.testzip() is None
        if remains.acknowledged:
            done += 1
            assert file.exists()
            assert len(key.read_text().strip()) == 64
    assert done


SCHEMA_1 = Path(__file__).parents[1] / "crowd" / "store" / "schema_v1.sql"


def test_a_migration_is_done_or_not_begun(tmp_path, monkeypatch):
    def old(name):
        file = tmp_path / name
        connection = sqlite3.connect(file)
        connection.executescript(SCHEMA_1.read_text())
        connection.close()
        return f"sqlite:///{file}"

    made = Store(old("whole.sqlite"))
    whole = rows(made)
    made.close()
    from accelerando.crowd.store import store as module

    make, engines = module._engine, []
    n_failed = 0
    step, done = 0, False
    while not done:
        step += 1
        url = old(f"{step}.sqlite")
        faults = []

        def engine_with_fault(url, connections, faults=faults, step=step):
            engine = make(url, connections)
            faults.append(ConnectionFault(engine, step).__enter__())
            engines.append(engine)
            return engine

        monkeypatch.setattr(module, "_engine", engine_with_fault)
        try:
            Store(url).close()
            done = not faults[0].happened
        except FAILURES:
            n_failed += 1
        faults[0].__exit__()
        monkeypatch.setattr(module, "_engine", make)
        again = Store(url)
        assert rows(again) == whole
        with again.read() as connection:
            version = connection.execute(select(meta.c.value).where(meta.c.key == "schema"))
            assert int(version.scalar_one()) == SCHEMA_VERSION
            assert connection.execute(select(func.count()).select_from(experiment)).scalar_one()
        again.close()
    assert n_failed > 10
