"""Private and undocumented names of skorch and scikit-learn on which the estimators depend.

Each test fails, with the name of the library, if a new version of it has changed that name.
"""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
import sklearn.callback
import skorch
import torch
from skorch.callbacks import Callback, EpochScoring, LRScheduler, PrintLog, ProgressBar
from skorch.history import History
from torch import nn

SKORCH, SKLEARN = f"skorch {skorch.__version__}", f"scikit-learn {sklearn.__version__}"


def need(holds, library, name, use):
    assert holds, f"{library} has changed {name}: accelerando uses it to {use}."


class Scaled(nn.MSELoss):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


@pytest.fixture
def net():
    return skorch.NeuralNet(
        nn.Linear, Scaled, module__in_features=2, module__out_features=1, verbose=0
    ).initialize()


# -- skorch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "listed"),
    [("_modules", ["module"]), ("_criteria", ["criterion"]), ("_optimizers", ["optimizer"])],
)
def test_lists_of_components(net, name, listed):
    use = "find what is trained and saved"
    need(getattr(net, name, None) == listed, SKORCH, f"NeuralNet.{name}", use)
    found = all(hasattr(net, part + "_") for part in listed)
    need(found, SKORCH, "the underscore after initialized components", use)


def test_set_training(net):
    use = "switch between training and evaluation"
    net._set_training(False)
    off = not net.module_.training and not net.criterion_.training
    net._set_training(True)
    need(off and net.module_.training, SKORCH, "NeuralNet._set_training", use)


def test_step_optimizer(net):
    use = "let every optimizer step, with a closure or without"
    calls = []
    net.optimizer_.step = lambda *args: calls.append(args)
    closure = object()
    net._step_optimizer(None)
    net._step_optimizer(closure)
    need(calls == [(), (closure,)], SKORCH, "NeuralNet._step_optimizer", use)


def test_zero_grad_optimizer(net):
    use = "let train_step clear gradients as a subclass wants"
    calls = []
    net._zero_grad_optimizer = lambda *args, **kwargs: calls.append(args)
    net.partial_fit(np.ones((9, 2), "float32"), np.ones((9, 1), "float32"), epochs=1)
    need(len(calls) > 0, SKORCH, "NeuralNet._zero_grad_optimizer", use)


def test_get_all_learnable_params(net):
    use = "find the parameters of modules and criteria"
    names = [name for name, _ in net.get_all_learnable_params()]
    expected = ["weight", "bias", "scale"]
    need(names == expected, SKORCH, "NeuralNet.get_all_learnable_params", use)


def test_params_to_validate():
    use = "check batch_size__x, compression__x and sync__x"
    net = skorch.NeuralNet(nn.Linear, nn.MSELoss, module__in_features=2)
    need(net._params_to_validate == {"module__in_features"}, SKORCH, "_params_to_validate", use)
    net.set_params(module__out_features=1)
    new = "module__out_features" in net._params_to_validate
    need(new, SKORCH, "set_params, which adds to _params_to_validate", use)


def test_validate_params():
    use = "add suggestions to the error about misspelled parameters"
    net = skorch.NeuralNet(nn.Linear, nn.MSELoss, modul__in_features=2)
    with pytest.raises((ValueError, TypeError)) as caught:
        net._validate_params()
    need(isinstance(caught.value, ValueError), SKORCH, "NeuralNet._validate_params", use)


def test_get_param_names(net):
    use = "keep what is not a parameter out of get_params and clone"
    net._private_ = net.fitted_ = net.parameter = 1
    names = net._get_param_names()
    fine = "parameter" in names and not {"_private_", "fitted_"} & set(names)
    need(fine, SKORCH, "NeuralNet._get_param_names, which leaves out names ending in _", use)


def test_prefixes(net):
    use = "pass batch_size__x on to the batch-size policy"
    fine = {"iterator_train", "iterator_valid", "dataset"} <= set(skorch.NeuralNet.prefixes_)
    need(fine, SKORCH, "NeuralNet.prefixes_", use)


def test_attributes_in_vars_are_not_registered(net):
    use = "let DDP stand in for the module"
    module = net.module_
    vars(net)["module_"] = other = object()
    fine = net.module_ is other and net._modules == ["module"]
    vars(net)["module_"] = module
    need(fine, SKORCH, "NeuralNet.__setattr__, which vars(net) goes around", use)


def test_the_history_is_a_list():
    use = "reach the last epoch without the cost of indexing"
    history = History()
    history.new_epoch()
    history.record("x", 1)
    row = list.__getitem__(history, -1)
    need(row is history[-1] and row["x"] == 1, SKORCH, "History, a list of dictionaries", use)
    need(row["batches"] == [], SKORCH, "History.new_epoch", "append one entry per update")
    history.new_batch()
    need(row["batches"] == [{}], SKORCH, "History.new_batch", "append one entry per update")


