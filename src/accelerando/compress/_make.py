"""From what a user passes as ``compression`` to a compressor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerando.compress._codec import Compressor


def as_compressor(compression: Any, params: Mapping[str, Any] | None = None) -> Compressor | None:
    """Return the compressor that ``compression`` and ``compression__x`` parameters describe.

    Parameters
    ----------
    compression : compressor class, compressor instance, or None
        What an estimator takes as ``compression``.
    params : mapping, optional
        The ``compression__x`` parameters, without the prefix: for the class, or in place of the
        instance's own settings.

    Returns
    -------
    Compressor or None
        None if gradients are sent as they are.

    Examples
    --------
    >>> from accelerando.compress import QSGD, as_compressor
    >>> as_compressor(QSGD, {"bits": 2})
    QSGD(bits=2, bucket=512, norm=2.0, coding='packed')
    """
    params = dict(params or {})
    if compression is None and not params:
        return None
    if isinstance(compression, type) and issubclass(compression, Compressor):
        fields = list(getattr(compression, "__dataclass_fields__", ()))
        unknown = sorted(set(params) - set(fields))
        if unknown:
            raise ValueError(
                f"{compression.__name__} has no parameter {', '.join(unknown)}. Its parameters: "
                f"{', '.join('compression__' + name for name in fields) or 'none'}."
            )
        return compression(**params)
    if isinstance(compression, Compressor):
        return compression.with_settings(**params) if params else compression
    if compression is None:
        raise ValueError(
            f"Parameters {sorted('compression__' + name for name in params)} are for a codec, but "
            "compression is None. Pass a class of accelerando.compress as compression."
        )
    raise TypeError(
        "compression must be a codec of accelerando.compress, like QSGD(bits=4), or None. Got "
        f"{compression!r}."
    )
