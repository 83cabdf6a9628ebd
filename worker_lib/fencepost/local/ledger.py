"""The server's judgement in an embedded store: one transaction, one clock, the same rules as everywhere.

Every write is carried out by `protocol.mutation.apply` on the task as it is stored *now*, inside the
transaction that changes it, so there is no read-then-write. Before a task is looked at, what is due about it
is done: a lease that is past its end (last claim or renewal + leaseDurationSeconds, by the store's clock) is
revoked first, so a submit that comes too late meets a task whose lease has ended.

A submit is judged again from its receipt: what `submission.judge` would not have written word for word is
refused. So even a buggy worker cannot store a receipt that does not follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from fencepost.local.shelf import Kept, Shelf
from fencepost.ports import Answer, Applied, Cause, NewTask, Refused
from fencepost.protocol import dedup, upkeep
from fencepost.protocol.mutation import (
    Claim,
    Mutation,
    MutationRefused,
    OperatorMutation,
    Submit,
    apply,
)
from fencepost.protocol.submission import Submission, SubmissionTooLarge, judge
from fencepost.protocol.task import DedupScope, ObjectKey, Owner, Receipt, Task

# Revoke, requeue or settle, and some to spare: after that many a task waits or rests.
STEPS_AT_ONCE_MAX: Final = 6
PROVENANCE_MEMBER: Final = "snapshot"


class AccountRefused(Exception):  # noqa: N818
    """A write names an account that is not the caller's."""


