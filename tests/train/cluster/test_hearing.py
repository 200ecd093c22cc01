"""What the driver hears of training, and when it shows that."""

from types import SimpleNamespace

from accelerando.train.cluster.hearing import Hearing
from accelerando.train.run import Run

EVENT = {
    "epoch": 1,
    "cursor": 640,
    "update": 70,
    "batch_size": 64,
    "examples_per_second": 3200.0,
    "loss": 0.5,
    "lr": 0.1,
}


class Display:
    def __init__(self):
        self.shown = []

    def update(self, run, loss, lr, cluster):
        self.shown.append((run.epoch, run.cursor, run.update, run.batch_size, loss, lr, cluster))


def test_the_newest_event_is_shown_once():
    display, run = Display(), Run(until=3)
    hearing = Hearing(SimpleNamespace(run=run, progress=display))
    hearing.show()
    assert display.shown == []
    assert hearing.update == 0
    hearing.hear((0.0, {**EVENT, "update": 69}))
    hearing.hear((0.1, EVENT))
    hearing.show()
    hearing.show()
    assert display.shown == [(1, 640, 70, 64, 0.5, 0.1, EVENT)]
    assert hearing.update_seconds == 0.02
    assert run.update == 0  # what the driver itself knows stays as it is


def test_the_newest_update_is_heard_of_or_known():
    run = Run(until=3)
    hearing = Hearing(SimpleNamespace(run=run, progress=Display()))
    hearing.hear((0.0, EVENT))
    assert hearing.update == 70
    run.update = 75
    assert hearing.update == 75
