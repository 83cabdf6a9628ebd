"""The continuation on the real API server: each kind, once, and what a person is told where it cannot be."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from fencepost.kube.client import ApiClient, Lost, Result
from fencepost.protocol.fanout import continuation_name
from fencepost.protocol.job import ConditionStatus, Job
from fencepost_operator.continuing import LATE_WRITE_SECONDS
from tests.cluster.cluster import Cluster
from tests.handlers.crashing_operator import CRASHED, WHERE
from tests.handlers.parts import parts_at
from tests.handlers.place import AFTER, GROUP, Place
from tests.handlers.values import MovableClock

CRASHING = ("-m", "tests.handlers.crashing_operator")
BATCH = "/apis/batch/v1"


@pytest.fixture
def place(cluster: Cluster, namespace: str, service_account: Callable[..., str]) -> Place:
    return Place(
        cluster=cluster,
        namespace=namespace,
        operator_token=service_account("operator"),
        worker_token=service_account("worker"),
    )


def a_job_template(**container: Any) -> dict[str, Any]:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c"} | container]}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}


def stalled_for(place: Place, name: str, reason: str) -> Callable[[], bool]:
    def told() -> bool:
        condition = place.condition(name, "Stalled")
        return condition is not None and (condition.status, condition.reason) == (
            ConditionStatus.TRUE,
            reason,
        )

    return told


async def joined_job(place: Place, **spec: Any) -> Job:
    job = place.make_job("j", "a", "b", **spec)
    await place.settle_all(job)
    return await place.until_joined("j")


async def test_a_job_gets_the_snapshot_as_a_mounted_file(place: Place) -> None:
    with place.operator():
        await joined_job(place, continuation={"template": a_job_template(image="example.invalid/none")})
        job = await place.until_continued("j")
    record = job.status.continuation
    assert record is not None
    made = place.get("jobs", record.name, BATCH)
    config_map = place.get("configmaps", record.name, "/api/v1")
    assert made["metadata"]["uid"] == record.uid
    assert made["spec"]["suspend"] is False
    container = made["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "fencepost-snapshot", "mountPath": "/fencepost", "readOnly": True}.items() <= container[
        "volumeMounts"
    ][0].items()
    snapshot = json.loads(config_map["data"]["snapshot.json"])
    assert job.status.snapshot is not None
    assert snapshot["digest"] == job.status.snapshot.digest
    assert sorted(snapshot["branches"]) == ["a", "b"]


async def test_a_fan_out_job_runs_as_a_continuation_and_is_joined_itself(place: Place) -> None:
    template = {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "FanOutJob",
        "spec": {"branches": [{"name": "then", "request": {"mine": 1}}]},
    }
    with place.operator():
        job = await joined_job(place, continuation={"template": template})
        name = continuation_name(job)
        await place.until_continued("j")
        second = place.job(name)
        await place.settle_all(second)
        assert len((await place.until_joined(name)).status.branches) == 1
    request = place.get("leasedtasks", place.child(second, "then").name)["spec"]["request"]
    assert request["mine"] == 1
    assert sorted(request["snapshot"]["branches"]) == ["a", "b"]


async def test_a_continuation_that_is_not_wanted_is_not_made(place: Place) -> None:
    with place.operator():
        job = await joined_job(place, continuation={"when": "Failed", "template": AFTER})
        other = place.make_job("other", "a", continuation={"template": AFTER})
        await place.settle_all(other)
        await place.until_continued("other")  # so long later
    assert place.task(continuation_name(job)) is None
    assert place.job("j").status.continuation is None


async def test_a_stranger_under_its_name_is_left_alone_and_told_until_it_goes(place: Place) -> None:
    with place.operator():
        job = place.make_job("j", "a", continuation={"template": AFTER})
        stranger = place.make_task(continuation_name(job), queue="mine", suspend=True)
        await place.settle_all(job)
        await place.until(stalled_for(place, "j", "NameConflict"), "the conflict is told")
        assert place.task(stranger.key.name) == stranger
        place.delete("leasedtasks", stranger.key.name)
        await place.until_continued("j", seconds=60)
    told = place.condition("j", "Stalled")
    assert told is not None
    assert told.status is ConditionStatus.FALSE


async def owned_object(place: Place, job: Job, resource: str, body: Any, group: str = GROUP) -> Any:
    """Somebody makes an object under the continuation's name and says that the job owns it."""
    owner = {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "FanOutJob",
        "name": job.key.name,
        "uid": job.uid,
        "controller": True,
    }
    metadata = {"name": continuation_name(job), "ownerReferences": [owner]}
    return place.make(resource, {**body, "metadata": metadata}, group)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"queue": "after"}, id="running"),
        pytest.param({"queue": "after", "request": {"fake": 1}, "suspend": True}, id="suspended"),
    ],
)
async def test_an_object_that_only_says_it_is_ours_is_never_started(place: Place, spec: Any) -> None:
    with place.operator():
        job = place.make_job("j", "a", continuation={"template": AFTER})
        forged = await owned_object(place, job, "leasedtasks", {**AFTER, "spec": spec})
        await place.settle_all(job)
        await place.until(stalled_for(place, "j", "NameConflict"), "the conflict is told")
        assert place.job("j").status.continuation is None
        found = place.get("leasedtasks", continuation_name(job))
        assert found is not None
        assert found["metadata"]["resourceVersion"] == forged["metadata"]["resourceVersion"]
        place.delete("leasedtasks", continuation_name(job))
        record = (await place.until_continued("j", seconds=60)).status.continuation
    assert record is not None
    assert record.uid != forged["metadata"]["uid"]


