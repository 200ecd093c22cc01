"""``ema=`` in an estimator: who sees the average, who sees the weights, and how both are saved."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch.callbacks import Callback, Checkpoint, EpochScoring
from torch import nn

from accelerando import NeuralNetRegressor
from accelerando.batch_size import RadaDamp
from accelerando.exceptions import StateError, UnsupportedError
from accelerando.sync import PeriodicAveraging
from tests.nets import MLP, classifier, parameters_of, regressor


class Iterates(Callback):
    """Note the parameters after every update."""

    def on_train_begin(self, net, **kwargs):
        self.noted = getattr(self, "noted", [])

    def on_batch_end(self, net, training=False, **kwargs):
        if training:
            self.noted.append(parameters_of(net).clone())


def weighted(iterates, decay):
    weights = torch.tensor([decay**n for n in reversed(range(len(iterates)))], dtype=torch.float64)
    return ((weights / weights.sum())[:, None] * torch.stack(iterates).double()).sum(0)


def average_of(net):
    with net.averaged_weights():
        return parameters_of(net).clone()


def plain_outputs(net, X, weights):
    """Return what the module computes with given weights."""
    twin = copy.deepcopy(net.module_).eval()
    nn.utils.vector_to_parameters(weights, twin.parameters())
    with torch.no_grad():
        return twin(torch.as_tensor(X)).numpy()


class OwnStep(NeuralNetRegressor):
    def train_step(self, batch, **fit_params):
        self.optimizer_.zero_grad()
        step = self.train_step_single(batch, **fit_params)
        self.optimizer_.step()
        return step


KINDS = {
    "plain": {},
    "micro-batches": {"micro_batch_size": 5},
    "policy": {"batch_size": RadaDamp(initial=4)},
    "virtual ranks": {"virtual_ranks": 2, "batch_size": 8},
    "closure": {"optimizer": torch.optim.LBFGS, "lr": 0.1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_use_the_average_of_all_updates(kind, line):
    X, y = line
    net = regressor(ema=0.8, callbacks=[("iterates", Iterates())], **KINDS[kind]).fit(X, y)
    iterates = dict(net.callbacks_)["iterates"].noted
    assert len(iterates) == net.position_.update
    expected = weighted(iterates, 0.8).float()
    torch.testing.assert_close(average_of(net), expected)
    assert torch.equal(parameters_of(net), iterates[-1])
    outputs = plain_outputs(net, X, average_of(net))
    np.testing.assert_array_equal(net.predict(X), outputs)
    np.testing.assert_array_equal(net.predict_proba(X), outputs)
    np.testing.assert_array_equal(net.forward(X).numpy(), outputs)
    np.testing.assert_array_equal(torch.cat(list(net.forward_iter(X))).numpy(), outputs)
    assert not np.array_equal(outputs, plain_outputs(net, X, parameters_of(net)))


def test_a_train_step_of_the_user_is_averaged(line):
    X, y = line
    params = {"callbacks": [("iterates", Iterates())], "ema": 0.8}
    net = OwnStep(
        nn.Linear, module__in_features=3, module__out_features=1, verbose=0, max_epochs=2, **params
    ).fit(X, y)
    expected = weighted(dict(net.callbacks_)["iterates"].noted, 0.8).float()
    torch.testing.assert_close(average_of(net), expected)


def test_training_is_what_it_is_without_an_average(digits):
    X, y = digits[0][:200], digits[1][:200]
    params = {"module__norm": True, "max_epochs": 2}
    net, plain = classifier(ema=0.9, **params).fit(X, y), classifier(**params).fit(X, y)
    assert torch.equal(parameters_of(net), parameters_of(plain))
    assert net.history[:, "train_loss"] == plain.history[:, "train_loss"]
    assert net.history[:, "valid_loss"] != plain.history[:, "valid_loss"]


def test_validation_and_scores_use_the_average(digits):
    X, y = digits[0][:200], digits[1][:200]
    seen = []

    class Look(Callback):
        def on_epoch_end(self, net, dataset_valid=None, **kwargs):
            logits = net.forward(dataset_valid)
            targets = torch.as_tensor([int(one[1]) for one in dataset_valid])
            loss = nn.functional.cross_entropy(logits, targets).item()
            accuracy = (logits.argmax(1) == targets).double().mean().item()
            row = net.history[-1]
            seen.append((row["valid_loss"], loss, row["valid_acc"], accuracy, row["slow"]))

    scoring = EpochScoring("accuracy", name="slow", use_caching=False)
    net = classifier(module__norm=True, ema=0.9, callbacks=[scoring, Look()]).fit(X, y)
    assert len(seen) == 3
    for valid_loss, loss, valid_acc, accuracy, slow in seen:
        assert valid_loss == pytest.approx(loss, rel=1e-5)
        assert valid_acc == pytest.approx(accuracy) == pytest.approx(slow)
    assert net.score(X, y) == np.mean(net.predict(X) == y)


def test_between_two_outputs_the_module_has_its_own_weights(line):
    X, y = line
    net = regressor(ema=0.5).fit(X, y)
    before = parameters_of(net).clone()
    for _ in net.forward_iter(X):
        assert torch.equal(parameters_of(net), before)


def test_a_callback_may_predict_inside_an_epoch(line):
    X, y = line

    class Predict(Callback):
        def on_batch_end(self, net, training=False, **kwargs):
            net.predict(X[:4])

    net = regressor(ema=0.8, callbacks=[Predict()]).fit(X, y)
    plain = regressor(ema=0.8).fit(X, y)
    assert torch.equal(parameters_of(net), parameters_of(plain))
    assert torch.equal(average_of(net), average_of(plain))


# -- before, between and after fits ---------------------------------------------------------------


def test_before_the_first_update_the_weights_are_used(line):
    X, _ = line
    net = regressor(ema=0.9).initialize()
    np.testing.assert_array_equal(net.predict(X), plain_outputs(net, X, parameters_of(net)))


def test_fit_begins_a_new_average_and_partial_fit_continues(line):
    X, y = line
    net = regressor(ema=0.9, max_epochs=2).fit(X, y)
    whole = regressor(ema=0.9, max_epochs=4).fit(X, y)
    first = average_of(net)
    net.partial_fit(X, y)
    assert torch.equal(average_of(net), average_of(whole))
    assert torch.equal(average_of(net.fit(X, y)), first)


def test_set_params_begins_changes_and_ends_an_average(line):
    X, y = line
    net = regressor(max_epochs=1).fit(X, y)
    net.set_params(ema=0.9).partial_fit(X, y)
    assert net._state_.ema.updates == net.position_.update // 2
    net.set_params(ema=0.5).partial_fit(X, y)
    assert net._state_.ema.decay == 0.5
    net.set_params(ema=None)
    np.testing.assert_array_equal(net.predict(X), plain_outputs(net, X, parameters_of(net)))
    net.partial_fit(X, y)
    assert net._state_.ema is None


def test_without_ema_there_is_no_average(line):
    net = regressor(max_epochs=1).fit(*line)
    with pytest.raises(ValueError, match=r"^There is no average of the weights: pass ema=0\.999"):
        net.averaged_weights()


def test_inside_averaged_weights_nothing_is_trained_or_saved(line, tmp_path):
    net = regressor(ema=0.9, max_epochs=1).fit(*line)
    with net.averaged_weights():
        with pytest.raises(StateError, match="Training needs the weights that are trained"):
            net.partial_fit(*line)
        with pytest.raises(StateError, match="Saving needs the weights that are trained"):
            net.save_state(tmp_path / "state.pt")
        with pytest.raises(StateError, match="Saving needs"):
            pickle.dumps(net)
    net.partial_fit(*line)


# -- files ----------------------------------------------------------------------------------------


def test_a_clone_has_the_decay_and_no_average(line):
    net = clone(regressor(ema=0.9, max_epochs=1).fit(*line))
    assert net.ema == 0.9
    assert not net.initialized_


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_predicts_and_continues_alike(copied, line):
    X, y = line
    net = regressor(ema=0.9, max_epochs=1).fit(X, y)
    twin = copied(net)
    np.testing.assert_array_equal(twin.predict(X), net.predict(X))
    for one in (net, twin):
        one.partial_fit(X, y)
    assert torch.equal(average_of(twin), average_of(net))
    assert torch.equal(parameters_of(twin), parameters_of(net))


class Stop(Callback):
    def __init__(self, at):
        self.at = at

    def on_batch_end(self, net, training=False, **kwargs):
        if training and net.position_.update == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("file", ["save_state", "checkpoint"])
def test_a_run_that_was_saved_inside_an_epoch_continues_exactly(file, digits, tmp_path):
    X, y = digits[0][:200], digits[1][:200]
    folder = {"checkpoint": tmp_path / "run", "checkpoint_every": 1} if file != "save_state" else {}
    params = {"module__norm": True, "module__dropout": 0.3, "ema": 0.9}
    whole = classifier(**params).fit(X, y)
    stopped = classifier(**params, **folder, callbacks=[("stop", Stop(4))]).fit(X, y)
    assert stopped.position_.update == 4
    net = classifier(**params, **folder)
    if file == "save_state":
        stopped.save_state(tmp_path / "state.pt")
        net.load_state(tmp_path / "state.pt")
        np.testing.assert_array_equal(net.predict_proba(X), stopped.predict_proba(X))
    net.partial_fit(X, y)
    assert torch.equal(parameters_of(net), parameters_of(whole))
    assert torch.equal(average_of(net), average_of(whole))
    np.testing.assert_array_equal(net.predict_proba(X), whole.predict_proba(X))
    assert net.history[:, "valid_loss"] == whole.history[:, "valid_loss"]


def test_the_best_checkpoint_predicts_what_was_best(digits, tmp_path):
    X, y = digits[0][:200], digits[1][:200]
    net = classifier(ema=0.9, checkpoint=tmp_path, max_epochs=3).fit(X, y)
    best = classifier(ema=0.9).load_state(tmp_path, best=True)
    valid = net.train_split(net.get_dataset(X, y), y)[1]
    targets = torch.as_tensor([int(one[1]) for one in valid])
    loss = nn.functional.cross_entropy(best.forward(valid), targets).item()
    assert loss == pytest.approx(min(net.history[:, "valid_loss"]), rel=1e-5)


def test_save_params_writes_the_average_and_load_params_begins_a_new_one(line, tmp_path):
    X, y = line
    net = regressor(ema=0.9, max_epochs=2).fit(X, y)
    average, weights = average_of(net), parameters_of(net).clone()
    files = {"f_params": tmp_path / "weights.pt", "f_optimizer": tmp_path / "optimizer.pt"}
    net.save_params(**files)
    assert torch.equal(parameters_of(net), weights)
    plain = regressor().initialize()
    plain.load_params(**files)
    assert torch.equal(parameters_of(plain), average)
    net.load_params(f_optimizer=files["f_optimizer"])
    assert torch.equal(average_of(net), average)
    net.partial_fit(X, y)
    net.load_params(**files)
    np.testing.assert_array_equal(net.predict(X), plain.predict(X))


def test_a_checkpoint_of_skorch_has_the_weights_that_were_scored(digits, tmp_path):
    X, y = digits[0][:200], digits[1][:200]
    best = Checkpoint(dirname=str(tmp_path), monitor="valid_loss_best", load_best=True)
    net = classifier(ema=0.9, callbacks=[best]).fit(X, y)
    valid = net.train_split(net.get_dataset(X, y), y)[1]
    targets = torch.as_tensor([int(one[1]) for one in valid])
    loss = nn.functional.cross_entropy(net.forward(valid), targets).item()
    assert loss == pytest.approx(min(net.history[:, "valid_loss"]), rel=1e-5)


def test_loading_a_run_with_another_decay_warns(line, tmp_path):
    X, y = line
    regressor(ema=0.9, max_epochs=1).fit(X, y).save_state(tmp_path / "state.pt")
    with pytest.warns(UserWarning, match=r"was saved with ema=0\.9; the estimator has 0\.5"):
        regressor(ema=0.5).load_state(tmp_path / "state.pt")
    with pytest.warns(UserWarning, match=r"was saved with ema=0\.9; the estimator has None"):
        net = regressor().load_state(tmp_path / "state.pt")
    np.testing.assert_array_equal(net.predict(X), plain_outputs(net, X, parameters_of(net)))


def test_a_run_without_an_average_gets_one_from_its_next_update(line, tmp_path):
    X, y = line
    regressor(max_epochs=1).fit(X, y).save_state(tmp_path / "state.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = regressor(ema=0.9, max_epochs=1).load_state(tmp_path / "state.pt")
    np.testing.assert_array_equal(net.predict(X), plain_outputs(net, X, parameters_of(net)))
    net.partial_fit(X, y)
    assert net._state_.ema.updates == net.position_.update // 2


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ema", [0, 1, -0.5, 1.5, float("nan"), "0.9", True])
def test_a_decay_is_between_0_and_1(ema, line):
    with pytest.raises((ValueError, TypeError), match="The 'ema' parameter of NeuralNetRegressor"):
        regressor(ema=ema).fit(*line)


def test_ranks_that_average_have_no_moving_average(line):
    net = regressor(ema=0.9, sync=PeriodicAveraging(period=2), virtual_ranks=2)
    with pytest.raises(UnsupportedError, match=r"^ema=0\.9 averages the weights after every"):
        net.fit(*line)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, in dynamo
def test_a_compiled_module_predicts_with_the_average(digits):
    X, y = digits[0][:100], digits[1][:100]
    params = {"module": MLP, "ema": 0.9, "max_epochs": 1}
    net, plain = classifier(compile=True, compile__backend="eager", **params), classifier(**params)
    np.testing.assert_allclose(
        net.fit(X, y).predict_proba(X), plain.fit(X, y).predict_proba(X), atol=1e-6
    )
