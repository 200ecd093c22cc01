"""Channels-last memory format: on a CPU, convolutions run about a third faster with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_FORMATS: dict[type[nn.Module], torch.memory_format] = {
    nn.Conv2d: torch.channels_last,
    nn.ConvTranspose2d: torch.channels_last,
    nn.Conv3d: torch.channels_last_3d,
    nn.ConvTranspose3d: torch.channels_last_3d,
}


def has_convolutions(module: nn.Module) -> bool:
    """Return True if :func:`channels_last` would change anything.

    Examples
    --------
    >>> has_convolutions(nn.Sequential(nn.Conv2d(1, 2, 3))), has_convolutions(nn.Linear(2, 1))
    (True, False)
    """
    return any(type(part) in _FORMATS for part in module.modules())


def channels_last(module: nn.Module) -> None:
    """Store the weights of convolutions in the channels-last format; values and shapes stay.

    PyTorch then computes the convolutions and the layers that follow in that format.
    """
    for part in module.modules():
        memory_format = _FORMATS.get(type(part))
        if memory_format is not None:
            weight = part.weight
            assert isinstance(weight, nn.Parameter)
            # Not .contiguous(): with one input channel both formats are contiguous, so it does
            # nothing, and the output, which follows the strides of the weight, stays slow.
            changed = torch.empty_like(weight.data, memory_format=memory_format)
            weight.data = changed.copy_(weight.data)


def accepts_channels_last(module: nn.Module, forward: Callable[[nn.Module], Any]) -> bool:
    """Return True if a forward pass of a copy works; a module that uses ``view`` may refuse.

    The trial uses up no random numbers of the CPU's generator and changes no statistics.
    """
    try:
        trial = copy.deepcopy(module)
        channels_last(trial)
        trial.train()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            forward(trial)
    except Exception:
        # If the module itself is wrong, the first update raises the same error where the user
        # sees its traceback.
        return False
    return True


def settle(
    module: nn.Module,
    mode: bool | str,
    sample_rows: Callable[[], Any] | None,
    forward: Callable[[nn.Module, Any], Any],
) -> None:
    """Give the convolutions of a module the faster memory format where it is wanted and works.

    Parameters
    ----------
    module : torch.nn.Module
        Changed in place.
    mode : bool or "auto"
        ``"auto"`` means: on a CPU, if a forward pass of a copy succeeds.
    sample_rows : callable or None
        Returns a few rows for that forward pass; None if no rows are here (streams, and chunks
        that have not arrived), which leaves the module unchanged under ``"auto"``.
    forward : callable
        Called with the copy and the rows.

    Examples
    --------
    >>> module = nn.Conv2d(2, 4, 3)
    >>> settle(module, "auto", lambda: torch.zeros(2, 2, 8, 8), lambda m, x: m(x))
    >>> module.weight.is_contiguous(memory_format=torch.channels_last)
    True
    """
    if mode is False or not has_convolutions(module):
        return
    if mode is True:
        channels_last(module)
        return
    on_cpu = all(parameter.is_cpu for parameter in module.parameters())
    if not on_cpu or sample_rows is None:
        return
    rows = sample_rows()
    if accepts_channels_last(module, lambda trial: forward(trial, rows)):
        channels_last(module)
