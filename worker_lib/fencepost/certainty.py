"""Turning an unanswered write into a certain one.

A write whose answer was lost may be applied up to half a minute later (the API server goes on with a request
whose client has gone). So reading back and finding nothing proves nothing. The identical conditional write
is sent again until its effect is seen (then it was applied, once, whichever copy did it) or its precondition
is gone (then no copy can ever be applied). Both are facts that cannot become untrue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fencepost.ports import Answer, Applied, Cause, Refused, StoreUnavailable, TaskWriter, Unanswered
from fencepost.protocol.mutation import Mutation, Standing, standing

Pause = Callable[[int], Awaitable[bool]]
"""Called with the number of tries so far; returns False when there is no more time to find out."""


async def write_until_certain(store: TaskWriter, mutation: Mutation, *, pause: Pause) -> Answer:
    """Send `mutation` until its fate is known; `Unanswered` only if `pause` ran out of time.

    A refusal that may hide an earlier copy of the same write (its precondition is gone because *it* was
    applied) is read back too, so `Applied` is answered for whichever copy made it.
    """
    tries = 0
    sent_before = False
    while True:
        answer = await store.write(mutation)
        if isinstance(answer, Applied) or (isinstance(answer, Refused) and not sent_before):
            return answer
        sent_before = True
        known = await _read_back(store, mutation, answer)
        if known is not None:
            return known
        tries += 1
        if not await pause(tries):
            return Unanswered(message=answer.message)


async def _read_back(store: TaskWriter, mutation: Mutation, answer: Refused | Unanswered) -> Answer | None:
    """The certain answer that an uncached read gives, or None."""
    try:
        task = await store.task(mutation.key)
    except StoreUnavailable:
        return None
    match standing(task, mutation):
        case Standing.APPLIED if task is not None:
            return Applied(task=task)
        case Standing.GONE:
            return Refused(cause=Cause.PRECONDITION, message=answer.message)
    if isinstance(answer, Refused) and answer.cause is not Cause.OVERLOADED:
        return answer
    return None
