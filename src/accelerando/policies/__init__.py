"""Policies: what to change during training, decided from signals before every update.

Pass one as ``batch_size=`` to an estimator, where it decides the size of every update, or several
as ``policies=``, where decisions hold until the next one. A policy is one of the classes here, a
subclass of :class:`Policy`, or a function of the :class:`Signals`. :func:`replay` shows what a
policy would have decided in a recorded run.
"""

from accelerando._decisions import Decision as Decision
from accelerando._decisions import Policy as Policy
from accelerando._decisions import Signals as Signals
from accelerando._deprecation import Deprecated, deprecated_names
from accelerando.policies._core import Every as Every
from accelerando.policies._damping import AdaDamp as AdaDamp
from accelerando.policies._damping import GradDamp as GradDamp
from accelerando.policies._damping import RadaDamp as RadaDamp
from accelerando.policies._damping import RadaDampLR as RadaDampLR
from accelerando.policies._goodput import Goodput as Goodput
from accelerando.policies._growth import CriticalBatchSize as CriticalBatchSize
from accelerando.policies._growth import LateSwitch as LateSwitch
from accelerando.policies._growth import Seesaw as Seesaw
from accelerando.policies._growth import WithWarmup as WithWarmup
from accelerando.policies._lr import AdaScale as AdaScale
from accelerando.policies._lr import ConstantHalfLife as ConstantHalfLife
from accelerando.policies._lr import GradualWarmup as GradualWarmup
from accelerando.policies._lr import LinearScaling as LinearScaling
from accelerando.policies._lr import PlateauPolicy as PlateauPolicy
from accelerando.policies._lr import SqrtScaling as SqrtScaling
from accelerando.policies._noise import NoiseScale as NoiseScale
from accelerando.policies._noise import NormTest as NormTest
from accelerando.policies._replay import replay as replay
from accelerando.policies._schedules import Constant as Constant
from accelerando.policies._schedules import FullBatch as FullBatch
from accelerando.policies._schedules import GeoDamp as GeoDamp
from accelerando.policies._schedules import GeoDampLR as GeoDampLR
from accelerando.policies._schedules import PadaDamp as PadaDamp
from accelerando.policies._schedules import Schedule as Schedule
from accelerando.policies._workers import WorkersForThroughput as WorkersForThroughput

# The batch-size policies are documented, and listed, in accelerando.batch_size.
__all__ = [
    "AdaScale",
    "ConstantHalfLife",
    "Decision",
    "Every",
    "Goodput",
    "GradualWarmup",
    "LinearScaling",
    "PlateauPolicy",
    "Policy",
    "Signals",
    "SqrtScaling",
    "WorkersForThroughput",
    "replay",
]

__getattr__ = deprecated_names(
    __name__,
    {
        "as_policy": Deprecated(
            "accelerando.policies._core", "as_policy", "Pass policies and functions as they are."
        )
    },
)
