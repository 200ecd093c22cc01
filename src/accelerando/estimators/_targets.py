"""y as users have it, converted once into what the criterion compares outputs with.

Classes become their positions in ``classes_``, a 1-d target of a module with one output becomes a
column, and numbers get the dtype of the outputs. Predictions are converted back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import skorch
import torch
from sklearn.base import is_classifier, is_regressor
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from skorch.dataset import Dataset as SkorchDataset
from skorch.utils import to_numpy
from torch import nn
from torch.utils.data import Subset

from accelerando.estimators._input_checks import (
    ELEMENTWISE,
    check_loss_of_classes,
    is_one_hot,
    refuse_one_hot,
)
from accelerando.estimators._inputs import cast, converted, dtype_of, module_dtype
from accelerando.estimators._probe import change
from accelerando.estimators._skorch import has_custom_loss

_BY_CLASS = (nn.NLLLoss, nn.CrossEntropyLoss)


def wants_outputs(net: Any, y: Any) -> bool:
    """Return True if the conversion of `y` depends on the shape of the outputs."""
    if y is None or has_custom_loss(net) or not hasattr(y, "shape"):
        return False
    if is_classifier(net):
        return _counts_classes(net, y)
    return is_regressor(net) or _compares_values(net, y)


def _compares_values(net: Any, y: Any) -> bool:
    """Return True if the criterion compares one value per row with one output."""
    return len(y.shape) == 1 and type(getattr(net, "criterion_", None)) in ELEMENTWISE


def _counts_classes(net: Any, y: Any) -> bool:
    """Return True if `y` holds integers of which the module's outputs may not be numbers."""
    if not is_classifier(net) or not isinstance(getattr(net, "criterion_", None), _BY_CLASS):
        return False
    return is_one_hot(y) or (len(y.shape) == 1 and not _is_numbered(net))


def _is_numbered(net: Any) -> bool:
    classes = getattr(net, "classes_inferred_", None)
    if classes is None or classes.dtype.kind not in "iu" or not len(classes):
        return False
    return bool(classes[0] == 0 and classes[-1] == len(classes) - 1)


def convert_y(net: Any, y: Any, outputs: torch.Tensor | None) -> Any:
    """Return the `y` that is trained on.

    Parameters
    ----------
    net : estimator
        Initialized; its criterion is decided.
    y : array, tensor or None
        What was passed.
    outputs : Tensor or None
        The module's outputs for the first rows.
    """
    if y is None or has_custom_loss(net) or not hasattr(y, "shape") or not hasattr(y, "dtype"):
        return y
    if isinstance(net, skorch.NeuralNetBinaryClassifier):
        return _two_classes(net, y)
    if is_classifier(net):
        if not isinstance(getattr(net, "criterion_", None), _BY_CLASS):
            check_loss_of_classes(net, y)
            return _encode(net, y, net.classes_) if _kind(y) in "OUS" else _as_float(net, y)
        return _classes(net, y, outputs)
    if is_regressor(net):
        _check_numbers(net, y)
        return _column(net, _cast_y(net, y), outputs)
    if dtype_of(y) is None:
        return y  # objects
    if _compares_values(net, y):
        return _column(net, _cast_y(net, y), outputs)
    if type(getattr(net, "criterion_", None)) in _BY_CLASS and _kind(y) in "iu":
        return cast(y, torch.int64)
    return _as_float(net, y)


def _cast_y(net: Any, y: Any) -> Any:
    return cast(y, module_dtype(net) or torch.float32, "y")


def _kind(y: Any) -> str:
    if isinstance(y, torch.Tensor):
        return "f" if y.is_floating_point() else "i"
    return str(getattr(y.dtype, "kind", "O"))  # a dtype of pandas


def _as_float(net: Any, y: Any) -> Any:
    """Return floating numbers in the dtype of the module, anything else as it is."""
    dtype, wanted = dtype_of(y), module_dtype(net)
    if dtype is None or wanted is None or not dtype.is_floating_point:
        return y
    return cast(y, wanted)


# -- classes --------------------------------------------------------------------------------------


