"""What is written is read back the same, and what cannot be read says which object and field it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.api import names, v1alpha1
from fencepost.api.read import (
    Unreadable,
    candidate_from_metadata,
    job_from_object,
    job_spec,
    last_lease,
    task_from_object,
    task_spec,
)
from fencepost.api.write import (
    job_status_object,
    job_view,
    receipt_object,
    succeeded_condition,
    task_object,
    task_view,
)
from fencepost.ports import NewTask
from fencepost.protocol import limits
from fencepost.protocol.fanout import child_task
from fencepost.protocol.job import (
    Branch,
    BranchRecord,
    Condition,
    ConditionStatus,
    Continuation,
    ContinuationKind,
    ContinuationRecord,
    ContinuationWhen,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    Snapshot,
)
from fencepost.protocol.payload import canonical_json
from fencepost.protocol.task import (
    SETTLED_STATES,
    Hold,
    Kind,
    LastLease,
    LeaseEnd,
    ObjectKey,
    Outcome,
    Owner,
    Reason,
    Receipt,
    RetryPolicy,
    State,
    Task,
    TaskSpec,
    UnknownPolicy,
)

SHA = "ab" * 32
HOLDER = "11111111-1111-4111-8111-111111111111/abc"
TIME = "2026-11-30T12:00:00Z"

words = st.text(alphabet="abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1, max_size=12)
texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
present = texts.filter(bool)
numbers = st.integers(1, limits.DEADLINE_SECONDS_MAX)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e6, 1e6) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
requests = st.dictionaries(texts, json_values, max_size=4).map(canonical_json)
keys = st.builds(ObjectKey, namespace=words, name=words)
owners = st.builds(Owner, kind=st.sampled_from(["FanOutJob", "Job", "LeasedTask"]), name=words, uid=words)
specs = st.builds(
    TaskSpec,
    queue=words,
    request=requests,
    priority=st.integers(0, 9),
    suspend=st.booleans(),
    lease_duration_seconds=st.integers(1, 3600),
    retry_policy=st.builds(RetryPolicy, max_failures=st.integers(0, 50)),
    active_deadline_seconds=st.none() | numbers,
    ttl_seconds_after_finished=st.none() | numbers,
    unknown_policy=st.sampled_from(UnknownPolicy),
    external=st.booleans(),
)
receipts = st.builds(
    Receipt,
    idempotency_key=present,
    fencing_token=st.integers(0, limits.FENCING_TOKEN_MAX),
    holder=st.just(HOLDER),
    kind=st.sampled_from(Kind),
    outcome=st.sampled_from(Outcome),
    value=texts,
    payload_sha256=st.just(SHA),
    sequence=st.integers(1, 32),
    previous=st.just(SHA),
    receipt_sha256=st.just(SHA),
    recorded_by=present,
    reason=st.none() | st.sampled_from(Reason),
    duplicate_of=st.sampled_from(["", SHA]),
    device_time=texts,
)
last_leases = st.builds(
    LastLease,
    token=st.integers(0, limits.FENCING_TOKEN_MAX),
    holder=st.just(HOLDER),
    end=st.sampled_from(LeaseEnd),
    message=texts,
)
tasks = st.builds(
    Task,
    key=keys,
    uid=words,
    version=words,
    spec=specs,
    token=st.integers(0, limits.FENCING_TOKEN_MAX),
    holder=st.sampled_from(["", HOLDER]),
    account=texts,
    renewals=st.integers(0, limits.COUNTER_MAX),
    hold=st.none() | st.sampled_from(Hold),
    failures=st.integers(0, limits.COUNTER_MAX),
    last_lease=st.none() | last_leases,
    outbox_mark=texts,
    acquired_at=texts,
    renewed_at=texts,
    progress=texts,
    state=st.sampled_from(State),
    receipts=st.lists(receipts, max_size=3).map(tuple),
    owner=st.none() | owners,
    branch=st.none() | texts,
    created_at=st.sampled_from(["", TIME]),
    deleting=st.booleans(),
)
records = st.builds(
    BranchRecord,
    outcome=st.sampled_from(Outcome),
    payload_sha256=st.just(SHA),
    receipt_sha256=st.sampled_from(["", SHA]),
    value=st.none() | texts,
    value_ref=st.none() | words,
    reason=st.none() | st.sampled_from(Reason),
)
statuses = st.builds(
    JobStatus,
    state=st.sampled_from(JobState),
    created=st.integers(0, 1024),
    branches=st.dictionaries(texts, records, max_size=3).map(MappingProxyType),
    snapshot=st.none()
    | st.builds(Snapshot, generation=st.just(1), digest=st.just(SHA), committed_time=words),
    continuation=st.none()
    | st.builds(
        ContinuationRecord,
        kind=st.sampled_from(ContinuationKind),
        name=words,
        uid=words,
        started=st.booleans(),
    ),
    conditions=st.lists(
        st.builds(
            Condition, type=words, status=st.sampled_from(ConditionStatus), reason=words, message=texts
        ),
        max_size=3,
    ).map(tuple),
    observed_generation=st.none() | numbers,
)
continuations = st.builds(
    Continuation,
    when=st.sampled_from(ContinuationWhen),
    kind=st.just(ContinuationKind.LEASED_TASK),
    template=requests.map(
        lambda text: canonical_json({**json.loads(text), "apiVersion": "x", "kind": "LeasedTask"})
    ),
)
templates = specs.map(
    lambda spec: replace(spec, request="{}", suspend=False, ttl_seconds_after_finished=None)
)
jobs = st.builds(
    Job,
    key=keys,
    uid=words,
    version=words,
    spec=st.builds(
        JobSpec,
        branches=st.lists(st.builds(Branch, name=texts, request=requests), max_size=3).map(tuple),
        template=templates,
        continuation=st.none() | continuations,
        parallelism=st.none() | st.integers(1, 1024),
        suspend=st.booleans(),
        active_deadline_seconds=st.none() | numbers,
        ttl_seconds_after_finished=st.none() | numbers,
    ),
    status=statuses,
    generation=st.integers(1, 9),
    owner=st.none() | owners,
    created_at=st.sampled_from(["", TIME]),
    deleting=st.booleans(),
)


def through_json(value: Any) -> Any:
    """As it comes back over the wire."""
    return json.loads(json.dumps(value))


@given(tasks)
def test_a_task_is_read_as_it_was_written(task: Task) -> None:
    assert task_from_object(through_json(task_view(task))) == task


@given(jobs)
def test_a_job_is_read_as_it_was_written(job: Job) -> None:
    assert job_from_object(through_json(job_view(job))) == job


@given(tasks)
def test_metadata_shows_what_a_claim_needs(task: Task) -> None:
    candidate = candidate_from_metadata({"metadata": task_view(task)["metadata"]})
    assert (candidate.key, candidate.uid, candidate.version) == (task.key, task.uid, task.version)
    assert (candidate.token, candidate.failures) == (task.token, task.failures)
    assert (candidate.owner, candidate.branch) == (task.owner, task.branch)


@given(last_leases)
def test_how_a_lease_ended_is_read_as_it_was_written(last: LastLease) -> None:
    assert last_lease(last.text()) == last


@given(receipts)
def test_the_models_know_every_field_of_a_receipt(receipt: Receipt) -> None:
    whole = receipt_object(replace(receipt, sequence=1, idempotency_key="k", recorded_by="me"))
    assert set(whole) <= {field.alias for field in v1alpha1.Receipt.model_fields.values()}


@given(tasks)
def test_a_new_task_carries_no_lease(task: Task) -> None:
    new = task_object(NewTask(key=task.key, spec=task.spec, owner=task.owner, branch=task.branch))
    assert "status" not in new
    keys = {*new["metadata"].get("annotations", {}), *new["metadata"].get("labels", {})}
    assert keys <= {names.BRANCH, names.JOB_UID}
    assert v1alpha1.LeasedTaskSpec.model_validate(new["spec"] | {"queue": "q"}), (
        "the models refuse what the library writes"
    )


TASK = Task(key=ObjectKey(namespace="n", name="t"), uid="u", version="7", spec=TaskSpec())
JOB = Job(
    key=ObjectKey(namespace="n", name="j"),
    uid="u",
    version="7",
    spec=JobSpec(branches=(Branch(name="a", request='{"x":1}'),)),
)


def test_a_bare_object_has_the_defaults() -> None:
    metadata = {"namespace": "n", "name": "t", "uid": "u", "resourceVersion": "7"}
    assert task_from_object({"metadata": metadata, "spec": {}}) == TASK
    bare = {"metadata": metadata | {"name": "j"}, "spec": {"branches": [{"name": "a", "request": {"x": 1}}]}}
    assert job_from_object(bare) == JOB


def test_a_child_is_written_with_its_owner_and_branch() -> None:
    child = child_task(JOB, JOB.spec.branches[0])
    metadata = task_object(child)["metadata"]
    assert metadata["annotations"] == {names.BRANCH: "a"}
    assert metadata["labels"] == {names.JOB_UID: "u"}
    (owner,) = metadata["ownerReferences"]
    assert owner == {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "FanOutJob",
        "name": "j",
        "uid": "u",
        "controller": True,
        "blockOwnerDeletion": True,
    }


def test_an_owner_that_does_not_control_it_is_no_owner() -> None:
    view = task_view(replace(TASK, owner=Owner(kind="FanOutJob", name="j", uid="u")))
    view["metadata"]["ownerReferences"][0]["controller"] = False
    assert task_from_object(view).owner is None


def put(whole: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the object with one member replaced (None: left out)."""
    copy: Any = through_json(whole)
    at = copy
    *parents, last = path.split(">")
    for part in parents:
        at = at[int(part)] if part.isdigit() else at[part]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return copy  # type: ignore[no-any-return]


