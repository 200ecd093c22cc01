"""The formulas of the AdaDamp papers, with literal numbers."""

from __future__ import annotations

import math

import pytest

from accelerando._decisions import Decision, Measure, Signals
from accelerando.policies import AdaDamp, GradDamp, RadaDamp, RadaDampLR, replay


def sizes(policy, losses, grad_norms=None, **params):
    columns = {"loss": losses} if grad_norms is None else {"loss": losses, "grad_norm": grad_norms}
    return replay(policy, columns, **params)["batch_size"].tolist()


def test_radadamp_is_algorithm_1_line_by_line():
    losses, norms = [2.0, 1.5, 1.7, 0.4], [3.0, 2.0, 1.0, 0.5]
    rho, lam, initial = 0.8, 0.3, 50
    expected, d = [50], None
    for k in range(4):
        t = losses[k] + lam * norms[k] ** 2
        d = t if k == 0 else rho * d + (1 - rho) * t
        d0 = t if k == 0 else d0  # noqa: F821  defined in the first turn
        expected.append(math.ceil(initial * d0 / d))
    assert sizes(RadaDamp(50, memory=rho, regularization=lam), losses, norms) == expected
    assert len(set(expected)) == 4  # the first two are equal


def test_radadamp_changes_the_size_in_every_dwell_updates():
    losses = [1.0 / (k + 1) for k in range(8)]
    free = sizes(RadaDamp(50, memory=0.5), losses)
    slow = sizes(RadaDamp(50, memory=0.5, dwell=3), losses)
    assert slow == [free[0]] * 3 + [free[3]] * 3 + [free[6]] * 3


def test_adadamp_subtracts_the_best_loss():
    assert sizes(AdaDamp(10, dwell=1, best_loss=1.0), [5.0, 3.0, 2.0]) == [10, 10, 20, 40]


def test_adadamp_keeps_its_size_between_measurements():
    assert sizes(AdaDamp(10, dwell=2), [4.0, 2.0, 1.0, 0.5]) == [10, 10, 10, 10, 40]


def test_graddamp_follows_the_squared_norm():
    assert sizes(GradDamp(10, dwell=1), [1.0] * 3, [4.0, 2.0, 1.0]) == [10, 10, 40, 160]


def test_measurements_of_other_policies_do_not_count():
    """Another policy may measure in updates in which this one does not."""
    for policy in (AdaDamp(10, dwell=5), GradDamp(10, dwell=5)):
        signals = Signals.known(update=7, full_loss=0.1, full_grad_norm=0.1)
        state = {"first": 1.0, "size": 20.0}
        assert policy.decide(signals, state) == (Decision(20.0), state)
        assert policy.decide(signals.but(update=10), state)[0].batch_size > 90


def test_what_is_measured_and_when():
    assert AdaDamp(dwell=3, fraction=0.5).measures(6) == Measure("loss", 0.5)
    assert AdaDamp(dwell=3).measures(7) is None
    assert GradDamp(dwell=3).measures(6) == Measure("grad_norm", 1.0)
    assert GradDamp(dwell=3).measures(7) is None
    assert RadaDamp().measures(0) is None


def test_nothing_left_to_damp_means_all_rows():
    """F(w_k) <= F* would divide by zero."""
    policy = AdaDamp(10, dwell=1, best_loss=1.0)
    assert sizes(policy, [3.0, 1.0, 0.9], n_examples=77) == [10, 10, 77, 77]
    assert sizes(policy, [3.0, 1.0, 0.9]) == [10, 10, 10, 10]
    assert sizes(GradDamp(10, dwell=1), [1.0] * 2, [1.0, 0.0], n_examples=77)[-1] == 77


def test_a_loss_that_begins_below_the_best_one_never_gives_a_negative_size():
    assert sizes(AdaDamp(10, dwell=1, best_loss=1.0), [0.5, 3.0, 2.0]) == [10, 10, 10, 20]
    frame = replay(
        RadaDamp(10, dwell=1, memory=0.0), {"loss": [-1.0, 4.0, 2.0], "grad_norm": [0.0] * 3}
    )
    assert frame["batch_size"].tolist() == [10, 10, 10, 20]


def test_the_counterpart_lowers_the_rate_where_the_batch_would_grow():
    run = {"loss": [2.0, 1.0, 1.0], "lr": [0.1] * 3}
    grown = replay(RadaDamp(64, memory=0.5), run)
    decayed = replay(RadaDampLR(64, memory=0.5), run)
    assert grown["batch_size"].tolist() == [64, 64, 86, 103]
    assert decayed["batch_size"].tolist() == [64] * 4
    assert decayed["lr"].tolist() == [0.1, 0.1, 0.1 * (64 / 86), 0.1 * (64 / 103)]


def test_the_counterpart_shrinks_the_batch_with_the_original():
    run = {"loss": [1.0, 2.0, 4.0], "lr": [0.1] * 3}
    decayed = replay(RadaDampLR(64, memory=0.5), run)
    assert decayed["batch_size"].tolist() == [64, 64, 43, 24]
    assert decayed["lr"].tolist() == [0.1] * 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdaDamp(initial=0), "'initial' parameter of AdaDamp must be an integer of at"),
        (lambda: AdaDamp(fraction=1.5), "'fraction' parameter of AdaDamp must be a number above 0"),
        (lambda: AdaDamp(dwell=0), "'dwell' parameter of AdaDamp"),
        (lambda: AdaDamp(best_loss="0"), "'best_loss' parameter of AdaDamp"),
        (lambda: GradDamp(fraction=0), "'fraction' parameter of GradDamp"),
        (lambda: RadaDamp(memory=1.0), "'memory' parameter of RadaDamp must be a number of at lea"),
        (lambda: RadaDamp(regularization=-1), "'regularization' parameter of RadaDamp"),
        (lambda: RadaDampLR(dwell=0.5), "'dwell' parameter of RadaDamp"),
    ],
)
def test_wrong_settings_say_what_is_allowed(make, message):
    with pytest.raises(ValueError, match=message):
        make()
