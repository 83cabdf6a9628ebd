"""The lock around every transaction of a store file: `flock` on a file beside it.

The kernel queues who waits and wakes the next, so a writer waits as long as the work before it takes and not
a sleep longer. It is let go when its holder dies, however that happens. A lock on the database file itself
would be lost when any other connection of the process closes that file.

A holder that is stopped (SIGSTOP, a debugger, a frozen cgroup) neither dies nor goes on. No wait for `flock`
can be bounded, so whoever must not wait for ever waits in a thread that it can leave behind (`turns`, and
`alone_within` here). To ask again and again instead would be to lose against all who wait in the kernel.
The file's text is the process that had the lock last, for the person who has to see to it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from fencepost.ports import Cause, StoreRefused

PID_BYTES: Final = 11  # always so many, so that a shorter one leaves nothing of a longer one


class FileLock:
    """One open lock file. Not to be shared between threads that lock at the same time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file; raises `StoreRefused` with a sentence."""
        self.path = path
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            folder = path.parent.resolve()
            hint = (
                f"its lock file cannot be made or opened in {folder} ({failure.strerror}): use a folder that "
                "this user may write"
                if folder.is_dir()
                else f"there is no folder {folder}, make it"
            )
            message = f"the store {path.with_suffix('')} cannot be used: {hint}"
            raise StoreRefused(message, Cause.ADMISSION) from failure

    @property
    def closed(self) -> bool:
        return self._descriptor is None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock with nobody beside us, waiting as long as it takes."""
        descriptor = self._open_descriptor()
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with self._held(descriptor):
            yield

    @contextmanager
    def alone_if_free(self) -> Iterator[bool]:
        """The same without waiting; whether the lock is held."""
        descriptor = self._open_descriptor()
        if not _taken_at_once(descriptor):
            yield False
            return
        with self._held(descriptor):
            yield True

    @contextmanager
    def alone_within(self, seconds: float) -> Iterator[bool]:
        """The same, waiting for `seconds` at most; whether the lock is held.

        If it is not, this lock has to be closed: somebody may still wait with it.
        """
        descriptor = self._open_descriptor()
        if not (_taken_at_once(descriptor) or _taken_within(descriptor, seconds)):
            yield False
            return
        with self._held(descriptor):
            yield True

    @property
    def last_holder(self) -> str:
        """The process that has the lock or had it last, as text; empty if nobody can tell."""
        return os.pread(self._open_descriptor(), PID_BYTES, 0).decode("ascii", "replace").strip()

    @contextmanager
    def _held(self, descriptor: int) -> Iterator[None]:
        try:
            with suppress(OSError):  # a disk without room for ten bytes: the lock holds without its text
                os.pwrite(descriptor, str(os.getpid()).encode().ljust(PID_BYTES), 0)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise StoreRefused(f"the store of {self.path} is closed", Cause.ADMISSION)
        return self._descriptor

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _taken_at_once(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _taken_within(descriptor: int, seconds: float) -> bool:
    """Wait in a thread with a descriptor of its own for the same open file, whose lock is ours too."""
    taken = threading.Event()
    waiting = os.dup(descriptor)

    def wait() -> None:
        try:
            fcntl.flock(waiting, fcntl.LOCK_EX)
            taken.set()
        finally:
            os.close(waiting)  # the last one to close lets go of what came too late

    threading.Thread(target=wait, name="fencepost-lock", daemon=True).start()
    return taken.wait(seconds)
