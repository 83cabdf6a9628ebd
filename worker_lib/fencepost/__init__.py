"""Leased tasks with enforced fencing tokens: what a worker or a producer imports.

`from fencepost import Lease, Worker` costs little: each name is loaded when it is first used, and nothing
here imports an HTTP client or pydantic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.protocol.payload import PayloadRefused
    from fencepost.protocol.submission import SubmissionTooLarge, Verdict
    from fencepost.protocol.task import Outcome
    from fencepost.worker.enqueue import Enqueued, EnqueueRefused, enqueue, enqueue_async
    from fencepost.worker.lease import Emitted, Lease
    from fencepost.worker.outcomes import LeaseOver, OutcomeUnknown, Rejected
    from fencepost.worker.settings import Settings
    from fencepost.worker.snapshot import SettledBranch, SnapshotUnavailable
    from fencepost.worker.worker import Worker

_HOMES = {
    "EnqueueRefused": "fencepost.worker.enqueue",
    "Enqueued": "fencepost.worker.enqueue",
    "Emitted": "fencepost.worker.lease",
    "Lease": "fencepost.worker.lease",
    "LeaseOver": "fencepost.worker.outcomes",
    "Outcome": "fencepost.protocol.task",
    "OutcomeUnknown": "fencepost.worker.outcomes",
    "PayloadRefused": "fencepost.protocol.payload",
    "Rejected": "fencepost.worker.outcomes",
    "SettledBranch": "fencepost.worker.snapshot",
    "Settings": "fencepost.worker.settings",
    "SnapshotUnavailable": "fencepost.worker.snapshot",
    "SubmissionTooLarge": "fencepost.protocol.submission",
    "Verdict": "fencepost.protocol.submission",
    "Worker": "fencepost.worker.worker",
    "enqueue": "fencepost.worker.enqueue",
    "enqueue_async": "fencepost.worker.enqueue",
}

__all__ = [
    "Emitted",
    "EnqueueRefused",
    "Enqueued",
    "Lease",
    "LeaseOver",
    "Outcome",
    "OutcomeUnknown",
    "PayloadRefused",
    "Rejected",
    "Settings",
    "SettledBranch",
    "SnapshotUnavailable",
    "SubmissionTooLarge",
    "Verdict",
    "Worker",
    "enqueue",
    "enqueue_async",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
