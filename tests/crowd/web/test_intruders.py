"""Attacks by people with an account, a token or an old session, and by odd requests."""

import concurrent.futures
import logging
import threading
import time

import pytest
from sqlalchemy import func, select

from accelerando.crowd.experiment import Limits
from accelerando.crowd.serve.backup import backup, restore
from accelerando.crowd.store import Store
from accelerando.crowd.store.schema import experimenter as experimenter_table
from accelerando.crowd.store.schema import participant
from accelerando.crowd.web import accounts, auth, roles, totp
from accelerando.crowd.web.app import create_app
from accelerando.crowd.web.limits import address_key
from accelerando.crowd.web.signed import Signed
from tests.crowd.web.conftest import _HASH, API, PASSWORD, SETTINGS, Site, begin, png

OTHER = "name: other\nitems: 8\n"


@pytest.fixture
def both(url):
    """A site on each database, with a second experiment."""
    site = Site.__new__(Site)
    site.store, site._clients = Store(url), []
    with site.store.write() as connection:
        accounts.set_password(connection, "experimenter", _HASH, time.time())
    site.app = create_app(site.store, Limits(upload_bytes=2_000_000))
    for settings in (SETTINGS, OTHER):
        site.add(settings)
    yield site
    site.close()


def person(site, name, role=None, experiment="eggs"):
    """An account that may do little, signed in."""
    with site.store.write() as connection:
        accounts.set_password(connection, name, _HASH, time.time(), admin=False)
        if role:
            roles.give(connection, experiment, name, role)
    client = site.visitor(raise_server_exceptions=False)
    made = client.post("/api/v1/session", json={"name": name, "password": PASSWORD})
    client.headers["x-csrf-token"] = made.json()["csrf"]
    return client


def token_for(client, **body):
    return client.post("/api/v1/account/tokens", json={"name": "robot", **body}).json()["token"]


def routes(site):
    """Method and path of every route about one experiment that is for experimenters."""
    for path, methods in site.app.openapi()["paths"].items():
        if path.startswith("/api/v1/experiments/{name}"):
            for method, about in methods.items():
                if "participant" not in about["tags"]:
                    filled = path.replace("{name}", "eggs").replace("{person}", "1")
                    filled = filled.replace("{what}", "answers.csv").replace("{account}", "eve")
                    yield method.upper(), filled


BODIES = {"members": {"role": "owner"}, "links": {"ids": ["1"]}}


def send(client, method, path, **more):
    body = next((body for word, body in BODIES.items() if word in path), {"confirm": "eggs"})
    return client.request(method, path, json=None if method == "GET" else body, **more)


def test_there_are_routes_to_attack(site):
    found = list(routes(site))
    assert len(found) >= 14
    assert {method for method, _ in found} == {"GET", "POST", "PUT", "DELETE"}


def test_nobody_reaches_an_experiment_by_its_name(site):
    """Every route, with every kind of account and token that has no right to it."""
    site.add(OTHER)
    outsider = person(site, "eve", "owner", "other")
    viewer = person(site, "val", "viewer")
    stranger = site.visitor()
    admin = site.experimenter()
    elsewhere = {"authorization": f"Bearer {token_for(admin, scope='write', experiment='other')}"}
    reader = {"authorization": f"Bearer {token_for(admin, scope='read')}"}
    begin(site.visitor(), participant="anna")
    for method, path in routes(site):
        assert send(stranger, method, path).status_code == 401, (method, path)
        assert send(outsider, method, path).status_code == 404, (method, path)
        assert send(stranger, method, path, headers=elsewhere).status_code == 404, (method, path)
        if method != "GET":
            assert send(viewer, method, path).status_code == 403, (method, path)
            assert send(stranger, method, path, headers=reader).status_code == 403, (method, path)
    assert outsider.get("/experiments/eggs").status_code == 404
    assert admin.get(API).json()["state"] == "running"


