"""Reports from outside and the one consumption of a joined job, each one transaction.

Both follow the fan-out contract that the protocol's JOIN promises state: an answer is kept for every event,
also for an unknown job or branch, and the effect of `consume` is committed with the mark "consumed".
"""

from __future__ import annotations

from collections.abc import Callable

from fencepost.local.ledger import Ledger
from fencepost.local.shelf import Kept
from fencepost.protocol import limits
from fencepost.protocol.consume import ConsumeVerdict, judge_consume
from fencepost.protocol.fanout import child_name
from fencepost.protocol.job import Job
from fencepost.protocol.mutation import Settle, apply
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.receipt import key_problem
from fencepost.protocol.report import Report, ReportAnswer, judge_report
from fencepost.protocol.submission import SubmissionTooLarge
from fencepost.protocol.task import ObjectKey, Receipt, Task


def take_report(ledger: Ledger, namespace: str, report: Report) -> ReportAnswer:
    """Judge a report, keep its answer, and settle or mark its branch with a receipt.

    Raises `ValueError` for an event id, job or branch that is no identifier, for an Unknown with a value and
    for a value over the limit; nothing is kept then.
    """
    refuse_what_is_no_report(report)
    job = ledger.shelf.job(ObjectKey(namespace=namespace, name=report.job))
    kept = _task_of(ledger, job, report.branch)
    judgement = judge_report(
        report,
        known=ledger.shelf.answer(report.event_id),
        job=job,
        task=kept.task if kept else None,
        elsewhere=ledger.elsewhere(kept.task, sha256_hex(report.value)) if kept else "",
    )
    if judgement.keep:
        ledger.shelf.keep_answer(judgement.answer)
    receipt = judgement.answer.receipt
    if judgement.append and kept is not None and receipt is not None:
        ledger.change(kept, apply(kept.task, _settle(kept.task, receipt)))
    return judgement.answer


def consume(ledger: Ledger, key: ObjectKey, effect: Callable[[], None]) -> ConsumeVerdict:
    """Carry out `effect` and mark the job consumed, in this transaction; at most once for ever."""
    job = ledger.shelf.job(key)
    verdict = judge_consume(job, consumed_digest=ledger.shelf.consumed(job.uid) if job else None)
    if verdict is ConsumeVerdict.CONSUME and job is not None and job.status.snapshot is not None:
        ledger.shelf.keep_consumed(job.uid, job.status.snapshot.digest)
        effect()
    return verdict


def refuse_what_is_no_report(report: Report) -> None:
    """Raises `ValueError`: identifiers take 1 to 256 bytes, a value has a limit."""
    problem = key_problem(report.event_id)
    if problem is not None:
        raise ValueError(f"event id: {problem}")
    for what, name in (("job", report.job), ("branch", report.branch)):
        size = limits.text_size(name)
        if not 1 <= size <= limits.BRANCH_NAME_BYTES_MAX:
            raise ValueError(f"{what} takes {size} bytes: 1 to {limits.BRANCH_NAME_BYTES_MAX} are allowed")
    size = limits.stored_size(report.value)
    if size > limits.VALUE_BYTES_MAX:
        raise SubmissionTooLarge(f"the value takes {size} bytes, over the limit of {limits.VALUE_BYTES_MAX}")


def _settle(task: Task, receipt: Receipt) -> Settle:
    """The write that a report comes to: it compares what the report was judged on."""
    return Settle(
        key=task.key, uid=task.uid, token=task.token, state=task.state, head=task.head, receipt=receipt
    )


def _task_of(ledger: Ledger, job: Job | None, branch: str) -> Kept | None:
    if job is None or all(known.name != branch for known in job.spec.branches):
        return None
    return ledger.current(ObjectKey(namespace=job.key.namespace, name=child_name(job, branch)))
