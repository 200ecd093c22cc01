"""The driver's copy of the state, and the progress of the ranks as the driver receives it."""

import copy
import dataclasses
import logging
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from accelerando._cluster.driver.collect import DriverCopy, LiveProgress, describe_data
from accelerando._cluster.messages import ProgressSeen
from accelerando._cluster.worker.hooks import RankCopy
from accelerando._engine._torch import pack, unpack
from accelerando._engine.comm.replicas import ReplicaSet
from accelerando._engine.ema import WeightAverage
from accelerando._engine.position import Part, Position
from accelerando._engine.state import TrainState
from accelerando.batch_size import AdaDamp, GeoDamp
from accelerando.policies._controller import Controller
from accelerando.sync import PeriodicAveraging
from tests._engine.comm.ranks import fit_of, flat, model_of, ranks_of, train

STATE = Part.MODEL | Part.POSITION | Part.RECORDS


def copy_of(fit=None, **settings):
    fit = fit or fit_of(model_of(norm=True, momentum=0.9), **settings)
    rows = []
    driver = DriverCopy(fit, rows.extend)
    driver.rows = rows
    return driver


def rank_state(epochs=1, **settings):
    """Return the fit of a rank that has trained, and its state in bytes."""
    fit = train(fit_of(model_of(norm=True, momentum=0.9), **settings), epochs)
    return fit, pack(fit.state.state_dict(STATE))


def parameters(driver):
    return flat(driver.fit.model.module)


# -- from ranks -----------------------------------------------------------------------------------


def test_a_state_becomes_the_drivers():
    driver, (rank, content) = copy_of(), rank_state()
    state = driver.state
    state.position.until, state.seeded, state.rng = 7, False, [torch.zeros(1)]
    driver.load(content)
    assert torch.equal(parameters(driver), flat(rank.model.module))
    assert state.position.update == rank.state.position.update == 5
    assert state.memories == rank.state.memories
    # The run's end, its seed and its generators are the driver's, and its epoch is open.
    assert (state.position.until, state.seeded, state.position.epoch_open) == (7, False, True)
    assert state.rng is not None
    assert state.seconds == pytest.approx(driver.fit.clock(), abs=1.0)


def test_only_new_records_are_added():
    driver = copy_of()
    driver.load(rank_state(1)[1])
    assert [row["update"] for row in driver.rows] == [1, 2, 3, 4, 5]
    assert driver.rows[0]["batch_size"] == 12
    driver.load(rank_state(2)[1])
    assert [row["update"] for row in driver.rows] == list(range(1, 11))
    table = driver.state.records.updates
    assert table.tensor()[:, 0].tolist() == list(range(1, 11))
    assert driver.newest_record() == 10


def test_schedulers_do_not_warn_after_steps_that_ranks_took():
    driver = copy_of()
    optimizer = driver.fit.model.optimizers[0]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    driver.load(rank_state()[1])
    scheduler.step()  # warnings are errors


# -- changes --------------------------------------------------------------------------------------


def test_changes_on_the_driver_are_noticed():
    driver = copy_of()
    assert driver.changes()[0]  # ranks have nothing yet
    driver.pack()
    assert not driver.changes()[0]
    with torch.no_grad():
        next(driver.fit.model.module.parameters()).mul_(0.5)
    assert driver.changes()[0]
    driver.load(rank_state()[1])
    assert not driver.changes()[0]
    driver.fit.model.module.norm.running_mean.add_(1.0)  # a buffer counts as well
    assert driver.changes()[0]


def test_a_changed_average_of_the_weights_is_noticed():
    """A callback may set or restart it."""
    driver = copy_of()
    driver.state.ema = average = WeightAverage(0.9)
    average.update(driver.fit.model.components)
    driver.pack()
    assert not driver.changes()[0]
    next(iter(average.tensors.values())).mul_(0.5)
    assert driver.changes()[0]
    driver.pack()
    assert not driver.changes()[0]
    average.restart()
    assert driver.changes()[0]


# -- where the run is, without the model -----------------------------------------------------------


def noted(epochs, lr=0.125):
    """Return what a rank sends if nobody needs the model."""
    rank = rank_state(epochs)[0]
    rank.model.optimizers[0].param_groups[0]["lr"] = lr
    return RankCopy(SimpleNamespace(model=rank.model)).pack(
        rank.state, Part.POSITION | Part.RECORDS
    )


def test_a_note_moves_the_run_and_leaves_the_model():
    driver = copy_of()
    driver.changes()
    driver.pack()
    before = parameters(driver).clone()
    driver.state.position.until = 7
    driver.note(noted(2))
    assert driver.is_behind
    assert torch.equal(parameters(driver), before)
    assert (driver.state.position.update, driver.state.position.until) == (10, 7)
    assert driver.state.lr() == 0.125
    assert driver.newest_record() == 10
    changed, patch = driver.changes()
    assert not changed
    assert (patch["update"], patch["groups"][0][0]["lr"]) == (10, 0.125)


