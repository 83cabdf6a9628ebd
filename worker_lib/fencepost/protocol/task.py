"""The values that a task is made of: frozen, parsed, free of dictionaries.

Nothing here decides anything. The state of a lease lives in the main resource of the object, the receipts
in its status; `Task` is both, read at one version.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fencepost.protocol import limits


class State(StrEnum):
    """`status.state`: what is settled stays settled."""

    OPEN = "Open"
    UNKNOWN = "Unknown"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


SETTLED_STATES: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class Hold(StrEnum):
    """The label `fencepost.dev/hold`: why a task is not claimable now. Without it the task is free."""

    LEASED = "Leased"
    BACKOFF = "Backoff"
    UNKNOWN = "Unknown"


class Outcome(StrEnum):
    """What the work came to. `UNKNOWN` is not final: nobody knows whether the work took effect."""

    OK = "Ok"
    REJECTED = "Rejected"
    UNKNOWN = "Unknown"


class Kind(StrEnum):
    """A receipt is for the result of the whole task or for one row that was emitted on the way."""

    RESULT = "Result"
    ROW = "Row"


class Reason(StrEnum):
    """Why the operator settled a task or recorded a branch without a worker's result."""

    FAILURES_EXHAUSTED = "FailuresExhausted"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    CANCELLED = "Cancelled"
    TASK_DELETED = "TaskDeleted"


class LeaseEnd(StrEnum):
    """Why a lease ended; the last word of the annotation `fencepost.dev/last-lease`."""

    SHUTDOWN = "shutdown"  # the worker was told to stop and had no result
    ERROR = "error"  # the handler raised a retryable error
    START = "start"  # a worker found a lease of its own dead incarnation
    UNWANTED = "unwanted"  # the job is gone or has the branch recorded: not executed
    AFTER_UNKNOWN = "after-unknown"  # right after a submit of Unknown was accepted
    EXPIRED = "expired"  # nobody renewed it: only the server's side says so
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


class UnknownPolicy(StrEnum):
    """What happens to a task whose outcome is Unknown: wait for a report, or be claimed again."""

    HOLD = "Hold"
    RECLAIM = "Reclaim"


class DedupScope(StrEnum):
    """Where an `Ok` payload is accepted at most once. On the API server only `Task` is served so far."""

    TASK = "Task"
    SNAPSHOT = "Snapshot"
    QUEUE = "Queue"
    NAMESPACE = "Namespace"


OPERATOR_HOLDER: Final = "operator"
GENESIS: Final = "GENESIS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKey:
    """Where an object is; its UID says which one it is."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The controlling owner of an object."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a lease may end without a result, and how long to wait after each time.

    `max_failures` counts retries as a batch/v1 Job's backoffLimit does: the failure after it settles.
    """

    max_failures: int = limits.MAX_FAILURES_DEFAULT
    backoff_base_seconds: int = limits.BACKOFF_BASE_SECONDS_DEFAULT
    backoff_max_seconds: int = limits.BACKOFF_MAX_SECONDS_DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What is asked for. `request` is the canonical JSON text of the request object.

    `request_problem` is the sentence that says why a stored request cannot be read, for the API server keeps
    requests that nobody can keep exactly. The request is `{}` then, and nobody works on it: the worker that
    claims such a task rejects it.
    """

    queue: str = "default"
    request: str = "{}"
    request_problem: str = ""
    priority: int = limits.PRIORITY_DEFAULT
    suspend: bool = False
    lease_duration_seconds: int = limits.LEASE_SECONDS_DEFAULT
    retry_policy: RetryPolicy = RetryPolicy()
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    unknown_policy: UnknownPolicy = UnknownPolicy.HOLD
    dedup_scope: DedupScope = DedupScope.TASK
    external: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The proof of one accepted submit, never changed once written.

    `value` is the payload's text, `previous` the hash of the receipt before (or GENESIS), `receipt_sha256`
    covers every other field through `receipt.receipt_hash`. `device_time` is recorded and never trusted.
    """

    idempotency_key: str
    fencing_token: int
    holder: str
    kind: Kind
    outcome: Outcome
    value: str
    payload_sha256: str
    sequence: int
    previous: str
    receipt_sha256: str
    recorded_by: str
    reason: Reason | None = None
    duplicate_of: str = ""
    device_time: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLease:
    """How the lease before ended: the annotation `fencepost.dev/last-lease` as `TOKEN HOLDER END[ message]`.

    Plain text with the token and the holder first, because admission rules can compare a prefix and cannot
    read JSON.
    """

    token: int
    holder: str
    end: LeaseEnd
    message: str = ""

    def text(self) -> str:
        """At most `LAST_LEASE_BYTES_MAX` bytes: the message is cut, the rest never."""
        head = f"{self.token} {self.holder} {self.end.value}"
        if not self.message:
            return head
        room = limits.LAST_LEASE_BYTES_MAX - limits.text_size(head) - 1
        return f"{head} {cut_to_bytes(self.message, room)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A LeasedTask as read at one `version` (the resourceVersion, or the store's own counter)."""

    key: ObjectKey
    uid: str
    version: str
    spec: TaskSpec
    token: int = 0
    holder: str = ""
    account: str = ""
    renewals: int = 0
    hold: Hold | None = None
    failures: int = 0
    last_lease: LastLease | None = None
    outbox_mark: str = ""
    acquired_at: str = ""
    renewed_at: str = ""
    progress: str = ""
    state: State = State.OPEN
    receipts: tuple[Receipt, ...] = ()
    owner: Owner | None = None
    branch: str | None = None
    created_at: str = ""
    deleting: bool = False

    @property
    def settled(self) -> bool:
        return self.state in SETTLED_STATES

    @property
    def held(self) -> bool:
        """Somebody holds it now. A settled task keeps its lease as the record of who did it."""
        return self.hold is Hold.LEASED

    @property
    def head(self) -> str:
        """The hash of the newest receipt, GENESIS before the first."""
        return self.receipts[-1].receipt_sha256 if self.receipts else GENESIS

    @property
    def count(self) -> int:
        return len(self.receipts)

    @property
    def outbox(self) -> str:
        """The outbox UUID of the holder, which is also the label `fencepost.dev/outbox`."""
        return self.holder.partition("/")[0]

    @property
    def settling_receipt(self) -> Receipt | None:
        """The receipt that settled the task, if it is settled."""
        return self.receipts[-1] if self.settled and self.receipts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What a metadata-only list shows of a task that may be claimed: enough to claim it, no more."""

    key: ObjectKey
    uid: str
    version: str
    token: int
    failures: int
    owner: Owner | None = None
    branch: str | None = None


def cut_to_bytes(text: str, size: int) -> str:
    """`text`, cut at a character so that it takes at most `size` bytes of UTF-8."""
    return text.encode("utf-8", "replace")[: max(0, size)].decode("utf-8", "ignore")
