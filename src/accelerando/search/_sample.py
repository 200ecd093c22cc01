"""Samplers: draw the parameters of models from lists, distributions, and lists of such spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from sklearn.model_selection import ParameterGrid

__all__ = ["GridSampler", "Observation", "RandomSampler", "Sampler", "check_space"]

Space = Mapping[str, Any]


class Observation(NamedTuple):
    """A score from a bracket that has ended."""

    params: dict[str, Any]
    calls: int
    score: float


class Sampler(Protocol):
    """Draws the parameters of a model.

    Attributes
    ----------
    learns : bool
        Whether draws depend on earlier brackets. If so, brackets run one after the other.
    """

    learns: bool

    def draw(self, model: int, observed: Sequence[Observation]) -> dict[str, Any]:
        """Return parameters for `model`, given the scores of the brackets that have ended."""


class RandomSampler:
    """Draws independently. The parameters of a model depend on the seed and its number only."""

    learns = False

    def __init__(self, spaces: Sequence[Space], seed: int) -> None:
        self.spaces = spaces
        self.seed = seed

    def draw(self, model: int, observed: Sequence[Observation] = ()) -> dict[str, Any]:
        """Return one value for each parameter of one space."""
        random = np.random.RandomState(
            np.random.MT19937(np.random.SeedSequence([self.seed, model]))
        )
        space = self.spaces[random.randint(len(self.spaces))]
        return {name: _draw_one(space[name], random) for name in sorted(space)}


class GridSampler:
    """Draws every combination of lists, in the order of scikit-learn's ``ParameterGrid``."""

    learns = False

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.grid = ParameterGrid([dict(space) for space in spaces])

    def __len__(self) -> int:
        return len(self.grid)

    def draw(self, model: int, observed: Sequence[Observation] = ()) -> dict[str, Any]:
        """Return combination number `model`, counted from 0."""
        return dict(self.grid[model])


def check_space(parameters: Any) -> list[Space]:
    """Return `parameters` as a list of spaces; raise TypeError if it is not valid."""
    spaces = [parameters] if isinstance(parameters, Mapping) else parameters
    if not isinstance(spaces, Sequence) or not spaces or isinstance(spaces, str):
        raise TypeError(
            "parameters must be a dict of lists and distributions, or a list of such dicts. Got "
            f"{parameters!r} instead."
        )
    for space in spaces:
        if not isinstance(space, Mapping):
            raise TypeError(f"parameters must be a list of dicts. It contains {space!r}.")
        for name, values in space.items():
            if hasattr(values, "rvs"):
                continue
            if isinstance(values, str) or not hasattr(values, "__getitem__") or not len(values):
                raise TypeError(
                    f"parameters[{name!r}] must be a list of values (not empty) or a distribution "
                    "with rvs, such as scipy.stats.loguniform(1e-4, 1e-1). "
                    f"Got {values!r} instead."
                )
    return list(spaces)


def _draw_one(values: Any, random: np.random.RandomState) -> Any:
    if hasattr(values, "rvs"):
        return values.rvs(random_state=random)
    return values[random.randint(len(values))]
