"""Convolutions on a CPU run about a third faster when channels are the fastest-moving axis."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from skorch.dataset import unpack_data
from skorch.utils import to_tensor
from torch import nn

_FORMATS: dict[type[nn.Module], torch.memory_format] = {
    nn.Conv2d: torch.channels_last,
    nn.ConvTranspose2d: torch.channels_last,
    nn.Conv3d: torch.channels_last_3d,
    nn.ConvTranspose3d: torch.channels_last_3d,
}


def has_convolutions(module: nn.Module) -> bool:
    """Tell whether :func:`channels_last` would change anything."""
    return any(type(part) in _FORMATS for part in module.modules())


def channels_last(module: nn.Module) -> None:
    """Store the weights of convolutions with channels last; values and shapes stay.

    PyTorch then computes the convolutions and what follows them in that layout.
    """
    for part in module.modules():
        memory_format = _FORMATS.get(type(part))
        if memory_format is not None:
            weight = part.weight
            assert isinstance(weight, nn.Parameter)
            # Not .contiguous(): with one input channel it sees nothing to do, and the output of
            # that layer, which follows the strides of its weight, keeps the slower layout.
            changed = torch.empty_like(weight.data, memory_format=memory_format)
            weight.data = changed.copy_(weight.data)


def accepts_channels_last(module: nn.Module, forward: Callable[[nn.Module], Any]) -> bool:
    """Try a forward pass on a copy of the module: one that uses ``view`` may refuse the layout."""
    try:
        trial = copy.deepcopy(module)
        channels_last(trial)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            forward(trial)
    except Exception:
        # Whatever is wrong with the module itself shows again, with its own traceback, in the
        # first update.
        return False
    return True


def settle_layout(net: Any, feed: Any, fit_params: Any) -> None:
    """Give the module's convolutions the faster layout where it is wanted and works.

    ``"auto"`` means on a CPU, if a forward pass of two rows succeeds with it.
    """
    module = net.module_
    if net.channels_last is False or not has_convolutions(module):
        return
    if net.channels_last is True:
        channels_last(module)
        return
    on_cpu = all(parameter.is_cpu for parameter in module.parameters())
    if not on_cpu or feed.n_examples is None or getattr(feed, "chunks", None) == {}:
        return  # no row at hand to try it on
    X, _ = unpack_data(feed.gather(np.arange(min(2, feed.n_examples))))

    def forward(trial: nn.Module) -> None:
        trial.train()
        x = to_tensor(X, device=net.device)
        trial(**x, **fit_params) if isinstance(x, Mapping) else trial(x, **fit_params)

    if accepts_channels_last(module, forward):
        channels_last(module)
