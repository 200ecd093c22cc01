"""Gradients in fewer bytes.

Pass one as ``compression`` to an estimator, or use a codec alone: ``codec.encode(tensor,
generator)`` gives bytes, ``codec.decode(bytes, shape)`` gives the tensor back, or an unbiased
estimate of it.
"""

from accelerando.compress._adaptive import Adaptive as Adaptive
from accelerando.compress._atomo import Atomo as Atomo
from accelerando.compress._codec import Codec as Codec
from accelerando.compress._codec import Compressor as Compressor
from accelerando.compress._codec import decode as decode
from accelerando.compress._feedback import ErrorFeedback as ErrorFeedback
from accelerando.compress._make import as_compressor as as_compressor
from accelerando.compress._power import PowerSGD as PowerSGD
from accelerando.compress._probabilities import atom_probabilities as atom_probabilities
from accelerando.compress._quantize import QSGD as QSGD
from accelerando.compress._quantize import LqQuantize as LqQuantize
from accelerando.compress._quantize import TernGrad as TernGrad
from accelerando.compress._sign import SignSGD as SignSGD
from accelerando.compress._sparse import RandomK as RandomK
from accelerando.compress._sparse import TopK as TopK

__all__ = [
    "QSGD",
    "Adaptive",
    "Atomo",
    "Codec",
    "Compressor",
    "ErrorFeedback",
    "LqQuantize",
    "PowerSGD",
    "RandomK",
    "SignSGD",
    "TernGrad",
    "TopK",
    "as_compressor",
    "atom_probabilities",
    "decode",
]
