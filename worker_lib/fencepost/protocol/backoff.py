"""How long a task waits after a failure: exponential, capped, with full jitter.

The jitter is a fraction between 0 and 1 that the caller hands in. `spread_of` makes one from the task's UID
and token, so that every observer, a restarted one too, comes to the same wait without storing it.
"""

from __future__ import annotations

from fencepost.protocol.payload import framed_sha256
from fencepost.protocol.task import RetryPolicy, Task

SPREAD_DOMAIN = "fencepost/backoff/v1"


def backoff_seconds(policy: RetryPolicy, *, failures: int, spread: float) -> float:
    """Seconds to wait after the given number of failures: between half and all of base × 2^(failures − 1).

    Half is kept so that a task that fails at once never spins.
    """
    if failures <= 0:
        return 0.0
    doublings = min(failures - 1, 32)
    ceiling = min(policy.backoff_max_seconds, policy.backoff_base_seconds * (1 << doublings))
    return ceiling * (0.5 + 0.5 * spread)


def spread_of(task: Task) -> float:
    """A fraction in [0, 1) that is the same for everybody who looks at this task under this token."""
    return int(framed_sha256(SPREAD_DOMAIN, task.uid, str(task.token))[:12], 16) / float(1 << 48)
