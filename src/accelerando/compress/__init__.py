"""Gradient compression: codecs that encode tensors in fewer bytes.

Pass one as ``compression`` to an estimator, or use a codec on its own:
``codec.encode(tensor, generator)`` returns bytes, and ``codec.decode(bytes, shape)`` returns the
tensor or an unbiased estimate of it.
"""

from accelerando._extras import require as _require

_require("train", "accelerando.compress", "torch")

from accelerando._deprecation import Deprecated, deprecated_names
from accelerando.compress import _retired as _retired  # registers the decoders of its codecs
from accelerando.compress._adaptive import Adaptive as Adaptive
from accelerando.compress._atomo import Atomo as Atomo
from accelerando.compress._codec import Codec as Codec
from accelerando.compress._codec import Compressor as Compressor
from accelerando.compress._codec import decode as decode
from accelerando.compress._feedback import ErrorFeedback as ErrorFeedback
from accelerando.compress._half import HalfPrecision as HalfPrecision
from accelerando.compress._make import as_compressor as as_compressor
from accelerando.compress._power import PowerSGD as PowerSGD
from accelerando.compress._quantize import QSGD as QSGD
from accelerando.compress._quantize import LqQuantize as LqQuantize
from accelerando.compress._quantize import TernGrad as TernGrad
from accelerando.compress._sparse import TopK as TopK

__all__ = [
    "QSGD",
    "Adaptive",
    "Atomo",
    "Codec",
    "ErrorFeedback",
    "HalfPrecision",
    "LqQuantize",
    "PowerSGD",
    "TernGrad",
    "TopK",
    "decode",
]

__getattr__ = deprecated_names(
    __name__,
    {
        "RandomK": Deprecated(
            "accelerando.compress._retired",
            "RandomK",
            "Use Atomo(budget=fraction, atoms='entries'), which has less variance for as many "
            "entries.",
        ),
        "SignSGD": Deprecated(
            "accelerando.compress._retired",
            "SignSGD",
            "Use TernGrad(), or ErrorFeedback(TopK(fraction)).",
        ),
    },
)
