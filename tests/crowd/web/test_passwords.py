"""Short passwords and those that everybody tries first are refused."""

import pytest

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.web.passwords import _WORDS, _leaked, check_password, is_common


def test_thousands_of_common_passwords_are_refused():
    ends = ("", "1", "12", "123", "1234", "12345", "!", "1!", "2024", "2026!", "99", "007")
    tried = {
        form
        for word in _WORDS
        for end in ends
        for form in (word + end, word.capitalize() + end, word.upper() + end)
        if len(form) >= 8
    }
    assert len(tried) > 3000
    assert [one for one in tried if not is_common(one)] == []


def test_the_most_common_leaked_passwords_are_refused():
    """Rules alone let two thirds of the three thousand most common ones pass."""
    assert len(_leaked()) >= 4000
    assert all(len(one) == 10 for one in _leaked())
    tried = ("babygirl", "zaq12wsx", "1qazxsw2", "Elephant", "homelesspa", "MIDNIGHT", "pakistan")
    assert [one for one in tried if not is_common(one)] == []


@pytest.mark.parametrize(
    "password",
    ["12345678", "987654321", "qwertyuiop", "1q2w3e4r", "1qaz2wsx", "aaaaaaaa", "abababab",
     "P@ssw0rd", "Pa$$w0rd1", "l3tm31n!", "abcd1234", "11112222", "passwordpassword", "!!!!!!!!",
     "20261118", "short", "", "mary1990", "Mary-mary"],
)  # fmt: skip
def test_these_are_refused(password):
    with pytest.raises(ApiError) as error:
        check_password(password, "mary", "marymary")
    assert error.value.status == 422


@pytest.mark.parametrize(
    "password",
    ["four words of mine", "tin whistle, left pocket", "xK3-9vQz_mm1", "größer als gestern"],
)
def test_these_are_accepted(password):
    check_password(password, "mary")
