"""Explanations of errors: components that cannot be made, and losses that are no number.

Nothing here runs in a fit that works; ``_input_checks.py`` looks at the data.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from sklearn.base import is_classifier
from torch import nn

from accelerando._engine.hints import explain
from accelerando._validation import did_you_mean, parameter_error
from accelerando.estimators._data import sample_rows
from accelerando.estimators._probe import is_distribution
from accelerando.estimators._skorch import criterion_of, has_custom_loss, module_of
from accelerando.exceptions import NotFiniteError, UnsupportedError

# -- components -----------------------------------------------------------------------------------


def _only_dunder(found: re.Match[str]) -> str:
    """Keep a proposal that adds underscores to a name; drop one that cuts a plural in two."""
    key, _, setting = found.groups()
    return f"{key}." if len(setting) == 1 else found[0]


def explain_components(net: Any, error: Exception) -> None:
    """Raise a sentence if a component could not be made for a reason that can be seen."""
    if "unexpected argument" in str(error) and isinstance(error, ValueError):
        # skorch takes "batch_sizes" for a setting "s" of the batch size.
        error.args = (re.sub(r"(\w+), did you mean (\w+)__(\w+)\?", _only_dunder, str(error)),)
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


def explain_evaluation(net: Any, error: Exception) -> None:
    """Raise a sentence about the batch that could not be evaluated, or add a hint to the error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    evaluated = [one for one in frames if one.f_code.co_name in _EVALUATIONS]
    if net.initialized_ and evaluated and "batch" in evaluated[-1].f_locals:
        explain(error, evaluated[-1].f_locals["batch"], module_of(net))


_EVALUATIONS = ("evaluation_step", "validation_step")
