"""A handler's own statements, in the transaction that stores its result: both take effect, or neither.

They may make and change the handler's own tables in the outbox file. SQLite's authorizer keeps them off ours
(every name that starts with `fencepost_`), off the transaction and off the settings, also from inside a
trigger.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from fencepost.outbox.refusals import DeferredStatementFailed, primary_code
from fencepost.outbox.rows import Statement

OWN_PREFIX: Final = "fencepost_"
SQL_CHARACTERS_SHOWN: Final = 200

_READS: Final = frozenset(
    {sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_FORBIDDEN: Final = frozenset(
    {
        sqlite3.SQLITE_TRANSACTION,
        sqlite3.SQLITE_SAVEPOINT,
        sqlite3.SQLITE_PRAGMA,
        sqlite3.SQLITE_ATTACH,
        sqlite3.SQLITE_DETACH,
    }
)
# The disk's failures are not the handler's.
_OF_THE_DISK: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT})


def run_deferred(connection: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    """Run them in order in the open transaction; raises `DeferredStatementFailed` naming the one."""
    if not statements:
        return
    connection.set_authorizer(_authorize)
    try:
        for statement in statements:
            _run(connection, statement)
    finally:
        connection.set_authorizer(None)


def _run(connection: sqlite3.Connection, statement: Statement) -> None:
    try:
        connection.execute(statement.sql, statement.parameters).close()
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, TypeError) as error:
        if isinstance(error, sqlite3.Error) and primary_code(error) in _OF_THE_DISK:
            raise
        raise _failed(statement, str(error)) from error
    if not connection.in_transaction:
        raise _failed(statement, "it ended the transaction")


def _failed(statement: Statement, why: str) -> DeferredStatementFailed:
    shown = statement.sql.strip()[:SQL_CHARACTERS_SHOWN]
    return DeferredStatementFailed(f"a deferred statement failed, nothing was stored: {why}: {shown}")


def _authorize(
    action: int, first: str | None, second: str | None, _base: str | None, _via: str | None
) -> int:
    if action in _READS:
        return sqlite3.SQLITE_OK
    ours = any(name is not None and name.lower().startswith(OWN_PREFIX) for name in (first, second))
    return sqlite3.SQLITE_DENY if ours or action in _FORBIDDEN else sqlite3.SQLITE_OK
