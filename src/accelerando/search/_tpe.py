"""TPE sampler: draw from a density estimated from earlier brackets (BOHB, with Optuna)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from accelerando._extras import require
from accelerando.search._sample import Observation, RandomSampler, Space

__all__ = ["TPESampler", "comparable"]

RANDOM_SHARE = 1 / 3  # as in BOHB: random draws preserve Hyperband's guarantee
EDGE = 1e-9  # values at the quantiles 0 and 1 may be infinite


class TPESampler:
    """Tree-structured Parzen estimator over the scores of earlier brackets.

    Distributions are transformed to their quantiles, in which they are uniform, so any
    distribution with ``ppf`` and ``cdf`` works. Lists are categories. Only scores after the same
    number of calls are compared, because a longer-trained model has a better score for that reason
    alone: the sampler uses the largest number of calls with enough scores. A third of the draws
    are random.

    Parameters
    ----------
    spaces : sequence of mappings
        Lists and distributions by parameter name.
    seed : int
        Makes the draws repeatable.
    n_models : int
        Number of models that will be drawn.

    References
    ----------
    S. Falkner, A. Klein and F. Hutter. BOHB: robust and efficient hyperparameter optimization at
    scale. ICML 2018.
    """

    learns = True

    def __init__(self, spaces: Sequence[Space], seed: int, n_models: int = 1) -> None:
        require("tpe", "sampler='tpe'")
        import optuna

        self.optuna = optuna
        self.spaces = spaces
        self.seed = seed
        self.random = RandomSampler(spaces, seed, n_models)
        self._study: Any = None
        self._built = -1
        for space in spaces:
            for name, values in space.items():
                if hasattr(values, "rvs") and not (
                    hasattr(values, "ppf") and hasattr(values, "cdf")
                ):
                    raise TypeError(
                        f"sampler='tpe' needs distributions with ppf and cdf, but parameters"
                        f"[{name!r}] is {values!r}. Use a scipy distribution or a list."
                    )

    def draw(self, model: int, observed: Sequence[Observation]) -> dict[str, Any]:
        """Return parameters for `model`, given the scores of earlier brackets."""
        alike = comparable(observed, enough=2 + max(len(space) for space in self.spaces))
        coin = np.random.default_rng([self.seed, model, 1]).random()
        if not alike or coin < RANDOM_SHARE:
            return self.random.draw(model)
        if self._built != len(observed):  # once per bracket
            self._study, self._built = self._build(alike), len(observed)
        seed = hash((self.seed, model)) % 2**31
        self._study.sampler = self.optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)
        trial = self._study.ask()
        chosen = trial.suggest_categorical("space", list(range(len(self.spaces))))
        space = self.spaces[chosen]
        drawn = {
            name: self._suggest(trial, f"{chosen}:{name}", space[name]) for name in sorted(space)
        }
        # An open trial would influence the next draw.
        self._study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
        return drawn

    def _build(self, alike: Sequence[Observation]) -> Any:
        optuna = self.optuna
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.create_study(direction="maximize")
            for one in alike:
                params, distributions = self._as_trial(one.params)
                study.add_trial(
                    optuna.trial.create_trial(
                        params=params, distributions=distributions, value=one.score
                    )
                )
        finally:
            optuna.logging.set_verbosity(level)
        return study

    def _as_trial(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        chosen = next(i for i, space in enumerate(self.spaces) if set(space) == set(params))
        categories = self.optuna.distributions.CategoricalDistribution
        values: dict[str, Any] = {"space": chosen}
        kinds: dict[str, Any] = {"space": categories(list(range(len(self.spaces))))}
        for name, value in params.items():
            choices = self.spaces[chosen][name]
            key = f"{chosen}:{name}"
            if hasattr(choices, "rvs"):
                values[key] = float(np.clip(choices.cdf(value), EDGE, 1 - EDGE))
                kinds[key] = self.optuna.distributions.FloatDistribution(0.0, 1.0)
            else:
                values[key] = _position(choices, value)
                kinds[key] = categories(list(range(len(choices))))
        return values, kinds

    @staticmethod
    def _suggest(trial: Any, key: str, choices: Any) -> Any:
        if hasattr(choices, "rvs"):
            quantile = np.clip(trial.suggest_float(key, 0.0, 1.0), EDGE, 1 - EDGE)
            value = choices.ppf(quantile).item()
            return int(value) if hasattr(choices, "pmf") else value
        return choices[trial.suggest_categorical(key, list(range(len(choices))))]


def comparable(observed: Sequence[Observation], enough: int) -> list[Observation]:
    """Return the scores after the largest number of calls for which there are `enough` of them.

    Examples
    --------
    >>> observed = [Observation({}, 1, 0.1), Observation({}, 1, 0.2), Observation({}, 3, 0.9)]
    >>> [one.score for one in comparable(observed, enough=2)]
    [0.1, 0.2]
    """
    by_calls: defaultdict[int, list[Observation]] = defaultdict(list)
    for one in observed:
        if not math.isnan(one.score):
            by_calls[one.calls].append(one)
    enough_calls = [calls for calls, scores in by_calls.items() if len(scores) >= enough]
    return by_calls[max(enough_calls)] if enough_calls else []


def _position(choices: Sequence[Any], value: Any) -> int:
    return next(i for i, choice in enumerate(choices) if choice is value or choice == value)
