"""skorch's loggers, files and helpers do for our estimators what they do for skorch's.

Here and on ranks: what a logger writes, a file holds and a helper makes is compared with skorch's
estimator, which trains the same module on the same batches.
"""

from __future__ import annotations

import io
import sys
import types
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import skorch
import torch
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from skorch.callbacks import (
    Checkpoint,
    LoadInitState,
    MlflowLogger,
    NeptuneLogger,
    SacredLogger,
    TensorBoard,
    TrainEndCheckpoint,
    WandbLogger,
)
from skorch.cli import parse_args
from skorch.dataset import Dataset
from skorch.helper import DataFrameTransformer, SliceDataset, SliceDict, predefined_split
from skorch.hf import HfHubStorage
from torch import nn

import accelerando
from accelerando.exceptions import UnsupportedError
from tests.nets import Items, parameters_of

X = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Halves(Net):
    def forward(self, left, right):
        return super().forward(torch.cat([left, right], dim=1))


class Embedded(nn.Module):
    """Numbers in one argument, and an argument for a column of categories."""

    def __init__(self):
        super().__init__()
        self.numbers, self.kinds = nn.Linear(3, 2), nn.Embedding(2, 2)

    def forward(self, X, kind):
        return self.numbers(X) + self.kinds(kind)


@pytest.fixture(params=["here", "ranks"])
def where(request):
    """Parameters of an estimator that trains in this process, or on two ranks."""
    if request.param == "here":
        return {}
    return {"client": request.getfixturevalue("client"), "min_workers": 2, "max_workers": 2}


def made(library, module=Net, **params):
    torch.manual_seed(0)
    settings = {
        "module": module(),
        "criterion": nn.CrossEntropyLoss,
        "iterator_train__shuffle": False,
        "lr": 0.1,
        "max_epochs": 2,
        "batch_size": 16,
        "verbose": 0,
    }
    return library.NeuralNetClassifier(**{**settings, **params})


def both(where, X, y, module=Net, **params):
    """Return skorch's estimator and ours, fitted."""
    theirs = made(skorch, module, **params).fit(X, y)
    ours = made(accelerando, module, **params, **where).fit(X, y)
    if "client" in where:
        assert ours.updates_frame()["ranks"].max() == 2
    assert torch.allclose(parameters_of(ours), parameters_of(theirs), atol=1e-6)
    return theirs, ours


# -- loggers --------------------------------------------------------------------------------------


class Service:
    """What the clients of experiment trackers look like to skorch; keeps what it is given."""

    info = SimpleNamespace(run_id="run")

    def __init__(self, folder, prefix=""):
        self.dir, self.prefix = str(folder), prefix
        self.found, self.calls = defaultdict(list), []

    def add_scalar(self, tag, scalar_value, global_step):  # TensorBoard's SummaryWriter
        self.found[tag].append((global_step, scalar_value))

    def log(self, values):  # a run of W&B
        for name, value in values.items():
            self.found[name].append(value)

    def log_metric(self, run_id, name, value, step):  # a client of MLflow
        assert run_id == self.info.run_id
        self.found[name].append((step, value))

    def log_artifact(self, run_id, path, folder=None):
        self.calls.append(Path(path).name[-3:])

    def log_scalar(self, name, value, step=None):  # an experiment of Sacred
        self.found[name].append((step, value))

    def __getitem__(self, name):  # a run of Neptune, and its namespaces
        twin = Service(self.dir, f"{self.prefix}{name}/")
        twin.found = self.found
        return twin

    def __setitem__(self, name, value):
        self.found[self.prefix + name].append(value)

    def append(self, value):
        self.found[self.prefix].append(value)

    def watch(self, module):
        self.calls.append(type(module).__name__)

    def close(self):
        self.calls.append("close")

    def set_terminated(self, run_id):
        self.calls.append("terminated")

    def stop(self):
        self.calls.append("stop")


LOGGERS = {
    "tensorboard": TensorBoard,
    "wandb": WandbLogger,
    "mlflow": lambda service, **params: MlflowLogger(service, service, **params),
    "neptune": NeptuneLogger,
    "sacred": SacredLogger,
}


@pytest.fixture
def _neptune(monkeypatch):
    """The two names that skorch imports from Neptune."""
    files = SimpleNamespace(from_content=lambda content, extension: (content, extension))
    for name, content in (
        ("neptune", {}),
        ("neptune.types", {"File": files}),
        ("neptune.handler", {"Handler": type("Handler", (), {})}),
    ):
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


