from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from fencepost.protocol import limits
from fencepost.protocol.payload import framed_sha256, sha256_hex
from fencepost.protocol.receipt import (
    HASHED_FIELDS,
    ChainBroken,
    default_idempotency_key,
    key_problem,
    receipt_hash,
    sealed,
    verify_chain,
)
from fencepost.protocol.task import Kind, Outcome, Reason, Receipt
from tests.protocol.given import OUTBOX, after, held_task, row, settled_task, submission

CHANGES: dict[str, Any] = {
    "previous": "f" * 64,
    "sequence": 9,
    "idempotency_key": "another",
    "fencing_token": 9,
    "holder": "another",
    "kind": Kind.ROW,
    "outcome": Outcome.REJECTED,
    "reason": Reason.CANCELLED,
    "payload_sha256": "e" * 64,
    "duplicate_of": "d" * 64,
    "device_time": "yesterday",
    "recorded_by": "another",
}


def a_receipt() -> Receipt:
    return settled_task().receipts[0]


def three_receipts() -> Any:
    task = held_task()
    task = after(task, row(task, "r1", "one"), row(task, "r2", "two"))
    return after(task, submission(task, value="three"))


def test_the_hash_is_over_the_documented_fields_in_their_order() -> None:
    receipt = replace(a_receipt(), reason=Reason.CANCELLED, duplicate_of="d", device_time="t")
    texts = {
        "taskUid": "uid-1",
        "previous": receipt.previous,
        "sequence": "1",
        "idempotencyKey": "key-1",
        "fencingToken": "1",
        "holder": receipt.holder,
        "kind": "Result",
        "outcome": "Ok",
        "reason": "Cancelled",
        "payloadSha256": receipt.payload_sha256,
        "duplicateOf": "d",
        "deviceTime": "t",
        "recordedBy": receipt.recorded_by,
    }
    assert list(texts) == list(HASHED_FIELDS)
    assert receipt_hash("uid-1", receipt) == framed_sha256("fencepost/receipt/v1", *texts.values())


def test_every_field_is_hashed_but_the_value_which_has_its_own_hash() -> None:
    assert {field.name for field in fields(Receipt)} == {*CHANGES, "value", "receipt_sha256"}
    assert len(HASHED_FIELDS) == len(CHANGES) + 1


@pytest.mark.parametrize("field", CHANGES)
def test_a_change_of_any_field_changes_the_hash(field: str) -> None:
    receipt = a_receipt()
    assert receipt_hash("uid-1", replace(receipt, **{field: CHANGES[field]})) != receipt.receipt_sha256


def test_the_hash_is_of_one_task_alone() -> None:
    assert receipt_hash("uid-2", a_receipt()) != receipt_hash("uid-1", a_receipt())
    assert sealed("uid-1", replace(a_receipt(), receipt_sha256="")) == a_receipt()


def test_the_chain_of_a_task_verifies() -> None:
    verify_chain(three_receipts())
    verify_chain(held_task())


@pytest.mark.parametrize("field", [*CHANGES, "value", "receipt_sha256"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_changed_receipt_breaks_the_chain(field: str, position: int) -> None:
    task = three_receipts()
    receipts = list(task.receipts)
    changed = {**CHANGES, "value": "other", "receipt_sha256": "0" * 64}[field]
    if getattr(receipts[position], field) == changed:
        changed = Kind.RESULT
    receipts[position] = replace(receipts[position], **{field: changed})
    with pytest.raises(ChainBroken, match=r"receipt [123] of feeds/import-north"):
        verify_chain(replace(task, receipts=tuple(receipts)))


@pytest.mark.parametrize("order", [(1, 2), (0, 2), (1, 0, 2), (0, 0, 1, 2), (0, 2, 1)])
def test_a_dropped_doubled_or_moved_receipt_breaks_the_chain(order: tuple[int, ...]) -> None:
    task = three_receipts()
    with pytest.raises(ChainBroken, match="does not follow"):
        verify_chain(replace(task, receipts=tuple(task.receipts[n] for n in order)))


def test_a_resealed_receipt_breaks_the_next_link() -> None:
    task = three_receipts()
    first = sealed(task.uid, replace(task.receipts[0], idempotency_key="forged"))
    with pytest.raises(ChainBroken, match="receipt 2"):
        verify_chain(replace(task, receipts=(first, *task.receipts[1:])))


@pytest.mark.parametrize("change", [{"sequence": 2}, {"previous": "f" * 64}])
def test_a_sealed_receipt_in_the_wrong_place_breaks_the_chain(change: dict[str, Any]) -> None:
    task = settled_task()
    moved = sealed(task.uid, replace(task.receipts[0], **change))
    with pytest.raises(ChainBroken, match="does not follow the one before"):
        verify_chain(replace(task, receipts=(moved,)))


def test_a_value_that_is_not_the_payload_is_found_although_the_chain_holds() -> None:
    task = settled_task()
    with pytest.raises(ChainBroken, match="payloadSha256 is not the hash of its value"):
        verify_chain(replace(task, receipts=(replace(task.receipts[0], value="forged"),)))


def key_of(**changes: Any) -> str:
    usual: dict[str, Any] = {
        "outbox": OUTBOX,
        "uid": "uid-1",
        "kind": Kind.RESULT,
        "outcome": Outcome.OK,
        "payload_sha256": sha256_hex("x"),
        "token": 1,
    }
    return default_idempotency_key(**{**usual, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"outbox": "other"},
        {"uid": "uid-2"},
        {"kind": Kind.ROW},
        {"outcome": Outcome.REJECTED},
        {"payload_sha256": sha256_hex("y")},
    ],
)
def test_the_default_key_names_the_work(changes: dict[str, Any]) -> None:
    assert key_of(**changes) != key_of()


def test_the_token_is_in_the_key_of_an_unknown_alone() -> None:
    assert key_of(token=2) == key_of(token=1)
    assert key_of(outcome=Outcome.UNKNOWN, token=2) != key_of(outcome=Outcome.UNKNOWN, token=1)


def test_an_unknown_and_an_empty_ok_are_two_submits() -> None:
    assert key_of(outcome=Outcome.UNKNOWN, payload_sha256=sha256_hex("")) != key_of(
        payload_sha256=sha256_hex("")
    )


@pytest.mark.parametrize("key", ["1", "a b", "é" * 128, "k" * limits.IDEMPOTENCY_KEY_BYTES_MAX, key_of()])
def test_lawful_keys(key: str) -> None:
    assert key_problem(key) is None


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", "takes 1 to 256 bytes, this one 0"),
        ("k" * 257, "takes 1 to 256 bytes, this one 257"),
        ("é" * 129, "takes 1 to 256 bytes, this one 258"),
        ("a\nb", "no control characters"),
        ("a\x7f", "no control characters"),
        ("\x00", "no control characters"),
        ("\x1f", "no control characters"),
        ("\ud800", "lone surrogate"),
    ],
    ids=ascii,
)
def test_what_is_no_key_is_told_why(key: str, problem: str) -> None:
    assert problem in (key_problem(key) or "")
