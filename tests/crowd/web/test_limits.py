"""What one address may do in a while."""

import pytest
from starlette.requests import Request

from accelerando.crowd.web import limits
from accelerando.crowd.web.limits import Counter, address_key


def key(address, secret=b"secret"):
    client = None if address is None else (address, 5000)
    return address_key(secret, Request({"type": "http", "headers": [], "client": client}))


def test_a_window_ends_and_those_that_were_refused_do_not_prolong_it():
    counter = Counter(most=2, seconds=60)
    assert [counter.take("a", now=t) for t in (0, 30, 40, 59.9)] == [True, True, False, False]
    assert counter.take("b", now=40), "every caller has a window of its own"
    assert [counter.take("a", now=t) for t in (60, 61, 62)] == [True, True, False]


def test_the_memory_of_a_counter_has_an_end_and_forgets_who_was_seen_first(monkeypatch):
    monkeypatch.setattr(limits, "_MOST_KEYS", 3)
    counter = Counter(most=1, seconds=60)
    for name in "abc":
        counter.take(name, now=0)
    assert not counter.take("a", now=1)  # seen again, so that b is the oldest
    counter.take("d", now=2)
    assert not counter.take("a", now=3)
    assert counter.take("b", now=3), "forgotten"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),  # a home has a network of 64 bits
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("2001:db8::1", "2001:0db8:0000:0000:0000:0000:0000:0002", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),  # the same machine over either protocol
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        (None, "", True),
        ("not:an:address", "not:an:address", True),
    ],
)
def test_addresses_that_are_one_caller(one, other, same):
    assert (key(one) == key(other)) is same


def test_a_key_does_not_tell_the_address():
    assert key("192.0.2.1", b"secret") != key("192.0.2.1", b"other")
    assert "192" not in key("192.0.2.1")
