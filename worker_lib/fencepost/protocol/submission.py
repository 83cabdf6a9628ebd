"""The verdict on a submit: one pure function, five steps, in this order.

1. The key has a receipt already: same body (kind, outcome, payload hash) is a DUPLICATE and answers that
   receipt; another body is a CONFLICT. A replay is a read, not a mutation, so it comes before the fence: a
   worker that lost only the answer can finish its drain after it lost the lease.
2. Token or holder is not the current one: REJECTED_EXPIRED_LEASE if the server ended that very lease
   because it ran out and nobody has claimed since, else REJECTED_STALE_TOKEN. Reports have no lease and
   skip this step.
3. The task is settled: same outcome and payload is ALREADY_TERMINAL, anything else TERMINAL_CONFLICT.
4. An Ok payload that stands in the dedup scope under another key: REJECTED_DUPLICATE. A row then leaves
   nothing; a result settles the task with a receipt that names the first in `duplicateOf`.
5. Otherwise ACCEPTED; RECOVERED where the row already stood from before a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fencepost.protocol import dedup, limits
from fencepost.protocol.fencing import is_current
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.receipt import key_problem, sealed
from fencepost.protocol.task import OPERATOR_HOLDER, Kind, LeaseEnd, Outcome, Reason, Receipt, Task


class Verdict(StrEnum):
    """What became of a submit."""

    ACCEPTED = "ACCEPTED"
    RECOVERED = "RECOVERED"
    DUPLICATE = "DUPLICATE"
    CONFLICT = "CONFLICT"
    REJECTED_STALE_TOKEN = "REJECTED_STALE_TOKEN"
    REJECTED_EXPIRED_LEASE = "REJECTED_EXPIRED_LEASE"
    ALREADY_TERMINAL = "ALREADY_TERMINAL"
    TERMINAL_CONFLICT = "TERMINAL_CONFLICT"
    REJECTED_DUPLICATE = "REJECTED_DUPLICATE"
    UNKNOWN_TASK = "UNKNOWN_TASK"
    UNKNOWN_JOB = "UNKNOWN_JOB"
    UNKNOWN_BRANCH = "UNKNOWN_BRANCH"
    RETRY_LATER = "RETRY_LATER"


class NextStep(StrEnum):
    """What the caller does after a verdict."""

    DONE = "done: the receipt stands"
    RECLAIM = "discard and claim again; never retry with the old token"
    DEAD_LETTER = "give up: no retry can change it"
    RETRY = "send the same again later"


NEXT_STEP: Final[dict[Verdict, NextStep]] = {
    Verdict.ACCEPTED: NextStep.DONE,
    Verdict.RECOVERED: NextStep.DONE,
    Verdict.DUPLICATE: NextStep.DONE,
    Verdict.ALREADY_TERMINAL: NextStep.DEAD_LETTER,
    Verdict.REJECTED_DUPLICATE: NextStep.DONE,
    Verdict.CONFLICT: NextStep.DEAD_LETTER,
    Verdict.REJECTED_STALE_TOKEN: NextStep.RECLAIM,
    Verdict.REJECTED_EXPIRED_LEASE: NextStep.RECLAIM,
    Verdict.TERMINAL_CONFLICT: NextStep.DEAD_LETTER,
    Verdict.UNKNOWN_TASK: NextStep.DEAD_LETTER,
    Verdict.UNKNOWN_JOB: NextStep.DEAD_LETTER,
    Verdict.UNKNOWN_BRANCH: NextStep.DEAD_LETTER,
    Verdict.RETRY_LATER: NextStep.RETRY,
}


HOW_IT_ENDED: Final[dict[LeaseEnd, str]] = {
    LeaseEnd.SHUTDOWN: "released at shutdown",
    LeaseEnd.ERROR: "released after an error",
    LeaseEnd.START: "released at the worker's next start",
    LeaseEnd.UNWANTED: "released unexecuted",
    LeaseEnd.AFTER_UNKNOWN: "released after the outcome Unknown",
    LeaseEnd.EXPIRED: "revoked: it ran out",
    LeaseEnd.DEADLINE: "revoked: the deadline passed",
    LeaseEnd.CANCELLED: "revoked: the task was cancelled",
}


class SubmissionTooLarge(ValueError):  # noqa: N818
    """The receipt would not fit the task; the message names the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What is handed in. `token` and `holder` are None for a report, which has no lease.

    `value` is the payload's text (empty for Unknown). `after_crash` says that the row was stored by an
    earlier life of the worker.
    """

    uid: str
    idempotency_key: str
    kind: Kind
    outcome: Outcome
    value: str
    recorded_by: str
    token: int | None
    holder: str | None
    device_time: str = ""
    after_crash: bool = False

    @property
    def payload_sha256(self) -> str:
        return sha256_hex(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict; `receipt` is the stored one for a replay, or the one `append` asks to be written."""

    verdict: Verdict
    receipt: Receipt | None = None
    append: bool = False
    message: str = ""

    @property
    def next_step(self) -> NextStep:
        return NEXT_STEP[self.verdict]


