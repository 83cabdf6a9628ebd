"""`fencepost get` and `fencepost tree`: what is there, for people who look. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fencepost.api.write import job_view, task_view
from fencepost.cli.output import output_option, print_json, print_table
from fencepost.cli.target import run_async, target_of, target_options
from fencepost.protocol.fanout import child_name
from fencepost.protocol.job import BranchRecord, Job
from fencepost.protocol.join import progress_sentence
from fencepost.protocol.task import ObjectKey, Task


@click.group()
def get() -> None:
    """List tasks or jobs.

    \b
    Examples:
      fencepost get tasks --queue feeds
      fencepost get jobs -n shelter -o json
    """


@get.command()
@click.option("--queue", help="Only the tasks of this queue.")
@output_option
@target_options
@click.pass_context
def tasks(ctx: click.Context, queue: str | None, output: str) -> None:
    """List the tasks of the namespace."""
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
    """List the jobs of the namespace."""
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
        state = task.state.value if task else ("started" if continuation.started else "not started")
        rows.append((f"└─ then ({continuation.kind.value})", continuation.name, state, "", ""))
    print_table(("BRANCH", "TASK", "STATE", "TOKEN", "VALUE"), rows, empty="It has no branches.")


def _standing(task: Task | None, record: BranchRecord | None) -> tuple[str, str, str]:
    """State, token and value of a branch: as recorded, else as its task stands."""
    token = str(task.token) if task else ""
    if record is not None:
        reason = f" ({record.reason.value})" if record.reason else ""
        value = record.value if record.value is not None else f"in {record.value_ref}"
        return f"{record.outcome.value}{reason}", token, value
    if task is None:
        return "no task yet", "", ""
    return (_hold(task) or task.state.value), token, task.progress
