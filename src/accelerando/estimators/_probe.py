"""Probe of the module: its inputs and outputs, found with the first rows.

:func:`probe` computes their outputs, which show whether integers are wanted, whether the outputs
are probabilities, and how many there are. What was found is kept in the estimator, as a
:class:`Recipe`, which predictions follow and files hold.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from skorch.dataset import Dataset as SkorchDataset
from skorch.utils import multi_indexing
from torch import nn
from torch.nn.parameter import is_lazy as has_no_shape
from torch.utils.data import Dataset, IterableDataset, Subset

from accelerando._engine.data.feed import ArrayBatches, unpack
from accelerando._engine.runtime.process import RNG_LOCK
from accelerando.estimators._skorch import has_custom_loss, in_memory
from accelerando.exceptions import UnsupportedError

PROBED_ROWS = 16
TOLERANCE = 1e-3  # of the sum of probabilities


@dataclass(frozen=True)
class Recipe:
    """Input conversion of an estimator, found by its first fit.

    Attributes
    ----------
    dtypes : tuple of torch.dtype
        What the module computes with, one for each array of `X`; empty if unknown.
    matrix : bool or None
        Whether a frame is one matrix; otherwise its columns are arguments of ``forward``.
    logits : bool or None
        Whether the outputs are logits, for ``criterion="auto"``; None if undecided.
    labels : array or None
        The classes, if `y` is encoded as their positions.
    column : bool
        Whether a 1-d `y` is trained as a column, or a column as a 1-d `y`.
    y_ndim : int or None
        The dimensions of the `y` that was passed, if `column`.
    ndim : int or None
        The dimensions of `X` if it is one array with more than two, such as images.
    """

    dtypes: tuple[torch.dtype, ...] = ()
    matrix: bool | None = None
    logits: bool | None = None
    labels: Any = None
    column: bool = False
    y_ndim: int | None = None
    ndim: int | None = None

    def plain(self) -> dict[str, Any]:
        """Return what a file holds."""
        names = [str(dtype).removeprefix("torch.") for dtype in self.dtypes]
        labels = None if self.labels is None else self.labels.tolist()
        return {**vars(self), "dtypes": names, "labels": labels}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Recipe:
        """Return what :meth:`plain` wrote; an unknown recipe if earlier versions wrote nothing."""
        known = {field.name: plain[field.name] for field in fields(cls) if field.name in plain}
        known["dtypes"] = tuple(getattr(torch, name) for name in known.get("dtypes", ()))
        labels = known.get("labels")
        known["labels"] = None if labels is None else np.asarray(labels)
        return cls(**known)


UNKNOWN = Recipe()


def change(net: Any, **found: Any) -> None:
    """Keep what was found in the estimator."""
    vars(net)["_recipe_"] = replace(net._recipe_, **found)


# -- asking the module ----------------------------------------------------------------------------


def head(data: Any) -> Any:
    """Return the first rows."""
    return None if data is None else multi_indexing(data, slice(0, PROBED_ROWS))


def reads_itself(net: Any) -> bool:
    """Return True if a class or function of the user's makes arrays of the data."""
    options = net.get_params_for("iterator_train")
    return net.dataset is not SkorchDataset or options.get("collate_fn") is not None


def is_lazy(net: Any) -> bool:
    """Return True if the shapes of parameters are not known yet, as in ``nn.LazyLinear``."""
    parts = [getattr(net, name + "_", None) for name in net._modules]
    return any(
        has_no_shape(tensor)
        for part in parts
        if isinstance(part, nn.Module)
        for tensor in (*part.parameters(), *part.buffers())
    )


