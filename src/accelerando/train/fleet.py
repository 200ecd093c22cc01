"""The parameters of the ranks that one process is, and the switch from one to the next.

Virtual ranks are all in one process; a rank of a cluster is one by itself, and what is added up
over the ranks is added up over processes, too.

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

from accelerando.train.joint import Joint
from accelerando.train.world import Alone, World

Memories = list[list[dict[str, Any]]]  # of each optimizer, of each of its parameters


class Fleet:
    """The ranks of one process.

    Parameters
    ----------
    net : estimator
        Initialized; all ranks start where it is.
    here : int
        How many ranks this process is.
    world : World
        The processes, each of which is as many.
    """

    def __init__(self, net: Any, here: int, world: World | None = None) -> None:
        self.world: World = world or Alone()
        self.here = here
        self.bind(net)
        self.shown = [tensor.data for tensor in self._places]
        self.ranks = [[tensor.clone() for tensor in self.shown] for _ in range(here)]
        self.memories = [copy.deepcopy(self._memory()) for _ in range(here)]
        self.centre: list[torch.Tensor] = []  # of strategies that have a central model, joined
        self.pace: list[torch.Tensor] = []  # what that one remembers
        self.mark()

    @property
    def size(self) -> int:
        """How many ranks there are in all processes."""
        return self.here * self.world.part.size

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
        self.n_parameters = len(self._parameters)
        self.joint = Joint(self._places, self.n_parameters)
        self.floats = self.joint.numbers
        self._others = sorted(set(range(len(self._places))) - set(self.floats))

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

    def fits(self, net: Any, here: int) -> bool:
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
        return same and optimizers and remembered and unchanged and here == self.here

    # -- numbers over the ranks -------------------------------------------------------------------

    def told(self) -> list[list[torch.Tensor]]:
        """Return copies of the floating tensors of each rank of this process, joined."""
        return [self.joint.joined(rank) for rank in self.ranks]

    def mean(self) -> list[torch.Tensor]:
        """Return the mean of all ranks, joined."""
        return self.mean_of_some(counts=True)

    def mean_of_some(self, *, counts: bool) -> list[torch.Tensor]:
        """Return the mean of the processes' ranks that count, joined; others listen."""
        sums = total(self.told())
        torch._foreach_mul_(sums, float(counts))
        (number,) = self.world.add_up(sums, [float(counts * self.here)])
        torch._foreach_div_(sums, number)
        return sums

    def put(self, joined: Sequence[torch.Tensor]) -> None:
        """Let all ranks have these values; counters stay."""
        parts = self.joint.parts(joined)
        for rank in self.ranks:
            self._copy(rank, parts)

    def show(self, joined: Sequence[torch.Tensor]) -> None:
        """Let the module have these values outside of updates, and counters of the first rank."""
        self._copy(self.shown, self.joint.parts(joined))
        for number in self._others:
            self.shown[number].copy_(self.ranks[0][number])

    def _copy(self, model: list[torch.Tensor], parts: list[torch.Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_([model[n] for n in self.floats[: len(parts)]], parts)

    def bytes(self) -> int:
        """Return the bytes of what a rank sends to be averaged: parameters and statistics."""
        return sum(self.shown[n].nbytes for n in self.floats)

    # -- momentum ---------------------------------------------------------------------------------

    def reset_memories(self) -> None:
        """Let every rank's optimizer forget."""
        self.memories = [[[{} for _ in m] for m in memory] for memory in self.memories]
        self._point_at(self.shown, self.memories[0])

    def mean_moments(self) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
        """Return the optimizers' tensors that all ranks have: those of the ranks, and their mean.

        A rank whose module took another way may have none yet for some parameter.
        """
        found = [(moments, torch.stack(moments).sum(0)) for moments in self._moments_of_all()]
        self.world.add_up([total for _, total in found])
        for _, total in found:
            total /= self.size
        return found

    def _moments_of_all(self) -> Iterator[list[torch.Tensor]]:
        places = [(number, n) for number, o in enumerate(self.memories[0]) for n in range(len(o))]
        have = [sum(bool(memory[a][b]) for memory in self.memories) for a, b in places]
        for (a, b), ranks in zip(places, self.world.total(*map(float, have)), strict=True):
            if ranks == self.size:
                for name, value in self.memories[0][a][b].items():
                    if _is_moment(name, value):
                        yield [memory[a][b][name] for memory in self.memories]

    # -- saving -----------------------------------------------------------------------------------

    def to_save(self) -> dict[str, Any]:
        """Return everything as tensors and numbers."""
        return {
            "ranks": self.ranks,
            "memories": self.memories,
            "centre": self.joint.parts(self.centre),
            "pace": self.joint.parts(self.pace),
        }

    def take_up(self, saved: dict[str, Any], first: int = 0) -> None:
        """Become what was saved, from rank number `first` on; there are enough of them."""
        self.ranks = [self._like(rank) for rank in saved["ranks"][first : first + self.here]]
        self.take_centre(saved)
        device = self._places[0].device
        memories = saved["memories"][first : first + self.here]
        self.memories = [[[_on(m, device) for m in o] for o in r] for r in memories]
        self._point_at(self.shown, self.memories[0])
        self.mark()

    def take_centre(self, saved: dict[str, Any] | None) -> None:
        """Take the central model and what it remembers from what was saved, if there is any."""
        if saved is not None:
            centre, pace = (self._like(saved[name]) for name in ("centre", "pace"))
            self.centre, self.pace = self.joint.joined(centre), self.joint.joined(pace)

    def _like(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy saved tensors to the device and the layout that the net's have."""
        with torch.no_grad():
            pairs = zip(self._places, tensors, strict=False)
            return [torch.empty_like(place).copy_(tensor) for place, tensor in pairs]


def total(told: Sequence[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Add up what ranks have told; the result is a copy."""
    sums = [tensor.clone() for tensor in told[0]]
    for other in told[1:]:
        torch._foreach_add_(sums, other)
    return sums


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
