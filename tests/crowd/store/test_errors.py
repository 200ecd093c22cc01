"""Errors of the HTTP interface."""

import pytest

from accelerando.crowd.store.errors import ApiError
from accelerando.exceptions import AccelerandoError


def test_an_error_has_a_code_a_sentence_and_a_status():
    error = ApiError("full", "The experiment is full.", 403)
    assert (error.code, error.status, str(error)) == ("full", 403, "The experiment is full.")
    assert ApiError("x", "y").status == 409
    with pytest.raises(AccelerandoError):
        raise error
