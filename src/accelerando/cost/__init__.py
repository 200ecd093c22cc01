"""Know before you rent: what a training run takes in updates, time, work, traffic and money.

:func:`plan` predicts it for a schedule of batch sizes, :func:`replay` for a run that has been
recorded, :func:`compare` tells how many workers are worth it. :func:`measure` finds the two times
they need. ``accelerando plan`` is the same as a command.
"""

from accelerando.cost._compare import Comparison as Comparison
from accelerando.cost._compare import compare as compare
from accelerando.cost._measure import Measured as Measured
from accelerando.cost._measure import measure as measure
from accelerando.cost._network import PRESETS as PRESETS
from accelerando.cost._network import Network as Network
from accelerando.cost._network import Preset as Preset
from accelerando.cost._network import communication as communication
from accelerando.cost._plan import Plan as Plan
from accelerando.cost._plan import Setting as Setting
from accelerando.cost._plan import plan as plan
from accelerando.cost._replay import replay as replay

__all__ = [
    "PRESETS",
    "Comparison",
    "Measured",
    "Network",
    "Plan",
    "Preset",
    "Setting",
    "communication",
    "compare",
    "measure",
    "plan",
    "replay",
]
