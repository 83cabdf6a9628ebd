"""Lost, late and doubled requests between the store and the real API server.

Whatever the network does to a write, `write_until_certain` ends in one of two truths: it was applied, once,
or it never will be. Each fault is done to each mutation.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace

import pytest

from fencepost.certainty import Pause, write_until_certain
from fencepost.kube.client import ApiClient, Timeouts
from fencepost.kube.connection import explicit
from fencepost.kube.store import KubeStore
from fencepost.ports import Answer, Applied, Cause, NewTask, Refused, StoreUnavailable, Unanswered
from fencepost.protocol import upkeep
from fencepost.protocol.mutation import Mutation, apply
from fencepost.protocol.receipt import verify_chain
from fencepost.protocol.task import Kind, LeaseEnd, ObjectKey, Reason, Task, TaskSpec
from tests.cluster import fault_proxy as faults
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fault_proxy import FaultProxy
from tests.kube.deciding import (
    HOLDER,
    OTHER_HOLDER,
    OUTBOXES,
    claim_of,
    heartbeat_of,
    release_of,
    requeue_of,
    submit_of,
)

SHORT = Timeouts(connect=5.0, read=5.0, write=0.4)
STATUS_504 = '{"kind":"Status","code":504,"reason":"Timeout","message":"did not complete"}'
STATUS_429 = '{"kind":"Status","code":429,"reason":"TooManyRequests","message":"slow down"}'


def pause_for(seconds: float) -> Pause:
    """Waits a little longer after each try, as long as there is time."""
    until = time.monotonic() + seconds

    async def pause(tries: int) -> bool:
        await asyncio.sleep(min(0.02 * tries, 0.5))
        return time.monotonic() < until

    return pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Two stores behind the proxy, one of them with the product's own patience, and one around it."""

    proxy: FaultProxy
    store: KubeStore
    patient: KubeStore
    direct: KubeStore
    account: str

    async def new_task(self, name: str = "t") -> Task:
        key = ObjectKey(namespace=self.direct.namespace, name=name)
        answer = await self.direct.create(NewTask(key=key, spec=TaskSpec(queue="q")))
        assert isinstance(answer, Applied), answer
        return answer.task

    async def written(self, mutation: Mutation) -> Task:
        """Without any fault."""
        answer = await self.direct.write(mutation)
        assert isinstance(answer, Applied), answer
        return answer.task

    async def certain(self, mutation: Mutation, seconds: float = 20.0) -> Answer:
        return await write_until_certain(self.store, mutation, pause=pause_for(seconds))


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.server, cluster.ca_file) as running:
        yield running


@pytest.fixture
async def scene(cluster: Cluster, namespace: str, proxy: FaultProxy) -> AsyncIterator[Scene]:
    token = cluster.admin_token
    through = explicit(proxy.url, ca_file=None, token=token, namespace=namespace)
    around = explicit(cluster.server, ca_file=cluster.ca_file, token=token, namespace=namespace)
    store = KubeStore(ApiClient(through, timeouts=SHORT))
    patient, direct = KubeStore(ApiClient(through)), KubeStore(ApiClient(around))
    account = await direct.account()
    yield Scene(proxy=proxy, store=store, patient=patient, direct=direct, account=account)
    for opened in (store, patient, direct):
        await opened.close()


async def decided(scene: Scene, name: str) -> tuple[Task, Mutation]:
    """A task in the right state for the mutation of that name, and the mutation."""
    free = await scene.new_task()
    if name == "settle":
        return free, upkeep.settle(free, Reason.CANCELLED, recorded_by=scene.account)
    claim = claim_of(free, account=scene.account)
    if name == "claim":
        return free, claim
    held = await scene.written(claim)
    if name == "requeue":
        backoff = await scene.written(release_of(held, LeaseEnd.ERROR))
        return backoff, requeue_of(backoff)
    made: dict[str, Mutation] = {
        "heartbeat": heartbeat_of(held, progress="half way"),
        "release": release_of(held, LeaseEnd.ERROR),
        "submit": submit_of(held),
        "emit": submit_of(held, kind=Kind.ROW),
        "revoke": upkeep.revoke(held, LeaseEnd.EXPIRED),
    }
    return held, made[name]


MUTATIONS = ["claim", "heartbeat", "release", "submit", "emit", "revoke", "requeue", "settle"]

