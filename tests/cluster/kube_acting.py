"""What tests do with a store in a few words: make a task, claim it, carry a mutation out and check it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fencepost.ports import Answer, Applied, Cause, NewTask, Refused, TaskStore
from fencepost.protocol.mutation import Mutation, apply
from fencepost.protocol.task import ObjectKey, Task, TaskSpec
from tests.kube.deciding import HOLDER, claim_of


def applied(answer: Answer) -> Task:
    assert isinstance(answer, Applied), answer
    return answer.task


def refused(answer: Answer) -> Cause:
    assert isinstance(answer, Refused), answer
    return answer.cause


async def new_task(admin: TaskStore, name: str = "t", **spec: Any) -> Task:
    key = ObjectKey(namespace=admin.namespace, name=name)
    return applied(await admin.create(NewTask(key=key, spec=TaskSpec(**spec))))


async def carried_out(store: TaskStore, task: Task, mutation: Mutation) -> Task:
    """Writes it; the task afterwards is what the core makes of it, also for whoever reads it again."""
    found = applied(await store.write(mutation))
    assert found == replace(apply(task, mutation), version=found.version)
    assert await store.task(task.key) == found
    return found


async def claimed(worker: TaskStore, task: Task, holder: str = HOLDER) -> Task:
    mutation = claim_of(task, account=await worker.account(), holder=holder)
    return await carried_out(worker, task, mutation)
