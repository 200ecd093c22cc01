"""Whether the service knows when it is ill."""

import sqlite3
import time
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from accelerando.crowd.serve.worker import Worker
from accelerando.crowd.store import Store
from accelerando.crowd.store.schema import worker as lease
from accelerando.exceptions import StateError
from tests.crowd.web.conftest import API, answer, begin
from tests.crowd.web.test_intruders import person

TOKEN = "a token of thirty-two characters"


@pytest.fixture
def well(site):
    """A site whose worker has just been seen."""
    Worker(site.store)._renew_lease()
    return site


def probe(site):
    site.app.state.context.cache.pop("health", None)  # it is kept for two seconds
    found = site.visitor().get("/health")
    return found.status_code, found.json()


def test_live_and_ready_are_different_questions(site):
    assert site.visitor().get("/health/live").json() == {"ok": True}
    status, found = probe(site)
    assert (status, found["database"], found["worker"]) == (503, "ok", "not seen")
    Worker(site.store)._renew_lease()
    assert probe(site) == (200, {"ok": True, "database": "ok", "worker": "ok"})


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
def test_a_worker_seen_long_ago_or_in_the_future_is_not_alive(well, seconds):
    with well.store.write() as connection:
        connection.execute(update(lease).values(seen=time.time() + seconds))
    assert probe(well)[0] == 503


def test_a_worker_that_fails_is_seen_and_people_get_queries_all_the_same(well, monkeypatch):
    def fail(*_):
        raise RuntimeError("boom")

    worker = Worker(well.store)
    monkeypatch.setattr(worker, "_turn", fail)
    worker.turn()
    worker._renew_at = 0.0
    with well.store.write() as connection:
        connection.execute(lease.delete())
    assert worker._renew_lease()
    assert probe(well) == (503, {"ok": False, "database": "ok", "worker": "failing"})
    assert len(begin(well.visitor())["queries"]) == 2
    monkeypatch.undo()
    worker.turn()
    worker._renew_at = 0.0
    assert worker._renew_lease()
    assert probe(well)[0] == 200


def failing(code):
    """The error of SQLite with this code; its words say nothing."""
    original = sqlite3.OperationalError("?")
    original.sqlite_errorcode = code
    return OperationalError("INSERT", {}, original)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (sqlite3.SQLITE_FULL, "full"),
        (sqlite3.SQLITE_IOERR_WRITE, "full"),
        (sqlite3.SQLITE_BUSY, "locked"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "readonly"),
        (sqlite3.SQLITE_CORRUPT, "damaged"),
    ],
)
def test_trouble_of_the_disk_is_seen(well, monkeypatch, code, word):
    async def run(*arguments):
        raise failing(code)

    monkeypatch.setattr(well.app.state.context.writer, "run", run)
    status, found = probe(well)
    assert (status, found["database"]) == (503, word)
    refused = well.visitor().post(f"{API}/participants", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")


def test_a_damaged_file_is_not_served_and_the_sentence_names_the_remedy(well, tmp_path):
    person = well.visitor()
    answer(person, begin(person)["queries"][0])
    well.store.check()
    well.store.close()
    file = well.store.url.removeprefix("sqlite:///")
    plain = sqlite3.connect(file)
    plain.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    plain.execute("PRAGMA journal_mode = DELETE")
    plain.close()
    with Path(file).open("r+b") as stream:
        size = stream.seek(0, 2)
        for page in range(4096, size, 4096):
            stream.seek(page)
            stream.write(b"\xff" * 200)
    with pytest.raises(StateError, match="accelerando crowd restore"):
        Store(f"sqlite:///{file}").check()
    status, found = probe(well)
    assert (status, found["database"]) == (503, "damaged")
    refused = person.post(f"{API}/participants", json={})
    assert refused.status_code == 503, "nothing is acknowledged"


def test_nothing_is_acknowledged_any_more_after_the_probe_has_seen_damage(well, monkeypatch):
    """The next write might touch sound pages only and succeed."""

    async def run(*arguments):
        raise failing(sqlite3.SQLITE_CORRUPT)

    with monkeypatch.context() as broken:
        broken.setattr(well.app.state.context.writer, "run", run)
        assert probe(well)[1]["database"] == "damaged"
    refused = well.visitor().post(f"{API}/participants", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert probe(well)[1]["database"] == "damaged"


def test_metrics_need_their_token(well, monkeypatch):
    visitor = well.visitor()
    assert visitor.get("/metrics").status_code == 404
    monkeypatch.setenv("ACCELERANDO_METRICS_TOKEN", "short")
    assert visitor.get("/metrics", headers={"authorization": "Bearer short"}).status_code == 404
    monkeypatch.setenv("ACCELERANDO_METRICS_TOKEN", TOKEN)
    for shown in ("", "Bearer x", TOKEN, f"Bearer {TOKEN}x"):
        assert visitor.get("/metrics", headers={"authorization": shown}).status_code == 401
    answer(visitor, begin(visitor)["queries"][0])
    found = visitor.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    lines = dict(line.split() for line in found.text.splitlines() if line[0] != "#")
    assert lines["crowd_answers"] == lines["crowd_database_ok"] == lines["crowd_worker_ok"] == "1"


def test_what_the_worker_says_about_others_is_not_told(site, experimenter):
    """The name of an experiment and its error were shown to accounts without a role in it."""
    site.add("name: secret\nitems: 8\n")
    worker = Worker(site.store)
    worker._errors = {"secret": "secret: ValueError: of 9; things", "eggs": "eggs: KeyError: x"}
    assert worker._renew_lease()
    eve = person(site, "eve", "viewer")
    seen = [
        eve.get("/api/v1/health").json()["worker"]["error"],
        eve.get(f"{API}/dashboard").json()["worker"]["error"],
    ]
    assert seen == 2 * ["eggs: KeyError: x; another experiment fails"]
    error = experimenter.get("/api/v1/health").json()["worker"]["error"]
    assert error == "secret: ValueError: of 9; things; eggs: KeyError: x"