def test_a_token_never_deletes_gives_roles_or_manages_accounts(site):
    admin = site.experimenter()
    robot = site.visitor()
    robot.headers["authorization"] = f"Bearer {token_for(admin, scope='write')}"
    assert send(robot, "DELETE", API).status_code == 403
    assert send(robot, "PUT", f"{API}/members/experimenter").status_code == 403
    for method, path in (
        ("POST", "/api/v1/account/tokens"),
        ("GET", "/api/v1/account/sessions"),
        ("PUT", "/api/v1/account/password"),
        ("POST", "/api/v1/accounts"),
        ("GET", "/api/v1/audit"),
        ("DELETE", "/api/v1/session"),
    ):
        assert robot.request(method, path, json={}).status_code in (403, 422), path
        assert robot.request(method, path, json={}).status_code != 200, path
    page = robot.get("/experiments-account", follow_redirects=False)
    assert page.status_code == 303, "a page of people"
    assert robot.get(f"/experiments/eggs?token={admin.cookies.get(auth.COOKIE)}").text


def test_a_token_or_session_in_the_address_counts_nothing(site):
    admin = site.experimenter()
    token, session = token_for(admin), admin.cookies[auth.COOKIE]
    stranger = site.visitor()
    for name in ("token", "access_token", "authorization", auth.COOKIE, "session"):
        for value in (token, session):
            assert stranger.get(API, params={name: value}).status_code == 401


def test_a_deleted_account_leaves_nothing_behind(site):
    admin = site.experimenter()
    eve = person(site, "eve", "editor")
    robot = {"authorization": f"Bearer {token_for(eve)}"}
    assert site.visitor().get(API, headers=robot).status_code == 200
    assert admin.delete("/api/v1/accounts/eve").status_code == 204
    assert eve.get(API).status_code == 401
    assert site.visitor().get(API, headers=robot).status_code == 401
    with site.store.write() as connection:  # the same name again is somebody else
        accounts.set_password(connection, "eve", _HASH, time.time(), admin=False)
    assert eve.get(API).status_code == 401
    assert site.visitor().get(API, headers=robot).status_code == 401


def test_deleting_an_account_while_its_password_changes_makes_no_administrator(site, monkeypatch):
    """The new password was once stored under the name: as a new account, with all rights."""
    eve = person(site, "eve")
    hashing, go_on = threading.Event(), threading.Event()

    def slow(password):
        hashing.set()
        go_on.wait(30)
        return _HASH

    monkeypatch.setattr(accounts, "password_hash", slow)
    body = {"present": PASSWORD, "new": "another one of mine"}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        reply = pool.submit(eve.put, "/api/v1/account/password", json=body)
        assert hashing.wait(30)
        with site.store.write() as connection:
            connection.execute(
                experimenter_table.delete().where(experimenter_table.c.name == "eve")
            )
        go_on.set()
        assert reply.result().status_code == 401
    with site.store.read() as connection:
        names = connection.execute(select(experimenter_table.c.name)).scalars().all()
    assert names == ["experimenter"]


def test_ones_own_password_does_not_reset_the_count_of_guesses(site):
    """With an account one could once guess at another for ever."""
    person(site, "eve")
    tried = 0
    for guess in range(40):
        body = {"name": "experimenter", "password": f"guess {guess} of many"}
        if site.visitor().post("/api/v1/session", json=body).status_code == 429:
            break
        tried += 1
        if guess % 3 == 2:
            own = {"name": "eve", "password": PASSWORD}
            assert site.visitor().post("/api/v1/session", json=own).status_code in (200, 429)
    assert tried <= 8


def test_signing_in_again_ends_the_session_of_this_browser(site):
    client = site.experimenter()
    old = client.cookies[auth.COOKIE]
    again = client.post("/api/v1/session", json={"name": "experimenter", "password": PASSWORD})
    assert again.status_code == 200
    assert client.cookies[auth.COOKIE] != old
    stranger = site.visitor()
    stranger.cookies.set(auth.COOKIE, old)
    assert stranger.get(API).status_code == 401


