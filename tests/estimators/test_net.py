"""scikit-learn's and skorch's ways to use an estimator work."""

from __future__ import annotations

import io
import pickle

import joblib
import numpy as np
import pytest
import skorch
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.callback import ProgressBar as SklearnProgressBar
from sklearn.callback import ScoringMonitor
from sklearn.datasets import make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch.callbacks import (
    BatchScoring,
    Callback,
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    Freezer,
    GradientNormClipping,
    LRScheduler,
    ProgressBar,
    TrainEndCheckpoint,
)
from skorch.helper import predefined_split
from torch import nn

import accelerando
from accelerando import NeuralNet, NeuralNetClassifier, NeuralNetRegressor
from accelerando.batch_size import Constant, GeoDamp, RadaDamp
from accelerando.exceptions import UnsupportedError
from tests.nets import MLP, classifier, parameters_of, regressor


class HiddenLayer(nn.Module):
    """The module of the AdaDamp paper's "Example usage"."""

    def __init__(self, features=4, hidden=2, out=1):
        super().__init__()
        self.hidden = nn.Linear(features, hidden)
        self.out = nn.Linear(hidden, out)

    def forward(self, x, *args, **kwargs):
        return self.out(nn.functional.relu(self.hidden(x)))


def test_the_example_of_the_adadamp_paper_runs():
    est = NeuralNetRegressor(
        module=HiddenLayer, module__features=10,
        optimizer=torch.optim.Adadelta,
        optimizer__weight_decay=1e-7,
        max_epochs=10,
    )  # fmt: skip
    est.set_params(batch_size=GeoDamp, batch_size__delay=60, batch_size__factor=5)
    X, y = make_regression(n_features=10)
    X = torch.from_numpy(X.astype("float32"))
    y = torch.from_numpy(y.astype("float32")).reshape(-1, 1)
    est.fit(X, y)
    assert batch_policy(est) == GeoDamp(128, 60, 5)
    assert est.position_.update == 10  # 80 training rows in one batch


def batch_policy(net):
    """Return the policy that decides the batch size of a net."""
    return net._controller().policies[0]


def test_policies_as_classes_and_instances_through_set_params_clone_get_params():
    net = classifier(batch_size=GeoDamp, batch_size__delay=2)
    assert net.get_params()["batch_size__delay"] == 2
    copied = clone(net)
    assert copied.get_params()["batch_size"] is GeoDamp
    assert batch_policy(copied) == GeoDamp(delay=2)
    copied.set_params(batch_size__factor=7)
    assert batch_policy(copied) == GeoDamp(delay=2, factor=7)
    copied.set_params(batch_size=RadaDamp(initial=9), batch_size__memory=0.5)
    assert "batch_size__delay" not in copied.get_params()
    assert batch_policy(copied) == RadaDamp(initial=9, memory=0.5)
    copied.set_params(batch_size=32)
    assert batch_policy(copied) == Constant(32)
    assert batch_policy(clone(classifier(batch_size=GeoDamp(4, 1, 2)))) == GeoDamp(4, 1, 2)


def test_set_params_on_a_fitted_net_changes_the_next_training(line):
    net = regressor(batch_size=GeoDamp(8, 1, 2)).fit(*line)
    net.set_params(batch_size=30, lr=0.01).partial_fit(*line)
    assert net.updates_frame()["batch_size"].tolist()[-4:] == [30] * 4
    assert net.updates_frame()["lr"].tolist()[-1] == 0.01


def test_grid_search_over_policies_and_their_settings(digits):
    grid = [
        {"batch_size": [GeoDamp(16, 1, 2), Constant(64)]},
        {"batch_size": [GeoDamp], "batch_size__initial": [8, 32]},
    ]
    search = GridSearchCV(classifier(max_epochs=2, train_split=None), grid, cv=2, refit=True)
    search.fit(*digits)
    assert len(search.cv_results_["params"]) == 4
    assert search.best_score_ > 0.4
    assert search.best_estimator_.position_.epoch == 2


