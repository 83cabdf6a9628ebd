"""A task as a row of the table `tasks`: which columns, in which order, and back again.

What is fixed when a task is made is written once; what moves is written with every change, in one statement.
"""

from __future__ import annotations

from typing import Any, Final

from fencepost.local import codec
from fencepost.local.shelf import Kept
from fencepost.protocol.lease import why_not_claimable
from fencepost.protocol.task import Hold, ObjectKey, Owner, Receipt, State, Task

FIXED: Final = (
    "namespace",
    "name",
    "uid",
    "owner_kind",
    "owner_name",
    "owner_uid",
    "branch",
    "created_at",
    "created",
)
MOVING: Final = (
    "version",
    "queue",
    "priority",
    "state",
    "settled",
    "claimable",
    "token",
    "holder",
    "outbox",
    "account",
    "renewals",
    "hold",
    "failures",
    "last_lease",
    "outbox_mark",
    "acquired_at",
    "renewed_at",
    "progress",
    "receipts",
    "since",
    "due",
)
INSERT: Final = (
    f"INSERT INTO tasks ({', '.join(FIXED + MOVING)}) VALUES ({', '.join('?' * len(FIXED + MOVING))})"
)
UPDATE: Final = f"UPDATE tasks SET {', '.join(f'{column} = ?' for column in MOVING)} WHERE id = ?"
SELECT: Final = f"SELECT tasks.id, spec, {', '.join(FIXED + MOVING)} FROM tasks JOIN specs ON task = tasks.id"


def owner_of(kind: str | None, name: str | None, uid: str | None) -> Owner | None:
    return Owner(kind=kind, name=name, uid=uid) if kind and name and uid else None


def fixed_values(kept: Kept) -> tuple[object, ...]:
    task, owner = kept.task, kept.task.owner
    return (
        task.key.namespace,
        task.key.name,
        task.uid,
        owner.kind if owner else None,
        owner.name if owner else None,
        owner.uid if owner else None,
        task.branch,
        task.created_at,
        kept.created,
    )


def moving_values(kept: Kept) -> tuple[object, ...]:
    task = kept.task
    return (
        int(task.version),
        task.spec.queue,
        task.spec.priority,
        task.state.value,
        int(task.settled),
        int(why_not_claimable(task) is None),
        task.token,
        task.holder,
        task.outbox,
        task.account,
        task.renewals,
        task.hold.value if task.hold else None,
        task.failures,
        task.last_lease.text() if task.last_lease else "",
        task.outbox_mark,
        task.acquired_at,
        task.renewed_at,
        task.progress,
        task.count,
        kept.since,
        kept.due,
    )


def task_of(named: dict[str, Any], spec: str, receipts: tuple[Receipt, ...]) -> Task:
    return Task(
        key=ObjectKey(namespace=named["namespace"], name=named["name"]),
        uid=named["uid"],
        version=str(named["version"]),
        spec=codec.task_spec_of(spec),
        token=named["token"],
        holder=named["holder"],
        account=named["account"],
        renewals=named["renewals"],
        hold=Hold(named["hold"]) if named["hold"] else None,
        failures=named["failures"],
        last_lease=codec.last_lease_of(named["last_lease"]),
        outbox_mark=named["outbox_mark"],
        acquired_at=named["acquired_at"],
        renewed_at=named["renewed_at"],
        progress=named["progress"],
        state=State(named["state"]),
        receipts=receipts,
        owner=owner_of(named["owner_kind"], named["owner_name"], named["owner_uid"]),
        branch=named["branch"],
        created_at=named["created_at"],
    )
