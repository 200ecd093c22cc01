"""Monitors: measurements of training as named numbers, computed after every update.

Pass monitors as ``monitors`` to an estimator. Their signals become columns of ``updates_frame()``
and the input of :mod:`accelerando.policies`.
"""

from accelerando.monitor._curvature import Curvature as Curvature
from accelerando.monitor._gradient import GradientDiversity as GradientDiversity
from accelerando.monitor._gradient import GradientVariance as GradientVariance
from accelerando.monitor._monitor import Monitor as Monitor
from accelerando.monitor._monitor import Observation as Observation
from accelerando.monitor._monitor import Setting as Setting
from accelerando.monitor._monitor import watch as watch
from accelerando.monitor._noise import GradientNoiseScale as GradientNoiseScale
from accelerando.monitor._progress import CommunicationTime as CommunicationTime
from accelerando.monitor._progress import LossTrend as LossTrend
from accelerando.monitor._progress import ParameterSpread as ParameterSpread
from accelerando.monitor._progress import Throughput as Throughput

__all__ = [
    "CommunicationTime",
    "Curvature",
    "GradientDiversity",
    "GradientNoiseScale",
    "GradientVariance",
    "LossTrend",
    "Monitor",
    "Observation",
    "ParameterSpread",
    "Throughput",
    "watch",
]
