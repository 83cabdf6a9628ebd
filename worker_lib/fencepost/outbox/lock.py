"""The lock file that makes an outbox one process's own.

SQLite's own locks do not suffice: they are POSIX locks, which the owning process loses when it closes *any*
handle of the database file, and ReadWriteOnce limits nodes, not pods, so two pods of one Job may share a
volume. `flock` belongs to the open file: it ends with the process, however it dies, and a second open in the
same process is refused too. The file is never removed, or two processes could hold the lock of two files of
one name. Who only looks shares the lock with others who look, never with an owner.

The file's text says who has it, for the person who reads the refusal. A forked child gives its copy up at
once: else a child that outlives the worker would keep the outbox locked.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from weakref import WeakSet

from fencepost.outbox.refusals import OutboxRefused, RefusalCode

TEXT_BYTES_MAX: Final = 4096


class OwnerLock:
    """The lock, held from `take` until `release` or the end of the process."""

    def __init__(self, path: Path, descriptor: int, before: Mapping[str, object]) -> None:
        self.path = path
        self.before = before
        """What the lock file said before: the last owner, empty for a new file."""
        self._descriptor: int | None = descriptor
        _held.add(self)

    @classmethod
    def take(cls, database: Path, *, to_look: bool = False) -> OwnerLock:
        """The lock beside `database`; raises `OutboxRefused(IN_USE)` naming the holder, or `OSError`.

        `to_look`: kept together with others who look; the file needs no right to write then.
        """
        path = lock_path(database)
        access, kind = (os.O_RDONLY, fcntl.LOCK_SH) if to_look else (os.O_RDWR, fcntl.LOCK_EX)
        descriptor = os.open(path, access | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            message = _in_use(database, descriptor, to_look=to_look)
            os.close(descriptor)
            raise OutboxRefused(RefusalCode.IN_USE, message) from None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, _read(descriptor))

    @property
    def remembers_outbox(self) -> bool:
        """Whether an outbox has lived beside this lock file, whatever is there now."""
        return bool(self.before.get("outbox"))

    def write_owner(self, *, owner: str, outbox: str, incarnation: str, at: str) -> None:
        """Say who has it. Raises `OSError`; the lock itself does not depend on the text."""
        if self._descriptor is None:
            return
        text = json.dumps(
            {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "owner": owner,
                "outbox": outbox,
                "incarnation": incarnation,
                "since": at,
            }
        )
        # Written over, then cut: on a full disk the old text stands for a moment longer, but never none.
        os.pwrite(self._descriptor, text.encode("utf-8"), 0)
        os.ftruncate(self._descriptor, len(text.encode("utf-8")))

    def release(self) -> None:
        """Let go; may be called twice. Closing is enough: nobody else has this open file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_held: WeakSet[OwnerLock] = WeakSet()


def _release_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)


def lock_path(database: Path) -> Path:
    """The lock file's place: beside the database, so that it is on the same volume."""
    return database.with_name(database.name + ".lock")


def _read(descriptor: int) -> Mapping[str, object]:
    try:
        known = json.loads(os.pread(descriptor, TEXT_BYTES_MAX, 0).decode("utf-8"))
    except (ValueError, OSError):
        return {}
    return known if isinstance(known, dict) else {}


def _in_use(database: Path, descriptor: int, *, to_look: bool) -> str:
    if not to_look and _is_only_looked_at(descriptor):
        return (
            f"outbox {database} is being looked into by another command (`fencepost outbox ls`, `dead` or "
            "`audit`): try again when that has ended"
        )
    who = _who(_read(descriptor))
    if to_look:
        return f"outbox {database} is in use by {who}: a worker has it open: stop it, or look at its log"
    return (
        f"outbox {database} is in use by {who}. One outbox belongs to one process: "
        "give this worker a file of its own, or end the other one first"
    )


def _is_only_looked_at(descriptor: int) -> bool:
    """Whether those who have the lock share it. Ours ends when the caller closes the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _who(holder: Mapping[str, object]) -> str:
    if not holder:
        return "another process that has not said its name yet"
    return (
        f"process {holder.get('pid')} of {holder.get('owner')} on host {holder.get('host')}, "
        f"since {holder.get('since')}"
    )
