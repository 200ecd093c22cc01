"""Data that cannot be trained on or predicted, refused with a sentence before anything is computed.

Nothing here runs in a fit of plain arrays that works.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import is_classifier
from skorch.dataset import Dataset as SkorchDataset
from skorch.dataset import ValidSplit, get_len
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from accelerando.estimators._data import labels_of
from accelerando.estimators._skorch import has_custom_loss
from accelerando.exceptions import UnsupportedError

_ALLOWED = (
    "an array, a tensor, a frame, a dictionary of them, a torch Dataset, or a function that "
    "returns one"
)
_ROWS = "an array, a tensor, a frame, a dictionary of them, or a torch Dataset"
ELEMENTWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


def look_at_inputs(net: Any, X: Any, y: Any) -> Any:
    """Refuse data that cannot be trained on; return `y`, also if `X` is a data set that has it."""
    _refuse_kind(X, _ALLOWED)
    if isinstance(X, Dataset):
        return _labels(net, X) if y is None else y
    own = net.dataset is not SkorchDataset or net.get_params_for("iterator_train").get("collate_fn")
    own = own or has_custom_loss(net)
    if not own:
        refuse_array(X)
    if y is None:
        if hasattr(net, "score") and net.iterator_train is DataLoader:
            raise ValueError(
                f"{type(net).__name__} requires y to be passed, but the target y is None. Pass "
                "what is to be learned, or a Dataset of pairs (X, y) as X."
            )
        return y
    if is_classifier(net) and not own:
        _check_labels(y)
    names = getattr(getattr(y, "dtype", None), "kind", "f") in "USMm"
    if names and not own and not is_classifier(net):
        raise ValueError(
            f"y has the type {y.dtype}, and the loss of {type(net).__name__} computes with "
            "numbers. Encode it, or use NeuralNetClassifier."
        )
    _check_lengths(X, y)
    return y


def look_at_rows(X: Any) -> None:
    """Refuse rows that cannot be predicted."""
    _refuse_kind(X, _ROWS)
    refuse_array(X)
    _count("X", X)


def _refuse_kind(X: Any, allowed: str) -> None:
    """Refuse what holds no rows at all."""
    if isinstance(X, DataLoader):
        raise TypeError(
            "X is a DataLoader, and accelerando makes the batches. Pass its data set as X, "
            "batch_size= to the estimator, and other settings as iterator_train__x."
        )
    if (
        X is None
        or isinstance(X, str | bytes | set | frozenset)
        or not (hasattr(X, "__len__") or isinstance(X, Dataset))
    ):
        hint = " Write an IterableDataset for a stream." if hasattr(X, "__next__") else ""
        raise TypeError(f"X must be {allowed}. Got {_short(X)} instead.{hint}")


# -- X --------------------------------------------------------------------------------------------


def refuse_array(X: Any) -> None:
    """Refuse an array, a tensor or a series that holds no rows of numbers."""
    kind = getattr(getattr(X, "dtype", None), "kind", "f")
    if hasattr(X, "to_frame") and hasattr(X, "dtype"):
        raise ValueError(
            "X is a Series, which is one column without rows of features. Pass X.to_frame(), or "
            "X.to_numpy().reshape(-1, 1) for a matrix."
        )
    if kind in "OUSMmV":
        raise ValueError(
            f"X has the type {X.dtype}, and a module computes with numbers. Convert or encode it: "
            "X.astype('float32'), or scikit-learn's OneHotEncoder."
        )
    if isinstance(X, torch.Tensor) and X.layout != torch.strided:
        raise ValueError(
            f"X is a tensor of the layout {str(X.layout).removeprefix('torch.')}, whose rows "
            "cannot be taken. Pass X.to_dense(), or a matrix of scipy.sparse."
        )
    masked = int(np.ma.getmaskarray(X).sum()) if isinstance(X, np.ma.MaskedArray) else 0
    if masked:
        raise ValueError(
            f"X is a masked array, and {masked} of its {X.size} values are masked, "
            "which a module does not know. Fill them in: X.filled(0.0), or scikit-learn's "
            "SimpleImputer."
        )
    lengths = _lengths_of_rows(X)
    if len(lengths) > 1:
        some = ", ".join(map(str, sorted(lengths)[:3]))
        raise ValueError(
            f"The rows of X have different lengths ({some}), and a module computes with matrices. "
            "Cut or pad them to one length."
        )


def _lengths_of_rows(X: Any) -> set[int]:
    """Return the lengths of the rows of a list of lists of numbers."""
    if not isinstance(X, list | tuple) or not all(isinstance(row, list | tuple) for row in X):
        return set()
    numbers = all(np.ndim(item) == 0 for row in X for item in row)
    return {len(row) for row in X} if numbers else set()


# -- y --------------------------------------------------------------------------------------------


def _check_labels(y: Any) -> None:
    """Refuse missing labels, and those that have no order."""
    if isinstance(y, Mapping):
        raise ValueError(
            "y must be an array with one class per row. Got a dictionary instead; override "
            "get_loss in a subclass of the estimator to learn several targets."
        )
    if getattr(getattr(y, "dtype", None), "kind", "f") not in "OUSMm":
        return
    values = np.asarray(y).reshape(-1)
    missing = int(pd.isna(values).sum())
    if missing:
        raise ValueError(
            f"Input y contains NaN: y holds None or nan in {missing} of the {len(values)} rows. "
            "Remove these rows."
        )
    kinds = sorted({type(label).__name__ for label in values.tolist()})
    if len(kinds) > 1 and "str" in kinds:
        raise ValueError(
            f"y holds labels of the types {' and '.join(kinds)}, which have no order. Convert "
            "them: y.astype(str)."
        )


def check_loss_of_classes(net: Any, y: Any) -> None:
    """Refuse a loss that compares the number of a class with each output of a classifier."""
    criterion = getattr(net, "criterion_", None)
    if len(y.shape) == 1 and type(criterion) in (*ELEMENTWISE, nn.BCELoss, nn.BCEWithLogitsLoss):
        raise ValueError(
            f"criterion={type(criterion).__name__} compares outputs with numbers one by one, and "
            f"y holds one class per row of X. Pass criterion=nn.CrossEntropyLoss to "
            f"{type(net).__name__}, or use NeuralNetBinaryClassifier for two classes and a module "
            "with one output."
        )


def is_one_hot(y: Any) -> bool:
    """Return True if every row holds one 1 and otherwise zeros.

    Examples
    --------
    >>> [is_one_hot(np.array(rows)) for rows in ([[0, 1], [1, 0]], [[1, 1], [1, 0]], [0, 1])]
    [True, False, False]
    """
    shape: tuple[int, ...] = getattr(y, "shape", ())
    if len(shape) != 2 or shape[1] < 2 or getattr(getattr(y, "dtype", None), "kind", "f") in "OUSM":
        return False
    values = np.asarray(y)
    return bool(np.isin(values, (0, 1)).all() and (values.sum(axis=1) == 1).all())


def refuse_one_hot(y: Any) -> None:
    """Raise the error about targets with a column per class."""
    raise ValueError(
        f"y is one-hot encoded (shape {tuple(y.shape)}), and a classifier wants the class of each "
        "row. Pass y.argmax(axis=1)."
    ) from None


def _check_lengths(X: Any, y: Any) -> None:
    rows, labels = _count("X", X), _count("y", y)
    if rows != labels:
        hint = ""
        if isinstance(X, list):
            hint = (
                " A list is taken as several inputs of forward: for one array pass "
                "np.asarray(X, dtype='float32')."
            )
        raise ValueError(f"X has {rows} rows and y has {labels}.{hint}")
    if rows == 0:
        raise ValueError("There are no training examples: X is empty.")


def _count(name: str, data: Any) -> int:
    """Return the number of rows; refuse parts with different numbers, and what has no rows."""
    if isinstance(data, str | bytes | set | frozenset):
        raise ValueError(
            f"{name} must be an array with one entry per row. Got {_short(data)} instead."
        )
    try:
        return int(get_len(data))
    except (TypeError, ValueError, AttributeError, IndexError):
        pass
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(data, Mapping):
        parts = data.items()
    elif isinstance(data, list | tuple):
        parts = ((f"number {place}", part) for place, part in enumerate(data))
    found = []
    for part, values in parts:
        with contextlib.suppress(TypeError, ValueError, AttributeError, IndexError):
            found.append(f"{part} has {get_len(values)}")
    if len(found) > 1:
        some = ", ".join(found[:3]) + ", …" * (len(found) > 3)
        raise ValueError(f"The parts of {name} have different numbers of rows: {some}.")
    raise ValueError(
        f"{name} must be an array with one entry per row. Got {_short(data)} instead, which has no "
        "rows."
    )


# -- data sets ------------------------------------------------------------------------------------


def _labels(net: Any, X: Any) -> Any:
    """Return the labels of a data set that has them at hand; infer the classes of any other one."""
    if not hasattr(type(net), "classes_"):
        return None
    labels = labels_of(X)
    if labels is not None or isinstance(X, IterableDataset) or not net.train_split:
        return labels
    if net.classes is None and len(X):  # scores of the validation want to know the classes
        first = next(iter(net.get_iterator(Subset(X, [0, 0]), training=False)))
        with contextlib.suppress(Exception):  # the first update says what is wrong
            outputs = net.evaluation_step(first, training=False)
            outputs = outputs[0] if isinstance(outputs, tuple) else outputs
            net.classes_inferred_ = np.arange(max(2, outputs.shape[1]))
    return None


def split_otherwise(net: Any, X: Any, y: Any, params: Mapping[str, Any], error: Exception) -> Any:
    """Divide a data set whose labels are not at hand; raise a sentence for what cannot be divided.

    Rows are drawn at random then, always the same ones: data sets are often sorted by class.
    """
    split = net.train_split
    if isinstance(X, IterableDataset):
        raise UnsupportedError(
            "A stream cannot be divided into training and validation rows. Pass train_split=None, "
            "or train_split=skorch.helper.predefined_split(valid_dataset)."
        ) from None
    try:
        known = inspect.signature(split).parameters
    except (TypeError, ValueError):
        raise error from None
    others = any(one.kind is one.VAR_KEYWORD for one in known.values())
    unknown = [] if others else sorted(set(params) - set(known))
    if unknown:
        raise TypeError(
            f"fit got the argument {unknown[0]!r}, which train_split={_name(type(split))} does not "
            "know. Arguments of fit beyond X, y and weights go to train_split and to the module's "
            "forward."
        ) from None
    if not isinstance(split, ValidSplit) or isinstance(error, TypeError):
        raise error from None
    rows, cv = get_len(X), split.cv
    if isinstance(cv, int) and rows < cv:
        raise ValueError(
            f"X has {rows} row{'s' * (rows != 1)}, of which train_split={_shown(split)} cannot "
            f"hold out one of {cv} parts. Pass train_split=None to train on all rows, or more rows."
        ) from None
    if split.stratified and y is None:
        share = 1 / cv if isinstance(cv, int) else cv
        return ValidSplit(share, random_state=0)(net.get_dataset(X, None))
    if split.stratified and is_one_hot(y):
        refuse_one_hot(y)
    if split.stratified and ("Stratified CV" in str(error) or getattr(y, "ndim", 1) > 1):
        raise ValueError(
            "train_split holds out the same share of every class, and y has "
            f"{getattr(y, 'ndim', 'several')} dimensions. Pass y with one class per row, or "
            "train_split=skorch.dataset.ValidSplit(5)."
        ) from None
    if "members in each class" in str(error):
        raise ValueError(
            f"train_split={_shown(split)} holds out a row of every class, and no class of y has "
            f"{cv} rows. Pass train_split=None to train on all rows, or more rows."
        ) from None
    raise ValueError(f"train_split={_shown(split)} cannot divide the rows: {error}") from None


def refuse_split(net: Any, found: Any) -> None:
    """Raise the error about a ``train_split`` that returns no pair of data sets."""
    what = f"{len(found)} objects" if isinstance(found, list | tuple) else f"a {_name(type(found))}"
    raise ValueError(
        "train_split must return the data set for training and the one for validation, which may "
        f"be None. {_name(net.train_split)} returned {what}. Pass skorch.dataset.ValidSplit(5) for "
        "a fifth of the rows, or skorch.helper.predefined_split(Dataset(X_valid, y_valid))."
    )


def _shown(split: ValidSplit) -> str:
    return f"ValidSplit({split.cv!r}{', stratified=True' * bool(split.stratified)})"


def _name(made: Any) -> str:
    return getattr(made, "__name__", None) or repr(made)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 and " at 0x" not in text else f"a {type(value).__name__}"
