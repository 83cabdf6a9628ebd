"""The store on the real API server: what each mutation does there, and that a stale one does nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from fencepost.kube.client import ApiClient
from fencepost.kube.connection import connect, explicit
from fencepost.kube.store import KubeStore
from fencepost.ports import Applied, Cause, NewTask, Refused, StoreRefused
from fencepost.protocol import upkeep
from fencepost.protocol.mutation import Mutation
from fencepost.protocol.task import (
    Hold,
    Kind,
    LeaseEnd,
    ObjectKey,
    Outcome,
    Reason,
    State,
    Task,
    TaskSpec,
    UnknownPolicy,
)
from tests.cluster.cluster import Cluster
from tests.cluster.kube_acting import applied, carried_out, claimed, new_task, refused
from tests.kube.deciding import (
    OTHER_HOLDER,
    OUTBOXES,
    claim_of,
    heartbeat_of,
    release_of,
    requeue_of,
    submit_of,
)

Stores = Callable[[str], KubeStore]
TASKS = "/apis/fencepost.dev/v1alpha1/namespaces/{}/leasedtasks"


@pytest.fixture
async def store_of(cluster: Cluster, namespace: str) -> AsyncIterator[Stores]:
    """Makes a store for whose token that is, in the test's namespace."""
    made: list[KubeStore] = []

    def make(token: str) -> KubeStore:
        where = explicit(cluster.server, ca_file=cluster.ca_file, token=token, namespace=namespace)
        made.append(KubeStore(ApiClient(where)))
        return made[-1]

    yield make
    for store in made:
        await store.close()


@pytest.fixture
async def admin(cluster: Cluster, store_of: Stores) -> KubeStore:
    return store_of(cluster.admin_token)


@pytest.fixture
async def worker(service_account: Callable[..., str], store_of: Stores) -> KubeStore:
    return store_of(service_account("worker"))


@pytest.fixture
async def operator(service_account: Callable[..., str], store_of: Stores) -> KubeStore:
    return store_of(service_account("operator"))


async def test_a_task_goes_through_everything_that_can_happen_to_it(
    admin: KubeStore, worker: KubeStore, operator: KubeStore
) -> None:
    task = await new_task(admin, unknown_policy=UnknownPolicy.RECLAIM, request='{"a":[1,null,"ü"]}')
    assert (task.token, task.head, task.state) == (0, "GENESIS", State.OPEN)
    task = await claimed(worker, task)
    task = await carried_out(worker, task, heartbeat_of(task, progress="half way"))
    task = await carried_out(worker, task, heartbeat_of(task))
    task = await carried_out(worker, task, submit_of(task, kind=Kind.ROW))
    task = await carried_out(worker, task, release_of(task, LeaseEnd.ERROR, message="it broke"))
    assert (task.hold, task.failures, task.progress) == (Hold.BACKOFF, 1, "half way")
    task = await carried_out(operator, task, requeue_of(task))
    task = await claimed(worker, task, OTHER_HOLDER)
    assert task.token == 2
    task = await carried_out(operator, task, upkeep.revoke(task, LeaseEnd.EXPIRED))
    task = await carried_out(operator, task, requeue_of(task))
    task = await claimed(worker, task)
    task = await carried_out(worker, task, submit_of(task, outcome=Outcome.UNKNOWN))
    task = await carried_out(worker, task, release_of(task, LeaseEnd.AFTER_UNKNOWN))
    assert (task.hold, task.state, task.failures) == (Hold.UNKNOWN, State.UNKNOWN, 2)
    task = await carried_out(operator, task, requeue_of(task))
    task = await claimed(worker, task)
    task = await carried_out(worker, task, submit_of(task, device_time="2001-01-01T00:00:00Z"))
    assert (task.state, task.count, task.token, task.hold) == (State.SUCCEEDED, 3, 4, Hold.LEASED)


async def test_what_people_see_of_a_settled_task(
    cluster: Cluster, admin: KubeStore, worker: KubeStore
) -> None:
    task = await claimed(worker, await new_task(admin))
    await worker.write(submit_of(task, outcome=Outcome.REJECTED))
    status = cluster.api.request("GET", f"{TASKS.format(admin.namespace)}/t").body["status"]
    assert status["completionTime"].endswith("Z")
    assert [(c["type"], c["status"]) for c in status["conditions"]] == [("Succeeded", "False")]


