"""What users' tests get: a store whose clock one moves, faults on request, and the fixtures."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fencepost import Lease, Worker
from fencepost.certainty import write_until_certain
from fencepost.ports import Applied, Unanswered
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import LeaseEnd, State
from fencepost.testing import MemoryStore
from tests.contract.acting import Actor, claim_of, submission_of, submit_of


async def test_a_lost_answer_was_applied() -> None:
    store = MemoryStore()
    worker = await Actor.of(store)
    task = store.put("feeds", name="a")
    store.lose_next_answer()
    assert isinstance(await worker.try_claim(task), Unanswered)
    assert store.look("a").holder == worker.holder


async def test_a_lost_request_was_not() -> None:
    store = MemoryStore()
    worker = await Actor.of(store)
    task = store.put("feeds", name="a")
    store.lose_next_request()
    assert isinstance(await worker.try_claim(task), Unanswered)
    assert store.look("a").holder == ""
    assert isinstance(await worker.try_claim(task), Applied)


async def test_a_delayed_write_lands_later_and_only_if_its_preconditions_hold() -> None:
    store = MemoryStore()
    worker, other = await Actor.of(store), await Actor.of(store)
    task = store.put("feeds", name="a")
    store.delay_next_write(34)
    assert isinstance(await worker.try_claim(task), Unanswered)
    store.advance(33)
    assert store.look("a").holder == ""
    store.advance(1)
    assert store.look("a").holder == worker.holder
    held = store.look("a")
    store.delay_next_write(34)
    late = submit_of(held, submission_of(held, account=worker.account))
    assert isinstance(await store.write(late), Unanswered)
    store.expire_lease("a")
    store.advance(34)
    assert store.look("a").receipts == ()
    assert other.holder != worker.holder


async def test_an_unanswered_write_becomes_certain_whatever_happened_to_it() -> None:
    for fault in ("lose_next_answer", "lose_next_request"):
        store = MemoryStore()
        worker = await Actor.of(store)
        task = store.put("feeds", name="a")
        getattr(store, fault)()
        claim = claim_of(task, holder=worker.holder, account=worker.account)
        answer = await write_until_certain(store, claim, pause=lambda _: yes())
        assert isinstance(answer, Applied), fault
        assert store.look("a").token == 1


async def yes() -> bool:
    return True


async def test_an_expired_lease_is_over_without_moving_the_clock() -> None:
    store = MemoryStore()
    worker = await Actor.of(store)
    held = await worker.claim(store.put("feeds", name="a").key)
    before = store.now
    expired = store.expire_lease("a")
    assert store.now == before
    assert expired.last_lease is not None
    assert expired.last_lease.end is LeaseEnd.EXPIRED
    assert (await worker.submit(held)).verdict is Verdict.REJECTED_EXPIRED_LEASE
    with pytest.raises(ValueError, match="nobody holds"):
        store.expire_lease("a")


async def test_time_does_what_is_due_on_the_way() -> None:
    store = MemoryStore()
    worker = await Actor.of(store)
    await worker.claim(store.put("feeds", name="a", lease_duration_seconds=30).key)
    store.advance(3600)
    task = store.look("a")
    assert (task.hold, task.failures, task.state) == (None, 1, State.OPEN)


async def test_what_is_not_there_or_twice_is_an_error() -> None:
    store = MemoryStore()
    store.put("feeds", name="a")
    with pytest.raises(ValueError, match="already"):
        store.put("feeds", name="a")
    with pytest.raises(KeyError):
        store.look("b")


worker = Worker(queue="feeds")
runs: Counter[int] = Counter()


@worker.task
def count(request: dict[str, int], lease: Lease) -> dict[str, int]:
    runs[request["n"]] += 1
    return {"runs": runs[request["n"]]}


def test_the_fixtures_run_a_worker(
    fencepost_store: MemoryStore, fencepost_drain: Callable[[Worker], Counter[str]]
) -> None:
    runs.clear()
    fencepost_store.put("feeds", {"n": 1}, name="a")
    done = fencepost_drain(worker)
    assert done["ACCEPTED"] == 1
    task = fencepost_store.look("a")
    assert (task.state, task.receipts[0].value) == (State.SUCCEEDED, '{"runs":1}')
    assert fencepost_drain(worker)["ACCEPTED"] == 0


def test_a_lost_answer_does_not_run_the_work_twice(
    fencepost_store: MemoryStore, fencepost_drain: Callable[[Worker], Counter[str]]
) -> None:
    runs.clear()
    fencepost_store.put("feeds", {"n": 2}, name="a")
    fencepost_store.lose_next_answer()  # of the claim
    fencepost_drain(worker)
    assert runs == {2: 1}
    assert fencepost_store.look("a").count == 1


@pytest.mark.slow
def test_the_plugin_imports_nothing_of_ours_before_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    ours = sorted(name for name in sys.modules if name.startswith('fencepost'))\n"
        "    assert ours == ['fencepost', 'fencepost.testing', 'fencepost.testing.plugin'], ours\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout
