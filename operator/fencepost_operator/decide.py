"""What to do about one object, from frozen values alone: thin over the rules in `fencepost.protocol`.

The join itself is `protocol.join`, upkeep is `protocol.upkeep`. What is added here is what only an operator
meets: a server that refuses to create a child or the continuation. It becomes the condition `Stalled` with
a reason and the server's own sentence, and goes away as soon as the server lets it through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from fencepost.protocol import join, limits
from fencepost.protocol.job import Condition, ConditionStatus, Job, JobStatus
from fencepost.protocol.join import Child, JoinPlan
from fencepost.protocol.task import cut_to_bytes

STALLED: Final = "Stalled"


class StallReason(StrEnum):
    """Why a job stands still until a person does something: the reason of its condition `Stalled`."""

    CREATE_REFUSED = "CreateRefused"
    STATUS_REFUSED = "StatusRefused"
    CONTINUATION_REFUSED = "ContinuationRefused"
    CONTINUATION_CONFLICT = "NameConflict"
    CONTINUATION_LOST = "ContinuationLost"
    SPEC_UNREADABLE = "SpecUnreadable"
    SPEC_TOO_LARGE = "SpecTooLarge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What a person has to be told of a job."""

    reason: StallReason
    message: str


def plan_job(
    job: Job, children: Mapping[str, Child], *, now: str, batch_due: bool, trouble: Trouble | None = None
) -> JoinPlan:
    """The next step of a job that is not joined yet, or of the late children of one that is.

    `now` is the server's time (RFC 3339), `trouble` what the last attempt to create children came to.
    """
    plan = join.plan(job, children, now=now, batch_due=batch_due or trouble is not None)
    if trouble is None or job.joined or job.deleting:
        return plan
    return replace(plan, status=_told(job, plan.status, trouble, batch_due=batch_due))


def with_trouble(status: JobStatus, trouble: Trouble | None) -> JobStatus:
    """The status with the condition `Stalled` as the trouble says, or not stalled."""
    if trouble is None:
        told = Condition(type=STALLED, status=ConditionStatus.FALSE, reason="NotStalled", message="")
    else:
        told = Condition(
            type=STALLED,
            status=ConditionStatus.TRUE,
            reason=trouble.reason.value,
            message=cut_to_bytes(trouble.message, limits.MESSAGE_BYTES_MAX),
        )
    others = tuple(condition for condition in status.conditions if condition.type != STALLED)
    return replace(status, conditions=(*others, told))


def stalled(status: JobStatus) -> Condition | None:
    """The condition `Stalled`, if it is there."""
    return next((condition for condition in status.conditions if condition.type == STALLED), None)


def says_the_same(one: Condition | None, other: Condition | None) -> bool:
    """Whether a person would learn nothing new; messages of a server differ in numbers and stay out."""
    if one is None or other is None:
        return one is other
    return (one.status, one.reason) == (other.status, other.reason)


def _told(job: Job, planned: JobStatus | None, trouble: Trouble, *, batch_due: bool) -> JobStatus | None:
    """The status that tells of the trouble: at once if it is news, else when a write is due anyway."""
    if planned is not None and planned.snapshot is not None:
        return planned
    status = with_trouble(planned or job.status, trouble)
    if status == job.status:
        return None
    all_created = status.created == len(job.spec.branches) != job.status.created
    news = all_created or not says_the_same(stalled(status), stalled(job.status))
    return status if news or batch_due else None