def stale_mutations(task: Task, account: str) -> dict[str, Mutation]:
    """All that can be decided on a task that is held, or was not yet."""
    return {
        "heartbeat": heartbeat_of(task),
        "release": release_of(task, LeaseEnd.ERROR),
        "submit": submit_of(task),
        "row": submit_of(task, kind=Kind.ROW),
        "revoke": upkeep.revoke(task, LeaseEnd.EXPIRED),
        "claim": claim_of(task, account=account),
    }


async def test_nothing_is_changed_by_what_was_decided_on_a_lease_that_is_over(
    admin: KubeStore, worker: KubeStore, operator: KubeStore
) -> None:
    old = await claimed(worker, await new_task(admin))
    task = await carried_out(operator, old, upkeep.revoke(old, LeaseEnd.EXPIRED))
    for now_held in (False, True):
        if now_held:
            task = await carried_out(operator, task, requeue_of(task))
            task = await claimed(worker, task, OTHER_HOLDER)
        for name, mutation in stale_mutations(old, await worker.account()).items():
            assert refused(await admin.write(mutation)) is Cause.PRECONDITION, (name, now_held)
    assert await admin.task(task.key) == task


async def test_a_heartbeat_and_a_revoke_exclude_each_other(
    admin: KubeStore, worker: KubeStore, operator: KubeStore
) -> None:
    seen = await claimed(worker, await new_task(admin))
    task = await carried_out(worker, seen, heartbeat_of(seen))
    assert refused(await operator.write(upkeep.revoke(seen, LeaseEnd.EXPIRED))) is Cause.PRECONDITION
    assert refused(await worker.write(heartbeat_of(seen))) is Cause.PRECONDITION
    await carried_out(operator, task, upkeep.revoke(task, LeaseEnd.EXPIRED))
    assert refused(await worker.write(heartbeat_of(task))) is Cause.PRECONDITION


async def test_the_end_of_a_lease_was_decided_on_a_state(admin: KubeStore, worker: KubeStore) -> None:
    open_task = await claimed(worker, await new_task(admin))
    unknown = await carried_out(worker, open_task, submit_of(open_task, outcome=Outcome.UNKNOWN))
    assert refused(await worker.write(release_of(open_task, LeaseEnd.ERROR))) is Cause.PRECONDITION
    assert refused(await worker.write(submit_of(open_task))) is Cause.PRECONDITION
    await carried_out(worker, unknown, release_of(unknown, LeaseEnd.AFTER_UNKNOWN))


async def test_a_settled_task_does_not_change(
    admin: KubeStore, worker: KubeStore, operator: KubeStore
) -> None:
    held = await claimed(worker, await new_task(admin))
    task = await carried_out(worker, held, submit_of(held))
    for name, mutation in stale_mutations(held, await worker.account()).items():
        assert refused(await admin.write(mutation)) is Cause.PRECONDITION, name
    assert await admin.task(task.key) == task


async def test_two_receipts_for_one_place_are_one(admin: KubeStore, worker: KubeStore) -> None:
    task = await claimed(worker, await new_task(admin))
    first, second = submit_of(task, kind=Kind.ROW), submit_of(task, kind=Kind.ROW)
    task = await carried_out(worker, task, first)
    for again in (first, second):
        assert refused(await worker.write(again)) is Cause.PRECONDITION
    assert await worker.task(task.key) == task


@pytest.mark.parametrize("annotations", [None, {}, {"a": "b"}])
async def test_a_task_that_nobody_ever_claimed_can_be_settled(
    cluster: Cluster, admin: KubeStore, operator: KubeStore, annotations: dict[str, str] | None
) -> None:
    body = {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "LeasedTask",
        "metadata": {"name": "t", "annotations": annotations},
        "spec": {"queue": "q"},
    }
    assert cluster.api.request("POST", TASKS.format(admin.namespace), body).status == 201
    task = await admin.task(ObjectKey(namespace=admin.namespace, name="t"))
    assert task is not None
    mutation = upkeep.settle(task, Reason.CANCELLED, recorded_by=await operator.account())
    assert (await carried_out(operator, task, mutation)).state is State.CANCELLED


