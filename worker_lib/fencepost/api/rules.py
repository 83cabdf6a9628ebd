"""The rules of the CRDs over more than one field, in CEL, with the sentence that a person reads.

Nobody can bypass these: they run inside the write that replaces the object, for every caller, on the main
resource and on `/status` alike. What needs metadata or the caller is in `policies`.

Traps that shaped them: a rule below a field that is removed does not run, so rules stand at the parent; on
a list map the API server takes a reordering for no change and skips rules, so receipts are an atomic list;
equality over free-form objects misses renamed keys, so their immutability is the policies'.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from fencepost.api import v1alpha1
from fencepost.protocol import limits
from fencepost.protocol.task import GENESIS, SETTLED_STATES, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of `x-kubernetes-validations`. `expression` builds a better message where it can."""

    rule: str
    message: str
    expression: str = ""
    field: str = ""

    def as_object(self) -> dict[str, str]:
        whole = {
            "rule": self.rule,
            "message": self.message,
            "messageExpression": self.expression,
            "fieldPath": self.field,
        }
        return {key: text for key, text in whole.items() if text}


def bytes_at_most(field: str, size: int) -> Rule:
    """`maxLength` counts characters; this counts bytes of UTF-8."""
    return Rule(
        rule=f"bytes(self.{field}).size() <= {size}",
        message=f"{field} takes at most {size} bytes of UTF-8",
        field=f".{field}",
    )


def immutable(model: type[BaseModel], *, changeable: Iterable[str], special: dict[str, str]) -> Rule:
    """The fields of a spec stay as they were created; `special` has the equality of fields of their own."""
    same = {
        name: special.get(name, _unchanged(name, optional=field.default is None))
        for name, field in ((field.alias or key, field) for key, field in model.model_fields.items())
        if name not in changeable
    }
    which = "".join(f"!({equal}) ? '{name}' : " for name, equal in same.items())
    return Rule(
        rule=" && ".join(f"({equal})" if "&&" in equal else equal for equal in same.values()),
        message=f"spec is immutable, but for {' and '.join(changeable)}",
        expression=f"'spec.' + ({which}'?') + ' is immutable: make another object instead'",
    )


def _unchanged(name: str, *, optional: bool) -> str:
    """`self.?x == oldSelf.?x` would say the same, and costs a hundred times the budget."""
    if not optional:
        return f"self.{name} == oldSelf.{name}"
    return f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"


# The newest receipt, and whether this write brought it.
_NEW: Final = "self.receipts.size() > oldSelf.receipts.size()"
_NEWEST: Final = "self.receipts[self.receipts.size() - 1]"
_SETTLED: Final = ", ".join(f"'{state.value}'" for state in State if state in SETTLED_STATES)

_RECEIPT: Final = (
    bytes_at_most("value", limits.VALUE_BYTES_MAX),
    bytes_at_most("idempotencyKey", limits.IDEMPOTENCY_KEY_BYTES_MAX),
    bytes_at_most("holder", limits.HOLDER_BYTES_MAX),
    Rule(
        rule="(self.kind == 'Result' && self.outcome != 'Unknown') || "
        f"self.sequence <= {limits.ROW_SEQUENCE_MAX}",
        message=f"the last {limits.RECEIPTS_KEPT_FOR_SETTLING} of {limits.RECEIPTS_MAX} receipts are kept "
        "for the settling one",
    ),
    Rule(
        rule="self.outcome != 'Unknown' || self.value == ''",
        message="an Unknown outcome has an empty value",
    ),
    Rule(rule="self.kind != 'Row' || self.outcome == 'Ok'", message="a row has the outcome Ok"),
)

