"""The queue of keys: level-triggered, deduplicated, delayed, with backoff and bounded concurrency.

A key says *look at this object*, never *this happened to it*, so it does not matter how many events stand
behind it or whether some were lost. Guarantees:

* a key is in work at most once at a time; what is added meanwhile is worked once more afterwards;
* a key has at most one date in the future, the earliest that anybody asked for; working it too early is
  harmless, since its reconciler looks at the world and asks for the next date;
* a key whose work failed comes back after a pause that doubles up to a maximum, and is forgotten by the
  backoff as soon as its work ends well.

Nothing is scanned: a turn costs one step of a heap, whatever the number of tasks in the cluster.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

BACKOFF_SECONDS_FIRST: Final = 0.25
BACKOFF_SECONDS_MAX: Final = 60.0
BACKOFF_DOUBLINGS_MAX: Final = 16  # beyond it the maximum is reached by far; keeps the number small

Key = TypeVar("Key", bound=Hashable)
Clock = Callable[[], float]


class WorkQueue(Generic[Key]):
    """Keys to be worked by `run`. One event loop owns it; nothing here is safe from another thread."""

    def __init__(self, *, clock: Clock) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._ready: deque[Key] = deque()
        self._waiting: set[Key] = set()  # in `_ready`
        self._in_work: set[Key] = set()
        self._again: set[Key] = set()  # added while in work
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait to be worked now (delayed ones are not counted)."""
        return len(self._ready) + len(self._again)

    @property
    def delayed(self) -> int:
        """Keys that have a date in the future."""
        return len(self._due)

    @property
    def in_work(self) -> int:
        return len(self._in_work)

    def add(self, key: Key) -> None:
        """Have the key worked as soon as there is a hand free."""
        if key in self._in_work:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._changed.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Have the key worked in `seconds`, or earlier if that was asked for already."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock() + seconds
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._changed.set()

    def add_after_failure(self, key: Key, *, at_least: float = 0.0) -> float:
        """Have the key worked after its backoff; the seconds until then."""
        failures = self._failures.get(key, 0)
        self._failures[key] = min(failures + 1, BACKOFF_DOUBLINGS_MAX)
        seconds = max(at_least, min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_FIRST * 2.0**failures))
        self.add_after(key, seconds)
        return seconds

    def succeeded(self, key: Key) -> None:
        """The work of the key went well: its next failure waits the first pause again."""
        self._failures.pop(key, None)

    def forget(self, key: Key) -> None:
        """The object is gone: no date, no backoff. Work that waits is left; it finds nothing and ends."""
        self._failures.pop(key, None)
        self._due.pop(key, None)

    async def run(self, work: Callable[[Key], Awaitable[None]], *, hands: int) -> None:
        """Works keys with at most `hands` at a time, until cancelled. `work` must not raise."""
        async with asyncio.TaskGroup() as group:
            for _ in range(hands):
                group.create_task(self._work_for_ever(work))

    async def _work_for_ever(self, work: Callable[[Key], Awaitable[None]]) -> None:
        while True:
            key = await self._next()
            try:
                await work(key)
            finally:
                self._done(key)

    async def _next(self) -> Key:
        while True:
            self._promote_what_is_due()
            if self._ready:
                key = self._ready.popleft()
                self._waiting.discard(key)
                self._in_work.add(key)
                if self._ready:
                    self._changed.set()  # another hand may sleep
                return key
            await self._wait_for_change()

    def _done(self, key: Key) -> None:
        self._in_work.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _promote_what_is_due(self) -> None:
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:  # else an earlier date was worked, or the key was forgotten
                del self._due[key]
                self.add(key)

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        pause = self._heap[0][0] - self._clock() if self._heap else None
        try:
            async with asyncio.timeout(pause):
                await self._changed.wait()
        except TimeoutError:
            pass