def judge(task: Task | None, submission: Submission, *, elsewhere: str = "") -> Judgement:
    """Judge a submit against the task as it is now.

    `elsewhere` is the hash of the receipt that has this payload in a dedup scope wider than the task, or
    empty. Raises `SubmissionTooLarge` if the receipt would be accepted but does not fit, `ValueError` for a
    submission that contradicts itself.
    """
    refuse_contradiction(submission)
    if task is None or task.uid != submission.uid:
        return Judgement(verdict=Verdict.UNKNOWN_TASK, message="the task is gone, or another has its name")
    return (
        _replay(task, submission)
        or _stale(task, submission)
        or _terminal(task, submission)
        or _duplicate_payload(task, submission, elsewhere)
        or _accepted(task, submission)
    )


def refuse_contradiction(submission: Submission) -> None:
    """Raises `ValueError`: Unknown has an empty value, a row is Ok, a lease is token *and* holder.

    Also for a key that is none and a device time over its limit, which the API server's schema refuses.
    """
    if submission.outcome is Outcome.UNKNOWN and submission.value:
        raise ValueError("an Unknown outcome has an empty value")
    if submission.kind is Kind.ROW and submission.outcome is not Outcome.OK:
        raise ValueError("a row has the outcome Ok")
    if (submission.token is None) is not (submission.holder is None):
        raise ValueError("a submit names token and holder of its lease, a report neither")
    problem = key_problem(submission.idempotency_key)
    if problem is not None:
        raise ValueError(problem)
    if len(submission.device_time) > limits.DEVICE_TIME_CHARACTERS_MAX:
        raise ValueError(f"a device time takes at most {limits.DEVICE_TIME_CHARACTERS_MAX} characters")


def same_body(receipt: Receipt, submission: Submission) -> bool:
    """Same kind, outcome and payload hash."""
    return (receipt.kind, receipt.outcome, receipt.payload_sha256) == (
        submission.kind,
        submission.outcome,
        submission.payload_sha256,
    )


def _replay(task: Task, submission: Submission) -> Judgement | None:
    for receipt in task.receipts:
        if receipt.idempotency_key == submission.idempotency_key:
            same = same_body(receipt, submission)
            verdict = Verdict.DUPLICATE if same else Verdict.CONFLICT
            message = "" if same else "the key has a receipt of another body; the first stands"
            return Judgement(verdict=verdict, receipt=receipt, message=message)
    return None


def _stale(task: Task, submission: Submission) -> Judgement | None:
    if submission.token is None or submission.holder is None:  # a report: `refuse_contradiction`
        return None
    if is_current(task, token=submission.token, holder=submission.holder):
        return None
    end = _end_of(task, submission)
    ran_out = end is LeaseEnd.EXPIRED
    verdict = Verdict.REJECTED_EXPIRED_LEASE if ran_out else Verdict.REJECTED_STALE_TOKEN
    return Judgement(verdict=verdict, message=_why_stale(task, submission, end))


