"""Claim and submit of a FanOutJob's branches: by the product, and by a bare client that sends the same.

Rounds alternate, so that what else the machine does falls on both. Each round has a namespace and a job of
its own, which the operator has fanned out before the clock starts and joins while it runs. The time is from
the first accepted write's arrival at the API server to the last one's answer. Eight workers share one process
as the eight connections of the bare client do; another round has eight processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fencepost import Settings
from tests.bench.beside import send_all
from tests.bench.measured import Measured, Target, say
from tests.bench.stage import Stage, window
from tests.bench.trivial import worker
from tests.cluster.audit import WRITING_VERBS, accepted_writes

WORKERS = 8
WORKER_ACCOUNTS = "system:serviceaccount:throughput-"
PROFILE: Path | None = None  # where the profile of the newest round in one process goes
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Round:
    """What one round came to."""

    rate: float
    wall_rate: float
    processor_ms: float
    writes: float
    job_writes: int
    requests: float
    lost_claims: int
    kinds: Counter[str] = field(default_factory=Counter)


Work = Callable[[Stage, str, str], None]
"""Claims and submits everything there is in a namespace, with the token of a worker."""


def measure(stage: Stage, *, quick: bool) -> list[Measured]:
    """Rounds of all three, one after the other."""
    tasks, rounds = (100, 1) if quick else (1_000, 3)
    works: dict[str, Work] = {
        "bare client": by_bare_client,
        "8 workers": by_workers_in_one_process,
        "8 processes": by_worker_processes,
    }
    done: dict[str, list[Round]] = {name: [] for name in works}
    with stage.operator() as operator:
        for number in range(rounds):
            for name, work in works.items():
                done[name].append(one_round(stage, work, tasks, operator.process.pid))
                say(f"throughput {number + 1}/{rounds}, {name}: {_told(done[name][-1])}")
    return _lines(done)


def one_round(stage: Stage, work: Work, tasks: int, operator: int) -> Round:
    """One job, from all made to all submitted."""
    namespace = stage.namespace("throughput")
    token = stage.worker_token(namespace)
    stage.make_job(namespace, "fan", tasks)
    stage.until_made(namespace, tasks)
    created = len(accepted_writes(stage.requests(namespace), namespace=namespace))
    began, used = time.monotonic(), stage.processor_seconds(operator)
    work(stage, namespace, token)
    wall, used = time.monotonic() - began, stage.processor_seconds(operator) - used
    stage.until_joined(namespace, 1)
    return _counted(stage, namespace, tasks, created, wall=wall, used=used)


def _counted(stage: Stage, namespace: str, tasks: int, created: int, *, wall: float, used: float) -> Round:
    settled = sum(task.settled for task in stage.tasks(namespace))
    if settled != tasks:
        raise RuntimeError(f"{settled} of {tasks} tasks were settled")
    events = stage.requests(namespace)
    writes = accepted_writes(events, namespace=namespace)
    patches = writes[created:]
    claims = [e for e in events if e["verb"] == "patch" and e["objectRef"]["resource"] == "leasedtasks"]
    of_workers = [e for e in events if e["user"]["username"].startswith(WORKER_ACCOUNTS)]
    return Round(
        rate=tasks / window(patches),
        wall_rate=tasks / wall,
        processor_ms=1000 * used / tasks,
        writes=len(writes) / tasks,
        job_writes=len(accepted_writes(events, namespace=namespace, resource="fanoutjobs")) - 1,
        requests=len(of_workers) / tasks,
        lost_claims=sum(e["responseStatus"]["code"] == 409 for e in claims),
        kinds=Counter(_kind(event) for event in of_workers),
    )


def _kind(event: Any) -> str:
    reference = event["objectRef"]
    verb = event["verb"] if event["verb"] in WRITING_VERBS or event["verb"] == "list" else "get"
    where = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
    return f"{verb} {where} {event['responseStatus']['code']}"


def _told(done: Round) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in done.kinds.most_common())
    rates = (
        f"{done.rate:.0f} tasks/s (wall {done.wall_rate:.0f}), {done.processor_ms:.1f} ms of processor a task"
    )
    return f"{rates}; {kinds}"


def by_bare_client(stage: Stage, namespace: str, token: str) -> None:
    """The two patches and nothing else."""
    tasks = stage.tasks(namespace)
    store = stage.store(namespace, token)

    async def send() -> None:
        account = await store.account()
        await store.close()
        await send_all(
            tasks,
            server=stage.cluster.server,
            authorities=stage.cluster.ca_file.read_text(),
            token=token,
            account=account,
            connections=WORKERS,
        )

    asyncio.run(send())


def by_workers_in_one_process(stage: Stage, namespace: str, token: str) -> None:
    """Eight workers on one loop, each with connections and an outbox of its own."""

    async def work() -> None:
        stores = [stage.store(namespace, token) for _ in range(WORKERS)]
        await asyncio.gather(
            *(
                worker.run_async(
                    store=store,
                    outbox=stage.folder / f"{namespace}-{number}.db",
                    settings=Settings(once=True),
                )
                for number, store in enumerate(stores)
            )
        )
        for store in stores:
            await store.close()

    profile = cProfile.Profile(time.process_time) if PROFILE else contextlib.nullcontext()
    with profile:
        asyncio.run(work())
    if isinstance(profile, cProfile.Profile):
        profile.dump_stats(PROFILE or "")


def by_worker_processes(stage: Stage, namespace: str, token: str) -> None:
    """Eight processes; all are ready before the first one begins."""
    kubeconfig = stage.cluster.kubeconfig_for(token, namespace=namespace)
    command = [sys.executable, "-m", "tests.bench.worker_process", str(kubeconfig), namespace]
    processes = [
        subprocess.Popen(
            [*command, str(stage.folder / f"{namespace}-{number}.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        for number in range(WORKERS)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        ends = _released(processes)
    finally:
        for process in processes:
            process.kill()
    done = sum(json.loads(end).get("ACCEPTED", 0) for end in ends)
    say(f"  the processes did {done} tasks: {[json.loads(end).get('ACCEPTED', 0) for end in ends]}")


def _released(processes: list[subprocess.Popen[str]]) -> list[str]:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"worker processes ended with {[p.returncode for p in processes]}")
    return ends


def _lines(done: dict[str, list[Round]]) -> list[Measured]:
    bare, together, apart = done["bare client"], done["8 workers"], done["8 processes"]
    product = [*together, *apart]
    ratio = Target(sign=">=", limit=70)
    return [
        Measured(name="bare client, 8 connections", unit="tasks/s", values=[r.rate for r in bare]),
        Measured(name="8 workers, one process", unit="tasks/s", values=[r.rate for r in together]),
        Measured(name="8 workers, 8 processes", unit="tasks/s", values=[r.rate for r in apart]),
        Measured(
            name="8 workers in one process, of the bare client",
            unit="%",
            values=_percent(together, bare),
            target=ratio,
            note="each round against the bare round before it; claim + submit of the branches of one job",
        ),
        Measured(
            name="8 workers in 8 processes, of the bare client",
            unit="%",
            values=_percent(apart, bare),
            target=ratio,
        ),
        *(
            Measured(
                name=f"processor time per task, {name}",
                unit="ms",
                values=[r.processor_ms for r in rounds],
                note="API server, etcd, controllers, operator and clients together",
            )
            for name, rounds in {"bare client": bare, "8 workers, one process": together}.items()
        ),
        Measured(
            name="API writes per task",
            unit="writes",
            values=[r.writes for r in product],
            target=Target(sign="=", limit=3),
            note="2xx writes to leasedtasks in the audit log: create, claim, submit",
        ),
        Measured(
            name="requests of a worker per task, reads and lost claims included",
            unit="requests",
            values=[r.requests for r in product],
        ),
        Measured(name="status writes of the job", unit="writes", values=[r.job_writes for r in product]),
    ]


def _percent(ours: list[Round], bare: list[Round]) -> list[float]:
    return [100 * mine.rate / theirs.rate for mine, theirs in zip(ours, bare, strict=True)]
