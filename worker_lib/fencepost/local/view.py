"""What `fencepost run` shows and waits for: its jobs and tasks, and all that follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fencepost.local.joining import look_up
from fencepost.local.ledger import Ledger
from fencepost.protocol.continuation import is_wanted
from fencepost.protocol.job import ConditionStatus, ContinuationKind, ContinuationRecord, Job, JobState
from fencepost.protocol.join import progress_sentence
from fencepost.protocol.task import ObjectKey, Outcome, Receipt, State, Task

WAITS_SHOWN_MAX: Final = 5  # tasks of one job that are named when nothing can go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A job or a task of the run. `settled` counts branches; a task is one branch of itself.

    `follows` says that it continues a job: the manifest does not name it.
    """

    name: str
    kind: str
    total: int
    settled: int
    done: bool
    failed: bool
    follows: bool = False

    @property
    def sentence(self) -> str:
        """For example `then total: 3/8 branches settled`."""
        if self.kind == "job":
            return f"then {self.name}: {self.settled}/{self.total} branches settled"
        return f"then {self.name}: {'settled' if self.done else 'not settled yet'}"


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
    def named(self) -> tuple[Item, ...]:
        """What the manifest names: the counts are of these alone, so that a total never grows."""
        return tuple(item for item in self.items if not item.follows)

    @property
    def following(self) -> tuple[Item, ...]:
        """What continues them, as far as it has begun."""
        return tuple(item for item in self.items if item.follows)

    @property
    def total(self) -> int:
        return sum(item.total for item in self.named)

    @property
    def settled(self) -> int:
        return sum(item.settled for item in self.named)

    @property
    def settled_of_all(self) -> int:
        """Of the continuations too: it rises with everything that is achieved."""
        return sum(item.settled for item in self.items)

    @property
    def unit(self) -> str:
        return "branches" if any(item.kind == "job" for item in self.named) else "tasks"

    @property
    def sentence(self) -> str:
        """For example `24/24 branches settled; then checksums-then-1a2b: settled`."""
        counted = f"{self.settled}/{self.total} {self.unit} settled"
        return "; ".join([counted, *(item.sentence for item in self.following)])


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
    items = [
        _item_of(ledger, found, follows=place > 0)
        for key in wanted
        for place, found in enumerate(_chain(ledger, key))
    ]
    return View(items=tuple(items), can_go_on=ledger.shelf.can_go_on())


def waits(ledger: Ledger, wanted: Sequence[ObjectKey]) -> list[str]:
    """What each job and task of the run that is not at its end waits for, a sentence each."""
    found = [one for key in wanted for one in _chain(ledger, key)]
    sentences = [_wait_of_job(ledger, one) if isinstance(one, Job) else _wait_of_task(one) for one in found]
    return [sentence for sentence in sentences if sentence]


def _wait_of_job(ledger: Ledger, job: Job) -> str:
    item = _item_of_job(ledger, job)
    if item.done:
        return ""
    about = f"job {job.key.name} ({item.settled}/{item.total} settled)"
    stalled = _stalled(job)
    if stalled:
        return f"{about}: {stalled}"
    sentences = [_wait_of_task(task) for task in ledger.shelf.children(job.uid) if not task.settled]
    if job.spec.suspend:
        sentences.insert(0, "it is suspended, and waits for somebody to resume it")
    more = len(sentences) - WAITS_SHOWN_MAX
    shown = [*sentences[:WAITS_SHOWN_MAX], *([f"and {more} more"] if more > 0 else [])]
    return f"{about}: {'; '.join(shown)}" if shown else about


def _wait_of_task(task: Task) -> str:
    if task.settled:
        return ""
    about = f"task {task.key.name}" + (f" (branch {task.branch})" if task.branch else "")
    return f"{about} {_why_it_waits(task)}"


def _why_it_waits(task: Task) -> str:
    if task.spec.external:
        return "waits for a report from outside"
    if task.state is State.UNKNOWN:
        return "waits for a report: its outcome is Unknown"
    if task.spec.suspend:
        return "is suspended, and waits for somebody to resume it"
    return f"is {task.state.value}"


def tables(ledger: Ledger, wanted: Sequence[ObjectKey]) -> list[Table]:
    """What is shown at the end."""
    return [_table(ledger, found) for key in wanted for found in _chain(ledger, key)]


def _item_of(ledger: Ledger, found: Job | Task, *, follows: bool) -> Item:
    item = _item_of_job(ledger, found) if isinstance(found, Job) else _item_of_task(found)
    return replace(item, follows=follows)


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
        value = task.progress or _why_it_waits(task)
        return BranchRow(name=name, outcome=task.state.value, value=value, token=task.token)
    value = receipt.value or _why_without_a_value(task, receipt)
    return BranchRow(name=name, outcome=receipt.outcome.value, value=value, token=task.token)


def _why_without_a_value(task: Task, receipt: Receipt) -> str:
    """The reason of the server's own receipt, and what the last lease came to: a worker's error."""
    if receipt.reason is None:
        return ""
    said = task.last_lease.message if task.last_lease else ""
    return f"{receipt.reason.value}: {said}" if said else receipt.reason.value
