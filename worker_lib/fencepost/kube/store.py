"""The API server as the store of tasks: what a worker, a producer and the operator write through.

Guarantees: every write is one conditional request (`patches`) and ends in one of three ways. *Applied* only
if the server said so and the object that came back is what was sent (`stored`); *refused* only if it said
so; anything else is *unanswered*, and `certainty` finds out. Reads that decide name no resourceVersion, so
the server answers them from its quorum and never from a cache. One object that cannot be read is named in
the log and left out of a list, so that it does not stop the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Final, TypeVar

from fencepost.api import names
from fencepost.api.read import Unreadable, candidate_from_metadata, job_from_object, task_from_object
from fencepost.api.write import task_object
from fencepost.kube.client import METADATA_LIST, ApiClient, Json, Response, Result
from fencepost.kube.connection import Connection
from fencepost.kube.patches import Patch, alternatives_of
from fencepost.kube.refusals import is_status, problem_of_read, refusal_of
from fencepost.kube.stored import first_difference, what_was_not_kept
from fencepost.ports import Answer, Applied, Cause, NewTask, Refused, StoreRefused
from fencepost.protocol.job import Job
from fencepost.protocol.limits import PRIORITY_DEFAULT, PRIORITY_MAX, PRIORITY_MIN
from fencepost.protocol.mutation import Mutation, MutationRefused
from fencepost.protocol.task import Candidate, ObjectKey, Task

log = logging.getLogger(__name__)
Read = TypeVar("Read")

GROUP_PATH: Final = f"/apis/{names.API_VERSION}"
SELF_SUBJECT_REVIEWS: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
PAGE_SIZE: Final = 250  # whole tasks: a page of the largest ones is some 50 MB, one of usual ones 250 kB
JOBS_REMEMBERED_MAX: Final = 8  # the largest has some 500 kB; a worker mostly has one job at a time


def collection_path(resource: str, namespace: str) -> str:
    """The path of all objects of one of our two kinds in a namespace."""
    return f"{GROUP_PATH}/namespaces/{namespace}/{resource}"


def object_path(resource: str, key: ObjectKey) -> str:
    """The path of one object of one of our two kinds."""
    return f"{collection_path(resource, key.namespace)}/{key.name}"


class KubeStore:
    """A `ports.TaskStore` on the API server, bound to the namespace of its connection.

    `now` gives the time in RFC 3339 that a settling write notes; nothing is decided by it. The client is
    closed with the store.
    """

    def __init__(self, client: ApiClient, *, now: Callable[[], str] | None = None) -> None:
        self._client = client
        self._now = now or _wall_clock
        self._account = ""
        self._jobs: dict[ObjectKey, Job] = {}  # the oldest read first

    @classmethod
    def of(cls, connection: Connection) -> KubeStore:
        """A store with a client of its own."""
        return cls(ApiClient(connection))

    @property
    def client(self) -> ApiClient:
        """For requests to kinds that are not ours."""
        return self._client

    @property
    def namespace(self) -> str:
        return self._client.connection.namespace

    async def account(self) -> str:
        """The user name that the API server knows us by, asked once."""
        if not self._account:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            result = await self._client.create(SELF_SUBJECT_REVIEWS, review)
            if not isinstance(result, Response) or not result.ok:
                raise problem_of_read(result, "whom the API server takes us for")
            self._account = str(result.body["status"]["userInfo"]["username"])
        return self._account

    async def claimable(self, queue: str, limit: int) -> Sequence[Candidate]:
        """At most `limit` tasks of the queue that may be claimed now, higher priority first.

        Metadata does not show the priority, so it has to be selected by. An empty queue costs one list; a
        queue where all tasks have the default priority two; another one a list for each priority until the
        page is full, from the highest down.
        """
        page = await self._claimable(queue, limit)
        if not page or not await self._claimable(queue, 1, f"spec.priority!={PRIORITY_DEFAULT}"):
            return page
        ordered: list[Candidate] = []
        for priority in range(PRIORITY_MAX, PRIORITY_MIN - 1, -1):
            if len(ordered) < limit:
                missing = limit - len(ordered)
                ordered += await self._claimable(queue, missing, f"spec.priority={priority}")
        return ordered

    async def unsettled_of_outbox(self, outbox: str) -> Sequence[Task]:
        """The unsettled tasks that this outbox holds, by its label."""
        query = {"labelSelector": f"{names.OUTBOX}={outbox}", "fieldSelector": "status.settled=false"}
        return await self._tasks(query)

    async def claimed_by_outbox(self, outbox: str) -> Sequence[Task]:
        """The same, settled ones too."""
        return await self._tasks({"labelSelector": f"{names.OUTBOX}={outbox}"})

    async def accepted_elsewhere(self, task: Task, payload_sha256: str) -> str:
        """Nothing: no dedup scope wider than the task is served here."""
        return ""

    async def tasks(self, queue: str | None = None) -> Sequence[Task]:
        return await self._tasks({"fieldSelector": f"spec.queue={queue}"} if queue else {})

    async def jobs(self) -> Sequence[Job]:
        path = collection_path(names.FAN_OUT_JOBS, self.namespace)
        return _readable(await self._listed(path, {}), job_from_object)

    async def task(self, key: ObjectKey) -> Task | None:
        """The task as it is now, past every cache; None if there is none."""
        return await self._read(names.LEASED_TASKS, key, task_from_object)

    async def job(self, key: ObjectKey) -> Job | None:
        """The job as it is now, past every cache; None if there is none.

        Only the reading of its spec is spared where that cannot have changed since the last time.
        """
        known = self._jobs.pop(key, None)
        job = await self._read(names.FAN_OUT_JOBS, key, partial(job_from_object, known=known))
        if job is not None:
            self._jobs[key] = job
            if len(self._jobs) > JOBS_REMEMBERED_MAX:
                del self._jobs[next(iter(self._jobs))]
        return job

    async def create(self, new: NewTask) -> Answer:
        """Create the task. `Refused(EXISTS)` if the name is taken, by whatever task."""
        sent = task_object(new)
        path = collection_path(names.LEASED_TASKS, new.key.namespace)
        result = await self._client.create(path, sent)
        if not isinstance(result, Response) or not result.ok:
            return refusal_of(result)
        return _applied(result.body, first_difference(sent["spec"], result.body.get("spec"), "spec"))

    async def write(self, mutation: Mutation) -> Answer:
        """Carry out one mutation with all its comparisons. Never raises for a refusal or a lost answer."""
        path = object_path(names.LEASED_TASKS, mutation.key)
        try:
            patches = alternatives_of(mutation, now=self._now())
        except MutationRefused as refused:
            return Refused(cause=Cause.PRECONDITION, message=str(refused))
        for patch in patches:
            answer = await self._patched(path, patch)
            precondition = isinstance(answer, Refused) and answer.cause is Cause.PRECONDITION
            if not precondition or patch is patches[-1]:
                break
        return answer

    async def close(self) -> None:
        await self._client.close()

    async def _patched(self, path: str, patch: Patch) -> Answer:
        result = await self._client.patch(
            path + patch.part.value, patch.body, content_type=patch.content_type
        )
        if not isinstance(result, Response) or not result.ok:
            return refusal_of(result)
        return _applied(result.body, what_was_not_kept(patch, result.body))

    async def _claimable(self, queue: str, limit: int, *more: str) -> list[Candidate]:
        fields = (
            f"spec.queue={queue}",
            "spec.suspend=false",
            "spec.external=false",
            "status.settled=false",
            *more,
        )
        query = {
            "fieldSelector": ",".join(fields),
            "labelSelector": f"!{names.HOLD}",
            "limit": str(limit),
        }
        path = collection_path(names.LEASED_TASKS, self.namespace)
        result = await self._client.get(path, query=query, accept=METADATA_LIST)
        return _readable(_items(result, f"the tasks of queue {queue}"), candidate_from_metadata)

    async def _tasks(self, query: dict[str, str]) -> list[Task]:
        path = collection_path(names.LEASED_TASKS, self.namespace)
        return _readable(await self._listed(path, query), task_from_object)

    async def _listed(self, path: str, query: dict[str, str]) -> list[Json]:
        """All items, page by page; the pages are of one revision."""
        items: list[Json] = []
        async for result in self._client.pages(path, query=query, page_size=PAGE_SIZE):
            items += _items(result, path.removeprefix(GROUP_PATH))
        return items

    async def _read(self, resource: str, key: ObjectKey, read: Callable[[Json], Read]) -> Read | None:
        result = await self._client.get(object_path(resource, key))
        if not isinstance(result, Response) or not result.ok:
            if _says_that_the_object_is_gone(result):
                return None
            raise problem_of_read(result, f"{resource} {key}")
        try:
            return read(result.body)
        except Unreadable as problem:
            raise StoreRefused(str(problem), Cause.SCHEMA) from None


def _applied(kept: Json, difference: str | None) -> Answer:
    """The task as stored; a refusal that names the field if it is not what was sent, or cannot be read."""
    if difference:
        return Refused(cause=Cause.SCHEMA, message=f"the API server did not keep what was sent: {difference}")
    try:
        return Applied(task=task_from_object(kept))
    except Unreadable as problem:
        return Refused(cause=Cause.SCHEMA, message=str(problem))


def _items(result: Result, what: str) -> list[Json]:
    """The items of one page, which name neither their kind nor their version."""
    if not isinstance(result, Response) or not result.ok:
        raise problem_of_read(result, what)
    items: list[Json] = result.body.get("items") or []
    return items


def _readable(items: list[Json], read: Callable[[Json], Read]) -> list[Read]:
    values: list[Read] = []
    for item in items:
        try:
            values.append(read(item))
        except Unreadable as problem:
            log.warning("left out: %s", problem)
    return values


def _says_that_the_object_is_gone(result: Result) -> bool:
    """A 404 about the object. Another 404 says that the kind is not served, which is no answer about it."""
    if not isinstance(result, Response) or result.status != HTTPStatus.NOT_FOUND:
        return False
    details = result.body.get("details") if is_status(result.body) else None
    return isinstance(details, dict) and bool(details.get("name"))


def _wall_clock() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
