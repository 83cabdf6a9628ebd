"""What prevents the building of a continuation is told to a person; it is never a defect that loops."""

from __future__ import annotations

import logging
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest

from fencepost.kube.client import ApiClient
from fencepost.kube.connection import explicit
from fencepost.kube.store import KubeStore
from fencepost.protocol.job import ContinuationKind, Job
from fencepost_operator.apply import Writer
from fencepost_operator.cache import Cache
from fencepost_operator.clock import ServerClock
from fencepost_operator.continuing import Continuing
from fencepost_operator.keys import Key
from fencepost_operator.leases import LeaseObserver
from fencepost_operator.logs import Repeats
from fencepost_operator.metrics import Metrics
from fencepost_operator.observe import WholeJob, World
from fencepost_operator.queue import WorkQueue
from tests.handlers.test_continuation_objects import A_TASK, MALFORMED, joined


@pytest.fixture
def continuing() -> Continuing:
    client = ApiClient(explicit("http://127.0.0.1:1", ca_file=None, token=None))
    queue, repeats = WorkQueue[Key](clock=monotonic), Repeats(clock=monotonic)
    server_clock = ServerClock(clock=monotonic)
    world = World(
        client=client,
        cache=Cache(clock=monotonic),
        queue=queue,
        leases=LeaseObserver(),
        server_clock=server_clock,
        clock=monotonic,
        repeats=repeats,
    )
    store = KubeStore(client, now=server_clock.text)
    writer = Writer(client=client, store=store, world=world, clock=monotonic, metrics=Metrics())
    return Continuing(world=world, writer=writer, queue=queue, clock=monotonic, repeats=repeats)


def built(continuing: Continuing, job: Job) -> Any:
    return continuing._objects(WholeJob(job=job, conditions=()))


@pytest.mark.parametrize(("template", "place"), MALFORMED)
def test_a_template_that_is_malformed_is_for_a_person(
    continuing: Continuing, template: Any, place: str
) -> None:
    refused = built(continuing, joined(ContinuationKind(template["kind"]), template))
    assert refused.startswith("the continuation cannot be made: spec.continuation.template.")
    assert place in refused


def test_so_is_whatever_nobody_has_thought_of_and_the_log_has_it_once(
    continuing: Continuing, caplog: pytest.LogCaptureFixture
) -> None:
    job = replace(A_TASK, status=replace(A_TASK.status, snapshot=None))  # no caller asks before the join
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            refused = built(continuing, job)
            assert refused == "the continuation cannot be made of its template (ValueError)"
    assert len([record for record in caplog.records if "defect" in record.message]) == 1


def test_what_is_fit_is_built(continuing: Continuing) -> None:
    assert built(continuing, A_TASK).body["spec"]["suspend"] is True
