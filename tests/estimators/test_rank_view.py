"""What the user's code finds on a rank."""

from types import SimpleNamespace

import numpy as np
import pytest

from accelerando.estimators._rank_view import EpochRows, OwnRows, RankView, rows_of_epoch
from accelerando.exceptions import UnsupportedError
from tests.nets import classifier


def test_attributes_that_the_driver_has_not_changed_stay():
    net = SimpleNamespace()
    view, table = RankView(net), [1]
    sent = {"history_rows": [{"epoch": 1}], "history_open": EpochRows(0, 0, [])}
    first = {**sent, "calls": 0, "table": table, "strength": 1.0}
    view.adopt(first)
    view.note(first)
    assert net.history_[-1] == {"epoch": 1, "batches": []}
    net.calls, net.table = 5, [2]
    view.adopt({**sent, "calls": 0, "table": table, "strength": 2.0})
    assert (net.calls, net.table, net.strength) == (5, [2], 2.0)
    view.adopt({**sent, "calls": 3, "table": [1], "strength": 2.0})
    assert (net.calls, net.table) == (3, [1])


def test_the_rows_of_an_epoch_are_those_of_the_history():
    net = classifier(max_epochs=2, batch_size=40)
    X, y = np.random.default_rng(0).normal(size=(100, 64)).astype("float32"), np.arange(100) % 10
    net.set_params(train_split=None).fit(X, y)
    state = net._state_
    state.position.epoch_open = True
    state.position.epoch = 1  # as in the second one
    expected = EpochRows.of(net).rows
    assert [sorted(row) for row in expected] == [["train_batch_size", "train_loss"]] * 3
    assert rows_of_epoch(state, None) == expected
    assert rows_of_epoch(state, EpochRows(0, 3, [{"of": "the first epoch"}])) == expected
    assert rows_of_epoch(state, EpochRows(1, 4, expected[:1])) == expected
    assert EpochRows.of(net)[:2] == (1, 6)


@pytest.mark.parametrize(
    "read", [len, iter, lambda batch: batch[0], lambda batch: batch.shape, list]
)
def test_the_batch_of_a_rank_cannot_be_read(read):
    with pytest.raises(UnsupportedError, match="reads the batch in on_grad_computed"):
        read(OwnRows())
