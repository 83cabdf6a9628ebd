"""A disk that fails at the n-th call, under the real SQLite: its own hook for system calls is used.

SQLite calls the operating system through a table that a test may change (`sqlite3_vfs.xSetSystemCall`). So
the library that Python itself has loaded meets the error, and nothing of ours is replaced.
"""

from __future__ import annotations

import ctypes
import errno
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

POSITION_OF_SET: Final = 16  # of xSetSystemCall among the pointers of sqlite3_vfs, which follow three numbers
POSITION_OF_GET: Final = 17

SIGNATURES: Final[dict[str, Any]] = {
    "pwrite64": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64),
    "pwrite": (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64),
    "ftruncate": (ctypes.c_int, ctypes.c_int, ctypes.c_int64),
    "open": (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
}


class NoHook(Exception):  # noqa: N818
    """This Python has its SQLite inside, where the hook cannot be reached."""


@dataclass(slots=True)
class Fault:
    """Counts the calls from the moment it is armed; `met` says whether one has failed."""

    nth: int
    persistent: bool
    error: int
    calls: int = 0
    met: bool = False
    armed: bool = True

    def strikes(self) -> bool:
        if not self.armed:
            return False
        self.calls += 1
        now = self.calls >= self.nth if self.persistent else self.calls == self.nth
        self.met = self.met or now
        return now


@contextmanager
def failing(call: str, *, nth: int, persistent: bool = False, error: int = errno.EIO) -> Iterator[Fault]:
    """Within it, SQLite's `nth` call of this kind fails, or all from there on."""
    vfs, set_call, get_call = _hook()
    name = call if get_call(vfs, call.encode()) else call.removesuffix("64")
    original_pointer = get_call(vfs, name.encode())
    kind = ctypes.CFUNCTYPE(*SIGNATURES[name], use_errno=True)
    original = kind(original_pointer)
    fault = Fault(nth=nth, persistent=persistent, error=error)

    def replaced(*arguments: Any) -> int:
        if fault.strikes():
            ctypes.set_errno(fault.error)
            return -1
        return int(original(*arguments))

    callback = kind(replaced)
    set_call(vfs, name.encode(), ctypes.cast(callback, ctypes.c_void_p))
    try:
        yield fault
    finally:
        fault.armed = False
        set_call(vfs, name.encode(), ctypes.c_void_p(original_pointer))


def _hook() -> tuple[int, Callable[..., int], Callable[..., int]]:
    library = _loaded_sqlite()
    library.sqlite3_vfs_find.restype = ctypes.c_void_p
    vfs = library.sqlite3_vfs_find(None)
    numbers = 3 * ctypes.sizeof(ctypes.c_int)
    size = ctypes.sizeof(ctypes.c_void_p)
    first = vfs + (numbers + size - 1) // size * size
    pointers = ctypes.cast(first, ctypes.POINTER(ctypes.c_void_p))
    set_kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    get_kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    return vfs, set_kind(pointers[POSITION_OF_SET]), get_kind(pointers[POSITION_OF_GET])


def _loaded_sqlite() -> ctypes.CDLL:
    assert sqlite3.sqlite_version
    for line in Path("/proc/self/maps").read_text().splitlines():
        name = line.split()[-1]
        if "libsqlite3" in name:
            return ctypes.CDLL(name)
    raise NoHook("the SQLite of this Python is no shared library: its disk cannot be made to fail")
