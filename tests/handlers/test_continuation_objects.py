"""What a continuation is made of: suspended, ours whatever the template says, and with the snapshot in it."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from fencepost.protocol import limits
from fencepost.protocol.continuation import Found
from fencepost.protocol.fanout import continuation_name
from fencepost.protocol.job import (
    BranchRecord,
    Continuation,
    ContinuationKind,
    ContinuationWhen,
    Job,
    JobState,
    Snapshot,
)
from fencepost.protocol.payload import canonical_json, request_text, sha256_hex
from fencepost.protocol.task import Outcome, TaskSpec
from fencepost_operator.continuation_objects import (
    ContinuationUnfit,
    is_made_of,
    objects_of,
    seen_in,
    trial_of,
    whole_snapshot,
)
from tests.handlers.values import a_job

POD = {
    "initContainers": [{"name": "first", "image": "i"}],
    "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "own", "mountPath": "/own"}]}],
    "volumes": [{"name": "own", "emptyDir": {}}],
}


def joined(kind: ContinuationKind, template: dict[str, Any], *, branches: int = 2, value: str = "v") -> Job:
    names = [f"b{number:04}" for number in range(branches)]
    record = BranchRecord(
        outcome=Outcome.OK, payload_sha256=sha256_hex(value), receipt_sha256="r" * 64, value=value
    )
    continuation = Continuation(when=ContinuationWhen.SETTLED, kind=kind, template=canonical_json(template))
    job = a_job(*names, continuation=continuation)
    status = replace(
        job.status,
        state=JobState.SUCCEEDED,
        branches=MappingProxyType(dict.fromkeys(names, record)),
        snapshot=Snapshot(generation=1, digest="d" * 64, committed_time="2026-01-01T00:00:00Z"),
    )
    return replace(job, status=status)


def a_leased_task(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "fencepost.dev/v1alpha1", "kind": "LeasedTask", "spec": spec}


def test_name_namespace_and_owner_are_ours_whatever_the_template_says() -> None:
    template = a_leased_task(queue="after", suspend=False)
    template["metadata"] = {
        "name": "theirs",
        "namespace": "kube-system",
        "ownerReferences": [{"uid": "x"}],
        "finalizers": ["never/ending"],
        "labels": {"team": "feeds", "fencepost.dev/hold": "Leased"},
        "annotations": {"note": "n", "fencepost.dev/fencing-token": "7"},
    }
    template["status"] = {"state": "Succeeded"}
    job = joined(ContinuationKind.LEASED_TASK, template)
    body = objects_of(job).body
    metadata = body["metadata"]
    assert (metadata["name"], metadata["namespace"]) == (continuation_name(job), "ns")
    assert [owner["uid"] for owner in metadata["ownerReferences"]] == [job.uid]
    assert (metadata["labels"], metadata["annotations"]) == ({"team": "feeds"}, {"note": "n"})
    assert "finalizers" not in metadata
    assert "status" not in body
    assert body["spec"]["suspend"] is True


def test_the_same_job_gives_the_same_objects() -> None:
    template = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": POD}}}
    assert objects_of(joined(ContinuationKind.JOB, template)) == objects_of(
        joined(ContinuationKind.JOB, template)
    )


def test_a_leased_task_gets_a_small_snapshot_whole_beside_its_own_request() -> None:
    body = objects_of(joined(ContinuationKind.LEASED_TASK, a_leased_task(request={"mine": 1}))).body
    request = body["spec"]["request"]
    assert request["mine"] == 1
    assert request["snapshot"]["branches"]["b0000"] == {
        "outcome": "Ok",
        "payloadSha256": sha256_hex("v"),
        "receiptSha256": "r" * 64,
        "value": "v",
    }


@pytest.mark.parametrize(
    ("branches", "mine"), [(400, "small"), (100, "x" * (limits.REQUEST_BYTES_MAX - 5_000))]
)
def test_a_snapshot_that_is_too_large_is_given_by_reference(branches: int, mine: str) -> None:
    job = joined(ContinuationKind.LEASED_TASK, a_leased_task(request={"mine": mine}), branches=branches)
    request = objects_of(job).body["spec"]["request"]
    assert request["snapshot"] == {
        "job": "job",
        "jobUid": job.uid,
        "generation": 1,
        "digest": "d" * 64,
        "state": "Succeeded",
    }
    request_text(request)  # within the limit


def test_a_fan_out_job_gets_it_in_every_branch_and_whole_only_if_all_copies_are_small() -> None:
    def template(branches: int) -> dict[str, Any]:
        names = [{"name": f"n{number}", "request": {"n": number}} for number in range(branches)]
        return {"apiVersion": "fencepost.dev/v1alpha1", "kind": "FanOutJob", "spec": {"branches": names}}

    few = objects_of(joined(ContinuationKind.FAN_OUT_JOB, template(2))).body["spec"]
    assert few["suspend"] is True
    assert [branch["request"]["n"] for branch in few["branches"]] == [0, 1]
    assert all("branches" in branch["request"]["snapshot"] for branch in few["branches"])
    many = objects_of(joined(ContinuationKind.FAN_OUT_JOB, template(200))).body["spec"]
    assert not any("branches" in branch["request"]["snapshot"] for branch in many["branches"])
    assert len(many["branches"]) == 200


def test_a_job_gets_all_of_it_in_a_config_map_that_every_container_mounts() -> None:
    template = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": POD}}}
    job = joined(ContinuationKind.JOB, template, branches=1024, value="v" * 100)
    objects = objects_of(job)
    assert objects.config_map is not None
    text = objects.config_map["data"]["snapshot.json"]
    assert text == whole_snapshot(job)
    assert len(json.loads(text)["branches"]) == 1024
    assert len(text) < 2**20
    assert objects.config_map["immutable"] is True
    assert objects.config_map["metadata"]["ownerReferences"] == objects.body["metadata"]["ownerReferences"]
    pod = objects.body["spec"]["template"]["spec"]
    assert [volume["name"] for volume in pod["volumes"]] == ["own", "fencepost-snapshot"]
    for container in pod["initContainers"] + pod["containers"]:
        assert container["volumeMounts"][-1] == {
            "name": "fencepost-snapshot",
            "mountPath": "/fencepost",
            "readOnly": True,
        }


def test_a_whole_snapshot_is_the_same_whether_it_is_small_or_not() -> None:
    job = joined(ContinuationKind.LEASED_TASK, a_leased_task())
    assert "branches" in json.loads(whole_snapshot(job))
    large = joined(ContinuationKind.LEASED_TASK, a_leased_task(), branches=1000)
    assert set(json.loads(whole_snapshot(large))) == set(json.loads(whole_snapshot(job)))


@pytest.mark.parametrize(
    ("owners", "suspend", "found"),
    [
        ([{"uid": "job-uid", "controller": True}], True, Found.SUSPENDED),
        ([{"uid": "job-uid", "controller": True}], False, Found.RUNNING),
        ([{"uid": "job-uid", "controller": True}], None, Found.RUNNING),
        ([{"uid": "job-uid"}], True, Found.STRANGER),
        ([{"uid": "other", "controller": True}], True, Found.STRANGER),
        (None, True, Found.STRANGER),
    ],
)
def test_what_is_found_under_the_name(owners: Any, suspend: bool | None, found: Found) -> None:
    metadata = {"uid": "u"} | ({"ownerReferences": owners} if owners else {})
    spec = {} if suspend is None else {"suspend": suspend}
    seen = seen_in({"metadata": metadata, "spec": spec}, a_job())
    assert (seen.found, seen.uid) == (found, "u")


def test_nothing_under_the_name() -> None:
    assert seen_in(None, a_job()).found is Found.NOTHING


def stored(job: Job, **changes: Any) -> dict[str, Any]:
    """The object as it is sent, with other values in its spec."""
    body: dict[str, Any] = json.loads(json.dumps(objects_of(job).body))
    return {**body, "spec": {**body["spec"], **changes}}


A_TASK = joined(ContinuationKind.LEASED_TASK, a_leased_task(queue="after", request={"n": 1}))
A_FAN_OUT = joined(
    ContinuationKind.FAN_OUT_JOB,
    {
        "apiVersion": "fencepost.dev/v1alpha1",
        "kind": "FanOutJob",
        "spec": {"branches": [{"name": "x", "request": {"n": 1}}]},
    },
)
A_JOB = joined(
    ContinuationKind.JOB, {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": POD}}}
)


@pytest.mark.parametrize(
    ("job", "changes", "ours"),
    [
        pytest.param(A_TASK, {}, True, id="a task"),
        pytest.param(
            A_TASK,
            {"suspend": False, "priority": TaskSpec().priority, "external": False},
            True,
            id="defaults",
        ),
        pytest.param(A_TASK, {"request": {"fake": 1}}, False, id="another request"),
        pytest.param(A_TASK, {"queue": "else"}, False, id="another queue"),
        pytest.param(A_TASK, {"external": True}, False, id="more than was sent"),
        pytest.param(A_TASK, {"priority": "x"}, False, id="what cannot be read"),
        pytest.param(A_FAN_OUT, {"joinPolicy": "AllSettled", "template": {"spec": {}}}, True, id="a job"),
        pytest.param(A_FAN_OUT, {"branches": [{"name": "y"}]}, False, id="other branches"),
        pytest.param(A_JOB, {"backoffLimit": 6, "selector": {"matchLabels": {}}}, True, id="a batch Job"),
        pytest.param(A_JOB, {"template": {"spec": {"containers": []}}}, False, id="another pod"),
    ],
)
def test_ours_has_the_content_that_it_was_sent_with(job: Job, changes: dict[str, Any], ours: bool) -> None:
    assert is_made_of(stored(job, **changes), objects_of(job).body) is ours


def test_labels_that_are_missing_are_not_ours() -> None:
    template = a_leased_task(queue="after") | {"metadata": {"labels": {"team": "feeds"}}}
    job = joined(ContinuationKind.LEASED_TASK, template)
    body = objects_of(job).body
    more = body["metadata"] | {"labels": {"team": "feeds", "more": "x"}}
    assert is_made_of(body | {"metadata": more}, body)
    assert not is_made_of(body | {"metadata": body["metadata"] | {"labels": {}}}, body)


def test_a_dry_run_of_a_job_is_compared_without_what_differs_from_job_to_job() -> None:
    def answer(uid: str) -> dict[str, Any]:
        labels = {"controller-uid": uid, "job-name": uid, "app": "a"}
        pods = {"metadata": {"labels": labels}, "spec": POD}
        made = stored(A_JOB, selector={"matchLabels": {"controller-uid": uid}}, template=pods)
        return {**made, "metadata": made["metadata"] | {"labels": labels}}

    assert is_made_of(answer("u-1"), answer("u-2"))


def test_a_dry_run_is_sent_under_no_name_that_is_taken() -> None:
    body = objects_of(A_TASK).body
    metadata = trial_of(body)["metadata"]
    assert "name" not in metadata
    assert metadata["generateName"].startswith(body["metadata"]["name"])
    assert trial_of(body)["spec"] == body["spec"]


BATCH = {"apiVersion": "batch/v1", "kind": "Job"}
FAN_OUT = {"apiVersion": "fencepost.dev/v1alpha1", "kind": "FanOutJob"}
TASK_SPEC = {"queue": "after"}
MALFORMED = [
    (a_leased_task() | {"spec": "x"}, "spec"),
    (a_leased_task(queue=5), "spec.queue"),
    (a_leased_task(request="x"), "spec.request"),
    (a_leased_task(qeue="x"), "did you mean queue?"),
    (a_leased_task(**TASK_SPEC) | {"metadata": ["x"]}, "metadata"),
    (a_leased_task(**TASK_SPEC) | {"metadata": {"annotations": ["x"]}}, "metadata.annotations"),
    (a_leased_task(**TASK_SPEC) | {"metadata": {"labels": {"a": 1}}}, "metadata.labels['a']"),
    (FAN_OUT | {"spec": {"branches": ["x"]}}, "spec.branches[0]"),
    (FAN_OUT | {"spec": {"branches": []}}, "spec.branches"),
    (BATCH, "spec: missing"),
    (BATCH | {"spec": "x"}, "spec"),
    (BATCH | {"spec": {}}, "spec.template: missing"),
    (BATCH | {"spec": {"template": "x"}}, "spec.template"),
    (BATCH | {"spec": {"template": {"spec": ["x"]}}}, "spec.template.spec"),
    (BATCH | {"spec": {"template": {"spec": {"containers": []}}}}, "containers: missing"),
    (BATCH | {"spec": {"template": {"spec": {"containers": ["x"]}}}}, "containers"),
    (BATCH | {"spec": {"template": {"spec": POD | {"volumes": {"a": 1}}}}}, "volumes"),
    (
        BATCH | {"spec": {"template": {"spec": {"containers": [{"name": "c", "volumeMounts": ["x"]}]}}}},
        "containers[0].volumeMounts",
    ),
]


@pytest.mark.parametrize(("template", "place"), MALFORMED)
def test_a_template_that_nothing_can_be_made_of_is_refused_with_its_place(
    template: dict[str, Any], place: str
) -> None:
    with pytest.raises(ContinuationUnfit) as refused:
        objects_of(joined(ContinuationKind(template["kind"]), template))
    assert str(refused.value).startswith("spec.continuation.template.")
    assert place in str(refused.value)


@pytest.mark.parametrize("kind", [ContinuationKind.LEASED_TASK, ContinuationKind.FAN_OUT_JOB])
def test_a_request_without_room_for_even_a_reference_is_refused(kind: ContinuationKind) -> None:
    request = {"t": "x" * (limits.REQUEST_BYTES_MAX - 20)}
    spec = (
        {"request": request}
        if kind is ContinuationKind.LEASED_TASK
        else {"branches": [{"name": "x", "request": request}]}
    )
    template = {"apiVersion": "fencepost.dev/v1alpha1", "kind": kind.value, "spec": spec}
    with pytest.raises(ContinuationUnfit, match="over the limit"):
        objects_of(joined(kind, template))


def test_a_job_without_a_continuation_has_no_objects() -> None:
    with pytest.raises(ValueError, match="no continuation"):
        objects_of(a_job())
