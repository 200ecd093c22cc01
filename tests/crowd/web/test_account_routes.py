"""Accounts: roles, own passwords, sessions, tokens, codes of an app, and the audit log."""

import secrets
import time

import pytest
from sqlalchemy import text

from accelerando.crowd.web import accounts, auth, totp
from accelerando.crowd.web.context import Context
from tests.crowd.web.conftest import API, PASSWORD, QUICK_HASHER, SETTINGS, begin

OTHER = "seven other words here"
_HASHED = accounts.password_hash(OTHER)


def sign_in(site, name, password=OTHER, **more):
    client = site.visitor()
    answer = client.post("/api/v1/session", json={"name": name, "password": password, **more})
    assert answer.status_code == 200, answer.text
    client.headers["x-csrf-token"] = answer.json()["csrf"]
    return client


@pytest.fixture
def colleague(site):
    """Another account without any role, signed in."""
    with site.store.write() as connection:
        accounts.set_password(connection, "mary", _HASHED, time.time(), admin=False)
    return sign_in(site, "mary")


def role(experimenter, given):
    return experimenter.put(f"{API}/members/mary", json={"role": given})


READS = ["", "/dashboard", "/participants", "/members", "/downloads/answers.csv"]


def test_without_a_role_an_experiment_does_not_exist(colleague):
    assert colleague.get("/api/v1/experiments").json() == {"experiments": []}
    assert "eggs" not in colleague.get("/experiments").text
    for path in READS:
        assert colleague.get(API + path).status_code == 404
    assert colleague.get("/experiments/eggs").status_code == 404
    assert colleague.post(f"{API}/pause").status_code == 404
    assert colleague.request("DELETE", API, json={"confirm": "eggs"}).status_code == 404
    assert colleague.put(f"{API}/members/mary", json={"role": "owner"}).status_code == 404


def test_each_role_may_do_its_part_and_no_more(site, experimenter, colleague):
    begin(site.visitor())
    assert role(experimenter, "viewer").json()["members"] == [{"account": "mary", "role": "viewer"}]
    assert all(colleague.get(API + path).status_code == 200 for path in READS)
    for verb in ("pause", "participants/1/block", "participants/1/reinstate"):
        assert colleague.post(f"{API}/{verb}").status_code == 403
    assert colleague.post(f"{API}/links", json={"ids": []}).status_code == 403
    role(experimenter, "editor")
    assert colleague.post(f"{API}/pause").status_code == 200
    assert colleague.post(f"{API}/participants/1/block").status_code == 200
    assert colleague.delete(f"{API}/participants/1").status_code == 403
    assert colleague.request("DELETE", API, json={"confirm": "eggs"}).status_code == 403
    assert colleague.put(f"{API}/members/mary", json={"role": "owner"}).status_code == 403
    role(experimenter, "owner")
    assert colleague.delete(f"{API}/participants/1").status_code == 204
    role(experimenter, None)
    assert colleague.get(API).status_code == 404
    assert role(experimenter, "king").status_code == 422
    answer = experimenter.put(f"{API}/members/nobody", json={"role": "viewer"})
    assert answer.status_code == 404


def test_who_creates_an_experiment_owns_it(site, colleague):
    files = {"settings": ("experiment.yaml", SETTINGS.replace("eggs", "hers"))}
    assert colleague.post("/api/v1/experiments", files=files).status_code == 201
    names = [one["name"] for one in colleague.get("/api/v1/experiments").json()["experiments"]]
    assert names == ["hers"]
    gone = colleague.request("DELETE", "/api/v1/experiments/hers", json={"confirm": "hers"})
    assert gone.status_code == 204


def test_only_administrators_manage_accounts(site, experimenter, colleague):
    new = {"name": "tom", "password": "words for tom only"}
    assert colleague.post("/api/v1/accounts", json=new).status_code == 403
    assert colleague.get("/api/v1/accounts").status_code == 403
    assert colleague.delete("/api/v1/accounts/experimenter").status_code == 403
    assert experimenter.post("/api/v1/accounts", json=new).status_code == 201
    assert experimenter.post("/api/v1/accounts", json=new).status_code == 409
    weak = {**new, "name": "tim", "password": "Passw0rd!"}
    assert experimenter.post("/api/v1/accounts", json=weak).status_code == 422
    found = experimenter.get("/api/v1/accounts").json()["accounts"]
    assert [(one["name"], one["admin"]) for one in found] == [
        ("experimenter", True), ("mary", False), ("tom", False),
    ]  # fmt: skip
    assert "hash" not in str(found)
    assert experimenter.delete("/api/v1/accounts/experimenter").status_code == 409
    assert experimenter.delete("/api/v1/accounts/mary").status_code == 204
    assert colleague.get("/api/v1/experiments").status_code == 401


