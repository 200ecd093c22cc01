"""Requests that use up time, connections or queries, and headers that caches believe."""

import asyncio

import pytest
import starlette.requests
from sqlalchemy import select
from sqlalchemy.exc import TimeoutError as NoConnectionError

from accelerando.crowd.store import answers, schema
from accelerando.crowd.web import health
from accelerando.crowd.web.context import Context
from accelerando.crowd.web.participant_api import cookie_name
from tests.crowd.web.conftest import API, answer, begin


def test_no_cookie_with_backslashes_is_unquoted(site, monkeypatch):
    """Python before 3.11.10 takes seconds for 60 kB of them, and all others wait."""
    parse, parsed = starlette.requests.cookie_parser, []

    def record(text):
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(starlette.requests, "cookie_parser", record)
    hostile = '; x="' + "\\" * 60_000 + '"; =; ;; a=b=c; \xe9="\\101"'
    token = begin(site.visitor())["token"]
    for cookies, status in (
        (f"{cookie_name('eggs')}={token}{hostile}", 200),
        (f"{hostile[1:]}; {cookie_name('eggs')}={token}", 200),
        (f"{cookie_name('eggs')}={token}\\", 401),
        (hostile[1:], 401),
    ):
        sent = {"cookie": cookies.encode("latin1")}
        found = site.visitor().post(f"{API}/queries", json={"count": 1}, headers=sent)
        assert found.status_code == status, cookies[:60]
        site.visitor().get("/experiments", headers=sent)
        site.visitor().get("/e/eggs/", headers=sent)
    assert parsed
    assert not any("\\" in text for text in parsed)


def test_skipping_without_end_does_not_use_up_the_queries_of_others(site, visitor, monkeypatch):
    monkeypatch.setattr(answers, "_MOST_SKIPS", 3)
    session = begin(visitor)
    for _ in range(3):
        query = session["queries"][0]
        session = answer(visitor, query, winner=None).json()
        assert session["stored"]
    query = session["queries"][0]
    body = {"query": query["id"], "winner": None, "count": 2}
    refused = visitor.post(f"{API}/answers", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "skips")
    # The query stays open and can be answered; who answers may skip more.
    for _ in range(2):
        session = answer(visitor, session["queries"][0]).json()
        assert session["stored"]


def test_a_query_is_skipped_more_often_by_who_answers_often(site, monkeypatch):
    monkeypatch.setattr(answers, "_MOST_SKIPS", 1)
    site.add("name: more\nitems: 8\nskip: true\nparticipants: {answers: null}\n")
    visitor = site.visitor()
    api = "/api/v1/experiments/more"
    session = visitor.post(f"{api}/participants", json={"count": 2}).json()
    for skip in (True, False, True, True, True, False):
        query = session["queries"][0]
        body = {"query": query["id"], "winner": None if skip else query["left"]["item"]}
        found = visitor.post(f"{api}/answers", json={**body, "count": 2})
        expected = 409 if (skip and session["progress"]["skipped"] >= 3) else 200
        assert found.status_code == expected
        if expected == 200:
            session = found.json()
    assert session["progress"]["skipped"] == 3


def test_when_no_connection_is_free_people_are_asked_to_try_again(site, visitor, monkeypatch):
    async def busy(*_):
        raise NoConnectionError("QueuePool limit of size 5 overflow 10 reached")

    monkeypatch.setattr(Context, "read", busy)
    for path in (f"{API}/queries", "/e/eggs/"):
        found = visitor.get(path)
        assert found.status_code == 503, path
        assert found.headers["retry-after"] == "2"
    assert "QueuePool" not in found.text


