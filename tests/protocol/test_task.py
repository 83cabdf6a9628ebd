from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol import limits
from fencepost.protocol.task import (
    GENESIS,
    SETTLED_STATES,
    DedupScope,
    Hold,
    Kind,
    LastLease,
    LeaseEnd,
    Outcome,
    Reason,
    State,
    cut_to_bytes,
)
from tests.protocol.given import HOLDER, KEY, OUTBOX, after, held_task, open_task, row, settled_task


def test_the_words_on_the_wire_never_change() -> None:
    assert [*State] == ["Open", "Unknown", "Succeeded", "Failed", "Cancelled"]
    assert [*Hold] == ["Leased", "Backoff", "Unknown"]
    assert [*Outcome] == ["Ok", "Rejected", "Unknown"]
    assert [*Kind] == ["Result", "Row"]
    assert [*Reason] == ["FailuresExhausted", "DeadlineExceeded", "Cancelled", "TaskDeleted"]
    assert [*DedupScope] == ["Task", "Snapshot", "Queue", "Namespace"]


@pytest.mark.parametrize("state", State)
def test_a_task_is_settled_in_exactly_the_three_final_states(state: State) -> None:
    assert open_task(state=state).settled is (state in SETTLED_STATES)
    assert (state in SETTLED_STATES) is (state not in (State.OPEN, State.UNKNOWN))


@pytest.mark.parametrize("hold", [None, *Hold])
def test_a_task_is_held_only_while_leased(hold: Hold | None) -> None:
    assert open_task(hold=hold).held is (hold is Hold.LEASED)


def test_head_and_count_follow_the_newest_receipt() -> None:
    task = held_task()
    assert (task.head, task.count, task.settling_receipt) == (GENESIS, 0, None)
    task = after(task, row(task, "r1", "first"), row(task, "r2", "second"))
    assert (task.head, task.count) == (task.receipts[1].receipt_sha256, 2)
    assert task.settling_receipt is None


def test_the_settling_receipt_is_the_last_of_a_settled_task() -> None:
    task = settled_task()
    assert task.settling_receipt is task.receipts[-1]
    assert replace(task, receipts=()).settling_receipt is None


def test_the_outbox_is_the_first_part_of_the_holder() -> None:
    assert held_task().outbox == OUTBOX
    assert open_task().outbox == ""


def test_a_key_reads_as_namespace_and_name() -> None:
    assert str(KEY) == "feeds/import-north"


def test_values_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        open_task().token = 5  # type: ignore[misc]


def test_the_last_lease_has_token_and_holder_first() -> None:
    last = LastLease(token=7, holder=HOLDER, end=LeaseEnd.EXPIRED)
    assert last.text() == f"7 {HOLDER} expired"
    assert replace(last, message="no heartbeat").text() == f"7 {HOLDER} expired no heartbeat"


@given(st.text(min_size=1))
def test_only_the_message_of_the_last_lease_is_cut(message: str) -> None:
    last = LastLease(
        token=limits.FENCING_TOKEN_MAX, holder="h" * 256, end=LeaseEnd.ERROR, message=message * 900
    )
    assert limits.text_size(last.text()) <= limits.LAST_LEASE_BYTES_MAX
    assert last.text().startswith(f"{limits.FENCING_TOKEN_MAX} {'h' * 256} error ")


@pytest.mark.parametrize(
    ("text", "size", "cut"),
    [
        ("abc", 3, "abc"),
        ("abc", 2, "ab"),
        ("a€", 3, "a"),
        ("a€", 4, "a€"),
        ("abc", -1, ""),
        ("\ud800x", 9, "?x"),
    ],
    ids=ascii,
)
def test_text_is_cut_at_a_character(text: str, size: int, cut: str) -> None:
    assert cut_to_bytes(text, size) == cut
