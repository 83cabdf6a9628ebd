"""Where a payload is accepted at most once (I1), and what counts as the same payload.

Only `Ok` payloads take part: an Unknown has none and a Rejected says why work was refused, which many tasks
may say alike. The default scope is the task: the same result of two tasks is lawful for most users.
"""

from __future__ import annotations

from fencepost.protocol.payload import framed_sha256
from fencepost.protocol.task import DedupScope, Outcome, Receipt, Task

SCOPE_DOMAIN = "fencepost/dedup-scope/v1"


def takes_part(outcome: Outcome) -> bool:
    """Whether a payload of this outcome is looked up and remembered."""
    return outcome is Outcome.OK


def scope_key(task: Task, *, snapshot: str = "") -> str:
    """The name of the scope that the task's payloads are unique in.

    `snapshot` is the provenance of the payload; it is part of the identity only in the scope `Snapshot`.
    """
    namespace = task.key.namespace
    where: dict[DedupScope, tuple[str, ...]] = {
        DedupScope.TASK: ("task", task.uid),
        DedupScope.SNAPSHOT: ("snapshot", namespace, snapshot),
        DedupScope.QUEUE: ("queue", namespace, task.spec.queue),
        DedupScope.NAMESPACE: ("namespace", namespace),
    }
    return framed_sha256(SCOPE_DOMAIN, *where[task.spec.dedup_scope])


def first_with_payload(receipts: tuple[Receipt, ...], payload_sha256: str) -> Receipt | None:
    """The receipt whose row this payload already is: accepted as `Ok`, and no duplicate of another."""
    for receipt in receipts:
        if (
            takes_part(receipt.outcome)
            and not receipt.duplicate_of
            and receipt.payload_sha256 == payload_sha256
        ):
            return receipt
    return None