_RECEIPTS: Final = (
    Rule(
        rule="oldSelf.all(i, o, i < self.size() && self[i] == o)",
        message="receipts are append-only: none is changed, moved or removed",
    ),
    Rule(
        rule="self.size() <= oldSelf.size() || "
        "oldSelf.all(o, o.idempotencyKey != self[self.size() - 1].idempotencyKey)",
        message="the idempotency key has a receipt already",
    ),
    Rule(
        rule=f"self.map(r, r.kind == 'Row' ? bytes(r.value).size() : 0).sum() <= {limits.ROWS_BYTES_MAX}",
        message=f"the rows of one task take at most {limits.ROWS_BYTES_MAX} bytes together",
    ),
)

_TASK_STATUS: Final = (
    Rule(
        rule="self.receipts.size() <= oldSelf.receipts.size() + 1",
        message="at most one new receipt a write",
    ),
    Rule(
        rule="self.count == self.receipts.size()",
        message="status.count is the number of receipts",
        field=".count",
    ),
    Rule(
        rule=f"self.receipts.size() == 0 ? self.head == '{GENESIS}' : self.head == {_NEWEST}.receiptSha256",
        message="status.head is the hash of the newest receipt",
        field=".head",
    ),
    Rule(
        rule=f"!({_NEW}) || ({_NEWEST}.previous == oldSelf.head && {_NEWEST}.sequence == oldSelf.count + 1)",
        message="a new receipt stands last, its previous is the old head and its sequence the old count + 1",
    ),
    Rule(
        rule=f"self.state == (!({_NEW}) || {_NEWEST}.kind == 'Row' ? oldSelf.state"
        f" : {_NEWEST}.outcome == 'Ok' ? 'Succeeded' : {_NEWEST}.outcome == 'Unknown' ? 'Unknown'"
        f" : has({_NEWEST}.reason) && {_NEWEST}.reason == 'Cancelled' ? 'Cancelled' : 'Failed')",
        message="status.state is what the new receipt implies, and changes only with one",
        field=".state",
    ),
    Rule(
        rule=f"self.settled == (self.state in [{_SETTLED}])",
        message="status.settled is true exactly in Succeeded, Failed and Cancelled",
        field=".settled",
    ),
    Rule(
        rule="!oldSelf.settled || self == oldSelf",
        message="the task is settled: nothing changes any more",
    ),
    Rule(
        rule="self.conditions.exists(c, c.type == 'Succeeded' && c.status == "
        "(!self.settled ? 'Unknown' : self.state == 'Succeeded' ? 'True' : 'False'))",
        message="the condition Succeeded says what status.state says",
    ),
    Rule(
        rule="!has(self.completionTime) || self.settled",
        message="completionTime is for a settled task",
        field=".completionTime",
    ),
)

_BRANCHES_BY_NAME: Final = "{}.branches.transformMapEntry(i, b, {{b.name: b}})"

_JOB_SPEC: Final = (
    Rule(
        rule="self.branches.transformMapEntry(i, b, {b.name: true}).size() == self.branches.size()",
        message="branch names are unique",
        field=".branches",
    ),
    immutable(
        v1alpha1.FanOutJobSpec,
        changeable=("suspend", "parallelism"),
        special={"branches": f"{_BRANCHES_BY_NAME.format('self')} == {_BRANCHES_BY_NAME.format('oldSelf')}"},
    ),
)

_KINDS_AFTER: Final = (
    "[['fencepost.dev/v1alpha1', 'LeasedTask'], ['fencepost.dev/v1alpha1', 'FanOutJob'], ['batch/v1', 'Job']]"
)

_RECORDS: Final = (
    Rule(
        rule="oldSelf.all(k, v, k in self && self[k] == v)",
        message="a settled branch is never changed or removed",
    ),
    Rule(
        rule="self.map(k, has(self[k].value) ? bytes(self[k].value).size() : 0).sum() <= "
        f"{limits.INLINE_VALUES_BYTES_MAX}",
        message=f"the inline values of a job take at most {limits.INLINE_VALUES_BYTES_MAX} bytes together",
    ),
)

