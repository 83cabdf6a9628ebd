"""Handing in the rows of the outbox, and what becomes of each after its verdict.

What cannot be settled now stays pending and is tried again later, so a row leaves "pending" only by a
verdict or for a reason that no retry can change. One row that cannot be delivered never stands in the way of
the rows of other tasks; the rows of one task keep their order, because a result that settles the task would
shut out a row that was emitted before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fencepost.outbox import ReceiptMismatch, Row
from fencepost.ports import Cause, StoreRefused, StoreUnavailable
from fencepost.protocol.drain import RowStatus, status_after
from fencepost.protocol.fencing import is_current
from fencepost.protocol.submission import Judgement, Verdict
from fencepost.protocol.task import LeaseEnd, Outcome, Receipt, State, Task
from fencepost.worker.failures import SchemaTooOld
from fencepost.worker.handing_in import Judged, NotNow, Unacceptable, hand_in, judged
from fencepost.worker.lost_task import receipt_in_job
from fencepost.worker.releasing import release
from fencepost.worker.settings import PARKED_LOOK_SECONDS, PARKED_LOOKS_MAX, retry_seconds
from fencepost.worker.workplace import LOG, Workplace

_UNAVAILABLE_IN_A_ROW_MAX: Final = 3  # then the store is away, and the drain waits as a whole
UNACCEPTABLE: Final = "unacceptable"  # in the tally: a row that no store would take


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """Where a row stands after a delivery; `task` is the newest that is known of its task.

    There is no verdict where no store would take the row: too large, refused by admission.
    """

    status: RowStatus
    verdict: Verdict | None
    receipt: Receipt | None = None
    task: Task | None = None

    @property
    def is_stale(self) -> bool:
        """Whether it was refused because its lease is over."""
        return self.verdict in (Verdict.REJECTED_STALE_TOKEN, Verdict.REJECTED_EXPIRED_LEASE)


class Delivery:
    """Delivers rows, and remembers when a row that was put off is due again."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._due: dict[int, float] = {}
        self._parked_looked_at: float | None = None
        self._parked_turn = 0

    async def deliver(self, row: Row, task: Task | None) -> Delivered:
        """Judge the row on `task` (None: it is gone), hand it in if it is accepted, and mark it.

        Raises `SchemaTooOld`, and `StoreUnavailable` or `StoreRefused` where a read was needed and failed.
        """
        submission = row.submission(recorded_by=self._place.account)
        try:
            end = await hand_in(self._place.store, row.task_key, task, submission, write=self._place.write)
        except SchemaTooOld as error:
            self._later(row, task, str(error))
            raise
        match end:
            case Judged():
                return await self._conclude(row, end.task, end.judgement)
            case Unacceptable():
                return self._dead(row, end.task, end.message)
            case NotNow():
                return self._later(row, end.task, end.message, wait=end.retry_after_seconds)

    async def _conclude(self, row: Row, task: Task | None, judgement: Judgement) -> Delivered:
        """Mark the row after its verdict."""
        status = status_after(judgement, task, outbox=self._place.outbox.uuid)
        verdict, receipt = judgement.verdict, judgement.receipt
        if verdict is Verdict.UNKNOWN_TASK:
            found = await receipt_in_job(self._place, row)
            if found.receipt is None:
                return self._dead(row, None, found.reason, verdict=verdict)
            status, verdict, receipt = RowStatus.ACKNOWLEDGED, Verdict.DUPLICATE, found.receipt
        match status:
            case RowStatus.ACKNOWLEDGED:
                try:
                    self._place.outbox.acknowledge(row.id, receipt, verdict)
                except ReceiptMismatch as error:
                    return self._dead(row, task, str(error), verdict, receipt)
                self._due.pop(row.id, None)
                self._place.tally[verdict.value] += 1
            case RowStatus.PARKED:
                return self._parked(row, task, judgement)
            case RowStatus.DEAD:
                return self._dead(row, task, judgement.message or verdict.value, verdict, receipt)
            case RowStatus.PENDING:
                return self._later(row, task, judgement.message)
        return Delivered(status=status, verdict=verdict, receipt=receipt, task=task)

    def _parked(self, row: Row, task: Task | None, judgement: Judgement) -> Delivered:
        self._due.pop(row.id, None)
        self._place.tally[judgement.verdict.value] += 1
        LOG.warning("row %s of %s is parked: %s", row.id, row.task_key, judgement.message)
        parked = self._place.outbox.park(row.id, judgement.message)
        self._place.tell_refused(parked, judgement.verdict)
        return Delivered(status=RowStatus.PARKED, verdict=judgement.verdict, task=task)

    def _dead(
        self,
        row: Row,
        task: Task | None,
        reason: str,
        verdict: Verdict | None = None,
        receipt: Receipt | None = None,
    ) -> Delivered:
        self._due.pop(row.id, None)
        self._place.tally[verdict.value if verdict else UNACCEPTABLE] += 1
        LOG.error("row %s of %s is a dead letter: %s", row.id, row.task_key, reason[:1024])
        dead = self._place.outbox.kill(row.id, reason)
        self._place.tell_refused(dead, verdict)
        return Delivered(status=RowStatus.DEAD, verdict=verdict, receipt=receipt, task=task)

    def _later(self, row: Row, task: Task | None, message: str, *, wait: float | None = None) -> Delivered:
        """Leave the row pending; it is due again after a backoff that grows with its tries."""
        tries = self._place.outbox.note_try(row.id, message)
        pause = max(wait or 0.0, retry_seconds(tries, spread=self._place.random.random()))
        self._due[row.id] = self._place.clock() + pause
        LOG.warning(
            "row %s of %s stays in the outbox (try %s): %s", row.id, row.task_key, tries, message[:1024]
        )
        return Delivered(status=RowStatus.PENDING, verdict=Verdict.RETRY_LATER, task=task)

    def put_off(self, row: Row, refused: StoreRefused) -> None:
        """One task that cannot be read holds up its own rows only. Raises what concerns all of them."""
        _raise_if_it_concerns_all(refused)
        self._later(row, None, str(refused))

    def is_due(self, row: Row) -> bool:
        return self._place.clock() >= self._due.get(row.id, 0.0)

    def seconds_to_next(self) -> float:
        """Seconds until the next row that was put off is due; 0 if one is due now or none was put off."""
        return max(0.0, min(self._due.values(), default=0.0) - self._place.clock())

    async def drain(self) -> None:
        """One pass over the pending rows, by id. Raises `StoreUnavailable` if the store is away."""
        waiting: set[str] = set()
        unavailable = 0
        for row in self._place.outbox.pending():
            if row.uid in waiting or not self.is_due(row):
                waiting.add(row.uid)
                continue
            try:
                delivered = await self.deliver(row, await self._place.store.task(row.task_key))
            except StoreUnavailable as error:
                unavailable += 1
                self._later(row, None, str(error), wait=error.retry_after_seconds)
                waiting.add(row.uid)
                if unavailable >= _UNAVAILABLE_IN_A_ROW_MAX:
                    raise
                continue
            except StoreRefused as refused:
                self.put_off(row, refused)
                waiting.add(row.uid)
                continue
            unavailable = 0
            if delivered.status is RowStatus.PENDING:
                waiting.add(row.uid)
            await self.release_after_unknown(row, delivered.task)

    async def deliver_in_order(self, uid: str, task: Task) -> Delivered | None:
        """Hand in all pending rows of one task; the last delivery, a pending one if it stopped there."""
        delivered = None
        for row in self._place.outbox.rows_of(uid):
            if row.status is not RowStatus.PENDING:
                continue
            delivered = await self.deliver(row, task)
            task = delivered.task or task
            if delivered.status is RowStatus.PENDING:
                break
        return delivered

    async def release_after_unknown(self, row: Row, task: Task | None) -> None:
        """An Unknown leaves the task held: let go of it, so that its policy can go on.

        One that the store has is no failure. One that no store will take is: nothing tells that it ever
        happened, and without a count the task would come back for ever.
        """
        if row.outcome is not Outcome.UNKNOWN or task is None or not task.held:
            return
        now = self._place.outbox.row(row.id)
        if not is_current(task, token=now.token, holder=now.holder):
            return
        if now.status is RowStatus.DEAD:
            await release(
                self._place, task, LeaseEnd.ERROR, f"its outcome Unknown was not taken: {now.reason}"
            )
        elif now.status is RowStatus.ACKNOWLEDGED and task.state is State.UNKNOWN:
            await release(self._place, task, LeaseEnd.AFTER_UNKNOWN)

    async def look_at_parked(self) -> None:
        """See whether parked rows have become dead letters, or acknowledged after all; some each turn."""
        now = self._place.clock()
        if self._parked_looked_at is not None and now - self._parked_looked_at < PARKED_LOOK_SECONDS:
            return
        self._parked_looked_at = now
        rows = self._place.outbox.parked()
        start = self._parked_turn % max(1, len(rows))
        self._parked_turn += PARKED_LOOKS_MAX
        for row in (rows[start:] + rows[:start])[:PARKED_LOOKS_MAX]:
            try:
                task = await self._place.store.task(row.task_key)
            except StoreRefused as refused:
                _raise_if_it_concerns_all(refused)
                continue  # it is looked at again
            judgement = await judged(self._place.store, task, row.submission(recorded_by=self._place.account))
            if status_after(judgement, task, outbox=self._place.outbox.uuid) is not RowStatus.PARKED:
                await self.deliver(row, task)


def _raise_if_it_concerns_all(refused: StoreRefused) -> None:
    if refused.cause is Cause.FORBIDDEN:
        raise refused
