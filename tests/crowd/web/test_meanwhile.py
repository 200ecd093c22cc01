"""What ends or changes while a request is on its way: hashing and reading files take seconds."""

import concurrent.futures
import threading
import time

import pytest
from sqlalchemy import delete, select
from sqlalchemy.exc import DBAPIError

from accelerando.crowd.store import codes, participants, session
from accelerando.crowd.store import experiments as stored
from accelerando.crowd.store.errors import ApiError, classify
from accelerando.crowd.store.schema import experimenter as experimenter_table
from accelerando.crowd.store.schema import participant
from accelerando.crowd.store.schema import session as session_table
from accelerando.crowd.web import accounts, experimenter_api, roles
from tests.crowd.web.conftest import _HASH, API, PASSWORD, QUICK_HASHER, SETTINGS
from tests.crowd.web.test_intruders import both, person, token_for  # noqa: F401

OTHER = "entirely other words"


def accounts_of(site):
    with site.store.read() as connection:
        return set(connection.execute(select(experimenter_table.c.name)).scalars())


def change_password(connection):
    accounts.set_password(connection, "eve", QUICK_HASHER.hash(OTHER), time.time())


def delete_account(connection):
    connection.execute(delete(experimenter_table).where(experimenter_table.c.name == "eve"))


@pytest.mark.parametrize("change", [change_password, delete_account])
def test_a_password_that_ends_while_it_is_checked_opens_no_session(site, monkeypatch, change):
    """The old password opened a session that outlived it; a deleted account was a 500."""
    person(site, "eve")
    check = accounts.matches

    def slow(hashed, password):
        found = check(hashed, password)
        with site.store.write() as connection:
            change(connection)
        return found

    monkeypatch.setattr(accounts, "matches", slow)
    client = site.visitor()
    reply = client.post("/api/v1/session", json={"name": "eve", "password": PASSWORD})
    assert reply.status_code == 401
    assert client.get("/api/v1/session").status_code == 401
    with site.store.read() as connection:
        assert not connection.execute(select(session_table)).all()


def hashing(site, monkeypatch, change):
    """Let a change happen while a password is hashed."""

    def slow(password):
        with site.store.write() as connection:
            change(connection)
        return _HASH

    monkeypatch.setattr(accounts, "password_hash", slow)


def end_sessions(connection):
    connection.execute(delete(session_table))


@pytest.mark.parametrize("change", [delete_account, end_sessions])
def test_an_administrator_who_is_thrown_out_makes_no_accounts_any_more(site, monkeypatch, change):
    with site.store.write() as connection:
        accounts.set_password(connection, "eve", _HASH, time.time(), admin=True)
    eve = person(site, "eve")
    hashing(site, monkeypatch, change)
    body = {"name": "mallory", "password": OTHER, "admin": True}
    assert eve.post("/api/v1/accounts", json=body).status_code == 401
    assert "mallory" not in accounts_of(site)


def test_a_role_that_is_taken_away_ends_what_is_on_its_way(site, monkeypatch):
    """Files are read and pictures decoded before anything is stored; so are confirmations."""
    eve = person(site, "eve", "owner")
    allowed = roles.require

    def taken(connection, *arguments):
        allowed(connection, *arguments)
        with site.store.write() as other:
            roles.give(other, "eggs", "eve", None)

    monkeypatch.setattr(roles, "require", taken)
    monkeypatch.setattr(roles, "still_allowed", _with(roles.still_allowed, monkeypatch, allowed))
    reply = eve.request("DELETE", API, json={"confirm": "eggs"})
    assert reply.status_code == 404
    assert site.experimenter().get(API).status_code == 200


def _with(function, monkeypatch, allowed):
    def as_before(*arguments):
        monkeypatch.setattr(roles, "require", allowed)
        return function(*arguments)

    return as_before


def test_a_token_that_is_revoked_while_files_are_read_creates_nothing(site, monkeypatch):
    admin = site.experimenter()
    robot = {"authorization": f"Bearer {token_for(admin, scope='write')}"}
    number = admin.get("/api/v1/account/tokens").json()["tokens"][0]["id"]
    make = experimenter_api.make_experiment

    def slow(*arguments):
        with site.store.write() as connection:
            assert roles.end_token(connection, 1, number)
        return make(*arguments)

    monkeypatch.setattr(experimenter_api, "make_experiment", slow)
    files = {"settings": ("e.yaml", SETTINGS.replace("eggs", "late").encode())}
    assert site.visitor().post("/api/v1/experiments", files=files, headers=robot).status_code == 401
    assert admin.get("/api/v1/experiments/late").status_code == 404


