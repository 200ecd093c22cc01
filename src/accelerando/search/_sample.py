"""Drawing parameters: lists, scipy distributions, and lists of such spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from sklearn.model_selection import ParameterGrid

__all__ = ["GridSampler", "RandomSampler", "Sampler", "Seen", "check_space"]

Space = Mapping[str, Any]


class Seen(NamedTuple):
    """A score of a bracket that is over: parameters, after how many calls, how good."""

    params: dict[str, Any]
    calls: int
    score: float


class Sampler(Protocol):
    """Draws the parameters of a model.

    ``waits`` says that a bracket can be drawn only when the ones before it are over.
    """

    waits: bool

    def draw(self, model: int, seen: Sequence[Seen]) -> dict[str, Any]:
        """Return parameters for ``model``, given what the finished brackets showed."""


class RandomSampler:
    """Independent draws; what model ``i`` gets depends on the seed and ``i`` only."""

    waits = False

    def __init__(self, spaces: Sequence[Space], seed: int) -> None:
        self.spaces = spaces
        self.seed = seed

    def draw(self, model: int, seen: Sequence[Seen] = ()) -> dict[str, Any]:
        """Return one value for each parameter of one space."""
        random = np.random.RandomState(
            np.random.MT19937(np.random.SeedSequence([self.seed, model]))
        )
        space = self.spaces[random.randint(len(self.spaces))]
        return {name: _draw_one(space[name], random) for name in sorted(space)}


class GridSampler:
    """Every combination of lists, in the order of scikit-learn's ``ParameterGrid``."""

    waits = False

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.grid = ParameterGrid([dict(space) for space in spaces])

    def __len__(self) -> int:
        return len(self.grid)

    def draw(self, model: int, seen: Sequence[Seen] = ()) -> dict[str, Any]:
        """Return the ``model``-th combination."""
        return dict(self.grid[model])


def check_space(parameters: Any) -> list[Space]:
    """Return the list of spaces that ``parameters`` describes, or say what is wrong with it."""
    spaces = [parameters] if isinstance(parameters, Mapping) else parameters
    if not isinstance(spaces, Sequence) or not spaces or isinstance(spaces, str):
        raise TypeError(
            "parameters must be a dict of lists and distributions, or a list of such dicts, got "
            f"{parameters!r}."
        )
    for space in spaces:
        if not isinstance(space, Mapping):
            raise TypeError(f"parameters must hold dicts, got {space!r} of type {type(space)}.")
        for name, values in space.items():
            if hasattr(values, "rvs"):
                continue
            if isinstance(values, str) or not hasattr(values, "__getitem__") or not len(values):
                raise TypeError(
                    f"parameters[{name!r}] must be a list of values (not empty) or a distribution "
                    f"with rvs, such as scipy.stats.loguniform(1e-4, 1e-1); got {values!r}."
                )
    return list(spaces)


def _draw_one(values: Any, random: np.random.RandomState) -> Any:
    if hasattr(values, "rvs"):
        return values.rvs(random_state=random)
    return values[random.randint(len(values))]
