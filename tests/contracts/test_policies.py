"""Every policy, through the same invariants. A new policy adds one row."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle

import pytest

from accelerando import batch_size
from accelerando import policies as module
from accelerando._decisions import ALWAYS, NOTHING, Decision, Memories, Settings, Signals
from accelerando.exceptions import UnknownSignalError
from accelerando.monitor import GradientNoiseScale, GradientVariance, LossTrend, Throughput
from accelerando.policies import (
    AdaDamp,
    AdaScale,
    Constant,
    ConstantHalfLife,
    CriticalBatchSize,
    Every,
    FullBatch,
    GeoDamp,
    GeoDampLR,
    Goodput,
    GradDamp,
    GradualWarmup,
    LateSwitch,
    LinearScaling,
    NoiseScale,
    NormTest,
    PadaDamp,
    PlateauPolicy,
    Policy,
    RadaDamp,
    RadaDampLR,
    Schedule,
    Seesaw,
    SqrtScaling,
    WithWarmup,
    WorkersForThroughput,
    replay,
)
from accelerando.policies._controller import Controller
from accelerando.policies._core import FunctionPolicy
from accelerando.policies._standing import checked


def grow(signals):
    return Decision(batch_size=8 if signals.epoch < 1 else 24.5)


# Names and order of fields are in saved states: a changed text loses the memories of old states.
POLICIES = {
    "Constant(size=12)": Constant(12),
    "FullBatch()": FullBatch(),
    "Schedule(sizes={0: 8, 2: 40})": Schedule({0: 8, 2: 40}),
    "GeoDamp(initial=8, delay=1, factor=1.7)": GeoDamp(initial=8, delay=1, factor=1.7),
    "GeoDampLR(initial=8, delay=1, factor=1.7)": GeoDampLR(initial=8, delay=1, factor=1.7),
    "PadaDamp(initial=8, rate=0.3)": PadaDamp(initial=8, rate=0.3),
    "AdaDamp(initial=8, best_loss=0.0, dwell=3, fraction=1.0)": AdaDamp(initial=8, dwell=3),
    "AdaDamp(initial=8, best_loss=0.005, dwell=2, fraction=0.3)": AdaDamp(8, 0.005, 2, 0.3),
    "GradDamp(initial=8, dwell=3, fraction=1.0)": GradDamp(initial=8, dwell=3),
    "RadaDamp(initial=8, memory=0.9, regularization=0.001, dwell=1)": RadaDamp(8, memory=0.9),
    "RadaDamp(initial=8, memory=0.9, regularization=0.001, dwell=4)": RadaDamp(
        8, memory=0.9, dwell=4
    ),
    "RadaDampLR(initial=8, memory=0.9, regularization=0.001, dwell=1)": RadaDampLR(8, memory=0.9),
    "NoiseScale(initial=8, share=1.0, growth=2.0, dwell=3, smallest=None, largest=None, "
    "surest=0.5)": NoiseScale(initial=8, dwell=3),
    "NormTest(initial=8, theta=1.0, growth=2.0, dwell=3, largest=None)": NormTest(8, dwell=3),
    "LinearScaling(reference=None)": LinearScaling(),
    "SqrtScaling(reference=4)": SqrtScaling(reference=4),
    "Seesaw(initial=8, epochs=5, schedule='linear', cut=1.5, largest=None)": Seesaw(
        8, 5, schedule="linear", cut=1.5
    ),
    "Seesaw(initial=8, epochs=4, schedule='cosine', cut=2.0, largest=20)": Seesaw(8, 4, largest=20),
    "LateSwitch(initial=8, final=32, epochs=4, share=0.6)": LateSwitch(8, 32, 4, 0.6),
    "CriticalBatchSize(initial=8, every=6, growth=2.0, power=0.5, tolerance=0.01, fraction=0.5, "
    "largest=None)": CriticalBatchSize(8, every=6, fraction=0.5),
    "WithWarmup(policy=GeoDamp(initial=8, delay=1, factor=2), updates=15, start_share=0.1)": (
        WithWarmup(GeoDamp(8, 1), updates=15)
    ),
    "WithWarmup(policy=NormTest(initial=8, theta=1.0, growth=2.0, dwell=3, largest=None), "
    "updates=15, start_share=0.5)": WithWarmup(NormTest(8, dwell=3), 15, 0.5),
    "Goodput(initial=8, largest=64, most=4, dwell=4, scaling='adascale', gain=0.03)": Goodput(
        8, 64, 4, 4
    ),
    "ConstantHalfLife(reference=None)": ConstantHalfLife(),
    "AdaScale(reference=None, dwell=3)": AdaScale(dwell=3),
    "GradualWarmup(epochs=2, start_share=0.1, updates=None)": GradualWarmup(epochs=2),
    "GradualWarmup(epochs=5.0, start_share=0.1, updates=20)": GradualWarmup(updates=20),
    "PlateauPolicy(signal='loss_average', patience=4, progress=0.01, grow=2.0, decay=1.0)": (
        PlateauPolicy(patience=4)
    ),
    "PlateauPolicy(signal='loss', patience=4, progress=0.01, grow=1.0, decay=0.5)": PlateauPolicy(
        signal="loss", patience=4, grow=1.0, decay=0.5
    ),
    "WorkersForThroughput(most=4, efficiency=0.7, dwell=3, first=1)": WorkersForThroughput(
        most=4, dwell=3
    ),
    "Every(policy=GeoDamp(initial=8, delay=1, factor=2), updates=5, epochs=None)": Every(
        GeoDamp(8, 1), updates=5
    ),
    "Every(policy=LinearScaling(reference=3), updates=None, epochs=1)": Every(
        LinearScaling(3), epochs=1
    ),
    "function": FunctionPolicy(grow),
}
EVERY = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
OF_MONITORS = {
    name
    for monitor in (GradientNoiseScale, GradientVariance, LossTrend, Throughput)
    for name in monitor.signals
}


def recorded(count=40):
    """Yield the signals before each update of an invented run."""
    for k in range(count):
        known = k > 5
        yield Signals.known(
            update=k,
            epoch=k // 10,
            examples=8 * k,
            n_examples=80,
            batch_size=8 if k < 20 else 12,
            wanted_batch_size=8 if k < 20 else 12,
            rows=8 if k else math.nan,
            lr=0.1,
            momentum=0.9,
            beta2=0.999,
            ranks=1 if k < 12 else 2,
            loss=math.nan if k == 0 else 1 / min(k, 9),
            grad_norm=math.nan if k == 0 else 1 / min(k, 9),
            full_loss=1 / (k + 1) if k % 2 == 0 or k % 3 == 0 else math.nan,
            full_grad_norm=1 / (k + 1) if k % 3 == 0 else math.nan,
            full_branch_gap=0.02 * (k > 20) if k % 6 == 0 else math.nan,
            noise_scale=10.0 * k if known else math.nan,
            noise_scale_error=0.1 if known else math.nan,
            noise_scale_low=5.0 * k if known else math.nan,
            gradient_variance=10.0 * k if known else math.nan,
            gradient_square=1.0 if known else math.nan,
            loss_average=math.nan if k == 0 else 1 / min(k, 9),
            loss_trend=math.nan,
            examples_per_second=100.0 * (1 if k < 12 else 2) if known else math.nan,
            update_seconds=0.1,
        )


def run_through(policy, signals, state=None):
    state = policy.start() if state is None else state
    decisions = []
    for one in signals:
        decision, state = policy.decide(one, state)
        decisions.append(decision)
    return decisions, state


def test_every_public_policy_has_a_row():
    names = {*module.__all__, *batch_size.__all__}
    classes = {name for name in names if isinstance(getattr(module, name), type)}
    policies = {name for name in classes if issubclass(getattr(module, name), Policy)}
    assert policies - {"Policy"} == {type(row).__name__ for row in POLICIES.values()} - {
        "FunctionPolicy"
    }


@pytest.mark.parametrize("text", POLICIES)
def test_the_text_in_saved_states_stays(text):
    assert Controller((), (POLICIES[text],)).describe() == [text]


@EVERY
def test_decisions_are_good_and_the_same_again(policy):
    before = repr(policy)
    decisions, _ = run_through(policy, recorded())
    assert any(decisions)
    assert all(one is None or checked(one, policy) is not NOTHING for one in decisions)
    assert decisions == run_through(policy, recorded())[0]
    assert repr(policy) == before


@EVERY
def test_deciding_does_not_change_the_memory(policy):
    state = policy.start()
    for signals in recorded():
        before = copy.deepcopy(dict(state))
        _, after = policy.decide(signals, state)
        assert dict(state) == before
        state = after


@EVERY
def test_state_survives_json_and_resuming_changes_nothing(policy):
    signals = list(recorded())
    whole, _ = run_through(policy, signals)
    for cut in (1, 13, 27):
        head, state = run_through(policy, signals[:cut])
        tail, _ = run_through(policy, signals[cut:], json.loads(json.dumps(dict(state))))
        assert head + tail == whole


@EVERY
def test_settings_survive_pickle_and_replace(policy):
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert dataclasses.replace(policy) == policy


@EVERY
def test_its_monitors_yield_what_it_needs(policy):
    yielded = {name for monitor in policy.monitors() for name in monitor.signals}
    assert set(policy.needs) <= yielded | set(ALWAYS)


@EVERY
def test_it_only_reads_signals_of_a_fit_and_those_it_needs(policy):
    needed = dict.fromkeys(OF_MONITORS & set(policy.needs), math.nan)
    for signals in recorded():
        policy.decide(Signals.known(**{**signals, **needed}), policy.start())
        few = {n: v for n, v in signals.items() if n not in OF_MONITORS or n in policy.needs}
        policy.decide(Signals(few), policy.start())


@EVERY
def test_a_signal_that_is_missing_is_an_error_that_lists_the_known_ones(policy):
    if isinstance(policy, Constant):
        pytest.skip("reads no signal")
    with pytest.raises(UnknownSignalError, match=r"There is no signal '\w+'. Known signals: r"):
        run_through(policy, [Signals({"ranks": 1.0})])


@EVERY
def test_before_the_first_update_nothing_is_known_and_nothing_breaks(policy):
    """As ``batch_size=`` or in ``policies=``: no error, no nan, and no size but the first one."""
    for controller in (Controller.of(batch_size=policy), Controller.of(policies=[policy])):
        if controller.policies[0] is policy and not hasattr(policy, "initial"):
            continue  # decides no batch size, or is asked for one below
        values = {"update": 0, "epoch": 0, "examples": 0, "n_examples": 80.0, "ranks": 1.0}
        plan = controller.plan(values, controller.start(), Settings(), 0.1)
        assert plan.batch_size == 8 or controller.policies[0] is not policy
        assert 0 < plan.lr_scale <= 32
        memories = Memories(plan.policy_memories).to_json()
        text = json.dumps([memories, plan.settings.to_json()])
        assert "NaN" not in text
        assert "Infinity" not in text


@EVERY
def test_it_can_be_replayed(policy):
    run = {name: [one[name] for one in recorded()][1:] for name in next(recorded())}
    run = {name: run[name] for name in ("loss", "grad_norm", "batch_size", *OF_MONITORS)}
    frame = replay(policy, run, n_examples=80, max_batch_size=60, updates_per_epoch=10)
    assert len(frame) == 40
    assert frame["batch_size"].between(1, 60).all()
    assert frame["lr"].gt(0).all()
    assert frame["decided"].any()
    assert frame.equals(replay(policy, run, n_examples=80, max_batch_size=60, updates_per_epoch=10))


def test_nothing_is_decided_from_what_is_unknown():
    unknown = Signals.known(**dict.fromkeys(OF_MONITORS, math.nan)).but(
        update=500, epoch=0, wanted_batch_size=8, lr=0.1
    )
    for policy in (NoiseScale(), NormTest(), AdaScale(), PlateauPolicy()):
        assert policy(unknown) is None
