"""The order of a user's sampler, the same whenever an epoch is begun or continued."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from accelerando._engine.runtime.process import Draws


class SamplerOrder:
    """What a sampler yields in an epoch; what it draws depends on the seed and the epoch only.

    A run that continues inside an epoch asks for its order again, perhaps in another process. A
    sampler draws from the global generators, or from its own ``torch.Generator``, whose seed
    then counts, too. Afterwards all generators are as before.

    Parameters
    ----------
    sampler : iterable of int
        Yields positions of rows in the training set.

    Examples
    --------
    >>> order = SamplerOrder(torch.utils.data.RandomSampler(range(6)))
    >>> first, other, again = (order(0, epoch, 6).tolist() for epoch in (0, 1, 0))
    >>> first == again != other
    True
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __call__(self, seed: int, epoch: int, n: int) -> npt.NDArray[np.int64]:
        """Return the positions of the rows in the order of the epoch."""
        own = getattr(self.sampler, "generator", None)
        if not isinstance(own, torch.Generator):
            with Draws(seed, epoch)():
                return np.fromiter(self.sampler, dtype=np.int64)
        before = own.get_state()
        with Draws(seed, epoch, own.initial_seed() % 2**63)():
            try:
                own.manual_seed(int(torch.randint(2**63 - 1, ())))
                return np.fromiter(self.sampler, dtype=np.int64)
            finally:
                own.set_state(before)
