"""A payload is accepted at most once in its dedup scope, however wide that is (I1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencepost.ports import Applied, NewTask, Refused
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import DedupScope, Kind, ObjectKey, State, Task, TaskSpec
from tests.contract.acting import Actor, submission_of, submit_of
from tests.local.conftest import Embedded

SPEC = TaskSpec(queue="feeds")


async def held(embedded: Embedded, worker: Actor, name: str, spec: TaskSpec) -> Task:
    key = ObjectKey(namespace="default", name=name)
    assert isinstance(await embedded.store.create(NewTask(key=key, spec=spec)), Applied)
    return await worker.claim(key)


SAME_SNAPSHOT = ('{"snapshot":"S1"}', '{"snapshot":"S1"}')
OTHER_SNAPSHOT = ('{"snapshot":"S1"}', '{"snapshot":"S2"}')


@pytest.mark.parametrize(
    ("scope", "queues", "requests", "verdict"),
    [
        (DedupScope.TASK, ("feeds", "feeds"), SAME_SNAPSHOT, Verdict.ACCEPTED),
        (DedupScope.SNAPSHOT, ("feeds", "mails"), SAME_SNAPSHOT, Verdict.REJECTED_DUPLICATE),
        (DedupScope.SNAPSHOT, ("feeds", "feeds"), OTHER_SNAPSHOT, Verdict.ACCEPTED),
        (DedupScope.QUEUE, ("feeds", "feeds"), OTHER_SNAPSHOT, Verdict.REJECTED_DUPLICATE),
        (DedupScope.QUEUE, ("feeds", "mails"), SAME_SNAPSHOT, Verdict.ACCEPTED),
        (DedupScope.NAMESPACE, ("feeds", "mails"), OTHER_SNAPSHOT, Verdict.REJECTED_DUPLICATE),
    ],
)
async def test_where_a_payload_counts_as_the_same(
    embedded: Embedded,
    scope: DedupScope,
    queues: tuple[str, str],
    requests: tuple[str, str],
    verdict: Verdict,
) -> None:
    worker = await Actor.of(embedded.store)
    first, second = [
        await held(embedded, worker, name, replace(SPEC, dedup_scope=scope, queue=queue, request=request))
        for name, queue, request in zip("ab", queues, requests, strict=True)
    ]
    assert (await worker.submit(first, "row", kind=Kind.ROW)).verdict is Verdict.ACCEPTED
    assert (await worker.submit(second, "row", kind=Kind.ROW)).verdict is verdict
    rows = (await worker.read(second.key)).receipts
    assert len(rows) == (1 if verdict is Verdict.ACCEPTED else 0)


async def test_a_result_that_stands_elsewhere_settles_and_is_no_row(embedded: Embedded) -> None:
    worker = await Actor.of(embedded.store)
    wide = replace(SPEC, dedup_scope=DedupScope.NAMESPACE)
    first, second = [await held(embedded, worker, name, wide) for name in "ab"]
    accepted = await worker.submit(first, "v")
    assert accepted.receipt is not None
    assert (await worker.submit(second, "v")).verdict is Verdict.REJECTED_DUPLICATE
    task = await worker.read(second.key)
    assert task.state is State.SUCCEEDED
    assert task.receipts[-1].duplicate_of == accepted.receipt.receipt_sha256


async def test_a_submit_that_does_not_know_of_the_first_is_refused(embedded: Embedded) -> None:
    """Both judged before either wrote: the store compares in the transaction."""
    worker = await Actor.of(embedded.store)
    wide = replace(SPEC, dedup_scope=DedupScope.NAMESPACE)
    submits = []
    for name in "ab":
        task = await held(embedded, worker, name, wide)
        submits.append(submit_of(task, submission_of(task, "v", account=worker.account)))
    assert isinstance(await worker.store.write(submits[0]), Applied)
    answer = await worker.store.write(submits[1])
    assert isinstance(answer, Refused)
    assert "accepted before" in answer.message
