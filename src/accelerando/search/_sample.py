"""Samplers: draw the parameters of models from lists, distributions, and lists of such spaces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from sklearn.model_selection import ParameterGrid
from sklearn.utils.random import sample_without_replacement

__all__ = ["GridSampler", "Observation", "RandomSampler", "Sampler", "check_space", "grid_size"]

Space = Mapping[str, Any]


class Observation(NamedTuple):
    """A score at the end of a rung."""

    params: dict[str, Any]
    calls: int
    score: float


class Sampler(Protocol):
    """Draws the parameters of a model.

    Attributes
    ----------
    learns : bool
        Whether draws depend on earlier brackets. If so, a bracket waits until the one before is
        in its last rung.
    """

    learns: bool

    def draw(self, model: int, observed: Sequence[Observation]) -> dict[str, Any]:
        """Return parameters for `model`, given the scores of earlier brackets."""


class RandomSampler:
    """Draws independently. The parameters of a model depend on the seed and its number only.

    If all values are in lists, every combination is drawn once before one is drawn again.

    Parameters
    ----------
    spaces : sequence of mappings
        The spaces. Distributions are drawn from with replacement.
    seed : int
        Seed of all draws.
    n_models : int
        Number of models that will be drawn.
    """

    learns = False

    def __init__(self, spaces: Sequence[Space], seed: int, n_models: int = 1) -> None:
        self.spaces = spaces
        self.seed = seed
        size = grid_size(spaces)
        self._grid = None if size is None else ParameterGrid([dict(space) for space in spaces])
        self._n_drawn = 0 if size is None else max(1, min(size, n_models))
        self._rounds: dict[int, Any] = {}

    def draw(self, model: int, observed: Sequence[Observation] = ()) -> dict[str, Any]:
        """Return one value for each parameter of one space."""
        if self._grid is not None:
            number, position = divmod(model, self._n_drawn)
            if number not in self._rounds:
                random = _generator(self.seed, number)
                drawn = sample_without_replacement(
                    len(self._grid), self._n_drawn, random_state=random
                )
                self._rounds[number] = random.permutation(drawn)
            return dict(self._grid[self._rounds[number][position]])
        random = _generator(self.seed, model)
        space = self.spaces[random.randint(len(self.spaces))]
        return {name: _draw_one(space[name], random) for name in sorted(space)}


def _generator(*seed: int) -> np.random.RandomState:
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))


def grid_size(spaces: Sequence[Space]) -> int | None:
    """Return the number of combinations of some spaces; None if one has a distribution.

    Examples
    --------
    >>> grid_size([{"alpha": [1, 2, 3], "penalty": ["l1", "l2"]}, {"alpha": [4]}])
    7
    """
    if any(hasattr(values, "rvs") for space in spaces for values in space.values()):
        return None
    return sum(math.prod(len(values) for values in space.values()) for space in spaces)


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
    if not isinstance(spaces, Sequence) or not len(spaces) or isinstance(spaces, str):
        raise TypeError(
            "parameters must be a dict of lists and distributions, or a list of such dicts. Got "
            f"{parameters!r} instead."
        )
    if not any(spaces):
        raise ValueError(
            f"parameters must name at least one parameter to search. Got {parameters!r} instead."
        )
    for space in spaces:
        if not isinstance(space, Mapping):
            raise TypeError(f"parameters must be a list of dicts. It contains {space!r}.")
        for name, values in space.items():
            if hasattr(values, "rvs"):
                continue
            listed = isinstance(values, (Sequence, np.ndarray)) and not isinstance(values, str)
            if not listed or not len(values):
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
