"""The state of a run: what changes it, and what a change forgets."""

from __future__ import annotations

import math

import pytest
import torch

from accelerando._decisions import Plan, Settings
from accelerando._engine.position import (
    AVERAGING_COLUMNS,
    UPDATE_COLUMNS,
    AveragingState,
    LastUpdate,
    Position,
)
from accelerando._engine.runtime.process import get_rng
from accelerando._engine.state import Records, Table, TrainState, describe
from accelerando.monitor import LossTrend
from accelerando.policies import Decision, Every, PlateauPolicy
from accelerando.policies._controller import Controller
from accelerando.sync import AllReduce, PeriodicAveraging
from tests._engine.fits import plain_fit, plain_model, train

# -- tables ---------------------------------------------------------------------------------------


def test_rows_are_appended_and_amended():
    table = Table(("a", "b"))
    assert len(table) == 0
    assert table.newest() == {}
    for row in [(1, 2), (3, 4), (5, 6)]:
        table.add(*row)
    table.amend(1, b=40.0)
    table.amend(0, a=50.0)
    assert table.tensor().tolist() == [[1, 2], [3, 40], [50, 6]]
    assert table.newest() == {"a": 50.0, "b": 6.0}
    assert len(table) == 3


def test_loaded_columns_are_found_by_name_and_missing_ones_are_unknown():
    table = Table(("a", "b", "c"))
    table.load(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64), ("c", "a"))
    assert table.tensor()[:, [0, 2]].tolist() == [[2.0, 1.0], [4.0, 3.0]]
    assert table.tensor()[:, 1].isnan().all()


def test_numbers_keep_all_their_digits():
    table, copy = Table(("a",)), Table(("a",))
    table.add(0.1 + 0.2)
    copy.load(table.tensor())
    assert copy.newest()["a"] == 0.1 + 0.2


def test_other_signals_are_recorded_from_now_on():
    records = Records(("noise",))
    records.updates.add(*range(len(UPDATE_COLUMNS)), 7.0)
    records.set_columns(("noise", "trend"))
    assert records.updates.newest()["noise"] == 7.0
    assert math.isnan(records.updates.newest()["trend"])
    assert records.updates.newest()["update"] == 0
    table = records.updates
    records.set_columns(("noise", "trend"))
    assert records.updates is table, "the same columns are left alone"


# -- progress -------------------------------------------------------------------------------------


def a_plan(**settings):
    return Plan(rows=32, batch_size=8, lr_scale=0.5, settings=Settings(**settings),
                policy_memories=[{"seen": 1}])  # fmt: skip


def test_an_update_counts_its_rows_and_remembers_what_was_decided():
    state = TrainState(position=Position(cursor=3, update=4, examples=5))
    state.advance(a_plan(batch_size=8.0, momentum=0.9), 30, 1.5, 2.5, batches_per_update=4)
    assert state.position == Position(cursor=33, update=5, examples=35)
    assert (state.batch_size, state.lr_scale) == (32, 0.5)
    assert state.settings == Settings(batch_size=8.0, momentum=0.9)
    assert state.memories.policies == [{"seen": 1}]
    assert state.last == LastUpdate(8, 1.5, 2.5), "30 rows of 4 ranks are 8 per rank, rounded up"


def test_an_epoch_ends():
    state = TrainState(position=Position(2, 24, 9, 72, 5, 24, epoch_open=True))
    state.end_epoch()
    assert state.position == Position(3, 0, 9, 72, 5, 24, epoch_open=False)


def test_a_stream_shows_its_length_by_ending():
    state = TrainState(position=Position(cursor=25))
    state.end_epoch()
    assert state.position.n_examples == 25
    state.position.cursor = 20  # a later epoch that drop_last cut short
    state.end_epoch()
    assert state.position.n_examples == 25


def test_an_interrupted_run_has_epochs_left():
    assert TrainState(position=Position(epoch=1, until=2)).interrupted
    assert not TrainState(position=Position(epoch=2, until=2)).interrupted


def test_what_policies_may_know():
    state = TrainState(position=Position(1, 8, 5, 40), last=LastUpdate(8, 0.5, 2.0))
    values = state.values()
    assert math.isnan(values.pop("n_examples"))
    assert values == {
        "update": 5, "epoch": 1, "examples": 40, "rows": 8, "loss": 0.5, "grad_norm": 2.0,
    }  # fmt: skip
    state.position.n_examples = 24
    assert state.values()["n_examples"] == 24


def test_the_learning_rate_is_that_of_the_newest_update_unless_a_factor_is_given():
    state = TrainState(components=plain_model(lr=0.2).components, lr_scale=0.5)
    assert state.lr() == pytest.approx(0.1)
    assert state.lr(2.0) == pytest.approx(0.4)


