"""Hints for errors of an update, and for losses that are not finite.

Where the cause is certain, the error is replaced by a sentence. Otherwise it keeps its type and
traceback, and the hint is added as a note below it.
"""

from __future__ import annotations

import inspect
import itertools
import math
import os
import re
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accelerando._engine.data.feed import leaves
from accelerando.exceptions import InputError, NotFiniteError, UnsupportedError

if TYPE_CHECKING:
    from accelerando._decisions import Plan
    from accelerando._engine.loop import Fit

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NO_LOSS = (tuple, list, dict, float, int, bool, str, type(None))
_NOT_FINITE = (
    "Lower lr, clip gradients with skorch's GradientNormClipping, or look for nan and inf in the "
    "data."
)


def explain(error: Exception, batch: Any, module: nn.Module) -> None:
    """Add a hint to an error of the module or the criterion, if one is likely to help."""
    X, y = batch if isinstance(batch, list | tuple) and len(batch) == 2 else (batch, None)
    _replace(error, y, module)
    _reword(error, X, y, module)
    if _SHAPES.search(str(error)) and _inside(error, module):
        error.add_note(f"The batch of X is {_shown(X)}.")
    if not isinstance(error, RuntimeError | TypeError):
        return
    wanted = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    if isinstance(error, TypeError) and isinstance(X, Mapping):
        error.add_note(
            f"X is a frame or a dictionary, so its parts are keyword arguments of forward: "
            f"{', '.join(map(str, X))}. For one array, pass X.to_numpy(dtype='float32')."
        )
        return
    for name, data in (("X", X), ("y", y)):
        other = _other_float(data, wanted)
        if other is not None:
            error.add_note(
                f"{name} has the type {_short(other)} and the module's parameters are "
                f"{_short(wanted)}: try {name}.astype('{_short(wanted)}')."
            )
    if isinstance(y, torch.Tensor) and y.dtype in (torch.int32, torch.int16, torch.uint8):
        error.add_note(
            f"y has the type {_short(y.dtype)}; PyTorch's classification losses want int64: try "
            "y.astype('int64')."
        )


_ROWS = (
    "The criterion returns one loss per row; training needs their mean or sum. Pass "
    "criterion__reduction='mean'."
)


def one_number(loss: torch.Tensor) -> torch.Tensor:
    """Return a loss with one element as a number; refuse one with more."""
    if loss.numel() != 1:
        raise UnsupportedError(_ROWS)
    return loss.reshape(())


def no_graph(module: nn.Module) -> UnsupportedError:
    """Return the error about a loss that depends on no parameter."""
    return UnsupportedError(
        "The loss depends on no parameter that may change: the parameters are frozen "
        f"(requires_grad=False), or {type(module).__name__}.forward leaves the graph (detach, "
        "no_grad, numpy)."
    )


