"""A store in memory for tests of workers: the rules of a real one, a clock to be moved, faults on request.

Nothing in it happens by itself: time stands still until `advance`. What it decides, the ledger decides that
the SQLite store uses as well, so a worker that is right here is right there; on a cluster a lease may live
longer than it asked for, never shorter.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, TypeVar

from fencepost.local import joining, keeping, reports
from fencepost.local.admission import refusal_of_task
from fencepost.local.embedded import EmbeddedStore
from fencepost.local.ledger import Ledger
from fencepost.ports import Answer, Applied, NewTask, Unanswered
from fencepost.protocol.consume import ConsumeVerdict
from fencepost.protocol.payload import request_text
from fencepost.protocol.task import ObjectKey, Task, TaskSpec
from fencepost.testing.drawers import Drawers

T = TypeVar("T")

NOON: Final = 1_767_268_800.0  # 2026-01-01T12:00:00Z, where the clock stands at first
JUST_OVER_SECONDS: Final = 0.001
ROUNDS_MAX: Final = 1_000  # of what is due in one `advance`: more would be a loop of our own


class Fault(Enum):
    """What happens to one write."""

    ANSWER_LOST = "it is applied and nobody is told"
    REQUEST_LOST = "it never arrives"
    DELAYED = "it arrives later"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delayed:
    at: float
    operation: Callable[[Ledger], Answer]


class MemoryStore(EmbeddedStore):
    """Everything a worker needs of a store, in one process. Safe to use from several threads."""

    def __init__(
        self,
        *,
        namespace: str = "default",
        account: str = "tester",
        now: float = NOON,
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        super().__init__(namespace=namespace, account=account)
        self.now = now
        self._new_uid = new_uid
        self._drawers = Drawers()
        self._turn = threading.RLock()
        self._faults: list[tuple[Fault, float]] = []
        self._delayed: list[_Delayed] = []

    def put(
        self, queue: str, request: Mapping[str, Any] | None = None, *, name: str = "", **spec: Any
    ) -> Task:
        """Create a task at once. `spec` are further fields of `TaskSpec`, as `lease_duration_seconds=30`.

        Raises `ValueError` if there is a task of this name, or for what a cluster would not take.
        """
        key = self._key(name or f"{queue}-{self._new_uid()[:8]}")
        wanted = TaskSpec(queue=queue, request=request_text(request or {}), **spec)
        new = NewTask(key=key, spec=wanted)
        answer = refusal_of_task(new) or self._transact(lambda ledger: ledger.create(new))
        if not isinstance(answer, Applied):
            raise ValueError(answer.message)
        return answer.task

    def look(self, name: str) -> Task:
        """The task as it is now. Raises `KeyError` if there is none."""
        task = self._transact(lambda ledger: ledger.task(self._key(name)))
        if task is None:
            raise KeyError(name)
        return task

    def advance(self, seconds: float) -> None:
        """Move the clock on, stopping at every moment at which something is due, and do it."""
        end = self.now + seconds
        for _ in range(ROUNDS_MAX):
            due = self._next_due()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.keep()
        self.now = end
        self.keep()

    def move_clock(self, seconds: float) -> None:
        """Move the clock on and do nothing about it: what is due is done when somebody looks."""
        self.now += seconds

    def keep(self) -> None:
        """Do what is due now: delayed writes, leases that ran out, backoffs, deadlines, joins."""
        arrived = [write for write in self._delayed if write.at <= self.now]
        self._delayed = [write for write in self._delayed if write.at > self.now]
        for write in arrived:
            self._transact(write.operation)
        self._transact(lambda ledger: keeping.keep(ledger, batch_due=True))

    def expire_lease(self, name: str) -> Task:
        """Let the task's lease be over as if nobody had renewed it, without moving the clock.

        Raises `KeyError` if there is no such task, `ValueError` if nobody holds it.
        """

        def age(ledger: Ledger) -> Task | None:
            kept = ledger.current(self._key(name))
            if kept is None:
                return None
            if not kept.task.held or kept.task.settled:
                raise ValueError(f"nobody holds {kept.task.key}")
            since = ledger.now - kept.task.spec.lease_duration_seconds - JUST_OVER_SECONDS
            ledger.shelf.keep(replace(kept, since=since, due=ledger.now))
            return ledger.task(self._key(name))

        task = self._transact(age)
        if task is None:
            raise KeyError(name)
        return task

    def lose_next_answer(self) -> None:
        """The next write is applied, and its answer is lost."""
        self._faults.append((Fault.ANSWER_LOST, 0.0))

    def lose_next_request(self) -> None:
        """The next write never arrives; its sender cannot tell."""
        self._faults.append((Fault.REQUEST_LOST, 0.0))

    def delay_next_write(self, seconds: float) -> None:
        """The next write arrives when the clock was advanced by this much; its sender has no answer."""
        self._faults.append((Fault.DELAYED, seconds))

    async def consume(self, key: ObjectKey, effect: Callable[[], None]) -> ConsumeVerdict:
        """Call `effect` and mark the joined job consumed; if it raises, nothing was marked."""
        return await self._run(lambda ledger: reports.consume(ledger, key, effect))

    async def close(self) -> None:
        """Nothing to let go of."""

    async def _run(self, operation: Callable[[Ledger], T]) -> T:
        return self._transact(operation)

    async def _run_write(self, operation: Callable[[Ledger], Answer]) -> Answer:
        fault, seconds = self._faults.pop(0) if self._faults else (None, 0.0)
        if fault is Fault.DELAYED:
            self._delayed.append(_Delayed(at=self.now + seconds, operation=operation))
        if fault in (Fault.DELAYED, Fault.REQUEST_LOST):
            return Unanswered(message="no answer (a fault that the test asked for)")
        answer = self._transact(operation)
        if fault is Fault.ANSWER_LOST:
            return Unanswered(message="no answer (a fault that the test asked for)")
        return answer

    def _transact(self, operation: Callable[[Ledger], T]) -> T:
        with self._turn:
            drawers = self._drawers.copy()
            ledger = Ledger(shelf=drawers, clock=self.now, account=self._account, new_uid=self._new_uid)
            result = operation(ledger)
            joining.follow_up(ledger)
            drawers.latest = ledger.now
            self._drawers = drawers
            return result

    def _next_due(self) -> float | None:
        times = [write.at for write in self._delayed]
        due = self._drawers.next_due()
        return min([*times, due] if due is not None else times, default=None)

    def _key(self, name: str) -> ObjectKey:
        return ObjectKey(namespace=self._namespace, name=name)


__all__ = ["Fault", "MemoryStore"]
