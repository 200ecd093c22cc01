"""Messages: headers, lengths, payloads."""

import pytest

from accelerando._engine.comm.message import (
    header_bytes,
    headers_of,
    join,
    number_of,
    payloads_of,
    with_headers,
)
from accelerando.compress import QSGD, Adaptive, ErrorFeedback, TopK
from accelerando.exceptions import ClusterError, PayloadError


def test_every_message_says_how_long_all_messages_of_its_rank_are():
    ranks = [with_headers(7, [b"", b"abc"]), with_headers(7, [b"de", b""])]
    first, second = headers_of([ranks[0][1], ranks[1][1]])  # what the second rank gets
    start = header_bytes(2)
    assert first.lengths == (start, start + 3)
    assert second.lengths == (start + 2, start)
    assert ranks[0][1][start:] == b"abc"


def test_payloads_of_any_length_come_back():
    payloads = [b"a" * 1000, b"", b"\x00\xff"]
    assert [bytes(one) for one in payloads_of(join(payloads))] == payloads
    assert payloads_of(join([])) == []


def test_ranks_with_different_codecs_are_told_apart():
    mine = with_headers(number_of(QSGD(bits=4)), [b"", b""])[0]
    other = with_headers(number_of(QSGD(bits=2)), [b"", b""])[0]
    with pytest.raises(ClusterError, match="Ranks have chosen different codecs for the same upd"):
        headers_of([mine, other])


def test_a_message_that_is_none_is_refused():
    with pytest.raises(PayloadError, match="it is damaged"):
        headers_of([b"\x00" * header_bytes(1)])


def test_the_number_of_a_codec_depends_on_its_settings_and_on_no_address():
    assert number_of(QSGD(bits=4)) == number_of(QSGD(bits=4))
    assert number_of(ErrorFeedback(TopK(0.1))) != number_of(ErrorFeedback(TopK(0.2)))
    assert number_of(TopK(0.1)) != number_of(ErrorFeedback(TopK(0.1)))
    one, other = (Adaptive(QSGD(), rule) for rule in (lambda s: None, lambda s: None))
    assert repr(one) != repr(other)
