"""How rows stand: pending, acknowledged, parked, dead; and what a receipt must prove (OUTBOX-01, IDEM-01)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fencepost.outbox import Outbox, ReceiptMismatch
from fencepost.protocol.drain import RowStatus, status_after
from fencepost.protocol.receipt import sealed
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import Receipt, State
from tests.outbox.given import ACCOUNT, Server, drained, emitted_for, held_task, opened, result_for, sent


def accepted(outbox: Outbox, number: int = 1) -> tuple[int, Receipt]:
    """A stored result and the receipt that the server gives for it; not acknowledged yet."""
    task = held_task(outbox, number)
    row = outbox.store_result(result_for(task))
    receipt = Server.of(task).submit(row).receipt
    assert receipt is not None
    return row.id, receipt


def test_an_acknowledged_row_keeps_the_receipt_as_it_was_answered(path: Path, outbox: Outbox) -> None:
    row_id, receipt = accepted(outbox)
    outbox.acknowledge(row_id, receipt, Verdict.ACCEPTED)
    outbox.close()
    with opened(path) as later:
        row = later.row(row_id)
        assert list(later.pending()) == []
    assert (row.status, row.verdict, row.receipt) == (RowStatus.ACKNOWLEDGED, Verdict.ACCEPTED, receipt)
    assert row.receipt_sha256 == receipt.receipt_sha256


def test_the_same_receipt_again_changes_nothing(outbox: Outbox) -> None:
    row_id, receipt = accepted(outbox)
    first = outbox.acknowledge(row_id, receipt, Verdict.ACCEPTED)
    assert outbox.acknowledge(row_id, receipt, Verdict.DUPLICATE) == first
    assert [step.kind for step in outbox.steps()] == ["row"]
    outbox.flush()
    assert [step.kind for step in outbox.steps()] == ["row", "submit"]


@pytest.mark.parametrize(
    ("forge", "sentence"),
    [
        (lambda r: replace(r, receipt_sha256="0" * 64), "does not match"),
        (lambda r: replace(r, recorded_by="somebody"), "does not match"),
        (lambda r: sealed("uid-1", replace(r, payload_sha256="0" * 64)), "another payload"),
        (lambda r: sealed("uid-1", replace(r, idempotency_key="other")), "of the key other"),
        (lambda r: sealed("uid-2", r), "does not match"),
        (lambda r: None, "without a receipt"),
    ],
)
def test_a_receipt_that_does_not_prove_the_row_is_refused(outbox: Outbox, forge, sentence: str) -> None:  # type: ignore[no-untyped-def]
    row_id, receipt = accepted(outbox)
    with pytest.raises(ReceiptMismatch, match=sentence):
        outbox.acknowledge(row_id, forge(receipt), Verdict.ACCEPTED)
    assert outbox.row(row_id).status is RowStatus.PENDING


def test_a_second_receipt_cannot_replace_the_first(outbox: Outbox) -> None:
    row_id, receipt = accepted(outbox)
    outbox.acknowledge(row_id, receipt, Verdict.ACCEPTED)
    other = sealed("uid-1", replace(receipt, sequence=2))
    with pytest.raises(ReceiptMismatch, match="already"):
        outbox.acknowledge(row_id, other, Verdict.DUPLICATE)
    assert outbox.row(row_id).receipt == receipt


def test_an_emitted_row_whose_payload_stands_elsewhere_needs_no_receipt(outbox: Outbox) -> None:
    row = outbox.store_result(emitted_for(held_task(outbox), "a"))
    answered = outbox.acknowledge(row.id, None, Verdict.REJECTED_DUPLICATE)
    assert (answered.status, answered.receipt) == (RowStatus.ACKNOWLEDGED, None)
    assert outbox.verify().ok


def test_a_payload_that_stands_under_another_key_is_acknowledged_by_that_receipt(outbox: Outbox) -> None:
    task = held_task(outbox)
    server = Server.of(task)
    sent(outbox, server, outbox.store_result(emitted_for(task, "a", idempotency_key="one")))
    verdict = sent(outbox, server, outbox.store_result(emitted_for(task, "a", idempotency_key="two")))
    assert verdict is Verdict.REJECTED_DUPLICATE
    assert [row.status for row in outbox.all()] == [RowStatus.ACKNOWLEDGED] * 2
    assert outbox.verify().ok


def test_a_parked_row_waits_and_is_rearmed_under_its_stored_key(outbox: Outbox) -> None:
    row = outbox.store_result(result_for(held_task(outbox)))
    outbox.park(row.id, "the lease is over")
    assert list(outbox.pending()) == []
    assert [parked.reason for parked in outbox.parked()] == ["the lease is over"]
    assert outbox.result_of(row.uid) is not None

    armed = outbox.rearm(row.id, token=2, holder="outbox/second")
    assert (armed.token, armed.holder, armed.status) == (2, "outbox/second", RowStatus.PENDING)
    assert armed.idempotency_key == row.idempotency_key
    assert list(outbox.pending()) == [armed]


def test_a_dead_row_still_counts_as_the_tasks_result(outbox: Outbox) -> None:
    row = outbox.store_result(result_for(held_task(outbox)))
    outbox.kill(row.id, "conflict")
    assert [dead.id for dead in outbox.dead()] == [row.id]
    result = outbox.result_of(row.uid)
    assert result is not None
    assert result.status is RowStatus.DEAD


def test_reasons_and_messages_are_cut_to_a_kibibyte_at_a_character(outbox: Outbox) -> None:
    row = outbox.store_result(result_for(held_task(outbox)))
    tries = [outbox.note_try(row.id, "é" * 1_000_000) for _ in range(3)]
    killed = outbox.kill(row.id, "x" * 1_000_000 + "\ud800")
    assert tries == [1, 2, 3]
    assert len(killed.last_error.encode()) == 1024
    assert killed.reason == "x" * 1024
    outbox.flush()
    assert outbox.row(row.id) == killed


def test_an_acknowledged_row_can_be_neither_parked_nor_killed(outbox: Outbox) -> None:
    row_id, receipt = accepted(outbox)
    outbox.acknowledge(row_id, receipt, Verdict.ACCEPTED)
    for give_up in (outbox.park, outbox.kill):
        with pytest.raises(ReceiptMismatch, match="has its receipt"):
            give_up(row_id, "because")


def test_a_server_that_forgot_a_receipt_gets_the_row_again(path: Path, outbox: Outbox) -> None:
    """A restored backup of etcd: the task is open once more, and its result must not be made again."""
    task = held_task(outbox)
    row = outbox.store_result(result_for(task))
    sent(outbox, Server.of(task), row)
    again = held_task(outbox, token=2)
    armed = outbox.rearm(row.id, token=2, holder=again.holder)
    assert list(outbox.pending()) == [armed]
    assert drained(outbox, Server.of(again)) == [Verdict.ACCEPTED]
    outbox.close()
    with opened(path) as later:
        assert [step.kind for step in later.steps()] == ["row", "submit", "submit"]
        assert later.row(row.id).receipt is not None
        assert later.verify().findings == ()


def test_an_unknown_row_id_is_a_sentence(outbox: Outbox) -> None:
    for row_id in (7, 10**30):
        with pytest.raises(LookupError, match=f"no row {row_id}"):
            outbox.park(row_id, "nothing")


def test_a_poison_row_does_not_stop_the_others(outbox: Outbox) -> None:
    """B28: one drain over rows with every fate. What cannot be delivered is not sent again."""
    tasks = {number: held_task(outbox, number) for number in range(1, 8)}
    server = Server.of(*tasks.values())
    server.tasks["uid-3"] = held_task(outbox, 3, token=5)  # claimed again since: stale
    del server.tasks["uid-4"]
    for number, task in tasks.items():
        outbox.store_result(result_for(task, value=str(number)))
    settled_elsewhere = replace(server.tasks["uid-5"], state=State.SUCCEEDED)
    foreign = Server.of(tasks[5]).submit(replace(outbox.row(5), idempotency_key="x", value="other"))
    assert foreign.receipt is not None
    server.tasks["uid-5"] = replace(settled_elsewhere, receipts=(foreign.receipt,))
    sends: list[int] = []

    def drain() -> None:
        for row in outbox.pending():
            sends.append(row.id)
            if row.id == 6 and row.tries == 0:
                outbox.note_try(row.id, "500 " + "x" * 1_000_000)
                continue
            judgement = server.submit(row)
            match status_after(judgement, server.tasks.get(row.uid), outbox=outbox.uuid):
                case RowStatus.ACKNOWLEDGED:
                    outbox.acknowledge(row.id, judgement.receipt, judgement.verdict)
                case RowStatus.PARKED:
                    outbox.park(row.id, judgement.message)
                case RowStatus.DEAD:
                    outbox.kill(row.id, f"{judgement.verdict.value}: {judgement.message}")

    drain()
    drain()
    drain()
    status = {row.id: row.status for row in outbox.all()}
    assert [row_id for row_id, is_now in status.items() if is_now is RowStatus.ACKNOWLEDGED] == [1, 2, 6, 7]
    assert status[3] is RowStatus.PARKED
    assert {row.id: row.reason.split(":")[0] for row in outbox.dead()} == {
        4: "UNKNOWN_TASK",
        5: "TERMINAL_CONFLICT",
    }
    assert sends == [1, 2, 3, 4, 5, 6, 7, 6]


def test_a_submission_says_what_the_row_says(outbox: Outbox) -> None:
    row = outbox.store_result(result_for(held_task(outbox)))
    submission = row.submission(recorded_by=ACCOUNT)
    assert (submission.token, submission.holder, submission.after_crash) == (1, outbox.holder, False)