RECEIPT = Receipt(
    idempotency_key="k",
    fencing_token=1,
    holder=HOLDER,
    kind=Kind.RESULT,
    outcome=Outcome.OK,
    value="v",
    payload_sha256=SHA,
    sequence=1,
    previous="GENESIS",
    receipt_sha256=SHA,
    recorded_by="me",
)
FULL = replace(
    TASK,
    token=1,
    holder=HOLDER,
    hold=Hold.LEASED,
    failures=1,
    last_lease=LastLease(token=0, holder=HOLDER, end=LeaseEnd.ERROR),
    receipts=(RECEIPT,),
    owner=Owner(kind="FanOutJob", name="j", uid="u"),
)

WRONG_TASKS: list[tuple[str, Any, str]] = [
    ("metadata", None, "LeasedTask: metadata: missing"),
    ("metadata", "x", "LeasedTask: metadata: expected an object"),
    ("metadata>uid", None, "LeasedTask n/t: metadata.uid: expected text, got nothing"),
    ("metadata>name", None, "LeasedTask n/?: metadata.name: expected text"),
    ("metadata>labels", [], "metadata.labels: expected an object"),
    (
        f"metadata>annotations>{names.FENCING_TOKEN}",
        "01",
        f"LeasedTask n/t: {names.FENCING_TOKEN}: '01' is no",
    ),
    (f"metadata>annotations>{names.FENCING_TOKEN}", str(2**53), "is no fencing token"),
    (f"metadata>annotations>{names.FAILURES}", "-1", f"{names.FAILURES}: '-1' is no counter"),
    (f"metadata>annotations>{names.LAST_LEASE}", "1 me", f"{names.LAST_LEASE}: expected TOKEN HOLDER END"),
    (f"metadata>annotations>{names.LAST_LEASE}", "x me error", "expected TOKEN HOLDER END"),
    (f"metadata>labels>{names.HOLD}", "Waiting", f"{names.HOLD}: expected Leased or Backoff or Unknown"),
    ("metadata>ownerReferences", "x", "metadata.ownerReferences: expected a list of objects"),
    ("spec", None, "LeasedTask n/t: spec: missing"),
    ("spec>priority", "5", "spec.priority: expected a whole number, got '5'"),
    ("spec>priority", True, "spec.priority: expected a whole number, got True"),
    ("spec>suspend", 1, "spec.suspend: expected true or false, got 1"),
    ("spec>unknownPolicy", "Retry", "spec.unknownPolicy: expected Hold or Reclaim, got 'Retry'"),
    ("status>state", "Done", "status.state: expected Open or Unknown or Succeeded or Failed or Cancelled"),
    ("status>receipts", {}, None),
    ("status>receipts", ["x"], "status.receipts: expected a list of objects"),
    ("status>receipts>0>kind", "Report", "LeasedTask n/t: status.receipts[0].kind: expected Result or Row"),
    ("status>receipts>0>value", None, "status.receipts[0].value: expected text, got nothing"),
    ("status>receipts>0>fencingToken", "1", "status.receipts[0].fencingToken: expected a whole number"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), WRONG_TASKS)