def test_one_epoch_of_validation(net):
    use = "validate with skorch's loop"
    need(
        hasattr(net, "history_") and hasattr(net, "callbacks_"), SKORCH, "NeuralNet.initialize", use
    )
    net.callbacks_, seen = [], []
    net.history.new_epoch()

    def step(batch, **fit_params):
        seen.append(fit_params)
        return {"loss": torch.ones(()), "y_pred": torch.ones(2, 1)}

    batches = [(torch.ones(2, 2), torch.ones(2, 1))]
    net.run_single_epoch(batches, False, "valid", step, extra=3)
    fine = seen == [{"extra": 3}] and net.history[-1, "valid_batch_count"] == 1
    need(fine, SKORCH, "NeuralNet.run_single_epoch", use)


def test_splits_and_readiness(net):
    use = "prepare a fit"
    for name in ("check_data", "check_training_readiness", "get_split_datasets", "fit_loop",
                 "initialize_callbacks", "get_params_for", "validation_step", "train_step",
                 "train_step_single", "infer", "get_loss", "notify"):  # fmt: skip
        need(callable(getattr(net, name, None)), SKORCH, f"NeuralNet.{name}", use)
    X = np.zeros((10, 2), dtype="float32")
    train, valid = net.get_split_datasets(X, X[:, :1])
    need(type(train).__name__ == "Subset", SKORCH, "ValidSplit, which returns Subsets", use)
    need(len(train) == 8 and len(valid) == 2, SKORCH, "NeuralNet.get_split_datasets", use)


@pytest.mark.parametrize(
    "event",
    ["on_train_begin", "on_epoch_begin", "on_batch_begin", "on_grad_computed", "on_batch_end",
     "on_epoch_end", "on_train_end"],
)  # fmt: skip
def test_events(event):
    use = "call only the callbacks that do something at an event"
    need(callable(getattr(Callback, event, None)), SKORCH, f"Callback.{event}", use)


@pytest.mark.parametrize(
    ("callback", "name", "value"),
    [
        (PrintLog(), "sink", print),
        (ProgressBar(), "batches_per_epoch", "auto"),
        (EpochScoring("accuracy"), "use_caching", True),
        (EpochScoring("accuracy"), "on_train", False),
        (LRScheduler(), "step_every", "epoch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_of_callbacks(callback, name, value):
    use = "decide whether a callback can work here"
    same = getattr(callback, name, None) == value
    need(same, SKORCH, f"{type(callback).__name__}.{name}", use)


# -- scikit-learn ---------------------------------------------------------------------------------


class Counting(sklearn.callback.CallbackSupportMixin, sklearn.base.BaseEstimator):
    """What the estimators do with scikit-learn's callbacks, and nothing else."""

    @sklearn.callback.with_callbacks
    def fit(self, X, y=None):
        whole = self._init_callback_context(max_subtasks=2)
        whole.call_on_fit_task_begin(estimator=self, X=X, y=y)
        self.seen_ = []
        for _ in range(2):
            task = whole.subcontext(task_name="epoch")
            task.call_on_fit_task_begin(estimator=self, X=X, y=y)
            stop = task.call_on_fit_task_end(
                estimator=self, X=X, y=y, reconstruction_attributes=dict
            )
            self.seen_.append((set(vars(self)), stop))
        whole.call_on_fit_task_end(estimator=self, X=X, y=y, reconstruction_attributes=dict)
        return self


class Stops:
    def setup(self, estimator, context): ...
    def teardown(self, estimator, context): ...
    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, estimator, context):
        return context.task_name == "epoch"


def test_callbacks_of_scikit_learn():
    use = "call scikit-learn's callbacks once per epoch"
    name = "sklearn.callback (CallbackSupportMixin, with_callbacks, _init_callback_context)"
    estimator = Counting().set_callbacks(Stops())
    seen = estimator.fit(np.zeros((2, 1))).seen_
    need([bool(stop) for _, stop in seen] == [True, True], SKLEARN, name, use)


def test_attributes_of_callbacks_of_scikit_learn():
    """They are in vars(net) during a fit, where skorch looks for parameters."""
    use = "keep them out of get_params"
    estimator = Counting().set_callbacks(Stops())
    during = estimator.fit(np.zeros((2, 1))).seen_[0][0] - {"seen_"}
    known = ("_skl_callbacks", "_callback_fit_ctx", "_parent_callback_ctx")
    unknown = [name for name in during if not name.startswith(known)]
    need(unknown == [], SKLEARN, f"sklearn.callback, which now sets {unknown}", use)
