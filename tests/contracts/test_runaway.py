"""No combination of shipped policies drives the learning rate or the batch without bound."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando._decisions import Settings
from accelerando.policies import (
    AdaDamp,
    AdaScale,
    Every,
    GeoDamp,
    GradDamp,
    GradualWarmup,
    LinearScaling,
    NoiseScale,
    NormTest,
    PadaDamp,
    PlateauPolicy,
    RadaDamp,
    RadaDampLR,
    SqrtScaling,
    WorkersForThroughput,
)
from accelerando.policies._controller import Controller
from accelerando.policies._standing import STREAM, STREAM_ROWS

N_EXAMPLES, LR = 500, 0.01
STANDING = [
    PlateauPolicy(signal="loss", patience=2, grow=2.0),
    PlateauPolicy(signal="loss", patience=3, grow=1.5, decay=0.5),
    PlateauPolicy(signal="loss", patience=1, grow=0.5),
    NoiseScale(initial=8, dwell=2),
    NormTest(initial=8, dwell=2),
    LinearScaling(),
    LinearScaling(reference=4),
    SqrtScaling(),
    AdaScale(dwell=2),
    GradualWarmup(updates=5),
    Every(PlateauPolicy(signal="loss", patience=1, grow=4.0), updates=3),
    WorkersForThroughput(),
    RadaDamp(initial=8),
    GeoDamp(initial=8, delay=1, factor=3),
]
BASES = [
    8,
    RadaDamp(initial=8),
    RadaDampLR(initial=8),
    AdaDamp(initial=8),
    GradDamp(initial=8),
    GeoDamp(initial=8, delay=1, factor=3),
    PadaDamp(initial=8, rate=1.0),
    NoiseScale(initial=8, dwell=2),
]
# What monitors would say if the noise asked for the largest of batches, forever.
MONITORED = {
    "loss": 1.0,
    "loss_average": 1.0,
    "loss_trend": 0.0,
    "grad_norm": 1.0,
    "noise_scale": 1e9,
    "noise_scale_low": 1e9,
    "noise_scale_error": 0.0,
    "gradient_variance": 1e9,
    "gradient_square": 1.0,
    "examples_per_second": 100.0,
    "full_loss": 1.0,
    "full_grad_norm": 1.0,
}


def run(base, standing, *, n_examples, max_batch_size, updates=300):
    """Return the learning rate and the batch size of every update on a constant loss."""
    controller = Controller.of(policies=standing, batch_size=base, max_batch_size=max_batch_size)
    memories, held = controller.start(), Settings()
    memories.signals.clear()
    found, size = [], math.nan
    for update in range(updates):
        values = {**MONITORED, "update": update, "epoch": update // 10, "examples": 8 * update}
        values |= {"n_examples": n_examples, "batch_size": size, "rows": size, "ranks": 1}
        plan = controller.plan(values, memories, held, LR)
        memories.policies, held, size = plan.policy_memories, plan.settings, plan.batch_size
        found.append((LR * plan.lr_scale, plan.batch_size))
    return found


@given(
    base=st.sampled_from(BASES),
    standing=st.lists(st.sampled_from(STANDING), max_size=4),
    max_batch_size=st.sampled_from([None, 64, 10_000]),
    stream=st.booleans(),
)
@settings(max_examples=150)
def test_nothing_runs_away_on_a_constant_loss(base, standing, max_batch_size, stream):
    grows_by_schedule = isinstance(base, GeoDamp | PadaDamp)
    grows_by_schedule |= any(isinstance(one, GeoDamp) for one in standing)
    if stream and max_batch_size is None and grows_by_schedule:
        max_batch_size = 64  # nothing else bounds what a formula of the epoch asks for
    n_examples = math.nan if stream else N_EXAMPLES
    most = STREAM * (max_batch_size or STREAM_ROWS // STREAM) if stream else N_EXAMPLES
    rates, sizes = zip(
        *run(base, standing, n_examples=n_examples, max_batch_size=max_batch_size), strict=True
    )
    assert 1 <= min(sizes) <= max(sizes) <= min(most, max_batch_size or most)
    # Each rule that scales with the batch is at most linear; the references here are 4 and 1.
    followers = sum(isinstance(p, LinearScaling | SqrtScaling | AdaScale) for p in standing)
    assert max(rates) <= LR * float(most) ** followers * (1 + 1e-9)
    assert all(math.isfinite(rate) and rate >= 0.0 for rate in rates)


def test_the_rate_stops_where_the_batch_does():
    """The combination that drove the learning rate from 0.01 to 82."""
    policies = [PlateauPolicy(signal="loss", patience=2), LinearScaling()]
    rates, sizes = zip(*run(8, policies, n_examples=N_EXAMPLES, max_batch_size=None), strict=True)
    assert sizes[-1] == N_EXAMPLES
    assert rates[-1] == pytest.approx(LR * N_EXAMPLES / 8, rel=1e-12)


def test_the_rate_does_not_vanish_when_the_batch_cannot_shrink_further():
    policies = [PlateauPolicy(signal="loss", patience=2, grow=0.5), LinearScaling()]
    rates, sizes = zip(*run(8, policies, n_examples=N_EXAMPLES, max_batch_size=None), strict=True)
    assert sizes[-1] == 1
    assert rates[-1] == pytest.approx(LR / 8, rel=1e-12)


def test_past_the_maximum_the_rate_falls_until_the_wish_is_the_data_set():
    policies = [PlateauPolicy(signal="loss", patience=2)]
    rates, sizes = zip(*run(8, policies, n_examples=N_EXAMPLES, max_batch_size=50), strict=True)
    assert sizes[-1] == 50
    assert rates[-1] == pytest.approx(LR * 50 / N_EXAMPLES, rel=1e-12)


def test_a_wish_from_a_larger_data_set_is_clamped_to_this_one():
    controller = Controller.of(policies=[LinearScaling(reference=8)], batch_size=8)
    plan = controller.plan(
        {"update": 9, "n_examples": 100, "batch_size": 400},
        controller.start(),
        Settings(batch_size=4000.0),
        LR,
    )
    assert (plan.batch_size, plan.settings.batch_size) == (100, 100)
    assert LR * plan.lr_scale == pytest.approx(LR * 100 / 8)
