"""Training data on their way to the engine: factories of data sets, weights and samples of rows."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import skorch
import torch
from sklearn.utils.class_weight import compute_sample_weight
from skorch.dataset import get_len
from skorch.utils import TeeGenerator, to_numpy, to_tensor
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from accelerando._cluster.driver.chunks import Chunks, compute_chunks
from accelerando._engine.data.feed import Batch, Feed, unpack
from accelerando._engine.loop import Fit
from accelerando._engine.micro_batch import check_weightable
from accelerando._engine.runtime.process import Draws
from accelerando.estimators._skorch import criterion_of, module_of
from accelerando.exceptions import UnsupportedError


class FactoryDataset(Dataset[Any]):
    """A data set that a function returns, called in each process when the first item is needed.

    Only the function is sent to other processes: open files, memory maps and connections stay where
    they were created.

    Parameters
    ----------
    factory : function without arguments
        Returns a map-style Dataset of pairs ``(X, y)``, the same one everywhere.

    Examples
    --------
    >>> import pickle
    >>> from functools import partial
    >>> data = FactoryDataset(partial(list, [(0.0, 1), (2.0, 3)]))
    >>> len(data), pickle.loads(pickle.dumps(data))[1]
    (2, (2.0, 3))
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory
        self._built: Any = None

    @property
    def dataset(self) -> Any:
        """The data set itself."""
        if self._built is None:
            try:
                inspect.signature(self.factory).bind()
            except TypeError as error:
                raise TypeError(
                    f"X={self.factory!r} is called without arguments to get a Dataset: {error}. "
                    "Pass functools.partial(...), or an instance."
                ) from None
            built = self.factory()
            if not (hasattr(built, "__len__") and hasattr(built, "__getitem__")):
                raise TypeError(
                    f"X={self.factory!r} must return a Dataset with a length; it returned a "
                    f"{type(built).__name__}. An IterableDataset is passed as an instance."
                )
            self._built = built
        return self._built

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        return self.dataset[row]

    def __getstate__(self) -> dict[str, Any]:
        return {"factory": self.factory, "_built": None}


def labels_of(dataset: Any) -> Any:
    """Return the labels of a data set if it has them at hand; None if every item must be read.

    Examples
    --------
    >>> labels_of(torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.tensor([0, 2, 1])))
    array([0, 2, 1])
    """
    if isinstance(dataset, FactoryDataset):
        return labels_of(dataset.dataset)
    if isinstance(dataset, Subset):
        labels = labels_of(dataset.dataset)
        return None if labels is None else labels[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, TensorDataset):
        found = dataset.tensors[1] if len(dataset.tensors) == 2 else None
    elif getattr(dataset, "target_transform", None) is not None:
        return None  # what torchvision stores is not what it yields
    else:  # skorch, torchvision
        named = (getattr(dataset, name, None) for name in ("y", "targets", "labels"))
        found = next((one for one in named if one is not None), None)
    try:
        labels = np.asarray(found)
        usable = labels.ndim == 1 and labels.dtype.kind in "biu" and len(labels) == len(dataset)
    except (TypeError, ValueError, RuntimeError):
        return None
    return labels if usable else None


def combine_weights(sample_weight: Any, class_weight: Any, y: Any, X: Any = None) -> Any:
    """Multiply sample weights by the weights of their classes, as scikit-learn's estimators do."""
    if class_weight is None:
        return sample_weight
    y = labels_of(X) if y is None else y
    if y is None:
        raise ValueError("class_weight needs y, the classes of the examples; got y=None.")
    if not (class_weight == "balanced" or isinstance(class_weight, Mapping)):
        raise ValueError(
            "The 'class_weight' parameter of fit must be 'balanced' or a dictionary of weights by "
            f"class. Got {class_weight!r} instead."
        )
    try:
        by_class = compute_sample_weight(class_weight, to_numpy(y))
    except ValueError as error:
        raise ValueError(f"class_weight does not fit y: {error}.") from None
    return by_class if sample_weight is None else np.asarray(sample_weight) * by_class


