"""The database of the service: tables, transactions, and the operations within them."""

from accelerando._extras import require as _require

_require("crowd", "The web service")

from accelerando.crowd.store.store import Store as Store
