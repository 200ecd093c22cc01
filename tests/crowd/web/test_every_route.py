"""Every route, asked by everybody: who has no right is refused, and a refusal changes nothing.

The routes come from the application. One that is new has no row in the table and fails.
"""

import itertools

import pytest
from sqlalchemy import select

from accelerando.crowd.experiment import Limits
from accelerando.crowd.store import participants, session
from accelerando.crowd.store.schema import tables
from tests.crowd.web import conftest
from tests.crowd.web.conftest import QUICK_HASHER, Site, png
from tests.crowd.web.every_route import (
    ANYBODY,
    EVERYBODY,
    EXPERIMENT,
    NEEDS,
    PARTICIPANT,
    Caller,
    refusal,
    request,
    routes_of_the_app,
)

SETTINGS = "name: {}\nitems: 8\nskip: true\nsalmon_routes: true\nparticipants: {{answers: 5}}\n"
NOT_200 = {
    "GET /health": "not seen",  # there is no worker
    "GET /health/ready": "not seen",
    "GET /static": "Not Found",
    f"GET {EXPERIMENT}/embedding": "no_embedding",
}
METRICS_TOKEN = "a token of the metrics"


class World:
    """A service with two experiments, and callers of every kind."""

    def __init__(self, folder):
        self.site = Site(folder, Limits(upload_bytes=2_000_000, sessions_per_address=None))
        self._count = itertools.count()
        self.person, self.withdrawn, self.participant_token = {}, {}, ""
        self.query = None
        pictures = [(f"{k}.png", png(k)) for k in range(4)]
        self.site.add("name: eggs\nsalmon_routes: true\n", pictures)
        self._people("eggs")
        for name in ("other", "saved"):
            self.add(name)
        admin = self.site.experimenter()
        self.archive = admin.get("/api/v1/experiments/saved/downloads/archive.zip").content
        shown = self.site.visitor().get("/api/v1/experiments/eggs/queries", headers={
            "authorization": f"Bearer {self.participant_token}"}).json()  # fmt: skip
        self.media = shown["queries"][0]["head"]["src"].rpartition("/")[2]
        self.client = self.site.visitor(raise_server_exceptions=False, follow_redirects=False)
        self.client.__enter__()
        self.callers = {who: Caller(self, who, "eggs") for who in EVERYBODY}

    def new(self, kind):
        return f"{kind}{next(self._count)}"

    def add(self, name):
        self.site.add(SETTINGS.format(name))
        self._people(name)

    def _people(self, name):
        secret = self.site.app.state.context.secret
        with self.site.store.write() as connection:
            first, second = (
                session.begin(connection, name, secret, {}, "", None, 2, 1.0) for _ in range(2)
            )
            token = participants.token(secret, second.snapshot, second.person)
            session.withdraw(connection, name, secret, token, 2.0)
            shown = participants.token(secret, first.snapshot, first.person)
        self.participant_token = self.participant_token or shown
        self.query = self.query or first.queries[0]
        self.person[name], self.withdrawn[name] = first.person.id, second.person.id

    def colleague(self):
        return "experimenter"

    def everything(self):
        """All rows of all tables, but for the note of the health check."""
        with self.site.store.read() as connection:
            found = {
                table.name: sorted(map(repr, connection.execute(select(table))))
                for table in tables.sorted_tables
            }
        found["meta"] = [row for row in found["meta"] if not row.startswith("('health'")]
        return found

    def ask(self, route, caller, name="eggs", **headers):
        method, path, body = request(self, route, caller, name)
        cookies = {**caller.cookies, "accelerando_csrf": "c" * 32}
        told = {
            **caller.headers,
            "cookie": "; ".join(f"{key}={value}" for key, value in cookies.items()),
            **{key.replace("_", "-"): value for key, value in headers.items()},
        }
        self.client.cookies.clear()
        return self.client.request(method, path, headers=told, **body)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conftest.accounts, "_hasher", QUICK_HASHER)
        patch.setenv("ACCELERANDO_METRICS_TOKEN", METRICS_TOKEN)
        made = World(tmp_path_factory.mktemp("world"))
        yield made
        made.site.close()


def test_every_route_of_the_application_has_a_row(world):
    assert routes_of_the_app(world.site.app) == set(NEEDS)


@pytest.mark.parametrize("route", NEEDS)
def test_who_has_no_right_is_refused_and_changes_nothing(world, route):
    needs = NEEDS[route]
    before = world.everything()
    for who, caller in world.callers.items():
        status = refusal(needs, who)
        if status is not None:
            reply = world.ask(route, caller)
            assert reply.status_code == status, (who, reply.text)
    assert world.everything() == before


@pytest.mark.parametrize("route", [one for one in NEEDS if one.startswith("GET ")])
def test_no_get_changes_anything_for_anybody(world, route):
    before = world.everything()
    for who, caller in world.callers.items():
        reply = world.ask(route, caller)
        if refusal(NEEDS[route], who) is None:
            if route in NOT_200:
                assert NOT_200[route] in reply.text, (who, reply.text)
            else:
                assert reply.status_code < 400, (who, reply.text)
    assert world.everything() == before


@pytest.mark.parametrize("route", [one for one in NEEDS if not one.startswith("GET ")])
def test_who_has_the_right_is_served(world, route):
    """Or the refusals above would show nothing: each of these requests would be served."""
    for who in EVERYBODY:
        if refusal(NEEDS[route], who) is not None:
            continue
        if NEEDS[route] == ANYBODY and who not in ("a stranger", "a participant"):
            continue
        name = world.new("x")
        world.add(name)
        caller = Caller(world, who, name)
        reply = world.ask(route, caller, name)
        if route.endswith("/answer"):
            assert reply.status_code == 404, "no such query was signed"
        else:
            assert reply.status_code < 400, (who, reply.text)


FOREIGN = [
    {"origin": "https://evil.test"},
    {"origin": "https://crowd.test.evil.test"},
    {"origin": "http://crowd.test:81"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site", "origin": "http://crowd.test"},
]


@pytest.mark.parametrize("route", [one for one in NEEDS if not one.startswith("GET ")])
def test_no_page_of_another_site_can_send_it(world, route):
    """Neither with the cookies of somebody who may do everything, nor with a guessed token."""
    needs = NEEDS[route]
    before = world.everything()
    of_participants = needs in (PARTICIPANT, ANYBODY)
    caller = world.callers["a participant" if of_participants else "an administrator"]
    for headers in FOREIGN:
        reply = world.ask(route, caller, **headers)
        assert reply.status_code == 403, (headers, reply.text)
        assert "another site" in reply.text
    if not of_participants:
        for guessed in ("", "guessed", caller.csrf[:-1], caller.csrf + "x", "é"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(caller, "csrf", guessed)
                reply = world.ask(route, caller, x_csrf_token=guessed.encode())
            assert reply.status_code == 403, (guessed, reply.text)
    assert world.everything() == before
