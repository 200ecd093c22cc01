"""Plan of a search: brackets and rungs, computed with integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accelerando._validation import check_integer, check_number

__all__ = ["Bracket", "Rung", "halving_bracket", "hyperband_brackets", "hyperband_inputs"]


@dataclass(frozen=True)
class Rung:
    """A step of successive halving: ``n_models`` models reach ``calls`` calls each."""

    n_models: int
    calls: int


@dataclass(frozen=True)
class Bracket:
    """One run of successive halving: from rung to rung fewer models get more calls."""

    index: int
    rungs: tuple[Rung, ...]

    @property
    def n_models(self) -> int:
        """Number of models that the bracket starts."""
        return self.rungs[0].n_models

    @property
    def max_calls(self) -> int:
        """Calls of the last survivors: the critical path of the bracket."""
        return self.rungs[-1].calls

    @property
    def partial_fit_calls(self) -> int:
        """Calls of all models of the bracket."""
        done = 0
        total = 0
        for rung in self.rungs:
            total += rung.n_models * (rung.calls - done)
            done = rung.calls
        return total

    @property
    def metadata(self) -> dict[str, Any]:
        """The bracket as a dict with the keys of Dask-ML."""
        return {
            "bracket": self.index,
            "n_models": self.n_models,
            "partial_fit_calls": self.partial_fit_calls,
            "decisions": [rung.calls for rung in self.rungs],
        }


def floor_log(value: int, base: int) -> int:
    """Return the largest k with base**k <= value.

    A float logarithm gives 4.999… for ``log(243, 3)``, and its floor would lose a bracket.
    """
    exponent = 0
    while base ** (exponent + 1) <= value:
        exponent += 1
    return exponent


def hyperband_brackets(
    max_iter: int, aggressiveness: int = 3, *, owner: str = "HyperbandSearchCV"
) -> tuple[Bracket, ...]:
    r"""Return the brackets of Hyperband (Algorithm 1 of Li et al.), the most aggressive one first.

    With :math:`R` = ``max_iter``, :math:`\eta` = ``aggressiveness`` and
    :math:`s_{\max} = \lfloor \log_\eta R \rfloor`, bracket :math:`s` starts

    .. math:: n = \left\lceil \frac{s_{\max} + 1}{s + 1}\, \eta^s \right\rceil

    models, and its rung :math:`i` has :math:`\lfloor n \eta^{-i} \rfloor` models with
    :math:`\lfloor R \eta^{i - s} \rfloor` calls each.

    Parameters
    ----------
    max_iter : int
        Calls of the longest-trained models.
    aggressiveness : int
        One in `aggressiveness` models survives a rung.
    owner : str
        The class or function that the parameters belong to, for error messages.

    References
    ----------
    L. Li, K. Jamieson, G. DeSalvo, A. Rostamizadeh and A. Talwalkar. Hyperband: a novel
    bandit-based approach to hyperparameter optimization. JMLR 18(185), 2018.

    Examples
    --------
    >>> [(b.n_models, b.rungs[0].calls) for b in hyperband_brackets(243)]
    [(243, 1), (98, 3), (41, 9), (18, 27), (9, 81), (6, 243)]
    """
    check_integer(owner, "max_iter", max_iter)
    check_integer(owner, "aggressiveness", aggressiveness, minimum=2)
    eta = aggressiveness
    s_max = floor_log(max_iter, eta)
    brackets = []
    for s in range(s_max, -1, -1):
        n_models = _ceil_div((s_max + 1) * eta**s, s + 1)
        rungs = tuple(Rung(n_models // eta**i, max_iter // eta ** (s - i)) for i in range(s + 1))
        brackets.append(Bracket(s, rungs))
    return tuple(brackets)


def halving_bracket(
    n_models: int,
    n_initial_calls: int | None = None,
    aggressiveness: int = 3,
    max_iter: int | None = None,
    *,
    owner: str = "SuccessiveHalvingSearchCV",
) -> Bracket:
    """Return a bracket of successive halving.

    Rung i has ``n_models // eta**i`` models, and each rung has eta = `aggressiveness` times the
    calls of the previous one.

    Parameters
    ----------
    n_models : int
        Models of the first rung.
    n_initial_calls : int, optional
        Calls of the first rung. By default the last survivor reaches `max_iter`; without
        `max_iter` it is 1.
    aggressiveness : int
        One in `aggressiveness` models survives a rung.
    max_iter : int, optional
        The bracket ends with one survivor, or at this number of calls.
    owner : str
        The class that the parameters belong to, for error messages.

    References
    ----------
    K. Jamieson and A. Talwalkar. Non-stochastic best arm identification and hyperparameter
    optimization. AISTATS 2016.

    Examples
    --------
    >>> halving_bracket(9, 1).rungs
    (Rung(n_models=9, calls=1), Rung(n_models=3, calls=3), Rung(n_models=1, calls=9))
    """
    check_integer(owner, "n_initial_parameters", n_models)
    check_integer(owner, "aggressiveness", aggressiveness, minimum=2)
    check_integer(owner, "max_iter", max_iter, also={None: "None"})
    check_integer(owner, "n_initial_iter", n_initial_calls, also={None: "None"})
    eta = aggressiveness
    halvings = floor_log(n_models, eta)
    if n_initial_calls is None:
        n_initial_calls = 1 if max_iter is None else max(1, max_iter // eta**halvings)
    rungs: list[Rung] = []
    for i in range(halvings + 1):
        calls = n_initial_calls * eta**i
        if max_iter is not None:
            calls = min(calls, max_iter)
        rungs.append(Rung(n_models // eta**i, calls))
        if calls == max_iter:
            break
    return Bracket(0, tuple(rungs))


def inverse_decay_bracket(
    n_models: int, decay_rate: float, fits_per_score: int, max_iter: int
) -> Bracket:
    """Return a bracket in which the number of models decays with the number of calls.

    After k calls about ``n_models / (k + 1) ** decay_rate`` models remain, as in Dask-ML. The
    bracket ends when one model would remain.

    Examples
    --------
    >>> inverse_decay_bracket(12, 1.0, 1, 100).rungs
    (Rung(n_models=12, calls=1), Rung(n_models=3, calls=2), Rung(n_models=2, calls=3))
    """

    def remaining(calls: int) -> int:
        return int(n_models / (1 + calls) ** decay_rate)

    rungs = [Rung(n_models, 1)]
    calls = 1
    while calls < max_iter:
        now = following = calls + 1
        while following - now < fits_per_score or (
            decay_rate > 0 and remaining(now) == remaining(following) > 0
        ):
            following += 1
        target = max(1, remaining(following))
        if target == 1 and decay_rate > 0:
            break
        calls = min(max_iter, calls + following - now)
        rungs.append(Rung(target, calls))
    return Bracket(0, tuple(rungs))


def total(brackets: tuple[Bracket, ...]) -> dict[str, Any]:
    """Return the metadata of several brackets, sorted by index."""
    listed = sorted(brackets, key=lambda bracket: bracket.index)
    return {
        "partial_fit_calls": sum(bracket.partial_fit_calls for bracket in listed),
        "n_models": sum(bracket.n_models for bracket in listed),
        "brackets": [bracket.metadata for bracket in listed],
    }


def hyperband_inputs(
    *,
    n_params: int,
    n_examples: int,
    epochs: float,
    aggressiveness: int = 3,
    seconds_per_example: float | None = None,
) -> dict[str, Any]:
    r"""Return inputs for Hyperband by a rule of thumb, and their cost.

    The longest-trained model should see :math:`epochs \cdot n\_examples` examples, and the search
    should try about `n_params` combinations. Then (dissertation, §2.4.2)

    .. math:: max\_iter = n\_params, \qquad chunk\_size = epochs \cdot n\_examples / n\_params

    To try twice as many combinations at the same cost, double ``max_iter`` and halve
    ``chunk_size``.

    Parameters
    ----------
    n_params : int
        Approximate number of combinations of parameters to try.
    n_examples : int
        Rows of the training data.
    epochs : float
        Passes of the longest-trained model through the data.
    aggressiveness : int
        As for :class:`HyperbandSearchCV`.
    seconds_per_example : float, optional
        Training time of one example, needed for ``worker_seconds``.

    Returns
    -------
    dict
        ``max_iter`` and ``chunk_size`` are parameters of the search. ``n_models`` and
        ``partial_fit_calls`` describe the plan. ``epochs_of_work`` is the number of passes through
        the data that all calls of all models amount to. ``repeats`` is 1 unless a chunk is larger
        than the data, so that rows are repeated. ``worker_seconds`` is the training time on one
        worker.

    Examples
    --------
    >>> cost = hyperband_inputs(n_params=299, n_examples=50_000, epochs=50, aggressiveness=4)
    >>> cost["max_iter"], cost["chunk_size"], cost["n_models"]
    (299, 8361, 378)
    """
    owner = "hyperband_inputs"
    check_integer(owner, "n_params", n_params)
    check_integer(owner, "n_examples", n_examples)
    check_number(owner, "epochs", epochs, above=0)
    check_number(owner, "seconds_per_example", seconds_per_example, above=0, also={None: "None"})
    chunk_size = max(1, int(epochs * n_examples / n_params))
    plan = total(hyperband_brackets(n_params, aggressiveness, owner=owner))
    cost: dict[str, Any] = {
        "max_iter": n_params,
        "chunk_size": chunk_size,
        "n_models": plan["n_models"],
        "partial_fit_calls": plan["partial_fit_calls"],
        "epochs_of_work": plan["partial_fit_calls"] * chunk_size / n_examples,
        "repeats": _ceil_div(chunk_size, n_examples),
    }
    if seconds_per_example is not None:
        cost["worker_seconds"] = plan["partial_fit_calls"] * chunk_size * seconds_per_example
    return cost


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
