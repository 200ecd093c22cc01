"""Error responses of the application."""

from sqlalchemy import event, insert

from accelerando.crowd.store import session
from accelerando.crowd.store.schema import meta
from tests.crowd.web.conftest import API, answer, begin


def test_a_full_disk_is_said_and_nothing_is_acknowledged(site, visitor):
    """SQLite's own error for a full disk, provoked by a limit on its pages."""
    session = begin(visitor)
    query = session["queries"][0]

    site.store.engine.dispose()
    state = {"pages": 1}

    def on_connect(connection, record):
        connection.execute(f"PRAGMA max_page_count = {state['pages']}")

    event.listen(site.store.engine, "connect", on_connect)
    refused = None
    for _ in range(400):  # until the pages that are there already are full
        refused = answer(visitor, query)
        if refused.status_code == 503:
            break
        session = refused.json()
        if session["finished"]:
            session = begin(site.visitor())
            visitor = site._clients[-1]
        query = session["queries"][0]
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert refused.json()["error"]["code"] == "unavailable"
    state["pages"] = 10**6
    site.store.engine.dispose()
    again = answer(visitor, query)
    assert again.status_code == 200
    assert again.json()["stored"] is True, "the answer that was refused is stored when sent again"


def test_what_somebody_else_has_just_changed_is_no_server_error(site, visitor, monkeypatch, caplog):
    """Two owners who gave a role at the same moment: one of them saw a 500."""

    def race(connection, *_):
        connection.execute(insert(meta), [{"key": "health", "value": "1"}] * 2)

    monkeypatch.setattr(session, "look", race)
    begin(visitor)
    reply = visitor.post(f"{API}/queries", json={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "conflict")
    assert not caplog.records, "values of rows stay out of the log"