def probe(net: Any, X: Any, y: Any, fit_params: Mapping[str, Any]) -> Any:
    """Return the module's first output for the first rows, or the error that it raised.

    Nothing random is consumed, and nothing of the module changes, unless it is lazy: then it gets
    its parameters here, from the seed of the run if there is one.
    """
    state = getattr(net, "_state_", None)
    seeded, lazy = getattr(state, "seeded", False), is_lazy(net)
    if is_stream(X):
        return None  # reading it would consume it
    try:
        with (
            RNG_LOCK,
            torch.random.fork_rng(devices=[], enabled=seeded or not lazy),
            warnings.catch_warnings(),
            torch.no_grad(),
        ):
            warnings.simplefilter("ignore")  # the first update warns
            if lazy and seeded and state is not None:
                torch.manual_seed(state.seed)
            if isinstance(X, Dataset):
                dataset: Any = Subset(X, range(min(len(X), PROBED_ROWS)))  # type: ignore[arg-type]
            else:
                dataset = net.get_dataset(head(X), head(y))
            arrays = in_memory(dataset) if not reads_itself(net) else None
            batches = (
                net.get_iterator(dataset) if arrays is None else ArrayBatches(arrays, PROBED_ROWS)
            )
            batch = next(iter(batches))
            net._set_training(False)
            outputs = net.infer(unpack(batch)[0], **fit_params)
    except Exception as error:  # of the user's module, whatever it is: the first update raises it
        return error
    outputs = outputs[0] if isinstance(outputs, tuple) and outputs else outputs
    return outputs if isinstance(outputs, torch.Tensor) else None


def is_stream(X: Any) -> bool:
    """Return True for a data set without numbered items."""
    if isinstance(X, IterableDataset) or not isinstance(X, Dataset):
        return isinstance(X, IterableDataset)
    try:
        return len(X) == 0  # type: ignore[arg-type]
    except TypeError:
        return True


def refuse_lazy(X: Any, outputs: Any) -> None:
    if isinstance(outputs, Exception):
        raise ValueError(
            f"The lazy module could not compute the first rows, which tell its shapes: {outputs}"
        ) from outputs
    raise UnsupportedError(
        "The module is lazy: the first rows tell the shapes of its parameters, and reading them "
        f"from a {type(X).__name__} would consume them. Call net.initialize() and "
        "net.module_(example) before partial_fit, or use layers whose shapes are given."
    )


# -- the criterion that follows the module --------------------------------------------------------


def undecided(net: Any) -> bool:
    """Return True if ``criterion="auto"`` has still to look at the outputs."""
    auto = isinstance(net.criterion, str) and net.criterion == "auto"
    return auto and net._recipe_.logits is None


def refuse_stream(net: Any, X: Any) -> None:
    """Refuse to guess the criterion of ranks, which have it before they read a stream."""
    if net.client is not None and undecided(net) and is_stream(X) and not has_custom_loss(net):
        raise UnsupportedError(
            'criterion="auto" looks at the outputs for the first rows, and reading those of a '
            f"{type(X).__name__} before the ranks do would consume them. Pass "
            "criterion=nn.CrossEntropyLoss if the module returns logits, or nn.NLLLoss if it "
            "returns probabilities."
        )


def is_distribution(outputs: torch.Tensor) -> bool:
    """Return True if outputs are probabilities of classes: not negative, and with a sum of 1.

    Examples
    --------
    >>> [is_distribution(torch.tensor([row])) for row in ([0.25, 0.75], [0.5, 0.7], [-1.0, 2.0])]
    [True, False, False]
    """
    if outputs.dim() < 2 or not outputs.is_floating_point():
        return True
    tolerance = max(TOLERANCE, 8 * torch.finfo(outputs.dtype).eps)
    sums = outputs.double().sum(dim=1)
    return bool((outputs >= 0).all() and ((sums - 1).abs() <= tolerance).all())


def decide_criterion(net: Any, outputs: Any) -> None:
    """Let ``criterion="auto"`` be CrossEntropyLoss if the outputs are no probabilities."""
    if not undecided(net) or not isinstance(outputs, torch.Tensor):
        return
    change(net, logits=not is_distribution(outputs))
    if net._recipe_.logits:
        net._initialize_criterion(
            reason=f"The outputs of {type(net.module_).__name__} are no probabilities: training "
            "with CrossEntropyLoss on logits, and predict_proba applies softmax. Pass criterion= "
            "to decide yourself."
        )
