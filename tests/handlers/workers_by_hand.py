"""A worker that does one step at a time, for tests of the operator.

It goes through the same store, rules and policies as a real one, without its loop and its outbox.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from fencepost.kube.store import KubeStore
from fencepost.ports import Applied
from fencepost.protocol.mutation import Claim, Heartbeat, Release, Submit
from fencepost.protocol.receipt import default_idempotency_key
from fencepost.protocol.submission import Submission, judge
from fencepost.protocol.task import Kind, LeaseEnd, ObjectKey, Outcome, Receipt, Task


@dataclass
class HandWorker:
    """One holder. Every step raises `AssertionError` with the server's sentence if it is refused."""

    store: KubeStore
    account: str
    holder: str

    @classmethod
    async def at(cls, store: KubeStore, new_uuid: Callable[[], uuid.UUID] = uuid.uuid4) -> Self:
        holder = f"{new_uuid()}/{new_uuid().hex[:8]}"
        return cls(store=store, account=await store.account(), holder=holder)

    async def task(self, key: ObjectKey) -> Task:
        task = await self.store.task(key)
        assert task is not None, f"{key} is not there"
        return task

    async def claim(self, key: ObjectKey) -> Task:
        task = await self.task(key)
        claim = Claim(
            key=key,
            uid=task.uid,
            version=task.version,
            token=task.token + 1,
            holder=self.holder,
            account=self.account,
            outbox_mark="0:GENESIS",
            at="2026-01-01T00:00:00Z",
        )
        return applied(await self.store.write(claim))

    async def heartbeat(self, task: Task) -> Task:
        beat = Heartbeat(
            key=task.key,
            uid=task.uid,
            token=task.token,
            holder=self.holder,
            renewals=task.renewals,
            at="2026-01-01T00:00:01Z",
        )
        return applied(await self.store.write(beat))

    async def release(self, task: Task, end: LeaseEnd = LeaseEnd.ERROR) -> Task:
        release = Release(
            key=task.key,
            uid=task.uid,
            token=task.token,
            holder=self.holder,
            state=task.state,
            failures=task.failures,
            end=end,
        )
        return applied(await self.store.write(release))

    async def submit(
        self,
        task: Task,
        value: str = "done",
        outcome: Outcome = Outcome.OK,
        *,
        forged: Callable[[Receipt], Receipt] = lambda receipt: receipt,
    ) -> Task:
        """`forged` changes the receipt on its way, as a hostile worker could."""
        submission = Submission(
            uid=task.uid,
            idempotency_key="",
            kind=Kind.RESULT,
            outcome=outcome,
            value=value,
            recorded_by=self.account,
            token=task.token,
            holder=self.holder,
        )
        key = default_idempotency_key(
            outbox=self.holder.partition("/")[0],
            uid=task.uid,
            kind=submission.kind,
            outcome=outcome,
            payload_sha256=submission.payload_sha256,
            token=task.token,
        )
        submission = Submission(
            **{name: getattr(submission, name) for name in submission.__slots__} | {"idempotency_key": key}
        )
        judged = judge(task, submission)
        assert judged.append and judged.receipt is not None, judged
        write = Submit(
            key=task.key,
            uid=task.uid,
            token=task.token,
            holder=self.holder,
            state=task.state,
            head=task.head,
            receipt=forged(judged.receipt),
        )
        return applied(await self.store.write(write))

    async def settle(self, key: ObjectKey, value: str = "done", outcome: Outcome = Outcome.OK) -> Task:
        """Claim and submit."""
        return await self.submit(await self.claim(key), value, outcome)


def applied(answer: object) -> Task:
    assert isinstance(answer, Applied), answer
    return answer.task
