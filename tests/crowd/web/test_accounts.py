"""Accounts of experimenters."""

import pytest
from argon2 import Type

from accelerando.crowd.store import Store
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.web import accounts
from tests.crowd.web.conftest import SERVICE_HASHER


@pytest.fixture
def connection(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/crowd.sqlite")
    with store.write() as connection:
        yield connection
    store.close()


def test_the_service_hashes_passwords_at_least_as_owasp_recommends():
    """The other tests hash quickly."""
    assert SERVICE_HASHER.type is Type.ID
    assert SERVICE_HASHER.memory_cost >= 19 * 1024  # KiB
    assert SERVICE_HASHER.time_cost >= 2


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
    token = accounts.sign_in(connection, number, "hash", "caller", "anna", 100.0)
    assert accounts.check_session(connection, token, 101.0).name == "anna"
    assert accounts.check_session(connection, token, 101.0 + accounts.SESSION_SECONDS) is None
    assert accounts.check_session(connection, token + "x", 101.0) is None
    assert accounts.check_session(connection, None, 101.0) is None
    accounts.sign_out(connection, token)
    assert accounts.check_session(connection, token, 101.0) is None
    token = accounts.sign_in(connection, number, "hash", "caller", "anna", 100.0)
    accounts.set_password(connection, "anna", "other", 2.0)
    assert accounts.check_session(connection, token, 101.0) is None


def test_wrong_passwords_of_one_address_are_limited(connection):
    for k in range(8):
        accounts.count_attempt(connection, "me", "anna", 100.0 + k)
    with pytest.raises(ApiError) as caught:
        accounts.count_attempt(connection, "me", "anna", 110.0)
    assert caught.value.status == 429
    accounts.count_attempt(connection, "somebody else", "anna", 110.0)
    accounts.count_attempt(connection, "me", "anna", 500.0)


def test_guesses_from_many_addresses_do_not_lock_out_the_owner(connection):
    """64 wrong passwords from 8 addresses once locked the only account for everybody."""
    accounts.set_password(connection, "anna", "hash", 1.0)
    number, _ = accounts.stored_hash(connection, "anna")
    accounts.sign_in(connection, number, "hash", "home", "anna", 50.0)
    for k in range(60):
        accounts.count_attempt(connection, f"caller {k % 8}", "anna", 100.0)
    for _ in range(3):
        accounts.count_attempt(connection, "home", "anna", 101.0)
    accounts.count_attempt(connection, "a new device of anna", "anna", 101.0)
    with pytest.raises(ApiError, match="Too many"):
        accounts.count_attempt(connection, "a new device of anna", "anna", 102.0)
    accounts.count_attempt(connection, "new caller", "ben", 101.0)
    accounts.count_attempt(connection, "new caller", "ben", 101.0)


def test_attempts_in_the_future_do_not_count(connection):
    """The clock was an hour ahead and has been set back."""
    for k in range(8):
        accounts.count_attempt(connection, "me", "anna", 3700.0 + k)
    accounts.count_attempt(connection, "me", "anna", 100.0)
