"""The operator killed at each of its writes, before it is sent and after it was carried out.

Whatever the point, the operator that comes next ends in the same place: the same snapshot digest, exactly one
continuation, each branch run once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.protocol.job import Job
from tests.cluster.cluster import Cluster
from tests.handlers.crashing_operator import CRASHED, WHERE
from tests.handlers.place import AFTER, Place

PROGRAM = ("-m", "tests.handlers.crashing_operator")
BRANCHES = ("a", "b")
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {
        "template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.invalid/none"}]}
        }
    },
}
POINTS_MAX = 40


@pytest.fixture
def place(cluster: Cluster, namespace: str, service_account: Callable[..., str]) -> Place:
    return Place(
        cluster=cluster,
        namespace=namespace,
        operator_token=service_account("operator"),
        worker_token=service_account("worker"),
    )


async def run_with_a_crash(place: Place, name: str, at: str, template: Any) -> tuple[Job, bool]:
    """One job from its creation to its continuation; the job, and whether the operator was killed."""
    environment = os.environ | {WHERE: at}
    with place.operator(program=PROGRAM, environment=environment) as operator:
        job = place.make_job(name, *BRANCHES, continuation={"template": template})

        def moved_on(done: Callable[[Job], bool]) -> Callable[[], bool]:
            return lambda: operator.exit_code is not None or done(place.job(name))

        await place.until(moved_on(lambda job: job.status.created == len(BRANCHES)), "created or killed")
        if operator.exit_code is None:
            await place.settle_all(job)
            await place.until(moved_on(is_continued), "continued or killed")
        crashed = operator.exit_code is not None
        assert operator.exit_code in (None, CRASHED)
    if crashed:
        with place.operator():
            await place.settle_all(job)
            await place.until_continued(name)
    return place.job(name), crashed


def is_continued(job: Job) -> bool:
    return job.status.continuation is not None and job.status.continuation.started


def owned_by(items: list[Any], job: Job) -> list[Any]:
    return [
        item
        for item in items
        if any(owner["uid"] == job.uid for owner in item["metadata"].get("ownerReferences", []))
    ]


async def check(place: Place, job: Job, continuations: list[Any]) -> str:
    record, snapshot = job.status.continuation, job.status.snapshot
    assert record is not None
    assert snapshot is not None
    running = [one for one in continuations if not one["spec"].get("suspend")]
    assert [one["metadata"]["uid"] for one in running] == [record.uid]
    assert len(continuations) == 1
    children = [task for task in place.tasks() if task.owner and task.owner.uid == job.uid and task.branch]
    assert sorted(task.branch or "" for task in children) == list(BRANCHES)
    assert all((task.token, len(task.receipts)) == (1, 1) for task in children)
    return snapshot.digest


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["LeasedTask", "Job"])
async def test_killed_at_each_write_it_comes_to_the_same_end(place: Place, when: str, kind: str) -> None:
    template = AFTER if kind == "LeasedTask" else JOB
    digests = set()
    for point in range(1, POINTS_MAX):
        name = f"{when}-{point}"
        job, crashed = await run_with_a_crash(place, name, f"{point} {when}", template)
        if kind == "Job":
            found = owned_by(place.items("jobs", "/apis/batch/v1"), job)
            assert len(owned_by(place.items("configmaps", "/api/v1"), job)) == 1
        else:
            found = [
                item
                for item in owned_by(place.items("leasedtasks"), job)
                if "fencepost.dev/branch" not in item["metadata"].get("annotations", {})
            ]
        digests.add(await check(place, job, found))
        if not crashed:
            break
    assert point > 7, "there are at least eight writes to be killed at"
    assert not crashed
    assert len(digests) == 1
