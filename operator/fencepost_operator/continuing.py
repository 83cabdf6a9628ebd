"""The continuation of one joined job: created suspended, recorded, unsuspended, and then hands off.

Which step is next is `protocol.continuation`, from an uncached read of the job and of whatever has the
continuation's name. Each step is one conditional write, so any number of crashes and operators come to the
same end: one object was started, and the job says which.

A create that was not answered may be carried out when its object has run and gone. Not all kinds of
continuations are watched, so the job is looked at once more when such a copy must have come: it is suspended
still, and deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from fencepost.api.write import job_status_object
from fencepost.ports import Cause, Refused, Unanswered
from fencepost.protocol.continuation import Seen, Step, is_wanted, next_step
from fencepost.protocol.fanout import continuation_name
from fencepost.protocol.job import ConditionStatus, Continuation, ContinuationRecord
from fencepost_operator import paths
from fencepost_operator.apply import FOR_A_PERSON, WriteEnd, Writer, Written
from fencepost_operator.cache import SeenJob
from fencepost_operator.continuation_objects import (
    ContinuationObjects,
    ContinuationUnfit,
    is_made_of,
    is_owned,
    objects_of,
    seen_in,
    trial_of,
)
from fencepost_operator.decide import StallReason, Trouble, says_the_same, stalled, with_trouble
from fencepost_operator.keys import Key
from fencepost_operator.logs import Repeats, about, logger
from fencepost_operator.observe import WholeJob, World
from fencepost_operator.queue import WorkQueue

STEPS_MAX: Final = 8  # twice what it takes; a surprise goes back to the queue
LATE_WRITE_SECONDS: Final = 40.0  # longer than the API server works on a request whose client has gone


class Continuing:
    """Looks at joined jobs. One event loop owns it."""

    def __init__(
        self,
        *,
        world: World,
        writer: Writer,
        queue: WorkQueue[Key],
        clock: Callable[[], float],
        repeats: Repeats,
    ) -> None:
        self._clock = clock
        self._world = world
        self._writer = writer
        self._queue = queue
        self._repeats = repeats

    async def look(self, key: Key) -> bool:
        """Bring the continuation as far as it goes. True if all is done that can be done now.

        Raises `StoreUnavailable` or `StoreRefused`.
        """
        seen = self._world.cache.job(key.object_key)
        if seen is None or seen.job.deleting:
            return True
        late_copy_is_due = self._late_copy_is_due(seen)
        done = True
        if late_copy_is_due or not seen.memory.continued:
            done = await self._look(key, seen)
        if done and late_copy_is_due:
            seen.memory.late_copy_at = None
        elif seen.memory.late_copy_at is not None and not late_copy_is_due:
            # A key has one date, the earliest: whoever looks earlier asks for this one again.
            self._queue.add_after(key, seen.memory.late_copy_at - self._clock())
        return done

    def _late_copy_is_due(self, seen: SeenJob) -> bool:
        return seen.memory.late_copy_at is not None and self._clock() >= seen.memory.late_copy_at

    async def _look(self, key: Key, seen: SeenJob) -> bool:
        if not is_wanted(seen.job):
            seen.memory.continued = True
            return True
        for _ in range(STEPS_MAX):
            whole = await self._world.read_job(seen.job.key)
            if whole is None or whole.job.uid != seen.uid or whole.job.deleting or not whole.job.joined:
                return True  # an event about it is on the way
            end = await self._step(key, seen, whole)
            if end is not None:
                return end
        self._queue.add_after_failure(key)
        return False

    async def _step(self, key: Key, seen: SeenJob, whole: WholeJob) -> bool | None:
        """One step; None if there may be another one, else what `look` returns."""
        continuation = whole.job.spec.continuation
        if continuation is None:
            return True
        path = _path(whole, continuation)
        found = await self._world.read(path, f"the continuation of job {whole.job.key}")
        sight = seen_in(found, whole.job)
        match next_step(whole.job, sight):
            case Step.NOT_WANTED | Step.HANDS_OFF:
                seen.memory.continued = True
                return True
            case Step.CREATE:
                return await self._create(key, seen, whole)
            case Step.RECORD:
                return await self._recognize(key, whole, continuation, found, sight)
            case Step.UNSUSPEND:
                version = str(found["metadata"]["resourceVersion"]) if found else ""
                return self._went(
                    key, whole, await self._writer.unsuspend(path, uid=sight.uid, version=version)
                )
            case Step.RECORD_STARTED:
                return await self._record(key, whole, continuation, sight, started=True)
            case Step.DELETE_DUPLICATE:
                return await self._delete(key, whole, path, found)
            case Step.CONFLICT:
                return await self._tell_conflict(key, whole, path)
            case Step.LOST:
                message = "the continuation was deleted before it was started; it is not made again"
                told = await self._tell(key, whole, StallReason.CONTINUATION_LOST, message)
                seen.memory.continued = told is not None
                return None if told is None else True

    async def _create(self, key: Key, seen: SeenJob, whole: WholeJob) -> bool | None:
        objects = self._objects(whole)
        if isinstance(objects, str):
            return await self._tell(key, whole, StallReason.CONTINUATION_REFUSED, objects)
        if objects.config_map is not None:
            problem = await self._make_config_map(whole, objects)
            if problem is not None:
                return await self._not_made(key, whole, problem)
        path = paths.continuations(objects.kind, whole.job.key.namespace)
        end = await self._writer.create(path, objects.body, what="create-continuation")
        if isinstance(end, Refused) and end.cause is Cause.EXISTS:
            return None
        if isinstance(end, Unanswered):
            seen.memory.late_copy_at = self._clock() + LATE_WRITE_SECONDS
        return None if isinstance(end, Written) else await self._not_made(key, whole, end)

    def _objects(self, whole: WholeJob) -> ContinuationObjects | str:
        """What to create, or why it cannot be built: for a person, because no other try ends better."""
        try:
            return objects_of(whole.job)
        except ContinuationUnfit as unfit:
            return f"the continuation cannot be made: {unfit}"
        except Exception as defect:
            if self._repeats.is_news(whole.job.uid, "defect"):
                note = about(whole.job.key.namespace, whole.job.key.name, uid=whole.job.uid)
                logger.exception("defect: the continuation could not be built", extra=note)
            return f"the continuation cannot be made of its template ({type(defect).__name__})"

    async def _make_config_map(
        self, whole: WholeJob, objects: ContinuationObjects
    ) -> Refused | Unanswered | None:
        path = paths.config_maps(whole.job.key.namespace)
        end = await self._writer.create(path, objects.config_map or {}, what="create-snapshot")
        if isinstance(end, Written):
            return None
        if isinstance(end, Refused) and end.cause is Cause.EXISTS:
            found = await self._world.read(f"{path}/{objects.name}", f"the ConfigMap {objects.name}")
            if found is not None and is_owned(found, whole.job):
                return None  # it is immutable and made of the snapshot alone, so it is the same
            return replace(
                end, cause=Cause.ADMISSION, message=f"another ConfigMap has the name {objects.name}"
            )
        return end

    async def _recognize(
        self, key: Key, whole: WholeJob, continuation: Continuation, found: Any, sight: Seen
    ) -> bool | None:
        """Record what has our name, our owner and runs not, if it is what we would create, too.

        The API server may store something else than it was sent (it spells quantities its own way, a webhook
        adds something), so what looks different is compared with what it would store now.
        """
        objects = self._objects(whole)
        if isinstance(objects, str):
            return await self._tell(key, whole, StallReason.CONTINUATION_REFUSED, objects)
        body = objects.body
        if not is_made_of(found, body):
            path = paths.continuations(continuation.kind, whole.job.key.namespace)
            end = await self._writer.try_to_create(path, trial_of(body), what="compare-continuation")
            if not isinstance(end, Written):
                return await self._not_made(key, whole, end)
            if not is_made_of(found, dict(end.body)):
                return await self._tell_conflict(key, whole, _path(whole, continuation))
        return await self._record(key, whole, continuation, sight, started=False)

    async def _tell_conflict(self, key: Key, whole: WholeJob, path: str) -> bool | None:
        message = f"another object has the name of the continuation, {path}: delete it"
        return await self._tell(key, whole, StallReason.CONTINUATION_CONFLICT, message)

    async def _not_made(self, key: Key, whole: WholeJob, end: Refused | Unanswered) -> bool | None:
        if isinstance(end, Refused) and end.cause in FOR_A_PERSON:
            message = f"the continuation cannot be created; the API server says: {end.message}"
            return await self._tell(key, whole, StallReason.CONTINUATION_REFUSED, message)
        return self._failed(key, whole, end)

    async def _record(
        self, key: Key, whole: WholeJob, continuation: Continuation, sight: Seen, *, started: bool
    ) -> bool | None:
        """Write which object it is, or that it was started; nothing that a person was told stays wrong."""
        name = continuation_name(whole.job)
        record = ContinuationRecord(kind=continuation.kind, name=name, uid=sight.uid, started=started)
        status = with_trouble(replace(whole.job.status, continuation=record), None)
        content = self._status_object(whole, status)
        kept = {"continuation": content["continuation"]}
        told = stalled(whole.job.status)
        if told is not None and told.status is ConditionStatus.TRUE:
            kept["conditions"] = content["conditions"]
        what = "record-started" if started else "record-continuation"
        end = await self._writer.patch_status(whole.job, kept, what=what)
        if isinstance(end, Written) and started:
            note = about(key.namespace, key.name, uid=whole.job.uid)
            logger.info("continuation started: %s %s", continuation.kind.value, name, extra=note)
        return self._went(key, whole, end)

    async def _delete(self, key: Key, whole: WholeJob, path: str, found: Any) -> bool | None:
        metadata = found["metadata"]
        end = await self._writer.delete(
            path, uid=metadata["uid"], version=metadata["resourceVersion"], what="delete-duplicate"
        )
        return self._went(key, whole, end)

    async def _tell(self, key: Key, whole: WholeJob, reason: StallReason, message: str) -> bool | None:
        """Write the condition `Stalled`, unless it says so already, and come back after a while.

        None if the job is not as it was read: another operator went on, and what was seen may be its doing.
        """
        status = with_trouble(whole.job.status, Trouble(reason=reason, message=message))
        if not says_the_same(stalled(status), stalled(whole.job.status)):
            content = {"conditions": self._status_object(whole, status)["conditions"]}
            end = await self._writer.patch_status(whole.job, content, what="stalled")
            if isinstance(end, Refused) and end.cause in (Cause.PRECONDITION, Cause.MISSING):
                return None
        if self._repeats.is_news(whole.job.uid, reason):
            note = about(key.namespace, key.name, uid=whole.job.uid)
            logger.warning("%s", message, extra=note)
        self._queue.add_after_failure(key)
        return False

    def _went(self, key: Key, whole: WholeJob, end: WriteEnd) -> bool | None:
        """None if it was applied or somebody else was faster: the next step looks again."""
        if isinstance(end, Written):
            return None
        if isinstance(end, Refused) and end.cause in (Cause.PRECONDITION, Cause.MISSING):
            return None
        return self._failed(key, whole, end)

    def _failed(self, key: Key, whole: WholeJob, end: Refused | Unanswered) -> bool:
        if self._repeats.is_news(whole.job.uid, "continuation"):
            note = about(key.namespace, key.name, uid=whole.job.uid)
            logger.warning("the continuation has to wait: %s", end.message, extra=note)
        at_least = end.retry_after_seconds or 0.0 if isinstance(end, Refused) else 0.0
        self._queue.add_after_failure(key, at_least=at_least)
        return False

    def _status_object(self, whole: WholeJob, status: Any) -> dict[str, Any]:
        now = self._world.server_clock.text()
        return job_status_object(status, now=now, previous={"conditions": list(whole.conditions)})


def _path(whole: WholeJob, continuation: Continuation) -> str:
    namespace = whole.job.key.namespace
    return f"{paths.continuations(continuation.kind, namespace)}/{continuation_name(whole.job)}"
