"""What the API server's schema would refuse, an embedded store refuses too, in the words of the same models.

So a task or job that works here can be applied to a cluster as it is. One thing differs on purpose: an
embedded store serves every dedup scope, the API server only `Task`.

pydantic is loaded with the first object that is made: a worker, which makes none, starts without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fencepost.api import names
from fencepost.ports import Cause, NewTask, Refused
from fencepost.protocol.job import JobSpec
from fencepost.protocol.task import DedupScope, ObjectKey, TaskSpec


def refusal_of_task(new: NewTask) -> Refused | None:
    """`Refused(ADMISSION)` with every sentence of the models, or None for a task that may be made."""
    from fencepost.api import write

    served = replace(new, spec=_with_scope_of_the_cluster(new.spec))
    return _refusal(new.key, write.task_object(served))


def refusal_of_job(key: ObjectKey, spec: JobSpec) -> Refused | None:
    """The same for a job, its branches, its template and the object that continues it."""
    from fencepost.api import write

    served = replace(spec, template=_with_scope_of_the_cluster(spec.template))
    return _refusal(
        key,
        {
            "apiVersion": names.API_VERSION,
            "kind": names.FAN_OUT_JOB,
            "metadata": {"name": key.name, "namespace": key.namespace},
            "spec": write.job_spec_object(served),
        },
    )


def _with_scope_of_the_cluster(spec: TaskSpec) -> TaskSpec:
    return replace(spec, dedup_scope=DedupScope.TASK)


def _refusal(key: ObjectKey, document: Mapping[str, Any]) -> Refused | None:
    from fencepost.api.manifest import problems_of

    problems = problems_of(document)
    if not problems:
        return None
    return Refused(cause=Cause.ADMISSION, message=f"{key}: {'; '.join(problems)}")