def at_once(site, *tasks):
    """Run functions of a connection, each in a transaction of its own, and return what they say."""
    begin = threading.Barrier(len(tasks))

    def run(task):
        begin.wait(30)
        try:
            with site.store.write() as connection:
                return task(connection)
        except ApiError as error:
            return error.code
        except DBAPIError as error:
            return classify(error)

    with concurrent.futures.ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(run, tasks))


def test_two_administrators_do_not_delete_one_another(both):  # noqa: F811
    """Both once succeeded, and nobody could manage accounts any more."""
    signed, clock = [], time.time()
    with both.store.write() as connection:
        for name in ("ada", "bob"):
            accounts.set_password(connection, name, _HASH, clock, admin=True)
            number, hashed = accounts.stored_hash(connection, name)
            opened = accounts.sign_in(connection, number, hashed, "caller", name, clock)
            signed.append(accounts.check_session(connection, opened, clock))
    looked = threading.Barrier(2)

    def remove(who, name):
        def work(connection):
            if not both.store.is_sqlite:  # SQLite has one writer at a time
                looked.wait(30)
            gone = experimenter_table.c.name == name
            connection.execute(delete(experimenter_table).where(gone))
            return "deleted"

        return roles.still_allowed(who, work)

    ada, bob = signed
    results = at_once(both, remove(ada, "bob"), remove(bob, "ada"))
    # PostgreSQL ends one of them, because each waits for the other.
    refused = "sign_in" if both.store.is_sqlite else "locked"
    assert sorted(results) == ["deleted", refused]
    assert len(accounts_of(both) & {"ada", "bob"}) == 1


def test_a_code_is_used_up_once_also_by_two_processes(both, monkeypatch):  # noqa: F811
    """PostgreSQL: two colleagues who checked one list at the same moment both paid."""
    secret = both.app.state.context.secret
    with both.store.write() as connection:
        session.begin(connection, "eggs", secret, {"id": "anna"}, "", None, 0, 1.0)
        connection.execute(participant.update().values(outcome="done"))
    read = threading.Barrier(2)
    known = codes.completion_code

    def both_read(*arguments):
        if not both.store.is_sqlite:  # SQLite has one writer at a time
            read.wait(30)
        return known(*arguments)

    monkeypatch.setattr(codes, "completion_code", both_read)
    with both.store.read() as connection:
        snapshot = stored.find(connection, "eggs")
        (row,) = connection.execute(select(participant)).all()
    code = known(secret, snapshot, row)

    def use(connection):
        found = codes.check_codes(connection, secret, snapshot, [code], 5.0, use=True, who="me")
        return found[0]["status"]

    assert sorted(at_once(both, use, use)) == ["used", "valid"]


def test_an_attempt_is_counted_once_also_by_two_processes(both):  # noqa: F811
    """PostgreSQL: each process saw the last attempt as free."""

    def attempt(connection):
        accounts.count_attempt(connection, "caller", "eve", 100.0)
        time.sleep(0.02)  # the transaction is open while others look
        return "counted"

    found = []
    for _ in range(4):
        found += at_once(both, attempt, attempt, attempt)
    assert found.count("counted") == 8


def test_who_is_reinstated_at_the_last_moment_keeps_the_answers(both):  # noqa: F811
    """PostgreSQL: the worker had looked already, and deleted what the experimenter had undone."""
    secret = both.app.state.context.secret
    with both.store.write() as connection:
        found = session.begin(connection, "eggs", secret, {"id": "anna"}, "", None, 2, 1.0)
        person_id = found.person.id
        participants.withdraw(connection, found.snapshot, person_id, 2.0)
    late = 2.0 + 8 * 86400
    undone, looked = threading.Event(), threading.Event()

    def reinstate(connection):
        snapshot = stored.find(connection, "eggs")
        row = participants.get(connection, snapshot, person_id, lock=True)
        participants.reinstate(connection, snapshot, row)
        undone.set()
        looked.wait(0.5)  # the worker waits for this row, so nobody sets the event
        return "reinstated"

    def clean(connection):
        undone.wait(30)
        n = participants.delete_withdrawn(connection, stored.find(connection, "eggs"), late)
        looked.set()
        return n

    tasks = (reinstate, clean) if not both.store.is_sqlite else (reinstate,)
    results = at_once(both, *tasks)
    assert results == ["reinstated", 0][: len(tasks)]
    with both.store.read() as connection:
        row = connection.execute(select(participant)).one()
    assert (row.withdrawn, row.asked) == (None, 2)
