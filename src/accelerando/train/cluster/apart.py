"""Ranks of a cluster with parameters of their own: alone in their steps, together when they meet.

Between two meetings nothing is sent, unless policies or monitors have to know in every update what
it yielded on all ranks. The wish to pause is heard when ranks talk, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from accelerando.sync import ring_bytes
from accelerando.train.cluster.contact import Contact, is_loss_of_contact
from accelerando.train.world import Traffic

_NUMBER = 8  # bytes


class Apart(Contact):
    """One rank's end of a process group whose ranks average parameters.

    Parameters
    ----------
    net : estimator
        With the module and the device to train.
    processes : torch.distributed.ProcessGroup
        See :func:`~accelerando.train.cluster.contact.form`.
    """

    alone = True
    hook = None
    _nothing = nullcontext()

    def __init__(self, net: Any, processes: Any) -> None:
        super().__init__(processes, torch.device(net.device or "cpu"))
        self.rank = self.part.rank
        self.scale = 1.0
        self.seeded = True
        self.switch = False  # the driver wants other ranks
        self.switching = False  # and all have heard of it
        self._told = 0
        self._waited = 0.0

    def wrap(self) -> None:
        """Do nothing: there is no gradient to exchange."""

    def close(self) -> None:
        """Drop the process group now, so that ranks that wait for this one fail at once, too."""
        self.processes = None

    def begin_segment(self) -> None:
        """Forget what belongs to the time before a pause."""
        super().begin_segment()
        self.switch = self.switching = False
        self.failure = None

    # -- one step, alone ------------------------------------------------------------------------

    def begin_update(self, seed: int, update: int, held: int) -> None:
        self.seed(seed, update)

    def forward(self, net: Any, X: Any, fit_params: Any, *, plain: bool) -> Any:
        return net.module_(X) if plain else net.infer(X, **fit_params)

    def passing(self, *, last: bool) -> AbstractContextManager[object]:
        return self._nothing

    def backward(self, loss: torch.Tensor, share: float, *, last: bool) -> None:
        """Go back with the weight of this rank's rows."""
        weighted = loss if self.scale == 1.0 else loss * self.scale
        weighted.backward()  # type: ignore[no-untyped-call]

    def agree(self, losses: list[torch.Tensor], parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.stack(losses).sum()

    # -- together -------------------------------------------------------------------------------

    def ask(
        self, numbers: Sequence[float], tensors: Sequence[torch.Tensor] = ()
    ) -> Callable[[], list[float]]:
        """Add numbers up, and hear who wants to pause, how long updates take, what was decided."""
        own = (float(self.pause), float(self.switch), *self._clock, self.fingerprint)
        answer = self.begin_sum(tensors, [*own, *numbers])

        def hear() -> list[float]:
            sums = answer()
            self._told += len(sums) * _NUMBER
            pause, switch, seconds, waited, fingerprint = sums[: len(own)]
            self.paused = self.paused or pause > 0
            self.switching = self.switching or switch > 0
            self._clocks = (seconds, waited)
            self.check_fingerprint(fingerprint)
            return sums[len(own) :]

        return hear

    def wait(self, *works: Any) -> None:
        began = time.perf_counter()
        super().wait(*works)
        self._waited += time.perf_counter() - began

    def spent(self) -> Traffic:
        traffic = Traffic(ring_bytes(self._told, self.part.size), self._waited)
        self._told, self._waited = 0, 0.0
        return traffic

    def lost(self, error: RuntimeError) -> bool:
        if is_loss_of_contact(error):
            error.__traceback__ = None  # its frames hold the group that has to go
            self.failure = error
        return self.failure is not None