async def test_a_claim_that_came_first_keeps_the_operator_from_settling(
    admin: KubeStore, worker: KubeStore, operator: KubeStore
) -> None:
    seen = await new_task(admin)
    task = await claimed(worker, seen)
    account = await operator.account()
    for decided_on in (seen, replace(task, hold=None, holder="")):
        mutation = upkeep.settle(decided_on, Reason.CANCELLED, recorded_by=account)
        assert refused(await operator.write(mutation)) is Cause.PRECONDITION
    assert await admin.task(task.key) == task


async def test_another_object_of_the_same_name_is_left_alone(
    cluster: Cluster, admin: KubeStore, worker: KubeStore
) -> None:
    path = f"{TASKS.format(admin.namespace)}/t"
    old = await claimed(worker, await new_task(admin))
    mutations = stale_mutations(old, await worker.account())
    assert cluster.api.request("DELETE", path).ok
    for name, mutation in mutations.items():
        assert refused(await admin.write(mutation)) is Cause.MISSING, name
    assert await admin.task(old.key) is None
    task = await claimed(worker, await new_task(admin))
    assert (task.token, task.holder) == (old.token, old.holder)
    for name, mutation in mutations.items():
        assert refused(await admin.write(mutation)) is Cause.PRECONDITION, name
    assert await admin.task(task.key) == task


async def test_only_what_can_be_claimed_is_listed(
    cluster: Cluster, admin: KubeStore, worker: KubeStore
) -> None:
    for name in ("free", "held", "backoff", "settled"):
        await new_task(admin, name, queue="q")
    await new_task(admin, "suspended", queue="q", suspend=True)
    await new_task(admin, "external", queue="q", external=True)
    await new_task(admin, "elsewhere", queue="other")
    tasks = {task.key.name: task for task in await admin.tasks("q")}
    assert len(tasks) == 6
    for name in ("held", "backoff", "settled"):
        tasks[name] = await claimed(worker, tasks[name])
    await carried_out(worker, tasks["backoff"], release_of(tasks["backoff"], LeaseEnd.ERROR))
    await carried_out(worker, tasks["settled"], submit_of(tasks["settled"]))
    [candidate] = await worker.claimable("q", 10)
    assert (candidate.key, candidate.uid, candidate.token) == (tasks["free"].key, tasks["free"].uid, 0)
    mutation = claim_of(candidate, account=await worker.account())
    await carried_out(worker, tasks["free"], mutation)
    assert await worker.claimable("q", 10) == []


async def test_a_task_after_a_release_at_shutdown_is_listed_with_its_token(
    admin: KubeStore, worker: KubeStore
) -> None:
    task = await claimed(worker, await new_task(admin, queue="q"))
    await carried_out(worker, task, release_of(task, LeaseEnd.SHUTDOWN))
    [candidate] = await worker.claimable("q", 10)
    assert candidate.token == 1
    again = applied(await worker.write(claim_of(candidate, account=await worker.account())))
    assert again.token == 2


async def test_higher_priorities_come_first(admin: KubeStore, worker: KubeStore) -> None:
    for number, priority in enumerate((5, 1, 9, 5, 6, 0, 9)):
        await new_task(admin, f"t{number}-p{priority}", queue="q", priority=priority)

    async def priorities(limit: int) -> list[str]:
        return [candidate.key.name.partition("-p")[2] for candidate in await worker.claimable("q", limit)]

    assert await priorities(10) == ["9", "9", "6", "5", "5", "1", "0"]
    assert await priorities(4) == ["9", "9", "6", "5"]


async def test_the_tasks_of_an_outbox(admin: KubeStore, worker: KubeStore) -> None:
    mine = [await claimed(worker, await new_task(admin, name)) for name in ("a", "b", "c")]
    await claimed(worker, await new_task(admin, "other"), OTHER_HOLDER)
    await carried_out(worker, mine[0], submit_of(mine[0]))
    await carried_out(worker, mine[1], release_of(mine[1], LeaseEnd.ERROR))
    assert [task.key.name for task in await worker.unsettled_of_outbox(OUTBOXES[0])] == ["c"]
    assert [task.key.name for task in await worker.claimed_by_outbox(OUTBOXES[0])] == ["a", "c"]
    assert await worker.unsettled_of_outbox(OUTBOXES[5]) == []


