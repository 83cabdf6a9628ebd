"""How frozen values are written in a store file: JSON whose members are the fields' own names.

A file is read by the version that wrote it or a newer one (`tables.SCHEMA_VERSION`); a member that is missing
has its field's default. It is no wire form: that is `fencepost.api`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from fencepost.protocol.job import (
    Branch,
    BranchRecord,
    Condition,
    ConditionStatus,
    Continuation,
    ContinuationKind,
    ContinuationRecord,
    ContinuationWhen,
    JobSpec,
    JobState,
    JobStatus,
    JoinPolicy,
    Snapshot,
)
from fencepost.protocol.report import Report, ReportAnswer
from fencepost.protocol.submission import Verdict
from fencepost.protocol.task import (
    DedupScope,
    Kind,
    LastLease,
    LeaseEnd,
    Outcome,
    Reason,
    Receipt,
    RetryPolicy,
    TaskSpec,
    UnknownPolicy,
)

Members = dict[str, Any]


def text_of(value: object) -> str:
    """The text of a frozen value, of mappings and tuples of such, of texts and numbers."""
    return json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}  # type: ignore[arg-type]


def task_spec_of(text: str) -> TaskSpec:
    return _task_spec(json.loads(text))


def receipt_of(text: str) -> Receipt:
    return _receipt(json.loads(text))


def job_spec_of(text: str) -> JobSpec:
    members = json.loads(text)
    planned = members["continuation"]
    return JobSpec(
        **{
            **members,
            "branches": tuple(Branch(**branch) for branch in members["branches"]),
            "template": _task_spec(members["template"]),
            "join_policy": JoinPolicy(members["join_policy"]),
            "continuation": _continuation(planned) if planned else None,
        }
    )


def job_status_of(text: str) -> JobStatus:
    members = json.loads(text)
    snapshot, record = members["snapshot"], members["continuation"]
    records = {name: _branch_record(record) for name, record in members["branches"].items()}
    return JobStatus(
        **{
            **members,
            "state": JobState(members["state"]),
            "branches": MappingProxyType(records),
            "snapshot": Snapshot(**snapshot) if snapshot else None,
            "continuation": _continuation_record(record) if record else None,
            "conditions": tuple(_condition(condition) for condition in members["conditions"]),
        }
    )


def answer_of(text: str) -> ReportAnswer:
    members = json.loads(text)
    report = {**members["report"], "outcome": Outcome(members["report"]["outcome"])}
    return ReportAnswer(
        report=Report(**report),
        verdict=Verdict(members["verdict"]),
        receipt=_receipt(members["receipt"]) if members["receipt"] else None,
    )


def last_lease_of(text: str) -> LastLease | None:
    """What `LastLease.text` wrote, or None for an empty text."""
    if not text:
        return None
    token, holder, end, *message = text.split(" ", 3)
    return LastLease(token=int(token), holder=holder, end=LeaseEnd(end), message="".join(message))


def _task_spec(members: Members) -> TaskSpec:
    return TaskSpec(
        **{
            **members,
            "retry_policy": RetryPolicy(**members["retry_policy"]),
            "unknown_policy": UnknownPolicy(members["unknown_policy"]),
            "dedup_scope": DedupScope(members["dedup_scope"]),
        }
    )


def _receipt(members: Members) -> Receipt:
    members["kind"] = Kind(members["kind"])
    members["outcome"] = Outcome(members["outcome"])
    members["reason"] = _reason(members["reason"])
    return Receipt(**members)


def _reason(text: str | None) -> Reason | None:
    return Reason(text) if text else None


def _branch_record(members: Members) -> BranchRecord:
    members["outcome"] = Outcome(members["outcome"])
    members["reason"] = _reason(members["reason"])
    return BranchRecord(**members)


def _continuation(members: Members) -> Continuation:
    return Continuation(
        when=ContinuationWhen(members["when"]),
        kind=ContinuationKind(members["kind"]),
        template=members["template"],
    )


def _continuation_record(members: Members) -> ContinuationRecord:
    return ContinuationRecord(**{**members, "kind": ContinuationKind(members["kind"])})


def _condition(members: Members) -> Condition:
    return Condition(**{**members, "status": ConditionStatus(members["status"])})
