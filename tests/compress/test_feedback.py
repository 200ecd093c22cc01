"""Error feedback: nothing is lost for good."""

import math

import pytest
import torch

from accelerando.compress import ErrorFeedback, PowerSGD, TopK


@pytest.mark.parametrize("codec", ["topk", PowerSGD(), TopK])
def test_only_codecs_are_taken(codec):
    with pytest.raises(TypeError, match="'codec' parameter of ErrorFeedback must be a codec"):
        ErrorFeedback(codec)


def test_settings_go_to_the_codec():
    feedback = ErrorFeedback(TopK(0.1))
    assert feedback.with_settings(fraction=0.5) == ErrorFeedback(TopK(0.5))
    assert feedback.with_settings(codec=TopK(0.2)) == ErrorFeedback(TopK(0.2))
    with pytest.raises(ValueError, match=r"TopK has no setting 'fractio'. Did you mean 'fraction'"):
        feedback.with_settings(fractio=0.5)


def test_a_memory_survives_a_gradient_that_is_not_finite():
    feedback = ErrorFeedback(TopK(0.5))
    _, memory = feedback.encode_with(torch.tensor([2.0, 1.0]), None)
    payload, after = feedback.encode_with(torch.tensor([math.nan, 1.0]), memory)
    assert torch.equal(after, memory)
    assert feedback.decode(payload, (2,)).isnan().any()


def test_without_a_memory_it_is_the_codec():
    tensor = torch.tensor([2.0, 1.0])
    assert ErrorFeedback(TopK(0.5)).encode(tensor) == TopK(0.5).encode(tensor)
