"""Source 000: lease fencing and idempotent submit, over all three stores.

Its sample ledger, its six rules, the five situations of its failure table and its worker loop. The source
looks at the token before the key; here a stored key is answered first, and its four submits get the outcomes
that it expects all the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from fencepost import Lease, Settings, Worker
from fencepost.ports import Answer, Applied, Refused, TaskStore, Unanswered
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.manifest import parse_manifest, problems
from fencepost.protocol.mutation import Claim, Mutation, Submit
from fencepost.protocol.submission import Judgement, Verdict
from fencepost.protocol.task import LeaseEnd, State
from fencepost.worker.worker import open_outbox
from tests.conformance.checks import Suite, expect
from tests.conformance.grounds import Ground
from tests.contract.acting import Actor, heartbeat_of, release_of, submission_of, submit_of

FIXTURES: Final = Path(__file__).parent / "fixtures"
LEDGER: Final[Mapping[str, Any]] = json.loads((FIXTURES / "sample_ledger.json").read_text())
VERDICT_OF: Final = {
    "rejected_stale_token": Verdict.REJECTED_STALE_TOKEN,
    "accepted": Verdict.ACCEPTED,
    "duplicate_key_same_receipt": Verdict.DUPLICATE,
    "conflict": Verdict.CONFLICT,
}
ONCE: Final = Settings(once=True, idle_seconds_min=0.01, idle_seconds_max=0.05)

SUITE: Final = Suite("000")


async def play_the_ledger(ground: Ground) -> list[Judgement]:
    """The ledger's leases, then its submits; the judgement of each."""
    task = await ground.put(LEDGER["leases"][0]["task_id"].replace("_", "-"))
    name = task.key.name.removesuffix(f"-{ground.label}")
    holders: dict[int, tuple[Actor, str]] = {}
    for lease in LEDGER["leases"]:
        if holders:
            await ground.end_lease(name)
        worker = await ground.worker()
        held = await worker.claim(task.key)
        expect(held.token, lease["fencing_token"], f"the token of {lease['leased_by']}")
        holders[held.token] = (worker, held.holder)
    judgements = []
    for submit in LEDGER["submits"]:
        worker, holder = holders[submit["fencing_token"]]
        submission = submission_of(
            await worker.read(task.key),
            submit["payload"],
            account=worker.account,
            key=submit["idempotency_key"],
            token=submit["fencing_token"],
            holder=holder,
        )
        judgements.append(await worker.hand_in(task.key, submission))
    return judgements


async def submit_has_its_outcome(number: int, ground: Ground) -> None:
    judgements = await play_the_ledger(ground)
    expected = VERDICT_OF[LEDGER["submits"][number]["expected"]]
    expect(judgements[number].verdict, expected, f"submit {number + 1} of the sample ledger")


for number, submit in enumerate(LEDGER["submits"]):
    SUITE.add(
        f"LEDGER-{number + 1}",
        f"token {submit['fencing_token']}, {submit['idempotency_key']}: {submit['expected']}",
        partial(submit_has_its_outcome, number),
    )


@SUITE.check("FENCE-01", "the token never falls, and grows by one with every claim")
async def the_token_counts_the_claims(ground: Ground) -> None:
    task = await ground.put("a")
    tokens = [task.token]
    for end in (LeaseEnd.SHUTDOWN, LeaseEnd.SHUTDOWN):
        worker = await ground.worker()
        held = await worker.claim(task.key)
        renewed = await worker.store.write(heartbeat_of(held))
        released = await worker.store.write(release_of(held, end))
        assert isinstance(renewed, Applied) and isinstance(released, Applied)
        tokens += [held.token, renewed.task.token, released.task.token]
    held = await (await ground.worker()).claim(task.key)
    tokens += [held.token, (await ground.end_lease("a")).token]
    expect(tokens, [0, 1, 1, 1, 2, 2, 2, 3, 3], "the tokens in order")


