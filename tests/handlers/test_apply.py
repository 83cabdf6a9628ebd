"""What every write of the operator is conditional on, as a server sees it; and what its answers come to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from fencepost.api.write import job_view
from fencepost.kube.client import ApiClient
from fencepost.kube.connection import explicit
from fencepost.kube.store import KubeStore
from fencepost.ports import Cause, Refused, Unanswered
from fencepost_operator.apply import Writer, Written
from fencepost_operator.cache import Cache
from fencepost_operator.clock import ServerClock
from fencepost_operator.leases import LeaseObserver
from fencepost_operator.logs import Repeats
from fencepost_operator.metrics import Metrics
from fencepost_operator.observe import World
from fencepost_operator.probes import PolicyProbe, Probes
from fencepost_operator.queue import WorkQueue
from fencepost_operator.watching import PROGRESS_SECONDS_MAX, Progress
from tests.handlers.values import MovableClock, a_job, a_task

DATE = "Thu, 01 Jan 2026 00:00:10 GMT"


@dataclass
class Server:
    """Answers every request with the next of `answers`, and writes down what came."""

    answers: list[tuple[int, Any]] = field(default_factory=list)
    seen: list[tuple[str, str, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.seen.append((request.method, request.path_qs, body))
        status, content = self.answers.pop(0) if self.answers else (200, {"metadata": {}})
        return web.json_response(content, status=status, headers={"Date": DATE})


@dataclass
class Scene:
    server: Server
    writer: Writer
    world: World
    client: ApiClient


@asynccontextmanager
async def _scene() -> AsyncIterator[Scene]:
    server, clock = Server(), MovableClock()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = ApiClient(explicit(f"http://127.0.0.1:{runner.addresses[0][1]}", ca_file=None, token=None))
    world = World(
        client=client,
        cache=Cache(clock=clock),
        queue=WorkQueue(clock=clock),
        leases=LeaseObserver(),
        server_clock=ServerClock(clock=clock),
        clock=clock,
        repeats=Repeats(clock=clock),
    )
    writer = Writer(client=client, store=KubeStore(client), world=world, clock=clock, metrics=Metrics())
    try:
        yield Scene(server=server, writer=writer, world=world, client=client)
    finally:
        await client.close()
        await runner.cleanup()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with _scene() as scene:
        yield scene


async def test_a_status_write_names_uid_and_version_and_the_servers_time(scene: Scene) -> None:
    job = a_job(uid="u", version="17")
    status = replace(job.status, created=2, observed_generation=1)
    scene.server.answers = [(200, job_view(replace(job, version="18", status=status)))]
    end = await scene.writer.write_status(job, status, conditions=())
    assert isinstance(end, Written)
    method, path, body = scene.server.seen[0]
    assert (method, path) == ("PATCH", "/apis/fencepost.dev/v1alpha1/namespaces/ns/fanoutjobs/job/status")
    assert body["metadata"] == {"uid": "u", "resourceVersion": "17"}
    assert body["status"]["created"] == 2
    assert scene.world.server_clock.text() == "2026-01-01T00:00:10Z"
    seen = scene.world.cache.job(job.key)
    assert seen is not None
    assert seen.version == "18"


async def test_a_status_that_the_server_did_not_keep_is_a_refusal_that_names_the_field(scene: Scene) -> None:
    """B05: a field that an older schema does not know is dropped without a word."""
    job = a_job()
    status = replace(job.status, created=2, observed_generation=1)
    kept = job_view(replace(job, version="2", status=status))
    del kept["status"]["observedGeneration"]
    scene.server.answers = [(200, kept)]
    end = await scene.writer.write_status(job, status, conditions=())
    assert isinstance(end, Refused)
    assert end.cause is Cause.SCHEMA
    assert "observedGeneration" in end.message


async def test_unsuspending_tests_uid_and_version(scene: Scene) -> None:
    await scene.writer.unsuspend("/x", uid="u", version="5")
    assert scene.server.seen[0][2] == [
        {"op": "test", "path": "/metadata/uid", "value": "u"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "5"},
        {"op": "add", "path": "/spec/suspend", "value": False},
    ]


async def test_a_late_task_is_suspended_and_deleted_only_as_it_was_seen(scene: Scene) -> None:
    scene.server.answers = [(200, {"metadata": {"resourceVersion": "8"}}), (200, {})]
    assert isinstance(await scene.writer.retire(a_task(uid="u", version="7")), Written)
    (_, _, suspend), (method, _, delete) = scene.server.seen
    assert suspend == {"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"suspend": True}}
    assert (method, delete["preconditions"]) == ("DELETE", {"uid": "u", "resourceVersion": "8"})


async def test_a_late_task_that_has_changed_is_not_deleted(scene: Scene) -> None:
    scene.server.answers = [(409, {"kind": "Status", "reason": "Conflict", "message": "changed"})]
    end = await scene.writer.retire(a_task())
    assert isinstance(end, Refused)
    assert end.cause is Cause.PRECONDITION
    assert len(scene.server.seen) == 1


@pytest.mark.parametrize(
    ("status", "reason", "end"),
    [
        (403, "Forbidden", Refused),
        (409, "Conflict", Refused),
        (429, "TooManyRequests", Refused),
        (500, "InternalError", Unanswered),
        (504, "Timeout", Unanswered),
    ],
)
async def test_an_answer_is_a_refusal_or_it_tells_nothing(
    scene: Scene, status: int, reason: str, end: type[Any]
) -> None:
    scene.server.answers = [(status, {"kind": "Status", "reason": reason, "message": "m"})]
    assert isinstance(await scene.writer.create("/x", {}, what="w"), end)


class TestProbes:
    async def test_liveness_is_red_once_a_watch_is_silent_for_too_long(self, scene: Scene) -> None:
        clock = MovableClock()
        progress = Progress((None,), clock=clock)
        policies = PolicyProbe(scene.client, "ns", repeats=Repeats(clock=clock))
        probes = Probes(progress=progress, policies=policies, metrics=Metrics(), count=lambda: None)
        clock.now += PROGRESS_SECONDS_MAX
        progress.note("/apis/fencepost.dev/v1alpha1/fanoutjobs")
        assert probes.what_is_dead() is None
        clock.now += 1
        assert probes.what_is_dead() == "the watch of leasedtasks has made no progress for 76 s"
        progress.note("/apis/fencepost.dev/v1alpha1/leasedtasks")
        assert probes.what_is_dead() is None

    @pytest.mark.parametrize(
        ("status", "message", "problem"),
        [
            (422, "ValidatingAdmissionPolicy 'fencepost-fence' denied request: no", None),
            (201, "", "the admission policies are not active: apply crds/policies.yaml"),
            (403, "may not create", "the admission policies cannot be probed: may not create"),
        ],
    )
    async def test_readiness_wants_a_refusal_by_the_policies_and_nothing_else(
        self, scene: Scene, status: int, message: str, problem: str | None
    ) -> None:
        scene.server.answers = [(status, {"kind": "Status", "message": message})]
        policies = PolicyProbe(scene.client, "ns", repeats=Repeats(clock=MovableClock()))
        assert await policies.probe() == problem
        method, path, _ = scene.server.seen[0]
        assert (method, path) == (
            "POST",
            "/apis/fencepost.dev/v1alpha1/namespaces/ns/leasedtasks?dryRun=All",
        )

    async def test_it_is_not_ready_before_the_caches_are_filled(self, scene: Scene) -> None:
        clock = MovableClock()
        policies = PolicyProbe(scene.client, "ns", repeats=Repeats(clock=clock))
        progress = Progress((None,), clock=clock)
        probes = Probes(progress=progress, policies=policies, metrics=Metrics(), count=lambda: None)
        policies.problem = None
        assert probes.what_is_not_ready() == "the caches are not filled yet"
        probes.filled = True
        assert probes.what_is_not_ready() is None
