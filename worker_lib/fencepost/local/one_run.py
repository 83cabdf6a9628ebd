"""One `fencepost run` at a time has a store: a second one is told so, before it starts a worker.

Two would do no harm to the store, which many processes share, but the workers of the second would find the
outboxes of the first locked and be started again and again. The lock is `flock` on a file beside the store,
so it ends with the run, however that ends; the file's text is the run's process, for the refusal.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PID_BYTES_MAX: Final = 32


class StoreTaken(ValueError):  # noqa: N818 - the sentence a reader sees
    """Another run has the store, and the message names its process; or nobody can tell whether one has."""


@contextmanager
def only_run_on(store: Path) -> Iterator[None]:
    """Have the store for this run alone. Raises `StoreTaken` at once."""
    descriptor = _opened(store.with_name(f"{store.name}.run"))
    try:
        _lock(descriptor, store)
        with suppress(OSError):  # a full disk: the lock holds without its text
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as failure:
        raise StoreTaken(f"the lock file of a run, {path}, cannot be opened: {failure.strerror}") from None


def _lock(descriptor: int, store: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(descriptor, PID_BYTES_MAX, 0).decode("ascii", "replace")
        who = f" (pid {pid})" if pid else ""
        raise StoreTaken(
            f"another fencepost run has this store{who}: wait for it or stop it, or give this one a --store "
            f"of its own; the store is {store}"
        ) from None
