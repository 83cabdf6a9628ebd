"""One worker of the product as a process that is ready before the clock starts.

`python -m tests.bench.worker_process KUBECONFIG NAMESPACE OUTBOX`: says `ready`, waits for a line, works
until nothing is left, prints its tally as JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from fencepost import Settings
from fencepost.worker.worker import connect_to_cluster
from tests.bench.trivial import worker


async def work(kubeconfig: Path, namespace: str, outbox: Path) -> None:
    """Everything but the waiting is the product."""
    store = await connect_to_cluster(kubeconfig=kubeconfig, namespace=namespace)
    await store.account()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    tally = await worker.run_async(store=store, outbox=outbox, settings=Settings(once=True))
    await store.close()
    print(json.dumps(tally), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, filename=f"{sys.argv[3]}.log")
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
