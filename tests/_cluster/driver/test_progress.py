"""The progress of ranks, as the driver receives and shows it."""

from accelerando._cluster.driver.progress import LiveProgress
from accelerando._cluster.messages import ProgressSeen
from accelerando._engine.position import Position
from accelerando._engine.state import TrainState

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
