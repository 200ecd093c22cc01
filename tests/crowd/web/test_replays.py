"""Requests sent again, in another order, at the same time, or with the token of somebody else."""

import concurrent.futures
import time

import pytest
from sqlalchemy import func, select, update

from accelerando.crowd.store.schema import answer as answers
from accelerando.crowd.store.schema import api_token
from accelerando.crowd.web import accounts
from tests.crowd.web.conftest import _HASH, API, PASSWORD, SETTINGS, answer, begin
from tests.crowd.web.test_intruders import person

OTHER = "name: other\nitems: 8\n"


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def n_answers(site):
    with site.store.read() as connection:
        return connection.execute(select(func.count()).select_from(answers)).scalar_one()


@pytest.mark.parametrize("consents", [[False, True], [True], [False], [True, False, True]])
@pytest.mark.parametrize("given", [0, 1])
def test_who_has_withdrawn_cannot_begin_again(site, visitor, consents, given):
    """Two consents once reopened the session: its answers were acknowledged, and later deleted."""
    queries = begin(visitor, id="7")["queries"]
    for query in queries[:given]:
        assert answer(visitor, query).status_code == 200
    visitor.post(f"{API}/withdraw")
    for agreed in consents:
        reply = visitor.post(f"{API}/consent", json={"agreed": agreed}).json()
        assert (reply["outcome"], reply["queries"]) == ("withdrawn", [])
    assert answer(visitor, queries[1]).status_code == 409
    assert visitor.post(f"{API}/queries", json={"count": 5}).json()["queries"] == []
    assert begin(visitor, id="7")["outcome"] == "withdrawn"
    assert n_answers(site) == given


def test_refusing_consent_is_no_way_around_withdrawing(site, experimenter):
    """In an experiment without consent it once deleted all answers at once, without a note."""
    site.add("name: kept\nitems: 8\nparticipants: {answers: 5, withdraw: false}\n")
    path = "/api/v1/experiments/kept"
    client = site.visitor()
    query = client.post(f"{path}/participants", json={}).json()["queries"][0]
    body = {"query": query["id"], "winner": query["left"]["item"]}
    assert client.post(f"{path}/answers", json=body).status_code == 200
    assert client.post(f"{path}/withdraw").status_code == 403
    refused = client.post(f"{path}/consent", json={"agreed": False}).json()
    assert (refused["outcome"], refused["queries"]) == ("no_consent", [])
    assert n_answers(site) == 1
    found = experimenter.get(path).json()
    assert (found["answers"], found["participants"], found["declined"]) == (1, 1, 0)


def test_who_is_done_does_not_get_more_by_consenting_again(site):
    site.add("name: short\nitems: 4\nskip: true\nparticipants: {answers: 99}\n")
    path = "/api/v1/experiments/short"
    client = site.visitor()
    session = client.post(f"{path}/participants", json={}).json()
    while session["queries"]:
        body = {"query": session["queries"][0]["id"], "winner": None}
        session = client.post(f"{path}/answers", json=body).json()
    assert session["outcome"] == "done"
    for agreed in (False, True):
        again = client.post(f"{path}/consent", json={"agreed": agreed}).json()
        assert (again["outcome"], again["queries"]) == ("done", [])


def test_withdrawing_while_answering_leaves_no_answer_that_counts(site, experimenter):
    session = begin(site.visitor())
    head = bearer(session["token"])
    client = site.visitor(headers=head)

    def send(number):
        if number == 3:
            return client.post(f"{API}/withdraw").status_code
        return answer(client, session["queries"][number % 2]).status_code

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = set(pool.map(send, range(8)))
    assert found <= {200, 409}
    assert client.get(f"{API}/queries").json()["progress"]["answered"] == 0
    assert experimenter.get(API).json()["answers"] == 0


def test_every_participant_s_route_wants_the_token_of_its_experiment(site, experimenter):
    site.add(OTHER)
    session = begin(site.visitor())
    other = site.visitor().post("/api/v1/experiments/other/participants", json={}).json()["token"]
    program = experimenter.post("/api/v1/account/tokens", json={"name": "x", "scope": "write"})
    number, _, rest = session["token"].partition(".")
    forged = [other, program.json()["token"], f"{number}.2.{rest.partition('.')[2]}", ""]
    query = session["queries"][0]
    requests = [
        ("GET", "queries", None),
        ("POST", "queries", {}),
        ("POST", "answers", {"query": query["id"], "winner": query["left"]["item"]}),
        ("POST", "consent", {"agreed": True}),
        ("POST", "withdraw", {}),
    ]
    for token in forged:
        for method, path, body in requests:
            stranger = site.visitor(headers=bearer(token))
            reply = stranger.request(method, f"{API}/{path}", json=body)
            assert reply.status_code == 401, (path, token)
    assert n_answers(site) == 0
    assert experimenter.get(API).json()["participants"] == 1


def test_answers_that_arrive_after_their_experiment_was_deleted_go_nowhere(site, experimenter):
    client = site.visitor()
    session = begin(client)
    assert experimenter.request("DELETE", API, json={"confirm": "eggs"}).status_code == 204
    assert answer(client, session["queries"][0]).status_code == 404
    site.add(SETTINGS)  # the same name, and in SQLite the same number
    assert answer(client, session["queries"][0]).status_code == 401
    assert client.get(f"{API}/queries").status_code == 401
    assert n_answers(site) == 0


