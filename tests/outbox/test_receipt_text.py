"""The stored text of a receipt is canonical JSON (RFC 8785), whatever text is in it."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.outbox.rows import receipt_from_text, receipt_text
from fencepost.protocol.limits import FENCING_TOKEN_MAX
from fencepost.protocol.payload import canonical_json, sha256_hex
from fencepost.protocol.task import Kind, Outcome, Reason, Receipt

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    value=TEXT,
    key=TEXT.filter(bool),
    time=TEXT,
    token=st.integers(1, FENCING_TOKEN_MAX),
    reason=st.none() | st.just(Reason.CANCELLED),
)
def test_the_text_of_a_receipt_is_canonical_and_read_back_the_same(
    value: str, key: str, time: str, token: int, reason: Reason | None
) -> None:
    receipt = Receipt(
        idempotency_key=key,
        fencing_token=token,
        holder="outbox/incarnation",
        kind=Kind.RESULT,
        outcome=Outcome.REJECTED if reason else Outcome.OK,
        value=value,
        payload_sha256=sha256_hex(value),
        sequence=1,
        previous="GENESIS",
        receipt_sha256="0" * 64,
        recorded_by="somebody",
        reason=reason,
        device_time=time,
    )
    text = receipt_text(receipt)
    assert text == canonical_json(json.loads(text))
    assert receipt_from_text(text) == receipt


def test_every_control_character_is_escaped_as_the_rfc_says() -> None:
    value = "".join(map(chr, range(0x80))) + "\u2028é\U0001f600"
    assert json.dumps(value, ensure_ascii=False) == canonical_json([value])[1:-1]