async def test_a_job_that_the_server_spells_in_its_own_way_is_still_ours(place: Place) -> None:
    """Quantities are rewritten and empty lists dropped; a Job that differs is none of ours."""
    resources = {"requests": {"cpu": "0.5", "memory": "1024Mi"}}
    template = a_job_template(image="example.invalid/none", resources=resources, args=[])
    with place.operator():
        await joined_job(place, continuation={"template": template})
        record = (await place.until_continued("j")).status.continuation
        other = place.make_job("other", "a", continuation={"template": template})
        forged = a_job_template(image="example.invalid/else", resources=resources)
        forged["spec"]["suspend"] = True
        await owned_object(place, other, "jobs", forged, BATCH)
        await place.settle_all(other)
        await place.until(stalled_for(place, "other", "NameConflict"), "the conflict is told")
    assert record is not None
    found = place.get("jobs", continuation_name(other), BATCH)
    assert found is not None
    assert found["spec"]["suspend"] is True


async def test_a_template_that_the_server_refuses_is_told_with_its_sentence(place: Place) -> None:
    """B40: a fault that only shows when the object is made."""
    with place.operator() as operator:
        await joined_job(place, continuation={"template": a_job_template()})  # a container without an image
        await place.until(stalled_for(place, "j", "ContinuationRefused"), "the refusal is told", seconds=10)
        condition = place.condition("j", "Stalled")
        assert condition is not None
        assert "image" in condition.message
        place.delete("fanoutjobs", "j")
        await place.until(lambda: place.get("fanoutjobs", "j") is None, "it is gone")
        said_before = len(operator.log())
        await place.until(lambda: not place.items("leasedtasks"), "its children are gone", seconds=60)
        assert len([line for line in operator.lines() if line.get("name") == "j"]) < 10
        assert len(operator.log()) - said_before < 500


async def test_one_that_is_deleted_before_it_was_started_is_told_and_not_made_again(place: Place) -> None:
    """Killed when its UID was recorded, the fifth write, and not yet started."""
    environment = os.environ | {WHERE: "5 after"}
    with place.operator(program=CRASHING, environment=environment) as operator:
        job = place.make_job("j", "a", continuation={"template": AFTER})
        await place.settle_all(job)
        await place.until(lambda: operator.exit_code is not None, "it was killed")
        assert operator.exit_code == CRASHED
    record = place.job("j").status.continuation
    assert record is not None
    assert not record.started
    place.delete("leasedtasks", record.name)
    with place.operator():
        await place.until(stalled_for(place, "j", "ContinuationLost"), "the loss is told")
        other = place.make_job("other", "a")
        await place.settle_all(other)
        await place.until_joined("other")
    assert place.task(record.name) is None
    assert place.job("j").status.continuation == record


