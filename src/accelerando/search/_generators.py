"""Global random generators: seeded before every call of a model, and restored afterwards."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import numpy as np

__all__ = ["generators_restored", "seed_generators"]


@contextlib.contextmanager
def generators_restored() -> Iterator[None]:
    """Restore the global generators of NumPy, Python and PyTorch when the block ends."""
    numpy_state = np.random.get_state()
    python_state = random.getstate()
    torch = sys.modules.get("torch")
    torch_state = torch.get_rng_state() if torch is not None else None
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        if torch is not None:
            torch.set_rng_state(torch_state)


def seed_generators(*numbers: int) -> None:
    """Seed the global generators from the numbers that identify a call.

    Estimators without ``random_state``, such as skorch's nets, draw from the global generators.
    The threads of a process share them, so these estimators are repeatable only on workers with
    one thread. PyTorch is seeded from the call on after the one that imports it.
    """
    seed = hash(numbers) % (2**32 - 1)
    np.random.seed(seed)
    random.seed(seed)
    if "torch" in sys.modules:
        from accelerando._engine.runtime.process import seed_torch

        seed_torch(seed)
