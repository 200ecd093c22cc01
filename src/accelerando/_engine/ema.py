"""An exponential moving average of the weights, for fits with ``ema=``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from accelerando._engine._torch import Tensors, foreach_lerp_
from accelerando._engine.model import Components
from accelerando.exceptions import StateError

_STATISTICS = ("running_mean", "running_var")  # of BatchNorm and InstanceNorm
_HALF = (torch.float16, torch.bfloat16)


class WeightAverage:
    r"""The average of the weights after each update, the newest ones counting most.

    Parameters
    ----------
    decay : float
        Between 0 and 1; about ``1 / (1 - decay)`` updates count.
    updates : int
        Updates that are in the average.
    tensors : mapping, optional
        The average by name.

    Notes
    -----
    After update k, with the weights :math:`\theta_k` and the decay d,

    .. math:: \bar\theta_k = \frac{\sum_{i \le k} d^{k - i} \theta_i}{\sum_{i \le k} d^{k - i}},
        \quad\text{that is}\quad
        \bar\theta_k = \bar\theta_{k-1} + \frac{1 - d}{1 - d^k} (\theta_k - \bar\theta_{k-1}).

    This is :math:`\bar\theta \leftarrow d \bar\theta + (1 - d) \theta` with Adam's correction of
    the bias: the first average is :math:`\theta_1`, early ones are nearly a plain mean, and the
    initial weights do not count.

    Averaging iterates goes back to Ruppert (1988) and Polyak and Juditsky (1992, SIAM Journal on
    Control and Optimization 30). Equal weights for the end of a run are SWA (Izmailov et al. 2018,
    arXiv:1803.05407); Karras et al. (2024, arXiv:2312.02696) study how long the memory should be.

    All parameters are averaged, and the running statistics of normalization layers, which belong to
    weights. Other buffers are not: those of the model count. Half precision is averaged in float32.
    What a callback replaces continues if it has the same name and shape, and starts anew otherwise.

    Examples
    --------
    >>> layer = torch.nn.Linear(1, 1, bias=False)
    >>> components, average = Components({"module": layer}), WeightAverage(0.5)
    >>> for value in (1.0, 4.0):
    ...     _ = torch.nn.init.constant_(layer.weight, value)
    ...     average.update(components)
    >>> with average.shown(components):
    ...     layer.weight.item()
    3.0
    >>> layer.weight.item()
    4.0
    """

    def __init__(
        self, decay: float, updates: int = 0, tensors: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        self.decay, self.updates = float(decay), updates
        self.tensors = dict(tensors or {})
        self._live: Tensors | None = None  # what is averaged; the averages are in the same order
        self._averages: Tensors = []
        self._lock = threading.Lock()
        self._depth = 0
        self._hidden: list[tuple[torch.Tensor, torch.Tensor]] = []

    # -- training ---------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """Look for the tensors again; a callback may have replaced some."""
        self._live = None

    def update(self, components: Components) -> None:
        """Add the weights after an update."""
        if self._live is None:
            self._bind(components)
        assert self._live is not None
        self.updates += 1
        weight = (1.0 - self.decay) / (1.0 - self.decay**self.updates)
        with torch.no_grad():
            live = self._live
            if self._mixed:
                live = [t.to(a.dtype) for t, a in zip(live, self._averages, strict=True)]
            foreach_lerp_(self._averages, live, weight)

    def _bind(self, components: Components) -> None:
        found, known = _averaged_tensors(components), self.tensors
        self.tensors = {}
        for name, tensor in found.items():
            average = known.get(name)
            if average is None or average.shape != tensor.shape:
                average = tensor.detach().clone()
            kind = torch.float32 if tensor.dtype in _HALF else tensor.dtype
            self.tensors[name] = average.to(tensor.device, kind)
        self._live, self._averages = list(found.values()), list(self.tensors.values())
        self._mixed = any(
            t.dtype != a.dtype for t, a in zip(self._live, self._averages, strict=True)
        )

    def restart(self) -> None:
        """Forget the average: it begins with the next update."""
        self.updates, self.tensors, self._live = 0, {}, None

    # -- evaluation -------------------------------------------------------------------------------

    @contextmanager
    def shown(self, components: Components) -> Iterator[None]:
        """Let modules and criteria hold the average inside. Several threads may be inside."""
        with self._lock:
            if self._depth == 0:
                self._show(components)
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    self._hide()

    def _show(self, components: Components) -> None:
        # Tensors are exchanged and not copied: nothing can be lost, and it takes microseconds.
        for name, tensor in _averaged_tensors(components).items():
            average = self.tensors.get(name)
            if average is not None and average.shape == tensor.shape:
                if average.device != tensor.device:  # loaded from a file
                    average = self.tensors[name] = average.to(tensor.device)
                self._hidden.append((tensor, tensor.data))
                tensor.data = average.to(tensor.dtype)

    def _hide(self) -> None:
        for tensor, values in self._hidden:
            tensor.data = values
        self._hidden = []

    def check_hidden(self, what: str) -> None:
        """Raise if the model holds the average now.

        Parameters
        ----------
        what : str
            What needs the weights that are trained, for the message.
        """
        if self._depth:
            raise StateError(
                f"{what} needs the weights that are trained, and inside averaged_weights() the "
                "module holds their average. Call it outside."
            )

    # -- saving -----------------------------------------------------------------------------------

    def state_dict(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return plain values and tensors."""
        self.check_hidden("Saving")
        return {"decay": self.decay, "updates": self.updates}, dict(self.tensors)

    @classmethod
    def saved(cls, plain: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> WeightAverage:
        """Return the average that :meth:`state_dict` described; it has its own memory."""
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        return cls(plain["decay"], plain["updates"], copies)


def _averaged_tensors(components: Components) -> dict[str, torch.Tensor]:
    """Return the parameters and running statistics by name, tied ones once."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for root, part in {**components.modules, **components.criteria}.items():
        if not isinstance(part, torch.nn.Module):
            continue
        for name, parameter in part.named_parameters(prefix=root):
            if _can_be_averaged(parameter):
                found.setdefault(id(parameter), (name, parameter))
        for name, buffer in part.named_buffers(prefix=root):
            if name.rpartition(".")[2] in _STATISTICS and buffer.is_floating_point():
                found.setdefault(id(buffer), (name, buffer))
    return dict(found.values())


def _can_be_averaged(parameter: torch.Tensor) -> bool:
    """Return False for integers, and for a frozen mask of infinities: inf − inf is nan."""
    if not (parameter.is_floating_point() or parameter.is_complex()):
        return False
    return parameter.requires_grad or bool(parameter.isfinite().all())
