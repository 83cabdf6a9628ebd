"""Storing is one transaction: the row, the local mark, the handler's own statements and the step, or none."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fencepost.outbox import (
    DeferredStatementFailed,
    Outbox,
    OutboxConflict,
    RowRefused,
    Statement,
)
from fencepost.protocol import limits
from fencepost.protocol.drain import RowStatus
from fencepost.protocol.receipt import default_idempotency_key
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import Kind, Outcome, Owner
from tests.outbox.given import Server, emitted_for, held_task, opened, result_for, sent, unknown_for

COUNTERS = Statement(sql="CREATE TABLE IF NOT EXISTS imported (feed TEXT PRIMARY KEY, rows INTEGER)")


def inside(path: Path, sql: str) -> list[tuple[object, ...]]:
    """What a closed file says."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_a_stored_result_is_there_after_the_file_was_closed_and_opened(path: Path, outbox: Outbox) -> None:
    task = held_task(outbox)
    job = Owner(kind="FanOutJob", name="nightly", uid="job-uid")
    new = result_for(task, job=job, branch="north", device_time="2026-01-01T00:00:00Z")
    stored = outbox.store_result(new)
    outbox.close()

    with opened(path, "second") as later:
        row = later.result_of(task.uid)

    assert row is not None
    assert (row.id, row.value, row.job, row.branch, row.device_time) == (
        stored.id,
        new.value,
        job,
        "north",
        "2026-01-01T00:00:00Z",
    )
    assert (row.status, row.after_crash, stored.after_crash) == (RowStatus.PENDING, True, False)


def test_the_default_key_is_the_one_of_the_protocol(outbox: Outbox) -> None:
    task = held_task(outbox)
    row = outbox.store_result(result_for(task))
    assert row.idempotency_key == default_idempotency_key(
        outbox=outbox.uuid,
        uid=task.uid,
        kind=Kind.RESULT,
        outcome=Outcome.OK,
        payload_sha256=row.payload_sha256,
        token=task.token,
    )


def test_a_callers_key_is_kept(outbox: Outbox) -> None:
    row = outbox.store_result(result_for(held_task(outbox), idempotency_key="order-17"))
    assert row.idempotency_key == "order-17"


def test_the_same_result_again_is_the_row_that_stands(outbox: Outbox) -> None:
    first = outbox.store_result(result_for(held_task(outbox)))
    again = outbox.store_result(result_for(held_task(outbox, token=2)))
    assert again == first
    assert len(list(outbox.all())) == 1


@pytest.mark.parametrize("change", [{"value": "other"}, {"outcome": Outcome.REJECTED}])
def test_another_result_of_the_same_task_is_a_conflict_and_the_first_stands(
    outbox: Outbox, change: dict[str, object]
) -> None:
    first = outbox.store_result(result_for(held_task(outbox)))
    with pytest.raises(OutboxConflict, match="the first stands"):
        outbox.store_result(result_for(held_task(outbox, token=2), **change))
    assert list(outbox.all()) == [first]


def test_another_body_under_the_same_key_is_a_conflict(outbox: Outbox) -> None:
    task = held_task(outbox)
    outbox.store_result(emitted_for(task, "a", idempotency_key="k"))
    with pytest.raises(OutboxConflict, match="key k"):
        outbox.store_result(emitted_for(task, "b", idempotency_key="k"))


def test_rows_are_one_for_each_key_and_no_result(outbox: Outbox) -> None:
    task = held_task(outbox)
    stored = [outbox.store_result(emitted_for(task, value)) for value in ("a", "b", "a")]
    assert [row.value for row in outbox.rows_of(task.uid)] == ["a", "b"]
    assert stored[0] == stored[2]
    assert outbox.result_of(task.uid) is None


def test_an_unacknowledged_unknown_is_a_result(outbox: Outbox) -> None:
    task = held_task(outbox)
    row = outbox.store_result(unknown_for(task))
    assert outbox.result_of(task.uid) == row


def test_after_an_acknowledged_unknown_the_next_attempt_adds_a_row(outbox: Outbox) -> None:
    task = held_task(outbox)
    server = Server.of(task)
    sent(outbox, server, outbox.store_result(unknown_for(task)))
    assert outbox.result_of(task.uid) is None

    second = outbox.store_result(unknown_for(held_task(outbox, token=2)))
    final = held_task(outbox, token=3)
    assert outbox.result_of(task.uid) == second
    outbox.rearm(second.id, token=3, holder=outbox.holder)
    server.tasks[task.uid] = held_task(outbox, token=3)
    sent(outbox, server, outbox.row(second.id))
    outbox.store_result(result_for(final))
    assert [row.outcome for row in outbox.rows_of(task.uid)] == [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.OK]


def test_the_unknown_of_one_attempt_is_one_row_even_under_two_keys(outbox: Outbox) -> None:
    task = held_task(outbox)
    first = outbox.store_result(unknown_for(task, idempotency_key="one"))
    sent(outbox, Server.of(task), first)
    again = outbox.store_result(unknown_for(task, idempotency_key="two"))
    assert (again.id, again.status, again.verdict) == (first.id, RowStatus.ACKNOWLEDGED, Verdict.ACCEPTED)


