"""Every strategy of ``sync=`` as a decision, through the same invariants. A new one adds one row.

``tests/contracts/test_sync.py`` trains with them.
"""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest

from accelerando import sync as module
from accelerando._decisions import Signals
from accelerando.policies import replay
from accelerando.sync import (
    AdaptiveAveraging,
    AllReduce,
    Average,
    Averaging,
    DecreasingAveraging,
    ElasticAveraging,
    ModelAveraging,
    Outer,
    OuterOptimizer,
    PeriodicAveraging,
    Pull,
    Strategy,
)

# Names and order of fields are in saved states: a changed text loses the memories of old states.
STRATEGIES = {
    "PeriodicAveraging(period=3, optimizer_state='keep')": PeriodicAveraging(3),
    "PeriodicAveraging(period=1, optimizer_state='reset')": PeriodicAveraging(1, "reset"),
    "AdaptiveAveraging(initial_period=2, sample=0.4, low=0.7, high=1.3, warmup_epochs=1, "
    "optimizer_state='keep')": AdaptiveAveraging(2, sample=0.4),
    "DecreasingAveraging(initial_period=6, every_epochs=1, optimizer_state='average')": (
        DecreasingAveraging(6, every_epochs=1, optimizer_state="average")
    ),
    "ModelAveraging(replicas=4, momentum=0.3, correction=None, period=1)": ModelAveraging(4, 0.3),
    "ModelAveraging(replicas='auto', momentum=0.0, correction=0.5, period=3)": ModelAveraging(
        "auto", correction=0.5, period=3
    ),
    "ElasticAveraging(period=3, beta=0.8)": ElasticAveraging(period=3, beta=0.8),
    "OuterOptimizer(inner_steps=3, lr=0.8, momentum=0.5)": OuterOptimizer(3, lr=0.8, momentum=0.5),
}
EVERY = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


def updates(count=20):
    """Yield the signals before and after each update of an invented run."""
    for k in range(count):
        before = Signals.known(update=k, epoch=k // 5, total_updates=count, lr=0.1 / (1 + k // 8))
        yield before, before.but(loss=1.0 / (k + 1), spread=0.1 / (k + 1) if k % 3 else math.nan)


def test_the_table_has_every_strategy():
    kinds = {kind for kind in vars(module).values() if isinstance(kind, type)}
    known = {type(row) for row in STRATEGIES.values()} | {AllReduce, Averaging, Strategy}
    assert {kind for kind in kinds if issubclass(kind, Strategy)} == known
    assert {kind.__name__ for kind in known} - {"Strategy"} == set(module.__all__)


@pytest.mark.parametrize("text", STRATEGIES)
def test_the_text_in_saved_states_stays(text):
    assert repr(STRATEGIES[text]) == text


@EVERY
def test_strategies_are_values(strategy):
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    assert isinstance(strategy.rule(4), Average | Pull | Outer)
    assert set(strategy.needs) <= {"loss"}


@EVERY
def test_the_memory_is_plain_numbers_and_nothing_else_is_remembered(strategy):
    state = strategy.start()
    for before, after in updates():
        kept = copy.deepcopy(dict(state))
        period = strategy.next_period(before, state)
        assert period >= 1
        assert period == int(period)
        once, again = strategy.observe(after, state), strategy.observe(after, dict(state))
        assert once == again
        assert dict(state) == kept
        state = json.loads(json.dumps(dict(once)))
        assert not any(math.isnan(value) for value in state.values())


@EVERY
def test_nothing_breaks_and_nothing_is_learned_from_what_is_unknown(strategy):
    state = strategy.start()
    for before, _ in updates():
        unknown = before.but(lr=math.nan, total_updates=math.nan)
        assert strategy.next_period(unknown, state) >= 1
        assert strategy.begins_anew(unknown, state) is False
        state = strategy.observe(unknown, state)
    assert state == {**strategy.start(), **{k: state[k] for k in ("stretch",) if k in state}}


@EVERY
def test_it_can_be_replayed(strategy):
    run = {"loss": [1.0 / (k + 1) for k in range(20)], "spread": [0.1] * 20, "lr": [0.1] * 20}
    frame = replay(strategy, run, updates_per_epoch=5)
    assert len(frame) == 21
    assert frame["period"].ge(1).all()
    assert frame["averaged"].any()
    assert frame.equals(replay(strategy, run, updates_per_epoch=5))
