"""Parsers of command-line values: schedules, bandwidths, durations, numbers of workers."""

from __future__ import annotations

import ast
import math
import re
from typing import Any

_BITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}


def parse_batch_size(text: str) -> Any:
    """Return the policy for a number, a table from epoch to size, or a policy with its settings.

    It accepts only names of :mod:`accelerando.batch_size` and literals. Nothing is executed.

    Examples
    --------
    >>> parse_batch_size("128")
    Constant(size=128)
    >>> parse_batch_size("0:128, 60:640")
    Schedule(sizes={0: 128, 60: 640})
    >>> parse_batch_size("GeoDamp(initial=128, delay=60, factor=5)")
    GeoDamp(initial=128, delay=60, factor=5)
    """
    from accelerando import batch_size
    from accelerando.policies._controller import as_batch_policies

    if re.fullmatch(r"\s*-?\d+\s*", text):
        return as_batch_policies(int(text))[0]
    pairs = re.fullmatch(r"\s*\{?((?:\s*\d+\s*:\s*\d+\s*,?)+)\}?\s*", text)
    if pairs:
        found = re.findall(r"(\d+)\s*:\s*(\d+)", pairs[1])
        return batch_size.Schedule({int(epoch): int(size) for epoch, size in found})
    try:
        call = ast.parse(text.strip(), mode="eval").body
        name = call.func if isinstance(call, ast.Call) else call
        if not (isinstance(name, ast.Name) and name.id in batch_size.__all__):
            raise ValueError
        kind = getattr(batch_size, name.id)
        if not isinstance(call, ast.Call):
            return kind()
        values = [ast.literal_eval(value) for value in call.args]
        named = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, AttributeError, RecursionError, MemoryError):
        raise ValueError(
            "--batch-size must be a number (128), a table from epoch to size (0:128,60:640) or a "
            f"policy (GeoDamp(initial=128, delay=60, factor=5)). Got {text!r} instead."
        ) from None
    try:
        return kind(*values, **named)
    except TypeError as error:
        raise ValueError(f"--batch-size: {error}") from None


def parse_bandwidth(text: str) -> float:
    """Return bits per second.

    Examples
    --------
    >>> parse_bandwidth("10Gb/s"), parse_bandwidth("25 Gbit"), parse_bandwidth("1.5e9")
    (10000000000.0, 25000000000.0, 1500000000.0)
    """
    found = re.fullmatch(
        r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*([kmgt]?)(?:b(?:it)?s?(?:/s|ps)?)?\s*", text, re.IGNORECASE
    )
    # A capital B means bytes, which are eight times as much.
    if found is None or re.search(r"B(?!it)", text) or not _is_number(found[1]):
        raise ValueError(
            f"--bandwidth must be bits per second such as 10Gb/s, 800Mb/s or 1e9; multiply bytes "
            f"by eight. Got {text!r} instead."
        )
    return float(found[1]) * _BITS[found[2].lower()]


def parse_seconds(text: str, name: str = "--latency") -> float:
    """Return seconds.

    Examples
    --------
    >>> parse_seconds("50us"), parse_seconds("0.73 ms"), parse_seconds("2")
    (5e-05, 0.00073, 2.0)
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?\d+)?)\s*([mnuµμ]?s?)\s*", text, re.IGNORECASE)
    if found is None or found[2].lower() not in _SECONDS or not _is_number(found[1]):
        raise ValueError(
            f"{name} must be a time such as 0.73ms, 50us or 1.5s. Got {text!r} instead."
        )
    return float(f"{float(found[1]) * _SECONDS[found[2].lower()]:.12g}")


def parse_workers(text: str) -> list[int]:
    """Return the numbers of workers to compare.

    Examples
    --------
    >>> parse_workers("1,8,40"), parse_workers("1..16")
    ([1, 8, 40], [1, 2, 4, 8, 16])
    """
    span = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", text)
    if span and 0 < int(span[1]) <= int(span[2]):
        first, last = int(span[1]), int(span[2])
        doublings = int(math.log2(last / first)) + 1
        return sorted({*(first * 2**i for i in range(doublings)), last})
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and word.isascii() and int(word) > 0 for word in words):
        raise ValueError(
            "--workers must be numbers of workers such as 1,8,40, or 1..64 for the doublings "
            f"between. Got {text!r} instead."
        )
    return sorted({int(word) for word in words})


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
