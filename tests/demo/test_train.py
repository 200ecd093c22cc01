"""Training in the demo: runs differ in the batch size only, and growing batches need less."""

import math

import pandas as pd
import pytest
import torch
from skorch.callbacks import EpochTimer

from accelerando.demo import _train


def test_all_runs_are_equal_but_for_the_batch_size(results):
    assert list(results.training) == ["constant", "GeoDamp", "RadaDamp"]
    for (frame,) in results.training.values():
        assert frame["epoch"].iloc[-1] == _train.EPOCHS
        assert set(frame["lr"]) == {_train.LR}
        assert set(frame["examples"].diff().dropna()) == {1347.0}
        assert frame["batch_size"].iloc[0] <= _train.INITIAL + 1


def test_growing_batches_reach_the_accuracy_in_clearly_fewer_updates(results):
    constant, *growing = (frame.iloc[-1] for (frame,) in results.training.values())
    for grown in growing:
        assert grown["batch_size"] > 3 * _train.INITIAL
        assert grown["updates"] < 0.6 * constant["updates"]
        assert grown["valid_acc"] > constant["valid_acc"] - 0.01


def test_one_seed_gives_the_same_numbers_again(results, monkeypatch):
    monkeypatch.setattr(_train, "EPOCHS", 2)
    again = _train.train(range(1))["constant"][0]
    first = results.training["constant"][0].head(2)
    assert again["valid_loss"].tolist() == first["valid_loss"].tolist()


def run(*accuracies):
    n = len(accuracies)
    numbers = [float(i + 1) for i in range(n)]
    return pd.DataFrame({"valid_acc": accuracies, "updates": numbers, "seconds": numbers})


def test_the_first_epoch_at_the_target_counts_and_runs_that_miss_it_are_counted():
    found = _train.reached([run(0.9, 0.98, 0.97), run(0.1, 0.1, 0.1, 0.99), run(0.9, 0.9)])
    assert found == (3.0, 3.0, 2, 3)
    nothing = _train.reached([run(0.9)])
    assert math.isnan(nothing.updates)
    assert nothing.runs == 0


def test_the_number_of_threads_is_given_back():
    torch.set_num_threads(2)
    with _train.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_ctrl_c_ends_the_demo_and_not_only_one_run(monkeypatch):
    def stop(self, net, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(EpochTimer, "on_epoch_end", stop)
    with pytest.raises(KeyboardInterrupt):
        _train.train(range(1))
