"""The keys that Fencepost writes on objects. One prefix, lower case, dashes."""

from __future__ import annotations

from typing import Final

from fencepost.protocol.limits import GROUP, VERSION

API_VERSION: Final = f"{GROUP}/{VERSION}"
LEASED_TASK: Final = "LeasedTask"
LEASED_TASKS: Final = "leasedtasks"
FAN_OUT_JOB: Final = "FanOutJob"
FAN_OUT_JOBS: Final = "fanoutjobs"

FENCING_TOKEN: Final = f"{GROUP}/fencing-token"
HOLDER: Final = f"{GROUP}/holder"
HOLDER_ACCOUNT: Final = f"{GROUP}/holder-account"
RENEWALS: Final = f"{GROUP}/renewals"
ACQUIRED_AT: Final = f"{GROUP}/acquired-at"
RENEWED_AT: Final = f"{GROUP}/renewed-at"
PROGRESS: Final = f"{GROUP}/progress"
FAILURES: Final = f"{GROUP}/failures"
OUTBOX_MARK: Final = f"{GROUP}/outbox-mark"
LAST_LEASE: Final = f"{GROUP}/last-lease"
LEASE_ANNOTATIONS: Final = (
    FENCING_TOKEN,
    HOLDER,
    HOLDER_ACCOUNT,
    RENEWALS,
    ACQUIRED_AT,
    RENEWED_AT,
    PROGRESS,
    FAILURES,
    OUTBOX_MARK,
    LAST_LEASE,
)

HOLD: Final = f"{GROUP}/hold"
OUTBOX: Final = f"{GROUP}/outbox"
LEASE_LABELS: Final = (HOLD, OUTBOX)

# Set when a child is made, never changed: the branch's whole name (a label could not hold it).
BRANCH: Final = f"{GROUP}/branch"
JOB_UID: Final = f"{GROUP}/job-uid"
