"""What a cluster would not take is refused by the embedded stores, in the words of the API's models."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from fencepost.ports import Cause, NewTask, Refused
from fencepost.protocol.job import Branch, JobSpec
from fencepost.protocol.payload import request_text
from fencepost.protocol.task import DedupScope, ObjectKey, TaskSpec
from fencepost.testing import MemoryStore
from tests.local.conftest import Embedded

SPEC = TaskSpec(queue="feeds")
JOB = JobSpec(branches=(Branch(name="a", request="{}"),), template=SPEC)
SAID = (
    "default/Bad_Name: spec.queue: expected text of 1 to 63 characters that match "
    '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$, got "A Q"; spec.priority: expected a whole number from 0 to 9, '
    "got 10; metadata.name: 'Bad_Name' is no object name: 1 to 253 of a-z, 0-9, - and ., beginning and "
    "ending with a letter or digit"
)


async def test_everything_that_is_wrong_is_said_in_one_sentence(embedded: Embedded) -> None:
    spec = replace(SPEC, queue="A Q", priority=10, request=request_text({"n": 1}))
    key = ObjectKey(namespace="default", name="Bad_Name")
    answer = await embedded.store.create(NewTask(key=key, spec=spec))
    assert answer == Refused(cause=Cause.ADMISSION, message=SAID)


@pytest.mark.parametrize(
    ("name", "spec", "field"),
    [
        ("Bad_Name", JOB, "metadata.name:"),
        ("job", replace(JOB, template=replace(SPEC, queue="A Q")), "spec.template.spec.queue:"),
        ("job", replace(JOB, template=replace(SPEC, priority=10)), "spec.template.spec.priority:"),
        ("job", replace(JOB, parallelism=0), "spec.parallelism:"),
        ("job", replace(JOB, branches=()), "spec.branches:"),
    ],
)
async def test_so_is_a_job_and_none_of_its_tasks_is_made(
    embedded: Embedded, name: str, spec: JobSpec, field: str
) -> None:
    answer = await embedded.store.create_job(name, spec)
    assert isinstance(answer, Refused)
    assert (answer.cause, field in answer.message) == (Cause.ADMISSION, True)
    assert await embedded.store.jobs() == []
    assert await embedded.store.tasks() == []


async def test_every_dedup_scope_is_served_here(embedded: Embedded) -> None:
    for scope in DedupScope:
        spec = replace(JOB, template=replace(SPEC, dedup_scope=scope))
        answer = await embedded.store.create_job(f"job-{scope.lower()}", spec)
        assert not isinstance(answer, Refused), answer
    assert {task.spec.dedup_scope for task in await embedded.store.tasks()} == set(DedupScope)


def test_the_store_for_users_tests_says_it_too() -> None:
    with pytest.raises(ValueError, match=r"spec\.queue: expected text of 1 to 63 characters"):
        MemoryStore().put("A Q", name="a")


def test_a_worker_that_makes_nothing_starts_without_pydantic() -> None:
    """Loading it would take a large part of a worker's start."""
    code = "import sys, fencepost.local.store, fencepost.worker.worker; print('pydantic' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"