def test_a_task_that_cannot_be_read_says_where(path: str, value: Any, sentence: str | None) -> None:
    whole = put(task_view(FULL), path, value)
    if sentence is None:
        assert task_from_object(whole).receipts == ()
        return
    with pytest.raises(Unreadable) as refused:
        task_from_object(whole)
    assert sentence in str(refused.value)


UNFIT_REQUESTS: list[tuple[Any, str]] = [
    ([1], "a request is a JSON object"),
    ({"n": 2**53}, "not representable as canonical JSON"),
    ({"x": "y" * 66_000}, "the request takes 66"),
    (json.loads('{"a":' * 900 + "1" + "}" * 900), "nested deeper than 64 levels"),
]


@pytest.mark.parametrize(("request_object", "sentence"), UNFIT_REQUESTS)
def test_a_stored_task_is_read_without_a_request_that_nobody_can_keep(
    request_object: Any, sentence: str
) -> None:
    found = task_from_object(put(task_view(FULL), "spec>request", request_object))
    assert found.spec.request_problem.startswith(sentence)
    assert replace(found, spec=replace(found.spec, request_problem="")) == replace(
        FULL, spec=replace(FULL.spec, request="{}")
    )
    assert "request" not in task_view(found)["spec"]


@pytest.mark.parametrize(("request_object", "sentence"), UNFIT_REQUESTS)
def test_such_a_request_is_refused_where_a_spec_comes_in(request_object: Any, sentence: str) -> None:
    with pytest.raises(Unreadable, match=f"spec.request: {sentence}"):
        task_spec({"request": request_object})
    with pytest.raises(Unreadable, match=rf"spec.branches\[0\].request: {sentence}"):
        job_spec({"branches": [{"name": "a", "request": request_object}]})


