"""The binary classifier: skorch's defaults and numbers, labels, thresholds and weights."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
import skorch
import torch
from sklearn.base import is_classifier
from sklearn.utils import get_tags
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import nn

from accelerando import NeuralNetBinaryClassifier
from tests.nets import parameters_of

X = np.random.default_rng(0).normal(size=(120, 3)).astype("float32")
Y = (X[:, 0] + 0.5 * X[:, 1] > 0).astype("int64")


class Flat(nn.Linear):
    def forward(self, x):
        return super().forward(x).squeeze(1)


def net_with(module=nn.Linear, **params):
    settings = {"lr": 0.5, "max_epochs": 20, "random_state": 0, "verbose": 0, "train_split": None}
    if isinstance(module, type):
        settings |= {"module__in_features": 3, "module__out_features": 1}
    return NeuralNetBinaryClassifier(module, **{**settings, **params})


def test_every_parameter_is_spelled_out_and_given_by_name():
    parameters = inspect.signature(NeuralNetBinaryClassifier).parameters
    theirs = set(inspect.signature(skorch.NeuralNetBinaryClassifier).parameters) - {"args"}
    assert theirs | {"threshold", "client", "sync", "policies"} <= set(parameters)
    assert "classes" not in parameters
    by_position = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position == ["module"]


def test_defaults_are_skorchs():
    net, theirs = NeuralNetBinaryClassifier(nn.Linear), skorch.NeuralNetBinaryClassifier(nn.Linear)
    assert isinstance(net, skorch.NeuralNetBinaryClassifier)
    assert is_classifier(net)
    assert not get_tags(net).classifier_tags.multi_class
    assert net.criterion is theirs.criterion is nn.BCEWithLogitsLoss
    assert net.threshold == theirs.threshold == 0.5
    assert net.train_split.stratified
    assert list(net.classes_) == [0, 1]


@pytest.mark.parametrize("layer", [nn.Linear, Flat])
def test_it_learns_what_skorchs_learns(layer):
    module = layer(3, 1)
    settings = {"lr": 0.5, "max_epochs": 5, "verbose": 0, "train_split": None, "batch_size": -1}
    theirs = skorch.NeuralNetBinaryClassifier(copy.deepcopy(module), **settings)
    theirs.fit(X, Y.astype("float32"))
    ours = NeuralNetBinaryClassifier(module, **settings).fit(X, Y)
    assert torch.allclose(parameters_of(ours), parameters_of(theirs), atol=1e-6)
    assert np.array_equal(ours.predict(X), theirs.predict(X))
    assert np.allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)


LABELS = {
    "names": np.array(["no", "yes"]),
    "signs": np.array([-1, 1]),
    "floating signs": np.array([-1.0, 1.0]),
    "gap": np.array([3, 7]),
    "objects": np.array(["a", "b"], dtype=object),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_are_those_of_y(labels, tmp_path):
    plain, net = net_with().fit(X, Y), net_with().fit(X, labels[Y])
    assert torch.equal(parameters_of(net), parameters_of(plain))
    assert net.classes_.tolist() == labels.tolist()
    assert net.predict(X).tolist() == labels[plain.predict(X)].tolist()
    assert np.array_equal(net.predict_proba(X), plain.predict_proba(X))
    assert net.score(X, labels[Y]) == plain.score(X, Y) > 0.9
    net.save_state(tmp_path / "state.pt")
    for other in (pickle.loads(pickle.dumps(net)), net_with().load_state(tmp_path / "state.pt")):
        assert other.predict(X).tolist() == net.predict(X).tolist()


def test_booleans_are_two_classes():
    net = net_with().fit(X, Y.astype(bool))
    assert torch.equal(parameters_of(net), parameters_of(net_with().fit(X, Y)))
    assert net.score(X, Y.astype(bool)) > 0.9


def test_the_threshold_is_one_of_the_second_class():
    net = net_with(threshold=0.9).fit(X, np.where(Y, "yes", "no"))
    sure = net.predict_proba(X)[:, 1] > 0.9
    assert 0 < sure.sum() < Y.sum()
    assert np.array_equal(net.predict(X) == "yes", sure)
    net.set_params(threshold=0.0)
    assert set(net.predict(X)) == {"yes"}


def test_weights():
    weights = np.linspace(0.1, 2.0, 120)
    both = net_with().fit(X, Y, sample_weight=weights, class_weight={0: 1.0, 1: 3.0})
    by_hand = net_with().fit(X, Y, sample_weight=weights * (1 + 2 * Y))
    assert torch.equal(parameters_of(both), parameters_of(by_hand))
    assert not torch.equal(parameters_of(both), parameters_of(net_with().fit(X, Y)))
    named = net_with().fit(X, np.where(Y, "yes", "no"), class_weight={"no": 1.0, "yes": 3.0})
    numbered = net_with().fit(X, Y, class_weight={0: 1.0, 1: 3.0})
    assert torch.equal(parameters_of(named), parameters_of(numbered))


def test_rows_held_out_are_scored_with_labels():
    split = NeuralNetBinaryClassifier(nn.Linear).train_split
    named = net_with(train_split=split).fit(X, np.where(Y, "yes", "no"))
    numbered = net_with(train_split=split).fit(X, Y)
    assert named.history[-1]["valid_acc"] == numbered.history[-1]["valid_acc"] > 0.8


def test_validation_rows_of_the_user_are_converted():
    names = np.where(Y, "yes", "no")
    net = net_with(train_split=predefined_split(Dataset(X, names))).fit(X, names)
    assert net.history[-1]["valid_acc"] == net.score(X, names) > 0.8


def test_later_calls_know_the_classes_of_the_first():
    names = np.where(Y, "yes", "no")
    net = net_with().partial_fit(X, names).partial_fit(X[Y == 1], names[Y == 1])
    plain = net_with().partial_fit(X, Y).partial_fit(X[Y == 1], Y[Y == 1])
    assert torch.equal(parameters_of(net), parameters_of(plain))
    with pytest.raises(ValueError, match=r"y holds .*'maybe', which is none of the classes"):
        net.partial_fit(X[:2], np.array(["yes", "maybe"]))


@pytest.mark.parametrize(
    ("module", "y", "message"),
    [
        (nn.Linear(3, 1), np.arange(120) % 3, r"Only binary classification .* y has 3 classes"),
        (nn.Linear(3, 1), np.full(120, "one"), r"y has 1 class\. Use"),
        (nn.Linear(3, 1), np.linspace(-1, 1, 120), "Unknown label type: continuous"),
        (nn.Linear(3, 1), Y.reshape(-1, 1), "should be 1-dimensional"),
        (nn.Linear(3, 2), Y, r"Expected module output to have shape \(n,\) or \(n, 1\)"),
    ],
)
def test_what_are_no_two_classes(module, y, message):
    with pytest.raises(ValueError, match=message):
        net_with(module).fit(X, y)
