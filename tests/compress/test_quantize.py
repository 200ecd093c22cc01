"""QSGD, TernGrad and LqQuantize: parameters. The contract has the statistics."""

import math

import pytest
import torch

from accelerando.compress import QSGD, LqQuantize, TernGrad


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: QSGD(bits=0), "'bits' parameter of QSGD must be an integer from 1 to 8"),
        (lambda: QSGD(bits=9), "'bits' parameter of QSGD"),
        (lambda: QSGD(bits=True), "'bits' parameter of QSGD"),
        (lambda: QSGD(bucket=0), "'bucket' parameter of QSGD"),
        (lambda: QSGD(norm=0.5), "'norm' parameter of QSGD"),
        (lambda: QSGD(coding="huffman"), "'coding' parameter of QSGD"),
        (lambda: TernGrad(bucket=1.5), "'bucket' parameter of TernGrad"),
        (lambda: LqQuantize(q=0), "'q' parameter of LqQuantize"),
        (lambda: LqQuantize(q=math.nan), "'q' parameter of LqQuantize"),
        (lambda: LqQuantize(bucket=0), "'bucket' parameter of LqQuantize"),
    ],
)
def test_wrong_settings_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def test_the_largest_entry_and_the_entire_tensor_are_allowed():
    assert QSGD(norm=math.inf, bucket=None).levels == 15
    assert LqQuantize(q=math.inf, bucket=None).q == math.inf


def test_the_elias_coding_warns_and_changes_no_value():
    with pytest.warns(FutureWarning, match="Leave out coding") as caught:
        codec = QSGD(bits=2, coding="elias")
    assert caught[0].filename == __file__
    assert codec == QSGD(bits=2)
    assert repr(codec) == "QSGD(bits=2, bucket=512, norm=inf, warmup_epochs=0)"
    tensor = torch.randn(50)
    seed = torch.Generator().manual_seed
    assert codec.encode(tensor, seed(0)) == QSGD(bits=2).encode(tensor, seed(0))


@pytest.mark.parametrize(
    ("codec", "bits"),
    [(QSGD(bits=1), 1.6), (QSGD(bits=4), 5), (QSGD(bits=8), 9), (TernGrad(), 1.6)],
)
def test_an_entry_takes_the_documented_bits(codec, bits):
    n = 51_200
    scales = 4 * (n // 512 if isinstance(codec, QSGD) else 1)
    assert abs(len(codec.encode(torch.randn(n))) - n * bits / 8 - scales) <= 48
