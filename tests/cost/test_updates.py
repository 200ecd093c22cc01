"""Updates of schedules and of records."""

import pandas as pd
import pytest

from accelerando.batch_size import Constant, GeoDamp, GeoDampLR, PadaDamp, RadaDamp
from accelerando.cost import plan, replan
from accelerando.cost._updates import of_frame, of_schedule


def test_the_last_batch_of_an_epoch_has_the_remaining_rows():
    found = of_schedule(4, n_examples=10, max_epochs=2, max_batch_size=None)
    assert found.rows.tolist() == [4, 4, 2, 4, 4, 2]
    assert found.epoch.tolist() == [1, 1, 1, 2, 2, 2]
    assert found.batch_size.tolist() == [4] * 6


def test_a_record_has_the_rows_and_restores_the_size_of_the_last_batch():
    frame = pd.DataFrame({"update": [1, 2, 3], "epoch": [1, 1, 2], "batch_size": [400, 10, 300]})
    found = of_frame(frame)
    assert found.rows.tolist() == [400, 10, 300]
    assert found.batch_size.tolist() == [400, 400, 300]


@pytest.mark.parametrize(
    "policy", [64, Constant(100), GeoDamp(16, 1, 3), GeoDampLR(16, 1, 3), PadaDamp(8, 0.5), -1]
)
def test_updates_are_those_of_a_real_run(policy, digits):
    from torch import nn

    from accelerando import NeuralNetClassifier

    X, y = digits
    net = NeuralNetClassifier(
        nn.Linear(64, 10),
        criterion=nn.CrossEntropyLoss,
        max_epochs=3,
        batch_size=policy,
        max_batch_size=120,
        train_split=None,
        verbose=0,
    )
    record = net.fit(X, y).updates_frame()
    found = plan(
        policy,
        n_examples=len(X),
        max_epochs=3,
        max_batch_size=120,
        parameters=650,
        seconds_per_example=1.0,
    )
    assert found._table["examples"].tolist() == record["batch_size"].tolist()
    assert found._table["epoch"].tolist() == record["epoch"].tolist()


@pytest.mark.parametrize("policy", [RadaDamp(), lambda signals: 3])
def test_a_policy_that_depends_on_the_model_needs_a_record(policy):
    with pytest.raises(ValueError, match=r"depends on the model.*accelerando\.cost\.replan"):
        of_schedule(policy, 10, 1, None)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (pd.DataFrame({"epoch": [1], "updates": [3]}), "looks like a history_frame"),
        (pd.DataFrame({"x": [1]}), "with the columns update, epoch and batch_size. Got x instead"),
        (pd.DataFrame({"update": [], "epoch": [], "batch_size": []}), "has no update"),
    ],
)
def test_wrong_frames_are_refused(frame, says):
    with pytest.raises(ValueError, match=says):
        replan(frame, workers=1, parameters=1)