FAULTS = {
    "request dropped": faults.DropRequest(),
    "answer dropped after the commit": faults.DropAnswer(),
    "answer cut short": faults.ResetMidBody(),
    "answer later than the client waits": faults.Delay(answer_seconds=1.0),
    "request later than the client waits": faults.Delay(request_seconds=0.8),
    "reset at once and delivered later": faults.ArriveLater(0.3),
    "delivered twice": faults.Duplicate(),
    "500 after the commit": faults.Answer(500, "internal error", after_commit=True),
    "504 without a commit": faults.Answer(504, STATUS_504),
    "502 of a proxy after the commit": faults.Answer(502, "<html>bad gateway</html>", after_commit=True),
    "503 of a proxy after the commit": faults.Answer(
        503, "reset", (("Retry-After", "1"),), after_commit=True
    ),
    "200 of a login page": faults.Answer(200, "<html>please log in</html>"),
    "black hole": faults.Blackhole(),
}


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_write_is_applied_once_whatever_the_network_does(
    scene: Scene, name: str, fault: faults.Fault
) -> None:
    before, mutation = await decided(scene, name)
    scene.proxy.inject(fault, method="PATCH")
    answer = await scene.certain(mutation)
    assert isinstance(answer, Applied), answer
    # What came late or twice has arrived by now, too.
    await _until_all_arrived(scene.proxy)
    after = await scene.direct.task(before.key)
    assert after == replace(apply(before, mutation), version=answer.task.version)


async def _until_all_arrived(proxy: FaultProxy) -> None:
    """Every request that was only slowed down or doubled has had its answer from the server."""
    wanted = {faults.ArriveLater: 1, faults.Duplicate: 2, faults.Delay: 1}
    for _ in range(200):
        if all(seen.forwarded >= wanted.get(type(seen.fault), 0) for seen in proxy.requests):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"requests that never arrived: {proxy.requests}")


async def test_a_server_that_is_overloaded_says_when_to_come_again(scene: Scene) -> None:
    _, mutation = await decided(scene, "submit")
    scene.proxy.inject(faults.Answer(429, STATUS_429, (("Retry-After", "2"),)))
    answer = await scene.store.write(mutation)
    assert answer == Refused(cause=Cause.OVERLOADED, message="slow down", retry_after_seconds=2.0)
    assert isinstance(await scene.store.write(mutation), Applied)


async def test_a_server_that_nobody_can_connect_to_was_sent_nothing(scene: Scene) -> None:
    before, mutation = await decided(scene, "submit")
    scene.proxy.refuse_connections()
    answer = await scene.store.write(mutation)
    assert isinstance(answer, Refused) and answer.cause is Cause.OVERLOADED
    with pytest.raises(StoreUnavailable):
        await scene.store.task(before.key)
    scene.proxy.accept_connections()
    assert isinstance(await scene.store.write(mutation), Applied)


async def test_a_late_write_of_a_lease_that_is_over_does_nothing(scene: Scene) -> None:
    """The answer never came, the lease ran out, another worker settled; then the first write arrives."""
    held, submit = await decided(scene, "submit")
    scene.proxy.inject(faults.ArriveLater(0.5), method="PATCH")
    assert isinstance(await scene.store.write(submit), Unanswered)
    free = await scene.written(upkeep.revoke(held, LeaseEnd.EXPIRED))
    free = await scene.written(requeue_of(free))
    again = await scene.written(claim_of(free, account=scene.account, holder=OTHER_HOLDER))
    settled = await scene.written(submit_of(again))
    await _until_all_arrived(scene.proxy)
    assert [seen.statuses for seen in scene.proxy.requests] == [[422]]
    assert await scene.direct.task(held.key) == settled
    answer = await scene.certain(submit)
    assert isinstance(answer, Refused) and answer.cause is Cause.PRECONDITION


async def test_reading_back_nothing_is_not_taken_for_an_answer(scene: Scene) -> None:
    """While nothing gets through, the write stays unanswered; its own identical copy settles the matter."""
    before, mutation = await decided(scene, "submit")
    scene.proxy.inject(faults.DropRequest(), method="PATCH", times=None)
    answer = await scene.certain(mutation, seconds=0.3)
    assert isinstance(answer, Unanswered)
    assert await scene.direct.task(before.key) == before
    bodies = {seen.body for seen in scene.proxy.requests if seen.method == "PATCH"}
    assert len(scene.proxy.requests) > 2
    assert len({_without_times(body) for body in bodies}) == 1
    scene.proxy.heal()
    assert isinstance(await scene.certain(mutation), Applied)


