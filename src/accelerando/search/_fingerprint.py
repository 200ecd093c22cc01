"""Fingerprints: short texts that are equal for equal values, also in another process.

Data and parameters count with all that they hold. A value that functions read from elsewhere, such
as a global one, counts too, but there loggers, locks, generators and the like are left out: their
content is never the same in another process.
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import random
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import dask
import numpy as np
from dask.base import tokenize
from scipy.stats import rv_continuous, rv_discrete

from accelerando.search._code import is_users_class, pieces_of_class, pieces_of_function

__all__ = ["attributes_of", "fingerprint"]

LONGEST = 60  # characters of a value that are shown in full
GENERATORS = (np.random.RandomState, np.random.Generator, random.Random)
TRANSIENT = (  # their content, if they have any, is another one in every process
    logging.Logger, logging.Handler, io.IOBase, threading.Thread, types.GeneratorType,
    type(threading.Lock()), type(threading.RLock()), threading.Event, threading.Condition,
    threading.local, *GENERATORS,
)  # fmt: skip


def fingerprint(value: Any) -> str:
    """Return a text that is equal for equal values and, in practice, for no others.

    Examples
    --------
    >>> fingerprint(0.5), fingerprint("l2"), fingerprint([1, None])
    ('0.5', "'l2'", '[1, None]')
    >>> fingerprint(np.zeros(3)) == fingerprint(np.zeros(3)) != fingerprint(np.ones(3))
    True
    """
    if _is_plain(value) and len(shown := repr(value)) <= LONGEST:
        return shown
    digest = hashlib.blake2b(digest_size=8)
    for piece in _Pieces().of(value):
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return f"{type(value).__name__} {digest.hexdigest()}"


def _is_plain(value: Any, depth: int = 4) -> bool:
    if type(value) in (list, tuple) and len(value) <= LONGEST:
        return depth > 0 and all(_is_plain(part, depth - 1) for part in value)
    return type(value) in (type(None), bool, int, float, str, bytes)


class _Pieces:
    """Turns values into bytes that together represent them."""

    def __init__(self) -> None:
        self.above: set[int] = set()  # the objects around the one that is represented
        self.code: set[Any] = set()  # functions and classes that are done; they may be recursive
        self.read: dict[int, Any] = {}  # objects that are done, among those that functions read
        self.in_code = False  # what functions and classes read is represented

    def of(self, value: Any) -> Iterator[Any]:
        """Yield bytes that together represent `value`."""
        cls = type(value)
        yield f"{cls.__module__}.{cls.__qualname__}".encode()
        if id(value) in self.above:
            return  # an object that contains itself
        self.above.add(id(value))
        try:
            yield from self._of_content(value)
        finally:
            self.above.discard(id(value))

    def of_all(self, parts: Iterable[Any]) -> Iterator[Any]:
        for part in parts:
            yield from self.of(part)

    def read_by_code(self, parts: Iterable[Any]) -> Iterator[Any]:
        """Yield bytes for values that a function or a class reads."""
        before, self.in_code = self.in_code, True
        try:
            yield from self.of_all(parts)
        finally:
            self.in_code = before

    def _of_content(self, value: Any) -> Iterator[Any]:
        if value is None or isinstance(value, (bool, int, float, complex, str, np.generic)):
            yield repr(value).encode()
        elif isinstance(value, (bytes, bytearray, memoryview)):
            yield value
        elif isinstance(value, (type, types.FunctionType)):
            yield from self._of_code(value)
        elif dask.is_dask_collection(value):
            yield tokenize(value).encode()
        elif isinstance(value, np.ndarray):
            yield from self._of_array(value)
        elif isinstance(value, Mapping):
            for key in sorted(value, key=fingerprint):
                yield from self.of_all((key, value[key]))
        elif isinstance(value, (list, tuple, range)):
            yield repr(len(value)).encode()
            yield from self.of_all(value)
        elif isinstance(value, AbstractSet):
            yield from sorted(fingerprint(one).encode() for one in value)
        else:
            yield from self._of_object(value)
            return
        if is_users_class(type(value)):  # such as a list with more methods and attributes
            yield from self.read_by_code((type(value),))
            yield from self.of(attributes_of(value))

    def _of_code(self, value: Any) -> Iterator[Any]:
        if value in self.code:
            yield f"{value.__module__}.{value.__qualname__}".encode()
            return
        self.code.add(value)
        if isinstance(value, type):
            yield from pieces_of_class(value, self.read_by_code)
        else:
            yield from pieces_of_function(value, self.of_all, self.read_by_code)

    def _of_array(self, value: np.ndarray[Any, Any]) -> Iterator[Any]:
        if isinstance(value, np.ma.MaskedArray):
            yield from self.of_all((value.filled(), np.ma.getmaskarray(value)))
        elif value.dtype.hasobject:
            yield repr((value.shape, value.dtype)).encode()
            yield from self.of_all(value.ravel().tolist())
        else:
            yield repr((value.shape, value.dtype)).encode()
            flat = np.ascontiguousarray(value).reshape(-1)
            yield flat.view(np.uint8).data if value.nbytes else b""

    def _of_object(self, value: Any) -> Iterator[Any]:
        if self.in_code:
            if isinstance(value, TRANSIENT) or id(value) in self.read:
                return
            self.read[id(value)] = value
        if is_users_class(type(value)):
            yield from self.read_by_code((type(value),))
        if isinstance(value, types.MethodType):
            yield from self.of_all((value.__self__, value.__func__))
        elif isinstance(value, functools.partial):
            yield from self.of_all((value.func, value.args, value.keywords))
        elif isinstance(value, types.BuiltinFunctionType):
            yield repr(value.__qualname__).encode()
            if not isinstance(value.__self__, types.ModuleType):
                yield from self.of(value.__self__)  # such as the dict of a dict's method
        elif isinstance(value, (types.ModuleType, logging.Logger)):
            yield value.__name__.encode() if hasattr(value, "__name__") else value.name.encode()
        elif isinstance(value, np.ufunc):
            yield repr(value).encode()
        elif isinstance(value, types.CodeType):
            yield value.co_code
            yield value.co_exceptiontable
            arguments = (value.co_argcount, value.co_kwonlyargcount, value.co_flags)
            yield from self.of_all((value.co_consts, value.co_names, value.co_varnames, arguments))
        elif isinstance(value, np.random.RandomState):
            yield from self.of(value.get_state(legacy=True))
        elif isinstance(value, np.random.Generator):
            yield from self.of(value.bit_generator.state)
        elif (pieces := self._of_data(value)) is not None:
            yield from pieces
        elif _holds_connection(value):
            return
        elif hasattr(value, "__wrapped__"):  # such as a function with functools.lru_cache
            yield from self.of_all((value.__wrapped__, attributes_of(value)))
        elif hasattr(value, "rvs"):
            yield from self._of_distribution(value)
        elif hasattr(value, "get_params"):
            # Attributes, too: an earlier step of a pipeline is fitted.
            yield from self.of_all((value.get_params(deep=False), attributes_of(value)))
        elif (own := attributes_of(value)) or is_users_class(type(value)):
            yield from self.of(own)
        else:
            yield self._token(value)

    def _of_data(self, value: Any) -> Iterator[Any] | None:
        """Return the pieces of a table, a sparse array or a tensor; None for other objects."""
        if hasattr(value, "iloc") and hasattr(value, "index"):  # a frame or series of pandas
            series = [value.iloc[:, i] for i in range(value.shape[1])] if value.ndim == 2 else None
            names = list(value.columns) if series is not None else [value.name]
            columns = [value.array] if series is None else [one.array for one in series]
            return self.of_all((names, value.index, *columns))
        if hasattr(value, "tocsr") and hasattr(value, "shape"):
            rows = value.tocsr()
            return self.of_all((rows.shape, rows.data, rows.indices, rows.indptr))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._of_tensor(value.detach(), torch)
        if torch is not None and isinstance(value, torch.Generator):
            return self.of(value.get_state())
        if hasattr(value, "__array__") and hasattr(value, "dtype") and hasattr(value, "shape"):
            # Part of a frame, or of another library: categories are a part of the type.
            kind = [getattr(value.dtype, name, None) for name in ("categories", "ordered")]
            return self.of_all((str(value.dtype), *kind, np.asarray(value)))
        return None

    def _of_tensor(self, value: Any, torch: Any) -> Iterator[Any]:
        yield repr((value.dtype, value.layout, tuple(value.shape))).encode()
        if value.layout != torch.strided:
            rows = value.to_sparse_coo().coalesce()
            yield from self.of_all((rows.indices(), rows.values()))
        else:
            flat = value.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            yield from self.of(flat.view(torch.uint8).numpy())

    def _of_distribution(self, value: Any) -> Iterator[Any]:
        """Yield the pieces of something to draw from. The search passes the generator."""
        if hasattr(value, "dist"):  # frozen, by scipy
            yield from self.of_all((value.dist, value.args, value.kwds))
            return
        own = attributes_of(value)
        if isinstance(value, (rv_continuous, rv_discrete)):  # without methods and caches
            state = value.__getstate__()
            own = state[0] if isinstance(state, tuple) else state
        yield from self.of(
            {name: one for name, one in own.items() if not isinstance(one, GENERATORS)}
        )

    def _token(self, value: Any) -> bytes:
        if not self.in_code:
            return str(tokenize(value)).encode()  # another one each time if nothing is known
        try:
            with dask.config.set({"tokenize.ensure-deterministic": True}):
                return str(tokenize(value)).encode()
        except Exception:
            return b""


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in ``__slots__`` of users' classes included."""
    own = {k: v for k, v in getattr(value, "__dict__", {}).items() if not k.startswith("__")}
    for cls in filter(is_users_class, type(value).__mro__):
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                own.setdefault(name, getattr(value, name))
    return own


def _holds_connection(value: Any) -> bool:
    from distributed import Client

    return isinstance(value, Client)
