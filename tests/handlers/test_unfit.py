"""A job that nobody can fan out is told apart, and stands in nobody's way."""

from __future__ import annotations

import json
from time import monotonic
from typing import Any

import pytest
from aiohttp import web

from fencepost.api.write import job_view
from fencepost.kube.client import ApiClient
from fencepost.kube.connection import explicit
from fencepost.protocol import limits
from fencepost.protocol.job import ConditionStatus
from fencepost.protocol.task import ObjectKey
from fencepost_operator.cache import Cache
from fencepost_operator.clock import ServerClock
from fencepost_operator.decide import StallReason, Trouble, stalled
from fencepost_operator.keys import Key
from fencepost_operator.leases import LeaseObserver
from fencepost_operator.logs import Repeats
from fencepost_operator.observe import World
from fencepost_operator.queue import WorkQueue
from fencepost_operator.unfit import status_of_unfit
from tests.handlers.values import a_job

KEY = ObjectKey(namespace="ns", name="job")
DEEP = json.loads('{"a":' * 900 + "1" + "}" * 900)
UNREADABLE = [
    pytest.param(DEEP, "nested deeper than 64 levels", id="deep"),
    pytest.param({"n": 2**53}, "not representable as canonical JSON", id="inexact"),
    pytest.param({"x": "y" * 66_000}, "over the limit of 65536", id="large"),
]


def world_at(server: str) -> World:
    return World(
        client=ApiClient(explicit(server, ca_file=None, token=None)),
        cache=Cache(clock=monotonic),
        queue=WorkQueue[Key](clock=monotonic),
        leases=LeaseObserver(),
        server_clock=ServerClock(clock=monotonic),
        clock=monotonic,
        repeats=Repeats(clock=monotonic),
    )


@pytest.fixture
def world() -> World:
    return world_at("http://127.0.0.1:1")


@pytest.fixture
def queued(world: World) -> WorkQueue[Key]:
    return world._queue


def job_object(request: Any = None, *, uid: str = "job-uid") -> Any:
    found = job_view(a_job("a", "b", uid=uid))
    if request is not None:
        found["spec"]["branches"][1]["request"] = request
    return found


def of_size(size: int) -> Any:
    """A job whose spec takes exactly so many bytes, in requests that are small enough."""
    found = job_view(a_job(*(f"b{number}" for number in range(8))))
    branches = found["spec"]["branches"]
    for branch in branches[1:]:
        branch["request"] = {"t": "x" * 45_000}
    branches[0]["request"] = {"t": ""}
    missing = size - len(json.dumps(found["spec"], separators=(",", ":")))
    branches[0]["request"] = {"t": "x" * missing}
    return found


@pytest.mark.parametrize(("request_object", "sentence"), UNREADABLE)
def test_a_spec_that_cannot_be_read_is_looked_at_once(
    world: World, queued: WorkQueue[Key], request_object: Any, sentence: str
) -> None:
    world.job_event("ADDED", job_object(request_object))
    unfit = world.cache.unfit_job(KEY)
    assert unfit is not None and unfit.trouble.reason is StallReason.SPEC_UNREADABLE
    assert unfit.trouble.message.startswith("spec.branches[1].request: ")
    assert sentence in unfit.trouble.message and "delete this job" in unfit.trouble.message
    assert (world.cache.job(KEY), len(queued)) == (None, 1)
    queued._ready.clear()
    queued._waiting.clear()
    world.job_event("MODIFIED", job_object(request_object))
    assert len(queued) == 0


def with_continuation(**template: Any) -> Any:
    found = job_object()
    made = {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "LeasedTask",
        "spec": {"queue": "after"},
    } | template
    found["spec"]["continuation"] = {"when": "Settled", "template": made}
    return found


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ({"spec": "x"}, "spec.continuation.template.spec"),
        ({"spec": {"request": "x"}}, "spec.continuation.template.spec.request"),
        ({"spec": {"qeue": "x"}}, "did you mean queue?"),
        ({"metadata": {"annotations": ["x"]}}, "spec.continuation.template.metadata.annotations"),
        ({"kind": "FanOutJob", "spec": {"branches": ["x"]}}, "spec.continuation.template.spec.branches[0]"),
    ],
)
def test_a_continuation_that_nothing_can_be_made_of_is_told_before_the_fan_out(
    world: World, template: Any, sentence: str
) -> None:
    world.job_event("ADDED", with_continuation(**template))
    unfit = world.cache.unfit_job(KEY)
    assert unfit is not None and unfit.trouble.reason is StallReason.CONTINUATION_REFUSED
    assert sentence in unfit.trouble.message and "No task is created" in unfit.trouble.message
    assert world.cache.job(KEY) is None


