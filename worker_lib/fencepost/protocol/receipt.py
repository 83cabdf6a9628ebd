"""Receipts: how one is made, what its hash covers, and how the chain over them is checked.

IDEM-01: a receipt is written once, at the end of the list, and answered byte for byte for as long as its
task lives. Each names the hash of the one before, so that nobody can change, drop or reorder one without
the next reader seeing it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from fencepost.protocol import limits
from fencepost.protocol.payload import framed_sha256, sha256_hex
from fencepost.protocol.task import GENESIS, Kind, Outcome, Receipt, Task

RECEIPT_DOMAIN = "fencepost/receipt/v1"
KEY_DOMAIN = "fencepost/idempotency-key/v1"

_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f]")  # asked for each submit, so it is compiled once

# The documented list: what the hash of a receipt covers, in this order. The value is covered by its own hash.
HASHED_FIELDS = (
    "taskUid",
    "previous",
    "sequence",
    "idempotencyKey",
    "fencingToken",
    "holder",
    "kind",
    "outcome",
    "reason",
    "payloadSha256",
    "duplicateOf",
    "deviceTime",
    "recordedBy",
)


class ChainBroken(ValueError):  # noqa: N818
    """A receipt that does not follow from the one before, or whose hashes do not match its content."""


def receipt_hash(uid: str, receipt: Receipt) -> str:
    """SHA-256 over `HASHED_FIELDS`, each framed by its length, under a domain of its own."""
    return framed_sha256(
        RECEIPT_DOMAIN,
        uid,
        receipt.previous,
        str(receipt.sequence),
        receipt.idempotency_key,
        str(receipt.fencing_token),
        receipt.holder,
        receipt.kind.value,
        receipt.outcome.value,
        receipt.reason.value if receipt.reason else "",
        receipt.payload_sha256,
        receipt.duplicate_of,
        receipt.device_time,
        receipt.recorded_by,
    )


def sealed(uid: str, receipt: Receipt) -> Receipt:
    """`receipt` with its own hash filled in."""
    return replace(receipt, receipt_sha256=receipt_hash(uid, receipt))


def verify_chain(task: Task) -> None:
    """Recompute every hash of a task's receipts; raises `ChainBroken` with the first that is wrong."""
    previous = GENESIS
    for position, receipt in enumerate(task.receipts, start=1):
        where = f"receipt {position} of {task.key} (key {receipt.idempotency_key})"
        if receipt.sequence != position or receipt.previous != previous:
            raise ChainBroken(f"{where} does not follow the one before")
        if receipt.payload_sha256 != sha256_hex(receipt.value):
            raise ChainBroken(f"{where}: payloadSha256 is not the hash of its value")
        if receipt.receipt_sha256 != receipt_hash(task.uid, receipt):
            raise ChainBroken(f"{where}: receiptSha256 does not match its content")
        previous = receipt.receipt_sha256


def default_idempotency_key(
    *, outbox: str, uid: str, kind: Kind, outcome: Outcome, payload_sha256: str, token: int
) -> str:
    """The key of a submit whose caller gave none: the same work of the same outbox has the same key.

    The outcome is in it, or an Unknown and an Ok with an empty value would be one submit. The token is in
    it only for Unknown: each Unknown is a statement about one attempt, a result is about the work.
    """
    attempt = str(token) if outcome is Outcome.UNKNOWN else ""
    return framed_sha256(KEY_DOMAIN, outbox, uid, kind.value, outcome.value, payload_sha256, attempt)


def key_problem(key: str) -> str | None:
    """Why `key` is no idempotency key, or None: 1 to 256 bytes of UTF-8 without control characters."""
    try:
        size = limits.text_size(key)
    except UnicodeEncodeError:
        return "an idempotency key is UTF-8 text; this one has a lone surrogate"
    if not 1 <= size <= limits.IDEMPOTENCY_KEY_BYTES_MAX:
        return f"an idempotency key takes 1 to {limits.IDEMPOTENCY_KEY_BYTES_MAX} bytes, this one {size}"
    if _CONTROL_CHARACTER.search(key):
        return "an idempotency key has no control characters"
    return None
