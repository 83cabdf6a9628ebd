"""Source 002: outbox dedup under clock skew, partial writes and crashes, its 22 checks in order.

One feed task, one claim for each snapshot (tokens 1 to 4), rows under fresh keys. What the source calls its
rows are the receipts of the task; its checkpoints are the steps of a real outbox but for our `row` steps: 4
leases, 4 submits, 1 recover. A crash is what the disk would hold: the outbox's file as it is at that moment,
opened by the next life of the worker.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from fencepost.outbox import NewRow, Outbox
from fencepost.ports import Applied
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.receipt import verify_chain
from fencepost.protocol.steps import Step, StepKind, next_step, replay
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import Kind, LeaseEnd, Outcome, RetryPolicy, Task
from fencepost.worker.worker import open_outbox
from tests.conformance.checks import EMBEDDED, Suite, expect
from tests.conformance.grounds import Ground
from tests.contract.acting import Actor, release_of, submission_of

SUITE: Final = Suite("002")
HEAD: Final = "aeb556852aebebf0"
DIGITS: Final = 16
LEASE_SECONDS: Final = 60
BACKOFF_SECONDS: Final = 1  # the shortest that a task may ask for


def short(text: str) -> str:
    return sha256_hex(text)[:DIGITS]


@dataclass
class Observed:
    """What the run came to, by the source's own names for its checks."""

    checks: list[tuple[str, object, object]] = field(default_factory=list)
    rows: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    head: str = ""

    def check(self, name: str, expected: object, observed: object) -> None:
        self.checks.append((name, expected, observed))


class Feed:
    """The feed's task, its worker and its outbox, in the hands of the scenario."""

    def __init__(self, ground: Ground, worker: Actor, task: Task, outbox: Outbox) -> None:
        self.ground = ground
        self.worker = worker
        self.task = task
        self.outbox = outbox
        self.held = task
        self.source_chain: list[Step] = []
        self.lives = 1

    async def lease(self, snapshot: str) -> Task:
        """Claim for the next snapshot; a lease that is still there is let go first."""
        now = await self.worker.read(self.task.key)
        if now.held:
            assert isinstance(await self.worker.store.write(release_of(now, LeaseEnd.SHUTDOWN)), Applied)
        self.held = await self.worker.claim(self.task.key)
        self.outbox.record_lease(task=self.held)
        self._source_step("lease", f"{snapshot}:token={self.held.token}")
        return self.held

    async def submit(self, held: Task, payload: str, *, device_time: str = "") -> Verdict:
        """Straight to the server under a fresh key, as the source's retries go."""
        submission = submission_of(held, payload, account=self.worker.account, kind=Kind.ROW)
        stamped = replace(submission, device_time=device_time)
        return (await self.worker.hand_in(self.task.key, stamped)).verdict

    async def emit(self, snapshot: str, payload: str, *, device_time: str = "") -> Verdict:
        """Through the outbox: stored, submitted, marked with the receipt."""
        row = self.outbox.store_result(self._row(payload, device_time))
        submission = row.submission(recorded_by=self.worker.account)
        judgement = await self.worker.hand_in(self.task.key, submission)
        self.outbox.acknowledge(row.id, judgement.receipt, judgement.verdict)
        self._source_step("submit", f"{short(payload)}:{snapshot}")
        return judgement.verdict

    async def crash_between_insert_and_checkpoint(self, payload: str) -> None:
        """The row is in the outbox and at the server; the process ends before it is marked."""
        row = self.outbox.store_result(self._row(payload))
        await self.worker.hand_in(self.task.key, row.submission(recorded_by=self.worker.account))
        self._restart()

    def crash_before_insert(self) -> None:
        """The process ends before anything was stored."""
        self.outbox.flush()
        self._restart()

    def recovered(self, snapshot: str) -> int:
        """How many steps the new life has written for rows that stood without one."""
        steps = [step for step in self.outbox.steps() if step.kind == StepKind.RECOVER]
        for row in self.outbox.pending():
            self._source_step("recover", f"{short(row.value)}:{snapshot}")
        return len(steps)

    async def rows(self) -> int:
        return (await self.worker.read(self.task.key)).count

    async def rows_without_step(self) -> int:
        covered = {
            row.idempotency_key
            for row in self.outbox.all()
            if row.covered_step is not None or row.receipt_text
        }
        receipts = (await self.worker.read(self.task.key)).receipts
        return sum(1 for receipt in receipts if receipt.idempotency_key not in covered)

    def _row(self, payload: str, device_time: str = "") -> NewRow:
        return NewRow(
            task_key=self.task.key,
            uid=self.task.uid,
            token=self.held.token,
            holder=self.held.holder,
            kind=Kind.ROW,
            outcome=Outcome.OK,
            value=payload,
            device_time=device_time,
        )

    def _restart(self) -> None:
        self.lives += 1
        copy = self.outbox.path.with_name(f"life-{self.lives}.db")
        for suffix in ("", "-journal"):
            source = Path(f"{self.outbox.path}{suffix}")
            if source.exists():
                shutil.copy(source, f"{copy}{suffix}")
        self.outbox.close()
        self.outbox = open_outbox(copy)

    def _source_step(self, kind: str, state: str) -> None:
        before = self.source_chain[-1] if self.source_chain else None
        self.source_chain.append(next_step(before, kind, state, digits=DIGITS))


