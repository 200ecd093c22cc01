"""Cost model: updates, time, work, traffic and price of a training run before it is rented.

:func:`plan` predicts them for a schedule of batch sizes, :func:`replan` for a recorded run, and
:func:`compare` for several numbers of workers. :func:`measure` measures the two durations that they
need. ``accelerando plan`` is the corresponding command.
"""

from accelerando._extras import require as _require

_require("train", "accelerando.cost")

from accelerando._deprecation import Deprecated, deprecated_names
from accelerando.cost._compare import compare as compare
from accelerando.cost._measure import measure as measure
from accelerando.cost._network import PRESETS as PRESETS
from accelerando.cost._network import Network as Network
from accelerando.cost._plan import Plan as Plan
from accelerando.cost._plan import plan as plan
from accelerando.cost._replan import replan as replan

__all__ = [
    "PRESETS",
    "Network",
    "Plan",
    "compare",
    "measure",
    "plan",
    "replan",
]

__getattr__ = deprecated_names(
    __name__,
    {
        "Comparison": Deprecated(
            "accelerando.cost._compare",
            "Comparison",
            "It is the type of what accelerando.cost.compare returns; call compare.",
        ),
        "replay": Deprecated(
            "accelerando.cost._replan", "replan", "It is called accelerando.cost.replan now."
        ),
        "communication": Deprecated(
            "accelerando.cost._network",
            "communication",
            "A ring all-reduce of n bytes between P workers takes "
            "2 * (P - 1) * network.seconds(n / P).",
        ),
    },
)