_JOB_STATUS: Final = (
    Rule(
        rule="!has(oldSelf.snapshot) || (has(self.snapshot) && self.snapshot == oldSelf.snapshot)",
        message="the snapshot never changes",
    ),
    Rule(
        rule="!has(oldSelf.snapshot) || (self.branches == oldSelf.branches && self.state == oldSelf.state && "
        "self.created == oldSelf.created)",
        message="the job is joined: branches, state and created stay",
    ),
    Rule(
        rule="has(self.snapshot) == (self.state != 'Running')",
        message="state and snapshot are written together",
    ),
    Rule(rule="self.created >= oldSelf.created", message="status.created never falls", field=".created"),
    Rule(
        rule="!has(oldSelf.continuation) || (has(self.continuation) && "
        "self.continuation.kind == oldSelf.continuation.kind && "
        "self.continuation.name == oldSelf.continuation.name && "
        "self.continuation.uid == oldSelf.continuation.uid)",
        message="status.continuation is written once: its kind, name and uid never change",
    ),
    Rule(
        rule="!has(oldSelf.continuation) || !oldSelf.continuation.started || "
        "(has(self.continuation) && self.continuation.started)",
        message="a continuation that was started stays started",
    ),
    Rule(
        rule="!has(self.continuation) || has(self.snapshot)",
        message="there is no continuation before the snapshot",
    ),
)

# Where status has a default, removing it is a reset, which the rules above refuse once there is something to
# lose; this one holds without the default, too.
_STATUS_STAYS: Final = Rule(
    rule="!has(oldSelf.status) || has(self.status)", message="status may not be removed"
)

_JOB: Final = (
    _STATUS_STAYS,
    Rule(
        rule="!has(self.status) || self.status.created <= self.spec.branches.size()",
        message="status.created is at most the number of branches",
    ),
    Rule(
        rule="!has(self.status) || !has(self.status.snapshot) || "
        "(self.status.branches.size() == self.spec.branches.size() && "
        "self.spec.branches.all(b, b.name in self.status.branches))",
        message="the snapshot needs every branch of spec settled, and no other",
    ),
    Rule(
        # [x].all(m, ...) names x once: looking each name up in the list would be quadratic.
        rule="!has(self.status) || [self.spec.branches.transformMapEntry(i, b, {b.name: true})]"
        ".all(m, self.status.branches.all(k, k in m))",
        message="status.branches names only branches of spec",
    ),
)

RULES: Final[dict[str, tuple[Rule, ...]]] = {
    "LeasedTask": (_STATUS_STAYS,),
    "LeasedTaskSpec": (immutable(v1alpha1.LeasedTaskSpec, changeable=("suspend", "priority"), special={}),),
    "LeasedTaskStatus": _TASK_STATUS,
    "LeasedTaskStatus.receipts": _RECEIPTS,
    "Receipt": _RECEIPT,
    "FanOutJob": _JOB,
    "FanOutJobSpec": _JOB_SPEC,
    "FanOutJobStatus": _JOB_STATUS,
    "FanOutJobStatus.branches": _RECORDS,
    "Branch.name": (
        Rule(
            rule=f"bytes(self).size() <= {limits.BRANCH_NAME_BYTES_MAX}",
            message=f"a branch name takes at most {limits.BRANCH_NAME_BYTES_MAX} bytes of UTF-8",
        ),
    ),
    "BranchRecord.value": (
        Rule(
            rule=f"bytes(self).size() <= {limits.INLINE_VALUE_BYTES_MAX}",
            message=f"an inline value takes at most {limits.INLINE_VALUE_BYTES_MAX} bytes of UTF-8",
        ),
    ),
    "ContinuationTemplate": (
        Rule(
            rule=f"[self.apiVersion, self.kind] in {_KINDS_AFTER}",
            message="a continuation is a fencepost.dev/v1alpha1 LeasedTask or FanOutJob, or a batch/v1 Job",
        ),
    ),
}
"""Where each rule stands: a model, or a field of one."""
