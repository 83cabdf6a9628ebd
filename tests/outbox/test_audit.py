"""What only a comparison with the server can see: OUTBOX-01, lost and rolled-back files, changed receipts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fencepost.outbox import Outbox
from fencepost.outbox.audit import FindingKind, audit_report, rolled_back
from fencepost.protocol.receipt import sealed
from fencepost.protocol.task import Task
from tests.outbox.given import Server, emitted_for, held_task, opened, result_for, sent


def worked(outbox: Outbox, *numbers: int) -> list[Task]:
    """The tasks as the server has them after this outbox has done them, one emitted row each."""
    done = []
    for number in numbers:
        task = held_task(outbox, number)
        server = Server.of(task)
        outbox.record_lease(task=task)
        sent(outbox, server, outbox.store_result(emitted_for(task, f"row-{number}")))
        sent(outbox, server, outbox.store_result(result_for(task, value=f"result-{number}")))
        done.append(server.tasks[task.uid])
    return done


def kinds(report_findings: tuple[object, ...]) -> list[FindingKind]:
    return [finding.kind for finding in report_findings]  # type: ignore[attr-defined]


def test_an_outbox_that_kept_its_promises_has_no_finding(outbox: Outbox) -> None:
    report = audit_report(outbox, worked(outbox, 1, 2, 3))
    assert (report.ok, report.findings, report.verification.findings) == (True, (), ())
    assert (report.compared, report.not_compared) == (6, 0)


def test_tasks_that_are_gone_are_counted_and_no_fault(outbox: Outbox) -> None:
    tasks = worked(outbox, 1, 2)
    report = audit_report(outbox, tasks[:1])
    assert (report.ok, report.compared, report.not_compared) == (True, 2, 2)


def test_a_receipt_that_the_server_lost_is_found(outbox: Outbox) -> None:
    (task,) = worked(outbox, 1)
    report = audit_report(outbox, [replace(task, receipts=task.receipts[1:])])
    assert kinds(report.findings) == [FindingKind.RECEIPT_MISSING]
    assert not report.ok


def test_a_receipt_that_the_server_changed_is_found(outbox: Outbox) -> None:
    (task,) = worked(outbox, 1)
    forged = sealed(task.uid, replace(task.receipts[1], recorded_by="somebody"))
    report = audit_report(outbox, [replace(task, receipts=(task.receipts[0], forged))])
    assert kinds(report.findings) == [FindingKind.RECEIPT_CHANGED]


def test_a_receipt_that_is_not_marked_yet_is_a_notice(outbox: Outbox) -> None:
    task = held_task(outbox)
    server = Server.of(task)
    server.submit(outbox.store_result(result_for(task)))
    report = audit_report(outbox, list(server.tasks.values()))
    assert kinds(report.findings) == [FindingKind.NOT_MARKED_YET]
    assert report.ok


def test_a_dead_letter_that_was_accepted_is_a_fault(outbox: Outbox) -> None:
    task = held_task(outbox)
    server = Server.of(task)
    row = outbox.store_result(result_for(task))
    server.submit(row)
    outbox.kill(row.id, "given up too early")
    report = audit_report(outbox, list(server.tasks.values()))
    assert kinds(report.findings) == [FindingKind.DEAD_BUT_ACCEPTED]
    assert not report.ok


def test_a_rolled_back_file_is_noticed_by_the_marks_of_its_claims(path: Path, tmp_path: Path) -> None:
    """B6: the volume was restored from a snapshot, so rows that were acknowledged are gone."""
    outbox = opened(path)
    before = worked(outbox, 1)
    outbox.close()
    shutil.copy(path, tmp_path / "snapshot")
    outbox = opened(path, "second")
    after = worked(outbox, 2, 3)
    outbox.close()
    shutil.copy(tmp_path / "snapshot", path)

    with opened(path, "third") as outbox:
        # The claim of task 2 carries a position that the snapshot has too; that of task 3 does not.
        found = rolled_back(outbox, [*before, *after])
        assert [(finding.kind, finding.subject) for finding in found] == [
            (FindingKind.MARK_UNKNOWN, "feeds/import-3")
        ]
        assert "rolled back or replaced" in found[0].message
        report = audit_report(outbox, [*before, *after])
        assert not report.ok
        assert kinds(report.findings).count(FindingKind.ROW_MISSING) == 4
        # It goes on: the marks still differ, now by another hash at the same place.
        worked(outbox, 4, 5, 6)
        assert "another hash" in rolled_back(outbox, after)[0].message


def test_marks_of_other_outboxes_and_garbled_ones(outbox: Outbox) -> None:
    (task,) = worked(outbox, 1)
    others = replace(task, holder="somebody-else/first", outbox_mark="9 abc")
    assert rolled_back(outbox, [others, replace(task, outbox_mark="")]) == ()
    for mark in ("0 abc", "x", "99999999999999999999 abc", "-1 abc", "٣ abc"):
        assert kinds(rolled_back(outbox, [replace(task, outbox_mark=mark)])) == [FindingKind.MARK_UNKNOWN]


def in_the_file(sql: str) -> Callable[[Outbox], None]:
    def change(outbox: Outbox) -> None:
        outbox.flush()
        assert outbox._opened.connection.execute(sql).rowcount == 1

    return change


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (in_the_file("UPDATE fencepost_rows SET value = 'x' WHERE id = 1"), FindingKind.ROW_CHANGED),
        (in_the_file("UPDATE fencepost_rows SET outcome = 'Rejected' WHERE id = 2"), FindingKind.ROW_CHANGED),
        (in_the_file("UPDATE fencepost_rows SET covered_step = 99 WHERE id = 2"), FindingKind.ROW_CHANGED),
        (
            in_the_file("UPDATE fencepost_rows SET receipt_sha256 = '0' WHERE id = 2"),
            FindingKind.RECEIPT_INVALID,
        ),
        (
            in_the_file(
                "UPDATE fencepost_rows SET receipt = replace(receipt, 'worker', 'forger') WHERE id = 2"
            ),
            FindingKind.RECEIPT_INVALID,
        ),
        (
            in_the_file("UPDATE fencepost_rows SET verdict = 'DUPLICATE' WHERE id = 2"),
            FindingKind.RECEIPT_INVALID,
        ),
        (in_the_file("UPDATE fencepost_steps SET state = '[]' WHERE sequence = 2"), FindingKind.CHAIN_BROKEN),
        (in_the_file("DELETE FROM fencepost_steps WHERE sequence = 3"), FindingKind.CHAIN_BROKEN),
        (in_the_file("DELETE FROM fencepost_rows WHERE id = 2"), FindingKind.FILE_INCONSISTENT),
        (in_the_file("DELETE FROM fencepost_tasks"), FindingKind.FILE_INCONSISTENT),
    ],
)
def test_a_file_that_was_meddled_with_says_so(
    outbox: Outbox, change: Callable[[Outbox], None], kind: FindingKind
) -> None:
    worked(outbox, 1)
    assert outbox.verify().ok
    change(outbox)
    verification = outbox.verify()
    assert kind in kinds(verification.findings)
    assert not verification.ok
