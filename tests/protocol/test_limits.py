from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol import limits

# One character, the bytes that Go's encoding/json writes for it with HTML escaping on (what the API server
# stores): checked against go1.26, see the table in the package's `encodeState.string`.
STORED_BY_GO = {
    "a": 1,
    "\x7f": 1,
    "/": 1,
    "'": 1,
    '"': 2,
    "\\": 2,
    "\n": 2,
    "\r": 2,
    "\t": 2,
    "\b": 2,
    "\f": 2,
    "\x00": 6,
    "\x0b": 6,
    "\x1f": 6,
    "<": 6,
    ">": 6,
    "&": 6,
    "\u2028": 6,
    "\u2029": 6,
    "\x80": 2,
    "é": 2,
    "€": 3,
    "\u2027": 3,
    "\u202a": 3,
    "\ufffd": 3,
    "😂": 4,
}


@pytest.mark.parametrize(("character", "size"), STORED_BY_GO.items(), ids=ascii)
def test_stored_size_is_what_the_api_server_stores(character: str, size: int) -> None:
    assert limits.stored_size(character) == size


@given(st.text(alphabet=st.sampled_from(list(STORED_BY_GO))))
def test_stored_size_of_a_text_is_the_sum_over_its_characters(text: str) -> None:
    assert limits.stored_size(text) == sum(STORED_BY_GO[character] for character in text)


@given(st.text())
def test_stored_size_is_never_below_the_size_in_utf8(text: str) -> None:
    assert limits.text_size(text) == len(text.encode())
    assert limits.text_size(text) <= limits.stored_size(text) <= 6 * limits.text_size(text)


def test_the_limits_fit_each_other() -> None:
    assert limits.ROW_SEQUENCE_MAX == 28
    assert limits.ROW_SEQUENCE_MAX + limits.RECEIPTS_KEPT_FOR_SETTLING == limits.RECEIPTS_MAX
    assert limits.LEASE_SECONDS_MIN <= limits.LEASE_SECONDS_DEFAULT <= limits.LEASE_SECONDS_MAX
    assert limits.BACKOFF_BASE_SECONDS_DEFAULT <= limits.BACKOFF_BASE_SECONDS_MAX
    assert limits.BACKOFF_MAX_SECONDS_DEFAULT <= limits.BACKOFF_MAX_SECONDS_MAX
    assert limits.MAX_FAILURES_DEFAULT <= limits.FAILURES_MAX < limits.COUNTER_MAX
    assert limits.PRIORITY_MIN <= limits.PRIORITY_DEFAULT <= limits.PRIORITY_MAX
    assert limits.FENCING_TOKEN_MAX == int(float(limits.FENCING_TOKEN_MAX)) == 9_007_199_254_740_991


def test_a_whole_task_stays_under_an_object_at_every_limit_at_once() -> None:
    texts = limits.HOLDER_BYTES_MAX + limits.IDEMPOTENCY_KEY_BYTES_MAX + limits.ACCOUNT_BYTES_MAX
    hashes_and_names = 4 * 64 + 400
    receipt = (
        6 * (texts + limits.DEVICE_TIME_CHARACTERS_MAX + limits.REASON_CHARACTERS_MAX) + hashes_and_names
    )
    values = limits.ROWS_BYTES_MAX + limits.VALUE_BYTES_MAX
    annotations = 6 * (limits.PROGRESS_BYTES_MAX + limits.LAST_LEASE_BYTES_MAX + 2048)
    task = limits.REQUEST_BYTES_MAX + values + limits.RECEIPTS_MAX * receipt + annotations
    assert task < limits.OBJECT_BYTES_MAX
