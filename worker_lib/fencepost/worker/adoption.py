"""Leases that the server says are ours while nobody here works on them.

They come from a dead incarnation of this worker, from a claim of it that was applied late, or from our own
writes whose answers were lost. Looked for at the start and on every turn of the loop, because a claim of the
dead process may be applied late. Where the result lies in this outbox it is handed in under that lease;
rows that were emitted are handed in too; then the lease is released, so that nobody waits until it runs out.
"""

from __future__ import annotations

from fencepost.outbox import Row
from fencepost.ports import StoreRefused
from fencepost.protocol.drain import RowStatus, is_result
from fencepost.protocol.fencing import is_current
from fencepost.protocol.task import Kind, LeaseEnd, Outcome, Receipt, Task
from fencepost.worker.delivery import Delivered, Delivery
from fencepost.worker.releasing import release
from fencepost.worker.workplace import LOG, Workplace


class Adoption:
    """Deals with each such lease once; one whose result nobody accepts is left to run out."""

    def __init__(self, place: Workplace, delivery: Delivery) -> None:
        self._place = place
        self._delivery = delivery
        self._given_up: set[tuple[str, int]] = set()

    async def adopt(self) -> None:
        """Raises `StoreUnavailable` or `StoreRefused` if the store cannot be asked."""
        for task in await self._place.store.unsettled_of_outbox(self._place.outbox.uuid):
            if (task.uid, task.token) not in self._given_up:
                await self._adopt_one(task)

    async def _adopt_one(self, task: Task) -> None:
        rows = self._rows_to_hand_in(task.uid)
        if any(not self._delivery.is_due(row) for row in rows):
            return
        result = next((row for row in rows if row.kind is Kind.RESULT), None)
        try:
            delivered = await self.hand_in(task, rows)
        except StoreRefused as refused:
            self._delivery.put_off(rows[0], refused)
            return
        if delivered is not None and delivered.status is RowStatus.PENDING:
            return
        task = (delivered.task if delivered else None) or task
        if result is None:
            await self._let_go(task)
            return
        await self._delivery.release_after_unknown(result, task)
        stands = self._place.outbox.result_of(task.uid) is not None
        if stands and (delivered is None or delivered.status is not RowStatus.ACKNOWLEDGED):
            self._given_up.add((task.uid, task.token))

    async def hand_in(self, task: Task, rows: tuple[Row, ...] | None = None) -> Delivered | None:
        """Put every row of the task that is no receipt yet under the lease that `task` shows, and send it.

        All of them are armed before the first is sent, so that what has to wait waits under this lease.
        Nothing is executed. Answers the last delivery, a pending one if it stopped there.
        """
        rows = self._rows_to_hand_in(task.uid) if rows is None else rows
        for row in rows:
            self._place.outbox.rearm(row.id, token=task.token, holder=task.holder)
        return await self._delivery.deliver_in_order(task.uid, task) if rows else None

    def _rows_to_hand_in(self, uid: str) -> tuple[Row, ...]:
        """The task's result, whatever its status (the server says that it is not settled), and the rows that
        were emitted and still wait. In the order they were made."""
        waits = (RowStatus.PENDING, RowStatus.PARKED)
        return tuple(
            row
            for row in self._place.outbox.rows_of(uid)
            if row.status in waits or (row.kind is Kind.RESULT and is_result(row.status, row.outcome))
        )

    async def _let_go(self, task: Task) -> None:
        end, message = self._why(task)
        LOG.info("releasing %s (token %s): %s", task.key, task.token, message or end.value)
        await release(self._place, task, end, message)

    def _why(self, task: Task) -> tuple[LeaseEnd, str]:
        """The reason to give: the one that is owed, or that nothing of this lease is here."""
        owed = self._place.owed.get((task.uid, task.token))
        if owed is not None:
            return owed
        if task.holder != self._place.outbox.holder:
            return LeaseEnd.START, "a worker found the lease of its own earlier process, without a result"
        if any(is_current(task, token=r.fencing_token, holder=r.holder) for r in _unknowns(task)):
            return LeaseEnd.AFTER_UNKNOWN, ""
        return LeaseEnd.SHUTDOWN, "the answer to the claim came too late"


def _unknowns(task: Task) -> list[Receipt]:
    return [receipt for receipt in task.receipts if receipt.outcome is Outcome.UNKNOWN]