@SUITE.check("FENCE-02", "a stale heartbeat, release or submit is refused and leaves no record")
async def nothing_passes_under_a_stale_token(ground: Ground) -> None:
    task = await ground.put("a")
    old, new = await ground.worker(), await ground.worker()
    stale = await old.claim(task.key)
    await ground.end_lease("a")
    current = await new.claim(task.key)
    late = submit_of(stale, submission_of(stale, account=old.account))
    for write in (heartbeat_of(stale), release_of(stale, LeaseEnd.ERROR), late):
        answer = await old.store.write(write)
        expect(type(answer), Refused, f"a stale {type(write).__name__}")
    expect((await old.submit(stale)).verdict, Verdict.REJECTED_STALE_TOKEN, "a stale submit")
    expect(await new.read(task.key), current, "the task afterwards")


@SUITE.check("IDEM-01", "a replay returns the original receipt, byte for byte, and makes no second record")
async def a_replay_is_the_original_receipt(ground: Ground) -> None:
    *_, duplicate, _ = await play_the_ledger(ground)
    accepted = LEDGER["submits"][1]
    assert duplicate.receipt is not None
    digest = hashlib.sha256(accepted["payload"].encode()).hexdigest()
    expect(duplicate.receipt.payload_sha256, digest, "the source's receipt hash")
    [stored] = (await ground.task("task-alpha")).receipts
    expect(duplicate.receipt, stored, "the receipt of the replay")
    again = await ground.worker()
    submission = submission_of(
        await again.read(ground.place.key(ground.name("task-alpha"))),
        accepted["payload"],
        account=again.account,
        key=accepted["idempotency_key"],
    )
    restarted = await again.hand_in(ground.place.key(ground.name("task-alpha")), submission)
    expect(restarted.receipt, stored, "the receipt of a replay by a client that was opened anew")


@SUITE.check("IDEM-02", "the same key with another payload is a conflict, and the first stands")
async def another_body_is_a_conflict(ground: Ground) -> None:
    *_, conflict = await play_the_ledger(ground)
    expect(conflict.verdict, Verdict.CONFLICT, "the changed payload")
    values = [receipt.value for receipt in (await ground.task("task-alpha")).receipts]
    expect(values, [LEDGER["submits"][1]["payload"]], "what is stored")


class Feed:
    """A worker's handler, and what it was called with."""

    def __init__(self, ground: Ground) -> None:
        self.runs: list[int] = []
        self.worker = Worker(queue=ground.queue)
        self.worker.task(self.work)
        self.outbox = ground.folder / f"outbox-{ground.label}.db"

    async def work(self, request: dict[str, Any], lease: Lease) -> str:
        """The result says what was asked, and nothing of the attempt."""
        self.runs.append(lease.token)
        return f"did {request['n']}"

    async def run(self, store: TaskStore) -> Mapping[str, int]:
        return await self.worker.run_async(store=store, outbox=self.outbox, settings=ONCE)


class Wire:
    """A store behind a wire that a check may cut; it remembers what was sent."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self.sent: list[Mutation] = []
        self.lose_answers_of: list[type] = []
        self.die_before: type | None = None
        self.die_after: type | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, mutation: Mutation) -> Answer:
        if self.die_before is type(mutation):
            raise PowerCut
        self.sent.append(mutation)
        answer = await self._store.write(mutation)
        if self.die_after is type(mutation):
            raise PowerCut
        if type(mutation) in self.lose_answers_of:
            self.lose_answers_of.remove(type(mutation))
            return Unanswered(message="the wire was cut")
        return answer


class PowerCut(BaseException):
    """The worker's process ends here."""


