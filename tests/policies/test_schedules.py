"""Batch sizes that are known ahead."""

from __future__ import annotations

import math

import pytest

from accelerando._decisions import Signals, cap
from accelerando.policies import (
    Constant,
    FullBatch,
    GeoDamp,
    GeoDampLR,
    PadaDamp,
    Schedule,
    replay,
)


def sizes(policy, count, **params):
    return replay(policy, {"loss": [1.0] * count}, **params)["batch_size"].tolist()


def carried_out(policy, epoch, most):
    decision, _ = policy.decide(Signals.known(epoch=epoch, n_examples=50_000), {})
    scale = 1.0 if decision.lr_scale is None else decision.lr_scale
    return cap(decision.batch_size, scale, max_batch_size=most, n_examples=50_000)


@pytest.mark.parametrize(
    ("initial", "max_batch_size", "updates"),
    [(128, 128, 78_200), (128, 640, 34_520), (128, 3_200, 29_480), (128, 16_000, 29_240),
     (256, 5_120, 14_960)],
)  # fmt: skip
def test_updates_of_table_1_of_the_adadamp_paper(initial, max_batch_size, updates):
    """200 epochs of 50,000 examples, the batch times 5 every 60 epochs."""
    policy = GeoDamp(initial=initial, delay=60, factor=5)
    rows = [carried_out(policy, epoch, max_batch_size)[0] for epoch in range(200)]
    assert sum(math.ceil(50_000 / size) for size in rows) == updates


def test_learning_rate_follows_figure_2_of_the_adadamp_paper():
    policy = GeoDamp(initial=128, delay=60, factor=5)
    found = [carried_out(policy, epoch, 3200) for epoch in (0, 60, 120, 180)]
    assert found == [(128, 1.0), (640, 1.0), (3200, 1.0), (3200, 0.2)]


def test_geodamp_counts_epochs():
    assert sizes(GeoDamp(8, delay=2, factor=1.5), 6) == [8, 8, 12, 12, 18, 18, 27]
    assert sizes(GeoDamp(8, delay=1), 4, updates_per_epoch=2) == [8, 8, 16, 16, 32]
    assert sizes(GeoDamp(8, delay=0.5), 2) == [8, 32, 128]


def test_its_counterpart_divides_the_rate():
    frame = replay(GeoDampLR(8, delay=1, factor=4), {"loss": [1.0] * 3})
    assert frame["batch_size"].tolist() == [8] * 4
    assert frame["lr"].tolist() == [1.0, 8 / 32, 8 / 128, 8 / 512]


def test_a_rate_follows_a_batch_that_shrinks():
    frame = replay(GeoDampLR(8, delay=1, factor=0.5), {"loss": [1.0] * 2})
    assert frame["batch_size"].tolist() == [8, 4, 2]
    assert frame["lr"].tolist() == [1.0] * 3


def test_padadamp_adds_rows_without_rounding_slips():
    """0.1 * 30 is 3.0000000000000004 in floating point and must still round to 3."""
    assert sizes(PadaDamp(8, rate=0.1), 30)[30] == 8 + 3
    assert sizes(PadaDamp(8, rate=0.5), 4) == [8, 9, 9, 10, 10]


def test_schedule_counts_epochs():
    assert sizes(Schedule({0: 8, 1: 16, 3: 4}), 4) == [8, 16, 16, 4, 4]


def test_constant_and_all_rows():
    assert sizes(Constant(64), 2, n_examples=40) == [40] * 3
    assert sizes(FullBatch(), 1, n_examples=77) == [77, 77]


def test_fullbatch_needs_a_length():
    with pytest.raises(ValueError, match="has to know how many examples"):
        sizes(FullBatch(), 1)


@pytest.mark.parametrize("policy", [Constant(), FullBatch(), Schedule({0: 1}), GeoDamp(),
                                    GeoDampLR(), PadaDamp()])  # fmt: skip
def test_they_are_known_ahead(policy):
    assert policy.scheduled


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(0), "'size' parameter of Constant must be an integer of at least 1"),
        (lambda: Constant(True), "Got True instead"),
        (lambda: GeoDamp(delay=0), "'delay' parameter of GeoDamp must be a number above 0"),
        (lambda: GeoDamp(factor="2"), "'factor' parameter of GeoDamp"),
        (lambda: GeoDampLR(initial=1.5), "'initial' parameter of GeoDamp"),
        (lambda: PadaDamp(rate=-1), "'rate' parameter of PadaDamp"),
        (lambda: Schedule({1: 5}), "with an entry for epoch 0"),
        (lambda: Schedule([5]), "must be a mapping from epochs"),
        (lambda: Schedule({0: 5, -1: 5}), "counted from 0"),
        (lambda: Schedule({0: 0}), r"'sizes\[0\]' parameter of Schedule.*at least 1"),
    ],
)
def test_wrong_settings_say_what_is_allowed(make, message):
    with pytest.raises(ValueError, match=message):
        make()
