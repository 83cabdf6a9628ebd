"""What a worker does, reduced to the port: claim, heartbeat, end, submit. No outbox, no loop, no retries.

The mutations are built from a read, as a worker builds them, so a test can hold on to an old read and show
what becomes of a write that was decided on it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from fencepost.ports import Answer, Applied, TaskStore
from fencepost.protocol.fencing import holder_name
from fencepost.protocol.mutation import Claim, Heartbeat, Release, Requeue, Revoke, Settle, Submit
from fencepost.protocol.submission import Judgement, Submission, Verdict, judge
from fencepost.protocol.task import Candidate, Kind, LeaseEnd, ObjectKey, Outcome, Reason, Task
from fencepost.protocol.upkeep import revoke, settle

AT = "2026-01-01T00:00:00Z"
JUDGEMENTS_MAX = 5


def new_holder() -> str:
    return holder_name(str(uuid.uuid4()), "i1")


def claim_of(seen: Task | Candidate, *, holder: str, account: str) -> Claim:
    """The claim of a task as it was seen."""
    return Claim(
        key=seen.key,
        uid=seen.uid,
        version=seen.version,
        token=seen.token + 1,
        holder=holder,
        account=account,
        outbox_mark="0 GENESIS",
        at=AT,
    )


def heartbeat_of(seen: Task, progress: str | None = None) -> Heartbeat:
    return Heartbeat(
        key=seen.key,
        uid=seen.uid,
        token=seen.token,
        holder=seen.holder,
        renewals=seen.renewals,
        at=AT,
        progress=progress,
    )


def release_of(seen: Task, end: LeaseEnd, message: str = "") -> Release:
    return Release(
        key=seen.key,
        uid=seen.uid,
        token=seen.token,
        holder=seen.holder,
        state=seen.state,
        failures=seen.failures,
        end=end,
        message=message,
    )


def revoke_of(seen: Task, end: LeaseEnd = LeaseEnd.EXPIRED) -> Revoke:
    return revoke(seen, end)


def requeue_of(seen: Task) -> Requeue:
    assert seen.hold is not None
    return Requeue(key=seen.key, uid=seen.uid, token=seen.token, hold=seen.hold, state=seen.state)


def settle_of(seen: Task, reason: Reason, *, recorded_by: str) -> Settle:
    return settle(seen, reason, recorded_by=recorded_by)


def submission_of(
    seen: Task,
    value: str = "done",
    *,
    account: str,
    outcome: Outcome = Outcome.OK,
    kind: Kind = Kind.RESULT,
    key: str | None = None,
    token: int | None = None,
    holder: str | None = None,
) -> Submission:
    return Submission(
        uid=seen.uid,
        idempotency_key=key or str(uuid.uuid4()),
        kind=kind,
        outcome=outcome,
        value="" if outcome is Outcome.UNKNOWN else value,
        recorded_by=account,
        token=seen.token if token is None else token,
        holder=seen.holder if holder is None else holder,
    )


def submit_of(seen: Task, submission: Submission) -> Submit:
    """The submit that the verdict function asks for on this read; the test is wrong if it asks for none."""
    judgement = judge(seen, submission)
    assert judgement.append and judgement.receipt is not None, judgement
    assert submission.token is not None and submission.holder is not None
    return Submit(
        key=seen.key,
        uid=seen.uid,
        token=submission.token,
        holder=submission.holder,
        state=seen.state,
        head=seen.head,
        receipt=judgement.receipt,
    )


@dataclass
class Actor:
    """A worker of one store."""

    store: TaskStore
    account: str
    holder: str = field(default_factory=new_holder)

    @classmethod
    async def of(cls, store: TaskStore, holder: str | None = None) -> Actor:
        return cls(store=store, account=await store.account(), holder=holder or new_holder())

    @property
    def outbox(self) -> str:
        return self.holder.partition("/")[0]

    async def read(self, key: ObjectKey) -> Task:
        task = await self.store.task(key)
        assert task is not None, f"{key} is not there"
        return task

    async def try_claim(self, seen: Task | Candidate) -> Answer:
        return await self.store.write(claim_of(seen, holder=self.holder, account=self.account))

    async def claim(self, key: ObjectKey) -> Task:
        """Claim the task as it is now; the test fails if that is refused."""
        answer = await self.try_claim(await self.read(key))
        assert isinstance(answer, Applied), answer
        return answer.task

    async def submit(
        self,
        held: Task,
        value: str = "done",
        *,
        outcome: Outcome = Outcome.OK,
        kind: Kind = Kind.RESULT,
        key: str | None = None,
    ) -> Judgement:
        """Submit under the lease that `held` shows: read, judge, write, and judge again if refused."""
        submission = submission_of(held, value, account=self.account, outcome=outcome, kind=kind, key=key)
        return await self.hand_in(held.key, submission)

    async def hand_in(self, key: ObjectKey, submission: Submission) -> Judgement:
        for _ in range(JUDGEMENTS_MAX):
            task = await self.store.task(key)
            elsewhere = ""
            if task is not None:
                elsewhere = await self.store.accepted_elsewhere(task, submission.payload_sha256)
            judgement = judge(task, submission, elsewhere=elsewhere)
            if not judgement.append or task is None or judgement.receipt is None:
                return judgement
            assert submission.token is not None and submission.holder is not None
            answer = await self.store.write(
                Submit(
                    key=key,
                    uid=task.uid,
                    token=submission.token,
                    holder=submission.holder,
                    state=task.state,
                    head=task.head,
                    receipt=judgement.receipt,
                )
            )
            if isinstance(answer, Applied):
                return judgement
        return Judgement(verdict=Verdict.RETRY_LATER)