async def play(ground: Ground) -> Observed:
    """The source's scenario, in its order."""
    worker = await ground.worker()
    policy = RetryPolicy(
        max_failures=10, backoff_base_seconds=BACKOFF_SECONDS, backoff_max_seconds=BACKOFF_SECONDS
    )
    task = await ground.put("feed", lease_duration_seconds=LEASE_SECONDS, retry_policy=policy)
    feed = Feed(ground, worker, task, open_outbox(ground.folder / "life-1.db"))
    seen = Observed()
    try:
        second = await clock_skew(feed, seen)
        await crashes(feed, seen, second)
        await snapshots(feed, seen)
        await chain(feed, seen)
    finally:
        feed.outbox.close()
    return seen


async def clock_skew(feed: Feed, seen: Observed) -> Task:
    assert feed.ground.advance is not None and feed.ground.embedded is not None
    first = await feed.lease("S1")
    feed.ground.advance(180)
    verdict = await feed.submit(first, "feed-row-A", device_time="940")
    seen.check(
        "1a skew-behind: expired lease rejected despite device clock", "REJECTED_EXPIRED_LEASE", verdict
    )
    seen.check("1a rows still 0", 0, await feed.rows())
    feed.ground.advance(BACKOFF_SECONDS)
    await feed.ground.embedded.keep_up()
    await feed.lease("S2")
    feed.ground.advance(20 - BACKOFF_SECONDS)
    verdict = await feed.emit("S2", "feed-row-A", device_time="1500")
    seen.check("1b skew-ahead: valid lease accepted despite device clock", "ACCEPTED", verdict)
    seen.check("1b rows == 1", 1, await feed.rows())
    second = feed.held
    await feed.lease("S3")
    verdict = await feed.submit(second, "feed-row-B")
    seen.check("1c stale token rejected at lease boundary", "REJECTED_STALE_TOKEN", verdict)
    return second


async def crashes(feed: Feed, seen: Observed, second: Task) -> None:
    await feed.crash_between_insert_and_checkpoint("feed-row-B")
    seen.check("2a row exists after crash (not lost)", 2, await feed.rows())
    seen.check("2a uncheckpointed rows before recovery", 1, len(list(feed.outbox.pending())))
    seen.check("2a recovery rebuilds exactly 1 checkpoint", 1, feed.recovered("S3"))
    await drain(feed)
    seen.check("2a all rows checkpointed after recovery", 0, await feed.rows_without_step())
    verdict = await feed.submit(feed.held, "feed-row-B")
    seen.check("2a retry after crash-recovery is duplicate, not a 2nd row", "REJECTED_DUPLICATE", verdict)
    seen.check("2a rows still 2", 2, await feed.rows())
    feed.crash_before_insert()
    seen.check("2b crash-before-insert leaves no row", 2, await feed.rows())
    seen.check("2b safe retry accepted", "ACCEPTED", await feed.emit("S3", "feed-row-C"))


