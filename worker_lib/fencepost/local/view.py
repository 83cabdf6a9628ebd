"""What `fencepost run` shows and waits for: its jobs and tasks, and all that follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fencepost.local.joining import look_up
from fencepost.local.ledger import Ledger
from fencepost.protocol.continuation import is_wanted
from fencepost.protocol.job import ConditionStatus, ContinuationKind, ContinuationRecord, Job, JobState
from fencepost.protocol.join import progress_sentence
from fencepost.protocol.task import ObjectKey, Outcome, State, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A job or a task of the run. `settled` counts branches; a task is one branch of itself."""

    name: str
    kind: str
    total: int
    settled: int
    done: bool
    failed: bool
    stalled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All items, a continuation behind its job. `can_go_on`: work may be claimed, or something is due."""

    items: tuple[Item, ...]
    can_go_on: bool

    @property
    def done(self) -> bool:
        return all(item.done for item in self.items)

    @property
    def failed(self) -> bool:
        return any(item.failed for item in self.items)

    @property
    def total(self) -> int:
        return sum(item.total for item in self.items)

    @property
    def settled(self) -> int:
        return sum(item.settled for item in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRow:
    """A line of the table at the end. `token` is the number of claims that it took."""

    name: str
    outcome: str
    value: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """How one job or task ended."""

    name: str
    kind: str
    state: str
    sentence: str
    rows: tuple[BranchRow, ...]
    digest: str = ""


def look(ledger: Ledger, wanted: Sequence[ObjectKey]) -> View:
    """The state of the run now. `wanted` are the keys that the manifest names, of jobs or of tasks."""
    items = [item for key in wanted for item in _items(ledger, key)]
    return View(items=tuple(items), can_go_on=ledger.shelf.can_go_on())


def tables(ledger: Ledger, wanted: Sequence[ObjectKey]) -> list[Table]:
    """What is shown at the end."""
    return [_table(ledger, found) for key in wanted for found in _chain(ledger, key)]


def _items(ledger: Ledger, key: ObjectKey) -> Iterator[Item]:
    for found in _chain(ledger, key):
        yield _item_of_job(ledger, found) if isinstance(found, Job) else _item_of_task(found)


def _chain(ledger: Ledger, key: ObjectKey) -> Iterator[Job | Task]:
    """A job and what continues it, or a task."""
    job = ledger.shelf.job(key)
    if job is None:
        kept = ledger.shelf.kept(key)
        if kept is not None:
            yield kept.task
        return
    yield job
    record = job.status.continuation
    if record is not None:
        yield from _follower(ledger, job, record)


def _follower(ledger: Ledger, job: Job, record: ContinuationRecord) -> Iterator[Job | Task]:
    key = ObjectKey(namespace=job.key.namespace, name=record.name)
    if record.kind is ContinuationKind.FAN_OUT_JOB:
        yield from _chain(ledger, key)
    else:
        kept = ledger.shelf.kept(key)
        if kept is not None:
            yield kept.task


def _item_of_job(ledger: Ledger, job: Job) -> Item:
    total = len(job.spec.branches)
    counted = ledger.shelf.counted(job.uid)
    settled = sum(number for state, number in counted.items() if state not in (State.OPEN, State.UNKNOWN))
    return Item(
        name=job.key.name,
        kind="job",
        total=total,
        settled=total if job.joined else min(settled, total),
        done=job.joined and not _waits_for_continuation(job),
        failed=job.status.state is JobState.FAILED,
        stalled=_stalled(job),
    )


def _waits_for_continuation(job: Job) -> bool:
    record = job.status.continuation
    return is_wanted(job) and (record is None or not record.started)


def _stalled(job: Job) -> str:
    for condition in job.status.conditions:
        if condition.type == "Stalled" and condition.status is ConditionStatus.TRUE:
            return condition.message
    return ""


def _item_of_task(task: Task) -> Item:
    return Item(
        name=task.key.name,
        kind="task",
        total=1,
        settled=int(task.settled),
        done=task.settled,
        failed=task.settled and task.state is not State.SUCCEEDED,
    )


def _table(ledger: Ledger, found: Job | Task) -> Table:
    if isinstance(found, Task):
        row = _row(found.key.name, found)
        return Table(name=found.key.name, kind="task", state=found.state.value, sentence="", rows=(row,))
    children = look_up(ledger, found)
    rows = tuple(_row(branch.name, children[branch.name].task) for branch in found.sorted_branches)
    snapshot = found.status.snapshot
    return Table(
        name=found.key.name,
        kind="job",
        state=found.status.state.value,
        sentence=progress_sentence(found, found.status),
        rows=rows,
        digest=snapshot.digest if snapshot else "",
    )


def _row(name: str, task: Task | None) -> BranchRow:
    if task is None:
        return BranchRow(name=name, outcome=Outcome.REJECTED.value, value="the task was deleted", token=0)
    receipt = task.settling_receipt
    if receipt is None:
        return BranchRow(name=name, outcome=task.state.value, value=task.progress, token=task.token)
    value = receipt.value or (receipt.reason.value if receipt.reason else "")
    return BranchRow(name=name, outcome=receipt.outcome.value, value=value, token=task.token)