def _replace(error: Exception, y: Any, module: nn.Module) -> None:
    """Raise a sentence instead of an error whose cause is certain."""
    text = str(error)
    kind = type(module).__name__
    if "does not require grad" in text:
        raise no_graph(module) from None
    last = list(traceback.walk_tb(error.__traceback__))[-1:]
    for frame, _ in last:  # of ours, where a loss is multiplied or looked at
        loss = frame.f_locals.get("loss", torch.Tensor)
        if frame.f_code.co_filename.startswith(_OURS) and type(loss) in _NO_LOSS:
            raise UnsupportedError(
                f"The loss is a {type(loss).__name__}, and training needs a tensor with one "
                "number. Return the number alone from the criterion, or from get_loss."
            ) from None
    if "implicitly created only for scalar outputs" in text:
        raise UnsupportedError(_ROWS) from None
    if "more than 1 value per channel" in text:
        raise UnsupportedError(
            "BatchNorm cannot train on a batch of one row. Use larger batches, or GroupNorm."
        ) from None
    returned = re.search(r"must be Tensor, not (\w+)", text) or re.search(
        r"'(tuple|list|dict|NoneType)' object has no attribute 'dtype'", text
    )
    if returned and not _inside(error, module):
        raise UnsupportedError(
            f"{kind}.forward returned a {returned[1]}, and the criterion wants a tensor. Return "
            "the tensor alone, or override get_loss in a subclass of the estimator."
        ) from None
    if "invalid data type" in text and "str" in text:
        raise ValueError(
            "y holds words, and the criterion compares outputs with numbers. Encode y in get_loss, "
            "or before: y = sklearn.preprocessing.LabelEncoder().fit_transform(y)."
        ) from None
    if "input should be between 0 and 1" in text:
        raise ValueError(
            f"The criterion wants probabilities, and the outputs of {kind} are not between 0 and "
            "1. Pass criterion=nn.BCEWithLogitsLoss, or let forward end in sigmoid."
        ) from None
    beyond = re.fullmatch(r"Target (-?\d+) is out of bounds\.", text)
    if beyond:
        raise ValueError(
            f"y holds the class {beyond[1]}, and the outputs of {kind} are numbered from 0 on. "
            "Give the module one output per class, and encode y: "
            "y = sklearn.preprocessing.LabelEncoder().fit_transform(y)."
        ) from None


def _reword(error: Exception, X: Any, y: Any, module: nn.Module) -> None:
    """Raise a sentence about the data instead of an error of a layer or loss of PyTorch's."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if type(error) not in (RuntimeError, ValueError, IndexError, TypeError) or not frames:
        return
    files = [frame.f_code.co_filename for frame in frames]
    inner = itertools.takewhile(lambda file: file.startswith(_TORCH), reversed(files))
    if not any(file.startswith(_NN) for file in inner):
        return
    text = str(error).split("\n")[0].strip().rstrip(".")
    if _ARGUMENTS.search(text):
        if frames[-1].f_locals.get("self") is module:
            _explain_arguments(text.partition("() ")[2], X, module)
        return
    layers = (frame.f_locals.get("self") for frame in reversed(frames))
    layer = next((one for one in layers if isinstance(one, nn.Module)), None)
    if _inside(error, module):
        raise InputError(
            f"{type(module).__name__} cannot compute a batch of X, which is {_shown(X)}: {text}. "
            f"The layer is {layer!r}. {_remedy(layer, X)}"
        ) from None
    wanted = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    for name, buffer in () if layer is None else layer.named_buffers():
        if buffer.is_floating_point() and buffer.dtype != wanted:
            raise InputError(
                f"The {name} of the criterion {type(layer).__name__} is {_short(buffer.dtype)}, "
                f"and the module computes with {_short(wanted)}. Pass criterion__{name}="
                f"torch.as_tensor(..., dtype=torch.{_short(wanted)})."
            ) from None
    outputs = [
        frame.f_locals.get("input") for frame in frames if frame.f_locals.get("self") is layer
    ]
    shape = (
        f", which are {_shown(outputs[-1:])}," if any(map(torch.is_tensor, outputs[-1:])) else ""
    )
    raise InputError(
        f"The criterion {type(layer).__name__} cannot compare the outputs of "
        f"{type(module).__name__}{shape} with y, which is {_shown(y)}: {text}. Change the shape or "
        "the dtype of y, the number of outputs, or the criterion."
    ) from None


def _remedy(layer: nn.Module | None, X: Any) -> str:
    """Return what to change if a layer cannot compute X."""
    channels = getattr(layer, "in_channels", None)
    if isinstance(X, torch.Tensor) and channels is not None and X.dim() > 2:
        if X.shape[1] != channels == X.shape[-1]:
            return "X has its channels last. Pass np.moveaxis(X, -1, 1)."
        if channels == 1 and X.dim() == len(getattr(layer, "kernel_size", ())) + 1:
            return "X has no dimension for the channel. Pass X[:, np.newaxis]."
    return (
        "Change the layer to the number of features and the dtype of X, or X to those of the layer."
    )


def _explain_arguments(what: str, X: Any, module: nn.Module) -> None:
    """Say where the arguments of ``forward`` come from."""
    kind = type(module).__name__
    if isinstance(X, Mapping):
        raise TypeError(
            f"{kind}.forward {what}. The parts of a dictionary or frame and the further arguments "
            f"of fit are arguments of forward. Those of X are {', '.join(map(str, X))}. Give "
            "forward the same names."
        ) from None
    names = list(inspect.signature(module.forward).parameters)
    parts = ", ".join(f"{name!r}: …" for name in names)
    raise TypeError(
        f"{kind}.forward {what}. X is {_shown(X)}, and becomes its first argument. Pass X as a "
        f"dictionary, {{{parts}}}, or further arguments to fit."
    ) from None


_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_NN = os.path.join(_TORCH, "nn", "")
_SHAPES = re.compile(r"\b(size|shape|shapes|dimension|dtype)\b")
_ARGUMENTS = re.compile(r"\(\) (got an unexpected|missing|takes|got multiple)")  # not about data


def _shown(data: Any) -> str:
    shown = [
        f"{_short(leaf.dtype)} of shape {tuple(leaf.shape)}"
        if isinstance(leaf, torch.Tensor)
        else f"a {type(leaf).__name__}"
        for leaf in leaves(data)
    ]
    return " and ".join(shown) or "empty"


def _inside(error: Exception, module: nn.Module) -> bool:
    """Return True if the error was raised while the module computed."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_locals.get("self") is module for frame in frames)


