"""Warm-ups last whole epochs, or parts of one."""

import math

import pytest

from accelerando._warmup import in_warmup


@pytest.mark.parametrize(
    ("epochs", "epoch", "examples", "expected"),
    [
        (0, 0, 0, False),
        (1, 0, 99, True),
        (1, 1, 100, False),
        (0.25, 0, 24, True),
        (0.25, 0, 25, False),
        (1.5, 0, 99, True),
        (1.5, 1, 149, True),
        (1.5, 1, 150, False),
        (1.5, 2, 200, False),
    ],
)
def test_the_first_epochs_are_the_warm_up(epochs, epoch, examples, expected):
    signals = {"epoch": epoch, "examples": float(examples), "n_examples": 100.0}
    assert in_warmup(signals, epochs) is expected


def test_a_part_of_an_epoch_of_unknown_length_is_the_epoch():
    signals = {"epoch": 0, "examples": 10.0, "n_examples": math.nan}
    assert in_warmup(signals, 0.5)
    assert not in_warmup({**signals, "epoch": 1}, 0.5)