def test_a_password_that_others_know_must_be_changed_first(site, experimenter):
    new = {"name": "tom", "password": "words for tom only"}
    experimenter.post("/api/v1/accounts", json=new)
    tom = sign_in(site, "tom", new["password"])
    assert tom.get("/api/v1/session").json()["must_change_password"]
    for path in ("/api/v1/experiments", "/api/v1/account/tokens", "/api/v1/audit"):
        assert tom.get(path).json()["error"]["code"] == "change_password"
    assert tom.get("/experiments", follow_redirects=False).headers["location"].endswith("account")
    page = tom.get("/experiments")
    assert "choose your own first" in page.text
    form = {"csrf": tom.headers["x-csrf-token"], "present": new["password"], "new": "tom12345"}
    assert "tried first" in tom.post("/experiments-account", data=form).text
    form["new"] = "a better one of my own"
    done = tom.post("/experiments-account", data=form, follow_redirects=False)
    assert (done.status_code, done.headers["location"]) == (303, "/sign-in")
    assert sign_in(site, "tom", form["new"]).get("/api/v1/experiments").status_code == 200


def test_changing_the_password_ends_all_sessions_and_tokens(site, experimenter):
    second = site.experimenter()
    token = second.post("/api/v1/account/tokens", json={"name": "x"}).json()["token"]
    change = {"present": "wrong", "new": "entirely new words"}
    path = "/api/v1/account/password"
    assert experimenter.put(path, json=change).status_code == 403
    assert (
        experimenter.put(path, json={**change, "present": PASSWORD, "new": "short"}).status_code
        == 422
    )
    same = {"present": PASSWORD, "new": PASSWORD}
    assert experimenter.put(path, json=same).status_code == 422
    assert experimenter.put(path, json={**change, "present": PASSWORD}).status_code == 204
    assert second.get("/api/v1/experiments").status_code == 401
    headers = {"authorization": f"Bearer {token}"}
    assert site.visitor().get(API, headers=headers).status_code == 401


def test_guessing_the_present_password_is_limited(experimenter):
    change = {"present": "wrong", "new": "entirely new words"}
    codes = [
        experimenter.put("/api/v1/account/password", json=change).status_code for _ in range(9)
    ]
    assert codes[0] == 403
    assert codes[-1] == 429


def test_sessions_are_listed_and_ended(site, experimenter, colleague):
    second = site.experimenter()
    found = second.get("/api/v1/account/sessions").json()["sessions"]
    assert len(found) == 2
    for one in found:
        assert colleague.delete(f"/api/v1/account/sessions/{one['id']}").status_code == 404
    for one in found:
        experimenter.delete(f"/api/v1/account/sessions/{one['id']}")
    assert second.get("/api/v1/experiments").status_code == 401


def test_a_session_that_is_not_used_ends(site, experimenter, monkeypatch):
    now = time.time()
    monkeypatch.setattr(Context, "clock", staticmethod(lambda: now + 3600))
    assert experimenter.get("/api/v1/experiments").status_code == 200
    monkeypatch.setattr(Context, "clock", staticmethod(lambda: now + 3600 + 7100))
    assert experimenter.get(f"{API}/dashboard").status_code == 200  # a page that polls
    monkeypatch.setattr(Context, "clock", staticmethod(lambda: now + 3600 + 7300))
    assert experimenter.get("/api/v1/experiments").status_code == 401


def test_a_token_acts_within_its_scope_its_experiment_and_its_time(site, experimenter, monkeypatch):
    site.add(SETTINGS.replace("eggs", "ham"))

    def make(**body):
        answer = experimenter.post("/api/v1/account/tokens", json={"name": "script", **body})
        assert answer.status_code == 201, answer.text
        client = site.visitor()
        client.headers["authorization"] = f"Bearer {answer.json()['token']}"
        return client

    reader, writer = make(), make(scope="write", experiment="eggs", days=1)
    assert reader.get(API).status_code == writer.get(API).status_code == 200
    assert reader.post(f"{API}/pause").status_code == 403
    assert writer.post(f"{API}/pause").status_code == 200
    assert writer.get(API.replace("eggs", "ham")).status_code == 404
    assert [one["name"] for one in writer.get("/api/v1/experiments").json()["experiments"]] == [
        "eggs"
    ]
    assert writer.request("DELETE", API, json={"confirm": "eggs"}).status_code == 403
    files = {"settings": ("experiment.yaml", SETTINGS.replace("eggs", "new"))}
    assert writer.post("/api/v1/experiments", files=files).status_code == 403
    for client in (reader, writer):  # never for accounts
        assert client.get("/api/v1/accounts").status_code == 403
        assert client.post("/api/v1/account/tokens", json={"name": "x"}).status_code == 403
        assert client.get("/api/v1/audit").status_code == 403
    found = experimenter.get("/api/v1/account/tokens").json()["tokens"]
    assert [(one["scope"], one["experiment"]) for one in found] == [
        ("read", None),
        ("write", "eggs"),
    ]
    assert "hash" not in str(found)
    assert experimenter.delete(f"/api/v1/account/tokens/{found[0]['id']}").status_code == 204
    assert reader.get(API).status_code == 401
    now = time.time()
    monkeypatch.setattr(Context, "clock", staticmethod(lambda: now + 86500))
    assert writer.get(API).status_code == 401
    too_long = {"name": "x", "days": 400}
    assert experimenter.post("/api/v1/account/tokens", json=too_long).status_code in (401, 422)


