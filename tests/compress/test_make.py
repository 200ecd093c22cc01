"""From the compression argument to a compressor."""

import pytest

from accelerando.compress import QSGD, ErrorFeedback, PowerSGD, TernGrad, TopK
from accelerando.compress._make import as_compressor


def test_a_compressor_is_made_from_a_class_an_instance_or_nothing():
    assert as_compressor(None) is None
    assert as_compressor(TernGrad) == TernGrad()
    assert as_compressor(PowerSGD, {"rank": 4}) == PowerSGD(rank=4)
    assert as_compressor(QSGD(bits=2)) == QSGD(bits=2)
    assert as_compressor(QSGD(bits=2), {"bits": 3}) == QSGD(bits=3)
    assert as_compressor(ErrorFeedback(TopK(0.1)), {"fraction": 0.5}) == ErrorFeedback(TopK(0.5))


@pytest.mark.parametrize(
    ("compression", "params", "message"),
    [
        (QSGD, {"bit": 3}, "QSGD has no parameter 'bit'. Did you mean 'bits'"),
        (QSGD(), {"levels": 3}, "QSGD has no setting 'levels'"),
        (None, {"bits": 3}, "compression__bits"),
        (ErrorFeedback, {}, "compression__x"),
    ],
)
def test_wrong_settings_are_named(compression, params, message):
    with pytest.raises(ValueError, match=message):
        as_compressor(compression, params)


@pytest.mark.parametrize("wrong", ["qsgd", 4, int])
def test_other_things_are_refused(wrong):
    with pytest.raises(
        TypeError, match=r"'compression' parameter must be a codec of accelerando.compress"
    ):
        as_compressor(wrong)
