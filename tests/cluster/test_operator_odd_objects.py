"""What the API server stores and nobody can read: it is told of, and affects no other object."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fencepost import Worker
from fencepost.kube.connection import explicit
from fencepost.kube.store import KubeStore
from fencepost.protocol.task import Hold, Outcome, Reason, State
from fencepost.worker.settings import Settings
from tests.cluster.cluster import Cluster
from tests.handlers.operator_process import OperatorProcess
from tests.handlers.place import AFTER, Place

DEEP = '{"a":' * 1_500 + "1" + "}" * 1_500
LARGE = json.dumps({"x": "y" * 66_000})
INEXACT = '{"n":9007199254740993}'
ODD_REQUESTS = pytest.mark.parametrize(
    ("request_text", "sentence"),
    [
        pytest.param(DEEP, "nested deeper than 64 levels", id="deep"),
        pytest.param(LARGE, "over the limit of 65536", id="large"),
        pytest.param(INEXACT, "not representable as canonical JSON", id="inexact"),
    ],
)


@pytest.fixture
def place(cluster: Cluster, namespace: str, service_account: Callable[..., str]) -> Place:
    return Place(
        cluster=cluster,
        namespace=namespace,
        operator_token=service_account("operator"),
        worker_token=service_account("worker"),
    )


def create(place: Place, kind: str, name: str, spec: str) -> None:
    """By kubectl, which passes on what it cannot read itself."""
    head = f'{{"apiVersion":"fencepost.dev/v1alpha1","kind":"{kind}","metadata":{{"name":"{name}"}}'
    manifest = f'{head},"spec":{spec}}}'
    place.cluster.kubectl("create", "--namespace", place.namespace, "-f", "-", input=manifest)


def odd_task(place: Place, request_text: str, *, more: str = "") -> None:
    create(place, "LeasedTask", "odd", f'{{"queue":"q","request":{request_text}{more}}}')


async def another_job_comes_to_its_end(place: Place, name: str = "j") -> None:
    job = place.make_job(name, "a", "b", continuation={"template": AFTER})
    await place.settle_all(job)
    await place.until_continued(name)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_task_of_any_depth_blinds_the_operator_to_nothing(place: Place, before: bool) -> None:
    if before:
        odd_task(place, DEEP)
    with place.operator() as operator:
        if not before:
            odd_task(place, DEEP)
        await another_job_comes_to_its_end(place)
        assert [line for line in operator.lines() if line["level"] == "error"] == []


@ODD_REQUESTS
async def test_a_lease_on_an_odd_task_is_revoked_and_the_task_settled(
    place: Place, request_text: str, sentence: str
) -> None:
    odd_task(place, request_text, more=',"leaseDurationSeconds":1,"retryPolicy":{"maxFailures":0}')

    def there() -> Any:
        task = place.task("odd")
        assert task is not None
        return task

    with place.operator():
        async with place.worker() as worker:
            held = await worker.claim(there().key)
            assert (held.hold, held.spec.request) == (Hold.LEASED, "{}")
            assert sentence in held.spec.request_problem
        await place.until(lambda: there().settled, "its failures are exhausted")
    settled = there()
    assert (settled.state, settled.failures) == (State.FAILED, 1)
    assert settled.settling_receipt is not None
    assert settled.settling_receipt.reason is Reason.FAILURES_EXHAUSTED


@ODD_REQUESTS
async def test_a_worker_rejects_an_odd_task_and_goes_on(
    place: Place, tmp_path: Path, request_text: str, sentence: str
) -> None:
    odd_task(place, request_text)
    place.make_task("plain", queue="q", request={"n": 1})
    worker = Worker(queue="q")
    executed: list[Any] = []

    @worker.task
    def handle(request: dict) -> str:  # type: ignore[type-arg]
        executed.append(request)
        return "done"

    connection = explicit(
        place.cluster.server,
        ca_file=place.cluster.ca_file,
        token=place.worker_token,
        namespace=place.namespace,
    )
    store = KubeStore.of(connection)
    await worker.run_async(store=store, outbox=tmp_path / "outbox.db", settings=Settings(once=True))
    odd, plain = place.task("odd"), place.task("plain")
    assert odd is not None and odd.settling_receipt is not None
    assert (odd.state, odd.settling_receipt.outcome) == (State.FAILED, Outcome.REJECTED)
    assert odd.settling_receipt.value.startswith("the request cannot be read: ")
    assert sentence in odd.settling_receipt.value
    assert plain is not None and plain.state is State.SUCCEEDED
    assert executed == [{"n": 1}]


def conditions(place: Place, name: str) -> dict[str, Any]:
    found = place.get("fanoutjobs", name)
    assert found is not None
    return {one["type"]: one for one in found["status"]["conditions"]}


async def told_of(place: Place, operator: OperatorProcess, reason: str, sentence: str) -> None:
    """The job `odd` stands still, which is said and written once, while another job goes through."""

    def says() -> bool:
        return conditions(place, "odd").get("Stalled", {}).get("reason") == reason

    await place.until(says, f"Stalled is {reason}")
    found = place.get("fanoutjobs", "odd")
    assert found is not None
    told = conditions(place, "odd")
    assert (told["Stalled"]["status"], told["Succeeded"]["status"]) == ("True", "Unknown")
    assert sentence in told["Stalled"]["message"]
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    await another_job_comes_to_its_end(place)
    assert [task for task in place.items("leasedtasks") if task["metadata"]["name"].startswith("odd")] == []
    again = place.get("fanoutjobs", "odd")
    assert again is not None
    assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
    errors = [line for line in operator.lines() if line["level"] in ("error", "warning")]
    assert [(line["namespace"], line["name"]) for line in errors] == [(place.namespace, "odd")]


def odd_branches(request_text: str) -> str:
    return f'{{"branches":[{{"name":"a"}},{{"name":"b","request":{request_text}}}]}}'


@ODD_REQUESTS
async def test_a_job_that_cannot_be_read_stands_still_and_says_why(
    place: Place, request_text: str, sentence: str
) -> None:
    create(place, "FanOutJob", "odd", odd_branches(request_text))
    with place.operator(flags=["--resync-seconds=1"]) as operator:
        await told_of(place, operator, "SpecUnreadable", sentence)


async def test_a_job_whose_spec_is_too_large_stands_still_and_says_why(place: Place) -> None:
    branches = [{"name": f"b{number}", "request": {"t": "x" * 60_000}} for number in range(6)]
    with place.operator() as operator:
        create(place, "FanOutJob", "odd", json.dumps({"branches": branches}))
        await told_of(place, operator, "SpecTooLarge", "over the limit of 327680")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        pytest.param({"queue": 5}, "spec.continuation.template.spec.queue", id="number"),
        pytest.param({"qeue": "x"}, "did you mean queue?", id="misspelt"),
    ],
)
async def test_a_job_whose_continuation_nobody_can_make_stands_still_and_says_why(
    place: Place, spec: Any, sentence: str
) -> None:
    """The policy does not know every field of what comes after; the operator says so before the work."""
    after = {"template": AFTER | {"spec": spec}}
    with place.operator(flags=["--resync-seconds=1"]) as operator:
        create(place, "FanOutJob", "odd", json.dumps({"branches": [{"name": "a"}], "continuation": after}))
        await told_of(place, operator, "ContinuationRefused", sentence)


async def test_a_name_is_free_again_after_a_job_that_stood_still(place: Place) -> None:
    with place.operator():
        create(place, "FanOutJob", "odd", odd_branches(DEEP))
        await place.until(lambda: "Stalled" in conditions(place, "odd"), "it stands still")
        place.delete("fanoutjobs", "odd")
        await another_job_comes_to_its_end(place, "odd")
