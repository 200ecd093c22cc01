"""Conversion of the ``compression`` argument into a compressor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerando._validation import as_piece
from accelerando.compress._codec import Compressor


def as_compressor(compression: Any, params: Mapping[str, Any] | None = None) -> Compressor | None:
    """Return the compressor that ``compression`` and the ``compression__x`` parameters describe.

    Parameters
    ----------
    compression : compressor class, compressor instance, or None
        The ``compression`` argument of an estimator.
    params : mapping, optional
        The ``compression__x`` parameters, without the prefix. They are arguments of the class, or
        replace settings of the instance.

    Returns
    -------
    Compressor or None
        None if gradients are not compressed.

    Examples
    --------
    >>> from accelerando.compress import QSGD
    >>> as_compressor(QSGD, {"bits": 2})
    QSGD(bits=2, bucket=512, norm=inf, warmup_epochs=0)
    """
    if compression is None and not params:
        return None
    if isinstance(compression, Compressor):
        # ErrorFeedback passes settings to the codec that it contains.
        return compression.with_settings(**params) if params else compression
    return as_piece(
        "compression",
        compression,
        Compressor,
        settings=params,
        allowed="a codec of accelerando.compress, such as QSGD(bits=4), or None",
    )
