"""What an operator adds to the plan of the join: a refusal is told once, and taken back when it is over."""

from __future__ import annotations

from dataclasses import replace

from fencepost.protocol import join
from fencepost.protocol.job import ConditionStatus, Job
from fencepost.protocol.join import Child, Standing
from fencepost.protocol.limits import MESSAGE_BYTES_MAX, text_size
from fencepost_operator.decide import StallReason, Trouble, plan_job, stalled, with_trouble
from fencepost_operator.spacing import FIRST_SECONDS, WRITES_MAX, Spacing
from tests.handlers.values import a_job, child_of, settled

NOW = "2026-01-01T00:00:00Z"
QUOTA = Trouble(reason=StallReason.CREATE_REFUSED, message="exceeded quota: used 2")


def children(job: Job, *, made: str = "", done: str = "") -> dict[str, Child]:
    found = {}
    for branch in job.spec.branches:
        task = child_of(job, branch.name) if branch.name in made + done else None
        if branch.name in done and task:
            task = settled(task)
        standing = Standing.OURS if task else Standing.UNSEEN
        found[branch.name] = Child(branch=branch, standing=standing, task=task)
    return found


def test_without_trouble_it_is_the_plan_of_the_join() -> None:
    job = a_job("a", "b")
    for due in (True, False):
        assert plan_job(job, children(job, made="a"), now=NOW, batch_due=due) == join.plan(
            job, children(job, made="a"), now=NOW, batch_due=due
        )


def test_a_refusal_is_told_at_once_and_then_not_again() -> None:
    job = a_job("a", "b")
    plan = plan_job(job, children(job, made="a"), now=NOW, batch_due=False, trouble=QUOTA)
    assert plan.status is not None
    told = stalled(plan.status)
    assert told is not None
    assert (told.status, told.reason, told.message) == (
        ConditionStatus.TRUE,
        "CreateRefused",
        "exceeded quota: used 2",
    )
    assert [branch.name for branch in plan.create] == ["b"]
    written = replace(job, status=plan.status)
    other_numbers = replace(QUOTA, message="exceeded quota: used 3")
    again = plan_job(written, children(job, made="a"), now=NOW, batch_due=False, trouble=other_numbers)
    assert again.status is None
    assert plan_job(written, children(job, made="a"), now=NOW, batch_due=True, trouble=QUOTA).status is None


def test_it_is_taken_back_as_soon_as_it_is_over() -> None:
    job = a_job("a", "b")
    status = plan_job(job, children(job, made="a"), now=NOW, batch_due=False, trouble=QUOTA).status
    assert status is not None
    over = plan_job(replace(job, status=status), children(job, made="ab"), now=NOW, batch_due=False)
    assert over.status is not None
    told = stalled(over.status)
    assert told is not None
    assert told.status is ConditionStatus.FALSE


def test_trouble_does_not_hold_up_a_join_that_is_complete() -> None:
    job = a_job("a", "b")
    plan = plan_job(job, children(job, done="ab"), now=NOW, batch_due=False, trouble=QUOTA)
    assert plan.status is not None
    assert plan.status.snapshot is not None


def test_a_message_of_any_length_fits_the_condition() -> None:
    long = Trouble(reason=StallReason.CONTINUATION_REFUSED, message="ö" * 5000)
    told = stalled(with_trouble(a_job().status, long))
    assert told is not None
    assert text_size(told.message) <= MESSAGE_BYTES_MAX
    assert stalled(with_trouble(with_trouble(a_job().status, long), None)) != told


def test_intermediate_writes_are_a_dozen_each_twice_as_long_after_the_one_before() -> None:
    now, gaps = 100.0, []
    spacing = Spacing(now=now)
    while (pause := spacing.seconds_until_due(now)) is not None:
        assert not spacing.due(now + pause - 0.01)
        assert spacing.due(now + pause)
        now += pause
        gaps.append(pause)
        spacing.wrote(now)
    assert gaps == [FIRST_SECONDS * 2**number for number in range(WRITES_MAX)]
    assert not spacing.due(now + 10**9)
