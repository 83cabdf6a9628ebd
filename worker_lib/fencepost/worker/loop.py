"""The worker's loop: drain first, then claim, execute, keep, submit; again until told to stop.

One turn: adopt leases that are ours and that nobody works on, hand in what is pending, look at what is
parked, then use up one page of candidates. A task costs two writes here, the claim and the submit; the result
is in the outbox, in one local transaction, before it is submitted, and a task whose result lies in the
outbox is not executed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from fencepost.outbox import (
    DeferredStatementFailed,
    OutboxConflict,
    OutboxFull,
    OutboxWriteFailed,
    Row,
    RowRefused,
)
from fencepost.outbox.audit import forgotten, rolled_back
from fencepost.ports import StoreRefused, StoreUnavailable
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import Kind, LeaseEnd, cut_to_bytes
from fencepost.worker.adoption import Adoption
from fencepost.worker.claiming import Claiming
from fencepost.worker.delivery import UNACCEPTABLE, Delivered, Delivery
from fencepost.worker.execution import Done, Ending, NotDone, execute
from fencepost.worker.failures import NoAccess, TryAgainLater
from fencepost.worker.handler import Handler
from fencepost.worker.holding import Holding
from fencepost.worker.job_check import JobCheck
from fencepost.worker.lease import Lease, new_row
from fencepost.worker.releasing import release, released
from fencepost.worker.settings import RETRY_SECONDS_MAX, retry_seconds
from fencepost.worker.workplace import LOG, Workplace

ERROR_LINE_BYTES_MAX: Final = 400  # of a message in the log; the release keeps more of it
ROWS_LEFT: Final = "rows are left in the outbox that the store does not take yet"
FINDINGS_TOLD_MAX: Final = 5  # of one sort at the start; `fencepost audit` lists all of them
HANDED_IN_OR_RELEASED: Final = (
    *(verdict.value for verdict in Verdict),
    UNACCEPTABLE,
    *(released(end) for end in LeaseEnd),
)


class Turn(Enum):
    """What a turn came to."""

    WORKED = "claimed something: go on at once"
    IN_VAIN = "there were candidates, and no claim of them is known to be ours: look again soon"
    NOTHING = "there was nothing to claim"
    UNSERVED = "the store could not serve it"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUnread:
    """The job of a claimed task could not be read: nothing was executed, and the turn is over."""

    error: StoreUnavailable | StoreRefused


class Loop:
    """One running worker. `handlers` by queue, in the order in which the queues are taken."""

    def __init__(self, place: Workplace, handlers: Mapping[str, Handler]) -> None:
        self._place = place
        self._handlers = handlers
        self._delivery = Delivery(place)
        self._adoption = Adoption(place, self._delivery)
        self._claiming = Claiming(place, tuple(handlers))
        self._job_check = JobCheck(place)
        self._failed_turns = 0
        self._idle_turns = 0
        self._last_progress = place.clock()
        self._handed_in = 0
        self._asked_before = False

    async def run(self) -> None:
        """Turn until told to stop, or until nothing is left where the settings say `once`.

        Raises a `WorkerFailure` for what a person has to see to.
        """
        while not self._place.stopping.requested:
            await asyncio.sleep(0)  # a turn may never wait: signals, timers and heartbeats need one
            turn = await self._guarded_turn()
            if turn in (Turn.UNSERVED, Turn.WORKED):
                continue
            if self._place.settings.once and turn is Turn.NOTHING and not self._rows_are_left():
                self._tell_if_full()
                break
            await self._rest()
        await self._last_drain()

    async def drain_only(self) -> None:
        """Hand in what lies in the outbox, claim nothing. Raises `TryAgainLater` if rows are left pending."""
        while not self._place.stopping.requested:
            await self._guarded_turn(claim=False)
            if not self._rows_are_left():
                break
            await self._rest()
        self._tell_rows_left()

    async def _guarded_turn(self, *, claim: bool = True) -> Turn:
        """One turn; after a pause if the store could not serve it."""
        try:
            await self._hand_in()
            turn = await self._use_up_a_page() if claim else Turn.NOTHING
        except StoreUnavailable as error:
            await self._after_unavailable(error)
            return Turn.UNSERVED
        except StoreRefused as refused:
            await self._after_refusal(refused)
            return Turn.UNSERVED
        self._failed_turns = 0
        self._note_progress()
        self._idle_turns = 0 if turn is Turn.WORKED else self._idle_turns + 1
        return turn

    async def _hand_in(self) -> None:
        if not self._asked_before:
            await self._compare_marks()
        await self._adoption.adopt()
        await self._delivery.drain()
        await self._delivery.look_at_parked()

    async def _compare_marks(self) -> None:
        """At the start: does the server know steps or rows of this outbox that its file does not have?

        Settled tasks are asked about too: the work that an older copy of the file lacks is settled, mostly.
        """
        tasks = await self._place.store.claimed_by_outbox(self._place.outbox.uuid)
        findings = rolled_back(self._place.outbox, tasks) + forgotten(self._place.outbox, tasks)
        for finding in findings[:FINDINGS_TOLD_MAX]:
            LOG.error("%s: %s (see `fencepost audit`)", finding.subject, finding.message)
        if len(findings) > FINDINGS_TOLD_MAX:
            more = len(findings) - FINDINGS_TOLD_MAX
            LOG.error("the outbox does not know %s more of its own: `fencepost audit` lists them", more)
        self._asked_before = True

    async def _use_up_a_page(self) -> Turn:
        if self._place.outbox.full and not self._has_room_again():
            LOG.error("the volume of the outbox is full: nothing is claimed until there is room again")
            return Turn.NOTHING
        turn = Turn.NOTHING
        async for queue, holding, listed in self._claiming.claims():
            turn = Turn.WORKED
            await self._work(self._handlers[queue], holding, listed)
            self._note_progress()
            self._refuse_to_wait_for_ever(ROWS_LEFT)
            await asyncio.sleep(0)
        lost_all = turn is Turn.NOTHING and self._claiming.found_candidates
        return Turn.IN_VAIN if lost_all else turn

    def _has_room_again(self) -> bool:
        try:
            self._place.outbox.flush()
        except (OutboxFull, OutboxWriteFailed):
            return False
        return not self._place.outbox.full

    async def _work(self, handler: Handler, holding: Holding, listed: float) -> None:
        """From the claim to the end of the lease, which is kept alive all the while."""
        self._place.outbox.record_lease(task=holding.task)
        with holding.kept_alive():
            end = await self._worked(handler, holding, listed)
        match end:
            case NotDone():
                await self._release(holding, end)
            case Row():
                await self._delivery.release_after_unknown(end, holding.task)
            case JobUnread():
                await self._release(holding, NotDone(end=LeaseEnd.SHUTDOWN, message="its job was not read"))
                raise end.error

    async def _worked(
        self, handler: Handler, holding: Holding, listed: float
    ) -> Row | NotDone | JobUnread | None:
        """What the lease came to: a row that was handed in, or why it is to be released."""
        if self._place.stopping.requested:
            return NotDone(end=LeaseEnd.SHUTDOWN, message="the worker was told to stop")
        if holding.is_past_deadline and not await holding.renew():
            return NotDone(end=LeaseEnd.SHUTDOWN, message="the answer to the claim came too late")
        try:
            unwanted = await self._job_check.is_unwanted(holding.task, listed=listed)
        except (StoreUnavailable, StoreRefused) as error:
            return JobUnread(error=error)
        if unwanted:
            return NotDone(end=LeaseEnd.UNWANTED, message="its job is gone or has recorded the branch")
        result = self._place.outbox.result_of(holding.task.uid)
        if result is not None:
            return await self._hand_in_again(holding, result)
        if not await self._hand_in_emitted_before(holding):
            return NotDone(end=LeaseEnd.SHUTDOWN, message="the lease was over before the work began")
        return await self._execute(handler, holding)

    async def _hand_in_again(self, holding: Holding, result: Row) -> Row | None:
        """The result lies here already: it is handed in under the new lease, and nothing is executed."""
        self._place.tally["not executed again"] += 1
        delivered = await self._adoption.hand_in(holding.task)
        if delivered is None or delivered.task is None:
            return None
        holding.learned(delivered.task)
        return result

    async def _hand_in_emitted_before(self, holding: Holding) -> bool:
        """Rows that earlier leases of the task left here are sent under the new one, before it is worked on.

        Those that have to wait go before the result. Answers whether the lease is not known to be over.
        """
        try:
            delivered = await self._adoption.hand_in(holding.task)
        except StoreUnavailable as error:
            LOG.warning("rows of %s stay in the outbox: %s", holding.task.key, error)
            holding.rows_may_wait = True
            return True
        if delivered is None:
            return True
        holding.rows_may_wait = delivered.status is RowStatus.PENDING
        if delivered.task is not None:
            holding.learned(delivered.task)
        if delivered.is_stale:
            holding.lose("a row was refused as stale", over=True)
        return not holding.over

    async def _execute(self, handler: Handler, holding: Holding) -> Row | NotDone | None:
        lease = Lease(self._place, holding, self._delivery)
        began = self._place.clock()
        ending = await execute(self._place, handler, holding, lease)
        self._last_progress += self._place.clock() - began  # while a handler works, nobody waits
        stored = self._stored(holding, lease, ending)
        if isinstance(stored, NotDone):
            return stored
        delivered = await self._deliver(holding, stored)
        if delivered is None or delivered.task is None:
            return None
        holding.learned(delivered.task)
        return stored

    def _stored(self, holding: Holding, lease: Lease, ending: Ending) -> Row | NotDone:
        """Keep the result, in one transaction with what the handler deferred, before anybody hears of it."""
        if not isinstance(ending, Done):
            return ending
        row = new_row(
            holding, Kind.RESULT, ending.outcome, ending.value, key=None, device_time=self._place.now()
        )
        try:
            return self._place.outbox.store_result(row, deferred=lease.deferred)
        except (DeferredStatementFailed, RowRefused, OutboxConflict) as error:
            return NotDone(end=LeaseEnd.ERROR, message=str(error))
        except (OutboxFull, OutboxWriteFailed) as error:
            return NotDone(end=LeaseEnd.ERROR, message=f"the result could not be stored: {error}")

    async def _deliver(self, holding: Holding, row: Row) -> Delivered | None:
        """Hand the result in, after the rows that were emitted before it; None if it has to wait."""
        try:
            if holding.rows_may_wait:
                return await self._delivery.deliver_in_order(row.uid, holding.task)
            return await self._delivery.deliver(row, holding.task)
        except StoreUnavailable as error:
            LOG.warning("row %s of %s stays in the outbox: %s", row.id, row.task_key, error)
            return None

    async def _release(self, holding: Holding, reason: NotDone) -> None:
        self._place.tally["ended without a result"] += 1
        if reason.end is LeaseEnd.ERROR:
            self._tell_error(holding, reason)
        if not holding.over:
            await release(self._place, holding.task, reason.end, reason.message)

    def _tell_error(self, holding: Holding, reason: NotDone) -> None:
        """One line for each retryable error, whatever its message; a traceback only of the user's code."""
        said = cut_to_bytes(" ".join(reason.message.split()), ERROR_LINE_BYTES_MAX)
        failure, allowed = holding.task.failures + 1, holding.task.spec.retry_policy.max_failures + 1
        number = "" if holding.over else f" (failure {failure} of {allowed})"
        LOG.warning("%s came to no result%s: %s", holding.task.key, number, said, exc_info=reason.raised)

    def _rows_are_left(self) -> bool:
        return next(iter(self._place.outbox.pending()), None) is not None

    async def _rest(self) -> None:
        """Nothing to claim: write down what is buffered, then wait, longer from turn to turn."""
        self._has_room_again()
        if self._rows_are_left() and self._place.settings.once:
            self._refuse_to_wait_for_ever(ROWS_LEFT)
            await self._place.stopping.sleep(self._delivery.seconds_to_next())
            return
        settings = self._place.settings
        wait = min(
            settings.idle_seconds_max, settings.idle_seconds_min * (1 << min(self._idle_turns - 1, 10))
        )
        if self._rows_are_left():
            wait = min(wait, max(settings.idle_seconds_min, self._delivery.seconds_to_next()))
        await self._place.stopping.sleep(wait * (0.5 + 0.5 * self._place.random.random()))

    async def _after_unavailable(self, error: StoreUnavailable) -> None:
        self._failed_turns += 1
        self._refuse_to_wait_for_ever(str(error))
        wait = max(
            error.retry_after_seconds or 0.0,
            retry_seconds(self._failed_turns, spread=self._place.random.random()),
        )
        LOG.warning("the store is not available, next try in %.1f s: %s", wait, error)
        await self._place.stopping.sleep(wait)

    async def _after_refusal(self, refused: StoreRefused) -> None:
        """At the start a missing right is told at once; later it may be a change that is being rolled out."""
        if not self._asked_before or self._place.settings.once:
            raise NoAccess(f"the store refuses what a worker needs: {refused}") from refused
        LOG.error("the store refuses: %s", refused)
        await self._place.stopping.sleep(RETRY_SECONDS_MAX)

    def _note_progress(self) -> None:
        """A claim is none: or all of a queue would be claimed and done though nothing can be handed in."""
        handed_in = sum(self._place.tally[name] for name in HANDED_IN_OR_RELEASED)
        if handed_in != self._handed_in or not self._rows_are_left():
            self._last_progress = self._place.clock()
        self._handed_in = handed_in

    def _refuse_to_wait_for_ever(self, why: str) -> None:
        """`once` has an end: a run that got nowhere for the whole of its patience says so."""
        waited = self._place.clock() - self._last_progress
        if self._place.settings.once and waited > self._place.settings.patience_seconds:
            raise TryAgainLater(f"gave up after {waited:.0f} s: {why}")

    async def _last_drain(self) -> None:
        """What is due is sent once more before the process ends; the rest is for the next start."""
        try:
            await self._within_grace(self._delivery.drain())
        except (StoreUnavailable, StoreRefused) as error:
            LOG.warning("the last drain did not get through: %s", error)
        if self._place.settings.once and not self._place.stopping.requested:
            self._tell_rows_left()

    async def _within_grace(self, work: Awaitable[None]) -> None:
        """Do it, but give it up when the grace is over: rows that were not sent are for the next start."""
        working = asyncio.ensure_future(work)
        over = asyncio.ensure_future(self._place.stopping.grace_over.wait())
        waited: set[asyncio.Future[Any]] = {working, over}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for future in waited:
                future.cancel()

    def _tell_if_full(self) -> None:
        if self._place.outbox.full:
            raise TryAgainLater(
                f"the volume of the outbox {self._place.outbox.path} is full: "
                "nothing was claimed since; make room"
            )

    def _tell_rows_left(self) -> None:
        left = sum(1 for row in self._place.outbox.pending() if row.status is RowStatus.PENDING)
        if left:
            raise TryAgainLater(f"{left} rows are left in the outbox; they are sent at the next start")
