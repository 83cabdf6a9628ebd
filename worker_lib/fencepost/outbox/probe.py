"""The probe of the place an outbox is to live in, before anything is claimed.

A worker that finds out at its first result that it cannot store it has done the work for nothing. So the
start writes, syncs and removes a file beside the database, looks at who owns what is there, and asks the
kernel what file system it is:

* network file systems are refused unless asked for: their locks and their fsync depend on a server and on
  mount options, and two pods on two nodes may both get the lock;
* FUSE is refused likewise, for nobody can say what is behind it;
* memory file systems pass with a warning: what is on them is gone with the machine, or with the pod.

A disk without room is no refusal here: what an outbox has can still be sent.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fencepost.outbox.refusals import OutboxRefused, RefusalCode

FileSystemType = Callable[[Path], int]
"""The `f_type` of statfs(2) for a path; 0 where nobody can tell."""

ROOM_BYTES: Final = 64 * 1024  # the largest result, with the pages of index and journal that it may need

# f_type of statfs(2), from linux/magic.h and the file systems' own headers.
NETWORK_TYPES: Final[dict[int, str]] = {
    0x6969: "NFS",
    0xFE534D42: "SMB2",
    0xFF534D42: "CIFS",
    0x517B: "SMB",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x19830326: "BeeGFS",
}
MEMORY_TYPES: Final[dict[int, str]] = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}


def judge_place(database: Path, *, file_system_type: FileSystemType, allow_network: bool) -> tuple[str, ...]:
    """What a person should know of the directory of `database`; raises `OutboxRefused`. Touches no file."""
    directory = database.parent
    if not directory.is_dir():
        raise _not_writable(f"{directory} is no directory: create it, or mount the volume there")
    return _judge_file_system(directory, file_system_type(directory), allow_network=allow_network)


def room_to_write(database: Path) -> bool:
    """Write, sync and remove a file beside `database`, under its lock; whether there was room.

    Raises `OutboxRefused` with uid, path, owner and what to do.
    """
    for path in (database, database.with_name(database.name + "-journal")):
        _refuse_unwritable_file(path)
    return has_room(database)


def has_room(database: Path) -> bool:
    """Whether the volume takes a result of any size now; touches no file of the outbox itself.

    Raises `OutboxRefused` for everything but a want of room.
    """
    return _write_and_sync(database.parent, f".{database.name}.probe")


def has_room_again(database: Path) -> bool:
    """As `has_room`, for an outbox that is open: whatever is in the way, there is no room yet."""
    try:
        return has_room(database)
    except OutboxRefused:
        return False


def _judge_file_system(directory: Path, kind: int, *, allow_network: bool) -> tuple[str, ...]:
    network = NETWORK_TYPES.get(kind)
    if network and not allow_network:
        raise OutboxRefused(
            RefusalCode.NETWORK_FILE_SYSTEM,
            f"{directory} is on {network} (type {kind:#x}): locks and fsync cannot be relied on there. Use a "
            "volume whose storage class gives block storage (access mode ReadWriteOncePod), or allow network "
            "file systems for this outbox if you know that only one node mounts it and that it honours fsync",
        )
    if network:
        return (
            f"{directory} is on {network}, as was allowed: only one node may mount it, it must honour fsync",
        )
    memory = MEMORY_TYPES.get(kind)
    if memory:
        gone = "results that were not sent are gone with the machine or pod"
        return (f"{directory} is on {memory}: not durable, {gone}",)
    return ()


def _refuse_unwritable_file(path: Path) -> None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise refusal_of(error, path) from None
    if not stat.S_ISREG(found.st_mode):
        raise _not_writable(f"{path} is no regular file: name a file that does not exist yet, or an outbox")
    try:
        # Opened, not asked: access(2) answers for the real user, not for the effective one. Closing this
        # handle drops no lock: the lock file is ours, so SQLite has none yet in this process.
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise refusal_of(error, path) from None


def _write_and_sync(directory: Path, name: str) -> bool:
    """Whether there was room; raises `OutboxRefused` for everything else that fails."""
    path = directory / name
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return _no_room(error, directory)
    try:
        written = os.write(descriptor, b"\0" * ROOM_BYTES)
        os.fsync(descriptor)
    except OSError as error:
        return _no_room(error, directory)
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
    _sync_directory(directory)
    return written == ROOM_BYTES


def _no_room(error: OSError, directory: Path) -> bool:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return False
    raise refusal_of(error, directory) from None


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise refusal_of(error, directory) from None
    finally:
        os.close(descriptor)


def refusal_of(error: OSError, path: Path) -> OutboxRefused:
    """The refusal that says why `path` cannot be written, by whom, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutboxRefused(RefusalCode.FULL, f"no room for {path}: make room on the volume")
    if error.errno == errno.EROFS:
        return _not_writable(
            f"{path} is on a read-only mount (uid {os.geteuid()}): mount a writable volume there, or name "
            "another path (with readOnlyRootFilesystem only mounted volumes can be written)"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return _not_writable(
            f"uid {os.geteuid()} may not write {path} ({_owner_of(path)}): set fsGroup in the pod's "
            "securityContext, or change the owner of the volume's files"
        )
    return _not_writable(f"{path}: {error.strerror}")


def _owner_of(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "owner unknown"
    return f"owner {found.st_uid}:{found.st_gid}, mode {stat.S_IMODE(found.st_mode):04o}"


def _not_writable(message: str) -> OutboxRefused:
    return OutboxRefused(RefusalCode.NOT_WRITABLE, f"the outbox cannot be written: {message}")


def statfs_type(path: Path) -> int:
    """The file-system type that the kernel answers for `path`; 0 where it cannot be asked.

    The standard library has only statvfs(3), which leaves the type out.
    """
    if not sys.platform.startswith("linux"):
        return 0
    answer = ctypes.create_string_buffer(512)  # more than any architecture's struct statfs
    library = ctypes.CDLL(None, use_errno=True)
    if library.statfs(os.fsencode(path), answer) != 0:
        return 0
    return (
        ctypes.cast(answer, ctypes.POINTER(ctypes.c_uint32)).contents.value if _is_narrow() else _wide(answer)
    )


def _is_narrow() -> bool:
    """Whether `f_type` has 32 bits: on s390x, and where a long has."""
    return os.uname().machine == "s390x" or ctypes.sizeof(ctypes.c_long) == 4


def _wide(answer: ctypes.Array[ctypes.c_char]) -> int:
    return int(ctypes.cast(answer, ctypes.POINTER(ctypes.c_uint64)).contents.value) & 0xFFFFFFFF