def _without_times(body: bytes) -> bytes:
    """A retry differs by nothing but the informative completion time."""
    return re.sub(rb"\d\d\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", b"T", body)


async def test_of_many_that_read_the_same_free_task_one_gets_it(scene: Scene) -> None:
    """What each read is what each claim names: there is no second read that could be newer."""
    for round_number in range(10):
        task = await scene.new_task(f"t{round_number}")
        claims = [
            claim_of(task, account=scene.account, holder=f"{outbox}/{letter}")
            for outbox in OUTBOXES[:10]
            for letter in "ab"
        ]
        answers = await asyncio.gather(*(scene.patient.write(claim) for claim in claims))
        winners = [answer.task for answer in answers if isinstance(answer, Applied)]
        losers = [answer.cause for answer in answers if isinstance(answer, Refused)]
        assert [winner.token for winner in winners] == [1]
        assert losers == [Cause.PRECONDITION] * 19
        assert await scene.direct.task(task.key) == winners[0]
    patches = [seen for seen in scene.proxy.requests if seen.method == "PATCH"]
    assert len(patches) == 200
    assert all(seen.json["metadata"]["resourceVersion"] for seen in patches)
    assert all(seen.method == "PATCH" for seen in scene.proxy.requests)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_an_answer_that_comes_34_seconds_late_is_still_heard(scene: Scene) -> None:
    """With the time limits of the product: the API server works on a patch for up to 34 s."""
    _, mutation = await decided(scene, "submit")
    scene.proxy.inject(faults.Delay(answer_seconds=34.0), method="PATCH")
    started = time.monotonic()
    answer = await scene.patient.write(mutation)
    assert time.monotonic() - started >= 34.0
    assert isinstance(answer, Applied)
    assert len(scene.proxy.requests) == 1


async def test_an_api_server_that_is_killed_and_started_again_loses_nothing_and_doubles_nothing(
    own_control_plane: ControlPlane, own_cluster: Cluster
) -> None:
    """Claims and rows go on without a break while the server dies in the middle of them, twice."""
    where = explicit(own_cluster.server, ca_file=own_cluster.ca_file, token=own_cluster.admin_token)
    store = KubeStore(ApiClient(where))
    account = await store.account()
    killer = threading.Thread(target=_kill_twice, args=(own_control_plane,))
    killer.start()
    tasks = await asyncio.gather(*(_worked_on(store, f"t{i}", account, killer) for i in range(8)))
    killer.join()
    for task, accepted in tasks:
        found = await store.task(task.key)
        assert found is not None
        verify_chain(found)
        assert [receipt.idempotency_key for receipt in found.receipts] == accepted
        assert (found.token, found.settled) == (1, True)
    await store.close()


def _kill_twice(plane: ControlPlane) -> None:
    for _ in range(2):
        time.sleep(0.3)
        plane.kill_apiserver()
        plane.start_apiserver()


async def _worked_on(
    store: KubeStore, name: str, account: str, killer: threading.Thread
) -> tuple[Task, list[str]]:
    """Claims a task and emits rows until the servers have died, then submits; what was accepted."""
    key = ObjectKey(namespace=store.namespace, name=name)
    task = await _created(store, NewTask(key=key, spec=TaskSpec()))
    task = await _certainly(store, claim_of(task, account=account, holder=HOLDER))
    accepted: list[str] = []
    while killer.is_alive() and task.count < 20:
        row = submit_of(task, kind=Kind.ROW)
        task = await _certainly(store, row)
        accepted.append(row.receipt.idempotency_key)
        await asyncio.sleep(0.1)
    result = submit_of(task)
    task = await _certainly(store, result)
    return task, [*accepted, result.receipt.idempotency_key]


async def _created(store: KubeStore, new: NewTask) -> Task:
    pause = pause_for(60.0)
    for tries in range(1, 1000):
        answer = await store.create(new)
        if isinstance(answer, Applied):
            return answer.task
        if isinstance(answer, Refused) and answer.cause is Cause.EXISTS:
            found = await store.task(new.key)
            assert found is not None
            return found
        assert await pause(tries), answer
    raise AssertionError


async def _certainly(store: KubeStore, mutation: Mutation) -> Task:
    pause = pause_for(60.0)
    for tries in range(1, 1000):
        answer = await write_until_certain(store, mutation, pause=pause)
        if isinstance(answer, Applied):
            return answer.task
        assert isinstance(answer, Refused) and answer.cause is Cause.OVERLOADED, answer
        assert await pause(tries), answer
    raise AssertionError
