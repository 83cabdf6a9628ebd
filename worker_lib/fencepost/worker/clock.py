"""The two clocks of a worker, and what each may be used for.

Durations (its own deadline, backoff) are measured by a clock that nobody sets and that goes on while the
machine sleeps: a worker that was frozen for an hour must see that its lease is over. The time of day is
only ever written down, as information; nothing is decided by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

Seconds = Callable[[], float]
"""A clock of durations: seconds since some fixed moment."""

_NEVER_SET: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def seconds_since_boot() -> float:
    """CLOCK_BOOTTIME where there is one (Linux), else the monotonic clock."""
    return time.clock_gettime(_NEVER_SET)


def time_of_day() -> str:
    """The time of day as RFC 3339 text in UTC with microseconds. Informative only."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
