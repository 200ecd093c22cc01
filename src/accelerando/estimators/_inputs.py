"""X as users have it, converted once into what the module computes with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import validate_data
from torch.utils.data import Dataset

from accelerando._engine.data.feed import leaves, map_leaves
from accelerando.estimators._arrays import (
    are_rows,
    as_array,
    as_columns,
    as_matrix,
    as_numbers,
    in_known_precision,
    is_frame,
    refuse_equal_names,
    stack,
    takes_columns,
)
from accelerando.estimators._checks import is_plain
from accelerando.estimators._input_checks import look_at_inputs, look_at_rows
from accelerando.estimators._probe import (
    PROBED_ROWS,
    change,
    decide_criterion,
    head,
    is_lazy,
    probe,
    reads_itself,
    refuse_lazy,
    refuse_stream,
    undecided,
)
from accelerando.exceptions import UnsupportedError

LARGEST_COPY = 2**28  # numbers of a memory-mapped array that are converted in memory


# -- a fit ----------------------------------------------------------------------------------------


def convert(
    net: Any, X: Any, y: Any, fit_params: Mapping[str, Any], *, early: bool
) -> tuple[Any, Any]:
    """Return the `X` and `y` that are trained on; decide the criterion if it is ``"auto"``.

    Parameters
    ----------
    net : estimator
        Initialized.
    X, y : object
        What :func:`as_arrays` returned.
    fit_params : mapping
        Further arguments of the module's ``forward``.
    early : bool
        Whether ``criterion="auto"`` decides now; otherwise it looks at the first batch.
    """
    from accelerando.estimators._targets import convert_y, wants_outputs

    if any(parameter.is_complex() for _, parameter in net.get_all_learnable_params()):
        raise UnsupportedError(
            "The module has complex parameters, and accelerando records and exchanges real "
            "gradients. Keep real and imaginary parts as two parameters."
        )
    if hasattr(X, "lengths"):
        return _convert_chunks(net, X, fit_params, early=early), y
    is_dataset = isinstance(X, Dataset) or reads_itself(net)
    outputs = None
    if not is_dataset:
        X = _record_features(net, X)
        X, outputs = _to_dtypes(net, X, y, fit_params)
    asks = is_lazy(net) or (early and undecided(net)) or (not is_dataset and wants_outputs(net, y))
    if outputs is None and asks:
        outputs = probe(net, X, y, fit_params)
    if is_lazy(net):
        refuse_lazy(X, outputs)
    if early or isinstance(outputs, torch.Tensor):
        decide_criterion(net, outputs)
        refuse_stream(net, X)
    if is_dataset:
        return X, y
    return X, convert_y(net, y, outputs if isinstance(outputs, torch.Tensor) else None)


def _convert_chunks(net: Any, chunks: Any, fit_params: Mapping[str, Any], *, early: bool) -> Any:
    """Return chunks of a Dask array with the types and shapes that their first rows get."""
    from accelerando.estimators._data import converted_chunks, first_rows

    if not len(chunks):
        return chunks
    X, y = first_rows(net.client, chunks, PROBED_ROWS)
    found = convert(net, X, y, fit_params, early=early)
    if net._recipe_.labels is not None:
        raise UnsupportedError(
            f"The classes in y are not the numbers of outputs (y begins with {y[:3].tolist()}), "
            'and data="shard" leaves y where it is. Pass y as 0, 1, 2, …: '
            "y.map_blocks(lambda labels: np.searchsorted(classes, labels))."
        )
    return converted_chunks(net.client, chunks, (X, y), found)


def as_arrays(net: Any, X: Any, y: Any) -> tuple[Any, Any]:
    """Turn lists into arrays, and frames into matrices; refuse what cannot be trained on."""
    if isinstance(X, Dataset) or reads_itself(net):
        return X, look_at_inputs(net, X, y)
    X = as_array(X)
    y = y.to_numpy() if hasattr(y, "to_numpy") else as_array(y)  # of a frame, a series
    X, y = as_numbers(net, X), in_known_precision(y)
    return X, look_at_inputs(net, X, y)


def _check_features(X: Any) -> None:
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) == 2 and shape[1] == 0:
        raise ValueError(
            f"X has 0 feature(s) (shape={tuple(shape)}) while a minimum of 1 is required."
        )


def _check_rows(net: Any, X: Any) -> None:
    """Refuse other features or dimensions than those of the fit, and one row that is no matrix."""
    shape, ndim = getattr(X, "shape", ()), net._recipe_.ndim
    if ndim is not None and shape and len(shape) != ndim:
        one = " One row is X[np.newaxis]." if len(shape) == ndim - 1 else ""
        raise ValueError(
            f"X has shape {tuple(shape)}, and {type(net).__name__} was fitted with {ndim} "
            f"dimensions, rows included.{one}"
        )
    if not hasattr(net, "n_features_in_"):
        return
    if len(shape) > 2:
        raise ValueError(
            f"Expected 2D array, got {len(shape)}D array instead: X has shape {tuple(shape)}, and "
            f"was fitted with {net.n_features_in_} features per row. X.reshape(len(X), -1) makes a "
            "matrix."
        )
    if len(shape) == 1 and not hasattr(X, "columns"):
        raise ValueError(
            f"Expected 2D array, got 1D array instead: X has shape {tuple(shape)}, and was fitted "
            f"with {net.n_features_in_} features per row. Reshape your data: X.reshape(1, -1) is "
            "one row, X.reshape(-1, 1) has one feature."
        )
    if len(shape) == 2:
        validate_data(net, X, reset=False, skip_check_array=True)


def _record_features(net: Any, X: Any) -> Any:
    """Set or check ``n_features_in_`` and ``feature_names_in_``; make a frame a matrix."""
    _check_features(X)
    ndim = len(getattr(X, "shape", ()))
    if is_frame(X):
        refuse_equal_names(X)
    if ndim == 2 and net._recipe_.ndim is None:
        reset = not hasattr(net, "n_features_in_")
        validate_data(net, X, reset=reset, skip_check_array=True)
    elif ndim > 2 and net._recipe_.ndim is None and not hasattr(net, "n_features_in_"):
        change(net, ndim=ndim)
    else:
        _check_rows(net, X)
    if not is_frame(X):
        return X
    if net._recipe_.matrix is None:
        change(net, matrix=not takes_columns(net, X))
    return as_matrix(X) if net._recipe_.matrix else as_columns(X)


# -- dtypes ---------------------------------------------------------------------------------------


def module_dtype(net: Any) -> torch.dtype | None:
    """Return the dtype of the module's first floating parameter."""
    found = (p.dtype for _, p in net.get_all_learnable_params() if p.is_floating_point())
    return next(found, None)


