"""The store: a SQLite or PostgreSQL database that web processes and worker share."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError

from accelerando._extras import require
from accelerando.crowd.store.errors import classify
from accelerando.crowd.store.migrate import migrate
from accelerando.crowd.store.schema import meta
from accelerando.exceptions import StateError

__all__ = ["RESTORE", "Store", "StoreError", "explained", "insert_or_ignore", "settle"]

RESTORE = "Restore the last backup into a new folder: accelerando crowd restore BACKUP.zip FOLDER"
_SENTENCES = {
    "locked": "Another program holds the lock of the database. Stop it and try again.",
    "full": "The disk of the database is full or failing. Free some space and try again.",
    "unreachable": "The database cannot be opened. Check that its folder or its server exists and "
    "that this user may use it.",
    "readonly": "The database is read-only. Give this user the right to write the file and its "
    "folder.",
    "damaged": f"The database is damaged or not a database. {RESTORE}.",
    "refused": "The database server refuses the user, the password or the name of the database. "
    "Check the URL.",
}

_BUSY_SECONDS = 30.0
_MOMENT = 0.05  # seconds
# PostgreSQL waits for ever by default: for a lock that another program holds, and for a server that
# is not there any more without having closed its connections.
_LOCK_SECONDS = 5.0
# A connection that rested for longer is asked whether it still works before it is used. To ask each
# time, as SQLAlchemy's pre-ping does, is a tenth of the messages of a loaded server.
_RESTED_SECONDS = 1.0
_TCP = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_MIGRATION_LOCK = 715_202_606


class StoreError(StateError):
    """A database that cannot be used, with the word of :func:`classify` for the reason."""

    def __init__(self, trouble: str, sentence: str) -> None:
        super().__init__(sentence)
        self.trouble = trouble


class Store:
    """A database with the present schema.

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
            with self.write(migrating=True) as connection:
                if not self.is_sqlite:
                    # Several processes may open the database at once.
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
                migrate(connection)
                # Some read-only files only show it when something is written.
                connection.execute(update(meta).values(value=meta.c.value))
            self.engine.dispose()  # of the connection that does not check foreign keys
        except DBAPIError as error:
            self.close()
            raise explained(error) from None
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Read the whole SQLite file and compare it with its indexes.

        Raises
        ------
        StoreError
            The file is damaged. The message names the command that restores a backup.
        """
        if not self.is_sqlite:
            return
        try:
            with self.read() as connection:
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        except DBAPIError as error:
            found = _first_line(error)
        if found != "ok":
            raise StoreError("damaged", f"The database is damaged: {found}. {RESTORE}.")

    @contextmanager
    def write(self, *, patient: bool = True, migrating: bool = False) -> Iterator[Connection]:
        """Open a transaction that may write; it is committed, on disk, when the block ends.

        SQLite has one writer at a time. With ``patient=False`` waiting for it ends after a moment
        with an error that :func:`classify` calls "locked". With ``migrating=True`` foreign keys are
        not checked, because SQLite cannot rebuild a table otherwise, and locks are waited for.
        """
        with self.engine.connect() as connection:
            if self.is_sqlite:
                connection = connection.execution_options(immediate=True, patient=patient)
            if migrating:
                connection = connection.execution_options(migrating=True)
            with connection.begin():
                yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction with a consistent view of the data."""
        with self.engine.connect() as connection:
            if not self.is_sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    def secret(self, connection: Connection) -> bytes:
        """Return the key that signs participants' tokens, which the database keeps."""
        key = select(meta.c.value).where(meta.c.key == "secret")
        row = connection.execute(key).first()
        if row is None:  # another process may insert it at the same time
            made = secrets.token_hex(32)
            connection.execute(insert_or_ignore(connection, meta), {"key": "secret", "value": made})
            row = connection.execute(key).one()
        return bytes.fromhex(row[0])

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def settle(url: str) -> None:
    """Move what SQLite keeps in its log (``-wal``) into the database file, and remove the log.

    SQLite does so when the last connection is closed. Processes that exit do not close theirs.
    Nothing happens while another process still uses the database.
    """
    engine = _engine(url, 1)
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 0")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()


def explained(error: DBAPIError) -> Exception:
    """Return an error of the database as a sentence with its remedy; unknown ones as they are."""
    trouble = classify(error)
    if trouble == "other":
        return error
    return StoreError(trouble, f"{_SENTENCES[trouble]} ({_first_line(error)})")


def _first_line(error: DBAPIError) -> str:
    return str(error.orig).strip().partition("\n")[0]


def insert_or_ignore(connection: Connection, table: Any) -> Any:
    """Return ``INSERT … ON CONFLICT DO NOTHING`` in the dialect of this connection."""
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
            "The database must be sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME. "
            f"Got a URL that begins with {scheme!r} instead."
        )
    try:
        if url.startswith("sqlite"):
            _make_private(url)
            engine = create_engine(
                url,
                hide_parameters=True,  # logs must not contain names or hashes
                connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
            )
            _prepare_sqlite(engine)
        else:
            require("crowd", "PostgreSQL", "psycopg")
            engine = create_engine(
                url,
                hide_parameters=True,
                pool_size=connections,
                max_overflow=5,
                pool_recycle=1800,
                connect_args=_TCP,
            )
            _prepare_postgresql(engine)
    except (ArgumentError, ValueError) as error:
        raise ValueError(
            f"The URL of the database is not valid ({error}). It must be "
            "postgresql://USER:PASSWORD@HOST:PORT/NAME; write special characters of the password "
            "as %XX."
        ) from None
    return engine


def _make_private(url: str) -> None:
    """Create the file of a new database so that only this user can read it.

    It holds the key that signs sessions and links. SQLite gives its other files the same rights.
    """
    name = url.removeprefix("sqlite:///").partition("?")[0]
    if name in ("", ":memory:") or name.startswith("file:"):
        return
    with contextlib.suppress(OSError):  # it is there, or opening it says what is wrong
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _prepare_sqlite(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: Any) -> None:
        del record
        # Python's sqlite3 must not begin transactions implicitly: it begins them too late.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        # With FULL every commit is on disk before it returns; with NORMAL the last may be lost.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA cache_size = -32000")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that begins as a reader cannot wait for the write lock: it fails at once.
        options = connection.get_execution_options()
        if options.get("migrating"):  # inside of a transaction this has no effect
            connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        if not options.get("immediate"):
            connection.exec_driver_sql("BEGIN")
        elif options["patient"]:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            # Without SQLAlchemy, which takes as long for each of them as SQLite for an answer.
            raw: Any = connection.connection.driver_connection
            raw.execute(f"PRAGMA busy_timeout = {_MOMENT * 1e3:.0f}")
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            finally:
                raw.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1e3:.0f}")


def _prepare_postgresql(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connect(connection: Any, record: Any) -> None:
        del record
        seconds = (f"{_LOCK_SECONDS}s",)
        connection.execute("SELECT set_config('lock_timeout', %s, false)", seconds)
        # So the server notices soon that the machine of a client is gone, and frees its locks.
        connection.execute("SET tcp_keepalives_idle = 30")
        connection.execute("SET tcp_keepalives_interval = 10")
        connection.execute("SET tcp_keepalives_count = 3")
        connection.commit()

    @event.listens_for(engine, "checkin")
    def _checkin(connection: Any, record: Any) -> None:
        del connection
        record.info["used"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _checkout(connection: Any, record: Any, proxy: Any) -> None:
        del proxy
        if time.monotonic() - record.info.get("used", -math.inf) < _RESTED_SECONDS:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError from error  # the pool opens another one

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get("migrating"):  # it may take long elsewhere
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
