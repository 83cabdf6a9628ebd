"""The place is probed before anything is claimed: file system (B22), rights and owners (B26)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencepost.outbox import OutboxRefused, RefusalCode
from fencepost.outbox.lock import lock_path
from fencepost.outbox.probe import statfs_type
from tests.outbox.given import opened

NETWORK = {"NFS": 0x6969, "SMB2": 0xFE534D42, "CIFS": 0xFF534D42, "FUSE": 0x65735546}
LOCAL = {"ext4": 0xEF53, "xfs": 0x58465342, "overlay": 0x794C7630, "btrfs": 0x9123683E, "untold": 0}
NOBODY = 65534

# Everything is imported and read before the user changes: the interpreter itself may be root's alone.
OPEN_AS_NOBODY = """
import json, os, sys
from pathlib import Path
from fencepost.outbox import OutboxRefused
from tests.outbox.given import opened
opened(Path(sys.argv[2]) / "warm.db").close()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    opened(Path(sys.argv[1])).close()
    print(json.dumps([0, ""]))
except OutboxRefused as error:
    print(json.dumps([error.exit_code, str(error)]))
"""


@pytest.fixture
def public(path: Path) -> Iterator[Path]:
    """Where an outbox is whose directory other users can reach, which pytest's own keep to themselves."""
    with tempfile.TemporaryDirectory(prefix="fencepost-") as directory:
        place = Path(directory)
        place.chmod(0o755)
        yield place / path.name


@pytest.mark.parametrize("name", NETWORK)
def test_network_file_systems_are_refused_with_path_type_and_what_to_use(path: Path, name: str) -> None:
    with pytest.raises(OutboxRefused) as refusal:
        opened(path, file_system_type=lambda _: NETWORK[name])
    assert refusal.value.exit_code == RefusalCode.NETWORK_FILE_SYSTEM == 73
    for part in (name, str(path.parent), f"{NETWORK[name]:#x}", "storage class"):
        assert part in str(refusal.value)
    assert list(path.parent.iterdir()) == []


def test_a_network_file_system_is_used_if_it_was_asked_for_and_says_so(path: Path) -> None:
    with opened(path, file_system_type=lambda _: NETWORK["NFS"], allow_network=True) as outbox:
        assert [warning for warning in outbox.warnings if "NFS" in warning]


@pytest.mark.parametrize("name", LOCAL)
def test_local_file_systems_pass_without_a_word(path: Path, name: str) -> None:
    with opened(path, file_system_type=lambda _: LOCAL[name]) as outbox:
        assert outbox.warnings == ()


@pytest.mark.parametrize("kind", [0x01021994, 0x858458F6])
def test_memory_file_systems_warn_that_they_are_not_durable(path: Path, kind: int) -> None:
    with opened(path, file_system_type=lambda _: kind) as outbox:
        assert "not durable" in outbox.warnings[0]


def test_the_kernel_is_asked_for_the_type() -> None:
    """proc is the same file system on every Linux."""
    assert statfs_type(Path("/proc")) == 0x9FA0
    assert statfs_type(Path("/nowhere")) == 0


def test_the_probe_leaves_nothing_behind(path: Path) -> None:
    opened(path).close()
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "outbox.db",
        "outbox.db-journal",
        "outbox.db.lock",
    ]


def test_a_directory_that_is_missing_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutboxRefused, match="mount the volume there") as refusal:
        opened(tmp_path / "missing" / "outbox.db")
    assert refusal.value.exit_code == RefusalCode.NOT_WRITABLE == 72


def test_something_else_under_the_name_is_a_sentence(path: Path) -> None:
    path.mkdir()
    with pytest.raises(OutboxRefused, match="no regular file"):
        opened(path)


def opened_as_nobody(path: Path, own: Path) -> tuple[int, str]:
    """Exit code and message of an open as uid 65534, in another process; `own` is any place of root's."""
    if os.getuid() != 0:
        pytest.skip("only root can become uid 65534 to try this")
    answer = subprocess.run(
        [sys.executable, "-c", OPEN_AS_NOBODY, str(path), str(own)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout, answer.stderr
    code, message = json.loads(answer.stdout)
    return code, message


def owned_by_nobody(*paths: Path) -> None:
    for path in paths:
        os.chown(path, NOBODY, NOBODY)


def test_a_pod_user_opens_what_it_owns(public: Path, tmp_path: Path) -> None:
    public.parent.chmod(0o777)
    assert opened_as_nobody(public, tmp_path) == (0, "")


def test_a_directory_of_root_is_refused_with_uid_owner_and_hint(public: Path, tmp_path: Path) -> None:
    public.parent.chmod(0o755)
    code, message = opened_as_nobody(public, tmp_path)
    assert code == RefusalCode.NOT_WRITABLE
    for part in ("uid 65534", str(public.parent), "owner 0:0", "mode 0755", "set fsGroup"):
        assert part in message


def test_a_writable_file_in_a_directory_that_is_not_is_refused(public: Path, tmp_path: Path) -> None:
    opened(public).close()
    owned_by_nobody(public, lock_path(public), public.with_name("outbox.db-journal"))
    public.parent.chmod(0o755)
    code, message = opened_as_nobody(public, tmp_path)
    assert (code, f"may not write {public.parent} (" in message) == (RefusalCode.NOT_WRITABLE, True)


@pytest.mark.parametrize("name", ["outbox.db", "outbox.db-journal", "outbox.db.lock"])
def test_a_file_of_root_beside_the_others_is_named(public: Path, tmp_path: Path, name: str) -> None:
    opened(public).close()
    files = [public, lock_path(public), public.with_name("outbox.db-journal")]
    owned_by_nobody(public.parent, *(file for file in files if file.name != name))
    code, message = opened_as_nobody(public, tmp_path)
    assert (code, f"may not write {public.parent / name} (owner 0:0" in message) == (72, True)


def test_a_read_only_mount_is_refused(path: Path) -> None:
    """In a mount namespace of its own, so that nothing outside sees it."""
    opened(path).close()
    script = (
        f"mount --bind {path.parent} {path.parent} && mount -o remount,ro,bind {path.parent} && "
        f'exec {sys.executable} -c "{{}}" {path}'
    )
    program = (
        "import sys; from pathlib import Path; from tests.outbox.given import opened\n"
        "try: opened(Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error.exit_code, error)"
    )
    answer = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script.format(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in answer.stderr or "mount:" in answer.stderr:
        pytest.skip(f"no mount namespace to be had here: {answer.stderr.strip()}")
    assert answer.stdout.startswith("OutboxRefused 72 the outbox cannot be written"), answer.stderr
    assert "read-only mount" in answer.stdout
