"""Identity of a search: what must be equal before a search continues from a checkpoint.

A fingerprint depends on content only, so that it is the same in another process. Data and objects
that are too long to show are represented by their kind and a hash.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import dask
import numpy as np
from dask.base import tokenize

from accelerando.search._code import is_users_class, pieces_of_class, pieces_of_function

__all__ = ["differences", "fingerprint", "search_identity"]

LONGEST = 60  # characters of a value that are shown in full

# Parameters of a search that change neither its scores nor which models continue.
WITHOUT_INFLUENCE = frozenset(
    (
        "checkpoint", "client", "cv", "estimator", "log", "max_call_seconds", "max_calls",
        "max_seconds", "max_time", "n_jobs", "parameters", "predict_meta", "predict_proba_meta",
        "prefix", "priority", "refit_all", "slice_seconds", "target_score", "transform_meta",
        "verbose",
    )
)  # fmt: skip


def search_identity(
    search: Any,
    X: Any,
    y: Any,
    groups: Any,
    fit_params: Mapping[str, Any],
    plan: Any,
    splits: Any = None,
) -> dict[str, str]:
    """Return what identifies a search, by name.

    Parameters
    ----------
    search : search
        All of its parameters count, unless they are in ``WITHOUT_INFLUENCE``.
    X, y, groups : array-like or Dask collection
        The data. A Dask collection is represented by its token.
    fit_params : mapping
        Parameters of ``partial_fit``.
    plan : object
        The brackets of the search.
    splits : list, optional
        The rows of each fold, which count in place of ``cv``.
    """
    parts: dict[str, Any] = {"X": X, "y": y, "groups": groups}
    if splits is not None:
        parts["splits of cv"] = splits
    parts |= {f"fit parameter {name!r}": value for name, value in fit_params.items()}
    estimator = search.estimator
    parts |= {"search": type(search), "plan": plan, "estimator": _kind(estimator)}
    if is_users_class(type(estimator)):
        parts["code of the estimator"] = type(estimator)
    parts |= {
        f"estimator parameter {name!r}": value
        for name, value in estimator.get_params(deep=False).items()
    }
    spaces = [search.parameters] if isinstance(search.parameters, Mapping) else search.parameters
    for i, space in enumerate(spaces):
        where = "" if len(spaces) == 1 else f" of space {i}"
        parts |= {f"parameters[{name!r}]{where}": values for name, values in space.items()}
    own = search.get_params(deep=False).items()
    parts |= {name: value for name, value in own if name not in WITHOUT_INFLUENCE}
    return {name: fingerprint(value) for name, value in parts.items()}


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return one phrase for each entry that differs.

    Examples
    --------
    >>> differences({"tol": "0.1", "X": "ndarray a1"}, {"tol": "0.2", "X": "ndarray a1"})
    ['tol: saved 0.1, now 0.2']
    """
    return [
        f"{name}: saved {saved.get(name, 'nothing')}, now {now.get(name, 'nothing')}"
        for name in sorted({*saved, *now})
        if saved.get(name) != now.get(name)
    ]


def fingerprint(value: Any) -> str:
    """Return a text that is equal for equal values and, in practice, for no others.

    Examples
    --------
    >>> fingerprint(0.5), fingerprint("l2"), fingerprint([1, None])
    ('0.5', "'l2'", '[1, None]')
    >>> fingerprint(np.zeros(3)) == fingerprint(np.zeros(3)) != fingerprint(np.ones(3))
    True
    """
    if isinstance(value, (type(None), bool, int, float, str, bytes, list, tuple)):
        shown = repr(value)
        if len(shown) <= LONGEST and _is_plain(value):
            return shown
    digest = hashlib.blake2b(digest_size=8)
    for piece in _pieces(value, frozenset(), set()):
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return f"{type(value).__name__} {digest.hexdigest()}"


def _is_plain(value: Any, depth: int = 4) -> bool:
    if isinstance(value, (list, tuple)):
        return depth > 0 and all(_is_plain(part, depth - 1) for part in value)
    return type(value) in (type(None), bool, int, float, str, bytes)


def _kind(value: Any) -> str:
    cls = type(value)
    return f"{cls.__module__}.{cls.__qualname__}"


