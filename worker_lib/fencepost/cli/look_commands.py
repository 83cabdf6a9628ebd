"""`fencepost get` and `fencepost tree`: what is there, for people who look. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fencepost.api.write import job_view, task_view
from fencepost.cli.output import output_option, print_json, print_table
from fencepost.cli.target import run_async, target_of, target_options
from fencepost.protocol.fanout import child_name
from fencepost.protocol.job import BranchRecord, ContinuationRecord, Job
from fencepost.protocol.join import progress_sentence
from fencepost.protocol.lease import may_requeue
from fencepost.protocol.task import Hold, ObjectKey, Outcome, Reason, State, Task


@click.group()
def get() -> None:
    """List tasks or jobs.

    \b
    Examples:
      fencepost get tasks --queue feeds
      fencepost get jobs -n shelter -o json

    Exit codes: 0 listed, 2 wrong input, 62 the store does not answer, 64 no access.
    """


@get.command()
@click.option("--queue", help="Only the tasks of this queue.")
@output_option
@target_options
@click.pass_context
def tasks(ctx: click.Context, queue: str | None, output: str) -> None:
    """List the tasks of the namespace.

    \b
    Example:
      fencepost get tasks --queue feeds -n shelter

    Exit codes: 0 listed, 2 wrong input, 62 the store does not answer, 64 no access.
    """
    target = target_of(ctx)

    async def work() -> Sequence[Task]:
        async with target.opened(must_exist=True) as store:
            return await store.tasks(queue)

    found = sorted(run_async(work()), key=lambda task: task.key.name)
    if output == "json":
        print_json({"apiVersion": "v1", "kind": "List", "items": [task_view(task) for task in found]})
        return
    headings = ("NAME", "QUEUE", "STATE", "HOLD", "TOKEN", "FAILURES", "HOLDER", "PROGRESS")
    rows = [
        (
            task.key.name,
            task.spec.queue,
            task.state.value,
            _hold(task),
            task.token,
            task.failures,
            task.holder.partition("-")[0],
            task.progress,
        )
        for task in found
    ]
    print_table(headings, rows, empty="There are no tasks here.")


def _hold(task: Task) -> str:
    if task.settled:
        return ""
    if task.hold is not None:
        return task.hold.value
    return "Suspended" if task.spec.suspend else ""


@get.command()
@output_option
@target_options
@click.pass_context
def jobs(ctx: click.Context, output: str) -> None:
    """List the jobs of the namespace.

    \b
    Example:
      fencepost get jobs -n shelter -o json

    Exit codes: 0 listed, 2 wrong input, 62 the store does not answer, 64 no access.
    """
    target = target_of(ctx)

    async def work() -> Sequence[Job]:
        async with target.opened(must_exist=True) as store:
            return await store.jobs()

    found = sorted(run_async(work()), key=lambda job: job.key.name)
    if output == "json":
        print_json({"apiVersion": "v1", "kind": "List", "items": [job_view(job) for job in found]})
        return
    rows = [
        (
            job.key.name,
            job.status.state.value,
            f"{len(job.status.branches)}/{len(job.spec.branches)}",
            job.status.snapshot.digest[:16] if job.status.snapshot else "",
            job.status.continuation.name if job.status.continuation else "",
        )
        for job in found
    ]
    print_table(("NAME", "STATE", "SETTLED", "DIGEST", "CONTINUATION"), rows, empty="There are no jobs here.")


@click.command()
@click.argument("job")
@output_option
@target_options
@click.pass_context
def tree(ctx: click.Context, job: str, output: str) -> None:
    """Show JOB with its branches, their tasks and outcomes, and its continuation.

    \b
    Example:
      fencepost tree checksums -n shelter

    Exit codes: 0 shown, 2 wrong input or no such job, 62 the store does not answer, 64 no access.
    """
    target = target_of(ctx)

    async def work() -> tuple[Job, dict[str, Task]]:
        async with target.opened(must_exist=True) as store:
            found = await store.job(ObjectKey(namespace=store.namespace, name=job))
            if found is None:
                raise click.UsageError(f"there is no job {store.namespace}/{job}", ctx)
            return found, {task.key.name: task for task in await store.tasks()}

    found, children = run_async(work())
    if output == "json":
        print_json(_tree_view(found, children))
    else:
        _print_tree(found, children)


def _tree_view(job: Job, tasks_by_name: dict[str, Task]) -> dict[str, object]:
    names = {branch.name: child_name(job, branch.name) for branch in job.sorted_branches}
    return {
        "job": job_view(job),
        "branches": {
            branch: {"task": task_view(tasks_by_name[name])} if name in tasks_by_name else {"task": None}
            for branch, name in names.items()
        },
    }


def _print_tree(job: Job, tasks_by_name: dict[str, Task]) -> None:
    click.echo(f"{job.key.name}   {job.status.state.value}   {progress_sentence(job, job.status)}")
    if job.status.snapshot:
        click.echo(f"snapshot {job.status.snapshot.digest}   {job.status.snapshot.committed_time}")
    rows = []
    last = len(job.spec.branches) - 1
    for position, branch in enumerate(job.sorted_branches):
        name = child_name(job, branch.name)
        task = tasks_by_name.get(name)
        record = job.status.branches.get(branch.name)
        corner = "└─" if position == last and job.status.continuation is None else "├─"
        rows.append((f"{corner} {branch.name}", name, *_standing(task, record)))
    continuation = job.status.continuation
    if continuation is not None:
        task = tasks_by_name.get(continuation.name)
        standing = _standing_of_task(task) if task else (_started(continuation), "", "")
        rows.append((f"└─ then ({continuation.kind.value})", continuation.name, *standing))
    print_table(("BRANCH", "TASK", "STATE", "TOKEN", "VALUE"), rows, empty="It has no branches.")


def _started(continuation: ContinuationRecord) -> str:
    return "started" if continuation.started else "not started"


def _standing(task: Task | None, record: BranchRecord | None) -> tuple[str, str, str]:
    """State, token and value of a branch: as recorded, else as its task stands."""
    if record is not None:
        token = str(task.token) if task else ""
        value = record.value if record.value is not None else f"by reference: {record.value_ref}"
        return (
            _with_reason(record.outcome, record.reason),
            token,
            _last_error(task) if record.reason else value,
        )
    return _standing_of_task(task) if task else ("no task yet", "", "")


def _with_reason(standing: Outcome | State, reason: Reason | None) -> str:
    return f"{standing.value} ({reason.value})" if reason else standing.value


def _standing_of_task(task: Task) -> tuple[str, str, str]:
    """State, token and value of a task; what it waits for where there is no value yet."""
    receipt = task.settling_receipt
    if receipt is not None:
        value = _last_error(task) if receipt.reason else receipt.value
        return _with_reason(task.state, receipt.reason), str(task.token), value
    return _hold(task) or task.state.value, str(task.token), _waiting_for(task)


def _waiting_for(task: Task) -> str:
    """What an unsettled task waits for, or how far it is."""
    if task.held:
        return task.progress
    if task.spec.external:
        return "waits for a report"
    if task.state is State.UNKNOWN:
        again = task.hold is None or may_requeue(task)
        return "waits to be claimed again" if again else "waits for a report"
    return _last_error(task) if task.hold is Hold.BACKOFF else task.progress


def _last_error(task: Task | None) -> str:
    """What the last attempt said, in one line."""
    message = " ".join(task.last_lease.message.split()) if task and task.last_lease else ""
    return f"last error: {message}" if message else ""
