"""One-time passwords: the numbers of RFC 6238."""

import base64

import pytest

from accelerando.crowd.web.totp import accepted_step, code_at, new_key, uri

KEY = base64.b32encode(b"12345678901234567890").decode()


@pytest.mark.parametrize(
    ("clock", "code"),
    [(59, "94287082"), (1111111109, "07081804"), (1111111111, "14050471"), (1234567890, "89005924"),
     (2000000000, "69279037"), (20000000000, "65353130")],
)  # fmt: skip
def test_the_vectors_of_the_standard(clock, code):
    assert code_at(KEY, clock // 30, digits=8) == code
    assert accepted_step(KEY, code[-6:], clock, last=0) == clock // 30


def test_a_code_is_accepted_once_and_near_its_time():
    code = code_at(KEY, 100)
    assert accepted_step(KEY, f"{code[:3]} {code[3:]}", 100 * 30.0, last=99) == 100
    assert accepted_step(KEY, code, 101 * 30.0, last=99) == 100
    assert accepted_step(KEY, code, 100 * 30.0, last=100) is None
    assert accepted_step(KEY, code, 102 * 30.0, last=0) is None
    assert accepted_step(KEY, "", 3000.0, last=0) is None
    assert accepted_step(KEY, "é" * 6, 3000.0, last=0) is None


def test_keys_are_new_and_can_be_typed():
    assert new_key() != new_key()
    assert len(base64.b32decode(new_key())) == 20
    assert uri(KEY, "a b") == f"otpauth://totp/accelerando:a%20b?secret={KEY}&issuer=accelerando"
