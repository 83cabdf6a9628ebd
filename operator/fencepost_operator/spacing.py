"""When a job's progress is written down before it is joined: seldom.

A status write of 1,024 branches costs the API server half a second, so there are at most a dozen
intermediate ones in the life of a job, each twice as long after the one before. The final one, and what a
person has to be told, never wait.
"""

from __future__ import annotations

from typing import Final

FIRST_SECONDS: Final = 10.0
WRITES_MAX: Final = 12  # the last of them comes after some eleven hours


class Spacing:
    """The dates of one job's intermediate writes, on a monotonic clock."""

    def __init__(self, *, now: float) -> None:
        self._writes = 0
        self._not_before = now + FIRST_SECONDS

    def due(self, now: float) -> bool:
        return self._writes < WRITES_MAX and now >= self._not_before

    def seconds_until_due(self, now: float) -> float | None:
        """None if there is none left."""
        return None if self._writes >= WRITES_MAX else max(0.0, self._not_before - now)

    def wrote(self, now: float) -> None:
        """An intermediate status was written now."""
        self._writes += 1
        self._not_before = now + FIRST_SECONDS * 2.0**self._writes