# -- adopting policies, monitors and strategy -----------------------------------------------------


def trained(**settings):
    """Return a state with memories and settings, and what it was trained with."""
    fit = train(plain_fit(virtual_ranks=2, **settings))
    fit.state.settings = fit.state.settings._replace(workers=3)
    return fit.state, (fit.spec.control, fit.spec.strategy)


def _same_rate(signals):
    return Decision(lr_scale=1.0)


PIECES = {
    "batch_size": 4,
    "policies": [PlateauPolicy(), Every(_same_rate, updates=2)],
    "monitors": [LossTrend()],
    "strategy": PeriodicAveraging(period=2),
}


def test_the_same_pieces_keep_their_memories():
    state, before = trained(**PIECES)
    memories, replicas = state.memories.to_json(), state.replicas
    state.adopt(*before, before)
    assert state.memories.to_json() == memories
    assert state.settings.workers == 3
    assert state.replicas is replicas
    assert state.averaging.count > 0


def test_another_base_policy_forgets_its_own_memory_only():
    state, before = trained(**PIECES)
    state.memories.policies[0] = {"old": 1}
    standing = state.memories.policies[1:]
    control = Controller.of(PIECES["monitors"], PIECES["policies"], batch_size=5)
    state.adopt(control, before[1], before)
    assert state.memories.policies == [{}, *standing]
    assert state.settings.workers == 3


def test_other_standing_policies_forget_what_was_decided():
    state, before = trained(**PIECES)
    state.memories.policies[0] = {"kept": 1}
    control = Controller.of(PIECES["monitors"], [PlateauPolicy(patience=7)], batch_size=4)
    state.adopt(control, before[1], before)
    assert state.memories.policies == [{"kept": 1}, control.start().policies[1]]
    assert state.memories.monitors == control.start().monitors
    assert state.settings == Settings()
    assert state.averaging.count > 0, "averaging continues"


def test_another_strategy_starts_from_the_model_that_is_there():
    state, before = trained(**PIECES)
    control, other = before[0], PeriodicAveraging(period=5)
    memories = list(state.memories.policies)
    state.adopt(control, other, before)
    assert state.averaging == AveragingState()
    assert state.replicas is None
    assert state.memories.strategy == dict(other.start())
    assert state.memories.policies == memories
    assert state.made_with["sync"] == repr(other)


def test_averaging_has_columns_before_those_of_monitors():
    state, (control, _) = trained(**PIECES)
    assert state.records.updates.columns == (*UPDATE_COLUMNS, *AVERAGING_COLUMNS, *control.columns)
    state.adopt(control, AllReduce(), None)
    assert state.records.updates.columns == (*UPDATE_COLUMNS, *control.columns)
    assert state.memories.strategy == {}


def test_the_description_separates_the_base_policy():
    control = Controller.of([LossTrend()], [PlateauPolicy()], 16)
    assert describe(control, AllReduce()) == {
        "policy": "Constant(size=16)",
        "control": [repr(LossTrend()), repr(PlateauPolicy())],
        "sync": "AllReduce()",
    }


# -- random numbers -------------------------------------------------------------------------------


def test_a_seeded_run_draws_from_its_own_generator_and_continues_there():
    def draws(seed):
        state = TrainState(seed=seed, seeded=True)
        with state.randomness():
            first = torch.rand(2)
        with state.randomness():
            return torch.cat([first, torch.rand(2)])

    torch.manual_seed(99)
    expected = torch.rand(1)
    torch.manual_seed(99)
    one, two, other = draws(1), draws(1), draws(2)
    assert torch.equal(torch.rand(1), expected), "the user's generator is where it was"
    torch.manual_seed(1)
    assert torch.equal(one, torch.rand(4))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_the_users_generator_is_restored_after_an_error():
    torch.manual_seed(99)
    before = torch.get_rng_state()
    state = TrainState(seed=1, seeded=True)
    with pytest.raises(ZeroDivisionError), state.randomness():
        torch.rand(1)
        1 / 0  # noqa: B018
    assert torch.equal(torch.get_rng_state(), before)
    assert state.rng is not None, "and the run continues where it was"


def test_an_unseeded_run_follows_the_users_generator():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    state = TrainState()
    with state.randomness():
        drawn = torch.rand(1)
    assert torch.equal(torch.cat([drawn, torch.rand(1)]), expected)
    assert state.rng is None


def test_a_loaded_generator_comes_first():
    torch.manual_seed(7)
    state = TrainState(seed=1, seeded=False, rng=get_rng())
    expected = torch.rand(1)
    torch.manual_seed(0)
    with state.randomness():
        assert torch.equal(torch.rand(1), expected)
