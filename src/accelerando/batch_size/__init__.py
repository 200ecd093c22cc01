"""Batch-size policies: the number of examples that the next model update uses.

Pass one as ``batch_size`` to an estimator, as a class with ``batch_size__x`` parameters, as an
instance, or as a function of the :class:`~accelerando.policies.Signals`. The policies live in
:mod:`accelerando.policies`; this module lists those for the batch size.
"""

from accelerando._deprecation import Deprecated, deprecated_names
from accelerando.policies import AdaDamp as AdaDamp
from accelerando.policies import Constant as Constant
from accelerando.policies import CriticalBatchSize as CriticalBatchSize
from accelerando.policies import FullBatch as FullBatch
from accelerando.policies import GeoDamp as GeoDamp
from accelerando.policies import GeoDampLR as GeoDampLR
from accelerando.policies import GradDamp as GradDamp
from accelerando.policies import LateSwitch as LateSwitch
from accelerando.policies import NoiseScale as NoiseScale
from accelerando.policies import NormTest as NormTest
from accelerando.policies import PadaDamp as PadaDamp
from accelerando.policies import RadaDamp as RadaDamp
from accelerando.policies import RadaDampLR as RadaDampLR
from accelerando.policies import Schedule as Schedule
from accelerando.policies import Seesaw as Seesaw
from accelerando.policies import WithWarmup as WithWarmup

__all__ = [
    "AdaDamp",
    "Constant",
    "CriticalBatchSize",
    "FullBatch",
    "GeoDamp",
    "GeoDampLR",
    "GradDamp",
    "LateSwitch",
    "NoiseScale",
    "NormTest",
    "PadaDamp",
    "RadaDamp",
    "RadaDampLR",
    "Schedule",
    "Seesaw",
    "WithWarmup",
]

__getattr__ = deprecated_names(
    __name__,
    {
        "BatchSizePolicy": Deprecated(
            "accelerando.policies",
            "Policy",
            "Subclass accelerando.policies.Policy; unknown signals are nan instead of None.",
        ),
        "Damping": Deprecated(
            "accelerando.policies._core",
            "Damping",
            "Return accelerando.policies.Decision(batch_size=..., lr_scale=...).",
        ),
        "Measure": Deprecated(
            "accelerando._decisions", "Measure", "Use AdaDamp or GradDamp, which measure."
        ),
        "Signals": Deprecated(
            "accelerando.policies", "Signals", "Use accelerando.policies.Signals."
        ),
        "as_policy": Deprecated(
            "accelerando.policies._deprecated",
            "as_batch_policy",
            "Pass numbers, policies and functions as they are.",
        ),
        "replay": Deprecated(
            "accelerando.policies._deprecated",
            "replay_losses",
            'Use accelerando.policies.replay(policy, {"loss": losses})["batch_size"].',
        ),
    },
)