def test_a_job_with_a_fit_continuation_or_one_that_has_begun_goes_on(world: World) -> None:
    world.job_event("ADDED", with_continuation())
    assert world.cache.job(KEY) is not None
    world.job_event("DELETED", with_continuation())
    begun = with_continuation(spec="x")
    begun["status"]["created"] = 1
    world.job_event("ADDED", begun)
    assert world.cache.job(KEY) is not None and world.cache.unfit_job(KEY) is None


def test_a_spec_over_the_limit_is_told_apart_from_one_at_it(world: World) -> None:
    world.job_event("ADDED", of_size(limits.JOB_SPEC_BYTES_MAX))
    assert world.cache.job(KEY) is not None and world.cache.unfit_job(KEY) is None
    world.job_event("DELETED", of_size(limits.JOB_SPEC_BYTES_MAX))
    world.job_event("ADDED", of_size(limits.JOB_SPEC_BYTES_MAX + 1))
    unfit = world.cache.unfit_job(KEY)
    assert unfit is not None and unfit.trouble.reason is StallReason.SPEC_TOO_LARGE
    assert "takes 327681 bytes, over the limit of 327680" in unfit.trouble.message
    assert world.cache.job(KEY) is None


def test_it_is_forgotten_when_it_is_deleted_or_another_has_its_name(world: World) -> None:
    world.job_event("ADDED", job_object(DEEP))
    world.job_event("DELETED", job_object(DEEP, uid="of another"))
    assert world.cache.unfit_job(KEY) is not None
    world.job_event("DELETED", job_object(DEEP))
    assert world.cache.unfit_job(KEY) is None
    world.job_event("ADDED", job_object(DEEP))
    world.job_event("MODIFIED", job_object(uid="its successor"))
    assert world.cache.unfit_job(KEY) is None and world.cache.job(KEY) is not None
    world.job_event("MODIFIED", job_object(DEEP, uid="the third"))
    assert world.cache.unfit_job(KEY) is not None and world.cache.job(KEY) is None


def test_a_status_that_cannot_be_read_is_no_fault_of_the_spec(world: World) -> None:
    world.job_event("ADDED", job_object() | {"status": {"state": "Odd"}})
    assert (world.cache.job(KEY), world.cache.unfit_job(KEY)) == (None, None)


def test_what_is_told_is_short_enough_and_all_three_conditions() -> None:
    trouble = Trouble(reason=StallReason.SPEC_UNREADABLE, message="€" * 2_000)
    status = status_of_unfit(trouble, generation=3)
    told = {condition.type: condition for condition in status.conditions}
    assert {name: one.status for name, one in told.items()} == {
        "Succeeded": ConditionStatus.UNKNOWN,
        "Reconciling": ConditionStatus.FALSE,
        "Stalled": ConditionStatus.TRUE,
    }
    assert (status.observed_generation, stalled(status)) == (3, told["Stalled"])
    assert told["Stalled"].reason == told["Succeeded"].reason == "SpecUnreadable"
    assert all(limits.text_size(one.message) <= limits.MESSAGE_BYTES_MAX for one in told.values())


async def test_an_object_that_we_are_not_up_to_leaves_the_rest_of_a_list(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = job_object() | {"spec": [], "metadata": {"namespace": "ns", "name": "odd", "uid": "u"}}

    async def answer(request: web.Request) -> web.Response:
        jobs = request.path.endswith("fanoutjobs")
        return web.json_response({"metadata": {}, "items": [broken, job_object()] if jobs else []})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    world = world_at(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        await world.list_all(["ns"])
    finally:
        await world._client.close()
        await runner.cleanup()
    assert world.cache.job(KEY) is not None
    assert [record.message for record in caplog.records] == ["defect: an object could not be taken in"]
