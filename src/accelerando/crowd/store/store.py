"""One store for everything that web and worker share: SQLite or PostgreSQL."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError

from accelerando.crowd.store.migrate import migrate
from accelerando.crowd.store.schema import meta

__all__ = ["Store", "insert_or_ignore"]

_BUSY_SECONDS = 30.0
_MOMENT = 0.05  # seconds
_MIGRATION_LOCK = 715_202_606


class Store:
    """A database, opened and of the present schema.

    Parameters
    ----------
    url : str
        ``sqlite:///path/to/file`` or ``postgresql://user:password@host/database``.

    Examples
    --------
    >>> import tempfile
    >>> store = Store(f"sqlite:///{tempfile.mkdtemp()}/crowd.sqlite")
    >>> with store.write() as connection:
    ...     len(store.secret(connection))
    32
    >>> store.close()
    """

    def __init__(self, url: str, *, connections: int = 5) -> None:
        self.url = url
        self.engine = _engine(url, connections)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        try:
            with self.write() as connection:
                if not self.is_sqlite:
                    # Several processes may start at once on one database.
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
                migrate(connection)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def write(self, *, patient: bool = True) -> Iterator[Connection]:
        """A transaction that may write; committed, and on disk, when the block ends.

        SQLite has one writer at a time. Without ``patient`` waiting for it ends after a moment,
        with an error that says ``locked``.
        """
        with self.engine.connect() as connection:
            if self.is_sqlite:
                connection = connection.execution_options(immediate=True, patient=patient)
            with connection.begin():
                yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view: what others write meanwhile is not seen."""
        with self.engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    def secret(self, connection: Connection) -> bytes:
        """The key that signs participants' tokens; made once, kept in the database."""
        key = select(meta.c.value).where(meta.c.key == "secret")
        row = connection.execute(key).first()
        if row is None:  # perhaps also for another process that starts at this moment
            made = secrets.token_hex(32)
            connection.execute(insert_or_ignore(connection, meta), {"key": "secret", "value": made})
            row = connection.execute(key).one()
        return bytes.fromhex(row[0])

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()


def insert_or_ignore(connection: Connection, table: Any) -> Any:
    """``INSERT … ON CONFLICT DO NOTHING`` in the dialect of this connection."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing()


def _engine(url: str, connections: int) -> Engine:
    if url.startswith("postgres://"):
        url = "postgresql" + url[len("postgres") :]
    if url.startswith("postgresql://"):
        url = "postgresql+psycopg" + url[len("postgresql") :]
    if not url.startswith(("sqlite:///", "postgresql+psycopg://")):
        scheme = url.partition(":")[0]
        raise ValueError(
            "database must be sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME; "
            f"got one that begins with {scheme!r}."
        )
    try:
        if url.startswith("sqlite"):
            engine = create_engine(
                url, connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False}
            )
            _prepare_sqlite(engine)
        else:
            engine = create_engine(
                url, pool_size=connections, max_overflow=5, pool_pre_ping=True, pool_recycle=1800
            )
    except ArgumentError as error:
        raise ValueError(f"database is not a URL that can be read: {error}") from None
    return engine


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: Any) -> None:
        del record
        # Python's sqlite3 must not begin transactions on its own: it begins them too late.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        # With FULL every commit is on disk before it returns; NORMAL could lose the last ones.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA cache_size = -32000")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer that begins as a reader cannot wait for its turn: SQLite refuses it at once.
        options = connection.get_execution_options()
        if not options.get("immediate"):
            connection.exec_driver_sql("BEGIN")
        elif options["patient"]:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {_MOMENT * 1e3:.0f}")
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1e3:.0f}")
