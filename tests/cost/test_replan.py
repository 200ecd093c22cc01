"""Recorded runs on other numbers of workers."""

import numpy as np
import pandas as pd
import pytest
from torch import nn

from accelerando import NeuralNetClassifier, cost
from accelerando.batch_size import GeoDamp, RadaDamp
from accelerando.cost import Network, plan, replan


def recorded(sizes, per_example=0.002, overhead=0.01, ranks=1, wait=0.0):
    shares = -(-np.array(sizes) // ranks)
    return pd.DataFrame(
        {
            "update": range(1, len(sizes) + 1),
            "epoch": 1,
            "batch_size": sizes,
            "seconds": np.cumsum(overhead + per_example * shares + wait),
            "ranks": ranks,
            "wait_seconds": wait,
        }
    )


def test_a_record_is_predicted_on_its_own_machine():
    record = recorded([10, 10, 40, 40, 160])
    found = replan(record, workers=1, parameters=1)
    assert found.setting.seconds_per_example == pytest.approx(0.002)
    assert found.setting.overhead == pytest.approx(0.01)
    assert found.seconds == pytest.approx(record["seconds"].iloc[-1])


def test_waiting_for_other_ranks_is_not_computing():
    record = recorded([100, 200, 400], ranks=4, wait=0.5)
    found = replan(record, workers=1, parameters=1)
    assert found.setting.seconds_per_example == pytest.approx(0.002)
    assert found.seconds == pytest.approx(3 * 0.01 + 700 * 0.002)


def test_given_times_are_taken():
    record = recorded([100, 200]).drop(columns="seconds")
    found = replan(record, workers=1, parameters=1, seconds_per_example=1.0, overhead=2.0)
    assert found.seconds == 304.0
    with pytest.raises(ValueError, match="no column 'seconds'"):
        replan(record, workers=1, parameters=1, seconds_per_example=1.0)


def test_a_rest_at_the_end_of_an_epoch_keeps_its_workers():
    record = pd.DataFrame({"update": [1, 2, 3], "epoch": [1, 1, 2], "batch_size": [400, 10, 300]})
    found = replan(
        record,
        workers=9,
        parameters=1,
        examples_per_worker=100,
        seconds_per_example=1.0,
        overhead=0.0,
    )
    assert found._table["workers"].tolist() == [4, 4, 3]
    assert found._table["examples"].tolist() == [400, 10, 300]


def test_an_adaptive_run_is_planned_with_the_batches_it_chose(digits):
    net = NeuralNetClassifier(
        nn.Linear(64, 10),
        criterion=nn.CrossEntropyLoss,
        lr=0.1,
        max_epochs=6,
        batch_size=RadaDamp(initial=8),
        train_split=None,
        random_state=0,
        verbose=0,
    )
    record = net.fit(*digits).updates_frame()
    alone = replan(record, workers=1, parameters=650, examples_per_worker=4)
    assert alone.updates == len(record)
    assert alone.frame()["updates"].tolist() == net.history_frame()["updates"].tolist()
    four = alone.on(max_workers=4, network=Network(1e9))
    assert four.peak_workers == min(4, -(-record["batch_size"].max() // 4)) > 2
    assert four.bytes > 0


def test_a_schedule_and_its_record_cost_the_same(digits):
    X, y = digits
    policy = GeoDamp(initial=16, delay=1, factor=2)
    net = NeuralNetClassifier(
        nn.Linear(64, 10),
        criterion=nn.CrossEntropyLoss,
        max_epochs=3,
        batch_size=policy,
        train_split=None,
        verbose=0,
    )
    given_ = {
        "parameters": 650,
        "seconds_per_example": 0.001,
        "overhead": 0.01,
        "examples_per_worker": 16,
        "network": Network(1e8, 1e-4),
    }
    planned = plan(policy, n_examples=len(X), max_epochs=3, max_workers=3, **given_)
    replanned = replan(net.fit(X, y).updates_frame(), workers=3, **given_)
    assert replanned.frame().equals(planned.frame())


def test_the_old_name_is_deprecated():
    with pytest.warns(FutureWarning, match=r"It is called accelerando\.cost\.replan now"):
        assert cost.replay is replan