async def test_one_that_was_started_and_is_gone_is_not_started_again(place: Place) -> None:
    job = place.make_job("j", "a", continuation={"template": AFTER})
    with place.operator():
        await place.settle_all(job)
        record = (await place.until_continued("j")).status.continuation
    assert record is not None
    place.delete("leasedtasks", record.name)
    with place.operator():
        other = place.make_job("other", "a")
        await place.settle_all(other)
        await place.until_joined("other")
    assert place.task(record.name) is None


async def test_a_late_duplicate_of_it_is_deleted_while_it_is_suspended(place: Place) -> None:
    with place.operator():
        job = await joined_job(place, continuation={"template": AFTER})
        record = (await place.until_continued("j")).status.continuation
        assert record is not None
        first = place.get("leasedtasks", record.name)
        place.delete("leasedtasks", record.name)
        metadata = {key: first["metadata"][key] for key in ("name", "ownerReferences")}
        late = {key: first[key] for key in ("apiVersion", "kind")} | {"metadata": metadata}
        place.make("leasedtasks", late | {"spec": first["spec"] | {"suspend": True}})
        await place.until(lambda: place.task(record.name) is None, "the duplicate is deleted")
    assert place.job("j").status.continuation == record
    assert job.uid == first["metadata"]["ownerReferences"][0]["uid"]


class ReadsTheJobEarly(ApiClient):
    """What has the continuation's name is read when another operator has meanwhile started it."""

    meanwhile: ClassVar[list[Callable[[], Any]]] = []

    async def get(self, path: str, **more: Any) -> Result:
        while self.meanwhile and "-then-" in path:
            await self.meanwhile.pop()()
        return await super().get(path, **more)


async def test_what_another_operator_started_meanwhile_is_no_conflict(place: Place) -> None:
    job = place.make_job("j", "a", continuation={"template": AFTER})
    ReadsTheJobEarly.meanwhile.clear()
    async with parts_at(place) as other, parts_at(place, client_type=ReadsTheJobEarly) as parts:
        shown = place.get("fanoutjobs", "j")
        assert shown is not None
        parts.world.job_event("MODIFIED", shown)
        await parts.look(job)
        await place.settle_all(job)
        await parts.world.list_all((place.namespace,))
        await other.world.list_all((place.namespace,))
        ReadsTheJobEarly.meanwhile.append(lambda: other.look(job))
        await parts.look(job)
        assert not ReadsTheJobEarly.meanwhile
    record = place.job("j").status.continuation
    assert record is not None
    assert record.started
    told = place.condition("j", "Stalled")
    assert told is None or told.status is ConditionStatus.FALSE
    assert parts.queue.delayed == 0


class LosesTheAnswer(ApiClient):
    """Every Job is created, and nobody is told."""

    sent: ClassVar[list[tuple[str, Any]]] = []

    async def create(self, path: str, body: Any, **more: Any) -> Result:
        result = await super().create(path, body, **more)
        if not path.endswith("/jobs"):
            return result
        self.sent.append((path, body))
        return Lost(message="the connection was reset")


async def test_a_copy_of_an_unanswered_create_that_comes_late_is_deleted(place: Place) -> None:
    """Jobs are not watched: the operator has to look by itself, also when it has long been done."""
    LosesTheAnswer.sent.clear()
    clock = MovableClock()
    job = place.make_job("j", "a", continuation={"template": a_job_template(image="example.invalid/none")})
    async with parts_at(place, client_type=LosesTheAnswer, clock=clock) as parts:
        parts.world.job_event("MODIFIED", place.get("fanoutjobs", "j"))
        await parts.look(job)
        await place.settle_all(job)
        await parts.world.list_all((place.namespace,))
        await parts.look(job)  # joins, and creates
        await parts.look(job)  # finds what was created, and starts it
        record = place.job("j").status.continuation
        assert record is not None
        assert record.started
        place.delete("jobs", record.name, BATCH)
        await place.until(lambda: place.get("jobs", record.name, BATCH) is None, "the first one is gone")
        [(path, body)] = LosesTheAnswer.sent
        assert place.cluster.api.request("POST", path, body).ok  # the late copy
        clock.now += LATE_WRITE_SECONDS - 1
        await parts.look(job)
        assert place.get("jobs", record.name, BATCH) is not None
        assert parts.queue.delayed == 1  # it will look by itself
        clock.now += 1
        await parts.look(job)
        await place.until(lambda: place.get("jobs", record.name, BATCH) is None, "the copy is deleted")
    assert place.job("j").status.continuation == record
