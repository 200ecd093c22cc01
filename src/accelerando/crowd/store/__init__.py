"""The database of the service: tables, transactions, and the operations within them."""

from accelerando.crowd.store.store import Store as Store
