"""Reports from outside: an outcome for a branch, told by an event that has an id of its own.

An event id is unique in its store: the same body replays the original answer, another body is a conflict.
Answers for unknown jobs and unknown branches are kept like all others; RETRY_LATER is not: it answers
nothing yet. A new event on a settled branch is ALREADY_TERMINAL if it says the same, else
TERMINAL_CONFLICT, a later Unknown included. Reconciling an Unknown takes a new event; the old answer stays
what it was.
"""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.protocol.job import BranchRecord, Job
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.submission import Judgement, Submission, Verdict, judge
from fencepost.protocol.task import Kind, Outcome, Receipt, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an event says. `value` is empty for Unknown."""

    event_id: str
    job: str
    branch: str
    outcome: Outcome
    value: str
    recorded_by: str

    @property
    def body(self) -> tuple[str, str, Outcome, str]:
        return (self.job, self.branch, self.outcome, sha256_hex(self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAnswer:
    """The answer that is kept for the event. `receipt` is the branch's receipt it led to or met."""

    report: Report
    verdict: Verdict
    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportJudgement:
    """`answer` is what the caller gets; `keep` says it is new and has to be stored; `append` that its
    receipt has to be written to the branch's task, in the same transaction."""

    answer: ReportAnswer
    keep: bool
    append: bool = False


def judge_report(
    report: Report,
    *,
    known: ReportAnswer | None,
    job: Job | None,
    task: Task | None,
    elsewhere: str = "",
) -> ReportJudgement:
    """Judge a report. `known` is the answer kept for its event id, `task` the branch's task.

    `elsewhere` is as for `judge`. A report is written only when nobody holds the task: while somebody does,
    and before the branch has its task, it is RETRY_LATER. Raises `ValueError` for an Unknown with a value.
    """
    if report.outcome is Outcome.UNKNOWN and report.value:
        raise ValueError("an Unknown outcome has an empty value")
    if known is not None:
        return _replayed(report, known)
    if job is None:
        return _kept(report, Verdict.UNKNOWN_JOB)
    if all(branch.name != report.branch for branch in job.spec.branches):
        return _kept(report, Verdict.UNKNOWN_BRANCH)
    if task is None:
        return _without_task(report, job.status.branches.get(report.branch))
    judgement = judge(task, submission_of(report, task), elsewhere=elsewhere)
    if judgement.append and task.held:
        return _later(report)
    answer = ReportAnswer(report=report, verdict=judgement.verdict, receipt=judgement.receipt)
    return ReportJudgement(answer=answer, keep=True, append=judgement.append)


def submission_of(report: Report, task: Task) -> Submission:
    """The report as a submit without a lease: its key is the event id."""
    return Submission(
        uid=task.uid,
        idempotency_key=report.event_id,
        kind=Kind.RESULT,
        outcome=report.outcome,
        value=report.value,
        recorded_by=report.recorded_by,
        token=None,
        holder=None,
    )


def _replayed(report: Report, known: ReportAnswer) -> ReportJudgement:
    """The original answer for the same body; a conflict that changes nothing for another."""
    if known.report.body == report.body:
        return ReportJudgement(answer=known, keep=False)
    conflict = ReportAnswer(report=report, verdict=Verdict.CONFLICT, receipt=known.receipt)
    return ReportJudgement(answer=conflict, keep=False)


def _without_task(report: Report, record: BranchRecord | None) -> ReportJudgement:
    """A branch that is recorded is settled although its task is gone; another's task is still to come."""
    if record is None:
        return _later(report)
    same = (record.outcome, record.payload_sha256) == (report.outcome, sha256_hex(report.value))
    return _kept(report, Verdict.ALREADY_TERMINAL if same else Verdict.TERMINAL_CONFLICT)


def _later(report: Report) -> ReportJudgement:
    return ReportJudgement(answer=ReportAnswer(report=report, verdict=Verdict.RETRY_LATER), keep=False)


def _kept(report: Report, verdict: Verdict) -> ReportJudgement:
    return ReportJudgement(answer=ReportAnswer(report=report, verdict=verdict), keep=True)


__all__ = ["Judgement", "Report", "ReportAnswer", "ReportJudgement", "judge_report", "submission_of"]