def _classes(net: Any, y: Any, outputs: torch.Tensor | None) -> Any:
    """Return classes as the positions of outputs."""
    known = net._recipe_.labels
    if len(y.shape) == 2 and y.shape[1] == 1 and (outputs is None or outputs.dim() == 2):
        y = column_or_1d(to_numpy(y), warn=True)
        net.classes_inferred_ = np.unique(y)
    if len(y.shape) != 1:
        if _kind(y) in "iub" and outputs is not None and outputs.dim() == 2 and is_one_hot(y):
            refuse_one_hot(y)
        return _as_float(net, y)  # one class per pixel, or a probability per class
    if known is not None:
        return _encode(net, y, known)
    _check_numbers(net, y)
    present, given = net.classes_inferred_, getattr(net, "classes", None)
    named = given is not None and len(given) > 0 and np.isin(present, given).all()
    if not named and present.dtype.kind in "iu":
        width = None if outputs is None or outputs.dim() < 2 else int(outputs.shape[1])
        ignored = getattr(net.criterion_, "ignore_index", None) in present
        numbers = _is_numbered(net) or (present[0] >= 0 and present[-1] < (width or np.inf))
        if ignored or numbers or len(present) > (width or np.inf):
            return cast(y, torch.int64)  # too many classes: the first update says so
    if present.dtype.kind == "f":
        check_classification_targets(to_numpy(y))
    if named and np.asarray(given).dtype.kind in "iu" and _is_range(np.asarray(given)):
        return cast(y, torch.int64)
    return _encode(net, y, np.asarray(given) if named else present)


def know_classes(net: Any, classes: Any) -> None:
    """Let a classifier have the classes that ``partial_fit`` was given.

    Parameters
    ----------
    net : estimator
        Initialized here if it is not.
    classes : array
        All of them. Those of later calls must be the same.
    """
    if not net.initialized_:
        net.initialize()
    binary = isinstance(net, skorch.NeuralNetBinaryClassifier)
    counts = binary or isinstance(getattr(net, "criterion_", None), _BY_CLASS)
    if not is_classifier(net) or not counts or getattr(net, "classes", None) is not None:
        return  # the constructor has the word, or y is what the criterion compares
    labels, known = np.unique(np.asarray(classes)), net._recipe_.labels
    if known is None and net._state_.position.update:
        known = np.asarray(net.classes_inferred_)
        if _is_range(labels) and np.isin(known, labels).all():
            return  # outputs are numbered by these integers already
    if known is not None and not np.array_equal(np.sort(known), labels):
        raise ValueError(
            f"partial_fit got classes={labels.tolist()}, and the training so far knows the classes "
            f"{known.tolist()}. Pass all classes to the first call, or to the constructor."
        )
    change(net, labels=labels)


def _is_range(classes: Any) -> bool:
    return np.array_equal(classes, np.arange(len(classes)))


def _encode(net: Any, y: Any, classes: Any) -> Any:
    """Return the positions of labels among the classes."""
    labels = to_numpy(y) if isinstance(y, torch.Tensor) else np.asarray(y)
    order = np.argsort(classes, kind="stable")
    found = np.searchsorted(classes, labels, sorter=order)
    codes = order[np.minimum(found, len(classes) - 1)]
    wrong = classes[codes] != labels
    if wrong.any():
        raise ValueError(
            f"y holds {labels[wrong].tolist()[0]!r}, which is none of the classes "
            f"{classes.tolist()}. Pass all of them as classes= to the constructor."
        )
    change(net, labels=classes)
    if not isinstance(net, skorch.NeuralNetBinaryClassifier):
        net.classes_inferred_ = classes
    return codes.astype(np.int64)


def _two_classes(net: Any, y: Any) -> Any:
    """Return two classes as 0.0 and 1.0."""
    wanted = module_dtype(net) or torch.float32
    _check_numbers(net, y)
    if len(y.shape) != 1:
        return cast(y, wanted)
    labels = to_numpy(y) if isinstance(y, torch.Tensor) else np.asarray(y)
    classes = np.unique(labels)
    known = net._recipe_.labels
    if known is None and classes.dtype.kind in "iuf" and np.isin(classes, (0, 1)).all():
        return cast(y, wanted)
    if known is None and len(classes) != 2:
        check_classification_targets(labels)
        raise ValueError(
            "Only binary classification is supported. The type of the target is multiclass: y has "
            f"{len(classes)} class{'es' * (len(classes) != 1)}. Use NeuralNetClassifier, with one "
            "output per class."
        )
    return cast(_encode(net, labels, classes if known is None else known), wanted)


def _check_numbers(net: Any, y: Any) -> None:
    """Refuse targets that are complex, or not finite where the criterion is one of PyTorch's."""
    if _kind(y) == "c":
        raise ValueError("Complex data not supported: y holds complex numbers.")
    criterion = getattr(net, "criterion_", None)
    if not type(criterion).__module__.startswith("torch.nn") or _kind(y) not in "fO":
        return
    try:
        values = to_numpy(y) if isinstance(y, torch.Tensor) else np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        if is_regressor(net):
            raise ValueError(
                f"y has the type {y.dtype}, and a regressor learns numbers. Convert it: "
                "y.astype('float32')."
            ) from None
        return
    bad = ~np.isfinite(values)
    if bad.any():
        raise ValueError(
            f"Input y contains NaN or infinity: y holds nan or inf in {int(bad.sum())} of the "
            f"{bad.size} values. Remove these rows, or pass a criterion that leaves them out."
        )


