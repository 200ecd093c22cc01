"""How ranks keep in step: gradients in every update, or parameters now and then.

Pass one as ``sync`` to an estimator. A strategy holds settings only and decides by numbers: after
how many updates ranks meet, and what happens to their parameters then. :func:`replay` asks it
about recorded numbers, without training.
"""

from accelerando.sync._adaptive import AdaptiveAveraging as AdaptiveAveraging
from accelerando.sync._centre import ElasticAveraging as ElasticAveraging
from accelerando.sync._centre import ModelAveraging as ModelAveraging
from accelerando.sync._centre import OuterOptimizer as OuterOptimizer
from accelerando.sync._make import as_strategy as as_strategy
from accelerando.sync._periodic import DecreasingAveraging as DecreasingAveraging
from accelerando.sync._periodic import PeriodicAveraging as PeriodicAveraging
from accelerando.sync._replay import replay as replay
from accelerando.sync._strategy import AllReduce as AllReduce
from accelerando.sync._strategy import Average as Average
from accelerando.sync._strategy import Averaging as Averaging
from accelerando.sync._strategy import Outer as Outer
from accelerando.sync._strategy import Pull as Pull
from accelerando.sync._strategy import Signals as Signals
from accelerando.sync._strategy import Strategy as Strategy
from accelerando.sync._strategy import ring_bytes as ring_bytes

__all__ = [
    "AdaptiveAveraging",
    "AllReduce",
    "Average",
    "Averaging",
    "DecreasingAveraging",
    "ElasticAveraging",
    "ModelAveraging",
    "Outer",
    "OuterOptimizer",
    "PeriodicAveraging",
    "Pull",
    "Signals",
    "Strategy",
    "as_strategy",
    "replay",
    "ring_bytes",
]
