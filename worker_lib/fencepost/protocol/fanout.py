"""How a job's children are named and what they are made of.

Names are derived from the job's UID, the generation of the join and the branch, so that a repeated create
is a no-op, two jobs never share a child, and a job that was deleted and made again gets children of its
own. A slug makes them readable; the hash alone makes them unique, and it is over the exact bytes of the
branch's name, whatever script, case or punctuation that has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from fencepost.protocol.job import Branch, Job
from fencepost.protocol.payload import framed_sha256
from fencepost.protocol.task import ObjectKey, Owner, Task, TaskSpec

CHILD_DOMAIN: Final = "fencepost/child/v1"
CONTINUATION_DOMAIN: Final = "fencepost/continuation/v1"
JOB_KIND: Final = "FanOutJob"
GENERATION: Final = 1  # of the join; a redrive makes the next one

_SLUG_CHARACTERS: Final = 20
_HASH_DIGITS: Final = 20  # 80 bits: no two of 2^20 names collide by chance
_NOT_IN_A_NAME: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTask:
    """The LeasedTask that a branch asks for."""

    key: ObjectKey
    branch: str
    spec: TaskSpec
    owner: Owner


def slug(text: str) -> str:
    """The part of a name that a person can read: lower-case letters, digits and single dashes, 20 at most."""
    return _NOT_IN_A_NAME.sub("-", text.lower()).strip("-")[:_SLUG_CHARACTERS].strip("-")


def child_name(job: Job, branch_name: str, generation: int = GENERATION) -> str:
    """The name of a branch's task: at most 62 characters, a DNS label."""
    digest = framed_sha256(CHILD_DOMAIN, job.uid, str(generation), branch_name)
    return _name(slug(job.key.name), slug(branch_name), digest[:_HASH_DIGITS])


def continuation_name(job: Job, generation: int = GENERATION) -> str:
    """The name of the continuation: one for each generation of the join."""
    digest = framed_sha256(CONTINUATION_DOMAIN, job.uid, str(generation))
    return _name(slug(job.key.name), "then", digest[:_HASH_DIGITS])


def owner_of_children(job: Job) -> Owner:
    return Owner(kind=JOB_KIND, name=job.key.name, uid=job.uid)


def child_task(job: Job, branch: Branch) -> ChildTask:
    """What the branch's task is made of: the template, the branch's request, no TTL of its own.

    A child goes with its job. Had it a TTL of its own, a create that comes late would run settled work
    again.
    """
    spec = replace(job.spec.template, request=branch.request, ttl_seconds_after_finished=None)
    key = ObjectKey(namespace=job.key.namespace, name=child_name(job, branch.name))
    return ChildTask(key=key, branch=branch.name, spec=spec, owner=owner_of_children(job))


def is_ours(task: Task, wanted: ChildTask) -> bool:
    """Whether the object under a child's name is that child: same owner, branch and spec.

    Suspension and priority may have been changed by a person, and stay out of the comparison. One whose
    request cannot be read is never ours, for a branch's request can.
    """
    same_spec = replace(task.spec, suspend=wanted.spec.suspend, priority=wanted.spec.priority) == wanted.spec
    return task.owner == wanted.owner and task.branch == wanted.branch and same_spec


def _name(*parts: str) -> str:
    return "-".join(part for part in parts if part)