def look_for_nan(error: NotFiniteError, batch: Any) -> None:
    """Let the message say that the data of the batch are not finite, or too large."""
    parts = batch if isinstance(batch, list | tuple) and len(batch) == 2 else (batch, None)
    for name, data in zip(("X", "y"), parts, strict=True):
        for leaf in leaves(data):
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                continue
            bad = ~torch.isfinite(leaf).reshape(len(leaf), -1).all(dim=1)
            if bad.any():
                first = str(error).partition(" Lower lr")[0]
                error.args = (
                    f"{first} {name} holds nan or inf in {int(bad.sum())} of the {len(leaf)} rows "
                    "of this batch: remove or replace them.",
                )
                return
    for name, data in zip(("X", "y"), parts, strict=True):
        for leaf in leaves(data):
            if isinstance(leaf, torch.Tensor) and leaf.numel() and leaf.is_floating_point():
                largest = float(leaf.abs().max())
                if largest > math.sqrt(torch.finfo(leaf.dtype).max) / len(leaf):
                    first = str(error).partition(" Lower lr")[0]
                    error.args = (
                        f"{first} {name} holds values as large as {largest:.2g}, the square of "
                        f"which is too large for {_short(leaf.dtype)}. Scale {name}, with "
                        "scikit-learn's StandardScaler for example.",
                    )
                    return


def _other_float(data: Any, wanted: torch.dtype | None) -> torch.dtype | None:
    for leaf in leaves(data):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != wanted:
            return leaf.dtype
    return None


def _short(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def not_finite(fit: Fit, plan: Plan, what: str, *, stepped: bool = False) -> NotFiniteError:
    """Return the error of an update whose `what` is not finite, and where the run is now."""
    state = fit.state
    position, since = state.position, state.averaging.since
    if stepped:
        left = "train_step has moved the parameters already."
    elif state.replicas is not None:
        left = f"The estimator holds the average of update {position.update - since}, the last one."
    else:
        left = (
            f"The estimator holds the parameters of update {position.update}, the last finite ones."
        )
    return NotFiniteError(
        f"The {what} at update {position.update + 1} (epoch {position.epoch + 1}) with batch size "
        f"{plan.rows} and lr {state.lr(plan.lr_scale):.4g}. {left} {_NOT_FINITE}"
    )
