"""The snapshot that a continuation is given is compared with its hashes, wherever it was read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fencepost.protocol.job import BranchRecord
from fencepost.protocol.join import snapshot_digest
from fencepost.protocol.payload import request_text, sha256_hex
from fencepost.protocol.task import Outcome, Task
from fencepost.worker.snapshot import SnapshotUnavailable, branches_of
from tests.worker.scene import Scene


def entry(value: str, *, payload: str | None = None) -> dict[str, str]:
    hashed = sha256_hex(value if payload is None else payload)
    return {"outcome": "Ok", "payloadSha256": hashed, "receiptSha256": "r", "value": value}


def digest(branches: dict[str, dict[str, str]]) -> str:
    records = {
        name: BranchRecord(
            outcome=Outcome(b["outcome"]), payload_sha256=b["payloadSha256"], receipt_sha256="r"
        )
        for name, b in branches.items()
    }
    return snapshot_digest(records)


def continuation(scene: Scene, branches: dict[str, dict[str, str]], **changes: object) -> Task:
    snapshot = {"job": "job", "jobUid": "uid", "digest": digest(branches), "branches": branches} | changes
    task = scene.store.put("then", {"snapshot": snapshot}, name="t")
    assert json.loads(task.spec.request)["snapshot"]["job"] == "job"
    return task


async def test_small_values_come_with_the_request(scene: Scene) -> None:
    task = continuation(scene, {"b": entry('{"n":1}'), "a": entry("text")})
    branches = await branches_of(scene.store, task)
    assert list(branches) == ["a", "b"]
    assert (branches["a"].value, branches["b"].data) == ("text", {"n": 1})
    with pytest.raises(json.JSONDecodeError):
        _ = branches["a"].data


async def test_a_value_that_does_not_match_its_hash_is_refused(scene: Scene) -> None:
    task = continuation(scene, {"a": entry("changed", payload="as it was joined")})
    with pytest.raises(SnapshotUnavailable, match="the value of branch 'a' is missing or does not match"):
        await branches_of(scene.store, task)


async def test_branches_that_do_not_match_the_digest_are_refused(scene: Scene) -> None:
    task = continuation(scene, {"a": entry("one")}, digest="0" * 64)
    with pytest.raises(SnapshotUnavailable, match="the snapshot's digest is 000"):
        await branches_of(scene.store, task)


async def test_a_job_that_is_gone_cannot_be_read(scene: Scene) -> None:
    task = continuation(scene, {"a": entry("one")})
    request = json.loads(task.spec.request)
    del request["snapshot"]["branches"]
    without = replace(task, spec=replace(task.spec, request=request_text(request)))
    with pytest.raises(SnapshotUnavailable, match="the job default/job that has the snapshot is gone"):
        await branches_of(scene.store, without)
