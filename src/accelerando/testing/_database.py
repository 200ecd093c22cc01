"""A database that loses its connection at the n-th statement or commit."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Literal
from unittest import mock

from sqlalchemy import Engine, event


class ConnectionFault:
    """Fail at the n-th statement or commit of an engine, as a context manager.

    Parameters
    ----------
    engine : sqlalchemy.Engine
        Of the database; ``Store(url).engine`` for the service.
    at : int
        The statement or commit that fails; the first one is 1.
    when : {"before", "after"}
        Whether the connection is lost before the database has received the statement, or after it
        has carried it out and before the answer arrives. After a commit, the program cannot know
        which of both happened.
    lasting : bool
        Whether all later statements fail, too, or the next attempt succeeds.

    Attributes
    ----------
    happened : bool
        Whether the n-th statement was reached.
    statement : str
        That statement; "COMMIT" for a commit.

    Examples
    --------
    >>> from sqlalchemy import create_engine, text
    >>> from sqlalchemy.exc import DBAPIError
    >>> from accelerando.testing import ConnectionFault
    >>> engine = create_engine("sqlite://")
    >>> with ConnectionFault(engine, at=2) as fault:
    ...     try:
    ...         with engine.begin() as connection:
    ...             _ = connection.execute(text("SELECT 1"))
    ...     except DBAPIError as error:
    ...         print(error.orig)
    connection lost
    >>> fault.statement
    'COMMIT'
    """

    def __init__(
        self,
        engine: Engine,
        at: int,
        when: Literal["before", "after"] = "before",
        *,
        lasting: bool = False,
    ) -> None:
        if when not in ("before", "after"):
            raise ValueError(
                "The 'when' parameter of ConnectionFault must be 'before' or 'after'. "
                f"Got {when!r} instead."
            )
        self.at, self.when, self.lasting = at, when, lasting
        self.happened = False
        self.statement = ""
        self._engine = engine
        self._n_statements = 0
        self._stack = ExitStack()
        self._commit = engine.dialect.do_commit

    def __enter__(self) -> ConnectionFault:
        event.listen(self._engine, "do_execute", self._execute)
        self._stack.callback(event.remove, self._engine, "do_execute", self._execute)
        replaced = mock.patch.object(self._engine.dialect, "do_commit", self._do_commit)
        self._stack.enter_context(replaced)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _execute(self, cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        del context
        if self._reached(statement):
            if self.when == "after" and self._n_statements == self.at:
                cursor.execute(statement, parameters)
            raise self._lost()
        return False  # SQLAlchemy executes it

    def _do_commit(self, connection: Any) -> None:
        if not self._reached("COMMIT"):
            self._commit(connection)
            return
        if self.when == "after" and self._n_statements == self.at:
            self._commit(connection)
        raise self._lost()

    def _reached(self, statement: str) -> bool:
        self._n_statements += 1
        if self._n_statements == self.at:
            self.happened, self.statement = True, statement
            return True
        return self.lasting and self.happened

    def _lost(self) -> Exception:
        found: Exception = self._engine.dialect.loaded_dbapi.OperationalError("connection lost")
        return found
