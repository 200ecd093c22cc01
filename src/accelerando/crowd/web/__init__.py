"""The web application of the crowd service."""

from accelerando._extras import require as _require

_require("crowd", "The web service")

from accelerando.crowd.web.app import create_app as create_app