def test_grid_search_in_processes(digits):
    X, y = digits[0][:200], digits[1][:200]
    search = GridSearchCV(
        classifier(max_epochs=1, train_split=None), {"lr": [0.1, 0.2]}, cv=2, n_jobs=2
    )
    search.fit(X, y)
    assert len(search.cv_results_["params"]) == 2


def test_pipeline_and_cross_validation(digits):
    pipe = make_pipeline(StandardScaler(), classifier(max_epochs=3))
    pipe.set_params(
        neuralnetclassifier__batch_size__size=16, neuralnetclassifier__batch_size=Constant
    )
    assert cross_val_score(pipe, digits[0], digits[1], cv=2).mean() > 0.7


@pytest.mark.parametrize("fitted", [False, True])
def test_pickle_and_joblib(digits, tmp_path, fitted):
    net = classifier(batch_size=GeoDamp(32, 1, 2), callbacks=[EarlyStopping(patience=9)])
    if fitted:
        net.fit(*digits)
    joblib.dump(net, tmp_path / "net.joblib")
    for copied in (pickle.loads(pickle.dumps(net)), joblib.load(tmp_path / "net.joblib")):
        if not fitted:
            copied.fit(*digits)
            continue
        assert np.array_equal(copied.predict(digits[0]), net.predict(digits[0]))
        assert copied.updates_frame().equals(net.updates_frame())
        assert torch.equal(
            parameters_of(copied.partial_fit(*digits)),
            parameters_of(pickle.loads(pickle.dumps(net)).partial_fit(*digits)),
        )


def test_callbacks_of_skorch(digits, tmp_path):
    checkpoint = Checkpoint(monitor="valid_loss_best", dirname=str(tmp_path))
    net = classifier(
        callbacks=[
            EpochScoring("f1_macro", lower_is_better=False, name="f1"),
            EpochScoring("accuracy", on_train=True, name="train_acc", lower_is_better=False),
            BatchScoring("accuracy", on_train=True, name="batch_acc", lower_is_better=False),
            checkpoint,
            GradientNormClipping(0.5),
            Freezer("first.bias"),
            TrainEndCheckpoint(dirname=str(tmp_path / "end")),
            ("bar", ProgressBar()),
        ],
        max_epochs=4,
        batch_size=GeoDamp(32, 2, 2),
    ).fit(*digits)
    history = net.history
    assert len(history[:, "f1"]) == len(history[:, "train_acc"]) == 4
    assert history[-1, "train_acc"] > history[0, "train_acc"]
    assert len(history[-1, "batches", :, "batch_acc"]) >= history[-1, "train_batch_count"]
    assert (tmp_path / "params.pt").exists()
    fresh = classifier().initialize()
    fresh.load_params(checkpoint=checkpoint)
    assert fresh.module_.first.bias.detach().tolist() == fresh.module_.first.bias.tolist()


def test_train_accuracy_counts_every_row_once_in_micro_batches(digits):
    """Cached training predictions are put together from micro-batches."""
    score = EpochScoring("accuracy", on_train=True, name="acc", lower_is_better=False)
    one = classifier(callbacks=[score], micro_batch_size=None, batch_size=100).fit(*digits)
    score = EpochScoring("accuracy", on_train=True, name="acc", lower_is_better=False)
    many = classifier(callbacks=[score], micro_batch_size=7, batch_size=100).fit(*digits)
    assert one.history[:, "acc"] == many.history[:, "acc"]


def test_early_stopping_ends_the_run_for_good(digits):
    stop = EarlyStopping(patience=1, threshold=10.0, monitor="valid_loss")
    net = classifier(max_epochs=50, callbacks=[stop]).fit(*digits)
    epochs = net.position_.epoch
    assert epochs < 50
    net.set_params(callbacks=None, max_epochs=2).partial_fit(*digits)
    assert net.position_.epoch == epochs + 2, "a run ended by a callback is not continued"


