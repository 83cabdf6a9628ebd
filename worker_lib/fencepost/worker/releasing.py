"""Ending a lease of our own, with the reason.

A release whose fate stays uncertain is owed: the next turn finds the task under our name and sends it again
with the same reason, so that an error is not forgotten because an answer was lost.
"""

from __future__ import annotations

from typing import Final

from fencepost.ports import Applied, Cause, Refused, StoreRefused, StoreUnavailable
from fencepost.protocol.fencing import is_current
from fencepost.protocol.limits import ERROR_TEXT_BYTES_MAX
from fencepost.protocol.mutation import Release
from fencepost.protocol.task import LeaseEnd, Task, cut_to_bytes
from fencepost.worker.workplace import LOG, Workplace

_TRIES_MAX: Final = 3  # the state it was decided on may change under us, but not often


async def release(place: Workplace, task: Task, end: LeaseEnd, message: str = "") -> bool:
    """Release the lease that `task` shows; whether it is known to be over now."""
    place.owed.pop((task.uid, task.token), None)
    current: Task | None = task
    for _ in range(_TRIES_MAX):
        if current is None or not _is_still_held(current, task):
            return True
        answer = await place.write(_release(current, end, message))
        if isinstance(answer, Applied):
            place.tally[released(end)] += 1
            return True
        if not isinstance(answer, Refused) or answer.cause is not Cause.PRECONDITION:
            break
        try:
            current = await place.store.task(task.key)
        except (StoreUnavailable, StoreRefused):
            break
    place.owed[task.uid, task.token] = (end, message)
    LOG.warning(
        "the release of %s (%s) is not certain; it is sent again in the next turn", task.key, end.value
    )
    return False


def released(end: LeaseEnd) -> str:
    """The name under which the tally counts releases of this sort."""
    return f"released, {end.value}"


def _is_still_held(current: Task, task: Task) -> bool:
    ours = current.uid == task.uid and is_current(current, token=task.token, holder=task.holder)
    return ours and current.held and not current.settled


def _release(task: Task, end: LeaseEnd, message: str) -> Release:
    return Release(
        key=task.key,
        uid=task.uid,
        token=task.token,
        holder=task.holder,
        state=task.state,
        failures=task.failures,
        end=end,
        message=cut_to_bytes(message, ERROR_TEXT_BYTES_MAX),
    )