def rfc3339(seconds: float) -> str:
    """The time in UTC as text, to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def provenance(task: Task) -> str:
    """What the task's payloads come from: the member `snapshot` of its request, or empty.

    It is part of a payload's identity in the dedup scope `Snapshot` alone.
    """
    if task.spec.dedup_scope is not DedupScope.SNAPSHOT:
        return ""
    named = json.loads(task.spec.request).get(PROVENANCE_MEMBER, "")
    return named if isinstance(named, str) else json.dumps(named, sort_keys=True)


@dataclass(slots=True, kw_only=True)
class Ledger:
    """One transaction on a shelf. `clock` is the store's time in seconds, read once for all of it.

    `to_join` collects the owners whose tasks were settled: `joining.follow_up` joins them before the commit.
    """

    shelf: Shelf
    clock: float
    account: str
    new_uid: Callable[[], str]
    to_join: list[tuple[str, Owner]] = field(default_factory=list)
    now: float = field(init=False)

    def __post_init__(self) -> None:
        self.now = max(self.clock, self.shelf.latest)

    def task(self, key: ObjectKey) -> Task | None:
        """The task, after what was due about it was done."""
        kept = self.current(key)
        return kept.task if kept else None

    def create(self, new: NewTask) -> Answer:
        """A new task; `Refused(EXISTS)` if its name is taken."""
        if self.shelf.kept(new.key) is not None:
            return Refused(cause=Cause.EXISTS, message=f"there is a task {new.key} already")
        task = Task(
            key=new.key,
            uid=self.new_uid(),
            version="1",
            spec=new.spec,
            owner=new.owner,
            branch=new.branch,
            created_at=rfc3339(self.now),
        )
        self._keep(Kept(task=task, created=self.now, since=self.now))
        return Applied(task=task)

    def write(self, mutation: Mutation) -> Answer:
        """Carry out one mutation, or refuse it and change nothing but what was due anyway."""
        kept = self.current(mutation.key)
        if kept is None:
            return Refused(cause=Cause.MISSING, message=f"there is no task {mutation.key}")
        try:
            self._refuse_foreign_account(mutation)
            task = apply(kept.task, mutation)
            if isinstance(mutation, Submit):
                self._refuse_unjudged(kept.task, mutation.receipt)
        except AccountRefused as refusal:
            return Refused(cause=Cause.FORBIDDEN, message=str(refusal))
        except SubmissionTooLarge as refusal:
            return Refused(cause=Cause.TOO_LARGE, message=str(refusal))
        except (MutationRefused, ValueError) as refusal:
            return Refused(cause=Cause.PRECONDITION, message=str(refusal))
        return Applied(task=self.change(kept, task).task)

    def elsewhere(self, task: Task, payload_sha256: str) -> str:
        """The hash of the receipt that has this payload in a dedup scope wider than the task, or empty."""
        if task.spec.dedup_scope is DedupScope.TASK:
            return ""
        scope = dedup.scope_key(task, snapshot=provenance(task))
        return self.shelf.accepted_payload(scope, payload_sha256)

    def set_suspended(self, key: ObjectKey, *, suspend: bool) -> Task | None:
        """Suspend a task or let it go on; nothing else of a spec ever changes. None if there is no task."""
        kept = self.shelf.kept(key)
        if kept is None:
            return None
        spec = replace(kept.task.spec, suspend=suspend)
        return self.change(kept, replace(kept.task, spec=spec)).task

    def current(self, key: ObjectKey) -> Kept | None:
        """The task, after what was due about it was done: revoke, requeue, settle."""
        kept = self.shelf.kept(key)
        for _ in range(STEPS_AT_ONCE_MAX):
            due = self._due_mutation(kept) if kept else None
            if kept is None or due is None:
                return kept
            kept = self.change(kept, apply(kept.task, due))
        return kept

    def keep_up(self, limit: int) -> int:
        """Do what is due about at most `limit` tasks; how many were due."""
        keys = self.shelf.due(self.now, limit)
        for key in keys:
            self.current(key)
        return len(keys)

    def change(self, kept: Kept, task: Task) -> Kept:
        """Store the new form of a task: version +1, the store's own times, what its receipt stands for."""
        before = kept.task
        moved = (before.token, before.renewals, before.hold, before.settled) != (
            task.token,
            task.renewals,
            task.hold,
            task.settled,
        )
        stored = replace(task, version=str(int(before.version) + 1))
        after = self._keep(replace(kept, task=stored, since=self.now if moved else kept.since))
        if task.count > before.count:
            self._remember_payload(stored, task.receipts[-1])
        if task.settled and not before.settled and task.owner is not None:
            self.to_join.append((task.key.namespace, task.owner))
        return after

    def _keep(self, kept: Kept) -> Kept:
        decision = upkeep.decide(kept.task, self._ages(kept), recorded_by=self.account)
        match decision:
            case upkeep.Act():
                due: float | None = self.now
            case upkeep.Wait(seconds=seconds):
                due = self.now + seconds
            case upkeep.Rest():
                due = None
        stored = replace(kept, due=due)
        self.shelf.keep(stored)
        return stored

    def _ages(self, kept: Kept) -> upkeep.Ages:
        unchanged = self.now - kept.since
        return upkeep.Ages(lease_unchanged=unchanged, hold_unchanged=unchanged, task=self.now - kept.created)

    def _due_mutation(self, kept: Kept) -> OperatorMutation | None:
        if kept.due is None:
            return None
        decision = upkeep.decide(kept.task, self._ages(kept), recorded_by=self.account)
        return decision.mutation if isinstance(decision, upkeep.Act) else None

    def _refuse_foreign_account(self, mutation: Mutation) -> None:
        named = None
        if isinstance(mutation, Claim):
            named = mutation.account
        elif isinstance(mutation, Submit):
            named = mutation.receipt.recorded_by
        if named is not None and named != self.account:
            raise AccountRefused(f"the account {named!r} is not the caller's, which is {self.account!r}")

    def _refuse_unjudged(self, task: Task, receipt: Receipt) -> None:
        """Refuse a receipt that the verdict function would not have written for what it says."""
        if task.account != receipt.recorded_by:
            raise AccountRefused(f"{task.key} was claimed by the account {task.account!r}")
        submission = Submission(
            uid=task.uid,
            idempotency_key=receipt.idempotency_key,
            kind=receipt.kind,
            outcome=receipt.outcome,
            value=receipt.value,
            recorded_by=receipt.recorded_by,
            token=receipt.fencing_token,
            holder=receipt.holder,
            device_time=receipt.device_time,
        )
        elsewhere = self.elsewhere(task, receipt.payload_sha256)
        judgement = judge(task, submission, elsewhere=elsewhere)
        if not judgement.append or judgement.receipt != receipt:
            raise MutationRefused(
                f"the receipt does not follow from {task.key} as it is now: {judgement.verdict.value} "
                f"{judgement.message}".rstrip()
            )

    def _remember_payload(self, task: Task, receipt: Receipt) -> None:
        if task.spec.dedup_scope is DedupScope.TASK or receipt.duplicate_of:
            return
        if dedup.takes_part(receipt.outcome):
            scope = dedup.scope_key(task, snapshot=provenance(task))
            self.shelf.keep_payload(scope, receipt.payload_sha256, receipt.receipt_sha256)
