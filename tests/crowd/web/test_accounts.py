"""Accounts of experimenters."""

import pytest

from accelerando.crowd.store import Store
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.web import accounts


@pytest.fixture
def connection(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/crowd.sqlite")
    with store.write() as connection:
        yield connection
    store.close()


def test_a_password_matches_its_hash_only(connection):
    hashed = accounts.password_hash("four words")
    assert not accounts.has_account(connection)
    accounts.set_password(connection, "anna", hashed, 1.0)
    assert accounts.has_account(connection)
    number, found = accounts.stored_hash(connection, "anna")
    assert number is not None
    assert accounts.matches(found, "four words")
    assert not accounts.matches(found, "five words")
    assert not accounts.matches("no hash", "four words")
    nobody, other = accounts.stored_hash(connection, "ben")
    assert nobody is None
    assert not accounts.matches(other, "four words")


def test_a_session_ends_by_time_by_signing_out_and_by_a_new_password(connection):
    accounts.set_password(connection, "anna", "hash", 1.0)
    number, _ = accounts.stored_hash(connection, "anna")
    token = accounts.sign_in(connection, number, "caller", 100.0)
    assert accounts.check_session(connection, token, 101.0).name == "anna"
    assert accounts.check_session(connection, token, 101.0 + accounts.SESSION_SECONDS) is None
    assert accounts.check_session(connection, token + "x", 101.0) is None
    assert accounts.check_session(connection, None, 101.0) is None
    accounts.sign_out(connection, token)
    assert accounts.check_session(connection, token, 101.0) is None
    token = accounts.sign_in(connection, number, "caller", 100.0)
    accounts.set_password(connection, "anna", "other", 2.0)
    assert accounts.check_session(connection, token, 101.0) is None


def test_eight_failures_of_a_caller_block_it_for_five_minutes(connection):
    for k in range(8):
        accounts.check_failures(connection, "me", "anna", 100.0 + k)
        accounts.add_failure(connection, "me", "anna", 100.0 + k)
    with pytest.raises(ApiError) as error:
        accounts.check_failures(connection, "me", "anna", 110.0)
    assert error.value.status == 429
    accounts.check_failures(connection, "somebody else", "anna", 110.0)
    accounts.check_failures(connection, "me", "anna", 500.0)


def test_many_callers_cannot_guess_the_password_of_one_name(connection):
    for k in range(60):
        accounts.add_failure(connection, f"caller {k}", "anna", 100.0)
    with pytest.raises(ApiError):
        accounts.check_failures(connection, "new caller", "anna", 101.0)
    accounts.check_failures(connection, "new caller", "ben", 101.0)


def test_the_key_of_a_caller_does_not_contain_the_address():
    key = accounts.caller_key(b"secret", "10.0.0.7")
    assert "10.0.0.7" not in key
    assert key == accounts.caller_key(b"secret", "10.0.0.7")
    assert key != accounts.caller_key(b"other", "10.0.0.7")
