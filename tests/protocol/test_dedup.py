from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fencepost.protocol.dedup import first_with_payload, scope_key, takes_part
from fencepost.protocol.payload import sha256_hex
from fencepost.protocol.submission import judge
from fencepost.protocol.task import DedupScope, ObjectKey, Outcome
from tests.protocol.given import after, held_task, open_task, row, submission, unknown, with_spec, write_of

BASE = with_spec(open_task(), queue="feeds")
OTHER_TASK = replace(BASE, uid="uid-2")
OTHER_QUEUE = with_spec(OTHER_TASK, queue="other")
OTHER_NAMESPACE = replace(OTHER_TASK, key=ObjectKey(namespace="elsewhere", name=BASE.key.name))


@pytest.mark.parametrize(
    ("outcome", "part"), [(Outcome.OK, True), (Outcome.REJECTED, False), (Outcome.UNKNOWN, False)]
)
def test_only_ok_takes_part(outcome: Outcome, part: bool) -> None:
    assert takes_part(outcome) is part


@pytest.mark.parametrize(
    ("scope", "other", "same"),
    [
        (DedupScope.TASK, BASE, True),
        (DedupScope.TASK, OTHER_TASK, False),
        (DedupScope.QUEUE, OTHER_TASK, True),
        (DedupScope.QUEUE, OTHER_QUEUE, False),
        (DedupScope.QUEUE, OTHER_NAMESPACE, False),
        (DedupScope.NAMESPACE, OTHER_QUEUE, True),
        (DedupScope.NAMESPACE, OTHER_NAMESPACE, False),
        (DedupScope.SNAPSHOT, OTHER_QUEUE, True),
        (DedupScope.SNAPSHOT, OTHER_NAMESPACE, False),
    ],
)
def test_a_scope_takes_in_exactly_its_own(scope: DedupScope, other: Any, same: bool) -> None:
    mine = scope_key(with_spec(BASE, dedup_scope=scope), snapshot="S1")
    assert (scope_key(with_spec(other, dedup_scope=scope), snapshot="S1") == mine) is same


@pytest.mark.parametrize("scope", DedupScope)
def test_the_snapshot_counts_only_in_the_scope_of_that_name(scope: DedupScope) -> None:
    task = with_spec(BASE, dedup_scope=scope)
    differs = scope_key(task, snapshot="S1") != scope_key(task, snapshot="S2")
    assert differs is (scope is DedupScope.SNAPSHOT)


def test_the_scopes_never_share_a_name() -> None:
    assert len({scope_key(with_spec(BASE, dedup_scope=scope)) for scope in DedupScope}) == 4


def test_the_first_receipt_of_a_payload_is_found() -> None:
    task = held_task()
    task = after(task, row(task, "r1", "x"), row(task, "r2", "y"))
    found = first_with_payload(task.receipts, sha256_hex("y"))
    assert found is task.receipts[1]
    assert first_with_payload(task.receipts, sha256_hex("z")) is None


def test_unknown_rejected_and_duplicates_are_never_the_first() -> None:
    task = held_task()
    asked = unknown(task)
    task = after(task, asked)
    assert first_with_payload(task.receipts, asked.payload_sha256) is None
    rejected = after(task, submission(task, outcome=Outcome.REJECTED, value="no"))
    assert first_with_payload(rejected.receipts, sha256_hex("no")) is None
    judgement = judge(task, submission(task, value="x"), elsewhere="e" * 64)
    copy = write_of(task, judgement).receipt
    assert copy.duplicate_of == "e" * 64
    assert first_with_payload((copy,), sha256_hex("x")) is None
