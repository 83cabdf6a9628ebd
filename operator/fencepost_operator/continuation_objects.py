"""What a continuation is made of: the template, suspended, ours, and with the snapshot in it.

Guarantees: the same job and snapshot give the same objects, so a repeated create is a no-op. Namespace and
owner are set here and cannot come from the template; keys of ours that a template carries are dropped,
because they would claim a lease or another job. How the snapshot gets there:

* LeasedTask: `request.snapshot`, whole up to 32 KiB (and as long as the request stays within its limit),
  else a reference: job, UID, generation, digest and state, with which the job's status can be read.
* FanOutJob: the same in the request of *every* branch, whole only if all the copies together take 32 KiB.
* Job: a ConfigMap of the same name, immutable, with the whole snapshot in `snapshot.json`, mounted read-only
  at /fencepost in every container.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fencepost.api.batch_job import GROUPS_OF_CONTAINERS
from fencepost.api.manifest import problems_of_template
from fencepost.api.read import Unreadable, job_spec, task_spec
from fencepost.api.write import job_view, owner_reference
from fencepost.kube.stored import first_difference
from fencepost.protocol import limits
from fencepost.protocol.continuation import Found, Seen, snapshot_request
from fencepost.protocol.fanout import continuation_name, owner_of_children
from fencepost.protocol.job import ContinuationKind, Job
from fencepost.protocol.payload import PayloadRefused, canonical_json, request_text

SNAPSHOT_FILE: Final = "snapshot.json"
SNAPSHOT_FOLDER: Final = "/fencepost"
VOLUME: Final = "fencepost-snapshot"
MADE_BY_THE_SERVER: Final = frozenset(
    {
        "batch.kubernetes.io/controller-uid",
        "batch.kubernetes.io/job-name",
        "controller-uid",
        "job-name",
    }
)
"""Labels of a Job and its pods that every Job has with another value."""

Json = dict[str, Any]


class ContinuationUnfit(ValueError):  # noqa: N818 - the sentence a reader sees
    """No object can be made of the template; the message is for the job's condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationObjects:
    """The object to be run, and the ConfigMap that has to be there before it (of a Job alone)."""

    kind: ContinuationKind
    name: str
    body: Json
    config_map: Json | None = None


def objects_of(job: Job) -> ContinuationObjects:
    """What to create for a joined job with its whole status and template.

    Raises `ContinuationUnfit` if the template cannot be used, `ValueError` if there is nothing to be made.
    """
    if job.spec.continuation is None:
        raise ValueError(f"{job.key} has no continuation")
    template: Json = json.loads(job.spec.continuation.template)
    problem = next(problems_of_template(template, "spec.continuation.template"), None)
    if problem is not None:
        raise ContinuationUnfit(problem)
    kind = job.spec.continuation.kind
    body = _owned(job, template)
    spec = body.setdefault("spec", {})
    spec["suspend"] = True
    try:
        config_map = _put_snapshot_into(spec, job, kind)
    except PayloadRefused as refused:
        raise ContinuationUnfit(f"the request with the snapshot in it: {refused}") from None
    return ContinuationObjects(kind=kind, name=continuation_name(job), body=body, config_map=config_map)


def _put_snapshot_into(spec: Json, job: Job, kind: ContinuationKind) -> Json | None:
    """Changes `spec`; the ConfigMap that it needs. Raises `PayloadRefused` if a request gets too large."""
    match kind:
        case ContinuationKind.LEASED_TASK:
            spec["request"] = _request_with_snapshot(job, spec.get("request") or {})
        case ContinuationKind.FAN_OUT_JOB:
            spec["branches"] = _branches_with_snapshot(job, spec.get("branches") or [])
        case ContinuationKind.JOB:
            config_map = _config_map(job)
            _mount(spec, config_map["metadata"]["name"])
            return config_map
    return None


def seen_in(found: Mapping[str, Any] | None, job: Job) -> Seen:
    """What an uncached read of the continuation's name shows, None if nothing is there."""
    if found is None:
        return Seen(found=Found.NOTHING)
    uid = str(found["metadata"]["uid"])
    if not is_owned(found, job):
        return Seen(found=Found.STRANGER, uid=uid)
    suspended = (found.get("spec") or {}).get("suspend") is True
    return Seen(found=Found.SUSPENDED if suspended else Found.RUNNING, uid=uid)


