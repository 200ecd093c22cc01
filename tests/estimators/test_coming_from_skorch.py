"""Every line of docs/coming-from-skorch.md: skorch does one thing, and our estimators another."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import skorch
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import accelerando
from accelerando.batch_size import GeoDamp
from accelerando.exceptions import NotFiniteError, UnsupportedError
from tests.nets import parameters_of

PAGE = Path(__file__).parents[2] / "docs/coming-from-skorch.md"
X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")
QUIET = {"max_epochs": 1, "verbose": 0, "train_split": None}


class Rows(nn.Linear):
    """Notes the rows of every batch."""

    seen: list[np.ndarray] = []  # noqa: RUF012

    def forward(self, x):
        Rows.seen.append(x.detach().numpy().copy())
        return super().forward(x)


def classifier(library, module=None, **params):
    module = nn.Linear(3, 2) if module is None else module
    return library.NeuralNetClassifier(module, **{**QUIET, **params})


def regressor(library, **params):
    return library.NeuralNetRegressor(nn.Linear(3, 1), **{**QUIET, **params})


def order_of_rows():
    orders = {}
    for library in (skorch, accelerando):
        Rows.seen = []
        params = {} if library is skorch else {"micro_batch_size": None, "random_state": 0}
        library.NeuralNetRegressor(Rows(3, 1), **QUIET, **params).fit(X, X[:, :1])
        orders[library] = Rows.seen[-1]
    assert np.array_equal(orders[skorch], X)
    assert not np.array_equal(orders[accelerando], X)
    assert np.array_equal(np.sort(orders[accelerando], axis=0), np.sort(X, axis=0))
    Rows.seen = []
    net = accelerando.NeuralNetRegressor(
        Rows(3, 1), micro_batch_size=None, iterator_train__shuffle=False, **QUIET
    )
    net.fit(X, X[:, :1])
    assert np.array_equal(Rows.seen[-1], X)


def gradient_of_the_first_batch():
    for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop):
        found = []
        for library, params in (
            (skorch, {}),
            (accelerando, {}),
            (accelerando, {"micro_batch_size": None}),
        ):
            torch.manual_seed(0)
            params = {"criterion": nn.CrossEntropyLoss, "optimizer": optimizer, **params}
            settings = {"max_epochs": 3, "batch_size": 16, "iterator_train__shuffle": False}
            found.append(parameters_of(classifier(library, **settings, **params).fit(X, Y)))
        assert torch.allclose(found[1], found[0], atol=1e-5)
        assert torch.equal(found[2], found[0])


def loss_that_is_not_a_number():
    wild = {"lr": 1e30, "max_epochs": 9}
    regressor(skorch, **wild).fit(X, X[:, :1])
    net = regressor(accelerando, **wild)
    with pytest.raises(NotFiniteError):
        net.fit(X, X[:, :1])
    assert bool(torch.isfinite(net.module_.weight).all())


def lr():
    assert regressor(skorch).lr == 0.01
    net = regressor(accelerando).initialize()
    assert (net.lr, net.optimizer_.param_groups[0]["lr"]) == ("auto", 0.01)
    net = regressor(accelerando, optimizer=torch.optim.Adadelta).initialize()
    assert net.optimizer_.param_groups[0]["lr"] == 1.0


def criterion_of_a_classifier():
    assert np.isnan(classifier(skorch).fit(X, Y).history[-1]["train_loss"])
    net = classifier(accelerando).fit(X, Y)
    assert type(net.criterion_) is nn.CrossEntropyLoss
    soft = nn.Sequential(nn.Linear(3, 2), nn.Softmax(1))
    assert type(classifier(accelerando, soft).fit(X, Y).criterion_) is nn.NLLLoss


def names_as_classes():
    names = np.where(Y == 1, "cat", "dog")
    with pytest.raises((TypeError, ValueError)):
        classifier(skorch, criterion=nn.CrossEntropyLoss).fit(X, names)
    net = classifier(accelerando).fit(X, names)
    assert set(net.predict(X)) <= {"cat", "dog"}
    assert list(net.classes_) == ["cat", "dog"]


def integers_beyond_the_number_of_outputs():
    with pytest.raises(IndexError):
        classifier(skorch, criterion=nn.CrossEntropyLoss).fit(X, 5 * Y)
    assert set(classifier(accelerando).fit(X, 5 * Y).predict(X)) <= {0, 5}


def float64_integer_boolean_or_list_x():
    with pytest.raises(RuntimeError):
        regressor(skorch).fit(X.astype("float64"), X[:, :1])
    for features in (X.astype("float64"), X.astype("int64"), X > 0, X.tolist()):
        assert len(regressor(accelerando).fit(features, X[:, :1]).predict(features)) == 40


def dataframe_as_x():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    with warnings.catch_warnings(), pytest.raises(TypeError):
        warnings.simplefilter("ignore")  # arrays of pandas cannot be written to
        regressor(skorch).fit(frame, X[:, :1])
    assert regressor(accelerando).fit(frame, X[:, :1]).n_features_in_ == 3


def one_d_y_of_a_regressor():
    with pytest.warns(UserWarning, match="target size"):
        regressor(skorch).fit(X, X[:, 0])
    assert regressor(accelerando).fit(X, X[:, 0]).predict(X).shape == (40,)
    net = accelerando.NeuralNet(nn.Linear(3, 1), criterion=nn.MSELoss, **QUIET)
    assert net.fit(X, X[:, 0]).predict(X).shape == (40,)


def mseloss_or_bcewithlogitsloss():
    for criterion in (nn.MSELoss, nn.BCEWithLogitsLoss):
        with warnings.catch_warnings(), pytest.raises((RuntimeError, ValueError)):
            warnings.simplefilter("ignore")
            classifier(skorch, criterion=criterion).fit(X, Y)
        with pytest.raises(ValueError, match=r"Pass criterion=nn.CrossEntropyLoss"):
            classifier(accelerando, criterion=criterion).fit(X, Y)


def arrays_of_another_width_in_predict():
    with pytest.raises(RuntimeError):
        regressor(skorch).fit(X, X[:, :1]).predict(X[:, :2])
    with pytest.raises(ValueError, match="X has 2 features, but NeuralNetRegressor is expecting 3"):
        regressor(accelerando).fit(X, X[:, :1]).predict(X[:, :2])
    with pytest.raises(ValueError, match="got 3D array instead"):
        regressor(accelerando).fit(X, X[:, :1]).predict(X[:, None])


class Items(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, row):
        return X[row], Y[row]


def a_data_set_whose_labels_are_not_at_hand():
    split = {"train_split": skorch.dataset.ValidSplit(5, stratified=True)}
    with pytest.raises(ValueError, match="Stratified"):
        classifier(skorch, **split).fit(Items(), None)
    assert "valid_loss" in classifier(accelerando, **split).fit(Items(), None).history[-1]


def own_run_single_epoch():
    class Own(accelerando.NeuralNetRegressor):
        def run_single_epoch(self, *args, **kwargs):
            super().run_single_epoch(*args, **kwargs)

    with pytest.raises(UnsupportedError, match="overrides run_single_epoch"):
        Own(nn.Linear(3, 1), **QUIET).fit(X, X[:, :1])


def own_get_iterator_or_a_function():
    def whole(dataset, **kwargs):
        return DataLoader(dataset, batch_size=len(dataset))

    net = regressor(accelerando, iterator_train=whole, batch_size=4).fit(X, X[:, :1])
    assert net.position_.update == 1
    for params, what in (
        ({"client": SimpleNamespace(scheduler_info=dict)}, "ranks on a cluster"),
        ({"batch_size": GeoDamp()}, "a batch-size policy"),
    ):
        net = regressor(accelerando, iterator_train=whole, **params)
        with pytest.raises(UnsupportedError, match=f"decides the batches itself: {what}"):
            net.fit(X, X[:, :1])
    with pytest.raises(UnsupportedError, match="itself: sample_weight"):
        regressor(accelerando, iterator_train=whole).fit(X, X[:, :1], sample_weight=np.ones(40))


LINES = [
    order_of_rows,
    gradient_of_the_first_batch,
    loss_that_is_not_a_number,
    lr,
    criterion_of_a_classifier,
    names_as_classes,
    integers_beyond_the_number_of_outputs,
    float64_integer_boolean_or_list_x,
    dataframe_as_x,
    one_d_y_of_a_regressor,
    mseloss_or_bcewithlogitsloss,
    arrays_of_another_width_in_predict,
    a_data_set_whose_labels_are_not_at_hand,
    own_run_single_epoch,
    own_get_iterator_or_a_function,
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.__name__)
def test_a_line_of_the_table_holds(line):
    line()


def test_every_line_has_a_test_in_the_same_order():
    rows = re.findall(r"^\| ([^|]+?) \|", PAGE.read_text(), re.MULTILINE)
    words = [re.sub(r"\W+", "_", row.lower().replace("1-d", "one_d")).strip("_") for row in rows]
    names = [line.__name__ for line in LINES]
    assert len(words) == len(names)
    for word, name in zip(words, names, strict=True):
        assert word.startswith(name[:12]), (word, name)
