"""Handing in one submit until it has a verdict: judged by the core, written with all its comparisons.

What the core accepts on the task as last known is written; a refused write is judged again on a fresh read,
because somebody may have settled, renewed or claimed in between. If admission refuses twice what the core
accepts, that is reported and not tried for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fencepost.ports import Answer, Applied, Cause, Refused, TaskStore
from fencepost.protocol import dedup
from fencepost.protocol.mutation import Submit
from fencepost.protocol.submission import Judgement, Submission, SubmissionTooLarge, judge
from fencepost.protocol.task import DedupScope, ObjectKey, Receipt, Task
from fencepost.worker.failures import SchemaTooOld

JUDGEMENTS_MAX: Final = 5  # then it is left for later: its task keeps changing

Write = Callable[[Submit], Awaitable[Answer]]
"""Sends one submit until its fate is certain, or time is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """It has its verdict; an accepted one is in the store. `task` is the newest that is known."""

    judgement: Judgement
    task: Task | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unacceptable:
    """No store would take it, and no retry changes that."""

    message: str
    task: Task | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotNow:
    """Not settled: the same has to be sent again later."""

    message: str
    task: Task | None
    retry_after_seconds: float | None = None


async def hand_in(
    store: TaskStore, key: ObjectKey, task: Task | None, submission: Submission, *, write: Write
) -> Judged | Unacceptable | NotNow:
    """Judge on `task` (None: it is gone) and write what is accepted.

    Raises `SchemaTooOld`, and `StoreUnavailable` or `StoreRefused` where a read was needed and failed.
    """
    again = False
    for _ in range(JUDGEMENTS_MAX):
        try:
            judgement = await judged(store, task, submission)
        except (SubmissionTooLarge, ValueError) as error:
            return Unacceptable(message=str(error), task=task)
        if not judgement.append or task is None or judgement.receipt is None:
            return Judged(judgement=judgement, task=task)
        answer = await write(submit_of(task, judgement.receipt))
        if isinstance(answer, Applied):
            return Judged(judgement=judgement, task=answer.task)
        ended = _not_applied(answer, task, again=again)
        if ended is not None:
            return ended
        again = isinstance(answer, Refused) and answer.cause is Cause.ADMISSION
        task = await store.task(key)
    return NotNow(message="its task keeps changing while it is handed in", task=task)


async def judged(store: TaskStore, task: Task | None, submission: Submission) -> Judgement:
    """The core's verdict; only a dedup scope wider than the task costs a read."""
    elsewhere = ""
    wide = task is not None and task.spec.dedup_scope is not DedupScope.TASK
    if task is not None and wide and dedup.takes_part(submission.outcome):
        elsewhere = await store.accepted_elsewhere(task, submission.payload_sha256)
    return judge(task, submission, elsewhere=elsewhere)


def submit_of(task: Task, receipt: Receipt) -> Submit:
    """The write that puts `receipt` at the end of the list of `task` as it was judged."""
    return Submit(
        key=task.key,
        uid=task.uid,
        token=receipt.fencing_token,
        holder=receipt.holder,
        state=task.state,
        head=task.head,
        receipt=receipt,
    )


def _not_applied(answer: Answer, task: Task, *, again: bool) -> Unacceptable | NotNow | None:
    """What a write that was not applied comes to, or None if it is to be judged again."""
    if isinstance(answer, Applied):
        return None
    if not isinstance(answer, Refused):
        return NotNow(message=f"no certain answer: {answer.message}", task=task)
    match answer.cause:
        case Cause.PRECONDITION | Cause.MISSING | Cause.EXISTS:
            return None
        case Cause.ADMISSION:
            return (
                Unacceptable(message=f"refused by admission: {answer.message}", task=task) if again else None
            )
        case Cause.TOO_LARGE:
            return Unacceptable(message=f"too large for the store: {answer.message}", task=task)
        case Cause.SCHEMA:
            raise SchemaTooOld(f"{answer.message}; install the CRDs of this version of fencepost")
    return NotNow(message=answer.message, task=task, retry_after_seconds=answer.retry_after_seconds)
