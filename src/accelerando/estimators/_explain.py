"""What went wrong, in a sentence: looks at unusual inputs and at errors of other libraries.

Nothing here runs in a fit of plain arrays that works.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import is_classifier
from skorch.dataset import Dataset as SkorchDataset
from skorch.dataset import ValidSplit, get_len
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from accelerando._validation import did_you_mean, parameter_error
from accelerando.estimators._data import labels_of, sample_rows
from accelerando.estimators._probe import is_distribution
from accelerando.estimators._skorch import criterion_of, has_custom_loss, module_of
from accelerando.exceptions import NotFiniteError, UnsupportedError

# -- components -----------------------------------------------------------------------------------


def explain_components(net: Any, error: Exception) -> None:
    """Raise a sentence if a component could not be made for a reason that can be seen."""
    if "unexpected argument" in str(error) and isinstance(error, ValueError):
        if near := net._suggestions():
            error.add_note(near.strip())
        raise error
    for name, what in (
        ("module", "a torch.nn.Module class, an instance of one, or a function that returns one"),
        ("criterion", "a class whose instances compute the loss, such as torch.nn.MSELoss"),
        ("optimizer", "a class of torch.optim, such as torch.optim.SGD"),
    ):
        given = getattr(net, name)
        buffer = re.search(r"cannot assign '.*' object to buffer '(\w+)'", str(error))
        if buffer and f"{name}__{buffer[1]}" in vars(net):
            value = getattr(net, f"{name}__{buffer[1]}")
            allowed = "a tensor: torch.as_tensor(..., dtype=torch.float32)"
            raise parameter_error(net, f"{name}__{buffer[1]}", allowed, value) from None
        if name == "criterion" and is_classifier(net) and given == "auto":
            continue
        if isinstance(given, torch.optim.Optimizer):
            what += " (not an instance: its settings are optimizer__x parameters)"
        if not callable(given):
            raise parameter_error(net, name, what, given) from None
        if inspect.isfunction(given) and name != "module" and _missing(given, {}):
            raise parameter_error(net, name, what, given) from None
        made = type(given) if isinstance(given, nn.Module) else given
        params = net.get_params_for(name)
        params.pop("param_groups", None)
        check_names(name, made, params)
        if isinstance(given, nn.Module) and not params:
            continue  # an instance that is used as it is: `error` is about something else
        positional = (None,) if name == "optimizer" else ()
        if isinstance(error, TypeError) and (missing := _missing(made, params, *positional)):
            raise ValueError(
                f"{name}={_name(made)} needs more {name}__x parameters: {missing}."
            ) from None
    if "unexpected keyword argument 'lr'" in str(error):
        raise UnsupportedError(
            f"The optimizer {_name(net.optimizer)} has no learning rate (no parameter 'lr'), which "
            "accelerando adapts and records."
        ) from None
    module = getattr(net, "module_", None)
    if module is not None and not isinstance(module, nn.Module):
        raise TypeError(
            f"module={_name(net.module)} made {module!r}, which is no torch.nn.Module."
        ) from None
    if "empty parameter list" in str(error):
        raise UnsupportedError(
            f"The module {_name(net.module)} has no parameters: there is nothing to train."
        ) from None
    if net.device not in ("cpu", None):
        check_device(net)
    _explain_callbacks(net)


def check_device(net: Any) -> None:
    """Refuse a device that cannot compute."""
    try:
        torch.empty(1, device=net.device).add_(1).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        allowed = f"a device of this machine, such as 'cpu' ({reason})"
        raise parameter_error(net, "device", allowed, net.device) from None


def _explain_callbacks(net: Any) -> None:
    given = net.callbacks
    allowed = 'a list of callbacks or of pairs (name, callback), None or "disable"'
    if given is None or (isinstance(given, str) and given == "disable"):
        return
    if not isinstance(given, list | tuple):
        raise parameter_error(net, "callbacks", allowed, given) from None
    for entry in given:
        one = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry
        if one is not None and not hasattr(one, "initialize"):
            raise parameter_error(net, "callbacks", allowed, entry) from None


def check_callback_names(net: Any, known: Collection[str]) -> None:
    """Refuse ``callbacks__x`` parameters of callbacks that there are not."""
    for key in sorted(k for k in vars(net) if k.startswith("callbacks__")):
        name = key.split("__")[1]
        if name not in known:
            raise ValueError(
                " ".join(
                    filter(
                        None,
                        (
                            f"There is no callback {name!r}, which {key} would change.",
                            did_you_mean(name, known),
                            f"Callbacks: {', '.join(known) or 'none'}.",
                        ),
                    )
                )
            )


def check_names(prefix: str, made: Any, params: Mapping[str, Any]) -> None:
    """Refuse ``prefix__x`` parameters that the class or function does not have, and None rows."""
    if prefix == "iterator_valid" and params.get("batch_size", 1) is None:
        raise UnsupportedError(
            f"{prefix}__batch_size=None is for a Dataset whose items are whole batches, and "
            "accelerando makes the batches itself: their size may change, and ranks divide them. "
            "Let the Dataset return single rows and leave the parameter out; batch_size counts "
            "rows."
        )
    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):
        return
    kinds = {one.kind for one in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return
    first = list(signature.parameters)[:1] if prefix in _FILLED_IN else []
    known = [name for name in signature.parameters if name not in first]
    for name in sorted(set(params) - set(signature.parameters)):
        words = (
            f"{_name(made)} has no parameter {name!r}.",
            did_you_mean(name, known),
            f"Its parameters: {', '.join(f'{prefix}__{one}' for one in known) or 'none'}.",
        )
        raise ValueError(" ".join(filter(None, words))) from None


_FILLED_IN = ("optimizer", "iterator_train", "iterator_valid")  # params, or the data set


def _missing(made: Callable[..., Any], params: Mapping[str, Any], *args: Any) -> str:
    try:
        inspect.signature(made).bind(*args, **params)
    except TypeError as error:
        return str(error)
    except ValueError:
        return ""
    return ""


def _name(made: Any) -> str:
    return getattr(made, "__name__", None) or repr(made)


# -- data -----------------------------------------------------------------------------------------

_ALLOWED = (
    "an array, a tensor, a frame, a dictionary of them, a torch Dataset, or a function that "
    "returns one"
)


def look_at_inputs(net: Any, X: Any, y: Any) -> Any:
    """Refuse data that cannot be trained on; return `y`, also if `X` is a data set that has it."""
    if isinstance(X, DataLoader):
        raise TypeError(
            "X is a DataLoader, and accelerando makes the batches. Pass its data set as X, "
            "batch_size= to the estimator, and other settings as iterator_train__x."
        )
    if (
        X is None
        or isinstance(X, str | bytes)
        or not (hasattr(X, "__len__") or isinstance(X, Dataset))
    ):
        hint = " Write an IterableDataset for a stream." if hasattr(X, "__next__") else ""
        raise TypeError(f"X must be {_ALLOWED}. Got {_short(X)} instead.{hint}")
    if isinstance(X, Dataset):
        return _labels(net, X) if y is None else y
    own = net.dataset is not SkorchDataset or net.get_params_for("iterator_train").get("collate_fn")
    own = own or has_custom_loss(net)
    if not own and getattr(getattr(X, "dtype", None), "kind", "f") in "OUSMm":
        raise ValueError(
            f"X has the type {X.dtype}, and a module computes with numbers. Convert or encode it: "
            "X.astype('float32'), or scikit-learn's OneHotEncoder."
        )
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


def _check_labels(y: Any) -> None:
    """Refuse missing labels, and those that have no order."""
    if getattr(getattr(y, "dtype", None), "kind", "f") not in "OUSMm":
        return
    labels = np.asarray(y).reshape(-1)
    missing = int(pd.isna(labels).sum())
    if missing:
        raise ValueError(
            f"Input y contains NaN: y holds None or nan in {missing} of the {len(labels)} rows. "
            "Remove these rows."
        )
    kinds = sorted({type(label).__name__ for label in labels.tolist()})
    if len(kinds) > 1 and "str" in kinds:
        raise ValueError(
            f"y holds labels of the types {' and '.join(kinds)}, which have no order. Convert "
            "them: y.astype(str)."
        )


def _check_lengths(X: Any, y: Any) -> None:
    try:
        rows, labels = get_len(X), get_len(y)
    except (TypeError, ValueError, AttributeError):
        raise ValueError(
            "The parts of X, or of y, have different numbers of rows, or none."
        ) from None
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
            f"X has {rows} row{'s' * (rows != 1)}, of which train_split={split!r} cannot hold out "
            f"one of {cv} parts. Pass train_split=None to train on all rows, or more rows."
        ) from None
    if split.stratified and y is None:
        share = 1 / cv if isinstance(cv, int) else cv
        return ValidSplit(share, random_state=0)(net.get_dataset(X, None))
    if split.stratified and "Stratified CV" in str(error):
        raise ValueError(
            "train_split holds out the same share of every class, and y has "
            f"{getattr(y, 'ndim', 'several')} dimensions. Pass y with one class per row, or "
            "train_split=skorch.dataset.ValidSplit(5)."
        ) from None
    raise ValueError(f"train_split={split!r} cannot divide the rows: {error}") from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{type(value).__name__}"


# -- training -------------------------------------------------------------------------------------


def explain_not_finite(net: Any, fit: Any, error: NotFiniteError) -> None:
    """Name the criterion in the message, if it takes the logarithm of what are no probabilities."""
    before, found, _ = str(error).partition(" Lower lr")
    takes_log = is_classifier(net) and isinstance(criterion_of(net), nn.NLLLoss)
    rows = sample_rows(fit.feed)
    if not found or not takes_log or has_custom_loss(net) or rows is None:
        return
    with torch.no_grad():
        net._set_training(False)
        outputs = net.infer(rows(), **fit.spec.fit_params)
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    if not is_distribution(outputs):
        error.args = (
            f"{before} criterion=NLLLoss takes the logarithm of the outputs, and those of "
            f"{type(module_of(net)).__name__} are no probabilities. Pass "
            "criterion=nn.CrossEntropyLoss, which takes logits, or let forward end in softmax.",
        )
