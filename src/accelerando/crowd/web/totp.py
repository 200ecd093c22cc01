"""One-time passwords from a phone (TOTP, RFC 6238): 6 digits that change every 30 seconds."""

from __future__ import annotations

import base64
import hmac
import secrets
import struct
from urllib.parse import quote

__all__ = ["accepted_step", "code_at", "new_key", "uri"]

_SECONDS = 30
_WINDOW = 1  # steps that a clock may be wrong by


def new_key() -> str:
    """Return a new key of 160 bits, as apps want it typed."""
    return base64.b32encode(secrets.token_bytes(20)).decode()


def uri(key: str, name: str) -> str:
    """Return the address that apps read from a picture."""
    return f"otpauth://totp/accelerando:{quote(name)}?secret={key}&issuer=accelerando"


def code_at(key: str, step: int, digits: int = 6) -> str:
    """Return the code of a step.

    Examples
    --------
    >>> code_at(base64.b32encode(b"12345678901234567890").decode(), 59 // 30, digits=8)
    '94287082'
    """
    made = hmac.digest(base64.b32decode(key), struct.pack(">Q", step), "sha1")
    start = made[-1] & 15
    number = int.from_bytes(made[start : start + 4], "big") & 0x7FFFFFFF
    return str(number % 10**digits).zfill(digits)


def accepted_step(key: str, code: str, clock: float, last: int) -> int | None:
    """Return the step whose code this is; None if it is wrong, or was used before.

    Parameters
    ----------
    key, code : str
        The key of the account, and what was typed.
    clock : float
        The Unix time.
    last : int
        The step of the newest code that was accepted.
    """
    now, typed = int(clock) // _SECONDS, code.replace(" ", "").encode()
    found = None
    for step in range(now - _WINDOW, now + _WINDOW + 1):
        if hmac.compare_digest(code_at(key, step).encode(), typed) and step > last:
            found = step
    return found
