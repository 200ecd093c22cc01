"""Recorded runs on other worker counts, and times found by fitting and by measuring."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from accelerando import NeuralNetClassifier
from accelerando.batch_size import GeoDamp, RadaDamp
from accelerando.cost import Network, compare, measure, plan, replay
from accelerando.cost._fit import fit_line


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
    found = replay(record, workers=1, parameters=1)
    assert found.setting.seconds_per_example == pytest.approx(0.002)
    assert found.setting.overhead == pytest.approx(0.01)
    assert found.seconds == pytest.approx(record["seconds"].iloc[-1])


def test_waiting_for_other_ranks_is_not_computing():
    record = recorded([100, 200, 400], ranks=4, wait=0.5)
    found = replay(record, workers=1, parameters=1)
    assert found.setting.seconds_per_example == pytest.approx(0.002)
    assert found.seconds == pytest.approx(3 * 0.01 + 700 * 0.002)


def test_given_times_are_taken():
    record = recorded([100, 200]).drop(columns="seconds")
    found = replay(record, workers=1, parameters=1, seconds_per_example=1.0, overhead=2.0)
    assert found.seconds == 304.0
    with pytest.raises(ValueError, match="no column seconds"):
        replay(record, workers=1, parameters=1, seconds_per_example=1.0)


def test_a_rest_at_the_end_of_an_epoch_keeps_its_workers():
    record = pd.DataFrame({"update": [1, 2, 3], "epoch": [1, 1, 2], "batch_size": [400, 10, 300]})
    found = replay(
        record,
        workers=9,
        parameters=1,
        examples_per_worker=100,
        seconds_per_example=1.0,
        overhead=0.0,
    )
    assert found._table["workers"].tolist() == [4, 4, 3]
    assert found._table["examples"].tolist() == [400, 10, 300]


def test_an_adaptive_run_is_replayed_with_the_batches_it_chose(digits):
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
    alone = replay(record, workers=1, parameters=650, examples_per_worker=4)
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
    replayed = replay(net.fit(X, y).updates_frame(), workers=3, **given_)
    assert replayed.frame().equals(planned.frame())


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (pd.DataFrame({"epoch": [1], "updates": [3]}), "looks like a history_frame"),
        (pd.DataFrame({"x": [1]}), "with the columns update, epoch and batch_size. Got x instead"),
        (recorded([]), "has no update"),
    ],
)
def test_wrong_frames_are_refused(frame, says):
    with pytest.raises(ValueError, match=says):
        replay(frame, workers=1, parameters=1)


def test_measure_counts_parameters_and_leaves_the_net_alone(digits):
    net = NeuralNetClassifier(nn.Linear(64, 10), criterion=nn.CrossEntropyLoss, batch_size=7)
    found = measure(net, *digits, updates=5)
    assert found.parameters == 650
    assert found.seconds_per_example >= 0
    assert found.seconds_per_example + found.overhead > 0
    assert net.batch_size == 7
    assert not hasattr(net, "module_")
    with pytest.raises(ValueError, match=r"not be above the 600 rows of X. Got 601"):
        measure(net, *digits, batch_sizes=(601,))


positive = st.floats(1e-6, 1e2)


@given(positive, positive, st.lists(st.integers(1, 10_000), min_size=2, unique=True))
def test_a_line_is_found_again(per_example, overhead, sizes):
    rows = np.array(sizes)
    found = fit_line(rows, overhead + per_example * rows)
    predicted = found[1] + found[0] * rows
    np.testing.assert_allclose(predicted, overhead + per_example * rows, rtol=1e-4)


def test_one_slow_update_does_not_move_the_line():
    rows = np.array([10] * 9 + [20] * 9)
    seconds = 0.1 * rows
    seconds[0] = 99.0
    assert fit_line(rows, seconds) == pytest.approx((0.1, 0.0), abs=1e-9)


def test_the_knee_is_between_too_few_and_too_many():
    slow = plan(
        1024,
        n_examples=10_240,
        max_epochs=1,
        parameters=1_000_000,
        seconds_per_example=0.001,
        examples_per_worker=1,
        network=Network(bandwidth=1e9, latency=0.01),
        price_per_worker_hour=1.0,
    )
    found = compare(slow, workers=[64, 1, 2, 4, 8, 16, 32])
    frame = found.frame()
    assert frame["max_workers"].tolist() == [1, 2, 4, 8, 16, 32, 64]
    assert frame["speedup"].iloc[0] == 1
    assert 1 < found.knee.setting.max_workers < 64
    product = frame["seconds"] * frame["worker_seconds"]
    assert frame["knee"].tolist() == (product == product.min()).tolist()
    assert found.sentence().startswith("with 1 worker 10 s for 0.0028 $; with 2 workers ")
    assert [panel.get_ylabel() for panel in found.plot().axes] == ["hours", "price"]


def test_of_equal_plans_the_one_with_fewest_workers_is_the_knee():
    small = plan(64, n_examples=640, max_epochs=1, parameters=1, seconds_per_example=1.0)
    assert compare(small, workers=[1, 2, 4]).knee.setting.max_workers == 1


@pytest.mark.parametrize(("workers", "says"), [([], "at least one"), ([0], "workers must be")])
def test_wrong_numbers_of_workers(workers, says):
    small = plan(64, n_examples=640, max_epochs=1, parameters=1, seconds_per_example=1.0)
    with pytest.raises(ValueError, match=says):
        compare(small, workers)
