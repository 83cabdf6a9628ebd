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

from fencepost.api.write import job_view, owner_reference
from fencepost.protocol import limits
from fencepost.protocol.continuation import Found, Seen, snapshot_request
from fencepost.protocol.fanout import continuation_name, owner_of_children
from fencepost.protocol.job import ContinuationKind, Job
from fencepost.protocol.payload import PayloadRefused, canonical_json, request_text

SNAPSHOT_FILE: Final = "snapshot.json"
SNAPSHOT_FOLDER: Final = "/fencepost"
VOLUME: Final = "fencepost-snapshot"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationObjects:
    """The object to be run, and the ConfigMap that has to be there before it (of a Job alone)."""

    kind: ContinuationKind
    name: str
    body: Json
    config_map: Json | None = None


def objects_of(job: Job) -> ContinuationObjects:
    """What to create for a joined job with its whole status and template. Raises `ValueError` otherwise."""
    if job.spec.continuation is None:
        raise ValueError(f"{job.key} has no continuation")
    template: Json = json.loads(job.spec.continuation.template)
    kind = job.spec.continuation.kind
    body = _owned(job, template)
    spec = body.setdefault("spec", {})
    spec["suspend"] = True
    config_map = None
    match kind:
        case ContinuationKind.LEASED_TASK:
            spec["request"] = _request_with_snapshot(job, spec.get("request") or {})
        case ContinuationKind.FAN_OUT_JOB:
            spec["branches"] = _branches_with_snapshot(job, spec.get("branches") or [])
        case ContinuationKind.JOB:
            config_map = _config_map(job)
            _mount(spec, config_map["metadata"]["name"])
    return ContinuationObjects(kind=kind, name=continuation_name(job), body=body, config_map=config_map)


def seen_in(found: Mapping[str, Any] | None, job: Job) -> Seen:
    """What an uncached read of the continuation's name shows, None if nothing is there."""
    if found is None:
        return Seen(found=Found.NOTHING)
    uid = str(found["metadata"]["uid"])
    if not is_owned(found, job):
        return Seen(found=Found.STRANGER, uid=uid)
    suspended = (found.get("spec") or {}).get("suspend") is True
    return Seen(found=Found.SUSPENDED if suspended else Found.RUNNING, uid=uid)


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
        return {**request, "snapshot": json.loads(snapshot_reference(job))}
    return whole


def _branches_with_snapshot(job: Job, branches: list[Json]) -> list[Json]:
    text = snapshot_request(job)
    copies = limits.stored_size(text) * len(branches)
    if copies > limits.SNAPSHOT_IN_REQUEST_BYTES_MAX:
        text = snapshot_reference(job)
    return [
        {**branch, "request": {**(branch.get("request") or {}), "snapshot": json.loads(text)}}
        for branch in branches
    ]


def _config_map(job: Job) -> Json:
    owned = _owned(job, {"apiVersion": "v1", "kind": "ConfigMap"})
    return {**owned, "immutable": True, "data": {SNAPSHOT_FILE: whole_snapshot(job)}}


def _mount(spec: Json, config_map: str) -> None:
    pod = spec.setdefault("template", {}).setdefault("spec", {})
    volume = {"name": VOLUME, "configMap": {"name": config_map}}
    pod["volumes"] = [*(pod.get("volumes") or []), volume]
    mount = {"name": VOLUME, "mountPath": SNAPSHOT_FOLDER, "readOnly": True}
    for group in ("initContainers", "containers"):
        for container in pod.get(group) or []:
            container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
