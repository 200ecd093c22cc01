"""Predictions on a cluster: of the chunks of a Dask array, and of arrays here with ``client=``."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from typing import Any

import cloudpickle
import numpy as np
import torch
from skorch.dataset import get_len
from skorch.utils import multi_indexing
from torch.utils.data import Dataset

from accelerando._cluster.driver.chunks import where_ranks_can_be
from accelerando._cluster.plugins import shielded
from accelerando._cluster.predictions import predict_chunks, whole_rows
from accelerando._cluster.remarks import scheduler_cannot_load
from accelerando.estimators._arrays import as_array
from accelerando.estimators._check_ranks import check_is_client
from accelerando.estimators._checks import is_plain
from accelerando.estimators._input_checks import look_at_rows
from accelerando.estimators._probe import reads_itself
from accelerando.estimators._skorch import in_memory
from accelerando.exceptions import UnsupportedError

# What prediction does not need, some of which cannot be pickled.
_LEFT_OUT = ("optimizer_", "callbacks_", "history_", "callbacks", "train_split", "checkpoint")


def predict_elsewhere(net: Any, method: str, X: Any) -> Any:
    """Return predictions that a cluster computes; None if this process has to.

    Parameters
    ----------
    net : estimator
        Fitted.
    method : {"predict", "predict_proba", "forward"}
        What to call.
    X : array
        The examples. The predictions of a Dask array are a Dask array that is not computed yet.
    """
    net.check_is_fitted()
    if hasattr(X, "__dask_graph__"):
        return _lazy(net, method, X)
    # During a fit the module of this process is at hand, and the workers are busy.
    if net.client is None or net._trainer_ is not None or isinstance(X, Dataset):
        return None
    if not hasattr(net.client, "status"):
        check_is_client(type(net), net.client)
    if not is_plain(X) and not reads_itself(net):
        X = as_array(X)  # sparse formats without rows, lists
        look_at_rows(X)
    dataset = net.get_dataset(X)
    batches = net.get_iterator(dataset)
    if in_memory(dataset) is None or not hasattr(batches, "rows"):
        return None
    n_examples, rows = get_len(X), batches.rows
    if n_examples <= rows or net.client.status != "running":
        return None
    # An asynchronous client answers with coroutines.
    where = None if net.client.asynchronous else where_ranks_can_be(net.client)
    if where is None:
        return None
    threads = sum(net.client.nthreads(where["workers"]).values())
    # Whole batches, so that every number is the one that this process would compute.
    step = rows * math.ceil(math.ceil(n_examples / rows) / threads)
    try:
        content = seal(net)
    except (RuntimeError, TypeError, AttributeError, pickle.PicklingError):
        return None  # parametrized modules, for one, cannot be pickled
    parts = [multi_indexing(X, slice(start, start + step)) for start in range(0, n_examples, step)]
    with shielded(net.client):  # Ctrl-C is for this process
        options = {"hash": False, "broadcast": True, "workers": where["workers"]}
        sealed = net.client.scatter(content, **options)
        futures = [
            net.client.submit(predict_part, sealed, part, method, pure=False, **where)
            for part in parts
        ]
        try:
            found = net.client.gather(futures)
        except RuntimeError as error:
            if not scheduler_cannot_load(error):
                raise
            return None
        finally:
            for future in (sealed, *futures):
                future.release()  # an error refers to this frame, and may live long
    return joined(found)


def joined(parts: list[Any]) -> Any:
    """Concatenate predictions: arrays, tensors, or tuples of tensors."""
    if isinstance(parts[0], tuple):
        return tuple(torch.cat(list(outputs)) for outputs in zip(*parts, strict=True))
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(parts)
    return np.concatenate(parts)


def _lazy(net: Any, method: str, X: Any) -> Any:
    X = whole_rows(X)
    # One row shows what a prediction looks like.
    shown = getattr(net, method)(np.ones((1, *X.shape[1:]), dtype=X.dtype))
    if isinstance(shown, tuple):
        raise UnsupportedError(
            "The module has several outputs, and a Dask array holds one. Call predict_proba for "
            "the first, or forward on arrays in memory."
        )
    return predict_chunks(predict_part, seal(net), X, method, np.asarray(shown))


# -- what travels ---------------------------------------------------------------------------------


def seal(net: Any) -> bytes:
    """Return a net that can predict, as bytes.

    What is trained later does not change predictions that were asked for before.
    """
    kept = {name: value for name, value in vars(net).items() if name not in _LEFT_OUT}
    kept.update(client=None, _trainer_=None, _state_=None, ema=None, verbose=0)
    modules = {name + "_" for name in (*net._modules, *net._criteria)}
    for name in modules & set(kept):
        if any(tensor.device.type != "cpu" for tensor in _tensors(kept[name])):
            kept[name] = _to_cpu(kept[name])
    for name in net._optimizers:
        kept.pop(name + "_", None)
    found: bytes = cloudpickle.dumps((type(net), kept))
    return found


def _tensors(module: Any) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()] if hasattr(module, "parameters") else []


def _to_cpu(module: Any) -> Any:
    return copy.deepcopy(module).cpu()


@functools.lru_cache(maxsize=4)
def _opened(content: bytes) -> Any:
    """Return the net that was sealed; the tasks of one process share it."""
    kind, kept = cloudpickle.loads(content)
    net = kind.__new__(kind)
    vars(net).update(kept)
    device = torch.device(net.device or "cpu")
    if device.type == "cuda" and not torch.cuda.is_available():
        vars(net)["device"] = "cpu"
    for name in (*net._modules, *net._criteria):
        part = getattr(net, name + "_")
        if isinstance(part, torch.nn.Module):
            part.to(net.device or "cpu")
    return net


def predict_part(sealed: bytes, X: Any, method: str, empty: Any = None) -> Any:
    """Return the predictions of some rows, on a worker.

    Parameters
    ----------
    sealed : bytes
        The net; see :func:`seal`.
    X : array
        The rows.
    method : str
        What to call.
    empty : array, optional
        The predictions of no rows: many modules cannot compute them.
    """
    if empty is not None and len(X) == 0:
        return empty
    found = getattr(_opened(sealed), method)(X)
    return np.asarray(found) if empty is not None else found