def count_examples(X: Any) -> int:
    """Return the number of rows of what was passed as `X`."""
    if isinstance(X, list) and not hasattr(X[0], "shape"):
        return len(X)  # a table
    if hasattr(X, "__array__") and not hasattr(X, "__len__"):
        X = np.asarray(X)
    return int(get_len(X))


def training_weights(sample_weight: Any, n_given: int, dataset: Any) -> torch.Tensor:
    """Return the weights of the training rows, with a mean of one.

    With a mean of one the gradient of a batch stays a sum over rows divided by their number, which
    is an unbiased estimate of the gradient of the weighted loss.
    """
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            "The 'sample_weight' parameter of fit must be one number per example. Got "
            f"{sample_weight!r} instead; class weights are class_weight=."
        ) from None
    if weights.shape != (n_given,):
        raise ValueError(
            f"sample_weight must have one number per example: X has {n_given} examples, "
            f"sample_weight has shape {weights.shape}."
        )
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise ValueError("sample_weight must be finite and not negative.")
    weights = weights[_rows_of(dataset, n_given)]
    total = weights.sum()
    if total == 0:
        raise ValueError("sample_weight is zero for every training example.")
    return torch.as_tensor(weights * (len(weights) / total), dtype=torch.get_default_dtype())


def check_weights(net: Any, X: Any) -> None:
    """Refuse weights that the criterion cannot use, or that belong to no numbered rows."""
    check_weightable(criterion_of(net))
    if isinstance(X, IterableDataset):
        raise UnsupportedError(
            "sample_weight belongs to numbered examples, and an IterableDataset has no numbers. "
            "Let the data set yield the weights to your criterion, or use a map-style Dataset."
        )


def _rows_of(dataset: Any, n_given: int) -> Any:
    rows = np.arange(n_given)
    chain = []
    while isinstance(dataset, Subset):
        chain.append(np.asarray(dataset.indices))
        dataset = dataset.dataset
    for indices in reversed(chain):
        rows = rows[indices]
    if not hasattr(dataset, "__len__") or len(dataset) != n_given:
        raise UnsupportedError(
            "sample_weight needs to know which examples train_split left in the training set. Use "
            "skorch's ValidSplit, a train_split that returns torch.utils.data.Subset, or None."
        )
    return rows


def forward_of(net: skorch.NeuralNet, fit_params: Mapping[str, Any]) -> Callable[..., Any]:
    """Return how a copy of the module is called with rows of the training set."""

    def forward(module: nn.Module, X: Any) -> Any:
        x = to_tensor(X, device=net.device)
        return module(**x, **fit_params) if isinstance(x, Mapping) else module(x, **fit_params)

    return forward


def notify_gradients(net: Any, batch: Batch, *place: int) -> None:
    """Call the callbacks that act on gradients.

    They draw the same random numbers on all ranks and in this process: `place` seeds them.
    """
    named = TeeGenerator(net.get_all_learnable_params())
    with Draws(*place)():
        net.notify("on_grad_computed", named_parameters=named, batch=batch.data, training=True)


class StandIn:
    """Replacement of the module in the estimator's ``infer``: calls go through DDP."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        vars(self).update(_module=module, _call=call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)


@contextmanager
def standing_in(net: skorch.NeuralNet, module: Callable[..., Any]) -> Iterator[None]:
    """Let the net's own ``infer`` call another module, such as DDP around it."""
    bare = net.module_
    # skorch's __setattr__ would register it as a new module
    vars(net)["module_"] = StandIn(bare, module)
    try:
        yield
    finally:
        vars(net)["module_"] = bare


def settle_memory_format(net: Any, fit: Fit) -> None:
    """Give convolutions the faster memory format if the module accepts it."""
    from accelerando._engine.runtime.channels_last import settle

    forward = forward_of(net, fit.spec.fit_params)
    settle(module_of(net), net.channels_last, sample_rows(fit.feed), forward)


def sample_rows(feed: Feed) -> Any:
    """Return a function that returns two rows of `X`; None if no rows are at hand."""
    n_examples = feed.n_examples
    if n_examples is None or getattr(feed, "chunks", None) == {}:
        return None
    return lambda: unpack(feed.gather(np.arange(min(2, n_examples))))[0]


