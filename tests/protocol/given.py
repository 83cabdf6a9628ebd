"""What the tests of the core start from, made by the core's own functions wherever it has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fencepost.protocol.fanout import child_task
from fencepost.protocol.job import Branch, Job, JobSpec
from fencepost.protocol.join import Child, Standing
from fencepost.protocol.lease import claimed
from fencepost.protocol.mutation import Claim, Settle, Submit, apply
from fencepost.protocol.submission import Judgement, Submission, judge
from fencepost.protocol.task import Kind, LeaseEnd, ObjectKey, Outcome, Task, TaskSpec

OUTBOX = "3f2b8c1e-9a44-4c57-8e21-5d1f0b7a6c90"
OTHER_OUTBOX = "b7d9e2a0-1c35-4f68-9b02-7e4a8d3c5f11"
HOLDER = f"{OUTBOX}/first"
NEXT_HOLDER = f"{OUTBOX}/second"
OTHER_HOLDER = f"{OTHER_OUTBOX}/first"
ACCOUNT = "system:serviceaccount:feeds:worker"
OPERATOR_ACCOUNT = "system:serviceaccount:fencepost:operator"
KEY = ObjectKey(namespace="feeds", name="import-north")
NOW = "2026-01-02T03:04:05Z"


def open_task(**changes: Any) -> Task:
    """A task that nobody has claimed yet."""
    return replace(Task(key=KEY, uid="uid-1", version="1", spec=TaskSpec()), **changes)


def with_spec(task: Task, **changes: Any) -> Task:
    return replace(task, spec=replace(task.spec, **changes))


def held_task(task: Task | None = None, *, holder: str = HOLDER, **changes: Any) -> Task:
    """A task under its next lease."""
    free = task or open_task()
    return replace(claimed(free, holder=holder, account=ACCOUNT, outbox_mark="7 abc", at=NOW), **changes)


def claim_of(task: Task, *, holder: str = HOLDER) -> Claim:
    return Claim(
        key=task.key,
        uid=task.uid,
        version=task.version,
        token=task.token + 1,
        holder=holder,
        account=ACCOUNT,
        outbox_mark="7 abc",
        at=NOW,
    )


def submission(task: Task, **changes: Any) -> Submission:
    """An Ok result under the lease that `task` shows."""
    usual = Submission(
        uid=task.uid,
        idempotency_key="key-1",
        kind=Kind.RESULT,
        outcome=Outcome.OK,
        value="the work",
        recorded_by=ACCOUNT,
        token=task.token,
        holder=task.holder,
    )
    return replace(usual, **changes)


def row(task: Task, key: str, value: str, **changes: Any) -> Submission:
    return submission(task, idempotency_key=key, kind=Kind.ROW, value=value, **changes)


def unknown(task: Task, key: str = "key-unknown", **changes: Any) -> Submission:
    return submission(task, idempotency_key=key, outcome=Outcome.UNKNOWN, value="", **changes)


def reported(task: Task, key: str, outcome: Outcome, value: str = "") -> Submission:
    """The same without a lease, as a report from outside makes it."""
    return submission(
        task, idempotency_key=key, outcome=outcome, value=value, token=None, holder=None, recorded_by="person"
    )


def write_of(task: Task, judgement: Judgement) -> Submit | Settle:
    """The mutation that a judgement with `append` asks for."""
    assert judgement.append
    assert judgement.receipt is not None
    if judgement.receipt.holder == "operator":
        return Settle(
            key=task.key,
            uid=task.uid,
            token=task.token,
            state=task.state,
            head=task.head,
            receipt=judgement.receipt,
        )
    return Submit(
        key=task.key,
        uid=task.uid,
        token=task.token,
        holder=task.holder,
        state=task.state,
        head=task.head,
        receipt=judgement.receipt,
    )


def after(task: Task, *submissions: Submission) -> Task:
    """The task after these submits were accepted, one after the other."""
    for each in submissions:
        task = apply(task, write_of(task, judge(task, each)))
    return task


def settled_task(value: str = "the work", *, outcome: Outcome = Outcome.OK, **changes: Any) -> Task:
    task = held_task(open_task(**changes))
    return after(task, submission(task, value=value, outcome=outcome))


def last_word(task: Task) -> LeaseEnd | None:
    return task.last_lease.end if task.last_lease else None


def a_job(names: Sequence[str] = ("north", "south", "west"), **changes: Any) -> Job:
    """A FanOutJob with these branches; `changes` are of its spec."""
    branches = tuple(
        Branch(name=name, request=f'{{"branch":"{position}"}}') for position, name in enumerate(names)
    )
    key = ObjectKey(namespace="feeds", name="nightly-import")
    return Job(key=key, uid="job-uid-1", version="1", spec=replace(JobSpec(branches=branches), **changes))


def task_of(job: Job, name: str, **changes: Any) -> Task:
    """The open task of a branch, as it is created."""
    wanted = child_task(job, next(branch for branch in job.spec.branches if branch.name == name))
    task = Task(
        key=wanted.key, uid=f"uid-{name}", version="1", spec=wanted.spec, owner=wanted.owner, branch=name
    )
    return replace(task, **changes)


def settled_task_of(job: Job, name: str, value: str = "", outcome: Outcome = Outcome.OK) -> Task:
    task = held_task(task_of(job, name))
    return after(task, submission(task, value=value or f"result of {name}", outcome=outcome))


def child(job: Job, name: str, task: Task | None = None, standing: Standing | None = None) -> Child:
    branch = next(branch for branch in job.spec.branches if branch.name == name)
    found = standing or (Standing.OURS if task else Standing.UNSEEN)
    return Child(branch=branch, standing=found, task=task)


def children(job: Job, *tasks: Task, **standings: Standing) -> dict[str, Child]:
    """All branches: those of `tasks` are ours, those in `standings` as it says, the rest unseen."""
    found = {task.branch: task for task in tasks}
    return {
        branch.name: child(job, branch.name, found.get(branch.name), standings.get(branch.name))
        for branch in job.spec.branches
    }
