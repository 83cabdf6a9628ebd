"""The mutations of a task as the requests that carry them out, comparisons included.

Guarantees: every patch names what it was decided on, and the API server compares that inside the write. A
claim names the resourceVersion and the UID of the object that was judged claimable (409 if it has changed);
everything after it tests UID, token, holder and what else the protocol table lists by JSON Patch `test`
operations (422 if one does not hold). The lease is in the main resource and receipts are in `/status`; each
patch sees, and may test, the whole stored object.

Why a merge patch for the claim: a fresh task may have no annotations and no labels at all, and `add` needs
the parent to exist. From then on they exist. Why `test` with null only beside an annotation that is known to
be there: it passes where the key is absent, but fails where its parent is. A task that was never claimed may
have annotations or not, so what the operator writes to it has alternatives, of which one can apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fencepost.api import names
from fencepost.api.write import receipt_object, succeeded_condition
from fencepost.kube.client import JSON_PATCH, MERGE_PATCH, Json
from fencepost.protocol import lease
from fencepost.protocol.mutation import (
    Claim,
    Heartbeat,
    Mutation,
    MutationRefused,
    Release,
    Requeue,
    Revoke,
    Settle,
    Submit,
    state_after,
)
from fencepost.protocol.task import SETTLED_STATES, Hold, LastLease, Outcome, Receipt, State

Operation = dict[str, Any]


class Part(StrEnum):
    """Which of the two resources of an object a patch goes to; the value is the end of its path."""

    MAIN = ""
    STATUS = "/status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """One PATCH request, but for the path of the object."""

    part: Part
    content_type: str
    body: Json


def pointer(*keys: str) -> str:
    """The JSON Pointer (RFC 6901) through these keys."""
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in keys)


def annotation(name: str) -> str:
    """The JSON Pointer of an annotation."""
    return pointer("metadata", "annotations", name)


def label(name: str) -> str:
    """The JSON Pointer of a label."""
    return pointer("metadata", "labels", name)


UID: Final = "/metadata/uid"
ANNOTATIONS: Final = "/metadata/annotations"
STATE: Final = "/status/state"
SETTLED: Final = "/status/settled"
HEAD: Final = "/status/head"
COUNT: Final = "/status/count"
NEXT_RECEIPT: Final = "/status/receipts/-"
CONDITIONS: Final = "/status/conditions"
COMPLETION_TIME: Final = "/status/completionTime"

# What the policies demand of every claim is there to be removed at its end. These a claim may lack that was
# written by other hands: they are set before they are removed, because `remove` fails where nothing is.
_ALWAYS_CLAIMED: Final = (names.HOLDER, names.HOLDER_ACCOUNT, names.RENEWALS)
_PERHAPS_CLAIMED: Final = (names.ACQUIRED_AT, names.RENEWED_AT, names.OUTBOX_MARK)


def patch_of(mutation: Mutation, *, now: str) -> Patch:
    """The patch that carries out `mutation`; the likelier one where there are alternatives.

    Raises `MutationRefused` for what no table of the protocol allows: nothing that a server could compare
    would make it right. `now` is a time in RFC 3339 that a settling receipt notes as `completionTime`, for
    information only.
    """
    return alternatives_of(mutation, now=now)[0]


def alternatives_of(mutation: Mutation, *, now: str) -> tuple[Patch, ...]:
    """All patches that carry out `mutation`, to be tried in this order; at most one of them can apply."""
    match mutation:
        case Claim():
            return (_claim(mutation),)
        case Heartbeat():
            return (_heartbeat(mutation),)
        case Release() | Revoke():
            return (_end(mutation),)
        case Submit():
            return (_submit(mutation, now),)
        case Requeue():
            return tuple(_requeue(mutation, tests) for tests in _tests_of_token(mutation.token))
        case Settle():
            return tuple(_settle(mutation, tests, now) for tests in _tests_of_nobody(mutation.token))


def _claim(claim: Claim) -> Patch:
    annotations = {
        names.FENCING_TOKEN: str(claim.token),
        names.HOLDER: claim.holder,
        names.HOLDER_ACCOUNT: claim.account,
        names.RENEWALS: "0",
        names.ACQUIRED_AT: claim.at,
        names.RENEWED_AT: claim.at,
        names.OUTBOX_MARK: claim.outbox_mark,
    }
    labels = {names.HOLD: Hold.LEASED.value, names.OUTBOX: claim.holder.partition("/")[0]}
    metadata = {"uid": claim.uid, "resourceVersion": claim.version}
    body = {"metadata": metadata | {"annotations": annotations, "labels": labels}}
    return Patch(part=Part.MAIN, content_type=MERGE_PATCH, body=body)


def _heartbeat(heartbeat: Heartbeat) -> Patch:
    progress = [] if heartbeat.progress is None else [_set(annotation(names.PROGRESS), heartbeat.progress)]
    return _json_patch(
        Part.MAIN,
        _tests_of_lease(heartbeat),
        [
            _test(annotation(names.RENEWALS), str(heartbeat.renewals)),
            _test(SETTLED, False),
            _set(annotation(names.RENEWALS), str(heartbeat.renewals + 1)),
            _set(annotation(names.RENEWED_AT), heartbeat.at),
        ],
        progress,
    )


def _end(end: Release | Revoke) -> Patch:
    """The end of a lease: what `lease.ended` says, as operations. The token stays."""
    _refuse_what_no_table_allows(end)
    renewals = [_test(annotation(names.RENEWALS), str(end.renewals))] if isinstance(end, Revoke) else []
    effect = lease.LEASE_ENDS[end.state, end.end]
    failures = lease.failures_after(end.failures, effect)
    last = LastLease(token=end.token, holder=end.holder, end=end.end, message=end.message)
    return _json_patch(
        Part.MAIN,
        _tests_of_lease(end),
        renewals,
        [_test(STATE, end.state.value)],
        [_remove(annotation(name)) for name in _ALWAYS_CLAIMED],
        [
            operation(annotation(name))
            for name in _PERHAPS_CLAIMED
            for operation in (_set_to_be_removed, _remove)
        ],
        [_remove(label(names.OUTBOX)), _hold_becomes(effect.hold)],
        [_set(annotation(names.LAST_LEASE), last.text())],
        [_set(annotation(names.FAILURES), str(failures))] if effect.counts else [],
    )


def _refuse_what_no_table_allows(end: Release | Revoke) -> None:
    allowed = lease.ENDED_BY_OPERATOR if isinstance(end, Revoke) else lease.ENDED_BY_WORKER
    if end.end not in allowed or (end.state, end.end) not in lease.LEASE_ENDS:
        raise MutationRefused(f"a lease of {end.key} does not end by {end.end.value} in {end.state.value}")


def _submit(submit: Submit, now: str) -> Patch:
    tests = _tests_of_lease(submit)
    return _json_patch(Part.STATUS, tests, _receipt(submit, now))


def _settle(settle: Settle, tests: Sequence[Operation], now: str) -> Patch:
    return _json_patch(Part.STATUS, [_test(UID, settle.uid)], tests, _receipt(settle, now))


def _requeue(requeue: Requeue, tests: Sequence[Operation]) -> Patch:
    if requeue.hold is Hold.LEASED or requeue.state in SETTLED_STATES:
        raise MutationRefused(f"{requeue.key} is held or settled")
    return _json_patch(
        Part.MAIN,
        [_test(UID, requeue.uid)],
        tests,
        [
            _test(label(names.HOLD), requeue.hold.value),
            _test(STATE, requeue.state.value),
            _remove(label(names.HOLD)),
        ],
    )


def _receipt(write: Submit | Settle, now: str) -> list[Operation]:
    """One more receipt at the end of the list, and all that follows from it."""
    if write.state in SETTLED_STATES:
        raise MutationRefused(f"{write.key} is settled")
    if isinstance(write, Settle) and write.receipt.outcome is Outcome.UNKNOWN:
        raise MutationRefused("an Unknown that nobody holds needs a hold as well, which is another write")
    state = state_after(write.state, write.receipt)
    changed = [_set(STATE, state.value)] if state is not write.state else []
    settled = _settled(state, write.receipt, now) if state in SETTLED_STATES else []
    return [
        _test(STATE, write.state.value),
        _test(HEAD, write.head),
        _set(NEXT_RECEIPT, receipt_object(write.receipt)),
        _set(HEAD, write.receipt.receipt_sha256),
        _set(COUNT, write.receipt.sequence),
        *changed,
        *settled,
    ]


def _settled(state: State, receipt: Receipt, now: str) -> list[Operation]:
    condition = succeeded_condition(state, now=now)
    if receipt.reason is not None:
        condition["reason"] = receipt.reason.value
    return [_set(SETTLED, True), _set(CONDITIONS, [condition]), _set(COMPLETION_TIME, now)]


def _tests_of_lease(write: Heartbeat | Release | Revoke | Submit) -> list[Operation]:
    return [
        _test(UID, write.uid),
        _test(annotation(names.FENCING_TOKEN), str(write.token)),
        _test(annotation(names.HOLDER), write.holder),
    ]


def _tests_of_token(token: int) -> tuple[list[Operation], ...]:
    """That the token is this; token 0 may be an annotation that is absent, with or without its parent."""
    path = annotation(names.FENCING_TOKEN)
    if token > 0:
        return ([_test(path, str(token))],)
    return ([_test(path, None)], [_test(ANNOTATIONS, None)], [_test(path, "0")])


def _tests_of_nobody(token: int) -> tuple[list[Operation], ...]:
    """That the token is this and nobody holds it."""
    nobody = _test(annotation(names.HOLDER), None)
    without_parent = _test(ANNOTATIONS, None)
    return tuple(tests if without_parent in tests else [*tests, nobody] for tests in _tests_of_token(token))


def _hold_becomes(hold: Hold | None) -> Operation:
    return _remove(label(names.HOLD)) if hold is None else _set(label(names.HOLD), hold.value)


def _test(path: str, value: Json) -> Operation:
    return {"op": "test", "path": path, "value": value}


def _set(path: str, value: Json) -> Operation:
    return {"op": "add", "path": path, "value": value}


def _set_to_be_removed(path: str) -> Operation:
    return _set(path, "")


def _remove(path: str) -> Operation:
    return {"op": "remove", "path": path}


def _json_patch(part: Part, *operations: Sequence[Operation]) -> Patch:
    body = [operation for some in operations for operation in some]
    return Patch(part=part, content_type=JSON_PATCH, body=body)
