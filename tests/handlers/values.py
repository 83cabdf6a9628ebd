"""Values for the operator's tests: tasks and jobs, filled in where a test does not care."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fencepost.protocol import fanout, lease, mutation
from fencepost.protocol.job import Branch, Job, JobSpec
from fencepost.protocol.submission import Submission, judge
from fencepost.protocol.task import Kind, LeaseEnd, ObjectKey, Outcome, Task, TaskSpec

HOLDER = "11111111-2222-4333-8444-555555555555/abcd1234"


class MovableClock:
    """A monotonic clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def a_job(*names: str, uid: str = "job-uid", version: str = "1", **spec: Any) -> Job:
    branches = tuple(Branch(name=name, request=f'{{"name":"{name}"}}') for name in names or ("a", "b", "c"))
    return Job(
        key=ObjectKey(namespace="ns", name="job"),
        uid=uid,
        version=version,
        spec=JobSpec(branches=branches, **spec),
        created_at="2026-01-01T00:00:00Z",
    )


def a_task(name: str = "task", *, uid: str = "task-uid", version: str = "1", **spec: Any) -> Task:
    return Task(
        key=ObjectKey(namespace="ns", name=name),
        uid=uid,
        version=version,
        spec=TaskSpec(**spec),
        created_at="2026-01-01T00:00:00Z",
    )


def child_of(job: Job, name: str, *, uid: str = "", version: str = "1") -> Task:
    branch = next(one for one in job.spec.branches if one.name == name)
    made = fanout.child_task(job, branch)
    return Task(
        key=made.key,
        uid=uid or f"uid-of-{name}",
        version=version,
        spec=made.spec,
        owner=made.owner,
        branch=made.branch,
        created_at="2026-01-01T00:00:00Z",
    )


def claimed(task: Task, *, version: str = "2") -> Task:
    held = lease.claimed(task, holder=HOLDER, account="worker", outbox_mark="0:x", at="2026-01-01T00:00:00Z")
    return moved(held, version)


def settled(task: Task, value: str = "done", *, outcome: Outcome = Outcome.OK, version: str = "3") -> Task:
    held = task if task.held else claimed(task)
    submission = Submission(
        uid=held.uid,
        idempotency_key=f"key of {held.uid} {value[:20]}",
        kind=Kind.RESULT,
        outcome=outcome,
        value=value,
        recorded_by="worker",
        token=held.token,
        holder=held.holder,
    )
    receipt = judge(held, submission).receipt
    assert receipt is not None
    submit = mutation.Submit(
        key=held.key,
        uid=held.uid,
        token=held.token,
        holder=held.holder,
        state=held.state,
        head=held.head,
        receipt=receipt,
    )
    return moved(mutation.apply(held, submit), version)


def in_backoff(task: Task, *, version: str = "3") -> Task:
    return moved(lease.ended(claimed(task), end=LeaseEnd.ERROR, message="boom"), version)


def moved(task: Task, version: str) -> Task:
    """The same at another version."""
    return replace(task, version=version)