def _pieces(value: Any, above: frozenset[int], known: set[Any]) -> Iterator[Any]:
    """Yield bytes that together represent `value`.

    `above` holds the objects around it, and `known` the functions and classes that are done: they
    may refer to each other in any way.
    """
    yield _kind(value).encode()
    if id(value) in above:
        return  # an object that contains itself
    inside = above | {id(value)}

    def nested(parts: Iterable[Any]) -> Iterator[Any]:
        for part in parts:
            yield from _pieces(part, inside, known)

    if value is None or isinstance(value, (bool, int, float, complex, str, np.generic)):
        yield repr(value).encode()
    elif isinstance(value, (bytes, bytearray, memoryview)):
        yield value
    elif dask.is_dask_collection(value):
        yield tokenize(value).encode()
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        yield repr(value.shape).encode()
        yield from nested(value.ravel().tolist())
    elif isinstance(value, np.ma.MaskedArray):
        yield from nested((value.filled(), np.ma.getmaskarray(value)))
    elif isinstance(value, np.ndarray):
        yield repr((value.shape, value.dtype)).encode()
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data if value.nbytes else b""
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from nested((key, value[key]))
    elif isinstance(value, (list, tuple, range)):
        yield repr(len(value)).encode()
        yield from nested(value)
    elif isinstance(value, AbstractSet):
        yield from sorted(fingerprint(one).encode() for one in value)
    elif isinstance(value, (type, types.FunctionType)):
        if value in known:
            yield f"{value.__module__}.{value.__qualname__}".encode()
            return
        known.add(value)
        if isinstance(value, type):
            yield from pieces_of_class(value, nested)
        else:
            yield from pieces_of_function(value, nested)
    else:
        if is_users_class(type(value)):
            yield from nested((type(value),))
        yield from _pieces_of_object(value, nested)


def _pieces_of_object(value: Any, nested: Any) -> Iterator[Any]:
    if isinstance(value, types.MethodType):
        yield from nested((value.__self__, value.__func__))
    elif isinstance(value, functools.partial):
        yield from nested((value.func, value.args, value.keywords))
    elif isinstance(value, (types.BuiltinFunctionType, types.ModuleType)):
        yield repr(getattr(value, "__qualname__", value.__name__)).encode()
    elif isinstance(value, types.CodeType):
        yield value.co_code
        yield from nested((value.co_consts, value.co_names))
    elif isinstance(value, np.random.RandomState):
        yield from nested(value.get_state(legacy=True))
    elif isinstance(value, np.random.Generator):
        yield from nested((value.bit_generator.state,))
    elif hasattr(value, "iloc") and hasattr(value, "index"):  # a frame or series of pandas
        names = list(value.columns) if value.ndim == 2 else [value.name]
        yield from nested((names, np.asarray(value.index)))
        columns = [value.iloc[:, i] for i in range(len(names))] if value.ndim == 2 else [value]
        yield from nested(np.asarray(column) for column in columns)
    elif hasattr(value, "tocsr") and hasattr(value, "shape"):
        rows = value.tocsr()
        yield from nested((rows.shape, rows.data, rows.indices, rows.indptr))
    elif hasattr(value, "detach") and hasattr(value, "cpu"):  # a tensor of PyTorch
        yield from nested((np.asarray(value.detach().cpu()),))
    elif _holds_connection(value):
        return
    elif hasattr(value, "rvs") and hasattr(value, "dist"):  # a frozen distribution of scipy
        yield from nested((type(value.dist), value.dist.name, value.args, value.kwds))
    elif hasattr(value, "get_params") and not _is_pipeline(value):
        yield from nested((value.get_params(deep=False),))
    elif (own := _attributes(value)) or is_users_class(type(value)):
        # Random generators inside advance while they are used, and caches fill.
        yield from nested(({k: v for k, v in own.items() if not k.startswith("__")},))
    else:
        yield tokenize(value).encode()


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in ``__slots__`` of users' classes included."""
    own = dict(getattr(value, "__dict__", {}))
    for cls in filter(is_users_class, type(value).__mro__):
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                own.setdefault(name, getattr(value, name))
    return own


def _holds_connection(value: Any) -> bool:
    from distributed import Client

    return isinstance(value, Client)


def _is_pipeline(value: Any) -> bool:
    return hasattr(value, "steps") and hasattr(value, "named_steps")
