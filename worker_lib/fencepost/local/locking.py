"""The lock around every transaction of a store file: `flock` on a file beside it.

The kernel queues who waits and wakes the next, so a writer waits as long as the work before it takes and not
a sleep longer. It is let go when its holder dies, however that happens. A lock on the database file itself
would be lost when any other connection of the process closes that file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fencepost.ports import Cause, StoreRefused


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
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    @contextmanager
    def alone_if_free(self) -> Iterator[bool]:
        """The same without waiting; whether the lock is held."""
        descriptor = self._open_descriptor()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
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
