"""The API server's own time, kept between its answers by our monotonic clock.

The time in a snapshot, and the age of a task, are by the server's clock: ours may be wrong, and two
operators would not agree. Every answer carries a `Date`, good to the second.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime


class ServerClock:
    """Time as the server tells it. `clock` is monotonic, in seconds."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: datetime | None = None
        self._told_at = 0.0

    @property
    def is_set(self) -> bool:
        return self._told is not None

    def tell(self, date: str) -> None:
        """The `Date` header of an answer that came in now. What is no date is passed over."""
        try:
            told = parsedate_to_datetime(date)
        except (TypeError, ValueError):
            return
        self._told = told if told.tzinfo else told.replace(tzinfo=UTC)
        self._told_at = self._clock()

    def now(self) -> datetime:
        """The server's time now; the epoch if it has not said anything yet."""
        if self._told is None:
            return datetime.fromtimestamp(0, UTC)
        return self._told + timedelta(seconds=self._clock() - self._told_at)

    def text(self) -> str:
        """The server's time now as RFC 3339 text in whole seconds."""
        return self.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def age_seconds(self, created_at: str) -> float:
        """Seconds since an object's creationTimestamp; 0 where nobody can tell."""
        if not created_at or self._told is None:
            return 0.0
        return max(0.0, (self.now() - datetime.fromisoformat(created_at)).total_seconds())