def test_a_result_marks_its_task_done_in_the_same_file(path: Path, outbox: Outbox) -> None:
    task = held_task(outbox)
    outbox.record_lease(task=task)
    outbox.store_result(emitted_for(task, "a"))
    row = outbox.store_result(result_for(task))
    outbox.close()
    assert inside(path, "SELECT uid, token, done_row FROM fencepost_tasks") == [(task.uid, 1, row.id)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"value": "x" * (limits.VALUE_BYTES_MAX + 1)}, "over the limit of 16384"),
        ({"value": "<" * (limits.VALUE_BYTES_MAX // 6 + 1)}, "over the limit of 16384"),
        ({"value": "\ud800"}, "lone surrogate"),
        ({"outcome": Outcome.UNKNOWN, "value": "x"}, "Unknown outcome has an empty value"),
        ({"kind": Kind.ROW, "outcome": Outcome.REJECTED}, "a row has the outcome Ok"),
        ({"idempotency_key": "k" * 257}, "1 to 256 bytes"),
        ({"idempotency_key": ""}, "1 to 256 bytes"),
        ({"idempotency_key": "a\nb"}, "control characters"),
        ({"device_time": "2" * 65}, "device time takes at most 64"),
        ({"device_time": "\ud800"}, "lone surrogate"),
    ],
)
def test_what_could_never_be_delivered_is_refused_and_not_stored(
    outbox: Outbox, change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(RowRefused, match=sentence):
        outbox.store_result(result_for(held_task(outbox), **change))
    assert list(outbox.all()) == []


def test_the_largest_value_is_stored(outbox: Outbox) -> None:
    value = "x" * limits.VALUE_BYTES_MAX
    assert outbox.store_result(result_for(held_task(outbox), value=value)).value == value


@pytest.mark.parametrize("value", ["", "a\0b", "“é”\u2028\U0001f600", "|"])
def test_any_text_comes_back_as_it_was(path: Path, outbox: Outbox, value: str) -> None:
    task = held_task(outbox)
    outbox.store_result(result_for(task, value=value, idempotency_key="é|\U0001f600"))
    outbox.close()
    with opened(path) as later:
        row = later.result_of(task.uid)
        assert row is not None
        assert (row.value, row.idempotency_key, later.verify().findings) == (value, "é|\U0001f600", ())


def test_deferred_statements_take_effect_with_the_result(path: Path, outbox: Outbox) -> None:
    outbox.store_result(
        result_for(held_task(outbox)),
        deferred=[
            COUNTERS,
            Statement(sql="INSERT INTO imported VALUES (?, ?)", parameters=("north", 3)),
            Statement(sql="UPDATE imported SET rows = rows + :more", parameters={"more": 4}),
        ],
    )
    outbox.close()
    assert inside(path, "SELECT * FROM imported") == [("north", 7)]


def test_a_replay_runs_no_deferred_statement_again(path: Path, outbox: Outbox) -> None:
    add = [COUNTERS, Statement(sql="INSERT INTO imported VALUES ('north', 1)")]
    outbox.store_result(result_for(held_task(outbox)), deferred=add)
    outbox.store_result(result_for(held_task(outbox)), deferred=add)
    outbox.close()
    assert inside(path, "SELECT rows FROM imported") == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO nowhere VALUES (1)",
        "DELETE FROM fencepost_rows",
        "UPDATE Fencepost_Rows SET status = 'acknowledged'",
        "DROP TABLE fencepost_steps",
        "CREATE TABLE fencepost_mine (x)",
        "CREATE TRIGGER t AFTER INSERT ON fencepost_rows BEGIN SELECT 1; END",
        "COMMIT",
        "SAVEPOINT s",
        "PRAGMA synchronous = OFF",
        "ATTACH '/nowhere' AS other",
        "VACUUM",
        "not sql",
        "INSERT OR ROLLBACK INTO imported VALUES ('north', 9)",
        "SELECT 1; SELECT 2",
        "INSERT INTO imported VALUES (?, ?)",
    ],
)
def test_a_deferred_statement_that_fails_leaves_nothing_at_all(path: Path, outbox: Outbox, sql: str) -> None:
    outbox.store_result(
        result_for(held_task(outbox, 1)),
        deferred=[COUNTERS, Statement(sql="INSERT INTO imported VALUES ('north', 1)")],
    )
    mark = outbox.mark
    with pytest.raises(DeferredStatementFailed, match="nothing was stored"):
        outbox.store_result(
            result_for(held_task(outbox, 2)),
            deferred=[Statement(sql="INSERT INTO imported VALUES ('south', 2)"), Statement(sql=sql)],
        )
    assert outbox.result_of("uid-2") is None
    assert outbox.mark == mark
    outbox.store_result(result_for(held_task(outbox, 3)))
    assert outbox.verify().ok
    outbox.close()
    assert inside(path, "SELECT * FROM imported") == [("north", 1)]


def test_a_trigger_of_the_handlers_own_cannot_reach_our_tables(outbox: Outbox) -> None:
    outbox.store_result(
        result_for(held_task(outbox, 1)),
        deferred=[
            COUNTERS,
            Statement(sql="CREATE TRIGGER t AFTER INSERT ON imported BEGIN DELETE FROM fencepost_rows; END"),
        ],
    )
    with pytest.raises(DeferredStatementFailed):
        outbox.store_result(
            result_for(held_task(outbox, 2)),
            deferred=[Statement(sql="INSERT INTO imported VALUES ('north', 1)")],
        )
    assert [row.uid for row in outbox.all()] == ["uid-1"]
