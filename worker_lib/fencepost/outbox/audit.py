"""Comparing what an outbox says with what the server has (`fencepost audit`), and with itself (`verify`).

What only this comparison can see:

* a receipt that this outbox was given and the server no longer has, or has changed (a restored backup, a
  write around the rules);
* a receipt on the server that came from this outbox and has no row here, or a claim whose mark is not in this
  file's chain: the file was lost, rolled back to an older copy, or copied and used twice;
* a completed task without exactly one acknowledged result here (OUTBOX-01).

Nothing here changes anything, and nothing reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from fencepost.outbox.chain import replay_from, state_of_row, submit_state
from fencepost.outbox.rows import Row
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.receipt import receipt_hash
from fencepost.protocol.steps import Step, StepChainBroken, StepKind, mark_text
from fencepost.protocol.task import GENESIS, Kind, Outcome, Receipt, Task


class FindingKind(Enum):
    """What was found. Those of `NOTICES` are for information, the others are faults."""

    CHAIN_BROKEN = "the chain of steps does not replay"
    FILE_INCONSISTENT = "the file contradicts itself"
    ROW_CHANGED = "a row is not what was stored"
    RECEIPT_INVALID = "a stored receipt does not match its hash"
    RECEIPT_MISSING = "the server does not have a receipt that it gave"
    RECEIPT_CHANGED = "the server has another receipt than it gave"
    ROW_MISSING = "the server has a receipt from this outbox that has no row here"
    MARK_UNKNOWN = "a claim carries a position of the chain that this file does not have"
    NOT_ONE_RESULT = "a completed task has not exactly one acknowledged result here"
    DEAD_BUT_ACCEPTED = "a dead letter here stands on the server"
    NOT_MARKED_YET = "the server has the receipt of a row that is not marked here yet"


NOTICES = frozenset({FindingKind.NOT_MARKED_YET})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found, about one task, row or step."""

    kind: FindingKind
    subject: str
    message: str

    @property
    def is_fault(self) -> bool:
        """Whether it contradicts a promise; a notice resolves itself with the next drain."""
        return self.kind not in NOTICES


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What an outbox says about itself."""

    steps: int
    rows: int
    acknowledged: int
    head: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """No fault was found."""
        return not any(finding.is_fault for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """An outbox beside the server. `compared` and `not_compared` count acknowledged rows.

    A row is not compared if its task is not among those given: it was deleted, or claimed by others since.
    """

    verification: Verification
    findings: tuple[Finding, ...]
    compared: int
    not_compared: int

    @property
    def ok(self) -> bool:
        """Neither the file nor the comparison has a fault."""
        return self.verification.ok and not any(finding.is_fault for finding in self.findings)


class Ledger(Protocol):
    """What is read of an outbox here; `Outbox` has it."""

    uuid: str

    @property
    def base(self) -> Step | None: ...
    @property
    def pruned_before(self) -> str: ...
    def steps(self) -> Iterator[Step]: ...
    def step_at(self, sequence: int) -> Step | None: ...
    def all(self) -> Iterator[Row]: ...
    def rows_of(self, uid: str) -> Sequence[Row]: ...
    def inconsistencies(self) -> Iterator[str]: ...
    def verify(self) -> Verification: ...


def verify_ledger(ledger: Ledger) -> Verification:
    """Replay the chain and recompute every hash of the rows. Reads all of it, a page at a time."""
    findings = [_inconsistent(message) for message in ledger.inconsistencies()]
    steps, head, broken = _replayed(ledger)
    findings += broken
    rows = acknowledged = 0
    for row in ledger.all():
        rows += 1
        acknowledged += row.status is RowStatus.ACKNOWLEDGED
        findings += _faults_of_row(ledger, row)
    return Verification(
        steps=steps, rows=rows, acknowledged=acknowledged, head=head, findings=tuple(findings)
    )


def audit_report(ledger: Ledger, tasks: Sequence[Task]) -> AuditReport:
    """Compare with `tasks`: those whose last lease names this outbox, settled or not."""
    verification = ledger.verify()
    by_uid = {task.uid: task for task in tasks}
    findings = list(rolled_back(ledger, tasks))
    compared = not_compared = 0
    for row in ledger.all():
        if row.status is not RowStatus.ACKNOWLEDGED:
            continue
        task = by_uid.get(row.uid)
        compared, not_compared = compared + (task is not None), not_compared + (task is None)
        findings += _receipt_faults(row, task) if task else []
    for task in tasks:
        findings += _faults_of_task(ledger, task)
    return AuditReport(
        verification=verification, findings=tuple(findings), compared=compared, not_compared=not_compared
    )


def rolled_back(ledger: Ledger, tasks: Iterable[Task]) -> tuple[Finding, ...]:
    """Claims of this outbox whose mark is not in its chain: the file was lost or rolled back, or used twice.

    Cheap (one look-up a task), so a worker asks it at its start about the leases that it finds.
    """
    marked = (task for task in tasks if task.outbox == ledger.uuid and task.outbox_mark)
    return tuple(finding for task in marked if (finding := _unknown_mark(ledger, task)))


def forgotten(ledger: Ledger, tasks: Iterable[Task]) -> tuple[Finding, ...]:
    """Receipts of `tasks` that came from this outbox and have no row here.

    A mark alone does not show the loss of the last work before the file was rolled back: steps that account
    for the same rows again are the same steps. One look-up a task.
    """
    return tuple(
        finding
        for task in tasks
        for finding in _faults_of_receipts(ledger, task, ledger.rows_of(task.uid))
        if finding.kind is FindingKind.ROW_MISSING
    )


def _unknown_mark(ledger: Ledger, task: Task) -> Finding | None:
    sequence = _sequence_of(task.outbox_mark)
    base = ledger.base
    if task.outbox_mark == mark_text(0, GENESIS) or (
        base is not None and sequence is not None and sequence < base.sequence
    ):
        return None
    step = base if base is not None and sequence == base.sequence else ledger.step_at(sequence or 0)
    if step is not None and mark_text(step.sequence, step.hash) == task.outbox_mark:
        return None
    message = (
        "another hash" if step else "nothing: its end is before that, the file was rolled back or replaced"
    )
    return Finding(
        kind=FindingKind.MARK_UNKNOWN,
        subject=str(task.key),
        message=f"the claim with token {task.token} says `{task.outbox_mark}`, this file has there {message}",
    )


def _sequence_of(mark: str) -> int | None:
    number = mark.partition(" ")[0]
    return int(number) if number.isascii() and number.isdigit() else None


def _replayed(ledger: Ledger) -> tuple[int, str, list[Finding]]:
    count = 0

    def counted() -> Iterator[Step]:
        nonlocal count
        for step in ledger.steps():
            count += 1
            yield step

    try:
        newest = replay_from(ledger.base, counted())
    except StepChainBroken as error:
        return (
            count,
            "",
            [Finding(kind=FindingKind.CHAIN_BROKEN, subject=f"step {count}", message=str(error))],
        )
    return count, newest.hash if newest else "", []


def _faults_of_row(ledger: Ledger, row: Row) -> list[Finding]:
    return [*_storage_faults(ledger, row), *_acknowledgement_faults(ledger, row)]


def _storage_faults(ledger: Ledger, row: Row) -> list[Finding]:
    findings = []
    if sha256_hex(row.value) != row.payload_sha256:
        findings.append(_of_row(FindingKind.ROW_CHANGED, row, "its value is not what was stored"))
    step = ledger.step_at(row.row_step)
    if step is None or (step.kind, step.state) != (StepKind.ROW.value, state_of_row(row)):
        findings.append(_of_row(FindingKind.ROW_CHANGED, row, f"step {row.row_step} stored another one"))
    return findings


def _acknowledgement_faults(ledger: Ledger, row: Row) -> list[Finding]:
    if row.status is not RowStatus.ACKNOWLEDGED:
        return []
    findings = []
    receipt = row.receipt
    if receipt is not None and not _proves(row, receipt):
        findings.append(
            _of_row(FindingKind.RECEIPT_INVALID, row, "the receipt does not match its hash or its row")
        )
    step = ledger.step_at(row.covered_step or 0)
    if step is None:
        findings.append(_of_row(FindingKind.ROW_CHANGED, row, "no step accounts for it"))
    elif step.kind == StepKind.SUBMIT.value and step.state != submit_state(row):
        findings.append(
            _of_row(FindingKind.RECEIPT_INVALID, row, f"step {step.sequence} recorded another receipt")
        )
    return findings


def _proves(row: Row, receipt: Receipt) -> bool:
    return (receipt.receipt_sha256, receipt.payload_sha256, receipt_hash(row.uid, receipt)) == (
        row.receipt_sha256,
        row.payload_sha256,
        row.receipt_sha256,
    )


def _receipt_faults(row: Row, task: Task) -> list[Finding]:
    if not row.receipt_sha256:
        return []
    stored = row.receipt
    found = next((r for r in task.receipts if stored and r.idempotency_key == stored.idempotency_key), None)
    if found is None:
        return [
            _of_row(FindingKind.RECEIPT_MISSING, row, f"{row.receipt_sha256} is not on the task any more")
        ]
    if found != stored:
        return [_of_row(FindingKind.RECEIPT_CHANGED, row, f"the task has {found.receipt_sha256} for its key")]
    return []


def _faults_of_task(ledger: Ledger, task: Task) -> list[Finding]:
    rows = ledger.rows_of(task.uid)
    findings = _faults_of_receipts(ledger, task, rows)
    settling = task.settling_receipt
    if settling is not None and _is_of(ledger, settling):
        findings += _not_one_result(ledger, task, rows)
    return findings


def _faults_of_receipts(ledger: Ledger, task: Task, rows: Sequence[Row]) -> list[Finding]:
    findings: list[Finding] = []
    for receipt in task.receipts:
        if _is_of(ledger, receipt):
            findings += _missing_row(ledger, task, receipt, rows)
    return findings


def _is_of(ledger: Ledger, receipt: Receipt) -> bool:
    return receipt.holder.partition("/")[0] == ledger.uuid


def _missing_row(ledger: Ledger, task: Task, receipt: Receipt, rows: Sequence[Row]) -> list[Finding]:
    row = next((row for row in rows if row.idempotency_key == receipt.idempotency_key), None)
    if row is None and not _may_be_pruned(ledger, task):
        message = f"the receipt {receipt.receipt_sha256} (key {receipt.idempotency_key}) has no row here"
        return [Finding(kind=FindingKind.ROW_MISSING, subject=str(task.key), message=message)]
    if row is not None and row.status is RowStatus.DEAD:
        return [
            _of_row(FindingKind.DEAD_BUT_ACCEPTED, row, f"{row.reason}; yet {receipt.receipt_sha256} stands")
        ]
    if row is not None and row.status is not RowStatus.ACKNOWLEDGED:
        message = f"it stands, and the row is {row.status.value}: the next drain gets the receipt again"
        return [_of_row(FindingKind.NOT_MARKED_YET, row, message)]
    return []


def _not_one_result(ledger: Ledger, task: Task, rows: Sequence[Row]) -> list[Finding]:
    results = [row for row in rows if row.kind is Kind.RESULT and row.outcome is not Outcome.UNKNOWN]
    if len(results) == 1 or (not results and _may_be_pruned(ledger, task)):
        return []
    message = f"it is {task.state.value} by this outbox, which has {len(results)} results for it (OUTBOX-01)"
    return [Finding(kind=FindingKind.NOT_ONE_RESULT, subject=str(task.key), message=message)]


def _may_be_pruned(ledger: Ledger, task: Task) -> bool:
    """A task that was claimed before the newest prune may have lost its rows to it, by age."""
    return bool(ledger.pruned_before) and task.acquired_at < ledger.pruned_before


def _inconsistent(message: str) -> Finding:
    return Finding(kind=FindingKind.FILE_INCONSISTENT, subject="file", message=message)


def _of_row(kind: FindingKind, row: Row, message: str) -> Finding:
    return Finding(kind=kind, subject=f"row {row.id} of {row.task_key}", message=message)


__all__ = [
    "AuditReport",
    "Finding",
    "FindingKind",
    "Ledger",
    "Verification",
    "audit_report",
    "forgotten",
    "rolled_back",
    "verify_ledger",
]
