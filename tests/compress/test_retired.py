"""RandomK and SignSGD still work, with a warning."""

import pytest
import torch

import accelerando.compress
from accelerando.compress import ErrorFeedback, decode
from accelerando.compress._retired import RandomK, SignSGD


@pytest.mark.parametrize("name", ["RandomK", "SignSGD"])
def test_the_public_name_warns_and_is_no_longer_listed(name):
    with pytest.warns(FutureWarning, match=f"compress.{name} is deprecated"):
        assert getattr(accelerando.compress, name).__name__ == name
    assert name not in accelerando.compress.__all__


def test_random_entries_are_scaled_so_that_the_mean_is_right():
    tensor, source = torch.tensor([1.0, -2.0, 3.0, 4.0]), torch.Generator().manual_seed(0)
    codec = RandomK(fraction=0.5)
    found = torch.stack([decode(codec.encode(tensor, source), (4,)) for _ in range(2000)])
    assert set(found[:, 0].tolist()) == {0.0, 2.0}
    torch.testing.assert_close(found.mean(0), tensor, atol=0.4, rtol=0)
    assert codec.expected_error(tensor) == pytest.approx(float(tensor.square().sum()))
    assert torch.equal(decode(RandomK(1.0).encode(tensor), (4,)), tensor)


def test_a_sign_has_the_mean_absolute_value():
    tensor = torch.tensor([1.0, -3.0, 2.0])
    assert decode(SignSGD().encode(tensor), (3,)).tolist() == [2.0, -2.0, 2.0]
    assert SignSGD().expected_error(tensor) == pytest.approx(2.0)
    payload, memory = ErrorFeedback(SignSGD()).encode_with(tensor, None)
    torch.testing.assert_close(decode(payload, (3,)) + memory, tensor)
