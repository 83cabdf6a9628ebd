"""The chain of steps (I4) and what recovery accounts for (I2), down to one commit a task."""

from __future__ import annotations

from pathlib import Path

from fencepost.outbox import Outbox
from fencepost.outbox.chain import base_step, replay_from
from fencepost.protocol.steps import mark_text, replay
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import GENESIS
from tests.outbox.given import Server, drained, emitted_for, held_task, opened, result_for, sent


def kinds(outbox: Outbox) -> list[str]:
    return [step.kind for step in outbox.steps()]


def test_a_common_task_costs_one_commit(outbox: Outbox) -> None:
    """Lease, receipt of the task before, result, mark and steps go together."""
    trace: list[str] = []
    outbox._opened.connection.set_trace_callback(trace.append)
    for number in range(50):
        task = held_task(outbox, number)
        outbox.record_lease(task=task)
        assert outbox.result_of(task.uid) is None
        row = outbox.store_result(result_for(task))
        sent(outbox, Server.of(task), row)
        assert list(outbox.pending()) == []
        assert outbox.parked() == ()
    begun = [statement for statement in trace if statement.startswith("BEGIN")]
    assert begun == ["BEGIN IMMEDIATE"] * 50
    assert sum(statement == "COMMIT" for statement in trace) == 50


def test_steps_come_in_the_order_of_what_happened_and_replay_to_the_same_head(outbox: Outbox) -> None:
    task = held_task(outbox)
    outbox.record_lease(task=task)
    row = outbox.store_result(result_for(task))
    sent(outbox, Server.of(task), row)
    outbox.flush()
    steps = list(outbox.steps())
    assert [step.kind for step in steps] == ["lease", "row", "submit"]
    assert outbox.mark == mark_text(3, replay(steps)) == mark_text(3, replay(steps))
    assert len({step.hash for step in steps}) == 3


def test_the_mark_of_a_claim_is_never_ahead_of_the_file(path: Path, outbox: Outbox) -> None:
    assert outbox.mark == mark_text(0, GENESIS)
    outbox.store_result(result_for(held_task(outbox, 1)))
    mark = outbox.mark
    outbox.record_lease(task=held_task(outbox, 2))
    assert outbox.mark == mark

    outbox._opened.close()  # as a crash does: what waits is gone
    with opened(path, "second") as later:
        sequence, _, digest = mark.partition(" ")
        step = later.step_at(int(sequence))
        assert step is not None
        assert step.hash == digest
        assert later.verify().ok


def test_a_row_that_a_crash_left_is_accounted_for_once(path: Path, outbox: Outbox) -> None:
    task = held_task(outbox)
    server = Server.of(task)
    outbox.store_result(result_for(task))
    outbox._opened.close()

    for life in ("second", "third"):
        with opened(path, life) as later:
            assert kinds(later) == ["row", "recover"]
            assert [row.after_crash for row in later.pending()] == [True]
    with opened(path, "fourth") as later:
        assert drained(later, server) == [Verdict.RECOVERED]
        assert later.verify().findings == ()
        assert kinds(later) == ["row", "recover"]  # accounted for already: a submit would be a second time


def test_a_lost_acknowledgement_is_answered_with_the_original_receipt(path: Path, outbox: Outbox) -> None:
    task = held_task(outbox)
    server = Server.of(task)
    row = outbox.store_result(result_for(task))
    answered = outbox.acknowledge(row.id, server.submit(row).receipt, Verdict.ACCEPTED)
    outbox._opened.close()  # before it was written

    with opened(path, "second") as later:
        assert [row.id for row in later.pending()] == [row.id]
        assert drained(later, server) == [Verdict.DUPLICATE]
        assert later.row(row.id).receipt_text == answered.receipt_text
        assert later.verify().findings == ()
    assert len(server.tasks[task.uid].receipts) == 1


def test_the_shape_of_source_002(path: Path) -> None:
    """Five rows and nine steps beside the rows' own: a crash after a row, and an answer that was lost."""
    outbox = opened(path)
    task = held_task(outbox)
    server = Server.of(task)

    def lease() -> None:
        outbox.record_lease(task=server.tasks[task.uid])

    for _ in range(3):
        lease()
    sent(outbox, server, outbox.store_result(emitted_for(task, "feed-row-A")))
    outbox.flush()
    outbox.store_result(emitted_for(task, "feed-row-B"))
    outbox._opened.close()

    outbox = opened(path, "second")
    assert drained(outbox, server) == [Verdict.RECOVERED]
    for payload in ("feed-row-C", "feed-row-D"):
        sent(outbox, server, outbox.store_result(emitted_for(task, payload)))
    lease()
    lost = outbox.store_result(emitted_for(task, "feed-row-E"))
    server.submit(lost)
    assert sent(outbox, server, lost) is Verdict.DUPLICATE
    outbox.flush()
    steps = kinds(outbox)
    assert [steps.count(kind) for kind in ("row", "lease", "submit", "recover")] == [5, 4, 4, 1]
    assert outbox.verify().findings == ()
    outbox.close()


def test_a_replay_from_a_base_is_the_replay_from_the_beginning(outbox: Outbox) -> None:
    for number in range(5):
        outbox.store_result(result_for(held_task(outbox, number)))
    steps = list(outbox.steps())
    base = base_step(steps[1].sequence, steps[1].hash)
    assert replay_from(base, steps[2:]) == steps[-1] == replay_from(None, steps)
    assert base_step(0, GENESIS) is None
