"""What the kubelet and Prometheus ask: is it alive, is it ready, what has it counted.

`/healthz` is red when a watch has made no progress for longer than one that works could be silent; a process
that answers but hears nothing is what it is there to find. `/readyz` is green when the cache was filled once
and the admission policies bite, which is tried by a dry-run write that they have to refuse: without them a
fencing token could be lowered by anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web

from fencepost.api import names
from fencepost.kube.client import ApiClient, Response
from fencepost.kube.refusals import message_of
from fencepost_operator import paths
from fencepost_operator.logs import Repeats, logger
from fencepost_operator.metrics import CONTENT_TYPE, Metrics
from fencepost_operator.watching import PROGRESS_SECONDS_MAX, Progress

PROBE_SECONDS: Final = 30.0
PROBE_SECONDS_WHILE_RED: Final = 2.0
POLICY: Final = "ValidatingAdmissionPolicy"


class PolicyProbe:
    """Whether the policies are active, as a write showed that they have to refuse."""

    def __init__(self, client: ApiClient, namespace: str, *, repeats: Repeats) -> None:
        self._client = client
        self._namespace = namespace
        self._repeats = repeats
        self.problem: str | None = "the admission policies were not probed yet"

    async def run(self) -> None:
        """Probes until cancelled: seldom while all is well, often while it is not."""
        while True:
            self.problem = await self.probe()
            if self.problem and self._repeats.is_news("policies", self.problem):
                logger.warning("not ready: %s", self.problem)
            await asyncio.sleep(PROBE_SECONDS_WHILE_RED if self.problem else PROBE_SECONDS)

    async def probe(self) -> str | None:
        """None if the policies refused a task that is born with a fencing token, else what is wrong."""
        task = {
            "apiVersion": names.API_VERSION,
            "kind": names.LEASED_TASK,
            "metadata": {"generateName": "policy-probe-", "annotations": {names.FENCING_TOKEN: "7"}},
            "spec": {"queue": "policy-probe"},
        }
        path = paths.collection(names.LEASED_TASKS, self._namespace)
        result = await self._client.create(path, task, query={"dryRun": "All"})
        if not isinstance(result, Response):
            return f"the admission policies cannot be probed: {result.message}"
        if result.ok:
            return "the admission policies are not active: apply crds/policies.yaml"
        if POLICY not in message_of(result):
            return f"the admission policies cannot be probed: {message_of(result)}"
        return None


class Probes:
    """The HTTP server. Serves nothing that is secret, and changes nothing."""

    def __init__(
        self, *, progress: Progress, policies: PolicyProbe, metrics: Metrics, count: Callable[[], None]
    ) -> None:
        """`count` brings the gauges up to date."""
        self._progress = progress
        self._policies = policies
        self._metrics = metrics
        self._count = count
        self._runner: web.AppRunner | None = None
        self.filled = False

    async def start(self, host: str, port: int) -> int:
        """Listens there; the port, which the system chooses if it is 0. Raises `OSError`."""
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics_text)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def what_is_dead(self) -> str | None:
        """None while every watch makes progress."""
        for resource, age in self._progress.ages().items():
            if age > PROGRESS_SECONDS_MAX:
                return f"the watch of {resource} has made no progress for {age:.0f} s"
        return None

    def what_is_not_ready(self) -> str | None:
        """None once the cache is filled and as long as the policies bite."""
        return self._policies.problem if self.filled else "the caches are not filled yet"

    async def _healthz(self, request: web.Request) -> web.Response:
        return _answer(self.what_is_dead())

    async def _readyz(self, request: web.Request) -> web.Response:
        return _answer(self.what_is_not_ready())

    async def _metrics_text(self, request: web.Request) -> web.Response:
        self._count()
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def _answer(problem: str | None) -> web.Response:
    status = web.HTTPServiceUnavailable.status_code if problem else web.HTTPOk.status_code
    return web.Response(text=f"{problem or 'ok'}\n", status=status)
