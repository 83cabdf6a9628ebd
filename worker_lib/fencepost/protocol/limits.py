"""Every number that bounds the product, with its reason. Nothing else may carry a bound of its own.

Each constant here is also a bound of the generated schema and has a test that goes one over it.
Sizes of text are in bytes of UTF-8 unless a name says otherwise. The API server stores ``<``, ``>`` and
``&`` as six bytes each, so sizes that end up inside an object are taken of the JSON-escaped text
(`stored_size`).
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "fencepost.dev"
VERSION: Final = "v1alpha1"

# Identifiers: long enough for any real one, short enough that a map of 1,024 of them fits an object.
BRANCH_NAME_BYTES_MAX: Final = 256
IDEMPOTENCY_KEY_BYTES_MAX: Final = 256
HOLDER_BYTES_MAX: Final = 256
ACCOUNT_BYTES_MAX: Final = 256
QUEUE_CHARACTERS_MAX: Final = 63  # a DNS label, so that it may become a label value
OBJECT_NAME_CHARACTERS_MAX: Final = 253

# Requests. 200 KiB keeps client-side `kubectl apply` under its annotation limit of 262,144 bytes. 320 KiB
# keep a job under 1 MiB whatever is in it: 640 KiB, since its names are in the spec and in status.branches;
# 250 KiB for 1,024 records of some 250 bytes beside the name; 128 KiB of inline values.
REQUEST_BYTES_MAX: Final = 64 * 1024
JOB_SPEC_BYTES_MAX_CLIENT_SIDE: Final = 200 * 1024
JOB_SPEC_BYTES_MAX: Final = 320 * 1024
REQUEST_DEPTH_MAX: Final = 64  # nesting of JSON; the API server itself stops far later

# Receipts. Twenty of them make every later write 2 to 4 times slower, so they are few.
VALUE_BYTES_MAX: Final = 16 * 1024
ROWS_BYTES_MAX: Final = 112 * 1024
RECEIPTS_MAX: Final = 32
RECEIPTS_KEPT_FOR_SETTLING: Final = 4
ROW_SEQUENCE_MAX: Final = RECEIPTS_MAX - RECEIPTS_KEPT_FOR_SETTLING

# Fan-out.
BRANCHES_MAX: Final = 1024
INLINE_VALUE_BYTES_MAX: Final = 1024
INLINE_VALUES_BYTES_MAX: Final = 128 * 1024
SNAPSHOT_IN_REQUEST_BYTES_MAX: Final = 32 * 1024
OBJECT_BYTES_MAX: Final = 1024 * 1024

# Numbers.
FENCING_TOKEN_MAX: Final = 2**53 - 1  # the largest integer that every JSON reader keeps
FAILURES_MAX: Final = 50
LEASE_SECONDS_MIN: Final = 1
LEASE_SECONDS_MAX: Final = 3600  # so that operator restarts cannot keep one alive for ever
LEASE_SECONDS_DEFAULT: Final = 60
MAX_FAILURES_DEFAULT: Final = 6
BACKOFF_BASE_SECONDS_DEFAULT: Final = 10
BACKOFF_BASE_SECONDS_MAX: Final = 3600
BACKOFF_MAX_SECONDS_DEFAULT: Final = 360
BACKOFF_MAX_SECONDS_MAX: Final = 86_400
PRIORITY_MIN: Final = 0
PRIORITY_MAX: Final = 9
PRIORITY_DEFAULT: Final = 5
DEADLINE_SECONDS_MAX: Final = 31_536_000  # a year
COUNTER_MAX: Final = 999_999_999  # renewals and failures, as canonical decimal text

# Texts that travel in annotations and conditions.
PROGRESS_BYTES_MAX: Final = 1024
LAST_LEASE_BYTES_MAX: Final = 1024
REASON_CHARACTERS_MAX: Final = 64
MESSAGE_BYTES_MAX: Final = 1024
DEVICE_TIME_CHARACTERS_MAX: Final = 64

# The worker.
HEARTBEAT_FRACTION: Final = 3  # a heartbeat every third of the lease: two may be lost before it ends
ERROR_TEXT_BYTES_MAX: Final = 1024

_TWO_BYTES_STORED: Final = b'"\\\n\r\t\b\f'
_SIX_BYTES_STORED: Final = bytes({*range(0x20), *b"<>&"} - {*_TWO_BYTES_STORED})


def text_size(text: str) -> int:
    """Bytes of `text` in UTF-8."""
    return len(text.encode("utf-8"))


def stored_size(text: str) -> int:
    """Bytes that `text` takes inside a stored JSON object, quotes not counted.

    The API server escapes `<`, `>` and `&` to six bytes, quotes, backslashes and short controls to two,
    other control characters and U+2028/U+2029 to six.
    """
    encoded = text.encode("utf-8")
    one_more = len(encoded) - len(encoded.translate(None, _TWO_BYTES_STORED))
    five_more = len(encoded) - len(encoded.translate(None, _SIX_BYTES_STORED))
    three_more = text.count("\u2028") + text.count("\u2029")  # three bytes themselves, six stored
    return len(encoded) + one_more + 5 * five_more + 3 * three_more
