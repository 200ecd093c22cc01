"""Errors of the HTTP interface."""

import psycopg
import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from accelerando.crowd.store import Store
from accelerando.crowd.store.errors import ApiError, classify
from accelerando.exceptions import AccelerandoError, StateError


def test_an_error_has_a_code_a_sentence_and_a_status():
    error = ApiError("full", "The experiment is full.", 403)
    assert (error.code, error.status, str(error)) == ("full", 403, "The experiment is full.")
    assert ApiError("x", "y").status == 409
    with pytest.raises(AccelerandoError):
        raise error


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (psycopg.errors.AdminShutdown, "unreachable"),
        (psycopg.errors.DiskFull, "full"),
        (psycopg.errors.DataCorrupted, "damaged"),
        (psycopg.errors.ReadOnlySqlTransaction, "readonly"),
        (psycopg.errors.InvalidPassword, "refused"),
        (psycopg.errors.DeadlockDetected, "locked"),
        (psycopg.OperationalError, "unreachable"),
        (psycopg.errors.SyntaxError, "other"),
    ],
)
def test_errors_are_known_by_their_codes_and_not_by_their_words(error, found):
    assert classify(OperationalError("SELECT", {}, error("disk full, locked, connect"))) == found


def test_a_mistake_of_ours_is_no_trouble_of_the_database():
    original = psycopg.errors.UniqueViolation("disk full")
    assert classify(IntegrityError("INSERT", {}, original)) == "other"
    assert classify(ValueError("disk full")) == "other"


def test_problems_at_the_start_are_one_sentence_with_the_remedy(tmp_path):
    (tmp_path / "text.sqlite").write_text("This is a text and not a database. " * 100)
    cases = {
        f"sqlite:///{tmp_path}/text.sqlite": "accelerando crowd restore",
        f"sqlite:///{tmp_path}/nowhere/crowd.sqlite": "cannot be opened",
        "postgresql://nobody:x@127.0.0.1:1/none?connect_timeout=2": "cannot be opened",
    }
    for url, sentence in cases.items():
        with pytest.raises(StateError, match=sentence) as caught:
            Store(url)
        assert "\n" not in str(caught.value)