@SUITE.check("OUTBOX-01", "every completed task has one acknowledged outbox entry with a matching receipt")
async def every_task_has_its_entry(ground: Ground) -> None:
    feed = Feed(ground)
    names = ["a", "b", "c"]
    for number, name in enumerate(names):
        await ground.put(name, {"n": number})
    await feed.run(ground.client())
    with open_outbox(feed.outbox) as outbox:
        for name in names:
            task = await ground.task(name)
            expect(task.state, State.SUCCEEDED, name)
            [row], [receipt] = outbox.rows_of(task.uid), task.receipts
            expect(row.status, RowStatus.ACKNOWLEDGED, f"the entry of {name}")
            expect(row.receipt_sha256, receipt.receipt_sha256, f"the receipt of {name}")
            digest = hashlib.sha256(row.value.encode()).hexdigest()
            expect(receipt.payload_sha256, digest, f"the hash of {name} recomputed from its payload")
        outbox.verify()


@SUITE.check("MANIFEST-01", "what a manifest lists exists and its SHA-256 matches; a changed file is named")
async def the_manifest_holds(ground: Ground) -> None:
    feed = Feed(ground)
    digests = parse_manifest((FIXTURES / "manifest.sha256").read_text())
    expect(len(digests), 2, "the files listed")
    expect(problems(digests, digest_of_fixture), [], "problems of the source's own files")
    task = await ground.put("a", {"n": 1})
    await feed.run(ground.client())
    value = (await ground.task("a")).receipts[0].value
    listed = {task.key.name: hashlib.sha256(value.encode()).hexdigest()}
    stored = {task.key.name: (await ground.task("a")).receipts[0].payload_sha256}
    expect(problems(listed, stored.get), [], "problems of a manifest over receipts")
    wrong = problems({**listed, "gone": "0" * 64}, {**stored, task.key.name: "1" * 64}.get)
    expect(len(wrong), 2, "problems after one changed and one vanished")


def digest_of_fixture(path: str) -> str | None:
    file = FIXTURES / path
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None


@SUITE.check("LOOP", "claim, execute, submit, mark done; an empty queue ends the run; nothing runs twice")
async def the_worker_loop(ground: Ground) -> None:
    feed = Feed(ground)
    store = Wire(ground.client())
    expect(sum((await feed.run(store)).values()), 0, "what a run without tasks did")
    await ground.put("a", {"n": 1})
    await feed.run(store)
    await feed.run(store)
    expect(feed.runs, [1], "executions")
    expect([type(write) for write in store.sent], [Claim, Submit], "the writes of a task")
    task = await ground.task("a")
    expect([receipt.value for receipt in task.receipts], ["did 1"], "the result")


@SUITE.check("LOOP-WATERFALL", "a later queue is looked at while the earlier ones have nothing")
async def queues_are_taken_in_order(ground: Ground) -> None:
    order: list[str] = []
    first, second = f"{ground.queue}-1", f"{ground.queue}-2"
    worker = Worker(queues=[first, second])
    for queue in (first, second):
        worker.task(queue=queue)(recorder(order, queue))
    for base, queue in (("a", second), ("b", first), ("c", first)):
        await ground.put(base, {"n": 1}, queue=queue)
    await worker.run_async(store=ground.client(), outbox=ground.folder / "outbox.db", settings=ONCE)
    expect(order, [first, first, second], "the order of the queues")


def recorder(order: list[str], queue: str) -> Any:
    async def handle(request: dict[str, Any]) -> str:
        order.append(queue)
        return "done"

    return handle


@SUITE.check("FAILURE-1", "lease ends mid-work: nothing is accepted under it, and the work is claimed again")
async def the_lease_ends_while_the_work_goes_on(ground: Ground) -> None:
    feed = Feed(ground)
    other = Feed(ground)
    other.outbox = ground.folder / f"other-{ground.label}.db"
    ended: list[int] = []

    async def lose_the_first(request: dict[str, Any], lease: Lease) -> str:
        if not ended:
            ended.append(lease.token)
            await ground.end_lease("a")
            await other.run(ground.client())
        return "by the one that lost it"

    feed.worker = Worker(queue=ground.queue)
    feed.worker.task(lose_the_first)
    await ground.put("a", {"n": 1})
    done = await feed.run(ground.client())
    expect(ended, [1], "the lease that ended")
    expect(done[Verdict.ACCEPTED.value], 0, "what the loser had accepted")
    [receipt] = (await ground.task("a")).receipts
    expect((receipt.fencing_token, receipt.value), (2, "did 1"), "the one receipt")