def test_ranks_get_the_model_with_the_position_that_belongs_to_it():
    driver = copy_of()
    driver.load(rank_state(1)[1])
    rate = driver.state.lr()
    driver.note(noted(2))
    driver.note(noted(3))
    state = TrainState()
    state.components = model_of(norm=True, momentum=0.9, seed=3).components
    state.load_state_dict(unpack(driver.pack()))
    assert (state.position.update, state.lr()) == (5, rate)
    assert not driver.is_behind
    assert driver.newest_record() == 15  # the history stays: these epochs are trained again
    driver.load(rank_state(3)[1])
    assert [row["update"] for row in driver.rows] == list(range(1, 16))


def test_records_of_lost_updates_are_dropped():
    driver = copy_of()
    driver.load(rank_state(1)[1])
    assert driver.drop_lost() is None
    driver.state.records.epochs.add(1, 5, 60, 12, 0.1, 1.0)
    driver.note(noted(2))
    driver.state.records.epochs.add(2, 10, 120, 12, 0.1, 2.0)
    driver.go_back()
    assert driver.state.position.epoch == 1
    assert driver.drop_lost() == 0
    assert (driver.newest_record(), len(driver.state.records.epochs)) == (5, 1)


def test_a_model_that_is_fetched_between_epochs_ends_no_epoch_twice():
    driver = copy_of()
    driver.note(noted(2))
    driver.state.end_epoch()
    before = dataclasses.replace(driver.state.position)
    driver.load(rank_state(2)[1])
    assert driver.state.position.epoch_open
    driver.catch_up(before)
    assert driver.state.position == before


# -- to ranks -------------------------------------------------------------------------------------


def test_a_rank_continues_from_the_drivers_state_without_its_records():
    driver = copy_of()
    driver.load(rank_state()[1])
    found = unpack(driver.pack())
    state, model = TrainState(), model_of(norm=True, momentum=0.9, seed=3)
    state.components = model.components
    state.load_state_dict(found)
    assert torch.equal(flat(model.module), parameters(driver))
    assert state.position.update == 5
    assert len(state.records.updates) == 0
    assert state.replicas is None


# -- batch sizes known ahead ----------------------------------------------------------------------


def planned(policy, **position):
    control = Controller.of(batch_size=policy)
    fit = fit_of(model_of(), epochs=5)
    fit.control = control
    fit.state.memories = control.start()
    driver = copy_of(fit)
    for name, value in position.items():
        setattr(fit.state.position, name, value)
    return driver


def test_schedules_are_known_ahead():
    driver = planned(GeoDamp(initial=10, delay=2, factor=5), n_examples=1000)
    sizes = [driver.planned_batch_size(epoch) for epoch in range(6)]
    assert sizes == [10, 10, 50, 50, 250, None]
    assert driver.first_batch_size() == 10


def test_a_policy_that_measures_begins_with_its_initial_size():
    driver = planned(AdaDamp(initial=10), n_examples=1000)
    assert driver.planned_batch_size(1) is None
    assert driver.first_batch_size() == 10


def test_a_run_that_continues_has_the_size_of_its_last_update():
    driver = planned(32)
    assert driver.first_batch_size() == 32
    driver.state.batch_size = 48
    assert driver.first_batch_size() == 48


# -- replicas -------------------------------------------------------------------------------------

PERIOD = PeriodicAveraging(3)


def averaging_driver():
    model = model_of(momentum=0.9)
    fit = fit_of(model, strategy=PERIOD)
    fit.spec = dataclasses.replace(fit.spec, strategy=PERIOD)
    return copy_of(fit)


def replicas_of(count=3):
    """Return the replicas of ranks after some steps, each as the bytes that a rank sends."""
    fit = train(ranks_of(PERIOD, model=model_of(momentum=0.9)), 1)
    saved = fit.state.replicas.state_dict()
    contents = []
    for number in range(count):
        one = copy.deepcopy(saved)
        for name in ("parameters", "optimizer_state"):
            one[name] = [one[name][number]]
        state = TrainState(replicas=ReplicaSet.saved(one))
        contents.append(pack(state.state_dict(Part.REPLICAS)))
    return fit, contents


def test_replicas_of_all_ranks_are_held_and_their_average_is_shown():
    driver, (fit, contents) = averaging_driver(), replicas_of()
    driver.state.averaging.since = 2
    driver.load_replicas(contents)
    replicas = driver.state.replicas
    assert len(replicas) == 3
    originals = fit.state.replicas.tensors[:3]
    for held, original in zip(replicas.tensors, originals, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(held, original, strict=True))
    mean = torch.stack([torch.cat([t.flatten() for t in r]) for r in originals]).mean(0)
    torch.testing.assert_close(parameters(driver), mean)
    assert driver.state.averaging.since == 2
    assert not driver.changes()[0]


