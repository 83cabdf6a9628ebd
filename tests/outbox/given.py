"""What the tests of the outbox start from: tasks, results, and a server that judges with the core itself."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fencepost.outbox import NewRow, Outbox, Row
from fencepost.protocol.fencing import is_current
from fencepost.protocol.lease import claimed
from fencepost.protocol.mutation import state_after
from fencepost.protocol.submission import Judgement, Verdict, judge
from fencepost.protocol.task import Kind, ObjectKey, Outcome, Task, TaskSpec

ACCOUNT = "system:serviceaccount:feeds:worker"
EXT4 = 0xEF53


class Clock:
    """A clock that only the test moves: one second a reading."""

    def __init__(self) -> None:
        self.day = 1
        self._second = 0

    def __call__(self) -> str:
        self._second += 1
        minutes, seconds = divmod(self._second, 60)
        hours, minutes = divmod(minutes, 60)
        return f"2026-{1 + self.day // 28:02}-{1 + self.day % 28:02}T{hours:02}:{minutes:02}:{seconds:02}Z"


def opened(path: Path, incarnation: str = "first", **changes: Any) -> Outbox:
    """The outbox of the pod `worker-0` at `path`."""
    usual: dict[str, Any] = {
        "owner": "worker-0",
        "incarnation": incarnation,
        "new_uuid": lambda: str(uuid.uuid4()),
        "now": Clock(),
        "file_system_type": lambda _: EXT4,
    }
    return Outbox.open(path, **(usual | changes))


def held_task(outbox: Outbox, number: int = 1, *, token: int = 1) -> Task:
    """A task that this outbox has claimed."""
    key = ObjectKey(namespace="feeds", name=f"import-{number}")
    free = Task(key=key, uid=f"uid-{number}", version="1", spec=TaskSpec(), token=token - 1)
    return claimed(
        free, holder=outbox.holder, account=ACCOUNT, outbox_mark=outbox.mark, at="2026-01-01T00:00:00Z"
    )


def result_for(task: Task, value: str = '{"rows":3}', **changes: Any) -> NewRow:
    """An Ok result under the lease that the task shows."""
    usual = NewRow(
        task_key=task.key,
        uid=task.uid,
        token=task.token,
        holder=task.holder,
        kind=Kind.RESULT,
        outcome=Outcome.OK,
        value=value,
    )
    return replace(usual, **changes)


def unknown_for(task: Task, **changes: Any) -> NewRow:
    """An Unknown result, whose value is empty."""
    return result_for(task, value="", outcome=Outcome.UNKNOWN, **changes)


def emitted_for(task: Task, value: str, **changes: Any) -> NewRow:
    """A row that the handler emitted on the way."""
    return result_for(task, value=value, kind=Kind.ROW, **changes)


@dataclass(slots=True)
class Server:
    """The tasks as the API server has them; it judges with the protocol's own function and keeps receipts."""

    tasks: dict[str, Task]

    @classmethod
    def of(cls, *tasks: Task) -> Server:
        return cls({task.uid: task for task in tasks})

    def submit(self, row: Row) -> Judgement:
        task = self.tasks.get(row.uid)
        judgement = judge(task, row.submission(recorded_by=ACCOUNT))
        if judgement.append and judgement.receipt is not None and task is not None:
            assert is_current(task, token=row.token, holder=row.holder)
            receipts = (*task.receipts, judgement.receipt)
            state = state_after(task.state, judgement.receipt)
            self.tasks[row.uid] = replace(task, receipts=receipts, state=state)
        return judgement


def sent(outbox: Outbox, server: Server, row: Row) -> Verdict:
    """Submit and acknowledge one row; for verdicts that acknowledge."""
    judgement = server.submit(row)
    outbox.acknowledge(row.id, judgement.receipt, judgement.verdict)
    return judgement.verdict


def drained(outbox: Outbox, server: Server) -> list[Verdict]:
    """Submit and acknowledge everything that is pending."""
    return [sent(outbox, server, row) for row in outbox.pending()]
