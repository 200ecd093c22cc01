"""Synchronization strategies: average gradients in every update, or parameters after a period.

Pass one as ``sync`` to an estimator. A strategy holds settings only and decides by numbers: after
how many updates ranks average, and by which rule. :func:`accelerando.policies.replay` asks it about
recorded numbers, without training.
"""

from accelerando._deprecation import Deprecated, deprecated_names
from accelerando.sync._adaptive import AdaptiveAveraging as AdaptiveAveraging
from accelerando.sync._center import ElasticAveraging as ElasticAveraging
from accelerando.sync._center import ModelAveraging as ModelAveraging
from accelerando.sync._center import OuterOptimizer as OuterOptimizer
from accelerando.sync._periodic import DecreasingAveraging as DecreasingAveraging
from accelerando.sync._periodic import PeriodicAveraging as PeriodicAveraging
from accelerando.sync._strategy import AllReduce as AllReduce
from accelerando.sync._strategy import Average as Average
from accelerando.sync._strategy import Averaging as Averaging
from accelerando.sync._strategy import Outer as Outer
from accelerando.sync._strategy import Pull as Pull
from accelerando.sync._strategy import Strategy as Strategy
from accelerando.sync._strategy import ring_bytes as ring_bytes

# Average, Pull and Outer are what Averaging.rule returns; the engine uses the other names.
__all__ = [
    "AdaptiveAveraging",
    "AllReduce",
    "Averaging",
    "DecreasingAveraging",
    "ElasticAveraging",
    "ModelAveraging",
    "OuterOptimizer",
    "PeriodicAveraging",
]

__getattr__ = deprecated_names(
    __name__,
    {
        "Signals": Deprecated(
            "accelerando._decisions", "Signals", "Use accelerando.policies.Signals."
        ),
        "as_strategy": Deprecated(
            "accelerando.sync._make", "as_strategy", "Pass strategies as they are."
        ),
        "replay": Deprecated(
            "accelerando.policies._deprecated",
            "replay_spreads",
            'Use accelerando.policies.replay(strategy, {"spread": spreads}).',
        ),
    },
)