def assert_same_log(found, expected):
    """Compare what two runs have logged: the names, and all numbers but durations."""
    assert list(found) == list(expected)
    for name, values in expected.items():
        if "dur" in name:
            assert len(found[name]) == len(values)
        elif isinstance(values[0], str | tuple) and isinstance(values[0][-1], str):
            assert found[name] == values
        else:
            found_, values_ = (np.array(one, dtype=float) for one in (found[name], values))
            np.testing.assert_allclose(found_, values_, rtol=1e-4, err_msg=name)


@pytest.mark.usefixtures("_neptune")
def test_loggers_write_what_they_write_for_skorch(where, tmp_path):
    runs = []
    for number, (library, params) in enumerate(((skorch, {}), (accelerando, where))):
        folder = tmp_path / str(number)
        folder.mkdir()
        services = {name: Service(folder) for name in LOGGERS}
        callbacks = [(name, make(services[name])) for name, make in LOGGERS.items()]
        net = made(library, callbacks=callbacks, **params)
        runs.append((services, net.fit(X, Y), folder))
    (theirs, _, _), (ours, net, folder) = runs
    for name in LOGGERS:
        assert theirs[name].found, name
        assert_same_log(ours[name].found, theirs[name].found)
        assert ours[name].calls == theirs[name].calls
    saved = torch.load(folder / "best_model.pth", weights_only=True)
    assert net.history[-1]["valid_loss_best"]  # so that the saved model is the last one
    assert all(torch.equal(saved[name], w) for name, w in net.module_.state_dict().items())


@pytest.mark.usefixtures("_neptune")
@pytest.mark.parametrize("name", ["mlflow", "neptune", "sacred"])
def test_loggers_of_batches(name, where, tmp_path):
    services = [Service(tmp_path), Service(tmp_path)]
    nets = [
        made(library, callbacks=[LOGGERS[name](service, log_on_batch_end=True)], **params)
        for library, service, params in zip(
            (skorch, accelerando), services, ({}, where), strict=True
        )
    ]
    nets[0].fit(X, Y)
    if where:
        with pytest.raises(UnsupportedError, match=r"Logger\) acts at every batch .* updates_fra"):
            nets[1].fit(X, Y)
        return
    nets[1].fit(X, Y)
    assert_same_log(services[1].found, services[0].found)


class Graph(TensorBoard):
    """Writes the graph of the module at the first batch, as in skorch's documentation."""

    def on_batch_end(self, net, batch, **kwargs):
        if self.first_batch_:
            self.writer.found["graph"].append(len(batch[0]))
        super().on_batch_end(net, batch=batch, **kwargs)


def test_a_writer_of_the_first_batch(where, tmp_path):
    service = Service(tmp_path)
    net = made(accelerando, callbacks=[Graph(service)], **where)
    if where:
        with pytest.raises(UnsupportedError, match=r"Graph\) acts at every batch"):
            net.fit(X, Y)
    else:
        net.fit(X, Y)
        assert service.found["graph"] == [16]


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("safe", [False, True], ids=["torch", "safetensors"])
def test_parameters_in_files_go_to_and_fro(safe, where, tmp_path):
    end = "safetensors" if safe else "pt"
    folder = str(tmp_path)
    optimizer = {} if safe else {"f_optimizer": f"optimizer.{end}"}
    params = {"f_params": f"params.{end}", "f_criterion": f"criterion.{end}"}
    names = params if safe else {**params, **optimizer}
    best = Checkpoint(
        dirname=folder, monitor=None, use_safetensors=safe, **{"f_optimizer": None, **names}
    )
    net = made(accelerando, callbacks=[best], **where).fit(X, Y)
    explicit = {name: tmp_path / f"own-{file}" for name, file in names.items()}
    net.save_params(**explicit, f_history=tmp_path / "own.json", use_safetensors=safe)
    for library in (skorch, accelerando):
        loaded = made(library).initialize()
        loaded.load_params(**explicit, f_history=tmp_path / "own.json", use_safetensors=safe)
        assert np.array_equal(loaded.predict_proba(X), net.predict_proba(X))
        assert loaded.history[:, "train_loss"] == net.history[:, "train_loss"]
        loaded = made(library).initialize()
        loaded.load_params(checkpoint=best, use_safetensors=safe)
        assert np.array_equal(loaded.predict_proba(X), net.predict_proba(X))
    if safe:
        with pytest.raises(ValueError, match="optimizer"):
            net.save_params(f_optimizer=tmp_path / "no.safetensors", use_safetensors=True)


