"""Random search and grid search of models that are trained in steps."""

from __future__ import annotations

from typing import Any

from accelerando._validation import check_integer
from accelerando.search._base import BaseSearchCV
from accelerando.search._bracket_run import BracketRun
from accelerando.search._halving import train_all
from accelerando.search._parameters import search_class
from accelerando.search._plan import Bracket, Rung
from accelerando.search._sample import GridSampler, Sampler, check_space

__all__ = ["RandomIncrementalSearchCV"]


@search_class
class RandomIncrementalSearchCV(BaseSearchCV):
    """Random or grid search: every model gets ``max_iter`` calls unless patience stops it.

    Parameters
    ----------
    n_initial_parameters : int or "grid", default=10
        Number of models, or "grid" for all combinations of lists.
    fits_per_score : int, default=1
        Calls between scores.
    max_iter : int, default=100
        Calls of each model.

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> search = RandomIncrementalSearchCV(
    ...     SGDClassifier(), {"alpha": [1e-4, 1e-2], "penalty": ["l1", "l2"]}, "grid", max_iter=5
    ... )
    >>> search.metadata["n_models"], search.metadata["partial_fit_calls"]
    (4, 20)
    """

    n_initial_parameters: int | str = 10
    test_size: float | int | None = None
    patience: bool | int = False
    tol: float = 1e-3
    fits_per_score: int = 1
    max_iter: int = 100
    random_state: Any = None
    scoring: Any = None
    verbose: bool | float = False
    prefix: str = ""
    predict_meta: Any = None
    predict_proba_meta: Any = None
    transform_meta: Any = None

    @property
    def _is_grid(self) -> bool:
        return isinstance(self.n_initial_parameters, str) and self.n_initial_parameters == "grid"

    def _brackets(self) -> tuple[Bracket, ...]:
        check_integer(self, "max_iter", self.max_iter)
        check_integer(self, "fits_per_score", self.fits_per_score)
        n_models = self.n_initial_parameters
        check_integer(self, "n_initial_parameters", n_models, also={"grid": "'grid'"})
        if self._is_grid:
            n_models = len(GridSampler(self._lists()))
        return (Bracket(0, (Rung(int(n_models), self.max_iter),)),)

    def _lists(self) -> list[Any]:
        spaces = check_space(self.parameters)
        for space in spaces:
            for name, values in space.items():
                if hasattr(values, "rvs"):
                    raise ValueError(
                        f"parameters[{name!r}] is a distribution, which has no grid. Pass a list, "
                        "or an integer as n_initial_parameters."
                    )
        return spaces

    def _sampler(self, seed: int) -> Sampler:
        return GridSampler(self._lists()) if self._is_grid else super()._sampler(seed)

    def _bracket_runs(self) -> list[BracketRun]:
        (bracket,) = self._brackets()
        return [BracketRun(bracket, train_all(bracket.n_models, bracket.max_calls))]

    def _score_every(self, patience: int | None) -> int | None:
        return self.fits_per_score
