"""The base class of codecs: settings, pickles, and payloads that nothing decodes."""

import pickle

import pytest
import torch

from accelerando.compress import (
    QSGD,
    Atomo,
    ErrorFeedback,
    PowerSGD,
    TopK,
    _codec,
    _payload,
    decode,
)
from accelerando.exceptions import PayloadError


@pytest.mark.parametrize(
    "compressor", [QSGD(bits=3), ErrorFeedback(TopK(0.1)), PowerSGD(4), Atomo(2)], ids=repr
)
def test_compressors_travel_between_processes(compressor):
    assert pickle.loads(pickle.dumps(compressor)) == compressor


def test_unknown_settings_are_named_with_a_proposal():
    with pytest.raises(ValueError, match=r"no setting 'bit'. Did you mean 'bits'. Its settings"):
        QSGD().with_settings(bit=3)


def test_a_payload_of_a_kind_that_is_not_known_is_refused():
    with pytest.raises(PayloadError, match="kind 99, which this version"):
        decode(_payload.seal(99, torch.float32, 1, b""), (1,))


def test_numbers_of_removed_kinds_are_never_used_again():
    with pytest.raises(AssertionError):
        _codec.body_decoder(8)(lambda *args: torch.zeros(1))
    assert not set(_codec.REMOVED_KINDS) & set(_codec._DECODERS)


def test_an_uncompressed_body_must_have_the_announced_length():
    with pytest.raises(PayloadError, match="differ in the number"):
        decode(_payload.seal(1, torch.float32, 2, b"\0" * 4, raw=True), (2,))
