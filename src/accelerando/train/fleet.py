"""The parameters of several ranks in one process, and the switch from one to the next.

A rank is a list of tensors and what the optimizers remember for them. The module, the criterion
and the optimizers exist once: to be rank 3 is to let their parameters point at the tensors of
rank 3, which copies nothing. Between two updates they point at a model of their own, the one that
is *shown*: to callbacks, to validation, to the user.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Memories = list[list[dict[str, Any]]]  # of each optimizer, of each of its parameters


class Fleet:
    """The ranks of one process.

    Parameters
    ----------
    net : estimator
        Initialized; all ranks start where it is.
    size : int
        How many ranks there are.
    """

    def __init__(self, net: Any, size: int) -> None:
        self.size = size
        self.bind(net)
        self.shown = [tensor.data for tensor in self._places]
        self.ranks = [[tensor.clone() for tensor in self.shown] for _ in range(size)]
        self.memories = [copy.deepcopy(self._memory()) for _ in range(size)]
        self.centre: list[torch.Tensor] = []  # of strategies that have a central model
        self.pace: list[torch.Tensor] = []  # what that one remembers
        self.mark()

    def bind(self, net: Any) -> None:
        """Find the parameters, buffers and optimizers, in an order that stays."""
        self._parameters = [parameter for _, parameter in net.get_all_learnable_params()]
        modules = [getattr(net, name + "_") for name in net._modules + net._criteria]
        seen: dict[int, torch.Tensor] = {}
        for module in modules:
            for buffer in module.buffers() if hasattr(module, "buffers") else ():
                seen.setdefault(id(buffer), buffer)
        self._places = [*self._parameters, *seen.values()]
        self._optimizers = [getattr(net, name + "_") for name in net._optimizers]
        # Counters, like those of BatchNorm, have no mean.
        self.floats = [n for n, place in enumerate(self._places) if place.is_floating_point()]
        self.n_parameters = len(self._parameters)

    # -- who is who -------------------------------------------------------------------------------

    @contextmanager
    def as_rank(self, number: int) -> Iterator[None]:
        """Be one of the ranks inside."""
        self._point_at(self.ranks[number], self.memories[number])
        try:
            yield
        finally:
            # What the optimizers have made for the first time, and buffers a module replaced.
            self.ranks[number] = [place.data for place in self._places]
            self.memories[number] = self._memory()
            self._point_at(self.shown, self.memories[0])

    def _point_at(self, tensors: Sequence[torch.Tensor], memories: Memories) -> None:
        for place, tensor in zip(self._places, tensors, strict=True):
            place.data = tensor
        for optimizer, remembered in zip(self._optimizers, memories, strict=True):
            found = zip(_parameters_of(optimizer), remembered, strict=True)
            optimizer.state = defaultdict(dict, {p: memory for p, memory in found if memory})

    def _memory(self) -> Memories:
        return [[o.state.get(p, {}) for p in _parameters_of(o)] for o in self._optimizers]

    def mark(self) -> None:
        """Note what the shown model is, to see later whether anybody has changed it."""
        self._versions = [place._version for place in self._places]
        self._states = [optimizer.state for optimizer in self._optimizers]

    def fits(self, net: Any, size: int) -> bool:
        """Tell whether these are still the ranks of this net, and nobody has changed the model."""
        now = Fleet.__new__(Fleet)
        now.bind(net)
        same = len(now._places) == len(self._places) and all(
            a is b for a, b in zip(now._places, self._places, strict=True)
        )
        optimizers = all(a is b for a, b in zip(now._optimizers, self._optimizers, strict=True))
        remembered = all(
            o.state is state for o, state in zip(self._optimizers, self._states, strict=True)
        )
        unchanged = self._versions == [place._version for place in self._places]
        return same and optimizers and remembered and unchanged and size == self.size

    # -- numbers over the ranks -------------------------------------------------------------------

    def mean(self) -> list[torch.Tensor]:
        """Return the mean of the ranks' tensors, those that are no floats from the first rank."""
        with torch.no_grad():
            means = [tensor.clone() for tensor in self.ranks[0]]
            for n in self.floats:
                for rank in self.ranks[1:]:
                    means[n] += rank[n]
                means[n] /= self.size
        return means

    def spread(self, means: Sequence[torch.Tensor]) -> float:
        """Return the mean squared distance of the ranks' parameters from their mean."""
        total = 0.0
        with torch.no_grad():
            for n in range(self.n_parameters):
                for rank in self.ranks:
                    apart = (rank[n] - means[n]).flatten()
                    total += float(apart.dot(apart))
        return total / self.size

    def show(self, tensors: Sequence[torch.Tensor]) -> None:
        """Let the module have these values outside of updates."""
        with torch.no_grad():
            for shown, tensor in zip(self.shown, tensors, strict=True):
                shown.copy_(tensor)

    def bytes(self) -> int:
        """Return the bytes of what a rank sends to be averaged: parameters and statistics."""
        return sum(self.shown[n].nbytes for n in self.floats)

    # -- momentum ---------------------------------------------------------------------------------

    def reset_memories(self) -> None:
        """Let every rank's optimizer forget."""
        self.memories = [[[{} for _ in m] for m in memory] for memory in self.memories]
        self._point_at(self.shown, self.memories[0])

    def average_memories(self) -> int:
        """Give all ranks the mean of their optimizers' tensors; return the bytes of one rank's."""
        sent = 0
        for number, remembered in enumerate(self.memories[0]):
            for place, first in enumerate(remembered):
                for name, value in first.items():
                    if not _is_moment(name, value):
                        continue
                    moments = [memory[number][place][name] for memory in self.memories]
                    mean = torch.stack(moments).mean(0)
                    for moment in moments:
                        moment.copy_(mean)
                    sent += mean.nbytes
        return sent

    # -- saving -----------------------------------------------------------------------------------

    def to_save(self) -> dict[str, Any]:
        """Return everything as tensors and numbers."""
        return {
            "ranks": self.ranks,
            "memories": self.memories,
            "centre": self.centre,
            "pace": self.pace,
        }

    def take_up(self, saved: dict[str, Any]) -> None:
        """Become what was saved; the sizes have been compared before."""
        places = self._places

        def like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            pairs = zip(places, tensors, strict=False)
            return [torch.empty_like(place).copy_(tensor) for place, tensor in pairs]

        with torch.no_grad():
            self.ranks = [like(rank) for rank in saved["ranks"]]
            self.centre, self.pace = like(saved["centre"]), like(saved["pace"])
        device = places[0].device
        self.memories = [[[_on(m, device) for m in o] for o in r] for r in saved["memories"]]


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _is_moment(name: str, value: Any) -> bool:
    return name != "step" and isinstance(value, torch.Tensor) and value.is_floating_point()


def _on(memory: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Move what an optimizer remembers; steps are counted on the CPU."""
    return {
        name: value.to(device) if _is_moment(name, value) else value
        for name, value in memory.items()
    }
