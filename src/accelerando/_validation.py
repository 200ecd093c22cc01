"""Checks of parameters, and the conversion of what a user passes into a piece.

Every check raises the same sentence: which parameter of which object, what is allowed, and what
came instead. A *piece* is a policy, a strategy, a codec: a dataclass that a user passes as a class
with ``parameter__setting`` arguments, as an instance, or in a short form such as a number.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def is_integer(value: Any, minimum: int | None = None) -> bool:
    """Return True if `value` is an integer (not a Boolean) and at least `minimum`.

    Examples
    --------
    >>> [is_integer(value, 1) for value in (3, 0, True, 2.0, "3")]
    [True, False, False, False, False]
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return False
    return minimum is None or bool(value >= minimum)


def is_number(value: Any) -> bool:
    """Return True if `value` is a real number, NumPy's included, and neither Boolean nor nan."""
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        return False
    return getattr(value, "ndim", 0) == 0 and not math.isnan(float(value))


def parameter_error(owner: object, name: str, allowed: str, value: object) -> ValueError:
    """Return the error for a parameter with a value that is not allowed.

    Parameters
    ----------
    owner : object, class or str
        What the parameter belongs to.
    name : str
        The parameter.
    allowed : str
        What may be passed, as the end of the sentence "must be ...".
    value : object
        What was passed.

    Examples
    --------
    >>> print(parameter_error("GeoDamp", "delay", "an integer of at least 1", 0))
    The 'delay' parameter of GeoDamp must be an integer of at least 1. Got 0 instead.
    """
    return ValueError(
        f"The '{name}' parameter of {_name_of(owner)} must be {allowed}. Got {value!r} instead."
    )


def check(holds: bool, owner: object, name: str, allowed: str, value: object) -> None:
    """Raise :func:`parameter_error` unless `holds`."""
    if not holds:
        raise parameter_error(owner, name, allowed, value)


def check_integer(
    owner: object,
    name: str,
    value: Any,
    *,
    minimum: int = 1,
    also: Mapping[Any, str] | None = None,
) -> None:
    """Raise unless `value` is an integer of at least `minimum`, or one of the values in `also`.

    Parameters
    ----------
    owner, name, value
        See :func:`parameter_error`.
    minimum : int
        The smallest integer that is allowed.
    also : mapping, optional
        Further values that are allowed, each with how the message shows it.

    Examples
    --------
    >>> check_integer("NeuralNet", "max_workers", 0, also={None: "None (all workers)"})
    Traceback (most recent call last):
        ...
    ValueError: The 'max_workers' parameter of NeuralNet must be an integer of at least 1 or None \
(all workers). Got 0 instead.
    """
    if _is_one_of(value, also) or is_integer(value, minimum):
        return
    raise parameter_error(owner, name, _or(f"an integer of at least {minimum}", also), value)


def check_number(
    owner: object,
    name: str,
    value: Any,
    *,
    above: float | None = None,
    minimum: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
    also: Mapping[Any, str] | None = None,
) -> None:
    """Raise unless `value` is a finite number within the bounds, or one of the values in `also`.

    Parameters
    ----------
    owner, name, value
        See :func:`parameter_error`.
    above, below : float, optional
        Bounds that are not themselves allowed.
    minimum, maximum : float, optional
        Bounds that are allowed.
    also : mapping, optional
        Further values that are allowed, each with how the message shows it.

    Examples
    --------
    >>> check_number("TopK", "fraction", 0.0, above=0, maximum=1)
    Traceback (most recent call last):
        ...
    ValueError: The 'fraction' parameter of TopK must be a number above 0 and at most 1. Got 0.0 \
instead.
    """
    if _is_one_of(value, also):
        return
    if is_number(value) and math.isfinite(value):
        inside = (
            (above is None or value > above)
            and (minimum is None or value >= minimum)
            and (below is None or value < below)
            and (maximum is None or value <= maximum)
        )
        if inside:
            return
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (
            ("above", above),
            ("at least", minimum),
            ("below", below),
            ("at most", maximum),
        )
        if bound is not None
    ]
    of = "of " if minimum is not None else ""
    allowed = f"a number {of}{' and '.join(bounds)}" if bounds else "a number"
    raise parameter_error(owner, name, _or(allowed, also), value)