def test_the_average_of_some_remains_if_others_are_lost():
    driver, (fit, contents) = averaging_driver(), replicas_of()
    driver.state.averaging.since = 2
    driver.load_replicas([contents[0], None, contents[2]])
    assert driver.state.replicas is None
    assert driver.state.averaging.since == 0
    chosen = [fit.state.replicas.tensors[n] for n in (0, 2)]
    mean = torch.stack([torch.cat([t.flatten() for t in r]) for r in chosen]).mean(0)
    torch.testing.assert_close(parameters(driver), mean)


def test_without_any_replica_the_model_stays():
    driver = averaging_driver()
    before = parameters(driver)
    driver.load_replicas([None, None])
    assert torch.equal(parameters(driver), before)
    assert driver.state.replicas is None


def test_a_change_of_the_model_replaces_the_replicas():
    driver, (_, contents) = averaging_driver(), replicas_of()
    driver.load_replicas(contents)
    driver.state.averaging.since = 2
    kept = unpack(driver.pack())["tensors"]["replicas"]
    assert len(kept["parameters"]) == 3
    assert driver.state.averaging.since == 2
    with torch.no_grad():
        next(driver.fit.model.module.parameters()).zero_()
    assert unpack(driver.pack())["tensors"]["replicas"] == {}
    assert driver.state.averaging.since == 0


def test_loading_a_state_drops_replicas_of_an_older_one():
    driver, (fit, contents) = averaging_driver(), replicas_of()
    driver.load_replicas(contents)
    driver.load(pack(fit.state.state_dict(STATE)))
    assert driver.state.replicas is None


# -- progress --------------------------------------------------------------------------------------

EVENT = {
    "epoch": 1,
    "cursor": 640,
    "update": 70,
    "batch_size": 64,
    "ranks": 2,
    "period": 4,
    "examples_per_second": 3200.0,
    "loss": 0.5,
    "lr": 0.1,
    "signals": {"noise_scale": 12.0},
}


class Display:
    def __init__(self):
        self.shown = []

    def update(self, position, rows, loss, lr, cluster):
        self.shown.append(
            (position.epoch, position.cursor, position.update, rows, loss, lr, cluster)
        )


def progress_of(display=None):
    return LiveProgress(TrainState(position=Position(until=3)), display)


def test_the_newest_event_is_shown_once():
    display = Display()
    progress = progress_of(display)
    assert progress.show() is None
    assert display.shown == []
    assert progress.update == 0
    progress.receive((0.0, {**EVENT, "update": 69}))
    progress.receive((0.1, EVENT))
    assert progress.show() == ProgressSeen(update=70, update_seconds=0.02, period=4)
    assert progress.show() is None
    assert display.shown == [(1, 640, 70, 64, 0.5, 0.1, EVENT)]
    assert progress.update == 70
    assert progress.state.position.update == 0  # what the driver itself knows stays as it is


def test_an_event_reaches_the_machine_without_a_display():
    progress = progress_of()
    progress.receive((0.0, EVENT))
    assert progress.show() == ProgressSeen(70, 0.02, 4)


def test_signals_have_the_names_of_the_updates_table():
    progress = progress_of()
    assert progress.signals() == {}
    progress.receive((0.0, EVENT))
    signals = progress.signals()
    assert signals["epoch"] == 2  # tables count epochs from 1
    assert signals["noise_scale"] == 12.0
    assert "signals" not in signals
    assert signals["update"] == 70
    assert progress.newest["epoch"] == 1


# -- data that somebody changes during a fit ------------------------------------------------------


class Augmented(torch.utils.data.Dataset):
    """Rows that are scaled, with plumbing that changes by itself."""

    def __init__(self):
        self.X, self.stages, self.scale = np.zeros((4, 2)), [1, {"p": 0.5}], 1.0
        self.lock, self.log = threading.Lock(), logging.getLogger("rows")

    def __len__(self):
        return len(self.X)


def test_a_data_set_is_described_by_its_numbers_texts_and_arrays():
    rows = Augmented()
    before = describe_data(rows)
    assert {"dataset.scale", "dataset.X", "dataset.stages[0]", "dataset.stages[1]['p']"} == set(
        before
    )
    rows.log.setLevel("ERROR")
    assert describe_data(rows) == before
    rows.stages[1]["p"] = 0.6
    rows.X[3, 1] = 1
    after = describe_data(rows)
    assert {name for name in after if after[name] != before[name]} == {
        "dataset.X",
        "dataset.stages[1]['p']",
    }


def test_the_client_of_a_data_set_is_no_data(client):
    opened = SimpleNamespace(scale=0.5, future=client.submit(int, 3), client=client)
    assert describe_data(opened) == {"dataset.scale": "0.5"}