def test_codes_of_an_app_are_demanded_and_used_once(site, experimenter, monkeypatch):
    now = [1_900_000_000.0]
    monkeypatch.setattr(Context, "clock", staticmethod(lambda: now[0]))
    experimenter = site.experimenter()
    key = experimenter.post("/api/v1/account/totp").json()["key"]

    def code(shift=0):
        return totp.code_at(key, int(now[0]) // 30 + shift)

    path, body = "/api/v1/account/totp", {"key": key, "present": PASSWORD, "code": "000000"}
    assert experimenter.put(path, json=body).status_code == 422
    assert experimenter.put(path, json={**body, "present": "x", "code": code()}).status_code == 403
    assert experimenter.put(path, json={**body, "code": code()}).status_code == 204
    who, visitor = {"name": "experimenter", "password": PASSWORD}, site.visitor()
    for wrong in ("", "123", "abcdef", code(), code(5)):  # code() was used to confirm
        answer = visitor.post("/api/v1/session", json={**who, "code": wrong})
        assert answer.json()["error"]["code"] == "code", wrong
    now[0] += 30
    sign_in(site, "experimenter", PASSWORD, code=code())
    assert visitor.post("/api/v1/session", json={**who, "code": code()}).status_code == 401
    now[0] += 30
    gone = experimenter.request("DELETE", path, json={"present": PASSWORD, "code": code()})
    assert gone.status_code == 204
    sign_in(site, "experimenter", PASSWORD)


def test_codes_cannot_be_tried_one_after_the_other(site, monkeypatch):
    """With the password, a session could once try codes without end to remove them."""
    now = [1_900_000_000.0]
    monkeypatch.setattr(Context, "clock", staticmethod(lambda: now[0]))
    experimenter = site.experimenter()
    key, path = experimenter.post("/api/v1/account/totp").json()["key"], "/api/v1/account/totp"

    def code():
        return totp.code_at(key, int(now[0]) // 30)

    body = {"key": key, "present": PASSWORD, "code": code()}
    assert experimenter.put(path, json=body).status_code == 204
    now[0] += 30
    other = totp.new_key()
    instead = {"key": other, "present": PASSWORD, "code": totp.code_at(other, int(now[0]) // 30)}
    assert experimenter.put(path, json=instead).status_code == 409, "the password is not enough"
    wrong = {"present": PASSWORD, "code": "abcdef"}
    tried = [experimenter.request("DELETE", path, json=wrong).status_code for _ in range(25)]
    assert tried == [401] * 20 + [429] * 5
    # From many addresses it is no better: 10 from those where nobody has signed in.
    monkeypatch.setattr(auth, "address_key", lambda *_: secrets.token_hex(16))
    now[0] += 301
    who = {"name": "experimenter", "password": PASSWORD}
    found = [
        site.visitor().post("/api/v1/session", json={**who, "code": "abcdef"}).status_code
        for _ in range(12)
    ]
    assert found == [401] * 10 + [429] * 2
    monkeypatch.undo()
    monkeypatch.setattr(Context, "clock", staticmethod(lambda: now[0]))
    monkeypatch.setattr(accounts, "_hasher", QUICK_HASHER)
    sign_in(site, "experimenter", PASSWORD, code=code())  # its owner is not locked out


def test_sign_ins_and_withdrawals_are_in_the_audit_log(site, experimenter, colleague):
    person = site.visitor()
    token = begin(person)["token"]
    person.post(f"{API}/withdraw", headers={"authorization": f"Bearer {token}"}, json={})
    entries = experimenter.get("/api/v1/audit").json()["entries"]
    actions = {(one["experimenter"], one["action"]) for one in entries}
    assert {("experimenter", "sign in"), ("mary", "sign in")} <= actions
    assert any("withdr" in action for _, action in actions)
    own = colleague.get("/api/v1/audit").json()["entries"]
    assert {one["experimenter"] for one in own} == {"mary"}
    page = experimenter.get(f"/api/v1/audit?before={entries[0]['id']}").json()["entries"]
    assert page == entries[1:]


def test_the_database_holds_hashes_of_tokens_only(site, experimenter):
    token = experimenter.post("/api/v1/account/tokens", json={"name": "x"}).json()["token"]
    with site.store.read() as connection:
        rows = connection.execute(text("SELECT * FROM api_token")).all()
    assert token not in str(rows)
    assert len(rows) == 1
