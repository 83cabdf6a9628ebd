"""What may be made: what one store refuses, every store refuses, and nothing is there afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencepost.ports import Applied, Cause, NewTask, Refused
from fencepost.protocol import limits
from fencepost.protocol.task import RetryPolicy, TaskSpec
from tests.contract.places import PATIENT, Place

# The name, the spec, the field that is named in the refusal.
UNLAWFUL: list[tuple[str, TaskSpec, str]] = [
    ("Bad_Name", PATIENT, "metadata.name"),
    ("a" * (limits.OBJECT_NAME_CHARACTERS_MAX + 1), PATIENT, "metadata.name"),
    ("a", replace(PATIENT, queue="A Q"), "spec.queue"),
    ("a", replace(PATIENT, queue=""), "spec.queue"),
    ("a", replace(PATIENT, queue="q" * (limits.QUEUE_CHARACTERS_MAX + 1)), "spec.queue"),
    ("a", replace(PATIENT, priority=limits.PRIORITY_MAX + 1), "spec.priority"),
    ("a", replace(PATIENT, priority=limits.PRIORITY_MIN - 1), "spec.priority"),
    ("a", replace(PATIENT, lease_duration_seconds=0), "spec.leaseDurationSeconds"),
    (
        "a",
        replace(PATIENT, lease_duration_seconds=limits.LEASE_SECONDS_MAX + 1),
        "spec.leaseDurationSeconds",
    ),
    ("a", replace(PATIENT, active_deadline_seconds=0), "spec.activeDeadlineSeconds"),
    ("a", replace(PATIENT, ttl_seconds_after_finished=-1), "spec.ttlSecondsAfterFinished"),
    (
        "a",
        replace(PATIENT, retry_policy=RetryPolicy(max_failures=limits.FAILURES_MAX + 1)),
        "spec.retryPolicy.maxFailures",
    ),
    ("a", replace(PATIENT, retry_policy=RetryPolicy(backoff_base_seconds=0)), "backoffBaseSeconds"),
]


@pytest.mark.parametrize(("name", "spec", "field"), UNLAWFUL)
async def test_a_task_that_no_cluster_would_take_is_refused(
    place: Place, name: str, spec: TaskSpec, field: str
) -> None:
    answer = await place.producer.create(NewTask(key=place.key(name), spec=spec))
    assert isinstance(answer, Refused), answer
    assert answer.cause is Cause.ADMISSION
    assert field in answer.message
    assert await place.server.tasks() == []


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("a" * limits.OBJECT_NAME_CHARACTERS_MAX, PATIENT),
        ("a.b-c", replace(PATIENT, queue="q" * limits.QUEUE_CHARACTERS_MAX)),
        (
            "a",
            replace(PATIENT, priority=limits.PRIORITY_MAX, lease_duration_seconds=limits.LEASE_SECONDS_MIN),
        ),
        ("a", replace(PATIENT, active_deadline_seconds=1, ttl_seconds_after_finished=0, external=True)),
        ("a", replace(PATIENT, retry_policy=RetryPolicy(max_failures=0, backoff_base_seconds=1))),
    ],
)
async def test_the_lawful_neighbour_is_made(place: Place, name: str, spec: TaskSpec) -> None:
    answer = await place.producer.create(NewTask(key=place.key(name), spec=spec))
    assert isinstance(answer, Applied), answer
    assert await place.server.task(place.key(name)) == answer.task
