"""Batch size, ranks and learning rate by goodput, on the simulated cluster of accelerando.cost."""

from __future__ import annotations

import json
import math
from itertools import product
from statistics import median

import pytest

from accelerando.cost import Network
from accelerando.cost._network import communication
from accelerando.policies import Goodput, Signals
from accelerando.policies._goodput import efficiency, fitted, remembered

FIRST, RANKS, LARGEST, TOTAL = 64, 64, 16_384, 4e6


class Cluster:
    """Up to 64 ranks: seconds of an update by the formulas of ``cost.plan``, and a noise scale.

    Training is done when the effective examples, in batches of 64, are four million. Meanwhile the
    noise scale grows fortyfold.
    """

    def __init__(self, network, overhead=0.004, per_row=0.0005, parameters=1_000_000, total=TOTAL):
        self.total = total
        self.network, self.overhead, self.per_row = network, overhead, per_row
        self.bytes = 4 * parameters

    def seconds(self, size, ranks):
        sending, _ = communication("all-reduce", ranks, self.bytes, self.network)
        return self.overhead + math.ceil(size / ranks) * self.per_row + sending

    def noise(self, done):
        return 100.0 * 40.0 ** (done / self.total)

    def static(self, size, ranks):
        """Return the seconds of a run that changes nothing."""
        done, time, block = 0.0, 0.0, self.total / 200
        while done < self.total:
            rate = size * efficiency(size, self.noise(done), FIRST) / self.seconds(size, ranks)
            time += block / rate
            done += block
        return time

    def follow(self, policy):
        """Return the seconds of a run that a policy decides, and its decisions."""
        state, size, ranks, lr, time, done, update = {}, FIRST, 1, 0.1, 0.0, 0.0, 0
        decisions, since = [], 0
        while done < self.total:
            known = {"noise_scale": self.noise(done), "noise_scale_low": 0.7 * self.noise(done)}
            seconds = self.seconds(size, ranks)
            usual = seconds if update > since else math.nan  # nothing is measured yet
            signals = Signals.known(
                update=update,
                ranks=ranks,
                wanted_batch_size=size,
                lr=lr,
                update_seconds=usual,
                **known,
            )
            decision, state = policy.decide(signals, state)
            if decision is not None:
                decisions.append((update, decision))
                size = int(decision.batch_size or size)
                ranks, lr, since = decision.workers or ranks, decision.lr or lr, update
            # As many updates as nothing can happen in.
            steps = max(1, policy.dwell // 4)
            done += steps * size * efficiency(size, self.noise(done), FIRST)
            time += steps * self.seconds(size, ranks)
            update += steps
        return time, decisions


CLUSTERS = {
    "usual network": Cluster(Network(10e9, 50e-6)),
    "slow network": Cluster(Network(1e9, 200e-6)),
    "heavy rows": Cluster(Network(10e9, 50e-6), per_row=0.01),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_never_much_worse_than_the_best_static_choice_and_better_than_the_usual_one(name):
    cluster = CLUSTERS[name]
    sizes = [FIRST * 2**k for k in range(9)]
    counts = [2**k for k in range(7)]
    static = [
        cluster.static(size, ranks) for size, ranks in product(sizes, counts) if size >= ranks
    ]
    seconds, decisions = cluster.follow(
        Goodput(initial=FIRST, largest=LARGEST, most=RANKS, dwell=20)
    )
    assert seconds <= 1.05 * min(static)
    assert median(static) >= 1.3 * seconds
    assert decisions


def test_efficiency_is_that_of_pollux():
    """Equation 7 of the paper: a batch twice the noise scale wastes about a half."""
    assert efficiency(64, noise=500.0, reference=64) == 1.0
    assert efficiency(1000, noise=500.0, reference=0) == pytest.approx(1 / 3)


def test_costs_that_were_not_measured_are_assumed_to_be_small():
    fixed, per_row, *sending = fitted(remembered({}, 100, 1, 0.2))
    assert fixed == pytest.approx(0.1, rel=0.01)
    assert per_row == pytest.approx(0.001, rel=0.01)
    assert sending == [0.0, 0.0]


def test_a_cost_is_never_negative():
    state = {}
    for size, ranks, seconds in [(64, 1, 0.1), (64, 2, 0.04), (64, 4, 0.02), (128, 4, 0.03)]:
        state = remembered(state, size, ranks, seconds)
    assert min(fitted(state)) >= 0.0


def test_workers_that_do_not_come_are_not_counted_on():
    """In one process there is one rank, whatever is decided."""
    policy, state, asked = Goodput(initial=64, largest=256, most=8, dwell=10), {}, []
    size = 64.0
    for update in range(0, 100, 5):
        signals = Signals.known(
            update=update, ranks=1, wanted_batch_size=size, lr=0.1, noise_scale=1e4,
            noise_scale_low=1e4, update_seconds=0.01 + 0.001 * size,
        )  # fmt: skip
        decision, state = policy.decide(signals, state)
        if decision is not None and decision.workers:
            asked.append(decision.workers)
            size = decision.batch_size
    assert asked[0] == 2
    assert set(asked[1:]) <= {1}


def test_more_ranks_that_slow_it_down_are_given_back():
    cluster = Cluster(Network(1e8, 5e-3), total=2e5)
    _, decisions = cluster.follow(Goodput(initial=FIRST, largest=256, most=8, dwell=20))
    assert max(d.workers or 0 for _, d in decisions) <= 4
    assert decisions[-1][1].workers in (None, 1)


def test_the_learning_rate_follows_by_the_gain_of_adascale():
    cluster = Cluster(Network(10e9, 50e-6), total=4e5)
    for scaling, power in (("adascale", 1.0), ("sqrt", 0.5), (None, 0.0)):
        policy = Goodput(initial=FIRST, largest=LARGEST, most=RANKS, dwell=20, scaling=scaling)
        _, decisions = cluster.follow(policy)
        size, lr = FIRST, 0.1
        for _, decision in decisions:
            size, lr = decision.batch_size or size, decision.lr or lr
        gain = 1.0 if size == FIRST else lr / 0.1
        assert gain == pytest.approx(1.0) if scaling is None else gain > 1.0
        assert gain <= (size / FIRST) ** power * 1.001


def test_it_says_why_and_its_memory_survives_json():
    policy, state = Goodput(initial=64, most=4, dwell=10), {}
    for update, ranks, seconds in [(0, 1, 0.08), (10, 1, 0.08)]:
        signals = Signals.known(
            update=update, ranks=ranks, wanted_batch_size=64, lr=0.1,
            noise_scale=60.0, noise_scale_low=50.0, update_seconds=seconds,
        )  # fmt: skip
        decision, state = policy.decide(signals, json.loads(json.dumps(dict(state))))
    assert decision.workers == 2
    assert "on 2 ranks" in state["reason"]
    assert "noise scale 60" in state["reason"]


def test_nothing_is_decided_before_noise_and_duration_are_known():
    policy = Goodput(dwell=5)
    _, state = policy.decide(
        Signals.known(
            update=0,
            ranks=1,
            wanted_batch_size=64,
            noise_scale=1,
            noise_scale_low=1,
            update_seconds=1,
        ),
        {},
    )
    for unknown in ("noise_scale", "update_seconds"):
        known = {
            "noise_scale": 100.0,
            "noise_scale_low": math.nan,
            "update_seconds": 0.1,
            unknown: math.nan,
        }
        signals = Signals.known(update=50, ranks=1, wanted_batch_size=64, lr=0.1, **known)
        assert policy.decide(signals, state)[0] is None


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"initial": 0}, "initial"),
        ({"largest": 64}, "largest"),
        ({"most": 0}, "most"),
        ({"dwell": 0}, "dwell"),
        ({"scaling": "linear"}, "scaling"),
        ({"gain": -1}, "gain"),
    ],
)
def test_bad_settings_are_named(settings, name):
    with pytest.raises(ValueError, match=f"'{name}' parameter of Goodput"):
        Goodput(**settings)
