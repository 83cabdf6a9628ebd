"""The time of a store file: it goes on as fast as time really passes, whatever is done to the wall clock.

Leases, backoffs and deadlines are judged by one clock, which many processes share through the file. The wall
clock alone cannot be it: set a year ahead and back again, it would end every lease at once, or, if the
store's time never went back, freeze the store for that year. So the file keeps a mark: the store's time, and
what the clocks of the machine said then. From there the time goes on by the kernel's boot clock, which nobody
can set and which goes on while the machine sleeps. After a restart of the machine that clock begins anew:
then, and only then, the difference of the wall clock counts, and never backwards.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
# Where there is no boot clock the monotonic one serves: it may stand still while the machine sleeps.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the clocks of the machine say: seconds since 1970, seconds since its start, and which start."""

    wall: float
    boottime: float
    boot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The store's time, in seconds since 1970, at a reading. `reading` is None in a file without any yet."""

    time: float
    reading: Reading | None


def boottime_seconds() -> float:
    """Seconds since the machine was started, its sleep included."""
    return time.clock_gettime(_BOOT_CLOCK)


@cache
def boot_id() -> str:
    """Which start of the machine this is; empty where the system does not say.

    Without it a restart is seen by a boot clock that is behind the mark.
    """
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def goes_on(mark: Mark, reading: Reading) -> bool:
    """Whether the boot clock has gone on since the mark: both are of one start of the machine."""
    before = mark.reading
    return before is not None and before.boot == reading.boot and before.boottime <= reading.boottime


def store_time(mark: Mark, reading: Reading) -> float:
    """The store's time at `reading`, never before the mark's."""
    before = mark.reading
    if before is None:
        return max(mark.time, reading.wall)
    if goes_on(mark, reading):
        return mark.time + (reading.boottime - before.boottime)
    return mark.time + max(0.0, reading.wall - before.wall)
