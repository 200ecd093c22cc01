"""skorch as the engine needs it: a net as a model, callbacks as hooks, a Dataset as arrays."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from scipy import sparse
from skorch.callbacks import Callback, EpochTimer, PrintLog, ProgressBar
from skorch.dataset import Dataset as SkorchDataset
from torch import nn
from torch.utils.data import Subset, TensorDataset

from accelerando import NeuralNetClassifier
from accelerando._engine.data.feed import ArrayFeed, epoch_order
from accelerando.estimators._skorch import (
    CallbacksByEvent,
    PostponedSaves,
    SkorchModel,
    components_of,
    counting,
    has_convolutions,
    has_custom_loss,
    in_memory,
    last_row,
    split_params,
)
from tests.nets import ScaledLoss, classifier, regressor

X = np.arange(60, dtype="float32").reshape(20, 3)
Y = np.arange(20, dtype="float32").reshape(20, 1)

# -- the net as a model ---------------------------------------------------------------------------


def test_components_have_skorchs_names():
    net = classifier(criterion=ScaledLoss).initialize()
    components = components_of(net)
    assert components.modules == {"module": net.module_}
    assert components.criteria == {"criterion": net.criterion_}
    assert components.optimizers == {"optimizer": net.optimizer_}


def test_the_fast_way_equals_skorchs(digits):
    """``infer`` and ``get_loss`` are skipped where they would change nothing."""
    net = classifier().initialize()
    rows, y = torch.from_numpy(digits[0][:9]), torch.from_numpy(digits[1][:9])
    model = SkorchModel(net, {})
    y_pred = model.forward(rows, net.module_)
    assert torch.equal(y_pred, net.infer(rows))
    assert torch.equal(model.loss(y_pred, y, rows), net.get_loss(y_pred, y, X=rows, training=True))


def test_probabilities_go_through_skorchs_logarithm(digits):
    class Softmax(nn.Linear):
        def forward(self, x):
            return super().forward(x).softmax(-1)

    net = NeuralNetClassifier(Softmax, module__in_features=64, module__out_features=10).initialize()
    rows, y = torch.from_numpy(digits[0][:9]), torch.from_numpy(digits[1][:9])
    model = SkorchModel(net, {})
    y_pred = model.forward(rows, net.module_)
    expected = nn.functional.nll_loss(y_pred.log(), y)
    assert model.loss(y_pred, y, rows).item() == pytest.approx(expected.item())


def test_overridden_methods_are_called(digits):
    class Mine(NeuralNetClassifier):
        def infer(self, x, **fit_params):
            return super().infer(x, **fit_params) * 2

        def get_loss(self, y_pred, y_true, X=None, training=False):
            return super().get_loss(y_pred, y_true, X, training) + 100.0

    net = Mine(nn.Linear, module__in_features=64, module__out_features=10,
               criterion=nn.CrossEntropyLoss).initialize()  # fmt: skip
    rows, y = torch.from_numpy(digits[0][:9]), torch.from_numpy(digits[1][:9])
    model = SkorchModel(net, {})
    y_pred = model.forward(rows, net.module_)
    assert torch.equal(y_pred, net.module_(rows) * 2)
    assert model.loss(y_pred, y, rows) > 100
    assert has_custom_loss(net)
    assert not has_custom_loss(classifier())
    assert not has_custom_loss(regressor())


def test_fit_params_reach_forward():
    class Scaled(nn.Linear):
        def forward(self, x, scale=1.0):
            return super().forward(x) * scale

    net = regressor(Scaled, module__in_features=3, module__out_features=1).initialize()
    rows = torch.from_numpy(X)
    model = SkorchModel(net, {"scale": 3.0})
    assert torch.equal(model.forward(rows, net.module_), net.module_(rows) * 3)


def test_another_module_stands_in_for_the_nets_own_and_goes_again():
    net = regressor().initialize()
    model = SkorchModel(net, {})
    rows, module = {"input": torch.from_numpy(X)}, net.module_
    called = []

    def ddp(**kwargs):
        called.append(kwargs)
        return module(**kwargs)

    assert torch.equal(model.forward(rows, ddp), module(rows["input"]))
    assert len(called) == 1
    assert net.module_ is module
    assert "module" in net._modules
    assert len(net._modules) == 1


def test_mode_step_and_custom_step_are_skorchs(line):
    net = regressor().initialize()
    model = SkorchModel(net, {})
    model.train(False)
    assert not net.module_.training
    model.train(True)
    assert net.module_.training
    before = net.module_.weight.detach().clone()
    result = model.custom_step((torch.from_numpy(line[0]), torch.from_numpy(line[1])))
    assert result["loss"].item() > 0
    assert not torch.equal(net.module_.weight, before)


def test_an_optimizer_that_takes_the_place_of_another_is_inspected():
    net = regressor().initialize()
    model = SkorchModel(net, {})
    model.refresh()
    assert not model.needs_closure
    net.optimizer_ = torch.optim.LBFGS(net.module_.parameters())
    model.refresh()
    assert model.optimizers == [net.optimizer_]
    assert model.needs_closure


def test_convolutions_are_found_inside():
    assert has_convolutions(nn.Sequential(nn.ReLU(), nn.Sequential(nn.Conv2d(1, 1, 1))))
    assert not has_convolutions(nn.Sequential(nn.Linear(1, 1), nn.Conv1d(1, 1, 1)))


# -- callbacks ------------------------------------------------------------------------------------


class Ends(Callback):
    def on_batch_end(self, net, **kwargs):
        pass


def test_only_callbacks_that_do_something_are_called():
    ends, timer, by_event = Ends(), EpochTimer(), CallbacksByEvent()
    callbacks = [("ends", ends), ("timer", timer)]
    assert by_event.at("on_batch_end", callbacks, 0) == [ends]
    assert by_event.at("on_epoch_end", callbacks, 0) == [timer]
    # Another list of callbacks is looked through again.
    assert by_event.at("on_batch_end", [("timer", timer)], 0) == []


def test_a_callback_that_is_appended_to_the_list_is_called_from_then_on():
    first, second, by_event = Ends(), Ends(), CallbacksByEvent()
    callbacks = [("first", first)]
    assert by_event.at("on_batch_end", callbacks, 0) == [first]
    callbacks.append(("second", second))
    assert by_event.at("on_batch_end", callbacks, 0) == [first, second]


def test_a_table_is_made_only_for_somebody():
    log, mine, by_event = PrintLog(), PrintLog(sink=len), CallbacksByEvent()
    callbacks = [("log", log), ("mine", mine)]
    assert by_event.at("on_epoch_end", callbacks, 0) == [mine]
    assert by_event.at("on_epoch_end", callbacks, 1) == [log, mine]


def test_a_progress_bar_counts_batches_by_itself():
    bar, timer = ProgressBar(), EpochTimer()
    assert counting(bar).batches_per_epoch == "count"
    assert bar.batches_per_epoch == "auto"  # the user's is left alone
    assert counting(timer) is timer
    fixed = ProgressBar(batches_per_epoch=7)
    assert counting(fixed) is fixed


def test_saves_wait_until_all_callbacks_have_been_called():
    saves = PostponedSaves()
    assert not saves.postpone("now")
    with saves:
        assert saves.postpone("later")
        with saves:
            assert saves.postpone("later still")
        assert saves.due() == []
    assert saves.due() == ["later", "later still"]
    assert saves.due() == []


def test_the_last_row_of_the_history(line):
    net = regressor(max_epochs=2).fit(*line)
    assert last_row(net.history) is net.history[-1]


# -- data -----------------------------------------------------------------------------------------


def readonly(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def memory_map(path, array):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


KINDS = {
    "numpy": lambda tmp: (X, Y),
    "torch": lambda tmp: (torch.from_numpy(X), torch.from_numpy(Y)),
    "read-only": lambda tmp: (readonly(X), readonly(Y)),
    "strided": lambda tmp: (np.repeat(X, 2, axis=0)[::2], Y[::-1][::-1]),
    "memory-mapped": lambda tmp: (memory_map(tmp / "x.npy", X), memory_map(tmp / "y.npy", Y)),
    "big-endian": lambda tmp: (X.astype(">f4"), Y),
    "sparse": lambda tmp: (sparse.csr_matrix(X), Y),
    "pandas y": lambda tmp: (X, pd.DataFrame(Y)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_array_gives_the_same_batches(kind, tmp_path):
    feed = ArrayFeed(*in_memory(SkorchDataset(*KINDS[kind](tmp_path))))
    batches = feed.epoch(seed=1, epoch=2, cursor=0)
    order = epoch_order(1, 2, 20)
    for size, rows in [(6, order[:6]), (11, order[6:17]), (50, order[17:])]:
        batch = batches.take(size)
        assert torch.equal(torch.as_tensor(batch.data[0]), torch.from_numpy(X[rows]))
        assert torch.equal(torch.as_tensor(batch.data[1]).reshape(-1, 1), torch.from_numpy(Y[rows]))


def test_memory_mapped_arrays_stay_on_disk(tmp_path):
    data, _ = in_memory(SkorchDataset(memory_map(tmp_path / "x.npy", X), Y))
    assert isinstance(data[0], np.memmap)


def test_a_frame_becomes_one_argument_of_forward_per_column():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]})
    data, subset = in_memory(SkorchDataset(frame, Y[:3]))
    assert subset is None
    assert data[0]["a"].tolist() == [[1.0], [2.0], [3.0]]
    nested = {"left": X, "right": [X + 1, X + 2]}
    data, _ = in_memory(SkorchDataset(nested, Y))
    assert torch.equal(data[0]["right"][1], torch.from_numpy(X + 2))


def test_subsets_of_subsets_are_looked_through():
    inner = Subset(SkorchDataset(X, Y), [3, 4, 5, 6])
    data, rows = in_memory(Subset(inner, np.array([2, 0])))
    assert rows.tolist() == [5, 3]
    assert len(data[0]) == 20, "nothing is copied"


def test_tensors_of_a_data_set_are_used_as_they_are():
    tensors = torch.zeros(4, 3), torch.zeros(4)
    data, _ = in_memory(TensorDataset(*tensors))
    assert data[0] is tensors[0]


def test_without_targets_there_is_a_placeholder():
    data, _ = in_memory(SkorchDataset(X, None))
    assert data[1].shape == (20, 1)


def test_a_data_set_with_its_own_items_is_left_alone():
    class Noisy(SkorchDataset):
        def transform(self, X, y):
            return X * 0, y

    assert in_memory(Noisy(X, Y)) is None
    assert in_memory(TensorDataset(torch.zeros(2))) is None
    assert in_memory(SkorchDataset([1, 2, 3], [1, 2, 3])) is None
    assert in_memory(SkorchDataset(np.array(["a", "b"]), Y[:2])) is None


def test_metadata_routing_decides_what_the_splitter_gets():
    net, params = regressor().initialize(), {"groups": [1, 2], "other": 3}
    assert split_params(net, "fit", params) == params
    with sklearn.config_context(enable_metadata_routing=True):
        assert split_params(net, "fit", {}) == {}
