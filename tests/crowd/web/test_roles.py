"""Who may do what: roles of accounts, and tokens of programs, in the database."""

import pytest

from accelerando.crowd.experiment import Files, make_experiment, read_yaml
from accelerando.crowd.store import Store, experiments
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import experimenter
from accelerando.crowd.web import roles
from accelerando.crowd.web.signed import Signed

DAY = 86400.0


@pytest.fixture
def connection(tmp_path):
    """Two experiments and three accounts: 1 is an administrator, 2 and 3 are not."""
    store = Store(f"sqlite:///{tmp_path}/crowd.sqlite")
    with store.write() as made:
        for name in ("eggs", "faces"):
            yaml = f"name: {name}\nitems: 8\n"
            experiments.add(made, make_experiment(read_yaml(yaml), Files()), 1.0)
        for name in ("root", "anna", "bert"):
            values = {"name": name, "password_hash": "x", "created": 1.0, "admin": name == "root"}
            made.execute(experimenter.insert().values(must_change=False, **values))
        yield made
    store.close()


def signed(number, **options):
    return Signed(id=number, name="somebody", csrf="", **{"admin": False, **options})


ROOT, ANNA, BERT = signed(1, admin=True), signed(2), signed(3)


def allowed(connection, account, name="eggs"):
    """The needed roles that an account passes, and the status of the others."""
    found = {}
    for needed in ("viewer", "editor", "owner"):
        try:
            roles.require(connection, account, name, needed)
        except ApiError as refused:
            found[needed] = refused.status
        else:
            found[needed] = True
    return list(found.values())


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        (None, [404, 404, 404]),  # as if there were no such experiment
        ("viewer", [True, 403, 403]),
        ("editor", [True, True, 403]),
        ("owner", [True, True, True]),
    ],
)
def test_a_role_includes_the_lower_ones_and_holds_in_its_experiment_only(connection, given, passes):
    roles.give(connection, "eggs", "anna", given)
    assert allowed(connection, ANNA) == passes
    assert allowed(connection, ANNA, "faces") == [404] * 3
    assert allowed(connection, BERT) == [404] * 3
    assert allowed(connection, ROOT) == [True] * 3
    assert roles.visible(connection, ANNA) == ({"eggs"} if given else set())
    assert roles.visible(connection, ROOT) is None


def test_an_experiment_that_there_is_not_looks_like_one_without_a_role(connection):
    with pytest.raises(ApiError, match="no experiment 'none'"):
        roles.require(connection, ROOT, "none", "viewer")


def test_a_new_role_replaces_the_former_and_none_takes_it_away(connection):
    for given in ("owner", "viewer"):
        roles.give(connection, "eggs", "anna", given)
    assert roles.members(connection, "eggs") == [{"account": "anna", "role": "viewer"}]
    roles.give(connection, "eggs", "anna", None)
    assert roles.members(connection, "eggs") == []
    with pytest.raises(ApiError, match="no account 'carl'"):
        roles.give(connection, "eggs", "carl", "owner")


@pytest.mark.parametrize(
    ("scope", "given", "passes"),
    [
        ("read", "owner", [True, 403, 403]),
        ("write", "owner", [True, True, 403]),  # programs never delete
        ("write", "viewer", [True, 403, 403]),  # never more than the account
        ("read", None, [404, 404, 404]),
    ],
)
def test_a_token_allows_at_most_its_scope_and_its_account(connection, scope, given, passes):
    roles.give(connection, "eggs", "anna", given)
    assert allowed(connection, signed(2, scope=scope)) == passes
    most = [True, scope == "write" or 403, 403]
    assert allowed(connection, signed(1, admin=True, scope=scope)) == most


def make(connection, account=ANNA, **options):
    values = {"name": "script", "scope": "read", "only": None, "days": 30, "clock": 0.0}
    return roles.make_token(connection, account, **{**values, **options})


def test_a_token_is_its_account_until_it_expires(connection):
    token = make(connection, scope="write")
    found = roles.check_token(connection, token, 29 * DAY)
    assert (found.id, found.scope, found.admin) == (2, "write", False)
    assert roles.check_token(connection, token, 30 * DAY) is None
    assert roles.check_token(connection, token[:-1] + "x", 1.0) is None
    assert roles.check_token(connection, f"x{token}", 1.0) is None
    assert roles.check_token(connection, "accelerando_" + "x" * 1000, 1.0) is None


def test_a_clock_that_was_ahead_makes_no_token_without_an_end(connection):
    token = make(connection, clock=10_000 * DAY)
    assert roles.check_token(connection, token, 0.0) is None


def test_a_token_for_one_experiment_sees_no_other(connection):
    for name in ("eggs", "faces"):
        roles.give(connection, name, "anna", "editor")
    found = roles.check_token(connection, make(connection, only="faces"), 1.0)
    assert roles.visible(connection, found) == {"faces"}
    assert allowed(connection, found) == [404] * 3
    assert allowed(connection, found, "faces") == [True, 403, 403]
    with pytest.raises(ApiError, match="no experiment 'eggs'"):
        make(connection, BERT, only="eggs")  # a token is no way around the missing role


def test_the_database_keeps_no_token_and_only_its_account_revokes_it(connection):
    token = make(connection)
    kept = roles.tokens_of(connection, ANNA.id, 1.0)
    assert [one["name"] for one in kept] == ["script"]
    assert token not in repr(connection.exec_driver_sql("SELECT * FROM api_token").all())
    assert not roles.end_token(connection, BERT.id, kept[0]["id"])
    assert roles.check_token(connection, token, 1.0) is not None
    assert roles.end_token(connection, ANNA.id, kept[0]["id"])
    assert roles.check_token(connection, token, 1.0) is None


def test_the_tokens_of_an_account_are_limited_and_expired_ones_make_room(connection, monkeypatch):
    monkeypatch.setattr(roles, "_MOST_TOKENS", 2)
    for _ in range(2):
        make(connection, days=1)
    with pytest.raises(ApiError, match="at most 2 tokens"):
        make(connection)
    make(connection, BERT)
    make(connection, clock=2 * DAY)
    assert len(roles.tokens_of(connection, ANNA.id, 2 * DAY)) == 1


def test_an_account_that_must_change_its_password_has_no_tokens(connection):
    token = make(connection)
    connection.execute(experimenter.update().values(must_change=True))
    assert roles.check_token(connection, token, 1.0) is None


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/api/v1/experiments/eggs/members", "viewer"),
        ("HEAD", "/api/v1/experiments/eggs", "viewer"),
        ("POST", "/api/v1/experiments/eggs/members", "owner"),
        ("PUT", "/api/v1/experiments/eggs/members/anna", "owner"),
        ("PATCH", "/api/v1/experiments/eggs", "editor"),
        ("DELETE", "/api/v1/experiments/eggs", "owner"),
        ("INVENTED", "/api/v1/experiments/eggs", "editor"),
    ],
)
def test_what_a_request_needs(method, path, role):
    assert roles.needed_role(method, path) == role
