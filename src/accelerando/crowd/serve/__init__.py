"""Running the service: its processes, the worker, and the commands that start them."""

from accelerando._extras import require as _require

_require("crowd", "The web service")