@SUITE.check("FAILURE-2", "submit times out: the same key is sent again and the one receipt is read back")
async def the_answer_to_a_submit_is_lost(ground: Ground) -> None:
    feed = Feed(ground)
    store = Wire(ground.client())
    store.lose_answers_of = [Submit]
    await ground.put("a", {"n": 1})
    await feed.run(store)
    [receipt] = (await ground.task("a")).receipts
    keys = {write.receipt.idempotency_key for write in store.sent if isinstance(write, Submit)}
    expect(keys, {receipt.idempotency_key}, "the keys that were sent")
    with open_outbox(feed.outbox) as outbox:
        [row] = outbox.rows_of((await ground.task("a")).uid)
        expect(
            (row.status, row.receipt_sha256), (RowStatus.ACKNOWLEDGED, receipt.receipt_sha256), "the entry"
        )
    expect(feed.runs, [1], "executions")


@SUITE.check("FAILURE-3", "two workers hold leases: only the higher token's result stands")
async def two_workers_believe_that_they_hold_it(ground: Ground) -> None:
    task = await ground.put("a")
    low, high = await ground.worker(), await ground.worker()
    first = await low.claim(task.key)
    await ground.end_lease("a")
    second = await high.claim(task.key)
    expect((await low.submit(first, "low")).verdict, Verdict.REJECTED_STALE_TOKEN, "the lower token")
    expect((await high.submit(second, "high")).verdict, Verdict.ACCEPTED, "the higher token")
    expect((await low.submit(first, "low")).verdict, Verdict.REJECTED_STALE_TOKEN, "the lower token again")
    values = [receipt.value for receipt in (await ground.task("a")).receipts]
    expect(values, ["high"], "what stands")


@SUITE.check("FAILURE-4", "restart mid-submit: the outbox is drained before anything is claimed, same keys")
async def the_worker_restarts_in_the_middle_of_a_submit(ground: Ground) -> None:
    for moment, base in (("die_before", "a"), ("die_after", "b")):
        feed = Feed(ground)
        feed.outbox = ground.folder / f"outbox-{base}.db"
        await ground.put(base, {"n": 1})
        store = Wire(ground.client())
        setattr(store, moment, Submit)
        try:
            await feed.run(store)
        except PowerCut:
            pass
        else:
            raise AssertionError("the submit was never sent")
        with open_outbox(feed.outbox) as outbox:
            [stored] = outbox.rows_of((await ground.task(base)).uid)
        await ground.put(f"{base}-next", {"n": 2})
        again = Wire(ground.client())
        await feed.run(again)
        kinds = [type(write) for write in again.sent]
        claims = kinds.index(Claim)
        expect(Submit in kinds[:claims], moment == "die_before", "a submit before the first claim")
        [receipt] = (await ground.task(base)).receipts
        expect(receipt.idempotency_key, stored.idempotency_key, "the key of the receipt")
        expect(feed.runs.count(1), 2, "executions, one for each task")


@SUITE.check("FAILURE-5", "a key used again with another payload is a conflict; new work needs a new key")
async def a_key_is_reused(ground: Ground) -> None:
    worker = await ground.worker()
    held = await worker.claim((await ground.put("a")).key)
    await worker.submit(held, "one", key="k")
    expect((await worker.submit(held, "two", key="k")).verdict, Verdict.CONFLICT, "the reused key")
    second = await worker.claim((await ground.put("b")).key)
    expect((await worker.submit(second, "two", key="k2")).verdict, Verdict.ACCEPTED, "a new key for new work")