def _to_dtypes(net: Any, X: Any, y: Any, fit_params: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return `X` in the dtypes that the module computes with, and outputs if it was asked."""
    wanted = module_dtype(net)
    known = net._recipe_.dtypes
    parts = leaves(X) if not is_frame(X) else []
    kinds = [dtype_of(leaf) for leaf in parts]
    if wanted is None or not parts or any(kind is None for kind in kinds):
        return X, None
    if len(known) == len(kinds):
        return _cast(X, known), None
    _refuse_complex(kinds, wanted)
    floats = tuple(wanted if kind.is_floating_point else kind for kind in kinds if kind)
    X = _cast(X, floats)
    if all(kind.is_floating_point or kind.is_complex for kind in floats):
        change(net, dtypes=floats)
        return X, None
    integers = tuple(torch.int64 if _is_integer(kind) else kind for kind in floats)
    numbers_ = tuple(wanted if _is_integer(kind) else kind for kind in floats)
    for dtypes in (floats, integers, numbers_):
        candidate = _cast(head(X), dtypes)
        outputs = probe(net, candidate, head(y), fit_params)
        if not isinstance(outputs, Exception):
            change(net, dtypes=dtypes)
            return _cast(X, dtypes), outputs
    return X, None  # the first update says what is wrong


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def _refuse_complex(kinds: Sequence[Any], wanted: torch.dtype) -> None:
    if any(kind.is_complex for kind in kinds) and not wanted.is_complex:
        raise ValueError(
            "Complex data not supported: X holds complex numbers, and the module's parameters are "
            f"{str(wanted).removeprefix('torch.')}. Pass real and imaginary parts as features."
        )


def dtype_of(leaf: Any) -> torch.dtype | None:
    """Return the dtype of an array as PyTorch's; None for what is no array of numbers."""
    dtype = getattr(leaf, "dtype", None)
    if isinstance(dtype, torch.dtype):
        return dtype
    if not (isinstance(leaf, np.ndarray) or sparse.issparse(leaf)):
        return None
    native = leaf.dtype.newbyteorder("=")
    try:
        return torch.from_numpy(np.empty(0, native)).dtype
    except TypeError:
        return None


def _cast(X: Any, dtypes: Sequence[torch.dtype]) -> Any:
    left = iter(dtypes)
    return map_leaves(lambda leaf: cast(leaf, next(left)), X)


def cast(leaf: Any, wanted: torch.dtype, what: str = "X") -> Any:
    """Return an array with another dtype; the array itself if it has it already.

    Integers are never made of floating numbers: what lies behind the point would be lost.
    """
    dtype = dtype_of(leaf)
    # PyTorch reads no foreign byte order.
    if dtype is None or (dtype == wanted and getattr(leaf.dtype, "isnative", True)):
        return leaf
    if _is_integer(wanted) and not _is_integer(dtype):
        return leaf
    if isinstance(leaf, torch.Tensor):
        return leaf.to(wanted)
    if isinstance(leaf, np.memmap) and leaf.size > LARGEST_COPY:
        raise ValueError(
            f"X is mapped into memory as {leaf.dtype}, and the module computes with "
            f"{str(wanted).removeprefix('torch.')}: converting it would read all of it. Write the "
            "file with this type, or pass a Dataset that converts its items."
        )
    try:
        name = torch.empty(0, dtype=wanted).numpy().dtype
    except TypeError:  # bfloat16, which NumPy does not have
        return torch.from_numpy(leaf.toarray() if sparse.issparse(leaf) else leaf).to(wanted)
    try:
        with np.errstate(over="raise"):
            return leaf.astype(name)
    except FloatingPointError:
        largest = np.finfo(name).max
        raise ValueError(
            f"{what} holds numbers beyond {largest:.2g}, the largest of {name}, which the module "
            "computes with: they would be infinity. Scale them, with scikit-learn's StandardScaler "
            "for example."
        ) from None


def decide_for_prediction(net: Any, X: Any) -> None:
    """Decide the criterion of a net that was not fitted, such as one with loaded parameters."""
    if undecided(net) and not hasattr(X, "__dask_graph__"):
        X = converted(net, X)
        decide_criterion(net, probe(net, X, None, {}))


# -- predictions ----------------------------------------------------------------------------------


def converted(net: Any, X: Any) -> Any:
    """Return the `X` of a prediction as the module computes with it."""
    if isinstance(X, Dataset) or hasattr(X, "__dask_graph__") or reads_itself(net):
        return X
    if not is_plain(X):
        X = as_numbers(net, as_array(X))
        look_at_rows(X)
    if isinstance(X, list | tuple) and X and are_rows(X, getattr(net, "n_features_in_", None)):
        X = stack(X)
    if getattr(X, "shape", (1,))[:1] == (0,):
        raise ValueError(
            f"Found array with 0 sample(s) (shape={tuple(X.shape)}) while a minimum of 1 is "
            "required: X is empty, and there is nothing to predict."
        )
    _check_rows(net, X)
    if is_frame(X):
        matrix = net._recipe_.matrix
        if not (not takes_columns(net, X) if matrix is None else matrix):
            X = as_columns(X)
        else:
            X = as_matrix(X)
        if is_frame(X):
            return X  # of pandas
    parts, known = leaves(X), net._recipe_.dtypes
    if len(known) == len(parts):
        return _cast(X, known)
    wanted = module_dtype(net)
    kinds = [dtype_of(leaf) for leaf in parts]
    if wanted is None or any(kind is None for kind in kinds):
        return X
    return _cast(X, [wanted if kind.is_floating_point else kind for kind in kinds if kind])
