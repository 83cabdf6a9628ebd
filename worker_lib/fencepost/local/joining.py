"""The server's side of a job in an embedded store: make the tasks, join them, start the continuation.

What is to be done is planned by `protocol.join` and `protocol.continuation`, as on a cluster; here all of it
happens in one transaction. The join happens in the very transaction that settles the last branch, so the
last receipt, the job's state and the snapshot are committed together or not at all (JOIN-08).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from fencepost.local import continuing
from fencepost.local.jobs import JobApplied, keep_job, put_job
from fencepost.local.ledger import Ledger, rfc3339
from fencepost.ports import NewTask, Refused
from fencepost.protocol import join
from fencepost.protocol.fanout import ChildTask, child_task, is_ours
from fencepost.protocol.job import Branch, Job, JobSpec
from fencepost.protocol.task import ObjectKey, Task

# Make the tasks, store the mark, store the records: a plan does one of them, and some are to spare.
PLANS_AT_ONCE_MAX: Final = 6


def create_job(ledger: Ledger, key: ObjectKey, spec: JobSpec) -> JobApplied | Refused:
    """A job and the tasks of its branches, in one step (JOIN-01); see `jobs.put_job` for replays."""
    answer = put_job(ledger, key, spec)
    if isinstance(answer, Refused) or answer.replay:
        return answer
    reconcile(ledger, key)
    return replace(answer, job=ledger.shelf.job(key) or answer.job)


def follow_up(ledger: Ledger) -> None:
    """Before the commit: join what the transaction has settled, and what that settles in turn."""
    while ledger.to_join:
        namespace, owner = ledger.to_join.pop()
        key = ObjectKey(namespace=namespace, name=owner.name)
        if ledger.shelf.may_join(key, owner.uid):
            reconcile(ledger, key)


def reconcile(ledger: Ledger, key: ObjectKey, *, batch_due: bool = False) -> None:
    """Everything that is to be done about a job now, and about the job that continues it."""
    job = ledger.shelf.job(key)
    if job is None or job.deleting:
        return
    if not job.joined:
        job = _join(ledger, job, batch_due=batch_due)
    started = continuing.go_on(ledger, job)
    if started is not None:
        reconcile(ledger, started)


def resume(ledger: Ledger, key: ObjectKey) -> Job | None:
    """Let a suspended job make its tasks. None if there is no job."""
    job = ledger.shelf.job(key)
    if job is None:
        return None
    keep_job(ledger, replace(job, spec=replace(job.spec, suspend=False)))
    reconcile(ledger, key)
    return ledger.shelf.job(key)


def _join(ledger: Ledger, job: Job, *, batch_due: bool) -> Job:
    children = look_up(ledger, job)
    for _ in range(PLANS_AT_ONCE_MAX):
        plan = join.plan(job, children, now=rfc3339(ledger.now), batch_due=batch_due)
        for late in plan.retire:
            ledger.shelf.drop(late.key)
            children |= _gone(children, late)
        children |= _made(ledger, job, plan.create)
        if plan.status is not None:
            job = keep_job(ledger, replace(job, status=plan.status))
        if job.joined or not (plan.create or plan.retire or plan.status):
            return job
    return job


def look_up(ledger: Ledger, job: Job) -> dict[str, join.Child]:
    """Every branch with what is stored under the name of its task."""
    owned = {task.key.name: task for task in ledger.shelf.children(job.uid)}
    return {branch.name: _child(ledger, job, branch, owned) for branch in job.spec.branches}


def _child(ledger: Ledger, job: Job, branch: Branch, owned: Mapping[str, Task]) -> join.Child:
    wanted = child_task(job, branch)
    task = owned.get(wanted.key.name)
    if task is None:
        kept = ledger.shelf.kept(wanted.key)
        task = kept.task if kept else None
    return _as_child(branch, wanted, task)


def _as_child(branch: Branch, wanted: ChildTask, task: Task | None) -> join.Child:
    if task is None:
        return join.Child(branch=branch, standing=join.Standing.ABSENT)
    if not is_ours(task, wanted):
        return join.Child(branch=branch, standing=join.Standing.STRANGER)
    return join.Child(branch=branch, standing=join.Standing.OURS, task=task)


def _made(ledger: Ledger, job: Job, branches: tuple[Branch, ...]) -> dict[str, join.Child]:
    made: dict[str, join.Child] = {}
    for branch in branches:
        wanted = child_task(job, branch)
        ledger.create(NewTask(key=wanted.key, spec=wanted.spec, owner=wanted.owner, branch=wanted.branch))
        kept = ledger.shelf.kept(wanted.key)
        made[branch.name] = _as_child(branch, wanted, kept.task if kept else None)
    return made


def _gone(children: Mapping[str, join.Child], late: Task) -> dict[str, join.Child]:
    return {
        name: join.Child(branch=child.branch, standing=join.Standing.ABSENT)
        for name, child in children.items()
        if child.task is not None and child.task.key == late.key
    }
