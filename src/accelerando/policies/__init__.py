"""Policies: what to change while training, decided from what monitors tell.

Pass some as ``policies`` to an estimator: functions ``signals -> Decision | None``, or the ready
ones here. They are asked before every update, on all ranks alike.
"""

from accelerando.policies._batch import NoiseScale as NoiseScale
from accelerando.policies._batch import NormTest as NormTest
from accelerando.policies._decision import Decision as Decision
from accelerando.policies._decision import Signals as Signals
from accelerando.policies._lr import AdaScale as AdaScale
from accelerando.policies._lr import GradualWarmup as GradualWarmup
from accelerando.policies._lr import LinearScaling as LinearScaling
from accelerando.policies._lr import PlateauPolicy as PlateauPolicy
from accelerando.policies._lr import SqrtScaling as SqrtScaling
from accelerando.policies._policy import Every as Every
from accelerando.policies._policy import Policy as Policy
from accelerando.policies._policy import as_policy as as_policy
from accelerando.policies._replay import replay as replay
from accelerando.policies._workers import WorkersForThroughput as WorkersForThroughput

__all__ = [
    "AdaScale",
    "Decision",
    "Every",
    "GradualWarmup",
    "LinearScaling",
    "NoiseScale",
    "NormTest",
    "PlateauPolicy",
    "Policy",
    "Signals",
    "SqrtScaling",
    "WorkersForThroughput",
    "as_policy",
    "replay",
]
