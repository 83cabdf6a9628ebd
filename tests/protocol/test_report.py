from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from fencepost.protocol.job import Job, JobStatus
from fencepost.protocol.join import TASK_DELETED, record_of
from fencepost.protocol.lease import ended
from fencepost.protocol.mutation import apply
from fencepost.protocol.report import Report, ReportAnswer, ReportJudgement, judge_report, submission_of
from fencepost.protocol.submission import Verdict, judge
from fencepost.protocol.task import DedupScope, LeaseEnd, Outcome, State, Task
from tests.protocol.given import a_job, held_task, settled_task_of, task_of, write_of

JOB = a_job()
NORTH = task_of(JOB, "north")
USUAL = Report(
    event_id="event-1",
    job="nightly-import",
    branch="north",
    outcome=Outcome.OK,
    value="done",
    recorded_by="person",
)


def report(**changes: Any) -> Report:
    return replace(USUAL, **changes)


def judged(
    asked: Report, *, known: ReportAnswer | None = None, job: Job | None = JOB, task: Task | None = NORTH
) -> ReportJudgement:
    return judge_report(asked, known=known, job=job, task=task)


def stored(task: Task, asked: Report) -> tuple[Task, ReportAnswer]:
    """The task after the report, and the answer that is kept."""
    judgement = judged(asked, task=task)
    assert judgement.append
    assert judgement.keep
    return apply(task, write_of(task, judge(task, submission_of(asked, task)))), judgement.answer


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(Outcome.OK, State.SUCCEEDED), (Outcome.REJECTED, State.FAILED), (Outcome.UNKNOWN, State.UNKNOWN)],
)
def test_a_report_settles_its_branch_or_leaves_it_unknown(outcome: Outcome, state: State) -> None:
    asked = report(outcome=outcome, value="" if outcome is Outcome.UNKNOWN else "v")
    task, answer = stored(NORTH, asked)
    assert (answer.verdict, task.state) == (Verdict.ACCEPTED, state)
    assert answer.receipt == task.receipts[-1]
    assert task.receipts[-1].idempotency_key == "event-1"


def test_an_event_is_answered_once_and_its_answer_stands() -> None:
    task, answer = stored(NORTH, USUAL)
    for now in (task, NORTH, None):
        again = judged(USUAL, known=answer, task=now)
        assert (again.answer, again.keep, again.append) == (answer, False, False)
    assert judged(USUAL, known=answer, job=None).answer is answer


@pytest.mark.parametrize(
    "change",
    [{"value": "other"}, {"outcome": Outcome.REJECTED}, {"branch": "south"}, {"job": "another"}],
)
def test_another_body_under_an_event_is_a_conflict_and_changes_nothing(change: dict[str, Any]) -> None:
    _, answer = stored(NORTH, USUAL)
    judgement = judged(report(**change), known=answer)
    assert (judgement.answer.verdict, judgement.keep, judgement.append) == (Verdict.CONFLICT, False, False)
    assert judgement.answer.receipt == answer.receipt


def test_who_reports_is_no_part_of_the_body() -> None:
    _, answer = stored(NORTH, USUAL)
    assert judged(report(recorded_by="another"), known=answer).answer is answer


@pytest.mark.parametrize("known", [None, ReportAnswer(report=USUAL, verdict=Verdict.ACCEPTED)])
def test_an_unknown_has_no_value_whatever_is_stored(known: ReportAnswer | None) -> None:
    for job in (JOB, None):
        with pytest.raises(ValueError, match="Unknown outcome has an empty value"):
            judged(report(outcome=Outcome.UNKNOWN, value="x"), known=known, job=job)


def test_unknown_jobs_and_branches_get_answers_that_are_kept() -> None:
    no_job = judged(USUAL, job=None, task=None)
    assert (no_job.answer.verdict, no_job.keep, no_job.append) == (Verdict.UNKNOWN_JOB, True, False)
    no_branch = judged(report(branch="nowhere"), task=None)
    assert (no_branch.answer.verdict, no_branch.keep, no_branch.append) == (
        Verdict.UNKNOWN_BRANCH,
        True,
        False,
    )
    assert judged(USUAL, known=no_job.answer).answer.verdict is Verdict.UNKNOWN_JOB


@pytest.mark.parametrize(
    ("outcome", "value", "verdict"),
    [
        (Outcome.OK, "done", Verdict.ALREADY_TERMINAL),
        (Outcome.OK, "other", Verdict.TERMINAL_CONFLICT),
        (Outcome.REJECTED, "done", Verdict.TERMINAL_CONFLICT),
        (Outcome.UNKNOWN, "", Verdict.TERMINAL_CONFLICT),
    ],
)
def test_a_new_event_counts_no_branch_twice(outcome: Outcome, value: str, verdict: Verdict) -> None:
    task, _ = stored(NORTH, USUAL)
    asked = report(event_id="event-2", outcome=outcome, value=value)
    judgement = judged(asked, task=task)
    assert (judgement.answer.verdict, judgement.keep, judgement.append) == (verdict, True, False)
    gone = replace(JOB, status=JobStatus(branches=MappingProxyType({"north": record_of(task, room=99)})))
    judgement = judged(asked, job=gone, task=None)
    assert (judgement.answer.verdict, judgement.keep, judgement.append) == (verdict, True, False)


def test_an_unknown_is_reconciled_by_a_new_event_and_its_answer_stays() -> None:
    asked = report(outcome=Outcome.UNKNOWN, value="")
    unresolved, answer = stored(NORTH, asked)
    settled, second = stored(unresolved, report(event_id="event-2"))
    assert (settled.state, second.verdict) == (State.SUCCEEDED, Verdict.ACCEPTED)
    assert settled.receipts[0] == answer.receipt
    assert judged(asked, known=answer, task=settled).answer is answer


def test_a_report_waits_while_somebody_holds_the_task() -> None:
    held = held_task(NORTH)
    waiting = judged(USUAL, task=held)
    assert (waiting.answer.verdict, waiting.keep, waiting.append) == (Verdict.RETRY_LATER, False, False)
    assert judged(USUAL, task=ended(held, end=LeaseEnd.EXPIRED)).append


def test_a_held_but_settled_task_answers_at_once() -> None:
    settled = settled_task_of(JOB, "north", "done")
    assert judged(USUAL, task=settled).answer.verdict is Verdict.ALREADY_TERMINAL


def test_a_report_waits_for_a_task_that_is_still_to_come() -> None:
    waiting = judged(USUAL, task=None)
    assert (waiting.answer.verdict, waiting.keep) == (Verdict.RETRY_LATER, False)


def test_a_report_on_a_deleted_task_meets_its_record() -> None:
    job = replace(JOB, status=JobStatus(branches=MappingProxyType({"north": TASK_DELETED})))
    assert judged(USUAL, job=job, task=None).answer.verdict is Verdict.TERMINAL_CONFLICT


def test_a_payload_accepted_elsewhere_is_told() -> None:
    task = replace(NORTH, spec=replace(NORTH.spec, dedup_scope=DedupScope.QUEUE))
    judgement = judge_report(USUAL, known=None, job=JOB, task=task, elsewhere="e" * 64)
    assert (judgement.answer.verdict, judgement.append) == (Verdict.REJECTED_DUPLICATE, True)