FULL_JOB = replace(
    JOB,
    status=JobStatus(
        branches=MappingProxyType(
            {"a": BranchRecord(outcome=Outcome.OK, payload_sha256=SHA, receipt_sha256=SHA)}
        ),
        continuation=ContinuationRecord(kind=ContinuationKind.JOB, name="x", uid="y"),
        conditions=(Condition(type="T", status=ConditionStatus.TRUE, reason="R", message="m"),),
    ),
)

WRONG_JOBS: list[tuple[str, Any, str]] = [
    ("spec>branches", {"a": 1}, "FanOutJob n/j: spec.branches: expected a list of objects"),
    ("spec>branches>0>name", 1, "spec.branches[0].name: expected text, got 1"),
    ("spec>branches>0>request", "x", "spec.branches[0].request: a request is a JSON object"),
    ("spec>joinPolicy", "Quorum", "spec.joinPolicy: expected AllSettled, got 'Quorum'"),
    ("spec>continuation", {}, "spec.continuation.template: missing"),
    (
        "spec>continuation",
        {"template": {"kind": "Pod"}},
        "template.kind: expected LeasedTask or FanOutJob or Job",
    ),
    ("status>state", "Open", "status.state: expected Running or Succeeded or Failed"),
    (
        "status>branches>a>outcome",
        "Maybe",
        "status.branches['a'].outcome: expected Ok or Rejected or Unknown",
    ),
    ("status>branches>a", "x", "FanOutJob n/j: status.branches: expected an object"),
    ("status>continuation>uid", None, "status.continuation.uid: expected text, got nothing"),
    ("status>conditions>0>status", "Yes", "status.conditions.status: expected True or False or Unknown"),
    ("metadata>generation", "1", "metadata.generation: expected a whole number"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), WRONG_JOBS)
def test_a_job_that_cannot_be_read_says_where(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(Unreadable) as refused:
        job_from_object(put(job_view(FULL_JOB), path, value))
    assert sentence in str(refused.value)


@given(json_values)
def test_nothing_that_is_json_is_read_by_accident(value: Any) -> None:
    for read in (task_from_object, job_from_object, candidate_from_metadata):
        whole = value if isinstance(value, Mapping) else {"metadata": value}
        with pytest.raises(Unreadable):
            read(whole)


def condition(status: ConditionStatus) -> Condition:
    return Condition(type="Succeeded", status=status, reason="R", message="m")


def test_a_condition_keeps_its_time_until_it_turns() -> None:
    running = JobStatus(conditions=(condition(ConditionStatus.UNKNOWN),), observed_generation=3)
    first = job_status_object(running, now="t1", previous=None)
    assert first["conditions"][0]["lastTransitionTime"] == "t1"
    assert first["conditions"][0]["observedGeneration"] == 3
    second = job_status_object(running, now="t2", previous=first)
    assert second["conditions"][0]["lastTransitionTime"] == "t1"
    done = replace(running, conditions=(condition(ConditionStatus.TRUE),))
    third = job_status_object(done, now="t3", previous=second)
    assert third["conditions"][0]["lastTransitionTime"] == "t3"


@pytest.mark.parametrize("state", State)
def test_the_condition_says_what_the_state_says(state: State) -> None:
    wanted = {State.SUCCEEDED: "True"}.get(state, "False" if state in SETTLED_STATES else "Unknown")
    written = succeeded_condition(state, now=TIME)
    assert (written["type"], written["status"]) == ("Succeeded", wanted)
    assert v1alpha1.LeasedTaskStatus.model_validate({"conditions": [written]})