def check_choice(owner: object, name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise unless `value` is one of the choices.

    Examples
    --------
    >>> check_choice("NeuralNet", "data", "split", ("replicate", "shard"))
    Traceback (most recent call last):
        ...
    ValueError: The 'data' parameter of NeuralNet must be 'replicate' or 'shard'. Got 'split' \
instead.
    """
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise parameter_error(owner, name, _listed([repr(choice) for choice in choices]), value)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that proposes the closest known name; empty if none is close.

    Examples
    --------
    >>> did_you_mean("batchsize", ["batch_size", "lr"])
    "Did you mean 'batch_size'?"
    """
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {found[0]!r}?" if found else ""


def as_piece(
    parameter: str,
    given: Any,
    kind: type[T],
    *,
    settings: Mapping[str, Any] | None = None,
    convert: Callable[[Any], T | None] = lambda given: None,
    allowed: str,
) -> T:
    """Return the piece that a user's argument and its ``parameter__setting`` arguments describe.

    Parameters
    ----------
    parameter : str
        The name of the argument, for messages: ``"sync"``, ``"compression"``, ``"batch_size"``.
    given : object
        A class of pieces, a piece, or anything that `convert` understands.
    kind : type
        The base class of the pieces.
    settings : mapping, optional
        The ``parameter__setting`` arguments, without the prefix.
    convert : callable, optional
        Turns a short form (a number, a function, None) into a piece; returns None if it cannot.
    allowed : str
        What may be passed, as the end of the sentence "must be ...".

    Examples
    --------
    >>> from accelerando.sync import PeriodicAveraging, Strategy
    >>> as_piece("sync", PeriodicAveraging, Strategy, settings={"period": 8}, allowed="a strategy")
    PeriodicAveraging(period=8, optimizer_state='keep')
    """
    settings = dict(settings or {})
    if isinstance(given, type) and issubclass(given, kind):
        _check_settings(parameter, given, settings)
        try:
            return given(**settings)
        except TypeError as error:
            raise ValueError(
                f"{parameter}={given.__name__} needs more {parameter}__x parameters: {error}."
            ) from error
    if isinstance(given, kind):
        if not settings:
            return given
        _check_settings(parameter, type(given), settings)
        return dataclasses.replace(given, **settings)  # type: ignore[type-var]
    if settings:
        names = sorted(f"{parameter}__{name}" for name in settings)
        raise ValueError(
            f"Parameters {names} set the settings of a piece, but {parameter}={given!r}. Pass a "
            f"class or an instance as {parameter}."
        )
    piece = convert(given)
    if piece is None:
        hint = ""
        if isinstance(given, type):
            hint = f" {given.__name__} is a class of another kind."
        raise TypeError(
            f"The '{parameter}' parameter must be {allowed}. Got {given!r} instead.{hint}"
        )
    return piece


def _check_settings(parameter: str, kind: type[Any], settings: Mapping[str, Any]) -> None:
    fields = [f.name for f in dataclasses.fields(kind) if f.init] if settings else []
    for name in sorted(set(settings) - set(fields)):
        known = ", ".join(f"{parameter}__{field}" for field in fields) or "none"
        raise ValueError(
            " ".join(
                filter(
                    None,
                    (
                        f"{kind.__name__} has no parameter {name!r}.",
                        did_you_mean(name, fields),
                        f"Its parameters: {known}.",
                    ),
                )
            )
        )


def _name_of(owner: object) -> str:
    if isinstance(owner, str):
        return owner
    return owner.__name__ if isinstance(owner, type) else type(owner).__name__


def _is_one_of(value: Any, also: Mapping[Any, str] | None) -> bool:
    return any(
        value is other or (type(value) is type(other) and value == other) for other in also or ()
    )


def _or(first: str, also: Mapping[Any, str] | None) -> str:
    return _listed([first, *(also or {}).values()])


def _listed(words: Sequence[str]) -> str:
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} or {words[-1]}"
