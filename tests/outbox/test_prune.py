"""Pruning by age: what is acknowledged goes, what is not stays, and the chain can still be replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.outbox import Outbox
from fencepost.outbox.audit import FindingKind, audit_report
from fencepost.protocol.submission import Verdict
from tests.outbox.given import Clock, Server, emitted_for, held_task, opened, result_for, sent


def filled(path: Path) -> tuple[Outbox, Server, Clock]:
    """Acknowledged, pending, parked and dead rows of day 1, and an acknowledged one of day 25."""
    clock = Clock()
    outbox = opened(path, now=clock)
    tasks = [held_task(outbox, number) for number in range(1, 8)]
    server = Server.of(*tasks)
    rows = []
    for task in tasks[:6]:
        outbox.record_lease(task=task)
        rows.append(outbox.store_result(result_for(task)))
    for row in rows[:3]:
        sent(outbox, server, row)
    outbox.park(rows[3].id, "over")
    outbox.kill(rows[4].id, "conflict")
    clock.day = 25
    sent(outbox, server, outbox.store_result(result_for(tasks[6])))
    return outbox, server, clock


def test_old_acknowledged_rows_go_and_nothing_else(path: Path) -> None:
    outbox, _, clock = filled(path)
    with outbox:
        assert outbox.prune() == 0
        clock.day = 40
        assert outbox.prune(30) == 3
        assert [row.id for row in outbox.all()] == [4, 5, 6, 7]
        assert outbox.prune(30) == 0
        assert outbox.prune(30, dead=True) == 1
        assert [row.id for row in outbox.all()] == [4, 6, 7]


def test_an_old_row_stays_while_the_result_of_its_task_is_open(path: Path) -> None:
    clock = Clock()
    with opened(path, now=clock) as outbox:
        task = held_task(outbox, 1)
        emitted = outbox.store_result(emitted_for(task, "emitted"))
        sent(outbox, Server.of(task), emitted)
        result = outbox.store_result(result_for(task))
        clock.day = 40
        assert outbox.prune(30) == 0
        outbox.kill(result.id, "gone")
        assert outbox.prune(30) == 1


def test_the_chain_replays_from_where_it_was_cut(path: Path) -> None:
    outbox, _, clock = filled(path)
    with outbox:
        before = outbox.verify()
        clock.day = 40
        outbox.prune(30)
        after = outbox.verify()
        assert (after.head, after.findings) == (before.head, ())
        assert after.steps < before.steps
        assert outbox.base is not None
        outbox.store_result(result_for(held_task(outbox, 9)))
    with opened(path, "second", now=clock) as later:
        assert later.verify().findings == ()


def test_everything_may_go_and_the_next_step_follows_all_the_same(path: Path, outbox: Outbox) -> None:
    task = held_task(outbox)
    sent(outbox, Server.of(task), outbox.store_result(result_for(task)))
    outbox.flush()
    mark = outbox.mark
    outbox._now = lambda: "2031-01-01T00:00:00Z"
    assert outbox.prune(30) == 1
    assert outbox.mark == mark
    assert [step.sequence for step in outbox.steps()] == [2]
    outbox.close()
    with opened(path, "second") as later:
        later.store_result(result_for(held_task(later, 2)))
        verification = later.verify()
        assert (verification.steps, verification.findings) == (2, ())
        assert later.row(2).id == 2  # ids are never given out again


def test_an_audit_does_not_miss_what_was_pruned(path: Path) -> None:
    outbox, server, clock = filled(path)
    with outbox:
        clock.day = 40
        outbox.prune(30)
        report = audit_report(outbox, list(server.tasks.values()))
        assert report.findings == ()
        assert (report.ok, report.compared) == (True, 1)


def test_a_row_that_was_removed_by_hand_is_no_prune(path: Path) -> None:
    outbox, server, _ = filled(path)
    with outbox:
        outbox.flush()
        outbox._opened.connection.execute("DELETE FROM fencepost_rows WHERE id = 2")
        report = audit_report(outbox, list(server.tasks.values()))
        kinds = {finding.kind for finding in (*report.findings, *report.verification.findings)}
        assert {FindingKind.ROW_MISSING, FindingKind.NOT_ONE_RESULT, FindingKind.FILE_INCONSISTENT} <= kinds


@pytest.mark.parametrize("days", [-1, float("nan"), float("inf")])
def test_an_age_that_is_none_is_refused(outbox: Outbox, days: float) -> None:
    with pytest.raises(ValueError, match="0 days or more"):
        outbox.prune(days)


def test_pruned_tasks_can_be_stored_again_after_a_restored_backup(outbox: Outbox) -> None:
    """What was pruned is forgotten: the task would be executed again, which is why the age is long."""
    task = held_task(outbox)
    assert sent(outbox, Server.of(task), outbox.store_result(result_for(task))) is Verdict.ACCEPTED
    outbox._now = lambda: "2031-01-01T00:00:00Z"
    outbox.prune(30)
    assert outbox.result_of(task.uid) is None