def settle_lazy(net: Any, feed: Feed, fit_params: Mapping[str, Any], seed: int) -> None:
    """Let lazy layers see two rows, after which they have parameters."""
    rows = sample_rows(feed)
    if rows is None:
        raise UnsupportedError(
            "A lazy layer learns its shape from the first rows, and this process has no rows "
            "of a stream or of a Dask array. Use nn.Linear and the like, with in_features."
        )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        forward_of(net, fit_params)(net.module_, rows())


def open_inputs(net: Any, X: Any, y: Any, classes: Any) -> tuple[Any, Any]:
    """Return what was passed as a Dataset, as arrays, or as chunks on the cluster."""
    if isinstance(y, list) and not y:
        raise ValueError("There are no training examples: y is empty.")
    if classes is not None:
        from accelerando.estimators._targets import know_classes

        know_classes(net, classes)
    if not hasattr(X, "__dask_graph__"):
        plain = hasattr(X, "__getitem__") or hasattr(X, "__array__")
        if isinstance(X, type) or (callable(X) and not plain):
            return FactoryDataset(X), y
        from accelerando.estimators._arrays import stacked

        return stacked(X, y)
    chunks = chunks_of(net, X, y)
    if chunks.classes is not None:
        net.classes_inferred_ = chunks.classes
    return chunks, None


def chunks_of(net: Any, X: Any, y: Any) -> Chunks:
    """Let the cluster compute the chunks of the Dask arrays `X` and `y`."""
    if net.client is None or net.data != "shard":
        raise UnsupportedError(
            "X is a Dask array. To train on its chunks where they are pass client= and "
            'data="shard"; to train on all of it pass X.compute() and y.compute().'
        )
    if any(math.isnan(rows) for part in (X, y) for rows in getattr(part, "chunks", [()])[0]):
        raise UnsupportedError(
            "The chunks of X or y have unknown lengths, and ranks are given chunks by their number "
            "of rows. Call X.compute_chunk_sizes() and y.compute_chunk_sizes() before."
        )
    if net.train_split is not None and not hasattr(net.train_split, "func"):
        raise UnsupportedError(
            "A Dask array cannot be split here into training and validation rows. Pass "
            "train_split=None, or skorch.helper.predefined_split(Dataset(X_valid, y_valid))."
        )
    if not hasattr(y, "__dask_graph__") or not hasattr(X, "chunks") or not hasattr(y, "chunks"):
        raise UnsupportedError(
            f"With Dask, X and y are both dask.array arrays; got {type(X).__name__} and "
            f"{type(y).__name__}. dask.dataframe has to_dask_array(lengths=True)."
        )
    if len(X) != len(y):
        raise ValueError(f"X has {len(X)} rows and y has {len(y)}.")
    return compute_chunks(net.client, X, y, net.worker_timeout)


def first_rows(client: Any, chunks: Chunks, rows: int) -> Any:
    """Return the first rows of the first chunk that has any, as two arrays."""
    place = next(place for place, length in enumerate(chunks.lengths) if length)
    return client.submit(_head, chunks.futures[place], rows, pure=False, **chunks.where).result()


def converted_chunks(client: Any, chunks: Chunks, before: Any, after: Any) -> Chunks:
    """Let the cluster convert all chunks as their first rows were.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    chunks : Chunks
        Of all rows.
    before, after : pair of arrays
        The first rows of `X` and `y`, as they were and as they are trained on.
    """
    same = all(one is other for one, other in zip(before, after, strict=True))
    if same or not all(isinstance(part, np.ndarray) for part in after):
        return chunks
    kinds = [(part.dtype, part.shape[1:]) for part in after]
    futures = client.map(_as_kinds, chunks.futures, kinds=kinds, pure=False, **chunks.where)
    return Chunks(futures, chunks.lengths, chunks.classes, chunks.where)


def _head(pair: list[Any], rows: int) -> list[Any]:
    return [part[:rows] for part in pair]


def _as_kinds(pair: list[Any], kinds: list[tuple[Any, tuple[int, ...]]]) -> list[Any]:
    return [
        np.ascontiguousarray(part.reshape(len(part), *shape), dtype=dtype)
        for part, (dtype, shape) in zip(pair, kinds, strict=True)
    ]
