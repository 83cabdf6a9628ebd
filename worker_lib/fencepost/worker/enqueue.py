"""Making tasks: the same content again is a replay, other content under the same name a conflict. Public.

The name is the identity. Without one it is derived from the queue and the canonical request, so a producer
that is restarted makes no second task. (For as long as the task lives: one that was deleted after its TTL is
made anew.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from fencepost.ports import Answer, Applied, Cause, NewTask, Refused, StoreUnavailable, TaskStore
from fencepost.protocol.fanout import slug
from fencepost.protocol.payload import framed_sha256, request_text
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import ObjectKey, Task, TaskSpec
from fencepost.worker.handler import plain_value
from fencepost.worker.settings import retry_seconds
from fencepost.worker.worker import connect_to_cluster

_NAME_DOMAIN: Final = "fencepost/enqueue/v1"
_NAME_DIGITS: Final = 20
_TRIES_MAX: Final = 8  # about 20 seconds
DEFAULTS: Final = TaskSpec()


class EnqueueRefused(Exception):  # noqa: N818 - the sentence the caller sees
    """The task was not made and no retry as it is will make it; `cause` says of which sort."""

    def __init__(self, message: str, cause: Cause) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """ACCEPTED: made now. DUPLICATE: it was there, with the same content. CONFLICT: with other content."""

    verdict: Verdict
    task: Task


def enqueue(
    queue: str,
    request: Mapping[str, Any] | object,
    *,
    name: str | None = None,
    store: TaskStore | None = None,
    spec: TaskSpec = DEFAULTS,
) -> Enqueued:
    """Make a task in the store's namespace and say what became of it.

    `request`: a mapping, or a pydantic model or dataclass that becomes one; at most 64 KiB of JSON. `spec`
    has everything else (priority, retries, lease); its queue and request are replaced. Raises
    `PayloadRefused`, `EnqueueRefused`, `StoreUnavailable`, `StoreRefused`, or `NoAccess` where no cluster is
    found. Not to be called in a running loop: await `enqueue_async` there.
    """
    return asyncio.run(enqueue_async(queue, request, name=name, store=store, spec=spec))


async def enqueue_async(
    queue: str,
    request: Mapping[str, Any] | object,
    *,
    name: str | None = None,
    store: TaskStore | None = None,
    spec: TaskSpec = DEFAULTS,
) -> Enqueued:
    """As `enqueue`, in a running loop. A store that is given is left open."""
    text = request_text(cast("Mapping[str, Any]", plain_value(request)))  # it refuses what is no mapping
    wanted = replace(spec, queue=queue, request=text)
    opened = store if store is not None else await connect_to_cluster()
    try:
        key = ObjectKey(namespace=opened.namespace, name=name or task_name(queue, text))
        return await _created(opened, NewTask(key=key, spec=wanted))
    finally:
        if store is None:
            await opened.close()


def task_name(queue: str, request: str) -> str:
    """The name of a task that was given none: a DNS label from the queue and the canonical request."""
    digest = framed_sha256(_NAME_DOMAIN, queue, request)[:_NAME_DIGITS]
    return "-".join(part for part in (slug(queue), digest) if part)


async def _created(store: TaskStore, new: NewTask) -> Enqueued:
    """Create by name until it is certain: a repeat of a create whose answer was lost meets its own task."""
    message = ""
    for tries in range(1, _TRIES_MAX + 1):
        answer = await store.create(new)
        if isinstance(answer, Applied):
            return Enqueued(verdict=Verdict.ACCEPTED, task=answer.task)
        if isinstance(answer, Refused) and answer.cause is Cause.EXISTS:
            present = await store.task(new.key)
            if present is not None:
                return Enqueued(verdict=_verdict(present, new), task=present)
        elif isinstance(answer, Refused) and answer.cause is not Cause.OVERLOADED:
            raise EnqueueRefused(f"task {new.key} was not made: {answer.message}", answer.cause)
        message = answer.message
        await asyncio.sleep(_pause(answer, tries))
    raise StoreUnavailable(f"task {new.key} may or may not have been made, repeat the call: {message}")


def _pause(answer: Answer, tries: int) -> float:
    asked = answer.retry_after_seconds if isinstance(answer, Refused) else None
    return max(asked or 0.0, retry_seconds(tries, spread=0.5))


def _verdict(present: Task, new: NewTask) -> Verdict:
    """Suspension and priority may have been changed by a person, and stay out of the comparison."""
    asked = replace(new.spec, suspend=present.spec.suspend, priority=present.spec.priority)
    same = present.spec == asked and present.owner == new.owner
    return Verdict.DUPLICATE if same else Verdict.CONFLICT
