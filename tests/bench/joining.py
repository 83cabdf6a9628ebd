"""From the last submit of a job to its committed snapshot, by the API server's own timestamps.

Many small jobs are settled by workers while the operator joins one after the other. The time begins when the
answer of a job's last submit is complete and ends when the answer of its last status write is: the one that
has the snapshot, since nothing is written to a joined job without a continuation.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from fencepost import Settings
from tests.bench.measured import Measured, Target, number, percentile, say
from tests.bench.stage import Stage, answered
from tests.bench.throughput import WORKERS
from tests.bench.trivial import worker
from tests.cluster.audit import accepted_writes

MILLISECONDS_MAX = 250


def measure(stage: Stage, *, quick: bool) -> list[Measured]:
    """With eight workers at full speed, and with two."""
    jobs, branches, rounds = (10, 8, 1) if quick else (200, 8, 2)
    found: dict[int, list[list[float]]] = {WORKERS: [], 2: []}
    with stage.operator() as operator:
        for turn in range(rounds):
            for workers, waits in found.items():
                waits.append(one_round(stage, jobs, branches, workers))
                say(f"join {turn + 1}/{rounds}, {workers} workers: {_told(waits[-1])}")
        for line in operator.lines():
            if line["level"] != "info":
                say(f"the operator said: {line['level']}: {line['msg']}")
    return [line for workers, waits in found.items() for line in _lines(waits, workers, jobs, branches)]


def one_round(stage: Stage, jobs: int, branches: int, workers: int) -> list[float]:
    """Milliseconds from the last submit to the snapshot, one of each job."""
    namespace = stage.namespace("join")
    token = stage.worker_token(namespace)
    for job in range(jobs):
        stage.make_job(namespace, f"fan-{job:03}", branches)
    stage.until_made(namespace, jobs * branches)
    asyncio.run(_settle_all(stage, namespace, token, workers))
    stage.until_joined(namespace, jobs)
    return _waits(stage, namespace)


async def _settle_all(stage: Stage, namespace: str, token: str, workers: int) -> None:
    stores = [stage.store(namespace, token) for _ in range(workers)]
    await asyncio.gather(
        *(
            worker.run_async(
                store=store, outbox=stage.folder / f"{namespace}-{n}.db", settings=Settings(once=True)
            )
            for n, store in enumerate(stores)
        )
    )
    for store in stores:
        await store.close()


def _waits(stage: Stage, namespace: str) -> list[float]:
    job_of = {task.key.name: task.owner.name for task in stage.tasks(namespace) if task.owner is not None}
    events = stage.requests(namespace)
    submits: dict[str, list[float]] = defaultdict(list)
    for event in _status_writes(events, namespace, "leasedtasks"):
        submits[job_of[event["objectRef"]["name"]]].append(answered(event))
    commits: dict[str, list[float]] = defaultdict(list)
    for event in _status_writes(events, namespace, "fanoutjobs"):
        commits[event["objectRef"]["name"]].append(answered(event))
    return [1000 * (max(commits[job]) - max(times)) for job, times in submits.items()]


def _status_writes(events: list[Any], namespace: str, resource: str) -> list[Any]:
    writes = accepted_writes(events, namespace=namespace, resource=resource)
    return [event for event in writes if event["objectRef"].get("subresource") == "status"]


def _told(waits: list[float]) -> str:
    parts = ", ".join(f"p{p} {number(percentile(waits, p))}" for p in (50, 90, 99, 100))
    return f"{len(waits)} jobs, {parts} ms"


def _lines(rounds: list[list[float]], workers: int, jobs: int, branches: int) -> list[Measured]:
    of = f"last submit to snapshot, {workers} workers"
    return [
        Measured(name=f"{of}, p50", unit="ms", values=[percentile(waits, 50) for waits in rounds]),
        Measured(
            name=f"{of}, p99",
            unit="ms",
            values=[percentile(waits, 99) for waits in rounds],
            target=Target(sign="<=", limit=MILLISECONDS_MAX),
            note=f"{jobs} jobs of {branches} branches a round, the workers at full speed",
        ),
    ]
