"""The SQL of the outbox: named statements out of `queries.sql`, and the migrations, one file a version.

A file knows its version (`user_version`). Each migration runs whole or not at all, together with the version
it leads to; a file of a later version than this library knows is left alone.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final

APPLICATION_ID: Final = 0x46504F42  # "FPOB": says that a SQLite file is an outbox, and not another program's

MIGRATION_FILES: Final = ("0001_first.sql",)  # position + 1 is the version it leads to

_NAMED: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def query(name: str) -> str:
    """The statement of this name; raises `KeyError`."""
    return _queries()[name]


@cache
def _queries() -> dict[str, str]:
    parts = _NAMED.split(_text("queries.sql"))[1:]
    return dict(zip(parts[::2], (text.strip() for text in parts[1::2]), strict=True))


def migrations() -> tuple[str, ...]:
    """The scripts in their order."""
    return tuple(_text(name) for name in MIGRATION_FILES)


def version_of(connection: sqlite3.Connection) -> int:
    """How many migrations the file has seen."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(connection: sqlite3.Connection, scripts: Sequence[str]) -> None:
    """Bring the file to version `len(scripts)`, each step in a transaction of its own."""
    for version in range(version_of(connection) + 1, len(scripts) + 1):
        _migrate_to(connection, version, scripts[version - 1])


def _migrate_to(connection: sqlite3.Connection, version: int, script: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in statements_of(script):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def statements_of(script: str) -> list[str]:
    """The statements of a script one by one, each ending with a line.

    `executescript` would end the transaction first.
    """
    statements: list[str] = []
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            statements.append(text)
            text = ""
    return statements


def _text(name: str) -> str:
    return files("fencepost.outbox").joinpath("sql", name).read_text(encoding="utf-8")
