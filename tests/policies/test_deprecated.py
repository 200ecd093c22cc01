"""Old functions and names keep working for one version, and give what they gave."""

from __future__ import annotations

import pandas as pd
import pytest

from accelerando import policies
from accelerando.policies import (
    AdaDamp,
    Constant,
    Decision,
    FullBatch,
    GeoDamp,
    GeoDampLR,
    GradDamp,
    NoiseScale,
    PadaDamp,
    RadaDamp,
    RadaDampLR,
    Schedule,
    replay,
)
from accelerando.policies._core import FunctionPolicy
from accelerando.policies._deprecated import as_batch_policy, replay_losses, replay_spreads
from accelerando.sync import (
    AdaptiveAveraging,
    DecreasingAveraging,
    ElasticAveraging,
    OuterOptimizer,
    PeriodicAveraging,
)

LOSSES = [2.0 / (1 + k / 3) for k in range(12)]
NORMS = [3.0 / (1 + k / 5) for k in range(12)]

# What batch_size.replay of version 0.1 returned.
SIZES = [
    (12, [12] * 13, [12] * 13),
    (Schedule({0: 8, 2: 40}), [8] * 10 + [40] * 3, [8, 8] + [20] * 11),
    (GeoDamp(8, 1, 1.7), [8] * 5 + [14] * 5 + [24] * 3, [8, 14] + [20] * 11),
    (GeoDampLR(8, 1, 1.7), [8] * 13, [8] * 13),
    (PadaDamp(8, 0.3), [8, 9, 9, 9, 10, 10, 10, 11, 11, 11, 11, 12, 12], None),
    (AdaDamp(8, dwell=3), [8] * 6 + [13] * 3 + [18] * 3 + [23],
     [8] * 6 + [13] * 3 + [18] * 3 + [20]),
    (AdaDamp(8, dwell=2, fraction=0.3, best_loss=0.1),
     [8, 8, 8, 8, 13, 13, 18, 18, 23, 23, 28, 28, 35],
     [8, 8, 8, 8, 13, 13, 18, 18, 20, 20, 20, 20, 20]),
    (GradDamp(8, dwell=3), [8] * 6 + [17] * 3 + [28] * 3 + [42], [8] * 3 + [20] * 10),
    (RadaDamp(8, memory=0.9), [8, 8, 9, 9, 9, 10, 11, 11, 12, 13, 13, 14, 15],
     [8, 8, 9, 9, 9, 10, 10, 11, 12, 13, 13, 14, 15]),
    (RadaDamp(8, memory=0.5, dwell=4), [8] * 4 + [13] * 4 + [24] * 4 + [35],
     [8] * 4 + [13] * 4 + [20] * 5),
    (RadaDampLR(8, memory=0.9), [8] * 13, [8] * 13),
    (FullBatch(), [500] * 13, [20] * 13),
    (lambda signals: 8 if signals.epoch < 1 else 24.5, [8] * 5 + [25] * 8, [8] + [20] * 12),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "free", "capped"), SIZES, ids=lambda p: type(p).__name__)
def test_batch_sizes_are_those_of_the_old_replay(policy, free, capped):
    sizes = replay_losses(policy, LOSSES, grad_norms=NORMS, updates_per_epoch=5, n_examples=500)
    assert sizes == free
    assert all(type(size) is int for size in sizes)
    capped = free if capped is None else capped
    assert replay_losses(policy, LOSSES, n_examples=25, max_batch_size=20) == capped


T, F = True, False
SPREADS = [0.8, 0.3, 0.9, 0.2, 0.6, 0.7, 0.1, 0.4, 0.5, 0.2, 0.3, 0.6]
# What sync.replay of version 0.1 returned for four updates per epoch.
PERIODS = [
    (PeriodicAveraging(3), [3] * 12, [F, F, T] * 4),
    (ElasticAveraging(3), [3] * 12, [F, F, T] * 4),
    (OuterOptimizer(4), [4] * 12, [F, F, F, T] * 3),
]


@pytest.mark.parametrize(("strategy", "period", "averaged"), PERIODS)
def test_periods_are_those_of_the_old_replay(strategy, period, averaged):
    frame = replay_spreads(strategy, SPREADS, updates_per_epoch=4)
    assert frame.columns.tolist() == ["period", "averaged"]
    assert frame["period"].tolist() == period
    assert frame["averaged"].tolist() == averaged
    assert frame["period"].dtype == int


def test_adaptive_and_decreasing_periods_are_those_of_the_old_replay():
    spreads, lrs = [1.0] * 6 + [0.01] * 6, [0.1] * 6 + [0.01] * 6
    adaptive = AdaptiveAveraging(2, sample=0.5, warmup_epochs=0)
    frame = replay_spreads(adaptive, spreads, lrs=lrs)
    assert frame["period"].tolist() == [2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4]
    assert replay_spreads(AdaptiveAveraging(2), [0.1] * 9)["period"].tolist() == [1] + [2] * 8
    decreasing = DecreasingAveraging(6, every_epochs=1)
    losses = [1 / (1 + k) for k in range(24)]
    frame = replay_spreads(decreasing, [0.1] * 24, losses=losses, updates_per_epoch=4)
    assert frame["period"].tolist() == [6] * 4 + [5] * 4 + [3] * 4 + [2] * 4 + [1] * 8
    assert replay_spreads(decreasing, [0.1] * 6)["period"].tolist() == [6, 3, 2, 1, 1, 1]


def test_the_old_order_of_arguments():
    frame = pd.DataFrame({"loss": [1.0, 0.5], "batch_size": 8, "lr": 0.1})

    def grow(signals):
        return Decision(batch_size=2 * signals.batch_size) if signals.loss < 0.7 else None

    with pytest.warns(FutureWarning, match=r"Write replay\(policy, frame\)"):
        old = replay(frame, grow)
    pd.testing.assert_frame_equal(old, replay(grow, frame))
    assert old["batch_size"].tolist() == [8, 8, 16]


def test_as_policy_returns_the_policy_that_decides():
    assert as_batch_policy(7) == Constant(7)
    assert as_batch_policy(NoiseScale, {"initial": 9}) == NoiseScale(initial=9)
    with pytest.warns(FutureWarning, match="accelerando.policies.as_policy is deprecated"):
        as_policy = policies.as_policy
    assert isinstance(as_policy(len), FunctionPolicy)