def is_made_of(found: Mapping[str, Any], body: Json) -> bool:
    """Whether what was found has the labels, annotations and spec of `body`, but for `suspend`.

    Of our kinds the whole spec counts, with its defaults. A Job may have more than was sent: the API server
    fills in dozens of fields.
    """
    for part in ("labels", "annotations"):
        texts = _but_what_the_server_makes(body["metadata"].get(part))
        if first_difference(texts, found["metadata"].get(part) or {}, part):
            return False
    sent, kept = _but_suspend(body), _but_suspend(found)
    try:
        match body["kind"]:
            case ContinuationKind.LEASED_TASK:
                return task_spec(sent) == task_spec(kept)
            case ContinuationKind.FAN_OUT_JOB:
                return job_spec(sent) == job_spec(kept)
    except Unreadable:
        return False
    return first_difference(_spec_but_what_the_server_makes(sent), kept, "spec") is None


def _but_suspend(found: Mapping[str, Any]) -> Json:
    return {key: value for key, value in (found.get("spec") or {}).items() if key != "suspend"}


def _spec_but_what_the_server_makes(spec: Json) -> Json:
    kept = {key: value for key, value in spec.items() if key != "selector"}
    metadata: Json = spec["template"].get("metadata") or {}
    if not metadata.get("labels"):
        return kept
    labels = _but_what_the_server_makes(metadata["labels"])
    return {**kept, "template": {**spec["template"], "metadata": {**metadata, "labels": labels}}}


def _but_what_the_server_makes(texts: Json | None) -> Json:
    return {key: text for key, text in (texts or {}).items() if key not in MADE_BY_THE_SERVER}


def trial_of(body: Json) -> Json:
    """The same object under a name that the server makes, for a dry run: it tells what would be stored."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "name"}
    return {**body, "metadata": {**metadata, "generateName": f"{body['metadata']['name']}-"}}


def is_owned(found: Mapping[str, Any], job: Job) -> bool:
    """Whether this very job, by UID, is the controlling owner."""
    owners = found["metadata"].get("ownerReferences") or []
    return any(owner.get("uid") == job.uid and owner.get("controller") is True for owner in owners)


def whole_snapshot(job: Job) -> str:
    """The canonical JSON of the snapshot with every branch, whatever its size."""
    snapshot: Json = json.loads(snapshot_request(job))
    if "branches" not in snapshot:
        snapshot["branches"] = job_view(job)["status"]["branches"]
    return canonical_json(snapshot)


def snapshot_reference(job: Job) -> str:
    """The canonical JSON of the snapshot without its branches."""
    snapshot: Json = json.loads(snapshot_request(job))
    snapshot.pop("branches", None)
    return canonical_json(snapshot)


def _owned(job: Job, template: Json) -> Json:
    metadata = template.get("metadata") or {}
    kept = {key: _not_ours(metadata[key]) for key in ("labels", "annotations") if metadata.get(key)}
    owner = owner_reference(owner_of_children(job))
    made = {"name": continuation_name(job), "namespace": job.key.namespace, "ownerReferences": [owner]}
    body = {key: value for key, value in template.items() if key not in ("metadata", "status")}
    return {**body, "metadata": {**kept, **made}}


def _not_ours(texts: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in texts.items() if not key.startswith(f"{limits.GROUP}/")}


def _request_with_snapshot(job: Job, request: Json) -> Json:
    whole: Json = {**request, "snapshot": json.loads(snapshot_request(job))}
    try:
        request_text(whole)
    except PayloadRefused:
        whole = {**request, "snapshot": json.loads(snapshot_reference(job))}
        request_text(whole)
    return whole


def _branches_with_snapshot(job: Job, branches: list[Json]) -> list[Json]:
    text = snapshot_request(job)
    copies = limits.stored_size(text) * len(branches)
    if copies > limits.SNAPSHOT_IN_REQUEST_BYTES_MAX:
        text = snapshot_reference(job)
    given = [
        {**branch, "request": {**(branch.get("request") or {}), "snapshot": json.loads(text)}}
        for branch in branches
    ]
    for branch in given:
        request_text(branch["request"])
    return given


def _config_map(job: Job) -> Json:
    owned = _owned(job, {"apiVersion": "v1", "kind": "ConfigMap"})
    return {**owned, "immutable": True, "data": {SNAPSHOT_FILE: whole_snapshot(job)}}


def _mount(spec: Json, config_map: str) -> None:
    pod = spec.setdefault("template", {}).setdefault("spec", {})
    volume = {"name": VOLUME, "configMap": {"name": config_map}}
    pod["volumes"] = [*(pod.get("volumes") or []), volume]
    mount = {"name": VOLUME, "mountPath": SNAPSHOT_FOLDER, "readOnly": True}
    for group in GROUPS_OF_CONTAINERS:
        for container in pod.get(group) or []:
            container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