def test_one_code_opens_one_session_also_in_two_processes(both):
    """PostgreSQL: two processes once accepted the same code at the same moment."""
    key, clock = totp.new_key(), time.time()
    with both.store.write() as connection:
        accounts.set_totp(connection, 1, key, 0)
    code = totp.code_at(key, int(clock) // 30)
    read = threading.Barrier(2)
    found = accounts.totp_of

    def both_read(connection, number):
        row = found(connection, number)
        if not both.store.is_sqlite:  # SQLite has one writer at a time
            read.wait(30)
        return row

    def use(_):
        try:
            with both.store.write() as connection:
                accounts.use_code(connection, 1, "experimenter", code, clock)
        except Exception as error:
            return str(error)
        return "accepted"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounts, "totp_of", both_read)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = sorted(pool.map(use, range(2)))
    assert results == ["Wrong code, or it was used before.", "accepted"]


def test_a_code_of_yesterday_is_not_accepted_when_the_clock_goes_back():
    key, now = totp.new_key(), 1_700_000_000.0
    step = totp.accepted_step(key, totp.code_at(key, int(now) // 30), now, 0)
    assert step is not None
    back = now - 86400
    assert totp.accepted_step(key, totp.code_at(key, int(back) // 30), back, step) is None


def test_a_restored_backup_brings_no_sessions_and_no_tokens_back(site, tmp_path):
    admin = site.experimenter()
    robot, session = token_for(admin), admin.cookies[auth.COOKIE]
    backup(site.store, tmp_path / "b.zip", tmp_path / "b.key")
    other = Store(f"sqlite:///{tmp_path}/other.sqlite")
    restore(other, tmp_path / "b.zip", tmp_path / "b.key")
    with other.read() as connection:
        assert accounts.check_session(connection, session, time.time()) is None
        assert roles.check_token(connection, robot, time.time()) is None
    other.close()


@pytest.mark.parametrize("text", ["a\\u0000b", "\\ud800", "\\u202e", "\\u0000"])
def test_odd_characters_are_no_server_error_on_any_database(both, text):
    """PostgreSQL stores no NUL: a stranger's name with one was answered with 500."""
    stranger = both.visitor(raise_server_exceptions=False)
    admin = both.experimenter()
    tries = [
        (stranger, "POST", "/api/v1/session", '{"name": "%s", "password": "%s"}'),
        (stranger, "POST", f"{API}/participants", '{"parameters": {"id": "%s", "%s": "1"}}'),
        (admin, "POST", "/api/v1/account/tokens", '{"name": "%s", "experiment": "%s"}'),
        (admin, "POST", "/api/v1/account/tokens", '{"name": "%s%s"}'),
        (admin, "DELETE", API, '{"confirm": "%s%s"}'),
        (admin, "POST", f"{API}/links", '{"ids": ["%s", "%s"]}'),
    ]
    kind = {"content-type": "application/json"}
    for client, method, path, body in tries:
        reply = client.request(method, path, content=body % (text, text), headers=kind)
        assert reply.status_code < 500, (path, body, reply.text)
    items = f'name: odd\nitems: ["{text}", b, c]\n'.encode()
    made = admin.post("/api/v1/experiments", files=[("settings", ("e.yaml", items))])
    assert made.status_code in (201, 422), made.text
    for path in ("/media/eggs/%00", "/static/%00", "/e/%00/", "/static/..%2fapp.py"):
        assert stranger.get(path).status_code in (404, 422), path


@pytest.mark.parametrize("path", ["/experiments/", "/api/v1/session/", "/e/eggs", "//evil.test/"])
def test_no_redirect_leads_to_the_host_that_a_request_names(site, path):
    reply = site.visitor().get(path, headers={"host": "evil.test"}, follow_redirects=False)
    assert "evil" not in reply.headers.get("location", "")


def test_nothing_of_a_request_becomes_a_header(site):
    client = site.visitor(follow_redirects=False)
    for path in ("/sign-in?next=/experiments%0d%0aSet-Cookie:%20x=1", "/?a=%0d%0aX-Evil:1"):
        headers = client.get(path).headers
        assert "x-evil" not in headers
        assert "x=1" not in headers.get("set-cookie", "")


def test_no_line_of_the_log_is_made_by_a_request(site, caplog, monkeypatch):
    with caplog.at_level(logging.WARNING):
        site.visitor().post(
            "/api/v1/session", json={"name": "x\nERROR all is lost\u2028", "password": "y"}
        )

        def fail(*_):
            raise RuntimeError("boom")

        monkeypatch.setattr("accelerando.crowd.store.experiments.find", fail)
        quiet = site.visitor(raise_server_exceptions=False)
        assert quiet.get("/e/eggs/style.css%0aERROR").status_code in (404, 500)
        assert quiet.get("/e/eggs/").status_code == 500
    assert caplog.records
    for record in caplog.records:
        assert "\n" not in record.getMessage()
        assert "\u2028" not in record.getMessage()


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PATCH", "PROPFIND"])
def test_other_methods_reach_nothing(site, method):
    admin = site.experimenter()
    for path in (API, f"{API}/pause", f"{API}/dashboard", "/experiments"):
        assert admin.request(method, path).status_code == 405
    stranger = site.visitor()
    for path in ("/", "/e/eggs/", "/sign-in", "/health", "/metrics", f"{API}/queries"):
        assert stranger.request(method, path).status_code == 405, path
    override = {"x-http-method-override": "DELETE", "x-method-override": "DELETE"}
    assert admin.get(API, headers=override, params={"_method": "DELETE"}).status_code == 200
    assert admin.get(API).status_code == 200


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8:0:0:1::", "2001:db8::ffff:1:1:1", True),
        ("2001:db8:0:1::1", "2001:db8::1", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_addresses_of_one_network_are_one_caller(one, other, same):
    """Short forms such as 2001:db8::1 once made every address of a network a caller."""

    class Request:
        def __init__(self, host):
            self.client = type("Client", (), {"host": host})

    found = address_key(b"key", Request(one)) == address_key(b"key", Request(other))
    assert found is same


def test_more_people_than_allowed_do_not_get_in_together(both):
    settings = "name: small\nitems: 8\nparticipants: {total_participants: 3}\n"
    both.add(settings)

    def come(number):
        client = both.visitor()
        body = {"parameters": {"id": str(number)}}
        return client.post("/api/v1/experiments/small/participants", json=body).json()["outcome"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(come, range(12)))
    with both.store.read() as connection:
        there = connection.execute(select(func.count()).select_from(participant)).scalar_one()
    assert there == 3
    assert outcomes.count("full") == 9


def test_an_old_session_does_not_outlive_its_account_by_a_clock_that_was_ahead(site):
    with site.store.write() as connection:
        token = accounts.sign_in(connection, 1, _HASH, "caller", "experimenter", time.time() + 9e6)
    with site.store.read() as connection:
        assert accounts.check_session(connection, token, time.time()) is None
        assert isinstance(accounts.check_session(connection, token, time.time() + 9e6), Signed)


def test_a_picture_is_served_to_be_looked_at_only(site):
    admin = site.experimenter()
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    files = [("items", (name, data)) for name, data in
             (("a.svg", svg), ("b.png", png(1)), ("c.png", png(2)))]  # fmt: skip
    files.append(("settings", ("e.yaml", b"name: pics\nitems: items\n")))
    made = admin.post("/api/v1/experiments", files=files)
    assert made.status_code == 201, made.text
    visitor = site.visitor()
    body = {"parameters": {}}
    query = visitor.post("/api/v1/experiments/pics/participants", json=body).json()["queries"][0]
    for place in ("head", "left", "right"):
        reply = visitor.get(query[place]["src"])
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in reply.headers["content-security-policy"]


def test_an_account_does_not_see_what_a_former_one_of_its_name_did(site):
    eve = person(site, "eve", "editor")
    assert eve.post(f"{API}/pause").status_code == 200
    assert site.experimenter().delete("/api/v1/accounts/eve").status_code == 204
    entries = person(site, "eve").get("/api/v1/audit").json()["entries"]
    assert [entry["action"] for entry in entries] == ["sign in"]
