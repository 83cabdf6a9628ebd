"""What a worker may be told about itself, with the reason of each default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Candidates of one list. One worker saves nothing by more of them.
PAGE: Final = 64
# So many times as many after a page of which others won claims: a larger page is shared with fewer of them.
SHARED_PAGES: Final = 4
# Claims of one page that others won before it counts as stale and is listed again.
LOST_CLAIMS_MAX: Final = 3
# A read of a job may be shared by the tasks of a page for this long.
JOB_READ_SECONDS_MAX: Final = 10.0
# Longer than a request that was given up can still be applied (the API server's own limit is 34 s).
PATIENCE_SECONDS: Final = 40.0
# Kubernetes kills 30 s after SIGTERM by default: five are left to submit and release.
GRACE_SECONDS: Final = 25.0
# Parked rows looked at in one turn, and how often at most: each look is a read.
PARKED_LOOKS_MAX: Final = 32
PARKED_LOOK_SECONDS: Final = 10.0
RETRY_SECONDS_MIN: Final = 0.2
RETRY_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one run of a worker behaves. All times in seconds.

    `once`: drain, claim until nothing is left, end. `grace_seconds`: how long a handler may go on after the
    first signal. `idle_seconds_*`: how long to wait when there is nothing to claim, growing from the one to
    the other. `patience_seconds`: how long the fate of one write is looked for before the next turn does, and
    how long `once` waits for a store that is away.
    """

    once: bool = False
    grace_seconds: float = GRACE_SECONDS
    idle_seconds_min: float = 0.5
    idle_seconds_max: float = 5.0
    patience_seconds: float = PATIENCE_SECONDS
    page: int = PAGE


def retry_seconds(tries: int, *, spread: float) -> float:
    """Seconds before try number `tries` + 1: doubling, capped, half of it jitter (`spread` in [0, 1))."""
    doubled = RETRY_SECONDS_MIN * (1 << min(max(tries, 1) - 1, 16))
    return min(RETRY_SECONDS_MAX, doubled) * (0.5 + 0.5 * spread)
