"""The formulas of the papers, with literal numbers."""

from __future__ import annotations

import math

import pytest

from accelerando.batch_size import (
    AdaDamp,
    Constant,
    Damping,
    FullBatch,
    GeoDamp,
    GradDamp,
    PadaDamp,
    RadaDamp,
    Schedule,
    Signals,
    as_policy,
    replay,
)
from accelerando.batch_size._policy import FunctionPolicy, cap


@pytest.mark.parametrize(
    ("initial", "max_batch_size", "updates"),
    [(128, 128, 78_200), (128, 640, 34_520), (128, 3_200, 29_480), (128, 16_000, 29_240),
     (256, 5_120, 14_960)],
)  # fmt: skip
def test_updates_of_table_1_of_the_adadamp_paper(initial, max_batch_size, updates):
    """200 epochs of 50,000 examples, the batch times 5 every 60 epochs."""
    policy = GeoDamp(initial=initial, delay=60, factor=5)
    total = 0
    for epoch in range(200):
        damping, _ = policy.decide(Signals(0, epoch, 0, 0, 50_000), {})
        rows, _ = cap(damping, max_batch_size=max_batch_size, n_examples=50_000)
        total += math.ceil(50_000 / rows)
    assert total == updates


def test_learning_rate_follows_figure_2_of_the_adadamp_paper():
    policy = GeoDamp(initial=128, delay=60, factor=5)
    scales = []
    for epoch in (0, 60, 120, 180):
        damping, _ = policy.decide(Signals(0, epoch, 0, 0, 50_000), {})
        scales.append(cap(damping, max_batch_size=3200, n_examples=50_000))
    assert scales == [(128, 1.0), (640, 1.0), (3200, 1.0), (3200, 0.2)]


def test_radadamp_is_algorithm_1_line_by_line():
    losses, norms = [2.0, 1.5, 1.7, 0.4], [3.0, 2.0, 1.0, 0.5]
    rho, lam, initial = 0.8, 0.01, 50
    expected, d = [50], None
    for k in range(4):
        t = losses[k] + lam * norms[k] ** 2
        d = t if k == 0 else rho * d + (1 - rho) * t
        d0 = t if k == 0 else d0  # noqa: F821  defined in the first turn
        expected.append(math.ceil(initial * d0 / d))
    assert (
        replay(RadaDamp(50, memory=rho, regularization=lam), losses, grad_norms=norms) == expected
    )


def test_adadamp_subtracts_the_best_loss():
    assert replay(AdaDamp(10, dwell=1, best_loss=1.0), [5.0, 3.0, 2.0]) == [10, 10, 20, 40]


def test_adadamp_keeps_its_size_between_measurements():
    assert replay(AdaDamp(10, dwell=2), [4.0, 2.0, 1.0, 0.5]) == [10, 10, 10, 10, 40]


def test_nothing_left_to_damp_means_all_rows():
    """F(w_k) <= F* would divide by zero."""
    sizes = replay(AdaDamp(10, dwell=1, best_loss=1.0), [3.0, 1.0, 0.9], n_examples=77)
    assert sizes == [10, 10, 77, 77]
    assert replay(GradDamp(10, dwell=1), [1.0] * 2, grad_norms=[1.0, 0.0], n_examples=77)[-1] == 77


def test_padadamp_adds_rows_without_rounding_slips():
    """0.1 * 30 is 3.0000000000000004 in floating point and must still round to 3."""
    assert replay(PadaDamp(8, rate=0.1), [1.0] * 30)[30] == 8 + 3


def test_schedule_counts_epochs():
    assert replay(Schedule({0: 8, 1: 16, 3: 4}), [1.0] * 4) == [8, 16, 16, 4, 4]


def test_whole_numbers_minus_one_classes_instances_functions():
    def mine(signals):
        return 3

    assert as_policy(7) == Constant(7)
    assert as_policy(-1) == FullBatch()
    assert as_policy(GeoDamp, {"delay": 60, "factor": 5}) == GeoDamp(128, 60, 5)
    assert as_policy(GeoDamp(4), {"delay": 9}) == GeoDamp(4, 9)
    assert as_policy(mine) == FunctionPolicy(mine)
    assert replay(mine, [1.0]) == [3, 3]
    assert replay(lambda s: Damping(4, 0.5), [1.0]) == [4, 4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(0), "'size' parameter of Constant must be a whole number of at least 1"),
        (lambda: Constant(True), "Got True instead"),
        (lambda: GeoDamp(delay=0), "'delay' parameter of GeoDamp must be a number above 0"),
        (lambda: GeoDamp(factor="2"), "'factor' parameter of GeoDamp"),
        (lambda: PadaDamp(rate=-1), "'rate' parameter of PadaDamp"),
        (lambda: AdaDamp(fraction=1.5), "'fraction' parameter of AdaDamp must lie above 0"),
        (lambda: AdaDamp(dwell=0), "'dwell' parameter of AdaDamp"),
        (lambda: RadaDamp(memory=1.0), r"'memory' parameter of RadaDamp must lie in \[0, 1\)"),
        (lambda: RadaDamp(regularization=-1), "'regularization' parameter of RadaDamp"),
        (lambda: Schedule({1: 5}), "epoch 0 must be among them"),
        (lambda: Schedule({0: 0}), "at least 1"),
        (lambda: as_policy(0), "at least 1"),
        (lambda: as_policy(64, {"delay": 2}), "batch_size__delay.*are for a policy"),
        (
            lambda: as_policy(GeoDamp, {"dely": 2}),
            r"GeoDamp has no parameter dely.*batch_size__delay",
        ),
    ],
)
def test_wrong_settings_say_what_is_allowed(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("bad", ["64", 6.5, None, True])
def test_what_is_no_batch_size_says_so(bad):
    with pytest.raises(TypeError, match="batch_size must be a positive whole number"):
        as_policy(bad)


def test_unknown_signals_are_named_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"no signal 'losss'\. Known signals: update, epoch"):
        replay(lambda signals: signals.losss, [1.0])


def test_fullbatch_needs_a_length():
    with pytest.raises(ValueError, match="has to know how many examples"):
        replay(FullBatch(), [1.0])
