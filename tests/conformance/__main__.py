"""`python -m tests.conformance`: a line for each rule and store, and at the end how many passed.

The API server is the test control plane, started for this run, or the cluster that FENCEPOST_TEST_KUBECONFIG
names. `--stores memory,sqlite` leaves it out.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.conformance.checks import EVERYWHERE, Check
from tests.conformance.clusters import a_cluster
from tests.conformance.grounds import (
    API_SERVER,
    MEMORY,
    Ground,
    api_server_ground,
    label_of,
    memory_ground,
    sqlite_ground,
)
from tests.conformance.suites import ALL

CHECK_SECONDS_MAX = 120.0


class Run:
    """One run over the chosen stores."""

    def __init__(self, cluster: Cluster | None) -> None:
        self.cluster = cluster
        self.namespace = cluster.new_namespace("conformance") if cluster else ""
        self.tokens: dict[str, str] = {}
        self.passed = 0
        self.failed = 0

    def token(self, role: str) -> str:
        """A ServiceAccount for each role, made once."""
        assert self.cluster is not None
        if role not in self.tokens:
            self.tokens[role] = self.cluster.service_account(self.namespace, role)  # type: ignore[arg-type]
        return self.tokens[role]

    @asynccontextmanager
    async def ground(self, store: str, check: Check) -> AsyncIterator[Ground]:
        label = label_of(check.name)
        with tempfile.TemporaryDirectory() as folder:
            if store == API_SERVER:
                assert self.cluster is not None
                made = api_server_ground(self.cluster, self.namespace, self.token, Path(folder), label)
            else:
                made = (memory_ground if store == MEMORY else sqlite_ground)(Path(folder), label)
            async with made as ground:
                yield ground

    async def run(self, store: str, check: Check) -> None:
        try:
            async with asyncio.timeout(CHECK_SECONDS_MAX), self.ground(store, check) as ground:
                await check.run(ground)
        except Exception as failure:
            self.failed += 1
            say("FAILED", check, store)
            print(f"       {type(failure).__name__}: {failure}", flush=True)
        else:
            self.passed += 1
            say("ok", check, store)

    def close(self) -> None:
        if self.cluster:
            self.cluster.delete_namespace(self.namespace)


def say(word: str, check: Check, store: str) -> None:
    print(f"{word:<6} {check.source} {check.rule:<15} {store:<10}  {check.says}", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--stores", default=",".join(EVERYWHERE), help="of: %(default)s")
    chosen = [name.strip() for name in parser.parse_args(arguments).stores.split(",")]
    strange = [name for name in chosen if name not in EVERYWHERE]
    if strange:
        parser.error(f"no store {', '.join(strange)}; there are {', '.join(EVERYWHERE)}")
    logging.disable(logging.CRITICAL)  # what a worker says about refused rows is what the checks are about
    with ExitStack() as stack:
        run = Run(stack.enter_context(a_cluster()) if API_SERVER in chosen else None)
        stack.callback(run.close)
        for check in ALL:
            for store in chosen:
                if store in check.stores:
                    asyncio.run(run.run(store, check))
    print(f"{run.passed} passed, {run.failed} failed")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
