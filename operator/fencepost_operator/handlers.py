"""The two Kopf handlers: each takes an event, puts it into the cache, and a key on the queue. No more.

`on.event` is Kopf's lowest level: no annotation that remembers the last state, no finalizer, no retries, no
patches. Whatever a handler did beyond passing on would be lost with the event that brought it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from fencepost.api import names
from fencepost.kube.connection import Connection
from fencepost.protocol import limits
from fencepost_operator import paths
from fencepost_operator.metrics import Metrics
from fencepost_operator.observe import World
from fencepost_operator.watching import Progress, session_of_kopf


def registry_of_kopf(
    *, world: World, progress: Progress, connection: Connection, metrics: Metrics, cluster_wide: bool
) -> kopf.OperatorRegistry:
    """The two handlers and the login."""
    registry = kopf.OperatorRegistry()
    takers = {names.LEASED_TASKS: world.task_event, names.FAN_OUT_JOBS: world.job_event}

    def passing_on(resource: str) -> Callable[..., Any]:
        counter = metrics.events.labels(resource)
        take = takers[resource]

        async def handler(event: Any, **_: Any) -> None:
            counter.inc()
            found = event["object"]
            namespace = None if cluster_wide else found["metadata"]["namespace"]
            progress.note(paths.collection(resource, namespace))
            try:
                take(event["type"], found)
            except Exception:
                world.tell_defect(found)

        return handler

    async def login(**_: Any) -> kopf.AiohttpSession:
        return await session_of_kopf(connection, progress)

    for resource in takers:
        kopf.on.event(limits.GROUP, limits.VERSION, resource, registry=registry)(passing_on(resource))
    kopf.on.login(registry=registry)(login)
    return registry
