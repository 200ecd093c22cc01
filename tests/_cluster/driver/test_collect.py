"""The driver's copy of the state, and the progress of the ranks as the driver receives it."""

import copy
import dataclasses

import pytest
import torch

from accelerando._cluster.driver.collect import DriverCopy, LiveProgress
from accelerando._cluster.messages import ProgressSeen
from accelerando._engine._torch import pack, unpack
from accelerando._engine.comm.replicas import ReplicaSet
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


def test_settings_of_parameter_groups_are_plain_values():
    driver = copy_of()
    optimizer = driver.fit.model.optimizers[0]
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.param_groups[0]["scratch"] = torch.zeros(3)
    ((settings,),) = driver.group_settings()
    assert settings["lr"] == 0.25
    assert settings["momentum"] == 0.9
    assert not {"params", "scratch"} & set(settings)


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
