"""Any number of threads may use an outbox (B21): no lock error, nothing lost, nothing sent twice."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencepost.outbox import Outbox
from fencepost.protocol.drain import RowStatus
from tests.outbox.given import Server, held_task, result_for, sent

THREADS = 8


def stored_and_drained(outbox: Outbox, rows_a_thread: int) -> Counter[int]:
    """How often each row was sent by a drain that runs beside all the threads that store."""
    tasks = [held_task(outbox, number) for number in range(THREADS * rows_a_thread)]
    server = Server.of(*tasks)
    sends: Counter[int] = Counter()
    finished = threading.Event()

    def store(thread: int) -> None:
        for task in tasks[thread::THREADS]:
            outbox.record_lease(task=task)
            outbox.store_result(result_for(task))

    def drain() -> None:
        while True:
            last_pass = finished.is_set()
            for row in outbox.pending():
                sends[row.id] += 1
                sent(outbox, server, row)
            if last_pass:
                return

    with ThreadPoolExecutor(THREADS + 1) as pool:
        draining = pool.submit(drain)
        try:
            for storing in [pool.submit(store, thread) for thread in range(THREADS)]:
                storing.result()
        finally:
            finished.set()
        draining.result()
    return sends


@pytest.mark.parametrize("rows_a_thread", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_eight_threads_store_while_a_ninth_drains(outbox: Outbox, rows_a_thread: int) -> None:
    sends = stored_and_drained(outbox, rows_a_thread)
    total = THREADS * rows_a_thread
    assert sends == Counter(range(1, total + 1))
    assert {row.status for row in outbox.all()} == {RowStatus.ACKNOWLEDGED}
    verification = outbox.verify()
    assert (verification.rows, verification.steps, verification.findings) == (total, 3 * total, ())


def test_threads_that_store_the_same_result_get_the_same_row(outbox: Outbox) -> None:
    task = held_task(outbox)
    together = threading.Barrier(THREADS)

    def store(_: int) -> int:
        together.wait()
        return outbox.store_result(result_for(task)).id

    with ThreadPoolExecutor(THREADS) as pool:
        assert set(pool.map(store, range(THREADS))) == {1}
