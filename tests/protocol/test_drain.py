from __future__ import annotations

from itertools import product

import pytest

from fencepost.protocol.drain import AFTER_VERDICT, RowStatus, is_result, status_after
from fencepost.protocol.submission import NEXT_STEP, Judgement, NextStep, Verdict
from fencepost.protocol.task import Outcome
from tests.protocol.given import OTHER_OUTBOX, OUTBOX, held_task, settled_task

STALE = [Verdict.REJECTED_STALE_TOKEN, Verdict.REJECTED_EXPIRED_LEASE]


def test_every_verdict_says_what_becomes_of_the_row() -> None:
    assert set(AFTER_VERDICT) == set(Verdict)


@pytest.mark.parametrize("verdict", Verdict)
def test_the_row_goes_where_the_next_step_of_its_verdict_points(verdict: Verdict) -> None:
    place = {
        NextStep.DONE: RowStatus.ACKNOWLEDGED,
        NextStep.RECLAIM: RowStatus.PARKED,
        NextStep.DEAD_LETTER: RowStatus.DEAD,
        NextStep.RETRY: RowStatus.PENDING,
    }
    assert AFTER_VERDICT[verdict] is place[NEXT_STEP[verdict]]


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.DUPLICATE])
def test_the_table_holds_while_the_task_is_open(verdict: Verdict) -> None:
    assert status_after(Judgement(verdict=verdict), held_task(), outbox=OUTBOX) is AFTER_VERDICT[verdict]


@pytest.mark.parametrize("verdict", [each for each in Verdict if each not in (*STALE, Verdict.DUPLICATE)])
def test_what_is_not_stale_goes_its_way_whatever_became_of_the_task(verdict: Verdict) -> None:
    for task in (settled_task(), None):
        assert status_after(Judgement(verdict=verdict), task, outbox=OUTBOX) is AFTER_VERDICT[verdict]


@pytest.mark.parametrize("verdict", STALE)
def test_a_stale_row_is_dead_once_its_task_is_settled_or_gone(verdict: Verdict) -> None:
    assert status_after(Judgement(verdict=verdict), settled_task(), outbox=OUTBOX) is RowStatus.DEAD
    assert status_after(Judgement(verdict=verdict), None, outbox=OUTBOX) is RowStatus.DEAD


@pytest.mark.parametrize(
    ("outbox", "status"),
    [(OUTBOX, RowStatus.ACKNOWLEDGED), (OTHER_OUTBOX, RowStatus.DEAD), ("", RowStatus.DEAD)],
)
def test_a_replay_acknowledges_only_with_this_outbox_s_own_receipt(outbox: str, status: RowStatus) -> None:
    task = settled_task()
    judgement = Judgement(verdict=Verdict.DUPLICATE, receipt=task.receipts[0])
    assert status_after(judgement, task, outbox=outbox) is status


def test_a_replay_without_a_receipt_proves_nothing() -> None:
    assert status_after(Judgement(verdict=Verdict.DUPLICATE), held_task(), outbox=OUTBOX) is RowStatus.DEAD


@pytest.mark.parametrize(("status", "outcome"), [*product(RowStatus, Outcome)])
def test_every_row_is_a_result_but_an_unknown_that_nobody_will_send_again(
    status: RowStatus, outcome: Outcome
) -> None:
    over = (RowStatus.ACKNOWLEDGED, RowStatus.DEAD)
    assert is_result(status, outcome) is not (outcome is Outcome.UNKNOWN and status in over)