async def drain(feed: Feed) -> None:
    """The new life hands in what it found, under the stored keys: answered, not stored again."""
    for row in feed.outbox.pending():
        judgement = await feed.worker.hand_in(feed.task.key, row.submission(recorded_by=feed.worker.account))
        expect(judgement.verdict, Verdict.DUPLICATE, "the drain of a row that the server has")
        feed.outbox.acknowledge(row.id, judgement.receipt, judgement.verdict)


async def snapshots(feed: Feed, seen: Observed) -> None:
    await feed.lease("S4")
    verdict = await feed.submit(feed.held, "feed-row-A")
    seen.check("3 same payload under new snapshot is duplicate", "REJECTED_DUPLICATE", verdict)
    seen.check("3 rows still 3", 3, await feed.rows())
    verdict = await feed.emit("S4", "feed-row-D")
    seen.check("3 distinct payload under new snapshot accepted", "ACCEPTED", verdict)
    seen.check("3 rows == 4", 4, await feed.rows())
    await feed.emit("S4", "feed-row-E")  # the acknowledgement is lost on the way to the caller
    verdict = await feed.submit(feed.held, "feed-row-E")
    seen.check("2c ack-lost retry is duplicate, row kept exactly once", "REJECTED_DUPLICATE", verdict)
    seen.check("2c rows == 5", 5, await feed.rows())


async def chain(feed: Feed, seen: Observed) -> None:
    feed.outbox.verify()
    steps = [step for step in feed.outbox.steps() if step.kind != StepKind.ROW]
    seen.kinds = Counter(str(step.kind) for step in steps)
    seen.check("4 chain hashes all unique", 9, len({step.hash for step in steps}))
    seen.head = replay(feed.source_chain, digits=DIGITS)
    seen.check("4 replay head stable on second replay", HEAD, replay(feed.source_chain, digits=DIGITS))
    seen.check("4 every row checkpointed", 0, await feed.rows_without_step())
    task = await feed.worker.read(feed.task.key)
    verify_chain(task)
    seen.rows = task.count
    expect([receipt.fencing_token for receipt in task.receipts], [2, 3, 3, 4, 4], "the tokens of the rows")


NAMES: Final = (
    "1a skew-behind: expired lease rejected despite device clock",
    "1a rows still 0",
    "1b skew-ahead: valid lease accepted despite device clock",
    "1b rows == 1",
    "1c stale token rejected at lease boundary",
    "2a row exists after crash (not lost)",
    "2a uncheckpointed rows before recovery",
    "2a recovery rebuilds exactly 1 checkpoint",
    "2a all rows checkpointed after recovery",
    "2a retry after crash-recovery is duplicate, not a 2nd row",
    "2a rows still 2",
    "2b crash-before-insert leaves no row",
    "2b safe retry accepted",
    "3 same payload under new snapshot is duplicate",
    "3 rows still 3",
    "3 distinct payload under new snapshot accepted",
    "3 rows == 4",
    "2c ack-lost retry is duplicate, row kept exactly once",
    "2c rows == 5",
    "4 chain hashes all unique",
    "4 replay head stable on second replay",
    "4 every row checkpointed",
)


async def the_check_passes(number: int, ground: Ground) -> None:
    seen = await play(ground)
    expect([name for name, _, _ in seen.checks], list(NAMES), "the checks in the source's order")
    name, expected, observed = seen.checks[number]
    expect(observed, expected, name)


for number, name in enumerate(NAMES):
    invariant = {"1": "I3", "2": "I2", "3": "I1", "4": "I4"}[name[0]]
    SUITE.add(f"{number + 1:02} {invariant}", name, partial(the_check_passes, number), stores=EMBEDDED)


@SUITE.check(
    "TOTALS", f"5 rows, 9 checkpoints (4 leases, 4 submits, 1 recover), head {HEAD}", stores=EMBEDDED
)
async def the_totals(ground: Ground) -> None:
    seen = await play(ground)
    expect(seen.rows, 5, "rows")
    expect(dict(seen.kinds), {"lease": 4, "submit": 4, "recover": 1}, "checkpoints")
    expect(seen.head, HEAD, "the head of the source's chain")