def _why_stale(task: Task, submission: Submission, end: LeaseEnd | None) -> str:
    if end is not None:
        return f"the lease with token {task.token} has ended ({HOW_IT_ENDED[end]}): nobody holds the task now"
    by = f"held by {task.holder}" if task.holder else "and nobody holds the task now"
    if submission.token == task.token:
        return f"token {task.token} is not of {submission.holder}: it is the current one, {by}"
    over = "is over" if (submission.token or 0) < task.token else "was never given out"
    return f"token {submission.token} {over}: the current token is {task.token}, {by}"


def _end_of(task: Task, submission: Submission) -> LeaseEnd | None:
    """How the submit's very lease ended, if that was the last one and nobody has claimed since."""
    last = task.last_lease
    if (
        last is not None
        and (last.token, last.holder) == (submission.token, submission.holder)
        and task.token == last.token
    ):
        return last.end
    return None


def _terminal(task: Task, submission: Submission) -> Judgement | None:
    if not task.settled:
        return None
    settling = task.settling_receipt
    said = (submission.outcome, submission.payload_sha256)
    same = settling is not None and (settling.outcome, settling.payload_sha256) == said
    verdict = Verdict.ALREADY_TERMINAL if same else Verdict.TERMINAL_CONFLICT
    return Judgement(verdict=verdict, receipt=settling, message=f"the task is {task.state.value}")


def _duplicate_payload(task: Task, submission: Submission, elsewhere: str) -> Judgement | None:
    if not dedup.takes_part(submission.outcome):
        return None
    first = dedup.first_with_payload(task.receipts, submission.payload_sha256)
    reference = first.receipt_sha256 if first else elsewhere
    if not reference:
        return None
    message = f"the payload was accepted before, receipt {reference}"
    if submission.kind is Kind.ROW:
        return Judgement(verdict=Verdict.REJECTED_DUPLICATE, receipt=first, message=message)
    receipt = new_receipt(task, submission, duplicate_of=reference)
    return Judgement(verdict=Verdict.REJECTED_DUPLICATE, receipt=receipt, append=True, message=message)


def _accepted(task: Task, submission: Submission) -> Judgement:
    verdict = Verdict.RECOVERED if submission.after_crash else Verdict.ACCEPTED
    return Judgement(verdict=verdict, receipt=new_receipt(task, submission), append=True)


def new_receipt(
    task: Task, submission: Submission, *, duplicate_of: str = "", reason: Reason | None = None
) -> Receipt:
    """The receipt that accepts `submission` at the end of the task's list; raises `SubmissionTooLarge`."""
    refuse_what_does_not_fit(task, submission)
    token = task.token if submission.token is None else submission.token
    receipt = Receipt(
        idempotency_key=submission.idempotency_key,
        fencing_token=token,
        holder=submission.holder or OPERATOR_HOLDER,
        kind=submission.kind,
        outcome=submission.outcome,
        value=submission.value,
        payload_sha256=submission.payload_sha256,
        sequence=task.count + 1,
        previous=task.head,
        receipt_sha256="",
        recorded_by=submission.recorded_by,
        reason=reason,
        duplicate_of=duplicate_of,
        device_time=submission.device_time,
    )
    return sealed(task.uid, receipt)


def refuse_what_does_not_fit(task: Task, submission: Submission) -> None:
    """Raises `SubmissionTooLarge`: a value, the rows together, or the number of receipts."""
    size = limits.stored_size(submission.value)
    if size > limits.VALUE_BYTES_MAX:
        raise SubmissionTooLarge(f"the value takes {size} bytes, over the limit of {limits.VALUE_BYTES_MAX}")
    settles = submission.kind is Kind.RESULT and submission.outcome is not Outcome.UNKNOWN
    room = limits.RECEIPTS_MAX if settles else limits.ROW_SEQUENCE_MAX
    if task.count + 1 > room:
        raise SubmissionTooLarge(
            f"the task has {task.count} receipts; {room} is the limit for one that does not settle it"
            if not settles
            else f"the task has {task.count} receipts, the limit is {room}"
        )
    if submission.kind is Kind.ROW:
        rows = sum(limits.stored_size(r.value) for r in task.receipts if r.kind is Kind.ROW) + size
        if rows > limits.ROWS_BYTES_MAX:
            raise SubmissionTooLarge(
                f"the rows of the task take {rows} bytes, over the limit of {limits.ROWS_BYTES_MAX}"
            )
