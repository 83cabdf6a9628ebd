"""Calling the handler, and what its end means.

The lease is kept while it runs. A lost lease stops an `async def` handler by cancelling it; a thread cannot
be stopped, so a `def` handler is waited for: nothing is released while guarded work still runs. When the
worker was told to stop and the grace is over, an `async def` handler is cancelled too, and a `def` handler
that still runs ends the worker without a release.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fencepost.protocol.payload import PayloadRefused
from fencepost.protocol.task import LeaseEnd, Outcome
from fencepost.worker.failures import GraceOver
from fencepost.worker.handler import Handler, RequestUnfit, ResultUnfit
from fencepost.worker.handler_thread import in_thread
from fencepost.worker.holding import Holding
from fencepost.worker.lease import Lease
from fencepost.worker.outcomes import LeaseOver, OutcomeUnknown, Rejected, value_for_unreadable_request
from fencepost.worker.workplace import LOG, Workplace


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The work came to an outcome. `value` is its text."""

    outcome: Outcome
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDone:
    """No outcome: the lease is to be released with this reason.

    `raised` is what the user's own code raised, if that is why: its traceback belongs in the log.
    """

    end: LeaseEnd
    message: str
    raised: BaseException | None = None


Ending = Done | NotDone

WIND_DOWN_SECONDS: Final = 2.0  # what a cancelled handler may take to let go, when the grace is over


async def execute(place: Workplace, handler: Handler, holding: Holding, lease: Lease) -> Ending:
    """Run the handler to its end. Raises `GraceOver` if it does not end within the worker's grace.

    A request that cannot be read is rejected instead: no retry would change that.
    """
    if problem := holding.task.spec.request_problem:
        return Done(outcome=Outcome.REJECTED, value=value_for_unreadable_request(problem))
    try:
        positional, named = handler.arguments(holding.task.spec.request, lease)
    except RequestUnfit as unfit:
        return NotDone(end=LeaseEnd.ERROR, message=str(unfit))
    if handler.is_async:
        work: asyncio.Future[Ending] = asyncio.create_task(
            _awaited(handler, handler.function(*positional, **named))
        )
    else:
        work = in_thread(partial(_called, handler, positional, named))
    ending = await _until_it_ends(place, handler, holding, work)
    if isinstance(ending, NotDone) and place.stopping.requested and ending.end is LeaseEnd.SHUTDOWN:
        LOG.info("the handler of %s stopped without a result", holding.task.key)
    return ending


async def _until_it_ends(
    place: Workplace, handler: Handler, holding: Holding, work: asyncio.Future[Ending]
) -> Ending:
    lost = asyncio.create_task(holding.until_lost())
    grace_over = asyncio.create_task(place.stopping.grace_over.wait())
    try:
        waited: set[asyncio.Future[Any]] = {work, lost, grace_over}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and handler.is_async:
            work.cancel()
        if not work.done():
            waited.discard(lost)
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and handler.is_async:
            await asyncio.wait({work}, timeout=WIND_DOWN_SECONDS)
        if not work.done():
            raise GraceOver(
                f"the handler of {holding.task.key} did not end in {place.settings.grace_seconds:g} s: "
                "its lease is left to run out; check `lease.stopping` in long work"
            )
        return await _ending(place, holding, work)
    finally:
        lost.cancel()
        grace_over.cancel()
        if handler.is_async:
            work.cancel()


async def _ending(place: Workplace, holding: Holding, work: asyncio.Future[Ending]) -> Ending:
    await asyncio.wait({work})
    if work.cancelled():
        ending: Ending = NotDone(end=LeaseEnd.ERROR, message="the handler was cancelled")
    else:
        ending = work.result()
    if isinstance(ending, Done) or not place.stopping.requested or holding.lost:
        return ending
    over = work.cancelled() or ending.message == _LEFT
    return NotDone(end=LeaseEnd.SHUTDOWN, message="the worker was told to stop") if over else ending


_LEFT = "the handler left because its lease is over"


def _called(handler: Handler, positional: tuple[Any, ...], named: dict[str, Any]) -> Ending:
    try:
        return Done(outcome=Outcome.OK, value=handler.text_of(handler.function(*positional, **named)))
    except BaseException as error:
        return _not_returned(error)


async def _awaited(handler: Handler, coroutine: Coroutine[Any, Any, Any]) -> Ending:
    try:
        return Done(outcome=Outcome.OK, value=handler.text_of(await coroutine))
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return _not_returned(error)


def _not_returned(error: BaseException) -> Ending:
    """What an exception means: an outcome, a reason to release, or a retryable error."""
    match error:
        case Rejected():
            return _rejected(error)
        case OutcomeUnknown():
            return Done(outcome=Outcome.UNKNOWN, value="")
        case LeaseOver():
            return NotDone(end=LeaseEnd.ERROR, message=_LEFT)
        case ResultUnfit() | PayloadRefused():
            return NotDone(end=LeaseEnd.ERROR, message=str(error))
    return NotDone(end=LeaseEnd.ERROR, message=f"{type(error).__name__}: {error}", raised=error)


def _rejected(rejected: Rejected) -> Ending:
    from fencepost.protocol.payload import value_text
    from fencepost.worker.handler import plain_value

    try:
        return Done(outcome=Outcome.REJECTED, value=value_text(plain_value(rejected.value)))
    except (ResultUnfit, PayloadRefused) as error:
        return NotDone(end=LeaseEnd.ERROR, message=f"the value of Rejected cannot be kept: {error}")