def test_a_run_continues_from_the_checkpoint_at_the_end(where, tmp_path):
    end = TrainEndCheckpoint(dirname=str(tmp_path))
    first = made(accelerando, callbacks=[end], **where).fit(X, Y)
    second = made(accelerando, callbacks=[LoadInitState(end)], **where).fit(X, Y)
    assert len(second.history) == 2 * len(first.history)
    assert second.history[:2, "train_loss"] == first.history[:, "train_loss"]
    whole = made(skorch, max_epochs=4).fit(X, Y)
    assert torch.allclose(parameters_of(second), parameters_of(whole), atol=1e-6)


class Hub:
    """The one method of ``huggingface_hub.HfApi`` that skorch calls."""

    def __init__(self):
        self.files = {}

    def upload_file(self, path_or_fileobj, path_in_repo, repo_id):
        self.files[path_in_repo] = path_or_fileobj.read()
        return f"{repo_id}/{path_in_repo}"


def test_the_hub_of_hugging_face(where):
    hub = Hub()
    storage = HfHubStorage(hub, "params.pt", "me/net")
    nothing_else = {"f_optimizer": None, "f_criterion": None, "f_history": None}
    end = TrainEndCheckpoint(f_params=storage, **nothing_else)
    net = made(accelerando, callbacks=[end], **where).fit(X, Y)
    saved = torch.load(io.BytesIO(hub.files["params.pt"]), weights_only=True)
    assert all(torch.equal(saved[name], w) for name, w in net.module_.state_dict().items())


# -- helpers --------------------------------------------------------------------------------------


def test_a_dictionary_that_can_be_sliced(where):
    halves = SliceDict(left=X[:, :2], right=X[:, 2:])
    theirs, ours = both(where, halves, Y, Halves)
    assert np.array_equal(ours.predict(halves), theirs.predict(halves))
    settings = {"param_grid": {"lr": [0.1]}, "cv": 2, "refit": False, "error_score": "raise"}
    found, expected = (
        GridSearchCV(made(library, Halves, max_epochs=1, **params), **settings).fit(halves, Y)
        for library, params in ((accelerando, where), (skorch, {}))
    )
    assert found.cv_results_["mean_test_score"] == expected.cv_results_["mean_test_score"]


def test_a_data_set_that_can_be_sliced(where):
    slices = SliceDataset(Items(X, Y)), SliceDataset(Items(X, Y), idx=1)
    settings = {"train_split": None, "max_epochs": 1}
    found, expected = (
        cross_val_predict(made(library, **settings, **params), *slices, cv=2)
        for library, params in ((accelerando, where), (skorch, {}))
    )
    assert np.array_equal(found, expected)


def test_a_frame_with_categories(where):
    frame = pd.DataFrame(X[:, :3], columns=list("abc"))
    frame["kind"] = pd.Categorical(np.where(Y, "one", "two"))
    pipelines = [
        make_pipeline(DataFrameTransformer(), made(library, Embedded, **params)).fit(frame, Y)
        for library, params in ((skorch, {}), (accelerando, where))
    ]
    theirs, ours = (parameters_of(pipeline[-1]) for pipeline in pipelines)
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert np.array_equal(pipelines[1].predict(frame), pipelines[0].predict(frame))


def test_rows_that_were_held_out_before(where):
    held = predefined_split(Dataset(X[:20], Y[:20]))
    theirs, ours = both(where, X, Y, train_split=held)
    np.testing.assert_allclose(
        ours.history[:, "valid_loss"], theirs.history[:, "valid_loss"], rtol=1e-5
    )


def test_arguments_of_a_command_line(where, monkeypatch):
    for name in ("fire", "numpydoc", "numpydoc.docscrape"):  # are imported, and print the help
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    given = {"lr": 0.05, "batch_size": 8, "callbacks__print_log": None}
    net = parse_args(given, defaults={"max_epochs": 1})(made(accelerando, **where)).fit(X, Y)
    params = net.get_params()
    assert (params["lr"], params["batch_size"], params["max_epochs"]) == (0.05, 8, 1)
    assert "print_log" not in dict(net.callbacks_)
    assert len(net.history) == 1
