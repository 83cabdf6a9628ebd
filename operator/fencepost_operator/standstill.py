"""Tells a person, once, of a job that is left alone: the condition `Stalled`, at the version that was read.

What stays unsaid because the API server refuses the write is said in the log, and tried again at the next
whole list, not sooner: it is nothing that waiting in a loop would change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fencepost.api.write import job_status_object
from fencepost.ports import Refused
from fencepost_operator import paths
from fencepost_operator.apply import FOR_A_PERSON, SeenVersion, Writer, Written
from fencepost_operator.decide import STALLED
from fencepost_operator.keys import Key
from fencepost_operator.logs import Repeats, about, logger
from fencepost_operator.observe import World
from fencepost_operator.queue import WorkQueue
from fencepost_operator.unfit import Unfit, status_of_unfit

Json = Mapping[str, Any]


class Standstill:
    """Looks at jobs that are unfit. One event loop owns it."""

    def __init__(self, *, world: World, writer: Writer, queue: WorkQueue[Key], repeats: Repeats) -> None:
        self._world = world
        self._writer = writer
        self._queue = queue
        self._repeats = repeats

    async def look(self, key: Key, unfit: Unfit) -> bool:
        """Write what is not written yet. True if all is done that can be done now.

        Raises `StoreUnavailable` or `StoreRefused`.
        """
        found = await self._world.read(paths.job(key.namespace, key.name), f"job {key.object_key}")
        if found is None or found["metadata"]["uid"] != unfit.uid or _says(found, unfit):
            return True  # if it is gone, the event about that is on the way
        metadata = found["metadata"]
        seen = SeenVersion(key=key.object_key, uid=unfit.uid, version=metadata["resourceVersion"])
        end = await self._writer.patch_status(seen, self._content(found, unfit), what="unfit")
        if isinstance(end, Written):
            return True
        if not isinstance(end, Refused) or end.cause not in FOR_A_PERSON:
            self._queue.add_after_failure(key)
            return False
        if self._repeats.is_news(unfit.uid, "status"):
            note = about(key.namespace, key.name, uid=unfit.uid)
            logger.error("the status was refused: %s", end.message, extra=note)
        return True

    def _content(self, found: Json, unfit: Unfit) -> Json:
        status = status_of_unfit(unfit.trouble, generation=found["metadata"]["generation"])
        now = self._world.server_clock.text()
        whole = job_status_object(status, now=now, previous=found.get("status"))
        return {name: whole[name] for name in ("conditions", "observedGeneration")}


def _says(found: Json, unfit: Unfit) -> bool:
    """Whether the job says already that it stands still, and why, at this generation."""
    status = found.get("status") or {}
    stalled: Json = next((one for one in status.get("conditions") or () if one["type"] == STALLED), {})
    return (
        status.get("observedGeneration") == found["metadata"]["generation"]
        and stalled.get("status") == "True"
        and stalled.get("reason") == unfit.trouble.reason.value
    )