def test_an_experiment_may_be_paused_while_people_answer(site, experimenter):
    client = site.visitor()
    first, second = begin(client)["queries"]
    experimenter.post(f"{API}/pause")
    reply = answer(client, first).json()
    assert (reply["stored"], reply["outcome"], reply["queries"]) == (True, "paused", [])
    assert begin(site.visitor())["queries"] == []
    experimenter.post(f"{API}/resume")
    assert answer(client, second).json()["stored"]


@pytest.mark.parametrize("change", [{"expires": 1.0}, {"expires": 1e12}, "revoked", "must change"])
def test_a_token_that_has_ended_opens_no_route(site, experimenter, change):
    """Also one of a clock that was ahead, and of somebody whose password was reset."""
    made = experimenter.post("/api/v1/account/tokens", json={"name": "x", "scope": "write"})
    token = made.json()["token"]
    robot = site.visitor(headers=bearer(token))
    assert robot.get(API).status_code == 200
    if change == "revoked":
        (one,) = experimenter.get("/api/v1/account/tokens").json()["tokens"]
        assert experimenter.delete(f"/api/v1/account/tokens/{one['id']}").status_code == 204
    else:
        with site.store.write() as connection:
            if change == "must change":
                accounts.set_password(
                    connection, "experimenter", _HASH, time.time(), must_change=True
                )
            else:
                connection.execute(update(api_token).values(**change))
    for method, path in (
        ("GET", API),
        ("POST", f"{API}/pause"),
        ("POST", f"{API}/links"),
        ("GET", f"{API}/downloads/archive.zip"),
        ("GET", "/api/v1/experiments"),
        ("GET", "/api/v1/health"),
    ):
        body = {"ids": []} if path.endswith("links") else None
        assert robot.request(method, path, json=body).status_code == 401, path
    assert robot.get("/experiments", follow_redirects=False).status_code == 303


def test_who_may_not_write_uploads_nothing(site, experimenter):
    made = experimenter.post("/api/v1/account/tokens", json={"name": "x", "scope": "read"})
    reader = site.visitor(headers=bearer(made.json()["token"]))
    body = {"settings": ("e.yaml", b"x" * 1_000_000)}
    assert reader.post("/api/v1/experiments", files=body).status_code == 413, "not even read"


def test_unknown_names_cost_as_much_as_known_ones(site, monkeypatch):
    """A hash is checked in both cases, of the same cost: time does not tell who has an account."""
    checked = []

    def matches(hashed, password):
        checked.append(hashed)
        return False

    monkeypatch.setattr(accounts, "matches", matches)
    replies = [
        site.visitor().post("/api/v1/session", json={"name": name, "password": PASSWORD})
        for name in ("experimenter", "nobody", "", "EXPERIMENTER")
    ]
    assert {reply.status_code for reply in replies} == {401}
    assert len({reply.text for reply in replies}) == 1
    assert len(checked) == 4
    assert len({hashed.rpartition("$")[0].rpartition("$")[0] for hashed in checked}) == 1
    assert len(set(checked[1:])) == 1, "the one of nobody"


def test_names_of_accounts_are_not_look_alikes(experimenter):
    for name in ("Experimenter", "EXPERIMENTER", "experimenter"):
        body = {"name": name, "password": "four other words ok"}
        assert experimenter.post("/api/v1/accounts", json=body).status_code == 409
    for name in (
        "ｅxperimenter",
        "experimenter\u200b",
        "еxperimenter",
        "\u202ex",
        "x\x00",
        " x",
        "x\n",
    ):
        body = {"name": name, "password": "four other words ok"}
        assert experimenter.post("/api/v1/accounts", json=body).status_code == 422, name


def test_a_copy_of_an_experiment_signs_nothing_for_the_original(site):
    """A viewer may not make links, but made those of a copy, which opened the original's sessions.

    An archive names the time of its experiment's creation, with which links and codes are signed.
    """
    site.add(
        "name: paid\nitems: 8\nparticipants: {answers: 1}\ncompletion: {done: {code: '{code}'}}\n"
    )
    admin, eve = site.experimenter(), person(site, "eve", "viewer", "paid")
    there, here = "/api/v1/experiments/paid", "/api/v1/experiments/copy"

    def come(experiment, link):
        given = dict(pair.split("=") for pair in link.partition("?")[2].split("&"))
        client = site.visitor()
        return client, client.post(f"{experiment}/participants", json={"parameters": given}).json()

    link = admin.post(f"{there}/links", json={"ids": ["anna"]}).json()["personal"]["anna"]
    anna, begun = come(there, link)
    query = begun["queries"][0]
    sent = {"query": query["id"], "winner": query["left"]["item"]}
    code = anna.post(f"{there}/answers", json=sent).json()["completion"]["code"]
    assert eve.post(f"{there}/links", json={"ids": ["anna"]}).status_code == 403
    archive = eve.get(f"{there}/downloads/archive.zip").content
    files, name = {"archive": ("a.zip", archive)}, {"name": "copy"}
    assert eve.post("/api/v1/restore", files=files, data=name).status_code == 201
    made = eve.post(f"{here}/links", json={"ids": ["anna"]}).json()
    assert made["personal"]["anna"].partition("?")[2] != link.partition("?")[2]
    _, stolen = come(there, made["personal"]["anna"])
    assert stolen["completion"] is None, "a session of its own"
    _, copied = come(here, made["personal"]["anna"])
    assert copied["completion"]["code"] != code
