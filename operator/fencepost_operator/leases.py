"""How long a lease, or a hold, has stood unchanged: on this process's own monotonic clock.

A lease is over when *one observer* has seen no change of (UID, token, renewals) for its duration; nobody
compares two machines' clocks, and no timestamp that a worker wrote is looked at. `renewals` is a counter
because two equal times would be no change. After a restart every lease starts afresh: it may live longer
than it asked for, never shorter.

Seeing late makes a lease longer, so everything that delays an observation errs on the safe side.
"""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.protocol.task import Hold, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sighting:
    """What was seen, and since when it has been seen like that."""

    uid: str
    token: int
    hold: Hold
    renewals: int
    since: float

    def is_of(self, task: Task) -> bool:
        return (self.uid, self.token, self.hold, self.renewals) == (
            task.uid,
            task.token,
            task.hold,
            task.renewals,
        )


class LeaseObserver:
    """Remembers for each task that is held or on hold since when it has been so. Others cost nothing."""

    def __init__(self) -> None:
        self._sightings: dict[tuple[str, str], _Sighting] = {}

    def __len__(self) -> int:
        return len(self._sightings)

    def unchanged_seconds(self, task: Task, *, now: float) -> float:
        """Seconds since (UID, token, hold, renewals) were first seen as they are; 0 at the first look.

        `now` is monotonic. A settled task, and one that nobody holds or put on hold, is forgotten.
        """
        place = (task.key.namespace, task.key.name)
        if task.hold is None or task.settled:
            self._sightings.pop(place, None)
            return 0.0
        known = self._sightings.get(place)
        if known is None or not known.is_of(task):
            known = _Sighting(
                uid=task.uid, token=task.token, hold=task.hold, renewals=task.renewals, since=now
            )
            self._sightings[place] = known
        return now - known.since

    def forget(self, namespace: str, name: str) -> None:
        """The task is gone."""
        self._sightings.pop((namespace, name), None)
