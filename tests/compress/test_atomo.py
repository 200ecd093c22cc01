"""Atomo: parameters, and what a payload contains. The contract has the statistics."""

import math

import pytest
import torch

from accelerando.compress import Atomo, _payload, decode
from accelerando.exceptions import PayloadError


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"budget": 0}, "'budget' parameter of Atomo"),
        ({"budget": math.inf}, "'budget' parameter of Atomo"),
        ({"budget": True}, "'budget' parameter of Atomo"),
        ({"atoms": "wavelets"}, "must be 'auto', 'svd', 'entries' or 'fourier'"),
        ({"share": 0}, "'share' parameter of Atomo"),
        ({"share": 1}, "'share' parameter of Atomo"),
        ({"share": 0.1, "budget": 3}, "'budget' .* must be None with share=0.1"),
        ({"share": 0.1, "atoms": "fourier"}, "'auto', 'svd' or 'entries' with a share"),
        ({"atoms": (torch.fft.fft, torch.fft.ifft)}, "'atoms' parameter of Atomo"),
        ({"method": "fast"}, "'method' parameter of Atomo"),
        ({"atoms": "entries", "method": "exact"}, "'method' .* must be 'auto' with atoms"),
    ],
)
def test_wrong_settings_are_named(parameters, named):
    with pytest.raises(ValueError, match=named):
        Atomo(**parameters)


def test_a_tensor_that_is_no_larger_than_its_atoms_is_sent_uncompressed():
    tensor = torch.randn(4, 4)
    payload = Atomo(budget=2).encode(tensor)
    assert len(payload) == _payload.HEADER_BYTES + tensor.nbytes
    assert torch.equal(decode(payload, (4, 4)), tensor)


def test_zeros_take_no_atom():
    payload = Atomo(budget=1).encode(torch.zeros(40, 40))
    assert len(payload) == _payload.HEADER_BYTES + 8


def test_payloads_of_user_defined_transforms_are_refused_with_their_name():
    payload = _payload.seal(8, torch.float32, 3, b"")
    with pytest.raises(PayloadError, match="Atomo with a user-defined transform, which was rem"):
        decode(payload, (3,))
