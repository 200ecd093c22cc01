"""Where an experiment lives: tables, transactions, and what is done within them."""

from accelerando.crowd.store.store import Store as Store