async def test_a_name_that_is_taken_and_a_namespace_that_is_not_there(admin: KubeStore) -> None:
    task = await new_task(admin)
    again = NewTask(key=task.key, spec=TaskSpec(queue="another"))
    assert refused(await admin.create(again)) is Cause.EXISTS
    nowhere = NewTask(key=ObjectKey(namespace="not-there", name="t"), spec=TaskSpec())
    assert refused(await admin.create(nowhere)) is Cause.MISSING


@pytest.mark.parametrize("size", [2_000_000, 4_000_000])
async def test_what_is_too_large_is_said_so(admin: KubeStore, size: int) -> None:
    request = json.dumps({"a": "x" * size})
    key = ObjectKey(namespace=admin.namespace, name="t")
    answer = await admin.create(NewTask(key=key, spec=TaskSpec(request=request)))
    assert refused(answer) is Cause.TOO_LARGE
    assert await admin.task(key) is None


async def test_what_the_schema_forbids_is_refused_by_it(admin: KubeStore) -> None:
    key = ObjectKey(namespace=admin.namespace, name="t")
    answer = await admin.create(NewTask(key=key, spec=TaskSpec(priority=11)))
    assert refused(answer) is Cause.ADMISSION
    assert isinstance(answer, Refused) and "spec.priority" in answer.message


async def test_an_account_without_rights_is_told_which(
    admin: KubeStore, service_account: Callable[..., str], store_of: Stores
) -> None:
    viewer = store_of(service_account("view", "eve"))
    assert await viewer.account() == f"system:serviceaccount:{admin.namespace}:eve"
    task = await new_task(admin)
    answer = await viewer.write(claim_of(task, account=await viewer.account()))
    assert refused(answer) is Cause.FORBIDDEN
    assert isinstance(answer, Refused) and "cannot patch" in answer.message
    stranger = store_of("no-token-at-all")
    with pytest.raises(StoreRefused) as problem:
        await stranger.claimable("q", 1)
    assert problem.value.cause is Cause.FORBIDDEN


async def test_a_kubeconfig_leads_to_the_same_cluster(
    cluster: Cluster, admin: KubeStore, service_account: Callable[..., str]
) -> None:
    file = cluster.kubeconfig_for(service_account("worker", "w"), namespace=admin.namespace)
    store = KubeStore.of(connect(file))
    assert store.namespace == admin.namespace
    assert await store.account() == f"system:serviceaccount:{admin.namespace}:w"
    assert await store.claimable("q", 1) == []
    await store.close()


DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000


@pytest.mark.parametrize(
    ("request_text", "said"),
    [
        ('{"n": 9007199254740993}', "safe integer"),
        (DEEP, "nested deeper"),
        ('{"x": "%s"}' % ("y" * 66_000), "over the limit"),
    ],
    ids=["inexact", "deep", "large"],
)
async def test_a_request_that_only_kubectl_lets_through_is_a_problem_of_its_own_task(
    cluster: Cluster, admin: KubeStore, worker: KubeStore, request_text: str, said: str
) -> None:
    await new_task(admin, "neighbour", queue="q")
    manifest = (
        '{"apiVersion":"fencepost.dev/v1alpha1","kind":"LeasedTask","metadata":{"name":"odd"},'
        f'"spec":{{"queue":"q","request":{request_text}}}}}'
    )
    cluster.kubectl("create", "--namespace", admin.namespace, "-f", "-", input=manifest)
    candidates = {candidate.key.name: candidate for candidate in await worker.claimable("q", 10)}
    answer = await worker.write(claim_of(candidates["odd"], account=await worker.account()))
    assert isinstance(answer, Applied), answer
    assert (answer.task.spec.request, answer.task.token) == ("{}", 1)
    assert said in answer.task.spec.request_problem
    assert await worker.task(candidates["odd"].key) == answer.task
    assert await worker.unsettled_of_outbox(OUTBOXES[0]) == [answer.task]
    listed = {task.key.name: task.spec.request_problem for task in await admin.tasks()}
    assert listed["neighbour"] == "" and said in listed["odd"]