def test_scheduler_and_damping_multiply(line):
    schedule = LRScheduler(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    net = regressor(
        batch_size=GeoDamp(40, 1, 3), max_batch_size=40, callbacks=[schedule], max_epochs=3, lr=0.4
    ).fit(*line)
    frame = net.updates_frame().groupby("epoch")["lr"].first()
    assert frame.tolist() == pytest.approx([0.4, 0.4 * 0.5 / 3, 0.4 * 0.25 / 9])


def test_scheduler_per_batch(line):
    schedule = LRScheduler(
        torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.9, step_every="batch"
    )
    net = regressor(callbacks=[schedule], max_epochs=1, batch_size=30, lr=0.1).fit(*line)
    assert net.updates_frame()["lr"].tolist() == pytest.approx([0.1, 0.09, 0.081, 0.0729])


def test_sees_the_gradient_before_the_step(line):
    class Look(Callback):
        def on_grad_computed(self, net, named_parameters, **kwargs):
            self.norms_ = [
                *getattr(self, "norms_", []),
                sum(p.grad.norm() for _, p in named_parameters),
            ]

    look = Look()
    net = regressor(callbacks=[look], max_epochs=1).fit(*line)
    assert len(look.norms_) == net.position_.update


def test_train_split_iterator_valid_and_predefined_split(digits):
    X, y = digits
    held = skorch.dataset.Dataset(X[:50], y[:50])
    net = classifier(train_split=predefined_split(held), iterator_valid__batch_size=7).fit(X, y)
    assert net.history[-1, "valid_batch_count"] == 8
    assert net.position_.n_examples == 600
    split = skorch.dataset.ValidSplit(0.25, stratified=True, random_state=0)
    assert classifier(train_split=split, max_epochs=1).fit(X, y).position_.n_examples == 450


def test_predictions_equal_skorchs(digits):
    X, y = digits
    net = classifier(max_epochs=2).fit(X, y)
    theirs = skorch.NeuralNetClassifier(MLP, criterion=nn.CrossEntropyLoss).initialize()
    theirs.module_.load_state_dict(net.module_.state_dict())
    assert np.allclose(net.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    assert net.predict(X).tolist() == theirs.predict(X).tolist()
    assert net.score(X, y) == theirs.score(X, y)


def test_default_criterion_takes_probabilities(digits):
    class Softmax(MLP):
        def forward(self, x):
            return super().forward(x).softmax(-1)

    net = NeuralNetClassifier(
        Softmax, lr=0.5, max_epochs=15, batch_size=32, random_state=0, verbose=0
    )
    assert net.fit(*digits).history[-1, "valid_acc"] > 0.7


def test_save_and_load_params(digits):
    net = classifier().fit(*digits)
    file = io.BytesIO()
    net.save_params(f_params=file)
    file.seek(0)
    other = classifier(random_state=1).initialize()
    other.load_params(f_params=file)
    assert torch.equal(parameters_of(net), parameters_of(other))


def test_partial_fit_and_warm_start_continue(digits):
    net = classifier(max_epochs=2).fit(*digits)
    net.partial_fit(*digits)
    assert (net.position_.epoch, len(net.history)) == (4, 4)
    assert torch.equal(parameters_of(net), parameters_of(classifier(max_epochs=4).fit(*digits)))
    warm = classifier(max_epochs=2, warm_start=True).fit(*digits).fit(*digits)
    assert torch.equal(parameters_of(warm), parameters_of(net))
    cold = classifier(max_epochs=2).fit(*digits).fit(*digits)
    assert cold.position_.epoch == 2


def test_partial_fit_with_other_data_each_time(digits):
    X, y = digits
    net = classifier(max_epochs=1, train_split=None)
    for start in range(0, 600, 200):
        net.partial_fit(X[start : start + 200], y[start : start + 200], classes=np.arange(10))
    assert net.position_.examples == 600


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, in dynamo
def test_compile(digits):
    net = classifier(compile=True, compile__backend="eager", max_epochs=2).fit(*digits)
    assert np.allclose(
        net.predict_proba(digits[0]),
        classifier(max_epochs=2).fit(*digits).predict_proba(digits[0]),
        atol=1e-6,
    )


def test_callbacks_disabled(digits):
    assert classifier(callbacks="disable").fit(*digits).position_.epoch == 3


def test_scikit_learns_own_callbacks(digits):
    monitor = ScoringMonitor(scoring="accuracy")
    net = classifier(max_epochs=3)
    net.set_callbacks(monitor).fit(*digits)
    scores = monitor.get_logs().data_as_pandas
    assert (scores["task_name"] == "epoch").sum() == 3
    last = scores.loc[scores["task_name"] == "epoch", "accuracy"].iloc[-1]
    assert last == pytest.approx(net.score(*digits))
    assert clone(net).get_params().keys() == net.get_params().keys()


def test_scikit_learns_progress_bar(digits, capsys):
    net = classifier(max_epochs=2)
    net.set_callbacks(SklearnProgressBar()).fit(*digits)
    assert "100%" in capsys.readouterr().out


def test_scikit_learns_callback_can_stop(digits):
    class StopAfterTwo:
        def setup(self, estimator, context): ...
        def teardown(self, estimator, context): ...
        def on_fit_task_begin(self, estimator, context): ...
        def on_fit_task_end(self, estimator, context):
            return context.task_name == "epoch" and context.task_id == 1

    net = classifier(max_epochs=9)
    assert net.set_callbacks(StopAfterTwo()).fit(*digits).position_.epoch == 2


def test_kinds_of_estimators(digits):
    assert is_classifier(classifier())
    assert is_regressor(regressor())
    assert issubclass(NeuralNet, skorch.NeuralNet)
    assert set(accelerando.__all__) <= set(dir(accelerando))
    assert classifier(max_epochs=1).fit(*digits).classes_.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"max_batch_size": 0},
            "The 'max_batch_size' parameter of NeuralNetRegressor must be an integer of at least 1 "
            "or None. Got 0 instead.",
        ),
        ({"micro_batch_size": "big"}, "an integer of at least 1, 'auto' or None .* Got 'big'"),
        ({"micro_batch_size": -3}, "Got -3 instead"),
        ({"channels_last": "yes"}, "must be True, False or 'auto'. Got 'yes' instead"),
        (
            {"batch_sise": 3},
            r"(?s)unexpected argument.*Did you mean 'batch_size' instead of 'batch_sise'",
        ),
        (
            {"max_worker": 3},
            r"(?s)unexpected argument.*Did you mean 'max_workers' instead of 'max_worker'",
        ),
        ({"batch_size_delay": 3}, "did you mean batch_size__delay"),
        (
            {"batch_size": GeoDamp, "batch_size__dely": 3},
            "no parameter 'dely'. Did you mean 'delay'",
        ),
    ],
)
def test_wrong_settings_are_refused_before_training(line, params, message):
    net = regressor(**params)
    with pytest.raises(ValueError, match=message):
        net.fit(*line)


