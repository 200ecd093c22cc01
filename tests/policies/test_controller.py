"""How the decisions of several policies become one plan."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass

import pytest

from accelerando._decisions import Decision, Measure, Memories, Settings
from accelerando.exceptions import UnknownSignalError, UnsupportedError
from accelerando.monitor import (
    GradientNoiseScale,
    LossTrend,
    Monitor,
    ParameterSpread,
    Throughput,
)
from accelerando.monitor._monitor import Observation, Setting
from accelerando.policies import (
    AdaDamp,
    GeoDamp,
    GeoDampLR,
    GradDamp,
    LinearScaling,
    NoiseScale,
    PadaDamp,
    PlateauPolicy,
    Policy,
    RadaDamp,
)
from accelerando.policies._controller import Controller


def plan(controller, values=None, settings=None, *, base_lr=0.1, batches=1, memories=None):
    memories = controller.start() if memories is None else memories
    values = {"update": 0, "epoch": 0, **(values or {})}
    return controller.plan(values, memories, settings or Settings(), base_lr, batches)


# -- one policy -----------------------------------------------------------------------------------


def test_a_plan_has_rows_for_all_batches_of_an_update():
    found = plan(Controller.of(batch_size=10), batches=3)
    assert found[:3] == (30, 10, 1.0)
    assert found.policy_memories == [{}]


def test_past_the_largest_batch_the_rate_falls():
    policy = GeoDampLR(initial=40, delay=1, factor=2)
    found = plan(Controller.of(batch_size=policy, max_batch_size=30), {"epoch": 1})
    assert found[:3] == (30, 30, 0.5 * (30 / 40))
    assert plan(Controller.of(batch_size=40, max_batch_size=30), {"n_examples": 20})[:3] == (
        20,
        20,
        0.75,
    )


def test_a_function_works_before_the_first_update():
    controller = Controller.of(batch_size=lambda s: 64 if s.loss < 0.5 else 32)
    assert plan(controller).batch_size == 32
    assert plan(controller, {"loss": 0.4}).batch_size == 64


def test_a_function_that_returns_nothing_keeps_the_size():
    controller = Controller.of(
        batch_size=lambda s: Decision(3000.5, lr_scale=0.5) if s.update == 1 else None,
        max_batch_size=1000,
    )
    first = plan(controller, {"update": 1})
    kept = plan(controller, {"update": 2, "batch_size": 1000}, first.settings)
    assert first.lr_scale == 0.5 * (1000 / 3001)
    # The wanted size is kept, not the one within the bounds; lr_scale held for one update.
    assert kept[:3] == (1000, 1000, 1000 / 3001)
    with pytest.raises(ValueError, match="returned no batch size before the first update"):
        plan(controller)
    # A state of an older version knows what was carried out.
    assert plan(controller, {"update": 2, "batch_size": 48}).batch_size == 48


def test_a_policy_of_ones_own_begins_with_its_initial_size():
    class Late(Policy):
        initial = 24

        def decide(self, signals, state):
            return (Decision(batch_size=48) if signals.update > 5 else None), state

    assert plan(Controller.of(batch_size=Late())).batch_size == 24
    assert plan(Controller.of(batch_size=Late()), {"update": 6}).batch_size == 48


def test_a_function_for_the_batch_size_may_decide_other_settings_too():
    def decide(signals):
        return Decision(8, lr=0.2, momentum=0.5) if signals.update == 0 else 8

    controller = Controller.of(batch_size=decide)
    first = plan(controller)
    later = plan(controller, {"update": 1}, first.settings)
    assert later.lr_scale == first.lr_scale == 2.0
    assert later.settings.momentum == 0.5
    assert later.settings.batch_size is None
    with pytest.raises(ValueError, match=r"Decision\(momentum=...\) must be"):
        plan(Controller.of(batch_size=lambda s: Decision(8, momentum=7)))
    with pytest.raises(ValueError, match=r"Decision\(batch_size=...\) must be"):
        plan(Controller.of(batch_size=lambda s: Decision("8")))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_policy_that_returns_no_number_is_named(bad):
    with pytest.raises(ValueError, match=r"must be a number above 0.*decided"):
        plan(Controller.of(batch_size=lambda signals: bad))


def test_the_base_policy_sees_the_size_and_the_rows_of_the_last_update():
    seen = []
    controller = Controller.of(batch_size=lambda s: seen.append((s.batch_size, s.rows, s.lr)) or 8)
    plan(controller, {"batch_size": 8, "rows": 5})
    plan(controller)
    assert seen[0] == (8, 5, 0.1)
    assert math.isnan(seen[1][0])


def test_standing_policies_see_what_the_base_policy_decided():
    seen = []
    controller = Controller.of(
        policies=[lambda s: seen.append((s.batch_size, s.lr, s.momentum, s.period))],
        batch_size=lambda s: Decision(12, lr=0.3, momentum=0.5, period=2),
    )
    plan(controller, {"momentum": 0.9, "period": 1.0})
    assert seen == [(12.0, 0.1 * (0.3 / 0.1), 0.5, 2.0)]


# -- standing policies ----------------------------------------------------------------------------


def test_a_standing_size_replaces_size_and_factor_of_the_base():
    grow = [lambda s: Decision(batch_size=50) if s.update == 3 else None]
    controller = Controller.of(policies=grow, batch_size=GeoDampLR(8, 1, 2), max_batch_size=40)
    assert plan(controller, {"epoch": 1})[:3] == (8, 8, 0.5)
    decided = plan(controller, {"update": 3, "epoch": 1})
    assert decided[:3] == (40, 40, 40 / 50)
    later = plan(controller, {"update": 4, "epoch": 1}, decided.settings)
    assert later[:3] == (40, 40, 40 / 50)
    assert later.settings.batch_size == 50.0


def test_later_policies_see_what_earlier_ones_decided():
    seen = []

    def look(signals):
        names = ("batch_size", "wanted_batch_size", "lr", "momentum", "beta2", "period")
        seen.append([signals[name] for name in names])
        return Decision(workers=7)

    first = Decision(16.5, lr=0.2, betas=(0.5, 0.9), workers=5, period=3)
    policies = [lambda s: first, LinearScaling(reference=8), look]
    controller = Controller.of(policies=policies, batch_size=8, max_batch_size=10)
    found = plan(controller, {"momentum": 0.9, "beta2": 0.99, "period": 1.0})
    assert seen == [[10.0, 16.5, 0.2 * (16.5 / 8), 0.5, 0.9, 3.0]]
    assert found.settings.workers == 5
    assert found.settings.period == 3


def test_decisions_are_signals_of_the_next_update():
    seen = []
    controller = Controller.of(policies=[lambda s: seen.append(dict(s))], max_batch_size=40)
    settings = Settings(batch_size=64.0, lr_scale=2.0, momentum=0.5, period=4)
    plan(controller, {"momentum": 0.9, "period": 1.0, "n_examples": 30.0}, settings)
    expected = {"batch_size": 30, "wanted_batch_size": 30, "lr": 0.2, "momentum": 0.5, "period": 4}
    assert {name: seen[0][name] for name in expected} == expected


def test_factors_of_several_policies_multiply_and_hold():
    def halve(signals):
        return Decision(lr_scale=0.5) if signals.update == 1 else None

    def third(signals):
        return Decision(lr_scale=0.3, lr=0.2) if signals.update == 2 else None

    controller = Controller.of(policies=[halve, third], batch_size=8)
    settings, scales = Settings(), []
    for update in range(4):
        found = plan(controller, {"update": update}, settings)
        settings = found.settings
        scales.append(found.lr_scale)
    assert scales == [1.0, 0.5, 2.0 * 0.5 * 0.3, 2.0 * 0.5 * 0.3]
    assert settings.scales == (0.5, 0.3)


def test_the_smaller_number_of_workers_wins_and_the_later_decision_otherwise():
    policies = [
        lambda s: Decision(workers=5, lr=0.3),
        lambda s: Decision(workers=7, lr=0.4),
        lambda s: None,
    ]
    found = plan(Controller.of(policies=policies))
    assert found.settings.workers == 5
    assert found.lr_scale == 0.4 / 0.1


def test_what_is_no_decision_is_refused():
    with pytest.raises(TypeError, match="returns a Decision or None"):
        plan(Controller.of(policies=[lambda signals: 64]))
    with pytest.raises(ValueError, match=r"Decision\(lr=...\) must be"):
        plan(Controller.of(policies=[lambda signals: Decision(lr=-1)]))


def test_occasional_batch_sizes_begin_with_a_constant():
    controller = Controller.of(batch_size=NoiseScale(initial=8, dwell=1, growth=4.0))
    noise = {"noise_scale": 100.0, "noise_scale_error": 0.1, "noise_scale_low": 50.0}
    memories = controller.start()
    assert plan(controller, memories=memories).batch_size == 8
    memories.signals.update(noise)
    found = plan(controller, {"update": 5}, memories=memories)
    assert found.batch_size == 32
    assert found.policy_memories == [{}, {"first": 8.0, "last": 5}]


# -- purity ---------------------------------------------------------------------------------------


def test_planning_changes_nothing():
    """A plan is asked for again at the end of an epoch and after a lost rank."""
    controller = Controller.of(
        policies=[PlateauPolicy(signal="loss", patience=1), LinearScaling()],
        batch_size=RadaDamp(8, memory=0.5),
    )
    memories, settings = controller.start(), Settings()
    for update in range(6):
        values = {"update": update, "loss": 1.0, "grad_norm": 1.0} if update else {"update": 0}
        before = copy.deepcopy(memories)
        found = plan(controller, values, settings, memories=memories)
        assert plan(controller, values, settings, memories=memories) == found
        assert memories == before
        memories, settings = Memories(found.policy_memories), found.settings
    assert settings.batch_size > 8


def test_a_controller_can_be_sent_to_a_rank():
    controller = Controller.of([LossTrend()], [LinearScaling()], GeoDamp(8), None, 64)
    assert controller.active
    assert pickle.loads(pickle.dumps(controller)) == controller


# -- before training ------------------------------------------------------------------------------


def test_monitors_that_policies_need_are_added_once():
    controller = Controller.of([GradientNoiseScale(every=3)], [NoiseScale(), PlateauPolicy()])
    assert controller.monitors == (GradientNoiseScale(every=3), LossTrend())
    expected = (*GradientNoiseScale.signals, *LossTrend.signals, "workers")
    assert controller.columns == expected
    assert Controller.of([LossTrend()]).columns == LossTrend.signals


def test_what_a_controller_knows_about_itself():
    plain = Controller.of(batch_size=GeoDamp())
    assert (plain.active, plain.scheduled, plain.columns) == (False, True, ())
    assert not Controller.of(batch_size=RadaDamp()).scheduled
    assert not Controller.of(batch_size=GeoDamp(), policies=[LinearScaling()]).scheduled
    assert Controller.of([Throughput()]).active
    assert plain.looks_at_parts == plain.watches_spread == 0
    watching = Controller.of([GradientNoiseScale(every=7), ParameterSpread(every=3)])
    assert (watching.looks_at_parts, watching.watches_spread) == (7, 3)


def test_it_describes_what_a_saved_state_must_fit():
    controller = Controller.of([Throughput()], [lambda s: None, LinearScaling()], GeoDamp(8))
    described = ["Throughput(memory=50.0)", "GeoDamp(initial=8, delay=5, factor=2)", "function"]
    assert controller.describe() == [*described, "LinearScaling(reference=None)"]


def test_start():
    controller = Controller.of([LossTrend()], [LinearScaling()], RadaDamp())
    memories = controller.start()
    assert memories.policies == [{}, {}]
    assert list(memories.signals) == ["loss_average", "loss_trend"]
    assert all(map(math.isnan, memories.signals.values()))
    assert memories.strategy == {}


@dataclass(frozen=True)
class Loss(Monitor):
    signals = ("loss",)

    def observe(self, seen, state):
        return (seen.loss,), state


@dataclass(frozen=True)
class Parts(Monitor):
    signals = ("parts_seen",)
    looks_at_parts = True

    def observe(self, seen, state):
        return (float(seen.parts),), {"parts": seen.parts}


@pytest.mark.parametrize(
    ("monitors", "policies", "error", "message"),
    [
        ([LossTrend(), LossTrend()], [], ValueError, "yield the signal 'loss_average'"),
        ([Loss()], [], ValueError, "signal 'loss', or it is one of those that every fit has"),
        ([], [PlateauPolicy(signal="fun")], UnknownSignalError, "needs the signal 'fun'"),
        (
            LossTrend(),
            [],
            TypeError,
            r"'monitors' parameter must be a list.*write monitors=\[...\]",
        ),
        ([], LinearScaling(), TypeError, "'policies' parameter must be a list"),
        ([LossTrend], [], TypeError, r"Pass an instance: LossTrend\(\)"),
        (["loss"], [], TypeError, "'monitors' parameter must be a list of monitors"),
    ],
)
def test_what_cannot_work_is_said_before_training(monitors, policies, error, message):
    with pytest.raises(error, match=message):
        Controller.of(monitors, policies)


def test_a_monitor_that_can_measure_nothing_is_refused():
    controller = Controller.of([ParameterSpread()])
    with pytest.raises(UnsupportedError, match="ParameterSpread measures the distance"):
        controller.check(Setting(several_ranks=True, divisible=True))
    controller.check(Setting(several_ranks=True, divisible=True, averages_parameters=True))


# -- measurements, schedules, records -------------------------------------------------------------


def test_measurements_are_those_of_all_policies():
    assert Controller.of(batch_size=AdaDamp(dwell=2)).needs_measure(2) == Measure("loss", 1.0)
    assert Controller.of(batch_size=AdaDamp(dwell=2)).needs_measure(3) is None
    both = Controller.of(
        policies=[AdaDamp(dwell=3, fraction=0.5)], batch_size=AdaDamp(dwell=2, fraction=0.25)
    )
    fractions = [measure and measure.fraction for measure in map(both.needs_measure, range(5))]
    assert fractions == [0.5, None, 0.25, 0.5, 0.25]
    mixed = Controller.of(policies=[GradDamp(dwell=3)], batch_size=AdaDamp(dwell=2))
    assert mixed.needs_measure(3) == Measure("grad_norm", 1.0)
    with pytest.raises(
        UnsupportedError, match=r"its gradient norm, or forks of the run. before update 6"
    ):
        mixed.needs_measure(6)


def test_a_schedule_is_known_ahead():
    controller = Controller.of(
        policies=[LinearScaling()], batch_size=GeoDamp(8, 1, 4), max_batch_size=100
    )
    memories, values = controller.start(), {"update": 4, "epoch": 0, "n_examples": 90}
    ahead = [controller.planned(values, memories, Settings(), epoch) for epoch in range(3)]
    assert ahead == [8, 32, 90]
    assert controller.planned(values, memories, Settings(batch_size=9.0), 1) == 0
    looks = Controller.of(batch_size=RadaDamp())
    assert looks.planned(values, looks.start(), Settings(), 1) == 0
    pada = Controller.of(batch_size=PadaDamp(8, rate=1.0))
    assert pada.planned(values, pada.start(), Settings(), 3) == 12


def test_monitors_observe_and_their_signals_keep_their_order():
    controller = Controller.of([LossTrend(), GradientNoiseScale()], [LinearScaling()])
    memories = controller.start()
    memories.strategy["since"] = 1
    seen = Observation(update=1, batch_size=8, n_examples=80, loss=0.5, grad_square=1.0)
    after = controller.observe(seen, memories)
    assert after.signals["loss_average"] == 0.5
    assert after.monitors[0] != {}
    assert after.monitors[1] == {}  # nobody looked at the parts
    assert math.isnan(memories.signals["loss_average"])
    assert (after.policies, after.strategy) == (memories.policies, {"since": 1})
    row = controller.row(after, Settings(workers=3))
    assert row[0] == 0.5
    assert row[-1] == 3.0
    assert len(row) == len(controller.columns)
    assert math.isnan(controller.row(after, Settings())[-1])
    parts = Controller.of([Parts()])
    assert parts.observe(seen, parts.start()).monitors == [{}]
    assert parts.observe(seen._replace(parts=2), parts.start()).signals == {"parts_seen": 2.0}
    without = Controller.of()
    assert without.observe(seen, memories) is memories
    assert without.row(without.start(), Settings()) == ()