def test_a_database_that_does_not_answer_is_ill_and_the_check_ends(site, visitor, monkeypatch):
    async def frozen(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(health, "_PATIENCE", 0.01)
    monkeypatch.setattr(site.app.state.context.writer, "run", frozen)
    found = visitor.get("/health")
    assert (found.status_code, found.json()["database"]) == (503, "no answer")


# -- mass assignment -------------------------------------------------------------------------------


def rows(site, table):
    with site.store.read() as connection:
        return connection.execute(select(table)).all()


EXTRA = {
    "id": 7, "quota": 10_000, "proven": True, "state": "active", "outcome": "done", "answered": 5,
    "secret": "0" * 32, "external": "x", "consented": 1.0, "experiment_id": 2, "is_admin": True,
    "must_change": False, "password_hash": "x", "totp": "A" * 32,
    "role": "owner", "who": "experimenter", "name": "x",
    "kind": "check", "stored": True, "received": 0.0, "sampler": "x", "__proto__": {"admin": True},
}  # fmt: skip


def test_fields_that_a_request_does_not_have_are_ignored(site, visitor):
    session = visitor.post(f"{API}/participants", json={**EXTRA, "parameters": {"id": "ann"}})
    query = session.json()["queries"][0]
    body = {"query": query["id"], "winner": query["left"]["item"], "count": 0}
    assert visitor.post(f"{API}/answers", json={**EXTRA, **body}).json()["stored"]
    assert visitor.post(f"{API}/queries", json={**EXTRA, "count": 1}).status_code == 200
    (row,) = rows(site, schema.participant)
    kept = (row.quota, bool(row.proven), row.outcome, row.answered, row.experiment_id, row.name)
    assert kept == (5, False, None, 1, 1, "ann")
    assert row.secret != "0" * 32
    (stored,) = rows(site, schema.answer)
    assert stored.received > 1e9


def test_an_account_is_made_with_the_rights_that_its_form_names(site, experimenter):
    body = {"name": "eve", "password": "a long sentence of hers"}
    made = experimenter.post("/api/v1/accounts", json={**EXTRA, **body})
    assert made.status_code == 201, made.text
    (eve,) = [row for row in rows(site, schema.experimenter) if row.name == "eve"]
    assert (eve.id, bool(eve.admin), bool(eve.must_change)) == (2, False, True)


# -- frames, caches, addresses ---------------------------------------------------------------------

PAGES = ["/", "/e/eggs/", "/e/eggs/style.css", "/sign-in", "/experiments", "/experiments/eggs"]
PAGES += ["/experiments-account", f"{API}/dashboard", "/health", "/static/base.css", "/nothing"]
BELIEVED = {
    "x-forwarded-host": "evil.example",
    "x-forwarded-server": "evil.example",
    "x-host": "evil.example",
    "forwarded": "host=evil.example",
    "x-forwarded-proto": "https",
    "x-forwarded-port": "9",
    "x-forwarded-prefix": "//evil.example",
    "x-script-name": "/evil.example",
    "x-original-url": "/evil.example",
    "x-rewrite-url": "/evil.example",
    "x-http-method-override": "DELETE",
}


@pytest.mark.parametrize("who", ["visitor", "experimenter"])
def test_no_page_is_framed_kept_by_a_cache_or_tells_where_it_was(site, who, request):
    client = request.getfixturevalue(who)
    for path in PAGES:
        found = client.get(path, follow_redirects=False)
        head = found.headers
        assert head["x-frame-options"] == "DENY", path
        assert "frame-ancestors 'none'" in head["content-security-policy"], path
        assert head["referrer-policy"] == "no-referrer", path
        expected = "no-cache" if path.startswith("/static/") else "no-store"
        assert head["cache-control"] == expected, path


@pytest.mark.parametrize("who", ["visitor", "experimenter"])
def test_headers_that_a_cache_does_not_look_at_change_no_page(site, who, request):
    client = request.getfixturevalue(who)
    for path in PAGES:
        before = client.get(path, follow_redirects=False)
        after = client.get(path, headers=BELIEVED, follow_redirects=False)
        assert (after.status_code, after.headers.get("location")) == (
            before.status_code,
            before.headers.get("location"),
        )
        assert "evil.example" not in after.text, path
        assert "strict-transport-security" not in after.headers


@pytest.mark.parametrize("upgrade", ["websocket", "h2c", "TLS/1.0"])
def test_another_protocol_is_not_begun(visitor, upgrade):
    head = {"connection": "Upgrade", "upgrade": upgrade, "http2-settings": "AAMAAABk"}
    assert visitor.get("/health/live", headers=head).json() == {"ok": True}