def test_an_overridden_epoch_is_refused(line):
    class Mine(NeuralNetRegressor):
        def run_single_epoch(self, *args, **kwargs): ...

    with pytest.raises(UnsupportedError, match="overrides run_single_epoch"):
        Mine(nn.Linear, module__in_features=3, module__out_features=1).fit(*line)


def test_a_custom_step_refuses_what_it_cannot_honor(line):
    class Mine(NeuralNetRegressor):
        def train_step_single(self, batch, **fit_params):
            return super().train_step_single(batch, **fit_params)

    params = {
        "module__in_features": 3,
        "module__out_features": 1,
        "train_split": None,
        "verbose": 0,
    }
    with pytest.raises(UnsupportedError, match="sample_weight and class_weight cannot reach it"):
        Mine(nn.Linear, **params).fit(*line, sample_weight=np.ones(120))
    with pytest.raises(UnsupportedError, match="micro_batch_size=5 would have no effect"):
        Mine(nn.Linear, micro_batch_size=5, **params).fit(*line)
    Mine(nn.Linear, max_epochs=1, **params).fit(*line)


def test_importing_the_package_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, accelerando; print('torch' in sys.modules, accelerando.__version__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", accelerando.__version__]
    with pytest.raises(AttributeError, match="has no attribute 'Nets'"):
        accelerando.Nets  # noqa: B018