# -- values ---------------------------------------------------------------------------------------


def _column(net: Any, y: Any, outputs: torch.Tensor | None) -> Any:
    """Give targets of one output the shape of the outputs."""
    if dtype_of(y) is None:  # objects
        y = np.asarray(y, dtype=np.float64).astype(np.float32)
    if outputs is None:
        return y
    if len(y.shape) > 2 or outputs.dim() > 2:
        if (len(y.shape), y.shape[1:]) != (outputs.dim(), outputs.shape[1:]):
            _refuse_broadcast(net, y, outputs)
        return y
    single = outputs.dim() == 1 or (outputs.dim() == 2 and outputs.shape[1] == 1)
    if single and (len(y.shape) == 1 or y.shape[1] == 1) and outputs.dim() != len(y.shape):
        change(net, column=True, y_ndim=len(y.shape))
        return y.reshape(-1, 1) if outputs.dim() == 2 else y.reshape(-1)
    if outputs.dim() == 2 and outputs.shape[1] != (1 if len(y.shape) == 1 else y.shape[1]):
        raise ValueError(
            f"y has shape {tuple(y.shape)}, and {type(net.module_).__name__} has "
            f"{outputs.shape[1]} output{'s' * (outputs.shape[1] != 1)} per row. Give the module "
            "one output per value of y."
        )
    return y


def _refuse_broadcast(net: Any, y: Any, outputs: torch.Tensor) -> None:
    """Refuse targets that PyTorch would compare with the outputs of other rows."""
    if type(getattr(net, "criterion_", None)) in ELEMENTWISE:
        raise ValueError(
            f"y has shape {tuple(y.shape)}, and the outputs of {type(net.module_).__name__} have "
            f"shape {(y.shape[0], *outputs.shape[1:])}: each value is compared with one output. "
            "Reshape y, or let forward return that shape."
        )


# -- data sets of a fit ---------------------------------------------------------------------------


def mark(net: Any, datasets: Any) -> Any:
    """Note that data sets hold converted targets; convert a validation set of arrays."""
    recipe = net._recipe_
    train, valid = datasets
    base = _base(train)
    if recipe.labels is not None or recipe.column:
        vars(base)["holds_codes"] = True
    if valid is None or type(valid) is not SkorchDataset or valid is base:
        return train, valid
    X, y = converted(net, valid.X), valid.y
    if y is not None:
        y = y.to_numpy() if hasattr(y, "to_numpy") else y
        y = _same(net, y)
    if X is valid.X and y is valid.y:
        return train, valid
    valid = SkorchDataset(X, y)
    vars(valid)["holds_codes"] = True
    return train, valid


def _same(net: Any, y: Any) -> Any:
    """Return targets for validation, converted as those for training were."""
    recipe = net._recipe_
    if not hasattr(y, "shape") or has_custom_loss(net):
        return y
    if recipe.labels is not None:
        codes = _encode(net, y, recipe.labels)
        binary = isinstance(net, skorch.NeuralNetBinaryClassifier)
        return cast(codes, module_dtype(net) or torch.float32) if binary else codes
    if is_regressor(net):
        y = cast(y, module_dtype(net) or torch.float32)
        if recipe.column and len(y.shape) == recipe.y_ndim:
            return y.reshape(-1, 1) if recipe.y_ndim == 1 else y.reshape(-1)
        return y
    if isinstance(getattr(net, "criterion_", None), _BY_CLASS) and len(y.shape) == 1:
        return cast(y, torch.int64)
    return _as_float(net, y)


def _base(dataset: Any) -> Any:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return dataset


def decoded(net: Any, found: Any, X: Any) -> Any:
    """Return predictions as `y` was passed: labels, or values of its shape.

    The data sets of a fit hold converted targets, and what is predicted for them is compared with
    these.
    """
    if getattr(_base(X), "holds_codes", False):
        return found
    recipe = net._recipe_
    if recipe.labels is not None:
        codes = np.asarray(found).astype(np.int64)
        if codes.size and codes.max() >= len(recipe.labels):  # the module has further outputs
            known = net.predict_proba(X)[:, : len(recipe.labels)]
            codes = known.argmax(axis=1)
        return recipe.labels[codes]
    if recipe.column and recipe.y_ndim == 1 and found.ndim == 2 and found.shape[1] == 1:
        return found.reshape(-1)
    if recipe.column and recipe.y_ndim == 2 and found.ndim == 1:
        return found.reshape(-1, 1)
    return found
