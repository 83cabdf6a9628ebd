"""The one place that writes. Every write is conditional, so a plan made on an old view does no harm.

Each ends in one of three ways: applied, refused, or unanswered. A mutation of a task that was not answered
is sent again, identical, until its fate is known (`certainty`). Everything else here may be repeated by
whoever looks at the object next: a status write compares the resourceVersion, a create has a derived name,
a deletion names UID and version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fencepost.api.write import job_status_object
from fencepost.certainty import write_until_certain
from fencepost.kube.client import JSON_PATCH, ApiClient, Response, Result
from fencepost.kube.refusals import refusal_of
from fencepost.kube.store import KubeStore
from fencepost.kube.stored import first_difference
from fencepost.ports import Answer, Applied, Cause, NewTask, Refused, Unanswered
from fencepost.protocol.fanout import ChildTask
from fencepost.protocol.job import Job, JobStatus
from fencepost.protocol.mutation import OperatorMutation
from fencepost.protocol.task import ObjectKey, Task
from fencepost_operator import paths
from fencepost_operator.metrics import Metrics
from fencepost_operator.observe import World

FOR_A_PERSON: Final = frozenset({Cause.FORBIDDEN, Cause.ADMISSION, Cause.TOO_LARGE, Cause.SCHEMA})
"""Refusals that no retry changes by itself: a person has to be told."""

CERTAINTY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0)  # after that the key goes back to the queue, with backoff

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The server stored it; `body` is the object as it is now."""

    body: Json


WriteEnd = Written | Refused | Unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenVersion:
    """Which object at which version a write is for, where there is no `Job` of it."""

    key: ObjectKey
    uid: str
    version: str


class Writer:
    """Carries plans out and tells the world what came of them. One event loop owns it."""

    def __init__(
        self,
        *,
        client: ApiClient,
        store: KubeStore,
        world: World,
        clock: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._client = client
        self._store = store
        self._world = world
        self._clock = clock
        self._metrics = metrics

    async def mutate(self, mutation: OperatorMutation) -> Answer:
        """Revoke, requeue or settle."""
        asked = self._clock()
        answer = await write_until_certain(self._store, mutation, pause=_pause)
        self._count(type(mutation).__name__.lower(), answer)
        if isinstance(answer, Applied):
            self._world.task_written(answer.task, asked=asked)
        return answer

    async def create_child(self, child: ChildTask) -> Answer:
        """The task of a branch; `Refused(EXISTS)` if the name is taken, perhaps by an earlier try of ours."""
        asked = self._clock()
        new = NewTask(key=child.key, spec=child.spec, owner=child.owner, branch=child.branch)
        answer = await self._store.create(new)
        self._count("create-task", answer)
        if isinstance(answer, Applied):
            self._world.task_written(answer.task, asked=asked)
        return answer

    async def write_status(self, job: Job, status: JobStatus, *, conditions: Any) -> WriteEnd:
        """The whole status of a job at the version that it was planned on."""
        content = job_status_object(
            status, now=self._world.server_clock.text(), previous={"conditions": list(conditions)}
        )
        return await self.patch_status(job, content, what="status")

    async def patch_status(self, job: Job | SeenVersion, content: Json, *, what: str) -> WriteEnd:
        """Merge `content` into the status of a job at the version that it was planned on."""
        body = {"metadata": {"uid": job.uid, "resourceVersion": job.version}, "status": content}
        asked = self._clock()
        result = await self._client.patch(f"{paths.job(job.key.namespace, job.key.name)}/status", body)
        end = self._end(result)
        if isinstance(end, Written):
            self._world.job_written(end.body, asked=asked)
            difference = first_difference(content, end.body.get("status"), "status")
            if difference:
                message = f"the API server did not keep what was sent: {difference}"
                end = Refused(cause=Cause.SCHEMA, message=message)
        self._count(what, end)
        return end

    async def create(self, path: str, body: Json, *, what: str) -> WriteEnd:
        """Any object, under the name that is in it."""
        end = self._end(await self._client.create(path, body))
        self._count(what, end)
        return end

    async def try_to_create(self, path: str, body: Json, *, what: str) -> WriteEnd:
        """A dry run: nothing is stored, and the answer is what would be."""
        end = self._end(await self._client.create(path, body, query={"dryRun": "All"}))
        self._count(what, end)
        return end

    async def unsuspend(self, path: str, *, uid: str, version: str) -> WriteEnd:
        """Let an object run, if it is that very one and still as it was seen.

        The version is compared too, or a copy of this write that arrives half a minute late would undo a
        suspension that a person has set meanwhile.
        """
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/spec/suspend", "value": False},
        ]
        end = self._end(await self._client.patch(path, patch, content_type=JSON_PATCH))
        self._count("unsuspend", end)
        return end

    async def delete(self, path: str, *, uid: str, version: str, what: str) -> WriteEnd:
        """Delete that very object as it was seen, and no other."""
        end = self._end(await self._client.delete(path, uid=uid, version=version))
        self._count(what, end)
        return end

    async def retire(self, task: Task) -> WriteEnd:
        """Suspend and delete a task that came late, both only at the version that was seen."""
        path = paths.task(task.key.namespace, task.key.name)
        version = task.version
        if not task.spec.suspend:
            body = {"metadata": {"uid": task.uid, "resourceVersion": version}, "spec": {"suspend": True}}
            end = self._end(await self._client.patch(path, body))
            self._count("suspend-late", end)
            if not isinstance(end, Written):
                return end
            version = str(end.body["metadata"]["resourceVersion"])
        return await self.delete(path, uid=task.uid, version=version, what="delete-late")

    def _end(self, result: Result) -> WriteEnd:
        self._world.heard(result)
        if isinstance(result, Response) and result.ok:
            return Written(body=result.body)
        return refusal_of(result)

    def _count(self, what: str, end: Answer | WriteEnd) -> None:
        name = "applied" if isinstance(end, Applied | Written) else type(end).__name__.lower()
        self._metrics.writes.labels(what, name).inc()


async def _pause(tries: int) -> bool:
    if tries > len(CERTAINTY_SECONDS):
        return False
    await asyncio.sleep(CERTAINTY_SECONDS[tries - 1])
    return True
