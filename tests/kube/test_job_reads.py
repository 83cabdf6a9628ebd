"""What a repeated read of a job spares: the reading of its spec, and nothing else of it."""

from __future__ import annotations

from typing import Any

from fencepost.kube.client import ApiClient
from fencepost.kube.connection import explicit
from fencepost.kube.store import JOBS_REMEMBERED_MAX, KubeStore
from fencepost.protocol.task import ObjectKey
from tests.kube.scripted_server import Said, ScriptedServer


def job(name: str = "job", *, uid: str = "u", generation: int = 1, n: int = 1, **status: Any) -> Said:
    metadata = {
        "namespace": "ns",
        "name": name,
        "uid": uid,
        "resourceVersion": "7",
        "generation": generation,
    }
    spec = {"branches": [{"name": "a", "request": {"n": n}}]}
    return Said(body={"metadata": metadata, "spec": spec, "status": status})


async def read(*script: Said, names: tuple[str, ...] = ()) -> list[Any]:
    async with ScriptedServer(*script) as server:
        store = KubeStore(ApiClient(explicit(server.url, ca_file=None, token=None, namespace="ns")))
        wanted = names or ("job",) * len(script)
        found = [await store.job(ObjectKey(namespace="ns", name=name)) for name in wanted]
        await store.close()
    return found


async def test_the_spec_is_read_once_and_the_status_every_time() -> None:
    record = {"outcome": "Ok", "payloadSha256": "p", "receiptSha256": "r"}
    first, second = await read(job(), job(branches={"a": record}))
    assert second.spec is first.spec
    assert (set(first.status.branches), set(second.status.branches)) == (set(), {"a"})


async def test_another_generation_or_another_job_is_read_whole() -> None:
    first, changed, other = await read(job(n=1), job(generation=2, n=2), job(uid="v", generation=2, n=3))
    assert [found.spec.branches[0].request for found in (first, changed, other)] == [
        '{"n":1}',
        '{"n":2}',
        '{"n":3}',
    ]


async def test_a_job_without_a_generation_is_read_whole() -> None:
    def without(n: int) -> Said:
        said = job(n=n)
        del said.body["metadata"]["generation"]
        return said

    first, second = await read(without(1), without(2))
    assert (first.generation, first.spec.branches[0].request) == (1, '{"n":1}')
    assert second.spec.branches[0].request == '{"n":2}'


async def test_only_so_many_jobs_are_remembered() -> None:
    names = tuple(f"job-{number}" for number in range(JOBS_REMEMBERED_MAX + 1))
    found = await read(
        *(job(name) for name in (*names, names[-1], names[0])), names=(*names, names[-1], names[0])
    )
    assert found[-2].spec is found[-3].spec
    assert found[-1].spec is not found[0].spec
