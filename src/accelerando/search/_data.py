"""One validation split for all models, and training data in chunks: one chunk per call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import dask
import numpy as np
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.validation import _is_arraylike, _num_samples

__all__ = ["Chunk", "Data", "Source", "chunk_of_call", "split"]


class Chunk(NamedTuple):
    """Rows for one call: features, targets, and arguments that have a value per row."""

    X: Any
    y: Any
    params: dict[str, Any]


class Source:
    """Chunks that are placed on a worker together."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks

    def __sizeof__(self) -> int:
        # Dask moves and spills by size and cannot look into a class it does not know.
        return 64 + sum(nbytes(part) for chunk in self.chunks for part in (chunk.X, chunk.y))


@dataclass
class Data:
    """Training sources, where each chunk is, and the validation rows.

    ``sources`` and ``validation`` hold the values themselves, or Dask's lazy ones.
    """

    sources: list[Any]
    where: list[tuple[int, int]]  # chunk -> (source, position in it)
    validation: Any
    lazy: bool = False


def split(
    X: Any,
    y: Any,
    *,
    test_size: float | int | None,
    chunk_size: int | None,
    seed: int,
    groups: Any = None,
    fit_params: dict[str, Any],
) -> tuple[Data, dict[str, Any]]:
    """Split rows into chunks and validation; return also the arguments that are not per row."""
    if dask.is_dask_collection(X):
        if groups is not None:
            raise ValueError(
                "groups is supported for data in memory only, but X is a Dask collection. Put "
                "rows of a group into one block, or pass NumPy arrays."
            )
        if chunk_size is not None:
            raise ValueError(
                f"chunk_size={chunk_size!r} is for data in memory; the blocks of a Dask collection "
                "are its chunks. Call X.rechunk instead."
            )
        return _split_blocks(X, y, test_size, seed, fit_params)
    return _split_rows(
        X, y, groups, test_size=test_size, chunk_size=chunk_size, seed=seed, fit_params=fit_params
    )


