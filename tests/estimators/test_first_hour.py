"""What a new user tries in the first hour works, or gets a sentence of ours before training."""

from __future__ import annotations

import inspect
import pickle
import re
import threading
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch.dataset import Dataset as SkorchDataset
from skorch.dataset import ValidSplit
from skorch.helper import predefined_split
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import accelerando
from accelerando import NeuralNetClassifier
from accelerando.batch_size import GeoDamp, GeoDampLR
from accelerando.compress import QSGD
from accelerando.policies import Decision, PlateauPolicy
from accelerando.sync import PeriodicAveraging
from tests.nets import MLP, classifier, regressor

ROOT = str(Path(accelerando.__file__).parent)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")
DAY = pd.Timestamp("2026-01-01")
WITH_NAN = X.copy()
WITH_NAN[5, 0] = np.nan


class Net(nn.Module):
    def __init__(self, hidden=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, x):
        return self.layers(x)


class Returning(Net):
    """Returns something else than the outputs."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(super().forward(x))


class Locked(Net):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class Empty(nn.Module):
    def forward(self, x):
        return x


class Rows(Dataset):
    """Labels can only be read item by item."""

    def __len__(self):
        return 60

    def __getitem__(self, row):
        return X[row], Y[row]


class RowsOf(Rows):
    def __init__(self, path):
        self.path = path


class Stream(IterableDataset):
    def __init__(self, n=60):
        self.n = n

    def __iter__(self):
        return zip(X[: self.n], Y[: self.n], strict=True)


def net_with(module=Net, **params):
    return classifier(module, **{"max_epochs": 2, "batch_size": 16, **params})


def sentence_of(call):
    """Return the error of a call, which must have been raised by us and be a sentence."""
    with pytest.raises((ValueError, TypeError, ArithmeticError)) as caught:
        call()
    assert caught.traceback[-1].path.as_posix().startswith(ROOT)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    text = str(caught.value)
    assert text[0].isupper() or text.split()[0].split("=")[0].isidentifier()
    assert text.endswith(".")
    return text


# -- parameters -----------------------------------------------------------------------------------

PARAMETERS = [
    ({"batch_size": 0}, "'batch_size' .* Got 0"),
    ({"batch_size": -3}, "'batch_size' .* Got -3"),
    ({"batch_size": None}, "'batch_size' parameter must be an integer .* Got None"),
    ({"batch_size": "32"}, "'batch_size' parameter must be .* Got '32'"),
    ({"batch_size": 32.0}, "'batch_size' parameter must be .* Got 32.0"),
    ({"batch_size": True}, "'batch_size' parameter must be .* Got True"),
    ({"batch_size": lambda signals: None}, "returned no batch size before the first update"),
    ({"batch_size": lambda signals: -3}, "a number above 0.* decided -3"),
    ({"batch_size": lambda signals: 0}, "a number above 0.* decided 0"),
    ({"batch_size": lambda signals: float("nan")}, "a number above 0.* decided nan"),
    ({"batch_size": lambda signals: float("inf")}, "a number above 0.* decided inf"),
    ({"batch_size": lambda signals: "16"}, "a number, a Decision or None; .* returned '16'"),
    ({"batch_size": lambda signals: True}, "returned True"),
    ({"batch_size": lambda signals: Decision(batch_size=True)}, "decided True"),
    ({"batch_size": lambda signals: Decision(8, lr_scale="a")}, "lr_scale.* decided 'a'"),
    ({"batch_size": lambda signals: Decision(8, lr_scale=-1)}, "lr_scale.* decided -1"),
    ({"batch_size": lambda: 16}, "has one argument, the signals"),
    ({"batch_size": lambda s: 16 if s.update < 2 else -3}, "decided -3"),
    ({"policies": [lambda signals: -3]}, "returns a Decision or None; .* returned -3"),
    ({"policies": [lambda signals: Decision(lr=-1.0)]}, "lr=.* decided -1.0"),
    ({"policies": PlateauPolicy}, "'policies' parameter must be a list"),
    ({"policies": [PlateauPolicy]}, r"Pass an instance: PlateauPolicy\(\)"),
    ({"policies": None}, "'policies' parameter must be a list"),
    ({"monitors": "noise"}, "'monitors' parameter must be a list"),
    ({"monitors": [None]}, "'monitors' parameter must be a list of monitors"),
    ({"sync": "periodic"}, "'sync' parameter must be a strategy"),
    ({"sync": [PeriodicAveraging(2)]}, "'sync' parameter must be a strategy"),
    ({"compression": "qsgd"}, "'compression' parameter must be a codec"),
    ({"compression": nn.Linear}, "Linear is a class of another kind"),
    ({"max_epochs": -1}, "'max_epochs' .* integer of at least 0. Got -1"),
    ({"max_epochs": 1.5}, "'max_epochs' .* Got 1.5"),
    ({"max_epochs": "3"}, "'max_epochs' .* Got '3'"),
    ({"max_epochs": None}, "'max_epochs' .* Got None"),
    ({"max_epochs": float("inf")}, "'max_epochs' .* Got inf"),
    ({"lr": -1}, "'lr' .* of at least 0.* Got -1"),
    ({"lr": "0.1"}, "'lr' .* Got '0.1'"),
    ({"lr": float("nan")}, "'lr' .* Got nan"),
    ({"lr": [0.1]}, r"'lr' .* Got \[0.1\]"),
    ({"random_state": -1}, "'random_state' .* Got -1"),
    ({"random_state": "a"}, "'random_state' .* Got 'a'"),
    ({"random_state": True}, "'random_state' .* Got True"),
    ({"device": "gpu"}, "'device' .* Got 'gpu'"),
    ({"device": "meta"}, "'device' .* Got 'meta'"),
    ({"train_split": 0.0}, "'train_split' .* Got 0.0"),
    ({"train_split": 0.2}, "'train_split' .* Got 0.2"),
    ({"train_split": 5}, "'train_split' .* Got 5"),
    ({"train_split": ValidSplit(100)}, "X has 60 rows, .* one of 100 parts"),
    ({"train_split": ValidSplit(1.0)}, "cannot divide the rows"),
    ({"callbacks": "foo"}, "'callbacks' .* Got 'foo'"),
    ({"callbacks": 3}, "'callbacks' .* Got 3"),
    ({"callbacks": [int]}, "'callbacks' .* Got <class 'int'>"),
    ({"callbacks": [("x", object())]}, "'callbacks' .* Got"),
    ({"callbacks__foo": None}, "There is no callback 'foo'.* Callbacks: epoch_timer, "),
    ({"callbacks__print_lgo__sink": print}, "Did you mean 'print_log'"),
    ({"verbose": "a"}, "'verbose' .* Got 'a'"),
    ({"warm_start": "no"}, "'warm_start' .* Got 'no'"),
    ({"compile": "no"}, "'compile' .* Got 'no'"),
    ({"predict_nonlinearity": "softmax"}, "'predict_nonlinearity' .* Got 'softmax'"),
    ({"classes": 3}, "'classes' .* Got 3"),
    ({"classes": "ab"}, "'classes' .* Got 'ab'"),
    ({"iterator_valid": None}, "'iterator_valid' .* Got None"),
    ({"dataset": "a"}, "'dataset' .* Got 'a'"),
    ({"checkpoint": 3}, "'checkpoint' .* Got 3"),
    ({"checkpoint": ""}, "'checkpoint' .* Got ''"),
    ({"checkpoint": "/proc/nowhere"}, "'checkpoint' .* can be written"),
    ({"checkpoint": __file__}, "'checkpoint' .* can be written"),
    ({"data": "shard"}, 'data="shard" .* X is a ndarray'),
    ({"micro_batch_size": 0}, "'micro_batch_size' .* Got 0"),
    ({"virtual_ranks": 0}, "'virtual_ranks' .* Got 0"),
    ({"max_workers": 0}, "'max_workers' .* Got 0"),
    ({"min_workers": 3, "max_workers": 2}, "at least min_workers"),
    ({"client": "tcp://127.0.0.1:8786"}, "'client' .* distributed.Client"),
    ({"module": "Net"}, "'module' .* Got 'Net'"),
    ({"module": None}, "'module' .* Got None"),
    ({"module": int}, "made 0, which is no torch.nn.Module"),
    ({"module": Empty}, "Empty has no parameters"),
    ({"module": nn.Linear}, "module=Linear needs more module__x parameters"),
    ({"criterion": None}, "'criterion' .* Got None"),
    ({"criterion": "cross_entropy"}, "'criterion' .* Got 'cross_entropy'"),
    ({"criterion": nn.NLLLoss}, "NLLLoss takes the logarithm .* those of Net are no probabilit"),
    ({"criterion__weight": np.ones(2)}, "'criterion__weight' .* must be a tensor"),
    (
        {"criterion__weight": torch.ones(2).double()},
        "weight of the criterion CrossEntropyLoss is float64, .* computes with float32",
    ),
    ({"criterion": nn.functional.cross_entropy}, "'criterion' .* a class"),
    ({"optimizer": "sgd"}, "'optimizer' .* Got 'sgd'"),
    (
        {"optimizer": torch.optim.SGD([torch.zeros(1)], lr=0.1)},
        "not an instance: its settings are optimizer__x",
    ),
]


@pytest.mark.parametrize(("params", "message"), PARAMETERS)
def test_parameters_that_cannot_work(params, message):
    text = sentence_of(lambda: net_with(**params).fit(X, Y))
    assert re.search(message, text, re.DOTALL), text


@pytest.mark.parametrize(
    "params",
    [
        {"batch_size": np.int64(8)},
        {"batch_size": lambda signals: 32.0},
        {"batch_size": lambda signals: np.int64(8)},
        {"batch_size": lambda signals: 8 if signals.update < 3 else None},
        {"policies": [lambda signals: None]},
        {"max_epochs": 0},
        {"max_epochs": np.int64(1)},
        {"lr": np.float32(0.1)},
        {"lr": None},
        {"callbacks": [None]},
        {"callbacks": [("a", None)]},
        {"callbacks__print_log": None},
        {"train_split": None},
        {"train_split": False},
        {"module": Net()},
        {"module": partial(Net, hidden=3)},
        {"module": Locked},
        {"criterion": nn.CrossEntropyLoss()},
        {"optimizer": partial(torch.optim.SGD, momentum=0.9)},
        {"compression": QSGD},
    ],
)
def test_parameters_that_work(params):
    net = net_with(**params).fit(X, Y)
    assert net.predict(X).shape == (60,)


class Failing(Net):
    def __init__(self):
        raise LookupError("no such file")


def test_an_error_of_the_module_is_not_one_of_disabled_callbacks():
    with pytest.raises(LookupError, match="no such file"):
        net_with(module=Failing, callbacks="disable").fit(X, Y)


def test_verbose_may_be_two(capsys):
    net_with(verbose=2, max_epochs=1).fit(X, Y)
    assert "train_loss" in capsys.readouterr().out


# -- lists of parameters --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "listed"),
    [
        (
            {"batch_size": GeoDamp, "batch_size__scheduled": 1},
            ["batch_size__initial", "batch_size__delay", "batch_size__factor"],
        ),
        (
            {"sync": PeriodicAveraging, "sync__foo": 1, "virtual_ranks": 2},
            ["sync__period", "sync__optimizer_state"],
        ),
        ({"module__foo": 3}, ["module__hidden"]),
        ({"module": Net(), "module__foo": 3}, ["module__hidden"]),
        ({"optimizer__foo": 3}, ["optimizer__lr", "optimizer__momentum"]),
        ({"criterion__foo": 3}, ["criterion__weight", "criterion__reduction"]),
        ({"iterator_train__foo": 3}, ["iterator_train__batch_size", "iterator_train__sampler"]),
        ({"iterator_valid__foo": 3}, ["iterator_valid__batch_size"]),
        ({"compression": QSGD, "compression__foo": 3}, ["compression__bits"]),
    ],
)
def test_lists_name_parameters_that_exist(params, listed):
    text = sentence_of(lambda: net_with(**params).fit(X, Y))
    names = text.partition("Its parameters: ")[2].rstrip(".").split(", ")
    assert set(listed) <= set(names), text
    prefix = listed[0].split("__")[0]
    made = {"module": Net, "optimizer": torch.optim.SGD, "criterion": nn.CrossEntropyLoss}
    made |= {"iterator_train": DataLoader, "iterator_valid": DataLoader}
    given = made.get(prefix, params.get(prefix))
    assert {name.partition("__")[2] for name in names} <= set(inspect.signature(given).parameters)


# -- data -----------------------------------------------------------------------------------------

DATA = [
    ((X, Y[:-5]), {}, "X has 60 rows and y has 55"),
    ((X, np.array([None, *["a"] * 59])), {}, "y holds None or nan in 1 of the 60 rows"),
    ((X, np.array([7, *["a"] * 59], object)), {}, "of the types int and str, which have no order"),
    ((list(zip(X, Y, strict=True)), Y), {}, "wrap it in skorch.helper.SliceDataset"),
    (([X, Y], Y), {}, "list of 2 arrays, .* number 1 has one dimension"),
    (({"x": X, "z": X}, Y), {}, "unexpected keyword argument 'z'.* Those of X are x, z"),
    ((pd.DataFrame(X, columns=[*"abcd"]).assign(t=DAY), Y), {}, "columns t of X hold no numbers"),
    ((X.astype("timedelta64[s]"), Y), {}, "X has the type timedelta64"),
    ((X,), {}, "NeuralNetClassifier requires y"),
    ((X[:0], Y[:0]), {}, "X is empty"),
    ((X[:1], Y[:1]), {}, "X has 1 row, .* Pass train_split=None"),
    ((np.full((60, 2), print), Y), {}, "X has the type object"),
    ((X.astype(str), Y), {}, "X has the type <U"),
    (
        ([X, X[:-1]], Y),
        {},
        "parts of X have different numbers of rows: number 0 has 60, number 1 has 59",
    ),
    ((None, Y), {}, "X must be an array"),
    ((5, Y), {}, "X must be an array"),
    (("data.csv", Y), {}, "X must be an array.* Got 'data.csv'"),
    (((row for row in X), Y), {}, "Write an IterableDataset"),
    ((DataLoader(Rows()),), {}, "X is a DataLoader"),
    ((X, ["a", "b", "c"] * 20), {}, "y holds the class 2, .* one output per class"),
    ((X, np.arange(60) % 3), {}, "y holds the class 2, .* one output per class"),
    ((X, np.eye(2)[Y]), {}, r"y is one-hot encoded .*Pass y.argmax\(axis=1\)"),
    ((X, np.c_[Y, Y]), {}, "y has 2 dimensions"),
    ((WITH_NAN, Y), {"train_split": None}, "X holds nan or inf in 1 of the"),
    ((lambda: None,), {}, "must return a Dataset with a length"),
    ((lambda path: Rows(),), {}, "is called without arguments"),
    ((RowsOf,), {}, "is called without arguments"),
    ((Stream,), {}, "An IterableDataset is passed as an instance"),
    ((Stream(),), {}, "A stream cannot be divided"),
    ((Stream(0),), {"train_split": None}, "the stream yields nothing in epoch 1"),
]


@pytest.mark.parametrize(("data", "params", "message"), DATA)
def test_data_that_cannot_be_trained_on(data, params, message):
    text = sentence_of(lambda: net_with(**params).fit(*data))
    assert re.search(message, text), text


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"sample_weight": np.ones(50)}, "one number per example"),
        ({"sample_weight": -np.ones(60)}, "not negative"),
        ({"sample_weight": np.full(60, np.nan)}, "must be finite"),
        ({"sample_weight": np.zeros(60)}, "is zero for every"),
        ({"sample_weight": "balanced"}, "class weights are class_weight="),
        ({"class_weight": "auto"}, "must be 'balanced' or a dictionary"),
        ({"class_weight": [1.0, 2.0]}, "must be 'balanced' or a dictionary"),
        ({"class_weight": {0: 1.0, 7: 1.0}}, "does not fit y"),
        ({"validation_data": (X, Y)}, "fit got the argument 'validation_data'"),
        ({"epochs": -1}, "'epochs' parameter of fit .* Got -1"),
    ],
)
def test_arguments_of_fit(weights, message):
    text = sentence_of(lambda: net_with().fit(X, Y, **weights))
    assert re.search(message, text), text


def test_nan_in_a_target(line):
    y = line[1].copy()
    y[3] = np.nan
    text = sentence_of(lambda: regressor().fit(line[0], y))
    assert "y holds nan or inf in 1 of the" in text


def test_dates_as_a_target(line):
    dates = np.full(len(line[0]), DAY.to_numpy())
    assert "y has the type datetime64" in sentence_of(lambda: regressor().fit(line[0], dates))


def test_words_that_an_own_loss_passes_on():
    class Own(NeuralNetClassifier):
        def get_loss(self, y_pred, y_true, *args, **kwargs):
            return super().get_loss(y_pred, y_true, *args, **kwargs)

    net = Own(Net, criterion=nn.CrossEntropyLoss, verbose=0)
    assert "y holds words" in sentence_of(lambda: net.fit(X, np.where(Y, "a", "b")))


def test_errors_of_later_updates():
    tokens = np.zeros((60, 3), "int64")
    tokens[50] = 9
    net = net_with(partial(nn.EmbeddingBag, 9, 2), iterator_train__shuffle=False, train_split=None)
    assert "cannot compute a batch of X" in sentence_of(lambda: net.fit(tokens, Y))
    assert net.position_.update == 3
    net = net_with().fit(X, Y)
    assert "y holds the class 2" in sentence_of(lambda: net.partial_fit(X, np.arange(60) % 3))


def test_nothing_to_predict():
    net = net_with().fit(X, Y)
    for method in (net.predict, net.predict_proba, net.forward):
        assert "there is nothing to predict" in sentence_of(lambda: method(X[:0]))  # noqa: B023


def test_nan_in_validation_rows_only():
    net = net_with(train_split=predefined_split(SkorchDataset(WITH_NAN, Y)))
    with pytest.warns(UserWarning, match="validation rows is nan, and training continues"):
        net.fit(X, Y)
    assert np.isfinite(net.history[:, "train_loss"]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: (out, 1), "forward returned a tuple"),
        (lambda out: {"logits": out}, "forward returned a dict"),
        (lambda out: None, "forward returned a NoneType"),
        (lambda out: out.detach(), "depends on no parameter"),
    ],
)
def test_modules_that_return_something_else(change, message):
    assert message in sentence_of(lambda: net_with(Returning, module__change=change).fit(X, Y))


def test_other_errors_of_the_first_update():
    assert "frozen" in sentence_of(lambda: net_with(Frozen).fit(X, Y))
    text = sentence_of(lambda: net_with(criterion__reduction="none").fit(X, Y))
    assert "criterion__reduction='mean'" in text
    norm = {"module__inputs": 4, "module__outputs": 2, "module__norm": True, "batch_size": 1}
    assert "BatchNorm" in sentence_of(lambda: net_with(MLP, **norm).fit(X, Y))


@pytest.mark.parametrize("kind", [list, tuple, lambda X: list(torch.from_numpy(X))])
def test_lists_of_rows(kind):
    net, plain = net_with().fit(kind(X), list(Y)), net_with().fit(X, Y)
    assert torch.equal(net.module_.layers[0].weight, plain.module_.layers[0].weight)
    assert np.array_equal(net.predict(kind(X)), plain.predict(X))
    halves = [X[:, :2], X[:, 2:]]
    net = net_with(Returning, module__change=abs, dataset=lambda X, y: SkorchDataset(X[0], y))
    assert len(net.fit([X, *halves], Y).history) == 2  # several inputs stay what they are


# -- the classes that partial_fit is given ---------------------------------------------------------

NAMES = np.array(["ant", "bee", "cat"])


def test_classes_of_partial_fit():
    later = np.arange(60) % 3
    net = net_with(nn.Linear(4, 3), train_split=None)
    net.partial_fit(X, NAMES[Y], classes=NAMES[::-1])
    assert net.classes_.tolist() == NAMES.tolist()
    net.partial_fit(X, NAMES[later], classes=NAMES)
    module = nn.Linear(4, 3)
    given = net_with(module, classes=NAMES.tolist(), train_split=None)
    numbered = net_with(module, train_split=None).partial_fit(X, Y, classes=[0, 1, 2])
    assert numbered.classes_.tolist() == [0, 1, 2]
    assert set(net.predict(X)) <= set(NAMES)
    assert given.fit(X, NAMES[Y]).classes_.tolist() == net.classes_.tolist()
    with pytest.raises(ValueError, match=r"classes=\['ant', 'bee'\], and the training so far"):
        net.partial_fit(X, NAMES[Y], classes=NAMES[:2])
    with pytest.raises(ValueError, match="y holds 'dog', which is none of the classes"):
        net.partial_fit(X, np.full(60, "dog"))


def test_plain_classes_after_named_ones():
    net = net_with().fit(X, 10 * Y)
    with pytest.raises(ValueError, match=r"y holds 1, which is none of the classes \[0, 10\]"):
        net.partial_fit(X, Y)


# -- data sets ------------------------------------------------------------------------------------

TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


@pytest.mark.parametrize(
    "data",
    [Rows(), Rows, partial(Rows), TENSORS, SkorchDataset(X, Y)],
)
def test_a_data_set_with_the_defaults_of_the_classifier(data):
    net = net_with().fit(data)
    assert net.classes_.tolist() == [0, 1]
    frame = net.history
    assert 0 <= frame[-1, "valid_acc"] <= 1
    assert len(frame[-1, "batches"]) == 3 + 1  # 48 rows in batches of 16, 12 for validation
    assert net.predict(Rows()).shape == (60,)


def test_labels_at_hand_stratify_the_split():
    rows = np.r_[np.flatnonzero(Y == 0)[:25], np.flatnonzero(Y == 1)[:5]]
    seen = []

    def split(dataset, y, **params):
        seen.append(np.asarray(y).tolist())
        return ValidSplit(5, stratified=True)(dataset, y)

    net_with(train_split=split).fit(Subset(TENSORS, rows))
    assert seen == [Y[rows].tolist()]


def test_balanced_classes_of_a_data_set():
    net = net_with(train_split=None)
    net.fit(TENSORS, class_weight="balanced")
    with_arrays = net_with(train_split=None).fit(X, Y, class_weight="balanced")
    for one, other in zip(net.module_.parameters(), with_arrays.module_.parameters(), strict=True):
        assert torch.equal(one, other)


# -- the learning rate ----------------------------------------------------------------------------


def rate_of(net):
    return net.optimizer_.param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("optimizer", "auto", "own"),
    [
        (torch.optim.SGD, 0.01, 0.001),
        (torch.optim.Adam, 0.01, 0.001),
        (torch.optim.Adadelta, 1.0, 1.0),
        (torch.optim.LBFGS, 1.0, 1.0),
        (partial(torch.optim.SGD, lr=1e-4), 1e-4, 1e-4),
    ],
)
def test_the_learning_rate_that_is_not_given(optimizer, auto, own):
    net = NeuralNetClassifier(Net, criterion=nn.CrossEntropyLoss, optimizer=optimizer, verbose=0)
    assert net.lr == "auto"
    assert rate_of(clone(net).initialize()) == auto
    assert rate_of(clone(net).set_params(lr=None).initialize()) == own
    assert rate_of(clone(net).set_params(lr=0.3).initialize()) == 0.3
    assert rate_of(clone(net).set_params(optimizer__lr=0.4).initialize()) == 0.4


def test_the_learning_rate_of_a_fitted_net():
    net = net_with(lr=0.5).fit(X, Y)
    assert rate_of(net.set_params(lr=None)) == 0.001
    assert net.lr is None
    assert rate_of(net.set_params(optimizer=torch.optim.Adadelta, lr="auto")) == 1.0
    assert rate_of(pickle.loads(pickle.dumps(net)).partial_fit(X, Y)) == 1.0


def test_policies_begin_with_the_optimizers_own_rate():
    params = {"lr": None, "optimizer": torch.optim.Adadelta, "max_epochs": 3}
    halving = net_with(batch_size=GeoDampLR(initial=16, delay=1), **params).fit(X, Y)
    assert sorted(set(halving.updates_frame()["lr"])) == [0.25, 0.5, 1.0]
    policy = [lambda signals: Decision(lr=signals.lr / 2) if signals.update == 4 else None]
    decided = net_with(policies=policy, **params).fit(X, Y).updates_frame()["lr"]
    assert set(decided) == {1.0, 0.5}


def test_adadelta_learns_with_the_default():
    net = NeuralNetClassifier(
        Net,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adadelta,
        max_epochs=40,
        random_state=0,
        verbose=0,
        train_split=None,
    )
    losses = net.fit(X, Y).history[:, "train_loss"]
    assert losses[-1] < 0.8 * losses[0]


class WithoutRate(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})


class NeedsRate(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr=lr)


def test_optimizers_without_a_rate_of_their_own():
    assert "has no learning rate" in sentence_of(
        lambda: net_with(optimizer=WithoutRate, lr="auto").fit(X, Y)
    )
    assert rate_of(net_with(optimizer=NeedsRate, lr="auto").initialize()) == 0.01
    assert "Pass a number" in sentence_of(
        lambda: net_with(optimizer=NeedsRate, lr=None).initialize()
    )


# -- the life of an estimator ---------------------------------------------------------------------


def test_a_lock_in_a_module(tmp_path):
    net = net_with(Locked, checkpoint=tmp_path / "run").fit(X, Y)
    clone(net).fit(X, Y)
    net.save_state(tmp_path / "state")
    assert "cannot be pickled: " in sentence_of(lambda: pickle.dumps(net))
    assert "cannot be cloned: " in sentence_of(lambda: clone(net_with(Locked())))


@pytest.mark.parametrize(
    "params",
    [
        {"iterator_train__drop_last": True},
        {"iterator_valid__batch_size": 8},
        {"optimizer": torch.optim.Adam},
        {"dataset__length": 60},
        {"batch_size": 8},
        {"module__hidden": 3},
        {"train_split": None},
    ],
)
def test_a_fitted_net_accepts_other_parameters(params):
    net = net_with().fit(X, Y).set_params(**params).partial_fit(X, Y)
    assert {key: net.get_params()[key] for key in params} == params


def test_wrong_parameters_after_fit():
    net = net_with().fit(X, Y)
    assert "Got 0" in sentence_of(lambda: net.set_params(batch_size=0).partial_fit(X, Y))
    assert "Got 0" in sentence_of(lambda: net.predict(X))


def test_a_grid_search_in_two_processes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        found = GridSearchCV(net_with(max_epochs=1), {"lr": [None, 0.1]}, n_jobs=2, cv=2).fit(X, Y)
    assert "lr" in found.best_params_


class FakeClient:
    """A connection that is closed, or asynchronous."""

    def __init__(self, status="running", asynchronous=False):
        self.status, self.asynchronous = status, asynchronous

    def scheduler_info(self):
        return {}


@pytest.mark.parametrize("client", [FakeClient("closed"), FakeClient(asynchronous=True)])
def test_a_client_that_cannot_be_used(client):
    assert "must be connected" in sentence_of(lambda: net_with(client=client).fit(X, Y))


def test_a_cluster_is_not_a_client(client):
    assert "must be a distributed.Client" in sentence_of(
        lambda: net_with(client=client.cluster).fit(X, Y)
    )


class Troubled(torch.optim.SGD):
    def __init__(self, params, **settings):
        raise TypeError("trouble of the optimizer")


def test_an_instance_as_module_is_not_blamed_for_other_components():
    """Its class would need arguments, but nobody calls it."""
    with pytest.raises(TypeError, match="trouble of the optimizer"):
        net_with(module=nn.Linear(3, 2), optimizer=Troubled).fit(X, Y)
    with pytest.raises(TypeError, match=r"'client' .* distributed\.Client"):
        net_with(module=nn.Linear(3, 2), client=object()).fit(X, Y)
