"""Jobs that the API server has stored and that nobody can fan out: which they are, and what is said of them.

No schema sees into a request or adds up a spec, so a job may ask for numbers beyond 2^53, for requests of a
thousand levels or of more than 64 KiB, or be so large that its own status would not fit beside its spec. Or
its continuation is a template that no object can be made of, which nobody should learn after the join.
Nothing is created of such a job. A spec is immutable, so it stays unfit until somebody deletes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from fencepost.api.manifest import problems_of_template
from fencepost.api.read import Unreadable, job_spec
from fencepost.protocol import limits
from fencepost.protocol.job import Condition, ConditionStatus, JobStatus
from fencepost.protocol.payload import stored_json_size
from fencepost.protocol.task import cut_to_bytes
from fencepost_operator.decide import StallReason, Trouble, with_trouble

WHAT_TO_DO: Final = "No task is created. A spec cannot be changed: delete this job and make another one."

TEMPLATE: Final = "spec.continuation.template"
PROBLEMS_TOLD_MAX: Final = 3

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """A job that is left alone, why, and since when (on the monotonic clock)."""

    uid: str
    trouble: Trouble
    since: float = field(compare=False)


def unreadable_spec(found: Json) -> Trouble | None:
    """What is wrong with the spec of a job object; None if it is not the spec that cannot be read."""
    try:
        job_spec(found["spec"])
    except Unreadable as problem:
        sentence = cut_to_bytes(str(problem), limits.MESSAGE_BYTES_MAX // 2)
        return Trouble(reason=StallReason.SPEC_UNREADABLE, message=f"{sentence}. {WHAT_TO_DO}")
    return None


def too_large_spec(found: Json) -> Trouble | None:
    """None if the spec of a job object, which can be read, is within the limit."""
    size = stored_json_size(found["spec"])
    if size <= limits.JOB_SPEC_BYTES_MAX:
        return None
    message = f"The spec takes {size} bytes, over the limit of {limits.JOB_SPEC_BYTES_MAX}. {WHAT_TO_DO}"
    return Trouble(reason=StallReason.SPEC_TOO_LARGE, message=message)


def refused_continuation(found: Json) -> Trouble | None:
    """What is wrong with the template of a continuation in a spec that can be read.

    Of a job that has begun nothing is said here: it is joined, and its continuation refused, when it is due.
    """
    after = found["spec"].get("continuation")
    if after is None or (found.get("status") or {}).get("created"):
        return None
    problems = list(islice(problems_of_template(after["template"], TEMPLATE), PROBLEMS_TOLD_MAX))
    if not problems:
        return None
    sentences = cut_to_bytes("; ".join(problems), limits.MESSAGE_BYTES_MAX // 2)
    return Trouble(reason=StallReason.CONTINUATION_REFUSED, message=f"{sentences}. {WHAT_TO_DO}")


def status_of_unfit(trouble: Trouble, *, generation: int) -> JobStatus:
    """What is told of it: conditions alone, for there is nothing else to say."""
    message = cut_to_bytes(trouble.message, limits.MESSAGE_BYTES_MAX)
    succeeded = Condition(
        type="Succeeded", status=ConditionStatus.UNKNOWN, reason=trouble.reason.value, message=message
    )
    reconciling = Condition(
        type="Reconciling", status=ConditionStatus.FALSE, reason=trouble.reason.value, message=""
    )
    told = JobStatus(conditions=(succeeded, reconciling), observed_generation=generation)
    return with_trouble(told, trouble)
