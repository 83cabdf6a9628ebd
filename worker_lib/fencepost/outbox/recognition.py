"""Whether a file is an outbox, asked before anything is written beside it or moved.

A name is mistyped more often than a disk fails. So a file is only ever moved aside as a damaged outbox if
something says that it was one: its lock file, which remembers the outbox that last lived there, or the
application id in its header. Everything else belongs to somebody else and is left alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fencepost.outbox.lock import lock_path
from fencepost.outbox.refusals import OutboxRefused, RefusalCode
from fencepost.outbox.statements import APPLICATION_ID

SQLITE_MAGIC: Final = b"SQLite format 3\0"
JOURNAL_MAGIC: Final = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"  # of a journal with a transaction to undo
APPLICATION_ID_AT: Final = 68  # its offset in the header: https://sqlite.org/fileformat2.html, section 1.3
HEADER_BYTES: Final = 100


def refuse_stranger_without_lock(path: Path) -> None:
    """As `refuse_stranger`, before a lock file is made: beside a stranger's file there shall be none.

    Where a lock file is, the file is not even opened here: closing it would drop the owner's POSIX locks.
    """
    if not lock_path(path).exists():
        refuse_stranger(path, remembered=False)


def refuse_stranger(path: Path, *, remembered: bool) -> None:
    """Refuse a file that is no database and never was an outbox; `remembered`: the lock file knows one."""
    head = _head(path, HEADER_BYTES)
    if head and not remembered and not _may_be_database(path, head):
        raise no_outbox(path, "it is no SQLite database")


def was_outbox(path: Path, *, remembered: bool) -> bool:
    """Whether the file may be moved aside as a damaged outbox. The caller has the lock."""
    return remembered or _has_application_id(_head(path, HEADER_BYTES))


def no_outbox(path: Path, reason: str) -> OutboxRefused:
    """The refusal of a stranger's file."""
    return OutboxRefused(
        RefusalCode.DAMAGED, f"{path} is no outbox ({reason}) and was left alone: name another file"
    )


def _may_be_database(path: Path, head: bytes) -> bool:
    """By its header, or because a journal is there that restores it: a power cut while it was made."""
    journal = path.with_name(path.name + "-journal")
    return (
        head.startswith(SQLITE_MAGIC)
        or _has_application_id(head)
        or _head(journal, len(JOURNAL_MAGIC)) == JOURNAL_MAGIC
    )


def _has_application_id(head: bytes) -> bool:
    return head[APPLICATION_ID_AT : APPLICATION_ID_AT + 4] == APPLICATION_ID.to_bytes(4, "big")


def _head(path: Path, size: int) -> bytes:
    """The first bytes; none of a file that cannot be read, which the probe tells with its owner."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""
