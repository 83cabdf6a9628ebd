"""A 2xx answer is compared with what was sent: dropped and changed fields are named."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.kube.client import JSON_PATCH, MERGE_PATCH
from fencepost.kube.patches import Part, Patch
from fencepost.kube.stored import first_difference, what_was_not_kept


def json_patch(*operations: dict[str, Any]) -> Patch:
    return Patch(part=Part.STATUS, content_type=JSON_PATCH, body=list(operations))


RECEIPT = {"idempotencyKey": "k", "fencingToken": 3}
APPEND = json_patch(
    {"op": "test", "path": "/status/head", "value": "GENESIS"},
    {"op": "add", "path": "/status/receipts/-", "value": RECEIPT},
)


def test_what_others_added_is_no_difference() -> None:
    kept = {"status": {"receipts": [{}, {**RECEIPT, "new": 1}], "head": "another"}}
    assert what_was_not_kept(APPEND, kept) is None


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (
            {"status": {"receipts": [{"idempotencyKey": "k"}]}},
            "status.receipts[-1].fencingToken: sent 3, kept nothing",
        ),
        (
            {"status": {"receipts": [{"idempotencyKey": "k", "fencingToken": 4}]}},
            "status.receipts[-1].fencingToken: sent 3, kept 4",
        ),
        ({"status": {"receipts": []}}, f"status.receipts[-1]: sent {RECEIPT!r}, kept nothing"),
        ({"metadata": {}}, f"status.receipts[-1]: sent {RECEIPT!r}, kept nothing"),
    ],
)
def test_a_dropped_field_is_named(kept: Any, said: str) -> None:
    assert what_was_not_kept(APPEND, kept) == said


def test_what_was_removed_has_to_be_gone_even_if_it_was_set_before() -> None:
    path = "/metadata/annotations/fencepost.dev~1acquired-at"
    patch = json_patch({"op": "add", "path": path, "value": ""}, {"op": "remove", "path": path})
    assert what_was_not_kept(patch, {"metadata": {}}) is None
    kept = {"metadata": {"annotations": {"fencepost.dev/acquired-at": "x"}}}
    assert what_was_not_kept(patch, kept) == (
        "metadata.annotations[fencepost.dev/acquired-at]: sent nothing, kept 'x'"
    )


def test_a_claim_is_compared_but_for_the_version_it_replaces() -> None:
    metadata = {"uid": "u", "resourceVersion": "1", "annotations": {"a/b": "1"}, "labels": {"l": "2"}}
    patch = Patch(part=Part.MAIN, content_type=MERGE_PATCH, body={"metadata": metadata})
    assert what_was_not_kept(patch, {"metadata": {**metadata, "resourceVersion": "2"}}) is None
    assert what_was_not_kept(patch, {"metadata": {**metadata, "labels": {}}}) == (
        "metadata.labels.l: sent '2', kept nothing"
    )


@pytest.mark.parametrize(
    ("sent", "kept", "place"),
    [
        ({"a": 1.0, "b": None}, {"a": 1}, None),
        ([1, 2], [1, 2], None),
        ([1, 2], [1], "spec: "),
        ([{"a": 1}], [{"a": 2}], "spec[0].a: "),
        ({"a": {"b": "x" * 500}}, {"a": {}}, "spec.a.b: "),
        ({"a": {}}, {"a": "text"}, "spec.a: "),
    ],
)
def test_the_first_difference(sent: Any, kept: Any, place: str | None) -> None:
    found = first_difference(sent, kept, "spec")
    if place is None:
        assert found is None
    else:
        assert found is not None and found.startswith(place) and len(found) < 250
