"""What is left out of a cached object: texts that no decision looks at, which may be a thousand times larger.

Guarantees: two values that are compared are cut by the same function, so equality says the same before and
after. A request is kept as its hash (whether a child has the right one can still be told); the values of
receipts are kept until the branch is recorded, because the join recomputes their hashes.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from fencepost.protocol.job import Branch, Job
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.task import Task

SHORT_CHARACTERS: Final = 64  # a hash takes as much, so shorter texts stay as they are


def short(text: str) -> str:
    """`text` if it is short, else its hash."""
    return text if len(text) <= SHORT_CHARACTERS else f"sha256:{sha256_hex(text)}"


def without_request(task: Task) -> Task:
    """The task without the texts that nobody decides on; its receipts stay whole."""
    spec = replace(task.spec, request=short(task.spec.request))
    return replace(
        task,
        spec=spec,
        account="",
        outbox_mark="",
        acquired_at="",
        renewed_at="",
        progress="",
        last_lease=None,
    )


def without_values(task: Task) -> Task:
    """The task with the hashes of its receipts, without their values."""
    receipts = task.receipts[-1:] if task.settled else task.receipts
    return replace(task, receipts=tuple(replace(receipt, value="") for receipt in receipts))


def slim_job(job: Job) -> Job:
    """The job without requests, templates and (once it is joined) the values of its branches."""
    branches = tuple(Branch(name=branch.name, request=short(branch.request)) for branch in job.spec.branches)
    continuation = job.spec.continuation
    if continuation is not None:
        continuation = replace(continuation, template=short(continuation.template))
    slimmed = replace(job, spec=replace(job.spec, branches=branches, continuation=continuation))
    return _without_record_values(slimmed) if job.joined else slimmed


def _without_record_values(job: Job) -> Job:
    records = {
        name: replace(record, value=None, value_ref=None) for name, record in job.status.branches.items()
    }
    return replace(job, status=replace(job.status, branches=MappingProxyType(records)))
