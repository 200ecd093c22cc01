"""Replicas: the models of the ranks of one process, and the switch from one to the next.

Virtual ranks share one process, which then has several replicas; a rank of a cluster has one. A
replica is a list of tensors and the state of the optimizers for them. The module, the criterion and
the optimizers exist once. To activate replica 3 is to let their parameters point at the tensors of
replica 3, which copies nothing. Between two updates they point at another model, the *shown* one:
callbacks, validation and the user see it.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch

from accelerando._engine._torch import Tensors, foreach_copy_, version_of
from accelerando._engine.comm.flat_params import FlatParameters
from accelerando._engine.model import Components, python_numbers
from accelerando._engine.structure import checksum

OptimizerState = list[list[dict[str, Any]]]  # of each optimizer, of each of its parameters


class ReplicaSet:
    """The replicas of one process.

    Parameters
    ----------
    components : Components
        The live model; all replicas start from its values.
    here : int
        Number of replicas in this process.

    Attributes
    ----------
    tensors : list of list of Tensor
        Parameters, then buffers, of each replica.
    optimizer_state : list
        State of each replica's optimizers.
    center, center_memory : list of Tensor
        The central model of strategies that have one, and its momentum, both flat; else empty.
    reference : list of Tensor
        The parameters on which all ranks last agreed, flat; empty unless :meth:`keep_reference`.
    memories : list of dict
        What error feedback of each replica has not sent yet, by parameter.
    bound : bool
        Whether the replicas belong to a live model. Those of :meth:`saved` do not.

    Examples
    --------
    >>> from accelerando._engine.model import Components
    >>> module = torch.nn.Linear(1, 1)
    >>> sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    >>> replicas = ReplicaSet(Components({"module": module}, {}, {"optimizer": sgd}), here=2)
    >>> with replicas.active(1):
    ...     _ = module.bias.data.fill_(7.0)
    >>> replicas.tensors[1][1], bool(module.bias == 7)
    (tensor([7.]), False)
    """

    def __init__(self, components: Components, here: int) -> None:
        self.bound = True
        self._live = _Live(components)
        self.flat = FlatParameters(self._live.places, self._live.n_parameters)
        self.shown: Tensors = [place.data for place in self._live.places]
        self.tensors = [[tensor.clone() for tensor in self.shown] for _ in range(here)]
        self.optimizer_state = [copy.deepcopy(self._live.optimizer_state()) for _ in range(here)]
        self.center: Tensors = []
        self.center_memory: Tensors = []
        self.reference: Tensors = []
        self.memories: list[dict[str, torch.Tensor | None]] = [{} for _ in range(here)]
        floats = set(self.flat.numbers)
        self._counters = [n for n in range(len(self.shown)) if n not in floats]
        self.mark()

    @classmethod
    def saved(cls, content: Mapping[str, Any]) -> Self:
        """Return what :meth:`state_dict` described, without a live model."""
        replicas = cls.__new__(cls)
        replicas.bound = False
        replicas.tensors = content["parameters"]
        replicas.optimizer_state = content["optimizer_state"]
        replicas.center = content["center"]  # one tensor per parameter, not flat
        replicas.center_memory = content["center_memory"]
        # States of versions without compressed averaging have neither.
        replicas.reference = content.get("reference", [])
        replicas.memories = content.get("memories", [{} for _ in replicas.tensors])
        return replicas

    def __len__(self) -> int:
        return len(self.tensors)

    # -- the live model ---------------------------------------------------------------------------

    @contextmanager
    def active(self, number: int) -> Iterator[None]:
        """Let the module and the optimizers hold the tensors of one replica inside."""
        live = self._live
        live.point_at(self.tensors[number], self.optimizer_state[number])
        try:
            yield
        finally:
            # Optimizers create state in their first step, and modules may replace buffers.
            self.tensors[number] = [place.data for place in live.places]
            self.optimizer_state[number] = live.optimizer_state()
            live.point_at(self.shown, self.optimizer_state[0])

    def mark(self) -> None:
        """Remember the versions of the shown model, so that :meth:`fits` notices changes."""
        self._versions = self._live.versions()
        self._states = [optimizer.state for optimizer in self._live.optimizers]
        self._content: list[str] | None = None

    def mark_content(self) -> None:
        """Remember what the model and its optimizers hold, too, before callbacks get it.

        Changes through ``tensor.data`` have no version. Too slow to be done in every update.
        """
        self._content = self._live.content()

    def fits(self, components: Components, here: int) -> bool:
        """Return True if the model is still this one and nobody changed it since :meth:`mark`."""
        if not self.bound or here != len(self.tensors) or not self._live.is_of(components):
            return False
        optimizers = self._live.optimizers
        same = all(o.state is s for o, s in zip(optimizers, self._states, strict=True))
        if not same or self._versions != self._live.versions():
            return False
        return self._content is None or self._content == self._live.content()

    def changed(self, components: Components) -> bool:
        """Return True if the model is another one or somebody has changed it."""
        return self.bound and not self.fits(components, len(self.tensors))

    @property
    def n_bytes(self) -> int:
        """Bytes that a rank sends to be averaged: parameters and statistics."""
        return sum(self.shown[n].nbytes for n in self.flat.numbers)

    # -- values -----------------------------------------------------------------------------------

    def flatten(self) -> list[Tensors]:
        """Return flat copies of the floating tensors of each replica."""
        return [self.flat.flatten(tensors) for tensors in self.tensors]

    def floats(self, number: int) -> Tensors:
        """Return the floating tensors of one replica, in the order of the flat ones."""
        return [self.tensors[number][k] for k in self.flat.numbers]

    def set_all(self, flat: Sequence[torch.Tensor]) -> None:
        """Give these values to all replicas, which agree on them; counters stay."""
        if self.reference:
            self.reference = [one.clone() for one in flat[: self.flat.n_parameters]]
        parts = self.flat.unflatten(flat)
        for tensors in self.tensors:
            self._copy(tensors, parts)

    def show(self, flat: Sequence[torch.Tensor]) -> None:
        """Let the module hold these values between updates, and counters of the first replica."""
        self._copy(self.shown, self.flat.unflatten(flat))
        for number in self._counters:
            self.shown[number].copy_(self.tensors[0][number])
        if self._content is not None:
            self.mark_content()

    def _copy(self, tensors: Tensors, parts: Tensors) -> None:
        with torch.no_grad():
            foreach_copy_([tensors[n] for n in self.flat.numbers[: len(parts)]], parts)

    def reset_optimizers(self) -> None:
        """Let the optimizers of all replicas forget their state."""
        self.optimizer_state = [
            [[{} for _ in memories] for memories in state] for state in self.optimizer_state
        ]
        self._live.point_at(self.shown, self.optimizer_state[0])

    def start_center(self, *, moves: bool) -> None:
        """Start the central model from the shown one.

        Its memory is its position before (`moves`) or its velocity, which is zero at first.
        """
        self.center = self.flat.flatten(self.shown[: self._live.n_parameters])
        start = torch.clone if moves else torch.zeros_like
        self.center_memory = [start(tensor) for tensor in self.center]

    def keep_reference(self) -> None:
        """Remember from now on on which parameters all ranks last agreed."""
        if not self.reference:
            self.reference = self.flat.flatten(self.shown[: self._live.n_parameters])

    @property
    def agreed(self) -> Tensors:
        """The flat parameters that all ranks know: the central model, or the last average."""
        return self.center or self.reference

    def is_parameter(self, number: int) -> bool:
        """Return True if a tensor is a parameter, and not a statistic such as BatchNorm's."""
        return number < self._live.n_parameters

    # -- saving -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything as tensors and Python numbers.

        NumPy's numbers, as a search draws them, are converted: ``torch.load`` with
        ``weights_only=True`` refuses them.
        """
        parts = self.flat.unflatten if self.bound else list
        content = {
            "parameters": self.tensors,
            "optimizer_state": self.optimizer_state,
            "center": parts(self.center),
            "center_memory": parts(self.center_memory),
            "reference": parts(self.reference),
            "memories": self.memories,
        }
        return {name: python_numbers(value) for name, value in content.items()}

    def restore(self, saved: ReplicaSet, first: int = 0) -> None:
        """Take over saved replicas from number `first` on, as many as there are here."""
        chosen = slice(first, first + len(self.tensors))
        self.tensors = [self._like(tensors) for tensors in saved.tensors[chosen]]
        self.restore_center(saved)
        device = self._live.places[0].device
        self.memories = [
            {name: None if one is None else one.to(device) for name, one in memory.items()}
            for memory in saved.memories[chosen]
        ]
        self.optimizer_state = [
            [[_on(memory, device) for memory in memories] for memories in state]
            for state in saved.optimizer_state[chosen]
        ]
        self._live.point_at(self.shown, self.optimizer_state[0])
        self.mark()
        self.mark_content()

    def inherit(self, saved: ReplicaSet, first: int, ranks: int) -> None:
        """Take over the memories of error feedback of another number of replicas.

        What a rank has not sent yet counts in the sum of all, whoever sends it: of `ranks` ranks
        each takes over those of every `ranks`-th replica.
        """
        device = self._live.places[0].device
        for number, memory in enumerate(self.memories, start=first):
            for other in saved.memories[number::ranks]:
                for name, left in other.items():
                    if left is not None:
                        mine = memory.get(name)
                        memory[name] = left.to(device) if mine is None else mine + left.to(mine)

    def restore_center(self, saved: ReplicaSet) -> None:
        """Take over the central model and its memory, if there is one."""
        self.center = self.flat.flatten(self._like(saved.center))
        self.center_memory = self.flat.flatten(self._like(saved.center_memory))
        self.reference = self.flat.flatten(self._like(saved.reference))

    def _like(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        """Copy saved tensors to the device and the memory layout of the live model."""
        with torch.no_grad():
            pairs = zip(self._live.places, tensors, strict=False)
            return [torch.empty_like(place).copy_(tensor) for place, tensor in pairs]


class _Live:
    """The parameters, buffers and optimizers of a live model, in a fixed order."""

    def __init__(self, components: Components) -> None:
        parameters = [parameter for _, parameter in components.named_parameters()]
        self.n_parameters = len(parameters)
        self.places: Tensors = [*parameters, *components.buffers()]
        self.optimizers = list(components.optimizers.values())

    def is_of(self, components: Components) -> bool:
        """Return True if a model consists of the same objects."""
        other = _Live(components)
        return _identical(self.places, other.places) and _identical(
            self.optimizers, other.optimizers
        )

    def point_at(self, tensors: Sequence[torch.Tensor], state: OptimizerState) -> None:
        """Let the model hold these tensors, and its optimizers this state, without copies."""
        for place, tensor in zip(self.places, tensors, strict=True):
            place.data = tensor
        for optimizer, memories in zip(self.optimizers, state, strict=True):
            found = zip(_parameters_of(optimizer), memories, strict=True)
            optimizer.state = defaultdict(dict, {p: memory for p, memory in found if memory})

    def optimizer_state(self) -> OptimizerState:
        """Return the state that the optimizers hold now."""
        return [[o.state.get(p, {}) for p in _parameters_of(o)] for o in self.optimizers]

    def versions(self) -> list[int]:
        """Return the number of changes that each tensor has seen in place."""
        return [version_of(place) for place in self.places]

    def content(self) -> list[str]:
        """Return a checksum of each tensor, those of the optimizers included."""
        memories = [one for state in self.optimizer_state() for one in state]
        return [
            *(checksum(place) for place in self.places),
            *(f"{name} {_text(value)}" for one in memories for name, value in one.items()),
        ]


def is_moment(name: str, value: Any) -> bool:
    """Return True for what can be averaged of an optimizer's state; steps are only counted."""
    return name != "step" and isinstance(value, torch.Tensor) and value.is_floating_point()


def _text(value: Any) -> str:
    return checksum(value) if isinstance(value, torch.Tensor) else repr(value)


def _identical(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def _parameters_of(optimizer: torch.optim.Optimizer) -> Tensors:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _on(memory: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Move the state of one parameter to a device; steps are counted on the CPU."""
    return {
        name: value.to(device) if is_moment(name, value) else value
        for name, value in memory.items()
    }
