"""Batch-size policies: how many examples the next model update should use.

Pass one as ``batch_size`` to an estimator, as a class with ``batch_size__x`` parameters, as an
instance, or as a function of the :class:`Signals`.
"""

from accelerando.batch_size._adaptive import AdaDamp as AdaDamp
from accelerando.batch_size._adaptive import GradDamp as GradDamp
from accelerando.batch_size._adaptive import RadaDamp as RadaDamp
from accelerando.batch_size._adaptive import RadaDampLR as RadaDampLR
from accelerando.batch_size._policy import BatchSizePolicy as BatchSizePolicy
from accelerando.batch_size._policy import Damping as Damping
from accelerando.batch_size._policy import Measure as Measure
from accelerando.batch_size._policy import Signals as Signals
from accelerando.batch_size._policy import as_policy as as_policy
from accelerando.batch_size._policy import replay as replay
from accelerando.batch_size._schedules import Constant as Constant
from accelerando.batch_size._schedules import FullBatch as FullBatch
from accelerando.batch_size._schedules import GeoDamp as GeoDamp
from accelerando.batch_size._schedules import GeoDampLR as GeoDampLR
from accelerando.batch_size._schedules import PadaDamp as PadaDamp
from accelerando.batch_size._schedules import Schedule as Schedule
from accelerando.policies import NoiseScale as NoiseScale
from accelerando.policies import NormTest as NormTest

__all__ = [
    "AdaDamp",
    "BatchSizePolicy",
    "Constant",
    "Damping",
    "FullBatch",
    "GeoDamp",
    "GeoDampLR",
    "GradDamp",
    "Measure",
    "NoiseScale",
    "NormTest",
    "PadaDamp",
    "RadaDamp",
    "RadaDampLR",
    "Schedule",
    "Signals",
    "as_policy",
    "replay",
]