def chunk_of_call(call: int, n_chunks: int, seed: int) -> int:
    """Return the chunk that every model sees in its ``call``-th call, counted from 0.

    All chunks come once per pass, in a new order each time; the order depends on the seed only.
    """
    return int(_pass_order(n_chunks, seed, call // n_chunks)[call % n_chunks])


@lru_cache(maxsize=256)
def _pass_order(n_chunks: int, seed: int, number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, number]).permutation(n_chunks)


def _split_rows(
    X: Any,
    y: Any,
    groups: Any,
    *,
    test_size: float | int | None,
    chunk_size: int | None,
    seed: int,
    fit_params: dict[str, Any],
) -> tuple[Data, dict[str, Any]]:
    X, y, groups = indexable(X, y, groups)
    n_rows = _num_samples(X)
    per_row, constant = _per_row(fit_params, n_rows)
    splitter = ShuffleSplit if groups is None else GroupShuffleSplit
    size = 0.2 if test_size is None else test_size
    train, test = next(splitter(1, test_size=size, random_state=seed).split(X, y, groups))
    pieces = [train]
    if chunk_size is not None:
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1 or None, got {chunk_size!r}.")
        if chunk_size > len(train):
            pieces = [np.resize(train, chunk_size)]  # rows are repeated, §2.4.2
        else:
            pieces = np.array_split(train, -(-len(train) // chunk_size))

    def rows(index: Any) -> Chunk:
        return Chunk(
            _safe_indexing(X, index),
            None if y is None else _safe_indexing(y, index),
            {name: _safe_indexing(value, index) for name, value in per_row.items()},
        )

    source = Source([rows(piece) for piece in pieces])
    return Data([source], [(0, i) for i in range(len(pieces))], rows(test)), constant


def _split_blocks(
    X: Any, y: Any, test_size: float | int | None, seed: int, fit_params: dict[str, Any]
) -> tuple[Data, dict[str, Any]]:
    X = _whole_rows(X)
    n_blocks = int(X.npartitions)
    aligned: dict[str, Any] = {}
    constant: dict[str, Any] = {}
    for name, value in fit_params.items():
        (aligned if dask.is_dask_collection(value) else constant)[name] = value
    known = hasattr(X, "chunks") and not np.isnan(sum(X.chunks[0]))
    if known:
        per_row, constant = _per_row(constant, sum(X.chunks[0]))
        aligned.update(per_row)
    elif "sample_weight" in constant:
        aligned["sample_weight"] = constant.pop("sample_weight")  # refused below, by its name
    if isinstance(test_size, int) and not known:
        raise ValueError(
            f"test_size={test_size} counts rows, but the blocks of X have unknown lengths. Pass a "
            "fraction, or (for a Dask array) call X.compute_chunk_sizes() first."
        )
    share = test_size if test_size is not None else min(0.2, 1 / n_blocks)
    if isinstance(share, int):
        share = share / sum(X.chunks[0])
    if not 0 < share < 1:
        raise ValueError(f"test_size must leave rows on both sides, got {test_size!r}.")
    names = list(aligned)
    columns = [_blocks(value, X, name) for name, value in aligned.items()]
    xs = _blocks(X, X, "X")
    ys = [None] * n_blocks if y is None else _blocks(y, X, "y")
    cut = dask.delayed(_cut_block, pure=False, nout=2)
    pairs = [
        cut(x, y_, dict(zip(names, values, strict=True)), share, [seed, i])
        for i, (x, y_, *values) in enumerate(zip(xs, ys, *columns, strict=True))
    ]
    sources = [pair[0] for pair in pairs]
    validation = dask.delayed(_join, pure=False)([pair[1] for pair in pairs])
    return Data(sources, [(i, 0) for i in range(n_blocks)], validation, lazy=True), constant


def _per_row(fit_params: dict[str, Any], n_rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    per_row: dict[str, Any] = {}
    constant: dict[str, Any] = {}
    for name, value in fit_params.items():
        aligned = name != "classes" and _is_arraylike(value) and _num_samples(value) == n_rows
        (per_row if aligned else constant)[name] = value
    return per_row, constant


def _whole_rows(X: Any) -> Any:
    if hasattr(X, "numblocks") and X.ndim > 1:
        return X.rechunk(dict.fromkeys(range(1, X.ndim), -1))
    return X


def _blocks(value: Any, like: Any, name: str) -> list[Any]:
    """Return one lazy piece of ``value`` per block of ``like``."""
    import dask.array as da

    if not dask.is_dask_collection(value):
        if not hasattr(like, "chunks") or np.isnan(sum(like.chunks[0])):
            raise ValueError(
                f"{name} must be a Dask collection with the blocks of X, got "
                f"{type(value).__name__}: the blocks of X have unknown lengths, so rows in memory "
                "cannot be cut to fit them."
            )
        value = da.from_array(np.asarray(value), chunks=(like.chunks[0], -1)[: np.ndim(value)])
    value = _whole_rows(value)
    if hasattr(value, "chunks") and hasattr(like, "chunks"):
        here, there = value.chunks[0], like.chunks[0]
        if here != there and not np.isnan(sum(here) + sum(there)) and sum(here) == sum(there):
            value = value.rechunk({0: there})
    if value.npartitions != like.npartitions:
        raise ValueError(
            f"{name} has {value.npartitions} blocks but X has {like.npartitions}; each block of X "
            f"needs its own block of {name} with as many rows."
        )
    return list(np.ravel(np.asarray(value.to_delayed(), dtype=object)))


def _cut_block(
    X: Any, y: Any, params: dict[str, Any], share: float, seed: list[int]
) -> tuple[Source, Chunk]:
    order = np.random.default_rng(seed).permutation(_num_samples(X))
    n_test = max(1, round(share * len(order)))
    train, test = np.sort(order[n_test:]), np.sort(order[:n_test])

    def rows(index: Any) -> Chunk:
        return Chunk(
            _safe_indexing(X, index),
            None if y is None else _safe_indexing(y, index),
            {name: _safe_indexing(value, index) for name, value in params.items()},
        )

    return Source([rows(train)]), rows(test)


def _join(chunks: list[Chunk]) -> Chunk:
    first = chunks[0]
    y = None if first.y is None else _stack([chunk.y for chunk in chunks])
    return Chunk(_stack([chunk.X for chunk in chunks]), y, {})


def _stack(parts: list[Any]) -> Any:
    if hasattr(parts[0], "iloc"):
        import pandas as pd

        return pd.concat(parts)
    if hasattr(parts[0], "tocsr"):
        import scipy.sparse

        return scipy.sparse.vstack(parts, format="csr")
    return np.concatenate(parts)


def nbytes(value: Any, depth: int = 4) -> int:
    """Return about how many bytes the arrays and tensors in ``value`` take."""
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    if hasattr(value, "memory_usage"):
        return int(np.sum(value.memory_usage(index=False)))
    if hasattr(value, "indptr"):
        return int(value.data.nbytes + value.indices.nbytes + value.indptr.nbytes)
    if depth == 0:
        return 64
    if isinstance(value, dict):
        return sum(nbytes(item, depth - 1) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(nbytes(item, depth - 1) for item in value)
    return nbytes(vars(value), depth - 1) if hasattr(value, "__dict__") else 64
