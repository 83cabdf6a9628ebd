"""Fan-out and join on the real API server, by an operator of its own process under its own role."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from fencepost.protocol import join
from fencepost.protocol.job import BranchRecord, ConditionStatus, JobState
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.task import Outcome, Reason
from tests.cluster.cluster import Cluster
from tests.handlers.place import AFTER, Place


@pytest.fixture
def place(cluster: Cluster, namespace: str, service_account: Callable[..., str]) -> Place:
    return Place(
        cluster=cluster,
        namespace=namespace,
        operator_token=service_account("operator"),
        worker_token=service_account("worker"),
    )


def digest_of(**values: str) -> str:
    """The digest as the documentation gives it, from scratch."""
    rows = [[name, "Ok", sha256_hex(value)] for name, value in sorted(values.items())]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


async def test_a_job_is_fanned_out_joined_and_continued(place: Place) -> None:
    with place.operator() as operator:
        job = place.make_job("feeds", "north", "south", "west", continuation={"template": AFTER})
        await place.settle_all(job)
        joined = await place.until_continued("feeds")
    assert joined.status.state is JobState.SUCCEEDED
    assert joined.status.snapshot is not None
    assert joined.status.snapshot.digest == digest_of(north="north", south="south", west="west")
    record = joined.status.continuation
    assert record is not None
    after = place.get("leasedtasks", record.name)
    assert after is not None
    assert after["metadata"]["uid"] == record.uid
    assert after["spec"]["suspend"] is False
    assert after["spec"]["request"]["snapshot"]["digest"] == joined.status.snapshot.digest
    assert after["spec"]["request"]["snapshot"]["branches"]["south"]["value"] == "south"
    assert after["metadata"]["ownerReferences"][0]["uid"] == job.uid
    assert len(place.items("leasedtasks")) == 4
    place.cluster.kubectl(
        "wait", "--for=condition=Succeeded", "fanoutjob/feeds", "--namespace", place.namespace, "--timeout=5s"
    )
    assert {line["level"] for line in operator.lines()} == {"info"}


async def test_the_committed_time_is_the_servers_and_the_message_is_a_sentence(place: Place) -> None:
    with place.operator():
        job = place.make_job("one", "only")
        await place.settle_all(job)
        joined = await place.until_joined("one")
    assert joined.status.snapshot is not None
    assert joined.created_at <= joined.status.snapshot.committed_time
    succeeded = place.condition("one", "Succeeded")
    assert succeeded is not None
    assert (succeeded.status, succeeded.message) == (
        ConditionStatus.TRUE,
        "1/1 branches settled: 1 ok, 0 rejected",
    )


async def test_two_operators_at_once_give_every_odd_branch_one_child(place: Place) -> None:
    """B15: quotes, other scripts, case, and names that differ in their last letter."""
    names = ['"test"', '\\"test\\"', "test", "Test", "あ", "い", "a/b", "a b", "\u0001", "a" * 256]
    names += ["k" * 70 + "x", "k" * 70 + "y"]
    with place.operator(), place.operator():
        job = place.make_job("odd", *names, continuation={"template": AFTER})
        await place.settle_all(job)
        joined = await place.until_continued("odd")
        await place.until(lambda: len(place.tasks()) == len(names) + 1, "no more and no less tasks")
    assert set(joined.status.branches) == set(names)
    children = [task for task in place.tasks() if task.branch is not None]
    assert sorted(task.branch or "" for task in children) == sorted(names)
    assert all(task.token == 1 for task in children)


async def test_a_branch_that_reports_twice_counts_once_over_a_restart(place: Place) -> None:
    """B16."""
    job = place.make_job("twice", "1", "2", "3", continuation={"template": AFTER})
    async with place.worker() as worker:
        with place.operator():
            await place.until_children_are_there(job)
            second = await worker.settle(place.child(job, "2"), "two")
            with pytest.raises(AssertionError, match="DUPLICATE"):
                await worker.submit(second, "two")
            with pytest.raises(AssertionError, match="TERMINAL_CONFLICT"):
                await worker.submit(second, "other")
            await worker.settle(place.child(job, "1"), "one")
        assert not place.job("twice").joined
        third = await worker.settle(place.child(job, "3"), "three")
        with place.operator():
            joined = await place.until_continued("twice")
            with pytest.raises(AssertionError, match="DUPLICATE"):
                await worker.submit(third, "three")
    assert joined.status.snapshot is not None
    assert joined.status.snapshot.digest == digest_of(**{"1": "one", "2": "two", "3": "three"})
    assert place.job("twice").status.snapshot == joined.status.snapshot
    assert len([task for task in place.tasks() if task.branch is None]) == 1


async def test_no_join_while_children_cannot_be_created_and_a_person_is_told(place: Place) -> None:
    """B18 and B40: the total comes from the spec; a refusal is a condition within seconds."""
    quota = {"metadata": {"name": "two"}, "spec": {"hard": {"count/leasedtasks.fencepost.dev": "2"}}}
    place.make("resourcequotas", quota, group="/api/v1")
    await place.until(
        lambda: bool((place.get("resourcequotas", "two", "/api/v1") or {}).get("status", {}).get("hard")),
        "the quota counts",
    )
    with place.operator() as operator:
        job = place.make_job("five", "1", "2", "3", "4", "5")

        def stalled() -> bool:
            condition = place.condition("five", "Stalled")
            return condition is not None and condition.reason == "CreateRefused"

        assert await place.until(stalled, "the condition says so", seconds=10) < 10
        condition = place.condition("five", "Stalled")
        assert condition is not None
        assert "exceeded quota" in condition.message
        async with place.worker() as worker:
            for task in place.tasks():
                await worker.settle(task.key, task.branch or "")
        await place.until(lambda: all(task.settled for task in place.tasks()), "those there are settled")
        assert not place.job("five").joined
        spoken = [line for line in operator.lines() if line.get("name") == "five"]
        assert len(spoken) < 10, spoken
        place.delete("resourcequotas", "two", "/api/v1")
        await place.until_children_are_there(job)
        await place.settle_all(job)
        joined = await place.until_joined("five")
    assert joined.status.snapshot is not None
    assert joined.status.snapshot.digest == digest_of(**{name: name for name in "12345"})
    condition = place.condition("five", "Stalled")
    assert condition is not None
    assert condition.status is ConditionStatus.FALSE


async def test_a_child_deleted_by_hand_is_recorded_and_never_made_again(place: Place) -> None:
    """B18, second run; and a task that comes late under its name is suspended and deleted."""
    with place.operator():
        job = place.make_job("lost", "a", "b", "c")
        await place.until_children_are_there(job)
        gone = place.get("leasedtasks", place.child(job, "b").name)
        place.delete("leasedtasks", place.child(job, "b").name)
        await place.settle_all(job)
        joined = await place.until_joined("lost")
        record = joined.status.branches["b"]
        assert (record.outcome, record.reason) == (Outcome.REJECTED, Reason.TASK_DELETED)
        assert joined.status.state is JobState.FAILED
        late = {
            "metadata": {k: gone["metadata"][k] for k in ("name", "ownerReferences")},
            "spec": gone["spec"],
        }
        late["metadata"]["annotations"] = {"fencepost.dev/branch": "b"}
        place.make("leasedtasks", {"apiVersion": gone["apiVersion"], "kind": gone["kind"], **late})
        await place.until(lambda: place.task(place.child(job, "b").name) is None, "the late task is deleted")
    assert place.job("lost").status.branches["b"] == record


async def test_mixed_outcomes_and_a_branch_that_died_without_a_result(place: Place) -> None:
    """B19: five sorted entries, each with an explicit outcome; the join waits for the slowest."""
    retry = {"maxFailures": 1, "backoffBaseSeconds": 1, "backoffMaxSeconds": 1}
    after = {"when": "Failed", "template": AFTER}
    template = {"retryPolicy": retry, "leaseDurationSeconds": 1}
    with place.operator():
        job = place.make_job("mixed", "A", "B", "C", "D", "E", template=template, continuation=after)
        await place.until_children_are_there(job)
        async with place.worker() as worker:
            await worker.settle(place.child(job, "A"), "a")
            await worker.settle(place.child(job, "B"), "no", Outcome.REJECTED)
            failed = await worker.claim(place.child(job, "E"))
            await worker.release(failed)
            await worker.claim(place.child(job, "C"))  # and the worker is never heard of again
            for name in ("E", "C"):
                key = place.child(job, name)
                await place.until(
                    lambda key=key: (task := place.task(key.name)) is not None and task.hold is None,
                    f"{name} is requeued",
                )
            await worker.settle(place.child(job, "E"), "e")
            await worker.claim(place.child(job, "C"))
            await place.until(
                lambda: (task := place.task(place.child(job, "C").name)) is not None and task.settled,
                "C is settled by the operator",
            )
            assert not place.job("mixed").joined
            await worker.settle(place.child(job, "D"), "d")
        joined = await place.until_continued("mixed")
    records = joined.status.branches
    assert list(records) == ["A", "B", "C", "D", "E"]
    assert [records[name].outcome.value for name in "ABCDE"] == ["Ok", "Rejected", "Rejected", "Ok", "Ok"]
    assert records["C"].reason is Reason.FAILURES_EXHAUSTED
    assert all(len(task.receipts) == 1 for task in place.tasks() if task.branch)
    record = joined.status.continuation
    assert record is not None
    after_task = place.get("leasedtasks", record.name)
    assert sorted(after_task["spec"]["request"]["snapshot"]["branches"]) == ["A", "B", "C", "D", "E"]


async def test_a_stranger_under_the_name_of_a_branch_is_left_alone_and_told(place: Place) -> None:
    job = place.make_job("taken", "a", "b", suspend=True)
    stranger = place.make_task(place.child(job, "a").name, queue="mine")
    with place.operator():
        await place.until(lambda: place.condition("taken", "Stalled") is not None, "it was looked at")
        place.patch("fanoutjobs", "taken", {"spec": {"suspend": False}})

        def told() -> bool:
            condition = place.condition("taken", "Stalled")
            return condition is not None and condition.reason == "NameConflict"

        await place.until(told, "the conflict is told")
        assert place.task(stranger.key.name) == stranger
        place.delete("leasedtasks", stranger.key.name)
        await place.settle_all(job)
        await place.until_joined("taken")


async def test_parallelism_bounds_the_open_children(place: Place) -> None:
    with place.operator():
        job = place.make_job("few", *"abcdef", parallelism=2)
        seen_at_most = 0
        async with place.worker() as worker:
            for _ in range(6):
                await place.until(
                    lambda: any(not task.settled for task in place.tasks()), "there is an open child"
                )
                open_tasks = [task for task in place.tasks() if not task.settled]
                seen_at_most = max(seen_at_most, len(open_tasks))
                await worker.settle(open_tasks[0].key)
        joined = await place.until_joined("few")
    assert len(joined.status.branches) == len(job.spec.branches)
    assert 1 <= seen_at_most <= 2


async def test_a_receipt_whose_hash_does_not_match_is_not_let_in(place: Place) -> None:
    with place.operator():
        job = place.make_job("forged", "a", "b")
        await place.until_children_are_there(job)
        async with place.worker() as worker:
            await worker.settle(place.child(job, "b"))
            held = await worker.claim(place.child(job, "a"))
            # Lawful in every way but one that no schema can check: the hash is of something else.
            await worker.submit(held, forged=lambda receipt: replace(receipt, receipt_sha256="0" * 64))

        def told() -> bool:
            condition = place.condition("forged", "Stalled")
            return condition is not None and condition.reason == "ReceiptsBroken"

        await place.until(told, "the broken receipt is told")
    assert not place.job("forged").joined


def test_the_digest_of_this_file_is_the_products() -> None:
    record = BranchRecord(outcome=Outcome.OK, payload_sha256=sha256_hex("v"), receipt_sha256="r", value="v")
    assert join.snapshot_digest({"é": record, "a": record}) == join.snapshot_digest(
        {"a": record, "é": record}
    )
    assert join.snapshot_digest({"a": record}) == digest_of(a="v")


async def test_long_and_dotted_names_give_each_job_children_of_its_own(place: Place) -> None:
    """B37."""
    alike = ["n" * 99 + last for last in "xy"]
    names = ["a" * 63, "b" * 253, "a.b.c", *alike]
    with place.operator() as operator:
        jobs = [place.make_job(name, "k" * 70) for name in names]
        for job in jobs:
            await place.settle_all(job, lambda branch, job=job: job.key.name)
        for name in names:
            await place.until_joined(name)
        assert operator.exit_code is None
    assert len({task.key.name for task in place.tasks()}) == len(names)
    owners = {task.owner.name for task in place.tasks() if task.owner}
    assert owners == set(names)
